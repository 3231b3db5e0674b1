//! Reads `[gate]`: how the way to the uplink is opened, and for whom.

use std::path::{Path, PathBuf};

use gateway_core::gate::{By, Network, OpenRule, Ports, Settings};
use gateway_core::strict_toml::Section;

use super::{Config, DhcpMode, is_interface_name, path};

/// Most open rules: a handful for each class.
const RULES_MAX: usize = 64;
/// Longest class name, as in the inventory.
const CLASS_MAX_BYTES: usize = 128;

/// `[gate]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gate {
    /// What opens and closes.
    pub backend: GateBackend,
    /// How long an admission opens, in seconds.
    pub open_secs: u32,
    /// Destinations.
    pub open: Vec<OpenRule>,
}

/// What opens and closes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GateBackend {
    /// Nothing: the way out is somebody else's business.
    None,
    /// The appliance routes.
    NfTables {
        /// The program.
        nft: PathBuf,
        /// Interface that faces the uplink.
        uplink: String,
    },
    /// A program of the operator moves switch ports.
    Hook {
        /// The program.
        program: PathBuf,
    },
}

#[derive(Clone, Copy)]
enum Kind {
    None,
    NfTables,
    Hook,
}

impl Gate {
    /// What the core decides by; none without a gate.
    pub fn settings(&self) -> Option<Settings> {
        let by = match self.backend {
            GateBackend::None => return None,
            GateBackend::NfTables { .. } => By::Address,
            GateBackend::Hook { .. } => By::Port,
        };
        Some(Settings {
            by,
            rules: self.open.clone(),
            open_ms: u64::from(self.open_secs) * 1_000,
        })
    }
}

pub(super) fn read_gate(section: &Section<'_, '_>, base: &Path) -> Option<Gate> {
    let kind = section.choice(
        "backend",
        &[
            ("none", Kind::None),
            ("nftables", Kind::NfTables),
            ("hook", Kind::Hook),
        ],
    );
    let open_secs = section.integer("open_secs", 5..=2_592_000, "seconds");
    let uplink = section.string("uplink").filter(|name| {
        let usable = is_interface_name(name);
        if !usable {
            let expected = "an interface name of 1 to 15 bytes without / or spaces";
            section.mistake("uplink", expected, format!("{name:?}"));
        }
        usable
    });
    let nft = path(section, "nft", base);
    let hook = path(section, "hook", base);
    let open = read_rules(section);
    let backend = match kind.unwrap_or(Kind::None) {
        Kind::None => GateBackend::None,
        Kind::NfTables => {
            if open.is_empty() && !section.has("open") {
                let found = "none: the gate would never open";
                section.mistake("open", "at least one [[gate.open]]", found);
            }
            let uplink = section.required("uplink", "the interface that faces the uplink", uplink);
            GateBackend::NfTables {
                nft: nft.unwrap_or_else(|| PathBuf::from("/usr/sbin/nft")),
                uplink: uplink?,
            }
        }
        Kind::Hook => {
            if section.has("open") {
                let expected = "no [[gate.open]] beside \"hook\": the VLAN decides what is reached";
                section.mistake("open", expected, "some");
            }
            let hook = section.required("hook", "the program that moves a switch port", hook);
            GateBackend::Hook { program: hook? }
        }
    };
    Some(Gate {
        backend,
        open_secs: u32::try_from(open_secs.unwrap_or(86_400)).ok()?,
        open,
    })
}

fn read_rules(section: &Section<'_, '_>) -> Vec<OpenRule> {
    let network = "an IPv4 network without host bits, for example 192.0.2.0/24";
    let port = "a protocol and its ports, for example tcp/6443 or udp/8472-8480";
    let mut rules: Vec<OpenRule> = Vec::new();
    for entry in section.sections("open", RULES_MAX) {
        let class = entry.string("class");
        let class = entry.required("class", "a class, or \"*\" for every class", class);
        let class = class.filter(|class| {
            let usable = !class.is_empty() && class.len() <= CLASS_MAX_BYTES;
            if !usable {
                let expected = format!("1 to {CLASS_MAX_BYTES} bytes");
                entry.mistake("class", expected, format!("{} bytes", class.len()));
            }
            usable
        });
        let to = entry.parsed::<Network>("to", network);
        let to = entry.required("to", network, to);
        let ports = entry.parsed::<Ports>("port", port);
        let ports = entry.required("port", port, ports);
        entry.close();
        let (Some(class), Some(to), Some(ports)) = (class, to, ports) else {
            continue;
        };
        let class = (class != "*").then_some(class);
        let rule = OpenRule { class, to, ports };
        if let Some(other) = rules.iter().find(|other| other.overlaps(&rule)) {
            let expected =
                "destinations that do not overlap for one class: the kernel refuses them";
            let found = format!("{} {} beside {} {}", to, ports, other.to, other.ports);
            entry.mistake("to", expected, found);
        }
        rules.push(rule);
    }
    rules
}

/// What the gate's section needs of the others.
pub(super) fn check_gate(section: &Section<'_, '_>, config: &Config) {
    let GateBackend::NfTables { uplink, .. } = &config.gate.backend else {
        return;
    };
    if *uplink == config.provisioning.interface {
        let expected = "another interface than provisioning.interface";
        section.mistake("uplink", expected, format!("{uplink:?}"));
    }
    if config.provisioning.dhcp_mode == DhcpMode::Proxy {
        let expected = "dhcp_mode = \"server\" beside \"nftables\", which opens leased addresses";
        section.mistake("backend", expected, "\"proxy\"");
    }
}

//! `vestibule.toml`: what the operator decides before the daemon starts.
//!
//! Decides whether the file as a whole makes sense; every mistake is reported at once with line and
//! key path (exit code 2). It deliberately does not know whether ports, devices or files can be
//! used: that is found out by whoever opens them. There is no global config; each part of the
//! daemon receives its own section. Relative paths are resolved against the file's folder.

mod gate;
mod handover;
mod provisioning;
mod spire;
mod talos;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use boot::plan::HttpBoot;
use gateway_core::identity::MacAddr;
use gateway_core::inventory::is_machine_name;
use gateway_core::policy::PRESETS;
pub use gateway_core::policy::Preset;

use gateway_core::strict_toml::{Document, Mistake, Section};
pub use handover::{HandoverFiles, PayloadFile, PayloadSpire};
use netstack::Ipv6Prefix;
pub use spire::{Spire, SpireServer};

pub use gate::{Gate, GateBackend};

pub use self::talos::{Scope as TalosScope, Talos};
use crate::shell::tftp;

/// Where the daemon looks when no `--config` is given.
pub const DEFAULT_PATH: &str = "/etc/vestibule/vestibule.toml";
/// Most fixed addresses: as many as an inventory of one segment may have machines.
const RESERVATIONS_MAX: usize = 16_384;
/// Most DNS servers handed out: more do not fit beside the boot options in 312 bytes of options.
const DNS_MAX: usize = 4;
/// Most addresses of the IPv6 pool: the lease table remembers each that was ever leased.
const POOL6_MAX: usize = 65_536;
/// Most extra names of the admin endpoint.
const NAMES_MAX: usize = 16;
/// Most interfaces that LLDP is spoken on beside the provisioning one: the members of a bond or bridge.
const LLDP_INTERFACES_MAX: usize = 16;

/// The whole configuration, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The appliance itself.
    pub appliance: Appliance,
    /// The segment whose machines are held at the door.
    pub provisioning: Provisioning,
    /// Where administrators come in.
    pub management: Management,
    /// The appliance's own TPM.
    pub tpm: TpmAccess,
    /// Boot artefacts.
    pub boot: BootFiles,
    /// What is declared about machines.
    pub inventory: InventoryFiles,
    /// Appraisal policy.
    pub policy: PolicySource,
    /// The signed ledger.
    pub ledger: LedgerLimits,
    /// DevID keys of the nodes.
    pub devid: DevId,
    /// The way to the uplink.
    pub gate: Gate,
    /// What SPIRE is told, if anything.
    pub spire: Option<Spire>,
    /// What admitted machines are given.
    pub handover: HandoverFiles,
    /// Installing under a grant.
    pub install: Install,
    /// Talos nodes.
    pub talos: Talos,
    /// The daemon's own log.
    pub log: Log,
}

/// `[appliance]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Appliance {
    /// Name in certificates and ledger.
    pub name: String,
    /// The one folder the daemon writes.
    pub state_dir: PathBuf,
}

/// `[provisioning]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Provisioning {
    /// Kernel name of the interface that faces the machines.
    pub interface: String,
    /// Our address and the segment's prefix.
    pub address: Ipv4Cidr,
    /// Whose addresses the machines get.
    pub dhcp_mode: DhcpMode,
    /// Whether BOOTP clients get pool addresses.
    pub bootp_dynamic: bool,
    /// First and last address handed out; none when only reservations are served.
    pub pool: Option<(Ipv4Addr, Ipv4Addr)>,
    /// Lease time in seconds of machines that run their own system.
    pub lease_secs: u32,
    /// Lease time in seconds of firmware, iPXE and machines on their way.
    pub boot_lease_secs: u32,
    /// How long an offer waits for an answer to the ARP probe of its address; 0 for no probe.
    pub conflict_probe_ms: u16,
    /// Seconds between two looks for other DHCP servers; 0 listens only.
    pub rogue_probe_secs: u32,
    /// What a flood of made-up clients may take.
    pub guard: DhcpGuard,
    /// Option 3.
    pub router: Option<Ipv4Addr>,
    /// Option 6.
    pub dns: Vec<Ipv4Addr>,
    /// Option 15.
    pub domain: Option<String>,
    /// Fixed addresses.
    pub reservations: Vec<Reservation>,
    /// IPv6 beside IPv4, where the segment has it.
    pub ipv6: Option<ProvisioningV6>,
    /// Ports on this interface.
    pub ports: ProvisioningPorts,
    /// How TFTP is served.
    pub tftp: Tftp,
    /// What firmware that boots by HTTP gets, and so what plain HTTP serves.
    pub http_boot: HttpBoot,
    /// LLDP on this interface.
    pub lldp: Lldp,
}

/// `provisioning.tftp_*` beside the port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tftp {
    /// One port for all transfers, or one for each.
    pub ports: tftp::Ports,
    /// Largest block; the route's MTU lowers it further.
    pub block_bytes_max: u16,
}

/// `[provisioning.lldp]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lldp {
    /// Announce ourselves.
    pub announce: bool,
    /// Keep neighbours.
    pub listen: bool,
    /// Further interfaces that do the same: members of a bond or bridge, the uplink.
    pub interfaces: Vec<String>,
}

/// `[provisioning.ipv6]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProvisioningV6 {
    /// Our address and the segment's prefix.
    pub address: Ipv6Cidr,
    /// First and last address leased.
    pub pool: (Ipv6Addr, Ipv6Addr),
    /// Option 23.
    pub dns: Vec<Ipv6Addr>,
    /// How long Router Advertisements make us a default router, in seconds; 0 for not at all.
    pub router_lifetime_secs: u16,
}

/// `[provisioning.guard]`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DhcpGuard {
    /// Percent of the pool that is kept for known machines.
    pub reserve_percent: u8,
    /// Addresses that one switch port holds at once, where option 82 names it.
    pub port_addresses_max: u16,
    /// New clients a second of one such port, after a burst of 128.
    pub port_clients_per_sec: u16,
}

/// Whose addresses the machines get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DhcpMode {
    /// Ours: this is the segment's DHCP server.
    Server,
    /// Another server's; we add what to boot (ProxyDHCP).
    Proxy,
}

/// Ports of the provisioning side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProvisioningPorts {
    /// DHCP server, UDP.
    pub dhcp: u16,
    /// TFTP server, UDP.
    pub tftp: u16,
    /// Plain HTTP: refuses, or serves what `http_boot` allows.
    pub http: u16,
    /// HTTPS for firmware and iPXE, TLS 1.2 and 1.3.
    pub boot_https: u16,
    /// HTTPS for attesters, TLS 1.3 only.
    pub attest: u16,
}

/// One fixed address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reservation {
    /// Hardware address of the client.
    pub mac: MacAddr,
    /// The address it always gets.
    pub address: Ipv4Addr,
}

/// `[management]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Management {
    /// Our address on the uplink.
    pub address: IpAddr,
    /// Admin HTTPS, mTLS.
    pub admin_port: u16,
    /// Health and metrics, plain HTTP, no secrets.
    pub health_port: u16,
    /// Further DNS names in the admin certificate, accepted in the `Host` header.
    pub names: Vec<String>,
}

/// `[tpm]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TpmAccess {
    /// TCTI name and configuration as the TSS writes it, for example `device:/dev/tpmrm0`.
    pub tcti: String,
}

/// `[boot]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootFiles {
    /// Folder with `catalog.json`, `catalog.sig` and the artefacts.
    pub image_dir: PathBuf,
    /// Public key (PEM) that signs the catalogue.
    pub image_key: PathBuf,
}

/// `[inventory]`
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct InventoryFiles {
    /// `inventory.toml`, if machines are declared in a file.
    pub file: Option<PathBuf>,
    /// Folder of PEM files with the TPM vendors' roots and intermediates.
    pub ek_roots_dir: Option<PathBuf>,
    /// Folder of their revocation lists.
    pub ek_crls_dir: Option<PathBuf>,
}

/// `[policy]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PolicySource {
    /// A preset that ships with the daemon.
    Preset(Preset),
    /// The owner's own policy file.
    File(PathBuf),
}

/// `[ledger]`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LedgerLimits {
    /// A segment is closed with a checkpoint when it reaches this size.
    pub segment_max_bytes: u64,
    /// Segments whose entries are all older than this many days are removed at a start; none keeps
    /// everything.
    pub keep_days: Option<u32>,
}

/// `[devid]`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DevId {
    /// Which DevID keys are accepted.
    pub kind: DevIdKind,
    /// How the DevID's authValue is kept (docs/PROTOCOL.md section 6).
    pub auth: DevIdAuth,
}

/// Kinds of DevID key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DevIdKind {
    /// RSA-2048 or P-256, the node chooses.
    Any,
    /// P-256 only.
    EccP256,
    /// RSA-2048 only.
    Rsa2048,
}

/// How the DevID's authValue is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DevIdAuth {
    /// Empty authValue: whoever can talk to the TPM can sign. Labelled in receipts.
    None,
    /// Random authValue, handed out only to an attested runtime.
    Pcr,
}

/// Usual life of a grant to install, in seconds: time to fetch an image over a slow link.
const GRANT_SECS: u64 = 1_800;

/// `[install]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Install {
    /// How long something may be begun under one grant, in seconds.
    pub grant_secs: u64,
}

/// `[log]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    /// Shape of a line.
    pub format: LogFormat,
    /// `tracing` filter directives, for example `info,gateway=debug`.
    pub filter: String,
}

/// Shape of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people and the journal.
    Text,
    /// One JSON object per line.
    Json,
}

/// An IPv4 address with the prefix length of its segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ipv4Cidr {
    /// The address.
    pub address: Ipv4Addr,
    /// Prefix length, 8 to 30.
    pub prefix: u8,
}

impl Ipv4Cidr {
    /// Option 1.
    pub fn netmask(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(u32::MAX << (32 - u32::from(self.prefix)))
    }

    /// Network address.
    pub fn network(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.address.to_bits() & self.netmask().to_bits())
    }

    /// Option 28.
    pub fn broadcast(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.network().to_bits() | !self.netmask().to_bits())
    }

    /// Whether `other` is a usable host address of the segment.
    pub fn has_host(self, other: Ipv4Addr) -> bool {
        other > self.network() && other < self.broadcast()
    }
}

impl FromStr for Ipv4Cidr {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (address, prefix) = text.split_once('/').ok_or(())?;
        let cidr = Self {
            address: address.parse().map_err(|_| ())?,
            prefix: prefix.parse().map_err(|_| ())?,
        };
        ((8..=30).contains(&cidr.prefix) && cidr.has_host(cidr.address))
            .then_some(cidr)
            .ok_or(())
    }
}

impl std::fmt::Display for Ipv4Cidr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// An IPv6 address with the prefix length of its segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ipv6Cidr {
    /// The address.
    pub address: Ipv6Addr,
    /// Prefix length, 48 to 120.
    pub prefix_len: u8,
}

impl Ipv6Cidr {
    /// The segment's prefix.
    pub fn prefix(self) -> Ipv6Prefix {
        Ipv6Prefix::new(self.address, self.prefix_len).expect("at most 120 bits")
    }
}

impl FromStr for Ipv6Cidr {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (address, prefix_len) = text.split_once('/').ok_or(())?;
        let cidr = Self {
            address: address.parse().map_err(|_| ())?,
            prefix_len: prefix_len.parse().map_err(|_| ())?,
        };
        // Boot URLs name this address, which a link-local one cannot be used for.
        let usable = (48..=120).contains(&cidr.prefix_len)
            && cidr.prefix().is_host(cidr.address)
            && !cidr.address.is_unicast_link_local()
            && cidr.address.to_ipv4_mapped().is_none();
        usable.then_some(cidr).ok_or(())
    }
}

impl std::fmt::Display for Ipv6Cidr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix_len)
    }
}

/// Why the configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file has mistakes.
    #[error("{} mistake(s) in {}{}", mistakes.len(), path.display(), listed(mistakes))]
    Mistakes {
        /// Which file.
        path: PathBuf,
        /// All of them, in line order.
        mistakes: Vec<Mistake>,
    },
}

fn listed(mistakes: &[Mistake]) -> String {
    mistakes.iter().map(|m| format!("\n  {m}")).collect()
}

impl Config {
    /// Reads and checks the file.
    ///
    /// # Errors
    /// [`LoadError`], with every mistake.
    pub fn load(path: &Path) -> Result<Self, LoadError> {
        let text = std::fs::read_to_string(path).map_err(|source| LoadError::Read {
            path: path.to_owned(),
            source,
        })?;
        let base = path.parent().unwrap_or(Path::new("."));
        Self::parse(&text, base).map_err(|mistakes| LoadError::Mistakes {
            path: path.to_owned(),
            mistakes,
        })
    }

    /// Checks the text; relative paths are resolved against `base`.
    ///
    /// # Errors
    /// Every mistake, in line order.
    pub fn parse(text: &str, base: &Path) -> Result<Self, Vec<Mistake>> {
        let document = Document::parse(text)?;
        let config = read_root(&document.root(), base);
        document.finish(config)
    }
}

/// Reads every section before any `?`, so that one bad section does not hide the next.
fn read_root(root: &Section<'_, '_>, base: &Path) -> Option<Config> {
    let version = root.integer("version", 1..=1, "(the version of this file)");
    root.required("version", "1", version);
    let appliance = in_section(root, "appliance", |s| read_appliance(s, base));
    let provisioning = in_section(root, "provisioning", provisioning::read_provisioning);
    let management = in_section(root, "management", read_management);
    let tpm = in_section(root, "tpm", read_tpm);
    let boot = in_section(root, "boot", |s| read_boot(s, base));
    let inventory = in_section(root, "inventory", |s| {
        Some(InventoryFiles {
            file: path(s, "file", base),
            ek_roots_dir: path(s, "ek_roots_dir", base),
            ek_crls_dir: path(s, "ek_crls_dir", base),
        })
    });
    let policy = in_section(root, "policy", |s| read_policy(s, base));
    let ledger = in_section(root, "ledger", |s| {
        let bytes = s.integer("segment_max_bytes", 65_536..=1 << 32, "bytes");
        let days = s.integer("keep_days", 1..=36_500, "days");
        Some(LedgerLimits {
            segment_max_bytes: bytes.unwrap_or(store::SEGMENT_MAX_BYTES),
            keep_days: days.and_then(|days| u32::try_from(days).ok()),
        })
    });
    let devid = in_section(root, "devid", read_devid);
    let gate = in_section(root, "gate", |s| gate::read_gate(s, base));
    let spire = in_section(root, "spire", |s| spire::read_spire(s, base).ok());
    let handover = in_section(root, "handover", |s| handover::read_handover(s, base));
    let install = in_section(root, "install", |s| {
        let secs = s.integer("grant_secs", 10..=86_400, "s");
        Some(Install {
            grant_secs: secs.unwrap_or(GRANT_SECS),
        })
    });
    let talos = in_section(root, "talos", |s| Some(talos::read(s, base)));
    let log = in_section(root, "log", read_log);
    root.close();
    let config = Config {
        appliance: appliance?,
        provisioning: provisioning?,
        management: management?,
        tpm: tpm?,
        boot: boot?,
        inventory: inventory?,
        policy: policy?,
        ledger: ledger?,
        devid: devid?,
        gate: gate?,
        spire: spire?,
        handover: handover?,
        install: install?,
        talos: talos?,
        log: log?,
    };
    check_sides(&root.section("management"), &config);
    gate::check_gate(&root.section("gate"), &config);
    check_talos(&root.section("talos"), &config);
    Some(config)
}

fn in_section<T>(
    root: &Section<'_, '_>,
    key: &'static str,
    read: impl FnOnce(&Section<'_, '_>) -> Option<T>,
) -> Option<T> {
    let section = root.section(key);
    let value = read(&section);
    section.close();
    value
}

fn path(section: &Section<'_, '_>, key: &'static str, base: &Path) -> Option<PathBuf> {
    let text = section.string(key)?;
    if text.is_empty() || text.contains('\0') {
        section.mistake(key, "a path", format!("{text:?}"));
        return None;
    }
    Some(base.join(text))
}

fn required_path(
    section: &Section<'_, '_>,
    key: &'static str,
    what: &str,
    base: &Path,
) -> Option<PathBuf> {
    let value = path(section, key, base);
    section.required(key, what, value)
}

fn read_appliance(section: &Section<'_, '_>, base: &Path) -> Option<Appliance> {
    let name = section.string("name");
    let name = section.required("name", "the appliance's name", name);
    let name = name.filter(|name| {
        let usable = is_machine_name(name);
        if !usable {
            section.mistake(
                "name",
                "1 to 63 of a-z 0-9 . _ -, starting with a letter or digit",
                format!("{name:?}"),
            );
        }
        usable
    });
    let state_dir = path(section, "state_dir", base);
    Some(Appliance {
        name: name?,
        state_dir: state_dir.unwrap_or_else(|| PathBuf::from("/var/lib/vestibule")),
    })
}

/// A port, or its default; none when the key is wrong.
fn port(section: &Section<'_, '_>, key: &'static str, default: u16) -> Option<u16> {
    match section.integer(key, 1..=65_535, "(a port)") {
        Some(number) => u16::try_from(number).ok(),
        None => Some(default),
    }
}

fn read_management(section: &Section<'_, '_>) -> Option<Management> {
    let address = section.parsed::<IpAddr>("address", "an IP address");
    let address = section.required("address", "our address on the uplink", address);
    let admin_port = port(section, "admin_port", 9443);
    let health_port = port(section, "health_port", 9100);
    let names = section.list::<String>("names", "a DNS name", NAMES_MAX);
    for name in names.iter().filter(|name| !is_dns_name(name)) {
        section.mistake("names", "DNS names", format!("{name:?}"));
    }
    if admin_port.is_some() && admin_port == health_port {
        section.mistake(
            "health_port",
            "a TCP port of its own",
            "the same as admin_port",
        );
    }
    Some(Management {
        address: address?,
        admin_port: admin_port?,
        health_port: health_port?,
        names,
    })
}

/// The admin endpoint must not be reachable from the machines that are held at the door.
fn check_sides(section: &Section<'_, '_>, config: &Config) {
    let management = config.management.address;
    if management.is_unspecified() {
        section.mistake(
            "address",
            "one address of the uplink, so that machines at the door cannot reach it",
            management.to_string(),
        );
    } else if management == IpAddr::V4(config.provisioning.address.address)
        || (config.provisioning.ipv6.iter()).any(|v6| management == IpAddr::V6(v6.address.address))
    {
        section.mistake(
            "address",
            "an address other than the provisioning side's",
            management.to_string(),
        );
    }
}

/// What Talos nodes are served rests on our leases, and listens beside the other ports.
fn check_talos(section: &Section<'_, '_>, config: &Config) {
    let served = config.talos.kms_port.is_some() || config.talos.client_id.is_some();
    if served && config.provisioning.dhcp_mode == DhcpMode::Proxy {
        let expected =
            "neither kms nor device with dhcp_mode = \"proxy\": both ask for our own lease";
        section.mistake("kms", expected, "proxy mode");
    }
    let ports = config.provisioning.ports;
    let taken = [ports.http, ports.boot_https, ports.attest];
    if config
        .talos
        .kms_port
        .is_some_and(|port| taken.contains(&port))
    {
        section.mistake(
            "kms",
            "a TCP port of its own",
            "one of provisioning's ports",
        );
    }
}

fn read_tpm(section: &Section<'_, '_>) -> Option<TpmAccess> {
    let form = "a TCTI, for example \"device:/dev/tpmrm0\" or \"swtpm:host=127.0.0.1,port=2321\"";
    let tcti = section.string("tcti");
    let tcti = section.required("tcti", form, tcti)?;
    let known = ["device", "swtpm", "mssim", "tabrmd"];
    let name = tcti.split(':').next().unwrap_or_default();
    if !known.contains(&name) {
        section.mistake("tcti", form, format!("{tcti:?}"));
        return None;
    }
    Some(TpmAccess { tcti })
}

fn read_boot(section: &Section<'_, '_>, base: &Path) -> Option<BootFiles> {
    let image_dir = required_path(section, "image_dir", "the folder with catalog.json", base);
    let image_key = required_path(
        section,
        "image_key",
        "the public key (PEM) that signs the catalogue",
        base,
    );
    Some(BootFiles {
        image_dir: image_dir?,
        image_key: image_key?,
    })
}

fn read_policy(section: &Section<'_, '_>, base: &Path) -> Option<PolicySource> {
    let preset = section.choice("preset", &PRESETS);
    let file = path(section, "file", base);
    match (preset, file) {
        (Some(preset), None) => Some(PolicySource::Preset(preset)),
        (None, Some(file)) => Some(PolicySource::File(file)),
        (Some(_), Some(_)) => {
            section.mistake("file", "either preset or file", "both");
            None
        }
        (None, None) => {
            // An absent policy refuses: nobody may fall back to a weaker one by a typo.
            section.required::<()>("preset", "a preset (or policy.file)", None);
            None
        }
    }
}

fn read_devid(section: &Section<'_, '_>) -> Option<DevId> {
    let kind = section.choice(
        "kind",
        &[
            ("any", DevIdKind::Any),
            ("ecc-p256", DevIdKind::EccP256),
            ("rsa-2048", DevIdKind::Rsa2048),
        ],
    );
    let auth = section.choice(
        "auth",
        &[("none", DevIdAuth::None), ("pcr", DevIdAuth::Pcr)],
    );
    Some(DevId {
        kind: kind.unwrap_or(DevIdKind::Any),
        auth: auth.unwrap_or(DevIdAuth::None),
    })
}

fn read_log(section: &Section<'_, '_>) -> Option<Log> {
    let format = section.choice(
        "format",
        &[("text", LogFormat::Text), ("json", LogFormat::Json)],
    );
    let filter = section.string("filter").filter(|filter| {
        let parsed = crate::telemetry::filter(filter);
        if parsed.is_err() {
            section.mistake(
                "filter",
                "filter directives, for example \"info,gateway=debug\"",
                format!("{filter:?}"),
            );
        }
        parsed.is_ok()
    });
    Some(Log {
        format: format.unwrap_or(LogFormat::Text),
        filter: filter.unwrap_or_else(|| "info".to_owned()),
    })
}

/// `IFNAMSIZ` is 16 with its NUL; the kernel refuses `/`, `:` and white space.
fn is_interface_name(name: &str) -> bool {
    (1..=15).contains(&name.len())
        && name != "."
        && name != ".."
        && name
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && byte != b'/' && byte != b':')
}

/// A host name of RFC 1123 section 2.1, at most 253 bytes.
fn is_dns_name(name: &str) -> bool {
    (1..=253).contains(&name.len())
        && name.split('.').all(|label| {
            (1..=63).contains(&label.len())
                && !label.starts_with('-')
                && !label.ends_with('-')
                && label
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        })
}

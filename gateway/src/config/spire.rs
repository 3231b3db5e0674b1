//! `[spire]`: where the server is, and what it is to know.

use std::path::{Path, PathBuf};
use std::time::Duration;

use gateway_core::inventory::is_machine_name;
use gateway_core::spire::{MACHINE_PLACE, Selector, Workload};
use gateway_core::strict_toml::Section;

use super::{path, required_path};

/// Most workloads: each is an entry for every machine of its class.
const WORKLOADS_MAX: usize = 64;
/// Most selectors of one.
const SELECTORS_MAX: usize = 16;

/// `[spire]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spire {
    /// Name of the trust domain; empty without a server.
    pub trust_domain: String,
    /// Where the server's API is; none when only the folder of EK hashes is kept.
    pub server: Option<SpireServer>,
    /// Between two looks for agents of machines that left.
    pub sweep: Duration,
    /// Entries below each machine's node alias.
    pub workloads: Vec<Workload>,
    /// `hash_path` of SPIRE's plugin `tpm`.
    pub ek_hash_dir: Option<PathBuf>,
}

/// How the server is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SpireServer {
    /// Its socket on this machine: whoever may open it may do everything.
    Unix(PathBuf),
    /// Its port, with an SVID whose SPIFFE ID the server has among its `admin_ids`.
    Tcp {
        /// `host:port`.
        address: String,
        /// PEM, our X.509-SVID with its intermediates.
        svid: PathBuf,
        /// PEM, its key.
        key: PathBuf,
        /// PEM, the trust domain's bundle.
        bundle: PathBuf,
    },
}

/// None without the section; an error when it has mistakes.
pub(super) fn read_spire(section: &Section<'_, '_>, base: &Path) -> Result<Option<Spire>, ()> {
    if !section.present() {
        return Ok(None);
    }
    let server = section.string("server");
    let trust_domain = section.string("trust_domain");
    let ek_hash_dir = path(section, "ek_hash_dir", base);
    let sweep = section.integer("sweep_secs", 1..=3_600, "seconds");
    let workloads = read_workloads(section);
    let form = "a name of a-z 0-9 . _ - without spiffe://";
    let bad = trust_domain.as_ref().filter(|name| !is_trust_domain(name));
    if let Some(name) = bad {
        section.mistake("trust_domain", form, format!("{name:?}"));
    }
    let server = match server {
        None => {
            if ek_hash_dir.is_none() {
                let what = "the SPIRE server (or ek_hash_dir)";
                section.required::<()>("server", what, None);
            }
            None
        }
        Some(text) => {
            section.required("trust_domain", form, trust_domain.as_ref());
            Some(read_server(section, &text, base).ok_or(())?)
        }
    };
    Ok(Some(Spire {
        trust_domain: trust_domain.unwrap_or_default(),
        server,
        sweep: Duration::from_secs(sweep.unwrap_or(5)),
        workloads: workloads.ok_or(())?,
        ek_hash_dir,
    }))
}

/// SPIFFE-ID section 2.1.
fn is_trust_domain(name: &str) -> bool {
    (1..=255).contains(&name.len())
        && name.bytes().all(|byte| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-".contains(&byte)
        })
}

fn read_server(section: &Section<'_, '_>, text: &str, base: &Path) -> Option<SpireServer> {
    if let Some(socket) = text.strip_prefix("unix:") {
        return Some(SpireServer::Unix(base.join(socket)));
    }
    let port = text
        .rsplit_once(':')
        .and_then(|(_, port)| port.parse().ok());
    if port.is_none_or(|port: u16| port == 0) {
        let form = "\"unix:PATH\" or \"HOST:PORT\"";
        section.mistake("server", form, format!("{text:?}"));
        return None;
    }
    let svid = required_path(section, "svid", "our X.509-SVID (PEM)", base);
    let key = required_path(section, "key", "its key (PEM)", base);
    let bundle = required_path(section, "bundle", "the trust domain's bundle (PEM)", base);
    Some(SpireServer::Tcp {
        address: text.to_owned(),
        svid: svid?,
        key: key?,
        bundle: bundle?,
    })
}

fn read_workloads(section: &Section<'_, '_>) -> Option<Vec<Workload>> {
    let mut workloads: Vec<Workload> = Vec::new();
    let mut whole = true;
    for part in section.sections("workload", WORKLOADS_MAX) {
        let workload = read_workload(&part);
        part.close();
        let Some(workload) = workload else {
            whole = false;
            continue;
        };
        if workloads.iter().any(|other| other.name == workload.name) {
            whole = false;
            part.mistake("name", "a name used once", format!("{:?}", workload.name));
        }
        workloads.push(workload);
    }
    whole.then_some(workloads)
}

fn read_workload(part: &Section<'_, '_>) -> Option<Workload> {
    let name = part.string("name");
    let name = part.required("name", "a name for the entry", name);
    let class = part.string("class");
    let path = part.string("path");
    let path = part.required("path", "the path of its SPIFFE ID", path);
    let ttl = part.integer("x509_svid_ttl_secs", 0..=31_536_000, "seconds");
    let selectors = part.list::<Selector>("selectors", "type:value", SELECTORS_MAX);
    let mut usable = true;
    if let Some(name) = name.as_ref().filter(|name| !is_machine_name(name)) {
        usable = false;
        part.mistake("name", "1 to 63 of a-z 0-9 . _ -", format!("{name:?}"));
    }
    if let Some(path) = path.as_ref().filter(|path| !is_path(path)) {
        usable = false;
        let form = format!(
            "segments of a-z A-Z 0-9 . _ - behind a slash each, one of them with {MACHINE_PLACE}; \
             not below /spire or /node"
        );
        part.mistake("path", form, format!("{path:?}"));
    }
    usable &= !selectors.is_empty();
    if !part.has("selectors") || part.is_empty_list("selectors") {
        part.mistake("selectors", "at least one, type:value", "none");
    }
    let workload = Workload {
        name: name?,
        class,
        path: path?,
        selectors,
        x509_svid_ttl_secs: i32::try_from(ttl.unwrap_or(0)).ok()?,
    };
    usable.then_some(workload)
}

/// SPIFFE-ID section 2.2. Without the machine's name two machines would share an identity.
fn is_path(path: &str) -> bool {
    let filled = path.replace(MACHINE_PLACE, "m");
    let plain = |segment: &str| {
        !segment.is_empty()
            && segment != "."
            && segment != ".."
            && segment
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
    };
    let reserved = ["spire", "node"];
    path.contains(MACHINE_PLACE)
        && filled.len() <= 512
        && filled.strip_prefix('/').is_some_and(|rest| {
            rest.split('/').all(plain)
                && rest
                    .split('/')
                    .next()
                    .is_some_and(|first| !reserved.contains(&first))
        })
}

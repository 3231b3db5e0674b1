//! The boot answer for one machine: provision, local disk, or hold with a reason.
//!
//! Decides from facts and policy alone what a machine boots, and what DHCP tells it at each stage of the same boot:
//! firmware by TFTP, firmware by HTTP, iPXE. Knows no lease, no packet and no file.

use serde::{Deserialize, Serialize};

use crate::arch::Arch;
use crate::catalog::{Artefact, Catalog, Kind, Role};

/// What a machine is told to boot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "plan", rename_all = "snake_case")]
pub enum BootPlan {
    /// Boot our signed attester.
    Provision,
    /// Boot what is installed: no boot file for the firmware, `exit 1` for iPXE.
    LocalDisk,
    /// Do not boot now; the console says why and when it tries again.
    Hold {
        /// One line for the console.
        reason: String,
        /// Seconds until the next attempt.
        retry_secs: u32,
    },
}

/// What a machine's state means for its next boot (docs/PROTOCOL.md section 9).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It has something to prove: declared, discovered, pending, challenged, admitted or installing.
    Attest,
    /// It has an operating system of its own: installed or active.
    Installed,
    /// It may not boot: cordoned, withdrawn, retired, replaced.
    Held {
        /// One line for the console.
        reason: String,
    },
}

/// What is known of the machine that asks. Everything but `standing` is the machine's own word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineFacts {
    /// From its record.
    pub standing: Standing,
    /// From option 93 of the packet at hand, or of the URL; `None` when it said nothing we know.
    pub arch: Option<Arch>,
    /// Option 77 or 175 says iPXE. Looked at before option 60: iPXE still says `PXEClient` there.
    pub is_ipxe: bool,
    /// Option 60 says `HTTPClient`.
    pub is_http_client: bool,
    /// Hardware address, for the script's URL.
    pub mac: Option<[u8; 6]>,
}

/// What firmware that boots by HTTP gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HttpBoot {
    /// The signed UKI over HTTPS: firmware of 2026 and later (ECDHE).
    #[default]
    UkiOverHttps,
    /// The signed iPXE over plain HTTP, which then speaks HTTPS: firmware without ECDHE.
    IpxeOverHttp,
    /// The signed UKI over plain HTTP: firmware without ECDHE whose iPXE does not work either.
    /// Secure Boot alone protects what is loaded.
    UkiOverHttp,
}

/// How this appliance serves boots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootPolicy {
    /// `address[:port]` of the boot HTTPS listener. An address, not a name: firmware has no resolver everywhere.
    pub https_host: String,
    /// `address[:port]` of the plain HTTP listener.
    pub http_host: String,
    /// What HTTP boot gets.
    pub http_boot: HttpBoot,
    /// Seconds between two looks of a held machine.
    pub hold_retry_secs: u32,
}

/// The artefacts that fit one architecture now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Choice<'a> {
    /// First stage for firmware.
    pub ipxe: Option<&'a Artefact>,
    /// Our attester.
    pub uki: Option<&'a Artefact>,
}

impl<'a> Choice<'a> {
    /// The newest usable artefacts of `arch`. `usable` knows the floor and what is withdrawn.
    pub fn newest(
        catalog: &'a Catalog,
        arch: Option<Arch>,
        usable: impl Fn(&Artefact) -> bool,
    ) -> Self {
        let Some(arch) = arch else {
            return Self::default();
        };
        Self {
            ipxe: catalog.newest(Kind::Ipxe, Role::Provision, arch, &usable),
            uki: catalog.newest(Kind::Uki, Role::Provision, arch, &usable),
        }
    }
}

/// What DHCP says about the boot file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BootAnswerFile {
    /// Nothing: firmware goes on to its next boot option.
    None,
    /// A TFTP file name.
    Tftp(String),
    /// A URL, for HTTP boot and for iPXE.
    Url(String),
}

/// Decides what a machine boots.
pub fn plan(facts: &MachineFacts, choice: Choice<'_>, policy: &BootPolicy) -> BootPlan {
    let hold = |reason: String| BootPlan::Hold {
        reason,
        retry_secs: policy.hold_retry_secs.max(1),
    };
    match &facts.standing {
        Standing::Installed => BootPlan::LocalDisk,
        Standing::Held { reason } => hold(reason.clone()),
        Standing::Attest => match (facts.arch, choice.uki) {
            (Some(_), Some(_)) => BootPlan::Provision,
            (Some(Arch::X86Bios), None) => {
                hold("BIOS boot proves nothing: set the machine to UEFI with Secure Boot".into())
            }
            (Some(arch), None) => hold(format!(
                "no usable {arch} attester in the catalogue: add an image or lower the floor"
            )),
            (None, _) => hold("the machine names no architecture we know (option 93)".into()),
        },
    }
}

/// What DHCP answers, given the plan. A held machine gets iPXE as well, since only that can say why.
pub fn boot_answer(
    plan: &BootPlan,
    facts: &MachineFacts,
    choice: Choice<'_>,
    policy: &BootPolicy,
) -> BootAnswerFile {
    if facts.is_ipxe {
        return BootAnswerFile::Url(script_url(policy, facts.arch, facts.mac));
    }
    let first_stage = || {
        let Some(ipxe) = choice.ipxe else {
            return BootAnswerFile::None;
        };
        if facts.is_http_client {
            BootAnswerFile::Url(firmware_url(policy, ipxe))
        } else {
            BootAnswerFile::Tftp(ipxe.file.clone())
        }
    };
    match plan {
        BootPlan::LocalDisk => BootAnswerFile::None,
        BootPlan::Hold { .. } => first_stage(),
        BootPlan::Provision => match choice.uki {
            Some(uki) if facts.is_http_client && policy.http_boot != HttpBoot::IpxeOverHttp => {
                BootAnswerFile::Url(firmware_url(policy, uki))
            }
            _ => first_stage(),
        },
    }
}

/// Where firmware fetches an artefact: plain HTTP only where the owner chose it.
fn firmware_url(policy: &BootPolicy, artefact: &Artefact) -> String {
    match policy.http_boot {
        HttpBoot::UkiOverHttps => artefact_url("https", &policy.https_host, artefact),
        HttpBoot::IpxeOverHttp | HttpBoot::UkiOverHttp => {
            artefact_url("http", &policy.http_host, artefact)
        }
    }
}

/// Where an artefact is fetched: by digest, so that a URL names its bytes.
pub fn artefact_url(scheme: &str, host: &str, artefact: &Artefact) -> String {
    format!(
        "{scheme}://{host}/boot/{}/{}",
        artefact.sha256, artefact.file
    )
}

/// Where iPXE fetches its script.
pub fn script_url(policy: &BootPolicy, arch: Option<Arch>, mac: Option<[u8; 6]>) -> String {
    let mut url = format!("https://{}/boot/script.ipxe", policy.https_host);
    let mut separator = '?';
    if let Some([a, b, c, d, e, f]) = mac {
        url.push_str(&format!(
            "{separator}mac={a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}"
        ));
        separator = '&';
    }
    if let Some(arch) = arch {
        url.push_str(&format!("{separator}arch={arch}"));
    }
    url
}

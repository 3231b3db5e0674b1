//! From a machine's state to what firmware and iPXE are told: steps `discover`, `lease`, `boot`.
//!
//! Gathers the facts; `boot::plan` decides.

use std::net::Ipv4Addr;
use std::sync::Arc;

use boot::arch::{Arch, ClientArch};
use boot::catalog::Catalog;
use boot::plan::{
    BootAnswerFile, BootPlan, BootPolicy, Choice, MachineFacts, Standing, boot_answer, script_url,
};
use netstack::dhcp;

use crate::admission::machine::{Settled, State};
use crate::admission::registry::{Machine, Registry};
use crate::catalog::CatalogEntry;
use crate::identity::MacAddr;

/// Where boot artefacts are.
#[derive(Clone)]
pub struct BootSettings {
    /// Our address on the provisioning segment: the TFTP server.
    pub server_addr: Ipv4Addr,
    /// Hosts of the URLs and what HTTP boot gets.
    pub policy: BootPolicy,
    /// The signed catalogue.
    pub catalog: Arc<Catalog>,
}

/// What a machine's state means for its next boot. An address that no machine is known by has
/// something to prove.
pub fn standing(machine: Option<&Machine>) -> Standing {
    let Some(machine) = machine else {
        return Standing::Attest;
    };
    let held = |why: &str| Standing::Held {
        reason: format!("machine {} is {why}", machine.id),
    };
    match &machine.state {
        State::Declared
        | State::Discovered(_)
        | State::Pending
        | State::Admitted { .. }
        | State::Installing => Standing::Attest,
        State::Installed | State::Active => Standing::Installed,
        State::Challenged { resume } => match resume {
            Settled::Installed | Settled::Active => Standing::Installed,
            Settled::Declared | Settled::Admitted { .. } | Settled::Installing => Standing::Attest,
        },
        // Cordon leaves running workloads: the reboot of an installed machine is not stopped.
        State::Cordoned { resume } => match resume {
            Settled::Installed | Settled::Active => Standing::Installed,
            Settled::Declared | Settled::Admitted { .. } | Settled::Installing => held("cordoned"),
        },
        State::Withdrawn { .. } => held("withdrawn"),
        State::Retired => held("retired"),
        State::Replaced { .. } => held("replaced by another board"),
    }
}

/// The boot answer at this moment.
pub struct Answer<'a> {
    /// All machines.
    pub registry: &'a Registry,
    /// Addresses and catalogue.
    pub boot: &'a BootSettings,
    /// Floors and withdrawals.
    pub rules: &'a [CatalogEntry],
}

impl Answer<'_> {
    /// The newest artefacts of an architecture that pass their floor.
    fn choice(&self, arch: Option<Arch>) -> Choice<'_> {
        Choice::newest(&self.boot.catalog, arch, |artefact| {
            self.rules
                .iter()
                .any(|e| e.artefact.sha256 == artefact.sha256 && e.passes())
        })
    }

    fn facts(&self, mac: MacAddr, arch: Option<Arch>) -> MachineFacts {
        MachineFacts {
            standing: standing(self.registry.by_mac(mac)),
            arch,
            is_ipxe: false,
            is_http_client: false,
            mac: Some(mac.0),
        }
    }

    /// The plan for an address, as a script or a fetch of an artefact asks for it.
    pub fn plan(&self, mac: MacAddr, arch: Option<Arch>) -> BootPlan {
        let facts = self.facts(mac, arch);
        boot::plan::plan(&facts, self.choice(arch), &self.boot.policy)
    }

    /// The iPXE script for an address, and what it does in a word.
    pub fn script(&self, mac: MacAddr, arch: Option<Arch>) -> (String, &'static str) {
        let plan = self.plan(mac, arch);
        let what = match plan {
            BootPlan::Provision => "provision",
            BootPlan::LocalDisk => "local disk",
            BootPlan::Hold { .. } => "hold",
        };
        let again = script_url(&self.boot.policy, arch, Some(mac.0));
        let uki = self.choice(arch).uki;
        match boot::ipxe::render(&plan, uki, &self.boot.policy, &again) {
            Ok(script) => (script, what),
            // A catalogue name that cannot be put in a script: say so on the console instead.
            Err(error) => {
                let hold = BootPlan::Hold {
                    reason: error.to_string(),
                    retry_secs: self.boot.policy.hold_retry_secs,
                };
                let script = boot::ipxe::render(&hold, None, &self.boot.policy, &again);
                (
                    script.unwrap_or_else(|_| "#!ipxe\nexit 1\n".to_owned()),
                    "hold",
                )
            }
        }
    }
}

impl dhcp::BootAnswer for Answer<'_> {
    fn boot(&self, client: &dhcp::ClientInfo) -> dhcp::BootFile {
        let boots = client.is_ipxe || client.is_http_client || client.is_pxe_client;
        if !boots {
            return dhcp::BootFile::None;
        }
        let arch = client
            .arch
            .and_then(ClientArch::from_type)
            .map(|client| client.arch);
        let mut facts = self.facts(MacAddr(client.mac.0), arch);
        facts.is_ipxe = client.is_ipxe;
        facts.is_http_client = client.is_http_client;
        let choice = self.choice(arch);
        let plan = boot::plan::plan(&facts, choice, &self.boot.policy);
        match boot_answer(&plan, &facts, choice, &self.boot.policy) {
            BootAnswerFile::None => dhcp::BootFile::None,
            BootAnswerFile::Tftp(name) => dhcp::BootFile::File {
                next_server: self.boot.server_addr,
                name,
            },
            BootAnswerFile::Url(url) => dhcp::BootFile::Url(url),
        }
    }
}

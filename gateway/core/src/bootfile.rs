//! From a machine's state to what firmware and iPXE are told: steps `discover`, `lease`, `boot`.
//!
//! Gathers the facts; `boot::plan` decides.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use boot::arch::{Arch, ClientArch};
use boot::catalog::Catalog;
use boot::plan::{
    BootAnswerFile, BootPlan, BootPolicy, Choice, MachineFacts, Standing, boot_answer, script_url,
};
use netstack::{dhcp, dhcp6};

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
    /// The same over IPv6, where the segment has it.
    pub v6: Option<BootSettings6>,
    /// The signed catalogue.
    pub catalog: Arc<Catalog>,
}

/// Where boot artefacts are, over IPv6.
#[derive(Clone)]
pub struct BootSettings6 {
    /// Our address on the provisioning segment: the TFTP server.
    pub server_addr: Ipv6Addr,
    /// Hosts of the URLs are address literals in brackets.
    pub policy: BootPolicy,
}

impl BootSettings {
    /// The policy for whoever speaks to us from `peer`: a machine stays with its family.
    fn policy_for(&self, peer: IpAddr) -> &BootPolicy {
        match (peer, &self.v6) {
            (IpAddr::V6(_), Some(v6)) => &v6.policy,
            (IpAddr::V4(_), _) | (IpAddr::V6(_), None) => &self.policy,
        }
    }
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
    pub fn script(&self, mac: MacAddr, arch: Option<Arch>, peer: IpAddr) -> (String, &'static str) {
        let policy = self.boot.policy_for(peer);
        let plan = self.plan(mac, arch);
        let what = match plan {
            BootPlan::Provision => "provision",
            BootPlan::LocalDisk => "local disk",
            BootPlan::Hold { .. } => "hold",
        };
        let again = script_url(policy, arch, Some(mac.0));
        let uki = self.choice(arch).uki;
        match boot::ipxe::render(&plan, uki, policy, &again) {
            Ok(script) => (script, what),
            // A catalogue name that cannot be put in a script: say so on the console instead.
            Err(error) => {
                let hold = BootPlan::Hold {
                    reason: error.to_string(),
                    retry_secs: policy.hold_retry_secs,
                };
                let script = boot::ipxe::render(&hold, None, policy, &again);
                (
                    script.unwrap_or_else(|_| "#!ipxe\nexit 1\n".to_owned()),
                    "hold",
                )
            }
        }
    }
}

impl dhcp::BootAnswer for Answer<'_> {
    /// A machine whose keys an owner bound, by the hardware address it attested with last.
    fn knows(&self, client: &dhcp::ClientInfo) -> bool {
        let machine = self.registry.by_mac(MacAddr(client.mac.0));
        machine.is_some_and(|machine| match &machine.state {
            State::Declared
            | State::Discovered(_)
            | State::Challenged { .. }
            | State::Admitted { .. }
            | State::Installing
            | State::Installed
            | State::Active
            | State::Cordoned { .. } => true,
            State::Pending | State::Withdrawn { .. } | State::Retired | State::Replaced { .. } => {
                false
            }
        })
    }

    fn settled(&self, client: &dhcp::ClientInfo) -> bool {
        let machine = self.registry.by_mac(MacAddr(client.mac.0));
        standing(machine) == Standing::Installed
    }

    fn boot(&self, client: &dhcp::ClientInfo) -> dhcp::BootFile {
        let boots = client.is_ipxe || client.is_http_client || client.is_pxe_client;
        if !boots {
            return dhcp::BootFile::None;
        }
        // A Raspberry Pi's boot ROM says x86 and could run nothing of it.
        let arch = client
            .arch
            .filter(|_| !client.is_raspberry_pi())
            .and_then(ClientArch::from_type)
            .map(|client| client.arch);
        let mut facts = self.facts(MacAddr(client.mac.0), arch);
        facts.is_ipxe = client.is_ipxe;
        facts.is_http_client = client.is_http_client;
        let choice = self.choice(arch);
        let plan = boot::plan::plan(&facts, choice, &self.boot.policy);
        match boot_answer(&plan, &facts, choice, &self.boot.policy) {
            BootAnswerFile::None => dhcp::BootFile::NextDevice,
            BootAnswerFile::Tftp(name) => dhcp::BootFile::File {
                next_server: self.boot.server_addr,
                name,
            },
            BootAnswerFile::Url(url) => dhcp::BootFile::Url(url),
        }
    }
}

impl dhcp6::BootAnswer for Answer<'_> {
    fn boot(&self, client: &dhcp6::ClientInfo) -> dhcp6::BootFile {
        let boots = client.is_ipxe || client.is_http_client || client.is_pxe_client;
        let Some(v6) = self.boot.v6.as_ref().filter(|_| boots) else {
            return dhcp6::BootFile::None;
        };
        let arch = client
            .arch
            .and_then(ClientArch::from_type)
            .map(|client| client.arch);
        let mac = client.mac.map(|mac| MacAddr(mac.0));
        let facts = MachineFacts {
            standing: standing(mac.and_then(|mac| self.registry.by_mac(mac))),
            arch,
            is_ipxe: client.is_ipxe,
            is_http_client: client.is_http_client,
            mac: mac.map(|mac| mac.0),
        };
        let choice = self.choice(arch);
        let plan = boot::plan::plan(&facts, choice, &v6.policy);
        match boot_answer(&plan, &facts, choice, &v6.policy) {
            BootAnswerFile::None => dhcp6::BootFile::None,
            BootAnswerFile::Tftp(name) => {
                dhcp6::BootFile::Url(format!("tftp://[{}]/{name}", v6.server_addr))
            }
            BootAnswerFile::Url(url) => dhcp6::BootFile::Url(url),
        }
    }
}

//! What the gateway tells of itself: machines, images, status. Reads only.

use super::*;

impl Gateway {
    /// All machines, claims included.
    pub fn machines(&self) -> Vec<MachineView> {
        let machines = self.admission.registry().iter();
        machines.map(|machine| self.view(machine)).collect()
    }

    /// One machine's timeline, oldest first.
    pub fn timeline(&self, id: &MachineId) -> Option<Vec<TimelineEntry>> {
        self.admission.registry().timeline(id)
    }

    /// The catalogue.
    pub fn images(&self) -> Vec<ImageView> {
        self.admission
            .rules()
            .catalog
            .iter()
            .map(crate::catalog::CatalogEntry::view)
            .collect()
    }

    /// The appliance in figures.
    pub fn status(&self) -> StatusView {
        let mut machines = std::collections::BTreeMap::new();
        for machine in self.admission.registry().iter() {
            *machines
                .entry(State::name(&machine.state).to_owned())
                .or_default() += 1;
        }
        StatusView {
            appliance: self.appliance.clone(),
            seal: self.seal.clone(),
            ledger_entries: self.out.next_seq(),
            sessions: self.admission.sessions() as u64,
            leases: self.bound_leases(),
            machines,
            refusals: self.admission.refusal_totals().clone(),
            policy_sha256: hex::encode(self.admission.rules().policy.sha256()),
            dhcp: self.dhcp_view(),
            ek_unmatched: self.admission.registry().ek_unmatched().count() as u64,
        }
    }

    fn dhcp_view(&self) -> DhcpView {
        let counters = self.dhcp.counters();
        let in_server_mode = self.dhcp_mode == dhcp::Mode::Server;
        let foreign = |foreign: &dhcp::Foreign| ForeignServerView {
            server: foreign.server,
            mac: MacAddr(foreign.mac.0),
            proxy: foreign.proxy,
            gave: (!foreign.gave.is_unspecified()).then_some(foreign.gave),
            first: UnixMillis(foreign.first_ms),
            last: UnixMillis(foreign.last_ms),
            replies: foreign.replies,
            reason: (in_server_mode || foreign.proxy)
                .then(|| dhcp::Finding::Foreign(foreign.clone()).explain().into()),
        };
        DhcpView {
            mode: if in_server_mode { "server" } else { "proxy" }.to_owned(),
            foreign_servers: self
                .watch
                .iter()
                .flat_map(dhcp::Watch::found)
                .map(foreign)
                .collect(),
            conflicts: counters.conflicts,
            refused: counters
                .refused
                .iter()
                .map(|(code, count)| ((*code).to_owned(), *count))
                .collect(),
        }
    }

    fn view(&self, machine: &Machine) -> MachineView {
        let boot = match standing(Some(machine)) {
            Standing::Attest => "provision".to_owned(),
            Standing::Installed => "local disk".to_owned(),
            Standing::Held { reason } => format!("hold: {reason}"),
        };
        let gate = self.gate.as_ref();
        let gate = gate.map(|gate| match gate.view(&machine.id) {
            Some((until, open)) => MachineGateView {
                until: Some(until),
                open: open.iter().map(ToString::to_string).collect(),
            },
            None => MachineGateView::default(),
        });
        MachineView {
            gate,
            install: self.admission.installs().view(&machine.id),
            ..machine.view(boot)
        }
    }

    /// Leases in force, of both families.
    fn bound_leases(&self) -> u64 {
        let v4 = self.dhcp.leases();
        let v4 = v4.filter(|lease| lease.state == dhcp::LeaseState::Bound);
        let v6 = self.dhcp6.iter().flat_map(dhcp6::Server::leases);
        let v6 = v6.filter(|lease| lease.state == dhcp6::LeaseState::Bound);
        (v4.count() + v6.count()) as u64
    }
}

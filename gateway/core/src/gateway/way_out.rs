//! The gate beside the rest: what happened in a turn, what follows for it, the records, then the changes.

use netstack::dhcp;

use super::Gateway;
use crate::admission::effect::Effect;
use crate::admission::registry::Registry;
use crate::appraisal::EkDirectory as _;
use crate::gate;
use crate::identity::{MacAddr, MachineId, UnixMillis};
use crate::limits;
use crate::outbox::Seen;
use crate::reason::Reason;
use crate::record::Record;

impl Gateway {
    /// Step by step: what happened, what follows for the gate, the records, then the changes.
    pub(super) fn settle_gate(&mut self, now: UnixMillis) {
        let Some(gate) = &mut self.gate else { return };
        let world = GateWorld {
            registry: self.admission.registry(),
            dhcp: &self.dhcp,
        };
        for seen in self.out.take_seen() {
            match seen {
                Seen::Admitted(machine, mac) => {
                    let own = world.owns(&machine, mac);
                    if let Err(reason) = &own
                        && gate.by() == gate::By::Address
                    {
                        self.out.refused(machine.to_string(), vec![reason.clone()]);
                    }
                    gate.admitted(now, &machine, own.ok().map(|()| mac));
                }
                Seen::Refused(machine) => gate.refused(&machine),
                Seen::Acted(machine) | Seen::Issued(machine) => gate.touched(&machine),
                Seen::Lease(addr, mac) => gate.lease(addr, mac),
            }
        }
        let settled = gate.settle(now, &world);
        for machine in settled.full {
            self.out.refused(machine.to_string(), vec![gate_full()]);
        }
        for change in settled.records {
            let record = Record::Gate(change);
            let seq = self.out.record(now, record.clone());
            self.admission.registry_mut().apply(seq, now, &record);
        }
        if !settled.changes.is_empty() {
            self.out.push(Effect::Gate(settled.changes));
        }
    }

    /// What the gate has to have open now, for a start. The same changes are among the first effects;
    /// making them again changes nothing.
    pub fn gate_open(&self, now: UnixMillis) -> Vec<gate::Change> {
        self.gate.iter().flat_map(|gate| gate.open(now)).collect()
    }

    /// Switch ports of machines that are not open: a backend that cannot list has to be told.
    pub fn gate_shut(&self, now: UnixMillis) -> Vec<gate::Element> {
        let by_port = self.gate.as_ref().filter(|g| g.by() == gate::By::Port);
        let open: Vec<gate::Change> = by_port.map_or_else(Vec::new, |gate| gate.open(now));
        let is_open = |id: &MachineId| {
            open.iter()
                .any(|c| matches!(c, gate::Change::Open { machine, .. } if machine == id))
        };
        let machines = by_port
            .iter()
            .flat_map(|_| self.admission.registry().iter());
        machines
            .filter(|machine| !is_open(&machine.id))
            .filter_map(|machine| {
                let port = machine.binding.as_ref()?.port.clone()?;
                let machine = machine.id.clone();
                Some(gate::Element::Port { machine, port })
            })
            .collect()
    }
}

/// What the gate looks up.
struct GateWorld<'a> {
    registry: &'a Registry,
    dhcp: &'a dhcp::Server,
}

impl GateWorld<'_> {
    /// Whether the machine attested by a hardware address that its own evidence names, and that is
    /// no other admitted machine's: what it only says is its own must not open for a neighbour.
    fn owns(&self, id: &MachineId, mac: MacAddr) -> Result<(), Reason> {
        let named = self.registry.get(id).is_some_and(|m| m.macs.contains(&mac));
        let owner = self.registry.directory().mac_owner(mac);
        if named && owner.is_none_or(|owner| owner == *id) {
            return Ok(());
        }
        Err(Reason::new(
            "gate.address",
            "an attestation from a leased address of one of the machine's own interfaces",
            format!("machine {id} by {mac}"),
            "docs/PROTOCOL.md section 6",
            "the gate stays closed for it; a relay that hides hardware addresses needs backend = \"hook\"",
        ))
    }
}

impl gate::World for GateWorld<'_> {
    fn standing(&self, id: &MachineId) -> gate::Standing {
        let Some(machine) = self.registry.get(id) else {
            return gate::Standing::default();
        };
        let binding = machine.binding.as_ref();
        gate::Standing {
            may_pass: machine.state.may_pass() && binding.is_some(),
            class: binding.map_or_else(String::new, |b| b.class.clone()),
            port: binding.and_then(|b| b.port.clone()),
            not_after: machine.state.ldevid_not_after(),
        }
    }

    fn leased(&self, mac: MacAddr) -> Vec<gate::Leased> {
        let own = netstack::MacAddr(mac.0);
        let leases = self.dhcp.leases();
        let leases = leases.filter(|l| l.mac == own && l.state == dhcp::LeaseState::Bound);
        let leased = |lease: &dhcp::Lease| gate::Leased {
            addr: lease.addr,
            ends: UnixMillis(lease.expires_ms),
        };
        leases.map(leased).collect()
    }
}

fn gate_full() -> Reason {
    Reason::new(
        "gate.full",
        format!("at most {} elements", limits::GATE_ELEMENTS_MAX),
        "one machine more",
        "gateway/core/src/limits.rs",
        "use wider destinations in [[gate.open]]: a network instead of hosts, a range instead of ports",
    )
}

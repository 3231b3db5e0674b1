//! What LLDP knows, for status, API and metrics: plain data beside the core.
//!
//! Decides nothing: no admission rests on it. Who heard what is in `netstack::lldp::Agent`; the loop
//! of `shell::lldp` keeps one `Port` per interface up to date, and everybody else looks.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use gateway_core::identity::UnixMillis;
use gateway_core::reason::Reason;
use netstack::lldp::agent::explain_silence;
use netstack::lldp::tlv::Capabilities;
use netstack::lldp::{Agent, Id, IdKind, Neighbour};
use serde::{Deserialize, Serialize};

/// `GET /v1/neighbours`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NeighbourList {
    /// The provisioning interface first.
    pub interfaces: Vec<LldpInterface>,
}

/// LLDP on one interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LldpInterface {
    /// Kernel name.
    pub interface: String,
    /// Driver of the NIC; `bridge` or `bonding` for those; none for other virtual interfaces.
    pub driver: Option<String>,
    /// Whether there is a link partner.
    pub link_up: bool,
    /// Whether we announce ourselves there.
    pub announces: bool,
    /// Whether we listen there.
    pub listens: bool,
    /// Frames sent, received and refused since the start.
    pub sent: u64,
    /// Frames received, refused ones included.
    pub received: u64,
    /// Frames refused.
    pub refused: u64,
    /// When the last frame came.
    pub last_heard: Option<UnixMillis>,
    /// What is wrong: `lldp.silent` or `lldp.interface`.
    pub problem: Option<Reason>,
    /// Who is there.
    pub neighbours: Vec<NeighbourView>,
}

/// One neighbour. Everything in it is text of a stranger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NeighbourView {
    /// `network_device`, `end_station` or `unsaid`, from its capabilities.
    pub role: String,
    /// Ethernet source.
    pub source: String,
    /// VLAN tag of its frame.
    pub vlan: Option<u16>,
    /// Chassis ID.
    pub chassis_id: IdView,
    /// Port ID.
    pub port_id: IdView,
    /// Seconds that its word holds.
    pub ttl: u16,
    /// System name.
    pub system_name: Option<String>,
    /// System description.
    pub system_description: Option<String>,
    /// Port description.
    pub port_description: Option<String>,
    /// Capabilities that are on.
    pub capabilities_enabled: Vec<String>,
    /// Capabilities it could have.
    pub capabilities_supported: Vec<String>,
    /// Management addresses: IP addresses, others as hex.
    pub management_addresses: Vec<String>,
    /// Port VLAN id (802.1).
    pub pvid: Option<u16>,
    /// When it was heard first.
    pub first_heard: UnixMillis,
    /// When its last frame came.
    pub last_heard: UnixMillis,
    /// When it counts as gone.
    pub expires: UnixMillis,
}

/// A Chassis ID or Port ID.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdView {
    /// Name of the subtype in 802.1AB.
    pub subtype: String,
    /// As people write it; octets that are no text as hex.
    pub value: String,
}

/// One interface as the loop keeps it.
pub(crate) struct Port {
    pub agent: Agent,
    pub announces: bool,
    pub listens: bool,
    pub driver: Option<String>,
    pub sent: u64,
    pub received: u64,
    pub refused: u64,
    /// Why the interface cannot be used at the moment.
    pub trouble: Option<String>,
}

/// All interfaces. Cheap to clone.
#[derive(Clone)]
pub struct Neighbours {
    ports: Arc<Vec<Mutex<Port>>>,
    start: Instant,
}

impl Neighbours {
    pub(crate) fn new(ports: Vec<Port>) -> Self {
        Self {
            ports: Arc::new(ports.into_iter().map(Mutex::new).collect()),
            start: Instant::now(),
        }
    }

    /// Interfaces.
    pub(crate) fn len(&self) -> usize {
        self.ports.len()
    }

    /// One of them, held for as long as no I/O is done.
    pub(crate) fn port(&self, index: usize) -> MutexGuard<'_, Port> {
        self.ports[index]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The agents' clock, milliseconds.
    pub(crate) fn now_ms(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// One interface with one neighbour, a switch.
    #[cfg(test)]
    pub(crate) fn of_test() -> Self {
        Self::new(vec![tests::port_with_a_switch()])
    }

    /// Everything, at wall-clock time `wall`.
    pub fn list(&self, wall: UnixMillis) -> NeighbourList {
        let now_ms = self.now_ms();
        let interfaces = (0..self.len()).map(|index| self.port(index).view(now_ms, wall));
        NeighbourList {
            interfaces: interfaces.collect(),
        }
    }
}

impl Port {
    fn view(&self, now_ms: u64, wall: UnixMillis) -> LldpInterface {
        // The agent's clock is monotonic; people read wall-clock time.
        let unix = |ms: u64| {
            let passed = i128::from(now_ms) - i128::from(ms);
            let at = i128::from(wall.0).saturating_sub(passed);
            UnixMillis(u64::try_from(at).unwrap_or(0))
        };
        let agent = &self.agent;
        LldpInterface {
            interface: agent.iface().to_owned(),
            driver: self.driver.clone(),
            link_up: agent.link_up(),
            announces: self.announces,
            listens: self.listens,
            sent: self.sent,
            received: self.received,
            refused: self.refused,
            last_heard: agent.heard_ms().map(unix),
            problem: self.problem(),
            neighbours: agent
                .neighbours(now_ms)
                .map(|neighbour| view(neighbour, unix))
                .collect(),
        }
    }

    fn problem(&self) -> Option<Reason> {
        let iface = self.agent.iface();
        if let Some(trouble) = &self.trouble {
            return Some(Reason::new(
                "lldp.interface",
                format!("interface {iface}, with CAP_NET_RAW"),
                trouble.clone(),
                "docs/OPERATIONS.md, LLDP",
                "look at the interface and at provisioning.lldp.interfaces; it is tried again by itself",
            ));
        }
        let silent = self.agent.silent();
        silent.then(|| explain_silence(iface, self.driver.as_deref()).into())
    }
}

fn view(neighbour: &Neighbour, unix: impl Fn(u64) -> UnixMillis) -> NeighbourView {
    let (frame, pdu) = (&neighbour.frame, neighbour.lldpdu());
    let capabilities = pdu.capabilities.unwrap_or(Capabilities {
        supported: 0,
        enabled: 0,
    });
    let names = |bits| {
        let names = Capabilities::names(bits).into_iter();
        names.map(str::to_owned).collect()
    };
    NeighbourView {
        role: pdu.role().as_str().to_owned(),
        source: frame.source.to_string(),
        vlan: frame.vlan,
        chassis_id: id(&pdu.chassis),
        port_id: id(&pdu.port),
        ttl: pdu.ttl_secs,
        system_name: pdu.system_name.clone(),
        system_description: pdu.system_description.clone(),
        port_description: pdu.port_description.clone(),
        capabilities_enabled: names(capabilities.enabled),
        capabilities_supported: names(capabilities.supported),
        management_addresses: pdu
            .management
            .iter()
            .map(|address| match address.ip() {
                Some(ip) => ip.to_string(),
                None => hex::encode(&address.addr),
            })
            .collect(),
        pvid: pdu.pvid,
        first_heard: unix(neighbour.first_ms),
        last_heard: unix(neighbour.received_ms),
        expires: unix(neighbour.expires_ms),
    }
}

fn id(id: &Id) -> IdView {
    let subtype = match id.kind {
        IdKind::ChassisComponent => "chassis_component",
        IdKind::InterfaceAlias => "interface_alias",
        IdKind::PortComponent => "port_component",
        IdKind::Mac => "mac_address",
        IdKind::NetworkAddress => "network_address",
        IdKind::InterfaceName => "interface_name",
        IdKind::AgentCircuit => "agent_circuit_id",
        IdKind::Local => "locally_assigned",
        IdKind::Reserved(_) => "reserved",
    };
    IdView {
        subtype: subtype.to_owned(),
        value: id.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use netstack::MacAddr;
    use netstack::lldp::agent::Config;
    use netstack::lldp::neighbour::Limits;
    use netstack::lldp::{Frame, Lldpdu};

    use super::*;

    fn port() -> Port {
        let config = Config {
            listen: true,
            limits: Limits::default(),
        };
        Port {
            agent: Agent::new("prov0", config),
            announces: true,
            listens: true,
            driver: Some("i40e".to_owned()),
            sent: 1,
            received: 2,
            refused: 0,
            trouble: None,
        }
    }

    fn switch() -> Vec<u8> {
        let mac = MacAddr([2, 0, 0, 0, 0, 1]);
        let mut pdu = Lldpdu::new(Id::mac(mac), Id::interface("Ethernet1/7"), 120);
        pdu.system_name = Some("leaf-1".to_owned());
        pdu.capabilities = Some(Capabilities {
            supported: 0x14,
            enabled: 0x04,
        });
        pdu.management.push(netstack::lldp::tlv::ManagementAddress {
            family: 1,
            addr: vec![192, 0, 2, 7],
            numbering: 2,
            interface: 1,
            oid: Vec::new(),
        });
        pdu.pvid = Some(20);
        Frame::announce(mac, pdu).encode()
    }

    pub(super) fn port_with_a_switch() -> Port {
        let mut port = port();
        port.agent.handle_link(0, true);
        port.agent.handle_frame(0, &switch()).expect("readable");
        port
    }

    #[test]
    fn a_neighbour_is_shown_in_wall_clock_time() {
        let mut port = port();
        port.agent.handle_link(0, true);
        let bytes = switch();
        port.agent.handle_frame(1_000, &bytes).expect("readable");
        port.agent.handle_frame(31_000, &bytes).expect("readable");
        let view = port.view(41_000, UnixMillis(1_796_040_041_000));
        assert_eq!(view.problem, None);
        assert_eq!(view.last_heard, Some(UnixMillis(1_796_040_031_000)));
        let [neighbour] = view.neighbours.as_slice() else {
            panic!("{view:?}");
        };
        assert_eq!(neighbour.role, "network_device");
        assert_eq!(neighbour.chassis_id.subtype, "mac_address");
        assert_eq!(neighbour.chassis_id.value, "02:00:00:00:00:01");
        assert_eq!(neighbour.port_id.subtype, "interface_name");
        assert_eq!(neighbour.port_id.value, "Ethernet1/7");
        assert_eq!(neighbour.capabilities_enabled, ["bridge"]);
        assert_eq!(neighbour.capabilities_supported, ["bridge", "router"]);
        assert_eq!(neighbour.management_addresses, ["192.0.2.7"]);
        assert_eq!(neighbour.pvid, Some(20));
        assert_eq!(neighbour.first_heard, UnixMillis(1_796_040_001_000));
        assert_eq!(neighbour.expires, UnixMillis(1_796_040_151_000));
        // A clock that was never set does not turn.
        assert_eq!(
            port.view(41_000, UnixMillis(5)).last_heard,
            Some(UnixMillis(0))
        );
    }

    #[test]
    fn silence_and_trouble_are_problems_with_a_next_step() {
        let mut port = port();
        port.agent.handle_link(0, true);
        port.agent.handle_timeout(240_000);
        let problem = port.problem().expect("silent");
        assert_eq!(problem.code, "lldp.silent");
        assert!(problem.next.contains("disable-fw-lldp"), "{problem}");
        port.trouble = Some("there is no network interface \"eno7\"".to_owned());
        assert_eq!(port.problem().expect("trouble").code, "lldp.interface");
    }
}

//! What a neighbour is: a device that forwards, or an end of the line.
//!
//! A switch port is evidence only when a switch names it. Hosts speak LLDP too (an agent in a NIC's
//! firmware, a hypervisor, another server behind a hub), and what they say of themselves is no port.

use std::fmt;

use super::Lldpdu;
use super::tlv::Capabilities;

/// Capability bits (802.1AB-2016 table 8-4) and their names, lowest bit first.
const NAMES: [&str; 11] = [
    "other",
    "repeater",
    "bridge",
    "wlan_access_point",
    "router",
    "telephone",
    "docsis_cable_device",
    "station_only",
    "c_vlan_component",
    "s_vlan_component",
    "two_port_mac_relay",
];

impl Capabilities {
    /// A host and nothing else.
    pub const STATION: u16 = 1 << 7;
    /// Telephone; most have a bridge bit as well.
    const TELEPHONE: u16 = 1 << 5;
    /// Everything that passes frames of others on: repeater, bridge, access point, router, DOCSIS,
    /// C-VLAN, S-VLAN and two-port MAC relay.
    const FORWARDS: u16 =
        1 << 1 | Self::BRIDGE | 1 << 3 | Self::ROUTER | 1 << 6 | 1 << 8 | 1 << 9 | 1 << 10;

    /// Names of the bits that are set, lowest first; bits that the table does not name are left out.
    pub fn names(bits: u16) -> Vec<&'static str> {
        let set = |index: usize| bits & (1 << index) != 0;
        let named = NAMES.iter().enumerate();
        named
            .filter(|(index, _)| set(*index))
            .map(|(_, name)| *name)
            .collect()
    }
}

/// What a neighbour says it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// It forwards: a switch, router, access point.
    NetworkDevice,
    /// It does not: a host or a telephone.
    EndStation,
    /// It does not say.
    Unsaid,
}

impl Role {
    /// Stable word for records and the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NetworkDevice => "network_device",
            Self::EndStation => "end_station",
            Self::Unsaid => "unsaid",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Lldpdu {
    /// From the System Capabilities TLV. Some switches leave "enabled" empty: then what they could be
    /// counts. One forwarding bit decides, since "station only" is not to stand beside another.
    pub fn role(&self) -> Role {
        let Some(Capabilities { supported, enabled }) = self.capabilities else {
            return Role::Unsaid;
        };
        let bits = if enabled == 0 { supported } else { enabled };
        if bits & Capabilities::FORWARDS != 0 {
            Role::NetworkDevice
        } else if bits & (Capabilities::STATION | Capabilities::TELEPHONE) != 0 {
            Role::EndStation
        } else {
            Role::Unsaid
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MacAddr;
    use crate::lldp::Id;

    #[test]
    fn roles() {
        let table = [
            (None, Role::Unsaid),
            (Some((0, 0)), Role::Unsaid),
            (Some((1, 1)), Role::Unsaid),
            (Some((0x14, 0x04)), Role::NetworkDevice),
            (Some((0x14, 0x10)), Role::NetworkDevice),
            // Only what it could be is said.
            (Some((0x04, 0)), Role::NetworkDevice),
            (Some((0x80, 0x80)), Role::EndStation),
            // lldpd on a host: could be much, is a station.
            (Some((0x9c, 0x80)), Role::EndStation),
            (Some((0x20, 0x20)), Role::EndStation),
            // A telephone with a port for a computer.
            (Some((0x24, 0x24)), Role::NetworkDevice),
            (Some((0x100, 0x100)), Role::NetworkDevice),
        ];
        for (bits, role) in table {
            let mut pdu = Lldpdu::new(Id::mac(MacAddr([2, 0, 0, 0, 0, 1])), Id::local("1"), 120);
            pdu.capabilities = bits.map(|(supported, enabled)| Capabilities { supported, enabled });
            assert_eq!(pdu.role(), role, "{bits:x?}");
        }
    }

    #[test]
    fn names_of_bits() {
        assert_eq!(Capabilities::names(0x14), ["bridge", "router"]);
        assert_eq!(Capabilities::names(0x80), ["station_only"]);
        assert_eq!(Capabilities::names(0xf800), [""; 0]);
        assert_eq!(Capabilities::names(u16::MAX).len(), NAMES.len());
    }
}

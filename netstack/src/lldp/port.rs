//! Whether a neighbour's port is the declared one, by its Port ID or, named as such, by its port
//! description.
//!
//! Switches disagree on which of their two names goes where. SONiC sends its alias (`etp1`,
//! `Eth1/1`) as a local Port ID and the interface's name (`Ethernet0`) as description; Junos sends
//! the SNMP index as a local Port ID and `xe-0/0/14.0` as description; others send a hardware
//! address. Inventories have either.

use super::id::compare_text;
use super::{Comparison, IdKind, Lldpdu, Tolerance, compare};

/// Compares a declared port (inventory text) with what a neighbour said.
///
/// The Port ID decides. When it is something else, the port description may say that it is the
/// declared port: in every way of writing that [`compare`] knows, unless the Port ID is an
/// interface name already, where only the very text counts (a description is free text there).
/// [`Tolerance::PortDescription`] stands first in the result then.
pub fn compare_port(declared: &str, heard: &Lldpdu) -> Comparison {
    let by_id = compare(declared, &heard.port);
    let Some(description) = heard.port_description.as_deref() else {
        return by_id;
    };
    if by_id.matches() || declared.trim().is_empty() {
        return by_id;
    }
    match compare_text(declared, description) {
        Comparison::Same => Comparison::Tolerated(vec![Tolerance::PortDescription]),
        Comparison::Tolerated(how)
            if heard.port.kind != IdKind::InterfaceName || how == [Tolerance::Case] =>
        {
            let mut tolerated = vec![Tolerance::PortDescription];
            tolerated.extend(how);
            Comparison::Tolerated(tolerated)
        }
        Comparison::Tolerated(_) | Comparison::Different => Comparison::Different,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MacAddr;
    use crate::lldp::Id;

    fn heard(port: Id, description: Option<&str>) -> Lldpdu {
        let mut pdu = Lldpdu::new(Id::local("sw1"), port, 120);
        pdu.port_description = description.map(str::to_owned);
        pdu
    }

    #[test]
    fn sonic_alias_and_its_like_through_the_description() {
        use Tolerance::{Abbreviation, Case, PortDescription, UnitZero};
        let mac = Id::mac(MacAddr([2, 0, 0, 0, 0, 1]));
        let table: [(&str, Id, &str, Option<&[Tolerance]>); 14] = [
            // SONiC: the alias as Port ID, ifName as description; either may be declared.
            (
                "Ethernet0",
                Id::local("etp1"),
                "Ethernet0",
                Some(&[PortDescription]),
            ),
            ("etp1", Id::local("etp1"), "Ethernet0", Some(&[])),
            ("Eth1/1", Id::local("Eth1/1"), "Ethernet0", Some(&[])),
            (
                "Ethernet1/1",
                Id::local("Eth1/1"),
                "Ethernet0",
                Some(&[Abbreviation]),
            ),
            (
                "Ethernet0",
                Id::local("fortyGigE0/0"),
                "Ethernet0",
                Some(&[PortDescription]),
            ),
            ("Ethernet4", Id::local("etp1"), "Ethernet0", None),
            // Junos: an index as Port ID.
            (
                "xe-0/0/14",
                Id::local("504"),
                "xe-0/0/14.0",
                Some(&[PortDescription, UnitZero]),
            ),
            ("xe-0/0/1", Id::local("504"), "xe-0/0/14.0", None),
            // A hardware address as Port ID.
            (
                "Gi1/0/2",
                mac.clone(),
                "GigabitEthernet1/0/2",
                Some(&[PortDescription, Abbreviation]),
            ),
            ("Gi1/0/2", mac, "to rack 4", None),
            // An interface name as Port ID: the description is free text, only the same text counts.
            (
                "to rack 4",
                Id::interface("Eth1/1"),
                "to rack 4",
                Some(&[PortDescription]),
            ),
            (
                "To Rack 4",
                Id::interface("Eth1/1"),
                "to rack 4",
                Some(&[PortDescription, Case]),
            ),
            ("Eth1/2", Id::interface("Ethernet1/1"), "Ethernet1/2", None),
            ("", Id::local("etp1"), "", None),
        ];
        for (declared, port, description, want) in table {
            let want = match want {
                None => Comparison::Different,
                Some([]) => Comparison::Same,
                Some(tolerated) => Comparison::Tolerated(tolerated.to_vec()),
            };
            let pdu = heard(port, Some(description));
            assert_eq!(
                compare_port(declared, &pdu),
                want,
                "{declared:?} and {pdu:?}"
            );
        }
    }

    #[test]
    fn rejects_without_a_description() {
        let pdu = heard(Id::local("etp1"), None);
        assert_eq!(compare_port("Ethernet0", &pdu), Comparison::Different);
    }
}

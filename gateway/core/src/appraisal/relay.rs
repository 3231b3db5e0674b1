//! Row 13's second witness: what a switch or relay agent put beside the machine's last lease.
//!
//! Option 82 (RFC 3046) is free text of the operator's network, and as little authenticated as LLDP;
//! but it comes from the other side of the cable, so the two lie together only by agreement. Compares
//! it with one LLDP neighbour and says which parts it understood. What it does not understand is no
//! disagreement.

use netstack::MacAddr;
use netstack::lldp::{Id, Lldpdu, compare, compare_port};

use crate::identity;

/// Option 82 of the lease by which a machine is known, as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayWord {
    /// Hardware address of the lease.
    pub mac: identity::MacAddr,
    /// Sub-option 1, agent circuit id: the port.
    pub circuit_id: Option<Vec<u8>>,
    /// Sub-option 2, agent remote id: the switch, or whatever the operator made of it.
    pub remote_id: Option<Vec<u8>>,
}

/// How option 82 stands to a neighbour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Agreement {
    /// Its circuit id is the neighbour's port.
    Port,
    /// Its remote id is the neighbour's chassis; its circuit id cannot be compared.
    Chassis,
    /// Its circuit id names another port of the same kind.
    Other,
    /// Nothing in it can be compared.
    Nothing,
}

impl RelayWord {
    /// Both ids on one line; octets that are no text as hex.
    pub(super) fn text(&self) -> String {
        let circuit = self.circuit_id.as_deref().map(|id| ("circuit id", id));
        let remote = self.remote_id.as_deref().map(|id| ("remote id", id));
        let parts: Vec<String> = [circuit, remote]
            .into_iter()
            .flatten()
            .map(|(name, id)| match (text_of(id), module_port(id)) {
                (Some(text), _) => format!("{name} {text}"),
                (None, Some((vlan, module, port))) => {
                    format!("{name} VLAN {vlan} module {module} port {port}")
                }
                (None, None) => format!("{name} {}", hex::encode(id)),
            })
            .collect();
        parts.join(", ")
    }

    /// Whether its circuit id names a port of the same kind as the declared ones (`chassis/port`, commas
    /// between) and none of them. What cannot be compared contradicts nothing.
    pub fn contradicts(&self, declared: &str) -> bool {
        let words = self.circuit_id.as_deref().map(words).unwrap_or_default();
        let ports = declared
            .split(',')
            .filter_map(|one| one.trim().split_once('/'));
        let ports: Vec<&str> = ports.map(|(_, port)| port).collect();
        let named = |word: &String, port: &&str| compare(word, &Id::interface(port)).matches();
        let same = words
            .iter()
            .any(|word| ports.iter().any(|port| named(word, port)));
        let kin = words
            .iter()
            .any(|word| ports.iter().any(|port| same_kind(word, port)));
        kin && !same
    }

    pub(super) fn compare(&self, pdu: &Lldpdu) -> Agreement {
        let words = self.circuit_id.as_deref().map(words).unwrap_or_default();
        if words.iter().any(|word| compare_port(word, pdu).matches()) {
            return Agreement::Port;
        }
        if words
            .iter()
            .any(|word| same_kind(word, &pdu.port.to_string()))
        {
            return Agreement::Other;
        }
        match self.remote_id.as_deref() {
            Some(id) if is_chassis(id, pdu) => Agreement::Chassis,
            Some(_) | None => Agreement::Nothing,
        }
    }
}

/// Text of an id: as it stands, or behind type 1 and a length, as several vendors wrap it.
fn text_of(id: &[u8]) -> Option<&str> {
    let inner = match id {
        [1, len, text @ ..] if usize::from(*len) == text.len() => text,
        other => other,
    };
    let text = std::str::from_utf8(inner).ok()?.trim_end_matches('\0');
    let printable = !text.is_empty() && !text.chars().any(char::is_control);
    printable.then_some(text)
}

/// Type 0: VLAN, module and port, which count as the vendor's hardware does. They do not follow the
/// names of the ports, so they are shown and never compared.
fn module_port(id: &[u8]) -> Option<(u16, u8, u8)> {
    match *id {
        [0, 4, a, b, module, port] => Some((u16::from_be_bytes([a, b]), module, port)),
        _ => None,
    }
}

/// The circuit id as a whole, and its parts that could name a port: relays join host name, port and
/// VLAN with one of these characters. A bare number may be anything, so it counts only alone.
fn words(id: &[u8]) -> Vec<String> {
    let Some(text) = text_of(id) else {
        return Vec::new();
    };
    let parts = text
        .split([' ', ':', '|', ',', ';', '@'])
        .filter(|part| part.chars().any(|c| c.is_ascii_alphabetic()));
    std::iter::once(text)
        .chain(parts)
        .map(str::to_owned)
        .collect()
}

/// Whether both are names of ports of one kind (`Eth1/9` and `Ethernet1/7`): only then is another
/// number another port. `Vlan100` is no port of the kind `Ethernet`.
fn same_kind(word: &str, port: &str) -> bool {
    let kind = |name: &str| {
        let digits = name.find(|c: char| c.is_ascii_digit())?;
        let letters = name.get(..digits)?.trim_end_matches(['-', ' ', '/', '_']);
        (!letters.is_empty()).then(|| letters.to_owned())
    };
    match (kind(word), kind(port)) {
        (Some(word), Some(port)) => {
            compare(&format!("{word}0"), &Id::interface(&format!("{port}0"))).matches()
        }
        _ => false,
    }
}

fn is_chassis(id: &[u8], pdu: &Lldpdu) -> bool {
    let mac = match *id {
        [0, 6, a, b, c, d, e, f] | [a, b, c, d, e, f] => Some(MacAddr([a, b, c, d, e, f])),
        _ => None,
    };
    if mac.is_some() && mac == pdu.chassis.as_mac() {
        return true;
    }
    text_of(id).is_some_and(|text| {
        let name = pdu.system_name.as_deref();
        compare(text, &pdu.chassis).matches() || name.is_some_and(|n| n.eq_ignore_ascii_case(text))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHASSIS: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xaa]);

    fn neighbour(port: &str) -> Lldpdu {
        let mut pdu = Lldpdu::new(Id::mac(CHASSIS), Id::interface(port), 120);
        pdu.system_name = Some("leaf-1".to_owned());
        pdu.port_description = Some("etp7a".to_owned());
        pdu
    }

    fn word(circuit: &[u8], remote: &[u8]) -> RelayWord {
        let some = |id: &[u8]| (!id.is_empty()).then(|| id.to_vec());
        RelayWord {
            mac: identity::MacAddr([2, 0, 0, 0, 0, 1]),
            circuit_id: some(circuit),
            remote_id: some(remote),
        }
    }

    #[test]
    fn what_switches_of_the_field_write() {
        use Agreement::{Chassis, Nothing, Other, Port};
        let wrapped = [&[1, 6][..], b"Eth1/7"].concat();
        let cisco_mac = [&[0, 6][..], &CHASSIS.0].concat();
        let rows: [(&[u8], &[u8], &str, Agreement); 18] = [
            (b"Ethernet1/7", b"", "Ethernet1/7", Port),
            (b"Eth1/7", b"", "Ethernet1/7", Port),
            (&wrapped, b"", "Ethernet1/7", Port),
            (b"leaf-1:Ethernet1/7:Vlan100", b"", "Ethernet1/7", Port),
            (b"Ethernet1/7|100", b"", "Ethernet1/7", Port),
            (b"ge-0/0/1.0:v100", b"", "ge-0/0/1", Port),
            (b"etp7a", b"", "Ethernet24", Port),
            (b"7", b"", "7", Port),
            (b"Eth1/9", b"leaf-1", "Ethernet1/7", Other),
            (b"swp3", b"", "swp1", Other),
            (b"leaf-1:Ethernet1/9:Vlan100", b"", "Ethernet1/7", Other),
            // Another kind, a bare number among others, octets: nothing follows.
            (b"Vlan100", b"", "Ethernet1/7", Nothing),
            (b"100:7", b"", "7", Nothing),
            (&[0, 4, 0, 100, 1, 7], b"", "Ethernet1/7", Nothing),
            (&[0, 4, 0, 100, 1, 9], &cisco_mac, "Ethernet1/7", Chassis),
            (b"Vlan100", b"LEAF-1", "Ethernet1/7", Chassis),
            (b"", &CHASSIS.0, "Ethernet1/7", Chassis),
            (b"", b"spine-9", "Ethernet1/7", Nothing),
        ];
        for (circuit, remote, port, expected) in rows {
            let said = word(circuit, remote);
            assert_eq!(said.compare(&neighbour(port)), expected, "{}", said.text());
        }
    }

    #[test]
    fn both_ids_are_shown() {
        let said = word(&[0, 4, 0, 100, 1, 7], b"leaf-1");
        assert_eq!(
            said.text(),
            "circuit id VLAN 100 module 1 port 7, remote id leaf-1"
        );
        assert_eq!(word(b"\x01\x1b", b"").text(), "circuit id 011b");
    }
}

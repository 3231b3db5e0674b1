//! Where a machine says that it is plugged in: LLDP frames and option 82, both unauthenticated. The
//! liar's port is declared, and its class refuses by it.

use anyhow::Result;
use attest_wire::v1::{Hello, LldpReport};
use netstack::MacAddr;
use netstack::lldp::tlv::Capabilities;
use netstack::lldp::{Frame, Id, Lldpdu};

use super::liar::{Liar, heard};
use super::scene::PORT;
use crate::switch::{CHASSIS, SWITCH_NAME, lldp_frame};

/// TLV types (IEEE 802.1AB table 8-1).
const PORT_ID: u8 = 2;
const SYSTEM_NAME: u8 = 5;
/// A port of the same switch that is not ours.
const OTHER_PORT: &str = "Ethernet1/9";

pub fn attack_27_lldp_of_another_port(liar: &mut Liar<'_, '_>) -> Result<()> {
    let ours = lldp_frame(PORT, 120);
    let other = lldp_frame(OTHER_PORT, 120);
    let stale = LldpReport {
        age_ms: 120_001,
        ..heard(ours.clone())
    };
    for (lie, code, lldp) in [
        ("nothing heard", "port.unseen", Vec::new()),
        (
            "a forged other port",
            "port.mismatch",
            vec![heard(other.clone())],
        ),
        (
            "a host with the port's name",
            "port.not_switch",
            vec![heard(host())],
        ),
        ("older than its TTL", "port.stale", vec![stale]),
        (
            "two neighbours",
            "port.ambiguous",
            vec![heard(ours.clone()), heard(other.clone())],
        ),
        (
            "another port in a VLAN",
            "port.mismatch",
            vec![heard(tagged(&other))],
        ),
        (
            "a second neighbour in a VLAN",
            "port.ambiguous",
            vec![heard(ours.clone()), heard(tagged(&other))],
        ),
        (
            "a port id beyond the end of its frame",
            "port.stale",
            vec![heard(oversized(&ours, PORT_ID))],
        ),
        (
            "another port, and a name beyond the end of its frame",
            "port.mismatch",
            vec![heard(oversized(&other, SYSTEM_NAME))],
        ),
    ] {
        let hello = Hello {
            lldp,
            ..liar.hello.clone()
        };
        liar.refused_after(&hello, lie, code, |_, _, _, _| Ok(()))?;
    }
    let mut long = ours.clone();
    long.resize(1_601, 0);
    let many = vec![heard(ours); 17];
    for (lie, code, lldp) in [
        (
            "a frame of 1,601 bytes",
            "malformed.field",
            vec![heard(long)],
        ),
        ("17 frames", "malformed.count", many),
    ] {
        let hello = Hello {
            lldp,
            ..liar.hello.clone()
        };
        liar.hello_refused(lie, code, &hello)?;
    }
    Ok(())
}

pub fn attack_28_option_82_that_disagrees_with_lldp(liar: &mut Liar<'_, '_>) -> Result<()> {
    liar.machine.lease_behind(&relayed("Eth1/9"))?;
    let hello = liar.hello.clone();
    liar.refused_after(
        &hello,
        "option 82 names another port",
        "port.option82",
        |_, _, _, _| Ok(()),
    )?;
    liar.machine.lease_behind(&relayed("Eth1/2"))?;
    liar.truth_passes()
}

/// Circuit id and remote id (RFC 3046 section 3).
fn relayed(circuit: &str) -> Vec<u8> {
    let mut option = Vec::new();
    for (kind, text) in [(1, circuit), (2, SWITCH_NAME)] {
        option.extend([kind, text.len() as u8]);
        option.extend(text.as_bytes());
    }
    option
}

/// A host that gives itself the names of switch and port.
fn host() -> Vec<u8> {
    let mut pdu = Lldpdu::new(Id::mac(MacAddr(CHASSIS)), Id::interface(PORT), 120);
    pdu.system_name = Some(SWITCH_NAME.to_owned());
    pdu.capabilities = Some(Capabilities {
        supported: Capabilities::STATION,
        enabled: Capabilities::STATION,
    });
    Frame::announce(MacAddr(CHASSIS), pdu).encode()
}

/// The frame in VLAN 100 (IEEE 802.1Q).
fn tagged(frame: &[u8]) -> Vec<u8> {
    let mut tagged = frame.to_vec();
    tagged.splice(12..12, [0x81, 0x00, 0, 100]);
    tagged
}

/// The frame with a TLV of this type that says 511 bytes (IEEE 802.1AB clause 8.4). What is optional is left
/// out with all behind it, the rest counts.
fn oversized(frame: &[u8], kind: u8) -> Vec<u8> {
    let mut long = frame.to_vec();
    let mut at = 14;
    while let Some([head, len]) = long.get_mut(at..at + 2) {
        if *head >> 1 == kind {
            (*head, *len) = (kind << 1 | 1, 0xff);
            break;
        }
        at += 2 + (usize::from(*head & 1) << 8 | usize::from(*len));
    }
    long
}

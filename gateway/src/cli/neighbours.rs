//! `vestibule neighbours`: which switch port each of the appliance's cables ends at.

use std::fmt::Write as _;

use super::client::Client;
use super::machine::plain;
use super::{Desk, Exit, Failure, Output};
use crate::neighbours::{LldpInterface, NeighbourList, NeighbourView};

/// `vestibule neighbours`
pub(super) fn run(out: &Output, desk: &Desk) -> Result<Exit, Failure> {
    let list: NeighbourList = Client::open(desk)?.get("/v1/neighbours")?;
    out.print(&list, || {
        let mut text = String::new();
        for interface in &list.interfaces {
            show(&mut text, interface);
        }
        if text.is_empty() {
            text.push_str("LLDP is switched off (provisioning.lldp)\n");
        }
        text
    });
    Ok(Exit::Done)
}

/// One line for each neighbour and problem, for `vestibule status`.
pub(super) fn lines(list: &NeighbourList) -> Vec<String> {
    let mut lines = Vec::new();
    for interface in &list.interfaces {
        let name = &interface.interface;
        for neighbour in &interface.neighbours {
            lines.push(format!("{name}: {}", whom(neighbour)));
        }
        if let Some(problem) = &interface.problem {
            lines.push(format!("{name}: {}", plain(&problem.to_string())));
        } else if interface.neighbours.is_empty() {
            let why = if interface.link_up {
                "nobody heard"
            } else {
                "no link"
            };
            lines.push(format!("{name}: {why}"));
        }
    }
    lines
}

/// `switch/port (role)`.
fn whom(neighbour: &NeighbourView) -> String {
    let chassis = &neighbour.chassis_id.value;
    let name = neighbour.system_name.as_ref().unwrap_or(chassis);
    plain(&format!(
        "{name}/{} ({})",
        neighbour.port_id.value, neighbour.role
    ))
}

fn show(text: &mut String, interface: &LldpInterface) {
    let word = |on: bool, yes, no| if on { yes } else { no };
    let _ = writeln!(
        text,
        "{}: link {}, {}, {}; {} sent, {} received, {} refused",
        interface.interface,
        word(interface.link_up, "up", "down"),
        word(interface.announces, "announces", "does not announce"),
        word(interface.listens, "listens", "does not listen"),
        interface.sent,
        interface.received,
        interface.refused
    );
    if let Some(problem) = &interface.problem {
        let _ = writeln!(text, "  {}", plain(&problem.to_string()));
    }
    for neighbour in &interface.neighbours {
        let _ = writeln!(text, "  {}", whom(neighbour));
        let mut field = |name: &str, value: &str| {
            if !value.is_empty() {
                let _ = writeln!(text, "    {name:<12} {}", plain(value));
            }
        };
        for (name, id) in [
            ("chassis", &neighbour.chassis_id),
            ("port", &neighbour.port_id),
        ] {
            field(name, &format!("{} {}", id.subtype, id.value));
        }
        let some = |text: &Option<String>| text.clone().unwrap_or_default();
        field("description", &some(&neighbour.system_description));
        field("port is", &some(&neighbour.port_description));
        field("can", &neighbour.capabilities_enabled.join(" "));
        field("management", &neighbour.management_addresses.join(" "));
        let number = |number: Option<u16>| number.map_or(String::new(), |n| n.to_string());
        field("port VLAN", &number(neighbour.pvid));
        field("frame VLAN", &number(neighbour.vlan));
        let holds = neighbour.expires.0.saturating_sub(neighbour.last_heard.0) / 1_000;
        field("holds for", &format!("{holds} s from its last frame"));
    }
}

#[cfg(test)]
mod tests {
    use gateway_core::identity::UnixMillis;

    use super::*;
    use crate::neighbours::Neighbours;

    #[test]
    fn shows_the_switch_and_hides_control_characters() {
        let mut list = Neighbours::of_test().list(UnixMillis(1_796_040_000_000));
        list.interfaces[0].neighbours[0].system_description = Some("a\u{1b}[2Jb".to_owned());
        let mut text = String::new();
        show(&mut text, &list.interfaces[0]);
        for part in [
            "prov0: link up, announces, listens",
            "leaf-1/Ethernet1/7 (network_device)",
            "mac_address 02:00:00:00:00:01",
            "holds for    120 s",
            "a\u{fffd}[2Jb",
        ] {
            assert!(text.contains(part), "{part} is missing: {text}");
        }
        assert_eq!(lines(&list), ["prov0: leaf-1/Ethernet1/7 (network_device)"]);
    }

    #[test]
    fn an_interface_without_anybody_says_so() {
        let mut list = Neighbours::of_test().list(UnixMillis(0));
        list.interfaces[0].neighbours.clear();
        assert_eq!(lines(&list), ["prov0: nobody heard"]);
        list.interfaces[0].link_up = false;
        assert_eq!(lines(&list), ["prov0: no link"]);
    }
}

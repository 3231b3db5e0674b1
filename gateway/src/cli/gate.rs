//! `vestibule gate ...`: who may pass to the uplink, in words.

use std::fmt::Write as _;

use super::client::Client;
use super::machine::plain;
use super::{Exit, Failure, GateCommand, Output};
use crate::admin::types::NoFields;
use crate::gate::GateView;

/// `vestibule gate ...`
pub(super) fn run(out: &Output, command: &GateCommand) -> Result<Exit, Failure> {
    let view: GateView = match command {
        GateCommand::List(desk) => Client::open(desk)?.get("/v1/gate")?,
        GateCommand::Reconcile(desk) => {
            Client::open(desk)?.post("/v1/gate/reconcile", &NoFields {})?
        }
    };
    out.print(&view, || text(&view));
    let good = view.problem.is_none() && view.elements.iter().all(|e| e.in_place);
    Ok(match (command, good) {
        (GateCommand::List(_), _) | (GateCommand::Reconcile(_), true) => Exit::Done,
        (GateCommand::Reconcile(_), false) => Exit::Refused,
    })
}

fn text(view: &GateView) -> String {
    let mut text = format!(
        "{}: {} elements, repaired {} times\n",
        view.backend,
        view.elements.len(),
        view.repaired
    );
    if let Some(problem) = &view.problem {
        let _ = writeln!(text, "  problem: {}", plain(problem));
    }
    for element in &view.elements {
        let place = if element.in_place {
            ""
        } else {
            ", NOT IN PLACE"
        };
        let _ = writeln!(
            text,
            "  {}  {}  {} s{place}",
            plain(&element.machine.0),
            plain(&element.element),
            element.left_secs
        );
    }
    for foreign in &view.foreign {
        let _ = writeln!(text, "  FOREIGN  {}", plain(foreign));
    }
    text
}

#[cfg(test)]
mod tests {
    use gateway_core::identity::MachineId;

    use super::*;
    use crate::gate::GateElementView;

    #[test]
    fn tells_what_is_missing_and_what_is_foreign() {
        let view = GateView {
            backend: "nftables".to_owned(),
            elements: vec![GateElementView {
                machine: MachineId("m1".to_owned()),
                element: "02:00:00:00:00:01 10.0.0.1 to 192.0.2.0/24 tcp/6443".to_owned(),
                left_secs: 77,
                in_place: false,
            }],
            foreign: vec!["x\u{1b}".to_owned()],
            problem: Some("nft: no".to_owned()),
            repaired: 3,
        };
        let text = text(&view);
        for part in [
            "nftables: 1 elements, repaired 3 times",
            "problem: nft: no",
            "m1  02:00:00:00:00:01 10.0.0.1 to 192.0.2.0/24 tcp/6443  77 s, NOT IN PLACE",
            "FOREIGN  x\u{fffd}",
        ] {
            assert!(text.contains(part), "{part} is missing: {text}");
        }
    }
}

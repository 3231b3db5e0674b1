//! Row 13: the switch port, as LLDP frames name it.
//!
//! LLDP authenticates nothing: the frames are the node's report of what it heard, believed as far
//! as its measured image is. Says which port was named, whether that is the declared one, and what
//! option 82 of the machine's lease says to it.

use attest_wire::v1::Hello;
use netstack::lldp::{Comparison, Frame, Role, Tolerance, compare, compare_port};

use super::relay::{Agreement, RelayWord};
use super::shown;
use crate::reason::Reason;

/// A neighbour heard within its TTL.
struct Neighbour<'a> {
    nic: &'a str,
    age_ms: u64,
    frame: Frame,
}

impl Neighbour<'_> {
    /// `chassis/port`, for records.
    fn text(&self) -> String {
        let pdu = &self.frame.lldpdu;
        let name = pdu.system_name.clone();
        let chassis = name.unwrap_or_else(|| pdu.chassis.to_string());
        shown(&format!("{chassis}/{}", pdu.port))
    }

    /// Whether it is the declared port: the part before the first `/` names the switch by chassis
    /// ID or system name, the rest the port by ID or description. If so, what of the writing was
    /// overlooked.
    fn as_declared(&self, declared: &str) -> Option<Vec<String>> {
        let (chassis, port) = declared.trim().split_once('/')?;
        let pdu = &self.frame.lldpdu;
        let by_name = match pdu.system_name.as_deref() {
            Some(name) if name == chassis => Comparison::Same,
            Some(name) if name.eq_ignore_ascii_case(chassis) => {
                Comparison::Tolerated(vec![Tolerance::Case])
            }
            Some(_) | None => Comparison::Different,
        };
        let switch = match compare(chassis, &pdu.chassis) {
            Comparison::Different => by_name,
            // Nothing need be overlooked when one of the two is written as declared.
            Comparison::Tolerated(_) if by_name == Comparison::Same => by_name,
            by_id => by_id,
        };
        let mut overlooked = tolerated("switch", switch)?;
        overlooked.extend(tolerated("port", compare_port(port, pdu))?);
        Some(overlooked)
    }

    /// The first of the declared ports that it is, and what was overlooked.
    fn of_declared<'d>(&self, declared: &'d str) -> Option<(&'d str, Vec<String>)> {
        declared
            .split(',')
            .find_map(|port| Some((port.trim(), self.as_declared(port)?)))
    }
}

/// None when it is something else.
fn tolerated(what: &str, comparison: Comparison) -> Option<Vec<String>> {
    match comparison {
        Comparison::Same => Some(Vec::new()),
        Comparison::Tolerated(how) => {
            Some(how.iter().map(|how| format!("{what}: {how}")).collect())
        }
        Comparison::Different => None,
    }
}

/// Fresh neighbours, and how many frames were left out as stale or unreadable.
fn neighbours(hello: &Hello) -> (Vec<Neighbour<'_>>, usize) {
    let mut fresh: Vec<Neighbour<'_>> = Vec::new();
    let mut left_out = 0;
    for report in &hello.lldp {
        let frame = match Frame::parse(&report.frame.0) {
            Ok(frame) if report.age_ms <= u64::from(frame.lldpdu.ttl_secs) * 1000 => frame,
            _ => {
                left_out += 1;
                continue;
            }
        };
        if !frame.lldpdu.is_shutdown() {
            fresh.push(Neighbour {
                nic: &report.nic,
                age_ms: report.age_ms,
                frame,
            });
        }
    }
    (fresh, left_out)
}

/// The port heard most recently, for the record.
pub(super) fn heard(hello: &Hello) -> Option<String> {
    let (fresh, _) = neighbours(hello);
    let newest = fresh.iter().min_by_key(|neighbour| neighbour.age_ms)?;
    Some(newest.text())
}

/// What option 82 adds to the ports heard.
pub(super) struct Witness {
    /// For the record, after the port.
    pub text: String,
    /// `port.option82` when the two name different ports.
    pub disagreement: Option<Reason>,
}

/// Compares option 82 of the machine's lease with what was heard on the interface of that lease.
/// None without option 82 or without a fresh frame there: a machine with two cables may have leased by the other one.
pub(super) fn witness(hello: &Hello, relay: Option<&RelayWord>) -> Option<Witness> {
    let relay = relay?;
    let (mut fresh, _) = neighbours(hello);
    fresh.retain(|neighbour| {
        let nic = hello.nics.iter().find(|nic| nic.name == neighbour.nic);
        nic.is_some_and(|nic| nic.mac.parse() == Ok(relay.mac))
    });
    let best = fresh
        .iter()
        .map(|neighbour| (relay.compare(&neighbour.frame.lldpdu), neighbour))
        .min_by_key(|(agreement, _)| match agreement {
            Agreement::Port => 0,
            Agreement::Chassis => 1,
            Agreement::Other => 2,
            Agreement::Nothing => 3,
        });
    let (agreement, neighbour) = best?;
    let said = shown(&relay.text());
    let text = match agreement {
        Agreement::Port => format!("option 82 names the same port ({said})"),
        Agreement::Chassis => format!("option 82 names the same switch ({said})"),
        Agreement::Other => format!("option 82 names another port ({said})"),
        Agreement::Nothing => format!("option 82 cannot be compared ({said})"),
    };
    let disagreement = (agreement == Agreement::Other).then(|| {
        Reason::new(
            "port.option82",
            format!("option 82 that names {}, as LLDP does", neighbour.text()),
            said,
            "RFC 3046 section 2.0; both are unauthenticated",
            "see where the cable is: it was moved since the lease, a relay counts otherwise, or somebody forges one of the two",
        )
    });
    Some(Witness { text, disagreement })
}

/// Judges the port; `declared` may name several, separated by commas (LAG). What was overlooked to
/// take the one heard for the declared one, for the record; None when both are written alike.
pub(super) fn appraise_port(hello: &Hello, declared: &str) -> Result<Option<String>, Reason> {
    let fail = |code, found: String| {
        Reason::new(
            code,
            format!("switch port {}", shown(declared)),
            found,
            "the machine's binding; LLDP is unauthenticated",
            "check the cabling, then the declared port",
        )
    };
    if hello.lldp.is_empty() {
        return Err(fail("port.unseen", "no LLDP frame".into()));
    }
    let (fresh, left_out) = neighbours(hello);
    if fresh.is_empty() {
        let found = format!("{left_out} frames, all stale or unreadable");
        return Err(fail("port.stale", found));
    }
    let found = fresh
        .iter()
        .find_map(|neighbour| Some((neighbour, neighbour.of_declared(declared)?)));
    let Some((declared_one, (port, overlooked))) = found else {
        let heard: Vec<String> = fresh.iter().map(Neighbour::text).collect();
        return Err(fail("port.mismatch", shown(&heard.join(", "))));
    };
    if declared_one.frame.lldpdu.role() == Role::EndStation {
        let found = format!("{}, which says it is a host", declared_one.text());
        return Err(fail("port.not_switch", found));
    }
    // A second voice on the same wire: a hub, or somebody who forges frames.
    let other = fresh.iter().find(|neighbour| {
        neighbour.nic == declared_one.nic && neighbour.of_declared(declared).is_none()
    });
    match other {
        Some(other) => Err(fail(
            "port.ambiguous",
            format!("also {} on {}", other.text(), shown(other.nic)),
        )),
        None if overlooked.is_empty() => Ok(None),
        None => {
            let (port, overlooked) = (shown(port), overlooked.join(", "));
            Ok(Some(format!("declared as {port} ({overlooked})")))
        }
    }
}

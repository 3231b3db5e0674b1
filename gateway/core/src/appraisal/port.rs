//! Row 13: the switch port, as LLDP frames name it.
//!
//! LLDP authenticates nothing: the frames are the node's report of what it heard, believed as far
//! as its measured image is. Says which port was named, and whether that is the declared one.

use attest_wire::v1::Hello;
use netstack::lldp::{Frame, compare, compare_port};

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
    /// ID or system name, the rest the port by ID or description.
    fn is(&self, declared: &str) -> bool {
        let Some((chassis, port)) = declared.trim().split_once('/') else {
            return false;
        };
        let pdu = &self.frame.lldpdu;
        let named = pdu.system_name.as_deref();
        let named = named.is_some_and(|name| name.eq_ignore_ascii_case(chassis));
        (compare(chassis, &pdu.chassis).matches() || named) && compare_port(port, pdu).matches()
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

/// Judges the port; `declared` may name several, separated by commas (LAG).
pub(super) fn appraise_port(hello: &Hello, declared: &str) -> Result<(), Reason> {
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
    let Some(declared_one) = fresh
        .iter()
        .find(|neighbour| declared.split(',').any(|port| neighbour.is(port)))
    else {
        let heard: Vec<String> = fresh.iter().map(Neighbour::text).collect();
        return Err(fail("port.mismatch", shown(&heard.join(", "))));
    };
    // A second voice on the same wire: a hub, or somebody who forges frames.
    let other = fresh.iter().find(|neighbour| {
        neighbour.nic == declared_one.nic && !declared.split(',').any(|port| neighbour.is(port))
    });
    match other {
        Some(other) => Err(fail(
            "port.ambiguous",
            format!("also {} on {}", other.text(), shown(other.nic)),
        )),
        None => Ok(()),
    }
}

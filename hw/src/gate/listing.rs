//! What `nft -j list table inet vestibule` says (libnftables-json(5)): untrusted, since anybody with
//! the privilege may have changed the table. Elements that are none of ours are not guessed at; they
//! make the listing less than whole.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use serde_json::Value;

use super::{Flow, Proto};

/// What was found.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Listed {
    /// Elements of `open` that say what ours say.
    pub open: Vec<(Flow, Option<Duration>)>,
    /// Whether all elements of both sets do, and the sets agree.
    pub whole: bool,
    /// Everything but the elements, without what changes by itself.
    pub shape: String,
}

/// Reads the listing; the error says what was found instead.
pub(super) fn parse(bytes: &[u8]) -> Result<Listed, String> {
    // serde_json ends at a depth of 128.
    let root: Value = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    let objects = root.get("nftables").and_then(Value::as_array);
    let objects = objects.ok_or("no array \"nftables\"")?;
    let (mut open, mut back) = (BTreeMap::new(), BTreeMap::new());
    let mut whole = true;
    let mut shape = Vec::new();
    for object in objects {
        if object.get("metainfo").is_some() {
            continue;
        }
        let mut object = object.clone();
        if let Some(set) = object.get_mut("set").and_then(Value::as_object_mut) {
            let elements = set.remove("elem");
            let into = match set.get("name").and_then(Value::as_str) {
                Some("open") => Some((&mut open, true)),
                Some("back") => Some((&mut back, false)),
                _ => None,
            };
            let elements = elements.as_ref().and_then(Value::as_array);
            if let (Some((into, with_mac)), Some(elements)) = (into, elements) {
                for element in elements {
                    match element_of(element, with_mac) {
                        Some((flow, left)) => {
                            into.insert(flow, left);
                        }
                        None => whole = false,
                    }
                }
            }
        }
        forget_changing(&mut object, 0);
        shape.push(object.to_string());
    }
    let mut answers: Vec<Flow> = open
        .keys()
        .map(|flow| Flow {
            mac: [0; 6],
            ..*flow
        })
        .collect();
    answers.sort();
    answers.dedup();
    whole &= answers.iter().eq(back.keys());
    Ok(Listed {
        open: open.into_iter().collect(),
        whole,
        shape: shape.join("\n"),
    })
}

/// Handles and counts change without anybody's doing.
fn forget_changing(value: &mut Value, depth: usize) {
    if depth > 64 {
        return;
    }
    match value {
        Value::Object(map) => {
            for key in ["handle", "packets", "bytes"] {
                map.remove(key);
            }
            map.values_mut().for_each(|v| forget_changing(v, depth + 1));
        }
        Value::Array(list) => list.iter_mut().for_each(|v| forget_changing(v, depth + 1)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// `{"elem": {"val": {"concat": [..]}, "timeout": n, "expires": n}}`, or the value alone where there
/// is no timeout.
fn element_of(element: &Value, with_mac: bool) -> Option<(Flow, Option<Duration>)> {
    let (value, left) = match element.get("elem") {
        Some(inner) => (
            inner.get("val")?,
            inner.get("expires").and_then(Value::as_u64),
        ),
        None => (element, None),
    };
    let parts = value.get("concat")?.as_array()?;
    let (mac, rest) = match (with_mac, parts.as_slice()) {
        (true, [mac, rest @ ..]) => (mac_of(mac.as_str()?)?, rest),
        (false, rest) => ([0; 6], rest),
        (true, []) => return None,
    };
    let [source, to, proto, ports] = rest else {
        return None;
    };
    let (to, prefix) = network_of(to)?;
    let flow = Flow {
        mac,
        source: source.as_str()?.parse().ok()?,
        to,
        prefix,
        proto: match proto.as_str()? {
            "tcp" => Proto::Tcp,
            "udp" => Proto::Udp,
            _ => return None,
        },
        ports: ports_of(ports)?,
    };
    Some((flow, left.map(Duration::from_secs)))
}

fn mac_of(text: &str) -> Option<[u8; 6]> {
    let mut mac = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut mac {
        let part = parts.next().filter(|part| part.len() == 2)?;
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    parts.next().is_none().then_some(mac)
}

fn network_of(value: &Value) -> Option<(Ipv4Addr, u8)> {
    if let Some(text) = value.as_str() {
        return Some((text.parse().ok()?, 32));
    }
    let prefix = value.get("prefix")?;
    let len = u8::try_from(prefix.get("len")?.as_u64()?).ok()?;
    let address = prefix.get("addr")?.as_str()?.parse().ok()?;
    (len <= 32).then_some((address, len))
}

fn ports_of(value: &Value) -> Option<(u16, u16)> {
    let port = |value: &Value| u16::try_from(value.as_u64()?).ok();
    if let Some(range) = value.get("range") {
        let [first, last] = range.as_array()?.as_slice() else {
            return None;
        };
        let (first, last) = (port(first)?, port(last)?);
        return (first <= last).then_some((first, last));
    }
    let one = port(value)?;
    Some((one, one))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As nft 1.0.6 prints it.
    const REAL: &str = include_str!("listing-1.0.6.json");

    #[test]
    fn reads_what_nft_prints() {
        let listed = parse(REAL.as_bytes()).expect("a listing");
        let flow = Flow {
            mac: [2, 0, 0, 0, 0, 3],
            source: Ipv4Addr::new(10, 0, 0, 2),
            to: Ipv4Addr::new(192, 0, 2, 0),
            prefix: 24,
            proto: Proto::Tcp,
            ports: (100, 200),
        };
        let any = Flow {
            mac: [2, 0, 0, 0, 0, 4],
            to: Ipv4Addr::UNSPECIFIED,
            prefix: 0,
            proto: Proto::Udp,
            ports: (0, 65_535),
            ..flow
        };
        assert_eq!(
            listed.open,
            [(flow, Some(Duration::from_secs(61))), (any, None)]
        );
        assert!(listed.whole);
        assert!(
            listed.shape.contains("\"policy\":\"drop\""),
            "{}",
            listed.shape
        );
        assert!(!listed.shape.contains("handle"));
    }

    #[test]
    fn counts_and_handles_are_no_change_and_rules_are() {
        let shape = |text: &str| parse(text.as_bytes()).expect("a listing").shape;
        let counted = REAL
            .replace("\"packets\": 0", "\"packets\": 77")
            .replace("\"handle\": 9", "\"handle\": 99");
        assert_ne!(counted, REAL);
        assert_eq!(shape(&counted), shape(REAL));
        for (from, to) in [
            ("\"policy\": \"drop\"", "\"policy\": \"accept\""),
            ("\"right\": \"@back\"", "\"right\": \"@open\""),
            ("\"prov0\"", "\"prov1\""),
        ] {
            let changed = REAL.replace(from, to);
            assert_ne!(changed, REAL, "{from}");
            assert_ne!(shape(&changed), shape(REAL), "{from}");
        }
    }

    #[test]
    fn a_foreign_element_is_told() {
        for (from, to) in [
            ("\"tcp\"", "\"sctp\""),
            ("02:00:00:00:00:03", "02:00:00:00:00:0"),
            ("[100, 200]", "[100, 200, 300]"),
            ("\"len\": 24", "\"len\": 240"),
        ] {
            let changed = REAL.replacen(from, to, 1);
            assert_ne!(changed, REAL, "{from}");
            assert!(
                !parse(changed.as_bytes()).expect("a listing").whole,
                "{from}"
            );
        }
    }

    #[test]
    fn any_cut_and_any_flipped_byte_is_read_without_a_panic() {
        for end in 0..REAL.len() {
            let _ = parse(&REAL.as_bytes()[..end]);
        }
        let mut bytes = REAL.as_bytes().to_vec();
        for at in 0..bytes.len() {
            for with in [b'"', b'[', b'-', b'0', 0xff] {
                let kept = std::mem::replace(&mut bytes[at], with);
                let _ = parse(&bytes);
                bytes[at] = kept;
            }
        }
        let deep = format!(
            "{{\"nftables\": {}{}}}",
            "[".repeat(10_000),
            "]".repeat(10_000)
        );
        assert!(parse(deep.as_bytes()).is_err());
    }
}

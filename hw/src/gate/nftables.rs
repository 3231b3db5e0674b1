//! The gate as an nftables table of its own, for an appliance that routes.
//!
//! Table `inet vestibule` has one chain at the forward hook with policy drop: the appliance forwards
//! nothing, whatever interfaces it has, but what is in the sets. `open` holds hardware address, source,
//! destination, protocol and port of what a machine may send; `back` holds the same without the
//! hardware address for what may come back, and only on a connection that a machine began. Both
//! directions are looked up for every packet, so an element that is gone cuts a connection that was
//! let through before, with or without its conntrack entry. The sets have timeouts: when nobody
//! renews, they run empty. IPv6 is not in the sets, so the chain's policy drops all of it.
//!
//! Spoken to by the `nft` program: one file with one transaction for each batch on its standard input
//! (`nft -f -`), its JSON for reading. The crates for nf_tables' netlink do not know sets that join
//! fields with intervals and timeouts; `nft` is what every distribution ships for it, Yocto in
//! meta-networking, and it has no state. Conntrack is spoken to by netlink directly
//! (`conntrack.rs`): there one socket finds and deletes any number of entries in one pass, while
//! the `conntrack` program reads the whole table for each, and would be one more package in the image.
//!
//! `add`, `delete`, `add` in one transaction is how an element gets a new timeout: kernels before
//! 6.12 leave the timeout of one that exists as it is, and `delete` alone fails for one that timed out
//! a moment ago.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use super::conntrack::{self, Tuple};
use super::listing::{self, Listed};
use super::{Change, Element, Flow, Gate, GateError, Listing, program};

/// A batch of 5,000 elements takes a second on one slow core.
const LIMIT: Duration = Duration::from_secs(20);
/// 16,384 elements of 200 bytes, in two sets, and the rules.
const LISTING_MAX_BYTES: u64 = 16 * 1024 * 1024;
/// Forwarding is the kernel's to do and the image's to switch on.
const FORWARDING: &str = "/proc/sys/net/ipv4/ip_forward";

/// The two sides and the network of the machines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sides {
    /// Interface that faces the machines.
    pub inside: String,
    /// Interface that faces what they want.
    pub uplink: String,
    /// Network of the machines.
    pub network: (Ipv4Addr, u8),
}

/// The backend.
#[derive(Debug)]
pub struct NfTables {
    program: PathBuf,
    sides: Sides,
    /// Rules and sets as they were after the last install, without handles and counts.
    shape: Option<String>,
}

impl NfTables {
    /// Nothing is done yet.
    ///
    /// # Errors
    /// An interface name that cannot be written in a rule.
    pub fn new(program: PathBuf, sides: Sides) -> Result<Self, GateError> {
        for name in [&sides.inside, &sides.uplink] {
            let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-@".contains(&b);
            if name.is_empty() || !name.bytes().all(plain) {
                return Err(GateError::new(
                    "gate interface",
                    "a name of letters, digits and . _ - @",
                    format!("{name:?}"),
                    "rename the interface (ip link set .. name ..)",
                ));
            }
        }
        Ok(Self {
            program,
            sides,
            shape: None,
        })
    }

    /// Whether the kernel forwards IPv4 at all; without it the gate lets nothing through. None where a
    /// sandbox hides it.
    pub fn forwarding() -> Option<bool> {
        let text = std::fs::read_to_string(FORWARDING).ok()?;
        Some(text.trim() == "1")
    }

    fn nft(&self, args: &[&str], input: &str) -> Result<Vec<u8>, GateError> {
        let done = program::run(
            &self.program,
            args,
            input.as_bytes(),
            LISTING_MAX_BYTES,
            LIMIT,
        )?;
        let subject = format!("{} {}", self.program.display(), args.join(" "));
        if !done.status.success() {
            return Err(GateError::new(
                subject,
                "exit code 0",
                format!("{}: {}", done.status, done.said),
                "look at `nft list table inet vestibule`; the daemon needs CAP_NET_ADMIN and a kernel \
                 with nf_tables (docs/OPERATIONS.md, the gate)",
            ));
        }
        if done.cut {
            return Err(GateError::new(
                subject,
                format!("at most {LISTING_MAX_BYTES} bytes"),
                "more",
                "somebody has filled the table: the gate is put in place anew",
            ));
        }
        Ok(done.out)
    }

    fn read(&self) -> Result<Listed, GateError> {
        let out = self.nft(&["-j", "list", "table", "inet", "vestibule"], "")?;
        listing::parse(&out).map_err(|found| {
            GateError::new(
                "nft -j list table inet vestibule",
                "the JSON of libnftables-json(5)",
                found,
                "the gate is put in place anew; if this stays, compare the version of nft",
            )
        })
    }
}

impl Gate for NfTables {
    fn install(
        &mut self,
        open: &[(Element, Duration)],
        _shut: &[Element],
    ) -> Result<(), GateError> {
        let flows = flows(open.iter().map(|(element, left)| (element, *left)))?;
        let mut script = table(&self.sides);
        add(&mut script, &flows);
        self.nft(&["-f", "-"], &script)?;
        self.shape = Some(self.read()?.shape);
        // Connections of a time when the table was missing or had more in it.
        let network = self.sides.network;
        let stranger = |tuple: &Tuple| {
            within(tuple.source, network)
                && !within(tuple.destination, network)
                && !flows.iter().any(|(flow, _)| covers(flow, tuple))
        };
        conntrack::delete(stranger).map(drop)
    }

    fn apply(&mut self, changes: &[Change]) -> Result<(), GateError> {
        let closes = changes.iter().filter_map(|change| match change {
            Change::Close(element) => Some((element, Duration::ZERO)),
            Change::Open(..) => None,
        });
        let closes = flows(closes)?;
        let opens = changes.iter().filter_map(|change| match change {
            Change::Open(element, left) => Some((element, *left)),
            Change::Close(_) => None,
        });
        let opens = flows(opens)?;
        let mut script = String::new();
        remove(&mut script, closes.iter().chain(&opens));
        add(&mut script, &opens);
        if script.is_empty() {
            return Ok(());
        }
        self.nft(&["-f", "-"], &script)?;
        if closes.is_empty() {
            return Ok(());
        }
        let closed = |tuple: &Tuple| closes.iter().any(|(flow, _)| covers(flow, tuple));
        conntrack::delete(closed).map(drop)
    }

    fn list(&mut self) -> Result<Listing, GateError> {
        let listed = self.read()?;
        let intact = listed.whole && self.shape.as_ref() == Some(&listed.shape);
        let open = listed.open.into_iter();
        Ok(Listing {
            open: open
                .map(|(flow, left)| (Element::Flow(flow), left))
                .collect(),
            intact,
        })
    }
}

type Timed = (Flow, Duration);

fn flows<'a>(
    elements: impl Iterator<Item = (&'a Element, Duration)>,
) -> Result<Vec<Timed>, GateError> {
    elements
        .map(|(element, left)| match element {
            Element::Flow(flow) => Ok((*flow, left)),
            Element::Port(_) => Err(GateError::new(
                "gate backend nftables",
                "a pair of addresses",
                "a switch port",
                "report this: it is a defect",
            )),
        })
        .collect()
}

fn within(address: Ipv4Addr, (network, prefix): (Ipv4Addr, u8)) -> bool {
    let mask = u32::MAX
        .checked_shl(32 - u32::from(prefix.min(32)))
        .unwrap_or(0);
    (address.to_bits() ^ network.to_bits()) & mask == 0
}

fn covers(flow: &Flow, tuple: &Tuple) -> bool {
    tuple.source == flow.source
        && tuple.proto == flow.proto.number()
        && (flow.ports.0..=flow.ports.1).contains(&tuple.port)
        && within(tuple.destination, (flow.to, flow.prefix))
}

/// The table, replaced as a whole.
fn table(sides: &Sides) -> String {
    let Sides { inside, uplink, .. } = sides;
    format!(
        r#"table inet vestibule
delete table inet vestibule
table inet vestibule {{
 set open {{ type ether_addr . ipv4_addr . ipv4_addr . inet_proto . inet_service; flags interval, timeout; }}
 set back {{ type ipv4_addr . ipv4_addr . inet_proto . inet_service; flags interval, timeout; }}
 chain forward {{
  type filter hook forward priority filter; policy drop;
  iifname "{inside}" oifname "{uplink}" ether saddr . ip saddr . ip daddr . meta l4proto . th dport @open counter accept
  iifname "{uplink}" oifname "{inside}" ct direction reply ct state established ip daddr . ip saddr . meta l4proto . th sport @back counter accept
  iifname "{uplink}" oifname "{inside}" ct state related icmp type {{ destination-unreachable, time-exceeded, parameter-problem }} counter accept
  iifname "{inside}" counter drop
 }}
}}
"#
    )
}

/// One statement for all: nft copies the set for each statement.
fn statement(script: &mut String, verb: &str, set: &str, elements: &[String]) {
    if elements.is_empty() {
        return;
    }
    // Writing to a string cannot fail.
    let _ = writeln!(
        script,
        "{verb} element inet vestibule {set} {{ {} }}",
        elements.join(", ")
    );
}

fn add(script: &mut String, flows: &[Timed]) {
    let timed =
        |key: String, left: &Duration| format!("{key} timeout {}ms", left.as_millis().max(1));
    let open = flows.iter().map(|(flow, left)| timed(key(flow), left));
    statement(script, "add", "open", &open.collect::<Vec<_>>());
    let back = flows.iter().map(|(flow, left)| timed(back_key(flow), left));
    statement(script, "add", "back", &back.collect::<Vec<_>>());
}

fn remove<'a>(script: &mut String, flows: impl Iterator<Item = &'a Timed>) {
    // A set of each: an address that moves to another machine is in `back` twice, and the second
    // delete would fail.
    let (open, back): (BTreeSet<_>, BTreeSet<_>) =
        flows.map(|(flow, _)| (key(flow), back_key(flow))).unzip();
    for (set, keys) in [("open", open), ("back", back)] {
        let keys: Vec<_> = keys.into_iter().collect();
        statement(script, "add", set, &keys);
        statement(script, "delete", set, &keys);
    }
}

fn key(flow: &Flow) -> String {
    let [a, b, c, d, e, f] = flow.mac;
    format!(
        "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x} . {}",
        back_key(flow)
    )
}

fn back_key(flow: &Flow) -> String {
    let (first, last) = flow.ports;
    let ports = if first == last {
        first.to_string()
    } else {
        format!("{first}-{last}")
    };
    format!(
        "{} . {}/{} . {} . {ports}",
        flow.source,
        flow.to,
        flow.prefix,
        flow.proto.name()
    )
}

#[cfg(test)]
mod tests {
    use super::super::Proto;
    use super::*;

    fn flow() -> Flow {
        Flow {
            mac: [2, 0, 0, 0, 0, 0x1f],
            source: Ipv4Addr::new(10, 0, 0, 2),
            to: Ipv4Addr::new(192, 0, 2, 0),
            prefix: 24,
            proto: Proto::Tcp,
            ports: (6443, 6443),
        }
    }

    #[test]
    fn a_batch_is_one_statement_for_each_set_and_verb() {
        let other = Flow {
            ports: (80, 90),
            ..flow()
        };
        let left = Duration::from_millis(1_500);
        let mut script = String::new();
        remove(&mut script, [(flow(), left), (other, left)].iter());
        add(&mut script, &[(other, left)]);
        let (a, b) = (
            "10.0.0.2 . 192.0.2.0/24 . tcp . 6443",
            "10.0.0.2 . 192.0.2.0/24 . tcp . 80-90",
        );
        let mac = "02:00:00:00:00:1f";
        let expected = [
            format!("add element inet vestibule open {{ {mac} . {a}, {mac} . {b} }}"),
            format!("delete element inet vestibule open {{ {mac} . {a}, {mac} . {b} }}"),
            format!("add element inet vestibule back {{ {a}, {b} }}"),
            format!("delete element inet vestibule back {{ {a}, {b} }}"),
            format!("add element inet vestibule open {{ {mac} . {b} timeout 1500ms }}"),
            format!("add element inet vestibule back {{ {b} timeout 1500ms }}"),
        ];
        assert_eq!(script.lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_tuple_is_covered_by_address_protocol_port_and_prefix() {
        let good = Tuple {
            source: Ipv4Addr::new(10, 0, 0, 2),
            destination: Ipv4Addr::new(192, 0, 2, 77),
            proto: 6,
            port: 6443,
        };
        assert!(covers(&flow(), &good));
        for bad in [
            Tuple {
                source: Ipv4Addr::new(10, 0, 0, 3),
                ..good
            },
            Tuple {
                destination: Ipv4Addr::new(192, 0, 3, 77),
                ..good
            },
            Tuple { proto: 17, ..good },
            Tuple { port: 6444, ..good },
        ] {
            assert!(!covers(&flow(), &bad), "{bad:?}");
        }
        let any = Flow {
            to: Ipv4Addr::UNSPECIFIED,
            prefix: 0,
            ports: (0, 65_535),
            ..flow()
        };
        assert!(covers(&any, &good));
    }

    #[test]
    fn rejects_an_interface_that_could_end_the_string() {
        let sides = |inside: &str| Sides {
            inside: inside.to_owned(),
            uplink: "up0".to_owned(),
            network: (Ipv4Addr::new(10, 0, 0, 0), 24),
        };
        let make = |inside| NfTables::new(PathBuf::from("nft"), sides(inside));
        assert!(make("prov0.7").is_ok());
        for bad in ["", "p\"0", "p;0", "p\\", "p{"] {
            assert!(make(bad).is_err(), "{bad:?}");
        }
    }
}

//! Chassis and port identifiers, and the tolerant comparison of a declared one with a heard one.
//!
//! People copy identifiers from three screens of two vendors. The comparison accepts what is the
//! same port written differently and says what it tolerated, so a receipt can show it.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use crate::MacAddr;

/// What kind of identifier it is (802.1AB tables 8-2 and 8-3, which number them differently).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IdKind {
    /// Chassis component, entPhysicalAlias. Chassis only.
    ChassisComponent,
    /// ifAlias.
    InterfaceAlias,
    /// Port component, entPhysicalAlias.
    PortComponent,
    /// Hardware address.
    Mac,
    /// IANA address family and address.
    NetworkAddress,
    /// ifName.
    InterfaceName,
    /// RFC 3046 circuit id. Port only.
    AgentCircuit,
    /// Anything the vendor likes.
    Local,
    /// A subtype the standard does not name.
    Reserved(u8),
}

impl IdKind {
    /// From the subtype octet of a Chassis ID TLV.
    pub fn of_chassis(subtype: u8) -> Self {
        match subtype {
            1 => Self::ChassisComponent,
            2 => Self::InterfaceAlias,
            3 => Self::PortComponent,
            4 => Self::Mac,
            5 => Self::NetworkAddress,
            6 => Self::InterfaceName,
            7 => Self::Local,
            other => Self::Reserved(other),
        }
    }

    /// From the subtype octet of a Port ID TLV.
    pub fn of_port(subtype: u8) -> Self {
        match subtype {
            1 => Self::InterfaceAlias,
            2 => Self::PortComponent,
            3 => Self::Mac,
            4 => Self::NetworkAddress,
            5 => Self::InterfaceName,
            6 => Self::AgentCircuit,
            7 => Self::Local,
            other => Self::Reserved(other),
        }
    }

    /// Subtype octet for a Chassis ID TLV; a kind that only ports have is sent as local.
    pub fn chassis_subtype(self) -> u8 {
        match self {
            Self::ChassisComponent => 1,
            Self::InterfaceAlias => 2,
            Self::PortComponent => 3,
            Self::Mac => 4,
            Self::NetworkAddress => 5,
            Self::InterfaceName => 6,
            Self::AgentCircuit | Self::Local => 7,
            Self::Reserved(subtype) => subtype,
        }
    }

    /// Subtype octet for a Port ID TLV; a kind that only chassis have is sent as local.
    pub fn port_subtype(self) -> u8 {
        match self {
            Self::InterfaceAlias => 1,
            Self::PortComponent => 2,
            Self::Mac => 3,
            Self::NetworkAddress => 4,
            Self::InterfaceName => 5,
            Self::AgentCircuit => 6,
            Self::ChassisComponent | Self::Local => 7,
            Self::Reserved(subtype) => subtype,
        }
    }
}

/// A Chassis ID or Port ID as heard.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id {
    /// Kind.
    pub kind: IdKind,
    /// 1 to 255 octets.
    pub octets: Vec<u8>,
}

impl Id {
    /// A hardware address.
    pub fn mac(mac: MacAddr) -> Self {
        Self {
            kind: IdKind::Mac,
            octets: mac.0.to_vec(),
        }
    }

    /// An interface name.
    pub fn interface(name: &str) -> Self {
        Self {
            kind: IdKind::InterfaceName,
            octets: name.as_bytes().to_vec(),
        }
    }

    /// A locally assigned text.
    pub fn local(text: &str) -> Self {
        Self {
            kind: IdKind::Local,
            octets: text.as_bytes().to_vec(),
        }
    }

    /// The hardware address, when the identifier is one in whatever form.
    pub fn as_mac(&self) -> Option<MacAddr> {
        if let Ok(octets) = <[u8; 6]>::try_from(self.octets.as_slice())
            && (self.kind == IdKind::Mac || self.text().is_none())
        {
            return Some(MacAddr(octets));
        }
        self.text()?.parse().ok()
    }

    /// The octets as text, when they are printable; a trailing NUL, which some switches send, is
    /// not part of it.
    fn text(&self) -> Option<&str> {
        let octets = self.octets.strip_suffix(&[0]).unwrap_or(&self.octets);
        let text = std::str::from_utf8(octets).ok()?;
        let printable = !text.is_empty() && !text.chars().any(char::is_control);
        (printable && self.kind != IdKind::Mac && self.kind != IdKind::NetworkAddress)
            .then_some(text)
    }
}

impl fmt::Display for Id {
    /// `aa:bb:cc:dd:ee:ff`, `192.0.2.1`, the text, or the octets in hex.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.kind, self.octets.as_slice()) {
            (IdKind::Mac, &[a, b, c, d, e, g]) => MacAddr([a, b, c, d, e, g]).fmt(f),
            (IdKind::NetworkAddress, &[1, a, b, c, d]) => Ipv4Addr::new(a, b, c, d).fmt(f),
            (IdKind::NetworkAddress, [2, rest @ ..]) if rest.len() == 16 => {
                let mut octets = [0; 16];
                octets.copy_from_slice(rest);
                Ipv6Addr::from(octets).fmt(f)
            }
            (_, octets) => match self.text() {
                Some(text) => f.write_str(text),
                None => octets.iter().try_for_each(|octet| write!(f, "{octet:02x}")),
            },
        }
    }
}

/// Result of a comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Comparison {
    /// The same text.
    Same,
    /// The same thing, written differently.
    Tolerated(Vec<Tolerance>),
    /// Something else.
    Different,
}

impl Comparison {
    /// Whether it is the same thing.
    pub fn matches(&self) -> bool {
        *self != Self::Different
    }
}

/// A difference in writing that was overlooked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tolerance {
    /// Another way to write a hardware address, or its octets under another subtype.
    MacNotation,
    /// Upper and lower case.
    Case,
    /// White space.
    Space,
    /// Interface type in short or long form: `Eth1/1` for `Ethernet1/1`.
    Abbreviation,
    /// Logical unit 0 left out: `xe-0/0/1` for `xe-0/0/1.0`.
    UnitZero,
    /// Not the Port ID, the port description is the declared port (see [`super::compare_port`]).
    PortDescription,
}

impl fmt::Display for Tolerance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::MacNotation => "other notation of a hardware address",
            Self::Case => "upper and lower case",
            Self::Space => "white space",
            Self::Abbreviation => "interface type abbreviated",
            Self::UnitZero => "logical unit 0 left out",
            Self::PortDescription => "port description instead of Port ID",
        })
    }
}

/// One way to make two writings alike.
type Step = (Tolerance, fn(&str) -> String);

/// Compares a declared identifier (inventory text) with one heard.
pub fn compare(declared: &str, heard: &Id) -> Comparison {
    let text = heard.to_string();
    if declared == text {
        return Comparison::Same;
    }
    if let (Ok(declared), Some(heard)) = (declared.trim().parse::<MacAddr>(), heard.as_mac()) {
        return match declared == heard {
            true => Comparison::Tolerated(vec![Tolerance::MacNotation]),
            false => Comparison::Different,
        };
    }
    compare_text(declared, &text)
}

/// Compares two texts, neither of which is a hardware address.
pub(super) fn compare_text(declared: &str, heard: &str) -> Comparison {
    if declared == heard {
        return Comparison::Same;
    }
    // Each step may only make the two more alike; stop at the first that makes them equal.
    let steps: [Step; 4] = [
        (Tolerance::Space, |text| text.split_whitespace().collect()),
        (Tolerance::Case, str::to_lowercase),
        (Tolerance::Abbreviation, long_form),
        (Tolerance::UnitZero, |text| {
            text.strip_suffix(".0").unwrap_or(text).to_owned()
        }),
    ];
    let (mut left, mut right) = (declared.to_owned(), heard.to_owned());
    let mut tolerated = Vec::new();
    for (tolerance, step) in steps {
        let (l, r) = (step(&left), step(&right));
        if l != left || r != right {
            tolerated.push(tolerance);
        }
        (left, right) = (l, r);
        if left == right && !left.is_empty() {
            return Comparison::Tolerated(needed(declared, heard, &steps, tolerated));
        }
    }
    Comparison::Different
}

/// Leaves out the steps that changed both sides alike and were not needed.
fn needed(
    declared: &str,
    heard: &str,
    steps: &[Step],
    mut applied: Vec<Tolerance>,
) -> Vec<Tolerance> {
    let equal_under = |set: &[Tolerance]| {
        let apply = |text: &str| {
            let chosen = steps
                .iter()
                .filter(|(tolerance, _)| set.contains(tolerance));
            chosen.fold(text.to_owned(), |text, (_, step)| step(&text))
        };
        apply(declared) == apply(heard)
    };
    for tolerance in applied.clone() {
        let without: Vec<Tolerance> = applied
            .iter()
            .copied()
            .filter(|t| *t != tolerance)
            .collect();
        if equal_under(&without) {
            applied = without;
        }
    }
    applied
}

/// Interface types by their short forms; the first entry is the long form (lower case, no hyphen).
const INTERFACE_TYPES: &[&[&str]] = &[
    &["ethernet", "eth", "et"],
    &["fastethernet", "fa", "fas"],
    &["gigabitethernet", "gi", "gig", "gige", "ge"],
    &["twogigabitethernet", "tw", "twogige"],
    &["fivegigabitethernet", "fi", "fivegige"],
    &[
        "tengigabitethernet",
        "te",
        "ten",
        "tengige",
        "tengig",
        "xge",
    ],
    &["twentyfivegigabitethernet", "twe", "twentyfivegige"],
    &["fortygigabitethernet", "fo", "fortygige", "fge"],
    &["hundredgigabitethernet", "hu", "hundredgige", "hundredgig"],
    &["fourhundredgigabitethernet", "fourhundredgige"],
    &["portchannel", "po", "portch"],
    &["management", "ma", "mgmt"],
];

/// `eth1/1` as `ethernet1/1`. Takes lower case; a name without a number is left alone, and so is
/// one whose number does not follow the letters directly (`ge-0/0/1` is no `gigabitethernet`).
fn long_form(text: &str) -> String {
    let text = text.to_lowercase();
    let number = text
        .find(|c: char| c.is_ascii_digit())
        .unwrap_or(text.len());
    let (letters, number) = text.split_at(number);
    if number.is_empty() || letters.is_empty() || letters.ends_with(['-', '_', '/', '.']) {
        return text.clone();
    }
    let plain: String = letters.chars().filter(|c| *c != '-').collect();
    match INTERFACE_TYPES
        .iter()
        .find(|forms| forms.contains(&plain.as_str()))
    {
        Some(forms) => format!("{}{number}", forms[0]),
        None => text.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_port_written_differently() {
        use Tolerance::{Abbreviation, Case, MacNotation, Space, UnitZero};
        let mac = Id::mac(MacAddr([0xcc, 0xe1, 0x7f, 0xce, 0x08, 0x00]));
        let raw_local = Id {
            kind: IdKind::Local,
            ..mac.clone()
        };
        let table: [(&str, Id, &[Tolerance]); 20] = [
            ("cc:e1:7f:ce:08:00", mac.clone(), &[]),
            ("CC:E1:7F:CE:08:00", mac.clone(), &[MacNotation]),
            ("cc-e1-7f-ce-08-00", mac.clone(), &[MacNotation]),
            ("cce1.7fce.0800", mac.clone(), &[MacNotation]),
            ("cce17f-ce0800", mac.clone(), &[MacNotation]),
            ("cce17fce0800", mac.clone(), &[MacNotation]),
            ("cc:e1:7f:ce:08:00", raw_local, &[MacNotation]),
            (
                "cc:e1:7f:ce:08:00",
                Id::local("CCE1.7FCE.0800"),
                &[MacNotation],
            ),
            ("Ethernet1/1", Id::interface("Ethernet1/1"), &[]),
            ("Eth1/1", Id::interface("Ethernet1/1"), &[Abbreviation]),
            ("Ethernet1/1", Id::interface("Eth1/1"), &[Abbreviation]),
            (
                "gi1/0/7",
                Id::interface("GigabitEthernet1/0/7"),
                &[Abbreviation],
            ),
            (
                "XGE1/0/49",
                Id::interface("Ten-GigabitEthernet1/0/49"),
                &[Abbreviation],
            ),
            ("Po12", Id::interface("port-channel12"), &[Abbreviation]),
            ("ethernet1/1", Id::interface("Ethernet1/1"), &[Case]),
            ("Ethernet 1/1", Id::interface("Ethernet1/1"), &[Space]),
            (
                "eth 1/1",
                Id::interface("Ethernet1/1"),
                &[Space, Abbreviation],
            ),
            ("xe-0/0/1", Id::interface("xe-0/0/1.0"), &[UnitZero]),
            ("swp1", Id::interface("SWP1"), &[Case]),
            ("port 7", Id::local("Port7"), &[Space, Case]),
        ];
        for (declared, heard, want) in table {
            let want = match want {
                [] => Comparison::Same,
                tolerated => Comparison::Tolerated(tolerated.to_vec()),
            };
            assert_eq!(compare(declared, &heard), want, "{declared:?} and {heard}");
        }
    }

    #[test]
    fn rejects_other_ports() {
        let table = [
            ("Eth1/1", Id::interface("Ethernet1/11")),
            ("Eth1/1", Id::interface("Ethernet1/2")),
            ("Gi1/0/1", Id::interface("TenGigabitEthernet1/0/1")),
            ("ge-0/0/1", Id::interface("GigabitEthernet0/0/1")),
            ("xe-0/0/1", Id::interface("xe-0/0/1.100")),
            ("Ethernet1", Id::interface("Port1")),
            ("", Id::local(" ")),
            (
                "cc:e1:7f:ce:08:01",
                Id::mac(MacAddr([0xcc, 0xe1, 0x7f, 0xce, 0x08, 0x00])),
            ),
            ("504", Id::local("505")),
        ];
        for (declared, heard) in table {
            assert_eq!(
                compare(declared, &heard),
                Comparison::Different,
                "{declared:?} and {heard}"
            );
        }
    }

    #[test]
    fn shows_every_kind() {
        let network = |octets: &[u8]| Id {
            kind: IdKind::NetworkAddress,
            octets: octets.to_vec(),
        };
        assert_eq!(network(&[1, 192, 0, 2, 1]).to_string(), "192.0.2.1");
        let v6 = [&[2, 0x20, 0x01, 0x0d, 0xb8][..], &[0; 12]].concat();
        assert_eq!(network(&v6).to_string(), "2001:db8::");
        assert_eq!(network(&[9, 1]).to_string(), "0901");
        assert_eq!(Id::local("g1\0").to_string(), "g1");
        assert_eq!(
            Id {
                kind: IdKind::Mac,
                octets: vec![1, 2]
            }
            .to_string(),
            "0102"
        );
        assert_eq!(Id::local("a\nb").to_string(), "610a62");
    }

    #[test]
    fn subtypes_there_and_back() {
        for subtype in 0..=255 {
            assert_eq!(IdKind::of_chassis(subtype).chassis_subtype(), subtype);
            assert_eq!(IdKind::of_port(subtype).port_subtype(), subtype);
        }
    }

    proptest::proptest! {
        #[test]
        fn a_declared_text_always_matches_itself_and_nothing_panics(
            text in "[!-~]{1,30}", other: Vec<u8>, kind in 0u8..9,
        ) {
            proptest::prop_assert_eq!(compare(&text, &Id::interface(&text)), Comparison::Same);
            let id = Id { kind: IdKind::of_port(kind), octets: other };
            let _ = compare(&text, &id);
            proptest::prop_assert_eq!(compare(&id.to_string(), &id), Comparison::Same);
        }
    }
}

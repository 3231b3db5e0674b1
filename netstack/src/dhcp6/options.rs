//! DHCPv6 options as they stand on the wire (RFC 8415 section 21.1), and the class options that
//! firmware writes in more than one way. What cannot be read is a note, never a lost packet.

/// Option codes this server reads or writes (RFC 8415 unless named otherwise).
pub(crate) mod code {
    pub const CLIENT_ID: u16 = 1;
    pub const SERVER_ID: u16 = 2;
    pub const IA_NA: u16 = 3;
    pub const IA_TA: u16 = 4;
    pub const IA_ADDR: u16 = 5;
    pub const OPTION_REQUEST: u16 = 6;
    pub const PREFERENCE: u16 = 7;
    pub const ELAPSED_TIME: u16 = 8;
    pub const RELAY_MESSAGE: u16 = 9;
    pub const STATUS: u16 = 13;
    pub const RAPID_COMMIT: u16 = 14;
    pub const USER_CLASS: u16 = 15;
    pub const VENDOR_CLASS: u16 = 16;
    pub const INTERFACE_ID: u16 = 18;
    /// RFC 3646.
    pub const DNS_SERVERS: u16 = 23;
    /// RFC 3646.
    pub const DOMAIN_LIST: u16 = 24;
    pub const IA_PD: u16 = 25;
    pub const INFORMATION_REFRESH: u16 = 32;
    /// RFC 4649.
    pub const REMOTE_ID: u16 = 37;
    /// RFC 5970.
    pub const BOOT_FILE_URL: u16 = 59;
    /// RFC 5970: client system architecture types.
    pub const ARCH: u16 = 61;
    /// RFC 5970: client network interface identifier.
    pub const NDI: u16 = 62;
    /// RFC 6939: the client's link-layer address as its relay saw it.
    pub const CLIENT_LINKLAYER_ADDR: u16 = 79;
    /// RFC 8357: the relay wants answers on its source port.
    pub const RELAY_PORT: u16 = 135;
}

/// An option that could not be read as its type wants. The packet is still answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OptionNote {
    /// Option code; 0 for bytes after the last whole option.
    pub code: u16,
    /// What was wrong.
    pub kind: NoteKind,
}

/// What was wrong with an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoteKind {
    /// The length points past the end; this option and what follows were not read.
    Truncated {
        /// Octets announced.
        announced: u16,
        /// Octets left.
        left: usize,
    },
    /// Fewer octets than an option header at the end.
    Trailing {
        /// Octets left.
        left: usize,
    },
    /// The value does not have the length its type needs; it reads as absent.
    BadLength {
        /// Octets found.
        len: usize,
    },
    /// A singleton option came more than once; the first counts (RFC 8415 section 21.1 forbids it).
    Repeated,
    /// Inner lengths are little endian; read so (seen from D-Link routers).
    LittleEndian,
    /// Inner lengths are missing; the whole value is read as one class.
    Unframed,
    /// More identity associations or addresses than one client needs; the rest was not read.
    TooMany {
        /// Our bound.
        max: usize,
    },
}

/// The options of one message or option, in the order they came.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    list: Vec<(u16, Vec<u8>)>,
    notes: Vec<OptionNote>,
}

impl Options {
    /// Walks `field`. Never fails: what cannot be read is a note.
    pub fn parse(mut field: &[u8]) -> Self {
        let mut parsed = Self::default();
        while !field.is_empty() {
            let [c1, c2, l1, l2, rest @ ..] = field else {
                let left = field.len();
                parsed.note(0, NoteKind::Trailing { left });
                break;
            };
            let code = u16::from_be_bytes([*c1, *c2]);
            let announced = u16::from_be_bytes([*l1, *l2]);
            let Some((value, rest)) = rest.split_at_checked(usize::from(announced)) else {
                let left = rest.len();
                parsed.note(code, NoteKind::Truncated { announced, left });
                break;
            };
            parsed.list.push((code, value.to_vec()));
            field = rest;
        }
        parsed
    }

    /// The first value.
    pub fn get(&self, code: u16) -> Option<&[u8]> {
        self.all(code).next()
    }

    /// Whether the option is present, empty or not.
    pub fn contains(&self, code: u16) -> bool {
        self.get(code).is_some()
    }

    /// Every value of an option that may come more than once.
    pub fn all(&self, code: u16) -> impl Iterator<Item = &[u8]> {
        let list = self.list.iter().filter(move |(found, _)| *found == code);
        list.map(|(_, value)| value.as_slice())
    }

    /// The value of a singleton option; repetition is noted.
    pub fn singleton(&mut self, code: u16) -> Option<Vec<u8>> {
        let first = self.get(code)?.to_vec();
        if self.all(code).count() > 1 {
            self.note(code, NoteKind::Repeated);
        }
        Some(first)
    }

    /// A singleton of exactly `N` octets; any other length is noted and reads as absent.
    pub fn fixed<const N: usize>(&mut self, code: u16) -> Option<[u8; N]> {
        let value = self.singleton(code)?;
        let fixed = <[u8; N]>::try_from(value.as_slice()).ok();
        if fixed.is_none() {
            self.note(code, NoteKind::BadLength { len: value.len() });
        }
        fixed
    }

    /// A singleton that lists 16-bit numbers; an odd octet at the end is noted and left out.
    pub fn numbers(&mut self, code: u16) -> Vec<u16> {
        let Some(value) = self.singleton(code) else {
            return Vec::new();
        };
        if value.is_empty() || !value.len().is_multiple_of(2) {
            self.note(code, NoteKind::BadLength { len: value.len() });
        }
        let pairs = value.chunks_exact(2);
        pairs
            .map(|pair| u16::from_be_bytes([pair[0], pair[1]]))
            .collect()
    }

    /// All options in order.
    pub fn iter(&self) -> impl Iterator<Item = (u16, &[u8])> {
        self.list
            .iter()
            .map(|(code, value)| (*code, value.as_slice()))
    }

    /// All but one option; for a relay's, which carries the message as an option.
    pub(crate) fn without(mut self, code: u16) -> Self {
        self.list.retain(|(found, _)| *found != code);
        self
    }

    /// What could not be read so far.
    pub fn notes(&self) -> &[OptionNote] {
        &self.notes
    }

    /// Adds a note, once per code and kind.
    pub(crate) fn note(&mut self, code: u16, kind: NoteKind) {
        let note = OptionNote { code, kind };
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }
}

/// Fields with a 16-bit length before each, when they tile `value` exactly.
fn framed(value: &[u8], number: fn([u8; 2]) -> u16) -> Option<Vec<Vec<u8>>> {
    let mut fields = Vec::new();
    let mut rest = value;
    while let [a, b, tail @ ..] = rest {
        let (field, tail) = tail.split_at_checked(usize::from(number([*a, *b])))?;
        fields.push(field.to_vec());
        rest = tail;
    }
    rest.is_empty().then_some(fields)
}

/// The classes of an option 15 value (RFC 8415 section 21.15), and what was odd about it. Some
/// firmware leaves the inner lengths out ("exr-config" of Cisco routers): the whole value is one
/// class then. Text cannot be mistaken for lengths: two letters are a length of over 8,000.
pub fn user_class(value: &[u8]) -> (Vec<Vec<u8>>, Option<NoteKind>) {
    match framed(value, u16::from_be_bytes) {
        Some(classes) => (classes, None),
        None => (vec![value.to_vec()], Some(NoteKind::Unframed)),
    }
}

/// Vendor class, option 16 (RFC 8415 section 21.16).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VendorClass {
    /// IANA enterprise number; 343 in PXE and UEFI HTTP boot.
    pub enterprise: u32,
    /// Vendor class data, one entry each.
    pub data: Vec<Vec<u8>>,
}

/// Reads an option 16 value, and says what was odd about it. `None` without an enterprise number.
pub fn vendor_class(value: &[u8]) -> (Option<VendorClass>, Option<NoteKind>) {
    let len = value.len();
    let Some((enterprise, data)) = value.split_first_chunk::<4>() else {
        return (None, Some(NoteKind::BadLength { len }));
    };
    let enterprise = u32::from_be_bytes(*enterprise);
    let (data, note) = if data.is_empty() {
        (Vec::new(), Some(NoteKind::BadLength { len }))
    } else if let Some(data) = framed(data, u16::from_be_bytes) {
        (data, None)
    } else if let Some(data) = framed(data, u16::from_le_bytes) {
        (data, Some(NoteKind::LittleEndian))
    } else {
        (vec![data.to_vec()], Some(NoteKind::Unframed))
    };
    (Some(VendorClass { enterprise, data }), note)
}

/// Appends one option. Values are ours and bounded far below 64 KiB.
pub(crate) fn put(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    let len = u16::try_from(value.len()).expect("our own options are below 64 KiB");
    out.extend_from_slice(&code.to_be_bytes());
    out.extend_from_slice(&len.to_be_bytes());
    out.extend_from_slice(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(list: &[(u16, &[u8])]) -> Vec<u8> {
        let mut out = Vec::new();
        for (code, value) in list {
            put(&mut out, *code, value);
        }
        out
    }

    #[test]
    fn keeps_order_and_repeated_options() {
        let options = Options::parse(&of(&[(3, &[1]), (1, &[2]), (3, &[3]), (14, &[])]));
        let all: Vec<_> = options.iter().collect();
        assert_eq!(all, [(3, &[1][..]), (1, &[2]), (3, &[3]), (14, &[])]);
        assert_eq!(options.all(3).count(), 2);
        assert!(options.contains(14) && options.notes().is_empty());
    }

    #[test]
    fn rejects_a_length_past_the_end_and_keeps_what_came_before() {
        let mut field = of(&[(1, &[2])]);
        field.extend_from_slice(&[0, 15, 0, 9, b'x']);
        let options = Options::parse(&field);
        assert_eq!(options.get(1), Some(&[2][..]));
        let kind = NoteKind::Truncated {
            announced: 9,
            left: 1,
        };
        assert_eq!(options.notes(), [OptionNote { code: 15, kind }]);
        let options = Options::parse(&[0, 1, 0]);
        assert_eq!(options.notes()[0].kind, NoteKind::Trailing { left: 3 });
    }

    #[test]
    fn singletons_and_numbers_note_what_is_odd() {
        let mut options = Options::parse(&of(&[
            (6, &[0, 59, 0]),
            (61, &[]),
            (62, &[1, 3]),
            (8, &[0, 1]),
            (8, &[0, 2]),
        ]));
        assert_eq!(options.numbers(6), [59]);
        assert!(options.numbers(61).is_empty());
        assert_eq!(options.fixed::<3>(62), None);
        assert_eq!(options.fixed::<2>(8), Some([0, 1]));
        let kinds: Vec<_> = options.notes().iter().map(|n| (n.code, n.kind)).collect();
        assert_eq!(
            kinds,
            [
                (6, NoteKind::BadLength { len: 3 }),
                (61, NoteKind::BadLength { len: 0 }),
                (62, NoteKind::BadLength { len: 2 }),
                (8, NoteKind::Repeated),
            ]
        );
    }

    #[test]
    fn user_class_framed_and_raw() {
        let owned = |s: &str| s.as_bytes().to_vec();
        assert_eq!(user_class(b"\0\x04iPXE"), (vec![owned("iPXE")], None));
        assert_eq!(
            user_class(b"\0\x04iPXE\0\x01a").0,
            [owned("iPXE"), owned("a")]
        );
        let raw = (vec![owned("exr-config")], Some(NoteKind::Unframed));
        assert_eq!(user_class(b"exr-config"), raw);
        assert_eq!(user_class(b""), (vec![], None));
    }

    proptest::proptest! {
        #[test]
        fn never_panics_and_stays_within_the_input(field: Vec<u8>) {
            let parsed = Options::parse(&field);
            let held: usize = parsed.iter().map(|(_, value)| value.len() + 4).sum();
            proptest::prop_assert!(held <= field.len());
            let whole = parsed.notes().is_empty();
            proptest::prop_assert_eq!(whole, held == field.len());
            let _ = (user_class(&field), vendor_class(&field));
        }

        #[test]
        fn well_formed_options_read_back(
            given in proptest::collection::vec((0u16.., proptest::collection::vec(0u8.., 0..300)), 0..8),
        ) {
            let list: Vec<_> = given.iter().map(|(c, v)| (*c, v.as_slice())).collect();
            let parsed = Options::parse(&of(&list));
            proptest::prop_assert_eq!(parsed.iter().collect::<Vec<_>>(), list);
        }
    }
}

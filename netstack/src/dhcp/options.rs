//! Raw DHCP option walk: the part of the codec that must survive bad firmware.
//!
//! Joins split options (RFC 3396), follows option overload (52) into `file` and `sname`, and keeps
//! a note for every option it could not read instead of failing the packet. Values stay bytes;
//! typed getters note a bad length and then behave as if the option were absent.

use std::net::Ipv4Addr;
use std::ops::Range;

/// Option codes this server reads or writes (RFC 2132 unless named otherwise).
pub(crate) mod code {
    pub const HOST_NAME: u8 = 12;
    pub const VENDOR_OPTIONS: u8 = 43;
    pub const REQUESTED_ADDR: u8 = 50;
    pub const LEASE_TIME: u8 = 51;
    pub const OVERLOAD: u8 = 52;
    pub const MESSAGE_TYPE: u8 = 53;
    pub const SERVER_ID: u8 = 54;
    pub const PARAMETER_LIST: u8 = 55;
    pub const MAX_MESSAGE_SIZE: u8 = 57;
    pub const VENDOR_CLASS: u8 = 60;
    pub const CLIENT_ID: u8 = 61;
    /// RFC 3004.
    pub const USER_CLASS: u8 = 77;
    /// RFC 3046.
    pub const RELAY_AGENT: u8 = 82;
    /// RFC 4578: client system architecture.
    pub const ARCH: u8 = 93;
    /// RFC 4578: client network interface identifier.
    pub const NDI: u8 = 94;
    /// RFC 4578: client machine identifier.
    pub const UUID: u8 = 97;
    /// iPXE's encapsulated options.
    pub const IPXE: u8 = 175;
}

/// Options that a firmware's request has; more make the list grow.
const OPTIONS_USUAL: usize = 16;

/// An option (or field) that could not be read and was left out. The packet is still answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OptionNote {
    /// Option code.
    pub code: u8,
    /// What was wrong.
    pub kind: NoteKind,
}

/// What was wrong with an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoteKind {
    /// The length octet points past the end of the field; the rest of the field was not read.
    Truncated {
        /// Octets announced.
        announced: u8,
        /// Octets left.
        left: usize,
    },
    /// The field ends with a code and no length octet.
    NoLength,
    /// No END option (255) before the end of the options field.
    NoEnd,
    /// The value does not have the length its type needs.
    BadLength {
        /// Octets found.
        len: usize,
    },
    /// Option 52 holds something else than 1, 2 or 3, or stands in an overloaded field.
    BadOverload,
    /// A fixed-size option came more than once; the first value counts.
    Repeated,
    /// The value has the right length and cannot be meant (an address that is no host, type 0).
    BadValue,
}

/// All options of one message, joined by code. One buffer holds all values: in a storm an allocation
/// for each option would cost more than reading it.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Where each option's value is, in code order.
    index: Vec<(u8, Range<usize>)>,
    values: Vec<u8>,
    notes: Vec<OptionNote>,
}

impl PartialEq for Options {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter()) && self.notes == other.notes
    }
}

impl Eq for Options {}

/// The option instances of one message as they come, before they are joined.
struct Pieces<'a> {
    found: Vec<(u8, &'a [u8])>,
    notes: Vec<OptionNote>,
}

impl<'a> Pieces<'a> {
    /// Reads one field; whether END was met.
    fn walk(&mut self, mut field: &'a [u8]) -> bool {
        while let Some((&code, rest)) = field.split_first() {
            match code {
                0 => field = rest,
                255 => return true,
                _ => {
                    let Some((&len, rest)) = rest.split_first() else {
                        note(&mut self.notes, code, NoteKind::NoLength);
                        return false;
                    };
                    let Some((value, rest)) = rest.split_at_checked(usize::from(len)) else {
                        let truncated = NoteKind::Truncated {
                            announced: len,
                            left: rest.len(),
                        };
                        note(&mut self.notes, code, truncated);
                        return false;
                    };
                    self.found.push((code, value));
                    field = rest;
                }
            }
        }
        false
    }

    /// Reads an overloaded field. A 52 in it counts for nothing.
    fn walk_overloaded(&mut self, field: &'a [u8]) {
        let before = self.found.len();
        self.walk(field);
        let mut again = false;
        let mut at = 0;
        self.found.retain(|(code, value)| {
            let overload = at >= before && *code == code::OVERLOAD;
            again |= overload && !value.is_empty();
            at += 1;
            !overload
        });
        if again {
            note(&mut self.notes, code::OVERLOAD, NoteKind::BadOverload);
        }
    }

    /// Joins instances of one code in the order they came (RFC 3396).
    fn join(mut self) -> Options {
        self.found.sort_by_key(|(code, _)| *code);
        let mut index: Vec<(u8, Range<usize>)> = Vec::with_capacity(self.found.len());
        let len = self.found.iter().map(|(_, value)| value.len()).sum();
        let mut values = Vec::with_capacity(len);
        for (code, value) in self.found {
            let start = values.len();
            values.extend_from_slice(value);
            match index.last_mut() {
                Some((last, range)) if *last == code => range.end = values.len(),
                _ => index.push((code, start..values.len())),
            }
        }
        Options {
            index,
            values,
            notes: self.notes,
        }
    }
}

/// The first `N` octets of a value that should have `N`, and what is wrong with it.
fn fixed<const N: usize>(value: &[u8]) -> (Option<[u8; N]>, Option<NoteKind>) {
    let len = value.len();
    match value.first_chunk::<N>().copied() {
        Some(first) if len == N => (Some(first), None),
        Some(first) if len.is_multiple_of(N) => (Some(first), Some(NoteKind::Repeated)),
        _ => (None, Some(NoteKind::BadLength { len })),
    }
}

/// Adds a note, once per code and kind; bounded by the number of codes.
fn note(notes: &mut Vec<OptionNote>, code: u8, kind: NoteKind) {
    let note = OptionNote { code, kind };
    if !notes.contains(&note) {
        notes.push(note);
    }
}

impl Options {
    /// Walks `options` (what follows the magic cookie), then, as option 52 says, `file` and
    /// `sname` in that order (RFC 2131 section 4.1). Never fails: what cannot be read is a note.
    pub fn parse(options: &[u8], file: &[u8], sname: &[u8]) -> Self {
        let mut pieces = Pieces {
            found: Vec::with_capacity(OPTIONS_USUAL),
            notes: Vec::new(),
        };
        if !pieces.walk(options) {
            note(&mut pieces.notes, 255, NoteKind::NoEnd);
        }
        // Read before the second pass, so that a 52 inside `file` cannot send the walk round again.
        let overloads = || pieces.found.iter().filter(|(c, _)| *c == code::OVERLOAD);
        if overloads().next().is_some() {
            let overload: Vec<u8> = overloads().flat_map(|(_, value)| *value).copied().collect();
            let (value, wrong) = fixed::<1>(&overload);
            if let Some(kind) = wrong {
                note(&mut pieces.notes, code::OVERLOAD, kind);
            }
            match value {
                None => {}
                Some([1]) => pieces.walk_overloaded(file),
                Some([2]) => pieces.walk_overloaded(sname),
                Some([3]) => {
                    pieces.walk_overloaded(file);
                    pieces.walk_overloaded(sname);
                }
                Some(_) => note(&mut pieces.notes, code::OVERLOAD, NoteKind::BadOverload),
            }
        }
        pieces.join()
    }

    fn at(&self, code: u8) -> Option<usize> {
        let found = self.index.binary_search_by_key(&code, |(code, _)| *code);
        found.ok()
    }

    /// Whether the option is present, empty or not.
    pub fn contains(&self, code: u8) -> bool {
        self.at(code).is_some()
    }

    /// The joined value.
    pub fn get(&self, code: u8) -> Option<&[u8]> {
        let (_, range) = &self.index[self.at(code)?];
        Some(&self.values[range.clone()])
    }

    /// The joined value when it is not empty; an empty one is noted.
    pub fn non_empty(&mut self, code: u8) -> Option<Vec<u8>> {
        let value = self.get(code)?;
        if value.is_empty() {
            self.note(code, NoteKind::BadLength { len: 0 });
            return None;
        }
        Some(value.to_vec())
    }

    /// A value of exactly `N` octets. A repeated fixed-size option, which RFC 3396 would join,
    /// counts once; any other length is noted and reads as absent.
    pub fn fixed<const N: usize>(&mut self, code: u8) -> Option<[u8; N]> {
        let (value, wrong) = fixed(self.get(code)?);
        if let Some(kind) = wrong {
            self.note(code, kind);
        }
        value
    }

    /// An IPv4 address.
    pub fn addr(&mut self, code: u8) -> Option<Ipv4Addr> {
        self.fixed::<4>(code).map(Ipv4Addr::from)
    }

    /// A big-endian 16-bit number.
    pub fn u16(&mut self, code: u8) -> Option<u16> {
        self.fixed::<2>(code).map(u16::from_be_bytes)
    }

    /// A big-endian 32-bit number.
    pub fn u32(&mut self, code: u8) -> Option<u32> {
        self.fixed::<4>(code).map(u32::from_be_bytes)
    }

    /// All options in code order.
    pub fn iter(&self) -> impl Iterator<Item = (u8, &[u8])> {
        self.index
            .iter()
            .map(|(code, range)| (*code, &self.values[range.clone()]))
    }

    /// What could not be read so far.
    pub fn notes(&self) -> &[OptionNote] {
        &self.notes
    }

    pub(crate) fn note(&mut self, code: u8, kind: NoteKind) {
        note(&mut self.notes, code, kind);
    }
}

/// The user classes of an option 77 value.
///
/// RFC 3004 puts a length octet before each class. iPXE, u-root and others send the bare text. A
/// value whose lengths tile it exactly is read as RFC 3004, everything else as one bare class.
pub fn user_class(value: &[u8]) -> Vec<Vec<u8>> {
    let mut classes = Vec::new();
    let mut rest = value;
    while let Some((&len, tail)) = rest.split_first() {
        match tail.split_at_checked(usize::from(len)) {
            Some((class, tail)) if len > 0 => {
                classes.push(class.to_vec());
                rest = tail;
            }
            _ => return vec![value.to_vec()],
        }
    }
    classes
}

/// The sub-options of an option 82 value (RFC 3046 section 2.0), as far as they can be read; and
/// whether all of it could.
pub fn sub_options(value: &[u8]) -> (Vec<(u8, &[u8])>, bool) {
    let mut found = Vec::new();
    let mut rest = value;
    while let [code, len, tail @ ..] = rest {
        let Some((value, tail)) = tail.split_at_checked(usize::from(*len)) else {
            return (found, false);
        };
        found.push((*code, value));
        rest = tail;
    }
    (found, rest.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joins_split_options_across_the_field() {
        let field = [12, 2, b'a', b'b', 53, 1, 1, 12, 1, b'c', 255];
        let options = Options::parse(&field, &[], &[]);
        assert_eq!(options.get(12), Some(&b"abc"[..]));
        assert_eq!(options.get(53), Some(&[1][..]));
        assert!(options.notes().is_empty());
    }

    #[test]
    fn overload_reads_file_before_sname() {
        for (value, want) in [(1u8, "ofile"), (2, "osname"), (3, "ofilesname")] {
            let field = [12, 1, b'o', 52, 1, value, 255];
            let file = [12, 4, b'f', b'i', b'l', b'e', 255];
            let sname = [12, 5, b's', b'n', b'a', b'm', b'e', 255];
            let options = Options::parse(&field, &file, &sname);
            assert_eq!(options.get(12), Some(want.as_bytes()), "overload {value}");
        }
    }

    #[test]
    fn rejects_overload_loops_and_bad_values() {
        let file = [52, 1, 3, 12, 1, b'f', 255];
        let options = Options::parse(&[52, 1, 1, 255], &file, &[12, 1, b's', 255]);
        assert_eq!(
            options.get(12),
            Some(&b"f"[..]),
            "sname was not asked for by the options field"
        );
        assert_eq!(options.get(52), Some(&[1][..]));
        assert_eq!(
            options.notes(),
            [OptionNote {
                code: 52,
                kind: NoteKind::BadOverload
            }]
        );

        let options = Options::parse(&[52, 1, 4, 255], &[12, 1, b'f', 255], &[]);
        assert_eq!(options.get(12), None);
        assert_eq!(
            options.notes(),
            [OptionNote {
                code: 52,
                kind: NoteKind::BadOverload
            }]
        );
    }

    #[test]
    fn rejects_a_length_past_the_end_and_keeps_what_came_before() {
        let options = Options::parse(&[53, 1, 1, 12, 9, b'x'], &[], &[]);
        assert_eq!(options.get(53), Some(&[1][..]));
        assert_eq!(options.get(12), None);
        assert_eq!(
            options.notes(),
            [
                OptionNote {
                    code: 12,
                    kind: NoteKind::Truncated {
                        announced: 9,
                        left: 1
                    }
                },
                OptionNote {
                    code: 255,
                    kind: NoteKind::NoEnd
                },
            ]
        );
        let options = Options::parse(&[53], &[], &[]);
        assert_eq!(
            options.notes()[0],
            OptionNote {
                code: 53,
                kind: NoteKind::NoLength
            }
        );
    }

    #[test]
    fn fixed_takes_the_first_of_a_repeated_option() {
        let mut options = Options::parse(
            &[57, 2, 5, 0xc0, 57, 2, 1, 1, 51, 3, 0, 0, 9, 255],
            &[],
            &[],
        );
        assert_eq!(options.u16(57), Some(0x05c0));
        assert_eq!(options.u32(51), None);
        assert_eq!(
            options.notes(),
            [
                OptionNote {
                    code: 57,
                    kind: NoteKind::Repeated
                },
                OptionNote {
                    code: 51,
                    kind: NoteKind::BadLength { len: 3 }
                },
            ]
        );
    }

    #[test]
    fn user_class_raw_and_rfc_3004() {
        let owned = |s: &str| s.as_bytes().to_vec();
        assert_eq!(user_class(b"iPXE"), [owned("iPXE")]);
        assert_eq!(user_class(b"\x04iPXE"), [owned("iPXE")]);
        assert_eq!(user_class(b"linuxboot"), [owned("linuxboot")]);
        assert_eq!(
            user_class(b"\x04iPXE\x03abc"),
            [owned("iPXE"), owned("abc")]
        );
        assert_eq!(
            user_class(b"\x00iPXE"),
            [owned("\0iPXE")],
            "length 0 is not RFC 3004"
        );
        assert!(user_class(b"").is_empty());
    }

    proptest::proptest! {
        #[test]
        fn never_panics_and_stays_within_the_input(
            options: Vec<u8>, file: [u8; 32], sname: [u8; 16],
        ) {
            let parsed = Options::parse(&options, &file, &sname);
            let held: usize = parsed.iter().map(|(_, value)| value.len()).sum();
            proptest::prop_assert!(held <= options.len() + file.len() + sname.len());
            let _ = user_class(&options);
            let _ = sub_options(&options);
        }

        #[test]
        fn well_formed_options_read_back(
            given in proptest::collection::btree_map(1u8..=254, proptest::collection::vec(0u8.., 0..600), 0..8),
        ) {
            let mut field = Vec::new();
            for (code, value) in given.iter().filter(|(code, _)| **code != code::OVERLOAD) {
                if value.is_empty() {
                    field.extend_from_slice(&[*code, 0]);
                }
                for chunk in value.chunks(255) {
                    field.extend_from_slice(&[*code, chunk.len() as u8]);
                    field.extend_from_slice(chunk);
                }
            }
            field.push(255);
            let parsed = Options::parse(&field, &[], &[]);
            proptest::prop_assert!(parsed.notes().is_empty());
            for (code, value) in given.iter().filter(|(code, _)| **code != code::OVERLOAD) {
                proptest::prop_assert_eq!(parsed.get(*code), Some(value.as_slice()));
            }
        }
    }
}

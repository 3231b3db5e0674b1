//! DER as certificates use it (ITU-T X.690): one element at a time, over borrowed octets.
//!
//! Lengths are checked against what is there before anything is looked at; indefinite lengths and
//! tag numbers above 30 are refused, they occur in no certificate. A length that is longer than it
//! had to be is read: whoever verifies a signature does so over the octets as they came, never over
//! an encoding made anew. Knows no certificate.

/// Tags (X.680 section 8.4), with the constructed bit where it is always set.
pub(crate) mod tag {
    pub const BOOLEAN: u8 = 0x01;
    pub const INTEGER: u8 = 0x02;
    pub const BIT_STRING: u8 = 0x03;
    pub const OCTET_STRING: u8 = 0x04;
    pub const OID: u8 = 0x06;
    pub const ENUMERATED: u8 = 0x0a;
    pub const UTF8_STRING: u8 = 0x0c;
    pub const PRINTABLE_STRING: u8 = 0x13;
    pub const TELETEX_STRING: u8 = 0x14;
    pub const IA5_STRING: u8 = 0x16;
    pub const UTC_TIME: u8 = 0x17;
    pub const GENERALIZED_TIME: u8 = 0x18;
    pub const VISIBLE_STRING: u8 = 0x1a;
    pub const UNIVERSAL_STRING: u8 = 0x1c;
    pub const BMP_STRING: u8 = 0x1e;
    pub const SEQUENCE: u8 = 0x30;
    pub const SET: u8 = 0x31;

    /// Context-specific, constructed.
    pub const fn explicit(number: u8) -> u8 {
        0xa0 | number
    }

    /// Context-specific, primitive.
    pub const fn implicit(number: u8) -> u8 {
        0x80 | number
    }
}

/// Deepest nesting that [`lengths_minimal`] follows; certificates have below 12.
const DEPTH_MAX: u8 = 24;

/// What is wrong with an element.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DerError {
    /// Another element, or none, where one was expected.
    #[error("{what}: another element (tag {found:#04x})")]
    Tag {
        /// What was looked for.
        what: &'static str,
        /// Tag that is there.
        found: u8,
    },
    /// Nothing is left.
    #[error("{what}: nothing left")]
    End {
        /// What was looked for.
        what: &'static str,
    },
    /// The length runs past what is there.
    #[error("{what}: says {says} bytes, {left} are there")]
    Length {
        /// What was read.
        what: &'static str,
        /// Bytes it says it has, header included.
        says: usize,
        /// Bytes that are there.
        left: usize,
    },
    /// A form that DER does not have or certificates do not use.
    #[error("{what}: {form}")]
    Form {
        /// What was read.
        what: &'static str,
        /// What is wrong with it.
        form: &'static str,
    },
}

/// One element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Element<'a> {
    pub tag: u8,
    pub content: &'a [u8],
    /// With its header.
    pub raw: &'a [u8],
}

impl<'a> Element<'a> {
    /// Its content as elements.
    pub fn inside(self) -> Reader<'a> {
        Reader(self.content)
    }
}

/// Elements one after the other.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    /// What was not read yet.
    pub fn rest(&self) -> &'a [u8] {
        self.0
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Tag of the next element.
    pub fn peek(&self) -> Option<u8> {
        self.0.first().copied()
    }

    /// The next element, whatever it is.
    pub fn any(&mut self, what: &'static str) -> Result<Element<'a>, DerError> {
        let &[tag, first, ..] = self.0 else {
            return Err(match self.0.len() {
                0 => DerError::End { what },
                left => DerError::Length {
                    what,
                    says: 2,
                    left,
                },
            });
        };
        if tag & 0x1f == 0x1f {
            return Err(DerError::Form {
                what,
                form: "a tag number above 30",
            });
        }
        let (header, len) = match first {
            0..=0x7f => (2, usize::from(first)),
            0x80 => {
                return Err(DerError::Form {
                    what,
                    form: "an indefinite length",
                });
            }
            // Four octets of length are 4 GiB; nothing that is read here is longer.
            0x81..=0x84 => {
                let count = usize::from(first & 0x7f);
                let Some(octets) = self.0.get(2..2 + count) else {
                    return Err(DerError::Length {
                        what,
                        says: 2 + count,
                        left: self.0.len(),
                    });
                };
                let len = octets
                    .iter()
                    .fold(0u64, |len, &octet| len << 8 | u64::from(octet));
                (2 + count, usize::try_from(len).unwrap_or(usize::MAX))
            }
            _ => {
                return Err(DerError::Form {
                    what,
                    form: "a length of more than four octets",
                });
            }
        };
        let says = header.saturating_add(len);
        let Some((raw, rest)) = self.0.split_at_checked(says) else {
            return Err(DerError::Length {
                what,
                says,
                left: self.0.len(),
            });
        };
        self.0 = rest;
        Ok(Element {
            tag,
            content: &raw[header..],
            raw,
        })
    }

    /// The next element, which must have this tag.
    pub fn expect(&mut self, tag: u8, what: &'static str) -> Result<Element<'a>, DerError> {
        match self.peek() {
            Some(found) if found != tag => Err(DerError::Tag { what, found }),
            _ => self.any(what),
        }
    }

    /// The next element if it has this tag.
    pub fn optional(
        &mut self,
        tag: u8,
        what: &'static str,
    ) -> Result<Option<Element<'a>>, DerError> {
        if self.peek() == Some(tag) {
            return self.any(what).map(Some);
        }
        Ok(None)
    }

    pub fn sequence(&mut self, what: &'static str) -> Result<Reader<'a>, DerError> {
        Ok(self.expect(tag::SEQUENCE, what)?.inside())
    }

    /// Content octets of an OBJECT IDENTIFIER.
    pub fn oid(&mut self, what: &'static str) -> Result<&'a [u8], DerError> {
        Ok(self.expect(tag::OID, what)?.content)
    }

    /// Content octets of an INTEGER as they stand: sign and leading zeros are the caller's.
    pub fn integer(&mut self, what: &'static str) -> Result<&'a [u8], DerError> {
        Ok(self.expect(tag::INTEGER, what)?.content)
    }

    /// A BIT STRING of whole octets: signatures and keys.
    pub fn bit_octets(&mut self, what: &'static str) -> Result<&'a [u8], DerError> {
        match self.expect(tag::BIT_STRING, what)?.content {
            [0, octets @ ..] => Ok(octets),
            _ => Err(DerError::Form {
                what,
                form: "a BIT STRING that is no whole number of octets",
            }),
        }
    }
}

/// An element that fills the octets.
pub(crate) fn whole<'a>(
    octets: &'a [u8],
    tag: u8,
    what: &'static str,
) -> Result<Element<'a>, DerError> {
    let mut reader = Reader(octets);
    let element = reader.expect(tag, what)?;
    if !reader.is_empty() {
        return Err(DerError::Form {
            what,
            form: "octets behind it",
        });
    }
    Ok(element)
}

/// A BOOLEAN: anything but zero is true (BER); DER has 0xff only.
pub(crate) fn boolean(element: Element<'_>) -> bool {
    element.content.iter().any(|&octet| octet != 0)
}

/// A small non-negative INTEGER.
pub(crate) fn small(content: &[u8]) -> Option<u32> {
    if content.first()? & 0x80 != 0 {
        return None;
    }
    let digits = without_zeros(content);
    (digits.len() <= 4).then(|| {
        digits
            .iter()
            .fold(0, |value, &octet| value << 8 | u32::from(octet))
    })
}

/// Without leading zero octets.
pub(crate) fn without_zeros(octets: &[u8]) -> &[u8] {
    let zeros = octets.iter().take_while(|&&octet| octet == 0).count();
    &octets[zeros..]
}

/// `2.23.133.8.1`. Bounded by the octets; arcs beyond 64 bits are shown as `?`.
pub fn oid_text(content: &[u8]) -> String {
    let mut text = String::new();
    let mut arc = Some(0u64);
    for &octet in content {
        arc = arc
            .and_then(|arc| arc.checked_mul(128))
            .map(|arc| arc | u64::from(octet & 0x7f));
        if octet & 0x80 != 0 {
            continue;
        }
        match (arc, text.is_empty()) {
            (Some(arc), true) => {
                let root = (arc / 40).min(2);
                text = format!("{root}.{}", arc - root * 40);
            }
            (Some(arc), false) => text.push_str(&format!(".{arc}")),
            (None, true) => text.push('?'),
            (None, false) => text.push_str(".?"),
        }
        arc = Some(0);
    }
    text
}

/// Whether every length has its shortest form, as DER demands. Follows constructed elements.
pub(crate) fn lengths_minimal(octets: &[u8]) -> bool {
    fn follow(octets: &[u8], depth: u8) -> bool {
        let mut reader = Reader(octets);
        while !reader.is_empty() {
            let Ok(element) = reader.any("element") else {
                return true;
            };
            let shortest = match element.content.len() {
                0..=0x7f => 2,
                0x80..=0xff => 3,
                0x100..=0xffff => 4,
                0x1_0000..=0xff_ffff => 5,
                _ => 6,
            };
            if element.raw.len() - element.content.len() != shortest {
                return false;
            }
            if element.tag & 0x20 != 0 && depth < DEPTH_MAX && !follow(element.content, depth + 1) {
                return false;
            }
        }
        true
    }
    follow(octets, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oids_are_written_with_dots() {
        let table: [(&[u8], &str); 5] = [
            (&[0x67, 0x81, 0x05, 0x08, 0x01], "2.23.133.8.1"),
            (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d], "1.2.840.113549"),
            (&[0x88, 0x37, 0x03], "2.999.3"),
            (&[], ""),
            (&[0xff; 12], ""),
        ];
        for (octets, text) in table {
            assert_eq!(oid_text(octets), text);
        }
        let beyond = [&[0xff; 12][..], &[0x01, 0x05]].concat();
        assert_eq!(oid_text(&beyond), "?.5");
    }

    #[test]
    fn rejects_lengths_that_do_not_fit() {
        let table: [(&[u8], DerError); 6] = [
            (&[], DerError::End { what: "x" }),
            (
                &[0x30],
                DerError::Length {
                    what: "x",
                    says: 2,
                    left: 1,
                },
            ),
            (
                &[0x30, 5, 0],
                DerError::Length {
                    what: "x",
                    says: 7,
                    left: 3,
                },
            ),
            (
                &[0x30, 0x82, 1],
                DerError::Length {
                    what: "x",
                    says: 4,
                    left: 3,
                },
            ),
            (
                &[0x30, 0x80, 0, 0],
                DerError::Form {
                    what: "x",
                    form: "an indefinite length",
                },
            ),
            (
                &[0x31, 0],
                DerError::Tag {
                    what: "x",
                    found: 0x31,
                },
            ),
        ];
        for (octets, error) in table {
            assert_eq!(
                Reader(octets).expect(0x30, "x"),
                Err(error),
                "{octets:02x?}"
            );
        }
    }

    #[test]
    fn a_longer_length_than_needed_is_read_and_seen() {
        let mut reader = Reader(&[0x30, 0x82, 0, 1, 0xaa]);
        assert_eq!(reader.any("x").expect("read").content, [0xaa]);
        assert!(!lengths_minimal(&[0x30, 0x81, 2, 0x05, 0x00]));
        assert!(!lengths_minimal(&[0x30, 3, 0x31, 0x81, 0]));
        assert!(lengths_minimal(&[0x30, 2, 0x05, 0x00]));
    }
}

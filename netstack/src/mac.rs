//! IEEE 802 hardware address, the one form of it that this crate passes around.

use std::fmt;
use std::str::FromStr;

/// EUI-48 address. Names an interface, never a machine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// Whether the group bit is set (multicast or broadcast; IEEE 802 section 8.2).
    pub fn is_group(self) -> bool {
        self.0[0] & 0x01 != 0
    }

    /// Whether all octets are zero.
    pub fn is_zero(self) -> bool {
        self.0 == [0; 6]
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// Text that is not a hardware address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected twelve hex digits as aa:bb:cc:dd:ee:ff, found {0:?}")]
pub struct MacAddrError(String);

impl FromStr for MacAddr {
    type Err = MacAddrError;

    /// Reads the ways vendors print it: `aa:bb:cc:dd:ee:ff`, `aa-bb-cc-dd-ee-ff`,
    /// `aabb.ccdd.eeff`, `aabbcc-ddeeff`, `aabbccddeeff`; any case.
    fn from_str(text: &str) -> Result<Self, MacAddrError> {
        let refuse = || MacAddrError(text.chars().take(40).collect());
        let groups: Vec<&str> = text.split([':', '-', '.']).collect();
        let group_len = match groups.len() {
            1 => 12,
            2 => 6,
            3 => 4,
            6 => 2,
            _ => return Err(refuse()),
        };
        let mut digits = Vec::with_capacity(12);
        for group in groups {
            if group.len() != group_len {
                return Err(refuse());
            }
            for c in group.chars() {
                digits.push(c.to_digit(16).ok_or_else(refuse)? as u8);
            }
        }
        let mut out = [0u8; 6];
        for (octet, pair) in out.iter_mut().zip(digits.chunks_exact(2)) {
            *octet = pair[0] << 4 | pair[1];
        }
        Ok(Self(out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_five_ways_vendors_print_it() {
        let want = MacAddr([0x52, 0x54, 0x00, 0xab, 0xcd, 0xef]);
        for text in [
            "52:54:00:ab:cd:ef",
            "52-54-00-AB-CD-EF",
            "5254.00ab.cdef",
            "525400-abcdef",
            "525400ABCDEF",
        ] {
            assert_eq!(text.parse::<MacAddr>().unwrap(), want, "{text}");
        }
        assert_eq!(want.to_string(), "52:54:00:ab:cd:ef");
    }

    #[test]
    fn rejects_what_is_no_address() {
        for text in [
            "",
            "52:54:00:ab:cd",
            "52:54:00:ab:cd:e",
            "5:254:00:ab:cd:ef",
            "52540 abcdef",
            "é25400abcdef",
        ] {
            assert!(text.parse::<MacAddr>().is_err(), "{text}");
        }
    }
}

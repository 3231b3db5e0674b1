//! DHCP Unique Identifier: opaque to a server, apart from what an operator recognises in it.

use std::fmt;

use crate::MacAddr;

/// Octets of a DUID: two of type and up to 128 (RFC 8415 section 11.1). One octet of content is the
/// least that can tell two clients apart.
pub(crate) const LEN: std::ops::RangeInclusive<usize> = 3..=130;
/// Hardware type of Ethernet (IANA ARP parameters).
const ETHERNET: [u8; 2] = [0, 1];

/// A DUID as it came. Compared as opaque octets, never parsed to decide who somebody is.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Duid(Vec<u8>);

impl Duid {
    /// From an option value or the lease journal; `None` when the length is not a DUID's.
    pub fn from_bytes(bytes: Vec<u8>) -> Option<Self> {
        LEN.contains(&bytes.len()).then_some(Self(bytes))
    }

    /// DUID-LL (type 3) of an Ethernet interface: needs no clock and no storage, which suits an
    /// appliance whose interface does not change (RFC 8415 section 11.4).
    pub fn link_layer(mac: MacAddr) -> Self {
        let mut bytes = vec![0, 3];
        bytes.extend_from_slice(&ETHERNET);
        bytes.extend_from_slice(&mac.0);
        Self(bytes)
    }

    /// The octets.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Type: 1 LLT, 2 EN, 3 LL, 4 UUID.
    pub fn kind(&self) -> u16 {
        match self.0.first_chunk() {
            Some(kind) => u16::from_be_bytes(*kind),
            None => 0,
        }
    }

    /// The Ethernet address in a DUID-LLT or DUID-LL. One of the machine's interfaces, perhaps not
    /// this one.
    pub fn mac(&self) -> Option<MacAddr> {
        let rest = match self.kind() {
            1 => self.0.get(2..4).zip(self.0.get(8..)),
            3 => self.0.get(2..4).zip(self.0.get(4..)),
            _ => None,
        };
        let (hardware, addr) = rest?;
        let mac = MacAddr(<[u8; 6]>::try_from(addr).ok()?);
        (hardware == ETHERNET && !mac.is_zero() && !mac.is_group()).then_some(mac)
    }

    /// The machine's UUID in a DUID-UUID (RFC 6355): SMBIOS system UUID, as it stands there.
    pub fn uuid(&self) -> Option<[u8; 16]> {
        (self.kind() == 4)
            .then(|| self.0.get(2..)?.try_into().ok())
            .flatten()
    }
}

impl fmt::Display for Duid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|octet| write!(f, "{octet:02x}"))
    }
}

impl fmt::Debug for Duid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn duid(hex: &str) -> Duid {
        Duid::from_bytes(hex::decode(hex).unwrap()).unwrap()
    }

    #[test]
    fn four_kinds_from_the_field() {
        let llt = duid("0001000131e5ef92525400000008");
        assert_eq!(llt.mac(), Some(MacAddr([0x52, 0x54, 0, 0, 0, 8])));
        let en = duid(
            "0002000000094647453139343731345153 00"
                .replace(' ', "")
                .as_str(),
        );
        assert_eq!((en.kind(), en.mac(), en.uuid()), (2, None, None));
        let ll = duid("00030001000102030405");
        assert_eq!(ll.mac(), Some(MacAddr([0, 1, 2, 3, 4, 5])));
        assert_eq!(ll, Duid::link_layer(MacAddr([0, 1, 2, 3, 4, 5])));
        let uuid = duid("0004a256e92e40abd0d2a3ab3b3ff2ff8998");
        assert_eq!(uuid.uuid().map(|u| u[0]), Some(0xa2));
        assert_eq!(uuid.to_string(), "0004a256e92e40abd0d2a3ab3b3ff2ff8998");
    }

    #[test]
    fn rejects_lengths_and_addresses_that_are_none() {
        assert_eq!(Duid::from_bytes(vec![0, 3]), None);
        assert_eq!(Duid::from_bytes(vec![0; 131]), None);
        // Truncated, of another hardware type, a group address.
        for hex in [
            "000300010001020304",
            "00030006000102030405",
            "00030001010102030405",
        ] {
            assert_eq!(duid(hex).mac(), None, "{hex}");
        }
        assert_eq!(duid("0004a256").uuid(), None);
    }
}

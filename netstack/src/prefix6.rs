//! IPv6 prefix of a link, shared by DHCPv6 and Router Advertisements.

use std::fmt;
use std::net::Ipv6Addr;

/// An IPv6 prefix (RFC 4291 section 2.3); host bits are zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ipv6Prefix {
    addr: Ipv6Addr,
    len: u8,
}

impl Ipv6Prefix {
    /// The prefix of `addr`/`len`; host bits are cleared. `None` over 128 bits.
    pub fn new(addr: Ipv6Addr, len: u8) -> Option<Self> {
        (len <= 128).then(|| Self {
            addr: Ipv6Addr::from_bits(addr.to_bits() & mask(len)),
            len,
        })
    }

    /// Address with all host bits zero (also the Subnet-Router anycast address, RFC 4291 section
    /// 2.6.1).
    pub fn network(self) -> Ipv6Addr {
        self.addr
    }

    /// Length in bits.
    pub fn prefix_len(self) -> u8 {
        self.len
    }

    /// Whether `addr` lies under the prefix.
    pub fn contains(self, addr: Ipv6Addr) -> bool {
        addr.to_bits() & mask(self.len) == self.addr.to_bits()
    }

    /// Whether `addr` can be a host's: under the prefix and not the Subnet-Router anycast address.
    pub fn is_host(self, addr: Ipv6Addr) -> bool {
        self.contains(addr) && addr != self.addr && !addr.is_multicast() && !addr.is_loopback()
    }
}

fn mask(len: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0)
}

impl fmt::Display for Ipv6Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.addr, self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_at_both_ends() {
        let addr: Ipv6Addr = "2001:db8::1:2".parse().unwrap();
        let prefix = Ipv6Prefix::new(addr, 64).unwrap();
        assert_eq!(prefix.to_string(), "2001:db8::/64");
        assert!(prefix.contains(addr) && prefix.is_host(addr));
        assert!(!prefix.is_host(prefix.network()));
        assert!(!prefix.contains("2001:db8:0:1::1".parse().unwrap()));
        let all = Ipv6Prefix::new(addr, 0).unwrap();
        assert!(all.contains(Ipv6Addr::LOCALHOST) && !all.is_host(Ipv6Addr::LOCALHOST));
        assert_eq!(Ipv6Prefix::new(addr, 128).unwrap().network(), addr);
        assert_eq!(Ipv6Prefix::new(addr, 129), None);
    }
}

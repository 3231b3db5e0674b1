//! Socket addresses between std and the C library.

use std::mem::size_of;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use nix::libc;

/// An address with no family.
pub(super) fn empty() -> libc::sockaddr_storage {
    // SAFETY: sockaddr_storage is plain data; all-zero is AF_UNSPEC.
    unsafe { std::mem::zeroed() }
}

/// Writes `address`; returns its length for the kernel.
pub(super) fn write(address: SocketAddr, into: &mut libc::sockaddr_storage) -> libc::socklen_t {
    *into = empty();
    let target = std::ptr::from_mut(into);
    match address {
        SocketAddr::V4(v4) => {
            let value = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from_ne_bytes(v4.ip().octets()),
                },
                sin_zero: [0; 8],
            };
            // SAFETY: sockaddr_storage is larger than sockaddr_in and aligned for every address.
            unsafe { target.cast::<libc::sockaddr_in>().write(value) };
            size_of::<libc::sockaddr_in>() as libc::socklen_t
        }
        SocketAddr::V6(v6) => {
            let value = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr {
                    s6_addr: v6.ip().octets(),
                },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: sockaddr_storage is larger than sockaddr_in6 and aligned for every address.
            unsafe { target.cast::<libc::sockaddr_in6>().write(value) };
            size_of::<libc::sockaddr_in6>() as libc::socklen_t
        }
    }
}

/// Reads what the kernel wrote; none for another family.
pub(super) fn read(from: &libc::sockaddr_storage) -> Option<SocketAddr> {
    let source = std::ptr::from_ref(from);
    match libc::c_int::from(from.ss_family) {
        libc::AF_INET => {
            // SAFETY: sockaddr_storage is larger than sockaddr_in, aligned for every address, and
            // any bytes are a valid sockaddr_in.
            let value = unsafe { source.cast::<libc::sockaddr_in>().read() };
            let ip = Ipv4Addr::from(value.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddrV4::new(ip, u16::from_be(value.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above, for sockaddr_in6.
            let value = unsafe { source.cast::<libc::sockaddr_in6>().read() };
            let ip = Ipv6Addr::from(value.sin6_addr.s6_addr);
            let port = u16::from_be(value.sin6_port);
            Some(SocketAddrV6::new(ip, port, value.sin6_flowinfo, value.sin6_scope_id).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_families_come_back() {
        let mut storage = empty();
        assert_eq!(read(&storage), None);
        for text in ["10.1.2.3:69", "[fe80::1%3]:4011", "[2001:db8::1]:65535"] {
            let address: SocketAddr = text.parse().expect("an address");
            write(address, &mut storage);
            assert_eq!(read(&storage), Some(address), "{text}");
        }
    }
}

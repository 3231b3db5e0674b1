//! The little an `/init` without user space tools must set: link up, address, default route.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::libc;

use super::{NicError, index_of};

/// How often the carrier is looked at.
const CARRIER_POLL: Duration = Duration::from_millis(50);

/// Brings an interface up (`IFF_UP`).
///
/// # Errors
/// [`NicError`]; needs `CAP_NET_ADMIN`.
pub fn link_up(ifname: &str) -> Result<(), NicError> {
    let doing = "bringing the link up";
    let socket = control_socket(doing, ifname)?;
    let mut request = request_for(ifname)?;
    ioctl(&socket, libc::SIOCGIFFLAGS, &mut request, doing, ifname)?;
    // SAFETY: SIOCGIFFLAGS has just filled the flags member.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    request.ifr_ifru.ifru_flags = flags | libc::IFF_UP as libc::c_short;
    ioctl(&socket, libc::SIOCSIFFLAGS, &mut request, doing, ifname)
}

/// Waits until the interface is up and has a link partner; false when the time is over.
///
/// # Errors
/// [`NicError::Missing`], also when the interface goes away meanwhile.
pub fn wait_for_carrier(ifname: &str, timeout: Duration) -> Result<bool, NicError> {
    let socket = control_socket("waiting for the carrier", ifname)?;
    let deadline = Instant::now() + timeout;
    loop {
        if has_carrier(&socket, ifname)? {
            return Ok(true);
        }
        if Instant::now() >= deadline {
            return Ok(false);
        }
        std::thread::sleep(CARRIER_POLL);
    }
}

/// Whether the interface is up and has a link partner now.
///
/// # Errors
/// [`NicError::Missing`], or what the kernel refuses.
pub fn carrier(ifname: &str) -> Result<bool, NicError> {
    has_carrier(&control_socket("reading the carrier", ifname)?, ifname)
}

/// `ETHTOOL_GLINK` where the driver has it, else `IFF_RUNNING`.
fn has_carrier(socket: &OwnedFd, ifname: &str) -> Result<bool, NicError> {
    /// `struct ethtool_value` of linux/ethtool.h.
    #[repr(C)]
    struct EthtoolValue {
        command: u32,
        data: u32,
    }
    const ETHTOOL_GLINK: u32 = 0x0000_000a;
    let doing = "waiting for the carrier";
    let mut value = EthtoolValue {
        command: ETHTOOL_GLINK,
        data: 0,
    };
    let mut request = request_for(ifname)?;
    request.ifr_ifru.ifru_data = std::ptr::from_mut(&mut value).cast();
    match ioctl(socket, libc::SIOCETHTOOL, &mut request, doing, ifname) {
        Ok(()) => return Ok(value.data != 0),
        Err(NicError::Os { source, .. }) if source.kind() == io::ErrorKind::Unsupported => {}
        Err(error) => return Err(error),
    }
    let mut request = request_for(ifname)?;
    ioctl(socket, libc::SIOCGIFFLAGS, &mut request, doing, ifname)?;
    // SAFETY: SIOCGIFFLAGS has just filled the flags member.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    Ok(flags & libc::IFF_RUNNING as libc::c_short != 0)
}

/// Sets address, mask and, if given, the default route of an interface.
///
/// # Errors
/// [`NicError`]; needs `CAP_NET_ADMIN`.
pub fn configure_ipv4(
    ifname: &str,
    addr: Ipv4Addr,
    prefix: u8,
    router: Option<Ipv4Addr>,
) -> Result<(), NicError> {
    let doing = "setting the address";
    let socket = control_socket(doing, ifname)?;
    let mut request = request_for(ifname)?;
    request.ifr_ifru.ifru_addr = socket_address(addr);
    ioctl(&socket, libc::SIOCSIFADDR, &mut request, doing, ifname)?;
    let mask = u32::MAX
        .checked_shl(32 - u32::from(prefix.min(32)))
        .unwrap_or(0);
    request.ifr_ifru.ifru_netmask = socket_address(Ipv4Addr::from(mask));
    ioctl(&socket, libc::SIOCSIFNETMASK, &mut request, doing, ifname)?;
    let Some(router) = router else { return Ok(()) };

    let mut device = request_for(ifname)?.ifr_name;
    // SAFETY: rtentry is plain data; all-zero is its empty value.
    let mut route: libc::rtentry = unsafe { std::mem::zeroed() };
    route.rt_dst = socket_address(Ipv4Addr::UNSPECIFIED);
    route.rt_genmask = socket_address(Ipv4Addr::UNSPECIFIED);
    route.rt_gateway = socket_address(router);
    route.rt_flags = libc::RTF_UP | libc::RTF_GATEWAY;
    route.rt_dev = device.as_mut_ptr();
    match ioctl(
        &socket,
        libc::SIOCADDRT,
        &mut route,
        "setting the default route",
        ifname,
    ) {
        Err(NicError::Os { source, .. }) if source.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

fn control_socket(doing: &'static str, ifname: &str) -> Result<OwnedFd, NicError> {
    index_of(ifname)?;
    // SAFETY: no pointers are involved; the result is checked before it is owned.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        let source = io::Error::last_os_error();
        return Err(NicError::os(doing, ifname, "CAP_NET_ADMIN", source));
    }
    // SAFETY: `fd` was just opened here and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// An `ifreq` with this name and zeros.
fn request_for(ifname: &str) -> Result<libc::ifreq, NicError> {
    // SAFETY: ifreq is plain data; all-zero is its empty value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // One byte stays for the terminating NUL.
    if ifname.len() >= request.ifr_name.len() {
        return Err(NicError::Missing {
            ifname: ifname.to_owned(),
        });
    }
    for (slot, byte) in request.ifr_name.iter_mut().zip(ifname.bytes()) {
        *slot = byte as libc::c_char;
    }
    Ok(request)
}

/// An IPv4 address as the generic `sockaddr`.
fn socket_address(addr: Ipv4Addr) -> libc::sockaddr {
    // sa_data of AF_INET: port (2 bytes), address (4 bytes, network order), zeros.
    let mut sa_data = [0; 14];
    for (slot, byte) in sa_data[2..6].iter_mut().zip(addr.octets()) {
        *slot = byte as libc::c_char;
    }
    libc::sockaddr {
        sa_family: libc::AF_INET as libc::sa_family_t,
        sa_data,
    }
}

fn ioctl<T>(
    socket: &OwnedFd,
    code: libc::c_ulong,
    argument: &mut T,
    doing: &'static str,
    ifname: &str,
) -> Result<(), NicError> {
    // SAFETY: the argument is a live structure of the type this code takes (ifreq for SIOC?IF* and
    // SIOCETHTOOL, rtentry for SIOCADDRT), and everything it points to outlives the call.
    let result =
        unsafe { libc::ioctl(socket.as_raw_fd(), code as _, std::ptr::from_mut(argument)) };
    if result < 0 {
        let source = io::Error::last_os_error();
        return Err(match source.raw_os_error() {
            Some(libc::ENODEV) => NicError::Missing {
                ifname: ifname.to_owned(),
            },
            _ => NicError::os(doing, ifname, "CAP_NET_ADMIN", source),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_interfaces_that_are_not_there() {
        for ifname in ["not-there", "a-name-longer-than-the-kernel-takes"] {
            assert!(matches!(link_up(ifname), Err(NicError::Missing { .. })));
            let waited = wait_for_carrier(ifname, Duration::ZERO);
            assert!(matches!(waited, Err(NicError::Missing { .. })));
            assert!(matches!(carrier(ifname), Err(NicError::Missing { .. })));
            let addr = Ipv4Addr::LOCALHOST;
            let result = configure_ipv4(ifname, addr, 8, None);
            assert!(matches!(result, Err(NicError::Missing { .. })));
        }
    }
}

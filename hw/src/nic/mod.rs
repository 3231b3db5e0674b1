//! Network interfaces: which there are, raw frames in and out, and the little that `/init` must
//! configure.
//!
//! Moves bytes; parses nothing beyond what a socket needs. What an LLDP frame or a datagram means
//! is decided in `netstack`.

mod config;
mod frames;
mod icmp6;
mod lldp;
mod packet;
mod udp;

use std::io;
use std::os::fd::AsFd;
use std::path::Path;

pub use config::{carrier, configure_ipv4, link_up, wait_for_carrier};
pub use frames::FrameSocket;
pub use icmp6::{Icmp6Socket, Received};
pub use lldp::{Frame, LldpSocket};
pub use udp::RawUdp;

/// What went wrong with an interface.
#[derive(Debug, thiserror::Error)]
pub enum NicError {
    /// There is no interface of that name.
    #[error("there is no network interface {ifname:?}")]
    Missing {
        /// The name.
        ifname: String,
    },
    /// A raw socket or a change of configuration needs a capability.
    #[error("{doing} on {ifname} needs {capability}")]
    Permission {
        /// What we were doing.
        doing: &'static str,
        /// On which interface.
        ifname: String,
        /// `CAP_NET_RAW` or `CAP_NET_ADMIN`.
        capability: &'static str,
    },
    /// The kernel refused.
    #[error("{doing} on {ifname} failed")]
    Os {
        /// What we were doing.
        doing: &'static str,
        /// On which interface.
        ifname: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A datagram does not fit into one IPv4 packet.
    #[error("datagram of {size} bytes does not fit into one packet of {max} bytes")]
    TooLarge {
        /// Payload size in bytes.
        size: usize,
        /// Bound in bytes.
        max: usize,
    },
}

impl NicError {
    fn os(doing: &'static str, ifname: &str, capability: &'static str, source: io::Error) -> Self {
        let ifname = ifname.to_owned();
        match source.kind() {
            io::ErrorKind::PermissionDenied => Self::Permission {
                doing,
                ifname,
                capability,
            },
            _ => Self::Os {
                doing,
                ifname,
                source,
            },
        }
    }
}

/// One interface as the kernel lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Kernel name.
    pub name: String,
    /// Hardware address, if it has one.
    pub mac: Option<[u8; 6]>,
    /// Backed by a device (as opposed to loopback, bridges, veth and the like).
    pub physical: bool,
}

/// All interfaces but loopback, in kernel order.
pub fn interfaces() -> Vec<Interface> {
    pnet_datalink::interfaces()
        .into_iter()
        .filter(|interface| !interface.is_loopback())
        .map(|interface| Interface {
            physical: Path::new("/sys/class/net")
                .join(&interface.name)
                .join("device")
                .exists(),
            mac: interface.mac.map(|mac| mac.octets()),
            name: interface.name,
        })
        .collect()
}

/// Name of the driver behind an interface; `bridge` or `bonding` for one whose cables are those of its
/// members; none for other virtual ones and where sysfs does not say.
pub fn driver(ifname: &str) -> Option<String> {
    let folder = Path::new("/sys/class/net").join(ifname);
    for kind in ["bridge", "bonding"] {
        if folder.join(kind).is_dir() {
            return Some(kind.to_owned());
        }
    }
    let link = std::fs::read_link(folder.join("device/driver")).ok()?;
    Some(link.file_name()?.to_string_lossy().into_owned())
}

/// Hardware address as people write it.
pub fn format_mac(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// Ties a socket to one interface (`SO_BINDTODEVICE`): it then neither hears nor speaks elsewhere.
///
/// # Errors
/// [`NicError`] names the interface; needs `CAP_NET_RAW`.
pub fn bind_to_device(socket: &impl AsFd, ifname: &str) -> Result<(), NicError> {
    nix::sys::socket::setsockopt(
        socket,
        nix::sys::socket::sockopt::BindToDevice,
        &std::ffi::OsString::from(ifname),
    )
    .map_err(|errno| match errno {
        nix::errno::Errno::ENODEV => NicError::Missing {
            ifname: ifname.to_owned(),
        },
        errno => NicError::os("binding a socket", ifname, "CAP_NET_RAW", errno.into()),
    })
}

/// Hardware address of an interface.
///
/// # Errors
/// [`NicError::Missing`], also for an interface without one.
pub fn hardware_address(ifname: &str) -> Result<[u8; 6], NicError> {
    let mut all = interfaces().into_iter();
    let found = all.find(|interface| interface.name == ifname);
    let mac = found.and_then(|interface| interface.mac);
    mac.ok_or_else(|| NicError::Missing {
        ifname: ifname.to_owned(),
    })
}

/// Asks for room for `bytes` of datagrams that nobody has read yet; says how much there is now. Above
/// `net.core.rmem_max` the kernel grants it with `CAP_NET_ADMIN` only; without, the socket gets what
/// the sysctl allows, and what does not fit is lost as on any full link.
pub fn receive_buffer(socket: &impl AsFd, bytes: usize) -> usize {
    use nix::sys::socket::{getsockopt, setsockopt, sockopt};
    if setsockopt(socket, sockopt::RcvBufForce, &bytes).is_err() {
        // The kernel cuts it down and does not fail.
        let _ = setsockopt(socket, sockopt::RcvBuf, &bytes);
    }
    // The kernel doubles what it was asked for, to have room for its own records (socket(7)).
    getsockopt(socket, sockopt::RcvBuf).map_or(0, |doubled| doubled / 2)
}

/// Kernel index of an interface: the scope of its link-local addresses.
///
/// # Errors
/// [`NicError::Missing`].
pub fn index_of(ifname: &str) -> Result<u32, NicError> {
    nix::net::if_::if_nametoindex(ifname).map_err(|_| NicError::Missing {
        ifname: ifname.to_owned(),
    })
}

//! The AF_PACKET calls that nix does not wrap (packet(7)), each in one small function.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use nix::libc;

/// Opens a raw packet socket that hears nothing until it is bound.
pub(super) fn raw_socket() -> io::Result<OwnedFd> {
    // SAFETY: no pointers are involved; the result is checked before it is owned.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `fd` was just opened here and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Link-layer address of an interface, for bind and sendto.
fn link_address(index: u32, ethertype: u16, mac: [u8; 6]) -> libc::sockaddr_ll {
    let mut sll_addr = [0; 8];
    sll_addr[..6].copy_from_slice(&mac);
    libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as libc::c_ushort,
        sll_protocol: ethertype.to_be(),
        sll_ifindex: index as libc::c_int,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 6,
        sll_addr,
    }
}

/// Binds to one interface and EtherType.
pub(super) fn bind(fd: &OwnedFd, index: u32, ethertype: u16) -> io::Result<()> {
    let address = link_address(index, ethertype, [0; 6]);
    // SAFETY: the pointer is to a live sockaddr_ll and the length is its size.
    let result = unsafe {
        libc::bind(
            fd.as_raw_fd(),
            std::ptr::from_ref(&address).cast(),
            size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        )
    };
    check(result as isize).map(|_| ())
}

/// Sends one whole Ethernet frame on an interface.
pub(super) fn send_frame(fd: &OwnedFd, index: u32, frame: &[u8]) -> io::Result<()> {
    let mut mac = [0; 6];
    let Some(destination) = frame.get(..6) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    mac.copy_from_slice(destination);
    let address = link_address(index, 0, mac);
    // SAFETY: both pointers are to live memory of the lengths given.
    let sent = unsafe {
        libc::sendto(
            fd.as_raw_fd(),
            frame.as_ptr().cast(),
            frame.len(),
            0,
            std::ptr::from_ref(&address).cast(),
            size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        )
    };
    match check(sent)? {
        count if count == frame.len() => Ok(()),
        _ => Err(io::ErrorKind::WriteZero.into()),
    }
}

/// Joins a link-layer multicast group: the NIC's filter lets its frames through.
pub(super) fn join_group(fd: &OwnedFd, index: u32, group: [u8; 6]) -> io::Result<()> {
    let mut mr_address = [0; 8];
    mr_address[..6].copy_from_slice(&group);
    let request = libc::packet_mreq {
        mr_ifindex: index as libc::c_int,
        mr_type: libc::PACKET_MR_MULTICAST as libc::c_ushort,
        mr_alen: 6,
        mr_address,
    };
    set_option(fd, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request)
}

/// Asks for `tpacket_auxdata` with each frame: the kernel strips VLAN tags and reports them there.
pub(super) fn ask_auxdata(fd: &OwnedFd) -> io::Result<()> {
    set_option(fd, libc::SOL_PACKET, libc::PACKET_AUXDATA, &1_i32)
}

/// Queueing priority of what is sent (`SO_PRIORITY`).
pub(super) fn set_priority(fd: &OwnedFd, priority: i32) -> io::Result<()> {
    set_option(fd, libc::SOL_SOCKET, libc::SO_PRIORITY, &priority)
}

/// Attaches a classic BPF program.
pub(super) fn attach_filter(fd: &OwnedFd, program: &[libc::sock_filter]) -> io::Result<()> {
    let filter = libc::sock_fprog {
        len: program.len() as libc::c_ushort,
        // The kernel copies the program and does not write to it.
        filter: program.as_ptr().cast_mut(),
    };
    set_option(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &filter)
}

/// `setsockopt` with a plain value; `T` is the type that the option takes.
pub(super) fn set_option<T>(fd: &OwnedFd, level: i32, option: i32, value: &T) -> io::Result<()> {
    // SAFETY: the pointer is to a live T and the length is its size; the kernel only reads it.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            option,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    check(result as isize).map(|_| ())
}

/// The VLAN tag that the kernel took out of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StrippedTag {
    /// Tag protocol identifier, 0x8100 where the kernel does not say.
    pub tpid: u16,
    /// Tag control information.
    pub tci: u16,
}

/// Receives one frame into `buffer`; its true length (it may be larger) and a stripped tag.
pub(super) fn receive(fd: &OwnedFd, buffer: &mut [u8]) -> io::Result<(usize, Option<StrippedTag>)> {
    /// Room for one `tpacket_auxdata` message, aligned as a control message header must be.
    #[repr(C, align(8))]
    struct Control([u8; 64]);
    let mut control = Control([0; 64]);
    let mut part = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    // SAFETY: msghdr is plain data; all-zero is its empty value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len() as _;
    // SAFETY: `message` points to live buffers of the lengths it states.
    let received = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, libc::MSG_TRUNC) };
    let length = check(received)?;

    let mut tag = None;
    // SAFETY: `message` was filled by recvmsg and `control` is still alive.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    while !header.is_null() {
        // SAFETY: CMSG_FIRSTHDR and CMSG_NXTHDR only return headers that lie within the control
        // buffer; its alignment is that of cmsghdr.
        let (level, kind, size) = unsafe {
            (
                (*header).cmsg_level,
                (*header).cmsg_type,
                (*header).cmsg_len as usize,
            )
        };
        // SAFETY: CMSG_LEN only computes.
        let full = unsafe { libc::CMSG_LEN(size_of::<libc::tpacket_auxdata>() as u32) } as usize;
        if level == libc::SOL_PACKET && kind == libc::PACKET_AUXDATA && size >= full {
            // SAFETY: the message is as long as the structure (just checked); it may be unaligned.
            let data = unsafe {
                std::ptr::read_unaligned(libc::CMSG_DATA(header).cast::<libc::tpacket_auxdata>())
            };
            tag = stripped_tag(&data);
        }
        // SAFETY: as above.
        header = unsafe { libc::CMSG_NXTHDR(&raw const message, header) };
    }
    Ok((length, tag))
}

fn stripped_tag(data: &libc::tpacket_auxdata) -> Option<StrippedTag> {
    let set = |flag: u32| data.tp_status & flag != 0;
    // Old kernels set no flag for VLAN 0 with priority 0, which carries no information.
    if !set(libc::TP_STATUS_VLAN_VALID) {
        return None;
    }
    let tpid = if set(libc::TP_STATUS_VLAN_TPID_VALID) {
        data.tp_vlan_tpid
    } else {
        0x8100
    };
    Some(StrippedTag {
        tpid,
        tci: data.tp_vlan_tci,
    })
}

/// Waits until there is something to read; false when the time is over.
pub(super) fn wait_readable(fd: &OwnedFd, timeout: Duration) -> io::Result<bool> {
    let raw: RawFd = fd.as_raw_fd();
    let mut poll = libc::pollfd {
        fd: raw,
        events: libc::POLLIN,
        revents: 0,
    };
    let millis = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: one live pollfd, and the count says one.
    let ready = unsafe { libc::poll(&raw mut poll, 1, millis) };
    match check(ready as isize) {
        Ok(count) => Ok(count > 0),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(false),
        Err(error) => Err(error),
    }
}

fn check(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

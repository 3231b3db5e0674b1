//! UDP over IPv4 to a host that has no address yet: no ARP, the hardware address is given.
//!
//! DHCP answers a client that did not ask for broadcast this way (RFC 2131 section 4.1).

use std::net::SocketAddrV4;
use std::os::fd::OwnedFd;

use super::{NicError, index_of, packet};

/// Largest payload: what one Ethernet frame of 1500 bytes carries.
const PAYLOAD_MAX: usize = 1500 - IPV4_HEADER - UDP_HEADER;
const IPV4_HEADER: usize = 20;
const UDP_HEADER: usize = 8;
const ETHERNET_HEADER: usize = 14;
/// IPPROTO_UDP.
const PROTOCOL_UDP: u8 = 17;
/// Hop limit of a packet that must not leave the segment by accident, yet passes a relay.
const TTL: u8 = 64;

/// A raw socket for sending on one interface.
pub struct RawUdp {
    fd: OwnedFd,
    index: u32,
    mac: [u8; 6],
    ifname: String,
}

impl RawUdp {
    /// Opens the socket.
    ///
    /// # Errors
    /// [`NicError`]; needs `CAP_NET_RAW`, and an interface with a hardware address.
    pub fn open(ifname: &str) -> Result<Self, NicError> {
        let index = index_of(ifname)?;
        let mac = super::hardware_address(ifname)?;
        let fd = packet::raw_socket().map_err(|source| {
            NicError::os("opening a raw socket", ifname, "CAP_NET_RAW", source)
        })?;
        Ok(Self {
            fd,
            index,
            mac,
            ifname: ifname.to_owned(),
        })
    }

    /// Sends one datagram to a hardware address.
    ///
    /// # Errors
    /// [`NicError::TooLarge`] or [`NicError::Os`].
    pub fn send_to(
        &self,
        mac: [u8; 6],
        source: SocketAddrV4,
        destination: SocketAddrV4,
        payload: &[u8],
    ) -> Result<(), NicError> {
        self.send(mac, self.mac, source, destination, payload)
    }

    /// Broadcasts one datagram as hardware address `from`: a client that we play. Switches that
    /// compare `chaddr` with the frame's source want them equal.
    ///
    /// # Errors
    /// [`NicError::TooLarge`] or [`NicError::Os`].
    pub fn broadcast_as(
        &self,
        from: [u8; 6],
        source: SocketAddrV4,
        destination: SocketAddrV4,
        payload: &[u8],
    ) -> Result<(), NicError> {
        self.send([0xff; 6], from, source, destination, payload)
    }

    fn send(
        &self,
        to: [u8; 6],
        from: [u8; 6],
        source: SocketAddrV4,
        destination: SocketAddrV4,
        payload: &[u8],
    ) -> Result<(), NicError> {
        if payload.len() > PAYLOAD_MAX {
            return Err(NicError::TooLarge {
                size: payload.len(),
                max: PAYLOAD_MAX,
            });
        }
        let frame = frame(to, from, source, destination, payload);
        packet::send_frame(&self.fd, self.index, &frame)
            .map_err(|source| NicError::os("sending UDP", &self.ifname, "CAP_NET_RAW", source))
    }
}

/// Ethernet, IPv4 (RFC 791), UDP (RFC 768), payload. The caller has bounded the payload.
fn frame(
    to: [u8; 6],
    from: [u8; 6],
    source: SocketAddrV4,
    destination: SocketAddrV4,
    payload: &[u8],
) -> Vec<u8> {
    let udp_length = (UDP_HEADER + payload.len()) as u16;
    let total = IPV4_HEADER as u16 + udp_length;
    let mut frame = Vec::with_capacity(ETHERNET_HEADER + usize::from(total));
    frame.extend(to);
    frame.extend(from);
    frame.extend([0x08, 0x00]);

    let mut ip = [0; IPV4_HEADER];
    ip[0] = 0x45;
    ip[2..4].copy_from_slice(&total.to_be_bytes());
    ip[6] = 0x40; // do not fragment
    ip[8] = TTL;
    ip[9] = PROTOCOL_UDP;
    ip[12..16].copy_from_slice(&source.ip().octets());
    ip[16..20].copy_from_slice(&destination.ip().octets());
    let sum = checksum(&[&ip]);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    frame.extend(ip);

    let mut udp = [0; UDP_HEADER];
    udp[0..2].copy_from_slice(&source.port().to_be_bytes());
    udp[2..4].copy_from_slice(&destination.port().to_be_bytes());
    udp[4..6].copy_from_slice(&udp_length.to_be_bytes());
    let pseudo = [0, PROTOCOL_UDP, (udp_length >> 8) as u8, udp_length as u8];
    let sum = checksum(&[&ip[12..20], &pseudo, &udp, payload]);
    // A computed zero is sent as all ones; zero means "no checksum".
    let sum = if sum == 0 { 0xffff } else { sum };
    udp[6..8].copy_from_slice(&sum.to_be_bytes());
    frame.extend(udp);
    frame.extend(payload);
    frame
}

/// Internet checksum (RFC 1071). All parts but the last must be of even length.
fn checksum(parts: &[&[u8]]) -> u16 {
    let mut sum = 0_u32;
    for part in parts {
        for pair in part.chunks(2) {
            let word = [pair[0], pair.get(1).copied().unwrap_or(0)];
            sum += u32::from(u16::from_be_bytes(word));
        }
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn checksums_verify_at_the_receiver() {
        let source = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), 67);
        let destination = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 77), 68);
        for payload in [b"".as_slice(), b"odd", b"even", &[0xff; 1400]] {
            let frame = frame([2; 6], [1; 6], source, destination, payload);
            assert_eq!(frame.len(), 42 + payload.len());
            let (ip, rest) = frame[14..].split_at(20);
            assert_eq!(checksum(&[ip]), 0);
            let length = (rest.len() as u16).to_be_bytes();
            assert_eq!(checksum(&[&ip[12..20], &[0, 17], &length, rest]), 0);
            assert_eq!(&rest[8..], payload);
        }
    }
}

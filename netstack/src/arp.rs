//! ARP (RFC 826) as far as address conflicts need it: the probe of RFC 5227, and what an answer
//! says.
//!
//! Knows frames and no socket. Everything heard is a claim of an unauthenticated frame.

use std::net::Ipv4Addr;

use crate::MacAddr;

/// An ARP packet for Ethernet and IPv4 with its Ethernet header, in octets.
pub const FRAME_LEN: usize = 42;
const ETHERTYPE: [u8; 2] = [0x08, 0x06];
/// Hardware type 1, protocol 0x0800, lengths 6 and 4.
const HEAD: [u8; 6] = [0, 1, 0x08, 0, 6, 4];
const REQUEST: u16 = 1;
const REPLY: u16 = 2;

mod field {
    use std::ops::Range;

    pub const ETHERTYPE: Range<usize> = 12..14;
    pub const HEAD: Range<usize> = 14..20;
    pub const OPERATION: Range<usize> = 20..22;
    pub const SENDER_MAC: Range<usize> = 22..28;
    pub const SENDER_ADDR: Range<usize> = 28..32;
    pub const TARGET_ADDR: Range<usize> = 38..42;
}

/// What one ARP packet says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arp {
    /// Sender hardware address.
    pub sender_mac: MacAddr,
    /// Sender protocol address; zero in a probe.
    pub sender_addr: Ipv4Addr,
    /// Target protocol address.
    pub target_addr: Ipv4Addr,
}

impl Arp {
    /// Reads one Ethernet frame; `None` for everything that is no ARP of IPv4 over Ethernet.
    pub fn parse(frame: &[u8]) -> Option<Self> {
        let frame: &[u8; FRAME_LEN] = frame.first_chunk()?;
        if frame[field::ETHERTYPE] != ETHERTYPE || frame[field::HEAD] != HEAD {
            return None;
        }
        let operation: [u8; 2] = frame[field::OPERATION].try_into().ok()?;
        if ![REQUEST, REPLY].contains(&u16::from_be_bytes(operation)) {
            return None;
        }
        let addr = |range: std::ops::Range<usize>| -> Option<Ipv4Addr> {
            let octets: [u8; 4] = frame[range].try_into().ok()?;
            Some(octets.into())
        };
        Some(Self {
            sender_mac: MacAddr(frame[field::SENDER_MAC].try_into().ok()?),
            sender_addr: addr(field::SENDER_ADDR)?,
            target_addr: addr(field::TARGET_ADDR)?,
        })
    }

    /// The address that another host uses or is about to use, by this packet: any packet sent from
    /// it, and a probe of somebody else for it (RFC 5227 section 2.1.1).
    pub fn claims(&self, own: MacAddr) -> Option<Ipv4Addr> {
        if self.sender_mac == own {
            return None;
        }
        if self.sender_addr.is_unspecified() {
            return Some(self.target_addr);
        }
        Some(self.sender_addr)
    }
}

/// An ARP probe: a request whose sender address is zero, so that nobody's cache is touched
/// (RFC 5227 section 1.1).
pub fn probe(own: MacAddr, addr: Ipv4Addr) -> [u8; FRAME_LEN] {
    let mut frame = [0; FRAME_LEN];
    frame[..6].fill(0xff);
    frame[6..12].copy_from_slice(&own.0);
    frame[field::ETHERTYPE].copy_from_slice(&ETHERTYPE);
    frame[field::HEAD].copy_from_slice(&HEAD);
    frame[field::OPERATION].copy_from_slice(&REQUEST.to_be_bytes());
    frame[field::SENDER_MAC].copy_from_slice(&own.0);
    frame[field::TARGET_ADDR].copy_from_slice(&addr.octets());
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
    const OTHER: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
    const ADDR: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 100);

    fn packet(operation: u8, sender: Ipv4Addr, target: Ipv4Addr) -> [u8; FRAME_LEN] {
        let mut frame = probe(OTHER, target);
        frame[21] = operation;
        frame[field::SENDER_ADDR].copy_from_slice(&sender.octets());
        frame
    }

    #[test]
    fn a_probe_names_no_sender_and_goes_to_everybody() {
        let frame = probe(OWN, ADDR);
        assert_eq!(frame[..6], [0xff; 6]);
        assert_eq!(frame[28..32], [0; 4]);
        let read = Arp::parse(&frame).unwrap();
        assert_eq!((read.sender_mac, read.target_addr), (OWN, ADDR));
        assert_eq!(read.claims(OWN), None, "our own echo");
        assert_eq!(read.claims(OTHER), Some(ADDR), "somebody else's probe");
    }

    #[test]
    fn replies_requests_and_announcements_claim_their_sender_address() {
        let us = Ipv4Addr::new(10, 77, 0, 1);
        for (operation, target) in [(2, us), (1, us), (1, ADDR), (2, Ipv4Addr::UNSPECIFIED)] {
            let read = Arp::parse(&packet(operation, ADDR, target)).unwrap();
            assert_eq!(read.claims(OWN), Some(ADDR));
        }
    }

    #[test]
    fn rejects_what_is_no_arp_of_ipv4() {
        let good = packet(2, ADDR, ADDR);
        for len in 0..FRAME_LEN {
            assert_eq!(Arp::parse(&good[..len]), None);
        }
        for (at, value) in [
            (12, 0),
            (13, 0),
            (15, 6),
            (16, 0x86),
            (18, 8),
            (19, 16),
            (21, 3),
        ] {
            let mut bad = good;
            bad[at] = value;
            assert_eq!(Arp::parse(&bad), None, "octet {at}");
        }
        let padded = [&good[..], &[0; 18]].concat();
        assert!(Arp::parse(&padded).is_some(), "Ethernet pads to 60 octets");
    }
}

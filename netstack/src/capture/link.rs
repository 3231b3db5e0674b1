//! From a captured frame to the packet in it, and to the UDP datagram in that.
//!
//! Lax about lengths: a frame that was cut at capture, or a header that claims more than there is,
//! gives what is there, marked. Exact about what it is: a fragment is no datagram.

use std::net::SocketAddr;

use etherparse::{IpNumber, LaxIpSlice, UdpSlice};

use super::{Frame, LinkError};
use crate::MacAddr;

/// Most VLAN tags passed over; two are usual, a third stands in some providers' captures.
const TAGS_MAX: usize = 4;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;

/// Link layer of a capture (tcpdump.org/linktypes).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LinkType(pub u16);

impl LinkType {
    /// BSD loopback: an address family in the capturing host's byte order.
    pub const NULL: Self = Self(0);
    /// Ethernet.
    pub const ETHERNET: Self = Self(1);
    /// OpenBSD loopback: the same in network byte order.
    pub const LOOP: Self = Self(108);
    /// Linux cooked capture v1.
    pub const LINUX_SLL: Self = Self(113);
    /// Linux cooked capture v2.
    pub const LINUX_SLL2: Self = Self(276);

    /// IP without a link layer: DLT_RAW as BSDs number it, LINKTYPE_RAW, IPv4 and IPv6.
    fn is_raw_ip(self) -> bool {
        matches!(self.0, 12 | 14 | 101 | 228 | 229)
    }
}

/// A frame's link layer and what it carries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Sender's hardware address, where the link layer has one.
    pub source: Option<MacAddr>,
    /// Receiver's hardware address, where it has one.
    pub destination: Option<MacAddr>,
    /// VLAN ids, outermost first.
    pub vlans: Vec<u16>,
    /// EtherType behind the tags; below 0x0600 the length of an LLC frame.
    pub ether_type: u16,
    /// What follows, padding included.
    pub payload: &'a [u8],
}

fn cut<'a, const N: usize>(
    bytes: &'a [u8],
    what: &'static str,
) -> Result<(&'a [u8; N], &'a [u8]), LinkError> {
    bytes.split_first_chunk::<N>().ok_or(LinkError::Short {
        what,
        left: bytes.len(),
    })
}

impl<'a> Packet<'a> {
    /// Reads a frame's link layer and VLAN tags.
    ///
    /// # Errors
    /// [`LinkError::LinkType`], [`LinkError::Short`], [`LinkError::Tags`].
    pub fn parse(frame: &Frame<'a>) -> Result<Self, LinkError> {
        let mac = |octets: &[u8]| octets.first_chunk::<6>().map(|octets| MacAddr(*octets));
        let be = |high: u8, low: u8| u16::from_be_bytes([high, low]);
        let mut packet = match frame.link {
            LinkType::ETHERNET => {
                let (head, payload) = cut::<14>(frame.data, "Ethernet header")?;
                Self {
                    source: mac(&head[6..]),
                    destination: mac(head),
                    vlans: Vec::new(),
                    ether_type: be(head[12], head[13]),
                    payload,
                }
            }
            LinkType::LINUX_SLL => {
                let (head, payload) = cut::<16>(frame.data, "Linux cooked header")?;
                Self {
                    source: mac(&head[6..]).filter(|_| be(head[4], head[5]) == 6),
                    destination: None,
                    vlans: Vec::new(),
                    ether_type: be(head[14], head[15]),
                    payload,
                }
            }
            LinkType::LINUX_SLL2 => {
                let (head, payload) = cut::<20>(frame.data, "Linux cooked header")?;
                Self {
                    source: mac(&head[12..]).filter(|_| head[11] == 6),
                    destination: None,
                    vlans: Vec::new(),
                    ether_type: be(head[0], head[1]),
                    payload,
                }
            }
            LinkType::NULL | LinkType::LOOP => {
                // The family's number depends on the system; the packet says itself what it is.
                let (_, payload) = cut::<4>(frame.data, "loopback header")?;
                Self::raw(payload)?
            }
            link if link.is_raw_ip() => Self::raw(frame.data)?,
            link => return Err(LinkError::LinkType(link)),
        };
        packet.pass_tags()?;
        Ok(packet)
    }

    fn raw(payload: &'a [u8]) -> Result<Self, LinkError> {
        let ether_type = match payload.first().map(|octet| octet >> 4) {
            Some(4) => IPV4,
            Some(6) => IPV6,
            Some(version) => return Err(LinkError::IpHeader(format!("IP version {version}"))),
            None => {
                return Err(LinkError::Short {
                    what: "IP header",
                    left: 0,
                });
            }
        };
        Ok(Self {
            source: None,
            destination: None,
            vlans: Vec::new(),
            ether_type,
            payload,
        })
    }

    fn pass_tags(&mut self) -> Result<(), LinkError> {
        // 802.1Q, 802.1ad and the two numbers that were used before 802.1ad.
        while matches!(self.ether_type, 0x8100 | 0x88a8 | 0x9100 | 0x9200) {
            if self.vlans.len() == TAGS_MAX {
                return Err(LinkError::Tags(TAGS_MAX));
            }
            let (tag, payload) = cut::<4>(self.payload, "VLAN tag")?;
            self.vlans
                .push(u16::from_be_bytes([tag[0], tag[1]]) & 0x0fff);
            self.ether_type = u16::from_be_bytes([tag[2], tag[3]]);
            self.payload = payload;
        }
        Ok(())
    }
}

/// A UDP datagram.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// Where from.
    pub source: SocketAddr,
    /// Where to.
    pub destination: SocketAddr,
    /// Payload, as far as it was captured.
    pub payload: &'a [u8],
    /// Octets missing by the word of the UDP header; 0 when it is whole.
    pub missing: usize,
}

impl<'a> Datagram<'a> {
    /// Reads UDP over IPv4 or IPv6.
    ///
    /// # Errors
    /// What makes the packet something else; [`LinkError::Fragment`] for fragments.
    pub fn parse(packet: &Packet<'a>) -> Result<Self, LinkError> {
        if !matches!(packet.ether_type, IPV4 | IPV6) {
            return Err(LinkError::NotIp(packet.ether_type));
        }
        let (ip, stopped) = LaxIpSlice::from_slice(packet.payload)
            .map_err(|error| LinkError::IpHeader(error.to_string()))?;
        let content = ip.payload();
        if content.fragmented {
            return Err(LinkError::Fragment {
                first: is_first_fragment(&ip),
            });
        }
        if let Some((error, _)) = stopped {
            return Err(LinkError::IpHeader(error.to_string()));
        }
        if content.ip_number != IpNumber::UDP {
            return Err(LinkError::NotUdp(content.ip_number.0));
        }
        let udp = UdpSlice::from_slice_lax(content.payload).map_err(|_| LinkError::Short {
            what: "UDP header",
            left: content.payload.len(),
        })?;
        // A length of 0 stands for "the rest" (RFC 2675 section 4).
        let announced = usize::from(udp.length()).saturating_sub(8);
        Ok(Self {
            source: SocketAddr::new(ip.source_addr(), udp.source_port()),
            destination: SocketAddr::new(ip.destination_addr(), udp.destination_port()),
            payload: udp.payload(),
            missing: announced.saturating_sub(udp.payload().len()),
        })
    }
}

/// Whether the fragment begins at offset 0. An IPv6 one is told by its extension headers, which are
/// not walked again for this: it counts as later.
fn is_first_fragment(ip: &LaxIpSlice<'_>) -> bool {
    ip.ipv4()
        .is_some_and(|ip| ip.header().fragments_offset().value() == 0)
}

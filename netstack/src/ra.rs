//! Router Advertisements of the provisioning link (RFC 4861): "ask DHCPv6 for an address", at once.
//!
//! iPXE waits up to 18 s for one before it goes on, and EDK2 learns from it which prefix is on the
//! link. [`Advertiser`] decides when one is sent and to whom; it does not know sockets, and the
//! kernel computes the checksum (RFC 3542 section 3.1). By default it announces no default route:
//! the gateway is no router.
//!
//! Neighbour Discovery is unauthenticated; a solicitation changes nothing here but a rate.

use std::net::Ipv6Addr;

use crate::{Explanation, Ipv6Prefix, MacAddr};

/// ICMPv6 type of a Router Solicitation.
pub const SOLICITATION: u8 = 133;
/// ICMPv6 type of a Router Advertisement.
pub const ADVERTISEMENT: u8 = 134;
/// All nodes on the link.
pub const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// All routers on the link; joined to hear solicitations.
pub const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
/// Hop limit of every Neighbour Discovery packet: nothing from beyond the link has it.
pub const HOP_LIMIT: u8 = 255;

/// Solicitation: type, code, checksum, reserved (RFC 4861 section 4.1).
const SOLICITATION_LEN: usize = 8;
/// Time between unsolicited advertisements, least and most, in ms. Below a third of any prefix
/// lifetime; RFC 4861 section 6.2.1 allows 4 s to 1800 s.
const INTERVAL_MS: std::ops::Range<u64> = 150_000..200_000;
/// `MAX_INITIAL_RTR_ADVERT_INTERVAL` and `MAX_INITIAL_RTR_ADVERTISEMENTS`.
const INITIAL_INTERVAL_MS: u64 = 16_000;
const INITIAL_COUNT: u32 = 3;
/// `MIN_DELAY_BETWEEN_RAS`: multicast advertisements are no closer than this.
const MULTICAST_GAP_MS: u64 = 3_000;
/// Unicast answers in one second. A rack powered on at once is answered one by one; beyond it one
/// multicast advertisement answers everybody.
const UNICAST_PER_SEC: u32 = 256;

mod option {
    pub const SOURCE_LINK_LAYER: u8 = 1;
    pub const PREFIX: u8 = 3;
    pub const MTU: u8 = 5;
}

mod flag {
    /// Router Advertisement: addresses by DHCPv6.
    pub const MANAGED: u8 = 0x80;
    /// Router Advertisement: other settings by DHCPv6.
    pub const OTHER: u8 = 0x40;
    /// Prefix: on this link.
    pub const ON_LINK: u8 = 0x80;
}

/// What is announced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Our hardware address, for the source link-layer address option.
    pub mac: MacAddr,
    /// Prefix that is on the link. Never for autonomous configuration: addresses are leased.
    pub prefix: Ipv6Prefix,
    /// Lifetime of the prefix in seconds: as long as the leases under it.
    pub prefix_secs: u32,
    /// How long we are a default router, in seconds; 0 for not at all.
    pub router_lifetime_secs: u16,
    /// MTU of the link, when it is not Ethernet's.
    pub mtu: Option<u32>,
}

impl Config {
    /// The ICMPv6 message with a zero checksum (RFC 4861 section 4.2).
    pub fn advertisement(&self) -> Vec<u8> {
        let mut out = vec![ADVERTISEMENT, 0, 0, 0];
        // Hop limit 64; flags; lifetime; reachable and retransmission time unspecified.
        out.extend_from_slice(&[64, flag::MANAGED | flag::OTHER]);
        out.extend_from_slice(&self.router_lifetime_secs.to_be_bytes());
        out.extend_from_slice(&[0; 8]);
        out.extend_from_slice(&[option::SOURCE_LINK_LAYER, 1]);
        out.extend_from_slice(&self.mac.0);
        if let Some(mtu) = self.mtu {
            out.extend_from_slice(&[option::MTU, 1, 0, 0]);
            out.extend_from_slice(&mtu.to_be_bytes());
        }
        out.extend_from_slice(&[option::PREFIX, 4, self.prefix.prefix_len(), flag::ON_LINK]);
        // Valid and preferred lifetime, then a reserved word.
        out.extend_from_slice(&self.prefix_secs.to_be_bytes());
        out.extend_from_slice(&self.prefix_secs.to_be_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&self.prefix.network().octets());
        out
    }
}

/// A valid Router Solicitation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Solicitation {
    /// Who asks; unspecified before it has an address.
    pub source: Ipv6Addr,
    /// Source link-layer address option, Ethernet.
    pub mac: Option<MacAddr>,
}

/// Why a packet is no Router Solicitation (RFC 4861 section 6.1.1). Dropped and counted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It came through a router, or was made to look so.
    #[error("hop limit {found}")]
    HopLimit {
        /// The hop limit.
        found: u8,
    },
    /// Another ICMPv6 message.
    #[error("ICMPv6 type {found} code {code}")]
    Type {
        /// The type.
        found: u8,
        /// The code.
        code: u8,
    },
    /// Fewer octets than a solicitation.
    #[error("{len} bytes")]
    TooShort {
        /// Octets.
        len: usize,
    },
    /// An option of length 0, or one that ends past the message.
    #[error("option {kind} with a length of {units} x 8 bytes and {left} bytes left")]
    OptionLength {
        /// Option type.
        kind: u8,
        /// Its length field.
        units: u8,
        /// Octets left, the option's header included.
        left: usize,
    },
    /// No source address, yet a source link-layer address.
    #[error("source link-layer address from the unspecified address")]
    LinkLayerUnspecified,
    /// The source is no host's.
    #[error("source {found}")]
    Source {
        /// The source.
        found: Ipv6Addr,
    },
}

impl Refused {
    /// Stable code, also the metric label.
    pub fn code(&self) -> &'static str {
        match self {
            Self::HopLimit { .. } => "ra.hop_limit",
            Self::Type { .. } => "ra.type",
            Self::TooShort { .. } => "ra.too_short",
            Self::OptionLength { .. } => "ra.option_length",
            Self::LinkLayerUnspecified => "ra.link_layer_unspecified",
            Self::Source { .. } => "ra.source",
        }
    }

    /// The five parts for the log.
    pub fn explain(&self) -> Explanation {
        let expected = match self {
            Self::HopLimit { .. } => "hop limit 255",
            Self::Type { .. } => "type 133 code 0",
            Self::TooShort { .. } => "at least 8 bytes",
            Self::OptionLength { .. } => "options of at least 8 bytes that end with the message",
            Self::LinkLayerUnspecified => "no option 1 from the unspecified address",
            Self::Source { .. } => "a unicast or the unspecified source",
        };
        Explanation {
            code: self.code(),
            expected: expected.into(),
            found: self.to_string(),
            source: "RFC 4861 section 6.1.1",
            next: "nothing, unless it repeats; then capture it with tcpdump -w",
        }
    }
}

/// Reads one ICMPv6 message; the kernel has checked its checksum.
///
/// # Errors
/// [`Refused`]: every rule of RFC 4861 section 6.1.1.
pub fn parse_solicitation(
    message: &[u8],
    source: Ipv6Addr,
    hop_limit: u8,
) -> Result<Solicitation, Refused> {
    if hop_limit != HOP_LIMIT {
        return Err(Refused::HopLimit { found: hop_limit });
    }
    if source.is_multicast() || source.is_loopback() {
        return Err(Refused::Source { found: source });
    }
    let len = message.len();
    let Some((fixed, mut rest)) = message.split_first_chunk::<SOLICITATION_LEN>() else {
        return Err(Refused::TooShort { len });
    };
    if fixed[..2] != [SOLICITATION, 0] {
        return Err(Refused::Type {
            found: fixed[0],
            code: fixed[1],
        });
    }
    let mut mac = None;
    while !rest.is_empty() {
        let left = rest.len();
        let (kind, units) = (rest[0], rest.get(1).copied().unwrap_or(0));
        let Some((value, tail)) = rest
            .split_at_checked(usize::from(units) * 8)
            .filter(|_| units > 0)
        else {
            return Err(Refused::OptionLength { kind, units, left });
        };
        if kind == option::SOURCE_LINK_LAYER {
            if source.is_unspecified() {
                return Err(Refused::LinkLayerUnspecified);
            }
            let found = value[2..].first_chunk::<6>().filter(|_| units == 1);
            mac = mac.or(found.copied().map(MacAddr));
        }
        rest = tail;
    }
    Ok(Solicitation { source, mac })
}

/// One advertisement to send, with hop limit 255.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advertisement {
    /// ICMPv6 message, checksum zero.
    pub message: Vec<u8>,
    /// [`ALL_NODES`], or who asked.
    pub to: Ipv6Addr,
}

/// Decides when to advertise (RFC 4861 section 6.2). `now_ms` is milliseconds on one clock that
/// does not go back.
///
/// A solicitation with a source address is answered to it at once. The RFC wants a random delay of
/// up to 0.5 s, against several routers that answer together by multicast; here is one, and firmware
/// waits.
#[derive(Debug)]
pub struct Advertiser {
    message: Vec<u8>,
    seed: u64,
    sent: u32,
    next_ms: u64,
    last_multicast_ms: Option<u64>,
    unicast: (u64, u32),
}

impl Advertiser {
    /// Advertises for the first time at `now_ms`. `seed` spreads the times of several appliances.
    pub fn new(config: &Config, now_ms: u64, seed: u64) -> Self {
        Self {
            message: config.advertisement(),
            seed: seed | 1,
            sent: 0,
            next_ms: now_ms,
            last_multicast_ms: None,
            unicast: (0, 0),
        }
    }

    /// When [`Self::handle_timeout`] wants to be called.
    pub fn poll_timeout(&self) -> u64 {
        self.next_ms
    }

    /// The unsolicited advertisement, when it is due.
    pub fn handle_timeout(&mut self, now_ms: u64) -> Option<Advertisement> {
        if now_ms < self.next_ms {
            return None;
        }
        self.sent = self.sent.saturating_add(1);
        let interval = INTERVAL_MS.start + self.random() % (INTERVAL_MS.end - INTERVAL_MS.start);
        let interval = if self.sent < INITIAL_COUNT {
            interval.min(INITIAL_INTERVAL_MS)
        } else {
            interval
        };
        self.next_ms = now_ms.saturating_add(interval);
        self.last_multicast_ms = Some(now_ms);
        Some(self.to(ALL_NODES))
    }

    /// Takes one received ICMPv6 message.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn handle(
        &mut self,
        now_ms: u64,
        message: &[u8],
        source: Ipv6Addr,
        hop_limit: u8,
    ) -> Result<Option<Advertisement>, Refused> {
        let asked = parse_solicitation(message, source, hop_limit)?;
        if self.unicast.0 != now_ms / 1000 {
            self.unicast = (now_ms / 1000, 0);
        }
        if !asked.source.is_unspecified() && self.unicast.1 < UNICAST_PER_SEC {
            self.unicast.1 += 1;
            return Ok(Some(self.to(asked.source)));
        }
        // By multicast: now, or when the gap since the last one is over.
        let earliest = self
            .last_multicast_ms
            .map_or(0, |last| last + MULTICAST_GAP_MS);
        self.next_ms = self.next_ms.min(earliest.max(now_ms));
        Ok(self.handle_timeout(now_ms))
    }

    fn to(&self, to: Ipv6Addr) -> Advertisement {
        Advertisement {
            message: self.message.clone(),
            to,
        }
    }

    /// xorshift64: spreads times, protects nothing.
    fn random(&mut self) -> u64 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        self.seed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        Config {
            mac: MacAddr([2, 0, 0, 0, 0, 1]),
            prefix: Ipv6Prefix::new("2001:db8:20::1".parse().unwrap(), 64).unwrap(),
            prefix_secs: 3600,
            router_lifetime_secs: 0,
            mtu: None,
        }
    }

    fn node() -> Ipv6Addr {
        "fe80::2".parse().unwrap()
    }

    const PLAIN: [u8; 8] = [133, 0, 0, 0, 0, 0, 0, 0];

    fn with_option(option: &[u8]) -> Vec<u8> {
        [&PLAIN[..], option].concat()
    }

    #[test]
    fn golden_advertisement() {
        let want = "86000000 40c00000 0000000000000000 0101020000000001 \
                    03044080 00000e10 00000e10 00000000 20010db8002000000000000000000000";
        let want = hex::decode(want.replace(' ', "")).unwrap();
        assert_eq!(config().advertisement(), want);
        let mtu = Config {
            mtu: Some(1400),
            router_lifetime_secs: 1800,
            ..config()
        };
        let message = mtu.advertisement();
        assert_eq!(message[6..8], [7, 8]);
        assert_eq!(message[24..32], [5, 1, 0, 0, 0, 0, 5, 120]);
    }

    #[test]
    fn answers_who_asks_at_once_and_everybody_at_their_time() {
        let mut ra = Advertiser::new(&config(), 1_000, 7);
        assert_eq!(ra.handle_timeout(999), None);
        assert_eq!(ra.handle_timeout(1_000).unwrap().to, ALL_NODES);
        let with_mac = with_option(&[1, 1, 2, 0, 0, 0, 0, 9]);
        let answer = ra.handle(1_001, &with_mac, node(), 255).unwrap().unwrap();
        assert_eq!(
            (answer.to, answer.message),
            (node(), config().advertisement())
        );
        // From `::` by multicast, and not within 3 s of the last one.
        let none = Ipv6Addr::UNSPECIFIED;
        assert_eq!(ra.handle(1_002, &PLAIN, none, 255), Ok(None));
        assert_eq!(ra.poll_timeout(), 4_000);
        assert_eq!(ra.handle_timeout(4_000).unwrap().to, ALL_NODES);
        // The three initial ones come within 16 s of each other, then minutes lie between.
        assert_eq!(ra.poll_timeout(), 20_000);
        assert!(ra.handle_timeout(20_000).is_some());
        assert!(INTERVAL_MS.contains(&(ra.poll_timeout() - 20_000)));
    }

    #[test]
    fn a_flood_of_solicitations_becomes_one_multicast() {
        let mut ra = Advertiser::new(&config(), 0, 1);
        let mut to = std::collections::BTreeMap::<Ipv6Addr, u32>::new();
        for n in 0..10_000_u128 {
            let source = Ipv6Addr::from_bits(node().to_bits() + n);
            if let Some(sent) = ra.handle(5_000, &PLAIN, source, 255).unwrap() {
                *to.entry(sent.to).or_default() += 1;
            }
        }
        assert_eq!(to.remove(&ALL_NODES), Some(1));
        assert_eq!(to.len() as u32, UNICAST_PER_SEC);
        let next = ra.handle(6_000, &PLAIN, node(), 255).unwrap();
        assert_eq!(next.unwrap().to, node(), "the next second serves again");
    }

    #[test]
    fn rejects_what_rfc_4861_says_to_drop() {
        let refuse = |message: &[u8], source, hops| {
            parse_solicitation(message, source, hops)
                .unwrap_err()
                .code()
        };
        assert_eq!(refuse(&PLAIN, node(), 64), "ra.hop_limit");
        assert_eq!(refuse(&PLAIN, ALL_NODES, 255), "ra.source");
        assert_eq!(refuse(&PLAIN[..7], node(), 255), "ra.too_short");
        assert_eq!(refuse(&[134, 0, 0, 0, 0, 0, 0, 0], node(), 255), "ra.type");
        assert_eq!(refuse(&[133, 1, 0, 0, 0, 0, 0, 0], node(), 255), "ra.type");
        assert_eq!(
            refuse(&with_option(&[1, 0]), node(), 255),
            "ra.option_length"
        );
        assert_eq!(refuse(&with_option(&[14]), node(), 255), "ra.option_length");
        assert_eq!(
            refuse(&with_option(&[1, 2, 0, 0]), node(), 255),
            "ra.option_length"
        );
        let mac = with_option(&[1, 1, 2, 0, 0, 0, 0, 9]);
        let unspecified = Ipv6Addr::UNSPECIFIED;
        assert_eq!(refuse(&mac, unspecified, 255), "ra.link_layer_unspecified");
        let found = parse_solicitation(&mac, node(), 255).unwrap();
        assert_eq!(found.mac, Some(MacAddr([2, 0, 0, 0, 0, 9])));
        let nonce = with_option(&[14, 1, 1, 2, 3, 4, 5, 6]);
        assert_eq!(parse_solicitation(&nonce, node(), 255).unwrap().mac, None);
    }

    proptest::proptest! {
        #[test]
        fn never_panics(message: Vec<u8>, source: u128, hop_limit: u8) {
            let _ = parse_solicitation(&message, Ipv6Addr::from_bits(source), hop_limit);
        }
    }
}

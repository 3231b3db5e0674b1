//! Organisational TLVs of IEEE 802.1 (802.1Q-2018 annex D; subtypes 2 to 7 as 802.1AB-2009 annex E
//! has them).

use super::organisation::{BadContents, LinkAggregation, bit, u16_at};
use super::tlv::text;

/// One TLV.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tlv {
    /// 1: Port VLAN ID; 0 when the port has none.
    PortVlan(u16),
    /// 2: Port And Protocol VLAN ID.
    PortAndProtocolVlan {
        /// The port can do it.
        supported: bool,
        /// It does.
        enabled: bool,
        /// The VLAN; 0 when there is none.
        vlan: u16,
    },
    /// 3: VLAN Name.
    VlanName {
        /// VLAN id.
        vlan: u16,
        /// Its name, text of a stranger.
        name: String,
    },
    /// 4: Protocol Identity, the first octets of a protocol's frame.
    ProtocolIdentity(Vec<u8>),
    /// 5: VID Usage Digest, a CRC-32 over the VLAN table.
    VidUsageDigest(u32),
    /// 6: Management VID; 0 when there is none.
    ManagementVlan(u16),
    /// 7: Link Aggregation.
    LinkAggregation(LinkAggregation),
    /// 8: Congestion Notification, one bit for each priority.
    CongestionNotification {
        /// Priorities that are CNPVs.
        cnpv: u8,
        /// Of them, those that are ready.
        ready: u8,
    },
    /// 9: ETS Configuration.
    EtsConfiguration(Ets),
    /// 10: ETS Recommendation.
    EtsRecommendation(Ets),
    /// 11: Priority-based Flow Control Configuration.
    PriorityFlowControl {
        /// Takes the peer's.
        willing: bool,
        /// MACsec bypass capability.
        mbc: bool,
        /// Traffic classes that can have it at once; 0 for 8.
        classes_max: u8,
        /// Priorities that have it, one bit each.
        enabled: u8,
    },
    /// 12: Application Priority.
    ApplicationPriority(Vec<Application>),
}

/// Enhanced Transmission Selection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ets {
    /// Takes the peer's; configuration only.
    pub willing: bool,
    /// Credit-based shaper; configuration only.
    pub cbs: bool,
    /// Traffic classes; 0 for 8. Configuration only.
    pub classes_max: u8,
    /// Traffic class of each priority.
    pub priorities: [u8; 8],
    /// Bandwidth of each traffic class in percent.
    pub bandwidth: [u8; 8],
    /// Transmission selection algorithm of each traffic class: 0 strict, 1 shaper, 2 ETS.
    pub algorithm: [u8; 8],
}

/// One entry of the application priority table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Application {
    /// Priority, 0 to 7.
    pub priority: u8,
    /// What `protocol` is: 1 EtherType, 2 TCP port, 3 UDP port, 4 either, 5 DSCP.
    pub selector: u8,
    /// The protocol.
    pub protocol: u16,
}

impl Ets {
    fn read(value: &[u8]) -> Option<Self> {
        let (&[first, a, b, c, d], rest) = value.split_first_chunk::<5>()?;
        let (bandwidth, rest) = rest.split_first_chunk::<8>()?;
        let (algorithm, _) = rest.split_first_chunk::<8>()?;
        let mut priorities = [0; 8];
        for (pair, octet) in priorities.chunks_exact_mut(2).zip([a, b, c, d]) {
            pair.copy_from_slice(&[octet >> 4, octet & 0x0f]);
        }
        Some(Self {
            willing: bit(first, 7),
            cbs: bit(first, 6),
            classes_max: first & 0x07,
            priorities,
            bandwidth: *bandwidth,
            algorithm: *algorithm,
        })
    }
}

/// Reads one TLV of 802.1; `None` for a subtype that is not known here.
pub(super) fn read(subtype: u8, value: &[u8]) -> Result<Option<Tlv>, BadContents> {
    let tlv = match (subtype, value) {
        (1, value) => u16_at(value, 0).map(Tlv::PortVlan),
        (2, &[flags, a, b, ..]) => Some(Tlv::PortAndProtocolVlan {
            supported: bit(flags, 1),
            enabled: bit(flags, 2),
            vlan: u16::from_be_bytes([a, b]),
        }),
        (3, [a, b, len, name @ ..]) if name.len() == usize::from(*len) => Some(Tlv::VlanName {
            vlan: u16::from_be_bytes([*a, *b]),
            name: text(name),
        }),
        (4, [len, id @ ..]) => id
            .get(..usize::from(*len))
            .map(|id| Tlv::ProtocolIdentity(id.to_vec())),
        (5, &[a, b, c, d, ..]) => Some(Tlv::VidUsageDigest(u32::from_be_bytes([a, b, c, d]))),
        (6, value) => u16_at(value, 0).map(Tlv::ManagementVlan),
        (7, value) => LinkAggregation::read(value).map(Tlv::LinkAggregation),
        (8, &[cnpv, ready, ..]) => Some(Tlv::CongestionNotification { cnpv, ready }),
        (9, value) => Ets::read(value).map(Tlv::EtsConfiguration),
        (10, value) => Ets::read(value).map(Tlv::EtsRecommendation),
        (11, &[first, enabled, ..]) => Some(Tlv::PriorityFlowControl {
            willing: bit(first, 7),
            mbc: bit(first, 6),
            classes_max: first & 0x0f,
            enabled,
        }),
        (12, [_reserved, table @ ..]) if table.len().is_multiple_of(3) => {
            let entries = table.chunks_exact(3).map(|entry| Application {
                priority: entry[0] >> 5,
                selector: entry[0] & 0x07,
                protocol: u16::from_be_bytes([entry[1], entry[2]]),
            });
            Some(Tlv::ApplicationPriority(entries.collect()))
        }
        (1..=12, _) => None,
        _ => return Ok(None),
    };
    tlv.map(Some).ok_or(BadContents)
}

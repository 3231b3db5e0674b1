//! Organisational TLVs of IEEE 802.3 (802.3-2018 clause 79, power as 802.3bt-2018 extends it).

use super::organisation::{BadContents, LinkAggregation, bit, u16_at};

/// One TLV.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tlv {
    /// 1: MAC/PHY Configuration/Status.
    MacPhy {
        /// Auto-negotiation can be done.
        autoneg_supported: bool,
        /// It is on.
        autoneg_enabled: bool,
        /// Advertised capabilities (ifMauAutoNegCapAdvertisedBits), bit 15 first. Some senders have
        /// the bits in inverse order.
        advertised: u16,
        /// Operational MAU type (dot3MauType).
        mau_type: u16,
    },
    /// 2: Power Via MDI.
    Power(Power),
    /// 3: Link Aggregation; 802.1 has it now.
    LinkAggregation(LinkAggregation),
    /// 4: Maximum Frame Size in octets.
    MaxFrameSize(u16),
    /// 5: Energy-Efficient Ethernet, times in microseconds.
    Eee {
        /// Transmit.
        transmit_us: u16,
        /// Receive.
        receive_us: u16,
        /// Fallback receive.
        fallback_us: u16,
        /// Echo of the peer's transmit.
        echo_transmit_us: u16,
        /// Echo of the peer's receive.
        echo_receive_us: u16,
    },
}

/// Power Via MDI: 3 octets since 802.3af, 8 since 802.3at, 25 since 802.3bt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Power {
    /// Power source (PSE); else powered device.
    pub is_pse: bool,
    /// The port can do it.
    pub supported: bool,
    /// It does.
    pub enabled: bool,
    /// The pairs can be chosen.
    pub pairs_selectable: bool,
    /// Pairs in use: 1 signal, 2 spare.
    pub pairs: u8,
    /// Power class plus one.
    pub class: u8,
    /// Data link layer classification (802.3at).
    pub dll: Option<PowerDll>,
    /// 802.3bt's part.
    pub bt: Option<PowerBt>,
}

/// Data link layer classification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PowerDll {
    /// 0 type 2 PSE, 1 type 2 PD, 2 type 1 PSE, 3 type 1 PD.
    pub kind: u8,
    /// Power source: 0 unknown; of a PSE 1 primary, 2 backup; of a PD 1 the PSE, 2 local, 3 both.
    pub source: u8,
    /// 0 unknown, 1 critical, 2 high, 3 low.
    pub priority: u8,
    /// Power the PD asks for, in 0.1 W.
    pub pd_requested_dw: u16,
    /// Power the PSE allocates, in 0.1 W.
    pub pse_allocated_dw: u16,
}

/// Type 3 and type 4 power.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PowerBt {
    /// What a dual-signature PD asks for on modes A and B, in 0.1 W.
    pub ds_pd_requested_dw: [u16; 2],
    /// What the PSE allocates on alternatives A and B, in 0.1 W.
    pub ds_pse_allocated_dw: [u16; 2],
    /// PSE powering status, 2 bits.
    pub pse_status: u8,
    /// PD powered status, 2 bits.
    pub pd_status: u8,
    /// PSE power pairs, 2 bits.
    pub pairs: u8,
    /// Dual-signature power class on A and B, 3 bits each.
    pub ds_class: [u8; 2],
    /// Power class, 4 bits; 15 for a dual-signature PD.
    pub class: u8,
    /// Power type, 3 bits.
    pub kind: u8,
    /// The PD's loads are isolated.
    pub pd_load_isolated: bool,
    /// Most the PSE can give, in 0.1 W.
    pub pse_max_dw: u16,
    /// The PSE supports Autoclass.
    pub autoclass_supported: bool,
    /// The measurement is done.
    pub autoclass_completed: bool,
    /// The PD asks for it.
    pub autoclass_requested: bool,
    /// Power-down request, 6 bits; 0x1d asks for it.
    pub power_down: u8,
    /// For how long, in seconds; 18 bits.
    pub power_down_secs: u32,
}

impl Power {
    fn read(value: &[u8]) -> Option<Self> {
        let (&[support, pairs, class], rest) = value.split_first_chunk::<3>()?;
        Some(Self {
            is_pse: bit(support, 0),
            supported: bit(support, 1),
            enabled: bit(support, 2),
            pairs_selectable: bit(support, 3),
            pairs,
            class,
            dll: PowerDll::read(rest),
            bt: rest.get(5..).and_then(PowerBt::read),
        })
    }
}

impl PowerDll {
    fn read(value: &[u8]) -> Option<Self> {
        let &[first, a, b, c, d] = value.first_chunk::<5>()?;
        Some(Self {
            kind: first >> 6,
            source: first >> 4 & 0x03,
            priority: first & 0x03,
            pd_requested_dw: u16::from_be_bytes([a, b]),
            pse_allocated_dw: u16::from_be_bytes([c, d]),
        })
    }
}

impl PowerBt {
    fn read(value: &[u8]) -> Option<Self> {
        let value = value.first_chunk::<17>()?;
        let word = |at| u16::from_be_bytes([value[at], value[at + 1]]);
        let status = word(8);
        // At most six bits are asked for.
        let bits = |shift: u32, mask: u16| (status >> shift & mask) as u8;
        let (setup, autoclass) = (value[10], value[13]);
        let down = u32::from_be_bytes([0, value[14], value[15], value[16]]);
        Some(Self {
            ds_pd_requested_dw: [word(0), word(2)],
            ds_pse_allocated_dw: [word(4), word(6)],
            pse_status: bits(14, 3),
            pd_status: bits(12, 3),
            pairs: bits(10, 3),
            ds_class: [bits(7, 7), bits(4, 7)],
            class: bits(0, 15),
            kind: setup >> 1 & 0x07,
            pd_load_isolated: bit(setup, 0),
            pse_max_dw: word(11),
            autoclass_supported: bit(autoclass, 2),
            autoclass_completed: bit(autoclass, 1),
            autoclass_requested: bit(autoclass, 0),
            power_down: value[14] >> 2,
            power_down_secs: down & 0x3_ffff,
        })
    }
}

/// Reads one TLV of 802.3; `None` for a subtype that is not known here.
pub(super) fn read(subtype: u8, value: &[u8]) -> Result<Option<Tlv>, BadContents> {
    let word = |at| u16_at(value, at);
    let tlv = match (subtype, value) {
        (1, &[status, a, b, c, d, ..]) => Some(Tlv::MacPhy {
            autoneg_supported: bit(status, 0),
            autoneg_enabled: bit(status, 1),
            advertised: u16::from_be_bytes([a, b]),
            mau_type: u16::from_be_bytes([c, d]),
        }),
        (2, value) => Power::read(value).map(Tlv::Power),
        (3, value) => LinkAggregation::read(value).map(Tlv::LinkAggregation),
        (4, _) => word(0).map(Tlv::MaxFrameSize),
        (5, _) => match (word(0), word(2), word(4), word(6), word(8)) {
            (Some(transmit), Some(receive), Some(fallback), Some(echo_t), Some(echo_r)) => {
                Some(Tlv::Eee {
                    transmit_us: transmit,
                    receive_us: receive,
                    fallback_us: fallback,
                    echo_transmit_us: echo_t,
                    echo_receive_us: echo_r,
                })
            }
            _ => None,
        },
        (1, _) => None,
        _ => return Ok(None),
    };
    tlv.map(Some).ok_or(BadContents)
}

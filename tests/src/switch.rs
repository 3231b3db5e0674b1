//! What the switch itself says on the wire: LLDP at each port, and a router advertisement.
//!
//! The frame leaves by the bridge *port* device, so it reaches that one cable, as on a real
//! switch. The advertisement offers neither prefix nor default route: iPXE waits up to 18 s for
//! one before it gives IPv4 a chance.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use pnet_datalink::Channel;

use crate::netns::Netns;

/// Name that the lab's switch gives itself.
pub const SWITCH_NAME: &str = "lab-switch";
/// Its chassis id, a locally administered address.
pub const CHASSIS: [u8; 6] = [0x02, 0x00, 0x5e, 0x00, 0x00, 0xaa];

/// A thread that repeats a frame on one interface until dropped.
pub struct Speaker {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Speaker {
    /// Announces port `port_id` by LLDP on `interface` (a bridge port in `fab`), once a second.
    ///
    /// # Errors
    /// The interface is missing.
    pub fn lldp(fab: &Netns, interface: &str, port_id: &str) -> Result<Self> {
        Self::repeat(
            fab,
            interface,
            Duration::from_secs(1),
            lldp_frame(port_id, 120),
        )
    }

    /// Advertises a router without prefix or life on the bridge, every two seconds.
    ///
    /// # Errors
    /// The interface is missing.
    pub fn router(fab: &Netns) -> Result<Self> {
        Self::repeat(fab, "prov", Duration::from_secs(2), router_advertisement())
    }

    /// Repeats any frame: for scenarios that lie.
    ///
    /// # Errors
    /// The interface is missing.
    pub fn repeat(ns: &Netns, interface: &str, every: Duration, frame: Vec<u8>) -> Result<Self> {
        let mut sender = ns.enter(|| open(interface))?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let tick = Duration::from_millis(50);
            let mut waited = every;
            while !stopped.load(Ordering::Relaxed) {
                if waited >= every {
                    // A port that is down drops the frame, as a real one does.
                    let _ = sender.send_to(&frame, None);
                    waited = Duration::ZERO;
                }
                std::thread::sleep(tick);
                waited += tick;
            }
        });
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Speaker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn open(name: &str) -> Result<Box<dyn pnet_datalink::DataLinkSender>> {
    let interface = pnet_datalink::interfaces()
        .into_iter()
        .find(|i| i.name == name)
        .with_context(|| format!("no interface {name}"))?;
    match pnet_datalink::channel(&interface, pnet_datalink::Config::default())? {
        Channel::Ethernet(sender, _) => Ok(sender),
        _ => bail!("{name} is not an Ethernet interface"),
    }
}

/// One LLDP frame (IEEE 802.1AB) of the lab's switch.
pub fn lldp_frame(port_id: &str, ttl_secs: u16) -> Vec<u8> {
    let mut frame = vec![0x01, 0x80, 0xc2, 0x00, 0x00, 0x0e];
    frame.extend(CHASSIS);
    frame.extend([0x88, 0xcc]);
    let mut tlv = |kind: u16, value: &[u8]| {
        frame.extend(((kind << 9) | value.len() as u16).to_be_bytes());
        frame.extend(value);
    };
    let subtyped = |subtype: u8, value: &[u8]| [&[subtype], value].concat();
    tlv(1, &subtyped(4, &CHASSIS));
    tlv(2, &subtyped(5, port_id.as_bytes()));
    tlv(3, &ttl_secs.to_be_bytes());
    tlv(5, SWITCH_NAME.as_bytes());
    tlv(6, b"bridge of the lab");
    tlv(7, &[0, 4, 0, 4]);
    tlv(0, &[]);
    frame
}

/// A router advertisement (RFC 4861 section 4.2) with lifetime 0 and no option but our address.
fn router_advertisement() -> Vec<u8> {
    let mac = [0x02, 0x00, 0x5e, 0x00, 0x00, 0xab];
    // fe80:: and the EUI-64 of that address.
    let source = [
        0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x00, 0x00, 0x5e, 0xff, 0xfe, 0x00, 0x00, 0xab,
    ];
    let mut target = [0u8; 16];
    target[..2].copy_from_slice(&[0xff, 0x02]);
    target[15] = 1;
    let mut icmp = vec![134, 0, 0, 0, 64, 0, 0, 0];
    icmp.extend([0u8; 8]);
    icmp.extend([1, 1]);
    icmp.extend(mac);
    let sum = icmpv6_checksum(&source, &target, &icmp);
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut frame = vec![0x33, 0x33, 0, 0, 0, 1];
    frame.extend(mac);
    frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
    frame.extend((icmp.len() as u16).to_be_bytes());
    // Next header ICMPv6, hop limit 255 as the RFC demands.
    frame.extend([58, 255]);
    frame.extend(source);
    frame.extend(target);
    frame.extend(icmp);
    frame
}

/// RFC 4443 section 2.3: the Internet checksum over the pseudo-header and the message.
fn icmpv6_checksum(source: &[u8; 16], target: &[u8; 16], message: &[u8]) -> u16 {
    let mut bytes = [source.as_slice(), target].concat();
    bytes.extend((message.len() as u32).to_be_bytes());
    bytes.extend([0, 0, 0, 58]);
    bytes.extend(message);
    let mut sum: u32 = bytes
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0)))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lldp_frame_bytes() {
        let frame = lldp_frame("p1", 120);
        assert_eq!(
            hex::encode(&frame),
            concat!(
                "0180c200000e02005e0000aa88cc",
                "02070402005e0000aa",
                "0403057031",
                "06020078",
                "0a0a6c61622d737769746368",
                "0c11627269646765206f6620746865206c6162",
                "0e0400040004",
                "0000"
            )
        );
    }

    #[test]
    fn a_correct_checksum_sums_to_zero() {
        let frame = router_advertisement();
        assert_eq!(frame.len(), 14 + 40 + 24);
        let mut source = [0u8; 16];
        let mut target = [0u8; 16];
        source.copy_from_slice(&frame[22..38]);
        target.copy_from_slice(&frame[38..54]);
        assert_eq!(icmpv6_checksum(&source, &target, &frame[54..]), 0);
    }
}

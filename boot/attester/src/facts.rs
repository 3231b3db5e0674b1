//! What the node claims about itself, unsigned: SMBIOS, interfaces, disks, LLDP, the event log.
//!
//! Gathers and bounds; judges nothing. Every text is cut to what the wire allows, so that one odd
//! device name cannot make the whole hello malformed.

use std::time::Instant;

use attest_wire::v1::{
    Bytes, DEVICES_MAX, Disk, LLDP_FRAME_MAX_BYTES, LLDP_MAX, LldpReport, Nic, Platform,
    TEXT_MAX_BYTES,
};

/// One LLDP frame and when it was heard.
#[derive(Debug, Clone)]
pub struct HeardFrame {
    /// The whole Ethernet frame.
    pub frame: Vec<u8>,
    /// When, by the monotonic clock.
    pub heard: Instant,
    /// Interface that heard it.
    pub nic: String,
}

/// The claims.
#[derive(Debug, Clone)]
pub struct Facts {
    /// Machine architecture as `uname -m` prints it.
    pub arch: String,
    /// SMBIOS type 1.
    pub platform: Platform,
    /// Network interfaces.
    pub nics: Vec<Nic>,
    /// Disks.
    pub disks: Vec<Disk>,
    /// LLDP frames since link-up.
    pub lldp: Vec<HeardFrame>,
    /// `pxe`, `http` or `unknown`.
    pub boot_path: String,
    /// What the image calls itself.
    pub uki_hint: String,
    /// The firmware's event log as the kernel exports it; empty when there is none.
    pub event_log: Vec<u8>,
}

impl Facts {
    /// Cuts everything to the wire's bounds.
    pub fn bounded(mut self) -> Self {
        for text in [
            &mut self.arch,
            &mut self.platform.manufacturer,
            &mut self.platform.product,
            &mut self.platform.serial,
            &mut self.platform.uuid,
            &mut self.boot_path,
            &mut self.uki_hint,
        ] {
            cut(text);
        }
        self.nics.truncate(DEVICES_MAX);
        for nic in &mut self.nics {
            cut(&mut nic.name);
            cut(&mut nic.mac);
        }
        self.disks.truncate(DEVICES_MAX);
        for disk in &mut self.disks {
            cut(&mut disk.name);
            cut(&mut disk.serial);
            cut(&mut disk.model);
        }
        self.lldp
            .retain(|heard| (14..=LLDP_FRAME_MAX_BYTES).contains(&heard.frame.len()));
        let surplus = self.lldp.len().saturating_sub(LLDP_MAX);
        self.lldp.drain(..surplus);
        self
    }

    /// The LLDP frames with their age at `now`.
    pub(crate) fn lldp_reports(&self, now: Instant) -> Vec<LldpReport> {
        self.lldp
            .iter()
            .map(|heard| LldpReport {
                frame: Bytes(heard.frame.clone()),
                age_ms: u64::try_from(now.saturating_duration_since(heard.heard).as_millis())
                    .unwrap_or(u64::MAX),
                nic: heard.nic.clone(),
            })
            .collect()
    }
}

/// Cuts a text at a character boundary.
pub(crate) fn cut(text: &mut String) {
    let mut end = text.len().min(TEXT_MAX_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_devices_are_cut_and_not_refused() {
        let now = Instant::now();
        let facts = Facts {
            arch: "x86_64".to_owned(),
            platform: Platform {
                manufacturer: "ä".repeat(100),
                product: String::new(),
                serial: "s".repeat(1000),
                uuid: String::new(),
            },
            nics: vec![
                Nic {
                    name: "n".repeat(300),
                    mac: String::new()
                };
                70
            ],
            disks: Vec::new(),
            lldp: (0..20)
                .map(|n| HeardFrame {
                    frame: vec![n; 60],
                    heard: now,
                    nic: "eth0".to_owned(),
                })
                .chain([HeardFrame {
                    frame: vec![0; 2000],
                    heard: now,
                    nic: "eth0".to_owned(),
                }])
                .collect(),
            boot_path: String::new(),
            uki_hint: String::new(),
            event_log: Vec::new(),
        }
        .bounded();
        assert_eq!(facts.platform.manufacturer, "ä".repeat(64));
        assert_eq!(facts.platform.serial.len(), TEXT_MAX_BYTES);
        assert_eq!(facts.nics.len(), DEVICES_MAX);
        assert_eq!(facts.nics[0].name.len(), TEXT_MAX_BYTES);
        let kept: Vec<u8> = facts.lldp.iter().map(|heard| heard.frame[0]).collect();
        assert_eq!(kept, (4..20).collect::<Vec<u8>>(), "the newest are kept");
    }

    #[test]
    fn lldp_age_counts_from_reception() {
        let heard = Instant::now();
        let facts = Facts {
            arch: String::new(),
            platform: Platform {
                manufacturer: String::new(),
                product: String::new(),
                serial: String::new(),
                uuid: String::new(),
            },
            nics: Vec::new(),
            disks: Vec::new(),
            lldp: vec![HeardFrame {
                frame: vec![0; 60],
                heard,
                nic: "eth0".to_owned(),
            }],
            boot_path: String::new(),
            uki_hint: String::new(),
            event_log: Vec::new(),
        };
        let later = heard + std::time::Duration::from_millis(1500);
        assert_eq!(facts.lldp_reports(later)[0].age_ms, 1500);
    }
}

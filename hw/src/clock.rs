//! The wall clock, and how far it can be believed.
//!
//! Reads; whether a time is good enough for a decision is the core's business
//! (docs/PROTOCOL.md section 8).

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use nix::libc;

/// Where the kernel shows real-time clocks.
pub const RTC_ROOT: &str = "/sys/class/rtc";

/// Where the time came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClockQuality {
    /// Nothing set it: the time of the build, or whatever the kernel starts with.
    Unsynchronised,
    /// The kernel set it from a battery-backed clock at boot.
    Rtc,
    /// A time daemon disciplines it now.
    Ntp,
}

/// One reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WallClock {
    /// Milliseconds since 1970-01-01 UTC.
    pub unix_ms: u64,
    /// Its quality.
    pub quality: ClockQuality,
}

/// The clock of this machine.
#[derive(Debug, Clone, Default)]
pub struct Clock;

impl Clock {
    /// Milliseconds since 1970-01-01 UTC.
    pub fn now_ms(&self) -> u64 {
        unix_ms()
    }

    /// Time and quality.
    pub fn read(&self) -> WallClock {
        wall_clock(Path::new(RTC_ROOT))
    }
}

/// Reads clock and quality; `rtc_root` is [`RTC_ROOT`] on a real machine.
pub fn wall_clock(rtc_root: &Path) -> WallClock {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    WallClock {
        unix_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
        quality: if disciplined() {
            ClockQuality::Ntp
        } else if set_from_rtc(rtc_root) {
            ClockQuality::Rtc
        } else {
            ClockQuality::Unsynchronised
        },
    }
}

fn unix_ms() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Whether some clock set the system time at boot (`hctosys`).
fn set_from_rtc(rtc_root: &Path) -> bool {
    std::fs::read_dir(rtc_root)
        .into_iter()
        .flatten()
        .flatten()
        .any(|clock| {
            std::fs::read_to_string(clock.path().join("hctosys"))
                .is_ok_and(|text| text.trim() == "1")
        })
}

/// adjtimex(2) without changing anything: is STA_UNSYNC clear?
fn disciplined() -> bool {
    // SAFETY: timex is plain data; all-zero with modes = 0 asks and sets nothing.
    let mut timex: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live timex.
    let state = unsafe { libc::adjtimex(&raw mut timex) };
    state >= 0 && timex.status & libc::STA_UNSYNC == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quality_follows_the_rtc_when_no_daemon_disciplines_the_clock() {
        let root = tempfile::tempdir().unwrap();
        assert!(!set_from_rtc(root.path()));
        std::fs::create_dir(root.path().join("rtc0")).unwrap();
        std::fs::write(root.path().join("rtc0/hctosys"), "0\n").unwrap();
        assert!(!set_from_rtc(root.path()));
        std::fs::create_dir(root.path().join("rtc1")).unwrap();
        std::fs::write(root.path().join("rtc1/hctosys"), "1\n").unwrap();
        assert!(set_from_rtc(root.path()));
        let reading = wall_clock(root.path());
        assert!(reading.quality >= ClockQuality::Rtc);
        assert!(reading.unix_ms > 1_700_000_000_000);
        assert!(Clock.now_ms() >= reading.unix_ms);
    }
}

//! The boot answer for one machine: provision, local disk, or hold with a reason.

use serde::{Deserialize, Serialize};

/// What a machine is told to boot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "plan", rename_all = "snake_case")]
pub enum BootPlan {
    /// Boot our signed attester.
    Provision,
    /// Boot what is installed: no boot file for the firmware, `exit` for iPXE.
    LocalDisk,
    /// Do not boot now; the console says why and when it tries again.
    Hold {
        /// One line for the console.
        reason: String,
        /// Seconds until the next attempt.
        retry_secs: u32,
    },
}

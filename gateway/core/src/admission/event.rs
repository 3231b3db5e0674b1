//! What can happen to a machine.

use crate::identity::{MachineId, UnixMillis};

/// One thing that happened to one machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// One of its interfaces got a lease or asked for boot files.
    Seen(Sub),
    /// It proved possession of keys that are bound to nothing.
    Claimed,
    /// An administrator bound its keys.
    Approved,
    /// A challenge went out.
    Challenged,
    /// The attempt ended without a verdict in its favour: refused, timed out, connection lost.
    AttemptEnded,
    /// The appraisal passed.
    Admitted,
    /// A certificate was issued.
    Issued {
        /// End of its validity.
        not_after: UnixMillis,
    },
    /// An installation was authorised.
    RunBegun,
    /// A grant was used: the disk is being written.
    InstallStarted,
    /// The installation ended otherwise than verified.
    InstallEnded,
    /// The read-back report arrived, or the owner states that the machine is installed.
    Installed,
    /// A runtime quote passed.
    RuntimeProven,
    /// An administrator holds it.
    Cordoned,
    /// Undo of cordon.
    Uncordoned,
    /// Its access ended.
    Withdrawn {
        /// In the operator's words.
        why: String,
    },
    /// It left the fleet.
    Retired,
    /// Another board took its place.
    ReplacedBy(MachineId),
}

/// How far a discovered machine is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sub {
    /// It has a lease.
    Leased,
    /// It fetches boot artefacts.
    Booting,
}

impl Event {
    /// Name for logs, metrics and refusals.
    pub fn name(&self) -> &'static str {
        match self {
            Event::Seen(_) => "seen",
            Event::Claimed => "claimed",
            Event::Approved => "approved",
            Event::Challenged => "challenged",
            Event::AttemptEnded => "attempt_ended",
            Event::Admitted => "admitted",
            Event::Issued { .. } => "issued",
            Event::RunBegun => "run_begun",
            Event::InstallStarted => "install_started",
            Event::InstallEnded => "install_ended",
            Event::Installed => "installed",
            Event::RuntimeProven => "runtime_proven",
            Event::Cordoned => "cordoned",
            Event::Uncordoned => "uncordoned",
            Event::Withdrawn { .. } => "withdrawn",
            Event::Retired => "retired",
            Event::ReplacedBy(_) => "replaced_by",
        }
    }
}

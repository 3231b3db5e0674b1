//! The gate between the provisioning side and the uplink: what opens and closes it.
//!
//! Two backends behind one trait. [`nftables`] is for an appliance that routes: it matches a machine
//! by the pair of hardware and IPv4 address. [`hook`] is for one that does not, or that stands behind
//! a relay, where every frame carries the router's hardware address: a program of the operator moves
//! the switch port. Who may pass is not decided here; a backend does what it is told, and reports
//! what is there.

mod conntrack;
pub mod hook;
mod listing;
pub mod nftables;
mod program;

use std::net::Ipv4Addr;
use std::time::Duration;

pub use hook::Hook;
pub use nftables::{NfTables, Sides};

/// Transport protocols that have ports and can be let through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Proto {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Proto {
    /// Its name in nftables.
    pub fn name(self) -> &'static str {
        match self {
            Proto::Tcp => "tcp",
            Proto::Udp => "udp",
        }
    }

    /// Its number (IANA protocol numbers).
    pub fn number(self) -> u8 {
        match self {
            Proto::Tcp => 6,
            Proto::Udp => 17,
        }
    }
}

/// What one machine may reach: packets from this pair of addresses to these destinations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Flow {
    /// Hardware address of the machine.
    pub mac: [u8; 6],
    /// Its IPv4 address.
    pub source: Ipv4Addr,
    /// Network address of the destinations.
    pub to: Ipv4Addr,
    /// Prefix length of the destinations, 0 to 32.
    pub prefix: u8,
    /// Protocol.
    pub proto: Proto,
    /// First and last destination port.
    pub ports: (u16, u16),
}

/// A switch port that a machine is at.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SwitchPort {
    /// The machine.
    pub machine: String,
    /// The port, in the operator's words.
    pub port: String,
}

/// One thing that is open or not.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Element {
    /// For [`nftables`].
    Flow(Flow),
    /// For [`hook`].
    Port(SwitchPort),
}

/// One change. Opening what is open already sets its time anew.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Open for so long; a backend that cannot count leaves the time to its caller.
    Open(Element, Duration),
    /// Close now, and cut what passes.
    Close(Element),
}

/// What a backend finds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Listing {
    /// What is open, and for how long; none where no end is known.
    pub open: Vec<(Element, Option<Duration>)>,
    /// Whether everything around them is as [`Gate::install`] left it. If not, only another install
    /// helps: rules are missing or foreign, or an element is none of ours.
    pub intact: bool,
}

/// A backend. Blocking: a call returns when the change is in force.
pub trait Gate: Send {
    /// Puts the gate in place with exactly `open`, whatever is there, in one step where the backend
    /// can: nothing passes in between that would not before and after. `shut` is what must be closed
    /// although this process never opened it, for a backend that cannot list.
    ///
    /// # Errors
    /// [`GateError`]; the gate is then as it was.
    fn install(&mut self, open: &[(Element, Duration)], shut: &[Element]) -> Result<(), GateError>;

    /// Makes the changes, closings first.
    ///
    /// # Errors
    /// [`GateError`]; some of the changes may be missing, and the caller compares with
    /// [`Gate::list`].
    fn apply(&mut self, changes: &[Change]) -> Result<(), GateError>;

    /// What is open now.
    ///
    /// # Errors
    /// [`GateError`].
    fn list(&mut self) -> Result<Listing, GateError>;
}

/// The gate could not be changed or read.
#[derive(Debug, thiserror::Error)]
#[error("{subject}: expected {expected}, found {found}; {next}")]
pub struct GateError {
    /// Which program or part.
    pub subject: String,
    /// What should have been.
    pub expected: String,
    /// What was.
    pub found: String,
    /// What to do.
    pub next: String,
    /// Why, where the system said so.
    #[source]
    pub source: Option<std::io::Error>,
}

impl GateError {
    fn new(
        subject: impl Into<String>,
        expected: impl Into<String>,
        found: impl Into<String>,
        next: impl Into<String>,
    ) -> Self {
        Self {
            subject: subject.into(),
            expected: expected.into(),
            found: found.into(),
            next: next.into(),
            source: None,
        }
    }

    fn because(self, source: std::io::Error) -> Self {
        Self {
            source: Some(source),
            ..self
        }
    }
}

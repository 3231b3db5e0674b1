//! The node's side of the attestation: what `/init` of the signed image runs, and what the lab
//! drives simulated machines with.
//!
//! [`exchange`] is the straight path to read first. Nothing here decides about admission, and the
//! only trust is the pinned infra CA ([`pin`]).

#![forbid(unsafe_code)]

pub mod client;
pub mod console;
pub mod exchange;
pub mod extends;
pub mod facts;
pub mod gather;
pub mod init;
pub mod install;
pub mod output;
pub mod payloads;
pub mod pin;

pub use exchange::{AttestError, DevIdAuth, Gateway, Node, Options, Outcome, Step, attest};
pub use facts::{Facts, HeardFrame};

//! Every decision of the gateway, and no I/O: no socket, clock, random source, TPM or database.
//! Time, randomness and facts come in as arguments; what should happen comes out as values.

#![forbid(unsafe_code)]

pub mod appraisal;
pub mod identity;
pub mod inventory;
pub mod issuer;
pub mod policy;
pub mod reason;
pub mod record;
pub mod strict_toml;
pub mod view;
pub mod walk;

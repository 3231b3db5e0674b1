//! Every decision of the gateway, and no I/O: no socket, clock, random source, TPM or database.
//! Time, randomness and facts come in as arguments; what should happen comes out as values.
//!
//! Read `walk` (the table), `gateway` (the whole), `admission::machine` (the states) and
//! `appraisal` (the verifier), in this order.

#![forbid(unsafe_code)]

pub mod admission;
pub mod anchor;
pub mod appraisal;
pub mod bootfile;
pub mod catalog;
pub mod gate;
pub mod gateway;
pub mod handover;
pub mod identity;
pub mod install;
pub mod inventory;
pub mod issuer;
pub mod lease6;
pub mod limits;
pub mod outbox;
pub mod policy;
pub mod reason;
pub mod record;
pub mod retention;
pub mod spire;
pub mod strict_toml;
pub mod talos;
pub mod view;
pub mod walk;

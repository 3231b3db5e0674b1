//! The Vestibule daemon: sockets, files and devices around `gateway-core`.

#![forbid(unsafe_code)]

pub mod admin;
pub mod appliance;
pub mod ca;
pub mod cli;
pub mod config;
pub mod disks;
pub mod driver;
mod effects;
pub mod gate;
pub mod handle;
pub mod images;
pub mod inspect;
pub mod inventory;
pub mod issue;
pub mod metrics;
pub mod neighbours;
mod random;
mod retention;
pub mod serve;
pub mod shell;
mod spire;
pub mod talos;
pub mod telemetry;
#[cfg(test)]
pub(crate) mod testing;
mod workers;

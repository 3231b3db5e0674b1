//! The Vestibule daemon: sockets, files and devices around `gateway-core`.

#![forbid(unsafe_code)]

pub mod config;
pub mod handle;

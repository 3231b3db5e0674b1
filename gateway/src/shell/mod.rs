//! The tokio ring: sockets in, decisions by the cores, bytes out.
//!
//! Each file reads, asks (`crate::handle::Handle` or a core) and does what it was told.

pub mod boot_source;
pub mod dhcp;
pub mod dhcp6;
pub mod enroll;
pub mod health;
pub mod http;
pub mod https_boot;
pub mod kms;
pub mod listen;
pub mod lldp;
pub mod metadata;
pub mod ra;
pub mod seats;
pub mod segment;
pub mod talos;
#[cfg(test)]
mod tests;
pub mod tftp;
pub mod tls;

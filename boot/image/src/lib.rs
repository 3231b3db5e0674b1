//! Builds what a machine boots: packages, Secure Boot keys, initramfs, UKI, signed catalogue.
//!
//! A build-time tool that touches files and runs Debian's tools (`apt-get`, `dpkg-deb`, `depmod`, `sbsign`),
//! always by argument list. What is measured and what is trusted is decided in package `boot`.

#![forbid(unsafe_code)]

pub mod debs;
pub mod efi;
pub mod exec;
pub mod keys;
pub mod sources;

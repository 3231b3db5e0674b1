//! Builds what a machine boots: packages, Secure Boot keys, initramfs, UKI, signed catalogue.
//!
//! A build-time tool that touches files and runs Debian's tools (`apt-get`, `dpkg-deb`, `ldd`, `strip`, `zstd`,
//! `sbsign`), always by argument list. What is measured and what is trusted is decided in package `boot`.

#![forbid(unsafe_code)]

pub mod assemble;
pub mod cpio;
pub mod debs;
pub mod efi;
pub mod exec;
pub mod initramfs;
pub mod keys;
pub mod libraries;
pub mod modules;
pub mod sign;
pub mod sources;
pub mod uki;

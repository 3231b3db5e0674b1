//! Devices behind small blocking traits: TPM, network interface, UDP in batches, SMBIOS, disks, clock.
//!
//! The only package where `unsafe` is allowed; each block says why it is sound.

pub mod clock;
pub mod disk;
pub mod dmi;
pub mod files;
pub mod net;
pub mod nic;
pub mod tpm;

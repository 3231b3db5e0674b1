//! Devices behind small blocking traits: TPM, network interface, SMBIOS, clock.
//!
//! The only package where `unsafe` is allowed; each block says why it is sound.

pub mod tpm;

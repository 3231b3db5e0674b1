//! Devices behind small blocking traits: TPM, network interface, UDP in batches, SMBIOS, disks, clock,
//! the gate; and the heap, which only its C library can be told about.
//!
//! The only package where `unsafe` is allowed; each block says why it is sound.

pub mod block;
pub mod clock;
pub mod disk;
pub mod dmi;
pub mod files;
pub mod gate;
pub mod heap;
pub mod net;
pub mod nic;
pub mod tpm;

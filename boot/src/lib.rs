//! What a machine boots, and why. Pure: the catalogue of signed artefacts, the answer for one machine, the iPXE
//! script, and what a boot leaves in the PCRs. Knows no socket and no file.

#![forbid(unsafe_code)]

pub mod arch;
pub mod catalog;
pub mod ipxe;
pub mod measure;
pub mod pe;
pub mod plan;
pub mod predict;
pub mod unzstd;

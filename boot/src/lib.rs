//! What a machine boots, and why. Pure: the catalogue of signed artefacts, the answer for one
//! machine, the iPXE script. Knows no socket and no file.

#![forbid(unsafe_code)]

pub mod catalog;
pub mod plan;

//! What a node and the gateway say to each other, and the TPM 2.0 structures both need.
//!
//! Decides nothing and does no I/O. Everything decoded here is untrusted until the appraisal
//! (`gateway-core`) has checked it. Wire types are versioned; the golden vectors in
//! `tests/vectors/wire` are never edited.

#![forbid(unsafe_code)]

mod codec;
pub mod credential;
pub mod ekseal;
pub mod oid;
pub mod sealed;
pub mod templates;
pub mod tpm;
pub mod v1;

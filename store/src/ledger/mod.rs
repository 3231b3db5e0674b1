//! The signed ledger: every decision, hash-chained, in segments, one signature per group commit.
//!
//! Decides what an entry, a segment and a valid ledger are. Does not know what the records mean,
//! nor where the signing key lives.
//!
//! A segment `ledger-00000001.vlg` holds frames ([`crate::frame`]) whose payload begins with one
//! byte:
//!
//! | byte | payload | rule |
//! |---|---|---|
//! | `H` | header, JSON: version, segment, first_seq, prev, certificate chain | once, first |
//! | `C` | signature and entry lines of one group commit | signature over [`HEAD_LABEL`] and the hash of the last entry |
//! | `K` | signature and checkpoint, JSON: segment, first_seq, last_seq, head | once, last: the segment is closed |
//!
//! The oldest segments may have been removed; then a `ledger-00000007.base` stands for them (`base.rs`).
//!
//! A signature is ECDSA P-256 with SHA-256, DER encoded, by a certificate that the infra CA issued
//! for the receipt purpose ([`attest_wire::oid::EKU_RECEIPT`]).

mod base;
mod entry;
mod export;
mod page;
mod prune;
mod segment;
mod trust;
mod verify;
mod writer;

pub use entry::{Entry, Hash};
pub use export::{ExportReport, export};
pub use page::LedgerReader;
pub use prune::Cut;
pub use verify::{BaseReport, Report, VerifyError, verify};
pub use writer::SEGMENT_MAX_BYTES;

pub(crate) use verify::{Depth, OnTornTail, Scanned, scan_dir};
pub(crate) use writer::LedgerWriter;

use crate::error::StoreError;

/// What a group commit's signature covers, before the 32-byte hash of its last entry.
pub const HEAD_LABEL: &[u8] = b"vestibule/ledger/v1\0";
/// What a closed segment's signature covers, before the checkpoint's JSON.
pub const CHECKPOINT_LABEL: &[u8] = b"vestibule/ledger-checkpoint/v1\0";

/// What the signature of a base covers, before the manifest's JSON: what a pruned ledger begins with.
pub const BASE_LABEL: &[u8] = b"vestibule/ledger-base/v1\0";

/// Longest record, in bytes of JSON; the rest of a line's bound is for what surrounds it.
pub(crate) const RECORD_MAX_BYTES: usize = entry::LINE_MAX_BYTES - 1024;

/// Signs ledger heads. The key is a leaf of the infra CA made for this purpose alone.
pub trait LedgerSigner: Send {
    /// ECDSA P-256 with SHA-256 over `message`, ASN.1 DER.
    ///
    /// # Errors
    /// In words, when the key cannot be used; the commit then fails for good.
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, String>;
    /// The leaf certificate and the intermediates up to, not including, the pinned infra CA. DER.
    fn chain_der(&self) -> Vec<Vec<u8>>;
}

impl<T: LedgerSigner + Sync + ?Sized> LedgerSigner for std::sync::Arc<T> {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, String> {
        (**self).sign(message)
    }

    fn chain_der(&self) -> Vec<Vec<u8>> {
        (**self).chain_der()
    }
}

/// Label and message in one.
pub(crate) fn labelled(label: &[u8], message: &[u8]) -> Vec<u8> {
    [label, message].concat()
}

pub(crate) fn sign(
    signer: &dyn LedgerSigner,
    label: &[u8],
    message: &[u8],
) -> Result<Vec<u8>, StoreError> {
    signer
        .sign(&labelled(label, message))
        .map_err(|why| StoreError::Signer { why })
}

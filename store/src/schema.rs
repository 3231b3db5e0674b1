//! Names of the sled trees and keys, and the version of that layout.

use crate::error::StoreError;

/// Version of the layout below. A higher one on disk is refused, a lower one is migrated here.
pub(crate) const SCHEMA_VERSION: u32 = 2;

/// Small facts about the database itself.
pub(crate) const META: &str = "meta";
/// View: JSON of each machine by its id, as the daemon writes it.
pub(crate) const MACHINES: &str = "machines";
/// View: JSON of each lease by its address, four bytes.
pub(crate) const LEASES: &str = "leases";
/// View: JSON of each DHCPv6 lease by its address, 16 bytes. Since version 2.
pub(crate) const LEASES6: &str = "leases6";
/// Sealed blobs by name. No view: nothing else holds them.
pub(crate) const SEAL: &str = "seal";
/// Encrypted secrets by name. No view: nothing else holds them.
pub(crate) const SECRET: &str = "secret";
/// Certificates and other public documents by name. No view.
pub(crate) const PUBLIC: &str = "public";

/// In [`META`]: schema version, u32 big endian.
pub(crate) const KEY_VERSION: &str = "schema_version";
/// In [`META`]: last ledger entry the views have seen, u64 big endian.
pub(crate) const KEY_APPLIED_LEDGER: &str = "applied_ledger_seq";
/// In [`META`]: last journal record the views have seen, u64 big endian.
pub(crate) const KEY_APPLIED_JOURNAL: &str = "applied_journal_seq";

/// What to do about the version found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// It is ours.
    Ours,
    /// The database is new, or its trees have been brought up to ours by opening it: write ours.
    ToWrite,
}

/// Judges the version found: none is a new database.
pub(crate) fn check(found: Option<u32>) -> Result<Found, StoreError> {
    match found {
        Some(SCHEMA_VERSION) => Ok(Found::Ours),
        None | Some(1) => Ok(Found::ToWrite),
        Some(found) => Err(StoreError::SchemaTooNew {
            found,
            known: SCHEMA_VERSION,
        }),
    }
}

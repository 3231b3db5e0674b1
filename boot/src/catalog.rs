//! The catalogue of signed boot artefacts.

use serde::{Deserialize, Serialize};

/// What an artefact is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Signed iPXE binary, served by TFTP or HTTP to firmware.
    Ipxe,
    /// Signed unified kernel image.
    Uki,
}

/// What may be asked of a machine that booted the artefact (docs/PROTOCOL.md section 4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Our own installer: may obtain grants and payloads.
    Provision,
    /// An installed system: may renew.
    Runtime,
}

/// One artefact.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Artefact {
    /// Stable name across versions, for example `attester`.
    pub name: String,
    /// What it is.
    pub kind: Kind,
    /// What it is for.
    pub role: Role,
    /// Architecture name of `boot::arch`.
    pub arch: String,
    /// Grows with each release; compared with the floor.
    pub version: u64,
    /// File name beside the catalogue.
    pub file: String,
    /// SHA-256 of the file, hex.
    pub sha256: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Authenticode SHA-256 of the PE image, hex: what firmware measures into PCR 4.
    pub pe_sha256: String,
    /// For a UKI: Authenticode SHA-256 of the embedded kernel (`.linux`), hex, as the stub loads it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub linux_pe_sha256: Option<String>,
    /// For a UKI: PCR 11 after systemd-stub measured its sections (SHA-256 bank), hex.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pcr11: Option<String>,
    /// Embedded command line, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cmdline: Option<String>,
}

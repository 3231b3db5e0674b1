//! The catalogue of signed boot artefacts: what the site's machines may boot, and the figures by which it is known.
//!
//! Decides whether a catalogue is one, by the signature of the site's image key and by its content. Floors and
//! withdrawals are the gateway's (they change without a new signature) and come in as a predicate. Knows no file.

use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{SubjectPublicKeyInfoDer, pem};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::arch::Arch;
use crate::measure::{MeasureError, measure};

/// File name of the catalogue in an image folder.
pub const CATALOG_FILE: &str = "catalog.json";
/// File name of its detached signature.
pub const SIGNATURE_FILE: &str = "catalog.sig";
/// Version of the catalogue's form.
pub const CATALOG_VERSION: u32 = 1;
/// Largest catalogue, bytes: 512 artefacts of about 1 KiB each.
pub const CATALOG_BYTES_MAX: usize = 512 * 1024;
/// Most artefacts.
pub const ARTEFACTS_MAX: usize = 512;
/// Largest artefact, bytes: what firmware still loads into memory below 4 GiB without trouble.
pub const ARTEFACT_BYTES_MAX: u64 = 1 << 30;
/// Most disk images.
pub const DISKS_MAX: usize = 64;
/// Largest disk image, as a file and as written, bytes.
pub const DISK_BYTES_MAX: u64 = 1 << 40;
/// A disk image is a whole number of these: the larger of the two sector sizes in use.
pub const DISK_SECTOR_BYTES: u64 = 4096;

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
    /// Architecture name of [`Arch::as_str`].
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

/// How a disk image is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Compression {
    /// The file is what is written.
    None,
    /// One or more Zstandard frames (RFC 8878).
    Zstd,
}

impl Compression {
    /// Name in catalogue and grant.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Zstd => "zstd",
        }
    }
}

/// An image that the installer writes to a disk. It is no boot artefact: firmware cannot fetch it, and no
/// event log is compared with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskImage {
    /// Stable name across versions, for example `talos-worker`.
    pub name: String,
    /// Grows with each release; compared with the floor.
    pub version: u64,
    /// File name beside the catalogue.
    pub file: String,
    /// SHA-256 of the file, hex.
    pub sha256: String,
    /// Size of the file in bytes.
    pub size_bytes: u64,
    /// How it is packed.
    pub compression: Compression,
    /// SHA-256 of what is written, hex.
    pub raw_sha256: String,
    /// Size of that in bytes; whole sectors.
    pub raw_bytes: u64,
}

/// The signed document.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// [`CATALOG_VERSION`].
    pub version: u32,
    /// The artefacts.
    pub artefacts: Vec<Artefact>,
    /// Disk images for the installer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<DiskImage>,
}

/// Why a catalogue, or an artefact beside it, is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CatalogError {
    /// The image key is not a P-256 public key.
    #[error("image key: expected a P-256 public key (SPKI, PEM or DER)")]
    Key,
    /// Too many bytes.
    #[error("catalogue: expected at most {CATALOG_BYTES_MAX} bytes, found {0}")]
    Oversize(usize),
    /// Not signed by the image key.
    #[error("catalogue: the signature is not by the site's image key")]
    Signature,
    /// Not the JSON of a catalogue.
    #[error("catalogue: {0}")]
    Form(String),
    /// Another version of the form.
    #[error("catalogue: expected version {CATALOG_VERSION}, found {0}")]
    Version(u32),
    /// Too many artefacts, or none.
    #[error("catalogue: expected 1 to {ARTEFACTS_MAX} artefacts, found {0}")]
    Count(usize),
    /// A field of an entry has a value that it cannot have.
    #[error("catalogue entry {entry} ({name}): {field} is {found:?}")]
    Field {
        /// Index of the entry.
        entry: usize,
        /// Its name.
        name: String,
        /// Which field.
        field: &'static str,
        /// Its value, at most 80 characters.
        found: String,
    },
    /// Two entries are the same one.
    #[error("catalogue entries {first} and {second} have the same {field} {value}")]
    Duplicate {
        /// Index of the first.
        first: usize,
        /// Index of the second.
        second: usize,
        /// Which field.
        field: &'static str,
        /// The value.
        value: String,
    },
    /// The file is not the one of the entry.
    #[error("artefact {name}: {field} expected {expected}, found {found}")]
    Artefact {
        /// Name of the artefact.
        name: String,
        /// Which figure.
        field: &'static str,
        /// The catalogue's.
        expected: String,
        /// The file's.
        found: String,
    },
    /// The file could not be measured.
    #[error("artefact {name}")]
    Measure {
        /// Name of the artefact.
        name: String,
        /// Why.
        #[source]
        source: MeasureError,
    },
}

impl CatalogError {
    /// Stable code of the refusal.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Key => "catalog.key",
            Self::Oversize(_) => "catalog.oversize",
            Self::Signature => "catalog.signature",
            Self::Form(_) => "catalog.form",
            Self::Version(_) => "catalog.version",
            Self::Count(_) => "catalog.count",
            Self::Field { .. } => "catalog.field",
            Self::Duplicate { .. } => "catalog.duplicate",
            Self::Artefact { .. } => "catalog.artefact",
            Self::Measure { .. } => "catalog.measure",
        }
    }
}

/// The site's image key: P-256, public part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageKey([u8; 65]);

/// `SubjectPublicKeyInfo` of a P-256 key up to its point (RFC 5480 §2).
const P256_SPKI_HEAD: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a,
    0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

impl ImageKey {
    /// From `SubjectPublicKeyInfo` in DER.
    ///
    /// # Errors
    /// [`CatalogError::Key`].
    pub fn from_der(spki: &[u8]) -> Result<Self, CatalogError> {
        spki.strip_prefix(&P256_SPKI_HEAD)
            .filter(|point| point.first() == Some(&4))
            .and_then(|point| point.try_into().ok())
            .map(Self)
            .ok_or(CatalogError::Key)
    }

    /// From a PEM file with one `PUBLIC KEY`.
    ///
    /// # Errors
    /// [`CatalogError::Key`].
    pub fn from_pem(text: &[u8]) -> Result<Self, CatalogError> {
        let der: Result<SubjectPublicKeyInfoDer<'_>, pem::Error> =
            SubjectPublicKeyInfoDer::from_pem_slice(text);
        Self::from_der(&der.map_err(|_| CatalogError::Key)?)
    }
}

/// A catalogue whose signature and content have been checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Catalog {
    artefacts: Vec<Artefact>,
    disks: Vec<DiskImage>,
    digest: [u8; 32],
}

impl Catalog {
    /// Checks a catalogue: first the signature (ECDSA P-256 with SHA-256 over the file's bytes, DER), then the content.
    ///
    /// # Errors
    /// [`CatalogError`].
    pub fn load(bytes: &[u8], signature: &[u8], key: &ImageKey) -> Result<Self, CatalogError> {
        if bytes.len() > CATALOG_BYTES_MAX {
            return Err(CatalogError::Oversize(bytes.len()));
        }
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, &key.0)
            .verify(bytes, signature)
            .map_err(|_| CatalogError::Signature)?;
        let manifest: Manifest =
            serde_json::from_slice(bytes).map_err(|error| CatalogError::Form(error.to_string()))?;
        check(&manifest)?;
        Ok(Self {
            artefacts: manifest.artefacts,
            disks: manifest.disks,
            digest: Sha256::digest(bytes).into(),
        })
    }

    /// All artefacts, in the order of the file.
    pub fn artefacts(&self) -> &[Artefact] {
        &self.artefacts
    }

    /// All disk images, in the order of the file.
    pub fn disks(&self) -> &[DiskImage] {
        &self.disks
    }

    /// SHA-256 of the catalogue file.
    pub fn digest(&self) -> &[u8; 32] {
        &self.digest
    }

    /// The artefact whose file has this SHA-256 (lower-case hex).
    pub fn by_sha256(&self, sha256: &str) -> Option<&Artefact> {
        self.artefacts.iter().find(|entry| entry.sha256 == sha256)
    }

    /// The newest usable artefact of a kind, role and architecture. `usable` knows the floor and what is withdrawn.
    pub fn newest(
        &self,
        kind: Kind,
        role: Role,
        arch: Arch,
        usable: impl Fn(&Artefact) -> bool,
    ) -> Option<&Artefact> {
        self.artefacts
            .iter()
            .filter(|entry| entry.kind == kind && entry.role == role)
            .filter(|entry| entry.arch == arch.as_str())
            .filter(|entry| usable(entry))
            .max_by_key(|entry| entry.version)
    }
}

/// Checks a manifest's content, as [`Catalog::load`] will: the builder asks before it signs.
///
/// # Errors
/// [`CatalogError`].
pub fn check(manifest: &Manifest) -> Result<(), CatalogError> {
    if manifest.version != CATALOG_VERSION {
        return Err(CatalogError::Version(manifest.version));
    }
    let count = manifest.artefacts.len();
    if count == 0 || count > ARTEFACTS_MAX {
        return Err(CatalogError::Count(count));
    }
    for (index, entry) in manifest.artefacts.iter().enumerate() {
        check_entry(index, entry)?;
    }
    check_disks(manifest)?;
    type ValueOf = fn(&Artefact) -> String;
    let unique: [(&'static str, ValueOf); 3] = [
        ("sha256", |entry| entry.sha256.clone()),
        ("file", |entry| entry.file.clone()),
        ("name, architecture and version", |entry| {
            format!("{} {} {}", entry.name, entry.arch, entry.version)
        }),
    ];
    for (field, value_of) in unique {
        let mut seen = std::collections::HashMap::new();
        for (second, entry) in manifest.artefacts.iter().enumerate() {
            let value = value_of(entry);
            if let Some(first) = seen.insert(value.clone(), second) {
                return Err(CatalogError::Duplicate {
                    first,
                    second,
                    field,
                    value,
                });
            }
        }
    }
    Ok(())
}

fn check_disks(manifest: &Manifest) -> Result<(), CatalogError> {
    if manifest.disks.len() > DISKS_MAX {
        return Err(CatalogError::Count(manifest.disks.len()));
    }
    let mut seen = std::collections::HashMap::new();
    for (index, entry) in manifest.artefacts.iter().enumerate() {
        seen.insert(("file", entry.file.clone()), index);
        seen.insert(("sha256", entry.sha256.clone()), index);
        // A floor is by name: one name is one kind of thing.
        seen.insert(("name and version", entry.name.clone()), index);
    }
    for (disk, entry) in manifest.disks.iter().enumerate() {
        let index = manifest.artefacts.len() + disk;
        let refuse = |field: &'static str, found: String| {
            Err(CatalogError::Field {
                entry: index,
                name: entry.name.chars().take(80).collect(),
                field,
                found: found.chars().take(80).collect(),
            })
        };
        for (field, value, good) in [
            ("name", &entry.name, is_name(&entry.name)),
            ("file", &entry.file, is_name(&entry.file)),
            ("sha256", &entry.sha256, is_sha256(&entry.sha256)),
            (
                "raw_sha256",
                &entry.raw_sha256,
                is_sha256(&entry.raw_sha256),
            ),
        ] {
            if !good {
                return refuse(field, value.clone());
            }
        }
        if !(1..=DISK_BYTES_MAX).contains(&entry.size_bytes) {
            return refuse("size_bytes", entry.size_bytes.to_string());
        }
        if !(1..=DISK_BYTES_MAX).contains(&entry.raw_bytes)
            || !entry.raw_bytes.is_multiple_of(DISK_SECTOR_BYTES)
        {
            return refuse("raw_bytes", entry.raw_bytes.to_string());
        }
        let unpacked = (&entry.raw_sha256, entry.raw_bytes);
        if entry.compression == Compression::None && unpacked != (&entry.sha256, entry.size_bytes) {
            return refuse(
                "compression",
                "none, with other figures of what is written".into(),
            );
        }
        let named = seen.get(&("name and version", entry.name.clone())).copied();
        if let Some(first) = named.filter(|first| *first < manifest.artefacts.len()) {
            return Err(duplicate(first, index, "name and version", &entry.name));
        }
        for (field, value) in [
            ("file", entry.file.clone()),
            ("sha256", entry.sha256.clone()),
            (
                "name and version",
                format!("{} {}", entry.name, entry.version),
            ),
        ] {
            if let Some(first) = seen.insert((field, value.clone()), index) {
                return Err(duplicate(first, index, field, &value));
            }
        }
    }
    Ok(())
}

fn duplicate(first: usize, second: usize, field: &'static str, value: &str) -> CatalogError {
    CatalogError::Duplicate {
        first,
        second,
        field,
        value: value.to_owned(),
    }
}

fn check_entry(index: usize, entry: &Artefact) -> Result<(), CatalogError> {
    let refuse = |field: &'static str, found: &str| {
        Err(CatalogError::Field {
            entry: index,
            name: entry.name.chars().take(80).collect(),
            field,
            found: found.chars().take(80).collect(),
        })
    };
    if !is_name(&entry.name) {
        return refuse("name", &entry.name);
    }
    if !is_name(&entry.file) {
        return refuse("file", &entry.file);
    }
    if Arch::from_name(&entry.arch).is_none() {
        return refuse("arch", &entry.arch);
    }
    if entry.size_bytes == 0 || entry.size_bytes > ARTEFACT_BYTES_MAX {
        return refuse("size_bytes", &entry.size_bytes.to_string());
    }
    for (field, value) in [
        ("sha256", Some(&entry.sha256)),
        ("pe_sha256", Some(&entry.pe_sha256)),
        ("linux_pe_sha256", entry.linux_pe_sha256.as_ref()),
        ("pcr11", entry.pcr11.as_ref()),
    ] {
        if let Some(value) = value
            && !is_sha256(value)
        {
            return refuse(field, value);
        }
    }
    let is_uki = entry.kind == Kind::Uki;
    for (field, present) in [
        ("linux_pe_sha256", entry.linux_pe_sha256.is_some()),
        ("pcr11", entry.pcr11.is_some()),
    ] {
        if present != is_uki {
            return refuse(field, if present { "present" } else { "absent" });
        }
    }
    Ok(())
}

/// Names become URL paths, TFTP file names and words of an iPXE script.
pub(crate) fn is_name(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
}

pub(crate) fn is_sha256(value: &str) -> bool {
    value.len() == 64
        && value
            .chars()
            .all(|c| c.is_ascii_digit() || ('a'..='f').contains(&c))
}

impl Artefact {
    /// The entry of a file: everything about the bytes comes from the bytes.
    ///
    /// # Errors
    /// [`CatalogError::Measure`].
    pub fn describe(
        name: &str,
        role: Role,
        arch: Arch,
        version: u64,
        file: &str,
        bytes: &[u8],
    ) -> Result<Self, CatalogError> {
        let measured = measure(bytes).map_err(|source| CatalogError::Measure {
            name: name.to_owned(),
            source,
        })?;
        Ok(Self {
            name: name.to_owned(),
            kind: match measured.uki {
                Some(_) => Kind::Uki,
                None => Kind::Ipxe,
            },
            role,
            arch: arch.as_str().to_owned(),
            version,
            file: file.to_owned(),
            sha256: hex::encode(measured.sha256),
            size_bytes: measured.size_bytes,
            pe_sha256: hex::encode(measured.pe_sha256),
            linux_pe_sha256: measured
                .uki
                .as_ref()
                .map(|uki| hex::encode(uki.linux_pe_sha256)),
            pcr11: measured.uki.as_ref().map(|uki| hex::encode(uki.pcr11)),
            cmdline: measured.uki.and_then(|uki| uki.cmdline),
        })
    }

    /// Checks size and digest alone: bytes that are those of a file which passed [`check`](Self::check)
    /// pass its other figures too.
    ///
    /// # Errors
    /// [`CatalogError::Artefact`] names the figure that differs.
    pub fn check_digest(&self, bytes: &[u8]) -> Result<(), CatalogError> {
        self.differ(
            "size in bytes",
            &self.size_bytes.to_string(),
            bytes.len().to_string(),
        )?;
        self.differ("sha256", &self.sha256, hex::encode(Sha256::digest(bytes)))
    }

    fn differ(
        &self,
        field: &'static str,
        expected: &str,
        found: String,
    ) -> Result<(), CatalogError> {
        if expected == found {
            return Ok(());
        }
        Err(CatalogError::Artefact {
            name: self.name.clone(),
            field,
            expected: expected.to_owned(),
            found,
        })
    }

    /// Checks that `bytes` are this artefact, in every figure. A BIOS program is no PE image and is
    /// checked by size and digest alone.
    ///
    /// # Errors
    /// [`CatalogError::Artefact`] names the first figure that differs.
    pub fn check(&self, bytes: &[u8]) -> Result<(), CatalogError> {
        self.check_digest(bytes)?;
        let differ = |field, expected: &str, found| self.differ(field, expected, found);
        if self.arch == Arch::X86Bios.as_str() {
            return Ok(());
        }
        let measured = measure(bytes).map_err(|source| CatalogError::Measure {
            name: self.name.clone(),
            source,
        })?;
        differ(
            "authenticode sha256",
            &self.pe_sha256,
            hex::encode(measured.pe_sha256),
        )?;
        let uki = |value: fn(&crate::measure::Uki) -> String| {
            measured
                .uki
                .as_ref()
                .map_or_else(|| "absent".to_owned(), value)
        };
        let stated = |value: &Option<String>| value.clone().unwrap_or_else(|| "absent".to_owned());
        differ(
            "authenticode sha256 of the kernel",
            &stated(&self.linux_pe_sha256),
            uki(|uki| hex::encode(uki.linux_pe_sha256)),
        )?;
        differ(
            "pcr 11",
            &stated(&self.pcr11),
            uki(|uki| hex::encode(uki.pcr11)),
        )?;
        differ(
            "command line",
            &stated(&self.cmdline),
            uki(|uki| uki.cmdline.clone().unwrap_or_else(|| "absent".to_owned())),
        )
    }
}

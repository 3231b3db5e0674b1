//! The catalogue: what loads, what is refused and with which code.

#![allow(clippy::unwrap_used, reason = "a test says what failed by panicking")]

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair as _};
use boot::arch::Arch;
use boot::catalog::{
    ARTEFACTS_MAX, Artefact, CATALOG_BYTES_MAX, CATALOG_VERSION, Catalog, CatalogError,
    Compression, DiskImage, ImageKey, Kind, Manifest, Role,
};

struct Signer(EcdsaKeyPair);

impl Signer {
    fn new() -> Self {
        Self(EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING).unwrap())
    }

    fn sign(&self, bytes: &[u8]) -> Vec<u8> {
        let signature = self.0.sign(&SystemRandom::new(), bytes).unwrap();
        signature.as_ref().to_vec()
    }

    fn key(&self) -> ImageKey {
        let mut spki = hex::decode("3059301306072a8648ce3d020106082a8648ce3d030107034200").unwrap();
        spki.extend_from_slice(self.0.public_key().as_ref());
        ImageKey::from_der(&spki).unwrap()
    }

    fn load(&self, manifest: &Manifest) -> Result<Catalog, CatalogError> {
        let bytes = serde_json::to_vec(manifest).unwrap();
        Catalog::load(&bytes, &self.sign(&bytes), &self.key())
    }
}

fn entry(kind: Kind, version: u64) -> Artefact {
    let digest = |salt: u64| format!("{salt:064x}");
    let uki = (kind == Kind::Uki).then(|| digest(7));
    Artefact {
        name: match kind {
            Kind::Ipxe => "ipxe".into(),
            Kind::Uki => "attester".into(),
        },
        kind,
        role: Role::Provision,
        arch: "x86_64".into(),
        version,
        file: format!("{kind:?}-{version}.efi"),
        sha256: digest(version * 2 + u64::from(kind == Kind::Uki)),
        size_bytes: 1000,
        pe_sha256: digest(5),
        linux_pe_sha256: uki.clone(),
        pcr11: uki,
        cmdline: None,
    }
}

fn manifest() -> Manifest {
    Manifest {
        disks: Vec::new(),
        version: CATALOG_VERSION,
        artefacts: vec![
            entry(Kind::Ipxe, 1),
            entry(Kind::Uki, 3),
            entry(Kind::Uki, 4),
            entry(Kind::Uki, 2),
        ],
    }
}

#[test]
fn finds_by_digest_and_the_newest_usable() {
    let catalog = Signer::new().load(&manifest()).unwrap();
    let newest = |floor: u64| {
        catalog
            .newest(Kind::Uki, Role::Provision, Arch::X64Uefi, |a| {
                a.version >= floor
            })
            .map(|a| a.version)
    };
    assert_eq!(newest(0), Some(4));
    assert_eq!(newest(5), None);
    let withdrawn = catalog.newest(Kind::Uki, Role::Provision, Arch::X64Uefi, |a| {
        a.version != 4
    });
    assert_eq!(withdrawn.map(|a| a.version), Some(3));
    assert!(
        catalog
            .newest(Kind::Uki, Role::Runtime, Arch::X64Uefi, |_| true)
            .is_none()
    );
    assert!(
        catalog
            .newest(Kind::Uki, Role::Provision, Arch::Arm64Uefi, |_| true)
            .is_none()
    );
    let sha256 = &manifest().artefacts[1].sha256;
    assert_eq!(catalog.by_sha256(sha256).map(|a| a.version), Some(3));
    assert_eq!(catalog.by_sha256("00"), None);
}

#[test]
fn rejects_another_key_and_any_changed_byte() {
    let signer = Signer::new();
    let bytes = serde_json::to_vec(&manifest()).unwrap();
    let signature = signer.sign(&bytes);
    assert!(Catalog::load(&bytes, &signature, &signer.key()).is_ok());
    let refused = |bytes: &[u8], signature: &[u8], key: &ImageKey| {
        assert_eq!(
            Catalog::load(bytes, signature, key).unwrap_err().code(),
            "catalog.signature"
        );
    };
    refused(&bytes, &signature, &Signer::new().key());
    refused(&bytes, &[], &signer.key());
    let mut changed = bytes.clone();
    changed[40] ^= 1;
    refused(&changed, &signature, &signer.key());
    let mut longer = bytes.clone();
    longer.push(b' ');
    refused(&longer, &signature, &signer.key());
}

#[test]
fn rejects_what_a_signed_catalogue_must_not_say() {
    let signer = Signer::new();
    assert!(signer.load(&manifest()).is_ok());
    type Change = fn(&mut Manifest);
    let table: [(&str, &str, Change); 15] = [
        ("version", "catalog.version", |m| m.version = 2),
        ("none", "catalog.count", |m| m.artefacts.clear()),
        ("many", "catalog.count", |m| {
            m.artefacts = (0..=ARTEFACTS_MAX as u64)
                .map(|v| entry(Kind::Ipxe, v))
                .collect();
        }),
        ("path in file", "catalog.field", |m| {
            m.artefacts[0].file = "../x".into();
        }),
        ("hidden file", "catalog.field", |m| {
            m.artefacts[0].file = ".x".into();
        }),
        ("name", "catalog.field", |m| {
            m.artefacts[0].name = "a b".into();
        }),
        ("arch", "catalog.field", |m| {
            m.artefacts[0].arch = "pdp11".into();
        }),
        ("size 0", "catalog.field", |m| m.artefacts[0].size_bytes = 0),
        ("size", "catalog.field", |m| {
            m.artefacts[0].size_bytes = u64::MAX;
        }),
        ("upper-case digest", "catalog.field", |m| {
            m.artefacts[0].sha256 = "A".repeat(64);
        }),
        ("short digest", "catalog.field", |m| {
            m.artefacts[0].pe_sha256.pop();
        }),
        ("uki without pcr 11", "catalog.field", |m| {
            m.artefacts[1].pcr11 = None;
        }),
        ("ipxe with a kernel", "catalog.field", |m| {
            m.artefacts[0].linux_pe_sha256 = Some("0".repeat(64));
        }),
        ("same digest", "catalog.duplicate", |m| {
            m.artefacts[1].sha256 = m.artefacts[2].sha256.clone();
        }),
        ("same version", "catalog.duplicate", |m| {
            m.artefacts[1].version = m.artefacts[2].version;
        }),
    ];
    for (what, code, change) in table {
        let mut changed = manifest();
        change(&mut changed);
        let error = signer.load(&changed).expect_err(what);
        assert_eq!(error.code(), code, "{what}: {error}");
    }
}

#[test]
fn rejects_unknown_fields_and_other_json() {
    let signer = Signer::new();
    for text in [
        "{}",
        "[]",
        "",
        r#"{"version":1,"artefacts":[],"extra":1}"#,
        r#"{"version":1,"version":1,"artefacts":[]}"#,
    ] {
        let error = Catalog::load(
            text.as_bytes(),
            &signer.sign(text.as_bytes()),
            &signer.key(),
        )
        .unwrap_err();
        assert_eq!(error.code(), "catalog.form", "{text}");
    }
}

#[test]
fn rejects_an_oversize_catalogue_before_any_work() {
    let signer = Signer::new();
    let bytes = vec![b' '; CATALOG_BYTES_MAX + 1];
    let error = Catalog::load(&bytes, &[], &signer.key()).unwrap_err();
    assert_eq!(error.code(), "catalog.oversize");
}

#[test]
fn rejects_keys_of_other_kinds() {
    for bad in [&b""[..], &[0x30, 0x59], &[4; 91]] {
        assert_eq!(ImageKey::from_der(bad), Err(CatalogError::Key));
        assert_eq!(ImageKey::from_pem(bad), Err(CatalogError::Key));
    }
}

fn disk(version: u64) -> DiskImage {
    DiskImage {
        name: "worker".into(),
        version,
        file: format!("worker-{version}.raw.zst"),
        sha256: format!("{:064x}", 100 + version),
        size_bytes: 1_000,
        compression: Compression::Zstd,
        raw_sha256: format!("{:064x}", 200 + version),
        raw_bytes: 8_192,
    }
}

#[test]
fn disk_images_stand_beside_the_artefacts_and_are_checked_as_strictly() {
    let signer = Signer::new();
    let with = |disks: Vec<DiskImage>| {
        signer.load(&Manifest {
            disks,
            ..manifest()
        })
    };
    let catalog = with(vec![disk(1), disk(2)]).unwrap();
    assert_eq!(catalog.disks().len(), 2);
    assert_eq!(
        catalog.artefacts(),
        manifest().artefacts,
        "nothing boots a disk image"
    );
    type Change = fn(&mut DiskImage);
    let table: &[(&str, &str, Change)] = &[
        ("traversal", "catalog.field", |d| d.file = "../x".into()),
        ("name", "catalog.field", |d| d.name = "a b".into()),
        ("digest", "catalog.field", |d| d.raw_sha256 = "A".repeat(64)),
        ("size 0", "catalog.field", |d| d.size_bytes = 0),
        ("half a sector", "catalog.field", |d| d.raw_bytes = 8_191),
        ("enormous", "catalog.field", |d| d.raw_bytes = !4095),
        ("not packed, but other", "catalog.field", |d| {
            d.compression = Compression::None;
        }),
        ("same version", "catalog.duplicate", |d| d.version = 1),
        ("file of an artefact", "catalog.duplicate", |d| {
            d.file = manifest().artefacts[0].file.clone();
        }),
        ("digest of an artefact", "catalog.duplicate", |d| {
            d.sha256 = manifest().artefacts[0].sha256.clone();
        }),
        ("name of an artefact", "catalog.duplicate", |d| {
            d.name = "ipxe".into()
        }),
    ];
    for (what, code, change) in table {
        let mut second = disk(2);
        change(&mut second);
        let error = with(vec![disk(1), second]).expect_err(what);
        assert_eq!(error.code(), *code, "{what}: {error}");
    }
    let many = (1..66).map(disk).collect();
    assert_eq!(with(many).unwrap_err().code(), "catalog.count");
}

//! A whole image folder from real packages: same bytes each time, a catalogue that loads, figures that signing tools
//! agree with.

#![allow(clippy::unwrap_used, reason = "a test says what failed by panicking")]

use std::fs;
use std::path::Path;

use boot::catalog::{Artefact, Catalog, ImageKey, Kind};
use boot::measure::measure;
use boot::pe::Pe;
use boot_image::assemble::{self, CMDLINE, Fetched, Image, Parts};
use boot_image::debs::DebError;
use boot_image::keys::SiteKeys;

/// The packages, or `None` with a printed reason where neither cache nor archive has them.
fn fetched() -> Option<Fetched> {
    match Parts::default().fetch() {
        Ok(fetched) => Some(fetched),
        Err(error @ (DebError::NoMirror | DebError::Tool { .. })) => {
            println!("SKIP no debian archive: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn image<'a>(anchors: &'a [&'a Path], version: u64) -> Image<'a> {
    Image {
        init: Path::new("/bin/ls"),
        anchors,
        version,
        cmdline: CMDLINE,
        modules: &[],
        extra: &[],
    }
}

fn load(folder: &Path, keys: &SiteKeys) -> Catalog {
    let key = ImageKey::from_pem(&fs::read(keys.image_public_key()).unwrap()).unwrap();
    Catalog::load(
        &fs::read(folder.join("catalog.json")).unwrap(),
        &fs::read(folder.join("catalog.sig")).unwrap(),
        &key,
    )
    .unwrap()
}

/// The digest that `sbsign` computed by itself is inside the signature it wrote.
fn assert_sbsign_agrees(file: &[u8]) {
    let digest = measure(file).unwrap().pe_sha256;
    let size = Pe::parse(file).unwrap().certificates_size;
    let table = &file[file.len() - size..];
    assert!(table.windows(32).any(|bytes| bytes == digest));
}

#[test]
fn a_folder_is_reproducible_signed_and_checked() {
    let Some(fetched) = fetched() else { return };
    let scratch = tempfile::tempdir().unwrap();
    let keys = SiteKeys::generate(&scratch.path().join("keys"), "Test").unwrap();
    let anchor = scratch.path().join("keys/PK.pem");
    let anchors = [anchor.as_path()];
    let out = scratch.path().join("images");

    let first = assemble::folder(&out, &fetched, &keys, &image(&anchors, 1), false).unwrap();
    let again = assemble::unsigned_uki(&fetched, &image(&anchors, 1)).unwrap();
    let catalog = load(&out, &keys);
    assert_eq!(catalog.artefacts(), first);
    for entry in &first {
        let mut bytes = fs::read(out.join(&entry.file)).unwrap();
        entry.check(&bytes).unwrap();
        assert_sbsign_agrees(&bytes);
        bytes[0x500] ^= 1;
        assert_eq!(entry.check(&bytes).unwrap_err().code(), "catalog.artefact");
    }
    let uki = first.iter().find(|entry| entry.kind == Kind::Uki).unwrap();
    assert_eq!(uki.cmdline.as_deref(), Some(CMDLINE));
    let rebuilt = measure(&again).unwrap();
    assert_eq!(
        hex::encode(rebuilt.pe_sha256),
        uki.pe_sha256,
        "same bytes but for the signature"
    );
    assert_eq!(Some(hex::encode(rebuilt.uki.unwrap().pcr11)), uki.pcr11);

    let second = assemble::folder(&out, &fetched, &keys, &image(&anchors, 2), true).unwrap();
    let files: Vec<&str> = second.iter().map(|entry| entry.file.as_str()).collect();
    assert_eq!(files, ["ipxe.efi", "attester.efi", "attester-2.efi"]);
    let newer: &Artefact = &second[2];
    assert_ne!(newer.pcr11, uki.pcr11, "the version is measured");
    assert_eq!(load(&out, &keys).artefacts(), second);
}

/// Only with `keep` and the same image key does an older catalogue count.
#[test]
fn rejects_to_keep_a_catalogue_of_another_key() {
    let Some(fetched) = fetched() else { return };
    let scratch = tempfile::tempdir().unwrap();
    let keys = SiteKeys::generate(&scratch.path().join("keys"), "Test").unwrap();
    let other = SiteKeys::generate(&scratch.path().join("other"), "Other").unwrap();
    let anchor = scratch.path().join("keys/PK.pem");
    let anchors = [anchor.as_path()];
    let out = scratch.path().join("images");
    fs::create_dir(&out).unwrap();
    let ipxe = fs::read(fetched.ipxe_file()).unwrap();
    let entry = Artefact::describe(
        "ipxe",
        boot::catalog::Role::Provision,
        boot::arch::Arch::X64Uefi,
        1,
        "ipxe.efi",
        &ipxe,
    )
    .unwrap();
    assemble::write_catalog(&out, &other, vec![entry]).unwrap();
    let error = assemble::folder(&out, &fetched, &keys, &image(&anchors, 2), true).unwrap_err();
    assert!(format!("{error:?}").contains("Signature"), "{error:?}");
}

//! The installer on disks that are files or memory: what it writes, what it refuses, and that it ends well
//! after a power cut at any point.

#![allow(clippy::unwrap_used)]

use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use attest_wire::v1::handover::{
    GrantBody, GrantImage, InstallStep, ItemDigest, ProgressAnswer, ProgressBody,
};
use attester::client::ClientError;
use attester::install::disk::{Disk, Roots, find};
use attester::install::package::{Entry, HEAD_BYTES, LABEL, Package, Place, place};
use attester::install::{InstallError, Refused, Reports, Source, install};
use hw::block::{BlockDisk, Emptied};
use proptest::prelude::*;
use sha2::{Digest as _, Sha256};

const SIZE: usize = 20 << 20;
const RAW: usize = 6 << 20;
/// Where the image keeps its package: in the middle of a chunk and over the border of two.
const PLACE: Place = Place {
    from: (3 << 20) - 8192,
    length: 64 << 10,
};

/// A GPT image: protective signature, header, one entry for the package, contents around it.
fn image() -> Vec<u8> {
    let mut raw: Vec<u8> = (0..RAW).map(|n| (n / 512 % 251) as u8).collect();
    let (from, to) = (PLACE.from as usize, (PLACE.from + PLACE.length) as usize);
    raw[from..to].fill(0);
    raw[510..512].copy_from_slice(&[0x55, 0xaa]);
    raw[512..1024].fill(0);
    raw[512..520].copy_from_slice(b"EFI PART");
    raw[584..592].copy_from_slice(&2u64.to_le_bytes());
    raw[592..596].copy_from_slice(&128u32.to_le_bytes());
    raw[596..600].copy_from_slice(&128u32.to_le_bytes());
    raw[1024..1024 + 128 * 128].fill(0);
    let entry = &mut raw[1024..1152];
    entry[..16].fill(9);
    entry[32..40].copy_from_slice(&(PLACE.from / 512).to_le_bytes());
    entry[40..48].copy_from_slice(&((PLACE.from + PLACE.length) / 512 - 1).to_le_bytes());
    for (at, unit) in LABEL.encode_utf16().enumerate() {
        entry[56 + 2 * at..58 + 2 * at].copy_from_slice(&unit.to_le_bytes());
    }
    raw
}

fn sha256(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

/// Raw zstd: one frame of raw blocks (RFC 8878 section 3.1.1), which any encoder may write.
fn zstd(raw: &[u8]) -> Vec<u8> {
    // Window of 1 MiB, no content size, no checksum.
    let mut out = vec![0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x50];
    let mut blocks = raw.chunks(128 << 10).peekable();
    while let Some(block) = blocks.next() {
        let last = u32::from(blocks.peek().is_none());
        let header = (block.len() as u32) << 3 | last;
        out.extend(&header.to_le_bytes()[..3]);
        out.extend(block);
    }
    out
}

fn grant(file: &[u8], raw: &[u8], compression: &str, reread: bool) -> GrantBody {
    GrantBody {
        grant: "aa".repeat(16),
        run: "bb".repeat(16),
        machine: "m-1".into(),
        ek_name: "000b".into(),
        reset: 1,
        restart: 0,
        clock_max_ms: 1,
        disk_serial: "DISK-1".into(),
        image: GrantImage {
            name: "worker".into(),
            version: 1,
            sha256: sha256(file),
            size_bytes: file.len() as u64,
            compression: compression.into(),
            raw_sha256: sha256(raw),
            raw_bytes: raw.len() as u64,
        },
        payloads: Vec::new(),
        nonce: "cc".repeat(32),
        reread,
    }
}

fn package() -> Package {
    let entry = |path: &str, bytes: &[u8]| Entry {
        path: path.into(),
        bytes: bytes.to_vec().into(),
    };
    Package {
        entries: vec![
            entry("chain.pem", b"-----BEGIN"),
            entry("devid.priv", &[7; 600]),
            entry("payloads/spire", b"{}"),
        ],
    }
}

/// The other side: the file in pieces, and the order of the reports as the gateway keeps it.
struct Door {
    file: Vec<u8>,
    said: Vec<ProgressBody>,
    /// This report and those after it are lost.
    lost_from: u32,
    /// This report and those after it are refused.
    refused_from: u32,
    /// Bytes per piece.
    piece: usize,
}

impl Door {
    fn new(file: Vec<u8>) -> Self {
        Self {
            file,
            said: Vec::new(),
            lost_from: u32::MAX,
            refused_from: u32::MAX,
            piece: 100_003,
        }
    }

    fn steps(&self) -> Vec<InstallStep> {
        self.said.iter().map(|said| said.step).collect()
    }
}

impl Source for Door {
    fn piece(&mut self, digest: &str, offset: u64) -> Result<Vec<u8>, InstallError> {
        assert!(
            self.said.iter().any(|said| said.step == InstallStep::Wiped),
            "nothing is fetched before the wipe is on record"
        );
        assert!(!digest.is_empty());
        let from = offset as usize;
        let to = (from + self.piece).min(self.file.len());
        Ok(self.file[from.min(to)..to].to_vec())
    }
}

impl Reports for Door {
    fn report(&mut self, body: &[u8]) -> Result<ProgressAnswer, InstallError> {
        let said: ProgressBody = serde_json::from_slice(body).unwrap();
        if said.seq >= self.lost_from {
            let why = "the connection ended".to_owned();
            return Err(InstallError::Link(ClientError::Answer { why }));
        }
        let accepted = said.seq < self.refused_from;
        self.said.push(said);
        Ok(ProgressAnswer {
            accepted,
            code: if accepted { "accepted" } else { "run.ended" }.into(),
            hint: String::new(),
        })
    }
}

/// A disk whose power can go: after so many operations nothing works, and of what was written since the
/// last synchronisation an arbitrary part is there.
struct Platter {
    bytes: Rc<RefCell<Vec<u8>>>,
    cache: Vec<(usize, Vec<u8>)>,
    left: u32,
    /// Which of the unsynchronised writes survive, a bit each.
    survive: u64,
    /// A write beyond this offset fails.
    broken_at: Option<usize>,
}

impl Platter {
    fn new(bytes: &Rc<RefCell<Vec<u8>>>) -> Self {
        Self {
            bytes: Rc::clone(bytes),
            cache: Vec::new(),
            left: u32::MAX,
            survive: 0,
            broken_at: None,
        }
    }

    fn step(&mut self) -> io::Result<()> {
        if self.left == 0 {
            return Err(io::Error::other("no power"));
        }
        self.left -= 1;
        if self.left == 0 {
            for (at, (offset, bytes)) in self.cache.drain(..).enumerate() {
                if self.survive >> (at % 64) & 1 == 1 {
                    // A torn write: the first half of it.
                    let half = bytes.len() / 2;
                    let keep = if at % 3 == 0 { half } else { bytes.len() };
                    self.bytes.borrow_mut()[offset..offset + keep].copy_from_slice(&bytes[..keep]);
                }
            }
            return Err(io::Error::other("the power goes"));
        }
        Ok(())
    }

    fn flush(&mut self) {
        for (offset, bytes) in self.cache.drain(..) {
            self.bytes.borrow_mut()[offset..offset + bytes.len()].copy_from_slice(&bytes);
        }
    }
}

impl Disk for Platter {
    fn size(&self) -> u64 {
        self.bytes.borrow().len() as u64
    }
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.step()?;
        if self.broken_at.is_some_and(|at| offset as usize >= at) {
            return Err(io::Error::other("Input/output error"));
        }
        self.cache.push((offset as usize, bytes.to_vec()));
        Ok(())
    }
    fn read_at(&mut self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.step()?;
        self.flush();
        let from = offset as usize;
        bytes.copy_from_slice(&self.bytes.borrow()[from..from + bytes.len()]);
        Ok(())
    }
    fn sync(&mut self) -> io::Result<()> {
        self.step()?;
        self.flush();
        Ok(())
    }
    fn forget_cached(&mut self) -> io::Result<()> {
        self.sync()
    }
    fn discard_all(&mut self) -> Option<Emptied> {
        self.step().ok()?;
        self.flush();
        // What a discarded range reads as is the device's affair.
        self.bytes.borrow_mut().fill(0xee);
        Some(Emptied::Discarded)
    }
    fn zero(&mut self, from: u64, length: u64) -> io::Result<Emptied> {
        self.write_at(from, &vec![0; length as usize])?;
        Ok(Emptied::Written)
    }
}

fn run(
    body: &GrantBody,
    package: &Package,
    door: &mut Door,
    disk: Platter,
) -> Result<(), InstallError> {
    let found = |_: &GrantBody| Ok(("vda".to_owned(), disk));
    install(body, package, door, found, &mut |_| {})
}

/// The disk is the image with the package in its place, and boots.
fn assert_installed(disk: &[u8], raw: &[u8]) {
    let (from, to) = (PLACE.from as usize, (PLACE.from + PLACE.length) as usize);
    assert!(
        disk[..from] == raw[..from] && disk[to..RAW] == raw[to..],
        "the image"
    );
    let archive = package().archive();
    assert_eq!(
        &disk[from..from + archive.len()],
        &archive[..],
        "the package"
    );
    assert!(disk[from + archive.len()..to].iter().all(|byte| *byte == 0));
}

#[test]
fn installs_plain_and_packed_images_with_the_package_in_its_place() {
    let raw = image();
    for (file, compression) in [(raw.clone(), "none"), (zstd(&raw), "zstd")] {
        let bytes = Rc::new(RefCell::new(vec![0x5a; SIZE]));
        let mut door = Door::new(file.clone());
        let body = grant(&file, &raw, compression, false);
        run(&body, &package(), &mut door, Platter::new(&bytes)).unwrap();
        use InstallStep as S;
        assert_eq!(
            door.steps(),
            [S::Checked, S::Wiped, S::Written, S::Configured, S::Verified]
        );
        assert_eq!(door.said[4].sha256, sha256(&raw));
        assert!(
            door.said[1].detail.contains("no sanitize"),
            "{}",
            door.said[1].detail
        );
        assert_installed(&bytes.borrow(), &raw);
        let tail = &bytes.borrow()[SIZE - (8 << 20)..];
        assert!(
            tail.iter().all(|byte| *byte == 0),
            "an old backup table is gone"
        );
    }
}

#[test]
fn another_tar_reads_the_package() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("package.tar");
    std::fs::write(&file, &*package().archive()).unwrap();
    let output = std::process::Command::new("tar")
        .args(["-tvf", file.to_str().unwrap()])
        .output();
    let Ok(output) = output else {
        println!("SKIP no tar");
        return;
    };
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert!(
        lines[1].starts_with("-rw------- root/root") && lines[1].contains("600"),
        "{text}"
    );
    assert!(lines[2].ends_with("payloads/spire"), "{text}");
}

#[test]
fn a_real_file_through_the_block_device_code() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    std::fs::write(&path, vec![0x5a; SIZE]).unwrap();
    let raw = image();
    let mut door = Door::new(raw.clone());
    let body = grant(&raw, &raw, "none", false);
    let opened = |_: &GrantBody| Ok(("file".to_owned(), BlockDisk::open(&path).unwrap()));
    install(&body, &package(), &mut door, opened, &mut |_| {}).unwrap();
    assert_installed(&std::fs::read(&path).unwrap(), &raw);
}

/// What is refused leaves a disk that does not boot, and a report that says why.
#[test]
fn rejects_images_that_are_not_what_was_granted() {
    let raw = image();
    let mut flipped = raw.clone();
    flipped[5 << 20] ^= 1;
    let short = raw[..RAW - 4096].to_vec();
    let long = [raw.as_slice(), &[0; 4096]].concat();
    let mut used = raw.clone();
    used[PLACE.from as usize + 100] = 1;
    let packed = zstd(&raw);
    let mut torn = packed.clone();
    torn.truncate(packed.len() / 2);
    let mut noise = packed.clone();
    noise[8] ^= 0xff;
    // What comes, what was granted as file and as raw, how it is packed.
    let cases = [
        (
            "flipped",
            flipped.clone(),
            &raw,
            &raw,
            "none",
            "image.digest",
        ),
        ("short", short, &raw, &raw, "none", "image.digest"),
        ("long", long.clone(), &long, &raw, "none", "image.digest"),
        (
            "place in use",
            used.clone(),
            &used,
            &used,
            "none",
            "image.place",
        ),
        ("torn", torn, &packed, &raw, "zstd", "image.digest"),
        ("noise", noise.clone(), &noise, &raw, "zstd", "image.digest"),
        ("not zstd", raw.clone(), &raw, &raw, "zstd", "image.digest"),
        ("unknown", raw.clone(), &raw, &raw, "xz", "image.form"),
    ];
    for (what, file, granted, of, compression, code) in cases {
        let bytes = Rc::new(RefCell::new(vec![0x5a; SIZE]));
        let mut door = Door::new(file);
        let body = grant(granted, of, compression, false);
        let error = run(&body, &package(), &mut door, Platter::new(&bytes)).unwrap_err();
        let InstallError::Refused(refused) = error else {
            panic!("{what}: {error}");
        };
        assert_eq!(refused.code, code, "{what}: {refused}");
        let last = door.said.last().unwrap();
        assert_eq!(last.step, InstallStep::Failed, "{what}");
        assert!(last.detail.starts_with(code), "{what}: {}", last.detail);
        let head = &bytes.borrow()[..HEAD_BYTES];
        assert!(
            head.iter().all(|byte| *byte == 0),
            "{what}: the disk would boot"
        );
    }
}

#[test]
fn rejects_before_anything_is_written() {
    let raw = image();
    let mut body = grant(&raw, &raw, "none", false);
    let untouched = |door: &Door, bytes: &Rc<RefCell<Vec<u8>>>| {
        assert_eq!(door.steps(), [InstallStep::Failed]);
        assert!(bytes.borrow().iter().all(|byte| *byte == 0x5a));
    };
    let bytes = Rc::new(RefCell::new(vec![0x5a; SIZE]));
    // A payload that was granted and is not there, or is another one.
    for granted in [sha256(b"{ }"), String::new()] {
        body.payloads = vec![ItemDigest {
            kind: "spire".into(),
            sha256: granted,
        }];
        let mut door = Door::new(raw.clone());
        let error = run(&body, &package(), &mut door, Platter::new(&bytes)).unwrap_err();
        assert!(error.to_string().starts_with("package.payload"), "{error}");
        untouched(&door, &bytes);
    }
    body.payloads[0].sha256 = sha256(b"{}");
    let mut door = Door::new(raw.clone());
    let missing =
        |_: &GrantBody| Err::<(String, Platter), _>(Refused::new("disk.ambiguous", "one", "two"));
    let error = install(&body, &package(), &mut door, missing, &mut |_| {}).unwrap_err();
    assert!(error.to_string().starts_with("disk.ambiguous"), "{error}");
    untouched(&door, &bytes);
    // No word of the gateway, no wipe.
    let mut door = Door::new(raw.clone());
    door.lost_from = 1;
    let error = run(&body, &package(), &mut door, Platter::new(&bytes)).unwrap_err();
    assert!(matches!(error, InstallError::Link(_)), "{error}");
    assert!(bytes.borrow().iter().all(|byte| *byte == 0x5a));
}

#[test]
fn a_disk_that_breaks_is_named() {
    let raw = image();
    let bytes = Rc::new(RefCell::new(vec![0x5a; SIZE]));
    let mut disk = Platter::new(&bytes);
    disk.broken_at = Some(4 << 20);
    let mut door = Door::new(raw.clone());
    let error = run(
        &grant(&raw, &raw, "none", false),
        &package(),
        &mut door,
        disk,
    )
    .unwrap_err();
    assert!(error.to_string().contains("disk.io"), "{error}");
    assert_eq!(door.said.last().unwrap().step, InstallStep::Failed);
}

#[test]
fn a_disk_that_the_gateway_does_not_take_any_more_does_not_boot() {
    for refused_from in [4, 5] {
        let raw = image();
        let bytes = Rc::new(RefCell::new(vec![0x5a; SIZE]));
        let mut door = Door::new(raw.clone());
        door.refused_from = refused_from;
        let error = run(
            &grant(&raw, &raw, "none", false),
            &package(),
            &mut door,
            Platter::new(&bytes),
        )
        .unwrap_err();
        assert!(matches!(error, InstallError::Gateway { .. }), "{error}");
        assert!(bytes.borrow()[..1 << 20].iter().all(|byte| *byte == 0));
    }
}

#[test]
fn a_lost_report_is_answered_by_reading_before_any_rewrite() {
    let raw = image();
    let bytes = Rc::new(RefCell::new(vec![0x5a; SIZE]));
    let mut door = Door::new(raw.clone());
    door.lost_from = 5;
    let first = run(
        &grant(&raw, &raw, "none", false),
        &package(),
        &mut door,
        Platter::new(&bytes),
    );
    assert!(first.is_err(), "the last report was lost");
    // A file that cannot be had any more: nothing is fetched.
    let mut door = Door::new(Vec::new());
    run(
        &grant(&raw, &raw, "none", true),
        &package(),
        &mut door,
        Platter::new(&bytes),
    )
    .unwrap();
    use InstallStep as S;
    assert_eq!(door.steps(), [S::Checked, S::Configured, S::Verified]);
    assert_installed(&bytes.borrow(), &raw);
    // A bit that turned meanwhile: it is written again.
    bytes.borrow_mut()[4 << 20] ^= 1;
    let mut door = Door::new(raw.clone());
    run(
        &grant(&raw, &raw, "none", true),
        &package(),
        &mut door,
        Platter::new(&bytes),
    )
    .unwrap();
    assert_eq!(door.steps()[1], S::Wiped);
    assert_installed(&bytes.borrow(), &raw);
}

/// Cuts the power at operation `cut` of a first boot, then boots again with what the gateway knows.
fn power_cut(cut: u32, survive: u64, raw: &[u8], file: &[u8]) -> InstallStep {
    let bytes = Rc::new(RefCell::new(vec![0x5a; SIZE]));
    let mut door = Door::new(file.to_vec());
    let mut disk = Platter::new(&bytes);
    (disk.left, disk.survive) = (cut, survive);
    let body = grant(file, raw, "zstd", false);
    let first = run(&body, &package(), &mut door, disk);
    let reached = door
        .steps()
        .iter()
        .copied()
        .rfind(|step| *step != InstallStep::Failed);
    let reached = reached.unwrap();
    if first.is_ok() {
        assert_eq!(reached, InstallStep::Verified);
        return reached;
    }
    // As long as nothing was reported configured, whatever the disk holds does not boot by half: either
    // no head, or everything behind it.
    let head = bytes.borrow()[..512] == raw[..512];
    let wiped = bytes.borrow()[510..512] != [0x55, 0xaa];
    let behind = bytes.borrow()[4 << 20..RAW] == raw[4 << 20..];
    if reached != InstallStep::Checked {
        assert!(
            wiped || (head && behind),
            "cut {cut}: a head without its body"
        );
    }
    let reread = matches!(reached, InstallStep::Written | InstallStep::Configured);
    let mut door = Door::new(file.to_vec());
    let body = grant(file, raw, "zstd", reread);
    run(&body, &package(), &mut door, Platter::new(&bytes)).unwrap();
    assert_eq!(door.steps().last(), Some(&InstallStep::Verified));
    assert_installed(&bytes.borrow(), raw);
    reached
}

/// The points of an installation, by the operation of the disk at which the power goes.
#[test]
fn a_power_cut_at_any_point_is_finished_by_the_next_boot() {
    let raw = image();
    let file = zstd(&raw);
    let mut reached = Vec::new();
    for cut in 1..40 {
        let step = power_cut(cut, 0x5555_aaaa_1234_ffff ^ u64::from(cut), &raw, &file);
        if !reached.contains(&step) {
            reached.push(step);
        }
    }
    use InstallStep as S;
    assert_eq!(
        reached,
        [S::Checked, S::Wiped, S::Written, S::Configured, S::Verified]
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn whatever_survives_of_the_cache(cut in 1u32..40, survive: u64) {
        let raw = image();
        power_cut(cut, survive, &raw, &zstd(&raw));
    }

    #[test]
    fn any_head_has_a_place_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..2048), at in 0usize..1500) {
        let mut head = vec![0; HEAD_BYTES];
        head[..bytes.len()].copy_from_slice(&bytes);
        head[512..520].copy_from_slice(b"EFI PART");
        let _ = place(&head, RAW as u64);
        let _ = place(&head[..at], RAW as u64);
    }
}

#[test]
fn a_place_lies_behind_the_head_and_within_the_image() {
    let raw = image();
    let head = &raw[..HEAD_BYTES];
    assert_eq!(place(head, RAW as u64), Ok(Some(PLACE)));
    assert_eq!(place(&[0; 4096], RAW as u64), Ok(None));
    let with = |from: u64, last: u64| {
        let mut head = head.to_vec();
        head[1024 + 32..1024 + 40].copy_from_slice(&from.to_le_bytes());
        head[1024 + 40..1024 + 48].copy_from_slice(&last.to_le_bytes());
        place(&head, RAW as u64)
    };
    for (from, last) in [
        (34, 100),
        (RAW as u64 / 512, RAW as u64 / 512 + 1),
        (4096, 2048),
        (4096, u64::MAX),
    ] {
        assert!(with(from, last).is_err(), "{from} to {last}");
    }
    let mut twice = head.to_vec();
    let entry = twice[1024..1152].to_vec();
    twice[1152..1280].copy_from_slice(&entry);
    assert_eq!(
        place(&twice, RAW as u64),
        Err("two partitions VESTIBULE".to_owned())
    );
}

/// sysfs of a machine: name, serial, size in sectors.
fn sysfs(disks: &[(&str, &str)]) -> (tempfile::TempDir, Roots) {
    let folder = tempfile::tempdir().unwrap();
    let roots = Roots {
        block: folder.path().join("block"),
        dev: folder.path().join("dev"),
        mounts: folder.path().join("mounts"),
    };
    std::fs::create_dir_all(&roots.dev).unwrap();
    std::fs::create_dir_all(&roots.block).unwrap();
    std::fs::write(&roots.mounts, "/dev/sdb1 /mnt ext4 rw 0 0\n").unwrap();
    for (name, serial) in disks {
        let dir = roots.block.join(name);
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("serial"), serial).unwrap();
        std::fs::write(dir.join("size"), "2048").unwrap();
        std::fs::write(dir.join("ro"), "0").unwrap();
        std::fs::write(roots.dev.join(name), vec![0; 1 << 20]).unwrap();
    }
    (folder, roots)
}

#[test]
fn the_disk_is_the_one_of_that_serial_or_none() {
    let code = |roots: &Roots, serial: &str, min: u64| match find(roots, serial, min) {
        Ok((name, _)) => name,
        Err(refused) => refused.code.to_owned(),
    };
    let (_folder, roots) = sysfs(&[("vda", "A"), ("vdb", "B"), ("sdb", "M"), ("vdc", "")]);
    assert_eq!(code(&roots, "B", 1 << 20), "vdb");
    assert_eq!(code(&roots, "C", 0), "disk.missing");
    assert_eq!(
        code(&roots, "", 0),
        "disk.missing",
        "no serial is not a serial"
    );
    assert_eq!(code(&roots, "B", (1 << 20) + 1), "disk.small");
    assert_eq!(code(&roots, "M", 0), "disk.busy", "mounted");
    std::fs::write(roots.block.join("vda/ro"), "1\n").unwrap();
    assert_eq!(code(&roots, "A", 0), "disk.read_only");
    std::fs::create_dir_all(roots.block.join("vdb/vdb1/holders/dm-0")).unwrap();
    std::fs::write(roots.block.join("vdb/vdb1/partition"), "1").unwrap();
    assert_eq!(code(&roots, "B", 0), "disk.busy", "part of a volume");
    let (_folder, roots) = sysfs(&[("vda", "A"), ("vdb", "A")]);
    assert_eq!(code(&roots, "A", 0), "disk.ambiguous");
}

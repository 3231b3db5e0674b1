//! A synthetic event log of one boot: firmware, iPXE, systemd-stub.

use attest_wire::tpm::HashAlg;

pub const EV_NO_ACTION: u32 = 0x03;
pub const EV_SEPARATOR: u32 = 0x04;
pub const EV_S_CRTM_VERSION: u32 = 0x08;
pub const EV_IPL: u32 = 0x0d;
pub const EV_VARIABLE: u32 = 0x8000_0001;
pub const EV_VARIABLE_BOOT: u32 = 0x8000_0002;
pub const EV_APPLICATION: u32 = 0x8000_0003;
pub const EV_DRIVER: u32 = 0x8000_0004;
pub const EV_ACTION: u32 = 0x8000_0007;
pub const EV_AUTHORITY: u32 = 0x8000_00e0;

pub const GLOBAL: [u8; 16] = [
    0x61, 0xdf, 0xe4, 0x8b, 0xca, 0x93, 0xd2, 0x11, 0xaa, 0x0d, 0x00, 0xe0, 0x98, 0x03, 0x2b, 0x8c,
];
pub const SECURITY_DATABASE: [u8; 16] = [
    0xcb, 0xb2, 0x19, 0xd7, 0x3a, 0x3d, 0x96, 0x45, 0xa3, 0xbc, 0xda, 0xd0, 0x0e, 0x67, 0x65, 0x6f,
];

/// One event to be written.
#[derive(Clone)]
pub struct Entry {
    pub pcr: u8,
    pub kind: u32,
    pub digest: [u8; 32],
    pub data: Vec<u8>,
}

impl Entry {
    pub fn of(pcr: u8, kind: u32, digest: [u8; 32], data: &[u8]) -> Self {
        Self {
            pcr,
            kind,
            digest,
            data: data.to_vec(),
        }
    }

    /// An event that hashes its data.
    pub fn measured(pcr: u8, kind: u32, data: &[u8]) -> Self {
        Self::of(pcr, kind, sha256(data), data)
    }
}

/// A log and what it extends.
#[derive(Clone)]
pub struct LogBuilder {
    pub bytes: Vec<u8>,
    pub extends: Vec<(u8, [u8; 32])>,
}

pub fn sha256(data: &[u8]) -> [u8; 32] {
    HashAlg::Sha256.digest(&[data]).try_into().unwrap()
}

pub fn utf16(text: &str) -> Vec<u8> {
    text.encode_utf16().flat_map(u16::to_le_bytes).collect()
}

/// `UEFI_VARIABLE_DATA`.
pub fn variable(guid: [u8; 16], name: &str, data: &[u8]) -> Vec<u8> {
    let mut out = guid.to_vec();
    out.extend((name.encode_utf16().count() as u64).to_le_bytes());
    out.extend((data.len() as u64).to_le_bytes());
    out.extend(utf16(name));
    out.extend(data);
    out
}

/// The events of an honest boot: the images in PCR 4, what the stub measures in PCR 11.
pub fn honest(images: &[[u8; 32]], stub: &[[u8; 32]]) -> Vec<Entry> {
    let mut log = vec![Entry::measured(
        0,
        EV_S_CRTM_VERSION,
        &utf16("lab firmware\0"),
    )];
    for (guid, name, data) in [
        (GLOBAL, "SecureBoot", &[1u8][..]),
        (GLOBAL, "PK", b"pk"),
        (GLOBAL, "KEK", b"kek"),
        (SECURITY_DATABASE, "db", b"db"),
        (SECURITY_DATABASE, "dbx", b""),
    ] {
        log.push(Entry::measured(7, EV_VARIABLE, &variable(guid, name, data)));
    }
    log.push(Entry::measured(7, EV_SEPARATOR, &[0; 4]));
    log.push(Entry::of(2, EV_DRIVER, [0x22; 32], &[0; 32]));
    log.push(Entry::measured(
        1,
        EV_VARIABLE_BOOT,
        &variable(GLOBAL, "BootOrder", &[0, 0]),
    ));
    log.push(Entry::measured(
        4,
        EV_ACTION,
        b"Calling EFI Application from Boot Option",
    ));
    for pcr in 0..=6 {
        log.push(Entry::measured(pcr, EV_SEPARATOR, &[0; 4]));
    }
    let authority = [&[0u8; 16][..], b"site certificate"].concat();
    log.push(Entry::measured(
        7,
        EV_AUTHORITY,
        &variable(SECURITY_DATABASE, "db", &authority),
    ));
    for image in images {
        log.push(Entry::of(4, EV_APPLICATION, *image, &[0; 32]));
    }
    for section in stub {
        log.push(Entry::of(11, EV_IPL, *section, &utf16(".linux\0")));
    }
    log.push(Entry::measured(
        5,
        EV_ACTION,
        b"Exit Boot Services Invocation",
    ));
    log
}

impl LogBuilder {
    /// Writes a crypto-agile log with one SHA-256 bank.
    pub fn write(entries: &[Entry]) -> Self {
        let mut log = Self {
            bytes: header(&[(0x000b, 32)]),
            extends: Vec::new(),
        };
        for entry in entries {
            log.bytes.extend(event2(entry));
            if entry.kind != EV_NO_ACTION {
                log.extends.push((entry.pcr, entry.digest));
            }
        }
        log
    }
}

/// `TCG_PCR_EVENT` with the Spec ID event.
pub fn header(banks: &[(u16, u16)]) -> Vec<u8> {
    let mut spec = b"Spec ID Event03\0".to_vec();
    spec.extend(0u32.to_le_bytes());
    spec.extend([0, 2, 0, 2]);
    spec.extend((banks.len() as u32).to_le_bytes());
    for (alg, size) in banks {
        spec.extend(alg.to_le_bytes());
        spec.extend(size.to_le_bytes());
    }
    spec.push(0);
    event1(0, EV_NO_ACTION, &[0; 20], &spec)
}

/// `TCG_PCR_EVENT`.
pub fn event1(pcr: u8, kind: u32, digest: &[u8; 20], data: &[u8]) -> Vec<u8> {
    let mut out = u32::from(pcr).to_le_bytes().to_vec();
    out.extend(kind.to_le_bytes());
    out.extend(digest);
    out.extend((data.len() as u32).to_le_bytes());
    out.extend(data);
    out
}

/// `TCG_PCR_EVENT2` with a SHA-256 digest.
pub fn event2(entry: &Entry) -> Vec<u8> {
    let mut out = u32::from(entry.pcr).to_le_bytes().to_vec();
    out.extend(entry.kind.to_le_bytes());
    out.extend(1u32.to_le_bytes());
    out.extend(0x000b_u16.to_le_bytes());
    out.extend(entry.digest);
    out.extend((entry.data.len() as u32).to_le_bytes());
    out.extend(&entry.data);
    out
}

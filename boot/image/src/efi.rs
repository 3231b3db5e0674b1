//! UEFI structures of key enrolment: signature lists, and a variable store with them.
//!
//! Knows the bytes of UEFI 2.10 section 32.4 (`EFI_SIGNATURE_LIST`) and of the authenticated variable store
//! that edk2 keeps in flash (`MdeModulePkg/Include/Guid/VariableFormat.h`). Knows no key and no file.

/// A GUID in its memory form: three little-endian fields, then eight bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Guid(pub [u8; 16]);

impl Guid {
    /// From the fields as UEFI headers write them.
    pub const fn new(a: u32, b: u16, c: u16, d: [u8; 8]) -> Self {
        let (a, b, c) = (a.to_le_bytes(), b.to_le_bytes(), c.to_le_bytes());
        Self([
            a[0], a[1], a[2], a[3], b[0], b[1], c[0], c[1], d[0], d[1], d[2], d[3], d[4], d[5],
            d[6], d[7],
        ])
    }
}

impl std::fmt::Display for Guid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let g = &self.0;
        let groups: [&[usize]; 5] = [
            &[3, 2, 1, 0],
            &[5, 4],
            &[7, 6],
            &[8, 9],
            &[10, 11, 12, 13, 14, 15],
        ];
        for (index, group) in groups.iter().enumerate() {
            if index > 0 {
                f.write_str("-")?;
            }
            for byte in *group {
                write!(f, "{:02x}", g[*byte])?;
            }
        }
        Ok(())
    }
}

/// `EFI_GLOBAL_VARIABLE`: PK and KEK.
pub const GLOBAL_VARIABLE: Guid = Guid::new(
    0x8be4_df61,
    0x93ca,
    0x11d2,
    [0xaa, 0x0d, 0x00, 0xe0, 0x98, 0x03, 0x2b, 0x8c],
);
/// `EFI_IMAGE_SECURITY_DATABASE_GUID`: db and dbx.
pub const IMAGE_SECURITY_DATABASE: Guid = Guid::new(
    0xd719_b2cb,
    0x3d3a,
    0x4596,
    [0xa3, 0xbc, 0xda, 0xd0, 0x0e, 0x67, 0x65, 0x6f],
);
/// `EFI_CERT_X509_GUID`.
pub const CERT_X509: Guid = Guid::new(
    0xa5c0_59a1,
    0x94e4,
    0x4aa7,
    [0x87, 0xb5, 0xab, 0x15, 0x5c, 0x2b, 0xf0, 0x72],
);
/// `gEfiSecureBootEnableDisableGuid` of edk2: the switch that setup screens show.
const SECURE_BOOT_ENABLE: Guid = Guid::new(
    0xf0a3_0bc7,
    0xaf08,
    0x4556,
    [0x99, 0xc4, 0x00, 0x10, 0x09, 0xc9, 0x3a, 0x44],
);
/// `gEfiAuthenticatedVariableGuid` of edk2, at the head of the variable store.
const AUTHENTICATED_STORE: Guid = Guid::new(
    0xaaf3_2c78,
    0x947b,
    0x439a,
    [0xa1, 0x80, 0x2e, 0x14, 0x4e, 0xc3, 0x77, 0x92],
);

/// One X.509 certificate as `EFI_SIGNATURE_LIST`. The list format wants one list per certificate, since all
/// entries of a list have one size.
///
/// `owner` says who put it there.
pub fn x509_list(owner: Guid, der: &[u8]) -> Vec<u8> {
    let entry = 16 + der.len();
    let mut list = Vec::with_capacity(28 + entry);
    list.extend_from_slice(&CERT_X509.0);
    list.extend_from_slice(&le32(28 + entry));
    list.extend_from_slice(&le32(0));
    list.extend_from_slice(&le32(entry));
    list.extend_from_slice(&owner.0);
    list.extend_from_slice(der);
    list
}

fn le32(value: usize) -> [u8; 4] {
    u32::try_from(value)
        .expect("certificates and flash parts are far below 4 GiB")
        .to_le_bytes()
}

/// Why a flash image did not take the keys.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VarsError {
    /// No firmware volume with an authenticated variable store.
    #[error("not an edk2 variable store: {0}")]
    Format(&'static str),
    /// Something is enrolled already; we only write into a factory-fresh store.
    #[error("the variable store is not empty")]
    NotEmpty,
    /// The keys do not fit.
    #[error("the variable store has {free} bytes left, {needed} are needed")]
    Full {
        /// Bytes left.
        free: usize,
        /// Bytes needed.
        needed: usize,
    },
}

/// The three databases of Secure Boot, each an `EFI_SIGNATURE_LIST`.
#[derive(Debug, Clone, Copy)]
pub struct Databases<'a> {
    /// Platform key.
    pub pk: &'a [u8],
    /// Key exchange keys.
    pub kek: &'a [u8],
    /// Allowed signers.
    pub db: &'a [u8],
}

/// Where things are in a firmware volume and its variable store, bytes.
mod field {
    use std::ops::Range;

    pub const VOLUME_SIGNATURE: Range<usize> = 0x28..0x2c;
    pub const VOLUME_HEADER_LENGTH: Range<usize> = 0x30..0x32;
    pub const STORE_SIZE: Range<usize> = 0x10..0x14;
    pub const STORE_FORMAT: usize = 0x14;
    pub const STORE_STATE: usize = 0x15;
    pub const STORE_HEADER: usize = 0x1c;
}

/// `EFI_VARIABLE_NON_VOLATILE | BOOTSERVICE_ACCESS`.
const ATTRIBUTES_BOOT: u32 = 0x03;
/// The same with `RUNTIME_ACCESS` and `TIME_BASED_AUTHENTICATED_WRITE_ACCESS`.
const ATTRIBUTES_AUTHENTICATED: u32 = 0x27;

/// Writes the databases into a factory-fresh `OVMF_VARS.fd` and switches Secure Boot on, as its setup screen
/// would: the result is what a machine looks like after its owner has enrolled the keys.
///
/// # Errors
/// [`VarsError`].
pub fn enrol(template: &[u8], databases: Databases<'_>) -> Result<Vec<u8>, VarsError> {
    let mut flash = template.to_vec();
    let (start, end) = store_bounds(&flash)?;
    if flash[start..end.min(start + 2)] != [0xff, 0xff] {
        return Err(VarsError::NotEmpty);
    }
    let mut variables = Vec::new();
    for (name, vendor, attributes, data) in [
        (
            "db",
            IMAGE_SECURITY_DATABASE,
            ATTRIBUTES_AUTHENTICATED,
            databases.db,
        ),
        (
            "KEK",
            GLOBAL_VARIABLE,
            ATTRIBUTES_AUTHENTICATED,
            databases.kek,
        ),
        (
            "PK",
            GLOBAL_VARIABLE,
            ATTRIBUTES_AUTHENTICATED,
            databases.pk,
        ),
        (
            "SecureBootEnable",
            SECURE_BOOT_ENABLE,
            ATTRIBUTES_BOOT,
            &[1][..],
        ),
    ] {
        push_variable(&mut variables, name, vendor, attributes, data);
    }
    let room = flash
        .get_mut(start..end)
        .ok_or(VarsError::Format("short"))?;
    let free = room.len();
    let target = room.get_mut(..variables.len()).ok_or(VarsError::Full {
        free,
        needed: variables.len(),
    })?;
    target.copy_from_slice(&variables);
    Ok(flash)
}

/// First byte of the variables and the byte after the last one.
fn store_bounds(flash: &[u8]) -> Result<(usize, usize), VarsError> {
    if flash.get(field::VOLUME_SIGNATURE) != Some(b"_FVH") {
        return Err(VarsError::Format("no firmware volume"));
    }
    let header = flash
        .get(field::VOLUME_HEADER_LENGTH)
        .map(|bytes| usize::from(u16::from_le_bytes([bytes[0], bytes[1]])))
        .ok_or(VarsError::Format("short"))?;
    let store = flash.get(header..).ok_or(VarsError::Format("short"))?;
    if store.get(..16) != Some(&AUTHENTICATED_STORE.0) {
        return Err(VarsError::Format("no authenticated variable store"));
    }
    let size = store
        .get(field::STORE_SIZE)
        .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]) as usize)
        .ok_or(VarsError::Format("short"))?;
    let healthy = store.get(field::STORE_FORMAT) == Some(&0x5a)
        && store.get(field::STORE_STATE) == Some(&0xfe);
    if !healthy || size > store.len() || size < field::STORE_HEADER + 2 {
        return Err(VarsError::Format("damaged variable store"));
    }
    Ok((header + field::STORE_HEADER, header + size))
}

/// `AUTHENTICATED_VARIABLE_HEADER`, the name in UTF-16, the data, padded to four bytes.
fn push_variable(out: &mut Vec<u8>, name: &str, vendor: Guid, attributes: u32, data: &[u8]) {
    let name: Vec<u8> = name
        .encode_utf16()
        .chain([0])
        .flat_map(u16::to_le_bytes)
        .collect();
    out.extend_from_slice(&0x55aa_u16.to_le_bytes());
    out.push(0x3f); // VAR_ADDED
    out.push(0);
    out.extend_from_slice(&attributes.to_le_bytes());
    out.extend_from_slice(&0u64.to_le_bytes()); // monotonic count: unused with time-based writes
    out.extend_from_slice(&timestamp(attributes));
    out.extend_from_slice(&0u32.to_le_bytes()); // public key index: unused
    out.extend_from_slice(&le32(name.len()));
    out.extend_from_slice(&le32(data.len()));
    out.extend_from_slice(&vendor.0);
    out.extend_from_slice(&name);
    out.extend_from_slice(data);
    while !out.len().is_multiple_of(4) {
        out.push(0xff);
    }
}

/// `EFI_TIME` of an authenticated variable: later updates must be newer, so we use a day in the past.
fn timestamp(attributes: u32) -> [u8; 16] {
    let mut time = [0; 16];
    if attributes == ATTRIBUTES_AUTHENTICATED {
        time[..2].copy_from_slice(&2010u16.to_le_bytes());
        time[2] = 1;
        time[3] = 1;
    }
    time
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A small, empty store with the headers of edk2.
    fn blank(size: usize) -> Vec<u8> {
        let mut flash = vec![0xff; size];
        flash[..0x48].fill(0);
        flash[field::VOLUME_SIGNATURE].copy_from_slice(b"_FVH");
        flash[field::VOLUME_HEADER_LENGTH].copy_from_slice(&0x48u16.to_le_bytes());
        flash[0x48..0x58].copy_from_slice(&AUTHENTICATED_STORE.0);
        flash[0x58..0x5c].copy_from_slice(&le32(size - 0x48));
        flash[0x5c..0x64].copy_from_slice(&[0x5a, 0xfe, 0, 0, 0, 0, 0, 0]);
        flash
    }

    const KEYS: Databases<'static> = Databases {
        pk: &[1; 40],
        kek: &[2; 41],
        db: &[3; 42],
    };

    #[test]
    fn a_signature_list_has_the_bytes_of_the_standard() {
        let list = x509_list(GLOBAL_VARIABLE, &[0x30, 0x01, 0x02]);
        assert_eq!(
            hex::encode(&list),
            concat!(
                "a159c0a5e494a74a87b5ab155c2bf072",
                "2f0000000000000013000000",
                "61dfe48bca93d211aa0d00e098032b8c",
                "300102"
            )
        );
        assert_eq!(
            GLOBAL_VARIABLE.to_string(),
            "8be4df61-93ca-11d2-aa0d-00e098032b8c"
        );
    }

    #[test]
    fn enrols_into_an_empty_store() {
        let flash = enrol(&blank(2048), KEYS).unwrap();
        let first = &flash[0x64..];
        assert_eq!(first[..8], [0xaa, 0x55, 0x3f, 0, 0x27, 0, 0, 0]);
        assert_eq!(first[36..44], [6, 0, 0, 0, 42, 0, 0, 0]);
        assert_eq!(first[44..60], IMAGE_SECURITY_DATABASE.0);
        assert_eq!(first[60..66], [b'd', 0, b'b', 0, 0, 0]);
        assert_eq!(first[66..108], [3; 42]);
        assert_eq!(first[108..110], [0xaa, 0x55]);
    }

    #[test]
    fn rejects_a_store_that_has_variables() {
        let once = enrol(&blank(2048), KEYS).unwrap();
        assert_eq!(enrol(&once, KEYS), Err(VarsError::NotEmpty));
    }

    #[test]
    fn rejects_a_store_that_is_too_small() {
        let error = enrol(&blank(256), KEYS).unwrap_err();
        assert!(
            matches!(error, VarsError::Full { free: 156, .. }),
            "{error}"
        );
    }

    #[test]
    fn rejects_what_is_no_store() {
        assert!(matches!(enrol(&[], KEYS), Err(VarsError::Format(_))));
        assert!(matches!(enrol(&[0; 512], KEYS), Err(VarsError::Format(_))));
        let mut damaged = blank(2048);
        damaged[0x5d] = 0;
        assert!(matches!(enrol(&damaged, KEYS), Err(VarsError::Format(_))));
    }

    proptest::proptest! {
        #[test]
        fn never_panics(mut bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..400)) {
            let _ = enrol(&bytes, KEYS);
            for (at, byte) in blank(120).iter().take(104).enumerate() {
                if at < bytes.len() { bytes[at] = *byte; }
            }
            let _ = enrol(&bytes, KEYS);
        }
    }
}

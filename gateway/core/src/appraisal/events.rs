//! What events mean, for events whose data hashes to their digest or whose digest is known.
//!
//! Nothing here trusts an event type: a reader asks "is this event the SecureBoot variable", and
//! the answer rests on proven data.

use attest_wire::tpm::HashAlg;

use super::eventlog::Event;
use super::quirks::Quirk;

/// Bank that decisions are made in.
pub const BANK: HashAlg = HashAlg::Sha256;

/// `EV_SEPARATOR`.
pub const EV_SEPARATOR: u32 = 0x0000_0004;
/// `EV_EFI_VARIABLE_DRIVER_CONFIG`.
pub const EV_EFI_VARIABLE_DRIVER_CONFIG: u32 = 0x8000_0001;
/// `EV_EFI_BOOT_SERVICES_APPLICATION`.
pub const EV_EFI_BOOT_SERVICES_APPLICATION: u32 = 0x8000_0003;
/// `EV_EFI_BOOT_SERVICES_DRIVER`.
pub const EV_EFI_BOOT_SERVICES_DRIVER: u32 = 0x8000_0004;
/// `EV_EFI_RUNTIME_SERVICES_DRIVER`.
pub const EV_EFI_RUNTIME_SERVICES_DRIVER: u32 = 0x8000_0005;
/// `EV_EFI_ACTION`.
pub const EV_EFI_ACTION: u32 = 0x8000_0007;
/// `EV_EFI_VARIABLE_AUTHORITY`.
pub const EV_EFI_VARIABLE_AUTHORITY: u32 = 0x8000_00e0;
/// `EV_IPL`.
pub const EV_IPL: u32 = 0x0000_000d;
/// `EV_EVENT_TAG`.
pub const EV_EVENT_TAG: u32 = 0x0000_0006;

/// `EFI_GLOBAL_VARIABLE`, as bytes of the log.
pub const EFI_GLOBAL_VARIABLE: [u8; 16] = [
    0x61, 0xdf, 0xe4, 0x8b, 0xca, 0x93, 0xd2, 0x11, 0xaa, 0x0d, 0x00, 0xe0, 0x98, 0x03, 0x2b, 0x8c,
];

/// Data of a separator that says "no error" (PFP 10.4.1).
const SEPARATORS_GOOD: [[u8; 4]; 2] = [[0; 4], [0xff; 4]];
/// Actions that firmware measures into PCR 4 around a boot attempt (PFP 10.4.4).
const BOOT_ACTIONS: [&str; 5] = [
    "Calling EFI Application from Boot Option",
    "Returning from EFI Application from Boot Option",
    "BOOT ATTEMPTS OMITTED",
    "Booting to Setup",
    "Entering ROM Based Setup",
];
/// Measured into PCR 7 when firmware runs under a debugger.
const DEBUG_ACTION: &str = "UEFI Debug Mode";
/// Measured into PCR 7 when the IOMMU does not protect boot.
const DMA_ACTION: &str = "DMA Protection Disabled";

/// A proven action string, or a separator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Marker {
    /// Separator without error.
    Separator,
    /// Separator after a firmware error.
    SeparatorError,
    /// Firmware called or left a boot option.
    BootAction,
    /// Firmware runs under a debugger.
    Debug,
    /// DMA protection is off.
    DmaOff,
}

/// Digests of every marker, computed once.
pub struct Markers(Vec<(Vec<u8>, Marker)>);

impl Default for Markers {
    fn default() -> Self {
        Self::new()
    }
}

impl Markers {
    /// The table.
    pub fn new() -> Self {
        let mut table = Vec::new();
        let mut add = |data: &[u8], marker| table.push((BANK.digest(&[data]), marker));
        for data in SEPARATORS_GOOD {
            add(&data, Marker::Separator);
        }
        add(&1u32.to_le_bytes(), Marker::SeparatorError);
        for (texts, marker) in [
            (BOOT_ACTIONS.as_slice(), Marker::BootAction),
            (&[DEBUG_ACTION], Marker::Debug),
            (&[DMA_ACTION], Marker::DmaOff),
        ] {
            for text in texts {
                // Some firmware measures the terminating NUL, too.
                add(text.as_bytes(), marker);
                add(format!("{text}\0").as_bytes(), marker);
            }
        }
        Self(table)
    }

    /// What an event's digest stands for; the type and data it claims do not matter.
    pub fn of(&self, event: &Event<'_>) -> Option<Marker> {
        let digest = event.digest(BANK)?;
        let (_, marker) = self.0.iter().find(|(known, _)| known == digest)?;
        Some(*marker)
    }
}

/// `UEFI_VARIABLE_DATA` (PFP 10.2.6).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variable<'a> {
    /// Vendor GUID as in the log.
    pub guid: [u8; 16],
    /// Name.
    pub name: String,
    /// Content.
    pub data: &'a [u8],
}

impl<'a> Variable<'a> {
    /// Parses; none when the lengths do not fit. Up to eight zero bytes may follow (old shim).
    pub fn parse(data: &'a [u8]) -> Option<Self> {
        let (guid, rest) = data.split_at_checked(16)?;
        let (name_len, rest) = rest.split_at_checked(8)?;
        let (data_len, rest) = rest.split_at_checked(8)?;
        let name_len = usize::try_from(u64::from_le_bytes(name_len.try_into().ok()?)).ok()?;
        let data_len = usize::try_from(u64::from_le_bytes(data_len.try_into().ok()?)).ok()?;
        let (name, content) = rest.split_at_checked(name_len.checked_mul(2)?)?;
        let (content, padding) = content.split_at_checked(data_len)?;
        if padding.len() > 8 || padding.iter().any(|&b| b != 0) {
            return None;
        }
        let units = name
            .chunks_exact(2)
            .map(|c| u16::from_le_bytes([c[0], c[1]]));
        let name: String = char::decode_utf16(units).collect::<Result<_, _>>().ok()?;
        Some(Self {
            guid: guid.try_into().ok()?,
            name,
            data: content,
        })
    }

    /// A variable that the event's digest proves, and the quirk the proof needed.
    ///
    /// The digest covers the whole `UEFI_VARIABLE_DATA`; for authorities some firmware hashes the
    /// variable's content only, and old shim logs one stray byte more than it hashed.
    pub fn proven(event: &Event<'a>) -> Option<(Self, Option<Quirk>)> {
        if let Some(data) = event.data_proven(BANK) {
            return Some((Self::parse(data)?, None));
        }
        let digest = event.digest(BANK)?;
        if event.kind != EV_EFI_VARIABLE_AUTHORITY {
            return None;
        }
        if let Some((_, hashed)) = event.data.split_last()
            && BANK.digest(&[hashed]) == digest
        {
            return Some((Self::parse(hashed)?, Some(Quirk::VariablePadded)));
        }
        let variable = Self::parse(event.data)?;
        if BANK.digest(&[variable.data]) != digest {
            return None;
        }
        // The type is unprotected: the data of a "SecureBoot = 0" event wrapped as the content of
        // an authority would pass this proof and hide it. Then the inner variable counts.
        let inner = Self::parse(variable.data);
        Some((
            inner.unwrap_or(variable),
            Some(Quirk::AuthorityContentHashed),
        ))
    }

    /// Whether it is the global variable of that name.
    pub fn is_global(&self, name: &str) -> bool {
        self.guid == EFI_GLOBAL_VARIABLE && self.name == name
    }
}

/// Name of an event type, for reasons and `inspect`.
pub const fn type_name(kind: u32) -> &'static str {
    match kind {
        0x0000_0000 => "EV_PREBOOT_CERT",
        0x0000_0001 => "EV_POST_CODE",
        0x0000_0002 => "EV_UNUSED",
        0x0000_0003 => "EV_NO_ACTION",
        0x0000_0004 => "EV_SEPARATOR",
        0x0000_0005 => "EV_ACTION",
        0x0000_0006 => "EV_EVENT_TAG",
        0x0000_0007 => "EV_S_CRTM_CONTENTS",
        0x0000_0008 => "EV_S_CRTM_VERSION",
        0x0000_0009 => "EV_CPU_MICROCODE",
        0x0000_000a => "EV_PLATFORM_CONFIG_FLAGS",
        0x0000_000b => "EV_TABLE_OF_DEVICES",
        0x0000_000c => "EV_COMPACT_HASH",
        0x0000_000d => "EV_IPL",
        0x0000_000e => "EV_IPL_PARTITION_DATA",
        0x0000_000f => "EV_NONHOST_CODE",
        0x0000_0010 => "EV_NONHOST_CONFIG",
        0x0000_0011 => "EV_NONHOST_INFO",
        0x0000_0012 => "EV_OMIT_BOOT_DEVICE_EVENTS",
        0x8000_0001 => "EV_EFI_VARIABLE_DRIVER_CONFIG",
        0x8000_0002 => "EV_EFI_VARIABLE_BOOT",
        0x8000_0003 => "EV_EFI_BOOT_SERVICES_APPLICATION",
        0x8000_0004 => "EV_EFI_BOOT_SERVICES_DRIVER",
        0x8000_0005 => "EV_EFI_RUNTIME_SERVICES_DRIVER",
        0x8000_0006 => "EV_EFI_GPT_EVENT",
        0x8000_0007 => "EV_EFI_ACTION",
        0x8000_0008 => "EV_EFI_PLATFORM_FIRMWARE_BLOB",
        0x8000_0009 => "EV_EFI_HANDOFF_TABLES",
        0x8000_000a => "EV_EFI_PLATFORM_FIRMWARE_BLOB2",
        0x8000_000b => "EV_EFI_HANDOFF_TABLES2",
        0x8000_000c => "EV_EFI_VARIABLE_BOOT2",
        0x8000_0010 => "EV_EFI_HCRTM_EVENT",
        0x8000_00e0 => "EV_EFI_VARIABLE_AUTHORITY",
        0x8000_00e1 => "EV_EFI_SPDM_FIRMWARE_BLOB",
        0x8000_00e2 => "EV_EFI_SPDM_FIRMWARE_CONFIG",
        _ => "unknown",
    }
}

//! What events mean whose digest is known: separators and the firmware's fixed texts.
//!
//! Nothing here trusts an event type: a reader asks "is this event the separator", and the answer
//! rests on the digest. Variables are in `variables`.

use attest_wire::tpm::HashAlg;

use super::eventlog::Event;

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

/// Data of a separator that says "no error" (PFP 10.4.1).
const SEPARATORS_GOOD: [[u8; 4]; 2] = [[0; 4], [0xff; 4]];
/// Texts that firmware measures (PFP 10.4.4): around a boot attempt into PCR 4, at the end of the
/// boot services into PCR 5, under a debugger or without an IOMMU at work into PCR 7.
const ACTIONS: [(&str, Marker); 10] = [
    (
        "Calling EFI Application from Boot Option",
        Marker::BootCalled,
    ),
    (
        "Returning from EFI Application from Boot Option",
        Marker::BootReturned,
    ),
    ("BOOT ATTEMPTS OMITTED", Marker::BootAction),
    ("Booting to Setup", Marker::BootAction),
    ("Entering ROM Based Setup", Marker::BootAction),
    (
        "Exit Boot Services Invocation",
        Marker::ExitBootServicesCalled,
    ),
    (
        "Exit Boot Services Returned with Success",
        Marker::ExitBootServicesDone,
    ),
    (
        "Exit Boot Services Returned with Failure",
        Marker::ExitBootServicesFailed,
    ),
    ("UEFI Debug Mode", Marker::Debug),
    ("DMA Protection Disabled", Marker::DmaOff),
];

/// A proven action string, or a separator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Marker {
    /// Separator without error.
    Separator,
    /// Separator after a firmware error.
    SeparatorError,
    /// Firmware started a boot option.
    BootCalled,
    /// The boot option came back.
    BootReturned,
    /// Something else of the boot manager: set-up was entered, attempts are not logged.
    BootAction,
    /// ExitBootServices was called.
    ExitBootServicesCalled,
    /// It succeeded.
    ExitBootServicesDone,
    /// It failed.
    ExitBootServicesFailed,
    /// Firmware runs under a debugger.
    Debug,
    /// DMA protection is off.
    DmaOff,
}

/// Digests of every marker in one bank, computed once.
pub struct Markers {
    bank: HashAlg,
    table: Vec<(Vec<u8>, Marker)>,
}

impl Default for Markers {
    fn default() -> Self {
        Self::new()
    }
}

impl Markers {
    /// The table of the bank that decisions are made in.
    pub fn new() -> Self {
        Self::in_bank(BANK)
    }

    /// The table of another bank, to look at logs that do not have that one.
    pub fn in_bank(bank: HashAlg) -> Self {
        let mut table = Vec::new();
        let mut add = |data: &[u8], marker| table.push((bank.digest(&[data]), marker));
        for data in SEPARATORS_GOOD {
            add(&data, Marker::Separator);
        }
        add(&1u32.to_le_bytes(), Marker::SeparatorError);
        for (text, marker) in ACTIONS {
            // Some firmware measures the terminating NUL, too.
            add(text.as_bytes(), marker);
            add(format!("{text}\0").as_bytes(), marker);
        }
        Self { bank, table }
    }

    /// What an event's digest stands for; the type and data it claims do not matter.
    pub fn of(&self, event: &Event<'_>) -> Option<Marker> {
        let digest = event.digest(self.bank)?;
        let (_, marker) = self.table.iter().find(|(known, _)| known == digest)?;
        Some(*marker)
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

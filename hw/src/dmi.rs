//! SMBIOS type 1 (system information) as the kernel shows it.
//!
//! Reads and cleans; whether a serial number is the expected one is decided by the appraisal.
//! Everything here is a claim of the firmware.

use std::path::Path;

/// Where the kernel shows it.
pub const DMI_ROOT: &str = "/sys/class/dmi/id";
/// Longest text kept, in characters.
const TEXT_MAX: usize = 128;

/// System information (DMTF DSP0134, 7.2). Empty where the firmware says nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SystemInformation {
    /// Manufacturer.
    pub manufacturer: String,
    /// Product name.
    pub product: String,
    /// Serial number; the kernel shows it to root only.
    pub serial: String,
    /// UUID, lower case.
    pub uuid: String,
}

/// Reads it below `root` ([`DMI_ROOT`] on a real machine).
pub fn system_information(root: &Path) -> SystemInformation {
    let read = |name: &str| clean(&std::fs::read(root.join(name)).unwrap_or_default());
    SystemInformation {
        manufacturer: read("sys_vendor"),
        product: read("product_name"),
        serial: read("product_serial"),
        uuid: read("product_uuid").to_ascii_lowercase(),
    }
}

/// Firmware text: any bytes, padded with spaces or NULs.
pub(crate) fn clean(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes)
        .chars()
        .filter(|c| !c.is_control())
        .take(TEXT_MAX)
        .collect::<String>()
        .trim()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_is_there_and_cleans_it() {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("sys_vendor"), "QEMU\n").unwrap();
        std::fs::write(root.path().join("product_serial"), b"SN\x00\x1b[2J 1  \n").unwrap();
        std::fs::write(root.path().join("product_uuid"), "AB-CD\n").unwrap();
        std::fs::write(root.path().join("product_name"), [0xff; 300]).unwrap();
        let information = system_information(root.path());
        assert_eq!(information.manufacturer, "QEMU");
        assert_eq!(information.serial, "SN[2J 1");
        assert_eq!(information.uuid, "ab-cd");
        assert_eq!(information.product.chars().count(), TEXT_MAX);
        let nothing = system_information(&root.path().join("none"));
        assert_eq!(nothing, SystemInformation::default());
    }
}

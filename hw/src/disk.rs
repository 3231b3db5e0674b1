//! Which disks there are, by serial number.
//!
//! Reads sysfs; which disk is the declared one is decided by the appraisal, and again by the
//! installer before it writes.

use std::path::Path;

use crate::dmi::clean;

/// Where the kernel shows block devices.
pub const BLOCK_ROOT: &str = "/sys/block";
/// Kernel names of block devices that are no disks.
const NOT_DISKS: [&str; 8] = ["loop", "ram", "zram", "dm-", "md", "sr", "fd", "nbd"];

/// One disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disk {
    /// Kernel name, `nvme0n1`.
    pub name: String,
    /// Serial number, empty where there is none.
    pub serial: String,
    /// Model.
    pub model: String,
    /// Size in bytes.
    pub size_bytes: u64,
}

/// Lists the disks below `root` ([`BLOCK_ROOT`] on a real machine), sorted by name.
pub fn disks(root: &Path) -> Vec<Disk> {
    let mut disks: Vec<Disk> = std::fs::read_dir(root)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| !NOT_DISKS.iter().any(|prefix| name.starts_with(prefix)))
        .map(|name| disk(&root.join(&name), name))
        .collect();
    disks.sort_by(|a, b| a.name.cmp(&b.name));
    disks
}

fn disk(folder: &Path, name: String) -> Disk {
    let read = |file: &str| std::fs::read(folder.join(file)).ok();
    let text = |file: &str| {
        read(file)
            .map(|bytes| clean(&bytes))
            .filter(|text| !text.is_empty())
    };
    let sectors = text("size")
        .and_then(|text| text.parse::<u64>().ok())
        .unwrap_or(0);
    Disk {
        // NVMe and MMC: device/serial; virtio: serial; SCSI and SATA: the unit serial number page.
        serial: text("device/serial")
            .or_else(|| text("serial"))
            .or_else(|| read("device/vpd_pg80").and_then(|page| unit_serial(&page)))
            .unwrap_or_default(),
        // MMC has a name instead of a model.
        model: text("device/model")
            .or_else(|| text("device/name"))
            .unwrap_or_default(),
        // sysfs counts sectors of 512 bytes whatever the device's own size is.
        size_bytes: sectors.saturating_mul(512),
        name,
    }
}

/// SCSI VPD page 80h (SPC-4, 7.8.12): type, page code, length, serial number.
fn unit_serial(page: &[u8]) -> Option<String> {
    let (header, rest) = page.split_at_checked(4)?;
    if header[1] != 0x80 {
        return None;
    }
    let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
    Some(clean(rest.get(..length)?)).filter(|serial| !serial.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn finds_serials_of_each_transport_and_no_pseudo_disks() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, content: &[u8]| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        };
        write("nvme0n1/device/serial", b"NV-1   \n");
        write("nvme0n1/device/model", b"Fast 1TB  \n");
        write("nvme0n1/size", b"2048\n");
        write("vda/serial", b"VIRT-1\n");
        write("sda/device/vpd_pg80", b"\x00\x80\x00\x06  SA-1");
        write("mmcblk0/device/serial", b"0x1234\n");
        write("mmcblk0/device/name", b"DG4016\n");
        write("sdb/device/vpd_pg80", b"\x00\x80\x00\xff short");
        write("sdb/size", b"99999999999999999999\n");
        for pseudo in [
            "loop0", "ram0", "dm-0", "md0", "sr0", "zram0", "fd0", "nbd0",
        ] {
            write(&format!("{pseudo}/size"), b"8\n");
        }
        let found = disks(root.path());
        let serials: Vec<(&str, &str)> = found
            .iter()
            .map(|disk| (disk.name.as_str(), disk.serial.as_str()))
            .collect();
        assert_eq!(
            serials,
            [
                ("mmcblk0", "0x1234"),
                ("nvme0n1", "NV-1"),
                ("sda", "SA-1"),
                ("sdb", ""),
                ("vda", "VIRT-1")
            ]
        );
        assert_eq!(found[0].model, "DG4016");
        assert_eq!(
            (found[1].model.as_str(), found[1].size_bytes),
            ("Fast 1TB", 1_048_576)
        );
        assert_eq!(found[3].size_bytes, 0);
        assert!(disks(&root.path().join("none")).is_empty());
    }

    #[test]
    fn rejects_pages_that_are_not_the_serial_number() {
        for page in [
            b"".as_slice(),
            b"\x00\x80",
            b"\x00\x83\x00\x01x",
            b"\x00\x80\x00\x02x",
        ] {
            assert_eq!(unit_serial(page), None);
        }
    }
}

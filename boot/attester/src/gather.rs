//! Facts of a real machine, from sysfs, the kernel's event log and the firmware's variables.

use std::path::Path;

use attest_wire::v1::{Disk, Nic, Platform};
use hw::{disk, dmi, nic};

use crate::facts::{Facts, HeardFrame};

/// Where the kernel shows the firmware's event log.
pub const EVENT_LOG: &str = "/sys/kernel/security/tpm0/binary_bios_measurements";
/// What the running image calls itself.
pub const IMAGE_NAME: &str = "/etc/vestibule/image";
/// Where EFI variables are.
const EFIVARS: &str = "/sys/firmware/efi/efivars";
/// GUID of EFI_GLOBAL_VARIABLE (UEFI 2.10, 3.3).
const GLOBAL: &str = "8be4df61-93ca-11d2-aa0d-00e098032b8c";

/// Gathers everything; whatever cannot be read stays empty.
pub fn gather(event_log: &Path, lldp: Vec<HeardFrame>) -> Facts {
    let system = dmi::system_information(Path::new(dmi::DMI_ROOT));
    Facts {
        arch: std::env::consts::ARCH.to_owned(),
        platform: Platform {
            manufacturer: system.manufacturer,
            product: system.product,
            serial: system.serial,
            uuid: system.uuid,
        },
        nics: nic::interfaces()
            .into_iter()
            .filter_map(|interface| {
                Some(Nic {
                    mac: nic::format_mac(interface.mac?),
                    name: interface.name,
                })
            })
            .collect(),
        disks: disk::disks(Path::new(disk::BLOCK_ROOT))
            .into_iter()
            .map(|disk| Disk {
                name: disk.name,
                serial: disk.serial,
                model: disk.model,
                size_bytes: disk.size_bytes,
            })
            .collect(),
        lldp,
        boot_path: boot_path(Path::new(EFIVARS)).to_owned(),
        uki_hint: std::fs::read_to_string(IMAGE_NAME)
            .unwrap_or_default()
            .trim()
            .to_owned(),
        event_log: std::fs::read(event_log).unwrap_or_default(),
    }
}

/// `pxe`, `http` or `unknown`, from the boot option that the firmware says it took.
fn boot_path(efivars: &Path) -> &'static str {
    // efivarfs puts four bytes of attributes before the value.
    let read = |name: &str| {
        let bytes = std::fs::read(efivars.join(format!("{name}-{GLOBAL}"))).ok()?;
        bytes.get(4..).map(<[u8]>::to_vec)
    };
    let Some(current) = read("BootCurrent") else {
        return "unknown";
    };
    let Some(number) = current.first_chunk::<2>() else {
        return "unknown";
    };
    let name = format!("Boot{:04X}", u16::from_le_bytes(*number));
    read(&name).map_or("unknown", |option| path_of_load_option(&option))
}

/// Reads an EFI_LOAD_OPTION (UEFI 2.10, 3.1.3): attributes, length of the path list, description
/// in UCS-2, device path nodes (10.3). A URI node means HTTP boot; an IP or MAC node without one, PXE.
fn path_of_load_option(option: &[u8]) -> &'static str {
    const MESSAGING: u8 = 3;
    const MAC: u8 = 11;
    const IPV4: u8 = 12;
    const IPV6: u8 = 13;
    const URI: u8 = 24;
    let Some((_, description)) = option.split_at_checked(6) else {
        return "unknown";
    };
    let Some(end) = description.chunks_exact(2).position(|unit| unit == [0, 0]) else {
        return "unknown";
    };
    let mut nodes = &description[2 * (end + 1)..];
    let mut found = "unknown";
    while let [kind, sub, low, high, ..] = nodes {
        match (*kind, *sub) {
            (MESSAGING, URI) => return "http",
            (MESSAGING, MAC | IPV4 | IPV6) => found = "pxe",
            _ => {}
        }
        let length = usize::from(u16::from_le_bytes([*low, *high]));
        match nodes.get(length..) {
            Some(rest) if length >= 4 => nodes = rest,
            _ => break,
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load_option(nodes: &[&[u8]]) -> Vec<u8> {
        let path = nodes.concat();
        let mut option = vec![1, 0, 0, 0];
        option.extend((path.len() as u16).to_le_bytes());
        option.extend("UEFI PXEv4".encode_utf16().flat_map(u16::to_le_bytes));
        option.extend([0, 0]);
        option.extend(path);
        option
    }

    const PCI: &[u8] = &[1, 1, 6, 0, 0, 2];
    const IPV4: &[u8] = &[3, 12, 5, 0, 0];
    const URI: &[u8] = &[3, 24, 4, 0];
    const DISK: &[u8] = &[4, 1, 4, 0];
    const END: &[u8] = &[0x7f, 0xff, 4, 0];

    #[test]
    fn boot_option_tells_pxe_from_http() {
        for (nodes, expected) in [
            (vec![PCI, IPV4, END], "pxe"),
            (vec![PCI, IPV4, URI, END], "http"),
            (vec![PCI, DISK, END], "unknown"),
            (vec![], "unknown"),
        ] {
            let root = tempfile::tempdir().unwrap();
            assert_eq!(boot_path(root.path()), "unknown");
            let write = |name: &str, value: &[u8]| {
                let path = root.path().join(format!("{name}-{GLOBAL}"));
                std::fs::write(path, [&[7, 0, 0, 0], value].concat()).unwrap();
            };
            write("BootCurrent", &[0x0a, 0]);
            assert_eq!(boot_path(root.path()), "unknown");
            write("Boot000A", &load_option(&nodes));
            assert_eq!(boot_path(root.path()), expected);
        }
    }

    #[test]
    fn malformed_options_are_unknown_and_end() {
        let good = load_option(&[PCI, IPV4, END]);
        for end in 0..good.len() {
            path_of_load_option(&good[..end]);
        }
        // A node of length zero must not be read for ever.
        assert_eq!(
            path_of_load_option(&load_option(&[&[1, 1, 0, 0], IPV4])),
            "unknown"
        );
        assert_eq!(
            path_of_load_option(&load_option(&[&[1, 1, 0xff, 0xff], IPV4])),
            "unknown"
        );
    }

    proptest::proptest! {
        #[test]
        fn any_variable_is_read(bytes in proptest::collection::vec(0_u8.., 0..200)) {
            let _ = path_of_load_option(&bytes);
        }
    }
}

//! A disk with something installed on it: a FAT volume whose `\EFI\BOOT\BOOTX64.EFI` prints one line
//! and stops. Signed with the site's db key, so Secure Boot takes it as it would a system's own
//! loader.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::run::output;
use crate::site::site_keys;

/// What the program prints.
pub const LINE: &str = "LOCAL DISK: its own loader runs";

const SECTOR: usize = 512;
/// 16 MiB: with clusters of 2 KiB a FAT16 volume (Microsoft FAT specification 1.03, section 3.5: 4085
/// to 65524 clusters).
const SECTORS: u16 = 32_768;
const SECTORS_PER_CLUSTER: usize = 4;
const CLUSTER: usize = SECTOR * SECTORS_PER_CLUSTER;
const FAT_SECTORS: u16 = 32;
const ROOT_ENTRIES: u16 = 512;
/// First sector of cluster 2: boot sector, two FATs, root folder.
const DATA: usize = 1 + 2 * FAT_SECTORS as usize + ROOT_ENTRIES as usize * 32 / SECTOR;

/// Writes the disk image.
///
/// # Errors
/// The program cannot be signed or the file not be written.
pub fn write(path: &Path) -> Result<()> {
    fs::write(path, loader_volume(path)?)?;
    Ok(())
}

/// Writes a whole disk as an installer is given one: GPT with that volume as its EFI system partition, and an
/// empty partition `VESTIBULE` for the package, with as many MiB behind them that belong to none.
///
/// # Errors
/// As [`write()`].
pub fn write_gpt(path: &Path, free_mib: usize) -> Result<()> {
    let volume = loader_volume(path)?;
    fs::write(path, gpt(&volume, free_mib))?;
    Ok(())
}

fn loader_volume(path: &Path) -> Result<Vec<u8>> {
    let unsigned = path.with_extension("unsigned.efi");
    let signed = path.with_extension("efi");
    fs::write(&unsigned, program())?;
    let keys = site_keys()?;
    let mut sign = Command::new("sbsign");
    sign.arg("--key").arg(keys.db_key());
    sign.arg("--cert").arg(keys.db_certificate());
    sign.arg("--output").arg(&signed).arg(&unsigned);
    output(&mut sign, Duration::from_secs(30)).context("sbsign")?;
    volume(&fs::read(&signed)?)
}

/// First sector of the EFI system partition.
const ESP_FROM: usize = 2_048;
/// Sectors of the partition for the package.
const PACKAGE_SECTORS: usize = 2_048;
/// Sectors of the partition entries: 128 of 128 bytes.
const ENTRY_SECTORS: usize = 32;

/// UEFI specification 2.10, section 5.3: protective MBR, header, entries, partitions, the same once more.
fn gpt(volume: &[u8], free_mib: usize) -> Vec<u8> {
    let package_from = ESP_FROM + volume.len() / SECTOR;
    let end = package_from + PACKAGE_SECTORS;
    let sectors = (end + free_mib * 2_048 + ENTRY_SECTORS + 1).next_multiple_of(8);
    let mut disk = vec![0; sectors * SECTOR];
    // One partition of type ee over the whole disk.
    disk[446..462].copy_from_slice(&[0, 0, 2, 0, 0xee, 0xff, 0xff, 0xff, 1, 0, 0, 0, 0, 0, 0, 0]);
    disk[458..462].copy_from_slice(&(sectors as u32 - 1).to_le_bytes());
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    let mut entries = vec![0; ENTRY_SECTORS * SECTOR];
    for (index, (kind, name, from, to)) in [
        (ESP_GUID, "ESP", ESP_FROM, package_from),
        (DATA_GUID, "VESTIBULE", package_from, end),
    ]
    .into_iter()
    .enumerate()
    {
        let entry = &mut entries[index * 128..][..128];
        entry[..16].copy_from_slice(&kind);
        entry[16..32].fill(0x71 + index as u8);
        entry[32..40].copy_from_slice(&(from as u64).to_le_bytes());
        entry[40..48].copy_from_slice(&(to as u64 - 1).to_le_bytes());
        for (at, unit) in name.encode_utf16().enumerate() {
            entry[56 + 2 * at..58 + 2 * at].copy_from_slice(&unit.to_le_bytes());
        }
    }
    let last = sectors - 1;
    let mut table = |own: usize, other: usize, entries_at: usize| {
        let mut header = Vec::with_capacity(SECTOR);
        header.extend(b"EFI PART");
        header.extend([0, 0, 1, 0, 92, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        for lba in [own, other, 2 + ENTRY_SECTORS, last - ENTRY_SECTORS - 1] {
            header.extend((lba as u64).to_le_bytes());
        }
        header.extend([0x70; 16]);
        header.extend((entries_at as u64).to_le_bytes());
        header.extend(128u32.to_le_bytes());
        header.extend(128u32.to_le_bytes());
        header.extend(crc32(&entries).to_le_bytes());
        let sum = crc32(&header);
        header[16..20].copy_from_slice(&sum.to_le_bytes());
        disk[own * SECTOR..][..header.len()].copy_from_slice(&header);
        disk[entries_at * SECTOR..][..entries.len()].copy_from_slice(&entries);
    };
    table(1, last, 2);
    table(last, 1, last - ENTRY_SECTORS);
    disk[ESP_FROM * SECTOR..][..volume.len()].copy_from_slice(volume);
    disk
}

/// EFI system partition, c12a7328-f81f-11d2-ba4b-00a0c93ec93b.
const ESP_GUID: [u8; 16] = [
    0x28, 0x73, 0x2a, 0xc1, 0x1f, 0xf8, 0xd2, 0x11, 0xba, 0x4b, 0x00, 0xa0, 0xc9, 0x3e, 0xc9, 0x3b,
];
/// Linux data, 0fc63daf-8483-4772-8e79-3d69d8477de4.
const DATA_GUID: [u8; 16] = [
    0xaf, 0x3d, 0xc6, 0x0f, 0x83, 0x84, 0x72, 0x47, 0x8e, 0x79, 0x3d, 0x69, 0xd8, 0x47, 0x7d, 0xe4,
];

/// CRC-32 of IEEE 802.3.
fn crc32(bytes: &[u8]) -> u32 {
    let mut sum = u32::MAX;
    for byte in bytes {
        sum ^= u32::from(*byte);
        for _ in 0..8 {
            let carry = sum & 1;
            sum >>= 1;
            if carry == 1 {
                sum ^= 0xedb8_8320;
            }
        }
    }
    !sum
}

/// A PE32+ application of one section: `ConOut->OutputString(LINE)`, then halt for ever.
fn program() -> Vec<u8> {
    /// Sections begin here, in the file.
    const HEADERS: usize = 0x200;
    /// And here in memory.
    const BASE: u32 = 0x1000;
    // Microsoft x64 convention: rdx is the EFI_SYSTEM_TABLE, ConOut is at 0x40 in it, OutputString at
    // 8 in that. The text follows the code.
    #[rustfmt::skip]
    let code: [u8; 21] = [
        0x48, 0x83, 0xec, 0x28,                   // sub rsp, 40
        0x48, 0x8b, 0x4a, 0x40,                   // mov rcx, [rdx+0x40]
        0x48, 0x8d, 0x15, 6, 0, 0, 0,             // lea rdx, [rip+6]
        0xff, 0x51, 0x08,                         // call [rcx+8]
        0xf4,                                     // hlt
        0xeb, 0xfd,                               // jmp to the hlt
    ];
    let mut section = code.to_vec();
    let text = format!("\r\n{LINE}\r\n\0");
    section.extend(text.encode_utf16().flat_map(u16::to_le_bytes));
    let used = section.len() as u32;
    section.resize(SECTOR, 0);

    let mut image = b"MZ".to_vec();
    image.resize(0x3c, 0);
    image.extend(0x40_u32.to_le_bytes());
    image.extend(b"PE\0\0");
    let mut words = |values: &[u16]| values.iter().for_each(|v| image.extend(v.to_le_bytes()));
    // COFF header: x86-64, one section, no symbols, 240 bytes of optional header; executable, large
    // address aware. Relocations are not stripped: there are none, the code goes anywhere.
    words(&[0x8664, 1, 0, 0, 0, 0, 0, 0, 240, 0x0022]);
    // Optional header: PE32+; sizes of code and data; entry point and base of code.
    words(&[0x020b, 0]);
    let mut longs = |values: &[u32]| values.iter().for_each(|v| image.extend(v.to_le_bytes()));
    longs(&[section.len() as u32, 0, 0, BASE, BASE, 0, 0]);
    // Section and file alignment; versions; sizes of image and headers; checksum.
    longs(&[
        0x1000,
        SECTOR as u32,
        0,
        0,
        0,
        0,
        2 * BASE,
        HEADERS as u32,
        0,
    ]);
    // Subsystem 10 (EFI application), no flags; stack and heap sizes; 16 data directories, all empty.
    longs(&[10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 16]);
    image.extend([0; 16 * 8]);
    image.extend(b".text\0\0\0");
    let mut longs = |values: &[u32]| values.iter().for_each(|v| image.extend(v.to_le_bytes()));
    // Readable, executable code.
    longs(&[
        used,
        BASE,
        section.len() as u32,
        HEADERS as u32,
        0,
        0,
        0,
        0x6000_0020,
    ]);
    image.resize(HEADERS, 0);
    image.extend(section);
    image
}

/// A FAT16 volume that is the whole disk, with the program where firmware looks for it.
fn volume(program: &[u8]) -> Result<Vec<u8>> {
    let clusters = program.len().div_ceil(CLUSTER);
    ensure!(clusters < 1_000, "the program has {} bytes", program.len());
    let mut disk = vec![0; usize::from(SECTORS) * SECTOR];
    let mut boot = vec![0xeb, 0x3c, 0x90];
    boot.extend(b"VESTLAB ");
    boot.extend((SECTOR as u16).to_le_bytes());
    boot.extend([SECTORS_PER_CLUSTER as u8, 1, 0, 2]);
    boot.extend(ROOT_ENTRIES.to_le_bytes());
    boot.extend(SECTORS.to_le_bytes());
    boot.push(0xf8);
    boot.extend(FAT_SECTORS.to_le_bytes());
    // Geometry, hidden sectors, large sector count.
    boot.extend([32, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    boot.extend([0x80, 0, 0x29, 1, 2, 3, 4]);
    boot.extend(b"LAB        FAT16   ");
    disk[..boot.len()].copy_from_slice(&boot);
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);

    // Clusters 2 and 3 are the folders, the program follows; each chain ends with 0xffff.
    let mut fat = vec![0xfff8_u16, 0xffff, 0xffff, 0xffff];
    let last = 4 + clusters - 1;
    fat.extend((4..last).map(|cluster| cluster as u16 + 1));
    fat.push(0xffff);
    let fat: Vec<u8> = fat.into_iter().flat_map(u16::to_le_bytes).collect();
    for copy in 0..2 {
        let at = (1 + copy * usize::from(FAT_SECTORS)) * SECTOR;
        disk[at..at + fat.len()].copy_from_slice(&fat);
    }
    let cluster_at = |cluster: usize| (DATA + (cluster - 2) * SECTORS_PER_CLUSTER) * SECTOR;
    let folder = |list: &[[u8; 32]]| list.concat();
    let efi = entry(b"EFI        ", true, 2, 0);
    let root = (1 + 2 * usize::from(FAT_SECTORS)) * SECTOR;
    for (at, entries) in [
        (root, folder(&[efi])),
        (
            cluster_at(2),
            folder(&[
                entry(b".          ", true, 2, 0),
                entry(b"..         ", true, 0, 0),
                entry(b"BOOT       ", true, 3, 0),
            ]),
        ),
        (
            cluster_at(3),
            folder(&[
                entry(b".          ", true, 3, 0),
                entry(b"..         ", true, 2, 0),
                entry(b"BOOTX64 EFI", false, 4, program.len()),
            ]),
        ),
        (cluster_at(4), program.to_vec()),
    ] {
        disk[at..at + entries.len()].copy_from_slice(&entries);
    }
    Ok(disk)
}

/// A folder entry with a short name.
fn entry(name: &[u8; 11], is_folder: bool, cluster: u16, size: usize) -> [u8; 32] {
    let mut entry = [0; 32];
    entry[..11].copy_from_slice(name);
    entry[11] = if is_folder { 0x10 } else { 0x20 };
    entry[26..28].copy_from_slice(&cluster.to_le_bytes());
    entry[28..].copy_from_slice(&(size as u32).to_le_bytes());
    entry
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_installer_finds_its_place_in_the_table() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        let disk = gpt(&vec![7; usize::from(SECTORS) * SECTOR], 1);
        assert_eq!(disk.len() % 4096, 0);
        let head = &disk[..1 << 20];
        let place = attester::install::package::place(head, disk.len() as u64);
        let place = place.unwrap().unwrap();
        let from = (ESP_FROM + usize::from(SECTORS)) * SECTOR;
        assert_eq!((place.from, place.length), (from as u64, 1 << 20));
    }

    #[test]
    fn the_program_is_a_pe_image_as_firmware_reads_it() {
        let image = program();
        let measured = boot::measure::measure(&image).unwrap();
        assert_eq!(measured.size_bytes, image.len() as u64);
        // The text lies where the code says: 6 bytes behind the end of the lea.
        let text: Vec<u8> = "\r\nLOCAL"
            .encode_utf16()
            .flat_map(u16::to_le_bytes)
            .collect();
        let at = 0x200 + 15 + 6;
        assert_eq!(image[at..at + text.len()], text);
    }

    #[test]
    fn the_volume_holds_the_program_in_its_clusters() {
        let program: Vec<u8> = (0..5_000_u32).map(|n| n as u8).collect();
        let disk = volume(&program).unwrap();
        let at = (DATA + 2 * SECTORS_PER_CLUSTER) * SECTOR;
        assert_eq!(disk[at..at + program.len()], program);
        // Three clusters: 4 to 5 to 6 to the end.
        assert_eq!(disk[SECTOR + 8..SECTOR + 14], [5, 0, 6, 0, 0xff, 0xff]);
        assert_eq!(disk.len(), usize::from(SECTORS) * SECTOR);
    }
}

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
    let unsigned = path.with_extension("unsigned.efi");
    let signed = path.with_extension("efi");
    fs::write(&unsigned, program())?;
    let keys = site_keys()?;
    let mut sign = Command::new("sbsign");
    sign.arg("--key").arg(keys.db_key());
    sign.arg("--cert").arg(keys.db_certificate());
    sign.arg("--output").arg(&signed).arg(&unsigned);
    output(&mut sign, Duration::from_secs(30)).context("sbsign")?;
    fs::write(path, volume(&fs::read(&signed)?)?)?;
    Ok(())
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

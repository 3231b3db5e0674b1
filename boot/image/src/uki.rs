//! A unified kernel image: systemd-stub with kernel, initramfs and command line as further PE sections
//! (UAPI.5, "Unified Kernel Image").
//!
//! The sections are written here, not by `objcopy`: placement is a few lines, and the result is the same bytes
//! everywhere. The image is then measured with the gateway's own code, so an image that could not be predicted is
//! never built.

use boot::measure::{MeasureError, Measured, measure};
use boot::pe::{Pe, PeError};

/// Why there is no image.
#[derive(Debug, thiserror::Error)]
pub enum UkiError {
    /// The stub is no PE image.
    #[error("the stub")]
    Stub(#[source] PeError),
    /// The stub's header has no room for more sections.
    #[error("the stub's header has room for {room} more sections, {needed} are needed")]
    Header {
        /// Rows free.
        room: usize,
        /// Rows needed.
        needed: usize,
    },
    /// The stub has that section already.
    #[error("the stub has a section {0} already")]
    Taken(&'static str),
    /// A section with nothing in it.
    #[error("section {0} is empty")]
    Empty(&'static str),
    /// More than PE offsets can say.
    #[error("the image would be larger than 4 GiB")]
    Size,
    /// The result cannot be predicted.
    #[error("the image")]
    Measure(#[source] MeasureError),
}

/// What goes into an image.
#[derive(Debug, Clone)]
pub struct Contents<'a> {
    /// `linuxx64.efi.stub`.
    pub stub: &'a [u8],
    /// `os-release(5)` text.
    pub os_release: &'a str,
    /// Kernel command line; with Secure Boot on, the stub takes no other.
    pub cmdline: &'a str,
    /// Kernel release.
    pub uname: &'a str,
    /// Compressed initramfs.
    pub initrd: &'a [u8],
    /// Kernel image.
    pub linux: &'a [u8],
}

const SECTION_ROW: usize = 40;
/// The kernel and others read sections from memory by pages.
const PAGE: usize = 0x1000;
/// `IMAGE_SCN_CNT_INITIALIZED_DATA | IMAGE_SCN_MEM_READ`: no section of ours is executed where it lies.
const DATA: u32 = 0x4000_0040;

/// Builds the unsigned image and its figures.
///
/// # Errors
/// [`UkiError`].
pub fn build(contents: &Contents<'_>) -> Result<(Vec<u8>, Measured), UkiError> {
    let sections: [(&'static str, &[u8]); 5] = [
        (".osrel", contents.os_release.as_bytes()),
        (".cmdline", contents.cmdline.as_bytes()),
        (".uname", contents.uname.as_bytes()),
        (".initrd", contents.initrd),
        (".linux", contents.linux),
    ];
    let image = append(contents.stub, &sections)?;
    let measured = measure(&image).map_err(UkiError::Measure)?;
    Ok((image, measured))
}

fn append(stub: &[u8], sections: &[(&'static str, &[u8])]) -> Result<Vec<u8>, UkiError> {
    let pe = Pe::parse(stub).map_err(UkiError::Stub)?;
    let layout = pe.layout;
    let first_byte = pe
        .sections
        .iter()
        .filter(|section| section.raw_size > 0)
        .map(|section| section.raw_offset)
        .min()
        .unwrap_or(layout.headers_size)
        .min(layout.headers_size);
    let room = first_byte.saturating_sub(layout.section_table_end) / SECTION_ROW;
    if room < sections.len() {
        return Err(UkiError::Header {
            room,
            needed: sections.len(),
        });
    }
    let alignment = layout.section_alignment.max(PAGE);
    let mut address = pe
        .sections
        .iter()
        .map(|section| section.virtual_address + section.virtual_size.max(section.raw_size))
        .max()
        .unwrap_or_default();
    let mut image = contents_end(stub, &pe)?.to_vec();
    image.resize(image.len().next_multiple_of(layout.file_alignment), 0);
    // The COFF symbol table that followed is gone: `PointerToSymbolTable` and `NumberOfSymbols`.
    image[layout.symbol_table..layout.symbol_table + 8].fill(0);
    let mut row = layout.section_table_end;
    for (name, content) in sections {
        if pe.sections.iter().any(|section| section.name == *name) {
            return Err(UkiError::Taken(name));
        }
        if content.is_empty() {
            return Err(UkiError::Empty(name));
        }
        address = address.next_multiple_of(alignment);
        let raw_size = content.len().next_multiple_of(layout.file_alignment);
        image[row..row + SECTION_ROW].fill(0);
        image[row..row + name.len()].copy_from_slice(name.as_bytes());
        for (offset, value) in [
            (8, content.len()),
            (12, address),
            (16, raw_size),
            (20, image.len()),
        ] {
            put(&mut image, row + offset, value)?;
        }
        image[row + 36..row + 40].copy_from_slice(&DATA.to_le_bytes());
        let end = image.len() + raw_size;
        image.extend_from_slice(content);
        image.resize(end, 0);
        address += content.len();
        row += SECTION_ROW;
    }
    put(
        &mut image,
        layout.size_of_image,
        address.next_multiple_of(alignment),
    )?;
    // Firmware does not look at the checksum and signing writes it anew; a wrong one must not stay.
    put(&mut image, layout.checksum, 0)?;
    let count = u16::try_from(pe.sections.len() + sections.len()).map_err(|_| UkiError::Size)?;
    image[layout.number_of_sections..layout.number_of_sections + 2]
        .copy_from_slice(&count.to_le_bytes());
    Ok(image)
}

/// The stub up to the end of its last section. What follows is a symbol table, which would be a gap between sections:
/// firmware and signing tools do not agree on how a gap is hashed.
fn contents_end<'a>(stub: &'a [u8], pe: &Pe<'_>) -> Result<&'a [u8], UkiError> {
    let end = pe
        .sections
        .iter()
        .map(|section| section.raw_offset + section.raw_size)
        .max()
        .unwrap_or(pe.layout.headers_size);
    stub.get(..end).ok_or(UkiError::Stub(PeError::Short {
        what: "section",
        end,
        size: stub.len(),
    }))
}

fn put(image: &mut [u8], at: usize, value: usize) -> Result<(), UkiError> {
    let value = u32::try_from(value).map_err(|_| UkiError::Size)?;
    image[at..at + 4].copy_from_slice(&value.to_le_bytes());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stub with one section and a symbol table behind it; `rows` is how many rows the section table has room for.
    fn stub(rows: usize) -> Vec<u8> {
        let optional = 0x98;
        let table = optional + 240;
        let headers = (table + rows * SECTION_ROW).next_multiple_of(0x200);
        let mut file = vec![0; headers];
        file[..2].copy_from_slice(b"MZ");
        file[0x3c] = 0x80;
        file[0x80..0x84].copy_from_slice(b"PE\0\0");
        file[0x86] = 1;
        file[0x8c..0x90].copy_from_slice(&0x600u32.to_le_bytes());
        file[0x94] = 240;
        file[optional..optional + 2].copy_from_slice(&0x20b_u16.to_le_bytes());
        let magic = b"#### LoaderInfo: systemd-stub 252.1 ####";
        for (at, value) in [
            (optional + 32, 0x200),
            (optional + 36, 0x200),
            (optional + 60, table + rows * SECTION_ROW),
            (optional + 108, 16),
            (table + 8, magic.len()),
            (table + 12, 0x4000),
            (table + 16, 0x200),
            (table + 20, headers),
        ] {
            put(&mut file, at, value).unwrap();
        }
        file[table..table + 8].copy_from_slice(b".sdmagic");
        file.extend_from_slice(magic);
        file.resize(headers + 0x200, 0);
        file.extend_from_slice(b"symbols");
        file
    }

    fn contents<'a>(stub: &'a [u8], linux: &'a [u8]) -> Contents<'a> {
        Contents {
            stub,
            os_release: "ID=vestibule\n",
            cmdline: "quiet",
            uname: "6.1",
            initrd: b"cpio",
            linux,
        }
    }

    #[test]
    fn sections_hold_what_was_given_and_do_not_overlap() {
        let stub = stub(8);
        let (image, measured) = build(&contents(&stub, &stub)).unwrap();
        let pe = Pe::parse(&image).unwrap();
        assert_eq!(pe.section(".cmdline"), Some(&b"quiet"[..]));
        assert_eq!(pe.section(".initrd"), Some(&b"cpio"[..]));
        assert_eq!(pe.section(".linux"), Some(&stub[..]));
        for pair in pe.sections.windows(2) {
            assert!(pair[1].virtual_address >= pair[0].virtual_address + pair[0].virtual_size);
            assert_eq!(
                pair[1].raw_offset,
                pair[0].raw_offset + pair[0].raw_size,
                "no gap"
            );
        }
        assert_eq!(image[0x8c..0x94], [0; 8], "no symbol table");
        let uki = measured.uki.unwrap();
        assert_eq!(uki.cmdline.as_deref(), Some("quiet"));
        assert_eq!(build(&contents(&stub, &stub)).unwrap().0, image);
    }

    #[test]
    fn rejects_a_stub_without_room() {
        let (small, kernel) = (stub(5), stub(8));
        assert!(matches!(
            build(&contents(&small, &kernel)),
            Err(UkiError::Header { room: 4, needed: 5 })
        ));
    }

    #[test]
    fn rejects_nothing_in_a_section_and_a_section_twice() {
        let stub = stub(20);
        let empty = Contents {
            cmdline: "",
            ..contents(&stub, &stub)
        };
        assert!(matches!(build(&empty), Err(UkiError::Empty(".cmdline"))));
        let (uki, _) = build(&contents(&stub, &stub)).unwrap();
        assert!(matches!(
            build(&contents(&uki, &stub)),
            Err(UkiError::Taken(".osrel"))
        ));
    }

    #[test]
    fn rejects_a_kernel_that_firmware_would_not_start() {
        let stub = stub(8);
        assert!(matches!(
            build(&contents(&stub, b"not a kernel")),
            Err(UkiError::Measure(MeasureError::Linux(_)))
        ));
        assert!(matches!(
            build(&contents(b"MZ", &stub)),
            Err(UkiError::Stub(_))
        ));
    }
}

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
    let mut image = stub.to_vec();
    image.resize(image.len().next_multiple_of(layout.file_alignment), 0);
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

fn put(image: &mut [u8], at: usize, value: usize) -> Result<(), UkiError> {
    let value = u32::try_from(value).map_err(|_| UkiError::Size)?;
    image[at..at + 4].copy_from_slice(&value.to_le_bytes());
    Ok(())
}

//! PE/COFF images as firmware reads them: sections, certificate table, Authenticode digest.
//!
//! Own and small because firmware's verdict rests on exactly these bytes. Knows nothing of signatures: who signed
//! is the firmware's business, what was run is ours. Every offset is checked; any bytes may come in.

use sha2::{Digest, Sha256};

/// Most sections we read; UKIs have about fifteen.
pub const SECTIONS_MAX: usize = 96;

/// Why bytes are not a PE image.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PeError {
    /// A header or section reaches past the end of the file.
    #[error("pe image: {what} needs bytes up to {end}, the file has {size}")]
    Short {
        /// Which part.
        what: &'static str,
        /// First byte after it.
        end: usize,
        /// Size of the file in bytes.
        size: usize,
    },
    /// A field has a value that no image has.
    #[error("pe image: {what} is {found}")]
    Invalid {
        /// Which field.
        what: &'static str,
        /// Its value.
        found: u64,
    },
}

/// One row of the section table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    /// Name without padding.
    pub name: String,
    /// Size in memory, bytes.
    pub virtual_size: usize,
    /// Place in memory, from the image base.
    pub virtual_address: usize,
    /// Place in the file.
    pub raw_offset: usize,
    /// Size in the file, bytes; a multiple of the file alignment.
    pub raw_size: usize,
}

/// A parsed image, borrowing its bytes.
#[derive(Debug, Clone)]
pub struct Pe<'a> {
    bytes: &'a [u8],
    /// Section table, in file order.
    pub sections: Vec<Section>,
    /// Offsets that changing the image needs.
    pub layout: Layout,
    /// Size of the certificate table at the end, bytes; 0 when unsigned.
    pub certificates_size: usize,
}

/// Where the fields are, as byte offsets into the file, and the values that placing sections needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Of `NumberOfSections` (u16).
    pub number_of_sections: usize,
    /// Of `PointerToSymbolTable` and `NumberOfSymbols` (8 bytes).
    pub symbol_table: usize,
    /// Of `SizeOfImage` (u32).
    pub size_of_image: usize,
    /// Of `CheckSum` (u32).
    pub checksum: usize,
    /// Of the certificate table's row in the data directory (8 bytes).
    pub certificate_row: Option<usize>,
    /// First byte after the last row of the section table.
    pub section_table_end: usize,
    /// `SizeOfHeaders`.
    pub headers_size: usize,
    /// `SectionAlignment`.
    pub section_alignment: usize,
    /// `FileAlignment`.
    pub file_alignment: usize,
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn get<const N: usize>(&self, at: usize, what: &'static str) -> Result<[u8; N], PeError> {
        let end = at.saturating_add(N);
        self.0
            .get(at..end)
            .and_then(|bytes| bytes.try_into().ok())
            .ok_or(PeError::Short {
                what,
                end,
                size: self.0.len(),
            })
    }

    fn u16(&self, at: usize, what: &'static str) -> Result<usize, PeError> {
        Ok(usize::from(u16::from_le_bytes(self.get(at, what)?)))
    }

    fn u32(&self, at: usize, what: &'static str) -> Result<usize, PeError> {
        Ok(u32::from_le_bytes(self.get(at, what)?) as usize)
    }
}

/// Offsets within the headers (PE/COFF specification, revision 11).
mod field {
    pub const PE_OFFSET: usize = 0x3c;
    pub const COFF_SECTIONS: usize = 6;
    pub const COFF_SYMBOLS: usize = 12;
    pub const COFF_OPTIONAL_SIZE: usize = 20;
    pub const OPTIONAL: usize = 24;
    pub const SECTION_ALIGNMENT: usize = 32;
    pub const FILE_ALIGNMENT: usize = 36;
    pub const SIZE_OF_IMAGE: usize = 56;
    pub const SIZE_OF_HEADERS: usize = 60;
    pub const CHECKSUM: usize = 64;
    pub const SECTION_ROW: usize = 40;
    /// Fifth row of the data directory.
    pub const CERTIFICATES: usize = 4 * 8;
}

impl<'a> Pe<'a> {
    /// Reads the headers.
    ///
    /// # Errors
    /// [`PeError`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, PeError> {
        let read = Reader(bytes);
        if &read.get::<2>(0, "DOS header")? != b"MZ" {
            return Err(invalid("DOS signature", read.u16(0, "DOS header")?));
        }
        let pe = read.u32(field::PE_OFFSET, "DOS header")?;
        if &read.get::<4>(pe, "PE signature")? != b"PE\0\0" {
            return Err(invalid("PE signature", read.u32(pe, "PE signature")?));
        }
        let count = read.u16(pe.saturating_add(field::COFF_SECTIONS), "COFF header")?;
        if count == 0 || count > SECTIONS_MAX {
            return Err(invalid("number of sections", count));
        }
        let optional_size = read.u16(pe + field::COFF_OPTIONAL_SIZE, "COFF header")?;
        let optional = pe + field::OPTIONAL;
        let magic = read.u16(optional, "optional header")?;
        // Rows of the data directory are counted just before it; PE32+ has wider fields in between.
        let count_at = optional
            + match magic {
                0x20b => 108,
                0x10b => 92,
                other => return Err(invalid("optional header magic", other)),
            };
        let rows = read.u32(count_at, "data directory")?;
        // edk2 demands it too: a section table inside the optional header would be read as both.
        if count_at + 4 + rows * 8 != optional + optional_size {
            return Err(invalid("size of the optional header", optional_size));
        }
        let certificate_row = (rows > 4).then_some(count_at + 4 + field::CERTIFICATES);
        let section_table = optional + optional_size;
        let layout = Layout {
            number_of_sections: pe + field::COFF_SECTIONS,
            symbol_table: pe + field::COFF_SYMBOLS,
            size_of_image: optional + field::SIZE_OF_IMAGE,
            checksum: optional + field::CHECKSUM,
            certificate_row,
            section_table_end: section_table + count * field::SECTION_ROW,
            headers_size: read.u32(optional + field::SIZE_OF_HEADERS, "optional header")?,
            section_alignment: read.u32(optional + field::SECTION_ALIGNMENT, "optional header")?,
            file_alignment: read.u32(optional + field::FILE_ALIGNMENT, "optional header")?,
        };
        check_layout(&layout, bytes.len())?;
        let sections = (0..count)
            .map(|index| section(&read, section_table + index * field::SECTION_ROW))
            .collect::<Result<Vec<_>, _>>()?;
        // edk2 refuses it too (BasePeCoffLib): such a section would put header fields under the digest twice.
        if let Some(inside) = sections
            .iter()
            .find(|section| section.raw_size > 0 && section.raw_offset < layout.headers_size)
        {
            return Err(invalid(
                "offset of a section, inside the headers",
                inside.raw_offset,
            ));
        }
        let certificates_size = certificates(&read, certificate_row)?;
        Ok(Self {
            bytes,
            sections,
            layout,
            certificates_size,
        })
    }

    /// Content of the first section called `name` as it lies in memory, cut to its file part: the padding of the
    /// file is not part of it.
    pub fn section(&self, name: &str) -> Option<&'a [u8]> {
        let section = self.sections.iter().find(|section| section.name == name)?;
        let size = section.raw_size.min(section.virtual_size);
        self.bytes
            .get(section.raw_offset..section.raw_offset.checked_add(size)?)
    }

    /// The Authenticode digest with SHA-256: what Secure Boot checks and what `EV_EFI_BOOT_SERVICES_APPLICATION`
    /// puts into PCR 4 (TCG PC Client Platform Firmware Profile 1.06 §3.3.4.5; Microsoft, "Windows Authenticode
    /// Portable Executable Signature Format"). As in edk2, headers without checksum and certificate row, then
    /// sections by file offset, then what follows them without the certificates.
    ///
    /// # Errors
    /// [`PeError::Short`] when a section or the certificates lie outside the file.
    pub fn authenticode_sha256(&self) -> Result<[u8; 32], PeError> {
        let mut hash = Sha256::new();
        let mut at = 0;
        for (start, length) in [
            Some((self.layout.checksum, 4)),
            self.layout.certificate_row.map(|row| (row, 8)),
        ]
        .into_iter()
        .flatten()
        {
            hash.update(self.range(at, start, "headers")?);
            at = start + length;
        }
        hash.update(self.range(at, self.layout.headers_size, "headers")?);
        let mut hashed = self.layout.headers_size;
        let mut sections: Vec<&Section> = self.sections.iter().collect();
        sections.sort_by_key(|section| section.raw_offset);
        for section in sections.into_iter().filter(|section| section.raw_size > 0) {
            let end = section.raw_offset.saturating_add(section.raw_size);
            hash.update(self.range(section.raw_offset, end, "section")?);
            hashed = hashed.saturating_add(section.raw_size);
        }
        let end = self.bytes.len() - self.certificates_size;
        if hashed < end {
            hash.update(self.range(hashed, end, "trailing data")?);
        }
        Ok(hash.finalize().into())
    }

    fn range(&self, start: usize, end: usize, what: &'static str) -> Result<&'a [u8], PeError> {
        self.bytes.get(start..end).ok_or(PeError::Short {
            what,
            end,
            size: self.bytes.len(),
        })
    }
}

fn check_layout(layout: &Layout, size: usize) -> Result<(), PeError> {
    let power = |value: usize| value.is_power_of_two();
    if !power(layout.file_alignment) || layout.file_alignment > 0x1_0000 {
        return Err(invalid("file alignment", layout.file_alignment));
    }
    if !power(layout.section_alignment) || layout.section_alignment > 0x100_0000 {
        return Err(invalid("section alignment", layout.section_alignment));
    }
    let fixed_end = layout
        .certificate_row
        .map_or(layout.checksum + 4, |row| row + 8)
        .max(layout.section_table_end);
    if layout.headers_size < fixed_end {
        return Err(invalid("size of headers", layout.headers_size));
    }
    if layout.headers_size > size {
        return Err(PeError::Short {
            what: "headers",
            end: layout.headers_size,
            size,
        });
    }
    Ok(())
}

fn section(read: &Reader<'_>, row: usize) -> Result<Section, PeError> {
    let name: [u8; 8] = read.get(row, "section table")?;
    let used = name.iter().position(|byte| *byte == 0).unwrap_or(8);
    Ok(Section {
        name: String::from_utf8_lossy(&name[..used]).into_owned(),
        virtual_size: read.u32(row + 8, "section table")?,
        virtual_address: read.u32(row + 12, "section table")?,
        raw_size: read.u32(row + 16, "section table")?,
        raw_offset: read.u32(row + 20, "section table")?,
    })
}

/// Size of the certificate table. It must be the end of the file: bytes after it would be run by some loaders and
/// hashed by none.
fn certificates(read: &Reader<'_>, row: Option<usize>) -> Result<usize, PeError> {
    let Some(row) = row else { return Ok(0) };
    let offset = read.u32(row, "data directory")?;
    let size = read.u32(row + 4, "data directory")?;
    if size == 0 {
        return Ok(0);
    }
    let end = offset.saturating_add(size);
    if end > read.0.len() {
        return Err(PeError::Short {
            what: "certificate table",
            end,
            size: read.0.len(),
        });
    }
    if end != read.0.len() {
        return Err(invalid(
            "bytes after the certificate table",
            read.0.len() - end,
        ));
    }
    Ok(size)
}

fn invalid(what: &'static str, found: usize) -> PeError {
    PeError::Invalid {
        what,
        found: found as u64,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A little PE32+ image with the given sections; enough for every rule here.
    pub(crate) fn image(sections: &[(&str, &[u8])]) -> Vec<u8> {
        let headers = 0x400;
        let mut file = vec![0; headers];
        file[..2].copy_from_slice(b"MZ");
        file[0x3c] = 0x80;
        file[0x80..0x84].copy_from_slice(b"PE\0\0");
        file[0x86] = u8::try_from(sections.len()).unwrap();
        file[0x94] = 240;
        let optional = 0x98;
        file[optional..optional + 2].copy_from_slice(&0x20b_u16.to_le_bytes());
        file[optional + 32..optional + 36].copy_from_slice(&0x1000_u32.to_le_bytes());
        file[optional + 36..optional + 40].copy_from_slice(&0x200_u32.to_le_bytes());
        file[optional + 60..optional + 64].copy_from_slice(&0x400_u32.to_le_bytes());
        file[optional + 108] = 16;
        for (index, (name, data)) in sections.iter().enumerate() {
            let row = optional + 240 + index * 40;
            let at = u32::try_from(file.len()).unwrap();
            let raw = u32::try_from(data.len().next_multiple_of(0x200)).unwrap();
            file[row..row + name.len()].copy_from_slice(name.as_bytes());
            for (offset, value) in [
                (8, u32::try_from(data.len()).unwrap()),
                (12, 0x1000 * (u32::try_from(index).unwrap() + 1)),
                (16, raw),
                (20, at),
            ] {
                file[row + offset..row + offset + 4].copy_from_slice(&value.to_le_bytes());
            }
            file.extend_from_slice(data);
            file.resize((at + raw) as usize, 0);
        }
        file
    }

    fn with_certificates(mut file: Vec<u8>, table: &[u8]) -> Vec<u8> {
        let at = u32::try_from(file.len()).unwrap();
        file[0x98 + 144..0x98 + 148].copy_from_slice(&at.to_le_bytes());
        file[0x98 + 148..0x98 + 152]
            .copy_from_slice(&u32::try_from(table.len()).unwrap().to_le_bytes());
        file.extend_from_slice(table);
        file
    }

    #[test]
    fn the_digest_ignores_signature_and_checksum_and_nothing_else() {
        let plain = image(&[(".text", b"code"), (".linux", b"kernel")]);
        let digest = Pe::parse(&plain).unwrap().authenticode_sha256().unwrap();
        let mut signed = with_certificates(plain.clone(), &[7; 64]);
        signed[0x98 + 64] ^= 0xff;
        let pe = Pe::parse(&signed).unwrap();
        assert_eq!(pe.certificates_size, 64);
        assert_eq!(pe.authenticode_sha256().unwrap(), digest);
        for at in [0x02, 0x98 + 60 + 8, 0x3ff, 0x400, plain.len() - 1] {
            let mut changed = plain.clone();
            changed[at] ^= 1;
            let other = Pe::parse(&changed).unwrap().authenticode_sha256().unwrap();
            assert_ne!(other, digest, "byte {at:#x}");
        }
    }

    #[test]
    fn sections_are_cut_to_their_content() {
        let file = image(&[(".text", b"code"), (".cmdline", b"quiet")]);
        let pe = Pe::parse(&file).unwrap();
        assert_eq!(pe.section(".cmdline"), Some(&b"quiet"[..]));
        assert_eq!(pe.section(".linux"), None);
    }

    #[test]
    fn rejects_bytes_after_the_signature() {
        let mut file = with_certificates(image(&[(".text", b"x")]), &[7; 64]);
        file.push(0);
        assert!(matches!(
            Pe::parse(&file),
            Err(PeError::Invalid { found: 1, .. })
        ));
    }

    #[test]
    fn rejects_a_short_file_at_every_length() {
        let file = with_certificates(image(&[(".text", b"x")]), &[7; 64]);
        for size in 0..file.len() {
            let refused = match Pe::parse(&file[..size]) {
                Ok(pe) => pe.authenticode_sha256().is_err(),
                Err(_) => true,
            };
            assert!(refused, "{size} bytes");
        }
    }

    #[test]
    fn rejects_impossible_fields() {
        let good = image(&[(".text", b"x")]);
        for (at, value) in [
            (0, 0),
            (0x80, 0),
            (0x86, 0),
            (0x98, 0),
            (0x98 + 36, 3),
            (0x98 + 33, 0),
            (0x98 + 61, 0),
            (0x98 + 108, 15),
            (0x98 + 240 + 21, 2),
        ] {
            let mut bad = good.clone();
            bad[at] = value;
            assert!(Pe::parse(&bad).is_err(), "byte {at:#x}");
        }
    }

    proptest::proptest! {
        #[test]
        fn never_panics(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..300),
                        edits in proptest::collection::vec((0usize..0x600, proptest::num::u8::ANY), 0..12)) {
            let _ = Pe::parse(&bytes);
            let mut file = with_certificates(image(&[(".text", b"x"), (".osrel", b"ID=x")]), &[1; 8]);
            for (at, value) in edits {
                if let Some(byte) = file.get_mut(at) { *byte = value; }
            }
            if let Ok(pe) = Pe::parse(&file) {
                let _ = pe.authenticode_sha256();
                let _ = pe.section(".osrel");
            }
        }
    }
}

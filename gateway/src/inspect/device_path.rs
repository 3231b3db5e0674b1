//! UEFI device paths as text, for people to read (UEFI 2.10 section 10.6). A path of a log is the
//! log's word; nothing is decided by it.

use gateway_core::appraisal::variables::guid_text;

/// Nodes shown of one path; real ones have below ten.
const NODES_MAX: usize = 32;

/// The path in words, node after node with `/` between; none when there is no node.
pub(super) fn text(mut path: &[u8]) -> Option<String> {
    let mut nodes = Vec::new();
    while let Some((&[kind, subtype, low, high], rest)) = path.split_first_chunk::<4>() {
        // End of this path, or of one of several.
        if kind == 0x7f && subtype == 0xff {
            break;
        }
        let len = usize::from(u16::from_le_bytes([low, high]));
        let Some((data, after)) = len
            .checked_sub(4)
            .and_then(|len| rest.split_at_checked(len))
        else {
            nodes.push(format!("cut({kind},{subtype})"));
            break;
        };
        if nodes.len() == NODES_MAX {
            nodes.push("more".into());
            break;
        }
        nodes.push(node(kind, subtype, data).unwrap_or_else(|| other(kind, subtype, data)));
        path = after;
    }
    (!nodes.is_empty()).then(|| nodes.join("/"))
}

/// One node; none when it is not known here or its data do not fit.
fn node(kind: u8, subtype: u8, data: &[u8]) -> Option<String> {
    let byte = |at: usize| data.get(at).copied();
    let short = |at: usize| Some(u16::from_le_bytes(data.get(at..at + 2)?.try_into().ok()?));
    let word = |at: usize| Some(u32::from_le_bytes(data.get(at..at + 4)?.try_into().ok()?));
    let long = |at: usize| Some(u64::from_le_bytes(data.get(at..at + 8)?.try_into().ok()?));
    let guid = |at: usize| Some(guid_text(data.get(at..at + 16)?.try_into().ok()?));
    Some(match (kind, subtype) {
        (1, 1) => format!("Pci({:#x},{:#x})", byte(1)?, byte(0)?),
        (1, 3) => format!(
            "MemoryMapped({:#x},{:#x},{:#x})",
            word(0)?,
            long(4)?,
            long(12)?
        ),
        (1, 4) => format!("VenHw({})", guid(0)?),
        // EISA identifiers PNP0A03 and PNP0A08.
        (2, 1) if matches!(word(0)?, 0x0a03_41d0 | 0x0a08_41d0) => {
            format!("PciRoot({:#x})", word(4)?)
        }
        (2, 1) => format!("Acpi({:#010x},{:#x})", word(0)?, word(4)?),
        (3, 2) => format!("Scsi({:#x},{:#x})", short(0)?, short(2)?),
        (3, 5) => format!("USB({:#x},{:#x})", byte(0)?, byte(1)?),
        (3, 10) => format!("VenMsg({})", guid(0)?),
        (3, 11) => format!("MAC({},{:#x})", hex::encode(data.get(..6)?), byte(32)?),
        (3, 12) => format!(
            "IPv4({})",
            data.get(4..8)?
                .iter()
                .map(u8::to_string)
                .collect::<Vec<_>>()
                .join(".")
        ),
        (3, 13) => {
            let octets: [u8; 16] = data.get(16..32)?.try_into().ok()?;
            format!("IPv6({})", std::net::Ipv6Addr::from(octets))
        }
        (3, 18) => format!("Sata({:#x},{:#x},{:#x})", short(0)?, short(2)?, short(4)?),
        (3, 23) => format!("NVMe({:#x})", word(0)?),
        (3, 24) => format!(
            "Uri({})",
            printable(std::str::from_utf8(data).ok()?.into())?
        ),
        (4, 1) => {
            let signature: &[u8] = data.get(20..36)?;
            let partition = match byte(37)? {
                2 => guid_text(signature.try_into().ok()?),
                _ => hex::encode(&signature[..4]),
            };
            format!("HD({},{partition})", word(0)?)
        }
        (4, 3) => format!("VenMedia({})", guid(0)?),
        (4, 4) => printable(utf16(data)?)?,
        (4, 6) => format!("FvFile({})", guid(0)?),
        (4, 7) => format!("Fv({})", guid(0)?),
        (4, 8) => format!("Offset({:#x},{:#x})", long(4)?, long(12)?),
        (4, 9) => format!("RamDisk({:#x},{:#x})", long(0)?, long(8)?),
        // BIOS boot specification: device type, status, description.
        (5, 1) => format!(
            "BBS({:#x},{})",
            short(0)?,
            printable(std::str::from_utf8(data.get(4..)?).ok()?.into())?
        ),
        _ => return None,
    })
}

fn other(kind: u8, subtype: u8, data: &[u8]) -> String {
    let shown = &data[..data.len().min(32)];
    format!("Path({kind},{subtype},{})", hex::encode(shown))
}

fn utf16(data: &[u8]) -> Option<String> {
    let units = data
        .chunks_exact(2)
        .map(|c| u16::from_le_bytes([c[0], c[1]]));
    char::decode_utf16(units).collect::<Result<_, _>>().ok()
}

fn printable(text: String) -> Option<String> {
    let text = text.trim_end_matches('\0').to_owned();
    (!text.chars().any(char::is_control)).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(nodes: &[(u8, u8, &[u8])]) -> Vec<u8> {
        let mut out = Vec::new();
        for (kind, subtype, data) in nodes {
            out.extend([*kind, *subtype]);
            out.extend((data.len() as u16 + 4).to_le_bytes());
            out.extend_from_slice(data);
        }
        out.extend([0x7f, 0xff, 4, 0]);
        out
    }

    #[test]
    fn a_path_reads_as_firmware_prints_it() {
        let root = [0xd0, 0x41, 0x03, 0x0a, 0, 0, 0, 0];
        let file: Vec<u8> = "\\EFI\\BOOT\\BOOTX64.EFI\0"
            .encode_utf16()
            .flat_map(u16::to_le_bytes)
            .collect();
        let whole = path(&[(2, 1, &root), (1, 1, &[0, 0x1f]), (4, 4, &file)]);
        assert_eq!(
            text(&whole).as_deref(),
            Some("PciRoot(0x0)/Pci(0x1f,0x0)/\\EFI\\BOOT\\BOOTX64.EFI")
        );
        let uri = path(&[(3, 24, b"https://192.0.2.1/boot")]);
        assert_eq!(text(&uri).as_deref(), Some("Uri(https://192.0.2.1/boot)"));
        assert_eq!(text(&path(&[])), None);
    }

    #[test]
    fn damaged_paths_are_shown_as_far_as_they_go() {
        for (bytes, shown) in [
            (&[4, 4, 3, 0][..], Some("cut(4,4)")),
            (&[4, 4, 200, 0, 1], Some("cut(4,4)")),
            (&[9, 9, 5, 0, 0xab], Some("Path(9,9,ab)")),
            (&[1, 1, 4, 0], Some("Path(1,1,)")),
            (&[1, 1], None),
        ] {
            assert_eq!(text(bytes).as_deref(), shown, "{bytes:?}");
        }
        let endless = [9, 9, 4, 0].repeat(1000);
        let shown = text(&endless).map(|text| text.matches('/').count());
        assert_eq!(shown, Some(NODES_MAX));
    }
}

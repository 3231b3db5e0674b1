//! Distinguished names: compared as octets, shown as text, read for TPM attributes.
//!
//! A name is never encoded anew: vendors sort the SET of an RDN wrongly (Nuvoton), so a name
//! made from its parts would not be the one that was signed.

use super::der::{DerError, Element, Reader, oid_text, tag};
use super::{TpmNames, shown_text};

/// Attributes of one name. The longest in the field has 12; more are not looked at.
const ATTRIBUTES_MAX: usize = 64;

/// Short names as OpenSSL and RFC 4514 section 3 write them.
const SHORT_NAMES: [(&[u8], &str); 24] = [
    (&[0x55, 4, 3], "CN"),
    (&[0x55, 4, 4], "SN"),
    (&[0x55, 4, 5], "serialNumber"),
    (&[0x55, 4, 6], "C"),
    (&[0x55, 4, 7], "L"),
    (&[0x55, 4, 8], "ST"),
    (&[0x55, 4, 9], "street"),
    (&[0x55, 4, 10], "O"),
    (&[0x55, 4, 11], "OU"),
    (&[0x55, 4, 12], "title"),
    (&[0x55, 4, 13], "description"),
    (&[0x55, 4, 15], "businessCategory"),
    (&[0x55, 4, 17], "postalCode"),
    (&[0x55, 4, 41], "name"),
    (&[0x55, 4, 42], "GN"),
    (&[0x55, 4, 43], "initials"),
    (&[0x55, 4, 44], "generationQualifier"),
    (&[0x55, 4, 46], "dnQualifier"),
    (&[0x55, 4, 65], "pseudonym"),
    (&[0x55, 4, 97], "organizationIdentifier"),
    (
        &[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 25],
        "DC",
    ),
    (
        &[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 1],
        "UID",
    ),
    (
        &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 1],
        "emailAddress",
    ),
    (
        &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 2],
        "unstructuredName",
    ),
];

/// TCG attributes 2.23.133.2.1 to .3 (EK Credential Profile 2.5 section 3.2.9).
const TPM_MANUFACTURER: &[u8] = &[0x67, 0x81, 0x05, 2, 1];
const TPM_MODEL: &[u8] = &[0x67, 0x81, 0x05, 2, 2];
const TPM_VERSION: &[u8] = &[0x67, 0x81, 0x05, 2, 3];

/// One AttributeTypeAndValue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attribute<'a> {
    pub oid: &'a [u8],
    pub value: Element<'a>,
    /// Number of its RDN.
    pub rdn: usize,
}

/// The attributes of a Name, in the order they stand.
///
/// # Errors
/// The first element that is no RDN or attribute.
pub(crate) fn attributes(name: &[u8]) -> Result<Vec<Attribute<'_>>, DerError> {
    let mut rdns = Reader(name).sequence("name")?;
    let mut out = Vec::new();
    let mut rdn = 0;
    while !rdns.is_empty() {
        let mut set = rdns.expect(tag::SET, "RDN")?.inside();
        while !set.is_empty() {
            let mut pair = set.sequence("attribute")?;
            let oid = pair.oid("attribute type")?;
            let value = pair.any("attribute value")?;
            if out.len() >= ATTRIBUTES_MAX {
                return Err(DerError::Form {
                    what: "name",
                    form: "more than 64 attributes",
                });
            }
            out.push(Attribute { oid, value, rdn });
        }
        rdn += 1;
    }
    Ok(out)
}

/// Whether each RDN is sorted as DER sorts a SET OF (X.690 section 11.6).
pub(crate) fn sets_sorted(name: &[u8]) -> bool {
    let Ok(mut rdns) = Reader(name).sequence("name") else {
        return true;
    };
    while let Ok(set) = rdns.any("RDN") {
        let mut pairs = set.inside();
        let mut before: &[u8] = &[];
        while let Ok(pair) = pairs.any("attribute") {
            if pair.raw < before {
                return false;
            }
            before = pair.raw;
        }
    }
    true
}

/// Whether each value is made of octets that its string type has.
pub(crate) fn strings_conform(attributes: &[Attribute<'_>]) -> bool {
    attributes.iter().all(|attribute| {
        let octets = attribute.value.content;
        match attribute.value.tag {
            tag::PRINTABLE_STRING => octets
                .iter()
                .all(|o| o.is_ascii_alphanumeric() || b" '()+,-./:=?".contains(o)),
            tag::IA5_STRING | tag::VISIBLE_STRING => octets.is_ascii(),
            tag::UTF8_STRING => std::str::from_utf8(octets).is_ok(),
            tag::BMP_STRING => octets.len().is_multiple_of(2),
            tag::UNIVERSAL_STRING => octets.len().is_multiple_of(4),
            _ => true,
        }
    })
}

/// A string value as text, whatever its type. Octets beyond ASCII in a type that has none are
/// Latin-1, as TeletexString is in practice.
pub(crate) fn text(value: Element<'_>) -> Option<String> {
    let octets = value.content;
    Some(match value.tag {
        tag::UTF8_STRING => match std::str::from_utf8(octets) {
            Ok(text) => text.to_owned(),
            Err(_) => latin1(octets),
        },
        tag::PRINTABLE_STRING | tag::IA5_STRING | tag::VISIBLE_STRING | tag::TELETEX_STRING => {
            latin1(octets)
        }
        tag::BMP_STRING => {
            let units = octets
                .chunks_exact(2)
                .map(|unit| u16::from_be_bytes([unit[0], unit[1]]));
            char::decode_utf16(units)
                .map(|unit| unit.unwrap_or(char::REPLACEMENT_CHARACTER))
                .collect()
        }
        tag::UNIVERSAL_STRING => octets
            .chunks_exact(4)
            .map(|unit| {
                let unit = u32::from_be_bytes([unit[0], unit[1], unit[2], unit[3]]);
                char::from_u32(unit).unwrap_or(char::REPLACEMENT_CHARACTER)
            })
            .collect(),
        _ => return None,
    })
}

fn latin1(octets: &[u8]) -> String {
    octets.iter().map(|&octet| char::from(octet)).collect()
}

/// The name as `openssl x509 -nameopt RFC2253` writes it (RFC 4514): last RDN first, what is not
/// printable ASCII escaped, a value without short name or text as `#` and its DER in hex.
///
/// # Errors
/// As [`attributes`].
pub(crate) fn rfc4514(name: &[u8]) -> Result<String, DerError> {
    let mut out = String::new();
    let mut rdn = None;
    for attribute in attributes(name)?.iter().rev() {
        if let Some(before) = rdn {
            out.push(if before == attribute.rdn { '+' } else { ',' });
        }
        rdn = Some(attribute.rdn);
        let short = SHORT_NAMES.iter().find(|(oid, _)| *oid == attribute.oid);
        match (short, text(attribute.value)) {
            (Some((_, short)), Some(text)) => {
                out.push_str(short);
                out.push('=');
                escape(&text, &mut out);
            }
            (short, _) => {
                match short {
                    Some((_, short)) => out.push_str(short),
                    None => out.push_str(&oid_text(attribute.oid)),
                }
                out.push_str("=#");
                out.push_str(&hex::encode_upper(attribute.value.raw));
            }
        }
    }
    Ok(out)
}

/// RFC 4514 section 2.4.
fn escape(text: &str, out: &mut String) {
    let last = text.chars().count().saturating_sub(1);
    for (at, c) in text.chars().enumerate() {
        let edge = c == ' ' && (at == 0 || at == last) || c == '#' && at == 0;
        if matches!(c, ',' | '+' | '"' | '\\' | '<' | '>' | ';') || edge {
            out.push('\\');
            out.push(c);
        } else if c.is_ascii() && !c.is_ascii_control() {
            out.push(c);
        } else {
            let mut octets = [0; 4];
            for octet in c.encode_utf8(&mut octets).bytes() {
                out.push_str(&format!("\\{octet:02X}"));
            }
        }
    }
}

/// TPM attributes among these, whether they share an RDN or have one each.
pub(crate) fn tpm_names(attributes: &[Attribute<'_>], names: &mut TpmNames) {
    for attribute in attributes {
        let field = match attribute.oid {
            TPM_MANUFACTURER => &mut names.manufacturer,
            TPM_MODEL => &mut names.model,
            TPM_VERSION => &mut names.version,
            _ => continue,
        };
        *field = shown_text(&text(attribute.value).unwrap_or_default());
    }
}

/// Whether two names are the same for RFC 5280 section 7.1: types equal, values equal whatever
/// their string type, case and runs of spaces. For names whose octets differ.
pub(crate) fn equal_as_text(one: &[u8], other: &[u8]) -> bool {
    let (Ok(one), Ok(other)) = (attributes(one), attributes(other)) else {
        return false;
    };
    !one.is_empty()
        && one.len() == other.len()
        && one.iter().zip(&other).all(|(one, other)| {
            one.oid == other.oid
                && one.rdn == other.rdn
                && match (text(one.value), text(other.value)) {
                    (Some(one), Some(other)) => folded(&one) == folded(&other),
                    _ => one.value.raw == other.value.raw,
                }
        })
}

fn folded(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrap(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
        let content = parts.concat();
        [&[tag, content.len() as u8][..], &content].concat()
    }

    fn pair(oid: &[u8], tag: u8, value: &[u8]) -> Vec<u8> {
        wrap(0x30, &[&wrap(0x06, &[oid]), &wrap(tag, &[value])])
    }

    fn name(rdns: &[&[&[u8]]]) -> Vec<u8> {
        let sets: Vec<Vec<u8>> = rdns.iter().map(|rdn| wrap(0x31, rdn)).collect();
        let sets: Vec<&[u8]> = sets.iter().map(Vec::as_slice).collect();
        wrap(0x30, &sets)
    }

    const CN: &[u8] = &[0x55, 4, 3];
    const C: &[u8] = &[0x55, 4, 6];

    #[test]
    fn names_are_written_as_openssl_writes_them() {
        let table = [
            (0x13, &b"a, b+c"[..], "CN=a\\, b\\+c"),
            (0x0c, " x ".as_bytes(), "CN=\\ x\\ "),
            (0x0c, "#1".as_bytes(), "CN=\\#1"),
            (0x0c, "\u{e4}\n".as_bytes(), "CN=\\C3\\A4\\0A"),
            (0x14, &[b'a', 0xe4], "CN=a\\C3\\A4"),
            (0x1e, &[0, b'x', 0, 0xe4], "CN=x\\C3\\A4"),
            (0x1c, &[0, 0, 0, b'x'], "CN=x"),
            (0x02, &[5], "CN=#020105"),
        ];
        for (tag, value, expected) in table {
            let name = name(&[&[&pair(CN, tag, value)]]);
            assert_eq!(rfc4514(&name).expect("a name"), expected);
        }
        let both = name(&[
            &[&pair(C, 0x13, b"TW"), &pair(CN, 0x13, b"x")],
            &[&pair(TPM_MODEL, 0x0c, b"m")],
        ]);
        assert_eq!(
            rfc4514(&both).expect("a name"),
            "2.23.133.2.2=#0C016D,CN=x+C=TW"
        );
        assert_eq!(rfc4514(&[0x30, 0]).expect("empty"), "");
    }

    #[test]
    fn an_unsorted_set_is_seen_and_read() {
        let (cn, c) = (pair(CN, 0x13, b"x"), pair(C, 0x13, b"TWTWTWTW"));
        assert!(sets_sorted(&name(&[&[&cn, &c]])));
        assert!(!sets_sorted(&name(&[&[&c, &cn]])));
        assert_eq!(
            rfc4514(&name(&[&[&c, &cn]])).expect("read"),
            "CN=x+C=TWTWTWTW"
        );
    }

    #[test]
    fn tpm_attributes_share_an_rdn_or_have_one_each() {
        let parts = [
            pair(TPM_MANUFACTURER, 0x0c, b"id:4E544300"),
            pair(TPM_MODEL, 0x13, b"NPCT75x"),
            pair(TPM_VERSION, 0x14, b"id:0702"),
        ];
        let [one, two, three] = &parts;
        for name in [
            name(&[&[one, two, three]]),
            name(&[&[one], &[two], &[three]]),
        ] {
            let mut names = TpmNames::default();
            tpm_names(&attributes(&name).expect("read"), &mut names);
            assert_eq!(names.manufacturer, "id:4E544300");
            assert_eq!((&*names.model, &*names.version), ("NPCT75x", "id:0702"));
        }
    }

    #[test]
    fn names_of_another_string_type_and_case_are_the_same_name() {
        let one = name(&[&[&pair(CN, 0x13, b"Vendor  CA")]]);
        let two = name(&[&[&pair(CN, 0x0c, b"vendor ca")]]);
        assert!(equal_as_text(&one, &two));
        assert!(!equal_as_text(
            &one,
            &name(&[&[&pair(C, 0x0c, b"vendor ca")]])
        ));
        assert!(!equal_as_text(
            &one,
            &name(&[&[&pair(CN, 0x0c, b"vendor c")]])
        ));
        assert!(!equal_as_text(&[0x30, 0], &[0x30, 0]));
    }

    #[test]
    fn octets_that_a_string_type_does_not_have_are_seen() {
        for (tag, value, conforms) in [
            (0x13, &b"a_b"[..], false),
            (0x13, b"a-b", true),
            (0x16, &[0xe4], false),
            (0x0c, &[0xe4], false),
            (0x1e, &[0], false),
            (0x14, &[0xe4], true),
        ] {
            let name = name(&[&[&pair(CN, tag, value)]]);
            let read = attributes(&name).expect("read");
            assert_eq!(strings_conform(&read), conforms, "{tag:#x} {value:02x?}");
            assert!(text(read[0].value).is_some());
        }
    }
}

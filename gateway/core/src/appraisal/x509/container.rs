//! What a file or an NV index holds: certificates in whatever they are wrapped in.
//!
//! PEM with text around it, bare DER, the header of the TPM 1.2 PC Client rules, padding and other
//! octets behind, several certificates one after the other (the chain from NV index 0x01c00100 on),
//! PKCS #7, UEFI signature lists and signed updates of them, the JSON of Intel's service. Finds and
//! cuts; reading is `Cert`'s. Every octet is looked at a bounded number of times.

use std::borrow::Cow;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

use super::der::{DerError, Element, Reader, tag};
use super::{CertError, shown_text};

/// Largest file looked at. All vendors' certificates together have half a mebibyte as PEM.
pub const FILE_MAX_BYTES: usize = 16 << 20;
/// Objects of one file; all vendors' certificates together are some 500.
const OBJECTS_MAX: usize = 8192;
/// Certificates of one chain from NV; Intel's has five.
const CHAIN_MAX: usize = 16;

/// Header of a certificate stored by the TPM 1.2 PC Client rules: tag 0x1001, full certificate.
const NV_TAG_STORED_CERT: [u8; 3] = [0x10, 0x01, 0x00];
const NV_TAG_FULL_CERT: [u8; 2] = [0x10, 0x02];

/// signedData (RFC 2315 section 14).
const SIGNED_DATA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 7, 2];

/// EFI_CERT_X509_GUID and EFI_CERT_TYPE_PKCS7_GUID (UEFI 2.10 section 32.4.1), as stored.
const EFI_CERT_X509: [u8; 16] = [
    0xa1, 0x59, 0xc0, 0xa5, 0xe4, 0x94, 0xa7, 0x4a, 0x87, 0xb5, 0xab, 0x15, 0x5c, 0x2b, 0xf0, 0x72,
];
const EFI_CERT_TYPE_PKCS7: [u8; 16] = [
    0x9d, 0xd2, 0xaf, 0x4a, 0xdf, 0x68, 0xee, 0x49, 0x8a, 0xa9, 0x34, 0x7d, 0x37, 0x56, 0x65, 0xa7,
];
const EFI_LIST_HEADER_BYTES: usize = 28;
const EFI_OWNER_BYTES: usize = 16;

/// Base64 of any padding: files lose it.
const BASE64: GeneralPurpose = GeneralPurpose::new(&alphabet::STANDARD, LENIENT);
const BASE64_URL: GeneralPurpose = GeneralPurpose::new(&alphabet::URL_SAFE, LENIENT);
const LENIENT: GeneralPurposeConfig =
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);

/// What an object was wrapped in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A PEM block.
    Pem,
    /// DER as it is.
    Der,
    /// Behind the 7-octet header of the TPM 1.2 PC Client rules.
    NvHeader,
    /// In PKCS #7 signed data.
    Pkcs7,
    /// In a UEFI signature list.
    EfiSignatureList,
    /// In the JSON of Intel's EK certificate service.
    IntelJson,
}

impl Form {
    /// Word for output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pem => "pem",
            Self::Der => "der",
            Self::NvHeader => "nv-header",
            Self::Pkcs7 => "pkcs7",
            Self::EfiSignatureList => "efi-signature-list",
            Self::IntelJson => "intel-json",
        }
    }
}

/// What the octets are, by their first elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// A certificate.
    Certificate,
    /// An attribute certificate.
    AttributeCertificate,
    /// A revocation list.
    Crl,
    /// Certificates around a signature.
    Pkcs7,
    /// It should be a certificate and cannot be cut out.
    Damaged(CertError),
    /// DER of something else.
    Other(&'static str),
}

/// One thing found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object<'a> {
    /// What it was wrapped in.
    pub form: Form,
    /// Where it begins in the file: of a PEM block its first line.
    pub offset: usize,
    /// What it is.
    pub what: What,
    /// Its DER; empty when damaged.
    pub der: Cow<'a, [u8]>,
    /// Octets before and behind it that belong to nothing.
    pub padding: usize,
    /// `pubhash` of Intel's service.
    pub public_hash: Option<Vec<u8>>,
}

/// Everything a file holds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Contents<'a> {
    /// In file order.
    pub objects: Vec<Object<'a>>,
    /// What else was seen, in words: other PEM blocks, digests of signature lists.
    pub others: Vec<String>,
}

impl<'a> Contents<'a> {
    fn push(&mut self, form: Form, offset: usize, what: What, der: Cow<'a, [u8]>) {
        if self.objects.len() < OBJECTS_MAX {
            self.objects.push(Object {
                form,
                offset,
                what,
                der,
                padding: 0,
                public_hash: None,
            });
        } else if self.objects.len() == OBJECTS_MAX {
            self.other(format!(
                "more than {OBJECTS_MAX} objects; the rest was not read"
            ));
        }
    }

    fn other(&mut self, text: impl Into<String>) {
        let text = text.into();
        if self.others.len() < 64 && !self.others.contains(&text) {
            self.others.push(text);
        }
    }
}

/// Looks at a file. Never fails: a file of something else holds no object.
pub fn contents(file: &[u8]) -> Contents<'_> {
    let mut found = Contents::default();
    let start = file
        .iter()
        .position(|o| !o.is_ascii_whitespace())
        .unwrap_or(0);
    match file.get(start) {
        Some(b'{') if intel_json(file, &mut found) => return found,
        _ => {}
    }
    let binary = trim_nv(file).is_ok() || file.starts_with(&NV_TAG_STORED_CERT);
    if !binary && let Some(at) = find(file, b"-----BEGIN") {
        pem(file, at, &mut found);
        return found;
    }
    if efi(file, &mut found) {
        return found;
    }
    stream(file, &mut found);
    found
}

/// DER one after the other, with padding between and anything behind.
fn stream<'a>(file: &'a [u8], found: &mut Contents<'a>) {
    let mut at = 0;
    while at < file.len() {
        let first = found.objects.is_empty();
        let (form, skip) = match file[at..].starts_with(&NV_TAG_STORED_CERT) {
            true => (Form::NvHeader, 7),
            false => (Form::Der, 0),
        };
        let cut = match trim_nv(&file[at..]) {
            Ok(cut) => cut,
            // What follows a certificate is padding unless it begins as a certificate does.
            Err(_) if !first && !begins_as_certificate(&file[at..]) => break,
            Err(CertError::NotDer(_))
                if first && file[at..].first() != Some(&tag::SEQUENCE) && form == Form::Der =>
            {
                return;
            }
            Err(error) => {
                found.push(form, at, What::Damaged(error), Cow::Borrowed(&[]));
                return;
            }
        };
        let what = classify(cut);
        if !first && matches!(what, What::Other(_)) {
            break;
        }
        object(form, at, what, Cow::Borrowed(cut), found);
        if let Some(last) = found.objects.last_mut() {
            last.padding += skip;
        }
        at += skip + cut.len();
        let pad = file[at..]
            .iter()
            .take_while(|&&o| o == 0 || o == 0xff)
            .count();
        if let Some(last) = found.objects.last_mut() {
            last.padding += pad;
        }
        at += pad;
    }
    if let Some(last) = found.objects.last_mut() {
        last.padding += file.len() - at.min(file.len());
    }
}

fn begins_as_certificate(octets: &[u8]) -> bool {
    matches!(octets, [0x30, 0x82, _, _, 0x30, 0x81 | 0x82, ..])
        || octets.starts_with(&NV_TAG_STORED_CERT)
}

/// Adds an object; of PKCS #7 the certificates in it.
fn object<'a>(form: Form, offset: usize, what: What, der: Cow<'a, [u8]>, found: &mut Contents<'a>) {
    if what != What::Pkcs7 {
        found.push(form, offset, what, der);
        return;
    }
    let inside = match pkcs7(&der) {
        Ok(inside) => inside,
        Err(error) => {
            found.push(
                Form::Pkcs7,
                offset,
                What::Damaged(error.into()),
                Cow::Borrowed(&[]),
            );
            return;
        }
    };
    found.other("PKCS #7 signed data");
    let cut: Vec<Vec<u8>> = inside.iter().map(|cert| cert.raw.to_vec()).collect();
    for cert in cut {
        let what = classify(&cert);
        found.push(Form::Pkcs7, offset, what, Cow::Owned(cert));
    }
}

/// The certificates of signed data, with or without ContentInfo around it.
fn pkcs7(der: &[u8]) -> Result<Vec<Element<'_>>, DerError> {
    let mut outer = Reader(der).sequence("PKCS #7")?;
    if outer.peek() == Some(tag::OID) {
        outer.oid("content type")?;
        let content = outer.expect(tag::explicit(0), "signed data")?;
        outer = content.inside().sequence("signed data")?;
    }
    outer.integer("version")?;
    outer.expect(tag::SET, "digest algorithms")?;
    outer.expect(tag::SEQUENCE, "content")?;
    let mut out = Vec::new();
    if let Some(certs) = outer.optional(tag::explicit(0), "certificates")? {
        let mut certs = certs.inside();
        while !certs.is_empty() && out.len() < OBJECTS_MAX {
            out.push(certs.any("certificate")?);
        }
    }
    Ok(out)
}

/// What DER is, by its first elements. Which fields are optional makes the shapes differ early.
fn classify(der: &[u8]) -> What {
    fn shape(der: &[u8]) -> Result<What, DerError> {
        let mut outer = Reader(der).sequence("object")?;
        let first = outer.any("object")?;
        match first.tag {
            tag::OID if first.content == SIGNED_DATA => return Ok(What::Pkcs7),
            tag::INTEGER if outer.peek() == Some(tag::SET) => return Ok(What::Pkcs7),
            tag::INTEGER => return Ok(What::Other("a key or parameters")),
            tag::SEQUENCE => {}
            _ => return Ok(What::Other("DER of something else")),
        }
        if outer.peek() == Some(tag::BIT_STRING) {
            return Ok(What::Other("a public key"));
        }
        let mut tbs = first.inside();
        if tbs.peek() == Some(tag::explicit(0)) {
            return Ok(What::Certificate);
        }
        let number = tbs.optional(tag::INTEGER, "version")?;
        let Some(second) = tbs.optional(tag::SEQUENCE, "algorithm")? else {
            return Ok(What::Other("DER of something else"));
        };
        if second.content.first() != Some(&tag::OID) {
            // A request begins with a name, whose first element is a SET.
            return Ok(match second.content.first() {
                Some(&tag::SET) => What::Other("a certificate request"),
                // Its name may be empty; then only the version tells it from an attribute certificate.
                _ if number.is_some_and(|number| number.content == [0]) => {
                    What::Other("a certificate request")
                }
                _ if number.is_some() => What::AttributeCertificate,
                _ => What::Other("DER of something else"),
            });
        }
        // Algorithm and issuer are there; a list goes on with a time, a certificate with two.
        tbs.expect(tag::SEQUENCE, "issuer")?;
        Ok(match tbs.peek() {
            Some(tag::UTC_TIME | tag::GENERALIZED_TIME) => What::Crl,
            _ => What::Certificate,
        })
    }
    // What cannot be read that far is a damaged certificate: the reader says where.
    shape(der).unwrap_or(What::Certificate)
}

/// Cuts the certificate out of what an NV index holds: an optional TCG header before, padding
/// behind.
///
/// # Errors
/// [`CertError`] when the header or the DER length does not fit.
pub fn trim_nv(bytes: &[u8]) -> Result<&[u8], CertError> {
    let mut der = bytes;
    if bytes.starts_with(&NV_TAG_STORED_CERT) {
        let (size, rest) = bytes[3..]
            .split_at_checked(2)
            .ok_or(CertError::NotDer("TCG header ends early"))?;
        let says = usize::from(u16::from_be_bytes([size[0], size[1]]));
        let inside = rest.get(..says).ok_or(CertError::Length {
            what: "TCG header",
            says,
            left: rest.len(),
        })?;
        der = inside
            .strip_prefix(&NV_TAG_FULL_CERT)
            .ok_or(CertError::NotDer("TCG header of no full certificate"))?;
    }
    match Reader(der).expect(tag::SEQUENCE, "DER SEQUENCE") {
        // A certificate has more than 128 octets; padding that looks like a short SEQUENCE has not.
        Ok(element) if element.content.len() >= 0x80 => Ok(element.raw),
        Err(DerError::Length { what, says, left }) => Err(CertError::Length { what, says, left }),
        Err(DerError::Form { form, .. }) => Err(CertError::NotDer(form)),
        _ => Err(CertError::NotDer("does not begin with SEQUENCE")),
    }
}

/// The certificates of a chain, whose parts are those of a message or the contents of NV indices: a
/// part may hold several, and one may go on in the next part. What cannot be read is left out; a
/// missing link shows as an unknown issuer.
pub fn read_chain<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Vec<super::Cert> {
    let mut out = Vec::new();
    let mut open: Vec<u8> = Vec::new();
    for part in parts {
        // A part that is whole is no continuation, whatever came before it.
        if begins_as_certificate(part) && trim_nv(part).is_ok() {
            open.clear();
        }
        open.extend_from_slice(part);
        let mut rest: &[u8] = &open;
        while out.len() < CHAIN_MAX {
            let pad = rest.iter().take_while(|&&o| o == 0 || o == 0xff).count();
            rest = &rest[pad..];
            let Ok(cut) = trim_nv(rest) else { break };
            let skip = usize::from(rest.starts_with(&NV_TAG_STORED_CERT)) * 7;
            out.extend(super::Cert::read(cut));
            rest = &rest[skip + cut.len()..];
        }
        open = if begins_as_certificate(rest) {
            rest.to_vec()
        } else {
            Vec::new()
        };
    }
    out
}

fn find(octets: &[u8], wanted: &[u8]) -> Option<usize> {
    octets
        .windows(wanted.len())
        .position(|window| window == wanted)
}

/// PEM blocks (RFC 7468); text around them, header lines and any line length are read.
fn pem<'a>(file: &'a [u8], first: usize, found: &mut Contents<'a>) {
    let mut at = first;
    loop {
        let body = at + b"-----BEGIN".len();
        let line_end = file[body..].iter().position(|&o| o == b'\n' || o == b'\r');
        let Some(line_end) = line_end else {
            let error = CertError::NotDer("a PEM block that ends in its first line");
            found.push(Form::Pem, at, What::Damaged(error), Cow::Borrowed(&[]));
            return;
        };
        let label = String::from_utf8_lossy(&file[body..body + line_end]);
        let label = label.trim().trim_end_matches('-').trim().to_owned();
        let from = body + line_end;
        let next = find(&file[from..], b"-----BEGIN").map(|next| from + next);
        let limit = next.unwrap_or(file.len());
        let end = find(&file[from..limit], b"-----END").map(|end| from + end);
        match label.as_str() {
            "CERTIFICATE"
            | "X509 CERTIFICATE"
            | "TRUSTED CERTIFICATE"
            | "ATTRIBUTE CERTIFICATE"
            | "PKCS7"
            | "CMS"
            | "X509 CRL" => match end.ok_or(CertError::NotDer("a PEM block without end")) {
                Ok(end) => block(at, &file[from..end], found),
                Err(error) => {
                    found.push(Form::Pem, at, What::Damaged(error), Cow::Borrowed(&[]));
                }
            },
            other => found.other(format!("a PEM block {}", shown_text(other))),
        }
        match next {
            Some(next) => at = next,
            None => return,
        }
    }
}

fn block<'a>(at: usize, body: &'a [u8], found: &mut Contents<'a>) {
    // Headers of RFC 1421 stand before the first empty line and have a colon.
    let base64: Vec<u8> = body
        .split(|&o| o == b'\n')
        .filter(|line| !line.contains(&b':'))
        .flatten()
        .copied()
        .filter(|o| !o.is_ascii_whitespace())
        .collect();
    let damaged = |error| What::Damaged(error);
    let Ok(octets) = BASE64.decode(&base64) else {
        let error = CertError::NotDer("a PEM block that is no base64");
        found.push(Form::Pem, at, damaged(error), Cow::Borrowed(&[]));
        return;
    };
    match trim_nv(&octets) {
        Ok(cut) => {
            let what = classify(cut);
            let padding = octets.len() - cut.len();
            let before = found.objects.len();
            object(Form::Pem, at, what, Cow::Owned(cut.to_vec()), found);
            if let Some(added) = found.objects.get_mut(before) {
                added.padding = padding;
            }
        }
        Err(error) => found.push(Form::Pem, at, damaged(error), Cow::Borrowed(&[])),
    }
}

/// Signature lists, with an update's authentication header or efivarfs' attributes before them.
/// `false` when the file is nothing of that.
fn efi<'a>(file: &'a [u8], found: &mut Contents<'a>) -> bool {
    if let Some((signed, lists)) = authentication(file) {
        match Reader(signed).any("signed data") {
            Ok(element) => object(
                Form::Pkcs7,
                40,
                What::Pkcs7,
                Cow::Borrowed(element.raw),
                found,
            ),
            Err(error) => {
                found.push(
                    Form::Pkcs7,
                    40,
                    What::Damaged(error.into()),
                    Cow::Borrowed(&[]),
                );
            }
        }
        found.other("a signed update of a UEFI variable");
        signature_lists(file, file.len() - lists.len(), found);
        return true;
    }
    [0, 4].into_iter().any(|skip| {
        let fits = file.get(skip..).is_some_and(lists_fit);
        if fits {
            signature_lists(file, skip, found);
        }
        fits
    })
}

/// EFI_VARIABLE_AUTHENTICATION_2 (UEFI 2.10 section 8.2.2): time of 16 octets, WIN_CERTIFICATE
/// with GUID, signed data; then the lists.
fn authentication(file: &[u8]) -> Option<(&[u8], &[u8])> {
    let length = u32_at(file, 16)?;
    let kind = file.get(20..24)?;
    if kind != [0x00, 0x02, 0xf1, 0x0e] || file.get(24..40)? != EFI_CERT_TYPE_PKCS7 {
        return None;
    }
    let end = 16usize.checked_add(length)?;
    Some((file.get(40..end)?, file.get(end..)?))
}

fn u32_at(octets: &[u8], at: usize) -> Option<usize> {
    let four = octets.get(at..at + 4)?.try_into().ok()?;
    usize::try_from(u32::from_le_bytes(four)).ok()
}

/// Sizes of one EFI_SIGNATURE_LIST: whole, header, one signature.
fn list_sizes(list: &[u8]) -> Option<(usize, usize, usize)> {
    let (whole, header, one) = (u32_at(list, 16)?, u32_at(list, 20)?, u32_at(list, 24)?);
    let body = whole
        .checked_sub(EFI_LIST_HEADER_BYTES)?
        .checked_sub(header)?;
    let fits = whole <= list.len() && one > EFI_OWNER_BYTES && body % one == 0;
    fits.then_some((whole, header, one))
}

fn lists_fit(mut octets: &[u8]) -> bool {
    let mut lists = 0;
    while !octets.is_empty() {
        let Some((whole, ..)) = list_sizes(octets) else {
            return false;
        };
        octets = &octets[whole..];
        lists += 1;
    }
    lists > 0
}

fn signature_lists<'a>(file: &'a [u8], mut at: usize, found: &mut Contents<'a>) {
    let mut digests = 0;
    while at < file.len() {
        let list = &file[at..];
        let Some((whole, header, one)) = list_sizes(list) else {
            found.other("octets that are no signature list");
            break;
        };
        let x509 = list[..16] == EFI_CERT_X509;
        let body = EFI_LIST_HEADER_BYTES + header;
        for (index, entry) in list[body..whole].chunks_exact(one).enumerate() {
            if !x509 {
                digests += 1;
                continue;
            }
            let offset = at + body + index * one + EFI_OWNER_BYTES;
            match trim_nv(&entry[EFI_OWNER_BYTES..]) {
                Ok(cut) => {
                    let what = classify(cut);
                    object(
                        Form::EfiSignatureList,
                        offset,
                        what,
                        Cow::Borrowed(cut),
                        found,
                    );
                }
                Err(error) => found.push(
                    Form::EfiSignatureList,
                    offset,
                    What::Damaged(error),
                    Cow::Borrowed(&[]),
                ),
            }
        }
        at += whole;
    }
    if digests > 0 {
        found.other(format!(
            "{digests} entries of UEFI signature lists that are no certificates"
        ));
    }
}

/// `{"pubhash": .., "certificate": ..}`, both base64url, the latter percent-encoded.
fn intel_json<'a>(file: &'a [u8], found: &mut Contents<'a>) -> bool {
    let Ok(serde_json::Value::Object(map)) = serde_json::from_slice(file) else {
        return false;
    };
    let text = |key: &str| map.get(key).and_then(serde_json::Value::as_str);
    let Some(certificate) = text("certificate") else {
        return false;
    };
    let decoded = |text: &str| {
        BASE64_URL
            .decode(text.replace("%3D", "=").replace("%3d", "="))
            .ok()
    };
    let octets = decoded(certificate).ok_or(CertError::NotDer("no base64url"));
    let (what, der) = match octets.and_then(|octets| Ok(trim_nv(&octets)?.to_vec())) {
        Ok(der) => (classify(&der), der),
        Err(error) => (What::Damaged(error), Vec::new()),
    };
    found.push(Form::IntelJson, 0, what, Cow::Owned(der));
    let hash = text("pubhash").map(|text| decoded(text).unwrap_or_default());
    if let Some(object) = found.objects.last_mut() {
        object.public_hash = hash;
    }
    true
}

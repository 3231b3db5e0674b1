//! `vestibule inspect quote`: what a TPM attests, whether its signature is good, and by which key.
//!
//! Decides which octet strings of the files are attestations, keys, signatures and register values,
//! and which belong together. Says nothing of trust: a key in the same file proves only that whoever wrote
//! the file had it.

mod keys;
mod pieces;
mod values;

use std::collections::BTreeMap;

use attest_wire::tpm::{
    Attest, AttestBody, ClockInfo, DecodeError, HashAlg, PublicKind, Signature, attributes,
    strip_tpm2b,
};
use gateway_core::appraisal::verify_tpm_signature;
use serde::Serialize;

use super::Fault;
use keys::Key;
use pieces::{Found, Piece};

/// Largest file read: an evidence with its event log has below 1 MiB.
pub const QUOTE_LEN_MAX: u64 = 16 << 20;
/// Attestations, signatures and keys looked at: each signature is tried with each key.
const EACH_MAX: usize = 16;
/// `TPM_GENERATED_VALUE`, as it stands in the octets.
const MAGIC: [u8; 4] = [0xff, b'T', b'C', b'G'];

/// A file to look into.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    /// How places in it are named.
    pub name: &'a str,
    /// Its octets.
    pub octets: &'a [u8],
}

/// One line for all the files together, and whether an attestation was read. `nonce` is the
/// qualifying data that was asked for.
pub fn quote(files: &[Source<'_>], nonce: Option<&[u8]>) -> (String, bool) {
    let mut found = Found::default();
    for file in files {
        found.file(file.name, file.octets);
    }
    let report = Report::of(&found, nonce);
    let read = report.error.is_none();
    // Texts and numbers under text keys: it cannot fail, and a line is owed.
    let line = serde_json::to_string(&report).unwrap_or_else(|error| {
        format!(
            "{{\"error\":{{\"code\":\"inspect.json\",\"expected\":null,\"found\":\"{error}\"}}}}"
        )
    });
    (line, read)
}

/// Register values of the SHA-256 bank in a file, by number: what `tpm2_pcrread sha256` prints, or JSON. None
/// when there are none, or none whose numbers are told.
pub fn registers_of(file: &[u8]) -> Option<BTreeMap<u8, [u8; 32]>> {
    let mut found = Found::default();
    found.file("", file);
    let numbered = |values: &pieces::Values| {
        let one = |(number, value): &(Option<u32>, Vec<u8>)| {
            let number = u8::try_from((*number)?).ok().filter(|pcr| *pcr < 24)?;
            Some((number, value.as_slice().try_into().ok()?))
        };
        values.values.iter().map(one).collect()
    };
    found.values.iter().find_map(numbered)
}

#[derive(Serialize)]
struct Report {
    attests: Vec<Attested>,
    keys: Vec<KeyShown>,
    error: Option<Fault>,
}

#[derive(Serialize)]
struct Attested {
    at: String,
    offset: usize,
    trailing: usize,
    #[serde(rename = "type")]
    kind: &'static str,
    qualified_signer: String,
    extra_data: String,
    nonce_matches: Option<bool>,
    clock: u64,
    reset_count: u32,
    restart_count: u32,
    safe: bool,
    firmware_version: String,
    #[serde(flatten)]
    body: Body,
    signature: Option<Signed>,
    pcrs: Option<Registers>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Body {
    Quote {
        pcr_select: Vec<Selected>,
        pcr_digest: String,
    },
    Certify {
        name: String,
        qualified_name: String,
    },
    Creation {
        object_name: String,
        creation_hash: String,
    },
    Time {
        time: u64,
    },
}

#[derive(Serialize)]
struct Selected {
    hash: String,
    pcrs: Vec<u8>,
}

#[derive(Serialize)]
struct Signed {
    at: String,
    alg: &'static str,
    hash: &'static str,
    valid: Option<bool>,
    key: Option<KeyShown>,
    error: Option<Fault>,
}

#[derive(Serialize, Clone)]
struct KeyShown {
    at: String,
    #[serde(rename = "type")]
    kind: &'static str,
    bits: usize,
    curve: Option<&'static str>,
    name: Option<String>,
    restricted: Option<bool>,
}

#[derive(Serialize)]
struct Registers {
    at: String,
    digest_matches: bool,
    values: BTreeMap<String, BTreeMap<u8, String>>,
}

/// An attestation in an octet string.
struct Statement<'a> {
    piece: &'a Piece,
    offset: usize,
    octets: &'a [u8],
    trailing: usize,
    attest: Attest,
}

impl Report {
    fn of(found: &Found, nonce: Option<&[u8]>) -> Self {
        let mut refused = None;
        let mut statements: Vec<Statement<'_>> = Vec::new();
        for piece in &found.pieces {
            match statement(piece) {
                // The whole of a file and the part of it that was found in it are one.
                Some(Ok(statement))
                    if statements.len() < EACH_MAX
                        && !statements
                            .iter()
                            .any(|known| known.octets == statement.octets) =>
                {
                    statements.push(statement);
                }
                Some(Err(error)) => refused = refused.or(Some((piece.at.clone(), error))),
                _ => {}
            }
        }
        let keys = keys::keys(found, EACH_MAX);
        let error = statements.is_empty().then(|| nothing(found, refused));
        let attests = statements
            .iter()
            .map(|statement| Attested::of(statement, found, &keys, nonce))
            .collect();
        Self {
            attests,
            keys: keys.iter().map(KeyShown::of).collect(),
            error,
        }
    }
}

/// What a piece attests, if it may: at its start, behind a size, or anywhere in it.
fn statement(piece: &Piece) -> Option<Result<Statement<'_>, DecodeError>> {
    let octets = piece.octets.as_slice();
    let offset = octets.windows(MAGIC.len()).position(|four| four == MAGIC)?;
    let (attest, len) = match Attest::decode_prefix(&octets[offset..]) {
        Ok(decoded) => decoded,
        Err(error) => return Some(Err(error)),
    };
    let end = offset + len;
    Some(Ok(Statement {
        piece,
        offset,
        octets: &octets[offset..end],
        trailing: octets.len() - end,
        attest,
    }))
}

fn nothing(found: &Found, refused: Option<(String, DecodeError)>) -> Fault {
    const EXPECTED: &str =
        "a TPMS_ATTEST: ff544347, type, qualifiedSigner, ... (TPM 2.0 Part 2 section 10.12.12)";
    if let Some((at, error)) = refused {
        return Fault::new("quote.malformed", EXPECTED, format!("{at}: {error}"));
    }
    // TPM_QUOTE_INFO of TPM 1.2: version 1.1.0.0 and the word.
    let old = |piece: &&Piece| piece.octets.get(4..8) == Some(b"QUOT");
    if let Some(piece) = found.pieces.iter().find(old) {
        let told = format!("{}: a TPM_QUOTE_INFO of TPM 1.2", piece.at);
        return Fault::new("quote.tpm12", EXPECTED, told);
    }
    let told = format!(
        "{} octet strings without it, {} PEM blocks",
        found.pieces.len(),
        found.pems.len()
    );
    Fault::new("quote.absent", EXPECTED, told)
}

impl Attested {
    fn of(statement: &Statement<'_>, found: &Found, keys: &[Key], nonce: Option<&[u8]>) -> Self {
        let attest = &statement.attest;
        let ClockInfo {
            clock,
            reset_count,
            restart_count,
            safe,
        } = attest.clock;
        let (kind, body) = match &attest.body {
            AttestBody::Quote {
                pcr_select,
                pcr_digest,
            } => {
                let select = pcr_select.iter().map(|selection| Selected {
                    hash: bank(selection.hash),
                    pcrs: selection.pcrs(),
                });
                let body = Body::Quote {
                    pcr_select: select.collect(),
                    pcr_digest: hex::encode(pcr_digest),
                };
                ("quote", body)
            }
            AttestBody::Certify {
                name,
                qualified_name,
            } => {
                let body = Body::Certify {
                    name: hex::encode(name),
                    qualified_name: hex::encode(qualified_name),
                };
                ("certify", body)
            }
            AttestBody::Creation {
                object_name,
                creation_hash,
            } => {
                let body = Body::Creation {
                    object_name: hex::encode(object_name),
                    creation_hash: hex::encode(creation_hash),
                };
                ("creation", body)
            }
            AttestBody::Time { time, .. } => ("time", Body::Time { time: *time }),
        };
        Self {
            at: statement.piece.at.clone(),
            offset: statement.offset,
            trailing: statement.trailing,
            kind,
            qualified_signer: hex::encode(&attest.qualified_signer),
            extra_data: hex::encode(&attest.extra_data),
            nonce_matches: nonce.map(|nonce| nonce == attest.extra_data),
            clock,
            reset_count,
            restart_count,
            safe,
            firmware_version: format!("{:#018x}", attest.firmware_version),
            body,
            signature: signed(statement, found, keys),
            pcrs: registers(attest, found),
        }
    }
}

/// `TPM_ALG_ID` of a bank by its name, else as a number.
fn bank(id: u16) -> String {
    match HashAlg::from_id(id) {
        Some(alg) => alg.name().to_owned(),
        None => format!("{id:#06x}"),
    }
}

/// The signature over a statement: the first that verifies with some key, else the first of all.
fn signed(statement: &Statement<'_>, found: &Found, keys: &[Key]) -> Option<Signed> {
    let mut candidates: Vec<(&Piece, Signature)> = found
        .pieces
        .iter()
        .filter_map(|piece| Some((piece, signature(piece, keys)?)))
        .take(EACH_MAX)
        .collect();
    // What stands beside the statement is more likely its own.
    candidates.sort_by_key(|(piece, _)| folder(&piece.at) != folder(&statement.piece.at));
    let mut why = None;
    for (piece, signature) in &candidates {
        for key in keys.iter().filter(|key| key.signs()) {
            match verify_tpm_signature(&key.public, statement.octets, signature) {
                Ok(()) => {
                    let mut signed = Signed::unproven(piece, signature);
                    signed.valid = Some(true);
                    signed.key = Some(KeyShown::of(key));
                    return Some(signed);
                }
                Err(found) => {
                    why.get_or_insert((&key.at, found));
                }
            }
        }
    }
    let (piece, signature) = candidates.first()?;
    let mut signed = Signed::unproven(piece, signature);
    match why {
        Some((at, why)) => {
            signed.valid = Some(false);
            let keys = match keys.iter().filter(|key| key.signs()).count() {
                1 => at.clone(),
                many => format!("{many} keys, the first {at}"),
            };
            signed.error = Some(Fault::new(
                "quote.signature",
                "a signature over these octets by a key of the files",
                format!("{keys}: {why}"),
            ));
        }
        None => {
            signed.error = Some(Fault::new(
                "quote.no_key",
                "the public key that signed: TPM2B_PUBLIC, TPMT_PUBLIC, PEM or JWK (--with FILE)",
                "none",
            ));
        }
    }
    Some(signed)
}

/// The place that holds this one.
fn folder(at: &str) -> &str {
    at.rsplit_once(['.', ':']).map_or("", |(folder, _)| folder)
}

impl Signed {
    fn unproven(piece: &Piece, signature: &Signature) -> Self {
        let (alg, hash) = match signature {
            Signature::RsaSsa { hash, .. } => ("rsassa", hash),
            Signature::RsaPss { hash, .. } => ("rsapss", hash),
            Signature::Ecdsa { hash, .. } => ("ecdsa", hash),
        };
        Self {
            at: piece.at.clone(),
            alg,
            hash: hash.name(),
            valid: None,
            key: None,
            error: None,
        }
    }
}

/// A `TPMT_SIGNATURE`, or the bare value that some tools keep of it: as long as an RSA key of the
/// files, or r and s of a curve.
fn signature(piece: &Piece, keys: &[Key]) -> Option<Signature> {
    let octets = piece.octets.as_slice();
    if let Ok(signature) = Signature::decode(octets) {
        return Some(signature);
    }
    let hash = HashAlg::Sha256;
    let named = piece.at.rsplit('.').next()?.to_ascii_lowercase();
    let likely = named.contains("sig") || piece.at.ends_with(|last: char| last.is_ascii_digit());
    let fits = |key: &Key| match &key.public.kind {
        PublicKind::Rsa { modulus, .. } => modulus.len() == octets.len(),
        _ => false,
    };
    let rsa = matches!(octets.len(), 256 | 384 | 512) && likely;
    if rsa || (octets.len() >= 256 && keys.iter().any(fits)) {
        let sig = octets.to_vec();
        return Some(Signature::RsaSsa { hash, sig });
    }
    if octets.len() == 64 && named.contains("sig") {
        let (r, s) = octets.split_at(32);
        let (r, s) = (r.to_vec(), s.to_vec());
        return Some(Signature::Ecdsa { hash, r, s });
    }
    None
}

/// The register values that the files have for a quote: those whose digest it has, else the first
/// that cover it.
fn registers(attest: &Attest, found: &Found) -> Option<Registers> {
    let AttestBody::Quote {
        pcr_select,
        pcr_digest,
    } = &attest.body
    else {
        return None;
    };
    let mut first = None;
    for candidate in values::candidates(pcr_select, found) {
        let parts: Vec<&[u8]> = candidate
            .values
            .iter()
            .map(|(_, _, v)| v.as_slice())
            .collect();
        // The digest's algorithm is the signing key's; its length tells it.
        let alg = HashAlg::ALL
            .into_iter()
            .find(|alg| alg.size() == pcr_digest.len());
        let digest_matches = alg.is_some_and(|alg| alg.digest(&parts) == *pcr_digest);
        let mut shown: BTreeMap<String, BTreeMap<u8, String>> = BTreeMap::new();
        for (hash, pcr, value) in &candidate.values {
            let values = shown.entry(bank(*hash)).or_default();
            values.insert(*pcr, hex::encode(value));
        }
        let registers = Registers {
            at: candidate.at,
            digest_matches,
            values: shown,
        };
        if digest_matches {
            return Some(registers);
        }
        first = first.or(Some(registers));
    }
    first
}

impl KeyShown {
    fn of(key: &Key) -> Self {
        let (kind, bits, curve) = keys::shape(&key.public);
        let restricted = key.public.attributes & attributes::RESTRICTED != 0;
        Self {
            at: key.at.clone(),
            kind,
            bits,
            curve,
            name: key.whole.then(|| key.public.name().to_hex()),
            restricted: key.whole.then_some(restricted),
        }
    }
}

/// The inside of a `TPM2B_*` that fills the octets, else the octets.
fn unwrapped<'a>(field: &'static str, octets: &'a [u8]) -> &'a [u8] {
    strip_tpm2b(field, octets).unwrap_or(octets)
}

//! Row 1 of the appraisal: sizes, counts and encodings of every message, before anything is believed.

use serde::de::DeserializeOwned;

use super::handover::{Grant, Progress, ProgressBody, Sealed};
use super::{
    AttestationResult, Bytes, Challenge, EVIDENCE_MAX_BYTES, Evidence, HELLO_MAX_BYTES, Hello,
};

/// Largest challenge, bytes, and largest refusal.
pub const REPLY_MAX_BYTES: usize = 64 * 1024;
/// Largest result, bytes: payloads of 512 KiB in base64, and the rest.
pub const RESULT_MAX_BYTES: usize = 768 * 1024;
/// Payloads of one result.
pub const SEALED_ITEMS_MAX: usize = 8;
/// Bytes of one payload, tag included.
pub const SEALED_ITEM_MAX_BYTES: usize = 512 * 1024;
/// Bytes of all payloads together, tags included: in base64 they leave 85 KiB of a result for the rest.
pub const SEALED_TOTAL_MAX_BYTES: usize = 512 * 1024;
/// Bytes of a signed statement or grant.
pub const STATEMENT_MAX_BYTES: usize = 8 * 1024;
/// Largest progress report, bytes.
pub const PROGRESS_MAX_BYTES: usize = 4 * 1024;
/// Abilities of an attester: each at most once, and room for ones to come.
pub const ABILITIES_MAX: usize = 8;
/// Endorsement keys in a hello: two L, five H templates, one to spare.
pub const EKS_MAX: usize = 8;
/// Certificates in the EK chain.
pub const EK_CHAIN_MAX: usize = 8;
/// Bytes of one certificate as NV holds it, padding included.
pub const CERT_MAX_BYTES: usize = 8 * 1024;
/// Bytes of a `TPMT_PUBLIC`: RSA-4096 and room.
pub const PUBLIC_MAX_BYTES: usize = 640;
/// Bytes of any text field.
pub const TEXT_MAX_BYTES: usize = 128;
/// Network interfaces and disks each.
pub const DEVICES_MAX: usize = 64;
/// LLDP frames in a hello.
pub const LLDP_MAX: usize = 16;
/// Bytes of one LLDP frame.
pub const LLDP_FRAME_MAX_BYTES: usize = 1600;
/// Bytes of a `TPMS_ATTEST`.
pub const ATTEST_MAX_BYTES: usize = 1024;
/// Bytes of a `TPMT_SIGNATURE`: RSA-4096 and head.
pub const SIGNATURE_MAX_BYTES: usize = 520;
/// Extends of PCR 15 within one boot: one for each attempt of a node that waits for its owner.
pub const PCR15_EXTENDS_MAX: usize = 1024;
/// Bytes of the event log.
pub const EVENT_LOG_MAX_BYTES: usize = 256 * 1024;
/// PCRs of the selection.
pub const PCRS_MAX: usize = 24;

/// A message that is refused before it is looked at.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {field}: expected {expected}, found {found}")]
pub struct Malformed {
    /// `malformed.size`, `malformed.json`, `malformed.version`, `malformed.count` or
    /// `malformed.field`.
    pub code: &'static str,
    /// Which field, as in the JSON.
    pub field: &'static str,
    /// What is allowed.
    pub expected: String,
    /// What came; never the content itself.
    pub found: String,
}

impl Malformed {
    fn new(
        code: &'static str,
        field: &'static str,
        expected: impl ToString,
        found: impl ToString,
    ) -> Self {
        Self {
            code,
            field,
            expected: expected.to_string(),
            found: found.to_string(),
        }
    }
}

/// Decodes and bounds a hello.
///
/// # Errors
/// [`Malformed`] names the first field that is out of bounds.
pub fn decode_hello(body: &[u8]) -> Result<Hello, Malformed> {
    let hello: Hello = json("hello", body, HELLO_MAX_BYTES)?;
    if hello.version != 1 {
        return Err(Malformed::new(
            "malformed.version",
            "version",
            1,
            hello.version,
        ));
    }
    count("eks", hello.eks.len(), 1, EKS_MAX)?;
    for ek in &hello.eks {
        bytes("eks.pub", &ek.public, 1, PUBLIC_MAX_BYTES)?;
        if let Some(cert) = &ek.cert {
            bytes("eks.cert", cert, 1, CERT_MAX_BYTES)?;
        }
    }
    count("ek_chain", hello.ek_chain.len(), 0, EK_CHAIN_MAX)?;
    for cert in &hello.ek_chain {
        bytes("ek_chain", cert, 1, CERT_MAX_BYTES)?;
    }
    for (field, public) in [
        ("srk_pub", &hello.srk_pub),
        ("ak_pub", &hello.ak_pub),
        ("devid_pub", &hello.devid_pub),
    ] {
        bytes(field, public, 1, PUBLIC_MAX_BYTES)?;
    }
    for (field, value) in [
        ("arch", &hello.arch),
        ("tpm.vendor", &hello.tpm.vendor),
        ("tpm.model", &hello.tpm.model),
        ("tpm.firmware", &hello.tpm.firmware),
        ("platform.manufacturer", &hello.platform.manufacturer),
        ("platform.product", &hello.platform.product),
        ("platform.serial", &hello.platform.serial),
        ("platform.uuid", &hello.platform.uuid),
        ("boot_path", &hello.boot_path),
        ("uki_hint", &hello.uki_hint),
    ] {
        text(field, value)?;
    }
    count("nics", hello.nics.len(), 0, DEVICES_MAX)?;
    for nic in &hello.nics {
        text("nics.name", &nic.name)?;
        text("nics.mac", &nic.mac)?;
    }
    count("disks", hello.disks.len(), 0, DEVICES_MAX)?;
    for disk in &hello.disks {
        text("disks.name", &disk.name)?;
        text("disks.serial", &disk.serial)?;
        text("disks.model", &disk.model)?;
    }
    count("lldp", hello.lldp.len(), 0, LLDP_MAX)?;
    for report in &hello.lldp {
        bytes("lldp.frame", &report.frame, 14, LLDP_FRAME_MAX_BYTES)?;
        text("lldp.nic", &report.nic)?;
    }
    count("can", hello.can.len(), 0, ABILITIES_MAX)?;
    Ok(hello)
}

/// Decodes and bounds a challenge; for the attester.
///
/// # Errors
/// [`Malformed`] names the first field that is out of bounds.
pub fn decode_challenge(body: &[u8]) -> Result<Challenge, Malformed> {
    let challenge: Challenge = json("challenge", body, REPLY_MAX_BYTES)?;
    bytes("session", &challenge.session, 16, 16)?;
    bytes("nonce", &challenge.nonce, 32, 32)?;
    count("credentials", challenge.credentials.len(), 1, EKS_MAX)?;
    for credential in &challenge.credentials {
        bytes("credentials.blob", &credential.blob, 1, 256)?;
        bytes("credentials.secret", &credential.secret, 1, 640)?;
    }
    count("pcr_selection", challenge.pcr_selection.len(), 1, PCRS_MAX)?;
    ascending("pcr_selection", &challenge.pcr_selection)?;
    Ok(challenge)
}

/// Decodes and bounds evidence.
///
/// # Errors
/// [`Malformed`] names the first field that is out of bounds.
pub fn decode_evidence(body: &[u8]) -> Result<Evidence, Malformed> {
    let evidence: Evidence = json("evidence", body, EVIDENCE_MAX_BYTES)?;
    bytes("session", &evidence.session, 16, 16)?;
    count("activated", evidence.activated.len(), 1, EKS_MAX)?;
    for proof in &evidence.activated {
        bytes("activated", proof, 32, 32)?;
    }
    for (field, attested) in [
        ("devid_certify", &evidence.devid_certify),
        ("quote", &evidence.quote),
    ] {
        bytes(field, &attested.attest, 1, ATTEST_MAX_BYTES)?;
        bytes(field, &attested.sig, 1, SIGNATURE_MAX_BYTES)?;
    }
    count("pcr_values", evidence.pcr_values.len(), 1, PCRS_MAX)?;
    for value in &evidence.pcr_values {
        bytes("pcr_values.digest", &value.digest, 32, 32)?;
    }
    let numbers: Vec<u8> = evidence.pcr_values.iter().map(|v| v.index).collect();
    ascending("pcr_values.index", &numbers)?;
    count(
        "pcr15_extends",
        evidence.pcr15_extends.len(),
        1,
        PCR15_EXTENDS_MAX,
    )?;
    for extend in &evidence.pcr15_extends {
        bytes("pcr15_extends", extend, 32, 32)?;
    }
    bytes("event_log", &evidence.event_log, 0, EVENT_LOG_MAX_BYTES)?;
    Ok(evidence)
}

/// Decodes and bounds a result; for the attester.
///
/// # Errors
/// [`Malformed`] names the first field that is out of bounds.
pub fn decode_result(body: &[u8]) -> Result<AttestationResult, Malformed> {
    let result: AttestationResult = json("result", body, RESULT_MAX_BYTES)?;
    text("code", &result.code)?;
    if result.hint.len() > 512 {
        return Err(Malformed::new(
            "malformed.field",
            "hint",
            "at most 512 bytes",
            result.hint.len(),
        ));
    }
    text("correlation", &result.correlation)?;
    count("devid_chain", result.devid_chain.len(), 0, EK_CHAIN_MAX)?;
    for cert in &result.devid_chain {
        bytes("devid_chain", cert, 1, CERT_MAX_BYTES)?;
    }
    if let Some(sealed) = &result.sealed {
        sealed_bounds(sealed)?;
    }
    if let Some(grant) = &result.grant {
        grant_bounds(grant)?;
    }
    Ok(result)
}

fn sealed_bounds(sealed: &Sealed) -> Result<(), Malformed> {
    statement("sealed", &sealed.statement, &sealed.sig, &sealed.chain)?;
    bytes("sealed.public", &sealed.public, 1, PUBLIC_MAX_BYTES)?;
    bytes("sealed.private", &sealed.private, 1, PUBLIC_MAX_BYTES)?;
    bytes("sealed.secret", &sealed.secret, 1, 640)?;
    count("sealed.items", sealed.items.len(), 1, SEALED_ITEMS_MAX)?;
    for item in &sealed.items {
        text("sealed.items.kind", &item.kind)?;
        bytes(
            "sealed.items.ciphertext",
            &item.ciphertext,
            16,
            SEALED_ITEM_MAX_BYTES,
        )?;
    }
    let total: usize = sealed
        .items
        .iter()
        .map(|item| item.ciphertext.0.len())
        .sum();
    if total > SEALED_TOTAL_MAX_BYTES {
        return Err(Malformed::new(
            "malformed.size",
            "sealed.items",
            format_args!("at most {SEALED_TOTAL_MAX_BYTES} bytes together"),
            format_args!("{total} bytes"),
        ));
    }
    Ok(())
}

fn grant_bounds(grant: &Grant) -> Result<(), Malformed> {
    statement("grant", &grant.body, &grant.sig, &grant.chain)
}

fn statement(
    field: &'static str,
    body: &Bytes,
    sig: &Bytes,
    chain: &[Bytes],
) -> Result<(), Malformed> {
    bytes(field, body, 1, STATEMENT_MAX_BYTES)?;
    bytes(field, sig, 1, SIGNATURE_MAX_BYTES)?;
    count(field, chain.len(), 1, EK_CHAIN_MAX)?;
    for cert in chain {
        bytes(field, cert, 1, CERT_MAX_BYTES)?;
    }
    Ok(())
}

/// Decodes and bounds a progress report and the body that it signs.
///
/// # Errors
/// [`Malformed`] names the first field that is out of bounds.
pub fn decode_progress(body: &[u8]) -> Result<(Progress, ProgressBody), Malformed> {
    let progress: Progress = json("progress", body, PROGRESS_MAX_BYTES)?;
    bytes("sig", &progress.sig, 1, SIGNATURE_MAX_BYTES)?;
    let said: ProgressBody = json("body", &progress.body.0, PROGRESS_MAX_BYTES)?;
    text("grant", &said.grant)?;
    text("sha256", &said.sha256)?;
    if said.detail.len() > 512 {
        return Err(Malformed::new(
            "malformed.field",
            "detail",
            "at most 512 bytes",
            said.detail.len(),
        ));
    }
    Ok((progress, said))
}

/// Parses JSON; unknown and duplicate keys are refused by the types.
fn json<T: DeserializeOwned>(field: &'static str, body: &[u8], max: usize) -> Result<T, Malformed> {
    if body.is_empty() || body.len() > max {
        return Err(Malformed::new(
            "malformed.size",
            field,
            format_args!("1 to {max} bytes"),
            format_args!("{} bytes", body.len()),
        ));
    }
    serde_json::from_slice(body).map_err(|error| {
        // serde's text quotes names of unknown keys: bounded and without control characters.
        let found: String = error
            .to_string()
            .chars()
            .filter(|c| !c.is_control())
            .take(160)
            .collect();
        Malformed::new("malformed.json", field, "the v1 schema", found)
    })
}

fn count(field: &'static str, found: usize, min: usize, max: usize) -> Result<(), Malformed> {
    if (min..=max).contains(&found) {
        return Ok(());
    }
    Err(Malformed::new(
        "malformed.count",
        field,
        format_args!("{min} to {max} entries"),
        found,
    ))
}

fn bytes(field: &'static str, value: &Bytes, min: usize, max: usize) -> Result<(), Malformed> {
    if (min..=max).contains(&value.0.len()) {
        return Ok(());
    }
    Err(Malformed::new(
        "malformed.field",
        field,
        format_args!("{min} to {max} bytes"),
        format_args!("{} bytes", value.0.len()),
    ))
}

fn text(field: &'static str, value: &str) -> Result<(), Malformed> {
    if value.len() <= TEXT_MAX_BYTES {
        return Ok(());
    }
    Err(Malformed::new(
        "malformed.field",
        field,
        format_args!("at most {TEXT_MAX_BYTES} bytes"),
        format_args!("{} bytes", value.len()),
    ))
}

fn ascending(field: &'static str, numbers: &[u8]) -> Result<(), Malformed> {
    let sorted = numbers.windows(2).all(|pair| pair[0] < pair[1]);
    if sorted && numbers.iter().all(|&n| n < 24) {
        return Ok(());
    }
    Err(Malformed::new(
        "malformed.field",
        field,
        "PCR numbers below 24, ascending",
        format_args!("{numbers:?}"),
    ))
}

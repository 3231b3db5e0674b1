//! Row 9: the quote is this AK's, of this session, over exactly the PCRs that were asked for.

use std::collections::BTreeMap;

use attest_wire::tpm::{
    Attest, AttestBody, ClockInfo, DecodeError, HashAlg, Public, RH_ENDORSEMENT,
    qualified_name_of_primary,
};
use attest_wire::v1::{Attested, PcrValue};
use aws_lc_rs::constant_time;

use super::signature::verify_attest;
use crate::reason::Reason;

/// PCRs of a quote unless the policy says otherwise, SHA-256 bank: firmware (0 to 7), boot loader (8, 9),
/// systemd-stub (11 to 13), shim (14), the session (15). PCR 10 is IMA's and changes at any moment.
pub const QUOTED_PCRS: [u8; 15] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15];

/// Those that decisions rest on. Not a setting: a policy cannot leave out PCR 7.
pub const PCRS_ALWAYS: [u8; 12] = [0, 1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 15];

/// A quote that passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Quoted {
    /// Values, proven by the digest.
    pub pcrs: BTreeMap<u8, [u8; 32]>,
    /// Signed clock and counters.
    pub clock: ClockInfo,
}

/// Judges a quote over exactly the PCRs `wanted`, ascending.
pub(super) fn appraise_quote(
    ak: &Public,
    qualifying: &[u8; 32],
    wanted: &[u8],
    quote: &Attested,
    values: &[PcrValue],
) -> Result<Quoted, Reason> {
    let fail = |code, expected: String, found: String| {
        Reason::new(
            code,
            expected,
            found,
            "TPM 2.0 Part 3 section 18.4 (TPM2_Quote)",
            "the evidence is not of this boot and session; boot again",
        )
    };
    let attest = Attest::decode(&quote.attest.0).map_err(|error| {
        let code = match &error {
            DecodeError::Value {
                field: "TPMS_ATTEST.magic",
                ..
            } => "quote.magic",
            _ => "quote.malformed",
        };
        fail(code, "TPMS_ATTEST".into(), error.to_string())
    })?;
    verify_attest(ak, &quote.attest.0, &quote.sig.0)
        .map_err(|found| fail("quote.signature", "a signature of the AK".into(), found))?;
    let AttestBody::Quote {
        pcr_select,
        pcr_digest,
    } = &attest.body
    else {
        return Err(fail(
            "quote.type",
            "TPM_ST_ATTEST_QUOTE".into(),
            "another attestation type".into(),
        ));
    };
    let signer = qualified_name_of_primary(RH_ENDORSEMENT, ak);
    if attest.qualified_signer != signer.as_bytes() {
        return Err(fail(
            "quote.signer",
            format!("qualifiedSigner {signer} (endorsement primary)"),
            hex::encode(&attest.qualified_signer),
        ));
    }
    if constant_time::verify_slices_are_equal(&attest.extra_data, qualifying).is_err() {
        return Err(fail(
            "quote.nonce",
            "qualifyingData of this session, 32 bytes".into(),
            format!("{} other bytes", attest.extra_data.len()),
        ));
    }
    let [selection] = pcr_select.as_slice() else {
        return Err(fail(
            "quote.bank",
            "one bank, sha256".into(),
            format!("{} banks", pcr_select.len()),
        ));
    };
    if selection.hash != HashAlg::Sha256.id() {
        return Err(fail(
            "quote.bank",
            "sha256 (0x000b)".into(),
            format!("{:#06x}", selection.hash),
        ));
    }
    let sent: Vec<u8> = values.iter().map(|value| value.index).collect();
    if selection.pcrs() != wanted || sent != wanted {
        return Err(fail(
            "quote.selection",
            format!("PCRs {wanted:?} quoted and sent"),
            format!("quoted {:?}, sent {sent:?}", selection.pcrs()),
        ));
    }
    let mut pcrs = BTreeMap::new();
    for value in values {
        let digest: [u8; 32] = value.digest.0.as_slice().try_into().map_err(|_| {
            fail(
                "quote.digest",
                "32 bytes per PCR".into(),
                format!("{} bytes for PCR {}", value.digest.0.len(), value.index),
            )
        })?;
        pcrs.insert(value.index, digest);
    }
    let parts: Vec<&[u8]> = pcrs.values().map(<[u8; 32]>::as_slice).collect();
    let digest = HashAlg::Sha256.digest(&parts);
    if digest != *pcr_digest {
        return Err(fail(
            "quote.digest",
            format!("pcrDigest {}", hex::encode(pcr_digest)),
            format!("{} over the values sent", hex::encode(digest)),
        ));
    }
    Ok(Quoted {
        pcrs,
        clock: attest.clock,
    })
}

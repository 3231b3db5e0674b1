//! Rows 5 to 8: the attestation key and the DevID have exactly our templates, live in the TPM of
//! the EKs, and belong to this session.
//!
//! Row 5 and 6 judge shapes; row 7 proves that the TPM holding the EKs holds an object with the
//! AK's Name; row 8 that this AK, which signs nothing it did not make or measure, certified the
//! DevID. Only together they mean anything.

use attest_wire::templates::{Mismatch, Template, devid_templates};
use attest_wire::tpm::{
    Attest, AttestBody, Name, Public, RH_OWNER, qualified_name, qualified_name_of_primary,
};
use attest_wire::v1::{Attested, DevIdAuth};
use aws_lc_rs::{constant_time, hmac};
use zeroize::Zeroizing;

use super::facts::DevIdRules;
use super::signature::verify_attest;
use crate::reason::Reason;

const TEMPLATE_SOURCE: &str = "docs/PROTOCOL.md section 1";

/// Reason of a key that differs from its template.
pub(super) fn mismatch(code: &'static str, mismatch: &Mismatch) -> Reason {
    Reason::new(
        code,
        format!(
            "{} {} {}",
            mismatch.template, mismatch.field, mismatch.expected
        ),
        mismatch.found.clone(),
        TEMPLATE_SOURCE,
        "boot the signed attester; a genuine TPM makes this key from our template",
    )
}

/// Row 5.
pub(super) fn appraise_ak(ak: &Public) -> Result<Name, Reason> {
    Template::Ak
        .check(ak)
        .map_err(|error| mismatch("ak.template", &error))?;
    Ok(ak.name())
}

/// Row 6: the qualified name the DevID must have, since its parent is SPIRE's SRK.
pub(super) fn appraise_devid(
    devid: &Public,
    srk: &Public,
    auth: DevIdAuth,
    rules: DevIdRules,
) -> Result<Name, Reason> {
    let (template, parent) =
        devid_templates(devid).map_err(|error| mismatch("devid.template", &error))?;
    if let Some(wanted) = rules.template
        && wanted != template
    {
        return Err(Reason::new(
            "devid.kind",
            wanted.name().to_owned(),
            template.name().to_owned(),
            "configuration devid.kind",
            "build the boot image with that DevID kind, or allow both",
        ));
    }
    if rules.secret_auth && auth != DevIdAuth::Secret {
        return Err(Reason::new(
            "devid.auth",
            "a DevID with a secret authValue",
            "an empty authValue",
            "configuration devid.auth",
            "build the boot image with auth = secret, or set devid.auth to none",
        ));
    }
    parent
        .check(srk)
        .map_err(|error| mismatch("devid.parent", &error))?;
    Ok(qualified_name(
        &qualified_name_of_primary(RH_OWNER, srk),
        devid,
    ))
}

/// Row 7: every secret came back, as an HMAC over this session's binding.
pub(super) fn appraise_activation(
    secrets: &[Zeroizing<[u8; 32]>],
    bound: &[u8; 32],
    proofs: &[attest_wire::v1::Bytes],
) -> Result<(), Reason> {
    let fail = |found: String| {
        Reason::new(
            "ak.activation",
            format!("{} activation proofs of this session", secrets.len()),
            found,
            "TPM 2.0 Part 3 section 12.5 (TPM2_ActivateCredential)",
            "EK and AK are not in one TPM, or the message was relayed; boot again",
        )
    };
    if proofs.len() != secrets.len() {
        return Err(fail(format!("{}", proofs.len())));
    }
    for (index, (secret, proof)) in secrets.iter().zip(proofs).enumerate() {
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_slice());
        if hmac::verify(&key, bound, &proof.0).is_err() {
            return Err(fail(format!("proof {index} does not verify")));
        }
    }
    Ok(())
}

/// Row 8. That the AK is an endorsement primary is judged with the quote (row 9).
pub(super) fn appraise_certify(
    ak: &Public,
    devid: &Public,
    expected_qualified: &Name,
    qualifying: &[u8; 32],
    certify: &Attested,
) -> Result<(), Vec<Reason>> {
    let fail = |code, expected: String, found: String| {
        vec![Reason::new(
            code,
            expected,
            found,
            "TPM 2.0 Part 3 section 18.2 (TPM2_Certify)",
            "the DevID was not certified by this TPM's AK in this session; boot again",
        )]
    };
    let attest = Attest::decode(&certify.attest.0)
        .map_err(|error| fail("devid.certify", "TPMS_ATTEST".into(), error.to_string()))?;
    verify_attest(ak, &certify.attest.0, &certify.sig.0)
        .map_err(|found| fail("devid.certify", "a signature of the AK".into(), found))?;
    if constant_time::verify_slices_are_equal(&attest.extra_data, qualifying).is_err() {
        return Err(fail(
            "devid.certify",
            "qualifyingData of this session".into(),
            format!("{} other bytes", attest.extra_data.len()),
        ));
    }
    let AttestBody::Certify {
        name,
        qualified_name,
    } = &attest.body
    else {
        return Err(fail(
            "devid.certify",
            "TPM_ST_ATTEST_CERTIFY".into(),
            "another attestation type".into(),
        ));
    };
    let devid_name = devid.name();
    if name != devid_name.as_bytes() {
        return Err(fail(
            "devid.certify",
            format!("Name {devid_name}"),
            hex::encode(name),
        ));
    }
    if qualified_name != expected_qualified.as_bytes() {
        return Err(fail(
            "devid.parent",
            format!("qualified name {expected_qualified} under the SRK shown"),
            hex::encode(qualified_name),
        ));
    }
    Ok(())
}

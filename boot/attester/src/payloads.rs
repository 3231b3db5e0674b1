//! Sealed payloads on the node: whose they are, the TPM's part, and the end of the session in PCR 15.
//!
//! Decides the order: signature under the pin, then everything that was said of them, then the TPM, then
//! the closing constant. Does not know what a payload is for.

use attest_wire::oid::EKU_GRANT;
use attest_wire::sealed::{self, Expected, Item, OpenError};
use attest_wire::tpm::Public;
use attest_wire::v1::handover::{SEALED_LABEL, SEALED_PCRS, Sealed};
use attest_wire::v1::{PcrValue, Receipt};
use hw::tpm::{EndorsementKey, NodeTpm, TpmError};
use sha2::{Digest, Sha256};

use crate::extends::{Extends, ExtendsError};
use crate::pin::{Pin, PinError};

/// Why payloads were not opened.
#[derive(Debug, thiserror::Error)]
pub enum PayloadError {
    /// The statement is not signed by the gateway's grant key.
    #[error("statement of sealed payloads: {0}")]
    Signature(#[source] PinError),
    /// They are for another machine, session or TPM, or are not what was sealed.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// What they are compared with is missing here.
    #[error("sealed payloads: expected {expected}, found none")]
    Missing {
        /// What this node should have.
        expected: &'static str,
    },
    /// The TPM refused: other PCR values than quoted, or another TPM.
    #[error("the TPM does not open sealed payloads")]
    Tpm(#[source] TpmError),
    /// PCR 15 could not be closed: whoever holds the message could open it again.
    #[error("PCR 15 was not closed after the payloads")]
    Close(#[source] ExtendsError),
}

/// What the session of this node says about payloads that arrive in it.
pub(crate) struct Session<'a> {
    /// Whom it believes.
    pub pin: &'a Pin,
    /// The receipt, checked against the pin.
    pub receipt: &'a Receipt,
    /// The EKs of the hello, in its order.
    pub eks: &'a [EndorsementKey],
    /// What was quoted.
    pub quoted: &'a [PcrValue],
}

/// Opens payloads, then extends PCR 15 so that nothing of this boot opens again; also after an error, for
/// whoever copied the message on its way.
pub(crate) fn open(
    tpm: &mut dyn NodeTpm,
    extends: &mut Extends,
    session: &Session<'_>,
    sealed: &Sealed,
) -> Result<Vec<Item>, PayloadError> {
    let opened = open_session(tpm, session, sealed);
    extends
        .extend(tpm, sealed::closed_digest())
        .map_err(PayloadError::Close)?;
    opened
}

fn open_session(
    tpm: &mut dyn NodeTpm,
    session: &Session<'_>,
    sealed: &Sealed,
) -> Result<Vec<Item>, PayloadError> {
    let Sealed {
        statement,
        sig,
        chain,
        ..
    } = sealed;
    session
        .pin
        .check_signed(EKU_GRANT, SEALED_LABEL, &statement.0, &sig.0, chain)
        .map_err(PayloadError::Signature)?;
    let missing = |expected| PayloadError::Missing { expected };
    let offered = session
        .eks
        .get(usize::from(sealed.ek))
        .ok_or(missing("an endorsement key that we offered"))?;
    let ek =
        Public::decode(&offered.public).map_err(|error| OpenError::Statement(error.to_string()))?;
    let machine = machine_of(session.receipt).ok_or(missing("a machine in the receipt"))?;
    let expected = Expected {
        machine: &machine,
        receipt_sha256: Sha256::digest(&session.receipt.body.0).into(),
        ek: &ek,
        pcrs: quoted(session.quoted).ok_or(missing("quoted values of PCR 4, 7, 11 and 15"))?,
    };
    sealed::check(sealed, &expected)?;
    let secret = tpm
        .unseal_import(
            &offered.public,
            &sealed.public.0,
            &sealed.private.0,
            &sealed.secret.0,
            &SEALED_PCRS,
        )
        .map_err(PayloadError::Tpm)?;
    Ok(sealed::open(sealed, &expected, &secret)?)
}

/// The machine that the verdict names.
fn machine_of(receipt: &Receipt) -> Option<String> {
    let body: serde_json::Value = serde_json::from_slice(&receipt.body.0).ok()?;
    Some(body.get("machine")?.as_str()?.to_owned())
}

fn quoted(values: &[PcrValue]) -> Option<[[u8; 32]; 4]> {
    let mut out = [[0; 32]; 4];
    for (slot, pcr) in out.iter_mut().zip(SEALED_PCRS) {
        let value = values.iter().find(|value| value.index == pcr)?;
        *slot = value.digest.0.as_slice().try_into().ok()?;
    }
    Some(out)
}

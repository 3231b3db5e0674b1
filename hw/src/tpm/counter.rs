//! The NV counter that the ledger is anchored to (docs/PROTOCOL.md section 5).
//!
//! It only goes up, and only under the seal's policy: an owner of the hierarchy can remove it, but can
//! neither turn it back nor, in another boot, move it on. Decides when a counter is not ours any more.
//! Knows nothing of the ledger.

use serde::{Deserialize, Serialize};
use tss_esapi::attributes::NvIndexAttributesBuilder;
use tss_esapi::constants::NvIndexType;
use tss_esapi::handles::{KeyHandle, NvIndexHandle};
use tss_esapi::interface_types::algorithm::HashingAlgorithm;
use tss_esapi::interface_types::resource_handles::{Hierarchy, NvAuth, Provision};
use tss_esapi::structures::NvPublicBuilder;

use super::TpmError;
use super::device::{Device, PASSWORD, command_error, malformed, nv_tpm_handle};
use super::node::digest_from;
use super::seal::{HELP, Opened, SealBlob, authorized, nv_name, require_nv_name};
use super::template;

/// TPMA_NV: NO_DA, AUTHREAD, COUNTER, POLICYWRITE, and WRITTEN once it was incremented. Without
/// OWNERWRITE: the owner hierarchy must not move it past what is on record.
const ATTRIBUTES_WRITTEN: u32 = 0x2204_0018;
/// Size of a counter, octets (TPM 2.0 Part 2 section 13.2).
const COUNTER_LEN: u16 = 8;

/// The counter of a seal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SealedCounter {
    /// NV index.
    pub nv_index: u32,
    /// Its Name once incremented, hex.
    pub nv_name: String,
    /// Its value when it was made: a TPM begins where its last counter ended.
    pub first: u64,
}

impl SealedCounter {
    /// What the key-encryption key is bound to: a blob that names another counter opens nothing.
    pub(super) fn bound(&self) -> Vec<u8> {
        let mut out = self.nv_index.to_be_bytes().to_vec();
        out.extend(self.first.to_be_bytes());
        out.extend(self.nv_name.as_bytes());
        out
    }
}

/// Defines the counter and increments it once, which gives it its first value. Removed again on
/// failure.
pub(super) fn make(
    device: &mut Device,
    srk: KeyHandle,
    index: u32,
    opened: &Opened,
    policy: &[u8; 32],
) -> Result<SealedCounter, TpmError> {
    let attributes = NvIndexAttributesBuilder::new()
        .with_nv_index_type(NvIndexType::Counter)
        .with_no_da(true)
        .with_auth_read(true)
        .with_policy_write(true)
        .build()
        .map_err(|e| command_error("NV_DefineSpace", e))?;
    let public = NvPublicBuilder::new()
        .with_nv_index(nv_tpm_handle(index)?)
        .with_index_name_algorithm(HashingAlgorithm::Sha256)
        .with_index_attributes(attributes)
        .with_index_auth_policy(digest_from(policy)?)
        .with_data_area_size(COUNTER_LEN.into())
        .build()
        .map_err(|e| command_error("NV_DefineSpace", e))?;
    let nv = device.run("NV_DefineSpace", PASSWORD, |ctx| {
        ctx.nv_define_space(Provision::Owner, None, public.clone())
    })?;
    let first = increment(device, srk, nv, opened).and_then(|()| value(device, srk, nv));
    if first.is_err() {
        // Leaves nothing half-made behind; the first error is the one to report.
        let _ = device.run("NV_UndefineSpace", PASSWORD, |ctx| {
            ctx.nv_undefine_space(Provision::Owner, nv)
        });
    }
    Ok(SealedCounter {
        nv_index: index,
        nv_name: hex::encode(nv_name(index, ATTRIBUTES_WRITTEN, policy, COUNTER_LEN)),
        first: first?,
    })
}

/// The counter's value.
pub(super) fn read(device: &mut Device, blob: &SealBlob) -> Result<u64, TpmError> {
    let opened = Opened::decode(blob)?;
    device.with_primary(Hierarchy::Owner, &template::srk_ecc(), |device, srk, _| {
        device.require_name("storage root key", srk, &opened.srk_name)?;
        with_counter(device, blob, |device, nv| value(device, srk, nv))
    })
}

/// Increments once, unless it was done: the counter must then be `to`, by its own word.
pub(super) fn advance(device: &mut Device, blob: &SealBlob, to: u64) -> Result<(), TpmError> {
    let opened = Opened::decode(blob)?;
    device.with_primary(Hierarchy::Owner, &template::srk_ecc(), |device, srk, _| {
        device.require_name("storage root key", srk, &opened.srk_name)?;
        let found = with_counter(device, blob, |device, nv| {
            let found = value(device, srk, nv)?;
            if found.checked_add(1) != Some(to) {
                return Ok(found);
            }
            increment(device, srk, nv, &opened)?;
            value(device, srk, nv)
        })?;
        if found == to {
            return Ok(());
        }
        Err(TpmError::SealBroken {
            what: "counter of the ledger",
            why: format!(
                "it should count {to} and counts {found}: something else with this seal's policy moves \
                 it; is another daemon running on this TPM? ({HELP})"
            ),
        })
    })
}

fn with_counter<T>(
    device: &mut Device,
    blob: &SealBlob,
    work: impl FnOnce(&mut Device, NvIndexHandle) -> Result<T, TpmError>,
) -> Result<T, TpmError> {
    let SealedCounter {
        nv_index, nv_name, ..
    } = &blob.counter;
    let expected = hex::decode(nv_name)
        .map_err(|e| malformed("sealed blob", &format!("counter.nv_name: {e}")))?;
    if !device.nv_indices(*nv_index, *nv_index)?.contains(nv_index) {
        return Err(TpmError::SealBroken {
            what: "counter of the ledger",
            why: format!(
                "NV index {nv_index:#010x} is gone: somebody with the owner hierarchy removed it, or \
                 the TPM was cleared. Treat it as an alarm; there is no escrow yet ({HELP})"
            ),
        });
    }
    device.with_nv(*nv_index, |device, nv| {
        require_nv_name(device, nv, *nv_index, "counter of the ledger", &expected)?;
        work(device, nv)
    })
}

fn increment(
    device: &mut Device,
    srk: KeyHandle,
    nv: NvIndexHandle,
    opened: &Opened,
) -> Result<(), TpmError> {
    // No secret goes with it, and a session that encrypts is refused where there is nothing to encrypt.
    authorized(device, srk, opened, |device, session, _salted| {
        let slots = (Some(session), None, None);
        device.run("NV_Increment", slots, |ctx| {
            ctx.nv_increment(NvAuth::NvIndex(nv), nv)
        })
    })
}

/// The value under a session salted to the pinned storage root key: whoever sits on the bus can
/// neither make one up nor repeat an old one.
fn value(device: &mut Device, srk: KeyHandle, nv: NvIndexHandle) -> Result<u64, TpmError> {
    let data = device.with_salted(srk, |device, salted| {
        let slots = (Some(salted), None, None);
        device.run_protected("NV_Read", slots, salted, |ctx| {
            ctx.nv_read(NvAuth::NvIndex(nv), nv, COUNTER_LEN, 0)
        })
    })?;
    <[u8; 8]>::try_from(data.value())
        .map(u64::from_be_bytes)
        .map_err(|_| malformed("NV_Read", "a counter of another size than 8"))
}

//! The appliance's own sealing (docs/PROTOCOL.md section 1).
//!
//! A key-encryption key is made of two halves: one is the data of a sealed object, the other lies
//! in an NV index; both open only under the same policy, which the owner's update key approves for
//! boot states. Decides when a seal counts as broken and says what changed. There is no second
//! way in: no literal-PCR branch and no unsealed key, and until there is an escrow, no way around
//! a broken one.

use hkdf::Hkdf;
use rand_core::{OsRng, RngCore};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tss_esapi::attributes::NvIndexAttributesBuilder;
use tss_esapi::constants::NvIndexType;
use tss_esapi::handles::{KeyHandle, NvIndexHandle};
use tss_esapi::interface_types::algorithm::HashingAlgorithm;
use tss_esapi::interface_types::resource_handles::{Hierarchy, NvAuth, Provision};
use tss_esapi::interface_types::session_handles::{AuthSession, PolicySession};
use tss_esapi::structures::{
    Digest, MaxNvBuffer, Name, Nonce, NvPublicBuilder, Private, SensitiveData, Signature,
    VerifiedTicket,
};
use tss_esapi::traits::UnMarshall;
use tss_esapi::tss2_esys::TPMT_TK_VERIFIED;
use zeroize::Zeroizing;

pub use super::policy::UpdateKey;

use super::TpmError;
use super::counter::{self, SealedCounter};
use super::device::{
    Device, NO_SESSION, PASSWORD, command_error, malformed, nv_tpm_handle, own_name, public_bytes,
    public_from, selection,
};
use super::node::digest_from;
use super::policy::{
    SEAL_PCRS, approval_digest, pcr_policy, policy_ref, seal_policy, update_key_public,
};
use super::template;

/// Owner NV indices for the second half; the first free one is taken.
const NV_RANGE: (u32, u32) = (0x0180_0100, 0x0180_01ff);
/// TPMA_NV: NO_DA, POLICYREAD, POLICYWRITE, and WRITTEN once data is in.
const NV_ATTRIBUTES_WRITTEN: u32 = 0x2208_0008;
/// A PCR extend by anybody between PolicyPCR and the command voids the session: start anew.
const PCR_CHANGED_RETRIES: u32 = 5;
/// TPM_RC_PCR_CHANGED.
const RC_PCR_CHANGED: u32 = 0x128;

/// One half of a key, as the TPM gave it back.
type Half = Zeroizing<Vec<u8>>;

/// Whether the appliance's boot was measured when it was sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SealMode {
    /// PCR 4, 7 and 11 were all zero: nothing measured this boot. Every receipt says so.
    Development,
    /// The seal is bound to a measured boot.
    Measured,
}

impl std::fmt::Display for SealMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Development => "development",
            Self::Measured => "measured",
        })
    }
}

/// One PCR at the time of sealing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SealedPcr {
    /// PCR number.
    pub index: u8,
    /// Value of the SHA-256 bank, hex.
    pub sha256: String,
}

/// What is kept on disk to open a seal again. Holds no secret; useless without this very TPM.
/// Byte strings are hex.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SealBlob {
    /// `TPMT_PUBLIC` of the sealed object.
    pub public: String,
    /// Inside of its `TPM2B_PRIVATE`.
    pub private: String,
    /// NV index of the second half.
    pub nv_index: u32,
    /// Name of that index, once written.
    pub nv_name: String,
    /// The counter that the ledger is anchored to.
    pub counter: SealedCounter,
    /// Name of the storage root key, pinned at sealing.
    pub srk_name: String,
    /// Epoch in the policyRef; a raised epoch leaves older images and signatures outside.
    pub epoch: u64,
    /// Public point of the update key, uncompressed SEC1.
    pub update_key_public: String,
    /// `TPMT_SIGNATURE` of the update key over the approved policy and the policyRef.
    pub policy_signature: String,
    /// PolicyPCR digest that the signature approves.
    pub approved_policy: String,
    /// The PCR values behind it, to name the one that changed.
    pub pcrs: Vec<SealedPcr>,
    /// Whether the boot was measured.
    pub mode: SealMode,
}

/// The NV indices that a seal is about to take. Whoever makes a seal keeps this first: a start that ends
/// before the seal is kept leaves the indices to the next one, which can tell that they are its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SealPlan {
    /// For the second half of the key.
    pub nv_index: u32,
    /// For the counter.
    pub counter_index: u32,
    /// Their authPolicy, hex. It is bound to the update key, so no other seal has it.
    pub policy: String,
}

/// What the appliance does with its own TPM. Blocking.
pub trait SealTpm: Send {
    /// Makes new halves under the current values of PCR 4, 7 and 11, approved by `update`, and
    /// returns the key-encryption key they form. The seal has been opened once before this
    /// returns.
    fn seal(
        &mut self,
        epoch: u64,
        update: &UpdateKey,
    ) -> Result<(SealBlob, Zeroizing<[u8; 32]>), TpmError> {
        let plan = self.plan(epoch, update)?;
        self.seal_planned(epoch, update, &plan)
    }
    /// What [`SealTpm::seal_planned`] will take. Changes nothing.
    ///
    /// # Errors
    /// No two indices of our range are free, or the TPM does not answer.
    fn plan(&mut self, epoch: u64, update: &UpdateKey) -> Result<SealPlan, TpmError>;
    /// As [`SealTpm::seal`], with the indices of a plan that is kept.
    ///
    /// # Errors
    /// The TPM refuses; nothing is left in it then, unless it lost power.
    fn seal_planned(
        &mut self,
        epoch: u64,
        update: &UpdateKey,
        plan: &SealPlan,
    ) -> Result<(SealBlob, Zeroizing<[u8; 32]>), TpmError>;
    /// Removes what was made by a plan whose seal was not kept; how many indices went. An index with
    /// another policy is somebody else's and stays.
    ///
    /// # Errors
    /// The TPM refuses.
    fn discard(&mut self, plan: &SealPlan) -> Result<u32, TpmError>;
    /// Opens a seal.
    ///
    /// # Errors
    /// [`TpmError::SealBroken`] names the PCR that changed, or the missing or foreign NV index;
    /// [`TpmError::ForeignObject`] means another TPM or a cleared one.
    fn unseal(&mut self, blob: &SealBlob) -> Result<Zeroizing<[u8; 32]>, TpmError>;
    /// Value of the seal's counter.
    ///
    /// # Errors
    /// [`TpmError::SealBroken`] when it is gone or replaced.
    fn counter(&mut self, blob: &SealBlob) -> Result<u64, TpmError>;
    /// Moves the counter on by one; it must then be `to`.
    ///
    /// # Errors
    /// [`TpmError::SealBroken`] when it is gone, replaced, or something else moves it.
    fn advance(&mut self, blob: &SealBlob, to: u64) -> Result<(), TpmError>;
    /// PCR 4, 7 and 11 of this boot.
    fn boot_state(&mut self) -> Result<[[u8; 32]; 3], TpmError>;
    /// Random bytes of the TPM's generator.
    fn random(&mut self, count: usize) -> Result<Zeroizing<Vec<u8>>, TpmError>;
    /// Manufacturer, model, firmware.
    fn properties(&mut self) -> Result<super::TpmProperties, TpmError>;
}

impl SealBlob {
    /// Approves another boot state (an update, a new firmware) for the same halves: the update
    /// path. `values` are the predicted PCRs 4, 7 and 11.
    ///
    /// # Errors
    /// When `update` is not the key this seal was made under.
    pub fn approve(&mut self, update: &UpdateKey, values: [[u8; 32]; 3]) -> Result<(), TpmError> {
        if hex::encode(update.public()) != self.update_key_public {
            return Err(malformed(
                "update key",
                "not the one this seal was made under",
            ));
        }
        let approved = pcr_policy(&values);
        self.policy_signature = hex::encode(update.approve(&approved, self.epoch)?);
        self.approved_policy = hex::encode(approved);
        self.pcrs = sealed_pcrs(&values);
        Ok(())
    }
}

/// The appliance's TPM, on tss-esapi.
pub struct ApplianceDevice {
    device: Device,
}

/// A blob decoded, still untrusted: it comes from a disk that anybody may have edited.
pub(super) struct Opened {
    public: Vec<u8>,
    private: Vec<u8>,
    nv_name: Vec<u8>,
    pub(super) srk_name: Vec<u8>,
    update_public: Vec<u8>,
    signature: Signature,
    approved: [u8; 32],
    epoch: u64,
}

impl Opened {
    pub(super) fn decode(blob: &SealBlob) -> Result<Self, TpmError> {
        let bytes = |field: &str, text: &str| {
            hex::decode(text).map_err(|e| malformed("sealed blob", &format!("{field}: {e}")))
        };
        let approved = bytes("approved_policy", &blob.approved_policy)?;
        Ok(Self {
            public: bytes("public", &blob.public)?,
            private: bytes("private", &blob.private)?,
            nv_name: bytes("nv_name", &blob.nv_name)?,
            srk_name: bytes("srk_name", &blob.srk_name)?,
            update_public: update_key_public(&bytes(
                "update_key_public",
                &blob.update_key_public,
            )?)?,
            signature: Signature::unmarshall(&bytes("policy_signature", &blob.policy_signature)?)
                .map_err(|e| malformed("sealed blob", &format!("policy_signature: {e}")))?,
            approved: approved
                .try_into()
                .map_err(|_| malformed("sealed blob", "approved_policy: not 32 bytes"))?,
            epoch: blob.epoch,
        })
    }
}

impl ApplianceDevice {
    /// Opens the TPM at this TCTI.
    ///
    /// # Errors
    /// [`TpmError::Absent`] when there is none, or it does not answer.
    pub fn open(tcti: &str) -> Result<Self, TpmError> {
        Ok(Self {
            device: Device::open(tcti)?,
        })
    }

    /// Takes the first two free indices of our range, for the second half and for the counter. An
    /// index that is there already is left alone: it may hold the half of another epoch, or belong to
    /// somebody else.
    fn free_nv_indices(&mut self) -> Result<(u32, u32), TpmError> {
        let defined = self.device.nv_indices(NV_RANGE.0, NV_RANGE.1)?;
        let mut free = (NV_RANGE.0..=NV_RANGE.1).filter(|index| !defined.contains(index));
        free.next().zip(free.next()).ok_or_else(|| {
            malformed(
                "NV indices",
                "no two free indices in 0x01800100..0x018001ff",
            )
        })
    }

    /// Removes an index of our range if it has this policy; whether it did.
    fn undefine(&mut self, index: u32, policy: &[u8]) -> Result<bool, TpmError> {
        let range = NV_RANGE.0..=NV_RANGE.1;
        if !range.contains(&index) || !self.device.nv_indices(index, index)?.contains(&index) {
            return Ok(false);
        }
        let ours = self.device.with_nv(index, |device, nv| {
            let (public, _) =
                device.run("NV_ReadPublic", NO_SESSION, |ctx| ctx.nv_read_public(nv))?;
            Ok(public.authorization_policy().value() == policy)
        })?;
        if ours {
            let handle = nv_tpm_handle(index)?;
            let nv = self.device.run("NV_ReadPublic", NO_SESSION, |ctx| {
                ctx.tr_from_tpm_public(handle.into())
            })?;
            self.device.run("NV_UndefineSpace", PASSWORD, |ctx| {
                ctx.nv_undefine_space(Provision::Owner, nv.into())
            })?;
        }
        Ok(ours)
    }

    fn half(&mut self) -> Result<Zeroizing<[u8; 32]>, TpmError> {
        let from_tpm = self.device.random(32)?;
        let mut from_os = Zeroizing::new([0; 32]);
        OsRng
            .try_fill_bytes(&mut from_os[..])
            .map_err(|e| TpmError::Command {
                command: "operating system random generator",
                code: 0,
                source: Box::new(e),
            })?;
        let mut hash = Sha256::new();
        hash.update(&from_tpm[..]);
        hash.update(&from_os[..]);
        Ok(Zeroizing::new(hash.finalize().into()))
    }

    /// Seals the object, defines and writes the index, makes the counter. What was defined is removed
    /// again on failure.
    fn make(
        &mut self,
        (index, counter): (u32, u32),
        halves: (&[u8; 32], &[u8; 32]),
        mut opened: Opened,
        policy: &[u8; 32],
    ) -> Result<(Opened, Vec<u8>, SealedCounter), TpmError> {
        self.device.with_primary(
            Hierarchy::Owner,
            &template::srk_ecc(),
            |device, srk, public| {
                opened.srk_name = own_name(public);
                device.require_name("storage root key", srk, &opened.srk_name)?;
                let object = public_from(&template::sealed(policy))?;
                let data = SensitiveData::try_from(halves.0.as_slice())
                    .map_err(|e| command_error("Create", e))?;
                let made = device.with_salted(srk, |device, salted| {
                    let slots = (Some(AuthSession::Password), Some(salted), None);
                    device.run_protected("Create", slots, salted, |ctx| {
                        ctx.create(srk, object.clone(), None, Some(data.clone()), None, None)
                    })
                })?;
                opened.public = public_bytes(&made.out_public)?;
                opened.private = made.out_private.value().to_vec();
                let attributes = NvIndexAttributesBuilder::new()
                    .with_nv_index_type(NvIndexType::Ordinary)
                    .with_no_da(true)
                    .with_policy_read(true)
                    .with_policy_write(true)
                    .build()
                    .map_err(|e| command_error("NV_DefineSpace", e))?;
                let nv_public = NvPublicBuilder::new()
                    .with_nv_index(nv_tpm_handle(index)?)
                    .with_index_name_algorithm(HashingAlgorithm::Sha256)
                    .with_index_attributes(attributes)
                    .with_index_auth_policy(digest_from(policy)?)
                    .with_data_area_size(32)
                    .build()
                    .map_err(|e| command_error("NV_DefineSpace", e))?;
                let nv = device.run("NV_DefineSpace", PASSWORD, |ctx| {
                    ctx.nv_define_space(Provision::Owner, None, nv_public.clone())
                })?;
                let made = write_nv(device, srk, nv, &opened, halves.1)
                    .and_then(|()| counter::make(device, srk, counter, &opened, policy));
                if made.is_err() {
                    // Leaves nothing half-made behind; the first error is the one to report.
                    let _ = device.run("NV_UndefineSpace", PASSWORD, |ctx| {
                        ctx.nv_undefine_space(Provision::Owner, nv)
                    });
                }
                let counter = made?;
                let name = nv_name(index, NV_ATTRIBUTES_WRITTEN, policy, 32);
                Ok((opened, name, counter))
            },
        )
    }

    fn open_halves(&mut self, index: u32, opened: &Opened) -> Result<(Half, Half), TpmError> {
        self.device
            .with_primary(Hierarchy::Owner, &template::srk_ecc(), |device, srk, _| {
                device.require_name("storage root key", srk, &opened.srk_name)?;
                let sealed_half = unseal_object(device, srk, opened)?;
                let nv_half = device.with_nv(index, |device, nv| {
                    require_nv_name(device, nv, index, "CA keys", &opened.nv_name)?;
                    authorized(device, srk, opened, |device, session, salted| {
                        let slots = (Some(session), Some(salted), None);
                        let data = device.run_protected("NV_Read", slots, salted, |ctx| {
                            ctx.nv_read(NvAuth::NvIndex(nv), nv, 32, 0)
                        })?;
                        Ok(Zeroizing::new(data.value().to_vec()))
                    })
                })?;
                Ok((sealed_half, nv_half))
            })
    }
}

impl SealTpm for ApplianceDevice {
    fn plan(&mut self, epoch: u64, update: &UpdateKey) -> Result<SealPlan, TpmError> {
        let (nv_index, counter_index) = self.free_nv_indices()?;
        let update_public = update_key_public(&update.public())?;
        Ok(SealPlan {
            nv_index,
            counter_index,
            policy: hex::encode(seal_policy(&own_name(&update_public), epoch)),
        })
    }

    fn discard(&mut self, plan: &SealPlan) -> Result<u32, TpmError> {
        let policy = hex::decode(&plan.policy)
            .map_err(|e| malformed("seal plan", &format!("policy: {e}")))?;
        let mut removed = 0;
        for index in [plan.nv_index, plan.counter_index] {
            removed += u32::from(self.undefine(index, &policy)?);
        }
        Ok(removed)
    }

    fn seal_planned(
        &mut self,
        epoch: u64,
        update: &UpdateKey,
        plan: &SealPlan,
    ) -> Result<(SealBlob, Zeroizing<[u8; 32]>), TpmError> {
        let values = self.device.pcr_read(&SEAL_PCRS)?;
        let approved = pcr_policy(&values);
        let signature = update.approve(&approved, epoch)?;
        let update_public = update_key_public(&update.public())?;
        let policy = seal_policy(&own_name(&update_public), epoch);
        let opened = Opened {
            public: Vec::new(),
            private: Vec::new(),
            nv_name: Vec::new(),
            srk_name: Vec::new(),
            update_public,
            signature: Signature::unmarshall(&signature)
                .map_err(|e| command_error("policy signature", e))?,
            approved,
            epoch,
        };
        let (first, second) = (self.half()?, self.half()?);
        let indices = (plan.nv_index, plan.counter_index);
        let (opened, name, counter) = self.make(indices, (&first, &second), opened, &policy)?;
        let mode = if values.iter().all(|value| *value == [0; 32]) {
            SealMode::Development
        } else {
            SealMode::Measured
        };
        let expected = derive_kek(&first[..], &second[..], epoch, mode, &counter);
        let blob = SealBlob {
            public: hex::encode(&opened.public),
            private: hex::encode(&opened.private),
            nv_index: indices.0,
            nv_name: hex::encode(name),
            counter,
            srk_name: hex::encode(&opened.srk_name),
            epoch,
            update_key_public: hex::encode(update.public()),
            policy_signature: hex::encode(signature),
            approved_policy: hex::encode(approved),
            pcrs: sealed_pcrs(&values),
            mode,
        };
        // Nothing may rest on a seal that has not opened once.
        let key = self.unseal(&blob)?;
        if key[..] == expected[..] {
            Ok((blob, key))
        } else {
            Err(malformed("seal", "opened to another key than was sealed"))
        }
    }

    fn counter(&mut self, blob: &SealBlob) -> Result<u64, TpmError> {
        counter::read(&mut self.device, blob)
    }

    fn advance(&mut self, blob: &SealBlob, to: u64) -> Result<(), TpmError> {
        counter::advance(&mut self.device, blob, to)
    }

    fn boot_state(&mut self) -> Result<[[u8; 32]; 3], TpmError> {
        <[[u8; 32]; 3]>::try_from(self.device.pcr_read(&SEAL_PCRS)?)
            .map_err(|_| malformed("PCR values", "not three of them"))
    }

    fn unseal(&mut self, blob: &SealBlob) -> Result<Zeroizing<[u8; 32]>, TpmError> {
        let opened = Opened::decode(blob)?;
        let now = self.device.pcr_read(&SEAL_PCRS)?;
        if pcr_policy(&now) != opened.approved {
            return Err(TpmError::SealBroken {
                what: "CA keys",
                why: changed_pcrs(blob, &now),
            });
        }
        if !self
            .device
            .nv_indices(blob.nv_index, blob.nv_index)?
            .contains(&blob.nv_index)
        {
            return Err(TpmError::SealBroken {
                what: "CA keys",
                why: format!(
                    "NV index {:#010x} with the second half of the key is gone: somebody with the \
                     owner hierarchy removed it, or the TPM was cleared. Treat it as an alarm; \
                     there is no escrow yet ({HELP})",
                    blob.nv_index
                ),
            });
        }
        let (first, second) = match self.open_halves(blob.nv_index, &opened) {
            Err(TpmError::Command {
                command,
                code,
                source,
            }) if policy_refused(code) => {
                tracing::debug!(command, code, error = %source, "policy refused");
                return Err(TpmError::SealBroken {
                    what: "CA keys",
                    why: format!(
                        "{command} answered {code:#06x}: the policy signature, its epoch {} or the \
                         blob does not belong to this seal. Restore the state folder; there is no \
                         escrow yet ({HELP})",
                        blob.epoch
                    ),
                });
            }
            other => other?,
        };
        Ok(derive_kek(
            &first,
            &second,
            blob.epoch,
            blob.mode,
            &blob.counter,
        ))
    }

    fn random(&mut self, count: usize) -> Result<Zeroizing<Vec<u8>>, TpmError> {
        self.device.random(count)
    }

    fn properties(&mut self) -> Result<super::TpmProperties, TpmError> {
        self.device.properties()
    }
}

/// Runs one command under the seal's policy and a session salted to the pinned storage root key.
/// Repeats all of it when a PCR was extended meanwhile: IMA extends PCR 10 at any moment, and
/// that voids the session although PCR 10 is not in the policy.
pub(super) fn authorized<T>(
    device: &mut Device,
    srk: KeyHandle,
    opened: &Opened,
    mut command: impl FnMut(&mut Device, AuthSession, AuthSession) -> Result<T, TpmError>,
) -> Result<T, TpmError> {
    let mut tries = 0;
    loop {
        let result = device.with_salted(srk, |device, salted| {
            device.with_policy(HashingAlgorithm::Sha256, |device, policy, session| {
                satisfy(device, policy, opened)?;
                command(device, session, salted)
            })
        });
        match result {
            Err(TpmError::Command {
                code: RC_PCR_CHANGED,
                ..
            }) if tries < PCR_CHANGED_RETRIES => {
                tries += 1;
            }
            other => return other,
        }
    }
}

/// PolicyPCR, then PolicyAuthorize with a ticket for the update key's signature.
fn satisfy(device: &mut Device, session: PolicySession, opened: &Opened) -> Result<(), TpmError> {
    let pcrs = selection(&SEAL_PCRS)?;
    device.run("PolicyPCR", NO_SESSION, |ctx| {
        ctx.policy_pcr(session, Digest::default(), pcrs.clone())
    })?;
    let public = public_from(&opened.update_public)?;
    let key = device.run("LoadExternal", NO_SESSION, |ctx| {
        ctx.load_external_public(public.clone(), Hierarchy::Owner)
    })?;
    let digest = digest_from(&approval_digest(&opened.approved, opened.epoch))?;
    let ticket = device.with_object(key.into(), |device| {
        device.run("VerifySignature", NO_SESSION, |ctx| {
            ctx.verify_signature(key, digest.clone(), opened.signature.clone())
        })
    })?;
    // The crate's ticket cannot be cloned for a repeated command, the structure behind it can.
    let ticket =
        TPMT_TK_VERIFIED::try_from(ticket).map_err(|e| command_error("PolicyAuthorize", e))?;
    let approved = digest_from(&opened.approved)?;
    let reference = Nonce::try_from(policy_ref(opened.epoch))
        .map_err(|e| command_error("PolicyAuthorize", e))?;
    let name = Name::try_from(own_name(&opened.update_public))
        .map_err(|e| command_error("PolicyAuthorize", e))?;
    device.run("PolicyAuthorize", NO_SESSION, |ctx| {
        let ticket = VerifiedTicket::try_from(ticket)?;
        ctx.policy_authorize(session, approved.clone(), reference.clone(), &name, ticket)
    })
}

fn unseal_object(
    device: &mut Device,
    srk: KeyHandle,
    opened: &Opened,
) -> Result<Zeroizing<Vec<u8>>, TpmError> {
    let private =
        Private::try_from(opened.private.clone()).map_err(|e| command_error("Load", e))?;
    let public = public_from(&opened.public)?;
    let object = device.run("Load", PASSWORD, |ctx| {
        ctx.load(srk, private.clone(), public.clone())
    })?;
    device.with_object(object.into(), |device| {
        authorized(device, srk, opened, |device, session, salted| {
            let slots = (Some(session), Some(salted), None);
            let data =
                device.run_protected("Unseal", slots, salted, |ctx| ctx.unseal(object.into()))?;
            Ok(Zeroizing::new(data.value().to_vec()))
        })
    })
}

fn write_nv(
    device: &mut Device,
    srk: KeyHandle,
    nv: NvIndexHandle,
    opened: &Opened,
    half: &[u8; 32],
) -> Result<(), TpmError> {
    let data = MaxNvBuffer::try_from(half.as_slice()).map_err(|e| command_error("NV_Write", e))?;
    authorized(device, srk, opened, |device, session, salted| {
        let slots = (Some(session), Some(salted), None);
        device.run_protected("NV_Write", slots, salted, |ctx| {
            ctx.nv_write(NvAuth::NvIndex(nv), nv, data.clone(), 0)
        })
    })
}

pub(super) fn require_nv_name(
    device: &mut Device,
    nv: NvIndexHandle,
    index: u32,
    what: &'static str,
    expected: &[u8],
) -> Result<(), TpmError> {
    let (_, name) = device.run("NV_ReadPublic", NO_SESSION, |ctx| ctx.nv_read_public(nv))?;
    if name.value() == expected {
        return Ok(());
    }
    Err(TpmError::SealBroken {
        what,
        why: format!(
            "NV index {index:#010x} is not ours any more: expected Name {}, found {}. Somebody with \
             the owner hierarchy replaced it. Treat it as an alarm; there is no escrow yet ({HELP})",
            hex::encode(expected),
            hex::encode(name.value())
        ),
    })
}

/// Name of our index once it is written (TPM 2.0 Part 1, 16): `nameAlg || H(TPMS_NV_PUBLIC)`.
pub(super) fn nv_name(index: u32, attributes: u32, policy: &[u8; 32], size: u16) -> Vec<u8> {
    let mut public = index.to_be_bytes().to_vec();
    public.extend([0x00, 0x0b]);
    public.extend(attributes.to_be_bytes());
    public.extend([0x00, 0x20]);
    public.extend(policy);
    public.extend(size.to_be_bytes());
    own_name(&public)
}

/// KEK = HKDF-SHA256(sealed half || NV half); epoch, mode and counter are in its info, so that a
/// blob that says otherwise opens nothing.
fn derive_kek(
    first: &[u8],
    second: &[u8],
    epoch: u64,
    mode: SealMode,
    counter: &SealedCounter,
) -> Zeroizing<[u8; 32]> {
    let mut input = Zeroizing::new(first.to_vec());
    input.extend_from_slice(second);
    let mut info = b"vestibule/kek/v1".to_vec();
    info.extend(epoch.to_be_bytes());
    info.extend(mode.to_string().bytes());
    info.extend(counter.bound());
    let mut key = Zeroizing::new([0; 32]);
    Hkdf::<Sha256>::new(None, &input)
        .expand(&info, &mut key[..])
        .expect("32 bytes are within HKDF-SHA256's 255 blocks");
    key
}

fn sealed_pcrs(values: &[[u8; 32]]) -> Vec<SealedPcr> {
    SEAL_PCRS
        .iter()
        .zip(values)
        .map(|(index, value)| SealedPcr {
            index: *index,
            sha256: hex::encode(value),
        })
        .collect()
}

/// Which PCR is not what it was, and what the operator can do.
fn changed_pcrs(blob: &SealBlob, now: &[[u8; 32]]) -> String {
    let changed: Vec<String> = SEAL_PCRS
        .iter()
        .zip(now)
        .filter_map(|(index, value)| {
            let value = hex::encode(value);
            let sealed = blob.pcrs.iter().find(|pcr| pcr.index == *index)?;
            (sealed.sha256 != value).then(|| {
                format!(
                    "PCR {index} ({}) was {} and is {value}",
                    pcr_meaning(*index),
                    sealed.sha256
                )
            })
        })
        .collect();
    let what = if changed.is_empty() {
        "the recorded PCR values do not match the approved policy: the blob was edited".to_owned()
    } else {
        changed.join("; ")
    };
    format!(
        "{what}. Boot the image and firmware settings it was sealed with; or, if this boot is the \
         one you want, approve it with the owner's update key: vestibule seal approve ({HELP})"
    )
}

/// Where an operator reads on.
pub(super) const HELP: &str = "docs/OPERATIONS.md, seal broken";

fn pcr_meaning(index: u8) -> &'static str {
    match index {
        4 => "boot loader and kernel",
        7 => "Secure Boot state",
        _ => "sections of the kernel image",
    }
}

/// Response codes that mean the policy (or the blob) does not fit, as opposed to a sick TPM:
/// POLICY_FAIL, VALUE, SIGNATURE, INTEGRITY, with their parameter, handle or session number.
fn policy_refused(code: u32) -> bool {
    // Format-one codes (bit 7): error number in bits 0-5.
    code & 0x80 != 0 && matches!(code & 0x3f, 0x1d | 0x04 | 0x1b | 0x1f)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEASURED: SealMode = SealMode::Measured;

    fn counter() -> SealedCounter {
        SealedCounter {
            nv_index: 0x0180_0101,
            nv_name: "000b".to_owned(),
            first: 7,
        }
    }

    #[test]
    fn kek_depends_on_halves_epoch_mode_and_counter() {
        let kek = derive_kek(&[1; 32], &[2; 32], 1, MEASURED, &counter());
        assert_ne!(kek, derive_kek(&[3; 32], &[2; 32], 1, MEASURED, &counter()));
        assert_ne!(kek, derive_kek(&[1; 32], &[3; 32], 1, MEASURED, &counter()));
        assert_ne!(kek, derive_kek(&[1; 32], &[2; 32], 2, MEASURED, &counter()));
        let development = SealMode::Development;
        assert_ne!(
            kek,
            derive_kek(&[1; 32], &[2; 32], 1, development, &counter())
        );
        for change in [
            |counter: &mut SealedCounter| counter.nv_index += 1,
            |counter: &mut SealedCounter| counter.nv_name.push('0'),
            |counter: &mut SealedCounter| counter.first += 1,
        ] {
            let mut other = counter();
            change(&mut other);
            assert_ne!(
                kek,
                derive_kek(&[1; 32], &[2; 32], 1, MEASURED, &other),
                "{other:?}"
            );
        }
    }

    #[test]
    fn broken_seal_names_the_pcr_and_both_values() {
        let blob = SealBlob {
            public: String::new(),
            private: String::new(),
            nv_index: 0,
            nv_name: String::new(),
            counter: counter(),
            srk_name: String::new(),
            epoch: 1,
            update_key_public: String::new(),
            policy_signature: String::new(),
            approved_policy: String::new(),
            pcrs: sealed_pcrs(&[[0; 32]; 3]),
            mode: SealMode::Development,
        };
        let text = changed_pcrs(&blob, &[[0; 32], [7; 32], [0; 32]]);
        assert!(text.contains("PCR 7 (Secure Boot state)"), "{text}");
        assert!(
            text.contains(&"00".repeat(32)) && text.contains(&"07".repeat(32)),
            "{text}"
        );
        assert!(
            !text.contains("PCR 4") && !text.contains("PCR 11"),
            "{text}"
        );
        assert!(text.contains("vestibule seal approve"), "{text}");
    }

    #[test]
    fn codes_of_a_refused_policy_and_of_a_sick_tpm_differ() {
        for code in [0x99d, 0x1c4, 0x2db, 0x1df] {
            assert!(policy_refused(code), "{code:#x}");
        }
        for code in [0x101, 0x922, 0x902, 0x18b, 0] {
            assert!(!policy_refused(code), "{code:#x}");
        }
    }
}

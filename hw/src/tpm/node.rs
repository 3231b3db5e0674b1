//! What the attester does with its node's TPM, on tss-esapi.
//!
//! Keeps the AK and the DevID loaded (two of the three object slots of a TPM without resource
//! manager) and loads each EK for one command only. Does not decide what is asked or answered: the
//! attester does.

use attest_wire::templates::Template;
use attest_wire::tpm::HashAlg;
use tss_esapi::constants::tss::{TPM2_RH_NULL, TPM2_ST_HASHCHECK};
use tss_esapi::handles::{AuthHandle, KeyHandle, PcrHandle};
use tss_esapi::interface_types::algorithm::HashingAlgorithm;
use tss_esapi::interface_types::resource_handles::Hierarchy;
use tss_esapi::interface_types::session_handles::{AuthSession, PolicySession};
use tss_esapi::structures::{
    Attest, Auth, Data, Digest, DigestList, DigestValues, EncryptedSecret, HashcheckTicket,
    IdObject, Nonce, PcrSelectionList, Signature, SignatureScheme,
};
use tss_esapi::traits::Marshall;
use tss_esapi::tss2_esys::TPMT_TK_HASHCHECK;
use tss_esapi::utils::TpmsContext;
use zeroize::Zeroizing;

use super::device::{
    Device, NO_SESSION, PASSWORD, command_error, malformed, own_name, public_bytes, public_from,
    selection, selection_of,
};
use super::template::{self, EK_KINDS, EkKind};
use super::{Attested, DevId, DevIdKind, EndorsementKey, NodeTpm, TpmError, TpmProperties};

/// EK certificates live at 0x01c00000..0x01c000ff, the chain of the low and high range above
/// (TCG EK Credential Profile 2.2.1.4, 2.2.1.5).
const EK_CERTS: (u32, u32) = (0x01c0_0000, 0x01c0_00ff);
const EK_CHAIN: (u32, u32) = (0x01c0_0100, 0x01c0_01ff);
/// Largest chain that is read, in bytes.
const EK_CHAIN_MAX: usize = 32 * 1024;

/// An endorsement key we have made once: its public, how to make it again, and the saved context,
/// since an RSA key takes seconds on a discrete TPM and a session is short.
struct KnownEk {
    kind: EkKind,
    public: Vec<u8>,
    template: Vec<u8>,
    saved: Option<TpmsContext>,
}

/// A node's TPM, open for one boot.
pub struct NodeDevice {
    pub(super) device: Device,
    eks: Vec<KnownEk>,
    ak: Option<KeyHandle>,
    devid: Option<KeyHandle>,
}

impl NodeDevice {
    /// Opens the TPM at this TCTI (`device:/dev/tpmrm0`, `swtpm:host=127.0.0.1,port=2321`).
    ///
    /// # Errors
    /// [`TpmError::Absent`] when there is none, or it does not answer.
    pub fn open(tcti: &str) -> Result<Self, TpmError> {
        Ok(Self {
            device: Device::open(tcti)?,
            eks: Vec::new(),
            ak: None,
            devid: None,
        })
    }

    /// Makes the AK in the owner hierarchy, where counters are obfuscated (TPM 2.0 Part 1,
    /// "Obfuscation"). The attester never does: this is for tests that show the gateway refuses it.
    ///
    /// # Errors
    /// As [`NodeTpm::create_ak`].
    pub fn create_owner_ak(&mut self, unique: [u8; 64]) -> Result<Vec<u8>, TpmError> {
        self.create_ak_in(Hierarchy::Owner, unique)
    }

    /// Makes the EK of this template, whether its vendor has certified it or not, and offers it from then
    /// on. The attester never does: this is for tests of the keys that a TPM has no certificate for.
    ///
    /// # Errors
    /// As [`NodeTpm::endorsement_keys`].
    pub fn endorsement_key(&mut self, template: Template) -> Result<EndorsementKey, TpmError> {
        let kind = EkKind::of(template).ok_or_else(|| malformed("EK template", template.name()))?;
        let defined = self.device.nv_indices(EK_CERTS.0, EK_CERTS.1)?;
        self.make_ek(kind, &defined)
    }

    /// Quotes another bank, or with qualifyingData of any length. The attester never does: this is
    /// for tests that show the gateway refuses it.
    ///
    /// # Errors
    /// As [`NodeTpm::quote`].
    pub fn quote_otherwise(
        &mut self,
        qualifying: &[u8],
        bank: HashAlg,
        pcrs: &[u8],
    ) -> Result<Attested, TpmError> {
        let hash = match bank {
            HashAlg::Sha1 => HashingAlgorithm::Sha1,
            HashAlg::Sha256 => HashingAlgorithm::Sha256,
            HashAlg::Sha384 => HashingAlgorithm::Sha384,
            HashAlg::Sha512 => HashingAlgorithm::Sha512,
            HashAlg::Sm3 => HashingAlgorithm::Sm3_256,
        };
        let data = Data::try_from(qualifying).map_err(|e| command_error("qualifyingData", e))?;
        self.quote_of(&data, &selection_of(hash, pcrs)?)
    }

    fn quote_of(&mut self, data: &Data, pcrs: &PcrSelectionList) -> Result<Attested, TpmError> {
        let ak = self.ak()?;
        let (attest, signature) = self.device.run("Quote", PASSWORD, |ctx| {
            ctx.quote(ak, data.clone(), SignatureScheme::Null, pcrs.clone())
        })?;
        attested(&attest, &signature)
    }

    fn create_ak_in(
        &mut self,
        hierarchy: Hierarchy,
        unique: [u8; 64],
    ) -> Result<Vec<u8>, TpmError> {
        if let Some(old) = self.ak.take() {
            self.device.flush(old.into())?;
        }
        let template = template::ak(&unique);
        let (key, public) = self.device.create_primary(hierarchy, &template)?;
        self.ak = Some(key);
        self.device.require_name("AK", key, &own_name(&public))?;
        Ok(public)
    }

    /// Makes one EK, keeps it in `eks`, and returns it with its certificate.
    fn make_ek(&mut self, kind: EkKind, defined: &[u32]) -> Result<EndorsementKey, TpmError> {
        let has = |index: u32| defined.contains(&index);
        let nonce = match kind.nonce_index() {
            Some(index) if has(index) => self.device.nv_read_all(index)?,
            _ => Vec::new(),
        };
        let template = kind.template(&nonce);
        let (key, public) = self
            .device
            .create_primary(Hierarchy::Endorsement, &template)?;
        let saved = self.device.with_object(key.into(), |device| {
            // A TPM that cannot save the context costs time only: the key is made again.
            Ok(device
                .run("ContextSave", NO_SESSION, |ctx| {
                    ctx.context_save(key.into())
                })
                .ok())
        })?;
        let cert_nv = if has(kind.cert_index) {
            Some(self.device.nv_read_all(kind.cert_index)?)
        } else {
            None
        };
        self.eks.push(KnownEk {
            kind,
            public: public.clone(),
            template,
            saved,
        });
        Ok(EndorsementKey { public, cert_nv })
    }

    /// Loads a known EK and compares its Name with the one of its public.
    pub(super) fn load_ek(&mut self, public: &[u8]) -> Result<(KeyHandle, EkKind), TpmError> {
        let known = self
            .eks
            .iter()
            .find(|known| known.public == public)
            .ok_or_else(|| malformed("EK public", "not one of this TPM's endorsement keys"))?;
        let kind = known.kind;
        if let Some(saved) = &known.saved {
            let loaded = self.device.run("ContextLoad", NO_SESSION, |ctx| {
                ctx.context_load(saved.clone())
            });
            if let Ok(object) = loaded {
                return Ok((KeyHandle::from(object), kind));
            }
        }
        let (key, again) = self
            .device
            .create_primary(Hierarchy::Endorsement, &known.template)?;
        if again == public {
            return Ok((key, kind));
        }
        self.device.flush(key.into())?;
        Err(TpmError::ForeignObject {
            what: "endorsement key",
            expected: hex::encode(template::name(kind.hash(), public)),
            found: hex::encode(template::name(kind.hash(), &again)),
        })
    }

    /// Runs `work` with the AK out of the TPM's memory, and loads it again in any case.
    pub(super) fn with_ak_parked<T>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<T, TpmError>,
    ) -> Result<T, TpmError> {
        let Some(ak) = self.ak.take() else {
            return work(self);
        };
        let saved = self
            .device
            .run("ContextSave", NO_SESSION, |ctx| ctx.context_save(ak.into()));
        let saved = match saved {
            Ok(saved) => saved,
            Err(error) => {
                self.ak = Some(ak);
                return Err(error);
            }
        };
        self.device.flush(ak.into())?;
        let result = work(self);
        let loaded = self.device.run("ContextLoad", NO_SESSION, |ctx| {
            ctx.context_load(saved.clone())
        });
        let lost = match loaded {
            Ok(object) => {
                self.ak = Some(KeyHandle::from(object));
                Ok(())
            }
            Err(error) => Err(error),
        };
        let value = result?;
        lost?;
        Ok(value)
    }

    fn ak(&self) -> Result<KeyHandle, TpmError> {
        self.ak.ok_or_else(|| malformed("AK", "not made yet"))
    }
}

impl NodeTpm for NodeDevice {
    fn properties(&mut self) -> Result<TpmProperties, TpmError> {
        self.device.properties()
    }

    fn endorsement_keys(&mut self) -> Result<Vec<EndorsementKey>, TpmError> {
        self.eks.clear();
        let defined = self.device.nv_indices(EK_CERTS.0, EK_CERTS.1)?;
        let mut keys = Vec::new();
        for kind in EK_KINDS {
            // SPIRE attests with the RSA-2048 key of the low range, so it is made in any case; the
            // others only where the vendor certified them.
            let is_first = kind == EK_KINDS[0];
            if is_first || defined.contains(&kind.cert_index) {
                match self.make_ek(kind, &defined) {
                    Ok(key) => keys.push(key),
                    // A TPM without RSA is offered by its other keys.
                    Err(TpmError::Command { .. }) if is_first => {}
                    Err(error) => return Err(error),
                }
            }
        }
        if keys.is_empty() {
            keys.push(self.make_ek(EK_KINDS[1], &defined)?);
        }
        Ok(keys)
    }

    fn ek_chain(&mut self) -> Result<Vec<u8>, TpmError> {
        let mut chain = Vec::new();
        for index in self.device.nv_indices(EK_CHAIN.0, EK_CHAIN.1)? {
            chain.extend(self.device.nv_read_all(index)?);
            if chain.len() > EK_CHAIN_MAX {
                return Err(malformed(
                    "EK certificate chain",
                    &format!("longer than {EK_CHAIN_MAX} bytes"),
                ));
            }
        }
        Ok(chain)
    }

    fn create_ak(&mut self, unique: [u8; 64]) -> Result<Vec<u8>, TpmError> {
        self.create_ak_in(Hierarchy::Endorsement, unique)
    }

    fn create_devid(
        &mut self,
        kind: DevIdKind,
        auth: Option<Zeroizing<String>>,
    ) -> Result<DevId, TpmError> {
        if let Some(old) = self.devid.take() {
            self.device.flush(old.into())?;
        }
        // 33 bytes or more are silently replaced by their hash in ESYS, a trailing zero is dropped.
        let auth_value = match &auth {
            Some(text) if text.len() == 32 && text.is_ascii() => auth_from(text)?,
            Some(_) => return Err(malformed("DevID authValue", "not 32 ASCII characters")),
            None => Auth::default(),
        };
        let (srk_template, template) = match kind {
            DevIdKind::Rsa2048 => (Template::SrkRsa2048, Template::DevIdRsa2048),
            DevIdKind::EccP256 => (Template::SrkP256, Template::DevIdP256),
        };
        let srk_template = srk_template.public().encode();
        let template = public_from(&template.public().encode())?;
        let (devid, handle) = self.device.with_primary(
            Hierarchy::Owner,
            &srk_template,
            |device, srk, srk_public| {
                device.require_name("storage root key", srk, &own_name(srk_public))?;
                let made = device.with_salted(srk, |device, session| {
                    let slots = (Some(AuthSession::Password), Some(session), None);
                    device.run_protected("Create", slots, session, |ctx| {
                        let auth = Some(auth_value.clone());
                        ctx.create(srk, template.clone(), auth, None, None, None)
                    })
                })?;
                let handle = device.run("Load", PASSWORD, |ctx| {
                    ctx.load(srk, made.out_private.clone(), made.out_public.clone())
                })?;
                let devid = DevId {
                    srk_public: srk_public.to_vec(),
                    public: public_bytes(&made.out_public)?,
                    private: made.out_private.value().to_vec(),
                    auth,
                };
                Ok((devid, handle))
            },
        )?;
        self.devid = Some(handle);
        self.device.run("TR_SetAuth", NO_SESSION, |ctx| {
            ctx.tr_set_auth(handle.into(), auth_value.clone())
        })?;
        Ok(devid)
    }

    fn activate(
        &mut self,
        ek_public: &[u8],
        blob: &[u8],
        secret: &[u8],
    ) -> Result<Zeroizing<Vec<u8>>, TpmError> {
        let ak = self.ak()?;
        let blob = IdObject::try_from(blob).map_err(|e| command_error("ActivateCredential", e))?;
        let secret = EncryptedSecret::try_from(secret)
            .map_err(|e| command_error("ActivateCredential", e))?;
        let (ek, kind) = self.load_ek(ek_public)?;
        self.device.with_object(ek.into(), |device| {
            device.require_name(
                "endorsement key",
                ek,
                &template::name(kind.hash(), ek_public),
            )?;
            device.with_salted(ek, |device, salted| {
                let hash = ek_hash(kind);
                device.with_policy(hash, |device, policy, session| {
                    satisfy_ek_policy(device, kind, policy)?;
                    let slots = (Some(AuthSession::Password), Some(session), Some(salted));
                    let credential =
                        device.run_protected("ActivateCredential", slots, salted, |ctx| {
                            ctx.activate_credential(ak, ek, blob.clone(), secret.clone())
                        })?;
                    Ok(Zeroizing::new(credential.value().to_vec()))
                })
            })
        })
    }

    fn unseal_import(
        &mut self,
        ek_public: &[u8],
        public: &[u8],
        private: &[u8],
        secret: &[u8],
        pcrs: &[u8],
    ) -> Result<Zeroizing<Vec<u8>>, TpmError> {
        self.unseal_wrapped(ek_public, [public, private, secret], pcrs)
    }

    fn certify_devid(&mut self, qualifying: &[u8; 32]) -> Result<Attested, TpmError> {
        let ak = self.ak()?;
        let devid = self
            .devid
            .ok_or_else(|| malformed("DevID", "not made yet"))?;
        let data = data_from(qualifying)?;
        let (attest, signature) = self.device.with_hmac(|device, session| {
            let slots = (Some(session), Some(AuthSession::Password), None);
            device.run("Certify", slots, |ctx| {
                ctx.certify(devid.into(), ak, data.clone(), SignatureScheme::Null)
            })
        })?;
        attested(&attest, &signature)
    }

    fn sign_devid(&mut self, digest: &[u8; 32]) -> Result<Vec<u8>, TpmError> {
        let devid = self
            .devid
            .ok_or_else(|| malformed("DevID", "not made yet"))?;
        let digest = digest_from(digest)?;
        // The DevID is not restricted: it signs what the TPM has not hashed itself.
        let ticket = HashcheckTicket::try_from(TPMT_TK_HASHCHECK {
            tag: TPM2_ST_HASHCHECK,
            hierarchy: TPM2_RH_NULL,
            digest: Default::default(),
        })
        .map_err(|e| command_error("Sign", e))?;
        let signature = self.device.with_hmac(|device, session| {
            let slots = (Some(session), None, None);
            device.run("Sign", slots, |ctx| {
                ctx.sign(devid, digest.clone(), SignatureScheme::Null, ticket.clone())
            })
        })?;
        signature
            .marshall()
            .map_err(|e| malformed("TPMT_SIGNATURE", &e.to_string()))
    }

    fn quote(&mut self, qualifying: &[u8; 32], pcrs: &[u8]) -> Result<Attested, TpmError> {
        self.quote_of(&data_from(qualifying)?, &selection(pcrs)?)
    }

    fn pcr_read(&mut self, pcrs: &[u8]) -> Result<Vec<[u8; 32]>, TpmError> {
        self.device.pcr_read(pcrs)
    }

    fn pcr_extend(&mut self, pcr: u8, digest: &[u8; 32]) -> Result<(), TpmError> {
        selection(&[pcr])?;
        let handle =
            PcrHandle::try_from(u32::from(pcr)).map_err(|e| command_error("PCR_Extend", e))?;
        let mut values = DigestValues::new();
        values.set(HashingAlgorithm::Sha256, digest_from(digest)?);
        self.device.run("PCR_Extend", PASSWORD, |ctx| {
            ctx.pcr_extend(handle, values.clone())
        })
    }
}

/// Satisfies the policy of an EK in a fresh session: PolicySecret(endorsement), and for the high
/// range PolicyOR(PolicyA, PolicyC). By password a high-range EK is DA-protected, and three power
/// cuts later it is locked out.
pub(super) fn satisfy_ek_policy(
    device: &mut Device,
    kind: EkKind,
    session: PolicySession,
) -> Result<(), TpmError> {
    device.run("PolicySecret", PASSWORD, |ctx| {
        ctx.policy_secret(
            session,
            AuthHandle::Endorsement,
            Nonce::default(),
            Digest::default(),
            Nonce::default(),
            None,
        )
        .map(|_| ())
    })?;
    if !kind.high_range() {
        return Ok(());
    }
    let policy_a = device.run("PolicyGetDigest", NO_SESSION, |ctx| {
        ctx.policy_get_digest(session)
    })?;
    let mut branches = DigestList::new();
    for digest in [policy_a, digest_from(kind.policy_c())?] {
        branches
            .add(digest)
            .map_err(|e| command_error("PolicyOR", e))?;
    }
    device.run("PolicyOR", NO_SESSION, |ctx| {
        ctx.policy_or(session, branches.clone())
    })
}

pub(super) fn ek_hash(kind: EkKind) -> HashingAlgorithm {
    if kind.hash() == HashAlg::Sha384 {
        HashingAlgorithm::Sha384
    } else {
        HashingAlgorithm::Sha256
    }
}

fn auth_from(text: &str) -> Result<Auth, TpmError> {
    Auth::try_from(text.as_bytes()).map_err(|e| command_error("authValue", e))
}

fn data_from(bytes: &[u8; 32]) -> Result<Data, TpmError> {
    Data::try_from(bytes.as_slice()).map_err(|e| command_error("qualifyingData", e))
}

/// A digest for ESYS.
pub(super) fn digest_from(bytes: &[u8]) -> Result<Digest, TpmError> {
    Digest::try_from(bytes).map_err(|e| command_error("digest", e))
}

fn attested(attest: &Attest, signature: &Signature) -> Result<Attested, TpmError> {
    Ok(Attested {
        attest: attest
            .marshall()
            .map_err(|e| malformed("TPMS_ATTEST", &e.to_string()))?,
        signature: signature
            .marshall()
            .map_err(|e| malformed("TPMT_SIGNATURE", &e.to_string()))?,
    })
}

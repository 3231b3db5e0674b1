//! An honest node with a software TPM: builds hello and evidence that pass, one field at a time
//! changeable. It answers challenges with real cryptography; nothing is stubbed.
//!
//! Used by the appraisal tests and, through `#[path]`, by storms that need more nodes than swtpm
//! can give. A software TPM proves nothing about hardware.

#![allow(dead_code)]
// Test code: a failed unwrap is a failed test.
#![allow(clippy::unwrap_used)]

pub mod log;
pub mod site;
pub mod world;

use std::collections::BTreeMap;

use aes::cipher::{AsyncStreamCipher as _, KeyIvInit as _};
use attest_wire::credential::{kdf_a, kdf_e};
use attest_wire::templates::Template;
use attest_wire::tpm::{
    Attest, AttestBody, ClockInfo, HashAlg, Name, PcrSelection, Public, PublicKind, RH_ENDORSEMENT,
    RH_OWNER, Signature, qualified_name, qualified_name_of_primary,
};
use attest_wire::v1::{
    Attested, Binding, Bytes, Challenge, Credential, Disk, EkOffer, Evidence, Hello, LldpReport,
    Nic, PcrValue, Platform, TpmInfo, decode_challenge,
};
use p256::ecdsa::SigningKey;
use p256::ecdsa::signature::Signer as _;
use p256::elliptic_curve::sec1::ToEncodedPoint as _;
use rand_core::{CryptoRngCore, OsRng};

use log::LogBuilder;

/// An endorsement key with its private part.
pub enum EkKey {
    P256(p256::SecretKey),
    P384(p384::SecretKey),
    Rsa(Box<rsa::RsaPrivateKey>),
}

/// One endorsement key of the node.
pub struct NodeEk {
    pub key: EkKey,
    pub public: Public,
    pub cert: Option<Vec<u8>>,
}

/// A node.
pub struct Node {
    pub eks: Vec<NodeEk>,
    pub ek_chain: Vec<Vec<u8>>,
    pub ak: SigningKey,
    pub ak_public: Public,
    /// Hierarchy the AK lives in; honest: endorsement.
    pub ak_hierarchy: u32,
    /// How it says its DevID is protected.
    pub devid_auth: attest_wire::v1::DevIdAuth,
    pub srk: Public,
    pub devid: Public,
    /// The key behind it.
    pub devid_key: SigningKey,
    /// What its attester can.
    pub can: Vec<attest_wire::v1::handover::Ability>,
    pub clock: ClockInfo,
    pub serial: String,
    pub nics: Vec<Nic>,
    pub disks: Vec<Disk>,
    pub lldp: Vec<LldpReport>,
    /// What it logs; the TPM is extended with exactly that.
    pub log: LogBuilder,
    /// Extends that no log shows.
    pub unlogged: Vec<(u8, [u8; 32])>,
    /// Extends of PCR 15 before this session.
    pub pcr15: Vec<[u8; 32]>,
    /// What the last session extended there.
    pub mark: std::cell::Cell<[u8; 32]>,
}

/// One TLS connection with its challenge.
pub struct Session<'a> {
    pub hello_body: &'a [u8],
    pub challenge_body: &'a [u8],
    pub exporter: [u8; 32],
}

fn ecc_public(template: Template, key: &p256::PublicKey) -> Public {
    let point = key.to_encoded_point(false);
    let mut public = template.public();
    if let PublicKind::Ecc { x, y, .. } = &mut public.kind {
        *x = point.x().unwrap().to_vec();
        *y = point.y().unwrap().to_vec();
    }
    public
}

impl NodeEk {
    pub fn p256(rng: &mut impl CryptoRngCore) -> Self {
        let key = p256::SecretKey::random(rng);
        Self {
            public: ecc_public(Template::EkP256L, &key.public_key()),
            key: EkKey::P256(key),
            cert: None,
        }
    }

    pub fn p384(rng: &mut impl CryptoRngCore) -> Self {
        let key = p384::SecretKey::random(rng);
        let point = key.public_key().to_encoded_point(false);
        let mut public = Template::EkP384H.public();
        if let PublicKind::Ecc { x, y, .. } = &mut public.kind {
            *x = point.x().unwrap().to_vec();
            *y = point.y().unwrap().to_vec();
        }
        Self {
            public,
            key: EkKey::P384(key),
            cert: None,
        }
    }

    pub fn rsa(rng: &mut impl CryptoRngCore) -> Self {
        use rsa::traits::PublicKeyParts as _;
        let key = rsa::RsaPrivateKey::new(rng, 2048).unwrap();
        let mut public = Template::EkRsa2048L.public();
        if let PublicKind::Rsa { modulus, .. } = &mut public.kind {
            *modulus = key.n().to_bytes_be();
        }
        Self {
            public,
            key: EkKey::Rsa(Box::new(key)),
            cert: None,
        }
    }

    /// `TPM2_ActivateCredential`: none when the integrity HMAC does not fit the object's Name.
    pub fn activate(&self, object: &Name, credential: &Credential) -> Option<Vec<u8>> {
        let hash = self.public.name_alg;
        let seed = self.seed(&credential.secret.0)?;
        let mac_len = hash.size();
        let (mac, encrypted) = credential.blob.0.get(2..)?.split_at_checked(mac_len)?;
        let mac_key = kdf_a(hash, &seed, "INTEGRITY", &[], &[], mac_len);
        if hash.hmac(&mac_key, &[encrypted, object.as_bytes()]) != mac {
            return None;
        }
        let mut clear = encrypted.to_vec();
        let aes = if hash == HashAlg::Sha384 { 32 } else { 16 };
        let key = kdf_a(hash, &seed, "STORAGE", object.as_bytes(), &[], aes);
        let iv = [0u8; 16];
        if aes == 32 {
            cfb_mode::Decryptor::<aes::Aes256>::new_from_slices(&key, &iv)
                .unwrap()
                .decrypt(&mut clear);
        } else {
            cfb_mode::Decryptor::<aes::Aes128>::new_from_slices(&key, &iv)
                .unwrap()
                .decrypt(&mut clear);
        }
        Some(clear.split_off(2))
    }

    fn seed(&self, secret: &[u8]) -> Option<Vec<u8>> {
        let hash = self.public.name_alg;
        match &self.key {
            EkKey::Rsa(key) => key
                .decrypt(
                    rsa::Oaep::new_with_label::<sha2::Sha256, _>("IDENTITY\0"),
                    secret,
                )
                .ok(),
            EkKey::P256(key) => {
                let (x, y) = split_point(secret, 32)?;
                let point = [&[4u8], x, y].concat();
                let peer = p256::PublicKey::from_sec1_bytes(&point).ok()?;
                let z = p256::ecdh::diffie_hellman(key.to_nonzero_scalar(), peer.as_affine());
                let own = &self.public.ecc_point()?[1..33];
                Some(kdf_e(hash, z.raw_secret_bytes(), "IDENTITY", x, own, 32).to_vec())
            }
            EkKey::P384(key) => {
                let (x, y) = split_point(secret, 48)?;
                let point = [&[4u8], x, y].concat();
                let peer = p384::PublicKey::from_sec1_bytes(&point).ok()?;
                let z = p384::ecdh::diffie_hellman(key.to_nonzero_scalar(), peer.as_affine());
                let own = &self.public.ecc_point()?[1..49];
                Some(kdf_e(hash, z.raw_secret_bytes(), "IDENTITY", x, own, 48).to_vec())
            }
        }
    }
}

fn split_point(secret: &[u8], size: usize) -> Option<(&[u8], &[u8])> {
    Some((
        secret.get(2..2 + size)?,
        secret.get(4 + size..4 + 2 * size)?,
    ))
}

impl Node {
    /// A node with one P-256 EK, without certificate, that boots `log`.
    pub fn new(log: LogBuilder) -> Self {
        let mut rng = OsRng;
        let ak = SigningKey::random(&mut rng);
        let srk = p256::SecretKey::random(&mut rng).public_key();
        let devid_key = SigningKey::random(&mut rng);
        let devid = p256::PublicKey::from(devid_key.verifying_key());
        Self {
            eks: vec![NodeEk::p256(&mut rng)],
            ek_chain: Vec::new(),
            ak_public: ecc_public(Template::Ak, &ak.verifying_key().into()),
            ak,
            ak_hierarchy: RH_ENDORSEMENT,
            devid_auth: attest_wire::v1::DevIdAuth::None,
            srk: ecc_public(Template::SrkP256, &srk),
            devid: ecc_public(Template::DevIdP256, &devid),
            devid_key,
            can: Vec::new(),
            clock: ClockInfo {
                clock: 60_000,
                reset_count: 7,
                restart_count: 2,
                safe: true,
            },
            serial: "LAB-0001".into(),
            nics: vec![Nic {
                name: "eth0".into(),
                mac: "52:54:00:12:34:56".into(),
            }],
            disks: vec![Disk {
                name: "vda".into(),
                serial: "DISK-1".into(),
                model: "virtio".into(),
                size_bytes: 1 << 31,
            }],
            lldp: Vec::new(),
            log,
            unlogged: Vec::new(),
            pcr15: Vec::new(),
            mark: std::cell::Cell::default(),
        }
    }

    /// `TPM2_Sign` by the DevID over what a report is hashed to: the body of `POST /v1/progress`.
    pub fn progress(&self, said: &attest_wire::v1::handover::ProgressBody) -> Vec<u8> {
        use attest_wire::v1::handover::{PROGRESS_LABEL, Progress};
        use p256::ecdsa::signature::Signer as _;
        let body = serde_json::to_vec(said).unwrap();
        let message = [PROGRESS_LABEL, &body].concat();
        let signature: p256::ecdsa::Signature = self.devid_key.sign(&message);
        let mut sig = vec![0x00, 0x18, 0x00, 0x0b];
        for half in signature.to_bytes().chunks(32) {
            sig.extend([0, 32]);
            sig.extend(half);
        }
        let progress = Progress {
            body: body.into(),
            sig: sig.into(),
        };
        serde_json::to_vec(&progress).unwrap()
    }

    pub fn hello(&self) -> Hello {
        Hello {
            version: 1,
            arch: "x86_64".into(),
            eks: self
                .eks
                .iter()
                .map(|ek| EkOffer {
                    public: ek.public.encode().into(),
                    cert: ek.cert.clone().map(Bytes),
                })
                .collect(),
            ek_chain: self.ek_chain.iter().cloned().map(Bytes).collect(),
            srk_pub: self.srk.encode().into(),
            ak_pub: self.ak_public.encode().into(),
            devid_pub: self.devid.encode().into(),
            devid_auth: self.devid_auth,
            tpm: TpmInfo {
                vendor: "SOFT".into(),
                model: "software".into(),
                firmware: "1.0".into(),
            },
            platform: Platform {
                manufacturer: "QEMU".into(),
                product: "Standard PC".into(),
                serial: self.serial.clone(),
                uuid: "6b0b2a34-4b6f-4b39-9f35-0d6e0f1c2d3e".into(),
            },
            nics: self.nics.clone(),
            disks: self.disks.clone(),
            lldp: self.lldp.clone(),
            boot_path: "pxe".into(),
            uki_hint: "attester 3".into(),
            can: self.can.clone(),
        }
    }

    /// Signs a `TPMS_ATTEST` with the AK, as the TPM would.
    pub fn sign(&self, attest: &Attest) -> Attested {
        let attest = attest.encode();
        let signature: p256::ecdsa::Signature = self.ak.sign(&attest);
        let (r, s) = signature.split_bytes();
        let signature = Signature::Ecdsa {
            hash: HashAlg::Sha256,
            r: r.to_vec(),
            s: s.to_vec(),
        };
        Attested {
            attest: attest.into(),
            sig: signature.encode().into(),
        }
    }

    /// A `TPMS_ATTEST` of this node's AK.
    pub fn attest(&self, qualifying: &[u8], body: AttestBody) -> Attest {
        Attest {
            qualified_signer: qualified_name_of_primary(self.ak_hierarchy, &self.ak_public)
                .as_bytes()
                .to_vec(),
            extra_data: qualifying.to_vec(),
            clock: self.clock,
            firmware_version: 1,
            body,
        }
    }

    pub fn certify_body(&self) -> AttestBody {
        let parent = qualified_name_of_primary(RH_OWNER, &self.srk);
        AttestBody::Certify {
            name: self.devid.name().as_bytes().to_vec(),
            qualified_name: qualified_name(&parent, &self.devid).as_bytes().to_vec(),
        }
    }

    /// PCR values after everything logged, unlogged, and the extends of PCR 15.
    pub fn pcrs(&self, pcr15: &[[u8; 32]]) -> BTreeMap<u8, [u8; 32]> {
        let mut pcrs: BTreeMap<u8, [u8; 32]> = (0..16).map(|pcr| (pcr, [0; 32])).collect();
        let mut extend = |pcr: u8, digest: &[u8; 32]| {
            let value = pcrs.get_mut(&pcr).unwrap();
            *value = HashAlg::Sha256.digest(&[value, digest]).try_into().unwrap();
        };
        for (pcr, digest) in self.log.extends.iter().chain(&self.unlogged) {
            extend(*pcr, digest);
        }
        for digest in pcr15 {
            extend(15, digest);
        }
        pcrs
    }

    /// The quote and the values it covers.
    pub fn quote(
        &self,
        qualifying: &[u8],
        selection: &[u8],
        pcr15: &[[u8; 32]],
    ) -> (Attest, Vec<PcrValue>) {
        let pcrs = self.pcrs(pcr15);
        let values: Vec<PcrValue> = selection
            .iter()
            .map(|&index| PcrValue {
                index,
                digest: pcrs[&index].to_vec().into(),
            })
            .collect();
        let parts: Vec<&[u8]> = values.iter().map(|v| v.digest.0.as_slice()).collect();
        let body = AttestBody::Quote {
            pcr_select: vec![PcrSelection::of(HashAlg::Sha256.id(), selection)],
            pcr_digest: HashAlg::Sha256.digest(&parts),
        };
        (self.attest(qualifying, body), values)
    }

    /// The secrets of a challenge; one that this TPM cannot open comes back as zeros.
    pub fn activate(&self, challenge: &Challenge) -> Vec<Vec<u8>> {
        let name = self.ak_public.name();
        challenge
            .credentials
            .iter()
            .map(|credential| {
                self.eks[usize::from(credential.ek)]
                    .activate(&name, credential)
                    .unwrap_or_else(|| vec![0; 32])
            })
            .collect()
    }

    /// Honest evidence.
    pub fn evidence(&self, session: &Session<'_>) -> Evidence {
        let challenge = decode_challenge(session.challenge_body).unwrap();
        let binding = Binding::new(session.hello_body, session.challenge_body, session.exporter);
        let activation = binding.digest("activation");
        let mut pcr15 = self.pcr15.clone();
        self.mark.set(binding.digest("boot"));
        pcr15.push(self.mark.get());
        let (quote, pcr_values) =
            self.quote(&binding.digest("quote"), &challenge.pcr_selection, &pcr15);
        Evidence {
            session: challenge.session.clone(),
            activated: self
                .activate(&challenge)
                .iter()
                .map(|secret| HashAlg::Sha256.hmac(secret, &[&activation]).into())
                .collect(),
            devid_certify: self.sign(&self.attest(&binding.digest("devid"), self.certify_body())),
            quote: self.sign(&quote),
            pcr_values,
            pcr15_extends: pcr15.iter().map(|digest| digest.to_vec().into()).collect(),
            event_log: self.log.bytes.clone().into(),
        }
    }
}

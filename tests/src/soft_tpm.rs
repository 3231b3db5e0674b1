//! A "TPM" of keys in a program's memory: it answers every challenge, and proves nothing about any
//! hardware. A liar makes such by the thousand, where swtpm takes a process and seconds for each.

use aes::cipher::{AsyncStreamCipher as _, KeyIvInit as _};
use anyhow::{Context as _, Result, bail, ensure};
use attest_wire::credential::{kdf_a, kdf_e};
use attest_wire::templates::Template;
use attest_wire::tpm::{
    Attest, AttestBody, ClockInfo, HashAlg, Name, PcrSelection, Public, PublicKind, RH_ENDORSEMENT,
    RH_OWNER, qualified_name, qualified_name_of_primary,
};
use attest_wire::v1::{
    Attested, Binding, Challenge, Credential, DevIdAuth, EkOffer, Evidence, Hello, PcrValue,
    Platform, TpmInfo,
};
use p256::elliptic_curve::sec1::ToEncodedPoint as _;
use rand_core::OsRng;

use crate::event_log::EventLog;
use crate::exchange::{SoftwareKey, activation};

/// Attributes of AK and DevID.
const AK: u32 = 0x0005_0472;
const DEVID: u32 = 0x0004_0472;
/// Of an AES-128-CFB key and a SHA-256 MAC (TPM 2.0 Part 1, 24.2 and 24.3).
const AES_BYTES: usize = 16;
const MAC_BYTES: usize = 32;

/// One made-up machine with all its keys.
pub struct SoftTpm {
    ek: p256::SecretKey,
    ek_public: Public,
    srk: Public,
    ak: SoftwareKey,
    devid: SoftwareKey,
    serial: String,
}

impl SoftTpm {
    /// A machine of that serial number.
    pub fn new(serial: &str) -> Self {
        let ek = p256::SecretKey::random(&mut OsRng);
        let srk = p256::SecretKey::random(&mut OsRng).public_key();
        Self {
            ek_public: with_point(Template::EkP256L.public(), &ek.public_key()),
            ek,
            srk: with_point(Template::SrkP256.public(), &srk),
            ak: SoftwareKey::generate(),
            devid: SoftwareKey::generate(),
            serial: serial.to_owned(),
        }
    }

    /// Its hello, without any certificate.
    pub fn hello(&self) -> Hello {
        Hello {
            version: 1,
            arch: "x86_64".into(),
            eks: vec![EkOffer {
                public: self.ek_public.encode().into(),
                cert: None,
            }],
            ek_chain: Vec::new(),
            srk_pub: self.srk.encode().into(),
            ak_pub: self.ak.public(AK).into(),
            devid_pub: self.devid.public(DEVID).into(),
            devid_auth: DevIdAuth::None,
            tpm: TpmInfo {
                vendor: "SOFT".into(),
                model: "none".into(),
                firmware: "0".into(),
            },
            platform: Platform {
                manufacturer: "Lab".into(),
                product: "Node".into(),
                serial: self.serial.clone(),
                uuid: String::new(),
            },
            nics: Vec::new(),
            disks: Vec::new(),
            lldp: Vec::new(),
            boot_path: "pxe".into(),
            uki_hint: "lab".into(),
            can: Vec::new(),
        }
    }

    /// Evidence as of a machine that booted `log`.
    ///
    /// # Errors
    /// The challenge is for somebody else.
    pub fn evidence(
        &self,
        challenge: &Challenge,
        binding: &Binding,
        log: &EventLog,
    ) -> Result<Evidence> {
        let ak = Public::decode(&self.ak.public(AK))?;
        let devid = Public::decode(&self.devid.public(DEVID))?;
        let mut activated = Vec::new();
        for credential in &challenge.credentials {
            let secret = self.activate(&ak.name(), credential)?;
            activated.push(activation(&secret, binding).into());
        }
        let boot = binding.digest("boot");
        let values: Vec<PcrValue> = challenge
            .pcr_selection
            .iter()
            .map(|&index| {
                let logged = log.pcr(index);
                let value = match index {
                    15 => HashAlg::Sha256.digest(&[&logged, &boot]),
                    _ => logged.to_vec(),
                };
                PcrValue {
                    index,
                    digest: value.into(),
                }
            })
            .collect();
        let parts: Vec<&[u8]> = values.iter().map(|v| v.digest.0.as_slice()).collect();
        let quote = AttestBody::Quote {
            pcr_select: vec![PcrSelection::of(
                HashAlg::Sha256.id(),
                &challenge.pcr_selection,
            )],
            pcr_digest: HashAlg::Sha256.digest(&parts),
        };
        let parent = qualified_name_of_primary(RH_OWNER, &self.srk);
        let certify = AttestBody::Certify {
            name: devid.name().as_bytes().to_vec(),
            qualified_name: qualified_name(&parent, &devid).as_bytes().to_vec(),
        };
        Ok(Evidence {
            session: challenge.session.clone(),
            activated,
            devid_certify: self.sign(&ak, &binding.digest("devid"), certify)?,
            quote: self.sign(&ak, &binding.digest("quote"), quote)?,
            pcr_values: values,
            pcr15_extends: vec![boot.to_vec().into()],
            event_log: log.bytes.clone().into(),
        })
    }

    fn sign(&self, ak: &Public, qualifying: &[u8; 32], body: AttestBody) -> Result<Attested> {
        let signer = qualified_name_of_primary(RH_ENDORSEMENT, ak);
        let attest = Attest {
            qualified_signer: signer.as_bytes().to_vec(),
            extra_data: qualifying.to_vec(),
            clock: ClockInfo {
                clock: 60_000,
                reset_count: 1,
                restart_count: 0,
                safe: true,
            },
            firmware_version: 1,
            body,
        };
        let attest = attest.encode();
        Ok(Attested {
            sig: self.ak.sign(&attest)?.into(),
            attest: attest.into(),
        })
    }

    /// `TPM2_ActivateCredential` (Part 1, 24; ECDH for the seed: Part 1, C.6.1).
    fn activate(&self, object: &Name, credential: &Credential) -> Result<Vec<u8>> {
        let hash = HashAlg::Sha256;
        let (x, rest) = sized(&credential.secret.0)?;
        let (y, _) = sized(rest)?;
        let peer = p256::PublicKey::from_sec1_bytes(&[&[4], x, y].concat())
            .map_err(|_| anyhow::anyhow!("no point of P-256"))?;
        let shared = p256::ecdh::diffie_hellman(self.ek.to_nonzero_scalar(), peer.as_affine());
        let own = self.ek_public.ecc_point().context("an ECC key")?;
        let z = shared.raw_secret_bytes();
        let seed = kdf_e(hash, z, "IDENTITY", x, &own[1..33], MAC_BYTES);
        let (mac, encrypted) = sized(&credential.blob.0)?;
        let key = kdf_a(hash, &seed, "INTEGRITY", &[], &[], MAC_BYTES);
        ensure!(
            hash.hmac(&key, &[encrypted, object.as_bytes()]) == mac,
            "a credential for another Name"
        );
        let key = kdf_a(hash, &seed, "STORAGE", object.as_bytes(), &[], AES_BYTES);
        let mut clear = encrypted.to_vec();
        let Ok(cipher) = cfb_mode::Decryptor::<aes::Aes128>::new_from_slices(&key, &[0; 16]) else {
            bail!("no AES key");
        };
        cipher.decrypt(&mut clear);
        Ok(sized(&clear)?.0.to_vec())
    }
}

fn with_point(mut public: Public, key: &p256::PublicKey) -> Public {
    let point = key.to_encoded_point(false);
    if let (PublicKind::Ecc { x, y, .. }, Some(px), Some(py)) =
        (&mut public.kind, point.x(), point.y())
    {
        *x = px.to_vec();
        *y = py.to_vec();
    }
    public
}

/// What a two-byte size counts, and what follows.
fn sized(bytes: &[u8]) -> Result<(&[u8], &[u8])> {
    let (size, rest) = bytes.split_first_chunk::<2>().context("no size")?;
    rest.split_at_checked(usize::from(u16::from_be_bytes(*size)))
        .context("shorter than it says")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opens_what_was_made_for_it_and_for_its_key() {
        let tpm = SoftTpm::new("x");
        let ak = Public::decode(&tpm.ak.public(AK)).unwrap().name();
        let made = |ek: &Public, name: &Name| {
            let blob =
                attest_wire::credential::make_credential(ek, name, &[7; 32], &mut OsRng).unwrap();
            Credential {
                ek: 0,
                blob: blob.id_object.into(),
                secret: blob.secret.into(),
            }
        };
        let opened = tpm.activate(&ak, &made(&tpm.ek_public, &ak)).unwrap();
        assert_eq!(opened, [7; 32]);
        let other = SoftTpm::new("y");
        let theirs = Public::decode(&other.ak.public(AK)).unwrap().name();
        assert!(tpm.activate(&ak, &made(&tpm.ek_public, &theirs)).is_err());
        assert!(tpm.activate(&ak, &made(&other.ek_public, &ak)).is_err());
    }
}

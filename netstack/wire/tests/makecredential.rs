//! Our `TPM2_MakeCredential` beside that of tpm2-tools, for every kind of endorsement key: what either
//! makes is opened by the private key as TPM 2.0 Part 1, section 24, says. For the sizes that no
//! software TPM here makes (RSA-4096) as well as for the others.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test, helpers included

use std::path::Path;
use std::process::{Command, Stdio};

use aes::cipher::{AsyncStreamCipher as _, KeyIvInit as _};
use attest_wire::credential::{CredentialBlob, kdf_a, kdf_e, make_credential};
use attest_wire::templates::Template;
use attest_wire::tpm::{Curve, HashAlg, Name, Public, PublicKind, SymDef};
use p256::elliptic_curve::sec1::ToEncodedPoint as _;
use rand_core::OsRng;
use rsa::pkcs1::DecodeRsaPrivateKey as _;
use rsa::traits::PublicKeyParts as _;

const KINDS: [Template; 7] = [
    Template::EkRsa2048L,
    Template::EkP256L,
    Template::EkRsa2048H,
    Template::EkP256H,
    Template::EkP384H,
    Template::EkRsa3072H,
    Template::EkRsa4096H,
];
/// What `tpm2_makecredential` writes before the two TPM2Bs: its magic and version 1.
const TOOL_HEADER: [u8; 8] = [0xba, 0xdc, 0xc0, 0xde, 0, 0, 0, 1];

/// The private half of an endorsement key.
enum Private {
    Rsa(Box<rsa::RsaPrivateKey>),
    P256(p256::SecretKey),
    P384(p384::SecretKey),
}

/// A key of this kind; RSA by openssl, which is quicker.
fn key(kind: Template) -> (Public, Private) {
    let mut public = kind.public();
    let private = match &mut public.kind {
        PublicKind::Rsa {
            key_bits, modulus, ..
        } => {
            let bits = format!("rsa_keygen_bits:{key_bits}");
            let made = Command::new("openssl")
                .args([
                    "genpkey",
                    "-algorithm",
                    "RSA",
                    "-outform",
                    "DER",
                    "-pkeyopt",
                    &bits,
                ])
                .stderr(Stdio::null())
                .output()
                .unwrap();
            let key = rsa::RsaPrivateKey::from_pkcs1_der(&made.stdout).unwrap();
            *modulus = key.n().to_bytes_be();
            Private::Rsa(Box::new(key))
        }
        PublicKind::Ecc { curve, x, y, .. } => {
            let (point, private) = match curve {
                Curve::P256 => {
                    let key = p256::SecretKey::random(&mut OsRng);
                    let point = key.public_key().to_encoded_point(false).as_bytes().to_vec();
                    (point, Private::P256(key))
                }
                Curve::P384 => {
                    let key = p384::SecretKey::random(&mut OsRng);
                    let point = key.public_key().to_encoded_point(false).as_bytes().to_vec();
                    (point, Private::P384(key))
                }
                Curve::P521 => panic!("no EK of this kind"),
            };
            let (left, right) = point[1..].split_at(curve.size());
            (*x, *y) = (left.to_vec(), right.to_vec());
            private
        }
        PublicKind::KeyedHash { .. } => panic!("no EK of this kind"),
    };
    (public, private)
}

/// A size of two octets and so many octets; what follows.
fn sized(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (size, rest) = bytes.split_first_chunk::<2>()?;
    rest.split_at_checked(usize::from(u16::from_be_bytes(*size)))
}

/// `TPM2_ActivateCredential` without a TPM: the secret, or none where a TPM says TPM_RC_INTEGRITY.
fn open(public: &Public, private: &Private, name: &Name, blob: &CredentialBlob) -> Option<Vec<u8>> {
    let hash = public.name_alg;
    let seed = match private {
        Private::Rsa(key) => {
            let padding = match hash {
                HashAlg::Sha256 => rsa::Oaep::new_with_label::<sha2::Sha256, _>("IDENTITY\0"),
                HashAlg::Sha384 => rsa::Oaep::new_with_label::<sha2::Sha384, _>("IDENTITY\0"),
                HashAlg::Sha1 | HashAlg::Sha512 | HashAlg::Sm3 => panic!("no EK with this nameAlg"),
            };
            key.decrypt(padding, &blob.secret).ok()?
        }
        Private::P256(_) | Private::P384(_) => {
            let (x, rest) = sized(&blob.secret)?;
            let (y, rest) = sized(rest)?;
            assert!(rest.is_empty(), "octets behind the point");
            let z = exchange(private, x, y);
            let own = public.ecc_point().unwrap();
            let own_x = &own[1..1 + x.len()];
            kdf_e(hash, &z, "IDENTITY", x, own_x, hash.size()).to_vec()
        }
    };
    let (mac, encrypted) = sized(&blob.id_object)?;
    let mac_key = kdf_a(hash, &seed, "INTEGRITY", &[], &[], hash.size());
    if hash.hmac(&mac_key, &[encrypted, name.as_bytes()]) != mac {
        return None;
    }
    let bits = match &public.kind {
        PublicKind::Rsa { symmetric, .. } | PublicKind::Ecc { symmetric, .. } => match symmetric {
            SymDef::AesCfb { bits } => *bits,
            SymDef::Null => panic!("no storage key"),
        },
        PublicKind::KeyedHash { .. } => panic!("no EK of this kind"),
    };
    let key = kdf_a(
        hash,
        &seed,
        "STORAGE",
        name.as_bytes(),
        &[],
        usize::from(bits) / 8,
    );
    let mut clear = encrypted.to_vec();
    let iv = [0; 16];
    match bits {
        128 => cfb_mode::Decryptor::<aes::Aes128>::new_from_slices(&key, &iv)
            .unwrap()
            .decrypt(&mut clear),
        256 => cfb_mode::Decryptor::<aes::Aes256>::new_from_slices(&key, &iv)
            .unwrap()
            .decrypt(&mut clear),
        _ => panic!("no EK with AES-{bits}"),
    }
    let (secret, rest) = sized(&clear)?;
    assert!(rest.is_empty(), "octets behind the secret");
    Some(secret.to_vec())
}

/// The x-coordinate that both sides compute.
fn exchange(private: &Private, x: &[u8], y: &[u8]) -> Vec<u8> {
    let point = [&[4], x, y].concat();
    match private {
        Private::P256(key) => {
            let peer = p256::PublicKey::from_sec1_bytes(&point).unwrap();
            p256::ecdh::diffie_hellman(key.to_nonzero_scalar(), peer.as_affine())
                .raw_secret_bytes()
                .to_vec()
        }
        Private::P384(key) => {
            let peer = p384::PublicKey::from_sec1_bytes(&point).unwrap();
            p384::ecdh::diffie_hellman(key.to_nonzero_scalar(), peer.as_affine())
                .raw_secret_bytes()
                .to_vec()
        }
        Private::Rsa(_) => panic!("no point"),
    }
}

/// The credential that tpm2-tools makes without a TPM.
fn tool(dir: &Path, public: &Public, name: &Name, secret: &[u8]) -> CredentialBlob {
    let encoded = public.encode();
    let size = u16::try_from(encoded.len()).unwrap().to_be_bytes();
    std::fs::write(dir.join("ek.pub"), [&size[..], &encoded].concat()).unwrap();
    std::fs::write(dir.join("secret"), secret).unwrap();
    let told = Command::new("tpm2_makecredential")
        .args([
            "-T", "none", "-Q", "-u", "ek.pub", "-s", "secret", "-o", "blob", "-n",
        ])
        .arg(name.to_hex())
        .current_dir(dir)
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&told.stderr);
    assert!(told.status.success(), "tpm2_makecredential: {error}");
    let blob = std::fs::read(dir.join("blob")).unwrap();
    let rest = blob.strip_prefix(&TOOL_HEADER).expect("the tool's header");
    let (id_object, rest) = sized(rest).unwrap();
    let (secret, rest) = sized(rest).unwrap();
    assert!(rest.is_empty());
    CredentialBlob {
        id_object: id_object.to_vec(),
        secret: secret.to_vec(),
    }
}

#[test]
fn a_private_key_opens_what_we_and_tpm2_tools_make_for_each_kind_of_ek() {
    let installed = |tool: &str, args: &[&str]| {
        let mut tool = Command::new(tool);
        tool.args(args)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok()
    };
    if !installed("tpm2_makecredential", &["--version"]) || !installed("openssl", &["version"]) {
        println!("SKIP tpm2_makecredential or openssl is not installed");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let name = Template::Ak.public().name();
    let other = Template::DevIdP256.public().name();
    for kind in KINDS {
        let (public, private) = key(kind);
        assert_eq!(kind.check(&public), Ok(()));
        for len in [1, 16, 32] {
            let secret: Vec<u8> = (0..len).map(|at| at ^ 0x5a).collect();
            let ours = make_credential(&public, &name, &secret, &mut OsRng).unwrap();
            // A coordinate that begins with zeros is written short by the tool, one time in 128; how a TPM
            // takes that is another question than this one.
            let ours_len = (ours.id_object.len(), ours.secret.len());
            let theirs = (0..20)
                .map(|_| tool(dir.path(), &public, &name, &secret))
                .find(|theirs| (theirs.id_object.len(), theirs.secret.len()) == ours_len)
                .expect("blobs of the same lengths");
            for (who, blob) in [("ours", &ours), ("tpm2-tools", &theirs)] {
                let opened = open(&public, &private, &name, blob);
                assert_eq!(
                    opened.as_ref(),
                    Some(&secret),
                    "{who}, {}, {len}",
                    kind.name()
                );
                assert_eq!(
                    open(&public, &private, &other, blob),
                    None,
                    "{who}, another Name"
                );
            }
        }
        println!("{}: opened, ours and theirs", kind.name());
    }
}

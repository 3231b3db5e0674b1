//! Public keys in the files: TPM structures, PEM, certificates and JSON Web Keys.

use std::collections::BTreeMap;

use attest_wire::tpm::{Curve, HashAlg, Public, PublicKind, Scheme, SymDef, attributes};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use x509_parser::prelude::FromDer as _;
use x509_parser::public_key::PublicKey;
use x509_parser::x509::SubjectPublicKeyInfo;

use super::pieces::Found;
use super::unwrapped;

/// A key that may have signed.
pub(super) struct Key {
    /// File and path in it.
    pub at: String,
    /// The key; of other carriers than TPM structures only what a signature needs.
    pub public: Public,
    /// Whether it is the whole `TPMT_PUBLIC`, which alone has a Name and attributes.
    pub whole: bool,
}

impl Key {
    /// Whether it may sign at all: an EK or a storage key does not.
    pub(super) fn signs(&self) -> bool {
        !self.whole || self.public.attributes & attributes::SIGN != 0
    }
}

/// All that are found, whole ones first.
pub(super) fn keys(found: &Found, max: usize) -> Vec<Key> {
    let structures = found.pieces.iter().filter_map(|piece| {
        let public = Public::decode(unwrapped("TPM2B_PUBLIC", &piece.octets)).ok()?;
        let at = piece.at.clone();
        Some(Key {
            at,
            public,
            whole: true,
        })
    });
    let pems = found.pems.iter().filter_map(|(at, label, der)| {
        let public = match label.as_str() {
            "PUBLIC KEY" => of_spki(der),
            "CERTIFICATE" => {
                let (_, cert) = x509_parser::certificate::X509Certificate::from_der(der).ok()?;
                of_key(cert.public_key())
            }
            _ => None,
        }?;
        Some(bare(at, public))
    });
    let ders = found
        .pieces
        .iter()
        .filter_map(|piece| Some(bare(&piece.at, of_spki(&piece.octets)?)));
    let jwks = found
        .jwks
        .iter()
        .filter_map(|(at, members)| Some(bare(at, of_jwk(members)?)));
    structures
        .chain(pems)
        .chain(ders)
        .chain(jwks)
        .take(max)
        .collect()
}

fn bare(at: &str, public: Public) -> Key {
    Key {
        at: at.to_owned(),
        public,
        whole: false,
    }
}

/// Type, size in bits and curve.
pub(super) fn shape(public: &Public) -> (&'static str, usize, Option<&'static str>) {
    match &public.kind {
        PublicKind::Rsa { modulus, .. } => ("rsa", modulus.len() * 8, None),
        PublicKind::Ecc { curve, .. } => {
            let (bits, name) = match curve {
                Curve::P256 => (256, "P-256"),
                Curve::P384 => (384, "P-384"),
                Curve::P521 => (521, "P-521"),
            };
            ("ecc", bits, Some(name))
        }
        PublicKind::KeyedHash { unique, .. } => ("keyedhash", unique.len() * 8, None),
    }
}

fn of_spki(der: &[u8]) -> Option<Public> {
    let (rest, spki) = SubjectPublicKeyInfo::from_der(der).ok()?;
    if !rest.is_empty() {
        return None;
    }
    of_key(&spki)
}

fn of_key(spki: &SubjectPublicKeyInfo<'_>) -> Option<Public> {
    match spki.parsed().ok()? {
        PublicKey::RSA(key) => rsa(key.modulus, key.exponent),
        PublicKey::EC(point) => {
            let curve = match point.key_size() {
                256 => Curve::P256,
                384 => Curve::P384,
                _ => return None,
            };
            let (tag, coordinates) = point.data().split_first()?;
            if *tag != 4 || coordinates.len() != 2 * curve.size() {
                return None;
            }
            let (x, y) = coordinates.split_at(curve.size());
            Some(ecc(curve, x, y))
        }
        _ => None,
    }
}

fn of_jwk(members: &BTreeMap<String, String>) -> Option<Public> {
    let member = |name: &str| URL_SAFE_NO_PAD.decode(members.get(name)?).ok();
    match members.get("kty")?.as_str() {
        "RSA" => rsa(&member("n")?, &member("e")?),
        "EC" => {
            let curve = match members.get("crv")?.as_str() {
                "P-256" => Curve::P256,
                "P-384" => Curve::P384,
                _ => return None,
            };
            Some(ecc(curve, &member("x")?, &member("y")?))
        }
        _ => None,
    }
}

fn rsa(modulus: &[u8], exponent: &[u8]) -> Option<Public> {
    let modulus: Vec<u8> = modulus
        .iter()
        .copied()
        .skip_while(|&octet| octet == 0)
        .collect();
    let key_bits = u16::try_from(modulus.len() * 8).ok()?;
    let exponent = exponent.iter().try_fold(0u32, |value, &octet| {
        value.checked_mul(256)?.checked_add(octet.into())
    })?;
    Some(public(PublicKind::Rsa {
        symmetric: SymDef::Null,
        scheme: Scheme::Null,
        key_bits,
        exponent,
        modulus,
    }))
}

fn ecc(curve: Curve, x: &[u8], y: &[u8]) -> Public {
    public(PublicKind::Ecc {
        symmetric: SymDef::Null,
        scheme: Scheme::Null,
        curve,
        kdf: Scheme::Null,
        x: x.to_vec(),
        y: y.to_vec(),
    })
}

fn public(kind: PublicKind) -> Public {
    Public {
        name_alg: HashAlg::Sha256,
        attributes: 0,
        auth_policy: Vec::new(),
        kind,
    }
}

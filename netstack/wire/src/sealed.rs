//! Payloads that open on one TPM, in one boot and one session (docs/PROTOCOL.md section 6).
//!
//! Seals for the gateway, checks and opens for the node. Computes what both sides need; the signature of
//! the statement is made and verified by the callers, who hold keys and pins. Randomness is passed in.

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::hkdf;
use rand_core::CryptoRngCore;
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use crate::credential::{CredentialError, policy_pcr_sha256, wrap_for_import};
use crate::tpm::{Public, PublicKind, Scheme, attributes};
use crate::v1::handover::{
    ItemDigest, SEALED_LABEL, SEALED_PCRS, Sealed, SealedItem, SealedStatement,
};
use crate::v1::{Bytes, SEALED_ITEM_MAX_BYTES, SEALED_ITEMS_MAX, SEALED_TOTAL_MAX_BYTES};

/// Bytes of the secret that is wrapped for the EK.
pub const SECRET_BYTES: usize = 32;
/// Longest name of a kind, bytes.
pub const KIND_MAX_BYTES: usize = 32;
/// Bytes that GCM adds to a payload.
pub const TAG_BYTES: usize = 16;
/// What the attester extends into PCR 15 after the last unseal: SHA-256 of this.
pub const CLOSED_LABEL: &[u8] = b"vestibule/closed/v1";

/// The closing constant: after it no payload of this boot opens again.
pub fn closed_digest() -> [u8; 32] {
    Sha256::digest(CLOSED_LABEL).into()
}

/// A payload in clear.
pub struct Item {
    /// What it is; see [`is_kind`].
    pub kind: String,
    /// Its bytes, wiped when dropped.
    pub bytes: Zeroizing<Vec<u8>>,
}

impl std::fmt::Debug for Item {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {} bytes", self.kind, self.bytes.len())
    }
}

/// For whom payloads are sealed.
#[derive(Debug, Clone, Copy)]
pub struct Target<'a> {
    /// The machine.
    pub machine: &'a str,
    /// SHA-256 of the body of its receipt.
    pub receipt_sha256: [u8; 32],
    /// Index of the EK in the hello.
    pub index: u8,
    /// That EK, whose possession was proven.
    pub ek: &'a Public,
    /// Quoted values of [`SEALED_PCRS`], in that order.
    pub pcrs: [[u8; 32]; 4],
}

/// Why payloads cannot be sealed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// No payload, or too many.
    #[error("expected 1 to {SEALED_ITEMS_MAX} payloads, found {0}")]
    Count(usize),
    /// A kind that may not name a payload, or twice.
    #[error(
        "payload {0:?}: expected a kind of 1 to {KIND_MAX_BYTES} of a-z 0-9 -, each once for a machine"
    )]
    Kind(String),
    /// One payload or all together are too large.
    #[error("payload {kind:?}: expected at most {max} bytes, found {found}")]
    TooLarge {
        /// The payload at which it is too much.
        kind: String,
        /// Largest size, bytes, for it alone or for all together.
        max: usize,
        /// Size found, bytes.
        found: usize,
    },
    /// Nothing can be wrapped for the EK.
    #[error(transparent)]
    Ek(#[from] CredentialError),
    /// AES-GCM or HKDF refused, which their sizes exclude.
    #[error("payload {0:?} cannot be encrypted")]
    Cipher(String),
}

/// Why what a gateway sent does not open.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The statement is no statement.
    #[error("statement of sealed payloads: {0}")]
    Statement(String),
    /// The statement is about something else.
    #[error("sealed payloads: {what}: expected {expected}, found {found}")]
    Mismatch {
        /// Which field.
        what: &'static str,
        /// What this node knows.
        expected: String,
        /// What was sent.
        found: String,
    },
    /// The ciphertext is not the one that was sealed under this secret.
    #[error("sealed payload {kind:?} does not open under the unsealed secret")]
    Cipher {
        /// Which payload.
        kind: String,
    },
}

/// Sealed payloads before the statement is signed.
pub struct Unsigned {
    statement: SealedStatement,
    body: Vec<u8>,
    sealed: Sealed,
}

impl Unsigned {
    /// What is to be signed under [`SEALED_LABEL`].
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// The same, decoded.
    pub fn statement(&self) -> &SealedStatement {
        &self.statement
    }

    /// With the signature and the certificates of the key that made it.
    pub fn signed(self, sig: Vec<u8>, chain: Vec<Bytes>) -> Sealed {
        Sealed {
            sig: sig.into(),
            chain,
            ..self.sealed
        }
    }
}

/// Whether a text may name a kind of payload. It becomes a file name on the node.
pub fn is_kind(text: &str) -> bool {
    let usable = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=KIND_MAX_BYTES).contains(&text.len()) && !text.starts_with('-') && text.bytes().all(usable)
}

/// Seals payloads for one TPM at the quoted PCR values.
///
/// # Errors
/// [`SealError`] names the payload or the key.
pub fn seal(
    target: &Target<'_>,
    items: &[Item],
    rng: &mut impl CryptoRngCore,
) -> Result<Unsigned, SealError> {
    bounded(items)?;
    let mut secret = Zeroizing::new([0u8; SECRET_BYTES]);
    rng.fill_bytes(secret.as_mut_slice());
    let policy = policy_pcr_sha256(&numbered(target.pcrs));
    let blob = wrap_for_import(target.ek, &policy, secret.as_slice(), rng)?;
    let mut sealed = Vec::with_capacity(items.len());
    for item in items {
        let cipher = || SealError::Cipher(item.kind.clone());
        let key = item_key(secret.as_slice(), &item.kind).ok_or_else(cipher)?;
        let aad = aad(&item.kind, target.machine, &target.receipt_sha256);
        // Room for the tag from the start: a vector that grows leaves what it held behind.
        let mut ciphertext = Vec::with_capacity(item.bytes.len() + TAG_BYTES);
        ciphertext.extend_from_slice(&item.bytes);
        key.seal_in_place_append_tag(nonce(), Aad::from(&aad), &mut ciphertext)
            .map_err(|_| cipher())?;
        sealed.push(SealedItem {
            kind: item.kind.clone(),
            ciphertext: ciphertext.into(),
        });
    }
    let statement = SealedStatement {
        machine: target.machine.to_owned(),
        receipt_sha256: hex(&target.receipt_sha256),
        ek_name: target.ek.name().to_hex(),
        object_name: blob.public.name().to_hex(),
        items: digests(&sealed),
    };
    let body = serde_json::to_vec(&statement).expect("a statement is made of strings");
    Ok(Unsigned {
        sealed: Sealed {
            statement: body.clone().into(),
            sig: Bytes::default(),
            chain: Vec::new(),
            ek: target.index,
            public: blob.public.encode().into(),
            private: blob.private.into(),
            secret: blob.secret.into(),
            items: sealed,
        },
        statement,
        body,
    })
}

/// What a node knows of the session in which payloads came.
#[derive(Debug, Clone, Copy)]
pub struct Expected<'a> {
    /// The machine that the receipt names.
    pub machine: &'a str,
    /// SHA-256 of the receipt's body.
    pub receipt_sha256: [u8; 32],
    /// The EK of the hello that [`Sealed::ek`] points to.
    pub ek: &'a Public,
    /// The values of [`SEALED_PCRS`] that this node quoted, in that order.
    pub pcrs: [[u8; 32]; 4],
}

/// Compares sealed payloads with the session that they came in; the signature of the statement has been
/// verified before. Only then the TPM is asked.
///
/// # Errors
/// [`OpenError`] names the field.
pub fn check(sealed: &Sealed, expected: &Expected<'_>) -> Result<(), OpenError> {
    let said: SealedStatement = serde_json::from_slice(&sealed.statement.0)
        .map_err(|error| OpenError::Statement(error.to_string().chars().take(160).collect()))?;
    let object = Public::decode(&sealed.public.0)
        .map_err(|error| OpenError::Statement(error.to_string()))?;
    for (what, expected, found) in [
        ("machine", expected.machine.to_owned(), said.machine),
        (
            "receipt",
            hex(&expected.receipt_sha256),
            said.receipt_sha256,
        ),
        ("EK Name", expected.ek.name().to_hex(), said.ek_name),
        ("wrapped Name", object.name().to_hex(), said.object_name),
    ] {
        same(what, expected, found)?;
    }
    let policy = policy_pcr_sha256(&numbered(expected.pcrs));
    same("policy", hex(&policy), hex(&object.auth_policy))?;
    let sealed_data = matches!(
        object.kind,
        PublicKind::KeyedHash {
            scheme: Scheme::Null,
            ..
        }
    );
    let only_by_policy = attributes::NO_DA | attributes::ADMIN_WITH_POLICY;
    let found = format!("{:#010x}, sealed data {sealed_data}", object.attributes);
    same(
        "attributes",
        format!("{only_by_policy:#010x}, sealed data true"),
        found,
    )?;
    let kinds: Vec<&str> = sealed.items.iter().map(|item| item.kind.as_str()).collect();
    for (index, kind) in kinds.iter().enumerate() {
        if !is_kind(kind) || kinds[..index].contains(kind) {
            return Err(OpenError::Mismatch {
                what: "kind",
                expected: "a-z 0-9 -, each once".to_owned(),
                found: kind.chars().take(KIND_MAX_BYTES).collect(),
            });
        }
    }
    let shown = |items: &[ItemDigest]| -> String {
        let texts = items
            .iter()
            .map(|item| format!("{} {}", item.kind, item.sha256));
        texts.collect::<Vec<_>>().join(", ")
    };
    same("items", shown(&said.items), shown(&digests(&sealed.items)))
}

/// Opens payloads that passed [`check`], with the secret that the TPM unsealed.
///
/// # Errors
/// [`OpenError::Cipher`]; then nothing is given out.
pub fn open(
    sealed: &Sealed,
    expected: &Expected<'_>,
    secret: &[u8],
) -> Result<Vec<Item>, OpenError> {
    let mut items = Vec::with_capacity(sealed.items.len());
    for SealedItem { kind, ciphertext } in &sealed.items {
        let cipher = || OpenError::Cipher { kind: kind.clone() };
        let key = item_key(secret, kind).ok_or_else(cipher)?;
        let aad = aad(kind, expected.machine, &expected.receipt_sha256);
        let mut bytes = Zeroizing::new(ciphertext.0.clone());
        let clear = key
            .open_in_place(nonce(), Aad::from(&aad), &mut bytes)
            .map_err(|_| cipher())?
            .len();
        bytes.truncate(clear);
        items.push(Item {
            kind: kind.clone(),
            bytes,
        });
    }
    Ok(items)
}

fn bounded(items: &[Item]) -> Result<(), SealError> {
    if !(1..=SEALED_ITEMS_MAX).contains(&items.len()) {
        return Err(SealError::Count(items.len()));
    }
    let mut total = 0;
    for (index, item) in items.iter().enumerate() {
        let again = items[..index].iter().any(|other| other.kind == item.kind);
        if !is_kind(&item.kind) || again {
            return Err(SealError::Kind(item.kind.chars().take(80).collect()));
        }
        let size = item.bytes.len() + TAG_BYTES;
        total += size;
        for (max, found) in [
            (SEALED_ITEM_MAX_BYTES, size),
            (SEALED_TOTAL_MAX_BYTES, total),
        ] {
            if found > max {
                return Err(SealError::TooLarge {
                    kind: item.kind.clone(),
                    max,
                    found,
                });
            }
        }
    }
    Ok(())
}

fn digests(items: &[SealedItem]) -> Vec<ItemDigest> {
    let digest = |item: &SealedItem| ItemDigest {
        kind: item.kind.clone(),
        sha256: hex(&Sha256::digest(&item.ciphertext.0)),
    };
    items.iter().map(digest).collect()
}

fn numbered(values: [[u8; 32]; 4]) -> Vec<(u8, [u8; 32])> {
    SEALED_PCRS.into_iter().zip(values).collect()
}

/// One key for each kind: HKDF-SHA-256, salt [`SEALED_LABEL`], info the kind. None when the library
/// refuses sizes that are fixed here.
fn item_key(secret: &[u8], kind: &str) -> Option<LessSafeKey> {
    let salt = hkdf::Salt::new(hkdf::HKDF_SHA256, SEALED_LABEL);
    let info = [kind.as_bytes()];
    let pseudorandom = salt.extract(secret);
    let expanded = pseudorandom.expand(&info, &AES_256_GCM).ok()?;
    Some(LessSafeKey::new(UnboundKey::from(expanded)))
}

/// Each key seals one payload, so one nonce is enough for all.
fn nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; 12])
}

/// Label, then kind and machine with their lengths, then the digest of the receipt.
fn aad(kind: &str, machine: &str, receipt_sha256: &[u8; 32]) -> Vec<u8> {
    let mut aad = SEALED_LABEL.to_vec();
    for text in [kind, machine] {
        crate::codec::put_sized(&mut aad, text.as_bytes());
    }
    aad.extend_from_slice(receipt_sha256);
    aad
}

fn same(what: &'static str, expected: String, found: String) -> Result<(), OpenError> {
    if expected == found {
        return Ok(());
    }
    Err(OpenError::Mismatch {
        what,
        expected,
        found: found
            .chars()
            .filter(|c| !c.is_control())
            .take(600)
            .collect(),
    })
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
pub(crate) mod tests;

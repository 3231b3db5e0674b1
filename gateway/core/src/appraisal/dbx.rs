//! What a measured dbx revokes, each kind of entry apart (UEFI 2.10 sections 32.4.1 and 32.5.3.3).
//!
//! The digest of an image, that of a whole certificate and that of a certificate's signed part can
//! have the same length and name three different things. A policy asks for images and certificates
//! under keys of their own, and an entry of one kind never stands for another.

use std::collections::BTreeSet;

use attest_wire::tpm::HashAlg;

use super::variables::{Signature, SignatureKind};
use super::x509;

/// The entries of one dbx.
#[derive(Debug, Default)]
pub struct Dbx {
    /// Authenticode digests, SHA-256.
    pub images: BTreeSet<[u8; 32]>,
    /// Certificates that are always revoked, by SHA-256 of the whole and of the signed part, as far
    /// as an entry tells them.
    pub certificates: BTreeSet<[u8; 32]>,
    /// Signed parts that are revoked from a date on: what was signed before it and has a trusted
    /// timestamp still runs.
    pub dated: BTreeSet<[u8; 32]>,
    /// The same certificates, each by the digest that its entry tells of itself: of the whole, else
    /// of the signed part.
    pub named: BTreeSet<[u8; 32]>,
    entries: usize,
    unknown: usize,
}

impl Dbx {
    /// Reads the content of the variable. One that cannot be read revokes nothing.
    pub fn read(content: &[u8]) -> Self {
        let mut dbx = Self::default();
        let mut seen: BTreeSet<(u8, Vec<u8>)> = BTreeSet::new();
        for signature in Signature::lists(content).unwrap_or_default() {
            let digest = signature.digest();
            let Some(kind) = dbx.take(&signature, &digest) else {
                dbx.unknown += 1;
                continue;
            };
            if seen.insert((kind, digest)) {
                dbx.entries += 1;
            }
        }
        dbx
    }

    /// Files one entry; a number for its kind, or none where firmware would not know it either.
    fn take(&mut self, signature: &Signature<'_>, digest: &[u8]) -> Option<u8> {
        let sha256: Option<[u8; 32]> = digest.try_into().ok();
        match signature.kind {
            SignatureKind::X509 => {
                let whole = sha256?;
                self.named.insert(whole);
                self.certificates.insert(whole);
                if let Some(part) = x509::signed_part(signature.data) {
                    let part = HashAlg::Sha256.digest(&[part]);
                    self.certificates.extend(<[u8; 32]>::try_from(part));
                }
                Some(0)
            }
            SignatureKind::Image(alg) => {
                if alg == HashAlg::Sha256 {
                    self.images.extend(sha256);
                }
                Some(1)
            }
            SignatureKind::SignedPart(alg) => {
                let dated = signature.revoked_from().is_some();
                match (alg, dated) {
                    (HashAlg::Sha256, true) => self.dated.extend(sha256),
                    (HashAlg::Sha256, false) => {
                        self.named.extend(sha256);
                        self.certificates.extend(sha256);
                    }
                    _ => {}
                }
                Some(if dated { 2 } else { 3 })
            }
            SignatureKind::Other(_) => None,
        }
    }

    /// How many things it revokes, each once: entries of a kind that UEFI defines for it.
    pub fn entries(&self) -> usize {
        self.entries
    }

    /// How many entries are of no such kind, or have not its size.
    pub fn unknown(&self) -> usize {
        self.unknown
    }
}

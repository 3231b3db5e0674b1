//! What a pruned ledger begins with: a signed file that stands for the segments that were removed.
//!
//! `ledger-00000007.base` says that the ledger begins at segment 7, with which sequence and after which
//! hash, and carries those entries of the removed segments that a replay still rests on. Frames
//! ([`crate::frame`]): any number of `E` (entry lines), then one `S` (signature and manifest).
//!
//! Decides whether such a file is whole and which one a folder begins with. Which entries must be carried
//! is the caller's to say.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::entry::{Entry, Hash, Line, sha256};
use super::segment::{encode_signed, hex32, hexes, one_spelling, signed};
use super::trust::TrustedLeaf;
use super::verify::{VerifyError, read_file};
use super::{BASE_LABEL, LedgerSigner};
use crate::error::StoreError;
use crate::frame::{self, Frames, Tail};

const VERSION: u32 = 1;
const LINES: u8 = b'E';
const MANIFEST: u8 = b'S';
/// Entry lines are written in frames of about this many bytes.
const CHUNK_BYTES: usize = 1 << 20;

/// What the signature covers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Manifest {
    pub version: u32,
    /// First segment that is kept.
    pub first_segment: u64,
    /// Sequence of its first entry.
    pub first_seq: u64,
    /// Hash of the entry before, which was removed.
    #[serde(with = "hex32")]
    pub head: Hash,
    /// Entries that are carried.
    pub carried: u64,
    /// SHA-256 over their hashes in order.
    #[serde(with = "hex32")]
    pub carried_sha256: Hash,
    /// Leaf first, DER in hex.
    #[serde(with = "hexes")]
    pub chain: Vec<Vec<u8>>,
}

/// A base, read and found whole. Its signature is checked by [`Base::check`].
#[derive(Debug)]
pub(crate) struct Base {
    pub path: PathBuf,
    pub manifest: Manifest,
    pub signature: Vec<u8>,
    /// The lines of the carried entries.
    pub lines: Vec<String>,
    pub entries: Vec<Entry>,
}

/// Takes carried entries one by one and says at the end if they are what the manifest says.
#[derive(Default)]
pub(crate) struct Carried {
    pub entries: Vec<Entry>,
    hashes: Vec<u8>,
}

impl Carried {
    /// Takes the next line: sequences rise, and entries that follow each other are chained.
    pub(crate) fn accept(&mut self, file: &Path, text: &str) -> Result<(), VerifyError> {
        let last = self.entries.last();
        let seq = last.map_or(1, |entry| entry.seq + 1);
        let edited = |seq, why: String| VerifyError::Edited {
            file: file.to_path_buf(),
            seq,
            why,
        };
        let line = Line::parse(text).map_err(|why| edited(seq, why.into()))?;
        if line.seq < seq {
            let why = format!("carried entry {} is out of order", line.seq);
            return Err(edited(seq, why));
        }
        if let Some(last) = last
            && line.seq == seq
            && line.prev != last.hash
        {
            let why = "prev of a carried entry is not the hash of the entry before";
            return Err(edited(seq, why.into()));
        }
        let record = line
            .decode()
            .map_err(|e| edited(line.seq, format!("record is not readable: {e}")))?;
        let hash = line.hash();
        self.hashes.extend_from_slice(&hash);
        self.entries.push(Entry {
            seq: line.seq,
            time: line.time,
            prev: line.prev,
            hash,
            record,
        });
        Ok(())
    }

    /// Whether these are the entries of the manifest: all of them, the last removed one among them.
    pub(crate) fn fits(&self, file: &Path, manifest: &Manifest) -> Result<(), VerifyError> {
        let edited = |why: &str| VerifyError::Edited {
            file: file.to_path_buf(),
            seq: manifest.first_seq.saturating_sub(1),
            why: why.into(),
        };
        if manifest.version != VERSION {
            return Err(VerifyError::NotALedger {
                file: file.to_path_buf(),
                why: format!("base of version {}, expected {VERSION}", manifest.version),
            });
        }
        if manifest.carried != self.entries.len() as u64
            || manifest.carried_sha256 != sha256(&self.hashes)
        {
            return Err(edited(
                "the carried entries are not those that the base was signed for",
            ));
        }
        let last = self.entries.last();
        let ends = last
            .is_some_and(|last| last.seq + 1 == manifest.first_seq && last.hash == manifest.head);
        if !ends {
            return Err(edited("the base does not carry the last removed entry"));
        }
        Ok(())
    }
}

impl Manifest {
    /// Whether the infra CA's ledger key signed it.
    pub(crate) fn check(
        &self,
        file: &Path,
        signature: &[u8],
        infra_ca_der: &[u8],
    ) -> Result<(), VerifyError> {
        let leaf = TrustedLeaf::check(&self.chain, infra_ca_der).map_err(|why| {
            VerifyError::Untrusted {
                file: file.to_path_buf(),
                why,
            }
        })?;
        let signed =
            serde_json::to_vec(self).is_ok_and(|json| leaf.signed(BASE_LABEL, &json, signature));
        if signed {
            return Ok(());
        }
        Err(VerifyError::BadSignature {
            file: file.to_path_buf(),
            seq: self.first_seq.saturating_sub(1),
        })
    }
}

impl Base {
    /// Reads a base file and checks all but the signature.
    pub(crate) fn read(path: &Path) -> Result<Self, VerifyError> {
        let bytes = read_file(path)?;
        let edited = |why: String| VerifyError::Edited {
            file: path.to_path_buf(),
            seq: 1,
            why,
        };
        let mut carried = Carried::default();
        let mut lines = Vec::new();
        let mut end = None;
        let mut frames = Frames::new(&bytes);
        for (_, payload) in frames.by_ref() {
            if end.is_some() {
                return Err(edited("something follows the manifest".into()));
            }
            match payload.split_first() {
                Some((&LINES, text)) => {
                    let text = std::str::from_utf8(text).map_err(|e| edited(e.to_string()))?;
                    for line in text.split('\n') {
                        carried.accept(path, line)?;
                        lines.push(line.to_owned());
                    }
                }
                Some((&MANIFEST, rest)) => {
                    let (signature, json) = signed(rest).map_err(edited)?;
                    let manifest: Manifest =
                        serde_json::from_str(json).map_err(|e| edited(format!("manifest: {e}")))?;
                    one_spelling(&manifest, json.as_bytes())
                        .map_err(|why| edited(format!("manifest: {why}")))?;
                    end = Some((manifest, signature.to_vec()));
                }
                _ => return Err(edited("unknown frame".into())),
            }
        }
        if frames.tail() != Tail::Clean {
            return Err(edited("the base is damaged or cut short".into()));
        }
        let (manifest, signature) = end.ok_or_else(|| edited("the base has no manifest".into()))?;
        carried.fits(path, &manifest)?;
        Ok(Self {
            path: path.to_path_buf(),
            manifest,
            signature,
            lines,
            entries: carried.entries,
        })
    }

    /// SHA-256 of what was signed.
    pub(crate) fn digest(&self) -> Result<Hash, StoreError> {
        let json = serde_json::to_vec(&self.manifest).map_err(StoreError::Encode)?;
        Ok(sha256(&json))
    }

    /// Whether the infra CA's ledger key signed it.
    pub(crate) fn check(&self, infra_ca_der: &[u8]) -> Result<(), VerifyError> {
        self.manifest
            .check(&self.path, &self.signature, infra_ca_der)
    }
}

/// Writes the base of `first_segment`, durably and as a whole. `lines` are the carried entries.
pub(crate) fn write(
    dir: &Path,
    signer: &dyn LedgerSigner,
    (first_segment, first_seq): (u64, u64),
    lines: &[String],
) -> Result<Hash, StoreError> {
    let path = dir.join(file_name(first_segment));
    let mut carried = Carried::default();
    for line in lines {
        carried.accept(&path, line)?;
    }
    let manifest = Manifest {
        version: VERSION,
        first_segment,
        first_seq,
        head: carried.entries.last().map_or([0; 32], |entry| entry.hash),
        carried: lines.len() as u64,
        carried_sha256: sha256(&carried.hashes),
        chain: signer.chain_der(),
    };
    carried.fits(&path, &manifest)?;
    let json = serde_json::to_string(&manifest).map_err(StoreError::Encode)?;
    let signature = super::sign(signer, BASE_LABEL, json.as_bytes())?;
    let mut bytes = Vec::new();
    let mut chunk = vec![LINES];
    for line in lines {
        if chunk.len() > CHUNK_BYTES {
            append(&mut bytes, &chunk);
            chunk.truncate(1);
        }
        if chunk.len() > 1 {
            chunk.push(b'\n');
        }
        chunk.extend_from_slice(line.as_bytes());
    }
    append(&mut bytes, &chunk);
    append(&mut bytes, &encode_signed(MANIFEST, &signature, &json));
    crate::file::replace(&path, &bytes)?;
    Ok(sha256(json.as_bytes()))
}

fn append(out: &mut Vec<u8>, payload: &[u8]) {
    let at = out.len() as u64;
    frame::encode(payload, at, out);
}

/// File name of the base of a segment.
pub(crate) fn file_name(segment: u64) -> String {
    format!("ledger-{segment:08}.base")
}

fn parse_file_name(name: &str) -> Option<u64> {
    let number = name.strip_prefix("ledger-")?.strip_suffix(".base")?;
    let parsed = number.parse().ok()?;
    (file_name(parsed) == name).then_some(parsed)
}

/// Base files in order of their segment.
pub(crate) fn bases(dir: &Path) -> Result<Vec<(u64, PathBuf)>, VerifyError> {
    super::verify::numbered(dir, parse_file_name)
}

/// Where a ledger folder begins.
#[derive(Debug)]
pub(crate) struct Start {
    /// What stands for the segments before.
    pub base: Option<Base>,
    /// The segments from there on.
    pub files: Vec<(u64, PathBuf)>,
    /// Segments that the base stands for and that are not removed yet.
    pub leftover: u64,
}

/// Finds it: segment 1; or the base of the first segment that is there; or, when a removal was
/// interrupted, the next base. Anything else is a ledger whose front was cut off.
pub(crate) fn start(dir: &Path) -> Result<Start, VerifyError> {
    let files = super::verify::segments(dir)?;
    let bases = bases(dir)?;
    let first = files.first().map(|(number, _)| *number);
    if first == Some(1) || (first.is_none() && bases.is_empty()) {
        return Ok(Start {
            base: None,
            files,
            leftover: 0,
        });
    }
    let lowest = first.unwrap_or(u64::MAX);
    let found = bases.iter().find(|(number, _)| *number >= lowest);
    let Some((number, path)) = found else {
        return Err(VerifyError::FrontCut {
            dir: dir.to_path_buf(),
            found: first.map_or_else(
                || "no segment at all".to_owned(),
                |first| format!("segment {first} first, and no base of it"),
            ),
        });
    };
    let base = Base::read(path)?;
    if base.manifest.first_segment != *number {
        return Err(VerifyError::Edited {
            file: path.clone(),
            seq: base.manifest.first_seq.saturating_sub(1),
            why: format!("it is the base of segment {}", base.manifest.first_segment),
        });
    }
    let (old, files): (Vec<_>, Vec<_>) = files.into_iter().partition(|(n, _)| n < number);
    Ok(Start {
        base: Some(base),
        files,
        leftover: old.len() as u64,
    })
}

/// Removes the segments and bases before `first_segment`, oldest first; how many segments.
pub(crate) fn remove_before(dir: &Path, first_segment: u64) -> Result<u64, StoreError> {
    let old = |files: Vec<(u64, PathBuf)>| files.into_iter().filter(|(n, _)| *n < first_segment);
    let mut removed = 0;
    let segments = old(super::verify::segments(dir)?).map(|file| (file, 1));
    let bases = old(bases(dir)?).map(|file| (file, 0));
    for ((_, path), counts) in segments.chain(bases) {
        fs::remove_file(&path)
            .and_then(|()| crate::file::sync_parent(&path))
            .map_err(|e| StoreError::io("remove", &path, e))?;
        removed += counts;
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_have_one_spelling() {
        assert_eq!(parse_file_name("ledger-00000012.base"), Some(12));
        for other in [
            "ledger-12.base",
            "ledger-00000012.base.new",
            "ledger-00000012.vlg",
        ] {
            assert_eq!(parse_file_name(other), None, "{other}");
        }
    }
}

//! A ledger as JSON Lines: entries for any log store, and a last line that proves them.
//!
//! First line: `{"format":"vestibule-ledger-export","version":1,"names":"hidden"}`. Of a pruned ledger
//! then the manifest of its base with its signature, and the carried entries. Then one entry a line. Last line: the checkpoint, the signature of the newest group commit and its certificate
//! chain. The signature covers the last entry's hash, and by the chain every entry before it.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::base::{self, Carried, Manifest};
use super::entry::{Hash, LINE_MAX_BYTES, Line};
use super::segment::{Frame, hex32, hexes, one_spelling};
use super::trust::TrustedLeaf;
use super::verify::{BaseReport, Chain, Report, VerifyError, read_file};
use super::{Entry, HEAD_LABEL};
use crate::frame::Frames;

const FORMAT: &str = "vestibule-ledger-export";
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FirstLine {
    format: String,
    version: u32,
    names: Names,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Names {
    Hidden,
    Shown,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LastLine {
    checkpoint: Head,
    #[serde(with = "hexes")]
    chain: Vec<Vec<u8>>,
    signature: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    last_seq: u64,
    #[serde(with = "hex32")]
    head: Hash,
}

/// Second line of an export of a pruned ledger.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct BaseLine {
    base: Manifest,
    signature: String,
}

/// What was exported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExportReport {
    /// Entries written.
    pub entries: u64,
    /// Hash of the last one.
    pub head: Hash,
}

/// Writes the ledger in `dir` as JSON Lines, TPM Names hidden unless `show_names`.
///
/// The chain is checked on the way; run [`super::verify`] on the result for the signature.
///
/// # Errors
/// The ledger is empty or damaged, or `out` cannot be written.
pub fn export(
    dir: &Path,
    out: &mut dyn Write,
    show_names: bool,
) -> Result<ExportReport, VerifyError> {
    let inner = dir.join(crate::LEDGER_DIR);
    let dir = if inner.is_dir() { &inner } else { dir };
    let first = FirstLine {
        format: FORMAT.into(),
        version: VERSION,
        names: if show_names {
            Names::Shown
        } else {
            Names::Hidden
        },
    };
    json_line(out, &first).map_err(VerifyError::Write)?;
    let mut chain = Chain::default();
    let mut certificates = Vec::new();
    let mut newest = None;
    let mut carried = 0;
    let base::Start { base, files, .. } = base::start(dir)?;
    if let Some(base) = base {
        chain = Chain::after(&base);
        carried = base.manifest.carried;
        let line = BaseLine {
            base: base.manifest,
            signature: hex::encode(&base.signature),
        };
        json_line(out, &line).map_err(VerifyError::Write)?;
        for text in &base.lines {
            export_line(out, text, show_names).map_err(VerifyError::Write)?;
        }
    }
    let first_seq = chain.next_seq;
    for (_, path) in files {
        let bytes = read_file(&path)?;
        for (_, payload) in Frames::new(&bytes) {
            let frame = Frame::decode(payload).map_err(|why| VerifyError::Edited {
                file: path.clone(),
                seq: chain.next_seq,
                why,
            })?;
            match frame {
                Frame::Header(header) => certificates = header.chain,
                Frame::Commit { signature, lines } => {
                    for text in lines.split('\n') {
                        chain.accept(&path, text)?;
                        export_line(out, text, show_names).map_err(VerifyError::Write)?;
                    }
                    newest = Some((signature.to_vec(), certificates.clone()));
                }
                Frame::Checkpoint { .. } => {}
            }
        }
    }
    let Some((signature, certificates)) = newest else {
        return Err(VerifyError::NotALedger {
            file: dir.to_path_buf(),
            why: "it holds no entry yet".into(),
        });
    };
    let last = LastLine {
        checkpoint: Head {
            last_seq: chain.next_seq - 1,
            head: chain.head,
        },
        chain: certificates,
        signature: hex::encode(signature),
    };
    json_line(out, &last)
        .and_then(|()| out.flush())
        .map_err(VerifyError::Write)?;
    Ok(ExportReport {
        entries: carried + chain.next_seq - first_seq,
        head: chain.head,
    })
}

fn json_line(out: &mut dyn Write, value: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *out, value)?;
    out.write_all(b"\n")
}

fn export_line(out: &mut dyn Write, text: &str, show_names: bool) -> io::Result<()> {
    match Line::parse(text) {
        Ok(line) if !show_names => out.write_all(line.canonical().as_bytes())?,
        _ => out.write_all(text.as_bytes())?,
    }
    out.write_all(b"\n")
}

/// Verifies an exported file.
pub(super) fn verify_export(path: &Path, infra_ca_der: &[u8]) -> Result<Report, VerifyError> {
    let mut lines = Lines::open(path)?;
    let not_a_ledger = |why: String| VerifyError::NotALedger {
        file: path.to_path_buf(),
        why,
    };
    let first = lines
        .next()?
        .ok_or_else(|| not_a_ledger("it is empty".into()))?;
    let text = first;
    let first: FirstLine =
        serde_json::from_str(&text).map_err(|e| not_a_ledger(format!("first line: {e}")))?;
    one_spelling(&first, text.as_bytes())
        .map_err(|why| not_a_ledger(format!("first line: {why}")))?;
    if first.format != FORMAT || first.version != VERSION {
        return Err(not_a_ledger(format!(
            "{} version {}",
            first.format, first.version
        )));
    }
    let mut chain = Chain::default();
    let mut base = None;
    let mut kept = None;
    let last = loop {
        let missing = VerifyError::Missing {
            file: path.to_path_buf(),
            expected: chain.next_seq,
            found: "the end of the file, without a checkpoint".into(),
        };
        let text = lines.next()?.ok_or(missing)?;
        if text.starts_with("{\"checkpoint\"") {
            break text;
        }
        if chain.next_seq == 1 && base.is_none() && text.starts_with("{\"base\"") {
            let (report, after) = exported_base(path, &text, &mut lines, infra_ca_der)?;
            kept = Some(after.next_seq);
            chain = after;
            base = Some(report);
            continue;
        }
        let _: Entry = chain.accept(path, &text)?;
    };
    let edited = |why: String| VerifyError::Edited {
        file: path.to_path_buf(),
        seq: chain.next_seq,
        why,
    };
    let text = last;
    let last: LastLine =
        serde_json::from_str(&text).map_err(|e| edited(format!("checkpoint: {e}")))?;
    one_spelling(&last, text.as_bytes()).map_err(|why| edited(format!("checkpoint: {why}")))?;
    if lines.next()?.is_some() {
        return Err(edited("something follows the checkpoint".into()));
    }
    let last_seq = chain.next_seq - 1;
    if last.checkpoint.last_seq != last_seq {
        return Err(VerifyError::Missing {
            file: path.to_path_buf(),
            expected: chain.next_seq,
            found: format!("a checkpoint after entry {}", last.checkpoint.last_seq),
        });
    }
    if last.checkpoint.head != chain.head {
        return Err(edited("the checkpoint has another head".into()));
    }
    let signature = signature_of(&last.signature).map_err(edited)?;
    let leaf =
        TrustedLeaf::check(&last.chain, infra_ca_der).map_err(|why| VerifyError::Untrusted {
            file: path.to_path_buf(),
            why,
        })?;
    if !leaf.signed(HEAD_LABEL, &chain.head, &signature) {
        return Err(VerifyError::BadSignature {
            file: path.to_path_buf(),
            seq: last_seq,
        });
    }
    let carried = base.as_ref().map_or(0, |base| base.carried);
    Ok(Report {
        entries: carried + chain.next_seq - kept.unwrap_or(1),
        segments: 1,
        signatures: 1 + u64::from(base.is_some()),
        last_seq,
        head: chain.head,
        torn_bytes: 0,
        base,
    })
}

/// Lower-case hex, as [`export`] writes it.
fn signature_of(text: &str) -> Result<Vec<u8>, String> {
    let bytes = hex::decode(text).map_err(|e| format!("signature: {e}"))?;
    if hex::encode(&bytes) == text {
        Ok(bytes)
    } else {
        Err("signature: expected lower-case hex".to_owned())
    }
}

/// The base of an exported ledger that was pruned, and the chain that goes on behind it.
fn exported_base(
    path: &Path,
    text: &str,
    lines: &mut Lines<'_>,
    infra_ca_der: &[u8],
) -> Result<(BaseReport, Chain), VerifyError> {
    let edited = |why: String| VerifyError::Edited {
        file: path.to_path_buf(),
        seq: 1,
        why,
    };
    let line: BaseLine = serde_json::from_str(text).map_err(|e| edited(format!("base: {e}")))?;
    one_spelling(&line, text.as_bytes()).map_err(|why| edited(format!("base: {why}")))?;
    let signature = signature_of(&line.signature).map_err(edited)?;
    let manifest = line.base;
    manifest.check(path, &signature, infra_ca_der)?;
    let mut carried = Carried::default();
    for _ in 0..manifest.carried {
        let text = lines.next()?.ok_or_else(|| VerifyError::Missing {
            file: path.to_path_buf(),
            expected: manifest.first_seq,
            found: "the end of the file, within the carried entries".into(),
        })?;
        carried.accept(path, &text)?;
    }
    carried.fits(path, &manifest)?;
    let chain = Chain {
        next_seq: manifest.first_seq,
        head: manifest.head,
    };
    Ok((BaseReport::new(path, &manifest, 0), chain))
}

/// Lines of a foreign file, bounded in length.
struct Lines<'a> {
    path: &'a Path,
    reader: BufReader<File>,
}

impl<'a> Lines<'a> {
    fn open(path: &'a Path) -> Result<Self, VerifyError> {
        let file = File::open(path).map_err(|source| VerifyError::Read {
            file: path.to_path_buf(),
            source,
        })?;
        Ok(Self {
            path,
            reader: BufReader::new(file),
        })
    }

    fn next(&mut self) -> Result<Option<String>, VerifyError> {
        use io::Read as _;
        let mut line = Vec::new();
        self.reader
            .by_ref()
            .take(LINE_MAX_BYTES as u64 + 1)
            .read_until(b'\n', &mut line)
            .map_err(|source| VerifyError::Read {
                file: self.path.to_path_buf(),
                source,
            })?;
        if line.is_empty() {
            return Ok(None);
        }
        let not_text = |why: &str| VerifyError::NotALedger {
            file: self.path.to_path_buf(),
            why: why.into(),
        };
        if line.pop() != Some(b'\n') {
            return Err(not_text("a line is too long or the last one is not ended"));
        }
        String::from_utf8(line)
            .map(Some)
            .map_err(|_| not_text("it is not UTF-8"))
    }
}

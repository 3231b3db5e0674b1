//! One ledger entry: its text, its hash, and how TPM Names are hidden without breaking the chain.
//!
//! An entry is one line of JSON with fixed field order, `{"seq":..,"time":..,"prev":"..","salt":"..",
//! "record":{..}}`. The hash that the next entry carries is SHA-256 over the *canonical* line: no
//! `salt`, and every TPM Name in the record replaced by `name-sha256:` and a salted digest. So an
//! export may hide the Names (it then is the canonical line itself) or show them (with the salt),
//! and both verify against the same signature.
//!
//! Knows nothing of files and signatures. The line parser is strict on purpose: one text per entry.

use std::borrow::Cow;

use aws_lc_rs::digest::{SHA256, digest};
use gateway_core::identity::UnixMillis;
use gateway_core::record::Record;

/// A hash of the chain: SHA-256 of a canonical entry line. All zero before the first entry.
pub type Hash = [u8; 32];

/// Longest entry line, in bytes. A record is a few hundred; an appraisal with every check failed
/// is below 16 KiB.
pub(crate) const LINE_MAX_BYTES: usize = 256 * 1024;

const NAME_LABEL: &[u8] = b"vestibule/redact/v1\0";

/// One entry of the ledger, read back and checked against the chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Position, from 1, without gaps.
    pub seq: u64,
    /// When the daemon says it happened. Authentic as a statement, not as a time.
    pub time: UnixMillis,
    /// Hash of the entry before.
    pub prev: Hash,
    /// Hash of this entry.
    pub hash: Hash,
    /// What was decided.
    pub record: Record,
}

/// An entry line taken apart, not yet checked against anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Line<'a> {
    pub seq: u64,
    pub time: UnixMillis,
    pub prev: Hash,
    /// Present when the record shows its TPM Names.
    pub salt: Option<[u8; 16]>,
    /// The record's JSON, byte for byte.
    pub record: &'a str,
}

impl<'a> Line<'a> {
    /// Takes a line apart.
    ///
    /// # Errors
    /// What is not as [`Line::write`] would have written it.
    pub(crate) fn parse(line: &'a str) -> Result<Self, &'static str> {
        if line.len() > LINE_MAX_BYTES {
            return Err("entry is too long");
        }
        let rest = line.strip_prefix("{\"seq\":").ok_or("no seq")?;
        let (seq, rest) = number(rest).ok_or("seq is not a number")?;
        let rest = rest.strip_prefix(",\"time\":").ok_or("no time")?;
        let (time, rest) = number(rest).ok_or("time is not a number")?;
        let rest = rest.strip_prefix(",\"prev\":\"").ok_or("no prev")?;
        let (prev, rest) = hex_field(rest).ok_or("prev is not 64 hex digits")?;
        let (salt, rest) = match rest.strip_prefix(",\"salt\":\"") {
            Some(rest) => {
                let (salt, rest) = hex_field(rest).ok_or("salt is not 32 hex digits")?;
                (Some(salt), rest)
            }
            None => (None, rest),
        };
        let record = rest
            .strip_prefix(",\"record\":")
            .and_then(|r| r.strip_suffix('}'))
            .ok_or("no record")?;
        Ok(Self {
            seq,
            time: UnixMillis(time),
            prev,
            salt,
            record,
        })
    }

    /// The line as it is stored or exported.
    pub(crate) fn write(&self, out: &mut String) {
        use std::fmt::Write as _;
        let Self {
            seq,
            time: UnixMillis(time),
            ..
        } = self;
        // Writing to a String cannot fail.
        let _ = write!(out, "{{\"seq\":{seq},\"time\":{time},\"prev\":\"");
        push_hex(out, &self.prev);
        if let Some(salt) = self.salt {
            out.push_str("\",\"salt\":\"");
            push_hex(out, &salt);
        }
        out.push_str("\",\"record\":");
        out.push_str(self.record);
        out.push('}');
    }

    /// The canonical line: Names hidden, no salt.
    pub(crate) fn canonical(&self) -> String {
        let record = match self.salt {
            Some(salt) => hide_names(self.record, &salt),
            None => Cow::Borrowed(self.record),
        };
        let mut out = String::with_capacity(record.len() + 160);
        Line {
            salt: None,
            record: &record,
            ..*self
        }
        .write(&mut out);
        out
    }

    /// SHA-256 of the canonical line.
    pub(crate) fn hash(&self) -> Hash {
        sha256(self.canonical().as_bytes())
    }

    /// The record, decoded.
    pub(crate) fn decode(&self) -> Result<Record, serde_json::Error> {
        serde_json::from_str(self.record)
    }
}

/// SHA-256.
pub(crate) fn sha256(bytes: &[u8]) -> Hash {
    let mut out = [0u8; 32];
    out.copy_from_slice(digest(&SHA256, bytes).as_ref());
    out
}

/// Appends lower-case hex.
pub(crate) fn push_hex(out: &mut String, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for byte in bytes {
        out.push(DIGITS[usize::from(byte >> 4)] as char);
        out.push(DIGITS[usize::from(byte & 15)] as char);
    }
}

/// A decimal number without sign or leading zero.
fn number(text: &str) -> Option<(u64, &str)> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, rest) = text.split_at(digits);
    if number.len() > 1 && number.starts_with('0') {
        return None;
    }
    Some((number.parse().ok()?, rest))
}

/// `N` bytes of lower-case hex and the closing quote.
fn hex_field<const N: usize>(text: &str) -> Option<([u8; N], &str)> {
    let (digits, rest) = text.split_at_checked(2 * N)?;
    if digits.bytes().any(|b| b.is_ascii_uppercase()) {
        return None;
    }
    let mut out = [0u8; N];
    hex::decode_to_slice(digits, &mut out).ok()?;
    Some((out, rest.strip_prefix('"')?))
}

/// Replaces by a salted digest what names one TPM: each TPM Name in hex (`nameAlg || digest`: SHA-256,
/// SHA-384, SHA-512), and the text of every field whose key begins with `ek_cert_`, for an EK
/// certificate names its key. Works on the text, so that a Name inside an explanation is hidden too.
fn hide_names<'a>(record: &'a str, salt: &[u8; 16]) -> Cow<'a, str> {
    let bytes = record.as_bytes();
    let mut out = String::new();
    let mut copied = 0;
    let mut at = 0;
    let mut hide = |from: usize, to: usize| {
        out.push_str(&record[copied..from]);
        let mut text = NAME_LABEL.to_vec();
        text.extend_from_slice(salt);
        text.extend_from_slice(&bytes[from..to]);
        out.push_str("name-sha256:");
        push_hex(&mut out, &sha256(&text));
        copied = to;
    };
    while at < bytes.len() {
        if let Some((from, to)) = certificate_field(&bytes[at..]) {
            hide(at + from, at + to);
            at += to;
            continue;
        }
        let run = bytes[at..]
            .iter()
            .take_while(|b| b.is_ascii_hexdigit())
            .count();
        if is_name(&bytes[at..at + run]) {
            hide(at, at + run);
        }
        at += run.max(1);
    }
    if copied == 0 {
        return Cow::Borrowed(record);
    }
    out.push_str(&record[copied..]);
    Cow::Owned(out)
}

/// Where the text of a field `"ek_cert_...":"..."` begins and ends, if one begins here. Inside a JSON
/// string the quotes would be escaped, so that no text of a peer looks like it.
fn certificate_field(rest: &[u8]) -> Option<(usize, usize)> {
    let name = rest.strip_prefix(b"\"ek_cert_")?;
    let key = name
        .iter()
        .take_while(|b| b.is_ascii_alphanumeric() || **b == b'_')
        .count();
    let text = name[key..].strip_prefix(b"\":\"")?;
    let from = rest.len() - text.len();
    let len = text.iter().position(|b| *b == b'"')?;
    let plain = !text[..len].contains(&b'\\') && len > 0;
    plain.then_some((from, from + len))
}

fn is_name(run: &[u8]) -> bool {
    match run.len() {
        68 => run.starts_with(b"000b") || run.starts_with(b"000B"),
        100 => run.starts_with(b"000c") || run.starts_with(b"000C"),
        132 => run.starts_with(b"000d") || run.starts_with(b"000D"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RECORD: &str =
        r#"{"kind":"genesis","appliance":"a","seal":"development","infra_ca_sha256":"00"}"#;

    fn line(record: &str) -> Line<'_> {
        Line {
            seq: 7,
            time: UnixMillis(1_700_000_000_123),
            prev: [0xab; 32],
            salt: Some([0x11; 16]),
            record,
        }
    }

    #[test]
    fn golden_line_both_ways() {
        let mut text = String::new();
        line(RECORD).write(&mut text);
        let golden = format!(
            "{{\"seq\":7,\"time\":1700000000123,\"prev\":\"{}\",\"salt\":\"{}\",\"record\":{RECORD}}}",
            "ab".repeat(32),
            "11".repeat(16)
        );
        assert_eq!(text, golden);
        assert_eq!(Line::parse(&golden), Ok(line(RECORD)));
    }

    #[test]
    fn ek_certificates_are_hidden_and_no_text_passes_for_one() {
        let der = "MIIB+/a=";
        let record = format!(
            r#"{{"ek_cert_der":"{der}","ek_cert_serial":"0102","path":["aa"],"found":"\"ek_cert_x\":\"{der}\""}}"#
        );
        let shown = line(&record);
        let hidden = shown.canonical();
        assert_eq!(hidden.matches("name-sha256:").count(), 2, "{hidden}");
        assert!(!hidden.contains("0102") && hidden.contains(r#""path":["aa"]"#));
        assert_eq!(
            hidden.matches(der).count(),
            1,
            "an explanation stays: {hidden}"
        );
        let parsed = Line::parse(&hidden).expect("a line");
        assert_eq!(parsed.hash(), shown.hash());
        for cut in [
            r#""ek_cert_der":"#,
            r#""ek_cert_der":""#,
            r#""ek_cert_"#,
            r#""ek_cert_a":"""#,
        ] {
            assert_eq!(certificate_field(cut.as_bytes()), None, "{cut}");
        }
    }

    #[test]
    fn hidden_and_shown_names_have_one_hash() {
        let name = format!("000b{}", "5c".repeat(32));
        let long = format!("000C{}", "5C".repeat(48));
        let record = format!(r#"{{"ek_names":["{name}"],"found":"EK {long}, not known"}}"#);
        let shown = line(&record);
        let hidden = shown.canonical();
        assert!(!hidden.contains(&name) && !hidden.contains(&long));
        assert_eq!(hidden.matches("name-sha256:").count(), 2);
        let parsed = Line::parse(&hidden).unwrap();
        assert_eq!(parsed.salt, None);
        assert_eq!(parsed.hash(), shown.hash());
        // Another salt hides the same Name differently: entries cannot be linked by it.
        let other = Line {
            salt: Some([0x12; 16]),
            ..shown
        };
        assert_ne!(other.hash(), shown.hash());
    }

    #[test]
    fn digests_and_longer_runs_are_not_names() {
        let digest = "0".repeat(64);
        let long = format!("000b{}", "5c".repeat(33));
        let record = format!(r#"{{"a":"{digest}","b":"{long}"}}"#);
        assert!(matches!(hide_names(&record, &[0; 16]), Cow::Borrowed(_)));
    }

    #[test]
    fn rejects_every_other_spelling() {
        let mut good = String::new();
        line(RECORD).write(&mut good);
        for (from, to) in [
            ("{\"seq\":7", "{\"seq\":07"),
            ("{\"seq\":7", "{ \"seq\":7"),
            ("{\"seq\":7", "{\"seq\":-7"),
            ("\"time\":1", "\"time\": 1"),
            ("abab", "ABab"),
            ("\"prev\":\"ab", "\"prev\":\""),
            ("\"salt\":\"1111", "\"salt\":\"11"),
            ("\"record\":", "\"rekord\":"),
        ] {
            let bad = good.replacen(from, to, 1);
            assert_ne!(bad, good);
            assert!(Line::parse(&bad).is_err(), "{bad}");
        }
        assert!(Line::parse(&good[..good.len() - 1]).is_ok_and(|l| l.decode().is_err()));
        let long = "x".repeat(LINE_MAX_BYTES + 1);
        assert_eq!(Line::parse(&long), Err("entry is too long"));
    }

    proptest! {
        #[test]
        fn never_panics(text in "\\PC{0,200}", salt in any::<[u8; 16]>()) {
            let _ = Line::parse(&text);
            let _ = hide_names(&text, &salt);
        }

        #[test]
        fn hiding_is_idempotent(hexes in proptest::collection::vec("[0-9a-f]{60,70}|000b[0-9a-f]{64}", 0..5)) {
            let text = format!("{{\"a\":\"{}\"}}", hexes.join(" "));
            let once = hide_names(&text, &[3; 16]).into_owned();
            prop_assert_eq!(hide_names(&once, &[4; 16]), once.as_str());
        }
    }
}

//! Where a file has what a quote needs: the octet strings in it, by what carries them.
//!
//! Attestations travel as bare structures (tpm2-tools), as JSON with hex, Base64 or lists of numbers, as
//! `r`-texts of three Base64 words, as PEM and as length-prefixed octet strings; nothing in a file
//! says which. So everything that can be an octet string is taken, and what it is is found out by
//! decoding it. Of TPM structures it knows none.

use std::collections::BTreeMap;

use attest_wire::tpm::HashAlg;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD};
use serde_json::Value;

/// Octet strings of one file: an evidence has below 100, a dump of a log below 1,000.
const PIECES_MAX: usize = 4096;
/// Depth of JSON in octet strings in JSON, which some platforms' reports have.
const DEPTH_MAX: usize = 3;
/// Offsets tried for JSON inside of octets.
const EMBEDDED_MAX: usize = 8;
/// Octet strings behind their lengths, one after the other.
const PREFIXED_MAX: usize = 16;
/// Shortest text that is tried as hex or Base64, characters: below is no structure, and many words.
const TEXT_MIN: usize = 12;

/// An octet string and where it stood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    /// File and path in it.
    pub at: String,
    /// The octets.
    pub octets: Vec<u8>,
}

/// Several values of registers, as they stood together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Values {
    /// File and path in it.
    pub at: String,
    /// By number where the numbers are told, else by position.
    pub values: Vec<(Option<u32>, Vec<u8>)>,
}

/// All that was found.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Octet strings.
    pub pieces: Vec<Piece>,
    /// Register values.
    pub values: Vec<Values>,
    /// JSON Web Keys (RFC 7517): members by name.
    pub jwks: Vec<(String, BTreeMap<String, String>)>,
    /// PEM blocks: label and contents.
    pub pems: Vec<(String, String, Vec<u8>)>,
}

impl Found {
    /// Takes everything from a file; `name` goes before each place.
    pub(super) fn file(&mut self, name: &str, file: &[u8]) {
        self.octets(name, file, 0);
    }

    fn octets(&mut self, at: &str, octets: &[u8], depth: usize) {
        if let Ok(text) = std::str::from_utf8(octets)
            && self.text(at, text, depth)
        {
            return;
        }
        self.piece(at, octets.to_vec());
        self.prefixed(at, octets);
        self.embedded(at, octets, depth);
    }

    fn piece(&mut self, at: &str, octets: Vec<u8>) {
        if self.pieces.len() < PIECES_MAX && !octets.is_empty() {
            let at = at.to_owned();
            self.pieces.push(Piece { at, octets });
        }
    }

    /// A text that carries octets; whether it does.
    fn text(&mut self, at: &str, text: &str, depth: usize) -> bool {
        let text = text.trim();
        if text.contains("-----BEGIN ") {
            self.pem(at, text);
            return true;
        }
        if text.starts_with(['{', '['])
            && let Ok(value) = serde_json::from_str::<Value>(text)
        {
            self.json(at, &value, depth);
            return true;
        }
        // keylime: r<quote>:<signature>:<PCR values>
        if let Some(words) = text.strip_prefix('r')
            && words.contains(':')
        {
            let parts: Vec<Option<Vec<u8>>> = words.split(':').map(base64).collect();
            if parts.len() >= 2 && parts.iter().all(Option::is_some) {
                for (part, name) in parts.into_iter().flatten().zip(["quote", "sig", "pcrs"]) {
                    self.piece(&format!("{at}:{name}"), part);
                }
                return true;
            }
        }
        if let Some(values) = printed(text) {
            let at = at.to_owned();
            self.values.push(Values { at, values });
            return true;
        }
        if let Some(octets) = encoded(text) {
            self.piece(at, octets);
            return true;
        }
        false
    }

    fn pem(&mut self, at: &str, text: &str) {
        let mut rest = text;
        while let Some((_, begun)) = rest.split_once("-----BEGIN ") {
            let Some((label, body)) = begun.split_once("-----") else {
                return;
            };
            let Some((body, after)) = body.split_once("-----END ") else {
                return;
            };
            rest = after;
            let words: String = body.split_whitespace().collect();
            if let Some(octets) = base64(&words)
                && self.pems.len() < PIECES_MAX
            {
                self.pems.push((at.to_owned(), label.to_owned(), octets));
            }
        }
    }

    fn json(&mut self, at: &str, value: &Value, depth: usize) {
        let inside = |name: &str| {
            if at.is_empty() {
                name.to_owned()
            } else {
                format!("{at}.{name}")
            }
        };
        match value {
            Value::Object(members) => {
                if members.contains_key("kty") {
                    let words = members.iter().filter_map(|(name, value)| {
                        Some((name.clone(), value.as_str()?.to_owned()))
                    });
                    self.jwks.push((at.to_owned(), words.collect()));
                }
                if let Some(values) = by_number(members) {
                    let at = at.to_owned();
                    self.values.push(Values { at, values });
                }
                for (name, value) in members {
                    self.json(&inside(name), value, depth);
                }
            }
            Value::Array(list) => {
                if let Some(octets) = numbers(list) {
                    self.nested(at, octets, depth);
                    return;
                }
                if let Some(values) = in_order(list) {
                    let at = at.to_owned();
                    self.values.push(Values { at, values });
                    return;
                }
                for (index, value) in list.iter().enumerate() {
                    self.json(&inside(&index.to_string()), value, depth);
                }
            }
            Value::String(text) => {
                if text.contains("-----BEGIN ") {
                    self.pem(at, text);
                } else if let Some(octets) = encoded(text.trim()) {
                    self.nested(at, octets, depth);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn nested(&mut self, at: &str, octets: Vec<u8>, depth: usize) {
        if depth < DEPTH_MAX {
            self.octets(at, &octets, depth + 1);
        } else {
            self.piece(at, octets);
        }
    }

    /// Octet strings one after the other, each behind its length in 64 bits, little-endian (bincode); the
    /// last may be a list of digests behind their count.
    fn prefixed(&mut self, at: &str, octets: &[u8]) {
        let mut parts = Vec::new();
        let mut rest = octets;
        while let Some((head, tail)) = rest.split_first_chunk::<8>() {
            let Ok(len) = usize::try_from(u64::from_le_bytes(*head)) else {
                return;
            };
            let each = tail.len().checked_div(len).unwrap_or_default();
            if !parts.is_empty() && matches!(each, 20 | 32 | 48 | 64) && each * len == tail.len() {
                let values = tail.chunks(each).map(|value| (None, value.to_vec()));
                let (at, values) = (format!("{at}:values"), values.collect());
                self.values.push(Values { at, values });
                rest = &[];
                break;
            }
            match tail.split_at_checked(len) {
                Some((part, after)) if len > 0 && parts.len() < PREFIXED_MAX => {
                    parts.push(part);
                    rest = after;
                }
                _ => return,
            }
        }
        if rest.is_empty() && parts.len() >= 2 {
            for (index, part) in parts.into_iter().enumerate() {
                self.piece(&format!("{at}:{index}"), part.to_vec());
            }
        }
    }

    /// JSON that stands somewhere in octets.
    fn embedded(&mut self, at: &str, octets: &[u8], depth: usize) {
        if depth >= DEPTH_MAX {
            return;
        }
        let starts = octets
            .windows(2)
            .enumerate()
            .filter(|(_, pair)| pair == b"{\"")
            .map(|(offset, _)| offset)
            .take(EMBEDDED_MAX);
        for offset in starts {
            let mut values = serde_json::Deserializer::from_slice(&octets[offset..]).into_iter();
            if let Some(Ok(value)) = values.next() {
                self.json(&format!("{at}@{offset}"), &value, depth + 1);
                return;
            }
        }
    }
}

/// Hex or Base64 that is long enough to be meant.
fn encoded(text: &str) -> Option<Vec<u8>> {
    if text.len() < TEXT_MIN {
        return None;
    }
    let bare = text.strip_prefix("0x").unwrap_or(text);
    hex::decode(bare).ok().or_else(|| base64(text))
}

/// Base64 of either alphabet, padded or not, on several lines or one.
fn base64(text: &str) -> Option<Vec<u8>> {
    let words: String = text.split_ascii_whitespace().collect();
    [&STANDARD, &URL_SAFE, &STANDARD_NO_PAD, &URL_SAFE_NO_PAD]
        .into_iter()
        .find_map(|engine| engine.decode(&words).ok())
}

/// A list of octets as numbers.
fn numbers(list: &[Value]) -> Option<Vec<u8>> {
    if list.is_empty() {
        return None;
    }
    list.iter()
        .map(|value| u8::try_from(value.as_u64()?).ok())
        .collect()
}

fn digest(value: &Value) -> Option<Vec<u8>> {
    let octets = match value {
        Value::String(text) => encoded(text)?,
        Value::Array(list) => numbers(list)?,
        _ => return None,
    };
    matches!(octets.len(), 20 | 32 | 48 | 64).then_some(octets)
}

/// A list of values: bare ones in order, or objects with number and digest.
fn in_order(list: &[Value]) -> Option<Vec<(Option<u32>, Vec<u8>)>> {
    if list.is_empty() {
        return None;
    }
    list.iter()
        .map(|value| match value {
            Value::Object(members) => {
                let member = |names: &[&str]| {
                    let found = members
                        .iter()
                        .find(|(name, _)| names.contains(&name.to_ascii_lowercase().as_str()));
                    found.map(|(_, value)| value)
                };
                let number = member(&["index", "pcr", "pcr_index"])?.as_u64()?;
                let number = u32::try_from(number).ok()?;
                Some((Some(number), digest(member(&["digest", "value"])?)?))
            }
            other => Some((None, digest(other)?)),
        })
        .collect()
}

/// An object whose every member is a number and its value.
fn by_number(members: &serde_json::Map<String, Value>) -> Option<Vec<(Option<u32>, Vec<u8>)>> {
    if members.is_empty() {
        return None;
    }
    members
        .iter()
        .map(|(name, value)| Some((Some(name.parse().ok()?), digest(value)?)))
        .collect()
}

/// What `tpm2_pcrread` prints: `sha256:` and lines of `number : 0xVALUE`. Only one bank.
fn printed(text: &str) -> Option<Vec<(Option<u32>, Vec<u8>)>> {
    let mut size = None;
    let mut values = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (number, value) = line.split_once(':')?;
        let value = value.trim();
        if let Ok(number) = number.trim().parse::<u32>() {
            let value = value.strip_prefix("0x").unwrap_or(value);
            // Some versions print the value as a number, without its leading zeros.
            let digits = size? * 2;
            let value = hex::decode(format!("{value:0>digits$}")).ok()?;
            values.push((Some(number), value));
        } else {
            if !value.is_empty() || !values.is_empty() {
                return None;
            }
            let bank = HashAlg::ALL.into_iter().find(|alg| alg.name() == number);
            size = bank.map(HashAlg::size).or(size);
        }
    }
    (!values.is_empty()).then_some(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(file: &[u8]) -> Found {
        let mut found = Found::default();
        found.file("f", file);
        found
    }

    #[test]
    fn one_octet_string_is_found_however_it_is_written() {
        let octets: Vec<u8> = (0..40).collect();
        let list: Vec<String> = octets.iter().map(ToString::to_string).collect();
        let texts = [
            format!("{{\"a\":{{\"message\":\"{}\"}}}}", hex::encode(&octets)),
            format!("{{\"a\":{{\"message\":\"{}\"}}}}", STANDARD.encode(&octets)),
            format!(
                "{{\"a\":{{\"message\":\"{}\"}}}}",
                URL_SAFE_NO_PAD.encode(&octets)
            ),
            format!("{{\"a\":{{\"message\":[{}]}}}}", list.join(",")),
        ];
        for text in texts {
            let found = found(text.as_bytes());
            assert_eq!(found.pieces.len(), 1, "{text}");
            assert_eq!(found.pieces[0].octets, octets, "{text}");
            assert_eq!(found.pieces[0].at, "f.a.message", "{text}");
        }
        let text = format!("r{0}:{0}:{0}", STANDARD.encode(&octets));
        assert_eq!(found(text.as_bytes()).pieces.len(), 3);
    }

    #[test]
    fn length_prefixed_strings_and_the_digests_behind_them() {
        let mut file = Vec::new();
        for part in [&[7u8; 256][..], &[9; 129]] {
            file.extend_from_slice(&(part.len() as u64).to_le_bytes());
            file.extend_from_slice(part);
        }
        file.extend_from_slice(&24u64.to_le_bytes());
        file.extend_from_slice(&[1; 24 * 32]);
        let found = found(&file);
        let lens: Vec<usize> = found
            .pieces
            .iter()
            .map(|piece| piece.octets.len())
            .collect();
        assert_eq!(lens, [file.len(), 256, 129]);
        assert_eq!(found.values.len(), 1);
        assert_eq!(found.values[0].values.len(), 24);
    }

    #[test]
    fn values_with_numbers_in_three_writings() {
        let value = "11".repeat(32);
        let texts = [
            format!("pcrs:\n  sha256:\n    4 : 0x{value}\n    7 : 0x{value}\n"),
            format!("{{\"pcrs\":{{\"4\":\"{value}\",\"7\":\"{value}\"}}}}"),
            format!(
                "[{{\"Index\":4,\"Digest\":\"{value}\"}},{{\"Index\":7,\"Digest\":\"{value}\"}}]"
            ),
        ];
        for text in texts {
            let found = found(text.as_bytes());
            assert_eq!(found.values.len(), 1, "{text}");
            let numbers: Vec<_> = found.values[0].values.iter().map(|(n, _)| *n).collect();
            assert_eq!(numbers, [Some(4), Some(7)], "{text}");
        }
    }

    #[test]
    fn json_in_octets_in_json_ends() {
        let mut text = "{\"kty\":\"RSA\",\"n\":\"AQAB\",\"e\":\"AQAB\"}".to_owned();
        for _ in 0..8 {
            let mut octets = vec![0xff, 0xfe];
            octets.extend_from_slice(text.as_bytes());
            text = format!("{{\"inner\":\"{}\"}}", STANDARD.encode(octets));
        }
        // The bound of the depth ends it; what stands deeper is not looked at.
        assert!(found(text.as_bytes()).jwks.is_empty());
    }
}

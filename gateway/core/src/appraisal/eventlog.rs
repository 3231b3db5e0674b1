//! The firmware's event log: parsing and replay.
//!
//! A log is a claim. After [`Log::replay`] equals quoted PCR values, what counts is the sequence of
//! (PCR, digest); the event type is covered by no digest and may be a lie, and event data counts
//! only where it hashes to its digest (go-attestation's event log disclosure). Meaning is given in
//! `events`, decisions are made in `boot_policy`.
//!
//! Formats: TCG PC Client Platform Firmware Profile 1.06 section 10 (crypto-agile), and the
//! SHA-1 format of the TCG EFI Protocol 1.2 with or without Spec ID.

use std::collections::BTreeMap;

use attest_wire::tpm::HashAlg;

/// `EV_NO_ACTION`: not extended.
pub const EV_NO_ACTION: u32 = 0x0000_0003;

/// Register of an event that is not extended and names no PCR (Windows writes 0xffffffff).
pub const NO_PCR: u8 = 0xff;

/// Events in one log; real ones have below 400.
const EVENTS_MAX: usize = 8192;
/// Digests of one event.
const DIGESTS_MAX: u32 = 8;
/// Platform PCRs; a TPM has 24.
const PCRS: u32 = 24;

const SPEC_ID_CRYPTO_AGILE: &[u8; 16] = b"Spec ID Event03\0";
const STARTUP_LOCALITY: &[u8; 16] = b"StartupLocality\0";

/// A log that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    /// Zero bytes: the firmware or the kernel gave none.
    #[error("the event log is empty")]
    Empty,
    /// It ends inside an event.
    #[error("event {event} at offset {offset}: {needed} bytes needed for {field}, {left} left")]
    Truncated {
        /// Number of the event, from 0.
        event: usize,
        /// Offset of the field, bytes.
        offset: usize,
        /// The field.
        field: &'static str,
        /// Bytes it needs.
        needed: usize,
        /// Bytes left.
        left: usize,
    },
    /// A value that no log has.
    #[error("event {event} at offset {offset}: {field} is {found}, expected {expected}")]
    Value {
        /// Number of the event, from 0.
        event: usize,
        /// Offset of the field, bytes.
        offset: usize,
        /// The field.
        field: &'static str,
        /// What is allowed.
        expected: &'static str,
        /// What was read.
        found: u64,
    },
}

impl LogError {
    /// Code of the refusal (docs/PROTOCOL.md section 3, row 10).
    pub fn code(&self) -> &'static str {
        match self {
            Self::Empty => "eventlog.empty",
            Self::Truncated { .. } | Self::Value { .. } => "eventlog.malformed",
        }
    }
}

/// Which layout the log has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// SHA-1 digests only.
    Sha1,
    /// A digest per active bank.
    CryptoAgile,
}

/// One digest of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Digest<'a> {
    /// `TPM_ALG_ID`, also one we cannot compute.
    pub alg: u16,
    /// As long as the log's header says.
    pub bytes: &'a [u8],
}

/// One event, borrowed from the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event<'a> {
    /// Number in the log, from 0.
    pub index: usize,
    /// PCR that was extended; [`NO_PCR`] for an `EV_NO_ACTION` event that names none.
    pub pcr: u8,
    /// `EV_*`: unprotected, a hint.
    pub kind: u32,
    /// One per bank.
    pub digests: Vec<Digest<'a>>,
    /// Event data; means something only if it hashes to the digest.
    pub data: &'a [u8],
}

impl<'a> Event<'a> {
    /// Digest in one bank.
    pub fn digest(&self, alg: HashAlg) -> Option<&'a [u8]> {
        let found = self.digests.iter().find(|d| d.alg == alg.id())?;
        Some(found.bytes)
    }

    /// The data, if it hashes to the digest of that bank.
    pub fn data_proven(&self, alg: HashAlg) -> Option<&'a [u8]> {
        let digest = self.digest(alg)?;
        (alg.digest(&[self.data]) == digest).then_some(self.data)
    }

    /// Whether the event extends a PCR.
    pub fn extends(&self) -> bool {
        self.kind != EV_NO_ACTION
    }
}

/// A parsed log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log<'a> {
    /// Layout.
    pub format: Format,
    /// Banks of the header, `TPM_ALG_ID` and digest size in bytes.
    pub banks: Vec<(u16, u16)>,
    /// Every event after the header, in order.
    pub events: Vec<Event<'a>>,
    /// Locality of TPM2_Startup, when the log says (0, 3 or 4).
    pub startup_locality: Option<u8>,
    /// Offset at which only padding follows, if any.
    pub padding_from: Option<usize>,
}

impl<'a> Log<'a> {
    /// Parses a whole log.
    ///
    /// # Errors
    /// [`LogError`] with the event and offset. Event data never is an error.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, LogError> {
        if bytes.is_empty() {
            return Err(LogError::Empty);
        }
        let mut cursor = Cursor {
            bytes,
            offset: 0,
            event: 0,
        };
        let first = cursor.event_sha1()?;
        let agile = first.kind == EV_NO_ACTION && first.data.starts_with(SPEC_ID_CRYPTO_AGILE);
        let mut log = if agile {
            Log::with(Format::CryptoAgile, spec_id_banks(first.data)?)
        } else {
            let mut log = Log::with(Format::Sha1, vec![(HashAlg::Sha1.id(), 20)]);
            log.push(first);
            log
        };
        let padding = Padding::of(bytes);
        while cursor.offset < bytes.len() {
            if padding.covers_from(cursor.offset) {
                log.padding_from = Some(cursor.offset);
                break;
            }
            cursor.event += 1;
            if cursor.event > EVENTS_MAX {
                return Err(cursor.value("count", "at most 8192 events", cursor.event as u64));
            }
            let event = match log.format {
                Format::Sha1 => cursor.event_sha1()?,
                Format::CryptoAgile => cursor.event_agile(&log.banks)?,
            };
            log.push(event);
        }
        Ok(log)
    }

    fn with(format: Format, banks: Vec<(u16, u16)>) -> Self {
        Self {
            format,
            banks,
            events: Vec::new(),
            startup_locality: None,
            padding_from: None,
        }
    }

    fn push(&mut self, event: Event<'a>) {
        // Exactly the 17-byte event in PCR 0; other EV_NO_ACTION events say nothing about PCR 0.
        if event.kind == EV_NO_ACTION
            && event.pcr == 0
            && let Some((locality, head)) = event.data.split_last()
            && head == STARTUP_LOCALITY
            && self.startup_locality.is_none()
        {
            self.startup_locality = Some(*locality);
        }
        self.events.push(event);
    }

    /// PCR values of one bank after all events; none when the log has no such bank. PCRs that no
    /// event extends are absent from the map and hold their reset value.
    pub fn replay(&self, alg: HashAlg) -> Option<BTreeMap<u8, Vec<u8>>> {
        let banked = self
            .banks
            .iter()
            .any(|&(id, size)| id == alg.id() && usize::from(size) == alg.size());
        if !banked {
            return None;
        }
        let mut pcrs: BTreeMap<u8, Vec<u8>> = BTreeMap::new();
        for event in self.events.iter().filter(|event| event.extends()) {
            let Some(digest) = event.digest(alg) else {
                continue;
            };
            let value = pcrs
                .entry(event.pcr)
                .or_insert_with(|| self.reset_value(alg, event.pcr));
            *value = alg.digest(&[value, digest]);
        }
        Some(pcrs)
    }

    /// Value of a PCR before the first event (PC Client Platform TPM Profile, 4.6.2).
    pub fn reset_value(&self, alg: HashAlg, pcr: u8) -> Vec<u8> {
        let mut value = vec![if (17..=22).contains(&pcr) { 0xff } else { 0 }; alg.size()];
        if pcr == 0
            && let (Some(locality), Some(last)) = (self.startup_locality, value.last_mut())
        {
            *last = locality;
        }
        value
    }
}

/// Where the area begins that some firmware and every CC log fill behind the last event: with 0xff,
/// or with at least 32 bytes of 0x00. Looked for once: events may consist of zeros, too, and a log
/// of such events must not be searched to its end at each of them.
struct Padding {
    zeros: usize,
    ones: usize,
    end: usize,
}

impl Padding {
    fn of(bytes: &[u8]) -> Self {
        let behind = |fill: u8| {
            let last = bytes.iter().rposition(|&b| b != fill);
            last.map_or(0, |at| at + 1)
        };
        Self {
            zeros: behind(0),
            ones: behind(0xff),
            end: bytes.len(),
        }
    }

    fn covers_from(&self, offset: usize) -> bool {
        offset >= self.ones || (offset >= self.zeros && self.end - offset >= 32)
    }
}

/// `TCG_EfiSpecIDEvent`: the banks and their digest sizes.
fn spec_id_banks(data: &[u8]) -> Result<Vec<(u16, u16)>, LogError> {
    let mut cursor = Cursor {
        bytes: data,
        // Signature, platformClass, version minor, major, errata, uintnSize.
        offset: 16 + 4 + 4,
        event: 0,
    };
    let count = cursor.u32("numberOfAlgorithms")?;
    if count == 0 || count > DIGESTS_MAX {
        return Err(cursor.value("numberOfAlgorithms", "1 to 8", u64::from(count)));
    }
    let mut banks = Vec::new();
    for _ in 0..count {
        let alg = cursor.u16("algorithmId")?;
        let size = cursor.u16("digestSize")?;
        let known = HashAlg::from_id(alg).map(HashAlg::size);
        if size == 0 || size > 64 || known.is_some_and(|known| known != usize::from(size)) {
            return Err(cursor.value("digestSize", "the size of the algorithm", u64::from(size)));
        }
        if banks.iter().any(|&(seen, _)| seen == alg) {
            return Err(cursor.value("algorithmId", "each bank once", u64::from(alg)));
        }
        banks.push((alg, size));
    }
    Ok(banks)
}

struct Cursor<'a> {
    bytes: &'a [u8],
    offset: usize,
    event: usize,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, field: &'static str, needed: usize) -> Result<&'a [u8], LogError> {
        let rest = self.bytes.get(self.offset..).unwrap_or_default();
        let Some(taken) = rest.get(..needed) else {
            return Err(LogError::Truncated {
                event: self.event,
                offset: self.offset,
                field,
                needed,
                left: rest.len(),
            });
        };
        self.offset += needed;
        Ok(taken)
    }

    fn u16(&mut self, field: &'static str) -> Result<u16, LogError> {
        let bytes = self.take(field, 2)?;
        Ok(u16::from_le_bytes([bytes[0], bytes[1]]))
    }

    fn u32(&mut self, field: &'static str) -> Result<u32, LogError> {
        let bytes = self.take(field, 4)?;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    fn value(&self, field: &'static str, expected: &'static str, found: u64) -> LogError {
        LogError::Value {
            event: self.event,
            offset: self.offset,
            field,
            expected,
            found,
        }
    }

    /// Register and event type: only an event that is not extended may name no PCR.
    fn head(&mut self) -> Result<(u8, u32), LogError> {
        let pcr = self.u32("pcrIndex")?;
        let kind = self.u32("eventType")?;
        match u8::try_from(pcr) {
            Ok(number) if pcr < PCRS => Ok((number, kind)),
            _ if kind == EV_NO_ACTION => Ok((NO_PCR, kind)),
            _ => Err(self.value("pcrIndex", "below 24", u64::from(pcr))),
        }
    }

    fn data(&mut self) -> Result<&'a [u8], LogError> {
        let size = self.u32("eventSize")?;
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        self.take("event", size)
    }

    /// `TCG_PCR_EVENT`.
    fn event_sha1(&mut self) -> Result<Event<'a>, LogError> {
        let (pcr, kind) = self.head()?;
        let bytes = self.take("digest", 20)?;
        Ok(Event {
            index: self.event,
            pcr,
            kind,
            digests: vec![Digest {
                alg: HashAlg::Sha1.id(),
                bytes,
            }],
            data: self.data()?,
        })
    }

    /// `TCG_PCR_EVENT2`.
    fn event_agile(&mut self, banks: &[(u16, u16)]) -> Result<Event<'a>, LogError> {
        let (pcr, kind) = self.head()?;
        let count = self.u32("digests.count")?;
        if count == 0 || count > DIGESTS_MAX {
            return Err(self.value("digests.count", "1 to 8", u64::from(count)));
        }
        let mut digests: Vec<Digest<'a>> = Vec::with_capacity(banks.len());
        for _ in 0..count {
            let alg = self.u16("digests.hashAlg")?;
            let Some(&(_, size)) = banks.iter().find(|(id, _)| *id == alg) else {
                return Err(self.value("digests.hashAlg", "a bank of the header", u64::from(alg)));
            };
            // Two digests for one bank would let the replay and a reader choose differently.
            if digests.iter().any(|d| d.alg == alg) {
                return Err(self.value("digests.hashAlg", "each bank once", u64::from(alg)));
            }
            let bytes = self.take("digests.digest", usize::from(size))?;
            digests.push(Digest { alg, bytes });
        }
        Ok(Event {
            index: self.event,
            pcr,
            kind,
            digests,
            data: self.data()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Legacy layout: PCR, type, SHA-1 digest, size, data.
    fn event(digest: u8, data: &[u8]) -> Vec<u8> {
        let mut out = vec![0; 8];
        out.extend_from_slice(&[digest; 20]);
        out.extend_from_slice(&(data.len() as u32).to_le_bytes());
        out.extend_from_slice(data);
        out
    }

    #[test]
    fn what_follows_the_last_event_is_padding_only_in_its_two_forms() {
        let log = [event(1, b"x"), event(2, &[0; 4])].concat();
        for (padding, events) in [
            (vec![], Some(2)),
            (vec![0xff; 1], Some(2)),
            (vec![0xff; 100], Some(2)),
            (vec![0; 32], Some(2)),
            (vec![0; 31], None),
            ([vec![0; 40], vec![1]].concat(), None),
            ([vec![0xff; 40], vec![0]].concat(), None),
        ] {
            let bytes = [log.clone(), padding.clone()].concat();
            let parsed = Log::parse(&bytes);
            assert_eq!(
                parsed.as_ref().ok().map(|log| log.events.len()),
                events,
                "{padding:?}"
            );
            if let Ok(parsed) = parsed {
                let from = (!padding.is_empty()).then_some(log.len());
                assert_eq!(parsed.padding_from, from, "{padding:?}");
            }
        }
    }

    #[test]
    fn events_of_zeros_are_events_as_long_as_something_follows() {
        let bytes = [vec![0; 32 * 3], event(7, b"")].concat();
        let log = Log::parse(&bytes).expect("four events");
        assert_eq!((log.events.len(), log.padding_from), (4, None));
    }
}

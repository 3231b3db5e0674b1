//! The firmware's event log: parsing and replay.
//!
//! A log is a claim. After [`Log::replay`] equals quoted PCR values, what counts is the sequence of
//! (PCR, digest); the event type is covered by no digest and may be a lie, and event data counts
//! only where it hashes to its digest (go-attestation's event log disclosure). Meaning is given in
//! `events`, decisions are made in `boot_policy`.
//!
//! Formats: TCG PC Client Platform Firmware Profile 1.06 section 10 (crypto-agile), the SHA-1 format
//! of the TCG EFI Protocol 1.2 with or without Spec ID, and logs of confidential machines (UEFI 2.10
//! section 38), whose register numbers are measurement registers.

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
/// Heads of the SHA-1 format's Spec ID, of which there were two (TCG EFI Platform 1.2, PFP 1.06).
const SPEC_ID_SHA1: [&[u8; 16]; 2] = [b"Spec ID Event00\0", b"Spec ID Event02\0"];
pub(super) const STARTUP_LOCALITY: &[u8; 16] = b"StartupLocality\0";
/// Localities that a TPM can be started from: 0, 3, and 4 for the H-CRTM (PFP 10.4.5.3).
pub(super) const LOCALITIES: [u8; 3] = [0, 3, 4];

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
    /// The ACPI table that says where the log of a confidential machine is, in place of the log.
    #[error("{0}, not the log that it points to")]
    Table(CcelTable),
}

impl LogError {
    /// Code of the refusal (docs/PROTOCOL.md section 3, row 10).
    pub fn code(&self) -> &'static str {
        match self {
            Self::Empty => "eventlog.empty",
            Self::Truncated { .. } | Self::Value { .. } | Self::Table(_) => "eventlog.malformed",
        }
    }

    /// What belongs there.
    pub fn expected(&self) -> String {
        match self {
            Self::Empty => "a TCG event log".into(),
            Self::Truncated {
                event,
                offset,
                field,
                needed,
                ..
            } => format!("{needed} bytes for {field} of event {event} at offset {offset}"),
            Self::Value {
                event,
                offset,
                field,
                expected,
                ..
            } => format!("{field} of event {event}, before offset {offset}: {expected}"),
            Self::Table(_) => {
                "the log that the table points to (/sys/firmware/acpi/tables/data/CCEL)".into()
            }
        }
    }

    /// What is there.
    pub fn found(&self) -> String {
        match self {
            Self::Empty => "0 bytes".into(),
            Self::Truncated { left, .. } => format!("{left} bytes left"),
            Self::Value { found, .. } => format!("{found} ({found:#x})"),
            Self::Table(table) => table.to_string(),
        }
    }
}

/// ACPI table `CCEL` (ACPI 6.5 section 5.2.34): where the log of a confidential machine is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CcelTable {
    /// 1 AMD SEV, 2 Intel TDX.
    pub cc_type: u8,
    /// Subtype, vendor's own.
    pub cc_subtype: u8,
    /// Least length of the log area, bytes (LAML).
    pub area_len: u64,
    /// Physical address of the log area (LASA).
    pub area_at: u64,
    /// Whether the octets of the table add up to zero, as they must.
    pub sums_up: bool,
}

impl CcelTable {
    /// Length of the table, bytes.
    const LEN: usize = 56;

    /// The table, if these octets are one.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let table: &[u8; Self::LEN] = bytes.get(..Self::LEN)?.try_into().ok()?;
        let len = u32::from_le_bytes([table[4], table[5], table[6], table[7]]);
        let of_its_length = usize::try_from(len) == Ok(Self::LEN);
        if !table.starts_with(b"CCEL") || !of_its_length {
            return None;
        }
        let number = |at: usize| {
            let octets = table.iter().skip(at).take(8).rev();
            octets.fold(0u64, |number, &octet| (number << 8) | u64::from(octet))
        };
        Some(Self {
            cc_type: table[36],
            cc_subtype: table[37],
            area_len: number(40),
            area_at: number(48),
            sums_up: table.iter().fold(0u8, |sum, &b| sum.wrapping_add(b)) == 0,
        })
    }
}

impl std::fmt::Display for CcelTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let machine = match self.cc_type {
            1 => "AMD SEV",
            2 => "Intel TDX",
            _ => "unknown type",
        };
        write!(
            f,
            "ACPI table CCEL of a confidential machine ({machine}, {}): {} bytes at {:#x}",
            self.cc_type, self.area_len, self.area_at
        )
    }
}

/// Which layout the log has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// SHA-1 digests only.
    Sha1,
    /// A digest per active bank.
    CryptoAgile,
    /// The crypto-agile layout, with measurement registers of a confidential machine in place of
    /// PCRs: 0 is MRTD, 1 to 4 are the RTMRs (UEFI 2.10 section 38.4.1).
    Ccel,
}

/// `TCG_EfiSpecIDEvent`: what the log's header says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpecId<'a> {
    /// Head without its NUL: `Spec ID Event03`.
    pub signature: &'a [u8],
    /// 0 client, 1 server.
    pub platform_class: u32,
    /// Major and minor version of the specification.
    pub version: (u8, u8),
    /// Errata.
    pub errata: u8,
    /// 1 for 32-bit UINTN, 2 for 64-bit.
    pub uintn_size: u8,
    /// The vendor's own octets; none when their length does not fit the event.
    pub vendor_info: Option<&'a [u8]>,
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

    /// Locality that the event says the TPM was started from. Exactly the 17-byte event in PCR 0;
    /// other EV_NO_ACTION events say nothing about PCR 0.
    pub fn startup_locality(&self) -> Option<u8> {
        let (locality, head) = self.data.split_last()?;
        let told = self.kind == EV_NO_ACTION && self.pcr == 0 && head == STARTUP_LOCALITY;
        told.then_some(*locality)
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
    /// Spec ID of the header; none in a SHA-1 log without it.
    pub spec_id: Option<SpecId<'a>>,
    /// Every event in order; without the header of the crypto-agile layout, which is none.
    pub events: Vec<Event<'a>>,
    /// Locality of TPM2_Startup, when the log says (0, 3 or 4).
    pub startup_locality: Option<u8>,
    /// Offset at which only padding follows, if any.
    pub padding_from: Option<usize>,
}

/// A log as far as it could be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading<'a> {
    /// What came before the damage; none when not even the header could be read.
    pub log: Option<Log<'a>>,
    /// The damage. A log with damage proves nothing: the daemon refuses it.
    pub error: Option<LogError>,
}

impl<'a> Log<'a> {
    /// Parses a whole log.
    ///
    /// # Errors
    /// [`LogError`] with the event and offset. Event data never is an error.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, LogError> {
        match Self::read(bytes) {
            Reading {
                log: Some(log),
                error: None,
            } => Ok(log),
            Reading { error, .. } => Err(error.unwrap_or(LogError::Empty)),
        }
    }

    /// Reads up to the end or the first damage.
    pub fn read(bytes: &'a [u8]) -> Reading<'a> {
        let mut cursor = Cursor {
            bytes,
            offset: 0,
            event: 0,
        };
        let mut reading = Self::begin(&mut cursor);
        if let Some(log) = &mut reading.log {
            if reading.error.is_none() {
                reading.error = log.go_on(&mut cursor).err();
            }
            log.format = log.told_format();
        }
        reading
    }

    /// The first event, which says what the others look like.
    fn begin(cursor: &mut Cursor<'a>) -> Reading<'a> {
        let unread = |error| Reading {
            log: None,
            error: Some(error),
        };
        if cursor.bytes.is_empty() {
            return unread(LogError::Empty);
        }
        if let Some(table) = CcelTable::parse(cursor.bytes) {
            return unread(LogError::Table(table));
        }
        let first = match cursor.event_sha1() {
            Ok(first) => first,
            Err(error) => return unread(error),
        };
        if first.kind != EV_NO_ACTION || !first.data.starts_with(SPEC_ID_CRYPTO_AGILE) {
            let mut log = Log::with(Format::Sha1, vec![(HashAlg::Sha1.id(), 20)]);
            log.spec_id = spec_id_sha1(&first);
            log.push(first);
            return Reading {
                log: Some(log),
                error: None,
            };
        }
        // A TPM's log has its header in PCR 0; that of a confidential machine in register 1.
        let format = match first.pcr {
            0 => Format::CryptoAgile,
            _ => Format::Ccel,
        };
        let (spec_id, banks, error) = match spec_id_agile(first.data) {
            Ok((spec_id, banks)) => (Some(spec_id), banks, None),
            Err(error) => (None, Vec::new(), Some(error)),
        };
        let mut log = Log::with(format, banks);
        log.spec_id = spec_id;
        Reading {
            log: Some(log),
            error,
        }
    }

    fn go_on(&mut self, cursor: &mut Cursor<'a>) -> Result<(), LogError> {
        let padding = Padding::of(cursor.bytes);
        while cursor.offset < cursor.bytes.len() {
            if padding.covers_from(cursor.offset) {
                self.padding_from = Some(cursor.offset);
                break;
            }
            cursor.event += 1;
            if cursor.event > EVENTS_MAX {
                return Err(cursor.value("count", "at most 8192 events", cursor.event as u64));
            }
            let event = match self.format {
                Format::Sha1 => cursor.event_sha1()?,
                Format::CryptoAgile | Format::Ccel => cursor.event_agile(&self.banks)?,
            };
            self.push(event);
        }
        Ok(())
    }

    fn with(format: Format, banks: Vec<(u16, u16)>) -> Self {
        Self {
            format,
            banks,
            spec_id: None,
            events: Vec::new(),
            startup_locality: None,
            padding_from: None,
        }
    }

    /// Some firmware of confidential machines has its header in register 0 as well. There is no
    /// TPM log whose boot leaves PCR 0 and PCR 7 alone, and there are just four RTMRs.
    fn told_format(&self) -> Format {
        let old_banks = [HashAlg::Sha1.id(), HashAlg::Sha256.id()];
        let mut extended = self
            .events
            .iter()
            .filter(|event| event.extends())
            .peekable();
        let of_rtmrs = self.format == Format::CryptoAgile
            && extended.peek().is_some()
            && extended.all(|event| (1..=4).contains(&event.pcr))
            && !self.banks.iter().any(|(id, _)| old_banks.contains(id));
        if of_rtmrs { Format::Ccel } else { self.format }
    }

    /// Events with the header, as other tools count them.
    pub fn count(&self) -> usize {
        self.events.len() + usize::from(self.format != Format::Sha1)
    }

    fn push(&mut self, event: Event<'a>) {
        // The first one counts. One that comes late still tells of TPM2_Startup, which was earlier
        // than every extend; that it is late is told by `Log::notices`.
        if let Some(locality) = event.startup_locality()
            && LOCALITIES.contains(&locality)
            && self.startup_locality.is_none()
        {
            self.startup_locality = Some(locality);
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
            // What extends PCR 17 to 22 runs after a dynamic launch, which set them to zero.
            let value = pcrs.entry(event.pcr).or_insert_with(|| match event.pcr {
                17..=22 => vec![0; alg.size()],
                pcr => self.reset_value(alg, pcr),
            });
            *value = alg.digest(&[value, digest]);
        }
        Some(pcrs)
    }

    /// Value of a PCR that no event extends (PC Client Platform TPM Profile, 4.6.2): what it has after
    /// TPM2_Startup.
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

/// `TCG_EfiSpecIDEvent`, with the banks and their digest sizes.
fn spec_id_agile(data: &[u8]) -> Result<(SpecId<'_>, Vec<(u16, u16)>), LogError> {
    let mut cursor = Cursor {
        bytes: data,
        offset: 16,
        event: 0,
    };
    let platform_class = cursor.u32("platformClass")?;
    let fields = cursor.take("specVersion", 4)?;
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
    let spec_id = SpecId {
        signature: &data[..15],
        platform_class,
        version: (fields[1], fields[0]),
        errata: fields[2],
        uintn_size: fields[3],
        vendor_info: vendor_info(data.get(cursor.offset..).unwrap_or_default()),
    };
    Ok((spec_id, banks))
}

/// `TCG_EfiSpecIdEvent` of the SHA-1 format: the same fields without banks. Nothing depends on it.
fn spec_id_sha1<'a>(event: &Event<'a>) -> Option<SpecId<'a>> {
    let (head, rest) = event.data.split_at_checked(16)?;
    let (class, rest) = rest.split_at_checked(4)?;
    let (fields, rest) = rest.split_at_checked(4)?;
    let is_header = event.kind == EV_NO_ACTION && SPEC_ID_SHA1.iter().any(|known| head == *known);
    is_header.then_some(SpecId {
        signature: &head[..15],
        platform_class: u32::from_le_bytes(class.try_into().ok()?),
        version: (fields[1], fields[0]),
        errata: fields[2],
        uintn_size: fields[3],
        vendor_info: vendor_info(rest),
    })
}

/// One octet of length, then the octets.
fn vendor_info(bytes: &[u8]) -> Option<&[u8]> {
    let (&len, info) = bytes.split_first()?;
    (info.len() == usize::from(len)).then_some(info)
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

//! Event logs: one object for the file.
//!
//! Reading and replay are those of the appraisal (`gateway-core`), so that what is shown is what the
//! daemon makes of the log; this file only writes it down. What a digest proves and what the log
//! merely says are told apart in docs/INSPECT.md.

use std::collections::BTreeMap;

use attest_wire::tpm::HashAlg;
use gateway_core::appraisal::boot_events::{BootEvents, Image, ImageKind};
use gateway_core::appraisal::eventlog::{Event, Format, Log, LogError, NO_PCR};
use gateway_core::appraisal::events::{Marker, type_name};
use gateway_core::appraisal::notices::{algorithm_name, notices};
use gateway_core::appraisal::variables::{Proof, Signature, SignatureKind, Variable, guid_text};
use gateway_core::appraisal::x509::Cert;
use serde::Serialize;

use super::device_path;

/// Largest file read; log areas of firmware are 64 to 256 KiB.
pub const FILE_LEN_MAX: u64 = 16 << 20;
/// Octets of event data shown in the list of events.
const DATA_SHOWN_MAX: usize = 256;

/// What was seen.
#[derive(Debug)]
pub struct Seen {
    /// The JSON object, without line end.
    pub line: String,
    /// The damage in words, if any.
    pub damage: Option<String>,
}

/// Field names as in docs/INSPECT.md.
#[derive(Serialize)]
struct Fields {
    format: Option<&'static str>,
    events: usize,
    startup_locality: Option<u8>,
    pcrs: BTreeMap<&'static str, BTreeMap<String, String>>,
    warnings: Vec<Warning>,
    error: Option<Fault>,
    banks: Vec<Bank>,
    spec_id: Option<SpecId>,
    length: usize,
    padding_from: Option<usize>,
    table: Option<Table>,
    no_action: Vec<NoActionField>,
    #[serde(flatten)]
    boot: Boot,
    #[serde(skip_serializing_if = "Option::is_none")]
    event_list: Option<Vec<EventField>>,
}

/// What the log says of the boot, in one bank.
#[derive(Default, Serialize)]
struct Boot {
    bank: Option<&'static str>,
    secure_boot: Option<bool>,
    debug_mode: bool,
    dma_protection_disabled: bool,
    databases: Vec<DatabaseField>,
    boot_order: Option<Vec<String>>,
    boot_options: Vec<BootOptionField>,
    authorities: Vec<AuthorityField>,
    applications: Vec<ImageField>,
    drivers: Vec<ImageField>,
    separators: Vec<SeparatorField>,
    boot_attempts: Vec<AttemptField>,
    exit_boot_services: Option<&'static str>,
    actions: Vec<ActionField>,
    loaded: Vec<LoadedField>,
}

#[derive(Serialize)]
struct Fault {
    code: &'static str,
    expected: String,
    found: String,
}

#[derive(Serialize)]
struct Warning {
    code: &'static str,
    event: Option<usize>,
    expected: String,
    found: String,
}

#[derive(Serialize)]
struct Bank {
    alg: String,
    id: u16,
    size: u16,
    replayed: bool,
}

#[derive(Serialize)]
struct SpecId {
    signature: String,
    platform_class: u32,
    version: String,
    errata: u8,
    uintn_bits: Option<u8>,
    vendor_info: Option<String>,
}

#[derive(Serialize)]
struct Table {
    signature: &'static str,
    cc_type: u8,
    cc_subtype: u8,
    log_area_bytes: u64,
    log_area_address: String,
    checksum_ok: bool,
}

#[derive(Serialize)]
struct DatabaseField {
    event: usize,
    name: String,
    guid: String,
    proof: &'static str,
    entries: Option<Vec<EntryField>>,
}

#[derive(Serialize)]
struct EntryField {
    #[serde(rename = "type")]
    kind: String,
    owner: String,
    sha256: String,
    revoked_from: Option<String>,
    subject: Option<String>,
}

/// An event that extends nothing: what the firmware lets one know.
#[derive(Serialize)]
struct NoActionField {
    event: usize,
    pcr: Option<u8>,
    signature: String,
    vendor_id: Option<u32>,
    reference_manifest: Option<String>,
}

#[derive(Serialize)]
struct BootOptionField {
    event: usize,
    name: String,
    description: Option<String>,
    path: Option<String>,
    proof: &'static str,
}

#[derive(Serialize)]
struct AuthorityField {
    event: usize,
    name: String,
    guid: String,
    proof: &'static str,
    sha256: Option<String>,
    subject: Option<String>,
}

#[derive(Serialize)]
struct ImageField {
    event: usize,
    pcr: u8,
    #[serde(rename = "type")]
    kind: &'static str,
    digest: String,
    path: Option<String>,
}

#[derive(Serialize)]
struct SeparatorField {
    event: usize,
    pcr: u8,
    error: bool,
}

#[derive(Serialize)]
struct AttemptField {
    event: usize,
    images: Vec<usize>,
    returned: bool,
}

#[derive(Serialize)]
struct ActionField {
    event: usize,
    pcr: u8,
    action: &'static str,
}

#[derive(Serialize)]
struct LoadedField {
    event: usize,
    pcr: u8,
    #[serde(rename = "type")]
    kind: &'static str,
    digest: String,
    text: Option<String>,
    proven: bool,
}

#[derive(Serialize)]
struct EventField {
    event: usize,
    pcr: Option<u8>,
    #[serde(rename = "type")]
    kind: &'static str,
    type_id: String,
    extends: bool,
    digests: BTreeMap<String, String>,
    data_len: usize,
    data: String,
    text: Option<String>,
}

/// Reads a log; with `list` each event is in it, too.
pub fn inspect(bytes: &[u8], list: bool) -> Seen {
    let reading = Log::read(bytes);
    let log = reading.log.as_ref();
    let table = match &reading.error {
        Some(LogError::Table(table)) => Some(Table {
            signature: "CCEL",
            cc_type: table.cc_type,
            cc_subtype: table.cc_subtype,
            log_area_bytes: table.area_len,
            log_area_address: format!("{:#x}", table.area_at),
            checksum_ok: table.sums_up,
        }),
        _ => None,
    };
    let fields = Fields {
        format: log
            .map(|log| format_name(log.format))
            .or(table.as_ref().map(|_| "ccel")),
        events: log.map_or(0, Log::count),
        startup_locality: log.and_then(|log| log.startup_locality),
        pcrs: log.map(replayed).unwrap_or_default(),
        warnings: log.map(warnings).unwrap_or_default(),
        error: reading.error.as_ref().map(|error| Fault {
            code: error.code(),
            expected: error.expected(),
            found: error.found(),
        }),
        banks: log.map(banks).unwrap_or_default(),
        spec_id: log.and_then(spec_id),
        length: bytes.len(),
        padding_from: log.and_then(|log| log.padding_from),
        table,
        no_action: log.map(no_action).unwrap_or_default(),
        boot: log
            .and_then(BootEvents::read)
            .map(|boot| told(&boot))
            .unwrap_or_default(),
        event_list: log
            .filter(|_| list)
            .map(|log| log.events.iter().map(event).collect()),
    };
    // Texts and numbers under text keys: it cannot fail, and a line is owed for every file.
    let line = serde_json::to_string(&fields)
        .unwrap_or_else(|error| format!("{{\"format\":null,\"error\":{{\"code\":\"inspect.json\",\"expected\":null,\"found\":\"{error}\"}}}}"));
    let damage = reading.error.map(|error| {
        format!(
            "{}: expected {}, found {}",
            error.code(),
            error.expected(),
            error.found()
        )
    });
    Seen { line, damage }
}

fn format_name(format: Format) -> &'static str {
    match format {
        Format::Sha1 => "sha1",
        Format::CryptoAgile => "crypto-agile",
        Format::Ccel => "ccel",
    }
}

fn replayed(log: &Log<'_>) -> BTreeMap<&'static str, BTreeMap<String, String>> {
    let replay = |alg: HashAlg| {
        let values = log.replay(alg)?;
        let values = values.iter();
        let values = values.map(|(pcr, value)| (pcr.to_string(), hex::encode(value)));
        Some((alg.name(), values.collect()))
    };
    HashAlg::ALL.into_iter().filter_map(replay).collect()
}

fn warnings(log: &Log<'_>) -> Vec<Warning> {
    let warning = |notice: gateway_core::appraisal::notices::Notice| Warning {
        code: notice.code,
        event: notice.event,
        expected: notice.expected,
        found: notice.found,
    };
    notices(log).into_iter().map(warning).collect()
}

fn banks(log: &Log<'_>) -> Vec<Bank> {
    let bank = |&(id, size): &(u16, u16)| Bank {
        alg: algorithm_name(id),
        id,
        size,
        replayed: HashAlg::from_id(id).is_some(),
    };
    log.banks.iter().map(bank).collect()
}

fn spec_id(log: &Log<'_>) -> Option<SpecId> {
    let spec = log.spec_id.as_ref()?;
    Some(SpecId {
        signature: String::from_utf8_lossy(spec.signature).into_owned(),
        platform_class: spec.platform_class,
        version: format!("{}.{}", spec.version.0, spec.version.1),
        errata: spec.errata,
        uintn_bits: match spec.uintn_size {
            1 => Some(32),
            2 => Some(64),
            _ => None,
        },
        vendor_info: spec.vendor_info.map(hex::encode),
    })
}

fn no_action(log: &Log<'_>) -> Vec<NoActionField> {
    log.events
        .iter()
        .filter(|event| !event.extends())
        .map(|event| {
            let head = &event.data[..event.data.len().min(16)];
            let (vendor_id, reference_manifest) = reference_manifest(event.data).unzip();
            NoActionField {
                event: event.index,
                pcr: (event.pcr != NO_PCR).then_some(event.pcr),
                signature: super::text_or_hex(head),
                vendor_id,
                reference_manifest,
            }
        })
        .collect()
}

/// `TCG_Sp800_155_PlatformId_Event` and its second and third form: whose manifest has the reference
/// values, by vendor (IANA number) and GUID (PFP section 10.4.5.2).
fn reference_manifest(data: &[u8]) -> Option<(u32, String)> {
    let rest = data.strip_prefix(b"SP800-155 Event")?;
    let (_, rest) = rest.split_first()?;
    let (vendor, rest) = rest.split_at_checked(4)?;
    let guid = rest.get(..16)?.try_into().ok()?;
    Some((
        u32::from_le_bytes(vendor.try_into().ok()?),
        guid_text(&guid),
    ))
}

fn told(boot: &BootEvents<'_>) -> Boot {
    let has = |wanted: Marker| boot.markers.iter().any(|marked| marked.marker == wanted);
    let of_kind = |kind: ImageKind| boot.images.iter().filter(move |image| image.kind == kind);
    Boot {
        bank: Some(boot.bank.name()),
        secure_boot: boot.secure_boot,
        debug_mode: has(Marker::Debug),
        dma_protection_disabled: has(Marker::DmaOff),
        databases: boot
            .databases
            .iter()
            .map(|database| DatabaseField {
                event: database.event,
                name: database.variable.name.clone(),
                guid: guid_text(&database.variable.guid),
                proof: proof_name(database.proof),
                entries: database
                    .entries
                    .as_ref()
                    .map(|entries| entries.iter().map(entry).collect()),
            })
            .collect(),
        boot_order: boot
            .boot_variables
            .iter()
            .find_map(|variable| variable.order())
            .map(|order| {
                order
                    .iter()
                    .map(|number| format!("Boot{number:04X}"))
                    .collect()
            }),
        boot_options: boot
            .boot_variables
            .iter()
            .filter(|variable| variable.variable.name != "BootOrder")
            .map(|variable| {
                let option = variable.option();
                BootOptionField {
                    event: variable.event,
                    name: variable.variable.name.clone(),
                    description: option.as_ref().map(|(text, _)| text.clone()),
                    path: option.and_then(|(_, path)| device_path::text(path)),
                    proof: proof_name(variable.proof),
                }
            })
            .collect(),
        authorities: boot
            .authorities
            .iter()
            .map(|authority| authority_field(authority.event, &authority.variable, authority.proof))
            .collect(),
        applications: of_kind(ImageKind::Application).map(image).collect(),
        drivers: of_kind(ImageKind::Driver).map(image).collect(),
        separators: boot
            .markers
            .iter()
            .filter_map(|marked| {
                let error = match marked.marker {
                    Marker::Separator => false,
                    Marker::SeparatorError => true,
                    _ => return None,
                };
                Some(SeparatorField {
                    event: marked.event,
                    pcr: marked.pcr,
                    error,
                })
            })
            .collect(),
        boot_attempts: boot
            .attempts
            .iter()
            .map(|attempt| AttemptField {
                event: attempt.event,
                images: attempt.images.clone(),
                returned: attempt.returned,
            })
            .collect(),
        exit_boot_services: if has(Marker::ExitBootServicesDone) {
            Some("returned")
        } else if has(Marker::ExitBootServicesFailed) {
            Some("failed")
        } else {
            has(Marker::ExitBootServicesCalled).then_some("called")
        },
        actions: boot
            .markers
            .iter()
            .filter_map(|marked| {
                Some(ActionField {
                    event: marked.event,
                    pcr: marked.pcr,
                    action: action_name(marked.marker)?,
                })
            })
            .collect(),
        loaded: boot
            .loaded
            .iter()
            .map(|loaded| LoadedField {
                event: loaded.event,
                pcr: loaded.pcr,
                kind: type_name(loaded.type_claimed),
                digest: hex::encode(loaded.digest),
                text: loaded.text.clone(),
                proven: loaded.proven,
            })
            .collect(),
    }
}

fn action_name(marker: Marker) -> Option<&'static str> {
    Some(match marker {
        Marker::Separator | Marker::SeparatorError => return None,
        Marker::BootCalled => "boot_option_called",
        Marker::BootReturned => "boot_option_returned",
        Marker::BootAction => "boot_manager",
        Marker::ExitBootServicesCalled => "exit_boot_services_called",
        Marker::ExitBootServicesDone => "exit_boot_services_returned",
        Marker::ExitBootServicesFailed => "exit_boot_services_failed",
        Marker::Debug => "debug_mode",
        Marker::DmaOff => "dma_protection_disabled",
    })
}

fn proof_name(proof: Proof) -> &'static str {
    match proof {
        Proof::Whole => "whole",
        Proof::Padded => "padded",
        Proof::Content => "content",
    }
}

fn entry(signature: &Signature<'_>) -> EntryField {
    let (kind, subject) = match signature.kind {
        SignatureKind::X509 => ("x509".into(), subject(signature.data)),
        SignatureKind::Image(alg) => (alg.name().to_owned(), None),
        SignatureKind::SignedPart(alg) => (format!("x509_{}", alg.name()), None),
        SignatureKind::Other(guid) => (guid_text(&guid), None),
    };
    EntryField {
        kind,
        owner: guid_text(&signature.owner),
        sha256: hex::encode(signature.digest()),
        revoked_from: signature.revoked_from().and_then(efi_time),
        subject,
    }
}

/// `EFI_TIME` (UEFI 2.10 section 8.3) as text; its time zone is UTC where a date of revocation is meant.
fn efi_time(octets: &[u8]) -> Option<String> {
    let [y0, y1, month, day, hour, minute, second, ..] = *octets else {
        return None;
    };
    let year = u16::from_le_bytes([y0, y1]);
    Some(format!(
        "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z"
    ))
}

fn authority_field(event: usize, variable: &Variable<'_>, proof: Proof) -> AuthorityField {
    let certificate = variable.certificate();
    AuthorityField {
        event,
        name: variable.name.clone(),
        guid: guid_text(&variable.guid),
        proof: proof_name(proof),
        sha256: certificate.map(|der| hex::encode(HashAlg::Sha256.digest(&[der]))),
        subject: certificate.and_then(subject),
    }
}

fn subject(der: &[u8]) -> Option<String> {
    Cert::parse(der)
        .ok()
        .map(|certificate| certificate.subject_text())
}

fn image(image: &Image<'_>) -> ImageField {
    ImageField {
        event: image.event,
        pcr: image.pcr,
        kind: type_name(image.type_claimed),
        digest: hex::encode(image.digest),
        path: device_path::text(image.device_path),
    }
}

fn event(event: &Event<'_>) -> EventField {
    let shown = &event.data[..event.data.len().min(DATA_SHOWN_MAX)];
    let digest = |digest: &gateway_core::appraisal::eventlog::Digest<'_>| {
        (algorithm_name(digest.alg), hex::encode(digest.bytes))
    };
    EventField {
        event: event.index,
        pcr: (event.pcr != NO_PCR).then_some(event.pcr),
        kind: type_name(event.kind),
        type_id: format!("{:#010x}", event.kind),
        extends: event.extends(),
        digests: event.digests.iter().map(digest).collect(),
        data_len: event.data.len(),
        data: hex::encode(shown),
        text: super::printable(event.data),
    }
}

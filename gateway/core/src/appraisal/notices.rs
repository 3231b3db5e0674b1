//! What is odd in a log that can be read: for `inspect`. None of it decides anything: a log whose
//! digests replay to the quoted values is true, whatever its data look like, and one whose digests
//! do not is refused, however neat they look.

use attest_wire::tpm::HashAlg;

use super::boot_events::BootEvents;
use super::eventlog::{EV_NO_ACTION, Event, LOCALITIES, Log, STARTUP_LOCALITY};
use super::events::{
    EV_EFI_ACTION, EV_EFI_VARIABLE_AUTHORITY, EV_EFI_VARIABLE_DRIVER_CONFIG, EV_SEPARATOR,
    type_name,
};
use super::variables::Variable;

/// Notices of one log; above it only their number is told.
pub const NOTICES_MAX: usize = 64;

/// `EV_S_CRTM_VERSION`.
const EV_S_CRTM_VERSION: u32 = 0x0000_0008;
/// `EV_EFI_VARIABLE_BOOT`.
const EV_EFI_VARIABLE_BOOT: u32 = 0x8000_0002;
/// `EV_EFI_VARIABLE_BOOT2`.
const EV_EFI_VARIABLE_BOOT2: u32 = 0x8000_000c;

/// Something odd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// Stable code.
    pub code: &'static str,
    /// Number of the event, when it is about one.
    pub event: Option<usize>,
    /// What belongs there.
    pub expected: String,
    /// What is there.
    pub found: String,
}

/// Looks for what is odd.
pub fn notices(log: &Log<'_>) -> Vec<Notice> {
    let mut notices = Notices(Vec::new());
    notices.header(log);
    notices.locality(log);
    notices.digests(log);
    notices.data(log);
    if let Some(boot) = BootEvents::read(log) {
        for pcr in boot.separators_doubled() {
            notices.add(
                "eventlog.separator_doubled",
                None,
                format!("one separator in register {pcr}"),
                "another one behind it",
            );
        }
        if boot.secure_boot_by_name {
            notices.add(
                "eventlog.name_unproven",
                None,
                "a digest over the whole variable",
                "one over the content of SecureBoot alone: its name is the log's word",
            );
        }
    }
    notices.bounded()
}

struct Notices(Vec<Notice>);

impl Notices {
    fn add(
        &mut self,
        code: &'static str,
        event: Option<usize>,
        expected: impl Into<String>,
        found: impl Into<String>,
    ) {
        self.0.push(Notice {
            code,
            event,
            expected: expected.into(),
            found: found.into(),
        });
    }

    fn bounded(mut self) -> Vec<Notice> {
        let more = self.0.len().saturating_sub(NOTICES_MAX);
        self.0.truncate(NOTICES_MAX);
        if more > 0 {
            let most = format!("at most {NOTICES_MAX} oddities");
            self.add("eventlog.more", None, most, format!("{more} more"));
        }
        self.0
    }

    fn header(&mut self, log: &Log<'_>) {
        let vendor_info_fits = log.spec_id.is_none_or(|spec| spec.vendor_info.is_some());
        if !vendor_info_fits {
            self.add(
                "eventlog.vendor_info",
                Some(0),
                "vendorInfo that ends with its event",
                "another length",
            );
        }
        for (id, size) in &log.banks {
            if HashAlg::from_id(*id).is_none() {
                let name = algorithm_name(*id);
                self.add(
                    "eventlog.bank_unknown",
                    None,
                    "sha1, sha256, sha384 or sha512",
                    format!("{name} with {size} bytes: read, not computed"),
                );
            }
        }
    }

    /// PFP 10.4.5.3: one event of 17 bytes in PCR 0, before what extends PCR 0.
    fn locality(&mut self, log: &Log<'_>) {
        let mut seen = None;
        let mut extended = false;
        for event in &log.events {
            extended |= event.extends() && event.pcr == 0;
            if event.kind != EV_NO_ACTION || !event.data.starts_with(STARTUP_LOCALITY) {
                continue;
            }
            let expected =
                "one StartupLocality of 0, 3 or 4, 17 bytes, in PCR 0, before what extends it";
            let mut odd = |found: String| {
                self.add("eventlog.locality", Some(event.index), expected, found);
            };
            match event.startup_locality() {
                None => odd(format!(
                    "{} bytes in PCR {}: not counted",
                    event.data.len(),
                    event.pcr
                )),
                Some(locality) if !LOCALITIES.contains(&locality) => {
                    odd(format!("locality {locality}: not counted"));
                }
                Some(locality) => {
                    if let Some(first) = seen {
                        odd(format!("locality {locality} after {first}: not counted"));
                    } else if extended {
                        odd(format!("locality {locality} behind an extend: counted"));
                    }
                    seen = seen.or(Some(locality));
                }
            }
        }
    }

    fn digests(&mut self, log: &Log<'_>) {
        for event in &log.events {
            if event.kind == EV_NO_ACTION {
                let zero = event
                    .digests
                    .iter()
                    .all(|d| d.bytes.iter().all(|&b| b == 0));
                if !zero {
                    self.add(
                        "eventlog.no_action_digest",
                        Some(event.index),
                        "EV_NO_ACTION with digests of zeros",
                        "another digest; it is not extended all the same",
                    );
                }
                continue;
            }
            for (id, _) in &log.banks {
                if !event.digests.iter().any(|digest| digest.alg == *id) {
                    self.add(
                        "eventlog.digest_missing",
                        Some(event.index),
                        format!("a digest of {}", algorithm_name(*id)),
                        "none: that bank cannot be replayed",
                    );
                }
            }
        }
    }

    /// Data that should be what was hashed, and variables whose lengths do not fit.
    fn data(&mut self, log: &Log<'_>) {
        let Some(bank) = BootEvents::bank_of(log) else {
            return;
        };
        for event in log.events.iter().filter(|event| event.extends()) {
            let what = format!("{} in register {}", type_name(event.kind), event.pcr);
            if is_variable(event) && Variable::parse(event.data).is_none() {
                let shown = Variable::covered(event, bank).is_some();
                if !shown {
                    self.add(
                        "eventlog.variable",
                        Some(event.index),
                        "a variable whose lengths fit the event",
                        format!("{what} of {} bytes", event.data.len()),
                    );
                }
                continue;
            }
            if !is_hashed(event, bank) {
                self.add(
                    "eventlog.data",
                    Some(event.index),
                    "data that hash to the digest",
                    format!("{what}: its data say nothing"),
                );
            }
        }
    }
}

fn is_variable(event: &Event<'_>) -> bool {
    matches!(
        event.kind,
        EV_EFI_VARIABLE_DRIVER_CONFIG
            | EV_EFI_VARIABLE_BOOT
            | EV_EFI_VARIABLE_BOOT2
            | EV_EFI_VARIABLE_AUTHORITY
    )
}

/// Whether the data of an event that should be hashed as they stand are. An error separator has the
/// digest of 1, whatever error its data name (PFP 10.4.1).
fn is_hashed(event: &Event<'_>, bank: HashAlg) -> bool {
    if is_variable(event) {
        return Variable::covered(event, bank).is_some();
    }
    match event.kind {
        EV_SEPARATOR | EV_EFI_ACTION | EV_S_CRTM_VERSION => {
            let error = bank.digest(&[&1u32.to_le_bytes()]);
            event.data_proven(bank).is_some()
                || (event.kind == EV_SEPARATOR && event.digest(bank) == Some(&error))
        }
        _ => true,
    }
}

/// `TPM_ALG_ID` in words, also of those that are not computed here.
pub fn algorithm_name(id: u16) -> String {
    match HashAlg::from_id(id) {
        Some(alg) => alg.name().into(),
        None => match id {
            0x0027 => "sha3_256".into(),
            0x0028 => "sha3_384".into(),
            0x0029 => "sha3_512".into(),
            other => format!("{other:#06x}"),
        },
    }
}

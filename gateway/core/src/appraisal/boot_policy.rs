//! Row 11: what ran before the attester, judged by event.
//!
//! Runs on a log that replays to the quoted PCRs. Every event of PCR 4 and PCR 7 must be
//! understood: an unknown one refuses, so an event cannot hide behind another type. Says nothing
//! about PCR 0 to 3 and 5, 6 beyond separators: firmware differs too much; replay binds them.

use std::collections::BTreeMap;

use attest_wire::tpm::HashAlg;
use boot::catalog::{Artefact, Kind, Role};
use sha2::{Digest as _, Sha256};

use super::boot_events::SecureBoot;
use super::eventlog::{Event, Log};
use super::events::{BANK, Marker, Markers, type_name};
use super::facts::CatalogEntry;
use super::quirks::Quirk;
use super::variables::Variable;
use super::{Verified, shown};
use crate::policy::{OptionRoms, Policy};
use crate::reason::Reason;

const PFP: &str = "TCG PC Client PFP 1.06 section 3.3";

/// What row 11 learned.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct BootFacts {
    /// SHA-256 of the UKI's file, hex.
    pub image_sha256: Option<String>,
    /// Its role.
    pub role: Option<Role>,
    /// Oddities that were tolerated.
    pub quirks: Vec<Quirk>,
}

/// Judges the boot; all failures at once.
pub(super) fn appraise_boot(
    log: &Verified<Log<'_>>,
    pcrs: &BTreeMap<u8, [u8; 32]>,
    catalog: &[CatalogEntry],
    policy: &Policy,
) -> (BootFacts, Vec<Reason>) {
    let mut boot = BootJudge {
        markers: Markers::new(),
        policy,
        quirks: Vec::new(),
        reasons: Vec::new(),
    };
    boot.separators(log);
    boot.secure_boot(log);
    let uki = boot.images(log, catalog);
    boot.option_roms(log);
    boot.stub(pcrs, uki);
    let facts = BootFacts {
        image_sha256: uki.map(|uki| uki.sha256.clone()),
        role: uki.map(|uki| uki.role),
        quirks: boot.quirks,
    };
    (facts, boot.reasons)
}

struct BootJudge<'a> {
    markers: Markers,
    policy: &'a Policy,
    quirks: Vec<Quirk>,
    reasons: Vec<Reason>,
}

impl BootJudge<'_> {
    fn refuse(
        &mut self,
        code: &'static str,
        expected: impl Into<String>,
        found: impl Into<String>,
        source: &'static str,
        next: &'static str,
    ) {
        self.reasons
            .push(Reason::new(code, expected, found, source, next));
    }

    /// PCR 0 to 7 each end their firmware part with one separator that says "no error".
    fn separators(&mut self, log: &Log<'_>) {
        for pcr in 0..=7u8 {
            let mut good = 0;
            let mut error = false;
            for event in extends(log, pcr) {
                match self.markers.of(event) {
                    Some(Marker::Separator) => good += 1,
                    Some(Marker::SeparatorError) => error = true,
                    _ => {}
                }
            }
            if good != 1 || error {
                self.refuse(
                    "boot.separator",
                    format!("one separator without error in PCR {pcr}"),
                    format!("{good} good, error separator {error}"),
                    PFP,
                    "the firmware's log is incomplete or firmware reported an error; see its console",
                );
            }
        }
    }

    /// PCR 7: every event understood; SecureBoot on, before the separator; no debug, no DMA hole.
    fn secure_boot(&mut self, log: &Log<'_>) {
        let mut state = SecureBoot::default();
        for event in extends(log, 7) {
            match self.markers.of(event) {
                Some(Marker::Separator) => {
                    state.separator();
                    continue;
                }
                Some(Marker::Debug) => {
                    self.refuse(
                        "boot.debug",
                        "no firmware debug mode",
                        "\"UEFI Debug Mode\" in PCR 7",
                        PFP,
                        "leave debug mode in the firmware set-up",
                    );
                    continue;
                }
                Some(Marker::DmaOff) => {
                    self.refuse(
                        "boot.dma",
                        "DMA protection on",
                        "\"DMA Protection Disabled\" in PCR 7",
                        PFP,
                        "switch on the IOMMU's boot protection in the firmware set-up",
                    );
                    continue;
                }
                // Nothing of these belongs here; as a variable it is not understood.
                Some(
                    Marker::SeparatorError
                    | Marker::BootCalled
                    | Marker::BootReturned
                    | Marker::BootAction
                    | Marker::ExitBootServicesCalled
                    | Marker::ExitBootServicesDone
                    | Marker::ExitBootServicesFailed,
                )
                | None => {}
            }
            let Some((variable, quirk)) = Variable::proven(event) else {
                self.refuse(
                    "boot.variable",
                    "UEFI variables whose data hash to their digest in PCR 7",
                    describe(event),
                    "docs/PROTOCOL.md section 3 row 10",
                    "the log is edited, or this firmware measures something unknown: report a quirk",
                );
                continue;
            };
            self.quirks.extend(quirk);
            if state.is_authority(&variable) {
                self.authority(&variable);
            }
            state.variable(&variable);
        }
        if state.is_on() != Some(true) {
            let found = match state.is_on() {
                Some(_) => "SecureBoot is 0",
                None => "no SecureBoot variable in PCR 7",
            };
            self.refuse(
                "boot.secure_boot",
                "SecureBoot = 1 measured before the separator of PCR 7",
                found,
                PFP,
                "switch Secure Boot on in the firmware set-up and enrol the site's keys",
            );
        }
    }

    /// The certificate that vouched for an image, if the policy names some.
    fn authority(&mut self, variable: &Variable<'_>) {
        let allowed = self.policy.authorities();
        if allowed.is_empty() {
            return;
        }
        // An image that db names by its digest stands there as owner GUID and digest.
        let content = variable.data.get(16..).unwrap_or_default();
        let voucher = variable.certificate().unwrap_or(content);
        let digest: [u8; 32] = Sha256::digest(voucher).into();
        if !allowed.contains(&digest) {
            self.refuse(
                "boot.authority",
                "a certificate of policy boot.authority_sha256",
                format!("{} from {}", hex::encode(digest), shown(&variable.name)),
                "policy boot.authority_sha256",
                "remove the foreign key from the machine's db, or add it to the policy",
            );
        }
    }

    /// PCR 4: boot actions, separators and catalogued images, nothing else; exactly one UKI.
    fn images<'c>(&mut self, log: &Log<'_>, catalog: &'c [CatalogEntry]) -> Option<&'c Artefact> {
        let mut ukis: Vec<&'c Artefact> = Vec::new();
        let mut kernels: Vec<&str> = Vec::new();
        let mut judged: Vec<&[u8]> = Vec::new();
        for event in extends(log, 4) {
            if let Some(
                Marker::Separator
                | Marker::SeparatorError
                | Marker::BootCalled
                | Marker::BootReturned
                | Marker::BootAction,
            ) = self.markers.of(event)
            {
                continue;
            }
            let Some(digest) = event.digest(BANK) else {
                continue;
            };
            if judged.contains(&digest) {
                continue;
            }
            judged.push(digest);
            let digest = hex::encode(digest);
            let by_image: Vec<&'c CatalogEntry> = catalog
                .iter()
                .filter(|entry| entry.artefact.pe_sha256.eq_ignore_ascii_case(&digest))
                .collect();
            let by_kernel = catalog.iter().find_map(|entry| {
                let kernel = entry.artefact.linux_pe_sha256.as_deref()?;
                kernel.eq_ignore_ascii_case(&digest).then_some(kernel)
            });
            match (by_image.as_slice(), by_kernel) {
                ([], None) => self.refuse(
                    "boot.image",
                    format!("an image of the catalogue ({} entries)", catalog.len()),
                    describe(event),
                    "docs/PROTOCOL.md section 3 row 11",
                    "find out what ran; if it is ours, `boot-image build --keep` puts it into the catalogue",
                ),
                ([], Some(kernel)) => kernels.push(kernel),
                (entries, _) => {
                    for entry in entries {
                        self.current(entry);
                        // One image under two names is still one image.
                        let again = ukis
                            .iter()
                            .any(|uki| uki.pe_sha256 == entry.artefact.pe_sha256);
                        if entry.artefact.kind == Kind::Uki && !again {
                            ukis.push(&entry.artefact);
                        }
                    }
                }
            }
        }
        self.one_uki(&ukis, &kernels)
    }

    fn one_uki<'c>(&mut self, ukis: &[&'c Artefact], kernels: &[&str]) -> Option<&'c Artefact> {
        let [uki] = ukis else {
            self.refuse(
                "boot.uki",
                "exactly one catalogued UKI in PCR 4",
                format!("{}", ukis.len()),
                "docs/PROTOCOL.md section 3 row 11",
                "boot the signed attester once; a second image may not run after it",
            );
            return None;
        };
        let own = uki.linux_pe_sha256.as_deref();
        if let Some(foreign) = kernels
            .iter()
            .find(|kernel| own.is_none_or(|own| !own.eq_ignore_ascii_case(kernel)))
        {
            self.refuse(
                "boot.image",
                format!("the kernel of {} version {}", uki.name, uki.version),
                format!("kernel {foreign} of another image"),
                "docs/PROTOCOL.md section 3 row 11",
                "a kernel was started beside the UKI; find out what ran",
            );
        }
        Some(uki)
    }

    fn current(&mut self, entry: &CatalogEntry) {
        let artefact = &entry.artefact;
        let name = format!("{} version {}", artefact.name, artefact.version);
        if artefact.version < entry.floor {
            self.refuse(
                "boot.floor",
                format!("{} version {} or newer", artefact.name, entry.floor),
                name.clone(),
                "the owner's floor (image floor)",
                "boot the current image; clear what still serves the old one",
            );
        }
        if entry.withdrawn {
            self.refuse(
                "boot.withdrawn",
                format!("an image of {} that is not withdrawn", artefact.name),
                name,
                "the owner's withdrawal (image withdraw)",
                "boot the current image; clear what still serves the old one",
            );
        }
    }

    /// PCR 2: drivers from add-in cards, when the policy lists them.
    fn option_roms(&mut self, log: &Log<'_>) {
        let (OptionRoms::Listed, listed) = self.policy.option_roms() else {
            return;
        };
        for event in extends(log, 2) {
            let known = event
                .digest(BANK)
                .is_some_and(|digest| listed.iter().any(|l| l == digest));
            if !known && self.markers.of(event).is_none() {
                self.refuse(
                    "boot.option_rom",
                    "a driver of policy boot.option_rom_sha256",
                    describe(event),
                    "policy boot.option_roms = \"listed\"",
                    "list the card's driver digest, or disable its option ROM",
                );
            }
        }
    }

    /// PCR 11 to 13: what systemd-stub measured. PCR 11 says something only because PCR 4 and 7
    /// prove that the stub of a catalogued UKI ran first.
    fn stub(&mut self, pcrs: &BTreeMap<u8, [u8; 32]>, uki: Option<&Artefact>) {
        if let Some(uki) = uki
            && let Some(expected) = &uki.pcr11
        {
            let found = pcrs.get(&11).map(hex::encode).unwrap_or_default();
            if !expected.eq_ignore_ascii_case(&found) {
                self.refuse(
                    "boot.pcr11",
                    format!("PCR 11 {expected} of {} version {}", uki.name, uki.version),
                    found,
                    "the catalogue's pcr11",
                    "a section of the UKI or a later measurement differs; boot the image again",
                );
            }
        }
        for (pcr, code, what) in [
            (
                12,
                "boot.cmdline",
                "a command line or credential from outside the UKI",
            ),
            (13, "boot.pcr13", "a system extension from outside the UKI"),
        ] {
            let value = pcrs.get(&pcr).copied().unwrap_or([0xff; 32]);
            if value != [0; 32] {
                self.refuse(
                    code,
                    format!("PCR {pcr} zero"),
                    format!("{} ({what})", hex::encode(value)),
                    "systemd-stub: PCR 12 overrides, PCR 13 extensions",
                    "boot with the command line inside the signed UKI; Secure Boot must be on",
                );
            }
        }
    }
}

fn extends<'l, 'a>(log: &'l Log<'a>, pcr: u8) -> impl Iterator<Item = &'l Event<'a>> {
    log.events
        .iter()
        .filter(move |event| event.pcr == pcr && event.extends())
}

/// One event in words; the type is what the log claims.
fn describe(event: &Event<'_>) -> String {
    let digest = event.digest(HashAlg::Sha256).map(hex::encode);
    format!(
        "event {} in PCR {}, {} {}",
        event.index,
        event.pcr,
        type_name(event.kind),
        digest.unwrap_or_else(|| "without sha256 digest".into())
    )
}

//! Row 11: what ran before the attester, judged by event.
//!
//! Runs on a log that replays to the quoted PCRs. Every event of PCR 4 and PCR 7 must be
//! understood: an unknown one refuses, so an event cannot hide behind another type. Says nothing
//! about PCR 0 to 3 and 5, 6 beyond separators: firmware differs too much; replay binds them. Event
//! types decide nothing: no digest covers them. `trust` has what Secure Boot rests on (authorities,
//! dbx, option ROMs), `entries` what the owner says of a catalogued image.

mod entries;
mod trust;

use std::collections::{BTreeMap, BTreeSet};

use attest_wire::tpm::HashAlg;
use boot::catalog::{Artefact, Kind, Role};

use super::boot_events::{SecureBoot, proven_text};
use super::ek::TimeTrust;
use super::eventlog::{Event, Log};
use super::events::{BANK, Marker, Markers, type_name};
use super::facts::CatalogEntry;
use super::quirks::Quirk;
use super::variables::Variable;
use super::{Verified, shown};
use crate::policy::BootRules;
use crate::reason::Reason;
use trust::Vouched;

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
    /// What passes for a while and will refuse then.
    pub graced: Vec<Reason>,
}

/// Judges the boot by the rules of its class; all failures at once.
pub(super) fn appraise_boot(
    log: &Verified<Log<'_>>,
    pcrs: &BTreeMap<u8, [u8; 32]>,
    catalog: &[CatalogEntry],
    rules: &BootRules,
    time: TimeTrust,
) -> (BootFacts, Vec<Reason>) {
    let mut boot = BootJudge {
        markers: Markers::new(),
        rules,
        time,
        quirks: Vec::new(),
        reasons: Vec::new(),
        graced: Vec::new(),
    };
    boot.separators(log);
    let vouched = boot.secure_boot(log);
    boot.dbx(&vouched);
    let uki = boot.images(log, catalog);
    boot.option_roms(log, &vouched);
    boot.stub(log, pcrs, uki);
    let facts = BootFacts {
        image_sha256: uki.map(|uki| uki.sha256.clone()),
        role: uki.map(|uki| uki.role),
        quirks: boot.quirks,
        graced: boot.graced,
    };
    (facts, boot.reasons)
}

struct BootJudge<'a> {
    markers: Markers,
    rules: &'a BootRules,
    time: TimeTrust,
    quirks: Vec<Quirk>,
    reasons: Vec<Reason>,
    graced: Vec<Reason>,
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
    fn secure_boot<'l>(&mut self, log: &Log<'l>) -> Vouched<'l> {
        let mut state = SecureBoot::default();
        let mut vouched = Vouched::default();
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
            if state.is_authority(&variable) {
                vouched.authorities.insert(self.authority(&variable));
            }
            // The name counts here, so the digest must cover it; behind the separator anybody measures.
            if quirk.is_none() && !state.has_ended() && variable.is_dbx() {
                vouched.dbx.push(variable.data);
            }
            self.quirks.extend(quirk);
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
        vouched
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
                        if entry.artefact.kind == Kind::Uki {
                            ukis.push(&entry.artefact);
                        }
                    }
                }
            }
        }
        self.one_uki(&ukis, &kernels)
    }

    /// One image under two names is still one image, and each of its names has a role to be judged.
    fn one_uki<'c>(&mut self, ukis: &[&'c Artefact], kernels: &[&str]) -> Option<&'c Artefact> {
        let images: BTreeSet<String> = ukis
            .iter()
            .map(|uki| uki.pe_sha256.to_ascii_lowercase())
            .collect();
        let uki = match ukis {
            [uki, ..] if images.len() == 1 => uki,
            _ => {
                self.refuse(
                    "boot.uki",
                    "exactly one catalogued UKI in PCR 4",
                    format!("{}", images.len()),
                    "docs/PROTOCOL.md section 3 row 11",
                    "boot the signed attester once; a second image may not run after it",
                );
                return None;
            }
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
        for uki in ukis {
            self.role(uki);
        }
        Some(uki)
    }

    /// PCR 11 to 13: what systemd-stub measured. PCR 11 says something only because PCR 4 and 7
    /// prove that the stub of a catalogued UKI ran first.
    fn stub(&mut self, log: &Log<'_>, pcrs: &BTreeMap<u8, [u8; 32]>, uki: Option<&Artefact>) {
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
        self.command_line(log, pcrs);
        let value = pcrs.get(&13).copied().unwrap_or([0xff; 32]);
        if value != [0; 32] {
            self.refuse(
                "boot.pcr13",
                "PCR 13 zero",
                format!(
                    "{} (a system extension from outside the UKI)",
                    hex::encode(value)
                ),
                "systemd-stub: PCR 13 extensions",
                "boot without extensions beside the signed UKI",
            );
        }
    }

    /// PCR 12: command lines and credentials from outside the UKI. The log replays to it, so each of its
    /// digests was measured.
    fn command_line(&mut self, log: &Log<'_>, pcrs: &BTreeMap<u8, [u8; 32]>) {
        const SOURCE: &str = "policy boot.command_lines; systemd-stub: PCR 12 overrides";
        const NEXT: &str =
            "boot with the command line inside the signed UKI, or list this one in the policy";
        let listed = &self.rules.command_line_sha256;
        let expected = match listed.len() {
            0 => "PCR 12 zero".to_owned(),
            count => format!("PCR 12 zero, or of the {count} listed measurements"),
        };
        let mut measured = false;
        for event in extends(log, 12) {
            measured = true;
            let Some(digest) = event.digest(BANK) else {
                continue;
            };
            if listed.iter().any(|listed| listed == digest) {
                continue;
            }
            let found = match proven_text(BANK, event) {
                Some(text) => format!("{}: {:?}", describe(event), shown(&text)),
                None => format!(
                    "{} (a command line or credential from outside the UKI)",
                    describe(event)
                ),
            };
            self.refuse("boot.cmdline", expected.clone(), found, SOURCE, NEXT);
        }
        let value = pcrs.get(&12).copied().unwrap_or([0xff; 32]);
        if !measured && value != [0; 32] {
            self.refuse("boot.cmdline", expected, hex::encode(value), SOURCE, NEXT);
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

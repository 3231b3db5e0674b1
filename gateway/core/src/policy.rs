//! The appraisal policy: which checks refuse and which only report, and what they compare with.
//!
//! Read from TOML; an absent or empty policy does not exist as a value, so nothing can be appraised
//! without one. Rows 1 to 3 and 5 to 9 prove possession and cannot be relaxed: there would be
//! nothing to issue a certificate to. A class may have modes, registers and boot rules of its own; a
//! key that it does not name is the general one. Knows no machine; the values of one machine are its
//! binding. Every key is in docs/POLICY.md.

mod boot;

use std::collections::{BTreeMap, BTreeSet};

use sha2::{Digest as _, Sha256};

pub use boot::{
    BootRules, COMMAND_LINE_MAX_BYTES, COMMAND_LINES_MAX, DBX_ENTRIES_MAX, DIGESTS_MAX, Floor,
    Grace, NAMES_MAX, OptionRoms, command_line_digest, role_name,
};

use crate::appraisal::{Check, PCRS_ALWAYS, QUOTED_PCRS};
use crate::reason::Reason;
use crate::record::{POLICY_TEXT_MAX_BYTES, PolicyInForce, Record};
use crate::strict_toml::{Document, Mistake, Section};

/// Class of a machine that was approved without one: the general rules, or those of a class of that name.
pub const DEFAULT_CLASS: &str = "default";
/// Classes with rules of their own.
const CLASSES_MAX: usize = 64;
/// Banks that are named; a TPM has below.
const BANKS_MAX: usize = 8;

/// What a failed check does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// It refuses.
    Enforce,
    /// It is written down.
    Report,
}

impl Mode {
    /// Word of the configuration file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Enforce => "enforce",
            Self::Report => "report",
        }
    }
}

const MODES: [(&str, Mode); 2] = [("enforce", Mode::Enforce), ("report", Mode::Report)];

/// Shipped starting points.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preset {
    /// Everything enforced, EK certificates demanded, option ROMs listed.
    Strict,
    /// Rows 1 to 12 enforced, 13 and 14 reported; a bare approved EK is good enough.
    Standard,
    /// Rows 4 and 10 to 14 only reported; what proves possession of the keys stays enforced.
    Observe,
}

/// Their names in files.
pub const PRESETS: [(&str, Preset); 3] = [
    ("strict", Preset::Strict),
    ("standard", Preset::Standard),
    ("observe", Preset::Observe),
];

/// Checks whose mode the policy may set.
const SETTABLE: [(&str, Check); 6] = [
    ("ek_cert", Check::EkCert),
    ("event_log", Check::EventLog),
    ("boot", Check::Boot),
    ("platform", Check::Platform),
    ("port", Check::Port),
    ("freshness", Check::Freshness),
];

type Modes = BTreeMap<Check, Mode>;

/// What may differ between classes; whole in itself, so nobody has to look in two places.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Rules {
    modes: Modes,
    pcrs: Vec<u8>,
    boot: BootRules,
}

/// What a class says of installing (docs/POLICY.md).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InstallRules {
    /// Its machines carry a control plane: nothing is ever installed on them without an owner.
    pub control_plane: bool,
    /// Disk image that a declared machine gets at its first admission, without being asked for.
    pub auto_image: Option<String>,
}

/// A policy in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    general: Rules,
    classes: BTreeMap<String, Rules>,
    install: BTreeMap<String, InstallRules>,
    require_ek_cert: bool,
    allow_expired_ek_cert: bool,
    crl: Mode,
    claims: bool,
    sha256: [u8; 32],
    text: String,
}

/// A digest in hex, for the lists.
struct Hex32([u8; 32]);

impl std::str::FromStr for Hex32 {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut out = [0u8; 32];
        hex::decode_to_slice(text, &mut out).map_err(|_| ())?;
        Ok(Self(out))
    }
}

impl Policy {
    /// Reads a policy file.
    ///
    /// # Errors
    /// Every mistake with its line; an empty file is one.
    pub fn parse(text: &str) -> Result<Self, Vec<Mistake>> {
        let document = Document::parse(text)?;
        let root = document.root();
        let policy = read(&root, text);
        root.close();
        document.finish(policy)
    }

    /// The shipped preset, without a change.
    pub fn preset(preset: Preset) -> Self {
        let name = PRESETS
            .iter()
            .find(|(_, p)| *p == preset)
            .map_or("standard", |(name, _)| name);
        Self::parse(&format!("version = 1\npreset = \"{name}\"\n"))
            .expect("a shipped preset has no mistake")
    }

    /// What a failure of `check` does to a machine of `class`.
    ///
    /// Row 11 reads the log that row 10 vouches for and judges nothing without it. So where row 11 is
    /// enforced row 10 is too, whatever is written: a node could else send a broken log and be admitted
    /// with anything booted.
    pub fn mode(&self, check: Check, class: Option<&str>) -> Mode {
        if !SETTABLE.iter().any(|(_, settable)| *settable == check) {
            return Mode::Enforce;
        }
        let modes = &self.rules(class).modes;
        let of = |check| modes.get(&check).copied().unwrap_or(Mode::Enforce);
        match check {
            Check::EventLog if of(Check::Boot) == Mode::Enforce => Mode::Enforce,
            _ => of(check),
        }
    }

    /// PCRs that a machine of `class` must quote, ascending: [`PCRS_ALWAYS`] and what the policy adds.
    pub fn pcrs(&self, class: Option<&str>) -> &[u8] {
        &self.rules(class).pcrs
    }

    /// What a machine of `class` may boot.
    pub fn boot(&self, class: Option<&str>) -> &BootRules {
        &self.rules(class).boot
    }

    /// What a machine of `class` may be installed with by itself.
    pub fn install(&self, class: &str) -> InstallRules {
        self.install.get(class).cloned().unwrap_or_default()
    }

    /// Classes with rules of their own.
    pub fn classes(&self) -> impl Iterator<Item = &str> {
        self.classes.keys().map(String::as_str)
    }

    /// Names of images that it names anywhere: one that the catalogue does not have is a mistake, since
    /// a floor for it holds for nothing.
    pub fn images(&self) -> BTreeSet<&str> {
        let all = self.classes.values().chain([&self.general]);
        all.flat_map(|rules| {
            let floors = rules.boot.floors.iter().map(|floor| &floor.image);
            rules.boot.images.iter().chain(floors)
        })
        .map(String::as_str)
        .collect()
    }

    /// Whether there are classes and this is none of them: it is mistyped, or its rules are gone.
    /// [`DEFAULT_CLASS`] always is one.
    pub fn lacks(&self, class: &str) -> bool {
        let known = class == DEFAULT_CLASS || self.classes.contains_key(class);
        !known && !self.classes.is_empty()
    }

    /// The classes that a machine may have, in words.
    pub fn classes_text(&self) -> String {
        let own = self.classes().filter(|class| *class != DEFAULT_CLASS);
        let all: Vec<&str> = own.chain([DEFAULT_CLASS]).collect();
        format!("it has {}", all.join(", "))
    }

    /// Takes a machine's class. Rules that nobody wrote for it let nothing pass: those for all may be
    /// weaker than what was meant.
    ///
    /// # Errors
    /// `machine.class`.
    pub fn know_class(&self, class: &str, next: &'static str) -> Result<(), Reason> {
        if !self.lacks(class) {
            return Ok(());
        }
        Err(Reason::new(
            "machine.class",
            format!("a class of the policy ({})", self.classes_text()),
            format!("class {:?}", crate::appraisal::shown(class)),
            "docs/POLICY.md, classes",
            next,
        ))
    }

    /// Digests that it withdraws anywhere.
    pub fn withdrawn(&self) -> BTreeSet<[u8; 32]> {
        let all = self.classes.values().chain([&self.general]);
        all.flat_map(|rules| rules.boot.withdrawn_sha256.iter().copied())
            .collect()
    }

    /// What no file can say: row 11 enforced over a log that is only reported.
    #[cfg(test)]
    pub(crate) fn boot_without_its_log() -> Self {
        let mut policy = Self::preset(Preset::Standard);
        policy.general.modes.insert(Check::EventLog, Mode::Report);
        policy
    }

    fn rules(&self, class: Option<&str>) -> &Rules {
        let own = class.and_then(|class| self.classes.get(class));
        own.unwrap_or(&self.general)
    }

    /// Whether an EK without certificate is refused.
    pub fn require_ek_cert(&self) -> bool {
        self.require_ek_cert
    }

    /// Whether an EK certificate past its notAfter passes (many vendors' ten years are over).
    pub fn allow_expired_ek_cert(&self) -> bool {
        self.allow_expired_ek_cert
    }

    /// What it does when it is not known whether a certificate of an EK chain is revoked: the list is
    /// missing, stale or not signed. A revoked one is always refused by row 4.
    pub fn crl(&self) -> Mode {
        self.crl
    }

    /// Whether a machine with unknown EKs may become a pending claim.
    pub fn claims(&self) -> bool {
        self.claims
    }

    /// SHA-256 of the policy text: what a receipt names.
    pub fn sha256(&self) -> [u8; 32] {
        self.sha256
    }

    /// What a start writes down: that this policy is in force, unless the ledger says so already.
    pub fn change<'a>(
        &self,
        mut ledger: impl DoubleEndedIterator<Item = &'a Record>,
    ) -> Option<Record> {
        let sha256 = hex::encode(self.sha256);
        let last = ledger.rfind(|record| matches!(record, Record::Policy(_)));
        let same = matches!(last, Some(Record::Policy(before)) if before.sha256 == sha256);
        (!same).then(|| {
            let fits = self.text.len() <= POLICY_TEXT_MAX_BYTES;
            let text = fits.then(|| self.text.clone());
            Record::Policy(PolicyInForce { sha256, text })
        })
    }
}

fn read(root: &Section<'_, '_>, text: &str) -> Option<Policy> {
    let version = root.integer("version", 1..=1, "(the only version)");
    let version = root.required("version", "1", version);
    let preset = root.choice("preset", &PRESETS);
    let preset = root.required("preset", "\"strict\", \"standard\" or \"observe\"", preset);

    let ek = root.section("ek");
    let require_cert = ek.boolean("require_cert");
    let allow_expired = ek.boolean("allow_expired");
    let crl = ek.choice("crl", &MODES);
    ek.close();

    let enrol = root.section("enrol");
    let claims = enrol.boolean("claims");
    enrol.close();

    let strict = preset == Some(Preset::Strict);
    let base = Rules {
        modes: preset.map(preset_modes).unwrap_or_default(),
        pcrs: QUOTED_PCRS.to_vec(),
        boot: BootRules::new(if strict {
            OptionRoms::Listed
        } else {
            OptionRoms::Any
        }),
    };
    let general = rules(root, &base);
    let (classes, install) = classes(root, &general);

    version?;
    preset?;
    Some(Policy {
        general,
        classes,
        install,
        require_ek_cert: require_cert.unwrap_or(strict),
        allow_expired_ek_cert: allow_expired.unwrap_or(false),
        crl: crl.unwrap_or(Mode::Report),
        claims: claims.unwrap_or(true),
        sha256: Sha256::digest(text.as_bytes()).into(),
        text: text.to_owned(),
    })
}

/// The sections that a file and a class both have, over what holds without them.
fn rules(table: &Section<'_, '_>, base: &Rules) -> Rules {
    let boot = table.section("boot");
    let boot_rules = BootRules::read(&boot, &base.boot);
    boot.close();
    let quote = table.section("quote");
    let pcrs = quoted(&quote, &base.pcrs);
    quote.close();
    let checks = table.section("checks");
    let mut all = base.modes.clone();
    all.extend(modes(&checks));
    let is = |check, mode| all.get(&check) == Some(&mode);
    if is(Check::Boot, Mode::Enforce) && is(Check::EventLog, Mode::Report) {
        let key = match checks.has("event_log") {
            true => "event_log",
            false => "boot",
        };
        checks.mistake(
            key,
            "both \"enforce\", or boot = \"report\": row 11 judges nothing without the log that row 10 vouches for",
            "event_log = \"report\" and boot = \"enforce\"",
        );
    }
    checks.close();
    Rules {
        modes: all,
        pcrs,
        boot: boot_rules,
    }
}

type Classes = (BTreeMap<String, Rules>, BTreeMap<String, InstallRules>);

fn classes(root: &Section<'_, '_>, general: &Rules) -> Classes {
    let (mut classes, mut install) = (BTreeMap::new(), BTreeMap::new());
    for class in root.sections("class", CLASSES_MAX) {
        let name = class.string("name");
        let name = class.required("name", "the name of a class", name);
        let rules = rules(&class, general);
        let install_rules = install_rules(&class);
        class.close();
        let Some(name) = name else { continue };
        install.insert(name.clone(), install_rules);
        if classes.insert(name.clone(), rules).is_some() {
            class.mistake("name", "each class once", format!("{name:?} twice"));
        }
    }
    (classes, install)
}

/// `[class.install]`.
fn install_rules(class: &Section<'_, '_>) -> InstallRules {
    let section = class.section("install");
    let rules = InstallRules {
        control_plane: section.boolean("control_plane").unwrap_or(false),
        auto_image: section.string("auto_image"),
    };
    if rules.control_plane && rules.auto_image.is_some() {
        section.mistake(
            "auto_image",
            "no image: an owner installs each machine of a control plane",
            "auto_image beside control_plane = true",
        );
    }
    section.close();
    rules
}

/// `[quote]`: the registers and banks that a quote must show.
///
/// One bank is judged: the markers of the log, the catalogue's digests and PCR 11 are SHA-256, and a
/// second bank of the same log would prove nothing more.
fn quoted(section: &Section<'_, '_>, base: &[u8]) -> Vec<u8> {
    if section.has("banks") {
        let banks = section.list::<String>("banks", "the name of a bank", BANKS_MAX);
        if banks != ["sha256"] {
            section.mistake(
                "banks",
                "[\"sha256\"], the one bank that can be judged: catalogue and predictions are of it",
                format!("{banks:?}"),
            );
        }
    }
    if !section.has("pcrs") {
        return base.to_vec();
    }
    let listed = section.numbers("pcrs", 0..=23, "(a PCR)", 24);
    for pcr in listed.iter().filter(|pcr| !QUOTED_PCRS.contains(pcr)) {
        section.mistake(
            "pcrs",
            format!("PCRs of {QUOTED_PCRS:?}: 10 is IMA's and changes at any moment, 16 to 23 are no boot's"),
            pcr.to_string(),
        );
    }
    let missing: Vec<u8> = PCRS_ALWAYS
        .into_iter()
        .filter(|pcr| !listed.contains(pcr))
        .collect();
    if !missing.is_empty() {
        section.mistake(
            "pcrs",
            format!("at least {PCRS_ALWAYS:?}: decisions rest on them"),
            format!("a list without {missing:?}"),
        );
    }
    let all: BTreeSet<u8> = listed.into_iter().collect();
    all.into_iter().collect()
}

fn modes(checks: &Section<'_, '_>) -> Modes {
    SETTABLE
        .iter()
        .filter_map(|(key, check)| Some((*check, checks.choice(key, &MODES)?)))
        .collect()
}

fn preset_modes(preset: Preset) -> Modes {
    SETTABLE
        .iter()
        .map(|(_, check)| {
            let reported = match preset {
                Preset::Strict => false,
                Preset::Standard => matches!(check, Check::Port | Check::Freshness),
                Preset::Observe => true,
            };
            let mode = if reported {
                Mode::Report
            } else {
                Mode::Enforce
            };
            (*check, mode)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mistakes(text: &str) -> Vec<String> {
        let list = Policy::parse(text).expect_err("must be refused");
        list.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn presets_differ_as_documented() {
        use Check::{Boot, EkCert, Port, Quote};
        let table = [
            (Preset::Strict, EkCert, Mode::Enforce),
            (Preset::Strict, Port, Mode::Enforce),
            (Preset::Standard, Boot, Mode::Enforce),
            (Preset::Standard, Port, Mode::Report),
            (Preset::Observe, Boot, Mode::Report),
            (Preset::Observe, Quote, Mode::Enforce),
        ];
        for (preset, check, mode) in table {
            assert_eq!(
                Policy::preset(preset).mode(check, None),
                mode,
                "{preset:?} {check:?}"
            );
        }
    }

    #[test]
    fn a_class_overrides_and_others_keep_the_preset() {
        let text = "version = 1\npreset = \"standard\"\n[checks]\nfreshness = \"enforce\"\n\
                    [[class]]\nname = \"control\"\n[class.checks]\nport = \"enforce\"\n";
        let policy = Policy::parse(text).expect("valid");
        assert_eq!(policy.mode(Check::Port, Some("control")), Mode::Enforce);
        assert_eq!(policy.mode(Check::Port, Some("worker")), Mode::Report);
        assert_eq!(
            policy.mode(Check::Freshness, Some("control")),
            Mode::Enforce
        );
    }

    #[test]
    fn rejects_an_enforced_boot_over_a_log_that_is_only_reported() {
        for (text, key) in [
            (
                "standard\"\n[checks]\nevent_log = \"report\"\n",
                "checks.event_log",
            ),
            (
                "observe\"\n[[class]]\nname = \"a\"\n[class.checks]\nboot = \"enforce\"\n",
                "class[0].checks.boot",
            ),
            (
                "strict\"\n[[class]]\nname = \"a\"\n[class.checks]\nevent_log = \"report\"\n",
                "class[0].checks.event_log",
            ),
        ] {
            let list = mistakes(&format!("version = 1\npreset = \"{text}"));
            assert_eq!(list.len(), 1, "{list:?}");
            assert!(list[0].contains(key), "{list:?}");
            assert!(list[0].contains("row 11 judges nothing"), "{list:?}");
        }
        for text in [
            "standard\"\n[checks]\nevent_log = \"report\"\nboot = \"report\"\n",
            "observe\"\n[checks]\nevent_log = \"enforce\"\n",
            "observe\"\n[[class]]\nname = \"a\"\n[class.checks]\nboot = \"enforce\"\nevent_log = \"enforce\"\n",
        ] {
            let parsed = Policy::parse(&format!("version = 1\npreset = \"{text}"));
            assert!(parsed.is_ok(), "{text} {parsed:?}");
        }
    }

    /// No file leads here; a verdict must not rest on that.
    #[test]
    fn an_enforced_boot_enforces_its_log() {
        let policy = Policy::boot_without_its_log();
        assert_eq!(policy.mode(Check::Boot, None), Mode::Enforce);
        assert_eq!(policy.mode(Check::EventLog, None), Mode::Enforce);
        let observe = Policy::preset(Preset::Observe);
        assert_eq!(observe.mode(Check::EventLog, None), Mode::Report);
    }

    #[test]
    fn registers_are_those_that_decide_and_what_is_added() {
        let text = "version = 1\npreset = \"standard\"\n[quote]\nbanks = [\"sha256\"]\n\
                    [[class]]\nname = \"runtime\"\n[class.quote]\n\
                    pcrs = [0, 1, 2, 3, 4, 5, 6, 7, 14, 11, 12, 13, 15]\n";
        let policy = Policy::parse(text).expect("valid");
        assert_eq!(policy.pcrs(None), QUOTED_PCRS);
        assert_eq!(policy.pcrs(Some("worker")), QUOTED_PCRS);
        assert_eq!(
            policy.pcrs(Some("runtime")),
            [0, 1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 14, 15]
        );
        assert_eq!(policy.classes().collect::<Vec<_>>(), ["runtime"]);
    }

    #[test]
    fn rejects_banks_that_cannot_be_judged_and_registers_that_must_be() {
        for (text, part) in [
            ("banks = [\"sha384\"]", "quote.banks: expected [\"sha256\"]"),
            ("banks = [\"sha256\", \"sha384\"]", "quote.banks"),
            ("banks = []", "quote.banks"),
            (
                "pcrs = [4, 7, 11]",
                "found a list without [0, 1, 2, 3, 5, 6, 12, 13, 15]",
            ),
            ("pcrs = []", "quote.pcrs"),
            (
                "pcrs = [0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12, 13, 15]",
                "found 10",
            ),
            ("pcrs = [24]", "quote.pcrs[0]"),
            ("pcrs = [\"4\"]", "quote.pcrs[0]"),
        ] {
            let list = mistakes(&format!(
                "version = 1\npreset = \"standard\"\n[quote]\n{text}\n"
            ));
            assert!(list.iter().any(|m| m.contains(part)), "{text}: {list:?}");
        }
    }

    #[test]
    fn rejects_an_empty_policy() {
        assert_eq!(
            mistakes(""),
            [
                "line 1: version: expected 1, found nothing",
                "line 1: preset: expected \"strict\", \"standard\" or \"observe\", found nothing"
            ]
        );
    }

    #[test]
    fn rejects_unknown_words_and_relaxed_possession() {
        let list = mistakes(
            "version = 1\npreset = \"standart\"\n[checks]\nquote = \"report\"\nboot = \"off\"\n\
             [boot]\nauthority_sha256 = [\"00\"]\n",
        );
        assert_eq!(list.len(), 4, "{list:?}");
        assert!(list[0].starts_with("line 2: preset:"), "{list:?}");
        assert!(list[1].starts_with("line 4: checks.quote:"), "{list:?}");
        assert!(list[2].starts_with("line 5: checks.boot:"), "{list:?}");
        assert!(list[3].contains("authority_sha256"), "{list:?}");
    }

    #[test]
    fn a_policy_is_written_down_when_it_is_another_one() {
        let (strict, standard) = (
            Policy::preset(Preset::Strict),
            Policy::preset(Preset::Standard),
        );
        let mut ledger = Vec::new();
        for (policy, written) in [
            (&standard, true),
            (&standard, false),
            (&strict, true),
            (&standard, true),
        ] {
            let change = policy.change(ledger.iter());
            assert_eq!(change.is_some(), written);
            ledger.extend(change);
            ledger.push(Record::Anchor(crate::record::Anchor { counter: 1 }));
        }
        let Record::Policy(first) = &ledger[0] else {
            panic!("{ledger:?}");
        };
        assert_eq!(first.sha256, hex::encode(standard.sha256()));
        assert_eq!(
            first.text.as_deref(),
            Some("version = 1\npreset = \"standard\"\n")
        );
        // One that is too long for a record is named by its digest alone, and one that is read again is the same.
        let long = format!(
            "version = 1\npreset = \"strict\"\n#{}",
            "x".repeat(POLICY_TEXT_MAX_BYTES)
        );
        let change = Policy::parse(&long).expect("valid").change([].iter());
        let json = serde_json::to_string(&change).expect("json");
        assert!(!json.contains("text"), "{} bytes", json.len());
        let json = serde_json::to_string(&ledger[0]).expect("json");
        let again: Record = serde_json::from_str(&json).expect("a record");
        assert_eq!(again, ledger[0]);
    }

    #[test]
    fn the_digest_is_that_of_the_text() {
        let text = "version = 1\npreset = \"strict\"\n";
        let policy = Policy::parse(text).expect("valid");
        assert_eq!(
            policy.sha256(),
            <[u8; 32]>::from(Sha256::digest(text.as_bytes()))
        );
    }
}

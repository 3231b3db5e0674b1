//! The appraisal policy: which checks refuse and which only report, and what they compare with.
//!
//! Read from TOML; an absent or empty policy does not exist as a value, so nothing can be appraised
//! without one. Rows 1 to 3 and 5 to 9 prove possession and cannot be relaxed: there would be
//! nothing to issue a certificate to. Knows no machine; the values of one machine are its binding.

use std::collections::BTreeMap;

use sha2::{Digest as _, Sha256};

use crate::appraisal::Check;
use crate::strict_toml::{Document, Mistake, Section};

/// Classes with rules of their own.
const CLASSES_MAX: usize = 64;
/// Digests in one list.
const DIGESTS_MAX: usize = 1024;

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

/// What option ROM drivers (PCR 2) may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OptionRoms {
    /// Any that firmware accepted; their digests are recorded.
    Any,
    /// Only those listed in `boot.option_rom_sha256`.
    Listed,
}

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

/// A policy in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    modes: Modes,
    classes: BTreeMap<String, Modes>,
    require_ek_cert: bool,
    allow_expired_ek_cert: bool,
    crl: Mode,
    claims: bool,
    option_roms: OptionRoms,
    option_rom_sha256: Vec<[u8; 32]>,
    authority_sha256: Vec<[u8; 32]>,
    sha256: [u8; 32],
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
    pub fn mode(&self, check: Check, class: Option<&str>) -> Mode {
        if !SETTABLE.iter().any(|(_, settable)| *settable == check) {
            return Mode::Enforce;
        }
        class
            .and_then(|class| self.classes.get(class)?.get(&check))
            .or_else(|| self.modes.get(&check))
            .copied()
            .unwrap_or(Mode::Enforce)
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

    /// Rule for option ROM drivers and the listed digests.
    pub fn option_roms(&self) -> (OptionRoms, &[[u8; 32]]) {
        (self.option_roms, &self.option_rom_sha256)
    }

    /// SHA-256 of the certificates whose signature on an image counts; empty: any that firmware
    /// accepted, since every image must be in the catalogue anyway.
    pub fn authorities(&self) -> &[[u8; 32]] {
        &self.authority_sha256
    }

    /// SHA-256 of the policy text: what a receipt names.
    pub fn sha256(&self) -> [u8; 32] {
        self.sha256
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

    let boot = root.section("boot");
    let option_roms = boot.choice(
        "option_roms",
        &[("any", OptionRoms::Any), ("listed", OptionRoms::Listed)],
    );
    let digests = |key| -> Vec<[u8; 32]> {
        let list = boot.list::<Hex32>(key, "a SHA-256 in hex", DIGESTS_MAX);
        list.into_iter().map(|digest| digest.0).collect()
    };
    let option_rom_sha256 = digests("option_rom_sha256");
    let authority_sha256 = digests("authority_sha256");
    boot.close();

    let checks = root.section("checks");
    let own_modes = modes(&checks);
    checks.close();
    let classes = classes(root);

    version?;
    let preset = preset?;
    let strict = preset == Preset::Strict;
    let mut all = preset_modes(preset);
    all.extend(own_modes);
    Some(Policy {
        modes: all,
        classes,
        require_ek_cert: require_cert.unwrap_or(strict),
        allow_expired_ek_cert: allow_expired.unwrap_or(false),
        crl: crl.unwrap_or(Mode::Report),
        claims: claims.unwrap_or(true),
        option_roms: option_roms.unwrap_or(if strict {
            OptionRoms::Listed
        } else {
            OptionRoms::Any
        }),
        option_rom_sha256,
        authority_sha256,
        sha256: Sha256::digest(text.as_bytes()).into(),
    })
}

fn classes(root: &Section<'_, '_>) -> BTreeMap<String, Modes> {
    let mut classes = BTreeMap::new();
    for class in root.sections("class", CLASSES_MAX) {
        let name = class.string("name");
        let name = class.required("name", "the name of a class", name);
        let checks = class.section("checks");
        let modes = modes(&checks);
        checks.close();
        class.close();
        let Some(name) = name else { continue };
        if classes.insert(name.clone(), modes).is_some() {
            class.mistake("name", "each class once", format!("{name:?} twice"));
        }
    }
    classes
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
    fn the_digest_is_that_of_the_text() {
        let text = "version = 1\npreset = \"strict\"\n";
        let policy = Policy::parse(text).expect("valid");
        assert_eq!(
            policy.sha256(),
            <[u8; 32]>::from(Sha256::digest(text.as_bytes()))
        );
    }
}

//! What a boot may consist of: the sections `[boot]` and `[class.boot]` of the policy.
//!
//! A class starts with the rules of `[boot]`. What is allowed is replaced as a whole by a key that its
//! own section names, so it can be read in one place. What is refused adds up: withdrawals, dbx entries
//! and floors of `[boot]` hold for every class, and only a floor of the same image is replaced. Row 11
//! judges by them (`appraisal::boot_policy`). Knows no log and no clock.

use boot::catalog::Role;

use super::Hex32;
use crate::strict_toml::Section;

/// Digests in one list.
pub const DIGESTS_MAX: usize = 1024;
/// Entries that a dbx can be asked to have; the largest of 2026 has below 500.
pub const DBX_ENTRIES_MAX: usize = 65_535;
/// Command lines that are listed.
pub const COMMAND_LINES_MAX: usize = 64;
/// The longest, in bytes (Linux reads 2048 on x86, 4096 elsewhere).
pub const COMMAND_LINE_MAX_BYTES: usize = 4096;
/// Names of images that are listed, and floors.
pub const NAMES_MAX: usize = 64;

/// What option ROM drivers (PCR 2) may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OptionRoms {
    /// Any that firmware accepted; their digests are recorded.
    Any,
    /// Only those listed in `option_rom_sha256`.
    Listed,
    /// Those listed, and others while a certificate of `driver_authority_sha256` vouched in this boot and
    /// nobody vouched whom the policy does not name.
    Signed,
}

const OPTION_ROMS: [(&str, OptionRoms); 3] = [
    ("any", OptionRoms::Any),
    ("listed", OptionRoms::Listed),
    ("signed", OptionRoms::Signed),
];

const ROLES: [(&str, Role); 2] = [("provision", Role::Provision), ("runtime", Role::Runtime)];

/// Word of a policy file and of the catalogue.
pub fn role_name(role: Role) -> &'static str {
    match role {
        Role::Provision => "provision",
        Role::Runtime => "runtime",
    }
}

/// The oldest version of an image that passes, by the policy. The owner's floor (`image floor`) is
/// another one and stands beside it: the higher counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Floor {
    /// Name of the image in the catalogue.
    pub image: String,
    /// Lowest version that passes for good.
    pub version: u64,
    /// Older ones that pass for a while.
    pub grace: Option<Grace>,
}

/// The overlap of two floors, while a fleet moves from one to the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grace {
    /// Lowest version that passes until then: the floor of before.
    pub from: u64,
    /// Seconds since 1970 at which it is over.
    pub until: i64,
}

/// The rules for one boot. Lists in the order of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootRules {
    /// What option ROM drivers may run.
    pub option_roms: OptionRoms,
    /// Digests of drivers that may.
    pub option_rom_sha256: Vec<[u8; 32]>,
    /// SHA-256 of the certificates that may vouch for an image; empty: any that firmware accepted, since every
    /// image must be in the catalogue anyway.
    pub authority_sha256: Vec<[u8; 32]>,
    /// SHA-256 of the certificates that may vouch for option ROM drivers.
    pub driver_authority_sha256: Vec<[u8; 32]>,
    /// How many entries the measured dbx has at least.
    pub dbx_min_entries: usize,
    /// Images that the measured dbx revokes: Authenticode digests.
    pub dbx_sha256: Vec<[u8; 32]>,
    /// Certificates that it revokes without a date: SHA-256 of the whole or of the signed part.
    pub dbx_certificate_sha256: Vec<[u8; 32]>,
    /// Digests that may be measured into PCR 12; empty: it must be zero.
    pub command_line_sha256: Vec<[u8; 32]>,
    /// Names of the catalogue that may run; empty: all of it.
    pub images: Vec<String>,
    /// Roles that the UKI may have.
    pub roles: Vec<Role>,
    /// Floors beside the owner's, each image once.
    pub floors: Vec<Floor>,
    /// Images that are refused: SHA-256 of the file, or PE digest.
    pub withdrawn_sha256: Vec<[u8; 32]>,
}

impl BootRules {
    /// What holds for keys that nobody names.
    pub(super) fn new(option_roms: OptionRoms) -> Self {
        Self {
            option_roms,
            option_rom_sha256: Vec::new(),
            authority_sha256: Vec::new(),
            driver_authority_sha256: Vec::new(),
            dbx_min_entries: 0,
            dbx_sha256: Vec::new(),
            dbx_certificate_sha256: Vec::new(),
            command_line_sha256: Vec::new(),
            images: Vec::new(),
            roles: vec![Role::Provision],
            floors: Vec::new(),
            withdrawn_sha256: Vec::new(),
        }
    }

    /// Reads a section over the rules it starts with. Mistakes are recorded in it.
    pub(super) fn read(section: &Section<'_, '_>, base: &Self) -> Self {
        let digests = |key, base: &[[u8; 32]], empty| match section.has(key) {
            true => digests(section, key, empty),
            false => base.to_vec(),
        };
        let more = |key, base: &[[u8; 32]]| {
            nothing_emptied(section, key, base.len());
            let mut all = base.to_vec();
            for digest in self::digests(section, key, Empty::No) {
                if !all.contains(&digest) {
                    all.push(digest);
                }
            }
            all
        };
        let rules = Self {
            option_roms: section
                .choice("option_roms", &OPTION_ROMS)
                .unwrap_or(base.option_roms),
            option_rom_sha256: digests("option_rom_sha256", &base.option_rom_sha256, Empty::No),
            authority_sha256: digests("authority_sha256", &base.authority_sha256, Empty::Any),
            driver_authority_sha256: digests(
                "driver_authority_sha256",
                &base.driver_authority_sha256,
                Empty::No,
            ),
            dbx_min_entries: section
                .integer("dbx_min_entries", 0..=DBX_ENTRIES_MAX as u64, "entries")
                .map_or(base.dbx_min_entries, |count| count as usize),
            dbx_sha256: more("dbx_sha256", &base.dbx_sha256),
            dbx_certificate_sha256: more("dbx_certificate_sha256", &base.dbx_certificate_sha256),
            command_line_sha256: command_lines(section, &base.command_line_sha256),
            images: images(section, &base.images),
            roles: roles(section, &base.roles),
            floors: floors(section, &base.floors),
            withdrawn_sha256: more("withdrawn_sha256", &base.withdrawn_sha256),
        };
        rules.fit_together(section);
        rules
    }

    /// Keys that mean nothing without another one are mistakes: their author expects something that
    /// would not happen.
    fn fit_together(&self, section: &Section<'_, '_>) {
        let signed = self.option_roms == OptionRoms::Signed;
        if signed && self.driver_authority_sha256.is_empty() {
            section.mistake(
                "option_roms",
                "driver_authority_sha256 with \"signed\": the certificates that may vouch for drivers",
                "none",
            );
        }
        if signed && self.authority_sha256.is_empty() {
            section.mistake(
                "option_roms",
                "authority_sha256 with \"signed\": without it anybody of the machine's db may vouch",
                "none",
            );
        }
        if !signed && section.has("driver_authority_sha256") {
            section.mistake(
                "driver_authority_sha256",
                "option_roms = \"signed\" beside it",
                "another rule for option ROMs",
            );
        }
    }
}

/// What an empty list means.
#[derive(Clone, Copy)]
enum Empty {
    /// Nothing: none is allowed or asked for, as a reader expects.
    No,
    /// Anything, so it must not be written: who empties a list by hand wants it to refuse.
    Any,
}

fn digests(section: &Section<'_, '_>, key: &'static str, empty: Empty) -> Vec<[u8; 32]> {
    let list = section.list::<Hex32>(key, "a SHA-256 in hex", DIGESTS_MAX);
    if matches!(empty, Empty::Any) {
        not_empty(section, key);
    }
    list.into_iter().map(|digest| digest.0).collect()
}

fn not_empty(section: &Section<'_, '_>, key: &str) {
    if section.is_empty_list(key) {
        section.mistake(
            key,
            "at least one entry; a key that is left out allows all",
            "an empty list",
        );
    }
}

/// A list that only adds cannot be emptied: who tries expects that the general entries are gone.
fn nothing_emptied(section: &Section<'_, '_>, key: &str, general: usize) {
    if general > 0 && section.is_empty_list(key) {
        section.mistake(
            key,
            format!("entries beside the {general} general ones, which hold for every class"),
            "an empty list",
        );
    }
}

/// Command lines as texts and as digests: one list, and one key names both anew.
fn command_lines(section: &Section<'_, '_>, base: &[[u8; 32]]) -> Vec<[u8; 32]> {
    if !section.has("command_lines") && !section.has("command_line_sha256") {
        return base.to_vec();
    }
    let mut all = digests(section, "command_line_sha256", Empty::No);
    let lines = section.list::<String>("command_lines", "a command line", COMMAND_LINES_MAX);
    for line in lines {
        if line.len() > COMMAND_LINE_MAX_BYTES || line.contains('\0') {
            section.mistake(
                "command_lines",
                format!("at most {COMMAND_LINE_MAX_BYTES} bytes without NUL"),
                format!("{} bytes", line.len()),
            );
        }
        all.push(command_line_digest(&line));
    }
    all
}

/// What systemd-stub and systemd-boot extend PCR 12 with for a command line: SHA-256 of its UTF-16LE
/// text with the ending NUL.
pub fn command_line_digest(line: &str) -> [u8; 32] {
    use sha2::{Digest as _, Sha256};
    let mut hash = Sha256::new();
    for unit in line.encode_utf16().chain([0]) {
        hash.update(unit.to_le_bytes());
    }
    hash.finalize().into()
}

fn images(section: &Section<'_, '_>, base: &[String]) -> Vec<String> {
    if !section.has("images") {
        return base.to_vec();
    }
    let names = section.list::<String>("images", "the name of an image", NAMES_MAX);
    not_empty(section, "images");
    names
}

fn roles(section: &Section<'_, '_>, base: &[Role]) -> Vec<Role> {
    if !section.has("roles") {
        return base.to_vec();
    }
    let words = section.list::<String>("roles", "a role", ROLES.len());
    not_empty(section, "roles");
    let mut roles = Vec::new();
    for word in words {
        match ROLES.iter().find(|(name, _)| *name == word) {
            Some((_, role)) => roles.push(*role),
            None => {
                let found: String = word.chars().take(80).collect();
                section.mistake(
                    "roles",
                    "\"provision\" or \"runtime\"",
                    format!("{found:?}"),
                );
            }
        }
    }
    roles
}

/// The general floors and those of the section, which replace one of the same image.
fn floors(section: &Section<'_, '_>, base: &[Floor]) -> Vec<Floor> {
    nothing_emptied(section, "floor", base.len());
    let mut floors: Vec<Floor> = Vec::new();
    for entry in section.sections("floor", NAMES_MAX) {
        let image = entry.string("image");
        let image = entry.required("image", "the name of an image", image);
        let version = entry.integer("version", 1..=u64::MAX, "(a version)");
        let version = entry.required("version", "the lowest version that passes", version);
        let from = entry.integer("grace_from", 0..=u64::MAX, "(a version)");
        let until = entry.time("grace_until");
        let grace = match (from, until) {
            (Some(from), Some(until)) => Some(Grace { from, until }),
            (None, None) => None,
            (Some(_), None) => {
                entry.required::<i64>("grace_until", "when the grace is over", None);
                None
            }
            (None, Some(_)) => {
                entry.required::<u64>("grace_from", "the oldest version that has grace", None);
                None
            }
        };
        if let (Some(version), Some(grace)) = (version, grace)
            && grace.from >= version
        {
            entry.mistake(
                "grace_from",
                format!("a version below {version}"),
                grace.from.to_string(),
            );
        }
        entry.close();
        let (Some(image), Some(version)) = (image, version) else {
            continue;
        };
        if floors.iter().any(|floor| floor.image == image) {
            entry.mistake("image", "each image once", format!("{image:?} twice"));
        }
        floors.push(Floor {
            image,
            version,
            grace,
        });
    }
    let general = base
        .iter()
        .filter(|general| !floors.iter().any(|own| own.image == general.image));
    general.cloned().chain(floors.iter().cloned()).collect()
}

#[cfg(test)]
mod tests {
    use crate::policy::Policy;

    use super::*;

    const D1: &str = "1111111111111111111111111111111111111111111111111111111111111111";
    const D2: &str = "2222222222222222222222222222222222222222222222222222222222222222";

    fn policy(text: &str) -> Policy {
        let text = format!("version = 1\npreset = \"standard\"\n{text}");
        Policy::parse(&text).expect("valid")
    }

    fn mistakes(text: &str) -> Vec<String> {
        let text = format!("version = 1\npreset = \"standard\"\n{text}");
        let list = Policy::parse(&text).expect_err("must be refused");
        list.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_class_replaces_the_keys_it_names_and_keeps_the_others() {
        let policy = policy(&format!(
            "[boot]\nauthority_sha256 = [\"{D1}\"]\nimages = [\"ipxe\", \"attester\"]\ndbx_min_entries = 100\n\
             [[boot.floor]]\nimage = \"attester\"\nversion = 7\n\
             [[class]]\nname = \"control\"\n[class.boot]\nauthority_sha256 = [\"{D2}\"]\nroles = [\"runtime\"]\n\
             [[class.boot.floor]]\nimage = \"attester\"\nversion = 9\n\
             [[class]]\nname = \"plain\"\n"
        ));
        let general = policy.boot(None);
        assert_eq!(general.authority_sha256, [[0x11; 32]]);
        assert_eq!(general.floors[0].version, 7);
        assert_eq!(general.roles, [Role::Provision]);
        let control = policy.boot(Some("control"));
        assert_eq!(control.authority_sha256, [[0x22; 32]]);
        assert_eq!(control.images, ["ipxe", "attester"]);
        assert_eq!(control.dbx_min_entries, 100);
        assert_eq!(control.floors[0].version, 9);
        assert_eq!(control.roles, [Role::Runtime]);
        assert_eq!(
            policy.images().into_iter().collect::<Vec<_>>(),
            ["attester", "ipxe"]
        );
        for class in ["plain", "unheard-of"] {
            assert_eq!(policy.boot(Some(class)), general, "{class}");
        }
    }

    #[test]
    fn what_is_refused_in_general_is_refused_in_a_class_too() {
        let general = format!(
            "[boot]\nwithdrawn_sha256 = [\"{D1}\"]\ndbx_sha256 = [\"{D1}\"]\ndbx_certificate_sha256 = [\"{D1}\"]\n\
             [[boot.floor]]\nimage = \"attester\"\nversion = 7\n\
             [[boot.floor]]\nimage = \"ipxe\"\nversion = 2\n"
        );
        let policy = policy(&format!(
            "{general}[[class]]\nname = \"control\"\n[class.boot]\n\
             withdrawn_sha256 = [\"{D2}\", \"{D1}\"]\ndbx_sha256 = [\"{D2}\"]\n\
             [[class.boot.floor]]\nimage = \"attester\"\nversion = 9\n"
        ));
        let control = policy.boot(Some("control"));
        assert_eq!(control.withdrawn_sha256, [[0x11; 32], [0x22; 32]]);
        assert_eq!(control.dbx_sha256, [[0x11; 32], [0x22; 32]]);
        let floors: Vec<(&str, u64)> = control
            .floors
            .iter()
            .map(|floor| (floor.image.as_str(), floor.version))
            .collect();
        assert_eq!(floors, [("ipxe", 2), ("attester", 9)]);
        assert_eq!(policy.boot(None).withdrawn_sha256, [[0x11; 32]]);
        for key in [
            "withdrawn_sha256",
            "dbx_sha256",
            "dbx_certificate_sha256",
            "floor",
        ] {
            let list = mistakes(&format!(
                "{general}[[class]]\nname = \"control\"\n[class.boot]\n{key} = []\n"
            ));
            assert_eq!(list.len(), 1, "{list:?}");
            assert!(
                list[0].contains(&format!("class[0].boot.{key}")),
                "{list:?}"
            );
        }
    }

    #[test]
    fn grace_is_read_with_its_time() {
        let policy = policy(
            "[[boot.floor]]\nimage = \"attester\"\nversion = 7\ngrace_from = 5\n\
             grace_until = 2026-12-24T01:00:00+01:00\n",
        );
        let grace = policy.boot(None).floors[0].grace;
        assert_eq!(
            grace,
            Some(Grace {
                from: 5,
                // 2026-12-24T00:00:00Z.
                until: 1_798_070_400
            })
        );
    }

    #[test]
    fn rejects_half_a_grace_and_one_that_is_none() {
        let floor = "[[boot.floor]]\nimage = \"a\"\nversion = 7\n";
        for (more, key) in [
            ("grace_from = 5\n", "boot.floor[0].grace_until"),
            (
                "grace_until = 2026-12-24T00:00:00Z\n",
                "boot.floor[0].grace_from",
            ),
            (
                "grace_from = 7\ngrace_until = 2026-12-24T00:00:00Z\n",
                "boot.floor[0].grace_from",
            ),
            // A local time means another moment at every site.
            (
                "grace_from = 5\ngrace_until = 2026-12-24T00:00:00\n",
                "boot.floor[0].grace_until",
            ),
            (
                "grace_from = 5\ngrace_until = \"tomorrow\"\n",
                "boot.floor[0].grace_until",
            ),
            (
                "[[boot.floor]]\nimage = \"a\"\nversion = 8\n",
                "boot.floor[1].image",
            ),
        ] {
            let list = mistakes(&format!("{floor}{more}"));
            assert!(list.iter().any(|m| m.contains(key)), "{more}: {list:?}");
        }
    }

    #[test]
    fn rejects_empty_lists_that_would_allow_all() {
        for key in ["authority_sha256", "images", "roles"] {
            let list = mistakes(&format!("[boot]\n{key} = []\n"));
            assert_eq!(
                list,
                [format!(
                    "line 4: boot.{key}: expected at least one entry; a key that is left out allows all, \
                     found an empty list"
                )]
            );
        }
    }

    #[test]
    fn rejects_signed_option_roms_without_their_signers_and_signers_without_the_rule() {
        let list = mistakes("[boot]\noption_roms = \"signed\"\n");
        assert_eq!(list.len(), 2, "{list:?}");
        assert!(list[0].contains("driver_authority_sha256"), "{list:?}");
        assert!(list[1].contains("authority_sha256"), "{list:?}");
        let list = mistakes(&format!("[boot]\ndriver_authority_sha256 = [\"{D1}\"]\n"));
        assert_eq!(list.len(), 1, "{list:?}");
        let rules = policy(&format!(
            "[boot]\noption_roms = \"signed\"\nauthority_sha256 = [\"{D1}\"]\n\
             driver_authority_sha256 = [\"{D2}\"]\n"
        ));
        assert_eq!(rules.boot(None).option_roms, OptionRoms::Signed);
    }

    #[test]
    fn rejects_words_and_sizes_that_are_none() {
        for (text, key) in [
            ("roles = [\"installer\"]", "boot.roles"),
            ("dbx_min_entries = 70000", "boot.dbx_min_entries"),
            ("dbx_sha256 = [\"zz\"]", "boot.dbx_sha256[0]"),
            (
                "dbx_certificate_sha256 = [1]",
                "boot.dbx_certificate_sha256[0]",
            ),
            ("command_lines = [\"a\\u0000b\"]", "boot.command_lines"),
            ("withdrawn = []", "boot.withdrawn"),
            ("event_types = []", "boot.event_types"),
        ] {
            let list = mistakes(&format!("[boot]\n{text}\n"));
            assert!(list.iter().any(|m| m.contains(key)), "{text}: {list:?}");
        }
    }

    #[test]
    fn a_command_line_is_hashed_as_the_stub_does() {
        // printf 'quiet\0' | iconv -t UTF-16LE | sha256sum
        assert_eq!(
            hex::encode(command_line_digest("quiet")),
            "2d7d7381227937c3ac164a2f36c1e8e8268e91eb28814d8a75ba4c72c2be0155"
        );
        let rules = policy(&format!(
            "[boot]\ncommand_lines = [\"quiet\"]\ncommand_line_sha256 = [\"{D1}\"]\n"
        ));
        assert_eq!(
            rules.boot(None).command_line_sha256,
            [[0x11; 32], command_line_digest("quiet")]
        );
    }
}

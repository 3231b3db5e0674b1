//! What the owner declares about machines before they are seen: `inventory.toml`.
//!
//! Decides whether the file is usable as a whole: one bad entry refuses the file, since a machine
//! left out by a typo would be treated as unknown. Knows no file and no machine state; whether a
//! declared machine may attest is decided in `admission`.

use std::collections::HashMap;

use crate::identity::{EkName, MachineId};
use crate::strict_toml::{Document, Mistake, Section};

/// Most machines in one inventory: far above one segment, low enough to bound the load.
pub const MACHINES_MAX: usize = 16_384;
/// Most EK Names bound to one machine: the TCG EK profile has at most five in common use.
pub const EK_NAMES_MAX: usize = 8;
/// Longest name, serial, port or class, in bytes.
pub const TEXT_MAX_BYTES: usize = 128;

/// One declared machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeclaredMachine {
    /// Stable name: `name`, else `m-` and the serial in lower case.
    pub id: MachineId,
    /// SMBIOS type 1 serial number the binding requires.
    pub serial: String,
    /// EK Names bound to the machine; empty when it is only expected by serial and still has to
    /// be enrolled.
    pub ek_names: Vec<EkName>,
    /// Serial of the one disk that may be written, if declared.
    pub disk_serial: Option<String>,
    /// Switch port the machine is expected at, `chassis/port`, if declared.
    pub port: Option<String>,
    /// Class, which selects the policy.
    pub class: String,
}

/// A checked inventory: ids, serials and EK Names are unique.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Inventory {
    /// The machines, in the order of the file.
    pub machines: Vec<DeclaredMachine>,
}

impl Inventory {
    /// Reads and checks `inventory.toml`.
    ///
    /// # Errors
    /// Every mistake in the file, with line and key path.
    pub fn parse(text: &str) -> Result<Self, Vec<Mistake>> {
        let document = Document::parse(text)?;
        let root = document.root();
        let version = root.integer("version", 1..=1, "(the version of this file)");
        root.required("version", "1", version);
        let mut seen = Seen::default();
        let mut machines = Vec::new();
        for section in root.sections("machine", MACHINES_MAX) {
            machines.extend(read_machine(&section, &mut seen));
            section.close();
        }
        root.close();
        document.finish(Some(Self { machines }))
    }
}

/// What earlier entries already use, by value.
#[derive(Default)]
struct Seen {
    ids: HashMap<String, String>,
    serials: HashMap<String, String>,
    eks: HashMap<String, String>,
}

fn read_machine(section: &Section<'_, '_>, seen: &mut Seen) -> Option<DeclaredMachine> {
    let serial = section.string("serial");
    let serial = section.required("serial", "the SMBIOS serial number", serial);
    let serial = serial.and_then(|text| checked_text(section, "serial", text));
    let name = section.string("name");
    let given = name.is_some();
    let id = match name {
        Some(name) => checked_name(section, name),
        None => serial.as_deref().and_then(|serial| {
            let derived = format!("m-{}", serial.to_ascii_lowercase());
            let usable = is_machine_name(&derived);
            if !usable {
                section.mistake(
                    "name",
                    "a name, since this serial cannot serve as one",
                    "nothing",
                );
            }
            usable.then_some(derived)
        }),
    };
    let ek_names = read_ek_names(section, seen, id.as_deref().unwrap_or("?"));
    let disk_serial = optional_text(section, "disk_serial");
    let port = optional_text(section, "port");
    let class = section.string("class");
    let class = section.required("class", "a class name, for example \"standard\"", class);
    let class = class.and_then(|text| checked_text(section, "class", text));
    let (id, serial) = (id?, serial?);
    claim(
        section,
        if given { "name" } else { "serial" },
        "a name no other machine has",
        &mut seen.ids,
        &id,
        &id,
    );
    let folded = serial.to_ascii_lowercase();
    claim(
        section,
        "serial",
        "a serial no other machine has",
        &mut seen.serials,
        &folded,
        &id,
    );
    Some(DeclaredMachine {
        id: MachineId(id),
        serial,
        ek_names,
        disk_serial,
        port,
        class: class?,
    })
}

fn read_ek_names(section: &Section<'_, '_>, seen: &mut Seen, id: &str) -> Vec<EkName> {
    let mut names = Vec::new();
    for text in section.list::<String>("ek_names", "an EK Name in hex", EK_NAMES_MAX) {
        let folded = text.to_ascii_lowercase();
        if !is_ek_name(&folded) {
            section.mistake(
                "ek_names",
                "hex of nameAlg and digest (000b and 64 digits, 000c and 96, or 000d and 128)",
                format!("{:?}", text.chars().take(150).collect::<String>()),
            );
            continue;
        }
        claim(
            section,
            "ek_names",
            "an EK Name bound to one machine",
            &mut seen.eks,
            &folded,
            id,
        );
        names.push(EkName(folded));
    }
    names
}

fn claim(
    section: &Section<'_, '_>,
    key: &str,
    expected: &str,
    seen: &mut HashMap<String, String>,
    value: &str,
    id: &str,
) {
    if let Some(other) = seen.insert(value.to_owned(), id.to_owned()) {
        section.mistake(
            key,
            expected,
            format!("{value:?}, which {other} has already"),
        );
    }
}

/// `Name` of a TPM object: `nameAlg || digest` (TPM 2.0 Part 1, Names), in lower-case hex.
fn is_ek_name(text: &str) -> bool {
    let digits = match text.get(..4) {
        Some("000b") => 64,
        Some("000c") => 96,
        Some("000d") => 128,
        _ => return false,
    };
    text.len() == 4 + digits && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Whether a text may name a machine: it becomes a certificate's CN, a URL segment and a SPIFFE
/// path segment, so it is 1-63 of `a-z 0-9 . _ -`, starting with a letter or digit.
pub fn is_machine_name(text: &str) -> bool {
    let mut bytes = text.bytes();
    let first = bytes
        .next()
        .is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    first
        && text.len() <= 63
        && bytes.all(|byte| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-".contains(&byte)
        })
}

fn checked_name(section: &Section<'_, '_>, name: String) -> Option<String> {
    let usable = is_machine_name(&name);
    if !usable {
        section.mistake(
            "name",
            "1 to 63 of a-z 0-9 . _ -, starting with a letter or digit",
            format!("{:?}", name.chars().take(80).collect::<String>()),
        );
    }
    usable.then_some(name)
}

fn checked_text(section: &Section<'_, '_>, key: &str, text: String) -> Option<String> {
    let trimmed = text.trim();
    let usable = !trimmed.is_empty()
        && trimmed.len() <= TEXT_MAX_BYTES
        && !trimmed.chars().any(char::is_control);
    if !usable {
        section.mistake(
            key,
            format!("1 to {TEXT_MAX_BYTES} bytes of text without control characters"),
            format!("{:?}", text.chars().take(80).collect::<String>()),
        );
    }
    usable.then(|| trimmed.to_owned())
}

fn optional_text(section: &Section<'_, '_>, key: &'static str) -> Option<String> {
    section
        .string(key)
        .and_then(|text| checked_text(section, key, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ek(digit: char) -> String {
        format!("000b{}", String::from(digit).repeat(64))
    }

    fn mistakes(text: &str) -> Vec<String> {
        match Inventory::parse(text) {
            Ok(inventory) => panic!("expected mistakes, found {inventory:?}"),
            Err(list) => list.iter().map(ToString::to_string).collect(),
        }
    }

    #[test]
    fn reads_a_full_and_a_minimal_machine() {
        let text = format!(
            "version = 1\n[[machine]]\nname = \"node-1\"\nserial = \"ABC\"\nek_names = [\"{}\"]\n\
             disk_serial = \"D1\"\nport = \"sw1/Eth1\"\nclass = \"control\"\n\
             [[machine]]\nserial = \"XYZ9\"\nclass = \"standard\"\n",
            ek('A')
        );
        let inventory = Inventory::parse(&text).expect("valid");
        assert_eq!(inventory.machines.len(), 2);
        assert_eq!(inventory.machines[0].ek_names[0].0, ek('a'));
        assert_eq!(inventory.machines[1].id.0, "m-xyz9");
        assert!(inventory.machines[1].ek_names.is_empty());
    }

    #[test]
    fn rejects_duplicates_across_machines() {
        let text = format!(
            "version = 1\n[[machine]]\nname = \"a\"\nserial = \"S\"\nek_names = [\"{0}\"]\nclass = \"x\"\n\
             [[machine]]\nname = \"a\"\nserial = \"s\"\nek_names = [\"{0}\"]\nclass = \"x\"\n",
            ek('1')
        );
        let list = mistakes(&text);
        assert_eq!(list.len(), 3, "{list:?}");
        assert!(list[0].contains("machine[1].name"), "{list:?}");
        assert!(list[1].contains("machine[1].serial"), "{list:?}");
        assert!(
            list[2].contains("machine[1].ek_names") && list[2].contains("which a has"),
            "{list:?}"
        );
    }

    #[test]
    fn rejects_unknown_keys_and_lists_everything() {
        let list = mistakes(
            "version = 2\n[[machine]]\nserail = \"S\"\nname = \"Node 1\"\nek_names = [\"12\"]\n",
        );
        let all = list.join("\n");
        for part in [
            "version: expected 1 (the",
            "machine[0].serial: expected the SMBIOS",
            "did you mean \"serial\"?",
            "machine[0].name: expected 1 to 63",
            "machine[0].ek_names: expected hex",
            "machine[0].class: expected a class",
        ] {
            assert!(all.contains(part), "{part} is missing in\n{all}");
        }
    }

    #[test]
    fn rejects_a_serial_that_cannot_name_a_machine() {
        let list = mistakes("version = 1\n[[machine]]\nserial = \"To be filled\"\nclass = \"x\"\n");
        assert_eq!(
            list,
            [
                "line 2: machine[0].name: expected a name, since this serial cannot serve as one, found nothing"
            ]
        );
    }

    #[test]
    fn rejects_a_file_without_version() {
        assert_eq!(mistakes(""), ["line 1: version: expected 1, found nothing"]);
    }

    proptest::proptest! {
        #[test]
        fn never_panics(text in "(\\[\\[machine\\]\\]|serial|name|ek_names|=|\"|\\[|\\]|\n|[a-z0-9. ]){0,60}") {
            let _ = Inventory::parse(&text);
        }
    }
}

//! Reads `[handover]`: what admitted machines are given, and which files hold it.

use std::path::{Path, PathBuf};

use attest_wire::sealed::{KIND_MAX_BYTES, is_kind};
use gateway_core::handover::{PAYLOADS_MAX, SPIRE_PACKAGE, Scope};
use gateway_core::identity::MachineId;
use gateway_core::inventory::is_machine_name;
use gateway_core::strict_toml::Section;

use super::{is_dns_name, required_path};

/// `[handover]`
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HandoverFiles {
    /// Payloads, in the order of the file.
    pub payloads: Vec<PayloadFile>,
    /// Where SPIRE is, if machines get a package for its agent.
    pub spire: Option<PayloadSpire>,
    /// Whether an owner may seal secrets in the form that any system on the machine opens.
    pub ekseal: bool,
}

/// `[[handover.payload]]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PayloadFile {
    /// What it is.
    pub kind: String,
    /// Whose.
    pub scope: Scope,
    /// Its content.
    pub file: PathBuf,
    /// Whether variables are filled in.
    pub template: bool,
}

/// `[handover.spire]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PayloadSpire {
    /// Name or address of the server.
    pub address: String,
    /// Its port.
    pub port: u16,
    /// Trust domain, without `spiffe://`.
    pub trust_domain: String,
    /// The bundle, PEM.
    pub bundle: PathBuf,
}

pub(super) fn read_handover(section: &Section<'_, '_>, base: &Path) -> Option<HandoverFiles> {
    let ekseal = section.boolean("ekseal").unwrap_or(false);
    let spire = read_spire(&section.section("spire"), base);
    let mut payloads: Vec<PayloadFile> = Vec::new();
    for entry in section.sections("payload", PAYLOADS_MAX) {
        let payload = read_payload(&entry, base);
        entry.close();
        let Some(payload) = payload else {
            continue;
        };
        let same = |other: &PayloadFile| other.kind == payload.kind && other.scope == payload.scope;
        if payloads.iter().any(same) {
            let expected = "each kind once for a machine, a class, or all";
            entry.mistake("kind", expected, format!("{:?} again", payload.kind));
        }
        payloads.push(payload);
    }
    Some(HandoverFiles {
        payloads,
        spire: spire.ok()?,
        ekseal,
    })
}

fn read_payload(entry: &Section<'_, '_>, base: &Path) -> Option<PayloadFile> {
    let form = format!("a kind of 1 to {KIND_MAX_BYTES} of a-z 0-9 -, for example \"user-data\"");
    let kind = entry.string("kind");
    let kind = entry.required("kind", &form, kind);
    let kind = kind.filter(|kind| {
        if kind == SPIRE_PACKAGE {
            entry.mistake(
                "kind",
                "another kind: handover.spire makes this one",
                format!("{kind:?}"),
            );
            return false;
        }
        if !is_kind(kind) {
            entry.mistake("kind", form.as_str(), format!("{kind:?}"));
        }
        is_kind(kind)
    });
    let file = required_path(entry, "file", "the file with the payload", base);
    let template = entry.boolean("template").unwrap_or(true);
    let class = entry.string("class");
    let machine = entry.string("machine");
    let scope = match (class, machine) {
        (None, None) => Some(Scope::All),
        (Some(class), None) => Some(Scope::Class(class)),
        (None, Some(machine)) if is_machine_name(&machine) => {
            Some(Scope::Machine(MachineId(machine)))
        }
        (None, Some(machine)) => {
            entry.mistake("machine", "the name of a machine", format!("{machine:?}"));
            None
        }
        (Some(_), Some(_)) => {
            entry.mistake("machine", "either class or machine", "both");
            None
        }
    };
    Some(PayloadFile {
        kind: kind?,
        scope: scope?,
        file: file?,
        template,
    })
}

/// None without the section; an error when it has mistakes.
fn read_spire(section: &Section<'_, '_>, base: &Path) -> Result<Option<PayloadSpire>, ()> {
    if !section.present() {
        return Ok(None);
    }
    let form = "the server's name and port, for example \"spire.example.net:8081\"";
    let server = section.string("server");
    let server = section.required("server", form, server);
    let server = server.and_then(|text| {
        let parsed = split_server(&text);
        if parsed.is_none() {
            section.mistake("server", form, format!("{text:?}"));
        }
        parsed
    });
    let form = "a trust domain of a-z 0-9 . - _, without spiffe://";
    let domain = section.string("trust_domain");
    let domain = section.required("trust_domain", form, domain);
    let domain = domain.filter(|domain| {
        let usable = is_trust_domain(domain);
        if !usable {
            section.mistake("trust_domain", form, format!("{domain:?}"));
        }
        usable
    });
    let bundle = required_path(section, "bundle", "the trust bundle (PEM)", base);
    section.close();
    let (address, port) = server.ok_or(())?;
    Ok(Some(PayloadSpire {
        address,
        port,
        trust_domain: domain.ok_or(())?,
        bundle: bundle.ok_or(())?,
    }))
}

fn split_server(text: &str) -> Option<(String, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let port = port.parse::<u16>().ok().filter(|port| *port != 0)?;
    let literal = host
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    let known = match literal {
        Some(v6) => v6.parse::<std::net::Ipv6Addr>().is_ok(),
        None => is_dns_name(host),
    };
    known.then(|| (literal.unwrap_or(host).to_owned(), port))
}

/// SPIFFE ID section 2.1: at most 255 bytes of these letters.
fn is_trust_domain(text: &str) -> bool {
    (1..=255).contains(&text.len())
        && text.bytes().all(|byte| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-_".contains(&byte)
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn parse(more: &str) -> Result<HandoverFiles, Vec<String>> {
        let minimal = include_str!("../../../tests/vectors/config/minimal.ok.toml");
        Config::parse(&format!("{minimal}\n{more}"), Path::new("/etc"))
            .map(|config| config.handover)
            .map_err(|list| list.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn reads_payloads_and_spire_and_nothing_by_default() {
        assert_eq!(parse("").expect("valid"), HandoverFiles::default());
        let read = parse(
            "[handover]\nekseal = true\n\
             [[handover.payload]]\nkind = \"user-data\"\nfile = \"h/user\"\n\
             [[handover.payload]]\nkind = \"user-data\"\nfile = \"/h/n7\"\nmachine = \"node-7\"\ntemplate = false\n\
             [[handover.payload]]\nkind = \"talos-config\"\nfile = \"t\"\nclass = \"worker\"\n\
             [handover.spire]\nserver = \"[fd00::1]:8081\"\ntrust_domain = \"example.net\"\nbundle = \"b.pem\"\n",
        )
        .expect("valid");
        assert!(read.ekseal);
        let [all, one, class] = read.payloads.as_slice() else {
            panic!("{read:?}");
        };
        assert_eq!(
            (all.file.as_path(), all.template),
            (Path::new("/etc/h/user"), true)
        );
        assert_eq!(
            (&one.scope, one.template),
            (&Scope::Machine(MachineId("node-7".into())), false)
        );
        assert_eq!(class.scope, Scope::Class("worker".into()));
        let spire = read.spire.expect("a server");
        assert_eq!((spire.address.as_str(), spire.port), ("fd00::1", 8081));
    }

    #[test]
    fn rejects_each_mistake_with_its_key() {
        let wrong = parse(
            "[[handover.payload]]\nkind = \"User Data\"\nfile = \"x\"\n\
             [[handover.payload]]\nkind = \"spire-package\"\nfile = \"x\"\n\
             [[handover.payload]]\nkind = \"a\"\nclass = \"x\"\nmachine = \"y\"\n\
             [[handover.payload]]\nkind = \"a\"\nfile = \"x\"\n\
             [[handover.payload]]\nkind = \"a\"\nfile = \"x\"\nsecret = 1\n\
             [handover.spire]\nserver = \"spire\"\ntrust_domain = \"spiffe://x\"\n",
        )
        .expect_err("mistakes");
        let all = wrong.join("\n");
        for part in [
            "handover.payload[0].kind: expected a kind",
            "handover.payload[1].kind: expected another kind",
            "handover.payload[2].machine: expected either",
            "handover.payload[2].file: expected the file",
            "handover.payload[4].kind: expected each kind once",
            "handover.payload[4].secret",
            "handover.spire.server: expected the server",
            "handover.spire.trust_domain: expected a trust domain",
            "handover.spire.bundle: expected the trust bundle",
        ] {
            assert!(all.contains(part), "{part} is missing in\n{all}");
        }
    }
}

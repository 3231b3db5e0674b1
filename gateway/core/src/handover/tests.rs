#![allow(clippy::unwrap_used, reason = "tests: a failed step ends them")]

use proptest::prelude::*;

use super::*;

fn template(text: &str) -> Result<Template, TemplateError> {
    Template::parse(Zeroizing::new(text.to_owned()))
}

fn node() -> Values {
    Values {
        machine: "node-7".into(),
        class: "worker".into(),
        address: "10.20.0.100".into(),
        serial: Some("SN 1/2".into()),
        disk_serial: None,
        port: Some("sw1/Eth1".into()),
    }
}

fn payload(kind: &str, scope: Scope, text: &str) -> Payload {
    Payload {
        kind: kind.to_owned(),
        scope,
        content: Content::Template(template(text).unwrap()),
    }
}

fn text_of(item: &Item) -> String {
    String::from_utf8(item.bytes.to_vec()).unwrap()
}

#[test]
fn variables_are_filled_in_and_everything_else_stays() {
    let text = "hostname: {{ machine }}\n# {{class}}, {{address}}\nlabel: \"{{ serial }}@{{ port }}\" {x} }}\n";
    let filled = template(text).unwrap().render(&node()).unwrap();
    assert_eq!(
        std::str::from_utf8(&filled).unwrap(),
        "hostname: node-7\n# worker, 10.20.0.100\nlabel: \"SN 1/2@sw1/Eth1\" {x} }}\n"
    );
    assert_eq!(&template("").unwrap().render(&node()).unwrap()[..], b"");
}

#[test]
fn rejects_an_unknown_variable_with_its_name_and_line() {
    let error = template("a\nb {{ hostname }}\n").unwrap_err();
    assert_eq!(
        error.to_string(),
        "line 2: expected machine, class, address, serial, disk_serial, port, found variable \"hostname\""
    );
    for text in ["{{ machine", "{{ machine\n}}", "{{", "a {{ machine }} {{"] {
        assert!(
            template(text).unwrap_err().expected.contains("}}"),
            "{text:?}"
        );
    }
    assert!(template("{{ Machine }}").is_err());
    assert!(template("{{ machine | upper }}").is_err());
}

#[test]
fn rejects_what_is_not_declared_and_what_is_not_plain() {
    let error = template("x\n{{ disk_serial }}")
        .unwrap()
        .render(&node())
        .unwrap_err();
    assert_eq!(
        (error.line, error.expected.as_str()),
        (2, "a value of disk_serial")
    );
    for serial in [
        "a\"b",
        "a\nb",
        "a: b",
        "a'b",
        "$(reboot)",
        "`x`",
        "#a",
        "{{ machine }}",
        "a\u{e9}",
        " a",
        "a\\b",
    ] {
        let values = Values {
            serial: Some(serial.to_owned()),
            ..node()
        };
        assert!(
            template("{{ serial }}").unwrap().render(&values).is_err(),
            "{serial:?}"
        );
    }
}

#[test]
fn the_nearest_payload_of_a_kind_counts() {
    let of = |machine: &str| Scope::Machine(MachineId(machine.to_owned()));
    let handover = Handover::new(
        vec![
            payload("user-data", of("node-7"), "mine"),
            payload("user-data", Scope::All, "all"),
            payload("user-data", Scope::Class("worker".into()), "workers"),
            payload("meta-data", Scope::All, "{{ machine }}"),
            payload("vendor-data", Scope::Class("control".into()), "control"),
            payload("talos-config", of("node-8"), "another's"),
        ],
        None,
    )
    .unwrap();
    let taken = |values: &Values| -> Vec<(String, String)> {
        let items = handover.items(&handover.chosen(values), values).unwrap();
        items
            .iter()
            .map(|item| (item.kind.clone(), text_of(item)))
            .collect()
    };
    let pair = |kind: &str, text: &str| (kind.to_owned(), text.to_owned());
    assert_eq!(
        taken(&node()),
        [pair("user-data", "mine"), pair("meta-data", "node-7")]
    );
    let other = Values {
        machine: "node-9".into(),
        ..node()
    };
    assert_eq!(
        taken(&other),
        [pair("user-data", "workers"), pair("meta-data", "node-9")]
    );
    let control = Values {
        machine: "node-1".into(),
        class: "control".into(),
        ..node()
    };
    assert_eq!(
        taken(&control),
        [
            pair("user-data", "all"),
            pair("meta-data", "node-1"),
            pair("vendor-data", "control")
        ]
    );
}

#[test]
fn the_package_of_spire_is_made_of_the_configuration() {
    let spire = Spire {
        trust_domain: "example.net".into(),
        server_address: "spire.example.net".into(),
        server_port: 8081,
        bundle: "-----BEGIN CERTIFICATE-----\n".into(),
    };
    let handover = Handover::new(Vec::new(), Some(spire)).unwrap();
    let items = handover.items(&[], &node()).unwrap();
    assert_eq!(items[0].kind, SPIRE_PACKAGE);
    assert_eq!(
        text_of(&items[0]),
        r#"{"version":1,"trust_domain":"example.net","server_address":"spire.example.net","server_port":8081,"trust_bundle":"-----BEGIN CERTIFICATE-----\n"}"#
    );
}

#[test]
fn rejects_kinds_that_are_no_names_are_twice_or_are_made_by_us() {
    let wrong = Handover::new(
        vec![
            payload("User Data", Scope::All, ""),
            payload("spire-package", Scope::All, ""),
            payload("user-data", Scope::All, ""),
            payload("user-data", Scope::All, ""),
        ],
        None,
    )
    .err()
    .unwrap();
    assert_eq!(wrong.len(), 3, "{wrong:?}");
    assert!(
        wrong[0].contains("User Data") && wrong[1].contains("spire") && wrong[2].contains("twice")
    );
}

proptest! {
    #[test]
    fn any_text_is_a_template_or_an_error(text in "(\\{\\{|\\}\\}| |machine|\n|x|é){0,30}") {
        if let Ok(template) = template(&text) {
            let filled = template.render(&node()).unwrap();
            prop_assert!(!std::str::from_utf8(&filled).unwrap().contains("{{ machine }}"));
        }
    }
}

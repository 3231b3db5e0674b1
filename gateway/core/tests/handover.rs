//! Who gets payloads: after an admission, once, on record before they leave.

#![allow(clippy::unwrap_used, reason = "a test: a failed step ends it")]

mod support;

use std::net::Ipv4Addr;

use attest_wire::v1::Verdict;
use attest_wire::v1::handover::{Ability, SealedStatement};
use gateway_core::admission::command::{Caller, Command, Role};
use gateway_core::admission::secret::SecretRequest;
use gateway_core::handover::{Content, Handover, Payload, Scope, Template};
use gateway_core::identity::{EkName, MachineId};
use gateway_core::inventory::{DeclaredMachine, Inventory};
use gateway_core::policy::Preset;
use gateway_core::record::{Act, Record};
use support::Node;
use support::log::{LogBuilder, honest};
use support::site::{IPXE, STUB, Site, UKI, node};
use zeroize::Zeroizing;

const PEER: Ipv4Addr = Ipv4Addr::new(10, 66, 0, 100);

fn handover(text: &str) -> Handover {
    let template = Template::parse(Zeroizing::new(text.to_owned())).unwrap();
    let payload = Payload {
        kind: "user-data".into(),
        scope: Scope::All,
        content: Content::Template(template),
    };
    Handover::new(vec![payload], None).unwrap()
}

fn ek_names(node: &Node) -> Vec<EkName> {
    let names = node.eks.iter().map(|ek| ek.public.name().to_hex());
    names.map(EkName).collect()
}

fn able(mut node: Node) -> Node {
    node.can = vec![Ability::Payloads];
    node
}

fn site_of(node: &Node, preset: Preset, text: &str) -> Site {
    let inventory = Inventory {
        machines: vec![DeclaredMachine {
            id: MachineId("node-7".into()),
            serial: node.serial.clone(),
            ek_names: ek_names(node),
            disk_serial: None,
            port: None,
            class: "standard".into(),
        }],
    };
    let mut site = Site::with(inventory, preset);
    site.handover = handover(text);
    site
}

#[test]
fn an_admitted_machine_gets_its_payloads_and_the_record_is_first() {
    let node = able(node());
    let mut site = site_of(
        &node,
        Preset::Standard,
        "hostname: {{ machine }} {{ address }}",
    );
    let (status, result) = site.attempt(&node, 1, PEER);
    assert_eq!(status, 200, "{}", result.hint);
    let sealed = result.sealed.unwrap();
    let said: SealedStatement = serde_json::from_slice(&sealed.statement.0).unwrap();
    assert_eq!((said.machine.as_str(), sealed.ek), ("node-7", 0));
    assert_eq!(said.ek_name, ek_names(&node)[0].0);
    let (_, _, last) = site.disk.ledger.last().unwrap();
    let Record::Delivery(delivery) = last else {
        panic!("{last:?}");
    };
    assert_eq!(delivery.object_name, said.object_name);
    let plain = support::log::sha256(b"hostname: node-7 10.66.0.100");
    assert_eq!(delivery.items[0].sha256, hex::encode(plain));
    let timeline = site.gateway.timeline(&MachineId("node-7".into())).unwrap();
    assert!(
        timeline
            .iter()
            .any(|entry| entry.text.contains("user-data"))
    );
}

#[test]
fn an_attester_that_says_nothing_gets_none() {
    let node = node();
    let mut site = site_of(&node, Preset::Standard, "x");
    let (status, result) = site.attempt(&node, 1, PEER);
    assert_eq!((status, result.sealed), (200, None));
    assert_eq!(result.hint, "admitted as node-7");
}

#[test]
fn a_claim_and_a_cordoned_machine_get_none() {
    let known = able(node());
    let stranger = able(node());
    let mut site = site_of(&known, Preset::Standard, "x");
    let (status, result) = site.attempt(&stranger, 1, PEER);
    assert_eq!(
        (status, result.verdict, result.sealed),
        (202, Verdict::Pending, None)
    );
    site.act(Command::Cordon(MachineId("node-7".into())));
    let (status, result) = site.attempt_refused(&known, 2, PEER);
    assert_eq!((status, result.sealed), (403, None));
    let none = |record: &Record| !matches!(record, Record::Delivery(_));
    assert!(site.disk.ledger.iter().all(|(_, _, record)| none(record)));
}

#[test]
fn rejects_payloads_for_a_boot_that_was_only_reported() {
    let unknown = [9; 32];
    let log = LogBuilder::write(&honest(&[unknown, IPXE, UKI, UKI], &STUB));
    let node = able(Node::new(log));
    let mut site = site_of(&node, Preset::Observe, "x");
    let (status, result) = site.attempt(&node, 1, PEER);
    assert_eq!((status, result.sealed), (200, None));
    assert!(
        result.hint.contains("payloads withheld: handover.image"),
        "{}",
        result.hint
    );
    assert!(site.refused.iter().any(|code| code == "handover.image"));
}

#[test]
fn rejects_a_template_whose_value_is_missing_and_admits_the_machine() {
    let node = able(node());
    let mut site = site_of(&node, Preset::Standard, "{{ disk_serial }}");
    let (status, result) = site.attempt(&node, 1, PEER);
    assert_eq!((status, result.sealed), (200, None));
    assert!(result.hint.contains("handover.template"), "{}", result.hint);
    assert_eq!(result.devid_chain.len(), 1);
}

fn caller(role: Role) -> Caller {
    Caller {
        cn: "ada".into(),
        role,
    }
}

fn seal(
    site: &mut Site,
    role: Role,
    machine: &str,
    kind: &str,
    secret: &[u8],
) -> Result<String, String> {
    let request = SecretRequest {
        machine: MachineId(machine.into()),
        kind: kind.into(),
        secret: Zeroizing::new(secret.to_vec()),
        pcrs: true,
    };
    let now = site.now;
    let done = site
        .gateway
        .seal_secret(now, &caller(role), &request, &[7; 32]);
    site.drain();
    done.map_err(|reason| reason.code.into_owned())
}

#[test]
fn a_secret_is_sealed_for_an_owner_to_a_machine_that_has_proven_its_key() {
    let node = node();
    let mut site = site_of(&node, Preset::Standard, "x");
    let refused = |code: &str| Err(code.to_owned());
    assert_eq!(
        seal(&mut site, Role::Owner, "node-7", "secret", b"x"),
        refused("secret.ek")
    );
    assert_eq!(site.attempt(&node, 1, PEER).0, 200);
    for (role, machine, kind, secret, code) in [
        (Role::Operator, "node-7", "secret", &b"x"[..], "admin.role"),
        (Role::Owner, "node-8", "secret", b"x", "machine.unknown"),
        (Role::Owner, "node-7", "talos-config", b"x", "secret.kind"),
        (Role::Owner, "node-7", "spire-package", b"x", "secret.kind"),
        (Role::Owner, "node-7", "A b", b"x", "secret.kind"),
        (Role::Owner, "node-7", "secret", b"", "secret.size"),
        (Role::Owner, "node-7", "secret", &[0; 129], "secret.size"),
    ] {
        assert_eq!(
            seal(&mut site, role, machine, kind, secret),
            refused(code),
            "{kind}"
        );
    }
    let before = site.disk.ledger.len();
    let line = seal(&mut site, Role::Owner, "node-7", "secret", b"x").unwrap();
    assert_eq!(line.split("@@NULL@@").count(), 3);
    let (_, _, record) = &site.disk.ledger[before];
    let Record::Operator(act) = record else {
        panic!("{record:?}");
    };
    assert!(
        matches!(&act.act, Act::SealSecret { pcrs: true, ek_name, .. } if *ek_name == ek_names(&node)[0])
    );
    // The same seed gives the same line: nothing else is random.
    assert_eq!(
        seal(&mut site, Role::Owner, "node-7", "secret", b"x").unwrap(),
        line
    );
    site.act(Command::Cordon(MachineId("node-7".into())));
    assert_eq!(
        seal(&mut site, Role::Owner, "node-7", "secret", b"x"),
        refused("machine.state")
    );
    site.act(Command::Uncordon(MachineId("node-7".into())));
    site.restart();
    assert_eq!(
        seal(&mut site, Role::Owner, "node-7", "secret", b"x"),
        refused("secret.ek")
    );
}

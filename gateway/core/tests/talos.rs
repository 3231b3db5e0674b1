//! Talos nodes against the whole core: disk keys by the KMS, the machine config by the device flow. Every
//! refusal changes one thing of what passes.

#![allow(clippy::unwrap_used)]
#![allow(dead_code)]

mod support;

use std::net::{IpAddr, Ipv4Addr};

use gateway_core::admission::command::{Caller, Command, Role};
use gateway_core::identity::{EkName, MacAddr, MachineId, UnixMillis};
use gateway_core::record::{Act, Claim, LeaseRecord, OperatorAct, Record, TalosEvent, Verdict};
use gateway_core::talos::device::{DeviceRequest, GRANT_TYPE, OAuthError, TokenRequest};
use gateway_core::talos::kms::{Call, Code, KEY_BYTES, Operation, SEALED_BYTES};
use support::site::Site;
use zeroize::Zeroizing;

const START: UnixMillis = UnixMillis(1_800_000_000_000);

fn uuid(n: u8) -> String {
    format!("4c4c4544-0042-3510-8052-b7c04f5644{n:02x}")
}

fn mac(n: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, n])
}

fn addr(n: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 66, 0, 100 + n))
}

/// What the ledger has of machine `n`, admitted with this UUID.
fn admitted(n: u8, node_uuid: Option<String>) -> [Record; 3] {
    let machine = MachineId(format!("n{n}"));
    let ek_names = vec![EkName(format!("000b{}", hex::encode([n; 32])))];
    [
        Record::Claim(Claim {
            machine: machine.clone(),
            ek_names: ek_names.clone(),
            serial: format!("S{n}"),
            macs: vec![mac(n)],
            disks: Vec::new(),
            port: None,
            assurance: "bare-ek".into(),
            report_sha256: hex::encode([n; 32]),
            would_refuse: Vec::new(),
            correlation: "c".into(),
        }),
        Record::Operator(OperatorAct {
            by: "owner".into(),
            role: "owner".into(),
            act: Act::Approve {
                machine: machine.clone(),
                ek_names: ek_names.clone(),
                serial: format!("S{n}"),
                disk_serial: None,
                port: Some("leaf-1/Ethernet1/7".into()),
                class: "worker".into(),
                compared: "console".into(),
            },
        }),
        Record::Verdict(Verdict {
            machine: Some(machine),
            admitted: true,
            ek_names,
            ek_keys: vec![],
            ak_name: "000b".into(),
            macs: vec![mac(n)],
            node_uuid,
            counters: None,
            boot_mark: None,
            image_sha256: None,
            port: None,
            assurance: "bare-ek".into(),
            devid_auth: "none".into(),
            seal: "development".into(),
            reasons: Vec::new(),
            policy_sha256: String::new(),
            correlation: "c".into(),
        }),
    ]
}

fn lease(n: u8, port: Option<&str>) -> LeaseRecord {
    LeaseRecord {
        addr: Ipv4Addr::new(10, 66, 0, 100 + n),
        client: format!("01{}", hex::encode(mac(n).0)),
        mac: mac(n),
        state: "bound".into(),
        expires: UnixMillis(START.0 + 86_400_000),
        port: port.map(|circuit| format!("0.0.0.0/{}/", hex::encode(circuit))),
    }
}

/// Machines 1 and 2, admitted and at their leases; address 3 is leased to nobody that is known.
fn site() -> Site {
    site_of(&[(1, Some(uuid(1))), (2, Some(uuid(2)))])
}

fn site_of(machines: &[(u8, Option<String>)]) -> Site {
    let mut site = Site::new();
    site.now = START;
    let records = machines
        .iter()
        .flat_map(|(n, uuid)| admitted(*n, uuid.clone()));
    site.disk.ledger = (1..)
        .zip(records)
        .map(|(seq, record)| (seq, START, record))
        .collect();
    site.disk.leases = (1..=3).map(|n| lease(n, None)).collect();
    site.restart();
    site
}

fn key() -> Zeroizing<Vec<u8>> {
    Zeroizing::new((0..KEY_BYTES as u8).collect())
}

fn ask(
    site: &mut Site,
    operation: Operation,
    node_uuid: &str,
    peer: IpAddr,
    data: &[u8],
) -> Result<Vec<u8>, (Code, String)> {
    let call = Call {
        operation,
        node_uuid: node_uuid.into(),
        data: Zeroizing::new(data.to_vec()),
        peer,
        nonce: [9; 12],
        correlation: "x".into(),
    };
    let answer = site.gateway.disk_key(site.now, &call);
    site.drain();
    answer
        .map(|bytes| bytes.to_vec())
        .map_err(|refused| (refused.code, refused.reason.code.into_owned()))
}

fn talos_events(site: &Site) -> Vec<TalosEvent> {
    let records = site.disk.ledger.iter();
    records
        .filter_map(|(_, _, record)| match record {
            Record::Talos(record) => Some(record.event.clone()),
            _ => None,
        })
        .collect()
}

fn refused(code: &str) -> Result<Vec<u8>, (Code, String)> {
    Err((Code::PermissionDenied, code.to_owned()))
}

#[test]
fn a_disk_key_comes_back_at_each_boot_and_after_a_restart() {
    let mut site = site();
    let sealed = ask(&mut site, Operation::Seal, &uuid(1), addr(1), &key()).unwrap();
    assert_eq!(sealed.len(), SEALED_BYTES);
    assert!(!sealed.windows(8).any(|part| part == &key()[..8]));
    let again = ask(
        &mut site,
        Operation::Seal,
        &uuid(1).to_uppercase(),
        addr(1),
        &key(),
    );
    assert!(again.is_ok());
    for _ in 0..2 {
        let opened = ask(&mut site, Operation::Unseal, &uuid(1), addr(1), &sealed);
        assert_eq!(opened.as_deref(), Ok(&key()[..]));
        site.restart();
    }
    assert_eq!(
        talos_events(&site),
        [TalosEvent::DiskKeySealed],
        "once, and no key in it"
    );
}

/// Rows 1 and 2 of the liars' suite, for disks: another machine with its own lease, or one with this
/// machine's UUID.
#[test]
fn attack_02_a_disk_in_another_machine_stays_shut() {
    let mut site = site();
    let sealed = ask(&mut site, Operation::Seal, &uuid(1), addr(1), &key()).unwrap();
    for (name, uuid_shown, peer, expected) in [
        (
            "this UUID from another machine's lease",
            uuid(1),
            addr(2),
            refused("node.address"),
        ),
        (
            "this UUID from a stranger's lease",
            uuid(1),
            addr(3),
            refused("node.address"),
        ),
        (
            "this UUID without a lease",
            uuid(1),
            addr(9),
            refused("node.address"),
        ),
        (
            "the other machine as itself",
            uuid(2),
            addr(2),
            Err((Code::InvalidArgument, "kms.sealed_elsewhere".to_owned())),
        ),
        ("an unknown UUID", uuid(7), addr(1), refused("node.unknown")),
        ("no UUID", String::new(), addr(1), refused("node.uuid")),
        (
            "a placeholder",
            "00000000-0000-0000-0000-000000000000".into(),
            addr(1),
            refused("node.uuid"),
        ),
    ] {
        assert_eq!(
            ask(&mut site, Operation::Unseal, &uuid_shown, peer, &sealed),
            expected,
            "{name}"
        );
    }
}

#[test]
fn rejects_every_edited_byte_and_every_other_length() {
    let mut site = site();
    let sealed = ask(&mut site, Operation::Seal, &uuid(1), addr(1), &key()).unwrap();
    let length = Err((Code::InvalidArgument, "kms.length".to_owned()));
    for len in [0, 31, 33, 59, 61, 1_000] {
        assert_eq!(
            ask(&mut site, Operation::Seal, &uuid(1), addr(1), &vec![0; len]),
            length
        );
        assert_eq!(
            ask(
                &mut site,
                Operation::Unseal,
                &uuid(1),
                addr(1),
                &vec![0; len]
            ),
            length
        );
    }
    for at in 0..sealed.len() {
        site.now.0 += 2_000;
        let mut bad = sealed.clone();
        bad[at] ^= 1;
        let answer = ask(&mut site, Operation::Unseal, &uuid(1), addr(1), &bad);
        assert_eq!(
            answer,
            Err((Code::InvalidArgument, "kms.sealed_elsewhere".to_owned())),
            "byte {at}"
        );
    }
}

/// Crypto-withdrawal: from the act on, over a restart, and recorded once for each state.
#[test]
fn a_withdrawn_machine_does_not_open_its_disk() {
    let mut site = site();
    let sealed = ask(&mut site, Operation::Seal, &uuid(1), addr(1), &key()).unwrap();
    let id = MachineId("n1".into());
    let unseal = |site: &mut Site| ask(site, Operation::Unseal, &uuid(1), addr(1), &sealed);
    site.act(Command::Cordon(id.clone()));
    for _ in 0..3 {
        assert_eq!(unseal(&mut site), refused("machine.state"));
    }
    site.act(Command::Uncordon(id.clone()));
    assert!(unseal(&mut site).is_ok());
    site.act(Command::Cordon(id.clone()));
    assert_eq!(unseal(&mut site), refused("machine.state"));
    site.act(Command::Withdraw(id.clone(), "stolen".into()));
    for _ in 0..2 {
        assert_eq!(unseal(&mut site), refused("machine.state"));
        assert_eq!(
            ask(&mut site, Operation::Seal, &uuid(1), addr(1), &key()),
            refused("machine.state")
        );
        site.restart();
    }
    site.act(Command::Retire(id));
    assert_eq!(unseal(&mut site), refused("machine.state"));
    let state = |state: &str| TalosEvent::DiskKeyRefused {
        state: state.into(),
    };
    let expected = [
        TalosEvent::DiskKeySealed,
        state("cordoned"),
        state("cordoned"),
        state("withdrawn"),
        state("retired"),
    ];
    assert_eq!(talos_events(&site), expected);
    assert!(
        ask(&mut site, Operation::Seal, &uuid(2), addr(2), &key()).is_ok(),
        "the others go on"
    );
}

/// Omni met boards that share a UUID (omni#924): neither is served, until one has left.
#[test]
fn omni_924_two_machines_with_one_uuid_are_ambiguous() {
    let mut site = site_of(&[(1, Some(uuid(1))), (2, Some(uuid(1)))]);
    for n in [1, 2] {
        assert_eq!(
            ask(&mut site, Operation::Seal, &uuid(1), addr(n), &key()),
            refused("node.ambiguous")
        );
    }
    site.act(Command::Withdraw(MachineId("n2".into()), "double".into()));
    assert!(ask(&mut site, Operation::Seal, &uuid(1), addr(1), &key()).is_ok());
    assert_eq!(
        ask(&mut site, Operation::Seal, &uuid(1), addr(2), &key()),
        refused("node.address")
    );
}

#[test]
fn a_machine_at_another_port_is_refused() {
    for (circuit, expected) in [
        (None, true),
        (Some("Ethernet1/7"), true),
        (Some("whatever"), true),
        (Some("Ethernet1/9"), false),
    ] {
        let mut site = site();
        site.disk.leases = vec![lease(1, circuit)];
        site.restart();
        let answer = ask(&mut site, Operation::Seal, &uuid(1), addr(1), &key());
        match expected {
            true => assert!(answer.is_ok(), "{circuit:?} {answer:?}"),
            false => assert_eq!(answer, refused("node.port"), "{circuit:?}"),
        }
    }
}

#[test]
fn calls_and_their_records_are_bounded() {
    let mut site = site();
    let mut answers = (0..100).map(|_| ask(&mut site, Operation::Seal, &uuid(1), addr(1), &key()));
    assert_eq!(answers.by_ref().take(60).filter(Result::is_ok).count(), 60);
    let busy = Err((Code::ResourceExhausted, "kms.rate".to_owned()));
    assert!(answers.all(|answer| answer == busy));
    assert!(ask(&mut site, Operation::Seal, &uuid(2), addr(2), &key()).is_ok());
    site.now.0 += 60_000;
    assert!(ask(&mut site, Operation::Seal, &uuid(1), addr(1), &key()).is_ok());
    // Strangers take nothing from machines.
    let flood = (0..500).map(|_| {
        ask(
            &mut site,
            Operation::Unseal,
            &uuid(1),
            addr(9),
            &[0; SEALED_BYTES],
        )
    });
    assert_eq!(flood.filter(|answer| *answer == busy).count(), 400);
    assert!(ask(&mut site, Operation::Seal, &uuid(2), addr(2), &key()).is_ok());
    let before = site.disk.ledger.len();
    for n in 0..1_000 {
        let _ = ask(
            &mut site,
            Operation::Unseal,
            &format!("{n}"),
            addr(3),
            &[0; SEALED_BYTES],
        );
    }
    assert!(
        site.disk.ledger.len() <= before + 2,
        "a flood buys {}",
        site.disk.ledger.len() - before
    );
}

fn owner() -> Caller {
    Caller {
        cn: "owner".into(),
        role: Role::Owner,
    }
}

fn code(site: &mut Site, machine: &str, window_ms: u64) -> String {
    let id = MachineId(machine.into());
    let code = site
        .gateway
        .talos_code(site.now, &owner(), &id, window_ms, &[5; 32])
        .unwrap();
    site.drain();
    assert_eq!(code.len(), 43, "256 bits");
    code.to_string()
}

struct Node {
    n: u8,
    peer: IpAddr,
}

impl Node {
    fn new(n: u8) -> Self {
        Self { n, peer: addr(n) }
    }

    fn begin(&self, site: &mut Site, code: &str) -> Result<String, OAuthError> {
        self.begin_as(site, code, &uuid(self.n), &mac(self.n).to_string())
    }

    fn begin_as(
        &self,
        site: &mut Site,
        code: &str,
        uuid: &str,
        mac: &str,
    ) -> Result<String, OAuthError> {
        let request = DeviceRequest {
            client_id: "vestibule".into(),
            code: Zeroizing::new(code.into()),
            uuid: Some(uuid.into()),
            mac: Some(mac.into()),
        };
        // Random of the shell: another at each call.
        let random = [site.now.0 as u8; 32];
        let answer = site
            .gateway
            .device_code(site.now, self.peer, &request, &random, "x");
        site.drain();
        site.now.0 += 5_000;
        answer.map(|answer| answer.device_code.to_string())
    }

    fn poll(&self, site: &mut Site, device_code: &str) -> Result<String, OAuthError> {
        let request = TokenRequest {
            client_id: "vestibule".into(),
            grant_type: GRANT_TYPE.into(),
            device_code: Zeroizing::new(device_code.into()),
        };
        let random = [site.now.0 as u8 ^ 0x55; 32];
        let answer = site
            .gateway
            .device_token(site.now, self.peer, &request, &random, "x");
        site.drain();
        answer.map(|token| token.to_string())
    }

    /// The machine whose config came, or the code of the refusal.
    fn fetch(&self, site: &mut Site, bearer: &str) -> String {
        let answer = site
            .gateway
            .talos_config(site.now, self.peer, bearer, true, "x");
        site.drain();
        match answer {
            Ok(facts) => facts.machine.0,
            Err(reason) => reason.code.into_owned(),
        }
    }
}

fn state(site: &Site, machine: &str) -> String {
    site.machine(machine).state
}

#[test]
fn the_code_of_an_admitted_machine_gets_its_config() {
    let mut site = site();
    let code = code(&mut site, "n1", 3_600_000);
    let node = Node::new(1);
    let device_code = node.begin(&mut site, &code).unwrap();
    let bearer = node.poll(&mut site, &device_code).unwrap();
    assert_eq!(node.fetch(&mut site, &bearer), "n1");
    // A transfer that broke off.
    assert_eq!(node.fetch(&mut site, &bearer), "n1");
    assert_eq!(
        node.poll(&mut site, &device_code),
        Err(OAuthError::InvalidGrant),
        "one token"
    );
    site.now.0 += 300_000;
    assert_eq!(node.fetch(&mut site, &bearer), "talos.bearer");
    let events = talos_events(&site);
    assert!(
        matches!(
            events[..],
            [
                TalosEvent::CodeIssued { .. },
                TalosEvent::ConfigApproved,
                TalosEvent::ConfigDelivered
            ]
        ),
        "{events:?}"
    );
    let text = serde_json::to_string(&site.disk.ledger).unwrap();
    for secret in [&code, &device_code, &bearer] {
        assert!(!text.contains(secret.as_str()));
    }
}

/// Row 3: a URL, a guess, or what a console shows is no code.
#[test]
fn attack_03_without_the_code_there_is_no_config() {
    let mut site = site();
    let good = code(&mut site, "n1", 3_600_000);
    let node = Node::new(1);
    for shown in ["", "guess", &good[..42], &good.to_lowercase()] {
        let device_code = node.begin(&mut site, shown).unwrap();
        assert_eq!(
            node.poll(&mut site, &device_code),
            Err(OAuthError::AccessDenied),
            "{shown}"
        );
        assert_eq!(node.fetch(&mut site, shown), "talos.bearer");
        assert_eq!(node.fetch(&mut site, &device_code), "talos.bearer");
    }
    assert_eq!(state(&site, "n1"), "admitted");
    let device_code = node.begin(&mut site, &good).unwrap();
    assert!(
        node.poll(&mut site, &device_code).is_ok(),
        "the machine itself goes on"
    );
}

/// Rows 1 and 2: a code that was read somewhere is useless to another machine, and the copy is noticed.
#[test]
fn attack_01_a_code_in_another_machines_hands_ends_the_machine() {
    let cases: [(&str, u8, u8, String); 2] = [
        ("another machine's lease", 2, 2, mac(2).to_string()),
        (
            "another lease with this UUID and mac",
            2,
            1,
            mac(1).to_string(),
        ),
    ];
    for (name, place, uuid_of, shown_mac) in cases {
        let mut site = site();
        let code = code(&mut site, "n1", 3_600_000);
        let thief = Node {
            n: 1,
            peer: addr(place),
        };
        let device_code = thief
            .begin_as(&mut site, &code, &uuid(uuid_of), &shown_mac)
            .unwrap();
        assert_eq!(
            thief.poll(&mut site, &device_code),
            Err(OAuthError::AccessDenied),
            "{name}"
        );
        assert_eq!(state(&site, "n1"), "withdrawn", "{name}");
        assert!(
            site.refused.iter().any(|code| code == "talos.code_misused"),
            "{name}"
        );
        let device_code = Node::new(1).begin(&mut site, &code).unwrap();
        assert_eq!(
            Node::new(1).poll(&mut site, &device_code),
            Err(OAuthError::AccessDenied)
        );
        assert_eq!(state(&site, "n2"), "admitted");
        site.restart();
        assert_eq!(state(&site, "n1"), "withdrawn", "{name}");
    }
}

/// A lease can be given back in somebody else's name, and evidence need not have every address: that alone
/// ends nobody.
#[test]
fn a_code_from_no_machines_place_is_refused_and_ends_nobody() {
    let cases: [(&str, u8, u8, String); 3] = [
        ("an address that nobody leased", 9, 1, mac(1).to_string()),
        ("this lease with another UUID", 1, 2, mac(1).to_string()),
        ("this lease with another mac", 1, 1, mac(2).to_string()),
    ];
    for (name, place, uuid_of, shown_mac) in cases {
        let mut site = site();
        let code = code(&mut site, "n1", 3_600_000);
        let node = Node {
            n: 1,
            peer: addr(place),
        };
        let device_code = node
            .begin_as(&mut site, &code, &uuid(uuid_of), &shown_mac)
            .unwrap();
        assert_eq!(
            node.poll(&mut site, &device_code),
            Err(OAuthError::AccessDenied),
            "{name}"
        );
        assert_eq!(state(&site, "n1"), "admitted", "{name}");
        let device_code = Node::new(1).begin(&mut site, &code).unwrap();
        assert!(Node::new(1).poll(&mut site, &device_code).is_ok(), "{name}");
    }
}

#[test]
fn a_config_that_cannot_be_made_uses_no_code_up() {
    let mut site = site();
    let code = code(&mut site, "n1", 3_600_000);
    let node = Node::new(1);
    for _ in 0..2 {
        let device_code = node.begin(&mut site, &code).unwrap();
        let bearer = node.poll(&mut site, &device_code).unwrap();
        let asked = site
            .gateway
            .talos_config(site.now, node.peer, &bearer, false, "x");
        assert_eq!(asked.unwrap().machine.0, "n1");
    }
    assert_eq!(state(&site, "n1"), "admitted");
}

#[test]
fn a_second_use_of_a_code_alarms_and_withdraws() {
    let mut site = site();
    let code = code(&mut site, "n1", 3_600_000);
    let node = Node::new(1);
    // An answer that got lost: the machine may begin anew.
    let lost = node.begin(&mut site, &code).unwrap();
    let device_code = node.begin(&mut site, &code).unwrap();
    assert_eq!(node.poll(&mut site, &lost), Err(OAuthError::InvalidGrant));
    let bearer = node.poll(&mut site, &device_code).unwrap();
    assert_eq!(node.fetch(&mut site, &bearer), "n1");
    assert_eq!(state(&site, "n1"), "admitted");
    let device_code = node.begin(&mut site, &code).unwrap();
    assert_eq!(
        node.poll(&mut site, &device_code),
        Err(OAuthError::AccessDenied)
    );
    assert_eq!(state(&site, "n1"), "withdrawn");
    assert_eq!(node.fetch(&mut site, &bearer), "talos.bearer");
}

#[test]
fn a_bearer_or_device_code_is_of_use_at_its_own_address_only() {
    let mut site = site();
    let code = code(&mut site, "n1", 3_600_000);
    let (node, other) = (Node::new(1), Node::new(2));
    let device_code = node.begin(&mut site, &code).unwrap();
    assert_eq!(
        other.poll(&mut site, &device_code),
        Err(OAuthError::AccessDenied)
    );
    let bearer = node.poll(&mut site, &device_code).unwrap();
    assert_eq!(other.fetch(&mut site, &bearer), "talos.bearer");
    assert_eq!(node.fetch(&mut site, &bearer), "n1");
}

#[test]
fn errors_of_rfc_8628_in_their_places() {
    let mut site = site();
    let good = code(&mut site, "n1", 3_600_000);
    let node = Node::new(1);
    let device_code = node.begin(&mut site, &good).unwrap();
    site.act(Command::Cordon(MachineId("n1".into())));
    assert_eq!(
        node.poll(&mut site, &device_code),
        Err(OAuthError::AuthorizationPending)
    );
    site.now.0 += 1_000;
    assert_eq!(
        node.poll(&mut site, &device_code),
        Err(OAuthError::SlowDown)
    );
    site.now.0 += 5_000;
    assert_eq!(
        node.poll(&mut site, &device_code),
        Err(OAuthError::SlowDown),
        "ten seconds by now"
    );
    site.act(Command::Uncordon(MachineId("n1".into())));
    site.now.0 += 15_000;
    assert!(node.poll(&mut site, &device_code).is_ok());
    let device_code = node.begin(&mut site, &good).unwrap();
    site.now.0 += 600_000;
    assert_eq!(
        node.poll(&mut site, &device_code),
        Err(OAuthError::ExpiredToken)
    );
    assert_eq!(
        node.poll(&mut site, "nothing"),
        Err(OAuthError::InvalidGrant)
    );
    // The window of the code.
    let short = code(&mut site, "n1", 10_000);
    site.now.0 += 10_000;
    let device_code = node.begin(&mut site, &short).unwrap();
    assert_eq!(
        node.poll(&mut site, &device_code),
        Err(OAuthError::AccessDenied)
    );
    assert_eq!(state(&site, "n1"), "admitted", "an old code is no theft");
    let request = DeviceRequest {
        client_id: "other".into(),
        ..DeviceRequest::default()
    };
    let answer = site
        .gateway
        .device_code(site.now, addr(1), &request, &[0; 32], "x");
    assert_eq!(answer.err(), Some(OAuthError::InvalidClient));
}

#[test]
fn only_an_owner_makes_codes_and_only_for_admitted_machines() {
    let mut site = site();
    let operator = Caller {
        cn: "op".into(),
        role: Role::Operator,
    };
    let mut make = |by: &Caller, id: &str| {
        let made = site
            .gateway
            .talos_code(START, by, &MachineId(id.into()), 1_000, &[1; 32]);
        made.map_or_else(|reason| reason.code.into_owned(), |_| "made".to_owned())
    };
    assert_eq!(make(&operator, "n1"), "admin.role");
    assert_eq!(make(&owner(), "nobody"), "machine.unknown");
    assert_eq!(make(&owner(), "n1"), "made");
    site.act(Command::Withdraw(MachineId("n1".into()), "x".into()));
    let made = site
        .gateway
        .talos_code(START, &owner(), &MachineId("n1".into()), 1_000, &[1; 32]);
    assert_eq!(made.unwrap_err().code, "machine.state");
}

//! One machine from DHCPDISCOVER to its LDevID in virtual time, against the whole core: the
//! specification of the walk, step by step in the order of `gateway_core::walk::WALK`.
//!
//! The shell is played by [`Site`]: it keeps the records, runs the work, and answers for the CA.
//! Invariants are checked at every effect.

#![allow(clippy::unwrap_used)]

mod support;

use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::sync::Arc;

use attest_wire::v1::{AttestationResult, Receipt, Verdict as WireVerdict};
use boot::catalog::{Artefact, CATALOG_VERSION, Catalog, ImageKey, Kind, Manifest, Role};
use boot::plan::{BootPolicy, HttpBoot};
use gateway_core::admission::command::{Caller, Command, Role as AdminRole};
use gateway_core::admission::effect::{Effect, IssuedDevId, Rules};
use gateway_core::appraisal::{DevIdRules, EkRoots, TimeTrust};
use gateway_core::bootfile::BootSettings;
use gateway_core::catalog::CatalogEntry;
use gateway_core::gateway::{BootQuery, Gateway, Input, Setup};
use gateway_core::identity::{ConnId, MachineId, UnixMillis};
use gateway_core::inventory::Inventory;
use gateway_core::policy::{Policy, Preset};
use gateway_core::record::{Certificate, JournalRecord, LeaseRecord, Mark, Record};
use gateway_core::view::MachineView;
use gateway_core::walk::{Step, WALK};
use netstack::dhcp;
use p256::ecdsa::SigningKey;
use p256::ecdsa::signature::Signer as _;
use p256::pkcs8::EncodePublicKey as _;
use rand_core::OsRng;
use support::log::{self, LogBuilder};
use support::{Node, Session};
use zeroize::Zeroizing;

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 66, 0, 1);
/// The node's, as its hello says too.
const MAC: [u8; 6] = [0x52, 0x54, 0, 0x12, 0x34, 0x56];
const IPXE: [u8; 32] = [0xa1; 32];
const UKI: [u8; 32] = [0xb2; 32];
const STUB: [[u8; 32]; 2] = [[0xd4; 32], [0xe5; 32]];
const EXPORTER: [u8; 32] = [0x42; 32];

/// The shell of this test: what is on disk, what went out.
struct Site {
    gateway: Gateway,
    now: UnixMillis,
    ledger: Vec<(u64, UnixMillis, Record)>,
    leases: Vec<LeaseRecord>,
    marks: Vec<Mark>,
    replies: Vec<(ConnId, u16, Vec<u8>)>,
    dhcp: Vec<dhcp::Reply>,
}

fn artefact(kind: Kind, name: &str, version: u64, pe: [u8; 32]) -> Artefact {
    let uki = kind == Kind::Uki;
    let pcr11 = STUB.iter().fold([0u8; 32], |value, digest| {
        log::sha256(&[value, *digest].concat())
    });
    Artefact {
        name: name.into(),
        kind,
        role: Role::Provision,
        arch: "x86_64".into(),
        version,
        file: format!("{name}-{version}.efi"),
        sha256: hex::encode([pe[0] ^ version as u8; 32]),
        size_bytes: 1_000,
        pe_sha256: hex::encode(pe),
        linux_pe_sha256: uki.then(|| hex::encode([0xc3; 32])),
        pcr11: uki.then(|| hex::encode(pcr11)),
        cmdline: None,
    }
}

fn catalog() -> Catalog {
    let manifest = Manifest {
        version: CATALOG_VERSION,
        artefacts: vec![
            artefact(Kind::Ipxe, "ipxe", 1, IPXE),
            artefact(Kind::Uki, "attester", 3, UKI),
        ],
    };
    let bytes = serde_json::to_vec(&manifest).unwrap();
    let key = SigningKey::random(&mut OsRng);
    let signature: p256::ecdsa::Signature = key.sign(&bytes);
    let spki = key.verifying_key().to_public_key_der().unwrap();
    let image_key = ImageKey::from_der(spki.as_bytes()).unwrap();
    Catalog::load(&bytes, signature.to_der().as_bytes(), &image_key).unwrap()
}

fn gateway(
    ledger: &[(u64, UnixMillis, Record)],
    leases: &[LeaseRecord],
    marks: &[Mark],
    now: UnixMillis,
) -> Gateway {
    let catalog = catalog();
    let pool = dhcp::Pool {
        start: Ipv4Addr::new(10, 66, 0, 100),
        end: Ipv4Addr::new(10, 66, 0, 110),
    };
    let subnet = dhcp::Subnet::new(SERVER, 24).unwrap();
    Gateway::new(Setup {
        appliance: "door".into(),
        seal: "development".into(),
        rules: Rules {
            policy: Arc::new(Policy::preset(Preset::Standard)),
            directory: Arc::default(),
            ek_roots: Arc::new(EkRoots::default()),
            catalog: Arc::new(
                catalog
                    .artefacts()
                    .iter()
                    .cloned()
                    .map(CatalogEntry::new)
                    .collect(),
            ),
            time: TimeTrust::None,
            devid: DevIdRules::default(),
        },
        inventory: Inventory::default(),
        dhcp: dhcp::Config::single(dhcp::Scope::new(subnet, pool, 3_600)),
        boot: BootSettings {
            server_addr: SERVER,
            policy: BootPolicy {
                https_host: SERVER.to_string(),
                http_host: SERVER.to_string(),
                http_boot: HttpBoot::default(),
                hold_retry_secs: 60,
            },
            catalog: Arc::new(catalog),
        },
        ledger: ledger.to_vec(),
        leases: leases.to_vec(),
        marks: marks.to_vec(),
        now,
    })
}

impl Site {
    fn new() -> Self {
        let now = UnixMillis(1_800_000_000_000);
        Self {
            gateway: gateway(&[], &[], &[], now),
            now,
            ledger: Vec::new(),
            leases: Vec::new(),
            marks: Vec::new(),
            replies: Vec::new(),
            dhcp: Vec::new(),
        }
    }

    /// Power off and on: memory is gone, disks are not.
    fn restart(&mut self) {
        self.gateway = gateway(&self.ledger, &self.leases, &self.marks, self.now);
    }

    fn handle(&mut self, input: Input) {
        self.now.0 += 10;
        self.gateway.handle(self.now, input);
        self.drain();
    }

    /// Performs what the core decided, work included, until nothing is left.
    fn drain(&mut self) {
        while let Some(effect) = self.gateway.poll_effect() {
            match effect {
                Effect::Record { seq, at, record } => {
                    let expected = self.ledger.last().map_or(1, |(seq, ..)| seq + 1);
                    assert_eq!(seq, expected, "ledger sequences have no gap");
                    self.ledger.push((seq, at, record));
                }
                Effect::Journal(JournalRecord::Lease(lease)) => self.leases.push(lease),
                Effect::Journal(JournalRecord::Mark(mark)) => self.marks.push(mark),
                Effect::Dhcp { reply, .. } => self.dhcp.push(reply),
                Effect::Work(work) => {
                    let done = Box::new(work.run());
                    self.gateway.handle(self.now, Input::WorkDone(done));
                }
                Effect::Issue(request) => {
                    let verdict = Record::Verdict(request.verdict.clone());
                    assert!(
                        self.ledger.iter().any(|(_, _, record)| *record == verdict),
                        "no certificate without its passing verdict on disk"
                    );
                    let done = Ok(IssuedDevId {
                        record: Certificate {
                            machine: Some(request.machine.clone()),
                            profile: "ldevid".into(),
                            serial: "01".into(),
                            sha256: "00".repeat(32),
                            subject_cn: request.machine.0.clone(),
                            not_after: UnixMillis(self.now.0 + 86_400_000),
                            correlation: Some(request.verdict.correlation.clone()),
                        },
                        chain: vec![vec![0x30, 0]],
                        receipt: Receipt {
                            body: serde_json::to_vec(&request.verdict).unwrap().into(),
                            sig: vec![1].into(),
                            chain: Vec::new(),
                        },
                    });
                    let input = Input::Issued {
                        conn: request.conn,
                        machine: request.machine,
                        done,
                    };
                    self.gateway.handle(self.now, input);
                }
                Effect::Wire { conn, reply } => {
                    if let Ok(result) = serde_json::from_slice::<AttestationResult>(&reply.body)
                        && !result.devid_chain.is_empty()
                    {
                        assert!(
                            matches!(self.ledger.last(), Some((_, _, Record::Certificate(_)))),
                            "no chain leaves before its certificate's record is on disk"
                        );
                    }
                    self.replies.push((conn, reply.status, reply.body));
                }
                Effect::Refused { .. } => {}
            }
        }
    }

    fn datagram(&mut self, kind: u8, options: &[(u8, &[u8])]) -> dhcp::Reply {
        let bytes = dhcp_request(kind, options);
        let ingress = dhcp::Ingress {
            server_addr: SERVER,
            source: SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 68),
            iface: "prov0".into(),
        };
        self.handle(Input::Datagram { bytes, ingress });
        self.dhcp.pop().expect("the server answers")
    }

    /// One attempt: hello, challenge, honest evidence on connection `conn`.
    fn attempt(&mut self, node: &Node, conn: u64, peer: Ipv4Addr) -> (u16, AttestationResult) {
        let hello_body = self.hello(node, conn, peer);
        let (_, status, challenge_body) = self.replies.pop().expect("the hello is answered");
        assert_eq!(status, 200, "{}", String::from_utf8_lossy(&challenge_body));
        let session = Session {
            hello_body: &hello_body,
            challenge_body: &challenge_body,
            exporter: EXPORTER,
        };
        let body = serde_json::to_vec(&node.evidence(&session)).unwrap();
        self.handle(Input::Evidence {
            conn: ConnId(conn),
            body,
        });
        self.result()
    }

    fn hello(&mut self, node: &Node, conn: u64, peer: Ipv4Addr) -> Vec<u8> {
        let body = serde_json::to_vec(&node.hello()).unwrap();
        self.handle(Input::Hello {
            conn: ConnId(conn),
            peer: IpAddr::V4(peer),
            session: [conn as u8; 16],
            exporter: EXPORTER,
            seed: Zeroizing::new([conn as u8; 32]),
            body: body.clone(),
        });
        body
    }

    fn result(&mut self) -> (u16, AttestationResult) {
        let (_, status, body) = self.replies.pop().expect("the evidence is answered");
        (status, serde_json::from_slice(&body).unwrap())
    }

    fn act(&mut self, command: Command) {
        let caller = Caller {
            cn: "ada".into(),
            role: AdminRole::Owner,
        };
        self.now.0 += 10;
        self.gateway.command(self.now, &caller, command).unwrap();
        self.drain();
    }

    fn machine(&self, id: &str) -> MachineView {
        let id = MachineId(id.into());
        self.gateway
            .machines()
            .into_iter()
            .find(|m| m.machine == id)
            .unwrap()
    }

    fn steps(&self) -> Vec<Step> {
        let mut steps: Vec<Step> = self.marks.iter().map(|mark| mark.step).collect();
        steps.dedup();
        steps
    }
}

fn dhcp_request(kind: u8, options: &[(u8, &[u8])]) -> Vec<u8> {
    let mut out = vec![1, 1, 6, 0, 0xde, 0xad, 0xbe, 0xef, 0, 0, 0x80, 0];
    out.resize(28, 0);
    out.extend(MAC);
    out.resize(236, 0);
    out.extend([99, 130, 83, 99, 53, 1, kind]);
    for (code, data) in options {
        out.extend([*code, data.len() as u8]);
        out.extend(*data);
    }
    out.push(255);
    out
}

const PXE: [(u8, &[u8]); 3] = [
    (60, b"PXEClient:Arch:00007:UNDI:003000"),
    (93, &[0, 7]),
    (94, &[1, 3, 0]),
];

fn node() -> Node {
    Node::new(LogBuilder::write(&log::honest(&[IPXE, UKI, UKI], &STUB)))
}

fn boot_file(reply: &dhcp::Reply) -> String {
    let file = &reply.payload[108..236];
    let end = file.iter().position(|b| *b == 0).unwrap_or(file.len());
    String::from_utf8_lossy(&file[..end]).into_owned()
}

/// DISCOVER to ACK as PXE firmware does it.
fn lease(site: &mut Site) -> Ipv4Addr {
    let offer = site.datagram(1, &PXE);
    assert_eq!(
        boot_file(&offer),
        "ipxe-1.efi",
        "firmware is offered the signed iPXE"
    );
    let yiaddr: [u8; 4] = offer.payload[16..20].try_into().unwrap();
    let mut options = PXE.to_vec();
    let server = SERVER.octets();
    options.extend([(50, &yiaddr[..]), (54, &server[..])]);
    let ack = site.datagram(3, &options);
    assert_eq!(ack.payload[16..20], yiaddr);
    assert!(
        site.leases
            .iter()
            .any(|l| l.addr.octets() == yiaddr && l.state == "bound"),
        "the lease is on disk before the ACK"
    );
    Ipv4Addr::from(yiaddr)
}

#[test]
fn one_machine_from_discover_to_its_ldevid() {
    let mut site = Site::new();
    let node = node();

    // discover, lease
    let addr = lease(&mut site);

    // boot: firmware fetches iPXE, iPXE its script, the script the UKI
    let query = |what: &str| BootQuery {
        peer: IpAddr::V4(addr),
        mac: None,
        arch: Some("x86_64".into()),
        what: what.into(),
    };
    site.gateway
        .boot_fetch(site.now, &query("ipxe-1.efi"))
        .unwrap();
    let script = site
        .gateway
        .boot_script(site.now, &query("/boot/script.ipxe"));
    assert!(script.contains("attester-3.efi"), "{script}");
    site.gateway
        .boot_fetch(site.now, &query("attester-3.efi"))
        .unwrap();
    site.drain();

    // hello, challenge, evidence, appraise: nobody knows these keys, so a claim waits
    let (status, result) = site.attempt(&node, 1, addr);
    assert_eq!((status, result.verdict), (202, WireVerdict::Pending));
    assert!(result.devid_chain.is_empty(), "a claim gets no certificate");
    let id = site.gateway.machines()[0].machine.0.clone();
    assert_eq!(site.machine(&id).state, "pending");

    // the owner compares the report and approves
    site.act(Command::Approve {
        machine: MachineId(id.clone()),
        class: None,
        disk_serial: None,
        port: None,
        compared: "console".into(),
    });
    assert_eq!(site.machine(&id).state, "declared");

    // the machine asks again, on a new connection, and gets its LDevID
    let (status, result) = site.attempt(&node, 2, addr);
    assert_eq!(
        (status, result.verdict),
        (200, WireVerdict::Admitted),
        "{}",
        result.hint
    );
    assert_eq!(result.devid_chain.len(), 1);
    assert!(result.receipt.is_some());
    assert_eq!(site.machine(&id).state, "admitted");

    // every step of the walk left its record, in order
    let walked: Vec<Step> = WALK.iter().map(|row| row.step).collect();
    let mut seen = site.steps();
    seen.sort();
    seen.dedup();
    assert_eq!(seen, walked);
    let kinds: Vec<&str> = site
        .ledger
        .iter()
        .map(|(_, _, record)| match record {
            Record::Genesis(_) => "genesis",
            Record::Claim(_) => "claim",
            Record::Operator(_) => "operator",
            Record::Verdict(_) => "verdict",
            Record::RefusalSummary(_) => "refusals",
            Record::Certificate(_) => "certificate",
        })
        .collect();
    assert_eq!(kinds, ["claim", "operator", "verdict", "certificate"]);
    let timeline = site.gateway.timeline(&MachineId(id)).unwrap();
    assert!(timeline.windows(2).all(|pair| pair[0].at <= pair[1].at));
    assert!(
        timeline
            .iter()
            .any(|entry| entry.step == Some(Step::Discover))
    );
    assert!(timeline.iter().any(|entry| entry.step == Some(Step::Issue)));
}

/// After each input the power may fail: what a restart finds is what had been decided, and the
/// machine completes.
#[test]
fn a_restart_at_any_point_loses_nothing_that_was_acknowledged() {
    for cut in 0..5 {
        let mut site = Site::new();
        let node = node();
        let addr = lease(&mut site);
        if cut == 0 {
            site.restart();
        }
        let (status, _) = site.attempt(&node, 1, addr);
        assert_eq!(status, 202);
        if cut == 1 {
            site.restart();
        }
        let id = site.gateway.machines()[0].machine.clone();
        site.act(Command::Approve {
            machine: id.clone(),
            class: None,
            disk_serial: None,
            port: None,
            compared: "none".into(),
        });
        if cut == 2 {
            site.restart();
        }
        if cut == 3 {
            // Between challenge and evidence: the session dies with the process.
            site.hello(&node, 7, addr);
            assert_eq!(site.replies.pop().map(|(_, status, _)| status), Some(200));
            site.restart();
            site.handle(Input::Evidence {
                conn: ConnId(7),
                body: b"{}".to_vec(),
            });
            let (status, result) = site.result();
            assert_eq!((status, result.code.as_str()), (409, "not_admitted"));
        }
        let (status, result) = site.attempt(&node, 2, addr);
        assert_eq!(status, 200, "cut {cut}: {} {}", result.code, result.hint);
        let before = site.machine(&id.0);
        site.restart();
        let after = site.machine(&id.0);
        assert_eq!(
            (
                after.state,
                after.ek_names,
                after.ldevid_not_after,
                after.last_seq
            ),
            (
                before.state,
                before.ek_names,
                before.ldevid_not_after,
                before.last_seq
            ),
            "cut {cut}"
        );
    }
}

#[test]
fn a_waiting_machine_that_asks_again_writes_one_claim() {
    let mut site = Site::new();
    let node = node();
    let addr = lease(&mut site);
    let reports: Vec<String> = (1..5)
        .map(|conn| {
            assert_eq!(site.attempt(&node, conn, addr).0, 202);
            site.gateway.machines()[0].report_sha256.clone().unwrap()
        })
        .collect();
    assert_eq!(site.ledger.len(), 1);
    assert!(
        reports.windows(2).all(|pair| pair[0] == pair[1]),
        "the digest to compare stays"
    );
}

#[test]
fn withdrawn_is_refused_with_its_state_and_installed_boots_its_disk() {
    let mut site = Site::new();
    let node = node();
    let addr = lease(&mut site);
    site.attempt(&node, 1, addr);
    let id = site.gateway.machines()[0].machine.clone();
    let approve = Command::Approve {
        machine: id.clone(),
        class: None,
        disk_serial: None,
        port: None,
        compared: "none".into(),
    };
    site.act(approve);
    assert_eq!(site.attempt(&node, 2, addr).0, 200);

    site.act(Command::MarkInstalled(id.clone()));
    let offer = site.datagram(1, &PXE);
    assert_eq!(
        boot_file(&offer),
        "",
        "an installed machine boots its local disk"
    );

    site.act(Command::Withdraw(id.clone(), "sold".into()));
    let offer = site.datagram(1, &PXE);
    assert_eq!(
        boot_file(&offer),
        "ipxe-1.efi",
        "a held machine is shown why"
    );
    site.hello(&node, 3, addr);
    let (status, result) = site.result();
    assert_eq!((status, result.code.as_str()), (403, "not_admitted"));
    let Some((_, _, Record::RefusalSummary(summary))) = site.ledger.last() else {
        panic!("the refusal is on record");
    };
    assert_eq!(summary.last.code, "machine.state");
    assert_eq!(site.gateway.status().refusals["machine.state"], 1);
}

#[test]
fn a_second_hello_on_a_connection_and_late_evidence_are_refused() {
    let mut site = Site::new();
    let node = node();
    let addr = lease(&mut site);
    site.hello(&node, 1, addr);
    site.replies.clear();
    site.hello(&node, 1, addr);
    assert_eq!(site.result().0, 503);

    site.now.0 += 60_000;
    site.gateway.handle_timeout(site.now);
    site.drain();
    assert!(site.ledger.iter().any(|(_, _, record)| {
        matches!(record, Record::RefusalSummary(s) if s.last.code == "session.timeout")
    }));
    assert_eq!(site.gateway.status().sessions, 0);
}

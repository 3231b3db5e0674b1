//! The shell around the whole core, played by a test: it keeps the records, runs the work, answers
//! for the CA, and checks the invariants at every effect.

use attest_wire::v1::handover::Grant;
use gateway_core::install::GrantOrder;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddrV4, SocketAddrV6};
use std::sync::Arc;

use super::log::{self, LogBuilder};
use super::{Node, Session};
use attest_wire::v1::{AttestationResult, Receipt};
use boot::catalog::{
    Artefact, CATALOG_VERSION, Catalog, Compression, DiskImage, ImageKey, Kind, Manifest, Role,
};
use boot::plan::{BootPolicy, HttpBoot};
use gateway_core::admission::command::{Caller, Command, Role as AdminRole};
use gateway_core::admission::effect::{
    Delivered, Effect, IssueRequest, IssuedDevId, Rules, SignedGrant,
};
use gateway_core::appraisal::{DevIdRules, EkRoots, TimeTrust};
use gateway_core::bootfile::{BootSettings, BootSettings6};
use gateway_core::catalog::CatalogEntry;
use gateway_core::gate::Change;
use gateway_core::gateway::{Gateway, Input, Setup};
use gateway_core::handover::{Handover, Recipient};
use gateway_core::identity::{ConnId, MachineId, UnixMillis};
use gateway_core::inventory::Inventory;
use gateway_core::policy::{Policy, Preset};
use gateway_core::reason::Reason;
use gateway_core::record::{Certificate, JournalRecord, Lease6Record, LeaseRecord, Mark, Record};
use gateway_core::view::MachineView;
use gateway_core::walk::Step;
use netstack::{Ipv6Prefix, dhcp, dhcp6};
use p256::ecdsa::SigningKey;
use p256::ecdsa::signature::Signer as _;
use p256::pkcs8::EncodePublicKey as _;
use rand_core::OsRng;
use zeroize::Zeroizing;

pub const SERVER: Ipv4Addr = Ipv4Addr::new(10, 66, 0, 1);
pub const SERVER6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x66, 0, 0, 0, 0, 0, 1);
/// The node's, as its hello says too.
pub const MAC: [u8; 6] = [0x52, 0x54, 0, 0x12, 0x34, 0x56];
pub const IPXE: [u8; 32] = [0xa1; 32];
pub const UKI: [u8; 32] = [0xb2; 32];
pub const STUB: [[u8; 32]; 2] = [[0xd4; 32], [0xe5; 32]];
pub const EXPORTER: [u8; 32] = [0x42; 32];

/// What the owner declared.
pub struct Declared {
    pub inventory: Inventory,
    pub policy: Policy,
    /// The folder of EK roots.
    pub ek_roots: EkRoots,
    /// The DHCP server's part of the configuration.
    pub dhcp: dhcp::Config,
}

/// 10.66.0.100 to .110.
pub fn dhcp_config() -> dhcp::Config {
    let pool = dhcp::Pool {
        start: Ipv4Addr::new(10, 66, 0, 100),
        end: Ipv4Addr::new(10, 66, 0, 110),
    };
    let subnet = dhcp::Subnet::new(SERVER, 24).unwrap();
    dhcp::Config::single(dhcp::Scope::new(subnet, pool, 3_600))
}

/// What a restart finds.
#[derive(Default)]
pub struct Disk {
    pub ledger: Vec<(u64, UnixMillis, Record)>,
    pub leases: Vec<LeaseRecord>,
    pub leases6: Vec<Lease6Record>,
    pub marks: Vec<Mark>,
    /// `[gate]`.
    pub gate: Option<gateway_core::gate::Settings>,
}

/// The shell of these tests: what is declared, what is on disk, what went out.
pub struct Site {
    pub declared: Declared,
    pub disk: Disk,
    pub gateway: Gateway,
    pub now: UnixMillis,
    pub time: TimeTrust,
    pub replies: Vec<(ConnId, u16, Vec<u8>)>,
    pub dhcp: Vec<dhcp::Reply>,
    pub dhcp6: Vec<dhcp6::Reply>,
    /// Work and certificates are kept back until [`Site::release`].
    pub hold: bool,
    pub held: Vec<Effect>,
    /// Codes of what was refused, as they would stand in the log.
    pub refused: Vec<std::borrow::Cow<'static, str>>,
    /// Codes that were only counted.
    pub quiet: Vec<&'static str>,
    pub arp_probes: Vec<Ipv4Addr>,
    /// What the gate's backend has; a restart of the daemon leaves it.
    pub open: BTreeSet<String>,
    pub dhcp_probes: Vec<(netstack::MacAddr, Vec<u8>)>,
    /// What admitted machines are given.
    pub handover: Handover,
}

pub fn artefact(kind: Kind, name: &str, version: u64, pe: [u8; 32]) -> Artefact {
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

/// One disk image in two versions.
fn disks() -> Vec<DiskImage> {
    [1u8, 2]
        .into_iter()
        .map(|version| DiskImage {
            name: "worker".into(),
            version: version.into(),
            file: format!("worker-{version}.raw.zst"),
            sha256: hex::encode([0x70 + version; 32]),
            size_bytes: 1 << 20,
            compression: Compression::Zstd,
            raw_sha256: hex::encode([0x80 + version; 32]),
            raw_bytes: 8 << 20,
        })
        .collect()
}

pub fn catalog() -> Catalog {
    let manifest = Manifest {
        disks: disks(),
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

fn dhcp6_config() -> dhcp6::Config {
    let pool = dhcp6::Pool {
        start: Ipv6Addr::new(0xfd00, 0x66, 0, 0, 0, 0, 1, 0),
        end: Ipv6Addr::new(0xfd00, 0x66, 0, 0, 0, 0, 1, 0xff),
    };
    let duid = dhcp6::Duid::link_layer(netstack::MacAddr([2, 0, 0, 0, 0, 1]));
    let prefix = Ipv6Prefix::new(SERVER6, 64).unwrap();
    dhcp6::Config::new(duid, SERVER6, prefix, pool)
}

fn gateway(site: &Declared, disk: &Disk, now: UnixMillis) -> Gateway {
    let catalog = catalog();
    Gateway::new(Setup {
        appliance: "door".into(),
        talos: gateway_core::talos::Settings {
            kms: Some(gateway_core::talos::kms::Key::new([7; 32])),
            device: Some(gateway_core::talos::device::Settings {
                client_id: "vestibule".into(),
            }),
        },
        seal: "development".into(),
        rules: Rules {
            policy: Arc::new(site.policy.clone()),
            directory: Arc::default(),
            ek_roots: Arc::new(site.ek_roots.clone()),
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
        inventory: site.inventory.clone(),
        dhcp: site.dhcp.clone(),
        dhcp6: Some(dhcp6_config()),
        boot: BootSettings {
            server_addr: SERVER,
            policy: BootPolicy {
                https_host: SERVER.to_string(),
                http_host: SERVER.to_string(),
                http_boot: HttpBoot::default(),
                hold_retry_secs: 60,
            },
            v6: Some(BootSettings6 {
                server_addr: SERVER6,
                policy: BootPolicy {
                    https_host: format!("[{SERVER6}]"),
                    http_host: format!("[{SERVER6}]"),
                    http_boot: HttpBoot::default(),
                    hold_retry_secs: 60,
                },
            }),
            catalog: Arc::new(catalog),
        },
        ledger: disk.ledger.clone(),
        leases: disk.leases.clone(),
        leases6: disk.leases6.clone(),
        marks: disk.marks.clone(),
        gate: disk.gate.clone(),
        grant_ms: GRANT_MS,
        counter: 0,
        now,
    })
}

impl Site {
    pub fn new() -> Self {
        Self::with(Inventory::default(), Preset::Standard)
    }

    pub fn with(inventory: Inventory, preset: Preset) -> Self {
        let now = UnixMillis(1_800_000_000_000);
        let declared = Declared {
            inventory,
            policy: Policy::preset(preset),
            ek_roots: EkRoots::default(),
            dhcp: dhcp_config(),
        };
        let disk = Disk::default();
        Self {
            gateway: gateway(&declared, &disk, now),
            declared,
            disk,
            now,
            time: TimeTrust::None,
            replies: Vec::new(),
            dhcp: Vec::new(),
            dhcp6: Vec::new(),
            hold: false,
            held: Vec::new(),
            refused: Vec::new(),
            quiet: Vec::new(),
            arp_probes: Vec::new(),
            open: BTreeSet::new(),
            dhcp_probes: Vec::new(),
            handover: Handover::default(),
        }
    }

    /// What the shell's issuer does, with a signature that nobody checks here.
    fn deliver(&self, request: &IssueRequest) -> Result<Option<Box<Delivered>>, Reason> {
        let receipt = serde_json::to_vec(&request.verdict).unwrap();
        let recipient = Recipient {
            admission: &request.admission,
            receipt: &receipt,
            peer: request.peer,
            correlation: &request.verdict.correlation,
        };
        let prepared = self.handover.prepare(&recipient, &mut rand_core::OsRng)?;
        Ok(prepared.map(|prepared| {
            Box::new(Delivered {
                record: prepared.record,
                sealed: Box::new(prepared.unsigned.signed(vec![1], vec![vec![0x30].into()])),
            })
        }))
    }

    /// Power off and on: memory is gone, disks are not.
    pub fn restart(&mut self) {
        self.gateway = gateway(&self.declared, &self.disk, self.now);
    }

    /// Lets what was kept back go on.
    pub fn release(&mut self) {
        self.hold = false;
        for effect in std::mem::take(&mut self.held) {
            self.perform(effect);
        }
        self.drain();
    }

    pub fn handle(&mut self, input: Input) {
        self.now.0 += 10;
        self.gateway.handle(self.now, input);
        self.drain();
    }

    /// Performs what the core decided, work included, until nothing is left.
    pub fn drain(&mut self) {
        while let Some(effect) = self.gateway.poll_effect() {
            if self.hold && matches!(effect, Effect::Work(_) | Effect::Issue(_)) {
                self.held.push(effect);
            } else {
                self.perform(effect);
            }
        }
    }

    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Record { seq, at, record } => {
                let expected = self.disk.ledger.last().map_or(1, |(seq, ..)| seq + 1);
                assert_eq!(seq, expected, "ledger sequences have no gap");
                self.disk.ledger.push((seq, at, record));
            }
            Effect::Journal(JournalRecord::Lease(lease)) => self.disk.leases.push(lease),
            Effect::Journal(JournalRecord::Lease6(lease)) => self.disk.leases6.push(lease),
            Effect::Journal(JournalRecord::Mark(mark)) => self.disk.marks.push(mark),
            Effect::Dhcp {
                reply,
                after_commit,
                ..
            } => {
                let message = dhcp::Message::parse(&reply.payload).unwrap();
                let on_disk =
                    |lease: &LeaseRecord| lease.addr == message.yiaddr && lease.state == "bound";
                match message.options.get(53) {
                    Some([5]) if !message.yiaddr.is_unspecified() => assert!(
                        after_commit && self.disk.leases.iter().any(on_disk),
                        "no DHCPACK before its lease is on disk"
                    ),
                    Some([2]) => assert!(!after_commit, "an OFFER waits for nothing"),
                    _ => {}
                }
                self.dhcp.push(reply);
            }
            Effect::Dhcp6 { reply, .. } => self.dhcp6.push(reply),
            Effect::Work(work) => {
                let done = Box::new(work.run());
                self.gateway.handle(self.now, Input::WorkDone(done));
            }
            Effect::Issue(request) => {
                let verdict = Record::Verdict(request.verdict.clone());
                assert!(
                    self.disk
                        .ledger
                        .iter()
                        .any(|(_, _, record)| *record == verdict),
                    "no certificate without its passing verdict on disk"
                );
                let grant = request.grant.clone().map(sign_grant);
                let done = Ok(IssuedDevId {
                    grant,
                    record: Certificate {
                        machine: Some(request.machine.clone()),
                        profile: "ldevid".into(),
                        serial: "01".into(),
                        sha256: "00".repeat(32),
                        sha1: None,
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
                    delivery: self.deliver(&request).map_err(Box::new),
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
                    let mut newest = self.disk.ledger.iter().rev().map(|(_, _, record)| record);
                    if result.sealed.is_some() {
                        assert!(
                            matches!(newest.next(), Some(Record::Delivery(_))),
                            "no payload leaves before its record is on disk"
                        );
                    }
                    assert!(
                        matches!(newest.next(), Some(Record::Certificate(_))),
                        "no chain leaves before its certificate's record is on disk"
                    );
                }
                self.replies.push((conn, reply.status, reply.body));
            }
            Effect::Refused { reasons, .. } => {
                self.refused
                    .extend(reasons.into_iter().map(|reason| reason.code));
            }
            Effect::RefusedQuietly { code } => self.quiet.push(code),
            Effect::Gate(changes) => {
                for change in changes {
                    let granted = |machine: &MachineId| {
                        self.disk.ledger.iter().any(|(_, _, record)| {
                            matches!(record, Record::Gate(g) if g.machine == *machine)
                        })
                    };
                    match change {
                        Change::Open {
                            element, machine, ..
                        } => {
                            assert!(granted(&machine), "nothing opens before its record");
                            self.open.insert(element.to_string());
                        }
                        Change::Close { element } => {
                            self.open.remove(&element.to_string());
                        }
                    }
                }
            }
            Effect::ArpProbe { addr } => self.arp_probes.push(addr),
            Effect::DhcpProbe { mac, payload } => self.dhcp_probes.push((mac, payload)),
        }
    }

    pub fn datagram(&mut self, kind: u8, options: &[(u8, &[u8])]) -> dhcp::Reply {
        self.send(dhcp_request(kind, options))
            .expect("the server answers")
    }

    /// Any datagram on port 67.
    pub fn send(&mut self, bytes: Vec<u8>) -> Option<dhcp::Reply> {
        let ingress = ingress(Ipv4Addr::UNSPECIFIED);
        self.handle(Input::Datagram { bytes, ingress });
        self.dhcp.pop()
    }

    /// Any datagram on port 4011, from a client at `peer`.
    pub fn ask_boot_port(&mut self, peer: Ipv4Addr, bytes: Vec<u8>) -> Option<dhcp::Reply> {
        let ingress = ingress(peer);
        self.handle(Input::BootRequest { bytes, ingress });
        self.dhcp.pop()
    }

    /// Lets time pass.
    pub fn wait(&mut self, ms: u64) {
        self.now.0 += ms;
        self.gateway.handle_timeout(self.now);
        self.drain();
    }

    /// A DHCPv6 message of the node from its own link-local address.
    pub fn datagram6(&mut self, bytes: Vec<u8>) -> dhcp6::Reply {
        let [a, b, c, d, e, f] = MAC;
        let source = Ipv6Addr::from([
            0xfe,
            0x80,
            0,
            0,
            0,
            0,
            0,
            0,
            a ^ 2,
            b,
            c,
            0xff,
            0xfe,
            d,
            e,
            f,
        ]);
        let ingress = dhcp6::Ingress {
            source: SocketAddrV6::new(source, 546, 0, 2),
            iface: "prov0".into(),
        };
        self.handle(Input::Datagram6 { bytes, ingress });
        self.dhcp6.pop().expect("the server answers")
    }

    /// One attempt: hello, challenge, honest evidence on connection `conn`.
    pub fn attempt(&mut self, node: &Node, conn: u64, peer: Ipv4Addr) -> (u16, AttestationResult) {
        let hello_body = self.hello(node, conn, peer);
        self.evidence(node, conn, &hello_body);
        self.result()
    }

    /// An attempt that may end at its hello.
    pub fn attempt_refused(
        &mut self,
        node: &Node,
        conn: u64,
        peer: Ipv4Addr,
    ) -> (u16, AttestationResult) {
        let hello_body = self.hello(node, conn, peer);
        if self
            .replies
            .last()
            .is_some_and(|(_, status, _)| *status == 200)
        {
            self.evidence(node, conn, &hello_body);
        }
        self.result()
    }

    /// Honest evidence for the challenge that came.
    pub fn evidence(&mut self, node: &Node, conn: u64, hello_body: &[u8]) {
        let (_, status, challenge_body) = self.replies.pop().expect("the hello is answered");
        assert_eq!(status, 200, "{}", String::from_utf8_lossy(&challenge_body));
        let session = Session {
            hello_body,
            challenge_body: &challenge_body,
            exporter: EXPORTER,
        };
        let body = serde_json::to_vec(&node.evidence(&session)).unwrap();
        self.handle(Input::Evidence {
            conn: ConnId(conn),
            body,
        });
    }

    /// Evidence whose appraisal is done, while the certificate is held back.
    pub fn evidence_held(&mut self, node: &Node, conn: u64, hello_body: &[u8]) {
        self.hold = true;
        self.evidence(node, conn, hello_body);
        let work = std::mem::take(&mut self.held);
        for effect in work {
            self.perform(effect);
        }
        self.drain();
    }

    pub fn hello(&mut self, node: &Node, conn: u64, peer: Ipv4Addr) -> Vec<u8> {
        let body = serde_json::to_vec(&node.hello()).unwrap();
        self.handle(Input::Hello {
            conn: ConnId(conn),
            peer: IpAddr::V4(peer),
            session: [conn as u8; 16],
            exporter: EXPORTER,
            time: self.time,
            seed: Zeroizing::new([conn as u8; 32]),
            body: body.clone(),
        });
        body
    }

    pub fn result(&mut self) -> (u16, AttestationResult) {
        let (_, status, body) = self.replies.pop().expect("the evidence is answered");
        (status, serde_json::from_slice(&body).unwrap())
    }

    pub fn act(&mut self, command: Command) {
        self.ask(command).unwrap();
    }

    pub fn ask(&mut self, command: Command) -> Result<(), Reason> {
        let caller = Caller {
            cn: "ada".into(),
            role: AdminRole::Owner,
        };
        self.now.0 += 10;
        let done = self.gateway.command(self.now, &caller, command);
        self.drain();
        done
    }

    /// The owner approves a claim as it is shown now.
    pub fn approve(&mut self, id: &str) {
        let command = self.approval(id);
        self.act(command);
    }

    /// What the owner sends who looks at a claim now.
    pub fn approval(&self, id: &str) -> Command {
        Command::Approve {
            machine: MachineId(id.into()),
            report_sha256: self.machine(id).report_sha256.expect("a claim waits"),
            class: None,
            disk_serial: None,
            port: None,
            compared: "console".into(),
        }
    }

    pub fn machine(&self, id: &str) -> MachineView {
        let id = MachineId(id.into());
        self.gateway
            .machines()
            .into_iter()
            .find(|m| m.machine == id)
            .unwrap()
    }

    pub fn steps(&self) -> Vec<Step> {
        let mut steps: Vec<Step> = self.disk.marks.iter().map(|mark| mark.step).collect();
        steps.dedup();
        steps
    }
}

/// How long something may be begun under a grant.
pub const GRANT_MS: u64 = 1_800_000;

/// What the shell's signer does, with a signature that nobody checks here.
fn sign_grant(order: Box<GrantOrder>) -> Box<SignedGrant> {
    let mut order = *order;
    if order.fresh {
        let mut random = [0u8; 48];
        rand_core::RngCore::fill_bytes(&mut OsRng, &mut random);
        order.record.grant = hex::encode(&random[..16]);
        order.record.nonce = hex::encode(&random[16..]);
    }
    let body = serde_json::to_vec(&order.body()).unwrap();
    let grant = Grant {
        body: body.into(),
        sig: vec![1].into(),
        chain: Vec::new(),
    };
    Box::new(SignedGrant { order, grant })
}

fn ingress(peer: Ipv4Addr) -> dhcp::Ingress {
    dhcp::Ingress {
        server_addr: SERVER,
        source: SocketAddrV4::new(peer, 68),
        iface: "prov0".into(),
    }
}

/// The same request from another machine.
pub fn from_mac(mut request: Vec<u8>, mac: [u8; 6]) -> Vec<u8> {
    request[28..34].copy_from_slice(&mac);
    request
}

pub fn dhcp_request(kind: u8, options: &[(u8, &[u8])]) -> Vec<u8> {
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

pub const PXE: [(u8, &[u8]); 3] = [
    (60, b"PXEClient:Arch:00007:UNDI:003000"),
    (93, &[0, 7]),
    (94, &[1, 3, 0]),
];

pub fn node() -> Node {
    Node::new(LogBuilder::write(&log::honest(&[IPXE, UKI, UKI], &STUB)))
}

pub fn boot_file(reply: &dhcp::Reply) -> String {
    let file = &reply.payload[108..236];
    let end = file.iter().position(|b| *b == 0).unwrap_or(file.len());
    String::from_utf8_lossy(&file[..end]).into_owned()
}

pub fn yiaddr(reply: &dhcp::Reply) -> Ipv4Addr {
    Ipv4Addr::from(<[u8; 4]>::try_from(&reply.payload[16..20]).unwrap())
}

/// Option 53, which is the first of our replies.
pub fn message_type(reply: &dhcp::Reply) -> u8 {
    assert_eq!(reply.payload[240..242], [53, 1]);
    reply.payload[242]
}

/// DISCOVER to ACK as PXE firmware does it.
pub fn lease(site: &mut Site) -> Ipv4Addr {
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
        site.disk
            .leases
            .iter()
            .any(|l| l.addr.octets() == yiaddr && l.state == "bound"),
        "the lease is on disk before the ACK"
    );
    Ipv4Addr::from(yiaddr)
}

//! The whole gateway without I/O: DHCP server, admission and boot plan as one.
//!
//! Contract (docs/ARCHITECTURE.md): one `handle` or `handle_timeout`, then `poll_effect` until it is
//! empty, then the next. Records among the effects are made durable before any other effect of the
//! same drain is performed. `now` never goes back.

mod talos;
mod views;
mod way_out;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use boot::arch::Arch;
use boot::catalog::Kind;
use boot::plan::Standing;
use netstack::{dhcp, dhcp6};
use zeroize::Zeroizing;

use crate::admission::command::{Caller, Command, EkCaImport};
use crate::admission::effect::{Effect, IssuedDevId, Rules, WorkDone};
use crate::admission::event::{Event, Sub};
use crate::admission::machine::State;
use crate::admission::registry::Machine;
use crate::admission::secret::SecretRequest;
use crate::admission::{Admission, HelloInput};
use crate::appraisal::{RelayWord, TimeTrust};
use crate::bootfile::{Answer, BootSettings, standing};
use crate::gate::{self, Gate};
use crate::identity::{ConnId, MacAddr, MachineId, UnixMillis};
use crate::install::Installs;
use crate::inventory::Inventory;
use crate::lease6;
use crate::limits;
use crate::outbox::Outbox;
use crate::reason::Reason;
use crate::record::{JournalRecord, Lease6Record, LeaseRecord, Mark, Record};
use crate::retention;
use crate::view::{
    DhcpView, DiskView, EkCaExport, EkCaImported, EkCaList, EkUnmatchedList, ForeignServerView,
    ImageView, MachineGateView, MachineView, StatusView, TimelineEntry,
};
use crate::walk::Step;

pub use talos::ConfigFacts;

/// What the gateway starts with.
pub struct Setup {
    /// Name of this appliance.
    pub appliance: String,
    /// `measured` or `development`.
    pub seal: String,
    /// What appraisals are judged by; its directory is replaced.
    pub rules: Rules,
    /// Declared machines.
    pub inventory: Inventory,
    /// DHCP scopes.
    pub dhcp: dhcp::Config,
    /// DHCPv6, where the segment has it.
    pub dhcp6: Option<dhcp6::Config>,
    /// Boot addresses and names.
    pub boot: BootSettings,
    /// What of Talos is served.
    pub talos: crate::talos::Settings,
    /// Value of the counter that the ledger is anchored to.
    pub counter: u64,
    /// Every ledger record: sequence, time, record.
    pub ledger: Vec<(u64, UnixMillis, Record)>,
    /// Leases of the journal, oldest first.
    pub leases: Vec<LeaseRecord>,
    /// DHCPv6 leases of the journal, oldest first.
    pub leases6: Vec<Lease6Record>,
    /// Walk marks of the journal.
    pub marks: Vec<Mark>,
    /// The gate, where the appliance has one.
    pub gate: Option<gate::Settings>,
    /// How long something may be begun under a grant to install, in milliseconds.
    pub grant_ms: u64,
    /// The time.
    pub now: UnixMillis,
}

/// One thing that arrived.
pub enum Input {
    /// A datagram on UDP 67.
    Datagram {
        /// The payload.
        bytes: Vec<u8>,
        /// Where it came in.
        ingress: dhcp::Ingress,
    },
    /// A datagram on UDP 547.
    Datagram6 {
        /// The payload.
        bytes: Vec<u8>,
        /// Where it came in.
        ingress: dhcp6::Ingress,
    },
    /// A datagram on UDP 4011, the boot port.
    BootRequest {
        /// The payload.
        bytes: Vec<u8>,
        /// Where it came in.
        ingress: dhcp::Ingress,
    },
    /// Somebody uses an address that was probed.
    ArpSeen {
        /// The address.
        addr: Ipv4Addr,
        /// Who uses it.
        mac: MacAddr,
    },
    /// A frame with a DHCP reply to somebody, heard on the segment.
    DhcpHeard {
        /// The whole Ethernet frame.
        frame: Vec<u8>,
    },
    /// `POST /v1/hello`.
    Hello {
        /// The connection.
        conn: ConnId,
        /// The node's address.
        peer: IpAddr,
        /// Session id.
        session: [u8; 16],
        /// TLS exporter.
        exporter: [u8; 32],
        /// How far the clock is trusted now: it may have been set since the start.
        time: TimeTrust,
        /// Randomness for the challenge.
        seed: Zeroizing<[u8; 32]>,
        /// The body.
        body: Vec<u8>,
    },
    /// `POST /v1/evidence`.
    Evidence {
        /// The connection.
        conn: ConnId,
        /// The body.
        body: Vec<u8>,
    },
    /// `POST /v1/evidence` whose body the transport refused.
    EvidenceBroken {
        /// The connection.
        conn: ConnId,
        /// HTTP status of the answer.
        status: u16,
        /// Why.
        reason: Reason,
    },
    /// `POST /v1/progress`.
    Progress {
        /// The connection.
        conn: ConnId,
        /// The node's address.
        peer: IpAddr,
        /// The body.
        body: Vec<u8>,
    },
    /// The connection ended.
    Closed(ConnId),
    /// A worker finished.
    WorkDone(Box<WorkDone>),
    /// The CA answered.
    Issued {
        /// The connection that waits.
        conn: ConnId,
        /// For whom.
        machine: MachineId,
        /// The certificate, or why not.
        done: Result<IssuedDevId, Reason>,
    },
}

/// A machine asks what to boot.
#[derive(Debug, Clone)]
pub struct BootQuery {
    /// Its address.
    pub peer: IpAddr,
    /// Hardware address from the URL, if any; the lease table decides when it is absent.
    pub mac: Option<MacAddr>,
    /// Architecture from the URL, by the name of `boot::arch`.
    pub arch: Option<String>,
    /// Path or file name, for the record.
    pub what: String,
}

/// The gateway.
pub struct Gateway {
    appliance: String,
    seal: String,
    dhcp: dhcp::Server,
    dhcp6: Option<dhcp6::Server>,
    dhcp_mode: dhcp::Mode,
    watch: Option<dhcp::Watch>,
    /// Refusals per code since the start of the window: see [`limits::DHCP_REFUSALS_MAX`].
    dhcp_refusals: BTreeMap<&'static str, (UnixMillis, u32)>,
    admission: Admission,
    boot: BootSettings,
    gate: Option<Gate>,
    talos: crate::talos::Talos,
    out: Outbox,
}

impl Gateway {
    /// Declares what the inventory holds, then replays ledger and journal over it: what was decided
    /// about a declared machine must survive a restart as well.
    pub fn new(setup: Setup) -> Self {
        let Setup {
            appliance,
            seal,
            mut rules,
            inventory,
            boot,
            talos,
            counter,
            ledger,
            leases,
            leases6,
            marks,
            now,
            ..
        } = setup;
        let retention::Replayed {
            mut registry,
            catalog,
            ek_roots,
            next_seq,
        } = retention::replay(
            &inventory,
            &rules.catalog,
            &rules.ek_roots,
            ledger.iter().map(|(seq, at, record)| (*seq, *at, record)),
            now,
        );
        let mut talos = crate::talos::Talos::new(talos);
        let mut installs = Installs::new(boot.catalog.disks(), setup.grant_ms);
        for (_, at, record) in &ledger {
            installs.apply(*at, record);
            talos.apply(record);
        }
        rules.catalog = std::sync::Arc::new(catalog);
        registry.ek_roots_loaded(now, &ek_roots);
        rules.ek_roots = std::sync::Arc::new(ek_roots);
        for mark in &marks {
            registry.mark(mark);
        }
        let dhcp_mode = setup.dhcp.mode;
        let watch = setup.dhcp.watch.map(|watch| {
            let own = boot.server_addr;
            dhcp::Watch::new(dhcp_mode, own, watch.mac, watch.period_ms, now.0)
        });
        let mut dhcp = dhcp::Server::new(setup.dhcp);
        if let Some(watch) = &watch {
            dhcp.ignore(watch.mac());
        }
        dhcp.restore(leases.iter().filter_map(restore_lease));
        let mut dhcp6 = setup.dhcp6.map(dhcp6::Server::new);
        if let Some(server) = &mut dhcp6 {
            server.restore(leases6.iter().filter_map(lease6::from_record));
        }
        let gate = setup.gate.map(|settings| {
            let mut gate = Gate::new(settings);
            ledger.iter().for_each(|(_, _, record)| gate.replay(record));
            gate
        });
        let admission = Admission::new(registry, installs, inventory, rules, seal.clone());
        let mut out = Outbox::new(next_seq, counter);
        if gate.is_some() {
            out.watch();
        }
        let mut gateway = Self {
            appliance,
            seal,
            dhcp,
            dhcp6,
            dhcp_mode,
            watch,
            dhcp_refusals: BTreeMap::new(),
            admission,
            boot,
            gate,
            talos,
            out,
        };
        gateway.settle_gate(now);
        gateway
    }

    /// Takes one input.
    pub fn handle(&mut self, now: UnixMillis, input: Input) {
        self.take(now, input);
        self.settle_gate(now);
    }

    fn take(&mut self, now: UnixMillis, input: Input) {
        let out = &mut self.out;
        match input {
            Input::Datagram { bytes, ingress } => {
                self.datagram(now, &bytes, &ingress, dhcp::Server::handle);
            }
            Input::BootRequest { bytes, ingress } => {
                self.datagram(now, &bytes, &ingress, dhcp::Server::handle_boot_request);
            }
            Input::Datagram6 { bytes, ingress } => self.datagram6(now, &bytes, &ingress),
            Input::ArpSeen { addr, mac } => {
                let by = netstack::MacAddr(mac.0);
                let answer = answer(&self.admission, &self.boot);
                let outcome = self.dhcp.handle_conflict(now.0, addr, by, &answer);
                self.decided(now, outcome, "");
            }
            Input::DhcpHeard { frame } => {
                let heard = dhcp::Heard::parse(&frame);
                let found = self.watch.as_mut().zip(heard);
                if let Some(finding) = found.and_then(|(watch, heard)| watch.handle(now.0, &heard))
                {
                    self.tell(&finding);
                }
            }
            Input::Hello {
                conn,
                peer,
                session,
                exporter,
                time,
                seed,
                body,
            } => {
                let mac = self.mac_of(peer);
                let relay = match (peer, mac) {
                    (IpAddr::V4(addr), Some(mac)) => self.relay_word(addr, mac),
                    _ => None,
                };
                let ingress = "provisioning".to_owned();
                let input = HelloInput {
                    conn,
                    peer,
                    mac,
                    relay,
                    ingress,
                    session,
                    exporter,
                    time,
                    seed,
                    body,
                };
                self.admission.hello(now, input, &mut self.out);
            }
            Input::Evidence { conn, body } => self.admission.evidence(now, conn, body, out),
            Input::EvidenceBroken {
                conn,
                status,
                reason,
            } => self
                .admission
                .evidence_broken(now, conn, status, reason, out),
            Input::Progress { conn, peer, body } => {
                self.admission.progress(now, conn, peer, &body, out);
            }
            Input::Closed(conn) => self.admission.closed(now, conn, out),
            Input::WorkDone(done) => match *done {
                WorkDone::Hello(conn, done) => self.admission.hello_judged(now, conn, done, out),
                WorkDone::Failed(conn) => self.admission.work_failed(now, conn, out),
                WorkDone::Evidence(conn, done) => {
                    self.admission.evidence_judged(now, conn, *done, out);
                }
            },
            Input::Issued {
                conn,
                machine,
                done,
            } => {
                self.admission.issued(now, conn, &machine, done, out);
            }
        }
    }

    /// The next thing to do.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.out.poll()
    }

    /// When [`Gateway::handle_timeout`] wants to be called.
    pub fn poll_timeout(&self) -> Option<UnixMillis> {
        let dhcp = self.dhcp.poll_timeout().map(UnixMillis);
        let dhcp6 = self.dhcp6.as_ref().and_then(dhcp6::Server::poll_timeout);
        let watch = self.watch.as_ref().and_then(dhcp::Watch::poll_timeout);
        let (dhcp6, watch) = (dhcp6.map(UnixMillis), watch.map(UnixMillis));
        let gate = self.gate.as_ref().and_then(Gate::poll_timeout);
        [dhcp, dhcp6, watch, gate, self.admission.poll_timeout()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Lets time pass.
    pub fn handle_timeout(&mut self, now: UnixMillis) {
        self.dhcp.handle_timeout(now.0);
        if let Some(server) = &mut self.dhcp6 {
            server.handle_timeout(now.0);
        }
        while let Some((outcome, iface)) = {
            let answer = answer(&self.admission, &self.boot);
            self.dhcp.poll_probed(now.0, &answer)
        } {
            self.decided(now, outcome, &iface);
        }
        if let Some(watch) = &mut self.watch {
            let mac = watch.mac();
            if let Some(payload) = watch.poll_probe(now.0) {
                self.out.push(Effect::DhcpProbe { mac, payload });
            }
            if let Some(finding) = watch.poll_finding(now.0) {
                self.tell(&finding);
            }
        }
        self.admission.handle_timeout(now, &mut self.out);
        self.settle_gate(now);
    }

    /// What the watch over the segment found.
    fn tell(&mut self, finding: &dhcp::Finding) {
        let subject = match finding {
            dhcp::Finding::Foreign(foreign) => format!("DHCP server {}", foreign.server),
            dhcp::Finding::NoServer => "DHCP".to_owned(),
        };
        self.out.refused(subject, vec![finding.explain().into()]);
    }

    /// Steps `discover` and `lease`; `boot` for who asks the boot port.
    fn datagram(
        &mut self,
        now: UnixMillis,
        bytes: &[u8],
        ingress: &dhcp::Ingress,
        handle: impl FnOnce(
            &mut dhcp::Server,
            u64,
            &[u8],
            &dhcp::Ingress,
            &dyn dhcp::BootAnswer,
        ) -> dhcp::Outcome,
    ) {
        let answer = answer(&self.admission, &self.boot);
        let outcome = handle(&mut self.dhcp, now.0, bytes, ingress, &answer);
        self.decided(now, outcome, &ingress.iface);
    }

    /// What one DHCP message led to: leases, walk marks, refusals, the reply.
    fn decided(&mut self, now: UnixMillis, outcome: dhcp::Outcome, iface: &str) {
        for change in &outcome.changes {
            self.out
                .journal(JournalRecord::Lease(lease_record(&change.lease)));
        }
        let mac = outcome
            .client
            .as_ref()
            .map_or(MacAddr([0; 6]), |c| MacAddr(c.mac.0));
        if let (Some(client), Some(event)) = (&outcome.client, &outcome.event) {
            let mut who = client_kind(client);
            if let Some(port) = dhcp::PortId::of(client) {
                who = format!("{who} at {}", port.to_text());
            }
            match event {
                dhcp::Event::Offered { addr } => {
                    self.seen(now, mac, Step::Discover, format!("{who} offered {addr}"));
                }
                dhcp::Event::ProxyOffered { file } => {
                    let detail = format!("{who} told {file}, address from another server");
                    self.seen(now, mac, Step::Discover, detail);
                }
                dhcp::Event::Acked { addr, .. } | dhcp::Event::Bootp { addr, .. } => {
                    self.seen(now, mac, Step::Lease, format!("{who} leased {addr}"));
                }
                dhcp::Event::BootAnswered { file } => {
                    let detail = format!("{who} asked what to boot, told {file}");
                    self.seen(now, mac, Step::Boot, detail);
                }
                dhcp::Event::SentOn { .. } => {
                    let detail = format!("{who} sent on to its next boot device");
                    self.seen(now, mac, Step::Boot, detail);
                }
                // In proxy mode a machine that boots its own disk is left to go on; that it came
                // by is worth a mark.
                dhcp::Event::LeftAlone
                    if client.message_type == dhcp::MessageType::Discover && client.boots() =>
                {
                    self.seen(now, mac, Step::Discover, format!("{who} left to its disk"));
                }
                dhcp::Event::LeftAlone
                | dhcp::Event::Conflict { .. }
                | dhcp::Event::Naked { .. }
                | dhcp::Event::ChoseOther { .. }
                | dhcp::Event::Released { .. }
                | dhcp::Event::Declined { .. }
                | dhcp::Event::Informed { .. } => {}
            }
        }
        if let Some(refused) = outcome.refused {
            self.dhcp_refused(now, mac, &refused);
        }
        if let Some(addr) = outcome.probe {
            self.out.push(Effect::ArpProbe { addr });
        }
        if let Some(reply) = outcome.reply {
            let iface = iface.to_owned();
            self.out.push(Effect::Dhcp {
                reply,
                iface,
                after_commit: !outcome.changes.is_empty(),
            });
        }
    }

    fn dhcp_refused(&mut self, now: UnixMillis, mac: MacAddr, refused: &dhcp::Refused) {
        let code = refused.code();
        let (since, count) = self.dhcp_refusals.entry(code).or_insert((now, 0));
        if now.0.saturating_sub(since.0) >= limits::DHCP_REFUSALS_MS {
            (*since, *count) = (now, 0);
        }
        *count = count.saturating_add(1);
        if *count > limits::DHCP_REFUSALS_MAX {
            self.out.push(Effect::RefusedQuietly { code });
        } else {
            self.out
                .refused(mac.to_string(), vec![refused.explain().into()]);
        }
    }

    /// Steps `discover` and `lease` over IPv6. A machine without a hardware address in its packets
    /// is served all the same; its evidence says later which one it is.
    fn datagram6(&mut self, now: UnixMillis, bytes: &[u8], ingress: &dhcp6::Ingress) {
        let Some(server) = &mut self.dhcp6 else {
            return;
        };
        let answer = Answer {
            registry: self.admission.registry(),
            boot: &self.boot,
            rules: &self.admission.rules().catalog,
        };
        let outcome = server.handle(now.0, bytes, ingress, &answer);
        for change in &outcome.changes {
            let record = lease6::to_record(&change.lease);
            self.out.journal(JournalRecord::Lease6(record));
        }
        let client = outcome.client.as_ref();
        let mac = client.and_then(|c| c.mac).map(|mac| MacAddr(mac.0));
        if let (Some(client), Some(event)) = (client, &outcome.event) {
            let seen = match event {
                dhcp6::Event::Advertised { addrs } if !addrs.is_empty() => {
                    Some((Step::Discover, "offered", addrs))
                }
                dhcp6::Event::Leased { addrs, .. } if !addrs.is_empty() => {
                    Some((Step::Lease, "leased", addrs))
                }
                dhcp6::Event::Advertised { .. }
                | dhcp6::Event::Leased { .. }
                | dhcp6::Event::Confirmed { .. }
                | dhcp6::Event::Released { .. }
                | dhcp6::Event::Declined { .. }
                | dhcp6::Event::Informed => None,
            };
            if let (Some((step, what, addrs)), Some(mac)) = (seen, mac) {
                let addrs: Vec<String> = addrs.iter().map(ToString::to_string).collect();
                let who = client_kind6(client);
                self.seen(now, mac, step, format!("{who} {what} {}", addrs.join(", ")));
            }
        }
        if let Some(refused) = outcome.refused {
            let subject = match client {
                Some(client) => client.peer.to_string(),
                None => ingress.source.ip().to_string(),
            };
            self.out.refused(subject, vec![refused.explain().into()]);
        }
        if let Some(reply) = outcome.reply {
            self.out.push(Effect::Dhcp6 {
                reply,
                iface: ingress.iface.clone(),
            });
        }
    }

    /// An address reached a step: a walk mark, and a sighting of the machine it belongs to.
    fn seen(&mut self, now: UnixMillis, mac: MacAddr, step: Step, detail: String) {
        let sub = if step == Step::Boot {
            Sub::Booting
        } else {
            Sub::Leased
        };
        let machine = self.admission.registry().by_mac(mac).map(|m| m.id.clone());
        if let Some(id) = &machine {
            // A sighting fits every state.
            let moved = self
                .admission
                .registry_mut()
                .event(now, id, &Event::Seen(sub));
            debug_assert!(moved.is_ok(), "a sighting fits every state");
        }
        self.admission
            .mark(now, mac, machine, step, detail, &mut self.out);
    }

    /// The iPXE script for the machine that asks (step `boot`).
    pub fn boot_script(&mut self, now: UnixMillis, query: &BootQuery) -> String {
        let mac = query
            .mac
            .or_else(|| self.mac_of(query.peer))
            .unwrap_or(MacAddr([0; 6]));
        let answer = answer(&self.admission, &self.boot);
        let arch = query.arch.as_deref().and_then(Arch::from_name);
        let (script, what) = answer.script(mac, arch, query.peer);
        self.seen(
            now,
            mac,
            Step::Boot,
            format!("{what}, asked {}", query.what),
        );
        script
    }

    /// Whether the machine behind `query` may fetch the artefact it names (step `boot`).
    ///
    /// # Errors
    /// `boot.plan` when it should boot its local disk or is held.
    pub fn boot_fetch(&mut self, now: UnixMillis, query: &BootQuery) -> Result<(), Reason> {
        let mac = query
            .mac
            .or_else(|| self.mac_of(query.peer))
            .unwrap_or(MacAddr([0; 6]));
        let is_ipxe =
            self.boot.catalog.artefacts().iter().any(|artefact| {
                artefact.kind == Kind::Ipxe && query.what.ends_with(&artefact.file)
            });
        let found = match standing(self.admission.registry().by_mac(mac)) {
            Standing::Attest => None,
            // iPXE itself is served to a held machine too: it shows the reason on the console.
            Standing::Held { .. } if is_ipxe => None,
            Standing::Installed => Some("is installed and boots its local disk".to_owned()),
            Standing::Held { reason } => Some(format!("is held: {reason}")),
        };
        let Some(found) = found else {
            self.seen(now, mac, Step::Boot, query.what.clone());
            return Ok(());
        };
        let reason = Reason::new(
            "boot.plan",
            "a machine that is to be provisioned",
            format!("{mac} asks for {} but {found}", query.what),
            "docs/PROTOCOL.md section 9",
            "vestibule machine show tells why; uncordon or approve it to boot it",
        );
        self.out.refused(mac.to_string(), vec![reason.clone()]);
        Err(reason)
    }

    /// Refuses a boot file that is not in the catalogue, with the machine that asked: a typing error
    /// in a script of its own, or the URL of an older catalogue.
    pub fn boot_missing(&mut self, query: &BootQuery) {
        let mac = query.mac.or_else(|| self.mac_of(query.peer));
        let machine = mac.and_then(|mac| self.admission.registry().by_mac(mac));
        let who = match (machine, mac) {
            (Some(machine), Some(mac)) => format!("{} ({mac})", machine.id),
            (None, Some(mac)) => mac.to_string(),
            (_, None) => query.peer.to_string(),
        };
        let reason = Reason::new(
            "boot.no_such_file",
            "a path of the catalogue, /boot/<sha256>/<file>",
            format!("{who} asks for {}", query.what),
            "docs/OPERATIONS.md, what a machine can fetch",
            "compare with vestibule image list; a machine with an old URL boots anew",
        );
        self.out
            .refused(mac.map_or(who, |mac| mac.to_string()), vec![reason]);
    }

    /// An administrator acts.
    ///
    /// # Errors
    /// See [`crate::admission::command::to_act`].
    pub fn command(
        &mut self,
        now: UnixMillis,
        caller: &Caller,
        command: Command,
    ) -> Result<(), Reason> {
        let done = self.admission.command(now, caller, command, &mut self.out);
        self.settle_gate(now);
        done
    }

    /// Whether `peer` may fetch the disk image with this digest now.
    ///
    /// # Errors
    /// `grant.*`, `machine.state`.
    pub fn image_fetch(
        &mut self,
        now: UnixMillis,
        peer: IpAddr,
        sha256: &str,
    ) -> Result<(), Reason> {
        self.admission.may_fetch(now, peer, sha256, &mut self.out)
    }

    /// The disk images of the catalogue.
    pub fn disks(&self) -> Vec<DiskView> {
        self.admission.installs().disk_views()
    }

    /// An owner imports CA certificates for EK chains; `time` is how far the clock is trusted now.
    ///
    /// # Errors
    /// `admin.role`, `malformed.command`; a certificate that is not taken is a result.
    pub fn import_ek_cas(
        &mut self,
        now: UnixMillis,
        time: TimeTrust,
        caller: &Caller,
        import: &EkCaImport,
    ) -> Result<EkCaImported, Reason> {
        self.admission
            .import_ek_cas(now, time, caller, import, &mut self.out)
    }

    /// Seals a secret of the owner to the EK of a machine; the line, once the act is on disk.
    ///
    /// # Errors
    /// As [`Admission::seal_secret`].
    pub fn seal_secret(
        &mut self,
        now: UnixMillis,
        caller: &Caller,
        request: &SecretRequest,
        seed: &[u8; 32],
    ) -> Result<String, Reason> {
        self.admission
            .seal_secret(now, caller, request, seed, &mut self.out)
    }

    /// The CAs that EK chains are built with.
    pub fn ek_cas(&self, now: UnixMillis) -> EkCaList {
        self.admission.ek_cas(now)
    }

    /// EK certificates whose issuer is unknown.
    pub fn ek_unmatched(&self) -> EkUnmatchedList {
        self.admission.ek_unmatched()
    }

    /// The direct issuers of the EK certificates of admitted machines; with `all` every known CA.
    pub fn ek_export(&self, all: bool) -> EkCaExport {
        self.admission.ek_export(all)
    }

    /// What SPIRE is to know of the machines.
    pub fn spire_machines(&self) -> Vec<crate::spire::Machine> {
        self.admission.registry().spire_machines()
    }

    /// The EKs of the machines that were ever admitted.
    pub fn ek_hashes(&self) -> Vec<crate::spire::EkHashes> {
        self.admission.registry().ek_hashes()
    }

    /// Writes a record that the shell decided on (genesis, the appliance's own certificates).
    pub fn note(&mut self, now: UnixMillis, record: Record) {
        let seq = self.out.record(now, record.clone());
        self.admission.registry_mut().apply(seq, now, &record);
    }

    /// Queues the anchor that is due, to be called before a batch is made of the effects: the value
    /// that the counter must get with it. `stopping` anchors whatever waits.
    pub fn anchor(&mut self, now: UnixMillis, stopping: bool) -> Option<u64> {
        self.out.anchor(now, stopping)
    }

    /// Ledger records so far.
    pub fn next_seq(&self) -> u64 {
        self.out.next_seq()
    }

    /// Option 82 beside the lease of `addr`, which `mac` holds.
    fn relay_word(&self, addr: Ipv4Addr, mac: MacAddr) -> Option<RelayWord> {
        let port = self.dhcp.port(addr)?;
        let some = |id: &Vec<u8>| (!id.is_empty()).then(|| id.clone());
        Some(RelayWord {
            mac,
            circuit_id: some(&port.circuit_id),
            remote_id: some(&port.remote_id),
        })
    }

    fn mac_of(&self, peer: IpAddr) -> Option<MacAddr> {
        let mac = match peer {
            IpAddr::V4(addr) => self.dhcp.holder(addr),
            IpAddr::V6(addr) => {
                let lease = self.dhcp6.as_ref().and_then(|server| server.lease(addr));
                let bound = lease.filter(|lease| lease.state == dhcp6::LeaseState::Bound);
                bound.and_then(|lease| lease.mac)
            }
        };
        mac.map(|mac| MacAddr(mac.0))
    }
}

/// What the DHCP core asks when it needs to know what a machine boots.
fn answer<'a>(admission: &'a Admission, boot: &'a BootSettings) -> Answer<'a> {
    Answer {
        registry: admission.registry(),
        boot,
        rules: &admission.rules().catalog,
    }
}

fn client_kind(client: &dhcp::ClientInfo) -> String {
    let kind = if client.is_ipxe {
        "iPXE"
    } else if client.is_http_client {
        "HTTPClient"
    } else if client.is_pxe_client {
        "PXEClient"
    } else if client.message_type == dhcp::MessageType::Bootp {
        "BOOTP client"
    } else {
        "DHCP client"
    };
    match client.arch {
        Some(arch) => format!("{kind} arch {arch}"),
        None => kind.to_owned(),
    }
}

fn client_kind6(client: &dhcp6::ClientInfo) -> String {
    let kind = if client.is_ipxe {
        "iPXE"
    } else if client.is_http_client {
        "HTTPClient"
    } else if client.is_pxe_client {
        "PXEClient"
    } else {
        "DHCPv6 client"
    };
    match client.arch {
        Some(arch) => format!("{kind} arch {arch}"),
        None => kind.to_owned(),
    }
}

fn lease_record(lease: &dhcp::Lease) -> LeaseRecord {
    LeaseRecord {
        addr: lease.addr,
        client: lease.client.to_string(),
        mac: MacAddr(lease.mac.0),
        state: match lease.state {
            dhcp::LeaseState::Offered => "offered",
            dhcp::LeaseState::Bound => "bound",
            dhcp::LeaseState::Released => "released",
            dhcp::LeaseState::Expired => "expired",
            dhcp::LeaseState::Lapsed => "lapsed",
            dhcp::LeaseState::Declined => "declined",
        }
        .to_owned(),
        expires: UnixMillis(lease.expires_ms),
        port: lease.port.as_ref().map(ToString::to_string),
    }
}

fn restore_lease(record: &LeaseRecord) -> Option<dhcp::Lease> {
    let state = match record.state.as_str() {
        "bound" => dhcp::LeaseState::Bound,
        "released" => dhcp::LeaseState::Released,
        "declined" => dhcp::LeaseState::Declined,
        _ => return None,
    };
    Some(dhcp::Lease {
        addr: record.addr,
        client: dhcp::ClientKey::from_bytes(hex::decode(&record.client).ok()?),
        mac: netstack::MacAddr(record.mac.0),
        port: record.port.as_ref().and_then(|port| port.parse().ok()),
        state,
        expires_ms: record.expires.0,
    })
}

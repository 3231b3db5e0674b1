//! One arm per effect: send, work, issue, answer. Performed only after the records of the same
//! batch are on disk; only a DHCP reply that rests on no record leaves before.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use gateway_core::admission::effect::{
    Effect, IssueRequest, WireReply, Work, WorkDone, work_failed,
};
use gateway_core::gateway::Input;
use gateway_core::identity::ConnId;
use gateway_core::view::LedgerView;
use gateway_core::walk::Step;
use tokio::sync::{mpsc, oneshot};

use crate::driver::Done;
use crate::gate::GateDoor;
use crate::issue::Issuer;
use crate::metrics::REFUSED;
use crate::shell::dhcp::DhcpSender;
use crate::shell::dhcp6::Dhcp6Sender;
use crate::shell::segment::SegmentSender;
use crate::telemetry;
use crate::workers::Workers;

/// One thing to do after the commit.
pub(crate) enum Perform {
    /// An effect of the core that is no record.
    Effect(Box<Effect>),
    /// Answer a question; the closure only sends.
    Answer(Box<dyn FnOnce() + Send>),
    /// Read a page of the ledger, off the loop.
    Ledger(u64, usize, oneshot::Sender<Vec<LedgerView>>),
}

impl Perform {
    /// An answer that is known already.
    pub fn answer<T: Send + 'static>(reply: oneshot::Sender<T>, value: T) -> Self {
        // Who asked may have gone; then nobody needs the answer.
        Self::Answer(Box::new(move || drop(reply.send(value))))
    }
}

/// Holds what effects act on.
pub(crate) struct Performer {
    dhcp: DhcpSender,
    dhcp6: Option<Dhcp6Sender>,
    segment: SegmentSender,
    gate: GateDoor,
    issuer: Arc<Issuer>,
    ledger: store::LedgerReader,
    metrics: Arc<crate::metrics::Metrics>,
    workers: Workers,
    replies: HashMap<ConnId, oneshot::Sender<WireReply>>,
}

impl Performer {
    pub fn new(
        dhcp: DhcpSender,
        dhcp6: Option<Dhcp6Sender>,
        segment: SegmentSender,
        gate: GateDoor,
        issuer: Arc<Issuer>,
        ledger: store::LedgerReader,
        metrics: Arc<crate::metrics::Metrics>,
    ) -> Self {
        Self {
            dhcp,
            dhcp6,
            segment,
            gate,
            issuer,
            ledger,
            metrics,
            workers: Workers::new(),
            replies: HashMap::new(),
        }
    }

    /// The sending half of DHCP. Its replies need nothing else of this, so the committer's thread
    /// sends them as soon as their leases are on disk.
    pub fn dhcp(&self) -> DhcpSender {
        self.dhcp.clone()
    }

    /// A node waits for an answer on this connection.
    pub fn expect_reply(&mut self, conn: ConnId, reply: oneshot::Sender<WireReply>) {
        self.replies.insert(conn, reply);
    }

    /// The connection is gone.
    pub fn forget(&mut self, conn: ConnId) {
        self.replies.remove(&conn);
        self.workers.abandon(conn);
    }

    /// Does one thing without waiting for it.
    pub fn perform(&mut self, perform: Perform, done: &mpsc::UnboundedSender<Done>) {
        match perform {
            Perform::Answer(answer) => answer(),
            Perform::Ledger(from, max, reply) => self.page(from, max, reply),
            Perform::Effect(effect) => match *effect {
                Effect::Dhcp { reply, iface, .. } => self.dhcp.send(&reply, &iface),
                Effect::Dhcp6 { reply, iface } => {
                    // The core serves DHCPv6 only where a socket asked it.
                    if let Some(dhcp6) = &self.dhcp6 {
                        dhcp6.send(&reply, &iface);
                    }
                }
                Effect::ArpProbe { addr } => self.segment.arp_probe(addr),
                Effect::DhcpProbe { mac, payload } => self.segment.dhcp_probe(mac, &payload),
                Effect::Gate(changes) => self.gate.change(changes),
                Effect::Work(work) => self.work(work, done.clone()),
                Effect::Issue(request) => self.issue(request, done.clone()),
                Effect::Wire { conn, reply } => {
                    tracing::debug!(conn = conn.0, status = reply.status, "answered");
                    if let Some(waiting) = self.replies.remove(&conn) {
                        // The node may have hung up; its session is over either way.
                        drop(waiting.send(reply));
                    }
                }
                Effect::Refused { subject, reasons } => {
                    for reason in reasons {
                        self.metrics.count(REFUSED, reason.code.clone());
                        telemetry::decided(&subject, &reason);
                    }
                }
                Effect::RefusedQuietly { code } => self.metrics.count(REFUSED, code),
                Effect::Record { .. } | Effect::Journal(_) => {
                    unreachable!("the driver commits records before it performs anything")
                }
            },
        }
    }

    fn work(&mut self, work: Box<Work>, done: mpsc::UnboundedSender<Done>) {
        let conn = work.conn();
        if !self.replies.contains_key(&conn) {
            // Hung up while the records were written: its session is over.
            return;
        }
        let span = tracing::info_span!(
            "work",
            step = work.step().name(),
            correlation = work.correlation()
        );
        let run = move || {
            span.in_scope(|| {
                let done = timed("judged", || work.run());
                if let WorkDone::Evidence(_, appraisal) = &done {
                    telemetry::quoted(&appraisal.facts().pcrs);
                }
                done
            })
        };
        self.workers.start(conn, run, move |finished| {
            let finished = finished.unwrap_or(WorkDone::Failed(conn));
            // A loop that has ended wants no more inputs.
            drop(done.send(Done::Input(Input::WorkDone(Box::new(finished)))));
        });
    }

    fn issue(&self, request: Box<IssueRequest>, done: mpsc::UnboundedSender<Done>) {
        let issuer = Arc::clone(&self.issuer);
        tokio::spawn(async move {
            let (conn, machine) = (request.conn, request.machine.clone());
            let span = tracing::info_span!(
                "work",
                step = Step::Issue.name(),
                machine_id = machine.0,
                correlation = request.verdict.correlation
            );
            let run = move || span.in_scope(|| timed("signed", || issuer.issue(&request)));
            let issued = tokio::task::spawn_blocking(run).await;
            let issued = issued.unwrap_or_else(|_| Err(work_failed()));
            drop(done.send(Done::Input(Input::Issued {
                conn,
                machine,
                done: issued,
            })));
        });
    }

    fn page(&self, from: u64, max: usize, reply: oneshot::Sender<Vec<LedgerView>>) {
        let reader = self.ledger.clone();
        tokio::task::spawn_blocking(move || match reader.page(from, max) {
            Ok(entries) => {
                let views = entries
                    .into_iter()
                    .map(|e| LedgerView {
                        seq: e.seq,
                        at: e.time,
                        record: e.record,
                    })
                    .collect();
                drop(reply.send(views));
            }
            Err(error) => {
                tracing::error!(error = telemetry::chain(&error), "ledger page");
            }
        });
    }
}

/// Runs one piece of work and logs how long it took, in the span of its step.
fn timed<T>(what: &'static str, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let done = work();
    tracing::debug!(ms = start.elapsed().as_millis() as u64, "{what}");
    done
}

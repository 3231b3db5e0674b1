//! What the core wants done. The driver makes every record durable first, then performs the rest in
//! order; each effect is safe to repeat after a restart.

use std::sync::Arc;

use zeroize::Zeroizing;

use super::registry::Directory;
use crate::appraisal::{
    Admission, Appraisal, CatalogEntry, DevIdRules, EkRoots, EvidenceContext, HelloContext,
    HelloFacts, Issued, Refusal, RelayWord, TimeTrust, Verified, appraise_evidence, appraise_hello,
    make_challenge,
};
use crate::gate::Change;
use crate::identity::{ConnId, MachineId, UnixMillis};
use crate::install::GrantOrder;
use crate::policy::Policy;
use crate::reason::Reason;
use crate::record::{Certificate, Delivery, JournalRecord, Record, Verdict};
use crate::walk::Step;

/// One thing to do.
#[expect(
    clippy::large_enum_variant,
    reason = "most effects are records; a box each costs more"
)]
pub enum Effect {
    /// Append to the signed ledger.
    Record {
        /// The sequence it will get; the store refuses any other.
        seq: u64,
        /// Wall clock.
        at: UnixMillis,
        /// The record.
        record: Record,
    },
    /// Append to the lease journal.
    Journal(JournalRecord),
    /// Send a DHCP reply on an interface.
    Dhcp {
        /// The datagram and where it goes.
        reply: netstack::dhcp::Reply,
        /// Interface it came in by.
        iface: String,
        /// Whether it tells of a change of the lease table, and so waits for its record. An OFFER
        /// does not: it binds nobody (RFC 2131 section 3.1), and a crash may forget it.
        after_commit: bool,
    },
    /// Send a DHCPv6 reply on an interface.
    Dhcp6 {
        /// The datagram and where it goes.
        reply: netstack::dhcp6::Reply,
        /// Interface it came in by.
        iface: String,
    },
    /// Send an ARP probe for an address on the segment; who answers comes back as an input.
    ArpProbe {
        /// The address.
        addr: std::net::Ipv4Addr,
    },
    /// Broadcast a DHCPDISCOVER of ours, to see which other servers answer.
    DhcpProbe {
        /// The hardware address to send it as; that of its `chaddr`.
        mac: netstack::MacAddr,
        /// UDP payload.
        payload: Vec<u8>,
    },
    /// Pure work that is too long for the loop; its answer comes back as an input.
    Work(Box<Work>),
    /// Issue an LDevID; the answer comes back as an input.
    Issue(Box<IssueRequest>),
    /// Answer a node.
    Wire {
        /// Which connection.
        conn: ConnId,
        /// What to say.
        reply: WireReply,
    },
    /// Change the gate.
    Gate(Vec<Change>),
    /// Something was refused or did not fit: for the log and the counters, already in the ledger
    /// where it belongs there.
    Refused {
        /// Subject: correlation id, hardware address or machine.
        subject: String,
        /// Why.
        reasons: Vec<Reason>,
    },
    /// The same refusal came too often to write each in the log: for the counters only.
    RefusedQuietly {
        /// Stable code.
        code: &'static str,
    },
}

/// What goes back to a node.
#[derive(Debug)]
pub struct WireReply {
    /// HTTP status.
    pub status: u16,
    /// JSON body.
    pub body: Vec<u8>,
    /// The connection ends after this reply.
    pub close: bool,
}

/// An LDevID to issue. Only an appraisal that admitted can make one.
pub struct IssueRequest {
    /// The connection that waits for it.
    pub conn: ConnId,
    /// For whom.
    pub machine: MachineId,
    /// The proof.
    pub admission: Verified<Admission>,
    /// The verdict as recorded; signed as the receipt.
    pub verdict: Verdict,
    /// The address it speaks from.
    pub peer: std::net::IpAddr,
    /// Leave to install, to be signed with it.
    pub grant: Option<Box<GrantOrder>>,
}

/// What the CA made of an [`IssueRequest`].
pub struct IssuedDevId {
    /// The record to write before the node hears of it.
    pub record: Certificate,
    /// DER, leaf first.
    pub chain: Vec<Vec<u8>>,
    /// The signed verdict.
    pub receipt: attest_wire::v1::Receipt,
    /// Payloads, or why they are withheld.
    pub delivery: Result<Option<Box<Delivered>>, Box<Reason>>,
    /// Leave to install.
    pub grant: Option<Box<SignedGrant>>,
}

/// Leave to install, signed.
pub struct SignedGrant {
    /// As it was ordered, completed by the signer.
    pub order: GrantOrder,
    /// As the node gets it.
    pub grant: attest_wire::v1::handover::Grant,
}

/// Payloads that are sealed and signed.
pub struct Delivered {
    /// The record to write before they leave.
    pub record: Delivery,
    /// What the node gets.
    pub sealed: Box<attest_wire::v1::handover::Sealed>,
}

/// Pure work for a blocking worker.
#[expect(
    clippy::large_enum_variant,
    reason = "always boxed as a whole, see Effect::Work"
)]
pub enum Work {
    /// Rows 1-6, then MakeCredential.
    Hello {
        /// The connection.
        conn: ConnId,
        /// The body as received.
        body: Vec<u8>,
        /// Session id.
        session: [u8; 16],
        /// TLS exporter.
        exporter: [u8; 32],
        /// Randomness for nonce and credentials.
        seed: Zeroizing<[u8; 32]>,
        /// What it is judged by.
        rules: Rules,
    },
    /// Rows 7-14.
    Evidence {
        /// The connection.
        conn: ConnId,
        /// The hello that passed.
        hello: Verified<HelloFacts>,
        /// The challenge that went out.
        issued: Issued,
        /// The body as received.
        body: Vec<u8>,
        /// What it is judged by.
        rules: Rules,
        /// Option 82 of the lease it speaks from.
        relay: Option<RelayWord>,
    },
}

/// Everything an appraisal is judged by, as it was when the message arrived.
#[derive(Clone)]
pub struct Rules {
    /// Appraisal policy.
    pub policy: Arc<Policy>,
    /// Who owns which EK.
    pub directory: Arc<Directory>,
    /// EK vendor roots.
    pub ek_roots: Arc<EkRoots>,
    /// Catalogue with floors.
    pub catalog: Arc<Vec<CatalogEntry>>,
    /// How far the clock is trusted.
    pub time: TimeTrust,
    /// Which DevID keys the owner takes.
    pub devid: DevIdRules,
}

/// What finds an attempt in log, ledger and on the node's console: the start of its session id.
pub fn correlation(session: &[u8; 16]) -> String {
    hex::encode(&session[..8])
}

/// What came of [`Work`].
pub enum WorkDone {
    /// Of [`Work::Hello`].
    Hello(
        ConnId,
        Result<Box<(Verified<HelloFacts>, Issued)>, Box<Refusal>>,
    ),
    /// Of [`Work::Evidence`].
    Evidence(ConnId, Box<Appraisal>),
    /// The worker panicked: a defect of ours, which must not leave the node hanging.
    Failed(ConnId),
}

/// Why work ended without a result.
pub fn work_failed() -> Reason {
    Reason::new(
        "gateway.defect",
        "work that ends with a result",
        "a panic; the log has it",
        "gateway_core::admission::effect",
        "report this: it is a defect",
    )
}

impl Work {
    /// The connection that waits for it.
    pub fn conn(&self) -> ConnId {
        match self {
            Work::Hello { conn, .. } | Work::Evidence { conn, .. } => *conn,
        }
    }

    /// Which step of the walk it is. `hello` makes the challenge too.
    pub fn step(&self) -> Step {
        match self {
            Work::Hello { .. } => Step::Hello,
            Work::Evidence { .. } => Step::Appraise,
        }
    }

    /// Finds the attempt in log and ledger.
    pub fn correlation(&self) -> String {
        match self {
            Work::Hello { session, .. } => correlation(session),
            Work::Evidence { issued, .. } => correlation(&issued.session),
        }
    }

    /// Does the work: deterministic in its fields.
    pub fn run(self) -> WorkDone {
        match self {
            Work::Hello {
                conn,
                body,
                session,
                exporter,
                seed,
                rules,
            } => {
                let context = HelloContext {
                    policy: &rules.policy,
                    bindings: rules.directory.as_ref(),
                    ek_roots: &rules.ek_roots,
                    time: rules.time,
                    devid: rules.devid,
                };
                let mut rng =
                    <rand_chacha::ChaCha20Rng as rand_core::SeedableRng>::from_seed(*seed);
                let done = appraise_hello(&body, &context).and_then(|hello| {
                    let issued = make_challenge(&hello, session, exporter, &mut rng)?;
                    Ok(Box::new((hello, issued)))
                });
                WorkDone::Hello(conn, done)
            }
            Work::Evidence {
                conn,
                hello,
                issued,
                body,
                rules,
                relay,
            } => {
                let context = EvidenceContext {
                    policy: &rules.policy,
                    bindings: rules.directory.as_ref(),
                    catalog: &rules.catalog,
                    time: rules.time,
                    relay: relay.as_ref(),
                };
                WorkDone::Evidence(
                    conn,
                    Box::new(appraise_evidence(hello, issued, &body, &context)),
                )
            }
        }
    }
}

//! The door to the driver: what listeners and the admin API may ask of the gateway.
//!
//! Every call becomes one input of the driver's loop and is answered after the records it rests on
//! are on disk. Knows no socket.

use std::net::{Ipv4Addr, SocketAddr};

use bytes::Bytes;
use gateway_core::identity::{MacAddr, MachineId};
use gateway_core::reason::Reason;
use gateway_core::record::Record;
use gateway_core::spire;
use gateway_core::view::{
    DiskView, EkCaExport, EkCaImported, EkCaList, EkUnmatchedList, ImageView, LedgerView,
    MachineView, StatusView, TimelineEntry,
};
use netstack::dhcp::Ingress;
use netstack::dhcp6;
use tokio::sync::{mpsc, oneshot};

pub use gateway_core::admission::command::{Caller, Command, EkCaImport, Role};
pub use gateway_core::admission::effect::WireReply;
pub use gateway_core::admission::installing::Install;
pub use gateway_core::admission::secret::SecretRequest;
pub use gateway_core::gateway::BootQuery;
pub use gateway_core::identity::ConnId;

/// What the attest listener knows of a connection.
#[derive(Clone)]
pub struct Connection {
    /// Its id.
    pub id: ConnId,
    /// The node's address.
    pub peer: SocketAddr,
    /// Random, made at accept; the session id of the challenge.
    pub session: [u8; 16],
    /// TLS exporter with the session id as context.
    pub exporter: [u8; 32],
}

/// The driver's queue is full or the driver has stopped.
#[derive(Debug, thiserror::Error)]
#[error("the gateway is busy or stopping")]
pub struct Busy;

impl Busy {
    /// For the log, the API and the page.
    pub fn reason(&self) -> Reason {
        Reason::new(
            "gateway.busy",
            "a gateway that takes requests",
            "a full queue, or one that stops",
            "docs/OPERATIONS.md, bounds",
            "try again; see /healthz",
        )
    }
}

/// One question to the driver.
pub(crate) enum Request {
    /// A datagram on UDP 67.
    Datagram(Vec<u8>, Ingress),
    /// A datagram on UDP 547.
    Datagram6(Vec<u8>, dhcp6::Ingress),
    /// A datagram on UDP 4011.
    AskBootPort(Vec<u8>, Ingress),
    /// Somebody uses an address that was probed.
    ArpSeen(Ipv4Addr, MacAddr),
    /// A DHCP reply to somebody, as a whole frame.
    DhcpHeard(Vec<u8>),
    /// `POST /v1/hello`.
    Hello(Connection, Bytes, oneshot::Sender<WireReply>),
    /// `POST /v1/evidence`.
    Evidence(ConnId, Bytes, oneshot::Sender<WireReply>),
    /// `POST /v1/evidence` whose body was refused: status and why.
    EvidenceBroken(ConnId, u16, Box<Reason>, oneshot::Sender<WireReply>),
    /// `POST /v1/progress`.
    Progress(ConnId, SocketAddr, Bytes, oneshot::Sender<WireReply>),
    /// May this address fetch the disk image with this digest?
    FetchDisk(SocketAddr, String, oneshot::Sender<Result<(), Reason>>),
    /// The disk images.
    Disks(oneshot::Sender<Vec<DiskView>>),
    /// The connection is gone.
    Closed(ConnId),
    /// The iPXE script for a machine.
    Script(BootQuery, oneshot::Sender<String>),
    /// May this peer fetch this artefact?
    Fetch(BootQuery, oneshot::Sender<Result<(), Reason>>),
    /// This peer asked for a boot file that does not exist.
    Missing(BootQuery, oneshot::Sender<()>),
    /// All machines, claims included.
    Machines(oneshot::Sender<Vec<MachineView>>),
    /// One machine's timeline.
    Timeline(MachineId, oneshot::Sender<Option<Vec<TimelineEntry>>>),
    /// An administrator acts.
    Command(Caller, Command, oneshot::Sender<Result<(), Reason>>),
    /// An owner imports CA certificates for EK chains.
    EkCaImport(
        Caller,
        EkCaImport,
        oneshot::Sender<Result<EkCaImported, Reason>>,
    ),
    /// An owner seals a secret to a machine's EK; the line comes back.
    SealSecret(
        Caller,
        Box<SecretRequest>,
        oneshot::Sender<Result<String, Reason>>,
    ),
    /// The CAs of EK chains.
    EkCas(oneshot::Sender<EkCaList>),
    /// EK certificates whose issuer is unknown.
    EkUnmatched(oneshot::Sender<EkUnmatchedList>),
    /// Issuers of the EK certificates of admitted machines; `true`: every known CA.
    EkExport(bool, oneshot::Sender<EkCaExport>),
    /// The catalogue.
    Images(oneshot::Sender<Vec<ImageView>>),
    /// The appliance.
    Status(oneshot::Sender<StatusView>),
    /// What SPIRE is to know of the machines.
    SpireMachines(oneshot::Sender<Vec<spire::Machine>>),
    /// The EKs of admitted machines.
    EkHashes(oneshot::Sender<Vec<spire::EkHashes>>),
    /// Records that the shell decided on; answered once they are on disk.
    Note(Vec<Record>, oneshot::Sender<()>),
    /// What Talos nodes and their codes need.
    Talos(Box<crate::talos::ask::Ask>),
    /// A page of the ledger.
    Ledger(u64, usize, oneshot::Sender<Vec<LedgerView>>),
}

/// The door itself. Cheap to clone.
#[derive(Clone)]
pub struct Handle {
    pub(crate) tx: mpsc::Sender<Request>,
}

impl Handle {
    /// A door and the end the driver reads from; at most `capacity` questions wait.
    pub(crate) fn new(capacity: usize) -> (Self, mpsc::Receiver<Request>) {
        let (tx, rx) = mpsc::channel(capacity);
        (Self { tx }, rx)
    }

    async fn ask<T>(&self, make: impl FnOnce(oneshot::Sender<T>) -> Request) -> Result<T, Busy> {
        let (tx, rx) = oneshot::channel();
        self.tx.send(make(tx)).await.map_err(|_| Busy)?;
        rx.await.map_err(|_| Busy)
    }

    /// Hands over a datagram; `false` when the queue is full and it was dropped.
    pub(crate) fn datagram(&self, bytes: Vec<u8>, ingress: Ingress) -> bool {
        self.tx.try_send(Request::Datagram(bytes, ingress)).is_ok()
    }

    /// The same for DHCPv6.
    pub(crate) fn datagram6(&self, bytes: Vec<u8>, ingress: dhcp6::Ingress) -> bool {
        self.tx.try_send(Request::Datagram6(bytes, ingress)).is_ok()
    }

    /// The same for the boot port.
    pub(crate) fn boot_request(&self, bytes: Vec<u8>, ingress: Ingress) -> bool {
        let request = Request::AskBootPort(bytes, ingress);
        self.tx.try_send(request).is_ok()
    }

    /// Hands over who uses a probed address; lost when the queue is full.
    pub(crate) fn arp_seen(&self, addr: Ipv4Addr, mac: MacAddr) {
        let _ = self.tx.try_send(Request::ArpSeen(addr, mac));
    }

    /// Hands over another server's reply; lost when the queue is full.
    pub(crate) fn dhcp_heard(&self, frame: Vec<u8>) {
        let _ = self.tx.try_send(Request::DhcpHeard(frame));
    }

    /// Hands over a hello body; answers the challenge or a refusal.
    pub async fn hello(&self, conn: Connection, body: Bytes) -> Result<WireReply, Busy> {
        self.ask(|tx| Request::Hello(conn, body, tx)).await
    }

    /// Hands over an evidence body; answers the result.
    pub async fn evidence(&self, conn: ConnId, body: Bytes) -> Result<WireReply, Busy> {
        self.ask(|tx| Request::Evidence(conn, body, tx)).await
    }

    /// Tells that an evidence body was refused; answers the result.
    pub async fn evidence_broken(
        &self,
        conn: ConnId,
        status: u16,
        reason: Box<Reason>,
    ) -> Result<WireReply, Busy> {
        self.ask(|tx| Request::EvidenceBroken(conn, status, reason, tx))
            .await
    }

    /// Hands over an installer's report; answers whether it is on record.
    pub async fn progress(
        &self,
        conn: ConnId,
        peer: SocketAddr,
        body: Bytes,
    ) -> Result<WireReply, Busy> {
        self.ask(|tx| Request::Progress(conn, peer, body, tx)).await
    }

    /// Whether `peer` may fetch the disk image with this digest now.
    pub async fn disk_fetch(
        &self,
        peer: SocketAddr,
        sha256: String,
    ) -> Result<Result<(), Reason>, Busy> {
        self.ask(|tx| Request::FetchDisk(peer, sha256, tx)).await
    }

    /// The disk images with floors.
    pub async fn disks(&self) -> Result<Vec<DiskView>, Busy> {
        self.ask(Request::Disks).await
    }

    /// Tells that a connection ended; its session dies.
    pub async fn connection_closed(&self, conn: ConnId) {
        // A stopped driver has no sessions left to forget.
        let _ = self.tx.send(Request::Closed(conn)).await;
    }

    /// The iPXE script for the machine that asks.
    pub async fn boot_script(&self, query: BootQuery) -> Result<String, Busy> {
        self.ask(|tx| Request::Script(query, tx)).await
    }

    /// Whether the machine behind `query` may fetch the artefact it names now.
    pub async fn boot_fetch(&self, query: BootQuery) -> Result<Result<(), Reason>, Busy> {
        self.ask(|tx| Request::Fetch(query, tx)).await
    }

    /// Notes that a machine asked for a boot file that does not exist.
    pub async fn boot_missing(&self, query: BootQuery) -> Result<(), Busy> {
        self.ask(|tx| Request::Missing(query, tx)).await
    }

    /// All machines, pending claims included (state `pending`).
    pub async fn machines(&self) -> Result<Vec<MachineView>, Busy> {
        self.ask(Request::Machines).await
    }

    /// One machine's timeline, oldest first; none for an unknown machine.
    pub async fn timeline(&self, id: MachineId) -> Result<Option<Vec<TimelineEntry>>, Busy> {
        self.ask(|tx| Request::Timeline(id, tx)).await
    }

    /// Performs an administrator's act; roles are checked here as well as in the router.
    pub async fn command(
        &self,
        caller: Caller,
        command: Command,
    ) -> Result<Result<(), Reason>, Busy> {
        self.ask(|tx| Request::Command(caller, command, tx)).await
    }

    /// Imports CA certificates for EK chains; answered when those that were taken are on disk.
    pub async fn import_ek_cas(
        &self,
        caller: Caller,
        import: EkCaImport,
    ) -> Result<Result<EkCaImported, Reason>, Busy> {
        self.ask(|tx| Request::EkCaImport(caller, import, tx)).await
    }

    /// Seals a secret to a machine's EK; answered when the act is on disk.
    pub async fn seal_secret(
        &self,
        caller: Caller,
        request: SecretRequest,
    ) -> Result<Result<String, Reason>, Busy> {
        let request = Box::new(request);
        self.ask(|tx| Request::SealSecret(caller, request, tx))
            .await
    }

    /// The CAs that EK chains are built with.
    pub async fn ek_cas(&self) -> Result<EkCaList, Busy> {
        self.ask(Request::EkCas).await
    }

    /// EK certificates whose issuer is unknown.
    pub async fn ek_unmatched(&self) -> Result<EkUnmatchedList, Busy> {
        self.ask(Request::EkUnmatched).await
    }

    /// Issuers of the EK certificates of admitted machines; with `all` every known CA.
    pub async fn ek_export(&self, all: bool) -> Result<EkCaExport, Busy> {
        self.ask(|tx| Request::EkExport(all, tx)).await
    }

    /// The catalogue with floors.
    pub async fn images(&self) -> Result<Vec<ImageView>, Busy> {
        self.ask(Request::Images).await
    }

    /// The appliance.
    pub async fn status(&self) -> Result<StatusView, Busy> {
        self.ask(Request::Status).await
    }

    /// What SPIRE is to know of the machines; what this tells is on disk.
    pub(crate) async fn spire_machines(&self) -> Result<Vec<spire::Machine>, Busy> {
        self.ask(Request::SpireMachines).await
    }

    /// The EKs of admitted machines; what this tells is on disk.
    pub(crate) async fn ek_hashes(&self) -> Result<Vec<spire::EkHashes>, Busy> {
        self.ask(Request::EkHashes).await
    }

    /// Writes records that the shell decided on (its own certificates); returns once they are on
    /// disk.
    pub(crate) async fn note(&self, records: Vec<Record>) -> Result<(), Busy> {
        self.ask(|tx| Request::Note(records, tx)).await
    }

    /// At most `max` ledger entries from sequence `from`.
    pub async fn ledger(&self, from: u64, max: usize) -> Result<Vec<LedgerView>, Busy> {
        self.ask(|tx| Request::Ledger(from, max, tx)).await
    }
}

//! The door to the driver: what listeners and the admin API may ask of the gateway.
//!
//! Every call becomes one input of the driver's loop and is answered after the records it rests on
//! are on disk. Knows no socket.

use std::net::{IpAddr, SocketAddr};

use bytes::Bytes;
use gateway_core::identity::{MacAddr, MachineId};
use gateway_core::reason::Reason;
use gateway_core::view::{ImageView, LedgerView, MachineView, StatusView, TimelineEntry};
use tokio::sync::{mpsc, oneshot};

/// One accepted connection of the attest listener; never reused within a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u64);

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

/// What goes back to the node.
#[derive(Debug)]
pub struct WireReply {
    /// HTTP status.
    pub status: u16,
    /// JSON body.
    pub body: Vec<u8>,
    /// The connection ends after this reply.
    pub close: bool,
}

/// Who asks, taken from a verified client certificate.
#[derive(Debug, Clone)]
pub struct Caller {
    /// Subject CN.
    pub cn: String,
    /// Role.
    pub role: Role,
}

/// Roles of the admin endpoint, ascending.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Reads.
    Viewer,
    /// Approves, cordons.
    Operator,
    /// Everything.
    Owner,
}

impl Role {
    /// Name in certificates, API and ledger.
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Viewer => "viewer",
            Role::Operator => "operator",
            Role::Owner => "owner",
        }
    }
}

/// What an administrator may do.
#[derive(Debug, Clone)]
pub enum Command {
    /// Bind a pending claim.
    Approve {
        /// The claim.
        machine: MachineId,
        /// Class.
        class: Option<String>,
        /// Require this disk.
        disk_serial: Option<String>,
        /// Require this switch port.
        port: Option<String>,
        /// How the report digest was compared: `console`, `exported-report` or `none`.
        compared: String,
    },
    /// Stop admitting for now.
    Cordon(MachineId),
    /// Undo of cordon.
    Uncordon(MachineId),
    /// The owner states that the machine is installed: boot its local disk.
    MarkInstalled(MachineId),
    /// End access.
    Withdraw(MachineId, String),
    /// Leave the fleet.
    Retire(MachineId),
    /// Raise the oldest acceptable version of an image.
    ImageFloor(String, u64),
    /// Refuse an image, by SHA-256.
    ImageWithdraw(String),
}

/// A machine asks what to boot.
#[derive(Debug, Clone)]
pub struct BootQuery {
    /// Its address.
    pub peer: IpAddr,
    /// Hardware address from the URL, if any; the lease table decides when it is absent.
    pub mac: Option<MacAddr>,
    /// Value of iPXE's `${buildarch}` or similar, if any.
    pub arch: Option<String>,
    /// Path or file name, for the record.
    pub what: String,
}

/// The driver's queue is full or the driver has stopped.
#[derive(Debug, thiserror::Error)]
#[error("the gateway is busy or stopping")]
pub struct Busy;

/// One question to the driver.
pub(crate) enum Request {
    /// `POST /v1/hello`.
    Hello(Connection, Bytes, oneshot::Sender<WireReply>),
    /// `POST /v1/evidence`.
    Evidence(ConnId, Bytes, oneshot::Sender<WireReply>),
    /// The connection is gone.
    Closed(ConnId),
    /// The iPXE script for a machine.
    Script(BootQuery, oneshot::Sender<String>),
    /// May this peer fetch this artefact?
    Fetch(BootQuery, oneshot::Sender<Result<(), Reason>>),
    /// All machines, claims included.
    Machines(oneshot::Sender<Vec<MachineView>>),
    /// One machine's timeline.
    Timeline(MachineId, oneshot::Sender<Option<Vec<TimelineEntry>>>),
    /// An administrator acts.
    Command(Caller, Command, oneshot::Sender<Result<(), Reason>>),
    /// The catalogue.
    Images(oneshot::Sender<Vec<ImageView>>),
    /// The appliance.
    Status(oneshot::Sender<StatusView>),
    /// A page of the ledger.
    Ledger(u64, usize, oneshot::Sender<Vec<LedgerView>>),
}

/// The door itself. Cheap to clone.
#[derive(Clone)]
pub struct Handle {
    pub(crate) tx: mpsc::Sender<Request>,
}

impl Handle {
    async fn ask<T>(&self, make: impl FnOnce(oneshot::Sender<T>) -> Request) -> Result<T, Busy> {
        let (tx, rx) = oneshot::channel();
        self.tx.send(make(tx)).await.map_err(|_| Busy)?;
        rx.await.map_err(|_| Busy)
    }

    /// Hands over a hello body; answers the challenge or a refusal.
    pub async fn hello(&self, conn: Connection, body: Bytes) -> Result<WireReply, Busy> {
        self.ask(|tx| Request::Hello(conn, body, tx)).await
    }

    /// Hands over an evidence body; answers the result.
    pub async fn evidence(&self, conn: ConnId, body: Bytes) -> Result<WireReply, Busy> {
        self.ask(|tx| Request::Evidence(conn, body, tx)).await
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

    /// The catalogue with floors.
    pub async fn images(&self) -> Result<Vec<ImageView>, Busy> {
        self.ask(Request::Images).await
    }

    /// The appliance.
    pub async fn status(&self) -> Result<StatusView, Busy> {
        self.ask(Request::Status).await
    }

    /// At most `max` ledger entries from sequence `from`.
    pub async fn ledger(&self, from: u64, max: usize) -> Result<Vec<LedgerView>, Busy> {
        self.ask(|tx| Request::Ledger(from, max, tx)).await
    }
}

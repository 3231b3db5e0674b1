//! TFTP listener: what the engine's own thread asks of the rest of the daemon, and how it is
//! started and stopped.
//!
//! Transfers are `netstack::tftp`'s; what a name means is [`FileSource`]'s; sockets are
//! `hw::net`'s. The packets never pass the async runtime: a block in lock step is answered by two
//! calls of the kernel on one thread, and a window leaves as one. Only the question who may have
//! which file goes to the driver, once for each transfer.

mod engine;

use std::future::Future;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use hw::net::Wake;
use netstack::tftp::{ErrorCode, ErrorReply, TransferId};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub use netstack::tftp::{Bounds, End, Report};

/// How long [`FileSource::open`] may take. Firmware asks again after about as long.
const OPEN_MAX: Duration = Duration::from_secs(10);
/// Files looked for at once; further requests are as if they had been lost. The driver takes each within
/// a millisecond, so a rack that starts at once stays far below.
const OPENS_MAX: usize = 512;

/// Where file contents come from. One value serves all transfers.
pub trait FileSource: Send + Sync + 'static {
    /// The contents for a name, or what the client is told instead. `name` is what the client
    /// sent: not a path, not checked.
    fn open(
        &self,
        peer: SocketAddr,
        name: &str,
    ) -> impl Future<Output = Result<Bytes, ErrorReply>> + Send;

    /// A transfer is over. Must not block.
    fn finished(&self, _report: &Report) {}

    /// A datagram or request was turned away before any file was asked for. Must not block.
    fn refused(&self, _peer: SocketAddr, _code: &'static str) {}
}

/// From which port transfers are served.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Ports {
    /// All from the listener's: the least work, and no trouble with firewalls. RFC 1350 section 4
    /// lets the server choose its transfer id; this is a choice too.
    #[default]
    One,
    /// Each from a port of its own, as most servers do; a forger must guess it as well.
    Ephemeral,
}

/// How to serve.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// Bounds.
    pub bounds: Bounds,
    /// Ports.
    pub ports: Ports,
}

/// A file that a transfer waits for.
struct Ask {
    id: TransferId,
    peer: SocketAddr,
    name: String,
}

/// What was found.
struct Answer {
    id: TransferId,
    contents: Result<Bytes, ErrorReply>,
}

/// Serves until `stop`, then tells the clients good-bye.
///
/// # Errors
/// The engine cannot start, or its sockets broke.
pub async fn serve<F: FileSource>(
    socket: UdpSocket,
    source: Arc<F>,
    options: Options,
    stop: CancellationToken,
) -> io::Result<()> {
    let local = socket.local_addr()?;
    let wake = Wake::new()?;
    let stopping = Arc::new(AtomicBool::new(false));
    let (asks, mut asked) = mpsc::channel(OPENS_MAX);
    let (answers, answered) = std::sync::mpsc::channel();
    let (ended, mut end) = oneshot::channel();
    let (files, bell, flag) = (source.clone(), wake.clone(), stopping.clone());
    std::thread::Builder::new()
        .name("tftp".to_owned())
        .spawn(move || {
            let doors = engine::Doors {
                asks,
                answers: answered,
                stopping: flag,
                wake: bell,
            };
            let result =
                engine::Engine::new(socket, options, files, doors).and_then(engine::Engine::run);
            // Nobody waits any more when the daemon is torn down.
            let _ = ended.send(result);
        })?;
    tracing::info!(%local, ports = ?options.ports, "tftp listens");
    let mut opens = JoinSet::new();
    loop {
        tokio::select! {
            () = stop.cancelled(), if !stopping.load(Ordering::Relaxed) => {
                stopping.store(true, Ordering::Relaxed);
                wake.notify();
            }
            Some(ask) = asked.recv(), if opens.len() < OPENS_MAX => {
                let (source, answers, wake) = (source.clone(), answers.clone(), wake.clone());
                opens.spawn(async move {
                    let contents = open(&*source, &ask).await;
                    // A stopped engine has no use for it.
                    let _ = answers.send(Answer { id: ask.id, contents });
                    wake.notify();
                });
            }
            Some(_) = opens.join_next() => {}
            result = &mut end => {
                return result.unwrap_or_else(|_| Err(io::Error::other("the TFTP thread ended")));
            }
        }
    }
}

async fn open<F: FileSource>(source: &F, ask: &Ask) -> Result<Bytes, ErrorReply> {
    let opening = source.open(ask.peer, &ask.name);
    match tokio::time::timeout(OPEN_MAX, opening).await {
        Ok(contents) => contents,
        Err(_elapsed) => Err(busy()),
    }
}

fn busy() -> ErrorReply {
    ErrorReply::new(ErrorCode::NotDefined, "the boot server is busy, try again")
}

#[cfg(test)]
mod tests;

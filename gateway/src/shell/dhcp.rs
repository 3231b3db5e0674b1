//! UDP 67 and 4011 <-> the core: reads datagrams, hands them to the driver, sends what it decides.
//!
//! Knows four ways out: broadcast, a frame to a client that cannot answer ARP yet, and an
//! ordinary datagram to a relay, or from the boot port to who asked there. Everything else is `netstack::dhcp`.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::Arc;
use std::time::Duration;

use hw::nic::{self, NicError, RawUdp};
use netstack::dhcp::{BOOT_PORT, CLIENT_PORT, Destination, Ingress, Reply};
use tokio::net::UdpSocket;
use tokio_util::sync::CancellationToken;

use crate::handle::Handle;
use crate::metrics::{DHCP, Metrics};

/// Longest datagram read; `netstack::dhcp` refuses longer ones.
const DATAGRAM_LEN_MAX: usize = 9_216;
/// Datagrams that may wait in the socket: a thousand machines switched on at once, whose DISCOVERs the
/// kernel counts with 1280 bytes each.
const RECEIVE_BUFFER_BYTES: usize = 4 << 20;
/// Datagrams taken from one socket before the other is looked at.
const RECEIVE_MAX: usize = 64;
/// Pause after a failed receive, so that a broken socket does not spin.
const RECEIVE_PAUSE: Duration = Duration::from_millis(50);

/// Why the DHCP listener could not start.
#[derive(Debug, thiserror::Error)]
pub enum DhcpError {
    /// The port is taken, or a privilege is missing.
    #[error("cannot listen on UDP port {port} of {iface} for DHCP")]
    Bind {
        /// Port.
        port: u16,
        /// Interface.
        iface: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The interface is missing, or a privilege is.
    #[error("cannot use interface {iface} for DHCP")]
    Interface {
        /// Interface.
        iface: String,
        /// Why.
        #[source]
        source: NicError,
    },
}

/// The listener's sockets, bound to one interface.
pub struct DhcpSocket {
    udp: Arc<UdpSocket>,
    boot: Arc<UdpSocket>,
    raw: Arc<RawUdp>,
    iface: String,
    server: SocketAddrV4,
}

/// Sends replies.
#[derive(Clone)]
pub struct DhcpSender {
    udp: Arc<UdpSocket>,
    boot: Arc<UdpSocket>,
    raw: Arc<RawUdp>,
    server: SocketAddrV4,
    metrics: Arc<Metrics>,
}

impl DhcpSocket {
    /// Opens the sockets on `iface`, where we are `server`.
    ///
    /// # Errors
    /// [`DhcpError`].
    pub fn open(iface: &str, server: Ipv4Addr, port: u16) -> Result<Self, DhcpError> {
        let interface = |source| DhcpError::Interface {
            iface: iface.to_owned(),
            source,
        };
        Ok(Self {
            udp: Arc::new(listen(iface, port)?),
            boot: Arc::new(listen(iface, BOOT_PORT)?),
            raw: Arc::new(RawUdp::open(iface).map_err(interface)?),
            iface: iface.to_owned(),
            server: SocketAddrV4::new(server, port),
        })
    }

    /// What sends UDP in frames of our own making.
    pub fn raw(&self) -> Arc<RawUdp> {
        Arc::clone(&self.raw)
    }

    /// The sending half.
    pub fn sender(&self, metrics: Arc<Metrics>) -> DhcpSender {
        DhcpSender {
            udp: Arc::clone(&self.udp),
            boot: Arc::clone(&self.boot),
            raw: Arc::clone(&self.raw),
            server: self.server,
            metrics,
        }
    }

    /// Hands datagrams to the driver until cancelled. A full queue drops and counts: the client
    /// asks again.
    pub async fn run(self, handle: Handle, metrics: Arc<Metrics>, cancel: CancellationToken) {
        let mut buffer = vec![0; DATAGRAM_LEN_MAX];
        loop {
            let (ready, boot_port) = tokio::select! {
                () = cancel.cancelled() => return,
                ready = self.udp.readable() => (ready, false),
                ready = self.boot.readable() => (ready, true),
            };
            let taken = ready.and_then(|()| self.take(boot_port, &mut buffer, &handle, &metrics));
            if let Err(error) = taken {
                tracing::warn!(%error, iface = self.iface, "dhcp receive failed");
                tokio::time::sleep(RECEIVE_PAUSE).await;
            }
        }
    }

    /// Takes what waits in a socket: a storm's datagrams are handled together, not a wake-up each.
    fn take(
        &self,
        boot_port: bool,
        buffer: &mut [u8],
        handle: &Handle,
        metrics: &Metrics,
    ) -> io::Result<()> {
        let socket = if boot_port { &self.boot } else { &self.udp };
        for _ in 0..RECEIVE_MAX {
            let (len, source) = match socket.try_recv_from(buffer) {
                Ok((len, SocketAddr::V4(source))) => (len, source),
                Ok((_, SocketAddr::V6(_))) => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            };
            let ingress = Ingress {
                server_addr: *self.server.ip(),
                source,
                iface: self.iface.clone(),
            };
            let datagram = buffer[..len].to_vec();
            let taken = if boot_port {
                handle.boot_request(datagram, ingress)
            } else {
                handle.datagram(datagram, ingress)
            };
            metrics.count(DHCP, if taken { "received" } else { "dropped" });
        }
        Ok(())
    }
}

/// A UDP socket that hears and speaks on one interface only.
fn listen(iface: &str, port: u16) -> Result<UdpSocket, DhcpError> {
    let bind = |source| DhcpError::Bind {
        port,
        iface: iface.to_owned(),
        source,
    };
    let any = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port);
    let socket = std::net::UdpSocket::bind(any).map_err(bind)?;
    nic::bind_to_device(&socket, iface).map_err(|source| DhcpError::Interface {
        iface: iface.to_owned(),
        source,
    })?;
    let room = nic::receive_buffer(&socket, RECEIVE_BUFFER_BYTES);
    if room < RECEIVE_BUFFER_BYTES {
        tracing::warn!(
            iface,
            port,
            room,
            wanted = RECEIVE_BUFFER_BYTES,
            "receive buffer smaller than asked for: in a boot storm some clients must ask twice; \
             raise net.core.rmem_max or give CAP_NET_ADMIN"
        );
    }
    socket.set_broadcast(true).map_err(bind)?;
    socket.set_nonblocking(true).map_err(bind)?;
    UdpSocket::from_std(socket).map_err(bind)
}

impl DhcpSender {
    /// Sends one reply. A reply that cannot be sent is logged and counted: the client asks again.
    pub fn send(&self, reply: &Reply, iface: &str) {
        let sent = match reply.to {
            Destination::Broadcast => datagram(
                &self.udp,
                &reply.payload,
                SocketAddrV4::new(Ipv4Addr::BROADCAST, CLIENT_PORT),
            ),
            Destination::Unicast { mac, addr } => self
                .raw
                .send_to(
                    mac.0,
                    self.server,
                    SocketAddrV4::new(addr, CLIENT_PORT),
                    &reply.payload,
                )
                .map_err(|error| crate::telemetry::chain(&error)),
            Destination::Relay(to) => datagram(&self.udp, &reply.payload, to),
            Destination::BootPort(to) => datagram(&self.boot, &reply.payload, to),
        };
        match sent {
            Ok(()) => {
                tracing::debug!(xid = reply.xid(), iface, to = ?reply.to, "dhcp reply");
                self.metrics.count(DHCP, "answered");
            }
            Err(error) => {
                tracing::warn!(error, xid = reply.xid(), iface, to = ?reply.to, "dhcp reply not sent");
                self.metrics.count(DHCP, "unsent");
            }
        }
    }
}

fn datagram(socket: &UdpSocket, payload: &[u8], to: SocketAddrV4) -> Result<(), String> {
    socket
        .try_send_to(payload, SocketAddr::V4(to))
        .map(drop)
        .map_err(|error| error.to_string())
}

//! UDP 547 <-> the core: reads datagrams, hands them to the driver, sends what it decides.
//!
//! One socket, bound to the provisioning interface and a member of `ff02::1:2`: clients speak to the
//! group, relays to our address. Everything else is `netstack::dhcp6`.

use std::io;
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};
use std::sync::Arc;
use std::time::Duration;

use hw::nic::{self, NicError};
use netstack::dhcp6::{ALL_RELAYS_AND_SERVERS, Ingress, Reply, SERVER_PORT};
use tokio::net::UdpSocket;
use tokio_util::sync::CancellationToken;

use crate::handle::Handle;
use crate::metrics::{DHCP6, Metrics};

/// Longest datagram read; `netstack::dhcp6` refuses longer ones.
const DATAGRAM_LEN_MAX: usize = 9_216;
/// Pause after a failed receive, so that a broken socket does not spin.
const RECEIVE_PAUSE: Duration = Duration::from_millis(50);

/// Why the DHCPv6 listener could not start.
#[derive(Debug, thiserror::Error)]
pub enum Dhcp6Error {
    /// The port is taken, a privilege is missing, or the interface has no IPv6.
    #[error("cannot listen on UDP port {SERVER_PORT} of {iface} for DHCPv6")]
    Bind {
        /// Interface.
        iface: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The interface is missing, or a privilege is.
    #[error("cannot use interface {iface} for DHCPv6")]
    Interface {
        /// Interface.
        iface: String,
        /// Why.
        #[source]
        source: NicError,
    },
}

/// The listener's socket, bound to one interface.
pub struct Dhcp6Socket {
    udp: Arc<UdpSocket>,
    iface: String,
}

/// Sends replies.
#[derive(Clone)]
pub struct Dhcp6Sender {
    udp: Arc<UdpSocket>,
    metrics: Arc<Metrics>,
}

impl Dhcp6Socket {
    /// Opens the socket on `iface`.
    ///
    /// # Errors
    /// [`Dhcp6Error`].
    pub fn open(iface: &str) -> Result<Self, Dhcp6Error> {
        let bind = |source| Dhcp6Error::Bind {
            iface: iface.to_owned(),
            source,
        };
        let interface = |source| Dhcp6Error::Interface {
            iface: iface.to_owned(),
            source,
        };
        let any = SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, SERVER_PORT, 0, 0);
        let socket = std::net::UdpSocket::bind(any).map_err(bind)?;
        nic::bind_to_device(&socket, iface).map_err(interface)?;
        let index = nic::index_of(iface).map_err(interface)?;
        socket
            .join_multicast_v6(&ALL_RELAYS_AND_SERVERS, index)
            .map_err(bind)?;
        socket.set_nonblocking(true).map_err(bind)?;
        Ok(Self {
            udp: Arc::new(UdpSocket::from_std(socket).map_err(bind)?),
            iface: iface.to_owned(),
        })
    }

    /// The sending half.
    pub fn sender(&self, metrics: Arc<Metrics>) -> Dhcp6Sender {
        Dhcp6Sender {
            udp: Arc::clone(&self.udp),
            metrics,
        }
    }

    /// Hands datagrams to the driver until cancelled. A full queue drops and counts: the client
    /// asks again.
    pub async fn run(self, handle: Handle, metrics: Arc<Metrics>, cancel: CancellationToken) {
        let mut buffer = vec![0; DATAGRAM_LEN_MAX];
        loop {
            let received = tokio::select! {
                () = cancel.cancelled() => return,
                received = self.udp.recv_from(&mut buffer) => received,
            };
            let (len, source) = match received {
                Ok((len, SocketAddr::V6(source))) => (len, source),
                Ok((_, SocketAddr::V4(_))) => continue,
                Err(error) => {
                    tracing::warn!(%error, iface = self.iface, "dhcp6 receive failed");
                    tokio::time::sleep(RECEIVE_PAUSE).await;
                    continue;
                }
            };
            // The socket takes IPv4 as well, under mapped addresses; nobody speaks DHCPv6 there.
            if source.ip().to_ipv4_mapped().is_some() {
                continue;
            }
            let ingress = Ingress {
                source,
                iface: self.iface.clone(),
            };
            let taken = handle.datagram6(buffer[..len].to_vec(), ingress);
            metrics.count(DHCP6, if taken { "received" } else { "dropped" });
        }
    }
}

impl Dhcp6Sender {
    /// Sends one reply. A reply that cannot be sent is logged and counted: the client asks again.
    pub fn send(&self, reply: &Reply, iface: &str) {
        match self
            .udp
            .try_send_to(&reply.payload, SocketAddr::V6(reply.to))
        {
            Ok(_) => {
                tracing::debug!(xid = reply.xid, iface, to = %reply.to, "dhcp6 reply");
                self.metrics.count(DHCP6, "answered");
            }
            Err(error) => {
                tracing::warn!(%error, xid = reply.xid, iface, to = %reply.to, "dhcp6 reply not sent");
                self.metrics.count(DHCP6, "unsent");
            }
        }
    }
}

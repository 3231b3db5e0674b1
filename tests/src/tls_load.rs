//! A load of HTTPS clients that costs little itself: one thread for each, every byte of every body
//! compared, connections from several addresses as machines have them.
//!
//! Used by the bench and by the scenario of slow clients. Runs in the calling thread's namespace.

use std::io::{BufRead as _, ErrorKind, Read, Write as _};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, socket};
use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, aws_lc_rs};
use rustls::pki_types::ServerName;
use rustls::{
    CipherSuite, ClientConfig, ClientConnection, RootCertStore, SignatureScheme,
    SupportedProtocolVersion,
};

/// Silence after which a client gives up.
const PATIENCE: Duration = Duration::from_secs(60);
/// One read of the socket: a client that reads in small pieces would be what is measured.
const READ_BYTES: usize = 256 * 1024;
/// Longest response head.
const HEAD_MAX_BYTES: usize = 16 * 1024;

/// Which certificate a client asks for, by the signatures that it takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    /// ECDSA on P-256.
    P256,
    /// RSA, PSS.
    Rsa,
}

/// A client that trusts the CA in `ca_pem`, speaks one version of TLS with AES-128-GCM only (so that
/// every server does the same work) and resumes nothing.
///
/// # Errors
/// The file is missing or not PEM.
pub fn client(
    ca_pem: &Path,
    version: &'static SupportedProtocolVersion,
    key: Key,
) -> Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    for cert in crate::http::certificates(ca_pem)? {
        roots.add(cert)?;
    }
    let config = ClientConfig::builder_with_provider(Arc::new(provider(key)))
        .with_protocol_versions(&[version])?
        .with_root_certificates(roots);
    let mut config = config.with_no_client_auth();
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

fn provider(key: Key) -> CryptoProvider {
    let mut provider = aws_lc_rs::default_provider();
    provider.cipher_suites.retain(|suite| {
        matches!(
            suite.suite(),
            CipherSuite::TLS13_AES_128_GCM_SHA256
                | CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
                | CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256
        )
    });
    let all = provider.signature_verification_algorithms;
    // The offer has one kind of signature in the handshake; the chain may have the other.
    let mapping: Vec<_> = all
        .mapping
        .iter()
        .filter(|(scheme, _)| match key {
            Key::P256 => *scheme == SignatureScheme::ECDSA_NISTP256_SHA256,
            Key::Rsa => *scheme == SignatureScheme::RSA_PSS_SHA256,
        })
        .copied()
        .collect();
    provider.signature_verification_algorithms = WebPkiSupportedAlgorithms {
        all: all.all,
        // The provider wants it for the life of the program; a run makes a handful.
        mapping: mapping.leak(),
    };
    provider
}

/// A TLS connection, just shaken hands.
pub struct Connection {
    /// The session.
    pub tls: ClientConnection,
    wire: Wire,
}

/// The socket behind a large buffer.
struct Wire {
    socket: TcpStream,
    buffer: Vec<u8>,
    range: std::ops::Range<usize>,
}

impl Read for Wire {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        if self.range.is_empty() {
            self.range = 0..self.socket.read(&mut self.buffer)?;
        }
        let bytes = &self.buffer[self.range.clone()];
        let taken = bytes.len().min(out.len());
        out[..taken].copy_from_slice(&bytes[..taken]);
        self.range.start += taken;
        Ok(taken)
    }
}

/// A TCP connection from one of our addresses, or from whichever the kernel takes.
///
/// # Errors
/// What the kernel says.
pub fn connect_from(source: Option<Ipv4Addr>, server: SocketAddrV4) -> Result<TcpStream> {
    let fd = socket(
        AddressFamily::Inet,
        SockType::Stream,
        SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    if let Some(source) = source {
        bind(
            fd.as_raw_fd(),
            &SockaddrIn::from(SocketAddrV4::new(source, 0)),
        )
        .with_context(|| format!("cannot use {source}"))?;
    }
    connect(fd.as_raw_fd(), &SockaddrIn::from(server))
        .with_context(|| format!("cannot connect to {server}"))?;
    let stream = TcpStream::from(fd);
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

impl Connection {
    /// Connects and shakes hands; the server is verified against its address.
    ///
    /// # Errors
    /// No connection, or the handshake fails.
    pub fn open(
        source: Option<Ipv4Addr>,
        server: SocketAddrV4,
        config: Arc<ClientConfig>,
    ) -> Result<Self> {
        let socket = connect_from(source, server)?;
        let name = ServerName::IpAddress(SocketAddr::V4(server).ip().into());
        let mut connection = Self {
            tls: ClientConnection::new(config, name)?,
            wire: Wire {
                socket,
                buffer: vec![0; READ_BYTES],
                range: 0..0,
            },
        };
        while connection.tls.is_handshaking() {
            connection.flush()?;
            if connection.tls.is_handshaking() && !connection.receive()? {
                bail!("{server} hung up in the handshake");
            }
        }
        connection.flush()?;
        Ok(connection)
    }

    /// The socket.
    pub fn socket(&self) -> &TcpStream {
        &self.wire.socket
    }

    fn flush(&mut self) -> Result<()> {
        while self.tls.wants_write() {
            self.tls.write_tls(&mut self.wire.socket)?;
        }
        Ok(())
    }

    /// Takes in what one read gives; false at the end of the stream.
    fn receive(&mut self) -> Result<bool> {
        if self.tls.read_tls(&mut self.wire)? == 0 {
            return Ok(false);
        }
        if let Err(error) = self.tls.process_new_packets() {
            // The alert says why.
            let _ = self.flush();
            return Err(error.into());
        }
        Ok(true)
    }

    /// Sends bytes.
    ///
    /// # Errors
    /// The connection is gone.
    pub fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.tls.writer().write_all(bytes)?;
        self.flush()
    }

    /// Reads one response with a `Content-Length` and compares its body; the status.
    ///
    /// # Errors
    /// The connection ends early, or the body is not `expected`.
    pub fn response(&mut self, expected: &[u8]) -> Result<u16> {
        let mut head = Vec::new();
        // Status, and how much of the body was compared.
        let mut body: Option<(u16, usize)> = None;
        loop {
            let mut reader = self.tls.reader();
            let chunk = match reader.fill_buf() {
                Ok(chunk) => chunk,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    ensure!(self.receive()?, "the server hung up");
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            ensure!(!chunk.is_empty(), "the server ended the session");
            let used = chunk.len();
            match &mut body {
                Some((_, at)) => {
                    same(chunk, expected, *at)?;
                    *at += used;
                }
                None => {
                    head.extend_from_slice(chunk);
                    if let Some(end) = head.windows(4).position(|four| four == b"\r\n\r\n") {
                        let (status, length) = parse(&head[..end])?;
                        let rest = &head[end + 4..];
                        ensure!(
                            length == expected.len(),
                            "status {status}, {length} bytes, expected {}",
                            expected.len()
                        );
                        same(rest, expected, 0)?;
                        body = Some((status, rest.len()));
                    }
                    ensure!(head.len() < HEAD_MAX_BYTES + READ_BYTES, "an endless head");
                }
            }
            reader.consume(used);
            if let Some((status, at)) = body
                && at == expected.len()
            {
                return Ok(status);
            }
        }
    }

    /// Reads until `count` tickets have come (TLS 1.3 sends them after the handshake).
    ///
    /// # Errors
    /// The server says something else, or nothing.
    pub fn tickets(&mut self, count: u32) -> Result<()> {
        while self.tls.tls13_tickets_received() < count {
            ensure!(self.receive()?, "the server hung up before its tickets");
        }
        let found = self.tls.tls13_tickets_received();
        ensure!(found == count, "{found} tickets, expected {count}");
        Ok(())
    }

    /// Ends the session and the connection in order.
    ///
    /// # Errors
    /// The connection is gone.
    pub fn close(mut self) -> Result<()> {
        self.tls.send_close_notify();
        self.flush()
    }
}

fn same(chunk: &[u8], expected: &[u8], at: usize) -> Result<()> {
    let wanted = expected.get(at..at + chunk.len()).unwrap_or_default();
    ensure!(chunk == wanted, "wrong bytes after {at}");
    Ok(())
}

/// Status and `Content-Length` of a response head.
fn parse(head: &[u8]) -> Result<(u16, usize)> {
    let text = std::str::from_utf8(head)?;
    let status = text.split_whitespace().nth(1).and_then(|s| s.parse().ok());
    let length = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        let named = name.eq_ignore_ascii_case("content-length");
        named.then(|| value.trim().parse().ok()).flatten()
    });
    status
        .zip(length)
        .with_context(|| format!("no status or Content-Length in {text:?}"))
}

/// GET of one path by machines that each open a connection of their own.
pub struct Download<'a> {
    /// Our addresses, used in turn: a server may bound the connections of one.
    pub sources: &'a [Ipv4Addr],
    /// The server.
    pub server: SocketAddrV4,
    /// Path of the file.
    pub path: &'a str,
    /// Its content.
    pub content: &'a [u8],
    /// TLS of the clients.
    pub config: &'a Arc<ClientConfig>,
}

impl Download<'_> {
    /// `clients` at once, `each` transfers one after the other.
    ///
    /// # Errors
    /// The first client that did not get the file whole and right.
    pub fn run(&self, clients: usize, each: usize) -> Result<()> {
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..clients)
                .map(|client| scope.spawn(move || (0..each).try_for_each(|_| self.fetch(client))))
                .collect();
            threads.into_iter().try_for_each(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|p| std::panic::resume_unwind(p))
            })
        })
    }

    fn fetch(&self, client: usize) -> Result<()> {
        let source = self
            .sources
            .get(client % self.sources.len().max(1))
            .copied();
        let mut connection = Connection::open(source, self.server, self.config.clone())?;
        let host = self.server.ip();
        connection
            .send(format!("GET {} HTTP/1.1\r\nHost: {host}\r\n\r\n", self.path).as_bytes())?;
        let status = connection.response(self.content)?;
        ensure!(status == 200, "status {status}");
        connection.close()
    }

    /// `count` new connections by `clients` at once, each taking `tickets` tickets.
    ///
    /// # Errors
    /// The first connection that failed.
    pub fn handshakes(&self, clients: usize, count: usize, tickets: u32) -> Result<()> {
        let one = |client: usize| -> Result<()> {
            let source = self
                .sources
                .get(client % self.sources.len().max(1))
                .copied();
            let mut connection = Connection::open(source, self.server, self.config.clone())?;
            connection.tickets(tickets)?;
            connection.close()
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..clients)
                .map(|client| {
                    let own = count / clients + usize::from(client < count % clients);
                    scope.spawn(move || (0..own).try_for_each(|_| one(client)))
                })
                .collect();
            threads.into_iter().try_for_each(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|p| std::panic::resume_unwind(p))
            })
        })
    }
}

/// Bytes without a pattern that a mistake could repeat (xorshift, Marsaglia 2003).
pub fn content(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut out = Vec::with_capacity(bytes + 8);
    while out.len() < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend_from_slice(&state.to_le_bytes());
    }
    out.truncate(bytes);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_a_body_with_one_wrong_byte_and_one_too_long() {
        let content = content(1000, 7);
        assert_eq!(content.len(), 1000);
        same(&content[10..20], &content, 10).unwrap();
        let mut wrong = content[10..20].to_vec();
        wrong[9] ^= 1;
        assert!(same(&wrong, &content, 10).is_err());
        assert!(same(&content[..20], &content[..19], 0).is_err());
    }

    #[test]
    fn heads_are_read() {
        let head = b"HTTP/1.1 206 Partial Content\r\nContent-Length:  12\r\nX: y";
        assert_eq!(parse(head).unwrap(), (206, 12));
        assert!(parse(b"HTTP/1.1 200 OK\r\nX: y").is_err());
        assert!(parse(b"").is_err());
    }

    #[test]
    fn a_client_offers_one_kind_of_signature() {
        for (key, scheme) in [
            (Key::P256, SignatureScheme::ECDSA_NISTP256_SHA256),
            (Key::Rsa, SignatureScheme::RSA_PSS_SHA256),
        ] {
            let offered = provider(key)
                .signature_verification_algorithms
                .supported_schemes();
            assert_eq!(offered, [scheme]);
        }
    }
}

//! A blocking HTTP/1.1 client over TLS, as small as the lab needs: one request at a time, bodies
//! by Content-Length.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

/// Largest body that is read.
const BODY_MAX: usize = 256 << 20;

/// One answer.
#[derive(Debug)]
pub struct Response {
    /// Status code.
    pub status: u16,
    /// Header names in lower case.
    pub headers: Vec<(String, String)>,
    /// Body; empty for HEAD.
    pub body: Vec<u8>,
}

impl Response {
    /// Value of the first header of that name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, v)| v.as_str())
    }
}

/// A kept-open connection.
pub struct Client<S> {
    stream: S,
    host: String,
}

/// A TLS connection.
pub type TlsClient = Client<StreamOwned<ClientConnection, TcpStream>>;

/// What a TLS client trusts and shows.
pub struct Tls {
    /// PEM file of the CA.
    pub ca_pem: std::path::PathBuf,
    /// PEM files of a client certificate chain and its key.
    pub identity: Option<(std::path::PathBuf, std::path::PathBuf)>,
}

impl Tls {
    /// rustls configuration of this trust.
    ///
    /// # Errors
    /// A file is missing or not PEM.
    pub fn config(&self) -> Result<Arc<ClientConfig>> {
        let mut roots = RootCertStore::empty();
        for cert in certificates(&self.ca_pem)? {
            roots.add(cert)?;
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(rustls::ALL_VERSIONS)?
            .with_root_certificates(roots);
        Ok(Arc::new(match &self.identity {
            None => builder.with_no_client_auth(),
            Some((cert, key)) => {
                let key = PrivateKeyDer::from_pem_file(key)
                    .with_context(|| format!("cannot read {}", key.display()))?;
                builder.with_client_auth_cert(certificates(cert)?, key)?
            }
        }))
    }
}

/// Certificates of a PEM file.
///
/// # Errors
/// The file is missing or not PEM.
pub fn certificates(path: &std::path::Path) -> Result<Vec<CertificateDer<'static>>> {
    CertificateDer::pem_file_iter(path)
        .with_context(|| format!("cannot read {}", path.display()))?
        .collect::<Result<_, _>>()
        .with_context(|| format!("{} is not PEM", path.display()))
}

impl TlsClient {
    /// Connects from the calling thread's namespace. The server is verified against its address.
    ///
    /// # Errors
    /// No connection, or the TLS handshake fails.
    pub fn connect(addr: SocketAddr, config: Arc<ClientConfig>, limit: Duration) -> Result<Self> {
        let tcp = TcpStream::connect_timeout(&addr, limit)
            .with_context(|| format!("cannot connect to {addr}"))?;
        tcp.set_read_timeout(Some(limit))?;
        tcp.set_write_timeout(Some(limit))?;
        tcp.set_nodelay(true)?;
        let name = ServerName::IpAddress(addr.ip().into());
        let mut stream = StreamOwned::new(ClientConnection::new(config, name)?, tcp);
        while stream.conn.is_handshaking() {
            stream
                .conn
                .complete_io(&mut stream.sock)
                .with_context(|| format!("TLS with {addr}"))?;
        }
        Ok(Self {
            stream,
            host: addr.to_string(),
        })
    }
}

impl Client<TcpStream> {
    /// Connects without TLS.
    ///
    /// # Errors
    /// No connection.
    pub fn plain(addr: SocketAddr, limit: Duration) -> Result<Self> {
        let stream = TcpStream::connect_timeout(&addr, limit)
            .with_context(|| format!("cannot connect to {addr}"))?;
        stream.set_read_timeout(Some(limit))?;
        stream.set_write_timeout(Some(limit))?;
        Ok(Self {
            stream,
            host: addr.to_string(),
        })
    }
}

impl<S: Read + Write> Client<S> {
    /// One request and its answer.
    ///
    /// # Errors
    /// As [`exchange`].
    pub fn request(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<Response> {
        exchange(&mut self.stream, &self.host, method, path, headers, body)
    }
}

/// One request and its answer over any stream.
///
/// # Errors
/// The connection breaks, or the answer is not HTTP/1.1 with a Content-Length.
pub fn exchange(
    stream: &mut (impl Read + Write),
    host: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Result<Response> {
    let mut head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {}\r\n",
        body.len()
    );
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    stream.write_all(head.as_bytes())?;
    stream.write_all(body)?;
    stream.flush()?;
    response(stream, method == "HEAD").with_context(|| format!("{method} {path}"))
}

/// Reads one answer; one to HEAD has no body.
///
/// # Errors
/// It is not HTTP/1.1 with a Content-Length.
pub fn response(stream: &mut impl Read, head_only: bool) -> Result<Response> {
    let mut raw = Vec::new();
    let mut chunk = vec![0u8; 64 * 1024];
    let end = loop {
        if let Some(at) = raw.windows(4).position(|w| w == b"\r\n\r\n") {
            break at;
        }
        if raw.len() > 64 * 1024 {
            bail!("header section over 64 KiB");
        }
        let n = stream.read(&mut chunk)?;
        if n == 0 {
            bail!("connection closed before an answer");
        }
        raw.extend_from_slice(&chunk[..n]);
    };
    let head = std::str::from_utf8(&raw[..end])?.to_owned();
    let mut body = raw.split_off(end + 4);
    let mut lines = head.split("\r\n");
    let status = lines
        .next()
        .and_then(|line| line.split(' ').nth(1))
        .and_then(|code| code.parse().ok())
        .context("no status line")?;
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(n, v)| (n.to_ascii_lowercase(), v.trim().to_owned()))
        .collect();
    let mut response = Response {
        status,
        headers,
        body: Vec::new(),
    };
    if head_only || status == 204 || status == 304 {
        return Ok(response);
    }
    let length: usize = response
        .header("content-length")
        .context("no Content-Length")?
        .parse()?;
    if length > BODY_MAX {
        bail!("body of {length} bytes");
    }
    body.reserve(length.saturating_sub(body.len()));
    while body.len() < length {
        let n = stream.read(&mut chunk)?;
        if n == 0 {
            bail!("body ends at {} of {length} bytes", body.len());
        }
        body.extend_from_slice(&chunk[..n]);
    }
    if body.len() > length {
        bail!("{} bytes after the body", body.len() - length);
    }
    response.body = body;
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Canned(std::io::Cursor<Vec<u8>>);

    impl Read for Canned {
        fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
            self.0.read(to)
        }
    }

    impl Write for Canned {
        fn write(&mut self, from: &[u8]) -> std::io::Result<usize> {
            Ok(from.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn ask(answer: &str) -> Result<Response> {
        Client {
            stream: Canned(std::io::Cursor::new(answer.as_bytes().to_vec())),
            host: "lab".into(),
        }
        .request("GET", "/", &[], b"")
    }

    #[test]
    fn reads_a_body_by_its_length() {
        let response =
            ask("HTTP/1.1 200 OK\r\nETag: \"x\"\r\nContent-Length: 3\r\n\r\nabc").unwrap();
        assert_eq!(
            (response.status, response.body.as_slice()),
            (200, &b"abc"[..])
        );
        assert_eq!(response.header("etag"), Some("\"x\""));
    }

    #[test]
    fn refuses_short_and_long_bodies() {
        for answer in [
            "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabc",
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nabc",
            "HTTP/1.1 200 OK\r\n\r\nabc",
            "nonsense\r\n\r\n",
            "",
        ] {
            assert!(ask(answer).is_err(), "{answer:?}");
        }
    }
}

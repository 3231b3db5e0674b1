//! One TLS 1.3 connection to the gateway's attest endpoint, and HTTP/1.1 on it.
//!
//! Decides what a well-formed answer is: a status, a Content-Length, a body within bounds. Never
//! reconnects, follows no redirect, keeps no ticket: hello and evidence belong to one connection.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use attest_wire::v1::{
    ATTEST_SERVER_NAME, EVIDENCE_PATH, EXPORTER_LABEL, REPLY_MAX_BYTES, RESULT_MAX_BYTES,
};
use rustls::pki_types::ServerName;
use rustls::{CertificateError, ClientConfig, ClientConnection, StreamOwned};

use crate::pin::PinError;

/// Time for TCP connect and for each read or write.
const IO_TIMEOUT: Duration = Duration::from_secs(15);
/// Time for the whole connection; a session of the gateway lives 60 s.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(75);
/// Largest head of an answer, in bytes.
const HEAD_MAX_BYTES: usize = 8 * 1024;
/// Most header lines of an answer.
const HEADERS_MAX: usize = 32;

/// What went wrong between us and the gateway.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No TCP connection.
    #[error("cannot reach the gateway at {addr}")]
    Connect {
        /// Where.
        addr: SocketAddr,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Somebody answers who is not the pinned gateway.
    #[error("the server is not our gateway: {0}")]
    NotPinned(#[source] PinError),
    /// The handshake failed.
    #[error("TLS with the gateway failed: {0}")]
    Tls(#[source] rustls::Error),
    /// The connection broke.
    #[error("connection lost while {doing}")]
    Io {
        /// What we were doing.
        doing: &'static str,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The answer is not the HTTP we speak.
    #[error("answer of the gateway is not usable: {why}")]
    Answer {
        /// What is wrong.
        why: String,
    },
}

/// An HTTP answer.
pub struct Answer {
    /// Status code.
    pub status: u16,
    /// Body, exactly as received: hashes are taken over it.
    pub body: Vec<u8>,
}

/// One connection.
pub struct Connection {
    stream: StreamOwned<ClientConnection, TcpStream>,
    deadline: Instant,
}

impl Connection {
    /// Connects and completes the handshake.
    ///
    /// # Errors
    /// [`ClientError::Connect`], [`ClientError::NotPinned`], [`ClientError::Tls`] or
    /// [`ClientError::Io`].
    pub fn open(addr: SocketAddr, config: ClientConfig) -> Result<Self, ClientError> {
        let deadline = Instant::now() + CONNECTION_TIMEOUT;
        let tcp = TcpStream::connect_timeout(&addr, IO_TIMEOUT)
            .map_err(|source| ClientError::Connect { addr, source })?;
        tcp.set_read_timeout(Some(IO_TIMEOUT))
            .and_then(|()| tcp.set_write_timeout(Some(IO_TIMEOUT)))
            .and_then(|()| tcp.set_nodelay(true))
            .map_err(|source| ClientError::Connect { addr, source })?;
        let name = ServerName::try_from(ATTEST_SERVER_NAME).expect("a constant DNS name");
        let tls = ClientConnection::new(Arc::new(config), name).map_err(ClientError::Tls)?;
        let mut stream = StreamOwned::new(tls, tcp);
        while stream.conn.is_handshaking() {
            let step = stream.conn.complete_io(&mut stream.sock);
            step.map_err(|source| tls_or_io("shaking hands", source))?;
            if Instant::now() > deadline {
                return Err(timed_out("shaking hands"));
            }
        }
        Ok(Self { stream, deadline })
    }

    /// TLS exporter of this connection (RFC 8446 section 7.5) with the session id as context.
    ///
    /// # Errors
    /// [`ClientError::Tls`] before the handshake, which [`Connection::open`] excludes.
    pub fn exporter(&self, session: &[u8]) -> Result<[u8; 32], ClientError> {
        self.stream
            .conn
            .export_keying_material([0; 32], EXPORTER_LABEL, Some(session))
            .map_err(ClientError::Tls)
    }

    /// Sends one POST and reads its answer.
    ///
    /// # Errors
    /// [`ClientError::Io`] or [`ClientError::Answer`]; the connection is of no use afterwards.
    pub fn post(&mut self, path: &str, body: &[u8]) -> Result<Answer, ClientError> {
        let mut request = format!(
            "POST {path} HTTP/1.1\r\nHost: {ATTEST_SERVER_NAME}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        )
        .into_bytes();
        request.extend_from_slice(body);
        // Only a result carries payloads.
        let max = match path {
            EVIDENCE_PATH => RESULT_MAX_BYTES,
            _ => REPLY_MAX_BYTES,
        };
        self.exchange(&request, max)
    }

    /// Asks for a file from `offset` on; the gateway answers one piece of at most `max` bytes.
    ///
    /// # Errors
    /// As [`Connection::post`].
    pub fn get_from(&mut self, path: &str, offset: u64, max: usize) -> Result<Answer, ClientError> {
        let last = offset.saturating_add(max as u64).saturating_sub(1);
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: {ATTEST_SERVER_NAME}\r\n\
             Range: bytes={offset}-{last}\r\n\r\n"
        );
        self.exchange(request.as_bytes(), max.max(REPLY_MAX_BYTES))
    }

    fn exchange(&mut self, request: &[u8], max: usize) -> Result<Answer, ClientError> {
        self.stream
            .write_all(request)
            .and_then(|()| self.stream.flush())
            .map_err(|source| tls_or_io("sending", source))?;

        let mut received = Vec::new();
        let head = loop {
            if let Some(head) = parse_head(&received, max)? {
                break head;
            }
            if received.len() > HEAD_MAX_BYTES {
                return Err(answer(format!("head longer than {HEAD_MAX_BYTES} bytes")));
            }
            self.read_some(&mut received)?;
        };
        let total = head.length + head.body_length;
        while received.len() < total {
            self.read_some(&mut received)?;
        }
        if received.len() > total {
            return Err(answer("more bytes than Content-Length says".to_owned()));
        }
        Ok(Answer {
            status: head.status,
            body: received.split_off(head.length),
        })
    }

    fn read_some(&mut self, into: &mut Vec<u8>) -> Result<(), ClientError> {
        if Instant::now() > self.deadline {
            return Err(timed_out("waiting for the answer"));
        }
        let mut buffer = [0; 16 * 1024];
        match self.stream.read(&mut buffer) {
            Ok(0) => Err(answer("connection closed in the middle of it".to_owned())),
            Ok(count) => {
                into.extend_from_slice(&buffer[..count]);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(source) => Err(tls_or_io("waiting for the answer", source)),
        }
    }
}

/// Head of an answer: its own length, the status, the length of the body.
#[derive(Debug, PartialEq, Eq)]
struct Head {
    length: usize,
    status: u16,
    body_length: usize,
}

/// Reads a head if it is complete (RFC 9112). Only Content-Length delimits a body here, of at most `max`
/// bytes.
fn parse_head(received: &[u8], max: usize) -> Result<Option<Head>, ClientError> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut response = httparse::Response::new(&mut headers);
    let length = match response
        .parse(received)
        .map_err(|e| answer(e.to_string()))?
    {
        httparse::Status::Complete(length) => length,
        httparse::Status::Partial => return Ok(None),
    };
    let status = response.code.unwrap_or(0);
    let mut body_length = None;
    for header in response.headers.iter() {
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        if is("transfer-encoding") || is("content-encoding") {
            return Err(answer(format!("{} is not spoken here", header.name)));
        }
        if is("content-length") {
            let digits = std::str::from_utf8(header.value)
                .ok()
                .filter(|text| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()))
                .and_then(|text| text.parse::<usize>().ok());
            let value =
                digits.ok_or_else(|| answer("Content-Length is not a number".to_owned()))?;
            if body_length.replace(value).is_some() {
                return Err(answer("two Content-Length headers".to_owned()));
            }
        }
    }
    let body_length = body_length.ok_or_else(|| answer("no Content-Length".to_owned()))?;
    if body_length > max {
        return Err(answer(format!(
            "body of {body_length} bytes, at most {max}"
        )));
    }
    Ok(Some(Head {
        length,
        status,
        body_length,
    }))
}

fn answer(why: String) -> ClientError {
    ClientError::Answer { why }
}

fn timed_out(doing: &'static str) -> ClientError {
    ClientError::Io {
        doing,
        source: io::ErrorKind::TimedOut.into(),
    }
}

/// rustls hands its own errors through `io::Error`, and ours inside its own.
fn tls_or_io(doing: &'static str, source: io::Error) -> ClientError {
    let Some(error) = source
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<rustls::Error>())
    else {
        return ClientError::Io { doing, source };
    };
    if let rustls::Error::InvalidCertificate(CertificateError::Other(other)) = error
        && let Some(pin) = other.0.downcast_ref::<PinError>()
    {
        return ClientError::NotPinned(pin.clone());
    }
    ClientError::Tls(error.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(text: &str) -> Result<Option<Head>, ClientError> {
        parse_head(text.as_bytes(), REPLY_MAX_BYTES)
    }

    #[test]
    fn reads_a_head_in_pieces() {
        let text = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n";
        for end in 0..text.len() {
            assert_eq!(head(&text[..end]).unwrap(), None);
        }
        assert_eq!(
            head(&format!("{text}hello")).unwrap(),
            Some(Head {
                length: text.len(),
                status: 200,
                body_length: 5
            })
        );
    }

    #[test]
    fn rejects_heads_that_do_not_delimit_the_body() {
        for (lines, why) in [
            ("", "no Content-Length"),
            (
                "Content-Length: 1\r\nContent-Length: 1\r\n",
                "two Content-Length",
            ),
            ("Content-Length: -1\r\n", "not a number"),
            ("Content-Length: +1\r\n", "not a number"),
            (
                "Content-Length: 99999999999999999999999\r\n",
                "not a number",
            ),
            ("Content-Length: 65537\r\n", "at most 65536"),
            ("Transfer-Encoding: chunked\r\n", "not spoken"),
            (
                "Content-Length: 1\r\ncontent-encoding: gzip\r\n",
                "not spoken",
            ),
        ] {
            let error = head(&format!("HTTP/1.1 200 OK\r\n{lines}\r\n"))
                .unwrap_err()
                .to_string();
            assert!(error.contains(why), "{lines:?}: {error}");
        }
        let many = "x: y\r\n".repeat(HEADERS_MAX + 1);
        assert!(head(&format!("HTTP/1.1 200 OK\r\n{many}\r\n")).is_err());
        assert!(head("SSH-2.0-OpenSSH\r\n\r\n").is_err());
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_a_head_or_an_error(bytes in proptest::collection::vec(0_u8.., 0..600)) {
            let _ = parse_head(&bytes, REPLY_MAX_BYTES);
            let _ = parse_head(&[b"HTTP/1.1 200 OK\r\n".as_slice(), &bytes].concat(), REPLY_MAX_BYTES);
        }
    }
}

//! The admin API's client: one request per connection, with the owner's certificate.
//!
//! Decides which exit code an answer deserves. Trusts the admin CA of the desk and nothing else.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use gateway_core::reason::Reason;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1;
use hyper::{Method, Request, StatusCode, Uri, header};
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::{Desk, Exit, Failure};

/// Time for one whole request.
const LIMIT: Duration = Duration::from_secs(30);
/// Largest answer read: a ledger page of 1000 entries is about a megabyte.
const ANSWER_MAX_BYTES: usize = 64 << 20;

/// The admin API of one appliance.
pub(super) struct Client {
    host: String,
    port: u16,
    tls: Arc<ClientConfig>,
    runtime: tokio::runtime::Runtime,
}

impl Client {
    /// Reads the desk's files.
    pub(super) fn open(desk: &Desk) -> Result<Self, Failure> {
        let file = |given: &Option<PathBuf>, name: &str| {
            given.clone().unwrap_or_else(|| desk.desk.join(name))
        };
        let url = match &desk.url {
            Some(url) => url.clone(),
            None => {
                let path = desk.desk.join("url");
                std::fs::read_to_string(&path)
                    .map_err(|error| unusable(&path, &error))?
                    .trim()
                    .to_owned()
            }
        };
        let (host, port) = parse_url(&url)?;
        let tls = tls_config(
            &file(&desk.ca, "admin-ca.pem"),
            &file(&desk.cert, "owner.pem"),
            &file(&desk.key, "owner.key"),
        )?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Failure::new(Exit::Privilege, &error))?;
        Ok(Self {
            host,
            port,
            tls,
            runtime,
        })
    }

    /// `GET path`, decoded.
    pub(super) fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        decode(path, &self.request(Method::GET, path, Bytes::new())?)
    }

    /// `POST path` with a JSON body, decoded.
    pub(super) fn post<B: Serialize, T: DeserializeOwned>(
        &self,
        path: &str,
        body: &B,
    ) -> Result<T, Failure> {
        let body = serde_json::to_vec(body).map_err(|error| Failure::new(Exit::Usage, &error))?;
        decode(path, &self.request(Method::POST, path, body.into())?)
    }

    fn request(&self, method: Method, path: &str, body: Bytes) -> Result<Bytes, Failure> {
        let work = self.exchange(method, path, body);
        // The timer needs the runtime's context, so it is made inside.
        match self
            .runtime
            .block_on(async { tokio::time::timeout(LIMIT, work).await })
        {
            Ok(outcome) => outcome,
            Err(_) => Err(self.network("no answer within 30 s")),
        }
    }

    async fn exchange(&self, method: Method, path: &str, body: Bytes) -> Result<Bytes, Failure> {
        let bare = self.host.trim_start_matches('[').trim_end_matches(']');
        let tcp = TcpStream::connect((bare, self.port))
            .await
            .map_err(|error| self.network(&error.to_string()))?;
        let name = ServerName::try_from(bare.to_owned())
            .map_err(|error| Failure::new(Exit::Usage, &error))?;
        let tls = TlsConnector::from(self.tls.clone())
            .connect(name, tcp)
            .await
            .map_err(|error| self.network(&error.to_string()))?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(tls))
            .await
            .map_err(|error| self.network(&error.to_string()))?;
        tokio::spawn(connection);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, format!("{}:{}", self.host, self.port))
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .map_err(|error| Failure::new(Exit::Usage, &error))?;
        // With TLS 1.3 a refused client certificate shows up only here.
        let response = sender
            .send_request(request)
            .await
            .map_err(|error| self.network(&crate::telemetry::chain(&error)))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER_MAX_BYTES)
            .collect()
            .await
            .map_err(|error| self.network(&error.to_string()))?
            .to_bytes();
        if status.is_success() {
            Ok(body)
        } else {
            Err(refused(status, &body))
        }
    }

    fn network(&self, why: &str) -> Failure {
        Failure::told(
            Exit::Network,
            format!("admin endpoint {}:{}: {why}", self.host, self.port),
        )
    }
}

fn decode<T: DeserializeOwned>(path: &str, body: &[u8]) -> Result<T, Failure> {
    serde_json::from_slice(body).map_err(|error| {
        Failure::told(
            Exit::Network,
            format!("the answer to {path} is not of this release: {error}"),
        )
    })
}

/// A refusal in full; a busy appliance is the peer's state, not a refusal.
fn refused(status: StatusCode, body: &[u8]) -> Failure {
    let exit = if status == StatusCode::SERVICE_UNAVAILABLE {
        Exit::Network
    } else {
        Exit::Refused
    };
    match serde_json::from_slice::<Reason>(body) {
        Ok(reason) => Failure::told(exit, reason.to_string()),
        Err(_) => Failure::told(exit, format!("HTTP status {status}")),
    }
}

fn parse_url(url: &str) -> Result<(String, u16), Failure> {
    let wrong = || {
        let text = format!("--url: expected https://ADDRESS:PORT, found {url:?}");
        Failure::told(Exit::Usage, text)
    };
    let uri: Uri = url.parse().map_err(|_| wrong())?;
    if uri.scheme_str() != Some("https") || !matches!(uri.path(), "" | "/") {
        return Err(wrong());
    }
    let host = uri.host().ok_or_else(wrong)?;
    Ok((host.to_owned(), uri.port_u16().unwrap_or(9443)))
}

fn tls_config(ca: &Path, cert: &Path, key: &Path) -> Result<Arc<ClientConfig>, Failure> {
    let mut roots = RootCertStore::empty();
    let authority = super::read_certificate(ca)?;
    roots
        .add(CertificateDer::from(authority))
        .map_err(|error| unusable(ca, &error))?;
    let chain = CertificateDer::pem_file_iter(cert)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| unusable(cert, &error))?;
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| unusable(key, &error))?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Failure::new(Exit::Usage, &error))?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, secret)
        .map_err(|error| unusable(cert, &error))?;
    Ok(Arc::new(config))
}

fn unusable(path: &Path, error: &(dyn std::error::Error + 'static)) -> Failure {
    let cause = crate::telemetry::chain(error);
    Failure::told(
        Exit::Usage,
        format!("cannot use {}: {cause}", path.display()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        assert_eq!(
            parse_url("https://192.0.2.1:9443").ok(),
            Some(("192.0.2.1".to_owned(), 9443))
        );
        assert_eq!(
            parse_url("https://[2001:db8::1]/").ok(),
            Some(("[2001:db8::1]".to_owned(), 9443))
        );
        for wrong in ["http://x", "x", "https://x/v1", ""] {
            assert_eq!(parse_url(wrong).expect_err(wrong).exit, Exit::Usage);
        }
    }

    #[test]
    fn a_busy_appliance_is_no_refusal() {
        assert_eq!(
            refused(StatusCode::SERVICE_UNAVAILABLE, b"").exit,
            Exit::Network
        );
        assert_eq!(refused(StatusCode::CONFLICT, b"").exit, Exit::Refused);
    }
}

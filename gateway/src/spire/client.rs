//! The calls of SPIRE's server API that a registrar needs, over the server's socket on this machine or
//! over mutual TLS with an SVID.
//!
//! One connection for each round: an SVID lives an hour and whoever renews it replaces its files, so
//! they are read when they are used.

use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use gateway_core::spire;
use hyper::client::conn::http2;
use hyper::http::uri::PathAndQuery;
use hyper::http::{Request, Response, Uri};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, OtherError, SignatureScheme};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, TrustAnchor, UnixTime};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tonic::Code;
use tonic::body::Body;
use tonic_prost::ProstCodec;

use super::proto::{
    AgentFilter, AgentMask, AgentRequest, BatchCreateEntryRequest, BatchDeleteEntryRequest,
    BatchResponse, BatchUpdateEntryRequest, Empty, Entry, EntryMask, ListAgentsRequest,
    ListAgentsResponse, ListEntriesRequest, ListEntriesResponse, MATCH_ANY, SelectorMatch,
    SpiffeId, Status,
};
use crate::config::SpireServer;

/// Longest wait for one answer, and for a connection.
const CALL_MAX: Duration = Duration::from_secs(10);
/// Entries or agents asked for at once: far below the 4 MiB of a message.
const PAGE: i32 = 500;
/// Most pages of one list: 200,000 entries; a server with more is not asked further.
const PAGES_MAX: usize = 400;

/// Why a round did not end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SpireError {
    /// No connection.
    #[error("cannot reach the SPIRE server at {at}")]
    Connect {
        /// Where.
        at: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file of our SVID.
    #[error("cannot use {}: {why}", path.display())]
    Identity {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// HTTP/2 broke.
    #[error("the connection to the SPIRE server broke")]
    Http(#[from] hyper::Error),
    /// The server refused.
    #[error("SPIRE answers {method} with {:?}: {}", status.code(), status.message())]
    Refused {
        /// The method.
        method: &'static str,
        /// Its status.
        status: Box<tonic::Status>,
    },
    /// No answer in time.
    #[error("SPIRE does not answer {0} within {secs} s", secs = CALL_MAX.as_secs())]
    Silent(&'static str),
    /// An answer that cannot be.
    #[error("SPIRE answers {method} with {found} results for {asked} items")]
    Results {
        /// The method.
        method: &'static str,
        /// Items.
        asked: usize,
        /// Results.
        found: usize,
    },
    /// Lists without an end.
    #[error("SPIRE lists more than {max} with {0}", max = PAGES_MAX * PAGE as usize)]
    Endless(&'static str),
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// What `tonic` sends requests through.
#[derive(Clone)]
struct Channel(http2::SendRequest<Body>);

impl tower_service::Service<Request<Body>> for Channel {
    type Response = Response<hyper::body::Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, hyper::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

/// A connection to the server.
pub(super) struct Client {
    grpc: tonic::client::Grpc<Channel>,
    trust_domain: String,
}

/// How one item of a batch ended.
pub(super) type ItemStatus = (Code, String);

impl Client {
    /// Connects.
    pub async fn connect(server: &SpireServer, trust_domain: &str) -> Result<Self, SpireError> {
        let opened = tokio::time::timeout(CALL_MAX, open(server, trust_domain)).await;
        let io = opened.map_err(|_| SpireError::Silent("a connection"))??;
        let executor = TokioExecutor::new();
        let (send, connection) = http2::Builder::new(executor)
            .handshake(TokioIo::new(io))
            .await?;
        // Ends with the last sender, which is this client's.
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection to SPIRE");
            }
        });
        let origin = Uri::from_static("http://spire-server");
        Ok(Self {
            grpc: tonic::client::Grpc::with_origin(Channel(send), origin),
            trust_domain: trust_domain.to_owned(),
        })
    }

    async fn call<M, R>(&mut self, method: &'static str, message: M) -> Result<R, SpireError>
    where
        M: prost::Message + Default + 'static,
        R: prost::Message + Default + 'static,
    {
        let refused = |status: tonic::Status| SpireError::Refused {
            method,
            status: Box::new(status),
        };
        self.grpc.ready().await?;
        let path = PathAndQuery::from_static(method);
        let request = tonic::Request::new(message);
        let call = self
            .grpc
            .unary(request, path, ProstCodec::<M, R>::default());
        let answer = tokio::time::timeout(CALL_MAX, call).await;
        let answer = answer.map_err(|_| SpireError::Silent(method))?;
        Ok(answer.map_err(refused)?.into_inner())
    }

    /// Every entry of the server.
    pub async fn entries(&mut self) -> Result<Vec<spire::Entry>, SpireError> {
        const METHOD: &str = "/spire.api.server.entry.v1.Entry/ListEntries";
        let (mut all, mut page_token) = (Vec::new(), String::new());
        for _ in 0..PAGES_MAX {
            let request = ListEntriesRequest {
                output_mask: Some(EntryMask::ours()),
                page_size: PAGE,
                page_token,
            };
            let page: ListEntriesResponse = self.call(METHOD, request).await?;
            all.extend(page.entries.into_iter().map(Into::into));
            if page.next_page_token.is_empty() {
                return Ok(all);
            }
            page_token = page.next_page_token;
        }
        Err(SpireError::Endless(METHOD))
    }

    /// Every agent that attested with `tpm_devid` and has this selector.
    pub async fn agents(&mut self, ca: &spire::Selector) -> Result<Vec<spire::Agent>, SpireError> {
        const METHOD: &str = "/spire.api.server.agent.v1.Agent/ListAgents";
        let filter = AgentFilter {
            by_attestation_type: spire::SELECTOR_TYPE.to_owned(),
            by_selector_match: Some(SelectorMatch {
                selectors: vec![ca.into()],
                behavior: MATCH_ANY,
            }),
        };
        let (mut all, mut page_token) = (Vec::new(), String::new());
        for _ in 0..PAGES_MAX {
            let request = ListAgentsRequest {
                filter: Some(filter.clone()),
                output_mask: Some(AgentMask {
                    selectors: true,
                    banned: true,
                }),
                page_size: PAGE,
                page_token,
            };
            let page: ListAgentsResponse = self.call(METHOD, request).await?;
            all.extend(page.agents.into_iter().map(Into::into));
            if page.next_page_token.is_empty() {
                return Ok(all);
            }
            page_token = page.next_page_token;
        }
        Err(SpireError::Endless(METHOD))
    }

    /// Makes entries.
    pub async fn create(&mut self, new: &[spire::Entry]) -> Result<Vec<ItemStatus>, SpireError> {
        let request = BatchCreateEntryRequest {
            entries: self.entries_of(new),
            output_mask: Some(EntryMask::default()),
        };
        let method = "/spire.api.server.entry.v1.Entry/BatchCreateEntry";
        self.batch(method, request, new.len()).await
    }

    /// Changes entries.
    pub async fn update(&mut self, new: &[spire::Entry]) -> Result<Vec<ItemStatus>, SpireError> {
        let request = BatchUpdateEntryRequest {
            entries: self.entries_of(new),
            input_mask: Some(EntryMask::ours()),
            output_mask: Some(EntryMask::default()),
        };
        let method = "/spire.api.server.entry.v1.Entry/BatchUpdateEntry";
        self.batch(method, request, new.len()).await
    }

    /// Deletes entries.
    pub async fn delete(&mut self, ids: Vec<String>) -> Result<Vec<ItemStatus>, SpireError> {
        let asked = ids.len();
        let request = BatchDeleteEntryRequest { ids };
        let method = "/spire.api.server.entry.v1.Entry/BatchDeleteEntry";
        self.batch(method, request, asked).await
    }

    /// Bans an agent; `NOT_FOUND` when the server has not seen it.
    pub async fn ban(&mut self, path: &str) -> Result<ItemStatus, SpireError> {
        self.agent("/spire.api.server.agent.v1.Agent/BanAgent", path)
            .await
    }

    /// Deletes an agent, which may attest anew.
    pub async fn evict(&mut self, path: &str) -> Result<ItemStatus, SpireError> {
        self.agent("/spire.api.server.agent.v1.Agent/DeleteAgent", path)
            .await
    }

    async fn agent(&mut self, method: &'static str, path: &str) -> Result<ItemStatus, SpireError> {
        let request = AgentRequest {
            id: Some(SpiffeId {
                trust_domain: self.trust_domain.clone(),
                path: path.to_owned(),
            }),
        };
        match self.call::<_, Empty>(method, request).await {
            Ok(Empty {}) => Ok((Code::Ok, String::new())),
            // About this agent; anything else is about the call.
            Err(SpireError::Refused { status, .. })
                if matches!(status.code(), Code::NotFound | Code::InvalidArgument) =>
            {
                Ok((status.code(), status.message().to_owned()))
            }
            Err(error) => Err(error),
        }
    }

    fn entries_of(&self, entries: &[spire::Entry]) -> Vec<Entry> {
        let entry = |entry| Entry::of(entry, &self.trust_domain);
        entries.iter().map(entry).collect()
    }

    async fn batch<M: prost::Message + Default + 'static>(
        &mut self,
        method: &'static str,
        request: M,
        asked: usize,
    ) -> Result<Vec<ItemStatus>, SpireError> {
        let response: BatchResponse = self.call(method, request).await?;
        let found = response.results.len();
        if found != asked {
            return Err(SpireError::Results {
                method,
                asked,
                found,
            });
        }
        let status = |status: Option<Status>| {
            let status = status.unwrap_or_default();
            (Code::from_i32(status.code), status.message)
        };
        let results = response.results.into_iter();
        Ok(results.map(|result| status(result.status)).collect())
    }
}

async fn open(server: &SpireServer, trust_domain: &str) -> Result<Box<dyn Stream>, SpireError> {
    match server {
        SpireServer::Unix(path) => {
            let connected = UnixStream::connect(path).await;
            let socket = connected.map_err(|source| SpireError::Connect {
                at: path.display().to_string(),
                source,
            })?;
            Ok(Box::new(socket))
        }
        SpireServer::Tcp {
            address,
            svid,
            key,
            bundle,
        } => {
            let lost = |source| SpireError::Connect {
                at: address.clone(),
                source,
            };
            let config = tls(svid, key, bundle, trust_domain)?;
            let socket = TcpStream::connect(address).await.map_err(lost)?;
            // Not sent and not compared: the server is known by its SPIFFE ID.
            let name = ServerName::try_from("spire-server").expect("a DNS name");
            let connector = TlsConnector::from(Arc::new(config));
            let stream = connector.connect(name, socket).await.map_err(lost)?;
            Ok(Box::new(stream))
        }
    }
}

fn tls(
    svid: &Path,
    key: &Path,
    bundle: &Path,
    trust_domain: &str,
) -> Result<ClientConfig, SpireError> {
    let identity = |path: &Path, why: String| SpireError::Identity {
        path: path.to_owned(),
        why,
    };
    let read = |path: &Path| -> Result<Vec<CertificateDer<'static>>, SpireError> {
        let found = CertificateDer::pem_file_iter(path)
            .and_then(|list| list.collect::<Result<Vec<_>, _>>())
            .map_err(|error| identity(path, error.to_string()))?;
        if found.is_empty() {
            return Err(identity(path, "no certificate in it".to_owned()));
        }
        Ok(found)
    };
    let anchors = read(bundle)?
        .iter()
        .map(|der| webpki::anchor_from_trusted_cert(der).map(|anchor| anchor.to_owned()))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| identity(bundle, error.to_string()))?;
    let private =
        PrivateKeyDer::from_pem_file(key).map_err(|error| identity(key, error.to_string()))?;
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier = SpiffeServer {
        anchors,
        id: format!("spiffe://{trust_domain}/spire/server"),
        provider: Arc::clone(&provider),
    };
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| {
            builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(verifier))
                .with_client_auth_cert(read(svid).map_err(other)?, private)
        })
        .map_err(|error| identity(svid, error.to_string()))?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    config.enable_sni = false;
    Ok(config)
}

fn other(error: SpireError) -> rustls::Error {
    rustls::Error::General(error.to_string())
}

/// X509-SVID section 5.2: the path leads to the bundle, and the one URI SAN is the server's SPIFFE ID.
#[derive(Debug)]
struct SpiffeServer {
    anchors: Vec<TrustAnchor<'static>>,
    id: String,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for SpiffeServer {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let fault = |error: webpki::Error| CertificateError::Other(OtherError(Arc::new(error)));
        let cert = webpki::EndEntityCert::try_from(leaf).map_err(fault)?;
        cert.verify_for_usage(
            webpki::ALL_VERIFICATION_ALGS,
            &self.anchors,
            intermediates,
            now,
            webpki::KeyUsage::server_auth(),
            None,
            None,
        )
        .map_err(fault)?;
        let names: Vec<&str> = cert.valid_uri_names().collect();
        if names != [self.id.as_str()] {
            return Err(rustls::Error::General(format!(
                "the server's SVID is for {names:?}, expected {}",
                self.id
            )));
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let algorithms = &self.provider.signature_verification_algorithms;
        algorithms.supported_schemes()
    }
}

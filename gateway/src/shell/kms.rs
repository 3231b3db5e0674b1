//! `sidero.kms.KMSService` for Talos nodes: gRPC over TLS on the provisioning side.
//!
//! Moves calls and nothing else; whether a disk key is sealed or unsealed is decided in
//! `gateway_core::talos::kms`. TLS 1.2 and 1.3 with the boot certificates: Talos trusts its system roots
//! and what a `TrustedRootsConfig` adds, and shows no certificate of its own. Plain `grpc://` is not
//! served: a disk key would cross the segment in clear.
//!
//! The two messages are derived by hand, since they have three fields between them: no `protoc` and no
//! build script.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use gateway_core::talos::kms::{Call, Code, Operation};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::body::Body;
use tonic::server::{Grpc, UnaryService};
use zeroize::Zeroizing;

use crate::handle::Handle;
use crate::metrics::{KMS_CALLS, Metrics};
use crate::shell::listen::{self, Bounds, Listener};
use crate::shell::tls::{BootCertificates, TlsError};
use crate::talos::ask::Origin;
use crate::telemetry;

const NAME: &str = "kms";
const SEAL_PATH: &str = "/sidero.kms.KMSService/Seal";
const UNSEAL_PATH: &str = "/sidero.kms.KMSService/Unseal";
/// Largest message: a UUID and 60 bytes, with room for a token of another KMS.
const MESSAGE_MAX_BYTES: usize = 1_024;
/// Longest UUID that is looked at.
const UUID_MAX_BYTES: usize = 64;
/// Time for one call; Talos waits ten seconds.
const CALL_LIMIT: Duration = Duration::from_secs(10);
/// Calls of one connection at once: Talos makes one.
const STREAMS_MAX: u32 = 8;

/// Nodes at boot: one connection for each volume, closed after its call.
pub const BOUNDS: Bounds = Bounds {
    connections_max: 512,
    per_peer_max: 8,
    handshake: Duration::from_secs(10),
    idle: Duration::from_secs(30),
    pace: Duration::from_secs(10),
    stale_after: Some(Duration::from_secs(5)),
    send_buffer_bytes: 64 * 1024,
    lifetime: Some(Duration::from_secs(60)),
};

/// `Request` of both methods.
#[derive(Clone, PartialEq, prost::Message)]
#[prost(skip_debug)]
pub struct KmsRequest {
    /// System UUID.
    #[prost(string, tag = "1")]
    pub node_uuid: String,
    /// Disk key, or sealed disk key.
    #[prost(bytes = "vec", tag = "2")]
    pub data: Vec<u8>,
}

/// `Response` of both methods.
#[derive(Clone, PartialEq, prost::Message)]
#[prost(skip_debug)]
pub struct KmsResponse {
    /// Sealed disk key, or disk key.
    #[prost(bytes = "vec", tag = "1")]
    pub data: Vec<u8>,
}

impl std::fmt::Debug for KmsRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KmsRequest({:?}, ..)", self.node_uuid)
    }
}

impl std::fmt::Debug for KmsResponse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KmsResponse(..)")
    }
}

/// What the listener needs.
#[derive(Clone)]
pub struct KmsService {
    /// The driver.
    pub handle: Handle,
    /// Counters.
    pub metrics: Arc<Metrics>,
}

/// HTTP/2 only, as gRPC is; the boot CA's certificates.
///
/// # Errors
/// [`TlsError::Config`] when the provider cannot do it.
pub fn tls_config(certificates: BootCertificates) -> Result<Arc<ServerConfig>, TlsError> {
    let mut config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
        .map_err(TlsError::Config)?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(certificates));
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config))
}

/// Serves nodes until `cancel`.
pub async fn run(
    listener: Listener,
    tls: Arc<ServerConfig>,
    service: KmsService,
    cancel: CancellationToken,
) {
    listener
        .run(cancel, move |stream, peer, cancel| {
            let (service, tls) = (service.clone(), tls.clone());
            async move {
                let limit = BOUNDS.handshake;
                let metrics = service.metrics.clone();
                let stream = listen::handshake(NAME, tls, limit, stream, peer, &metrics).await;
                let Some(stream) = stream else { return };
                let answer = service_fn(move |request| {
                    let service = service.clone();
                    async move { Ok::<_, std::convert::Infallible>(service.answer(peer, request).await) }
                });
                let connection = http2::Builder::new(TokioExecutor::new())
                    .timer(TokioTimer::new())
                    .max_concurrent_streams(STREAMS_MAX)
                    .max_header_list_size(16 * 1024)
                    .keep_alive_interval(Some(BOUNDS.idle))
                    .serve_connection(TokioIo::new(stream), answer);
                let mut connection = std::pin::pin!(connection);
                let ended = tokio::select! {
                    ended = connection.as_mut() => ended,
                    () = cancel.cancelled() => {
                        connection.as_mut().graceful_shutdown();
                        connection.await
                    }
                };
                if let Err(error) = ended {
                    tracing::debug!(error = %telemetry::chain(&error), "kms connection ended early");
                }
            }
        })
        .await;
}

impl KmsService {
    async fn answer(&self, peer: SocketAddr, request: Request<Incoming>) -> Response<Body> {
        let operation = match request.uri().path() {
            SEAL_PATH => Operation::Seal,
            UNSEAL_PATH => Operation::Unseal,
            _ => {
                return Status::unimplemented("sidero.kms.KMSService has Seal and Unseal")
                    .into_http();
            }
        };
        let method = Method {
            service: self.clone(),
            operation,
            peer,
        };
        let mut grpc = Grpc::new(tonic_prost::ProstCodec::default())
            .max_decoding_message_size(MESSAGE_MAX_BYTES)
            .max_encoding_message_size(MESSAGE_MAX_BYTES);
        match tokio::time::timeout(CALL_LIMIT, grpc.unary(method, request)).await {
            Ok(response) => response,
            Err(_) => Status::deadline_exceeded("no call within 10 s").into_http(),
        }
    }

    async fn call(
        self,
        operation: Operation,
        peer: SocketAddr,
        request: KmsRequest,
    ) -> Result<KmsResponse, Status> {
        let KmsRequest { node_uuid, data } = request;
        let data = Zeroizing::new(data);
        let name = match operation {
            Operation::Seal => "seal",
            Operation::Unseal => "unseal",
        };
        let origin = Origin::of(peer.ip());
        let mut nonce = [0; 12];
        crate::random::fill(&mut nonce);
        let call = Call {
            operation,
            node_uuid: node_uuid.chars().take(UUID_MAX_BYTES).collect(),
            data,
            peer: peer.ip(),
            nonce,
            correlation: origin.correlation.clone(),
        };
        let answer = self.handle.disk_key(call).await;
        let answer = answer.map_err(|_| Status::unavailable("busy, try again"))?;
        let outcome = if answer.is_ok() { "done" } else { "refused" };
        self.metrics.count(KMS_CALLS, format!("{name}/{outcome}"));
        match answer {
            Ok(bytes) => {
                tracing::info!(peer = %peer.ip(), operation = name, "kms: lifecycle gate passed");
                Ok(KmsResponse {
                    data: bytes.to_vec(),
                })
            }
            Err(refused) => {
                let id = &origin.correlation;
                let text =
                    format!("refused by the lifecycle gate or the key; the gateway's log has {id}");
                Err(Status::new(code(refused.code), text))
            }
        }
    }
}

fn code(code: Code) -> tonic::Code {
    match code {
        Code::InvalidArgument => tonic::Code::InvalidArgument,
        Code::PermissionDenied => tonic::Code::PermissionDenied,
        Code::ResourceExhausted => tonic::Code::ResourceExhausted,
    }
}

struct Method {
    service: KmsService,
    operation: Operation,
    peer: SocketAddr,
}

impl UnaryService<KmsRequest> for Method {
    type Response = KmsResponse;
    type Future =
        Pin<Box<dyn Future<Output = Result<tonic::Response<KmsResponse>, Status>> + Send>>;

    fn call(&mut self, request: tonic::Request<KmsRequest>) -> Self::Future {
        let (service, operation, peer) = (self.service.clone(), self.operation, self.peer);
        Box::pin(async move {
            let answer = service.call(operation, peer, request.into_inner()).await?;
            Ok(tonic::Response::new(answer))
        })
    }
}

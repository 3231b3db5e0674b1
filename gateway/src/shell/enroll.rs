//! The attest endpoint: hello and evidence on one TLS 1.3 connection (docs/PROTOCOL.md section 2).
//!
//! Decides only transport: one hello, then one evidence, sizes, times. The exporter that binds
//! evidence to this connection is taken before HTTP starts. Bodies go to the driver as received,
//! because hashes are taken over them; nothing is decoded here. What an unproven node is told is
//! `not_admitted` and a correlation id, the reason goes to the log.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use attest_wire::v1::handover::{IMAGE_PATH, PROGRESS_PATH, ProgressAnswer};
use attest_wire::v1::{
    AttestationResult, EVIDENCE_MAX_BYTES, EVIDENCE_PATH, EXPORTER_LABEL, HELLO_MAX_BYTES,
    HELLO_PATH, PROGRESS_MAX_BYTES, Verdict,
};
use gateway_core::reason::Reason;
use hyper::body::Incoming;
use hyper::header;
use hyper::{Method, Request, Response, StatusCode};
use rand_core::{OsRng, RngCore as _};
use rustls::ServerConfig;
use tokio_util::sync::CancellationToken;

use crate::disks::DiskImages;
use crate::handle::{Busy, ConnId, Connection, Handle, WireReply};
use crate::metrics::{Metrics, REQUESTS_REFUSED, RESPONSES};
use crate::shell::http::{self, Body, Refusal};
use crate::shell::listen::{self, Listener};
use crate::shell::metadata;
use crate::telemetry;

/// Time to receive one body: 512 KiB at the slowest link that boots an 80 MiB image at all.
const BODY_LIMIT: Duration = Duration::from_secs(20);
/// When a node should come back after a refusal of the transport.
const RETRY_SECS: u32 = 15;
const NAME: &str = "attest";

/// What the attest listener needs.
#[derive(Clone)]
pub struct AttestService {
    /// The driver.
    pub handle: Handle,
    /// What installers fetch.
    pub disks: Arc<DiskImages>,
    /// Counters.
    pub metrics: Arc<Metrics>,
}

/// Serves attesters until `cancel`.
pub async fn run(
    listener: Listener,
    tls: Arc<ServerConfig>,
    service: AttestService,
    cancel: CancellationToken,
) {
    let next = Arc::new(AtomicU64::new(1));
    listener
        .run(cancel, move |stream, peer, cancel| {
            let (service, tls) = (service.clone(), tls.clone());
            let id = ConnId(next.fetch_add(1, Ordering::Relaxed));
            async move {
                let limit = listen::ATTEST.handshake;
                let Some(stream) =
                    listen::handshake(NAME, tls, limit, stream, peer, &service.metrics).await
                else {
                    return;
                };
                let mut session = [0; 16];
                OsRng.fill_bytes(&mut session);
                let exported = stream.get_ref().1.export_keying_material(
                    [0u8; 32],
                    EXPORTER_LABEL,
                    Some(&session),
                );
                let exporter = match exported {
                    Ok(exporter) => exporter,
                    Err(error) => {
                        tracing::error!(%peer, %error, "no TLS exporter");
                        return;
                    }
                };
                let talk = Arc::new(Talk {
                    connection: Connection {
                        id,
                        peer,
                        session,
                        exporter,
                    },
                    next: Mutex::new(Next::Hello),
                });
                // Also when this task is dropped at the end of the session's time.
                let _closing = Closing {
                    handle: service.handle.clone(),
                    id,
                };
                http::serve(stream, listen::ATTEST.idle, cancel, |request| {
                    service.answer(talk.clone(), request)
                })
                .await;
            }
        })
        .await;
}

/// One connection.
struct Talk {
    connection: Connection,
    next: Mutex<Next>,
}

/// What the node may send next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Hello,
    Evidence,
    Nothing,
}

impl Next {
    fn name(self) -> &'static str {
        match self {
            Next::Hello => "POST /v1/hello",
            Next::Evidence => "POST /v1/evidence",
            Next::Nothing => "a new connection",
        }
    }
}

/// Tells the driver that the session died, however the connection ended.
struct Closing {
    handle: Handle,
    id: ConnId,
}

impl Drop for Closing {
    fn drop(&mut self) {
        let (handle, id) = (self.handle.clone(), self.id);
        // The runtime is gone only when the process ends, and sessions with it.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { handle.connection_closed(id).await });
        }
    }
}

impl AttestService {
    async fn answer(&self, talk: Arc<Talk>, request: Request<Incoming>) -> Response<Body> {
        let peer = talk.connection.peer;
        if let Some(sha256) = request.uri().path().strip_prefix(IMAGE_PATH) {
            let sha256 = sha256.to_owned();
            let response = self.image(peer, &sha256, &request).await;
            let response = response.unwrap_or_else(|refusal| {
                self.refuse_installer(peer, refusal.status, &refusal.reason)
            });
            let status = response.status().as_u16();
            self.metrics.count(RESPONSES, format!("{NAME}/{status}"));
            return response;
        }
        if request.uri().path() == PROGRESS_PATH {
            return self.progress(talk.connection.id, peer, request).await;
        }
        let response = match self.exchange(&talk, request).await {
            Ok(reply) => written(reply),
            Err(refusal) => self.refuse(peer, refusal.status, &refusal.reason),
        };
        self.metrics
            .count(RESPONSES, format!("{NAME}/{}", response.status().as_u16()));
        response
    }

    /// An installer reports. Any connection will do: the report is signed.
    async fn progress(
        &self,
        id: ConnId,
        peer: SocketAddr,
        request: Request<Incoming>,
    ) -> Response<Body> {
        let reply = async {
            if *request.method() != Method::POST {
                let found = telemetry::redact(request.method().as_str());
                let reason = wrong("malformed.method", found);
                return Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, reason));
            }
            let body = http::read_body(request, PROGRESS_MAX_BYTES, BODY_LIMIT).await?;
            let reply = self.handle.progress(id, peer, body).await;
            reply.map_err(|busy| Refusal::new(StatusCode::SERVICE_UNAVAILABLE, busy.reason()))
        };
        let response = match reply.await {
            Ok(reply) => written(reply),
            Err(refusal) => self.refuse_installer(peer, refusal.status, &refusal.reason),
        };
        self.metrics
            .count(RESPONSES, format!("{NAME}/{}", response.status().as_u16()));
        response
    }

    /// A piece of a disk image, to an address with a live grant for it. The question is asked for each
    /// piece: a withdrawal stops a transfer that has begun.
    async fn image(
        &self,
        peer: SocketAddr,
        sha256: &str,
        request: &Request<Incoming>,
    ) -> Result<Response<Body>, Refusal> {
        if *request.method() != Method::GET {
            let found = telemetry::redact(request.method().as_str());
            return Err(Refusal::new(
                StatusCode::METHOD_NOT_ALLOWED,
                wrong("malformed.method", found),
            ));
        }
        let busy = |busy: Busy| Refusal::new(StatusCode::SERVICE_UNAVAILABLE, busy.reason());
        let allowed = self.handle.disk_fetch(peer, sha256.to_owned()).await;
        allowed
            .map_err(busy)?
            .map_err(|reason| Refusal::new(StatusCode::FORBIDDEN, reason))?;
        let gone = || {
            let found = telemetry::redact(sha256);
            Refusal::new(StatusCode::NOT_FOUND, wrong("image.unknown", found))
        };
        let disk = self.disks.by_sha256(sha256).ok_or_else(gone)?;
        let size = disk.image.size_bytes;
        let range = request.headers().get(header::RANGE);
        let range = range.and_then(|value| value.to_str().ok());
        let Some((from, length)) = range.and_then(|text| byte_range(text, size)) else {
            let found = telemetry::redact(range.unwrap_or("no Range"));
            let reason = wrong("malformed.range", found);
            return Err(Refusal::new(StatusCode::RANGE_NOT_SATISFIABLE, reason));
        };
        let bytes = disk
            .piece(from, length)
            .await
            .map_err(|error| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, error.reason()))?;
        let last = from + bytes.len() as u64 - 1;
        let mut response = http::response(
            StatusCode::PARTIAL_CONTENT,
            "application/octet-stream",
            bytes,
        );
        let text = format!("bytes {from}-{last}/{size}");
        if let Ok(value) = header::HeaderValue::from_str(&text) {
            response.headers_mut().insert(header::CONTENT_RANGE, value);
        }
        http::set(&mut response, header::CACHE_CONTROL, "no-store");
        Ok(response)
    }

    /// What an installer is told: it holds a grant or says so, and its owner reads its console.
    fn refuse_installer(
        &self,
        peer: SocketAddr,
        status: StatusCode,
        reason: &Reason,
    ) -> Response<Body> {
        self.metrics.count(REQUESTS_REFUSED, reason.code.clone());
        telemetry::refused(NAME, peer, reason);
        let mut response = http::json(
            status,
            &ProgressAnswer {
                accepted: false,
                code: reason.code.to_string(),
                hint: reason.next.chars().take(72).collect(),
            },
        );
        http::set(&mut response, header::CONNECTION, "close");
        response
    }

    async fn exchange(
        &self,
        talk: &Talk,
        request: Request<Incoming>,
    ) -> Result<WireReply, Refusal> {
        let asked = match request.uri().path() {
            HELLO_PATH => Next::Hello,
            EVIDENCE_PATH => Next::Evidence,
            other if metadata::asks(other) => {
                let reason = metadata::reason(telemetry::redact(other));
                return Err(Refusal::new(StatusCode::FORBIDDEN, reason));
            }
            other => {
                let found = telemetry::redact(other);
                return Err(Refusal::new(
                    StatusCode::NOT_FOUND,
                    wrong("malformed.path", found),
                ));
            }
        };
        if *request.method() != Method::POST {
            let found = telemetry::redact(request.method().as_str());
            return Err(Refusal::new(
                StatusCode::METHOD_NOT_ALLOWED,
                wrong("malformed.method", found),
            ));
        }
        take_turn(talk, asked)?;
        let max = match asked {
            Next::Evidence => EVIDENCE_MAX_BYTES,
            Next::Hello | Next::Nothing => HELLO_MAX_BYTES,
        };
        let id = talk.connection.id;
        let reply = match (asked, http::read_body(request, max, BODY_LIMIT).await) {
            (Next::Evidence, Ok(body)) => self.handle.evidence(id, body).await,
            // A session is open: it ends with a record under its own correlation id.
            (Next::Evidence, Err(broken)) => {
                let status = broken.status.as_u16();
                self.handle.evidence_broken(id, status, broken.reason).await
            }
            (Next::Hello | Next::Nothing, body) => {
                self.handle.hello(talk.connection.clone(), body?).await
            }
        };
        let reply =
            reply.map_err(|busy| Refusal::new(StatusCode::SERVICE_UNAVAILABLE, busy.reason()))?;
        if reply.close {
            *talk.next.lock().unwrap_or_else(PoisonError::into_inner) = Next::Nothing;
        }
        Ok(reply)
    }

    /// What an unproven node is told is the same for every cause; the log has the cause.
    fn refuse(&self, peer: SocketAddr, status: StatusCode, reason: &Reason) -> Response<Body> {
        let mut id = [0; 8];
        OsRng.fill_bytes(&mut id);
        let correlation = hex::encode(id);
        self.metrics.count(REQUESTS_REFUSED, reason.code.clone());
        let span = tracing::info_span!("attest", %correlation);
        span.in_scope(|| telemetry::refused(NAME, peer, reason));
        let mut response = http::json(
            status,
            &AttestationResult {
                verdict: Verdict::NotAdmitted,
                code: "not_admitted".to_owned(),
                hint: "the gateway's log has the reason".to_owned(),
                correlation,
                retry_secs: RETRY_SECS,
                receipt: None,
                devid_chain: Vec::new(),
                sealed: None,
                grant: None,
            },
        );
        http::set(&mut response, header::CONNECTION, "close");
        response
    }
}

/// A step is used up when it begins: a second hello never replaces the first one's session.
/// Evidence without a hello is the driver's to refuse: somebody may be carrying evidence over from
/// another connection, which belongs in the ledger (`channel.mismatch`).
fn take_turn(talk: &Talk, asked: Next) -> Result<(), Refusal> {
    let mut next = talk.next.lock().unwrap_or_else(PoisonError::into_inner);
    let carried = *next == Next::Hello && asked == Next::Evidence;
    if *next != asked && !carried {
        return Err(Refusal::new(
            StatusCode::CONFLICT,
            Reason::new(
                "session.order",
                next.name(),
                asked.name(),
                "docs/PROTOCOL.md section 2",
                "one hello and one evidence per connection",
            ),
        ));
    }
    *next = match asked {
        Next::Hello => Next::Evidence,
        Next::Evidence | Next::Nothing => Next::Nothing,
    };
    Ok(())
}

/// `bytes=FROM-` or `bytes=FROM-LAST` (RFC 9110 section 14.1.2) as offset and length; no other form is
/// asked for.
fn byte_range(text: &str, size: u64) -> Option<(u64, u64)> {
    let (from, last) = text.strip_prefix("bytes=")?.split_once('-')?;
    let from: u64 = from.parse().ok()?;
    let last: u64 = match last {
        "" => u64::MAX,
        last => last.parse().ok()?,
    };
    (from < size && last >= from).then(|| (from, (last - from).saturating_add(1)))
}

fn wrong(code: &'static str, found: String) -> Reason {
    Reason::new(
        code,
        "POST /v1/hello, /v1/evidence or /v1/progress, or GET /v1/image/SHA256 with a Range",
        found,
        "docs/PROTOCOL.md section 2",
        "use this gateway's own attester image",
    )
}

fn written(reply: WireReply) -> Response<Body> {
    let status = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    // The challenge is hashed as sent: not a byte is added.
    let mut response = http::response(status, "application/json", reply.body);
    http::set(&mut response, header::CACHE_CONTROL, "no-store");
    if reply.close {
        http::set(&mut response, header::CONNECTION, "close");
    }
    response
}

//! The static responder of boot artefacts, over HTTPS (TLS 1.2 and 1.3) and plain HTTP.
//!
//! Decides HTTP semantics: methods, ranges, validators (RFC 9110). Which machine may fetch what is
//! asked of the driver once per request; the bytes are shared, never copied. Over plain HTTP only
//! signed artefacts are served: a script is not signed, so it needs HTTPS.
//!
//! The connection stays open after HEAD: some firmware sends HEAD, then GET, and loses the GET
//! when the server closes in between.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use gateway_core::identity::MacAddr;
use gateway_core::reason::Reason;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use rustls::ServerConfig;
use tokio_util::sync::CancellationToken;

use crate::handle::{BootQuery, Handle};
use crate::images::{Image, ImageStore};
use crate::metrics::{BOOT_BYTES, Metrics, REQUESTS_REFUSED, RESPONSES};
use crate::shell::http::{self, Body};
use crate::shell::listen::{self, Listener};
use crate::telemetry;

/// Path of the iPXE script; the query names the machine.
pub const SCRIPT_PATH: &str = "/boot/script.ipxe";
/// Folder of the artefacts: `/boot/<sha256>/<file>`.
const BOOT_FOLDER: &str = "/boot/";
/// Longest path that is looked at, in bytes.
const PATH_MAX_BYTES: usize = 512;

/// How the client reached us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// TLS 1.2 or 1.3 under the boot CA.
    Https,
    /// Nothing: signed payloads only.
    Plain,
}

impl Transport {
    fn name(self) -> &'static str {
        match self {
            Transport::Https => "boot",
            Transport::Plain => "http",
        }
    }
}

/// What both boot listeners serve.
#[derive(Clone)]
pub struct BootService {
    /// Who may fetch what, and what a machine boots.
    pub handle: Handle,
    /// The artefacts.
    pub images: ImageStore,
    /// Counters.
    pub metrics: Arc<Metrics>,
}

/// Serves plain HTTP until `cancel`.
pub async fn run_plain(listener: Listener, service: BootService, cancel: CancellationToken) {
    listener
        .run(cancel, move |stream, peer, cancel| {
            let service = service.clone();
            async move {
                http::serve(stream, listen::BOOT.idle, cancel, |request| {
                    service.answer(Transport::Plain, peer, request)
                })
                .await;
            }
        })
        .await;
}

/// Serves HTTPS until `cancel`.
pub async fn run_https(
    listener: Listener,
    tls: Arc<ServerConfig>,
    service: BootService,
    cancel: CancellationToken,
) {
    listener
        .run(cancel, move |stream, peer, cancel| {
            let (service, tls) = (service.clone(), tls.clone());
            async move {
                let limit = listen::BOOT.handshake;
                let name = Transport::Https.name();
                let Some(stream) =
                    listen::handshake(name, tls, limit, stream, peer, &service.metrics).await
                else {
                    return;
                };
                http::serve(stream, listen::BOOT.idle, cancel, |request| {
                    service.answer(Transport::Https, peer, request)
                })
                .await;
            }
        })
        .await;
}

impl BootService {
    async fn answer(
        &self,
        transport: Transport,
        peer: SocketAddr,
        request: Request<Incoming>,
    ) -> Response<Body> {
        let head = *request.method() == Method::HEAD;
        let mut response = if head || *request.method() == Method::GET {
            self.get(transport, peer, &request).await
        } else {
            let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
            http::set(&mut response, header::ALLOW, "GET, HEAD");
            response
        };
        self.metrics.count(
            RESPONSES,
            format!("{}/{}", transport.name(), response.status().as_u16()),
        );
        if head && response.status() != StatusCode::NOT_MODIFIED {
            // The length of the body that a GET would have.
            let length = hyper::body::Body::size_hint(response.body()).exact();
            if let Some(length) = length {
                response
                    .headers_mut()
                    .insert(header::CONTENT_LENGTH, HeaderValue::from(length));
            }
            *response.body_mut() = Full::new(Bytes::new());
        }
        response
    }

    async fn get(
        &self,
        transport: Transport,
        peer: SocketAddr,
        request: &Request<Incoming>,
    ) -> Response<Body> {
        let uri = request.uri();
        let query = BootQuery {
            peer: peer.ip(),
            mac: http::query_value(uri.query(), "mac")
                .and_then(|text| text.parse::<MacAddr>().ok()),
            arch: http::query_value(uri.query(), "arch").filter(|arch| arch.len() <= 32),
            what: telemetry::redact(uri.path()),
        };
        if uri.path() == SCRIPT_PATH {
            return self.script(transport, query).await;
        }
        match self.find(uri.path()) {
            Some(image) => {
                self.image(transport, query, &image, request.headers())
                    .await
            }
            None => {
                tracing::warn!(
                    listener = transport.name(),
                    peer = %query.peer,
                    mac = query.mac.map(tracing::field::display),
                    path = %query.what,
                    "no such boot file"
                );
                plain(StatusCode::NOT_FOUND, "not found\n")
            }
        }
    }

    async fn script(&self, transport: Transport, query: BootQuery) -> Response<Body> {
        if transport == Transport::Plain {
            self.refused(
                transport,
                &query,
                &Reason::new(
                    "boot.unsigned_over_http",
                    "the iPXE script over https",
                    "http",
                    "docs/OPERATIONS.md, ports",
                    "use an iPXE with HTTPS, and the https URL that DHCP names",
                ),
            );
            return plain(StatusCode::FORBIDDEN, "https only\n");
        }
        match self.handle.boot_script(query).await {
            Ok(script) => {
                let mut response = http::response(StatusCode::OK, "text/plain", script);
                http::set(&mut response, header::CACHE_CONTROL, "no-store");
                response
            }
            Err(_) => busy(),
        }
    }

    fn find(&self, path: &str) -> Option<Arc<Image>> {
        let (sha256, file) = path
            .get(..path.len().min(PATH_MAX_BYTES))?
            .strip_prefix(BOOT_FOLDER)?
            .split_once('/')?;
        self.images
            .current()
            .by_sha256(sha256)
            .filter(|image| image.artefact.file == file)
    }

    async fn image(
        &self,
        transport: Transport,
        query: BootQuery,
        image: &Image,
        headers: &HeaderMap,
    ) -> Response<Body> {
        match self.handle.boot_fetch(query.clone()).await {
            Ok(Ok(())) => {}
            Ok(Err(_counted_and_logged)) => {
                return plain(StatusCode::FORBIDDEN, "not admitted\n");
            }
            Err(_) => return busy(),
        }
        let response = artefact_response(image, headers);
        let promised = hyper::body::Body::size_hint(response.body()).lower();
        self.metrics.add(BOOT_BYTES, transport.name(), promised);
        response
    }

    fn refused(&self, transport: Transport, query: &BootQuery, reason: &Reason) {
        self.metrics.count(REQUESTS_REFUSED, reason.code.clone());
        telemetry::refused(transport.name(), query.peer, reason);
    }
}

/// Status, validators and the wanted part of one artefact (RFC 9110 sections 13 and 14).
fn artefact_response(image: &Image, headers: &HeaderMap) -> Response<Body> {
    let etag = format!("\"{}\"", image.artefact.sha256);
    let total = image.bytes.len();
    let mut response = if matches_etag(headers, &etag) {
        let mut response = Response::new(Full::new(Bytes::new()));
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        response
    } else {
        match wanted_range(headers, &etag, total) {
            Wanted::All => http::response(StatusCode::OK, "application/efi", image.bytes.clone()),
            Wanted::Part(range) => {
                let content = format!("bytes {}-{}/{total}", range.start, range.end - 1);
                let part = image.bytes.slice(range);
                let mut response =
                    http::response(StatusCode::PARTIAL_CONTENT, "application/efi", part);
                insert(&mut response, header::CONTENT_RANGE, &content);
                response
            }
            Wanted::Nothing => {
                let mut response = plain(StatusCode::RANGE_NOT_SATISFIABLE, "no such range\n");
                insert(
                    &mut response,
                    header::CONTENT_RANGE,
                    &format!("bytes */{total}"),
                );
                response
            }
        }
    };
    http::set(&mut response, header::ACCEPT_RANGES, "bytes");
    insert(&mut response, header::ETAG, &etag);
    response
}

enum Wanted {
    All,
    Part(Range<usize>),
    Nothing,
}

/// What `Range` and `If-Range` ask for. Anything but one byte range is answered with everything,
/// as RFC 9110 section 14.2 allows.
fn wanted_range(headers: &HeaderMap, etag: &str, total: usize) -> Wanted {
    let Some(Ok(range)) = headers.get(header::RANGE).map(HeaderValue::to_str) else {
        return Wanted::All;
    };
    if let Some(condition) = headers.get(header::IF_RANGE)
        && condition.as_bytes() != etag.as_bytes()
    {
        // Another representation, or a date: we have no modification times.
        return Wanted::All;
    }
    let Some((first, last)) = range
        .strip_prefix("bytes=")
        .filter(|set| !set.contains(','))
        .and_then(|set| set.trim().split_once('-'))
    else {
        return Wanted::All;
    };
    let range = if first.is_empty() {
        match digits(last) {
            Some(suffix) => total.saturating_sub(suffix)..total,
            None => return Wanted::All,
        }
    } else {
        let last = if last.is_empty() {
            Some(usize::MAX)
        } else {
            digits(last)
        };
        match (digits(first), last) {
            (Some(first), Some(last)) if first <= last => first..last.saturating_add(1).min(total),
            _ => return Wanted::All,
        }
    };
    if range.start < range.end {
        Wanted::Part(range)
    } else {
        Wanted::Nothing
    }
}

/// `1*DIGIT`; numbers beyond the address space saturate.
fn digits(text: &str) -> Option<usize> {
    let valid = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    valid.then(|| text.parse().unwrap_or(usize::MAX))
}

/// `If-None-Match` against our one strong validator; `W/` compares equal (RFC 9110 section 13.1.2).
fn matches_etag(headers: &HeaderMap, etag: &str) -> bool {
    let Some(Ok(list)) = headers.get(header::IF_NONE_MATCH).map(HeaderValue::to_str) else {
        return false;
    };
    list.split(',')
        .map(str::trim)
        .any(|tag| tag == "*" || tag.trim_start_matches("W/") == etag)
}

fn insert(response: &mut Response<Body>, name: header::HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
}

fn plain(status: StatusCode, text: &'static str) -> Response<Body> {
    http::response(status, "text/plain", text)
}

fn busy() -> Response<Body> {
    let mut response = plain(StatusCode::SERVICE_UNAVAILABLE, "busy, try again\n");
    http::set(&mut response, header::RETRY_AFTER, "5");
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(value: &str, if_range: Option<&str>) -> String {
        let mut headers = HeaderMap::new();
        headers.insert(header::RANGE, HeaderValue::from_str(value).expect("value"));
        if let Some(value) = if_range {
            headers.insert(
                header::IF_RANGE,
                HeaderValue::from_str(value).expect("value"),
            );
        }
        match wanted_range(&headers, "\"tag\"", 100) {
            Wanted::All => "all".to_owned(),
            Wanted::Part(range) => format!("{}..{}", range.start, range.end),
            Wanted::Nothing => "nothing".to_owned(),
        }
    }

    #[test]
    fn ranges_of_rfc_9110() {
        let rows = [
            ("bytes=0-0", "0..1"),
            ("bytes=10-19", "10..20"),
            ("bytes=90-", "90..100"),
            ("bytes=90-1000", "90..100"),
            ("bytes=-10", "90..100"),
            ("bytes=-1000", "0..100"),
            ("bytes=-0", "nothing"),
            ("bytes=100-", "nothing"),
            ("bytes=99999999999999999999999-", "nothing"),
            ("bytes=0-99999999999999999999999", "0..100"),
            ("bytes=20-10", "all"),
            ("bytes=a-b", "all"),
            ("bytes=-", "all"),
            ("bytes=+1-2", "all"),
            ("bytes=0-1,5-6", "all"),
            ("lines=0-1", "all"),
        ];
        for (value, expected) in rows {
            assert_eq!(range(value, None), expected, "{value}");
        }
        assert_eq!(range("bytes=0-9", Some("\"tag\"")), "0..10");
        assert_eq!(range("bytes=0-9", Some("\"old\"")), "all");
        assert_eq!(
            range("bytes=0-9", Some("Mon, 30 Nov 2026 00:00:00 GMT")),
            "all"
        );
    }

    #[test]
    fn if_none_match() {
        for (value, expected) in [
            ("\"tag\"", true),
            ("\"x\", W/\"tag\"", true),
            ("*", true),
            ("\"x\"", false),
            ("tag", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(
                header::IF_NONE_MATCH,
                HeaderValue::from_str(value).expect("value"),
            );
            assert_eq!(matches_etag(&headers, "\"tag\""), expected, "{value}");
        }
    }
}

//! The static responder of boot artefacts, over HTTPS (TLS 1.2 and 1.3) and plain HTTP.
//!
//! Decides HTTP semantics: methods, ranges, validators (RFC 9110). Which machine may fetch what is
//! asked of the driver once per request; the bytes are shared, never copied. Plain HTTP serves what
//! the owner allows (`provisioning.http_boot`), nothing by default, and signed artefacts at most: a
//! script is not signed, so it needs HTTPS.
//!
//! The connection stays open after HEAD: some firmware sends HEAD, then GET, and loses the GET
//! when the server closes in between. There is no redirect, since firmware follows none: a path
//! with doubled slashes, as firmware joins them, is the same path.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;

use boot::catalog::{Artefact, Kind};
use boot::plan::HttpBoot;
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
use crate::shell::metadata;
use crate::shell::talos::{self, TalosService};
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
    /// Nothing: what the owner allows, of the signed payloads.
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
    /// What plain HTTP may serve.
    pub http_boot: HttpBoot,
    /// Machine configs of Talos nodes, over HTTPS.
    pub talos: Option<TalosService>,
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
        if let Some(talos) = self
            .talos
            .as_ref()
            .filter(|_| transport == Transport::Https)
            && talos::is_path(request.uri().path())
        {
            let response = talos.answer(peer, request).await;
            let status = response.status().as_u16();
            self.metrics
                .count(RESPONSES, format!("{}/{status}", transport.name()));
            return response;
        }
        let method = request.method();
        let head = *method == Method::HEAD;
        let mut response = if metadata::asks(request.uri().path()) {
            let reason = metadata::reason(telemetry::redact(request.uri().path()));
            self.metrics.count(REQUESTS_REFUSED, reason.code.clone());
            telemetry::refused(transport.name(), peer, &reason);
            metadata::refusal()
        } else if head || *method == Method::GET {
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
            // The length of the body that a GET would have; an artefact's is not made for that.
            let length = hyper::body::Body::size_hint(response.body()).exact();
            if let Some(length) = length
                && !response.headers().contains_key(header::CONTENT_LENGTH)
            {
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
        let path = single_slashes(uri.path());
        let query = BootQuery {
            peer: peer.ip(),
            mac: http::query_value(uri.query(), "mac")
                .and_then(|text| text.parse::<MacAddr>().ok()),
            arch: http::query_value(uri.query(), "arch").filter(|arch| arch.len() <= 32),
            what: telemetry::redact(&path),
        };
        if path == SCRIPT_PATH {
            return self.script(transport, query).await;
        }
        let Some(image) = self.find(&path) else {
            // The core knows which machine has this address: its refusal names it.
            return match self.handle.boot_missing(query).await {
                Ok(()) => plain(StatusCode::NOT_FOUND, "not found\n"),
                Err(_) => busy(),
            };
        };
        if transport == Transport::Plain && !allowed_over_plain(self.http_boot, image.artefact.kind)
        {
            self.refused(transport, &query, &plain_http_reason(&query));
            return plain(StatusCode::FORBIDDEN, "https only\n");
        }
        let headers = request.headers();
        let wanted = match *request.method() {
            // Range is for GET only (RFC 9110 section 14.2).
            Method::HEAD => Part::None,
            _ => Part::Asked,
        };
        self.image(transport, query, &image, headers, wanted).await
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
        let (sha256, file) = path.strip_prefix(BOOT_FOLDER)?.split_once('/')?;
        self.images
            .current()
            .by_sha256(sha256)
            .filter(|image| image.artefact.file == file)
    }

    async fn image(
        &self,
        transport: Transport,
        query: BootQuery,
        image: &Arc<Image>,
        headers: &HeaderMap,
        part: Part,
    ) -> Response<Body> {
        match self.handle.boot_fetch(query.clone()).await {
            Ok(Ok(())) => {}
            Ok(Err(_counted_and_logged)) => {
                return plain(StatusCode::FORBIDDEN, "not admitted\n");
            }
            Err(_) => return busy(),
        }
        let bytes = match part {
            Part::None => None,
            Part::Asked => match image.bytes().await {
                Ok(bytes) => Some(bytes),
                Err(error) => {
                    self.refused(transport, &query, &error.reason());
                    return plain(StatusCode::SERVICE_UNAVAILABLE, "the artefact changed\n");
                }
            },
        };
        let response = artefact_response(&image.artefact, bytes, headers);
        if part == Part::Asked {
            let promised = hyper::body::Body::size_hint(response.body()).lower();
            self.metrics.add(BOOT_BYTES, transport.name(), promised);
        }
        response
    }

    fn refused(&self, transport: Transport, query: &BootQuery, reason: &Reason) {
        self.metrics.count(REQUESTS_REFUSED, reason.code.clone());
        telemetry::refused(transport.name(), query.peer, reason);
    }
}

/// Whether the owner lets an artefact of this kind go over plain HTTP.
fn allowed_over_plain(http_boot: HttpBoot, kind: Kind) -> bool {
    match (http_boot, kind) {
        (HttpBoot::UkiOverHttps, _) | (HttpBoot::IpxeOverHttp, Kind::Uki) => false,
        (HttpBoot::IpxeOverHttp, Kind::Ipxe) | (HttpBoot::UkiOverHttp, _) => true,
    }
}

fn plain_http_reason(query: &BootQuery) -> Reason {
    let machine = query.mac.map_or_else(String::new, |mac| format!("{mac} "));
    Reason::new(
        "boot.plain_http",
        "https, or what provisioning.http_boot allows over http",
        format!("{machine}asks for {} over http", query.what),
        "docs/OPERATIONS.md, firmware without ECDHE",
        "use the https URL; for firmware that logs tls.no_ecdhe set provisioning.http_boot",
    )
}

/// The path with runs of slashes as one: firmware joins a folder and a name carelessly.
fn single_slashes(path: &str) -> String {
    let path = path.get(..PATH_MAX_BYTES).unwrap_or(path);
    let mut out = String::with_capacity(path.len().min(PATH_MAX_BYTES));
    for c in path.chars().take(PATH_MAX_BYTES) {
        if c != '/' || !out.ends_with('/') {
            out.push(c);
        }
    }
    out
}

/// Whether a request may ask for a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// HEAD: no.
    None,
    /// GET: by its headers.
    Asked,
}

/// Status, validators and the wanted part of one artefact: preconditions in the order of RFC 9110
/// section 13.2.2, then the range of section 14.2. Without bytes it is the answer to HEAD.
fn artefact_response(
    artefact: &Artefact,
    bytes: Option<Bytes>,
    headers: &HeaderMap,
) -> Response<Body> {
    let etag = format!("\"{}\"", artefact.sha256);
    let lists = |name| lists_etag(headers, name, &etag);
    let mut response = if lists(header::IF_MATCH) == Some(false) {
        plain(StatusCode::PRECONDITION_FAILED, "another version\n")
    } else if lists(header::IF_NONE_MATCH) == Some(true) {
        let mut response = Response::new(Full::new(Bytes::new()));
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        response
    } else {
        let Some(bytes) = bytes else {
            let mut response = http::response(StatusCode::OK, "application/efi", Bytes::new());
            response
                .headers_mut()
                .insert(header::CONTENT_LENGTH, artefact.size_bytes.into());
            described(&mut response, &etag);
            return response;
        };
        let total = bytes.len();
        match wanted_range(headers, &etag, total) {
            Wanted::All => http::response(StatusCode::OK, "application/efi", bytes),
            Wanted::Part(range) => {
                let content = format!("bytes {}-{}/{total}", range.start, range.end - 1);
                let part = bytes.slice(range);
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
    described(&mut response, &etag);
    response
}

/// What every answer about an artefact says of it.
fn described(response: &mut Response<Body>, etag: &str) {
    http::set(response, header::ACCEPT_RANGES, "bytes");
    insert(response, header::ETAG, etag);
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

/// Whether `If-Match` or `If-None-Match` lists our one strong validator; none when the header is
/// absent. `W/` compares equal for `If-None-Match` only (RFC 9110 section 8.8.3.2).
fn lists_etag(headers: &HeaderMap, name: header::HeaderName, etag: &str) -> Option<bool> {
    let weak = name == header::IF_NONE_MATCH;
    let mut lists = headers.get_all(name).iter().peekable();
    lists.peek()?;
    Some(
        lists
            .filter_map(|list| list.to_str().ok())
            .flat_map(|list| list.split(','))
            .map(str::trim)
            .any(|tag| tag == "*" || tag == etag || (weak && tag.strip_prefix("W/") == Some(etag))),
    )
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
    fn preconditions_of_rfc_9110() {
        let lists = |name: header::HeaderName, values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(&name, HeaderValue::from_str(value).expect("value"));
            }
            lists_etag(&headers, name, "\"tag\"")
        };
        for (values, none_match, if_match) in [
            (&["\"tag\""][..], true, true),
            (&["\"x\", W/\"tag\""], true, false),
            (&["\"x\"", "\"tag\""], true, true),
            (&["*"], true, true),
            (&["\"x\""], false, false),
            (&["tag"], false, false),
            (&[""], false, false),
        ] {
            let found = lists(header::IF_NONE_MATCH, values);
            assert_eq!(found, Some(none_match), "{values:?}");
            assert_eq!(
                lists(header::IF_MATCH, values),
                Some(if_match),
                "{values:?}"
            );
        }
        assert_eq!(lists(header::IF_MATCH, &[]), None);
    }

    #[test]
    fn slashes_are_joined_and_long_paths_cut() {
        for (path, expected) in [
            ("/boot/x", "/boot/x"),
            ("//boot///x", "/boot/x"),
            ("/", "/"),
            ("", ""),
        ] {
            assert_eq!(single_slashes(path), expected);
        }
        assert_eq!(single_slashes(&"a".repeat(10_000)).len(), PATH_MAX_BYTES);
    }

    #[test]
    fn plain_http_serves_what_the_owner_allows() {
        for (http_boot, ipxe, uki) in [
            (HttpBoot::UkiOverHttps, false, false),
            (HttpBoot::IpxeOverHttp, true, false),
            (HttpBoot::UkiOverHttp, true, true),
        ] {
            assert_eq!(
                allowed_over_plain(http_boot, Kind::Ipxe),
                ipxe,
                "{http_boot:?}"
            );
            assert_eq!(
                allowed_over_plain(http_boot, Kind::Uki),
                uki,
                "{http_boot:?}"
            );
        }
    }
}

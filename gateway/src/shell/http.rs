//! HTTP/1.1 as all our listeners speak it: one place for limits, bodies and JSON errors.
//!
//! Decides nothing about what is asked. `Date` comes from hyper; every other header is set here or
//! by the route, and none is ever empty (some firmware refuses those).

use std::convert::Infallible;
use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use gateway_core::reason::Reason;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

/// Body of every response: shared bytes, never copied.
pub type Body = Full<Bytes>;

/// Largest request head, in bytes: a firmware's or browser's is below 2 KiB.
const HEAD_MAX_BYTES: usize = 16 * 1024;
/// Most header fields in a request.
const HEADERS_MAX: usize = 64;

/// A request that is not done: HTTP status and reason.
#[derive(Debug)]
pub struct Refusal {
    /// Status of the response.
    pub status: StatusCode,
    /// Why; boxed, since most requests have none.
    pub reason: Box<Reason>,
}

impl Refusal {
    /// A refusal.
    pub fn new(status: StatusCode, reason: Reason) -> Self {
        Self {
            status,
            reason: Box::new(reason),
        }
    }
}

/// Serves one connection until it ends, fails or `cancel` asks it to finish.
pub async fn serve<I, F, Fut>(io: I, idle: Duration, cancel: CancellationToken, handler: F)
where
    I: AsyncRead + AsyncWrite + Unpin,
    F: Fn(Request<Incoming>) -> Fut,
    Fut: Future<Output = Response<Body>>,
{
    let service = service_fn(|request| {
        let answer = handler(request);
        async { Ok::<_, Infallible>(answer.await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(idle)
        .max_headers(HEADERS_MAX)
        .max_buf_size(HEAD_MAX_BYTES)
        .serve_connection(TokioIo::new(io), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = cancel.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(error = %crate::telemetry::chain(&error), "connection ended early");
    }
}

/// A response with a body and its type.
pub fn response(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<Bytes>,
) -> Response<Body> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    set(&mut response, header::CONTENT_TYPE, content_type);
    response
}

/// Sets one header to a fixed text.
pub fn set(response: &mut Response<Body>, name: HeaderName, value: &'static str) {
    response
        .headers_mut()
        .insert(name, HeaderValue::from_static(value));
}

/// A JSON response.
pub fn json<T: Serialize>(status: StatusCode, value: &T) -> Response<Body> {
    match serde_json::to_vec(value) {
        Ok(mut body) => {
            body.push(b'\n');
            let mut response = response(status, "application/json", body);
            set(&mut response, header::CACHE_CONTROL, "no-store");
            response
        }
        // Our own types with string keys: only an allocation could fail.
        Err(error) => {
            tracing::error!(%error, "cannot encode a response");
            response(
                StatusCode::INTERNAL_SERVER_ERROR,
                "text/plain",
                "internal error\n",
            )
        }
    }
}

/// A refusal as JSON.
pub fn refusal(status: StatusCode, reason: &Reason) -> Response<Body> {
    json(status, reason)
}

/// The whole request body, at most `max` bytes, within `limit`.
///
/// # Errors
/// Status and reason for the peer's log: too large, encoded, too slow, or broken off.
pub async fn read_body(
    request: Request<Incoming>,
    max: usize,
    limit: Duration,
) -> Result<Bytes, Refusal> {
    check_encoding(request.headers())?;
    if let Some(length) = content_length(request.headers()).filter(|length| *length > max as u64) {
        return Err(too_large(max, format!("{length} bytes")));
    }
    let collect = Limited::new(request.into_body(), max).collect();
    match tokio::time::timeout(limit, collect).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large(max, "more".to_owned())),
        Ok(Err(error)) => Err(Refusal::new(
            StatusCode::BAD_REQUEST,
            Reason::new(
                "malformed.body",
                "a complete body",
                error.to_string(),
                "RFC 9112 section 6",
                "look for packet loss between peer and appliance",
            ),
        )),
        Err(_) => Err(Refusal::new(
            StatusCode::REQUEST_TIMEOUT,
            Reason::new(
                "malformed.slow",
                format!("a body within {} s", limit.as_secs()),
                "silence",
                "docs/OPERATIONS.md, bounds",
                "look for packet loss between peer and appliance",
            ),
        )),
    }
}

fn check_encoding(headers: &HeaderMap) -> Result<(), Refusal> {
    match headers.get(header::CONTENT_ENCODING) {
        None => Ok(()),
        // Hashes are taken over the body as sent, so there is no second form of it.
        Some(value) => Err(Refusal::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Reason::new(
                "malformed.encoding",
                "no Content-Encoding",
                crate::telemetry::redact(&String::from_utf8_lossy(value.as_bytes())),
                "docs/PROTOCOL.md section 2",
                "send the body as it is",
            ),
        )),
    }
}

fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers
        .get(header::CONTENT_LENGTH)?
        .to_str()
        .ok()?
        .parse()
        .ok()
}

fn too_large(max: usize, found: String) -> Refusal {
    Refusal::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        Reason::new(
            "malformed.size",
            format!("at most {max} bytes"),
            found,
            "docs/PROTOCOL.md section 3 row 1",
            "send a smaller body",
        ),
    )
}

/// Decodes `%XX` of one query value; bytes that are not UTF-8 make it nothing.
pub fn percent_decode(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        if *byte == b'%' {
            let pair = text.get(at + 1..at + 3)?;
            if !pair.bytes().all(|b| b.is_ascii_hexdigit()) {
                return None;
            }
            out.push(u8::from_str_radix(pair, 16).ok()?);
            at += 3;
        } else {
            out.push(*byte);
            at += 1;
        }
    }
    String::from_utf8(out).ok()
}

/// The decoded value of one query parameter, first one wins.
pub fn query_value(query: Option<&str>, key: &str) -> Option<String> {
    query?
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .find(|(name, _)| *name == key)
        .and_then(|(_, value)| percent_decode(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_values_are_decoded() {
        let query = Some("mac=52%3A54%3a00-x&arch=x86_64&mac=other&bad=%zz&cut=%4");
        assert_eq!(query_value(query, "mac").as_deref(), Some("52:54:00-x"));
        assert_eq!(query_value(query, "arch").as_deref(), Some("x86_64"));
        assert_eq!(query_value(query, "bad"), None);
        assert_eq!(query_value(query, "cut"), None);
        assert_eq!(query_value(query, "none"), None);
        assert_eq!(query_value(Some("m=%ff"), "m"), None);
    }
}

//! The admin endpoint: HTTPS with client certificates, JSON and one page.
//!
//! Decides who may ask what: the client certificate names the person and the role, the table
//! `ROUTES` the role each operation needs. An operation queues a command and answers when it is
//! in the ledger; nothing here changes state itself. Issuing has no route.

mod page;
mod routes;
pub mod types;

use std::net::SocketAddr;
use std::sync::Arc;

use gateway_core::reason::Reason;
use hyper::body::Incoming;
use hyper::header::{self, HeaderMap};
use hyper::{Method, Request, Response, StatusCode};
use rustls::ServerConfig;
use rustls_pki_types::CertificateDer;
use tokio_util::sync::CancellationToken;

use crate::config::Management;
use crate::gate::GateDoor;
use crate::handle::{Caller, Handle, Role};
use crate::metrics::{Metrics, REQUESTS_REFUSED, RESPONSES};
use crate::neighbours::Neighbours;
use crate::shell::http::{self, Body, Refusal};
use crate::shell::listen::{self, Listener};
use crate::telemetry;

const NAME: &str = "admin";

/// Everything the admin endpoint can be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Page,
    Style,
    MachinePage,
    Status,
    Neighbours,
    Gate,
    GateReconcile,
    Machines,
    Machine,
    Timeline,
    Claims,
    Ledger,
    Images,
    Approve,
    Cordon,
    Uncordon,
    MarkInstalled,
    SealSecret,
    Withdraw,
    Retire,
    Install,
    InstallRetry,
    InstallCancel,
    ImageFloor,
    ImageWithdraw,
    EkCas,
    EkUnmatched,
    EkExport,
    EkCaImport,
    EkCaRemove,
    TalosCode,
}

/// One row of the API.
pub(crate) struct Route {
    /// Method; `HEAD` is answered like `GET`.
    pub(crate) method: Method,
    /// Path; `{}` stands for one segment.
    pub(crate) path: &'static str,
    /// Lowest role that may.
    pub(crate) role: Role,
    /// What it is.
    pub(crate) operation: Operation,
}

const fn row(method: Method, path: &'static str, role: Role, operation: Operation) -> Route {
    Route {
        method,
        path,
        role,
        operation,
    }
}

/// The whole API.
pub(crate) static ROUTES: [Route; 31] = {
    use Operation as Op;
    use Role::{Operator, Owner, Viewer};
    [
        row(Method::GET, "/", Viewer, Op::Page),
        row(Method::GET, "/style.css", Viewer, Op::Style),
        row(Method::GET, "/machines/{}", Viewer, Op::MachinePage),
        row(Method::GET, "/v1/status", Viewer, Op::Status),
        row(Method::GET, "/v1/neighbours", Viewer, Op::Neighbours),
        row(Method::GET, "/v1/gate", Viewer, Op::Gate),
        row(
            Method::POST,
            "/v1/gate/reconcile",
            Operator,
            Op::GateReconcile,
        ),
        row(Method::GET, "/v1/machines", Viewer, Op::Machines),
        row(Method::GET, "/v1/machines/{}", Viewer, Op::Machine),
        row(
            Method::GET,
            "/v1/machines/{}/timeline",
            Viewer,
            Op::Timeline,
        ),
        row(Method::GET, "/v1/claims", Viewer, Op::Claims),
        row(Method::GET, "/v1/ledger", Viewer, Op::Ledger),
        row(Method::GET, "/v1/images", Viewer, Op::Images),
        row(Method::POST, "/v1/claims/{}/approve", Operator, Op::Approve),
        row(Method::POST, "/v1/machines/{}/cordon", Operator, Op::Cordon),
        row(
            Method::POST,
            "/v1/machines/{}/uncordon",
            Operator,
            Op::Uncordon,
        ),
        row(
            Method::POST,
            "/v1/machines/{}/installed",
            Operator,
            Op::MarkInstalled,
        ),
        row(
            Method::POST,
            "/v1/machines/{}/withdraw",
            Operator,
            Op::Withdraw,
        ),
        row(Method::POST, "/v1/machines/{}/retire", Owner, Op::Retire),
        row(Method::POST, "/v1/machines/{}/seal", Owner, Op::SealSecret),
        row(Method::POST, "/v1/machines/{}/install", Owner, Op::Install),
        row(
            Method::POST,
            "/v1/machines/{}/install-retry",
            Owner,
            Op::InstallRetry,
        ),
        row(
            Method::POST,
            "/v1/machines/{}/install-cancel",
            Owner,
            Op::InstallCancel,
        ),
        row(Method::POST, "/v1/images/{}/floor", Owner, Op::ImageFloor),
        row(
            Method::POST,
            "/v1/images/{}/withdraw",
            Owner,
            Op::ImageWithdraw,
        ),
        row(
            Method::POST,
            "/v1/machines/{}/talos-code",
            Owner,
            Op::TalosCode,
        ),
        row(Method::GET, "/v1/ek-ca", Viewer, Op::EkCas),
        row(Method::GET, "/v1/ek-ca/unmatched", Viewer, Op::EkUnmatched),
        row(Method::GET, "/v1/ek-ca/export", Viewer, Op::EkExport),
        row(Method::POST, "/v1/ek-ca/import", Owner, Op::EkCaImport),
        row(Method::POST, "/v1/ek-ca/{}/remove", Owner, Op::EkCaRemove),
    ]
};

/// What the admin listener needs.
#[derive(Clone)]
pub struct AdminService {
    /// The driver.
    pub handle: Handle,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// Values of the `Host` header that mean us.
    pub hosts: Arc<Vec<String>>,
    /// Whether an owner may seal secrets to machines (`handover.ekseal`).
    pub ekseal: bool,
    /// LLDP neighbours.
    pub neighbours: Neighbours,
    /// The gate.
    pub gate: GateDoor,
}

/// The `Host` values of an admin endpoint, with and without its port; lower case.
pub fn hosts(management: &Management, port: u16) -> Vec<String> {
    let literal = match management.address {
        std::net::IpAddr::V4(address) => address.to_string(),
        std::net::IpAddr::V6(address) => format!("[{address}]"),
    };
    std::iter::once(literal)
        .chain(
            management
                .names
                .iter()
                .map(|name| name.to_ascii_lowercase()),
        )
        .flat_map(|host| [format!("{host}:{port}"), host])
        .collect()
}

/// Serves administrators until `cancel`.
pub async fn run(
    listener: Listener,
    tls: Arc<ServerConfig>,
    service: AdminService,
    cancel: CancellationToken,
) {
    listener
        .run(cancel, move |stream, peer, cancel| {
            let (service, tls) = (service.clone(), tls.clone());
            async move {
                let limit = listen::ADMIN.handshake;
                let Some(stream) =
                    listen::handshake(NAME, tls, limit, stream, peer, &service.metrics).await
                else {
                    return;
                };
                let caller = stream
                    .get_ref()
                    .1
                    .peer_certificates()
                    .and_then(|chain| chain.first())
                    .map_or_else(|| Err(no_role("no client certificate")), caller_of);
                http::serve(stream, listen::ADMIN.idle, cancel, |request| {
                    service.answer(peer, &caller, request)
                })
                .await;
            }
        })
        .await;
}

impl AdminService {
    async fn answer(
        &self,
        peer: SocketAddr,
        caller: &Result<Caller, Reason>,
        request: Request<Incoming>,
    ) -> Response<Body> {
        let head = *request.method() == Method::HEAD;
        let mut response = match self.dispatch(caller, request).await {
            Ok(response) => response,
            Err(Refusal { status, reason }) => {
                self.metrics.count(REQUESTS_REFUSED, reason.code.clone());
                let by = caller.as_ref().map_or("?", |caller| caller.cn.as_str());
                let span = tracing::info_span!("admin", by = %telemetry::redact(by));
                span.in_scope(|| telemetry::refused(NAME, peer, &reason));
                http::refusal(status, &reason)
            }
        };
        secure(&mut response);
        self.metrics
            .count(RESPONSES, format!("{NAME}/{}", response.status().as_u16()));
        if head {
            *response.body_mut() = Body::default();
        }
        response
    }

    async fn dispatch(
        &self,
        caller: &Result<Caller, Reason>,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Refusal> {
        self.check_host(request.headers())?;
        let caller = caller
            .as_ref()
            .map_err(|reason| Refusal::new(StatusCode::FORBIDDEN, reason.clone()))?;
        let (route, subject) = find(request.method(), request.uri().path())?;
        if caller.role < route.role {
            return Err(Refusal::new(
                StatusCode::FORBIDDEN,
                Reason::new(
                    "role.insufficient",
                    format!("role {}", route.role.as_str()),
                    format!("role {}", caller.role.as_str()),
                    "docs/OPERATIONS.md, roles",
                    "ask somebody with that role",
                ),
            ));
        }
        if route.method == Method::POST {
            check_post(request.headers())?;
        }
        routes::perform(self, caller, route.operation, subject, request).await
    }

    /// A page elsewhere must not reach us under a name of its own (DNS rebinding).
    fn check_host(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let host = headers
            .get(header::HOST)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default();
        if self.hosts.contains(&host.to_ascii_lowercase()) {
            return Ok(());
        }
        Err(Refusal::new(
            StatusCode::MISDIRECTED_REQUEST,
            Reason::new(
                "malformed.host",
                self.hosts.join(" or "),
                format!("{:?}", telemetry::redact(host)),
                "RFC 9110 section 7.4",
                "use the appliance's address, or add the name to management.names",
            ),
        ))
    }
}

/// A request that changes something must come from a tool or our own origin: a form or a foreign
/// page cannot send this content type without asking first.
fn check_post(headers: &HeaderMap) -> Result<(), Refusal> {
    let mut types = headers.get_all(header::CONTENT_TYPE).iter();
    let json = match (types.next(), types.next()) {
        (Some(one), None) => one.to_str().is_ok_and(|value| {
            let kind = value.split(';').next().unwrap_or_default();
            kind.trim().eq_ignore_ascii_case("application/json")
        }),
        _ => false,
    };
    if json && !headers.contains_key(header::ORIGIN) {
        return Ok(());
    }
    let found = if json {
        "a request of a page"
    } else {
        "another content type"
    };
    Err(Refusal::new(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        Reason::new(
            "malformed.content_type",
            "Content-Type: application/json and no Origin",
            found,
            "docs/admin-api.md",
            "use `vestibule machine ...` or set the header",
        ),
    ))
}

/// The route of a request and the segment its `{}` stands for.
fn find(method: &Method, path: &str) -> Result<(&'static Route, String), Refusal> {
    let wanted = if *method == Method::HEAD {
        &Method::GET
    } else {
        method
    };
    let mut allowed = Vec::new();
    for route in &ROUTES {
        let Some(subject) = matches(route.path, path) else {
            continue;
        };
        if route.method == *wanted {
            return Ok((route, subject));
        }
        allowed.push(route.method.as_str());
    }
    let shown = telemetry::redact(path);
    if allowed.is_empty() {
        Err(Refusal::new(
            StatusCode::NOT_FOUND,
            Reason::new(
                "malformed.path",
                "a path of the admin API",
                shown,
                "docs/admin-api.md",
                "see GET /v1/status",
            ),
        ))
    } else {
        Err(Refusal::new(
            StatusCode::METHOD_NOT_ALLOWED,
            Reason::new(
                "malformed.method",
                format!("{} {shown}", allowed.join(" or ")),
                telemetry::redact(method.as_str()),
                "docs/admin-api.md",
                "correct the request",
            ),
        ))
    }
}

/// Matches a path against a pattern; the result is the decoded `{}` segment, empty when the
/// pattern has none.
fn matches(pattern: &str, path: &str) -> Option<String> {
    let mut subject = String::new();
    let mut segments = path.split('/');
    for expected in pattern.split('/') {
        let segment = segments.next()?;
        if expected == "{}" {
            subject = http::percent_decode(segment).filter(|text| !text.is_empty())?;
        } else if expected != segment {
            return None;
        }
    }
    segments.next().is_none().then_some(subject)
}

/// Name and role of a client certificate that the handshake has verified under the admin CA.
fn caller_of(certificate: &CertificateDer<'_>) -> Result<Caller, Reason> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate)
        .map_err(|error| no_role(&error.to_string()))?;
    let subject = parsed.subject();
    let text = |attribute: &x509_parser::x509::AttributeTypeAndValue<'_>| {
        attribute.as_str().map(str::to_owned).ok()
    };
    let cn = subject.iter_common_name().next().and_then(text);
    let units: Vec<String> = subject
        .iter_organizational_unit()
        .filter_map(text)
        .collect();
    let role = match units.as_slice() {
        [one] => role_of(one),
        _ => None,
    };
    match (cn, role) {
        (Some(cn), Some(role)) => Ok(Caller { cn, role }),
        _ => Err(no_role(&format!("OU {units:?}"))),
    }
}

fn role_of(unit: &str) -> Option<Role> {
    match unit {
        attest_wire::oid::ADMIN_ROLE_VIEWER => Some(Role::Viewer),
        attest_wire::oid::ADMIN_ROLE_OPERATOR => Some(Role::Operator),
        attest_wire::oid::ADMIN_ROLE_OWNER => Some(Role::Owner),
        _ => None,
    }
}

fn no_role(found: &str) -> Reason {
    Reason::new(
        "role.none",
        "a client certificate with a name and one role as OU",
        telemetry::redact(found),
        "docs/OPERATIONS.md, roles",
        "use a certificate of this appliance's admin CA",
    )
}

/// Nothing from elsewhere, nothing embedded, nothing run.
fn secure(response: &mut Response<Body>) {
    let policy = "default-src 'none'; style-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";
    http::set(response, header::CONTENT_SECURITY_POLICY, policy);
    http::set(response, header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    http::set(response, header::REFERRER_POLICY, "no-referrer");
    http::set(response, header::X_FRAME_OPTIONS, "DENY");
    http::set(response, header::CACHE_CONTROL, "no-store");
}

#[cfg(test)]
mod tests;

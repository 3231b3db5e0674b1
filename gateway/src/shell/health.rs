//! `/healthz`, `/readyz` and `/metrics` on the management side: plain HTTP, no secrets.
//!
//! Decides what alive and ready mean: alive is a driver that answers; ready is alive with every
//! listener open. Knows no machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use gateway_core::identity::UnixMillis;
use gateway_core::view::StatusView;
use hyper::body::Incoming;
use hyper::{Method, Request, Response, StatusCode, header};
use tokio_util::sync::CancellationToken;

use crate::gate::GateDoor;
use crate::handle::Handle;
use crate::metrics::{self, Metrics};
use crate::neighbours::{LldpInterface, Neighbours};
use crate::shell::http::{self, Body};
use crate::shell::listen::{self, Listener};
use crate::shell::metadata;

/// A driver that takes longer than this for a look at its counters is not alive.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// What the health listener needs.
#[derive(Clone)]
pub struct HealthService {
    /// The driver.
    pub handle: Handle,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// Set once every listener is open; cleared when the daemon stops.
    pub ready: Arc<AtomicBool>,
    /// LLDP neighbours.
    pub neighbours: Neighbours,
    /// The gate.
    pub gate: GateDoor,
}

/// Serves until `cancel`.
pub async fn run(listener: Listener, service: HealthService, cancel: CancellationToken) {
    listener
        .run(cancel, move |stream, _peer, cancel| {
            let service = service.clone();
            async move {
                http::serve(stream, listen::HEALTH.idle, cancel, |request| {
                    service.answer(request)
                })
                .await;
            }
        })
        .await;
}

impl HealthService {
    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        if metadata::asks(request.uri().path()) {
            return metadata::refusal();
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
            http::set(&mut response, header::ALLOW, "GET, HEAD");
            return response;
        }
        match request.uri().path() {
            "/healthz" => match self.status().await {
                Some(_) => text(StatusCode::OK, "alive\n"),
                None => text(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "the driver does not answer\n",
                ),
            },
            "/readyz" => {
                if !self.ready.load(Ordering::Acquire) {
                    text(StatusCode::SERVICE_UNAVAILABLE, "listeners are not open\n")
                } else if self.status().await.is_none() {
                    text(
                        StatusCode::SERVICE_UNAVAILABLE,
                        "the driver does not answer\n",
                    )
                } else {
                    text(StatusCode::OK, "ready\n")
                }
            }
            "/metrics" => {
                let mut out = self.metrics.render();
                self.gauges(&mut out).await;
                self.lldp(&mut out);
                self.gate(&mut out);
                http::response(
                    StatusCode::OK,
                    "text/plain; version=0.0.4; charset=utf-8",
                    out,
                )
            }
            _ => text(StatusCode::NOT_FOUND, "not found\n"),
        }
    }

    async fn status(&self) -> Option<StatusView> {
        tokio::time::timeout(ANSWER_LIMIT, self.handle.status())
            .await
            .ok()?
            .ok()
    }

    /// Labelled by interface: a handful, named in the configuration.
    fn lldp(&self, out: &mut String) {
        let list = self.neighbours.list(UnixMillis(0));
        let gauge = |out: &mut String, name, help, value: fn(&LldpInterface) -> u64| {
            metrics::head(out, name, help, "gauge");
            for interface in &list.interfaces {
                let label = [("interface", interface.interface.as_str())];
                metrics::line(out, name, &label, value(interface));
            }
        };
        let name = "vestibule_lldp_neighbours";
        gauge(out, name, "LLDP neighbours now.", |i| {
            i.neighbours.len() as u64
        });
        let name = "vestibule_lldp_problem";
        let help =
            "1 when an interface is silent or cannot be used; vestibule neighbours says why.";
        gauge(out, name, help, |i| u64::from(i.problem.is_some()));
    }

    /// Nothing where there is no gate.
    fn gate(&self, out: &mut String) {
        if !self.gate.exists() {
            return;
        }
        let name = "vestibule_gate_elements";
        metrics::head(
            out,
            name,
            "Elements of the gate that should be open.",
            "gauge",
        );
        metrics::line(out, name, &[], self.gate.elements());
        let name = "vestibule_gate_problem";
        let help = "1 while the gate may not be what it should be; vestibule gate list says why.";
        metrics::head(out, name, help, "gauge");
        metrics::line(out, name, &[], u64::from(self.gate.failing()));
    }

    async fn gauges(&self, out: &mut String) {
        let status = self.status().await;
        let ready = self.ready.load(Ordering::Acquire) && status.is_some();
        metrics::head(
            out,
            "vestibule_ready",
            "1 when every listener is open.",
            "gauge",
        );
        metrics::line(out, "vestibule_ready", &[], u64::from(ready));
        let Some(status) = status else { return };
        for (name, help, value) in [
            (
                "vestibule_ledger_entries",
                "Entries in the signed ledger.",
                status.ledger_entries,
            ),
            (
                "vestibule_attest_sessions",
                "Live attest sessions.",
                status.sessions,
            ),
            ("vestibule_leases", "DHCP leases bound now.", status.leases),
        ] {
            metrics::head(out, name, help, "gauge");
            metrics::line(out, name, &[], value);
        }
        let name = "vestibule_machines";
        metrics::head(out, name, "Machines per state.", "gauge");
        for (state, count) in &status.machines {
            metrics::line(out, name, &[("state", state)], *count);
        }
        let name = "vestibule_seal_development";
        let help = "1 when the CA keys are not bound to a measured boot.";
        metrics::head(out, name, help, "gauge");
        metrics::line(out, name, &[], u64::from(status.seal == "development"));
    }
}

fn text(status: StatusCode, line: &'static str) -> Response<Body> {
    http::response(status, "text/plain", line)
}

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use gateway_core::view::StatusView;
use tokio_util::sync::CancellationToken;

use crate::handle::{Handle, Request};
use crate::metrics::{CONNECTIONS, Metrics};
use crate::neighbours::Neighbours;
use crate::shell::health::{self, HealthService};
use crate::shell::listen::{HEALTH, Listener};
use crate::testing::{driver, stopped_driver, text_of};

fn status() -> StatusView {
    StatusView {
        appliance: "door-1".to_owned(),
        seal: "development".to_owned(),
        ledger_entries: 7,
        sessions: 1,
        leases: 2,
        machines: BTreeMap::from([("pending".to_owned(), 3)]),
        refusals: BTreeMap::from([("ek.unknown".to_owned(), 4)]),
        policy_sha256: String::new(),
        dhcp: gateway_core::view::DhcpView::default(),
        ek_unmatched: 0,
    }
}

async fn serve(handle: Handle, ready: Arc<AtomicBool>) -> (String, CancellationToken) {
    let metrics = Arc::new(Metrics::default());
    metrics.count(CONNECTIONS, "boot");
    let any = "127.0.0.1:0".parse().expect("address");
    let listener = Listener::bind("health", any, HEALTH, metrics.clone())
        .await
        .expect("bound");
    let address = listener.address().expect("address");
    let cancel = CancellationToken::new();
    let service = HealthService {
        handle,
        metrics,
        ready,
        neighbours: Neighbours::of_test(),
        gate: crate::gate::GateDoor::default(),
    };
    tokio::spawn(health::run(listener, service, cancel.clone()));
    (format!("http://{address}"), cancel)
}

async fn code(url: &str) -> String {
    text_of(
        "curl",
        &["-sS", "-o", "/dev/null", "-w", "%{http_code}", url],
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn alive_ready_and_metrics() {
    let handle = driver(|request| match request {
        Request::Status(answer) => {
            let _ = answer.send(status());
        }
        _ => panic!("health asks for the status only"),
    });
    let ready = Arc::new(AtomicBool::new(false));
    let (url, cancel) = serve(handle, ready.clone()).await;
    assert_eq!(code(&format!("{url}/healthz")).await, "200");
    assert_eq!(code(&format!("{url}/readyz")).await, "503");
    ready.store(true, Ordering::Release);
    assert_eq!(code(&format!("{url}/readyz")).await, "200");
    assert_eq!(code(&format!("{url}/other")).await, "404");
    let text = text_of("curl", &["-sS", &format!("{url}/metrics")]).await;
    for line in [
        "vestibule_connections_total{listener=\"boot\"} 1",
        "vestibule_ready 1",
        "vestibule_ledger_entries 7",
        "vestibule_machines{state=\"pending\"} 3",
        "vestibule_seal_development 1",
        "vestibule_lldp_neighbours{interface=\"prov0\"} 1",
        "vestibule_lldp_problem{interface=\"prov0\"} 0",
    ] {
        assert!(
            text.lines().any(|l| l == line),
            "{line} is missing:\n{text}"
        );
    }
    cancel.cancel();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_driver_is_not_alive() {
    let (url, cancel) = serve(stopped_driver(), Arc::new(AtomicBool::new(true))).await;
    assert_eq!(code(&format!("{url}/healthz")).await, "503");
    assert_eq!(code(&format!("{url}/readyz")).await, "503");
    let text = text_of("curl", &["-sS", &format!("{url}/metrics")]).await;
    assert!(text.contains("vestibule_ready 0"), "{text}");
    cancel.cancel();
}

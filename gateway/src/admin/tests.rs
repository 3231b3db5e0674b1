use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};

use gateway_core::identity::MachineId;
use gateway_core::identity::{EkName, MacAddr, UnixMillis};
use gateway_core::view::{
    EkCaExport, EkCaImported, EkCaOutcome, EkCaResult, EkUnmatchedList, MachineView, StatusView,
    TimelineEntry, WithoutIssuer,
};

use super::*;
use crate::handle::{Command, Request as Asked};
use crate::metrics::{ADMIN_ACTS, TLS_REFUSED};
use crate::shell::listen::ADMIN;
use crate::shell::tls;
use crate::testing::{Leaf, TestCa, counted, driver, text_of};

struct Site {
    address: SocketAddr,
    metrics: Arc<Metrics>,
    dir: tempfile::TempDir,
    acts: Arc<Mutex<Vec<String>>>,
    cancel: CancellationToken,
}

impl Drop for Site {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

fn view(id: &str, state: &str) -> MachineView {
    MachineView {
        machine: MachineId(id.to_owned()),
        state: state.to_owned(),
        since: UnixMillis(1_796_040_000_000),
        ek_names: vec![EkName("000bff".to_owned())],
        serial: Some("<b>S1</b>".to_owned()),
        disk_serial: None,
        port: None,
        class: None,
        macs: vec![MacAddr([0x52, 0x54, 0, 0, 0, 1])],
        boot: "provision".to_owned(),
        assurance: Some("bare-ek".to_owned()),
        ek_certificates: Vec::new(),
        reasons: Vec::new(),
        ldevid_not_after: None,
        last_seq: None,
        report_sha256: Some("ab".repeat(32)),
        gate: None,
        install: None,
    }
}

fn refusal() -> Reason {
    Reason::new(
        "quote.digest",
        "values as quoted",
        "<others>",
        "TPM 2.0 Part 2",
        "boot again",
    )
}

/// As the core does it, with an empty store.
fn judged(der: &[u8]) -> EkCaResult {
    use gateway_core::appraisal::{EkRoots, x509::Cert};
    let cert = Cert::read(der).expect("a certificate");
    let reason = EkRoots::default().judge_ca(&cert).err();
    EkCaResult {
        sha256: "ab".repeat(32),
        subject: cert.subject_text(),
        outcome: match &reason {
            None => EkCaOutcome::Imported,
            Some(_) => EkCaOutcome::Refused,
        },
        role: None,
        notes: Vec::new(),
        reason,
    }
}

fn answer(acts: &Mutex<Vec<String>>, asked: Asked) {
    match asked {
        Asked::Machines(tx) => {
            let _ = tx.send(vec![view("node-1", "admitted"), view("m-2", "pending")]);
        }
        Asked::Timeline(id, tx) => {
            let known = id.0 == "node-1";
            let _ = tx.send(known.then(|| {
                vec![TimelineEntry {
                    at: UnixMillis(1_796_040_000_000),
                    step: Some(gateway_core::walk::Step::Appraise),
                    source: "ledger".to_owned(),
                    seq: Some(4),
                    text: "refused".to_owned(),
                    reasons: vec![refusal()],
                }]
            }));
        }
        Asked::Command(caller, command, tx) => {
            let text = format!("{} {} {command:?}", caller.cn, caller.role.as_str());
            acts.lock().expect("lock").push(text);
            let _ = tx.send(match command {
                Command::Cordon(id) if id.0 == "gone" => {
                    Err(Reason::new("machine.unknown", "a", "b", "c", "d"))
                }
                Command::Cordon(id) if id.0 == "retired" => {
                    Err(Reason::new("machine.state", "a", "b", "c", "d"))
                }
                _ => Ok(()),
            });
        }
        Asked::Disks(tx) => {
            let _ = tx.send(Vec::new());
        }
        Asked::EkCaImport(caller, import, tx) => {
            let text = format!("{} imports from {}", caller.cn, import.source);
            acts.lock().expect("lock").push(text);
            let results = import.certificates.iter().map(|der| judged(der));
            let _ = tx.send(Ok(EkCaImported {
                results: results.collect(),
                judged_again: 1,
            }));
        }
        Asked::SealSecret(caller, request, tx) => {
            let text = format!(
                "{} seals {} for {}",
                caller.cn, request.kind, request.machine
            );
            acts.lock().expect("lock").push(text);
            let _ = tx.send(Ok("AAA=@@NULL@@BBB=@@NULL@@CCC=".to_owned()));
        }
        Asked::Talos(ask) => match *ask {
            crate::talos::ask::Ask::Code(_, _, 60_000, tx) => {
                let _ = tx.send(Ok(zeroize::Zeroizing::new("a code".to_owned())));
            }
            _ => panic!("the admin API asks nothing else of Talos"),
        },
        Asked::EkCas(tx) => {
            let roots = gateway_core::appraisal::EkRoots::default();
            let now = UnixMillis(1_796_040_000_000);
            let _ = tx.send(gateway_core::admission::ek_store::list(&roots, now));
        }
        Asked::EkUnmatched(tx) => {
            let _ = tx.send(EkUnmatchedList {
                unmatched: Vec::new(),
                dropped: 3,
            });
        }
        Asked::EkExport(all, tx) => {
            let _ = tx.send(EkCaExport {
                certificates: Vec::new(),
                without: vec![WithoutIssuer {
                    machine: MachineId("node-1".to_owned()),
                    why: format!("all {all}"),
                }],
                skipped: Vec::new(),
            });
        }
        Asked::Images(tx) => {
            let _ = tx.send(Vec::new());
        }
        Asked::Ledger(_, _, tx) => {
            let _ = tx.send(Vec::new());
        }
        Asked::Status(tx) => {
            let _ = tx.send(StatusView {
                appliance: "door-1".to_owned(),
                seal: "development".to_owned(),
                ledger_entries: 0,
                sessions: 0,
                leases: 0,
                machines: BTreeMap::new(),
                refusals: BTreeMap::new(),
                policy_sha256: String::new(),
                dhcp: gateway_core::view::DhcpView::default(),
                ek_unmatched: 0,
            });
        }
        _ => panic!("the admin endpoint asks nothing else"),
    }
}

async fn site() -> Site {
    let acts = Arc::new(Mutex::new(Vec::new()));
    let log = acts.clone();
    let handle = driver(move |asked| answer(&log, asked));
    let metrics = Arc::new(Metrics::default());
    let any = "127.0.0.1:0".parse().expect("address");
    let listener = Listener::bind("admin", any, ADMIN, metrics.clone())
        .await
        .expect("bound");
    let address = listener.address().expect("address");
    let dir = tempfile::tempdir().expect("dir");
    let ca = TestCa::new("admin CA");
    std::fs::write(dir.path().join("ca.pem"), &ca.pem).expect("written");
    let keep = |name: &str, leaf: Leaf| {
        std::fs::write(dir.path().join(format!("{name}.pem")), leaf.cert_pem).expect("written");
        std::fs::write(dir.path().join(format!("{name}.key")), leaf.key_pem).expect("written");
    };
    for role in ["viewer", "operator", "owner"] {
        keep(role, ca.client(&format!("{role}-1"), Some(role)));
    }
    keep("nobody", ca.client("nobody", None));
    keep("king", ca.client("king", Some("king")));
    keep(
        "stranger",
        TestCa::new("other CA").client("stranger", Some("owner")),
    );
    let config = tls::admin_config(ca.server(false).slot(), ca.der.clone()).expect("TLS");
    let management = Management {
        address: "127.0.0.1".parse().expect("address"),
        admin_port: address.port(),
        health_port: 1,
        names: vec!["localhost".to_owned()],
    };
    let service = AdminService {
        handle,
        metrics: metrics.clone(),
        hosts: Arc::new(hosts(&management, address.port())),
        ekseal: true,
        neighbours: Neighbours::of_test(),
        gate: crate::gate::GateDoor::of_test(),
    };
    let cancel = CancellationToken::new();
    tokio::spawn(run(listener, config, service, cancel.clone()));
    Site {
        address,
        metrics,
        dir,
        acts,
        cancel,
    }
}

fn file(dir: &Path, name: &str) -> String {
    dir.join(name).to_string_lossy().into_owned()
}

impl Site {
    /// Status and body as `role` asks.
    async fn ask(&self, role: &str, method: &str, path: &str, more: &[&str]) -> (u16, String) {
        let dir = self.dir.path();
        let (ca, cert, key) = (
            file(dir, "ca.pem"),
            file(dir, &format!("{role}.pem")),
            file(dir, &format!("{role}.key")),
        );
        let url = format!("https://{}{path}", self.address);
        let mut args = vec![
            "-sS",
            "--max-time",
            "20",
            "--cacert",
            &ca,
            "-X",
            method,
            "-w",
            "\n%{http_code}",
        ];
        if role != "anonymous" {
            args.extend(["--cert", &*cert, "--key", &*key]);
        }
        if method == "POST" {
            args.extend(["-H", "Content-Type: application/json"]);
        }
        args.extend_from_slice(more);
        args.push(&url);
        let said = text_of("curl", &args).await;
        let (body, status) = said.rsplit_once('\n').unwrap_or(("", &said));
        (status.parse().unwrap_or(0), body.to_owned())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_role_matrix() {
    let site = site().await;
    let der = gateway_core::appraisal::ek_record::encode_der(&TestCa::new("EK CA").der);
    let import = format!("{{\"source\":\"a stick\",\"certificates\":[\"{der}\"]}}");
    for route in &ROUTES {
        let path = route.path.replace("{}", "node-1");
        let body: &[&str] = match route.operation {
            Operation::Approve => &["-d", "{\"report_sha256\":\"ab\",\"compared\":\"console\"}"],
            Operation::Withdraw | Operation::EkCaRemove => &["-d", "{\"why\":\"stolen\"}"],
            Operation::EkCaImport => &["-d", &import],
            Operation::ImageFloor => &["-d", "{\"floor\":3}"],
            Operation::SealSecret => &["-d", "{\"kind\":\"secret\",\"secret\":\"c2VjcmV0\"}"],
            Operation::Install => &["-d", "{\"image\":\"worker\"}"],
            Operation::InstallCancel => &["-d", "{\"why\":\"another disk\"}"],
            Operation::TalosCode => &["-d", "{\"window_secs\":60}"],
            _ => &[],
        };
        for (name, role) in [
            ("viewer", Role::Viewer),
            ("operator", Role::Operator),
            ("owner", Role::Owner),
        ] {
            let method = route.method.as_str();
            let (status, text) = site.ask(name, method, &path, body).await;
            let expected = if role >= route.role { 200 } else { 403 };
            assert_eq!(status, expected, "{name} {method} {path}: {text}");
            if status == 403 {
                assert!(text.contains("\"code\":\"role.insufficient\""), "{text}");
            }
        }
    }
    let acts = site.acts.lock().expect("lock");
    assert!(
        acts.iter().all(|act| !act.starts_with("viewer")),
        "{acts:?}"
    );
    assert!(
        acts.contains(
            &"operator-1 operator Withdraw(MachineId(\"node-1\"), \"stolen\")".to_owned()
        ),
        "{acts:?}"
    );
    assert_eq!(site.metrics.get(ADMIN_ACTS, "retire/done"), 1);
    assert_eq!(site.metrics.get(ADMIN_ACTS, "gate_reconcile/done"), 2);
    assert_eq!(site.metrics.get(ADMIN_ACTS, "ek_ca_import/done"), 1);
    assert_eq!(site.metrics.get(ADMIN_ACTS, "ek_ca_remove/done"), 1);
    let import = "owner-1 imports from a stick".to_owned();
    assert!(acts.contains(&import), "{acts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn rejects_certificates_that_name_no_role_or_another_ca() {
    let site = site().await;
    for name in ["nobody", "king"] {
        let (status, text) = site.ask(name, "GET", "/v1/status", &[]).await;
        assert_eq!(status, 403, "{name}");
        assert!(text.contains("\"code\":\"role.none\""), "{text}");
    }
    for name in ["anonymous", "stranger"] {
        let (status, _) = site.ask(name, "GET", "/v1/status", &[]).await;
        assert_eq!(status, 0, "{name} must not get through the handshake");
    }
    let count = counted(&site.metrics, TLS_REFUSED, "tls.client_certificate", 2).await;
    assert_eq!(count, 2, "{}", site.metrics.render());
}

#[tokio::test(flavor = "multi_thread")]
async fn rejects_malformed_requests_with_all_five_parts() {
    let site = site().await;
    let approve = "/v1/claims/m-2/approve";
    let import = "/v1/ek-ca/import";
    let rows: [(&str, &str, &[&str], u16, &str); 17] = [
        ("GET", "/v2/status", &[], 404, "malformed.path"),
        ("GET", "/v1/machines/", &[], 404, "malformed.path"),
        ("DELETE", "/v1/machines", &[], 405, "malformed.method"),
        ("GET", approve, &[], 405, "malformed.method"),
        (
            "GET",
            "/v1/status",
            &["-H", "Host: evil.example"],
            421,
            "malformed.host",
        ),
        ("POST", approve, &["-d", "{"], 400, "malformed.json"),
        (
            "POST",
            approve,
            &[
                "-d",
                "{\"report_sha256\":\"ab\",\"compared\":\"console\",\"x\":1}",
            ],
            400,
            "malformed.json",
        ),
        (
            "POST",
            approve,
            &["-d", "{\"report_sha256\":\"ab\",\"compared\":\"glance\"}"],
            400,
            "malformed.field",
        ),
        (
            "POST",
            "/v1/machines/node-1/withdraw",
            &["-d", "{\"why\":\" \"}"],
            400,
            "malformed.field",
        ),
        (
            "POST",
            "/v1/machines/node-1/cordon",
            &["-H", "Content-Type: text/plain"],
            415,
            "malformed.content_type",
        ),
        (
            "POST",
            "/v1/machines/node-1/cordon",
            &["-H", "Origin: https://evil.example"],
            415,
            "malformed.content_type",
        ),
        ("GET", "/v1/ledger?from=x", &[], 400, "malformed.field"),
        ("GET", "/v1/ek-ca/export?all=x", &[], 400, "malformed.field"),
        ("GET", import, &[], 405, "malformed.method"),
        (
            "POST",
            import,
            &["-d", "{\"source\":\"x\",\"certificates\":[\"?\"]}"],
            400,
            "malformed.field",
        ),
        (
            "POST",
            import,
            &["-d", "{\"source\":\" \",\"certificates\":[\"MAA=\"]}"],
            400,
            "malformed.field",
        ),
        (
            "GET",
            "/v1/machines/nobody/timeline",
            &[],
            404,
            "machine.unknown",
        ),
    ];
    for (method, path, more, expected, code) in rows {
        let (status, text) = site.ask("owner", method, path, more).await;
        assert_eq!(status, expected, "{method} {path} {more:?}: {text}");
        let reason: Reason = serde_json::from_str(&text).expect("a reason");
        assert_eq!(reason.code, code, "{method} {path}");
        assert!(!reason.next.is_empty());
    }
    assert!(
        site.acts.lock().expect("lock").is_empty(),
        "nothing was done"
    );
    let big = "x".repeat(20_000);
    let (status, _) = site.ask("owner", "POST", approve, &["-d", &big]).await;
    assert_eq!(status, 413);
    // Ten megabytes of certificates are not even read.
    let file = file(site.dir.path(), "big");
    std::fs::write(&file, vec![b'x'; 10 << 20]).expect("written");
    let body = format!("@{file}");
    let (status, text) = site
        .ask("owner", "POST", import, &["--data-binary", &body])
        .await;
    assert!(status == 413 || status == 0, "{status} {text}");
    assert!(site.acts.lock().expect("lock").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_of_the_core_keep_their_code() {
    let site = site().await;
    for (id, expected) in [("gone", 404), ("retired", 409)] {
        let path = format!("/v1/machines/{id}/cordon");
        let (status, text) = site.ask("owner", "POST", &path, &["-d", "{}"]).await;
        assert_eq!(status, expected, "{text}");
        assert!(text.contains("\"code\":\"machine."), "{text}");
    }
    assert_eq!(site.metrics.get(ADMIN_ACTS, "cordon/refused"), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_have_their_documented_shape() {
    let site = site().await;
    let (_, text) = site.ask("viewer", "GET", "/v1/machines", &[]).await;
    let list: types::MachineList = serde_json::from_str(&text).expect("machines");
    assert_eq!(list.machines.len(), 2);
    let (_, text) = site.ask("viewer", "GET", "/v1/claims", &[]).await;
    let list: types::MachineList = serde_json::from_str(&text).expect("claims");
    assert_eq!(list.machines.len(), 1);
    assert_eq!(list.machines[0].state, "pending");
    let (_, text) = site.ask("viewer", "GET", "/v1/neighbours", &[]).await;
    let list: crate::neighbours::NeighbourList = serde_json::from_str(&text).expect("neighbours");
    let [interface] = list.interfaces.as_slice() else {
        panic!("{text}");
    };
    assert_eq!(interface.interface, "prov0");
    let first = &interface.neighbours[0];
    assert_eq!(first.port_id.value, "Ethernet1/7");
    assert!(first.expires > first.last_heard);
    let (_, text) = site.ask("viewer", "GET", "/v1/ledger?from=9", &[]).await;
    assert_eq!(text, "{\"entries\":[],\"next\":9}\n");
    let (_, text) = site
        .ask("viewer", "GET", "/v1/machines/node-1/timeline", &[])
        .await;
    assert!(text.contains("\"step\":\"appraise\""), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_escapes_and_allows_no_script() {
    let site = site().await;
    let (status, text) = site.ask("viewer", "GET", "/", &["-i"]).await;
    assert_eq!(status, 200);
    let lower = text.to_lowercase();
    assert!(
        lower.contains("content-security-policy: default-src 'none'"),
        "{text}"
    );
    assert!(lower.contains("x-content-type-options: nosniff"));
    assert!(text.contains("&lt;b&gt;S1&lt;/b&gt;"), "{text}");
    assert!(!text.contains("<b>S1"), "{text}");
    assert!(!lower.contains("<script"), "{text}");
    assert!(text.contains("vestibule machine approve m-2"), "{text}");
    let (_, text) = site.ask("viewer", "GET", "/machines/node-1", &[]).await;
    for part in [
        "quote.digest",
        "values as quoted",
        "&lt;others&gt;",
        "boot again",
    ] {
        assert!(text.contains(part), "{part} is missing: {text}");
    }
}

/// Runs the command line against the site as `role`.
async fn cli(site: &Site, role: &str, args: &[&str]) -> (crate::cli::Exit, String) {
    use clap::Parser as _;
    let dir = site.dir.path();
    let mut all = vec!["vestibule".to_owned()];
    all.extend(args.iter().map(|arg| (*arg).to_owned()));
    all.extend([
        "--url".to_owned(),
        format!("https://{}", site.address),
        "--cert".to_owned(),
        file(dir, &format!("{role}.pem")),
        "--key".to_owned(),
        file(dir, &format!("{role}.key")),
        "--ca".to_owned(),
        file(dir, "ca.pem"),
    ]);
    let cli = crate::cli::Cli::try_parse_from(all).expect("usage");
    let outcome = tokio::task::spawn_blocking(move || crate::cli::run(cli))
        .await
        .expect("ended");
    match outcome {
        Ok(exit) => (exit, String::new()),
        Err(failure) => (failure.exit, failure.text),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_and_its_exit_codes() {
    use crate::cli::Exit;
    let site = site().await;
    let seen = "ab".repeat(8);
    let approve = [
        "machine",
        "approve",
        "m-2",
        "--report",
        &seen,
        "--compared",
        "console",
    ];
    for other in ["abababab", "abababababababac"] {
        let mut args = approve;
        args[4] = other;
        let (exit, text) = cli(&site, "operator", &args).await;
        assert_eq!(exit, Exit::Refused);
        assert!(text.contains("claim.changed"), "{text}");
    }
    for args in [
        &["status"][..],
        &["neighbours"],
        &["claims"],
        &["machine", "list"],
        &["machine", "show", "node-1"],
        &["image", "list"],
        &["ledger", "show"],
        &["ek-ca", "list"],
        &["ek-ca", "unmatched"],
        &approve,
        &["machine", "cordon", "node-1"],
        &["machine", "withdraw", "node-1", "--why", "stolen"],
    ] {
        assert_eq!(
            cli(&site, "operator", args).await,
            (Exit::Done, String::new()),
            "{args:?}"
        );
    }
    let (exit, text) = cli(&site, "viewer", &approve).await;
    assert_eq!(exit, Exit::Refused);
    for part in ["role.insufficient", "expected role operator", "next: "] {
        assert!(text.contains(part), "{part} is missing: {text}");
    }
    let (exit, text) = cli(&site, "operator", &["machine", "cordon", "gone"]).await;
    assert_eq!(exit, Exit::Refused);
    assert!(text.contains("machine.unknown"), "{text}");
    let (exit, _) = cli(&site, "operator", &["machine", "show", "nobody"]).await;
    assert_eq!(exit, Exit::Refused);
    let (exit, text) = cli(&site, "stranger", &["status"]).await;
    assert_eq!(exit, Exit::Network, "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn ek_cas_from_the_command_line() {
    use crate::cli::Exit;
    let site = site().await;
    let dir = site.dir.path().to_owned();
    let at = |name: &str| file(&dir, name);
    let (ca, other) = (TestCa::new("EK CA"), TestCa::new("EK CA 2"));
    let leaf = ca.client("leaf", None);
    std::fs::write(at("cas.pem"), format!("# two\n{}{}", ca.pem, other.pem)).expect("written");
    std::fs::write(at("ca.der"), &ca.der).expect("written");
    std::fs::write(at("leaf.pem"), &leaf.cert_pem).expect("written");
    std::fs::write(at("text"), "nothing").expect("written");
    std::fs::write(at("big.pem"), vec![b'x'; 10 << 20]).expect("written");
    let (cas, der) = (at("cas.pem"), at("ca.der"));
    let take = ["ek-ca", "import", &cas, &der];
    assert_eq!(
        cli(&site, "owner", &take).await,
        (Exit::Done, String::new())
    );
    let import = "owner-1 imports from file cas.pem, ca.der".to_owned();
    assert_eq!(*site.acts.lock().expect("lock"), [import]);
    let (exit, text) = cli(&site, "operator", &take).await;
    assert_eq!(exit, Exit::Refused);
    assert!(text.contains("role.insufficient"), "{text}");
    // The appliance judges a leaf; what is no file of certificates never gets there.
    let (exit, _) = cli(&site, "owner", &["ek-ca", "import", &at("leaf.pem")]).await;
    assert_eq!(exit, Exit::Refused);
    let asked = site.acts.lock().expect("lock").len();
    for (name, code) in [("text", "ek_ca.encoding"), ("big.pem", "ek_ca.size")] {
        let (exit, text) = cli(&site, "owner", &["ek-ca", "import", &at(name)]).await;
        assert_eq!(exit, Exit::Refused);
        assert!(text.contains(code) && text.contains(name), "{text}");
    }
    let (exit, text) = cli(&site, "owner", &["ek-ca", "import", &at("none")]).await;
    assert_eq!(exit, Exit::Usage, "{text}");
    assert_eq!(site.acts.lock().expect("lock").len(), asked);
    let remove = ["ek-ca", "remove", &"ab".repeat(32), "--why", "lost key"];
    assert_eq!(cli(&site, "owner", &remove).await.0, Exit::Done);
    // An export replaces what was there.
    let bundle = at("endorsement_ca.pem");
    std::fs::write(&bundle, "old").expect("written");
    let export = ["ek-ca", "export", &bundle, "--all"];
    assert_eq!(cli(&site, "viewer", &export).await.0, Exit::Done);
    assert_eq!(std::fs::read_to_string(&bundle).expect("read"), "");
}

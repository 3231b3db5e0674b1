use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use attest_wire::v1::EXPORTER_LABEL;
use tokio_util::sync::CancellationToken;

use crate::handle::{Request, WireReply};
use crate::metrics::{Metrics, REQUESTS_REFUSED, TLS_REFUSED};
use crate::shell::enroll::{self, AttestService};
use crate::shell::listen::{ATTEST, Bounds, Listener};
use crate::shell::tls;
use crate::testing::{TestCa, counted, driver, text_of};

pub(super) struct Site {
    pub(super) address: SocketAddr,
    metrics: Arc<Metrics>,
    pub(super) ca_file: PathBuf,
    pub(super) seen: Arc<Mutex<Seen>>,
    cancel: CancellationToken,
    dir: tempfile::TempDir,
}

/// Connection, session, exporter, body.
pub(super) type Hello = (u64, [u8; 16], [u8; 32], Vec<u8>);

#[derive(Default)]
pub(super) struct Seen {
    pub(super) hellos: Vec<Hello>,
    pub(super) evidence: Vec<(u64, usize)>,
    broken: Vec<(u64, u16, String)>,
    closed: Vec<u64>,
}

impl Drop for Site {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

pub(super) async fn site(bounds: Bounds) -> Site {
    let seen = Arc::new(Mutex::new(Seen::default()));
    let log = seen.clone();
    let handle = driver(move |request| {
        let mut seen = log.lock().expect("lock");
        match request {
            Request::Hello(conn, body, answer) => {
                let close = body.starts_with(b"{\"close\"");
                seen.hellos
                    .push((conn.id.0, conn.session, conn.exporter, body.to_vec()));
                let _ = answer.send(WireReply {
                    status: if close { 403 } else { 200 },
                    body: b"{\"session\":\"x\"}".to_vec(),
                    close,
                });
            }
            Request::Evidence(id, body, answer) => {
                seen.evidence.push((id.0, body.len()));
                let _ = answer.send(WireReply {
                    status: 200,
                    body: b"{}".to_vec(),
                    close: true,
                });
            }
            Request::EvidenceBroken(id, status, reason, answer) => {
                seen.broken.push((id.0, status, reason.code.to_string()));
                let _ = answer.send(WireReply {
                    status,
                    body: b"{}".to_vec(),
                    close: true,
                });
            }
            Request::Closed(id) => seen.closed.push(id.0),
            _ => panic!("the attest listener asks nothing else"),
        }
    });
    let metrics = Arc::new(Metrics::default());
    let any = "127.0.0.1:0".parse().expect("address");
    let listener = Listener::bind("attest", any, bounds, metrics.clone())
        .await
        .expect("bound");
    let address = listener.address().expect("address");
    let dir = tempfile::tempdir().expect("dir");
    let ca = TestCa::new("infra CA");
    let ca_file = dir.path().join("infra-ca.pem");
    std::fs::write(&ca_file, &ca.pem).expect("written");
    let config = tls::attest_config(ca.server(false).slot()).expect("TLS");
    let cancel = CancellationToken::new();
    let service = AttestService {
        disks: Arc::default(),
        handle,
        metrics: metrics.clone(),
    };
    tokio::spawn(enroll::run(listener, config, service, cancel.clone()));
    Site {
        address,
        metrics,
        ca_file,
        seen,
        cancel,
        dir,
    }
}

impl Site {
    fn url(&self, path: &str) -> String {
        format!("https://{}{path}", self.address)
    }

    async fn curl(&self, args: &[&str]) -> String {
        let ca = self.ca_file.to_string_lossy();
        let mut all = vec!["-sS", "--max-time", "20", "--cacert", &ca];
        all.extend_from_slice(args);
        text_of("curl", &all).await
    }

    fn refused(&self, code: &str) -> u64 {
        self.metrics.get(REQUESTS_REFUSED, code)
    }

    async fn closed(&self) -> Vec<u64> {
        for _ in 0..200 {
            let closed = self.seen.lock().expect("lock").closed.clone();
            if !closed.is_empty() {
                return closed;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        Vec::new()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hello_and_evidence_share_a_connection_and_its_session_dies_with_it() {
    let site = site(ATTEST).await;
    let said = site
        .curl(&[
            "-d",
            "hello body",
            &site.url("/v1/hello"),
            "--next",
            "-sS",
            "--cacert",
            &site.ca_file.to_string_lossy(),
            "-d",
            "evidence body",
            &site.url("/v1/evidence"),
        ])
        .await;
    assert!(said.contains("{\"session\":\"x\"}{}"), "{said}");
    assert_eq!(site.closed().await.len(), 1);
    let seen = site.seen.lock().expect("lock");
    assert_eq!(seen.hellos.len(), 1);
    let (id, session, exporter, body) = &seen.hellos[0];
    assert_eq!(body, b"hello body", "bodies go on as received");
    assert_ne!(*session, [0; 16]);
    assert_ne!(*exporter, [0; 32]);
    assert_eq!(seen.evidence, [(*id, 13)]);
    assert_eq!(seen.closed, [*id]);
}

#[tokio::test(flavor = "multi_thread")]
async fn both_ends_export_the_same_bytes() {
    use rustls::{ClientConfig, RootCertStore};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    let site = site(ATTEST).await;
    let pem = std::fs::read(&site.ca_file).expect("read");
    let ca = x509_parser::pem::parse_x509_pem(&pem)
        .expect("PEM")
        .1
        .contents;
    let mut roots = RootCertStore::empty();
    roots.add(ca.into()).expect("root");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let tcp = tokio::net::TcpStream::connect(site.address)
        .await
        .expect("connected");
    let name = "localhost".try_into().expect("name");
    let mut stream = connector.connect(name, tcp).await.expect("TLS");
    stream
        .write_all(b"POST /v1/hello HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
        .await
        .expect("written");
    let mut answer = [0; 1024];
    let got = stream.read(&mut answer).await.expect("answer");
    assert!(answer[..got].starts_with(b"HTTP/1.1 200"));
    let (session, exporter) = {
        let seen = site.seen.lock().expect("lock");
        (seen.hellos[0].1, seen.hellos[0].2)
    };
    let ours = stream
        .get_ref()
        .1
        .export_keying_material([0u8; 32], EXPORTER_LABEL, Some(&session))
        .expect("exported");
    assert_eq!(ours, exporter);
}

#[tokio::test(flavor = "multi_thread")]
async fn rejects_requests_out_of_order() {
    let site = site(ATTEST).await;
    let hello = site.url("/v1/hello");
    let said = site
        .curl(&[
            "-d",
            "a",
            &hello,
            "--next",
            "-sS",
            "--cacert",
            &site.ca_file.to_string_lossy(),
            "-w",
            "%{http_code}",
            "-d",
            "b",
            &hello,
        ])
        .await;
    assert!(said.ends_with("409"), "{said}");
    assert!(
        !said.contains("session.order"),
        "the cause is for the log: {said}"
    );
    assert_eq!(site.refused("session.order"), 1);
    assert_eq!(site.seen.lock().expect("lock").hellos.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn evidence_without_a_hello_is_refused_by_the_driver_not_here() {
    let site = site(ATTEST).await;
    site.curl(&["-d", "x", &site.url("/v1/evidence")]).await;
    assert_eq!(site.refused("session.order"), 0);
    assert_eq!(site.seen.lock().expect("lock").evidence.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_35_huge_body_and_encodings_are_refused() {
    let site = site(ATTEST).await;
    let big = site.dir.path().join("big");
    std::fs::write(&big, vec![b'x'; attest_wire::v1::HELLO_MAX_BYTES + 1]).expect("written");
    let big = format!("@{}", big.display());
    let hello = site.url("/v1/hello");
    let status: &[&str] = &["-o", "/dev/null", "-w", "%{http_code}"];
    let ask = async |more: &[&str]| {
        let args: Vec<&str> = status.iter().chain(more).copied().collect();
        site.curl(&args).await
    };
    let said = ask(&["--data-binary", &big, "-H", "Expect:", &hello]).await;
    assert!(said.ends_with("413"), "{said}");
    let said = ask(&[
        "--data-binary",
        &big,
        "-H",
        "Expect:",
        "-H",
        "Transfer-Encoding: chunked",
        &hello,
    ])
    .await;
    assert!(said.ends_with("413"), "{said}");
    assert_eq!(site.refused("malformed.size"), 2);
    let said = ask(&["-d", "x", "-H", "Content-Encoding: gzip", &hello]).await;
    assert!(said.ends_with("415"), "{said}");
    assert_eq!(ask(&[&hello]).await, "405");
    assert_eq!(ask(&[&site.url("/v2/hello")]).await, "404");
    assert!(site.seen.lock().expect("lock").hellos.is_empty());
}

/// Evidence that is not even read belongs to an attempt: the driver ends it, and it is not counted twice.
#[tokio::test(flavor = "multi_thread")]
async fn attack_16_evidence_that_is_too_large_is_told_to_the_driver() {
    let site = site(ATTEST).await;
    let big = site.dir.path().join("big");
    std::fs::write(&big, vec![b'x'; attest_wire::v1::EVIDENCE_MAX_BYTES + 1]).expect("written");
    let big = format!("@{}", big.display());
    let evidence = site.url("/v1/evidence");
    let args = ["-i", "--data-binary", &big, "-H", "Expect:", &evidence];
    let said = site.curl(&args).await;
    assert!(said.contains("413"), "{said}");
    assert!(said.to_lowercase().contains("connection: close"), "{said}");
    assert_eq!(site.refused("malformed.size"), 0);
    let seen = site.seen.lock().expect("lock");
    assert_eq!(seen.broken, [(1, 413, "malformed.size".to_owned())]);
    assert!(seen.evidence.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_35_tls_1_2_is_refused_and_no_ticket_given() {
    let site = site(ATTEST).await;
    let address = site.address.to_string();
    let said = text_of("openssl", &["s_client", "-connect", &address, "-tls1_2"]).await;
    assert!(said.contains("alert"), "{said}");
    let count = counted(&site.metrics, TLS_REFUSED, "tls.version", 1).await;
    assert_eq!(count, 1);
    let said = text_of("openssl", &["s_client", "-connect", &address, "-tls1_3"]).await;
    assert!(said.contains("TLSv1.3"), "{said}");
    assert!(!said.contains("New Session Ticket arrived"), "{said}");
    assert!(said.contains("Early data was not sent"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn rejects_a_session_beyond_its_time() {
    use std::time::Duration;
    let bounds = Bounds {
        lifetime: Some(Duration::from_millis(300)),
        ..ATTEST
    };
    let site = site(bounds).await;
    let begun = std::time::Instant::now();
    let address = site.address.to_string();
    // The client keeps its side open; the server ends the session.
    let args = ["s_client", "-connect", &address, "-tls1_3", "-ign_eof"];
    text_of("openssl", &args).await;
    assert!(begun.elapsed() < Duration::from_secs(10));
    assert_eq!(site.closed().await, [1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_hello_ends_the_connection() {
    let site = site(ATTEST).await;
    let said = site
        .curl(&["-i", "-d", "{\"close\":1}", &site.url("/v1/hello")])
        .await;
    assert!(said.contains("403"), "{said}");
    assert!(said.to_lowercase().contains("connection: close"), "{said}");
    assert_eq!(site.closed().await, [1]);
}

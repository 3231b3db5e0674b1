//! ATTACKS row 35: what a hostile client says to the attest and boot listeners, byte by byte. Each
//! ends in a refusal or a closed connection, within bounds, and no other request is served by it.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::attest::{Site, site};
use super::boot;
use crate::shell::listen::{ATTEST, Bounds};

/// Longest wait for an answer or the end of a connection.
const PATIENCE: Duration = Duration::from_secs(20);
/// An answer to any of these is short.
const ANSWER_MAX: usize = 64 * 1024;

async fn connect(site: &Site) -> TlsStream<TcpStream> {
    let pem = std::fs::read(&site.ca_file).expect("read");
    let ca = x509_parser::pem::parse_x509_pem(&pem).expect("PEM").1;
    let mut roots = RootCertStore::empty();
    roots.add(ca.contents.into()).expect("root");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let tcp = TcpStream::connect(site.address).await.expect("connected");
    let name = "localhost".try_into().expect("name");
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    connector.connect(name, tcp).await.expect("TLS")
}

/// Says all of it, or as much as is taken, then listens until the server closes.
async fn say(site: &Site, said: &[u8]) -> String {
    let (mut read, mut write) = tokio::io::split(connect(site).await);
    let speak = async {
        // Who has heard enough closes; that is an answer, not a failure.
        let _ = write.write_all(said).await;
        let _ = write.flush().await;
        std::future::pending::<()>().await;
    };
    let listen = async {
        let (mut answer, mut some) = (Vec::new(), [0; 4096]);
        while let Ok(got @ 1..) = read.read(&mut some).await {
            answer.extend_from_slice(&some[..got]);
            assert!(answer.len() <= ANSWER_MAX, "it does not stop answering");
        }
        answer
    };
    let heard = tokio::time::timeout(PATIENCE, async {
        tokio::select! {
            answer = listen => answer,
            () = speak => Vec::new(),
        }
    });
    let heard = heard.await.expect("the server closes in time");
    String::from_utf8_lossy(&heard).into_owned()
}

fn bounds() -> Bounds {
    Bounds {
        idle: Duration::from_secs(2),
        lifetime: Some(Duration::from_secs(10)),
        per_peer_max: 64,
        ..ATTEST
    }
}

fn hellos(site: &Site) -> Vec<Vec<u8>> {
    let seen = site.seen.lock().expect("lock");
    assert!(seen.evidence.is_empty(), "no evidence was sent");
    seen.hellos.iter().map(|hello| hello.3.clone()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_35_100k_headers_are_refused_before_they_are_read() {
    let site = site(bounds()).await;
    let mut said = b"POST /v1/hello HTTP/1.1\r\nHost: x\r\n".to_vec();
    for number in 0..100_000 {
        said.extend_from_slice(format!("X-{number}: y\r\n").as_bytes());
    }
    said.extend_from_slice(b"Content-Length: 2\r\n\r\n{}");
    let begun = Instant::now();
    let answer = say(&site, &said).await;
    assert!(
        answer.is_empty() || answer.starts_with("HTTP/1.1 431"),
        "{answer}"
    );
    assert!(
        begun.elapsed() < Duration::from_secs(5),
        "not read to its end"
    );
    // One header of a megabyte is no better, and neither is a long request line.
    for said in [
        format!(
            "POST /v1/hello HTTP/1.1\r\nX: {}\r\n\r\n",
            "y".repeat(1 << 20)
        ),
        format!("POST /{} HTTP/1.1\r\nHost: x\r\n\r\n", "y".repeat(1 << 20)),
    ] {
        let answer = say(&site, said.as_bytes()).await;
        assert!(
            answer.is_empty()
                || answer.starts_with("HTTP/1.1 431")
                || answer.starts_with("HTTP/1.1 414"),
            "{answer}"
        );
    }
    assert!(hellos(&site).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_35_smuggling_ends_the_connection_or_the_body() {
    let site = site(bounds()).await;
    let hidden = "POST /v1/evidence HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nX";
    let head = "POST /v1/hello HTTP/1.1\r\nHost: x\r\n";
    for (what, more) in [
        (
            "two lengths",
            "Content-Length: 2\r\nContent-Length: 0\r\n\r\n",
        ),
        ("a list of lengths", "Content-Length: 2, 0\r\n\r\n"),
        ("a signed length", "Content-Length: +0\r\n\r\n"),
        (
            "length and chunks",
            "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        ),
        (
            "chunks that are none",
            "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        ),
        (
            "chunks not last",
            "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        ),
        ("a space before the colon", "Content-Length : 0\r\n\r\n"),
        ("a folded line", "X: y\r\n Content-Length: 0\r\n\r\n"),
    ] {
        let answer = say(&site, format!("{head}{more}{hidden}").as_bytes()).await;
        let answers = answer.matches("HTTP/1.1 ").count();
        assert!(answers <= 1, "{what}: {answer}");
        assert!(
            !answer.starts_with("HTTP/1.1 200") || what == "length and chunks",
            "{what}: {answer}"
        );
        // Never seen as a request of its own; `hellos` looks.
        assert!(hellos(&site).iter().all(Vec::is_empty), "{what}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_35_chunk_bombs_are_cut_off() {
    let site = site(bounds()).await;
    let head = "POST /v1/hello HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
    let long = format!("1;{}\r\nx\r\n0\r\n\r\n", "e".repeat(1 << 20));
    let small = "1;a=b\r\nx\r\n".repeat(400_000);
    for (what, body) in [
        ("a size beyond 64 bits", "fffffffffffffffff\r\nx".to_owned()),
        ("an enormous size", "7fffffffffffffff\r\nx".to_owned()),
        ("a negative size", "-1\r\nx".to_owned()),
        ("an extension of a megabyte", long),
        ("400,000 chunks of one byte", small),
        (
            "trailers without end",
            format!("0\r\n{}", "T: x\r\n".repeat(200_000)),
        ),
    ] {
        let answer = say(&site, format!("{head}{body}").as_bytes()).await;
        assert!(!answer.starts_with("HTTP/1.1 200"), "{what}: {answer}");
    }
    assert!(hellos(&site).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_35_slowloris_is_dropped_in_time() {
    let site = site(bounds()).await;
    for (what, said) in [
        (
            "a head without an end",
            &b"POST /v1/hello HTTP/1.1\r\nHost: x\r\nX: "[..],
        ),
        (
            "a body without an end",
            b"POST /v1/hello HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{",
        ),
        ("nothing at all", b""),
    ] {
        let mut stream = connect(&site).await;
        let begun = Instant::now();
        let trickle = async {
            if stream.write_all(said).await.is_err() {
                return;
            }
            // A byte now and then does not buy time: the clock runs for the whole head or body.
            loop {
                let mut some = [0; 512];
                let wait = Duration::from_millis(200);
                match tokio::time::timeout(wait, stream.read(&mut some)).await {
                    Ok(Ok(1..)) => {}
                    Ok(_) => return,
                    Err(_) if said.is_empty() => {}
                    Err(_) => {
                        if stream.write_all(b"x").await.is_err() {
                            return;
                        }
                    }
                }
            }
        };
        tokio::time::timeout(PATIENCE, trickle)
            .await
            .expect("dropped in time");
        let most = Duration::from_secs(11);
        assert!(begun.elapsed() < most, "{what}: {:?}", begun.elapsed());
    }
    let seen = site.seen.lock().expect("lock");
    assert!(seen.evidence.is_empty());
}

/// TLS 1.2 is for firmware, at the boot port only. Its renegotiation is refused, and the connection
/// is as it was or ends; TLS 1.3 has none.
#[tokio::test(flavor = "multi_thread")]
async fn attack_35_renegotiation_is_refused() {
    let site = boot::site().await;
    let address = site.https.to_string();
    let ca = site.ca_file.clone();
    let said = tokio::task::spawn_blocking(move || {
        let mut client = Command::new("openssl")
            .args(["s_client", "-connect", &address, "-tls1_2", "-CAfile"])
            .arg(ca)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("openssl is needed for this test");
        let mut input = client.stdin.take().expect("piped");
        // s_client takes a line that begins with R as the order to renegotiate.
        input.write_all(b"R\n").expect("ordered");
        std::thread::sleep(Duration::from_millis(500));
        let _ = input.write_all(b"Q\n");
        drop(input);
        let output = client.wait_with_output().expect("ended");
        format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        )
    })
    .await
    .expect("ran");
    assert!(said.contains("TLSv1.2"), "{said}");
    assert!(said.contains("RENEGOTIATING"), "{said}");
    assert!(
        said.contains("no renegotiation") || said.contains("alert") || said.contains("unexpected"),
        "{said}"
    );
    let handshakes = said.matches("verify return:1").count();
    assert!(
        handshakes <= 2,
        "one chain of two certificates, once: {said}"
    );
}

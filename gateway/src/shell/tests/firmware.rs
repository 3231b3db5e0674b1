//! What firmware and iPXE of the field stumbled over with other servers, each as the bug report has
//! it: what is on the wire, byte by byte.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::boot::{Site, site};
use crate::testing::text_of;

const PATIENCE: Duration = Duration::from_secs(10);

/// One connection over plain HTTP, so that every byte is seen.
struct Raw(TcpStream);

impl Raw {
    async fn open(address: SocketAddr) -> Self {
        Self(TcpStream::connect(address).await.expect("connected"))
    }

    /// Sends a request and returns its response head; the body is left.
    async fn ask(&mut self, request: &str) -> String {
        let all = format!("{request}\r\nHost: 10.0.0.1\r\n\r\n");
        self.0.write_all(all.as_bytes()).await.expect("sent");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let byte = tokio::time::timeout(PATIENCE, self.0.read_u8()).await;
            head.push(byte.expect("in time").expect("a whole head"));
        }
        String::from_utf8(head).expect("text")
    }

    async fn body(&mut self, bytes: usize) -> Vec<u8> {
        let mut body = vec![0; bytes];
        let read = tokio::time::timeout(PATIENCE, self.0.read_exact(&mut body)).await;
        read.expect("in time").expect("a whole body");
        body
    }

    /// Whether nothing comes for a while, not even the end of the stream.
    async fn is_silent_and_open(&mut self) -> bool {
        let wait = Duration::from_millis(300);
        tokio::time::timeout(wait, self.0.read_u8()).await.is_err()
    }
}

fn value<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        key.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}

/// One request for each kind of answer that we have.
fn every_answer(site: &Site) -> Vec<(u16, String)> {
    let (image, etag) = (site.image(), site.etag());
    let get = |more: &str| format!("GET {image} HTTP/1.1{more}");
    let total = site.bytes.len();
    vec![
        (200, get("")),
        (200, format!("HEAD {image} HTTP/1.1")),
        (206, get("\r\nRange: bytes=0-9")),
        (304, get(&format!("\r\nIf-None-Match: {etag}"))),
        (403, format!("GET {image}?mac=52:54:00:00:00:ff HTTP/1.1")),
        (403, "GET /boot/script.ipxe HTTP/1.1".to_owned()),
        (404, "GET /grub2/grub.cfg HTTP/1.1".to_owned()),
        (404, "HEAD /grub2/grub.cfg HTTP/1.1".to_owned()),
        (405, format!("POST {image} HTTP/1.1")),
        (412, get("\r\nIf-Match: \"another\"")),
        (416, get(&format!("\r\nRange: bytes={total}-"))),
        (400, "G(T / HTTP/1.1".to_owned()),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn edk2_7443_no_header_is_ever_empty() {
    let site = site().await;
    for (status, request) in every_answer(&site) {
        let head = Raw::open(site.plain).await.ask(&request).await;
        assert!(
            head.starts_with(&format!("HTTP/1.1 {status} ")),
            "{request}: {head}"
        );
        for line in head.lines().skip(1).filter(|line| !line.is_empty()) {
            let (name, value) = line.split_once(':').expect("a header");
            assert!(!value.trim().is_empty(), "{request}: empty {name}");
        }
        assert_eq!(value(&head, "server"), None, "{head}");
        assert_eq!(value(&head, "transfer-encoding"), None, "{head}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn edk2_9920_the_connection_stays_open_after_head() {
    let site = site().await;
    let mut raw = Raw::open(site.plain).await;
    // Also a HEAD that finds nothing: the machine asks for the next thing on the same connection.
    let missing = raw.ask("HEAD /boot/none HTTP/1.1").await;
    assert!(missing.starts_with("HTTP/1.1 404 "), "{missing}");
    assert!(raw.is_silent_and_open().await, "FIN or a body after HEAD");
    let head = raw.ask(&format!("HEAD {} HTTP/1.1", site.image())).await;
    let total = site.bytes.len().to_string();
    assert_eq!(value(&head, "content-length"), Some(&*total));
    assert_ne!(value(&head, "connection"), Some("close"));
    assert!(raw.is_silent_and_open().await, "FIN or a body after HEAD");
    let get = raw.ask(&format!("GET {} HTTP/1.1", site.image())).await;
    assert!(get.starts_with("HTTP/1.1 200 "), "{get}");
    assert!(
        raw.body(site.bytes.len()).await == site.bytes,
        "body differs"
    );
    assert!(raw.is_silent_and_open().await, "FIN after GET");
}

#[tokio::test(flavor = "multi_thread")]
async fn head_tells_the_whole_size_whatever_range_it_names() {
    let site = site().await;
    let ask = format!("HEAD {} HTTP/1.1\r\nRange: bytes=0-9", site.image());
    let head = Raw::open(site.plain).await.ask(&ask).await;
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    let total = site.bytes.len().to_string();
    assert_eq!(value(&head, "content-length"), Some(&*total));
    assert_eq!(value(&head, "content-range"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn smee_229_doubled_slashes_are_no_redirect() {
    let site = site().await;
    let doubled = site.image().replace('/', "//");
    let mut raw = Raw::open(site.plain).await;
    let head = raw.ask(&format!("GET {doubled} HTTP/1.1")).await;
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert!(
        raw.body(site.bytes.len()).await == site.bytes,
        "body differs"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn image_factory_204_a_wrong_path_is_told_with_the_machine() {
    let site = site().await;
    let url = site.url("/image/kernel-amd64?mac=52:54:00:00:00:07");
    let said = site.curl(&["-w", "%{http_code}", &url]).await;
    assert_eq!(said, "not found\n404");
    // The core makes a refusal of it: gateway/core/tests/walk.rs.
    let expected = "missing 52:54:00:00:00:07 /image/kernel-amd64";
    assert_eq!(site.asked(), [expected]);
}

#[tokio::test(flavor = "multi_thread")]
async fn netbootxyz_1398_a_suite_that_ipxe_knows() {
    let site = site().await;
    let address = site.https.to_string();
    // iPXE's own lists, in its order: 1.21 of 2025 with PKCS#1 only, 2.0 of 2026 with ECDSA too.
    let rows = [
        (
            "DHE-RSA-AES256-GCM-SHA384:ECDHE-RSA-AES256-GCM-SHA384:DHE-RSA-AES128-GCM-SHA256:\
             ECDHE-RSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-SHA256:AES256-GCM-SHA384:AES128-GCM-SHA256:\
             AES256-SHA256:AES128-SHA256:AES256-SHA:AES128-SHA",
            "RSA+SHA256:RSA+SHA384:RSA+SHA512:RSA+SHA1",
            "Server public key is 3072 bit",
        ),
        (
            "ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-RSA-AES256-GCM-SHA384:ECDHE-ECDSA-AES128-GCM-SHA256:\
             ECDHE-RSA-AES128-GCM-SHA256:DHE-RSA-AES128-GCM-SHA256:AES128-GCM-SHA256",
            "ECDSA+SHA256:ECDSA+SHA384:RSA+SHA256:RSA+SHA384",
            "Server public key is 256 bit",
        ),
    ];
    for (suites, signatures, key) in rows {
        let said = text_of(
            "openssl",
            &[
                "s_client",
                "-connect",
                &address,
                "-tls1_2",
                "-cipher",
                suites,
                "-sigalgs",
                signatures,
                "-curves",
                "X25519:P-256:P-384",
            ],
        )
        .await;
        assert!(said.contains(key), "{suites}: {said}");
        assert!(said.contains("ECDHE-"), "{suites}: {said}");
    }
}

/// Also tinkerbell/ipxedust#53: a chain with a cross-sign or an intermediate too many.
#[tokio::test(flavor = "multi_thread")]
async fn ipxe_606_the_chain_is_the_leaf_and_its_root() {
    let site = site().await;
    let address = site.https.to_string();
    for cipher in [
        "ECDHE-ECDSA-AES128-GCM-SHA256",
        "ECDHE-RSA-AES128-GCM-SHA256",
    ] {
        let said = text_of(
            "openssl",
            &[
                "s_client",
                "-connect",
                &address,
                "-tls1_2",
                "-cipher",
                cipher,
                "-showcerts",
            ],
        )
        .await;
        let served: Vec<&str> = said
            .split("-----BEGIN CERTIFICATE-----")
            .skip(1)
            .filter_map(|rest| rest.split("-----END").next())
            .map(str::trim)
            .collect();
        let root = site
            .ca
            .pem
            .split("-----")
            .nth(2)
            .unwrap_or_default()
            .replace("\r\n", "\n");
        assert_eq!(served.len(), 2, "{said}");
        assert_eq!(served[1], root.trim(), "{cipher}");
    }
}

/// tinkerbell/ipxedust#53: small clients stop at long chains. Both certificates of both kinds of key
/// fit in one TLS record, with room to spare.
#[tokio::test(flavor = "multi_thread")]
async fn ipxedust_53_the_chain_is_short() {
    let site = site().await;
    let address = site.https.to_string();
    for cipher in [
        "ECDHE-ECDSA-AES128-GCM-SHA256",
        "ECDHE-RSA-AES128-GCM-SHA256",
    ] {
        let args = [
            "s_client", "-connect", &address, "-tls1_2", "-cipher", cipher, "-msg",
        ];
        let said = text_of("openssl", &args).await;
        let message = said
            .lines()
            .find(|line| line.contains(", Certificate") && line.starts_with("<<<"))
            .unwrap_or_else(|| panic!("no Certificate message: {said}"));
        let len = message
            .split("[length ")
            .nth(1)
            .and_then(|rest| rest.split(']').next())
            .and_then(|hex| usize::from_str_radix(hex, 16).ok());
        let len = len.unwrap_or_else(|| panic!("{message}"));
        assert!((500..4_096).contains(&len), "{cipher}: {len} bytes");
    }
}

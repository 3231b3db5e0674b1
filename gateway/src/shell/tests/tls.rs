use std::net::SocketAddr;

use super::boot::site;
use crate::metrics::TLS_REFUSED;
use crate::testing::{counted, text_of};

async fn s_client(address: SocketAddr, args: &[&str]) -> String {
    let address = address.to_string();
    let mut all = vec!["s_client", "-connect", &address];
    all.extend_from_slice(args);
    text_of("openssl", &all).await
}

#[tokio::test(flavor = "multi_thread")]
async fn openssl_gets_the_certificate_it_can_use() {
    let site = site().await;
    let rows: [(&[&str], &str, &str); 6] = [
        (&["-tls1_3"], "TLSv1.3", "ECDSA"),
        (
            &["-tls1_3", "-sigalgs", "RSA-PSS+SHA256"],
            "TLSv1.3",
            "RSA-PSS",
        ),
        (
            &["-tls1_2", "-cipher", "ECDHE-ECDSA-AES128-GCM-SHA256"],
            "TLSv1.2",
            "ECDSA",
        ),
        (
            &["-tls1_2", "-cipher", "ECDHE-RSA-AES256-GCM-SHA384"],
            "TLSv1.2",
            "RSA-PSS",
        ),
        (
            &[
                "-tls1_2",
                "-cipher",
                "ECDHE-RSA-AES128-GCM-SHA256",
                "-sigalgs",
                "RSA+SHA256",
            ],
            "TLSv1.2",
            "RSA",
        ),
        (
            &[
                "-tls1_2",
                "-cipher",
                "ECDHE-RSA-AES128-GCM-SHA256",
                "-curves",
                "P-256",
            ],
            "TLSv1.2",
            "RSA-PSS",
        ),
    ];
    for (args, version, signature) in rows {
        let said = s_client(site.https, args).await;
        assert!(said.contains(version), "{args:?}: {said}");
        let expected = format!("Peer signature type: {signature}\n");
        assert!(said.contains(&expected), "{args:?} {expected}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn gnutls_gets_the_certificate_it_can_use() {
    let site = site().await;
    let port = site.https.port().to_string();
    let ca = site.ca_file.to_string_lossy().into_owned();
    let rows = [
        ("NORMAL:-VERS-ALL:+VERS-TLS1.2:-KX-ALL:+ECDHE-RSA", "RSA"),
        (
            "NORMAL:-VERS-ALL:+VERS-TLS1.2:-KX-ALL:+ECDHE-ECDSA",
            "ECDSA",
        ),
        ("NORMAL:-VERS-ALL:+VERS-TLS1.3", "ECDSA"),
    ];
    for (priority, signature) in rows {
        let said = text_of(
            "gnutls-cli",
            &[
                "--priority",
                priority,
                "--x509cafile",
                &ca,
                "-p",
                &port,
                "127.0.0.1",
            ],
        )
        .await;
        assert!(said.contains("Handshake was completed"), "{said}");
        let description = said
            .lines()
            .find(|line| line.contains("Description:"))
            .unwrap_or_default();
        assert!(
            description.contains(&format!("({signature}"))
                || description.contains(&format!("-{signature}")),
            "{priority}: {description}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rejects_firmware_without_ecdhe_and_says_what_to_do() {
    let site = site().await;
    s_client(
        site.https,
        &["-tls1_2", "-cipher", "DHE-RSA-AES256-GCM-SHA384"],
    )
    .await;
    s_client(site.https, &["-tls1_2", "-cipher", "AES128-GCM-SHA256"]).await;
    let count = counted(&site.metrics, TLS_REFUSED, "tls.no_ecdhe", 2).await;
    assert_eq!(count, 2, "{}", site.metrics.render());
}

#[tokio::test(flavor = "multi_thread")]
async fn rejects_a_client_without_our_ca_and_says_so() {
    let site = site().await;
    let url = format!("https://{}/", site.https);
    text_of("curl", &["-sS", &url]).await;
    let count = counted(&site.metrics, TLS_REFUSED, "tls.certificate_rejected", 1).await;
    assert_eq!(count, 1, "{}", site.metrics.render());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_can_be_resumed() {
    let site = site().await;
    let dir = tempfile::tempdir().expect("dir");
    let session = dir.path().join("session").to_string_lossy().into_owned();
    s_client(site.https, &["-tls1_2", "-sess_out", &session]).await;
    let said = s_client(site.https, &["-tls1_2", "-sess_in", &session]).await;
    assert!(said.contains("Reused, TLSv1.2"), "{said}");
}

//! A certificate is exchanged while a download runs, and sessions are resumed after it.

use std::time::Duration;

use super::boot::site;
use crate::testing::text_of;

/// The served leaf, as openssl prints its fingerprint.
async fn served(site: &super::boot::Site, cipher: &str) -> String {
    let address = site.https.to_string();
    let said = text_of(
        "openssl",
        &[
            "s_client", "-connect", &address, "-tls1_2", "-cipher", cipher,
        ],
    )
    .await;
    let pem = said
        .split_once("-----BEGIN CERTIFICATE-----")
        .and_then(|(_, rest)| rest.split_once("-----END CERTIFICATE-----"))
        .map(|(pem, _)| pem.to_owned());
    pem.unwrap_or_else(|| panic!("no certificate: {said}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_exchanged_while_a_download_runs() {
    const P256: &str = "ECDHE-ECDSA-AES128-GCM-SHA256";
    const RSA: &str = "ECDHE-RSA-AES128-GCM-SHA256";
    let site = site().await;
    let url = site.url(&site.image());
    let before = [served(&site, P256).await, served(&site, RSA).await];
    // 3.2 MB at 0.8 MB/s: four seconds, in whose middle both certificates change.
    let slowly = ["--limit-rate", "800k", &*url];
    let download = site.body(&slowly);
    let exchange = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        for (rsa, slot) in [
            (false, &site.certificates.p256),
            (true, &site.certificates.rsa),
        ] {
            let next = site.ca.server(rsa);
            slot.replace(next.chain, next.key).expect("replaced");
        }
        [served(&site, P256).await, served(&site, RSA).await]
    };
    let started = std::time::Instant::now();
    let (body, after) = tokio::join!(download, exchange);
    assert!(body == site.bytes, "the running download was disturbed");
    assert!(
        started.elapsed() > Duration::from_secs(1),
        "the download was over before the exchange"
    );
    for (before, after) in before.iter().zip(&after) {
        assert_ne!(before, after, "the old certificate is still served");
    }
    // A key that does not belong to the certificate changes nothing.
    let (one, other) = (site.ca.server(false), site.ca.server(false));
    let slot = &site.certificates.p256;
    slot.replace(one.chain, other.key).expect_err("refused");
    assert_eq!(served(&site, P256).await, after[0]);
    assert!(site.body(&[&url]).await == site.bytes, "body differs");
}

#[tokio::test(flavor = "multi_thread")]
async fn gnutls_resumes_sessions_of_both_versions() {
    let site = site().await;
    let port = site.https.port().to_string();
    let ca = site.ca_file.to_string_lossy().into_owned();
    for version in ["TLS1.2", "TLS1.3"] {
        let priority = format!("NORMAL:-VERS-ALL:+VERS-{version}");
        let said = text_of(
            "gnutls-cli",
            &[
                "--resume",
                "--priority",
                &priority,
                "--x509cafile",
                &ca,
                "-p",
                &port,
                "127.0.0.1",
            ],
        )
        .await;
        assert!(
            said.contains("This is a resumed session"),
            "{version}: {said}"
        );
    }
}

//! TLS of the boot port as three stacks speak it: what each kind of machine offers, what it must
//! get, and that a second connection resumes the first.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use super::LIMIT;
use crate::netns::{GATEWAY_ADDR, Netns};
use crate::report::Report;
use crate::run::attempt;
use crate::sim::tool;

const PORT: &str = "443";

/// Every client of this file.
pub(super) fn run(report: &Report, node: &Netns, dir: &Path, ca: &str, url: &str) {
    for (name, args, wanted) in OPENSSL {
        report.check(
            &format!("openssl {name}"),
            s_client(node, ca, args, "", wanted),
        );
    }
    for (name, version, signature) in GNUTLS {
        let check = gnutls(node, ca, version, &[]).and_then(|said| signed(&said, signature));
        report.check(&format!("gnutls {name}"), check);
    }
    for (name, args) in RESUMING {
        report.check(
            &format!("openssl {name}: a second connection resumes"),
            openssl_resumes(node, dir, ca, args),
        );
    }
    for (name, version) in [
        ("TLS 1.2", "+VERS-TLS1.2:-KX-ALL:+ECDHE-ECDSA"),
        ("TLS 1.2, RSA", "+VERS-TLS1.2:-KX-ALL:+ECDHE-RSA"),
        ("TLS 1.3", "+VERS-TLS1.3"),
    ] {
        let check = gnutls(node, ca, version, &["--resume"]).and_then(|said| {
            ensure!(said.contains("This is a resumed session"), "{said}");
            Ok(())
        });
        report.check(
            &format!("gnutls {name}: a second connection resumes"),
            check,
        );
    }
    for version in ["1.2", "1.3"] {
        report.check(
            &format!("curl TLS {version}: a second connection resumes"),
            curl_resumes(node, ca, url, version),
        );
    }
}

/// What firmware of the field offers, and what must come back.
const OPENSSL: &[(&str, &[&str], &str)] = &[
    (
        "as OVMF of 2026: TLS 1.2, ECDHE-ECDSA, P-256",
        OVMF,
        "Server public key is 256 bit",
    ),
    (
        "as iPXE of 2025: TLS 1.2, ECDHE-RSA, PKCS1 signatures",
        IPXE,
        "Server public key is 3072 bit",
    ),
    ("TLS 1.3", &["-tls1_3"], "TLSv1.3"),
    (
        "TLS 1.3, RSA signatures only",
        &["-tls1_3", "-sigalgs", "rsa_pss_rsae_sha256"],
        "Server public key is 3072 bit",
    ),
];

const OVMF: &[&str] = &[
    "-tls1_2",
    "-cipher",
    "ECDHE-ECDSA-AES256-GCM-SHA384",
    "-curves",
    "P-256",
];
const IPXE: &[&str] = &[
    "-tls1_2",
    "-cipher",
    "ECDHE-RSA-AES256-GCM-SHA384",
    "-sigalgs",
    "RSA+SHA256",
    "-curves",
    "P-256",
];

/// Who resumes: firmware's TLS 1.2 asks for a ticket, TLS 1.3 gets two after the handshake.
const RESUMING: &[(&str, &[&str])] = &[
    ("as OVMF of 2026, TLS 1.2", OVMF),
    ("as iPXE of 2025, TLS 1.2", IPXE),
    ("TLS 1.3", &["-tls1_3"]),
    (
        "TLS 1.3, RSA signatures only",
        &["-tls1_3", "-sigalgs", "rsa_pss_rsae_sha256"],
    ),
];

/// Client, version and key exchange as gnutls names them, and the signature it must see.
const GNUTLS: &[(&str, &str, &str)] = &[
    (
        "TLS 1.2, ECDSA only",
        "+VERS-TLS1.2:-KX-ALL:+ECDHE-ECDSA:-SIGN-ALL:+SIGN-ECDSA-SHA256:+SIGN-RSA-SHA256",
        "ECDSA",
    ),
    (
        "TLS 1.2, RSA only",
        "+VERS-TLS1.2:-KX-ALL:+ECDHE-RSA",
        "RSA",
    ),
    ("TLS 1.2, both", "+VERS-TLS1.2", "ECDSA"),
    // The chain's own signature is the RSA of the boot CA, in every offer.
    (
        "TLS 1.3, ECDSA only",
        "+VERS-TLS1.3:-SIGN-ALL:+SIGN-ECDSA-SECP256R1-SHA256:+SIGN-RSA-SHA256",
        "ECDSA",
    ),
    (
        "TLS 1.3, RSA only",
        "+VERS-TLS1.3:-SIGN-ALL:+SIGN-RSA-PSS-RSAE-SHA256:+SIGN-RSA-SHA256",
        "RSA",
    ),
    ("TLS 1.3, both", "+VERS-TLS1.3", "ECDSA"),
];

/// One request that ends the connection, so that what the server sends after its handshake is read.
const REQUEST: &str = "GET / HTTP/1.1\\r\\nHost: 10.66.0.1\\r\\nConnection: close\\r\\n\\r\\n";

fn s_client(node: &Netns, ca: &str, args: &[&str], session: &str, wanted: &str) -> Result<()> {
    // A shell feeds the request, since openssl reads it from its standard input.
    let line = format!(
        "printf '{REQUEST}' | openssl s_client -connect {GATEWAY_ADDR}:{PORT} -CAfile {ca} \
         -verify_return_error -verify_ip {GATEWAY_ADDR} -ign_eof {session} {}",
        args.join(" ")
    );
    let (status, out, err) = attempt(node.command("sh").args(["-c", &line]), LIMIT)?;
    ensure!(status.success(), "{err}");
    ensure!(out.contains(wanted), "no {wanted:?} in\n{out}");
    ensure!(out.contains("HTTP/1.1 404"), "no response in\n{out}");
    Ok(())
}

fn openssl_resumes(node: &Netns, dir: &Path, ca: &str, args: &[&str]) -> Result<()> {
    let file = dir.join("tls-session");
    let file = file.to_string_lossy();
    s_client(node, ca, args, &format!("-sess_out {file}"), "New, TLSv1.")?;
    s_client(
        node,
        ca,
        args,
        &format!("-sess_in {file}"),
        "Reused, TLSv1.",
    )
}

fn gnutls(node: &Netns, ca: &str, version: &str, more: &[&str]) -> Result<String> {
    let priority = format!("NORMAL:-VERS-ALL:{version}");
    let address = GATEWAY_ADDR.to_string();
    let mut args = vec!["--priority", &priority, "--x509cafile", ca, "-p", PORT];
    args.extend_from_slice(more);
    args.push(&address);
    let (status, out, err) = attempt(node.command("gnutls-cli").args(&args), LIMIT)?;
    ensure!(status.success(), "{out}{err}");
    ensure!(out.contains("Handshake was completed"), "{out}{err}");
    Ok(out)
}

/// `- Description: (TLS1.3-X.509)-(ECDHE-SECP256R1)-(ECDSA-SECP256R1-SHA256)-(AES-128-GCM)`; TLS 1.2
/// with RSA says `(ECDHE-..)-(RSA-SHA256)` or `(RSA-PSS-RSAE-SHA256)`.
fn signed(said: &str, signature: &str) -> Result<()> {
    let line = said
        .lines()
        .find(|line| line.contains("Description:"))
        .with_context(|| format!("no description in {said}"))?;
    ensure!(line.contains(&format!("-({signature}-")), "{line}");
    Ok(())
}

/// Two connections of one curl: a range each, the first told to close.
fn curl_resumes(node: &Netns, ca: &str, url: &str, version: &str) -> Result<()> {
    let least = format!("--tlsv{version}");
    let base = [
        "-sS",
        "-v",
        "--stderr",
        "-",
        "-m",
        "60",
        "--fail",
        "-o",
        "/dev/null",
        "-r",
        "0-9",
        "-H",
        "Connection: close",
        "--cacert",
        ca,
        &least,
        "--tls-max",
        version,
        url,
    ];
    let mut args = base.to_vec();
    args.push("--next");
    args.extend_from_slice(&base);
    let said = tool(node, "curl", &args)?.to_lowercase();
    let answers = said.matches("< http/1.1 206").count();
    ensure!(answers == 2, "{answers} answers: {said}");
    let reused = said.contains("re-using session id") || said.contains("reusing session id");
    ensure!(reused, "no session was resumed: {said}");
    Ok(())
}

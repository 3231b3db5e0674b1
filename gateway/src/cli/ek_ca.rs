//! `vestibule ek-ca list`: the certificates that EK chains may end in, and their revocation lists, as the
//! configuration names them. Needs no daemon and no network.

use std::fmt::Write as _;

use gateway_core::appraisal::x509::rfc3339;
use hw::clock::Clock;
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use super::{Exit, Failure, Output};
use crate::config::Config;
use crate::inventory::load_ek_roots;

#[derive(Serialize)]
struct List {
    certificates: Vec<Certificate>,
    crls: Vec<RevocationList>,
}

#[derive(Serialize)]
struct Certificate {
    subject: String,
    issuer: String,
    not_after: String,
    expired: bool,
    sha256: String,
    file: String,
}

#[derive(Serialize)]
struct RevocationList {
    issuer: String,
    this_update: String,
    next_update: Option<String>,
    stale: bool,
    revoked: usize,
    /// Whether a certificate of the list above signed it.
    signer_loaded: bool,
    file: String,
}

/// `vestibule ek-ca list`
pub(super) fn list(out: &Output, config: &Config) -> Result<Exit, Failure> {
    let roots = load_ek_roots(&config.inventory)?;
    let now = i64::try_from(Clock.now_ms() / 1000).unwrap_or(i64::MAX);
    let certificates = roots.list().iter().map(|anchor| Certificate {
        subject: anchor.cert.subject_text(),
        issuer: anchor.cert.issuer_text(),
        not_after: rfc3339(anchor.cert.not_after),
        expired: now > anchor.cert.not_after,
        sha256: hex::encode(Sha256::digest(&anchor.cert.der)),
        file: anchor.source.clone(),
    });
    let crls = roots.crls().map(|loaded| RevocationList {
        issuer: loaded.crl.issuer_text(),
        this_update: rfc3339(loaded.crl.this_update),
        next_update: loaded.crl.next_update.map(rfc3339),
        stale: loaded.crl.next_update.is_none_or(|next| now > next),
        revoked: loaded.crl.len(),
        signer_loaded: loaded.signer_loaded(),
        file: loaded.source.clone(),
    });
    let list = List {
        certificates: certificates.collect(),
        crls: crls.collect(),
    };
    out.print(&list, || text(&list));
    Ok(Exit::Done)
}

fn text(list: &List) -> String {
    let mut text = String::new();
    for cert in &list.certificates {
        let self_signed = cert.subject == cert.issuer;
        let issuer = match self_signed {
            true => "itself",
            false => &cert.issuer,
        };
        let until = match cert.expired {
            true => "expired",
            false => "until",
        };
        let _ = writeln!(text, "{}", cert.subject);
        let _ = writeln!(text, "  issued by {issuer}, {until} {}", cert.not_after);
        let _ = writeln!(text, "  sha256 {}, {}", cert.sha256, cert.file);
    }
    for crl in &list.crls {
        let next = crl.next_update.as_deref().unwrap_or("(none)");
        let word = if crl.stale { "stale since" } else { "next" };
        let _ = writeln!(text, "revocation list of {}", crl.issuer);
        let _ = writeln!(
            text,
            "  {} revoked, of {}, {word} {next}",
            crl.revoked, crl.this_update
        );
        let signer = match crl.signer_loaded {
            true => "its signer is loaded",
            false => "its signer is not loaded: it counts only for a chain that brings it",
        };
        let _ = writeln!(text, "  {signer}, {}", crl.file);
    }
    if text.is_empty() {
        text.push_str("no EK roots (inventory.ek_roots_dir)\n");
    }
    text
}

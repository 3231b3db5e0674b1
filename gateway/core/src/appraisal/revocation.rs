//! Row 4: whether a certificate of an EK chain is revoked, by the lists that the owner loaded.
//!
//! A list that names the certificate refuses it, however old the list is: nothing is taken back.
//! Without such an entry the certificate counts as not revoked only by a list that is signed, in
//! time and about it; where none is, the policy decides what that means (`ek.crl`). Source: RFC
//! 5280 section 6.3, without its reasons mask: a list for some reasons only covers nothing.
//!
//! A delta list (section 5.2.4) is put on top of a complete one that it continues. What it revokes is
//! revoked, with its base or without. It keeps a complete list in time while it is itself, and it
//! takes an entry back where that was a hold (removeFromCRL), signed, in time and with its base.

use super::ek::{EkRoots, TimeTrust};
use super::x509::{Cert, Crl, rfc3339};
use crate::reason::Reason;

const SOURCE: &str = "RFC 5280 section 6.3";

/// What is known.
pub(super) enum Status {
    /// By a list, or nobody publishes one.
    NotRevoked,
    /// No list that counts; why, one reason for each list that could have.
    Unknown(Vec<Reason>),
    /// An entry names it.
    Revoked(Box<Reason>),
}

/// A list and who signed it, where that is one of the owner's certificates.
#[derive(Debug, Clone)]
pub struct LoadedCrl {
    /// The list.
    pub crl: Crl,
    /// Where it came from: the name of a file.
    pub source: String,
    /// Key that its signature was verified with when it was loaded.
    pub(super) signer_key: Option<Vec<u8>>,
}

impl LoadedCrl {
    /// Whether one of the owner's certificates signed it. Otherwise it counts only where a chain
    /// brings its signer.
    pub fn signer_loaded(&self) -> bool {
        self.signer_key.is_some()
    }
}

/// Looks for `cert`, issued by `issuer`. `spend` is asked before each signature is verified.
pub(super) fn status(
    cert: &Cert,
    issuer: &Cert,
    roots: &EkRoots,
    time: TimeTrust,
    demanded: bool,
    spend: &mut dyn FnMut() -> bool,
) -> Status {
    let mut trouble = Vec::new();
    let mut covered = false;
    for loaded in roots.crls() {
        let crl = &loaded.crl;
        let entry = crl.entry(cert).filter(|entry| !crl.removes(entry));
        if entry.is_none() && !crl.covers(cert) {
            continue;
        }
        // A list of another key of the same name says nothing of this issuer's certificates.
        let other_key = crl.issuer == issuer.subject && !crl.names(issuer);
        if other_key {
            continue;
        }
        if !verified(loaded, issuer, roots, spend) {
            trouble.push(Reason::new(
                "ek.crl.signature",
                format!("a revocation list signed by {}", crl.issuer_text()),
                "a signature that does not verify, or a signer that is not loaded",
                SOURCE,
                "fetch the list again, and load its signer's certificate with the EK roots",
            ));
            continue;
        }
        if let Some(entry) = entry
            && !(entry.is_hold() && taken_back(loaded, cert, issuer, roots, time, spend))
        {
            return Status::Revoked(Box::new(Reason::new(
                "ek.cert.revoked",
                format!("{} not revoked", whose(cert)),
                format!(
                    "serial {} revoked at {} ({}) by {}",
                    hex::encode(&cert.serial),
                    rfc3339(entry.at),
                    entry.reason_text(),
                    crl.issuer_text()
                ),
                SOURCE,
                "the vendor withdrew this certificate: ask why; approve the EK as a bare one only if the answer allows it",
            )));
        }
        if crl.is_delta() {
            trouble.extend(without_base(crl, roots));
            continue;
        }
        match in_time(crl, time) {
            Ok(()) => covered = true,
            Err(_) if kept_in_time(loaded, issuer, roots, time, spend) => covered = true,
            Err(found) => trouble.push(Reason::new(
                "ek.crl.stale",
                format!("a revocation list of {} that is in time", crl.issuer_text()),
                found,
                "RFC 5280 section 5.1.2.5",
                "fetch the list again and put it in the place of the old one",
            )),
        }
    }
    if covered {
        return Status::NotRevoked;
    }
    let published = !cert.crl_points.is_empty();
    let judged = demanded || roots.crl_count() > 0;
    if trouble.is_empty() && published && judged {
        let urls = cert.crl_points.iter().flat_map(|point| &point.urls);
        let urls: Vec<&str> = urls.map(String::as_str).take(3).collect();
        trouble.push(Reason::new(
            "ek.crl.missing",
            format!("a revocation list for {}", whose(cert)),
            "none is loaded",
            SOURCE,
            format!("put it in inventory.ek_crls_dir: {}", urls.join(" ")),
        ));
    }
    if trouble.is_empty() {
        Status::NotRevoked
    } else {
        Status::Unknown(trouble)
    }
}

fn whose(cert: &Cert) -> String {
    let subject = cert.subject_text();
    if subject.is_empty() {
        return format!("the certificate issued by {}", cert.issuer_text());
    }
    subject
}

/// Whether the issuer or one of the owner's certificates signed the list. An indirect list is
/// signed by somebody else than the issuer: then only the owner's certificates count.
fn verified(
    loaded: &LoadedCrl,
    issuer: &Cert,
    roots: &EkRoots,
    spend: &mut dyn FnMut() -> bool,
) -> bool {
    let crl = &loaded.crl;
    if let Some(key) = &loaded.signer_key {
        let by_issuer = issuer.key_bits == *key;
        let by_owner = || roots.anchors().any(|anchor| anchor.key_bits == *key);
        return by_issuer || by_owner();
    }
    // The signer came with the chain.
    crl.names(issuer) && spend() && crl.signed_by(issuer)
}

/// Delta lists that continue a complete list, signed and in time.
fn current_deltas<'r>(
    complete: &'r LoadedCrl,
    issuer: &Cert,
    roots: &'r EkRoots,
    time: TimeTrust,
    spend: &mut dyn FnMut() -> bool,
) -> Vec<&'r Crl> {
    roots
        .crls()
        .filter(|delta| delta.crl.continues(&complete.crl))
        .filter(|delta| in_time(&delta.crl, time).is_ok())
        .filter(|delta| verified(delta, issuer, roots, spend))
        .map(|delta| &delta.crl)
        .collect()
}

/// Whether a delta list says today what a complete one said once (RFC 5280 section 6.3.3 a).
fn kept_in_time(
    complete: &LoadedCrl,
    issuer: &Cert,
    roots: &EkRoots,
    time: TimeTrust,
    spend: &mut dyn FnMut() -> bool,
) -> bool {
    !current_deltas(complete, issuer, roots, time, spend).is_empty()
}

/// Whether a later delta list, on top of its complete one, took this certificate off the list.
fn taken_back(
    held_by: &LoadedCrl,
    cert: &Cert,
    issuer: &Cert,
    roots: &EkRoots,
    time: TimeTrust,
    spend: &mut dyn FnMut() -> bool,
) -> bool {
    let complete = roots
        .crls()
        .filter(|list| !list.crl.is_delta() && list.crl.same_sequence(&held_by.crl));
    for complete in complete {
        let deltas = current_deltas(complete, issuer, roots, time, spend);
        let removed = |delta: &&Crl| {
            let entry = delta.entry(cert);
            delta.after(&held_by.crl) && entry.is_some_and(|entry| delta.removes(entry))
        };
        if deltas.iter().any(removed) && verified(complete, issuer, roots, spend) {
            return true;
        }
    }
    false
}

/// Why a delta list can be put on top of no list that is loaded; none where it can.
pub(super) fn without_base(delta: &Crl, roots: &EkRoots) -> Option<Reason> {
    let base = hex::encode(delta.base.as_ref()?);
    let complete: Vec<&Crl> = roots
        .crls()
        .map(|loaded| &loaded.crl)
        .filter(|crl| !crl.is_delta())
        .collect();
    if complete.iter().any(|crl| delta.continues(crl)) {
        return None;
    }
    let shown = |crl: &Crl| crl.number.as_ref().map_or("none".to_owned(), hex::encode);
    let same: Vec<String> = complete
        .iter()
        .filter(|crl| crl.same_sequence(delta))
        .map(|crl| shown(crl))
        .collect();
    let found = if same.is_empty() {
        "no complete list of that issuer, key and scope".to_owned()
    } else {
        format!("complete lists with number {}", same.join(", "))
    };
    Some(Reason::new(
        "ek.crl.delta",
        format!(
            "a complete list of {} with a number from {base} to below {}",
            delta.issuer_text(),
            shown(delta)
        ),
        found,
        "RFC 5280 section 5.2.4",
        "load the complete list that the delta list continues, or take out a delta list that is older than it",
    ))
}

fn in_time(crl: &Crl, time: TimeTrust) -> Result<(), String> {
    let Some(next) = crl.next_update else {
        return Err("no nextUpdate".into());
    };
    let Some((now, only_floor)) = time.secs() else {
        return Ok(());
    };
    if now > next {
        return Err(format!(
            "nextUpdate {}, now {}",
            rfc3339(next),
            rfc3339(now)
        ));
    }
    if now < crl.this_update && !only_floor {
        return Err(format!(
            "thisUpdate {}, now {}",
            rfc3339(crl.this_update),
            rfc3339(now)
        ));
    }
    Ok(())
}

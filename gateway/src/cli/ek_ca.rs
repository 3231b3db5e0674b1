//! `vestibule ek-ca`: the CAs that EK certificates may chain to. Fetches nothing from a network: it
//! says what is missing and where it is said to be.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

use gateway_core::admission::ek_store;
use gateway_core::appraisal::ek_record::{decode_der, encode_der};
use gateway_core::appraisal::x509::{self, Cert, What, rfc3339};
use gateway_core::identity::UnixMillis;
use gateway_core::limits::EK_CAS_PER_IMPORT_MAX;
use gateway_core::view::{
    EkCaExport, EkCaImported, EkCaList, EkCaOutcome, EkUnmatchedList, EkUnmatchedMachine, Expiry,
};
use hw::clock::Clock;
use serde_json::json;

use super::client::Client;
use super::machine::{plain, segment};
use super::{Desk, EkCaCommand, Exit, Failure, Output};
use crate::admin::types::{Done, EkCaImportRequest, WithdrawRequest};
use crate::ca::pem;
use crate::config::Config;
use crate::inventory::load_ek_roots;

/// Largest file that is imported: all vendors' certificates together have half of it as PEM.
const FILE_MAX_BYTES: u64 = 1 << 20;

/// `vestibule ek-ca ...`
pub(super) fn run(out: &Output, command: EkCaCommand) -> Result<Exit, Failure> {
    match command {
        EkCaCommand::List {
            config: Some(path), ..
        } => list_files(out, &Config::load(&path)?),
        EkCaCommand::List { config: None, desk } => {
            let list: EkCaList = Client::open(&desk)?.get("/v1/ek-ca")?;
            out.print(&list, || list_text(&list));
            Ok(Exit::Done)
        }
        EkCaCommand::Import {
            files,
            source,
            desk,
        } => import(out, &files, source, &desk),
        EkCaCommand::Remove { sha256, why, desk } => {
            let path = format!("/v1/ek-ca/{}/remove", segment(&sha256)?);
            let done: Done = Client::open(&desk)?.post(&path, &WithdrawRequest { why })?;
            out.print(&done, || format!("{sha256}: taken out"));
            Ok(Exit::Done)
        }
        EkCaCommand::Unmatched(desk) => {
            let list: EkUnmatchedList = Client::open(&desk)?.get("/v1/ek-ca/unmatched")?;
            out.print(&list, || unmatched_text(&list));
            Ok(Exit::Done)
        }
        EkCaCommand::Export { file, all, desk } => export(out, &file, all, &desk),
    }
}

/// The files alone, without a daemon.
fn list_files(out: &Output, config: &Config) -> Result<Exit, Failure> {
    let roots = load_ek_roots(&config.inventory)?;
    let list = ek_store::list(&roots, UnixMillis(Clock.now_ms()));
    out.print(&list, || list_text(&list));
    Ok(Exit::Done)
}

fn list_text(list: &EkCaList) -> String {
    let mut text = String::new();
    for cert in &list.certificates {
        let issuer = match cert.subject == cert.issuer {
            true => "itself",
            false => &cert.issuer,
        };
        let until = match cert.expiry {
            Expiry::Expired => "expired",
            Expiry::Soon => "within 90 days until",
            Expiry::Valid => "until",
        };
        let _ = writeln!(text, "{}", plain(&cert.subject));
        let _ = writeln!(
            text,
            "  {}, issued by {}, {until} {}",
            cert.role,
            plain(issuer),
            cert.not_after
        );
        let from = match (&cert.imported, &cert.file) {
            (Some(imported), _) => plain(imported),
            (None, Some(file)) => format!("file {file}"),
            (None, None) => "nowhere".to_owned(),
        };
        let _ = writeln!(text, "  sha256 {}, {from}", cert.sha256);
        for note in &cert.notes {
            let _ = writeln!(text, "  note: {}", plain(note));
        }
    }
    for crl in &list.crls {
        let next = crl.next_update.as_deref().unwrap_or("(none)");
        let word = if crl.stale { "stale since" } else { "next" };
        let _ = writeln!(text, "revocation list of {}", plain(&crl.issuer));
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
        text.push_str("no EK roots (vestibule ek-ca import, or inventory.ek_roots_dir)\n");
    }
    text
}

fn import(
    out: &Output,
    files: &[PathBuf],
    source: Option<String>,
    desk: &Desk,
) -> Result<Exit, Failure> {
    let mut found = BTreeSet::new();
    for file in files {
        certificates_of(file, &mut found)?;
    }
    let source = source.unwrap_or_else(|| source_of(files));
    let client = Client::open(desk)?;
    let mut all = EkCaImported {
        results: Vec::new(),
        judged_again: 0,
    };
    for chunk in issuers_first(found).chunks(EK_CAS_PER_IMPORT_MAX) {
        let request = EkCaImportRequest {
            source: source.clone(),
            certificates: chunk.iter().map(|der| encode_der(der)).collect(),
        };
        let done: EkCaImported = client.post("/v1/ek-ca/import", &request)?;
        all.results.extend(done.results);
        all.judged_again = all.judged_again.max(done.judged_again);
    }
    out.print(&all, || imported_text(&all));
    let refused = |result: &gateway_core::view::EkCaResult| result.outcome == EkCaOutcome::Refused;
    match all.results.iter().any(refused) {
        true => Ok(Exit::Refused),
        false => Ok(Exit::Done),
    }
}

/// The certificates of a file. What else is in it is left out; what should be one and is damaged is not.
fn certificates_of(path: &Path, found: &mut BTreeSet<Vec<u8>>) -> Result<(), Failure> {
    let failure = |exit, why: String| Failure::told(exit, format!("{}: {why}", path.display()));
    let unreadable = |error: std::io::Error| failure(Exit::Usage, format!("cannot read: {error}"));
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(unreadable)?;
    file.take(FILE_MAX_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(unreadable)?;
    if bytes.len() as u64 > FILE_MAX_BYTES {
        let why = format!("ek_ca.size: expected at most {FILE_MAX_BYTES} bytes, found more");
        return Err(failure(Exit::Refused, why));
    }
    let mut any = false;
    for object in x509::contents(&bytes).objects {
        match object.what {
            What::Certificate => {
                any = true;
                found.insert(object.der.into_owned());
            }
            What::Damaged(error) => {
                let why = format!("ek_ca.encoding: at octet {}: {error}", object.offset);
                return Err(failure(Exit::Refused, why));
            }
            What::AttributeCertificate | What::Crl | What::Pkcs7 | What::Other(_) => {}
        }
    }
    match any {
        true => Ok(()),
        false => Err(failure(
            Exit::Refused,
            "ek_ca.encoding: expected certificates (PEM, DER, PKCS #7), found none".to_owned(),
        )),
    }
}

/// Issuers before what they issued, so that an intermediate is not said to lack a root that follows.
/// What cannot be read is for the appliance to refuse.
fn issuers_first(found: BTreeSet<Vec<u8>>) -> Vec<Vec<u8>> {
    let named = found.into_iter().map(|der| (Cert::read(&der).ok(), der));
    let (mut left, mut ordered): (Vec<_>, Vec<_>) =
        named.partition(|(cert, _)| cert.as_ref().is_some_and(|cert| !cert.self_issued()));
    loop {
        let subjects: BTreeSet<Vec<u8>> = left
            .iter()
            .filter_map(|(cert, _)| Some(cert.as_ref()?.subject.clone()))
            .collect();
        let waits = |cert: &Option<Cert>| {
            cert.as_ref()
                .is_some_and(|cert| subjects.contains(&cert.issuer))
        };
        let (later, next): (Vec<_>, Vec<_>) = left.into_iter().partition(|(cert, _)| waits(cert));
        let stuck = next.is_empty();
        ordered.extend(next);
        left = later;
        if stuck || left.is_empty() {
            ordered.extend(left);
            return ordered.into_iter().map(|(_, der)| der).collect();
        }
    }
}

fn source_of(files: &[PathBuf]) -> String {
    let names = files.iter().filter_map(|path| path.file_name());
    let names: Vec<String> = names.map(|name| plain(&name.to_string_lossy())).collect();
    let mut text = format!("file {}", names.join(", "));
    while text.len() > gateway_core::limits::OPERATOR_TEXT_MAX_BYTES {
        text.pop();
    }
    text
}

fn imported_text(all: &EkCaImported) -> String {
    let mut text = String::new();
    let mut counts = [0; 3];
    for result in &all.results {
        let (at, word) = match result.outcome {
            EkCaOutcome::Imported => (0, "imported"),
            EkCaOutcome::Known => (1, "known"),
            EkCaOutcome::Refused => (2, "refused"),
        };
        counts[at] += 1;
        let role = result.role.as_deref().unwrap_or("certificate");
        let subject = match result.subject.as_str() {
            "" => "without a subject",
            subject => subject,
        };
        let _ = writeln!(text, "{word} {role} {}", plain(subject));
        let _ = writeln!(text, "  sha256 {}", result.sha256);
        for note in &result.notes {
            let _ = writeln!(text, "  note: {}", plain(note));
        }
        if let Some(reason) = &result.reason {
            let _ = writeln!(text, "  {}", plain(&reason.to_string()));
        }
    }
    let [imported, known, refused] = counts;
    let _ = writeln!(
        text,
        "{imported} imported, {known} known before, {refused} refused; {} machines without a chain are judged again",
        all.judged_again
    );
    text
}

fn unmatched_text(list: &EkUnmatchedList) -> String {
    let mut text = String::new();
    for issuer in &list.unmatched {
        let _ = writeln!(text, "{}", plain(&issuer.issuer));
        if let Some(key) = &issuer.issuer_key {
            let _ = writeln!(text, "  key identifier {}", plain(key));
        }
        for url in &issuer.ca_issuers {
            let _ = writeln!(text, "  fetch elsewhere and import: {}", plain(url));
        }
        if issuer.ca_issuers.is_empty() {
            text.push_str("  no address of its certificate is said; ask the TPM's vendor\n");
        }
        for machine in &issuer.machines {
            let _ = writeln!(text, "  {}", waiting(machine));
        }
    }
    if list.dropped > 0 {
        let _ = writeln!(text, "{} older ones are not listed any more", list.dropped);
    }
    if text.is_empty() {
        text.push_str("every EK certificate that was shown has a chain\n");
    }
    text
}

fn waiting(machine: &EkUnmatchedMachine) -> String {
    let since = i64::try_from(machine.since.0 / 1000).unwrap_or(i64::MAX);
    let shown = if machine.proven { "" } else { " (shown only)" };
    let when = match machine.kept {
        true => "when the CA arrives",
        false => "at its next attestation",
    };
    let why = machine.reason.as_ref().map_or("", |reason| &reason.code);
    format!(
        "{} ({}), serial {}{shown}, since {}, {why}; judged again {when}",
        plain(&machine.machine.0),
        machine.state,
        machine.serial,
        rfc3339(since)
    )
}

fn export(out: &Output, file: &Path, all: bool, desk: &Desk) -> Result<Exit, Failure> {
    let path = if all {
        "/v1/ek-ca/export?all=true"
    } else {
        "/v1/ek-ca/export"
    };
    let export: EkCaExport = Client::open(desk)?.get(path)?;
    let text = bundle(&export)?;
    replace(file, text.as_bytes()).map_err(|error| {
        let text = format!("cannot write {}: {error}", file.display());
        Failure::told(Exit::Storage, text)
    })?;
    let value = json!({
        "file": file,
        "certificates": export.certificates.len(),
        "without": export.without,
        "skipped": export.skipped,
    });
    out.print(&value, || exported_text(file, &export));
    Ok(Exit::Done)
}

/// PEM blocks, each below one line about it. SPIRE reads the file with Go's `pem.Decode`, which skips
/// what stands between blocks.
fn bundle(export: &EkCaExport) -> Result<String, Failure> {
    let mut text = String::new();
    for ca in &export.certificates {
        let der = decode_der(&ca.der).ok_or_else(|| {
            Failure::told(
                Exit::Network,
                "the answer holds a certificate that is no base64",
            )
        })?;
        let _ = writeln!(text, "# {}, sha256 {}", plain(&ca.subject), ca.sha256);
        text.push_str(&pem("CERTIFICATE", &der));
    }
    Ok(text)
}

/// After a crash either the old or the new file is there: SPIRE may read it at any time.
fn replace(path: &Path, contents: &[u8]) -> std::io::Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    let mut file = File::create(&new)?;
    file.write_all(contents)?;
    file.sync_all()?;
    fs::rename(&new, path)
}

fn exported_text(file: &Path, export: &EkCaExport) -> String {
    let mut text = String::new();
    for ca in &export.certificates {
        let names: Vec<String> = ca.machines.iter().map(|id| plain(&id.0)).collect();
        let _ = writeln!(text, "{}", plain(&ca.subject));
        let _ = writeln!(
            text,
            "  sha256 {}, of {} admitted machines",
            ca.sha256,
            names.len()
        );
        if !ca.quirks.is_empty() {
            let ids = ca.quirks.join(" ");
            let _ = writeln!(
                text,
                "  note: its encoding is odd ({ids}); Go may refuse the whole file for it"
            );
        }
    }
    for machine in &export.without {
        let _ = writeln!(
            text,
            "without: {}: {}",
            plain(&machine.machine.0),
            plain(&machine.why)
        );
    }
    for ca in &export.skipped {
        let (subject, why) = (plain(&ca.subject), plain(&ca.why));
        let _ = writeln!(text, "skipped: {subject}, sha256 {}: {why}", ca.sha256);
    }
    let _ = writeln!(
        text,
        "{}: {} certificates; {} admitted machines have none in it",
        file.display(),
        export.certificates.len(),
        export.without.len()
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestCa;

    #[test]
    fn a_bundle_says_whose_certificate_follows_and_nothing_that_reads_as_one() {
        let ca = TestCa::new("Vendor\n-----BEGIN CERTIFICATE-----");
        let export = EkCaExport {
            certificates: vec![gateway_core::view::EkExportedCa {
                sha256: "ab".repeat(32),
                subject: "CN=Vendor\n-----BEGIN CERTIFICATE-----".to_owned(),
                der: encode_der(&ca.der),
                quirks: Vec::new(),
                machines: Vec::new(),
            }],
            without: Vec::new(),
            skipped: Vec::new(),
        };
        let text = bundle(&export).expect("base64");
        let begins = |line: &&str| line.starts_with("-----BEGIN");
        assert_eq!(text.lines().filter(begins).count(), 1, "{text}");
        let found = x509::contents(text.as_bytes());
        assert_eq!(found.objects.len(), 1);
        assert_eq!(found.objects[0].der.as_ref(), &ca.der[..]);
    }

    #[test]
    fn issuers_come_before_what_they_issued() {
        let ca = TestCa::new("root");
        let leaf = ca.client("leaf", None);
        let der = leaf.chain[0].to_vec();
        let found = BTreeSet::from([der.clone(), ca.der.to_vec(), vec![0]]);
        let ordered = issuers_first(found);
        assert_eq!(ordered.len(), 3);
        assert_eq!(ordered.last(), Some(&der));
    }
}

//! `vestibule machine`, `claims`, `image` and `status`: the admin API in words.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use gateway_core::admission::secret::SECRET_MAX_BYTES;
use gateway_core::view::{InstallView, MachineView, StatusView};
use serde_json::json;
use zeroize::Zeroizing;

use super::client::Client;
use super::{Desk, Exit, Failure, ImageCommand, MachineCommand, OneMachine, Output};
use crate::admin::types::{
    ApproveRequest, Done, FloorRequest, ImageList, InstallRequest, MachineList, NoFields,
    SealRequest, SealedSecret, Timeline, WithdrawRequest,
};
use crate::neighbours::NeighbourList;

/// Digits of a report digest that a person compares at least: 64 bits cannot be ground out.
const REPORT_DIGITS_MIN: usize = 16;

/// `vestibule machine ...`
pub(super) fn machine(out: &Output, command: MachineCommand) -> Result<Exit, Failure> {
    match command {
        MachineCommand::List(desk) => {
            let list: MachineList = Client::open(&desk)?.get("/v1/machines")?;
            out.print(&list, || table(&list.machines));
            Ok(Exit::Done)
        }
        MachineCommand::Show(one) => show(out, &one),
        MachineCommand::Approve {
            one,
            report,
            compared,
            class,
            disk_serial,
            port,
        } => {
            let body = ApproveRequest {
                report_sha256: seen_report(&one, report.as_deref())?,
                compared,
                class,
                disk_serial,
                port,
            };
            let path = format!("/v1/claims/{}/approve", segment(&one.machine)?);
            act(out, &one, &path, &body, "approved")
        }
        MachineCommand::Withdraw { one, why } => {
            let path = path_of(&one, "withdraw")?;
            act(out, &one, &path, &WithdrawRequest { why }, "withdrawn")
        }
        MachineCommand::Seal {
            one,
            secret_file,
            kind,
            pcr,
        } => seal(out, &one, &secret_file, kind, pcr),
        MachineCommand::Cordon(one) => bare(out, &one, "cordon", "cordoned"),
        MachineCommand::Uncordon(one) => bare(out, &one, "uncordon", "uncordoned"),
        MachineCommand::Installed(one) => bare(out, &one, "installed", "marked installed"),
        MachineCommand::Retire(one) => bare(out, &one, "retire", "retired"),
        MachineCommand::Install {
            one,
            image,
            version,
            disk,
            again,
        } => {
            let body = InstallRequest {
                image,
                version,
                disk_serial: disk,
                again,
            };
            let path = path_of(&one, "install")?;
            act(
                out,
                &one,
                &path,
                &body,
                "installs at its next boot from the network",
            )
        }
        MachineCommand::InstallRetry(one) => bare(
            out,
            &one,
            "install-retry",
            "installs at its next boot from the network",
        ),
        MachineCommand::InstallCancel { one, why } => {
            let path = path_of(&one, "install-cancel")?;
            act(
                out,
                &one,
                &path,
                &WithdrawRequest { why },
                "its installation is over",
            )
        }
    }
}

/// Seals the content of a file to the machine's EK and prints the line.
fn seal(
    out: &Output,
    one: &OneMachine,
    file: &Path,
    kind: String,
    pcr: bool,
) -> Result<Exit, Failure> {
    let told = |text: String| Failure::told(Exit::Usage, text);
    let unreadable = |error| told(format!("cannot read {}: {error}", file.display()));
    let mut secret = Zeroizing::new(Vec::with_capacity(SECRET_MAX_BYTES + 1));
    File::open(file)
        .map_err(unreadable)?
        .take(SECRET_MAX_BYTES as u64 + 1)
        .read_to_end(&mut secret)
        .map_err(unreadable)?;
    if !(1..=SECRET_MAX_BYTES).contains(&secret.len()) {
        return Err(told(format!(
            "{}: expected 1 to {SECRET_MAX_BYTES} bytes, found {}; encrypt what is larger, and seal the key",
            file.display(),
            if secret.is_empty() { "none" } else { "more" }
        )));
    }
    let body = SealRequest {
        kind,
        secret: STANDARD.encode(&secret),
        pcr,
    };
    let sealed: SealedSecret = Client::open(&one.desk)?.post(&path_of(one, "seal")?, &body)?;
    out.print(&sealed, || sealed.bundle.clone());
    Ok(Exit::Done)
}

/// The digest that the claim shows now, if it is the one that the owner compared.
fn seen_report(one: &OneMachine, seen: Option<&str>) -> Result<String, Failure> {
    let path = format!("/v1/machines/{}", segment(&one.machine)?);
    let view: MachineView = Client::open(&one.desk)?.get(&path)?;
    let shown = view.report_sha256.unwrap_or_default();
    let Some(seen) = seen else {
        return Ok(shown);
    };
    let seen = seen.to_ascii_lowercase();
    if seen.len() >= REPORT_DIGITS_MIN && shown.starts_with(&seen) {
        return Ok(shown);
    }
    let text = format!(
        "claim.changed: expected report {seen} ({REPORT_DIGITS_MIN} digits or more), found {}; \
         look at the claim again and compare it with the machine's console",
        if shown.is_empty() { "no claim" } else { &shown }
    );
    Err(Failure::told(Exit::Refused, text))
}

/// `vestibule claims`
pub(super) fn claims(out: &Output, desk: &Desk) -> Result<Exit, Failure> {
    let list: MachineList = Client::open(desk)?.get("/v1/claims")?;
    out.print(&list, || {
        let mut text = String::new();
        for claim in &list.machines {
            let _ = writeln!(text, "{}", claim.machine);
            let serial = claim.serial.as_deref().unwrap_or("none");
            let assurance = claim.assurance.as_deref().unwrap_or("none");
            let report = claim.report_sha256.as_deref().unwrap_or("none");
            let _ = writeln!(text, "  serial     {}", plain(serial));
            let _ = writeln!(text, "  assurance  {assurance}");
            for name in &claim.ek_names {
                let _ = writeln!(text, "  EK         {name}");
            }
            let _ = writeln!(text, "  report     {report}");
        }
        if text.is_empty() {
            text.push_str("no pending claims\n");
        }
        text
    });
    Ok(Exit::Done)
}

/// `vestibule status`
pub(super) fn status(out: &Output, desk: &Desk) -> Result<Exit, Failure> {
    let client = Client::open(desk)?;
    let status: StatusView = client.get("/v1/status")?;
    let neighbours: NeighbourList = client.get("/v1/neighbours")?;
    out.print(&status, || {
        let mut text = format!(
            "appliance       {}\nseal            {}\nledger entries  {}\nleases          {}\nsessions        {}\n",
            status.appliance, status.seal, status.ledger_entries, status.leases, status.sessions
        );
        for (state, count) in &status.machines {
            let _ = writeln!(text, "machines        {count} {state}");
        }
        for (code, count) in &status.refusals {
            let _ = writeln!(text, "refusals        {count} {code}");
        }
        if status.ek_unmatched > 0 {
            let waiting = status.ek_unmatched;
            let _ = writeln!(text, "EK unmatched    {waiting} machines (vestibule ek-ca unmatched)");
        }
        for line in super::neighbours::lines(&neighbours) {
            let _ = writeln!(text, "neighbour       {line}");
        }
        text
    });
    Ok(Exit::Done)
}

/// `vestibule image ...`
pub(super) fn image(out: &Output, command: ImageCommand) -> Result<Exit, Failure> {
    match command {
        ImageCommand::List(desk) => {
            let list: ImageList = Client::open(&desk)?.get("/v1/images")?;
            out.print(&list, || {
                let mut text = String::from("NAME VERSION FLOOR ARCH SHA256\n");
                for image in &list.images {
                    let artefact = &image.artefact;
                    let withdrawn = if image.withdrawn { " withdrawn" } else { "" };
                    let _ = writeln!(
                        text,
                        "{} {} {} {} {}{withdrawn}",
                        artefact.name,
                        artefact.version,
                        image.floor,
                        artefact.arch,
                        artefact.sha256
                    );
                }
                for disk in &list.disks {
                    let image = &disk.image;
                    let withdrawn = if disk.withdrawn { " withdrawn" } else { "" };
                    let _ = writeln!(
                        text,
                        "{} {} {} disk {}{withdrawn}",
                        image.name, image.version, disk.floor, image.sha256
                    );
                }
                text
            });
            Ok(Exit::Done)
        }
        ImageCommand::Floor { name, floor, desk } => {
            let path = format!("/v1/images/{}/floor", segment(&name)?);
            let done: Done = Client::open(&desk)?.post(&path, &FloorRequest { floor })?;
            out.print(&done, || format!("{name}: floor {floor}"));
            Ok(Exit::Done)
        }
        ImageCommand::Withdraw { sha256, desk } => {
            let path = format!("/v1/images/{}/withdraw", segment(&sha256)?);
            let done: Done = Client::open(&desk)?.post(&path, &NoFields {})?;
            out.print(&done, || format!("{sha256}: withdrawn"));
            Ok(Exit::Done)
        }
    }
}

fn show(out: &Output, one: &OneMachine) -> Result<Exit, Failure> {
    let client = Client::open(&one.desk)?;
    let path = format!("/v1/machines/{}", segment(&one.machine)?);
    let view: MachineView = client.get(&path)?;
    let timeline: Timeline = client.get(&format!("{path}/timeline"))?;
    let value = json!({ "machine": view, "timeline": timeline.timeline });
    out.print(&value, || {
        let mut text = String::new();
        for (name, value) in [
            ("machine", Some(view.machine.0.as_str())),
            ("state", Some(view.state.as_str())),
            ("boots", Some(view.boot.as_str())),
            ("class", view.class.as_deref()),
            ("serial", view.serial.as_deref()),
            ("disk", view.disk_serial.as_deref()),
            ("port", view.port.as_deref()),
            ("assurance", view.assurance.as_deref()),
            ("report", view.report_sha256.as_deref()),
        ] {
            if let Some(value) = value {
                let _ = writeln!(text, "{name:<10} {}", plain(value));
            }
        }
        if let Some(install) = &view.install {
            let _ = writeln!(text, "{:<10} {}", "install", plain(&install_line(install)));
            if let Some(reason) = &install.reason {
                let _ = writeln!(text, "{:<10} {}", "ended", plain(&reason.to_string()));
            }
        }
        for name in &view.ek_names {
            let _ = writeln!(text, "{:<10} {name}", "EK");
        }
        for cert in &view.ek_certificates {
            let standing = match (cert.chain, cert.kept) {
                (true, _) => "has a chain",
                (false, true) => "issuer unknown, judged again when it arrives",
                (false, false) => "issuer unknown, judged again at the next attestation",
            };
            let issuer = plain(&cert.issuer);
            let _ = writeln!(text, "{:<10} by {issuer}: {standing}", "EK cert");
        }
        for mac in &view.macs {
            let _ = writeln!(text, "{:<10} {mac}", "MAC");
        }
        for reason in &view.reasons {
            let _ = writeln!(text, "{:<10} {}", "refused", plain(&reason.to_string()));
        }
        for entry in &timeline.timeline {
            let seq = entry.seq.map(|seq| format!(" {seq}")).unwrap_or_default();
            let _ = writeln!(
                text,
                "{} {}{seq} {}",
                entry.at.0,
                entry.source,
                plain(&entry.text)
            );
            for reason in &entry.reasons {
                let _ = writeln!(text, "    {}", plain(&reason.to_string()));
            }
        }
        text
    });
    Ok(Exit::Done)
}

/// How far an installation is, in one line.
fn install_line(install: &InstallView) -> String {
    let stands = match (&install.outcome, &install.waits_for) {
        (Some(outcome), _) => outcome.clone(),
        (None, Some(step)) => format!("waits for {step} since {}", install.moved.0),
        (None, None) => "unknown".to_owned(),
    };
    format!(
        "{} {} to disk {}: {stands}, {} boots, run {}",
        install.image, install.version, install.disk_serial, install.boots, install.run
    )
}

fn bare(out: &Output, one: &OneMachine, act_name: &str, done: &str) -> Result<Exit, Failure> {
    let path = path_of(one, act_name)?;
    act(out, one, &path, &NoFields {}, done)
}

fn act<B: serde::Serialize>(
    out: &Output,
    one: &OneMachine,
    path: &str,
    body: &B,
    word: &str,
) -> Result<Exit, Failure> {
    let done: Done = Client::open(&one.desk)?.post(path, body)?;
    out.print(&done, || format!("{}: {word}", one.machine));
    Ok(Exit::Done)
}

fn path_of(one: &OneMachine, act: &str) -> Result<String, Failure> {
    Ok(format!("/v1/machines/{}/{act}", segment(&one.machine)?))
}

/// A name as one URL segment. Names that would need encoding are no names of ours.
pub(super) fn segment(name: &str) -> Result<&str, Failure> {
    let usable = !name.is_empty()
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
    if usable {
        Ok(name)
    } else {
        let text = format!("expected a name of a-z 0-9 . _ -, found {name:?}");
        Err(Failure::told(Exit::Usage, text))
    }
}

/// Text a machine has claimed must not move the operator's cursor.
pub(super) fn plain(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}

fn table(machines: &[MachineView]) -> String {
    let mut text = format!(
        "{:<24} {:<11} {:<10} {:<18} {}\n",
        "MACHINE", "STATE", "BOOTS", "MAC", "LAST REFUSAL"
    );
    for machine in machines {
        let mac = machine.macs.first().map(ToString::to_string);
        let code = machine.reasons.first().map_or("", |reason| &reason.code);
        let _ = writeln!(
            text,
            "{:<24} {:<11} {:<10} {:<18} {code}",
            machine.machine.0,
            machine.state,
            machine.boot,
            mac.unwrap_or_default()
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_names_that_are_no_url_segment() {
        assert!(segment("node-1.rack_2").is_ok());
        for wrong in ["", "a/b", "a b", "..%2f", "\u{e9}"] {
            assert_eq!(segment(wrong).expect_err(wrong).exit, Exit::Usage);
        }
    }

    #[test]
    fn claimed_text_cannot_write_to_the_terminal() {
        assert_eq!(plain("a\u{1b}[2Jb\n"), "a\u{fffd}[2Jb\u{fffd}");
    }
}

//! `vestibule inspect`: files of the field through the daemon's own readers.

use std::fs::File;
use std::io::{BufWriter, Read as _, Write as _};
use std::path::Path;

use gateway_core::appraisal::x509::FILE_MAX_BYTES;

use super::{EventLogArgs, Exit, Failure, InspectCommand, QuoteArg};
use crate::inspect::{FILE_LEN_MAX, Protocol, QUOTE_LEN_MAX, Source, eventlog, inspect, quote};

/// Prints one JSON object for each frame, or one for the event log, with or without `--json`.
///
/// Exit code 0 when the whole file was read, whatever is in it; 1 when the file is another one or
/// damaged (what came before was printed); 2 when it cannot be opened.
pub(super) fn run(command: &InspectCommand) -> Result<Exit, Failure> {
    let (protocol, path) = match command {
        InspectCommand::Dhcp(args) => (Protocol::Dhcp, &args.file),
        InspectCommand::Dhcp6(args) => (Protocol::Dhcp6, &args.file),
        InspectCommand::Tftp(args) => (Protocol::Tftp, &args.file),
        InspectCommand::Lldp(args) => (Protocol::Lldp, &args.file),
        InspectCommand::Quote(args) => return run_quote(args),
        InspectCommand::Eventlog(args) => return event_log(args),
        InspectCommand::Ek(args) => return ek(&args.file),
    };
    let file = read(path, FILE_LEN_MAX)?;
    let mut out = BufWriter::new(std::io::stdout().lock());
    // A closed pipe is not an error of ours; it ends the reading.
    let result = inspect(protocol, &file, &mut |line| writeln!(out, "{line}").is_ok());
    let _ = out.flush();
    match result {
        Ok(()) => Ok(Exit::Done),
        Err(error) => Err(Failure::told(
            Exit::Refused,
            format!("{}: {}", path.display(), error.explain()),
        )),
    }
}

/// Prints one JSON object for all files of the attestation.
///
/// Exit code 0 when an attestation was read, whatever its signature is like; 1 when there is none; 2
/// when a file cannot be opened.
fn run_quote(args: &QuoteArg) -> Result<Exit, Failure> {
    let nonce = match &args.nonce {
        None => None,
        Some(text) => Some(hex::decode(text).map_err(|error| {
            Failure::told(
                Exit::Usage,
                format!("--nonce: expected hex, found {text:?}: {error}"),
            )
        })?),
    };
    let mut files = Vec::new();
    for path in std::iter::once(&args.file).chain(&args.with) {
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        files.push((name, read(path, QUOTE_LEN_MAX)?));
    }
    let sources: Vec<Source<'_>> = files
        .iter()
        .map(|(name, octets)| Source { name, octets })
        .collect();
    let (line, read) = quote(&sources, nonce.as_deref());
    // A closed pipe is not an error of ours.
    let _ = writeln!(std::io::stdout(), "{line}");
    Ok(if read { Exit::Done } else { Exit::Refused })
}

fn event_log(args: &EventLogArgs) -> Result<Exit, Failure> {
    let file = read(&args.file, eventlog::FILE_LEN_MAX)?;
    let seen = eventlog::inspect(&file, args.events);
    // A closed pipe is not an error of ours.
    let _ = writeln!(std::io::stdout().lock(), "{}", seen.line);
    match seen.damage {
        None => Ok(Exit::Done),
        Some(damage) => Err(Failure::told(
            Exit::Refused,
            format!("{}: {damage}", args.file.display()),
        )),
    }
}

/// Prints one JSON object. Exit code 0 when the file holds certificates and all of them were read;
/// 1 when it holds none or one cannot be read (the object says why); 2 when it cannot be opened.
fn ek(path: &Path) -> Result<Exit, Failure> {
    // One byte more than is looked at, so that a longer file is seen to be one.
    let file = read_at_most(path, FILE_MAX_BYTES as u64 + 1)?;
    let seen = crate::inspect::ek::inspect(&file);
    let line = serde_json::to_string(&seen)
        .map_err(|error| Failure::told(Exit::Refused, error.to_string()))?;
    let _ = writeln!(std::io::stdout().lock(), "{line}");
    Ok(if seen.whole() {
        Exit::Done
    } else {
        Exit::Refused
    })
}

/// At most this much; more is refused.
pub(super) fn read(path: &Path, max: u64) -> Result<Vec<u8>, Failure> {
    let bytes = read_at_most(path, max + 1)?;
    if bytes.len() as u64 > max {
        return Err(Failure::told(
            Exit::Refused,
            format!(
                "{}: more than {max} bytes; split a capture, or filter it with tcpdump -r",
                path.display()
            ),
        ));
    }
    Ok(bytes)
}

/// The file to its end, or this much of it: files of the kernel say that they are empty and come in
/// pieces.
fn read_at_most(path: &Path, max: u64) -> Result<Vec<u8>, Failure> {
    let cannot = |error: std::io::Error| {
        Failure::told(
            Exit::Usage,
            format!("cannot read {}: {error}", path.display()),
        )
    };
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(cannot)?;
    file.take(max).read_to_end(&mut bytes).map_err(cannot)?;
    Ok(bytes)
}

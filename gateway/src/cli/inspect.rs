//! `vestibule inspect`: a capture file through the daemon's own readers.

use std::fs::File;
use std::io::{BufWriter, Read as _, Write as _};
use std::path::Path;

use super::{Exit, Failure, InspectCommand};
use crate::inspect::{FILE_LEN_MAX, Protocol, inspect};

/// Prints one JSON object for each frame, with or without `--json`.
///
/// Exit code 0 when the whole file was read, whatever the frames are like; 1 when the file is no
/// capture or is damaged (what came before was printed); 2 when it cannot be opened.
pub(super) fn run(command: &InspectCommand) -> Result<Exit, Failure> {
    let (protocol, path) = match command {
        InspectCommand::Dhcp(args) => (Protocol::Dhcp, &args.file),
        InspectCommand::Dhcp6(args) => (Protocol::Dhcp6, &args.file),
        InspectCommand::Tftp(args) => (Protocol::Tftp, &args.file),
        InspectCommand::Lldp(args) => (Protocol::Lldp, &args.file),
    };
    let file = read(path)?;
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

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let cannot = |error: std::io::Error| {
        Failure::told(
            Exit::Usage,
            format!("cannot read {}: {error}", path.display()),
        )
    };
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(cannot)?;
    file.take(FILE_LEN_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(cannot)?;
    if bytes.len() as u64 > FILE_LEN_MAX {
        return Err(Failure::told(
            Exit::Refused,
            format!(
                "{}: more than {FILE_LEN_MAX} bytes; split it, or filter it with tcpdump -r",
                path.display()
            ),
        ));
    }
    Ok(bytes)
}

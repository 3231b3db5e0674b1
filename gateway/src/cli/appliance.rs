//! Commands that open the appliance itself: `serve`, `claim --local`, `ca export`.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use gateway_core::identity::UnixMillis;
use gateway_core::issuer::AdminRole;
use gateway_core::limits::OPERATOR_TEXT_MAX_BYTES;
use gateway_core::record::{Act, OperatorAct, Record};
use hw::clock::Clock;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use zeroize::Zeroizing;

use super::{Exit, Failure, Output, exit_of_io};
use crate::appliance::{Adoption, Appliance, ApplianceError, seal_name};
use crate::ca;
use crate::config::Config;
use crate::driver::DriverError;
use crate::serve::{ServeError, serve};
use crate::shell::dhcp::DhcpError;
use crate::shell::dhcp6::Dhcp6Error;
use crate::telemetry;

/// `vestibule serve`
pub(super) fn run_daemon(config: Config) -> Result<Exit, Failure> {
    telemetry::init(&config.log).map_err(|error| Failure::new(Exit::Usage, &error))?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(Exit::Privilege, &error))?;
    runtime.block_on(async {
        let cancel = CancellationToken::new();
        let stop = cancel.clone();
        let listen = |kind| signal(kind).map_err(|error| Failure::new(Exit::Privilege, &error));
        let (mut term, mut int) = (
            listen(SignalKind::terminate())?,
            listen(SignalKind::interrupt())?,
        );
        tokio::spawn(async move {
            tokio::select! {
                _ = term.recv() => tracing::info!("SIGTERM: stopping"),
                _ = int.recv() => tracing::info!("SIGINT: stopping"),
            }
            stop.cancel();
        });
        serve(config, cancel)
            .await
            .map(|()| Exit::Done)
            .map_err(Failure::from)
    })
}

/// `vestibule claim --local`: makes the owner's certificate, once. Whoever can run this can read
/// the state folder; the claim says who owns the appliance, not who may.
pub(super) fn claim(out: &Output, config: &Config, folder: &Path) -> Result<Exit, Failure> {
    let mut appliance = Appliance::open(config)?;
    if appliance.is_claimed() {
        return Err(Failure::told(
            Exit::Refused,
            "claim.done: expected an appliance without an owner, found one that was claimed; the \
             owner's key was handed out then and is kept nowhere (docs/OPERATIONS.md, claim)",
        ));
    }
    let now = UnixMillis(Clock.now_ms());
    let owner = appliance
        .ca
        .admin_client("owner", AdminRole::Owner, now)
        .map_err(ApplianceError::Ca)?;
    let update_key = Zeroizing::new(
        appliance
            .update_key()?
            .map_or_else(String::new, hex::encode),
    );
    let url = format!(
        "https://{}:{}\n",
        host(config),
        config.management.admin_port
    );
    // In this order: what is signed is on record before it is handed out, the files are on disk
    // before the claim is on record, and the update key is forgotten last. A full disk or a power
    // cut anywhere costs no claim: until it is on record, it can be made again.
    let mut signed = appliance.records.clone();
    signed.push(Record::Certificate(owner.record.clone()));
    appliance.commit_anchored(now, signed)?;
    write_private(
        folder,
        &[
            ("owner.pem", owner.cert_pem.as_bytes()),
            ("owner.key", owner.key_pem.as_bytes()),
            ("update-key.hex", update_key.as_bytes()),
            ("url", url.as_bytes()),
        ],
    )?;
    let act = Record::Operator(OperatorAct {
        by: "local console".to_owned(),
        role: "owner".to_owned(),
        act: Act::ClaimAppliance,
    });
    appliance.commit_anchored(now, vec![act])?;
    appliance.forget_update_key()?;
    let exported = ca::export(&config.appliance.state_dir, folder).map_err(ApplianceError::Ca)?;
    let value = json!({
        "owner": folder.join("owner.pem"),
        "url": url.trim(),
        "seal": seal_name(appliance.seal),
        "exported": exported,
    });
    out.print(&value, || {
        format!(
            "claimed; owner's certificate and key: {}\nadmin endpoint: {}seal: {}\n\
             keep update-key.hex offline: it approves new firmware and images of this appliance\n",
            folder.join("owner.pem").display(),
            url,
            seal_name(appliance.seal)
        )
    });
    Ok(Exit::Done)
}

/// `vestibule ca export`
pub(super) fn export(out: &Output, config: &Config, folder: &Path) -> Result<Exit, Failure> {
    let files = ca::export(&config.appliance.state_dir, folder).map_err(ApplianceError::Ca)?;
    out.print(&json!({ "exported": files }), || {
        files
            .iter()
            .map(|file| format!("{}\n", file.display()))
            .collect()
    });
    Ok(Exit::Done)
}

/// `vestibule ledger adopt`: the owner takes a ledger that is behind the counter for the right one.
pub(super) fn adopt(
    out: &Output,
    config: &Config,
    update_key: &Path,
    why: &str,
) -> Result<Exit, Failure> {
    let update_key = super::seal::read_key(update_key)?;
    let fits = 1..=OPERATOR_TEXT_MAX_BYTES;
    if !fits.contains(&why.len()) || why.chars().any(char::is_control) {
        return Err(Failure::told(
            Exit::Usage,
            format!(
                "--why: expected 1 to {OPERATOR_TEXT_MAX_BYTES} bytes without control characters, found {} bytes",
                why.len()
            ),
        ));
    }
    let adoption = Adoption {
        update_key: &update_key,
        why,
    };
    let mut appliance = Appliance::adopt(config, &adoption)?;
    let (before, records) = (appliance.counter, appliance.records.clone());
    appliance.commit_anchored(UnixMillis(Clock.now_ms()), records)?;
    let value = json!({ "counter": appliance.counter, "was": before });
    out.print(&value, || {
        format!(
            "adopted: the ledger is anchored at {}; what was withdrawn or raised after this copy was made \
             must be done again\n",
            appliance.counter
        )
    });
    Ok(Exit::Done)
}

fn host(config: &Config) -> String {
    match config.management.address {
        std::net::IpAddr::V4(address) => address.to_string(),
        std::net::IpAddr::V6(address) => format!("[{address}]"),
    }
}

/// Writes new files that only their owner may read, all or none of them, on disk when this returns.
fn write_private(folder: &Path, files: &[(&str, &[u8])]) -> Result<(), Failure> {
    std::fs::create_dir_all(folder).map_err(|error| cannot_write(folder, &error))?;
    let mut made = Vec::new();
    let written = files.iter().try_for_each(|(name, content)| {
        let path = folder.join(name);
        let failed = |error| cannot_write(&path, &error);
        let mut file = std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .map_err(failed)?;
        made.push(path.clone());
        file.write_all(content)
            .and_then(|()| file.sync_all())
            .map_err(failed)
    });
    let written = written.and_then(|()| {
        // The names too.
        std::fs::File::open(folder)
            .and_then(|folder| folder.sync_all())
            .map_err(|error| cannot_write(folder, &error))
    });
    if written.is_err() {
        for path in made {
            // The first error is the one to report; what is left is found by the next claim.
            let _ = std::fs::remove_file(path);
        }
    }
    written
}

fn cannot_write(path: &Path, error: &std::io::Error) -> Failure {
    Failure::told(
        Exit::Storage,
        format!("cannot write {}: {error}", path.display()),
    )
}

impl From<ApplianceError> for Failure {
    fn from(error: ApplianceError) -> Self {
        let exit = match error {
            ApplianceError::Store { .. }
            | ApplianceError::Ca(_)
            | ApplianceError::Anchor { .. }
            | ApplianceError::Commit(_) => Exit::Storage,
            ApplianceError::Adopt(_) => Exit::Refused,
            ApplianceError::SealRecord { .. } | ApplianceError::Tpm { .. } => Exit::Tpm,
        };
        Self::new(exit, &error)
    }
}

impl From<ServeError> for Failure {
    fn from(error: ServeError) -> Self {
        match error {
            ServeError::Appliance(error) => error.into(),
            ServeError::Declared(error) => error.into(),
            ServeError::Image(error) => error.into(),
            ServeError::Bind(error) => error.into(),
            ServeError::Gate(_) => Self::new(Exit::Privilege, &error),
            ServeError::Dhcp(_) | ServeError::Talos(_) => Self::new(Exit::Usage, &error),
            ServeError::DhcpSocket(DhcpError::Bind { ref source, .. })
            | ServeError::Dhcp6Socket(Dhcp6Error::Bind { ref source, .. })
            | ServeError::Tftp { ref source, .. } => Self::new(exit_of_io(source), &error),
            ServeError::DhcpSocket(DhcpError::Interface { .. })
            | ServeError::Dhcp6Socket(Dhcp6Error::Interface { .. })
            | ServeError::Ra(_) => Self::new(Exit::Privilege, &error),
            ServeError::Tls(_) | ServeError::Ca(_) => Self::new(Exit::Storage, &error),
            ServeError::Driver(DriverError::Commit(_)) => Self::new(Exit::Storage, &error),
            ServeError::Task(_) => Self::new(Exit::Refused, &error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_owners_files_are_private_and_all_or_none() {
        let dir = tempfile::tempdir().expect("folder");
        let folder = dir.path().join("owner");
        let files: [(&str, &[u8]); 2] = [("owner.pem", b"cert"), ("owner.key", b"key")];
        write_private(&folder, &files).expect("written");
        for (name, content) in files {
            let path = folder.join(name);
            let mode = std::fs::metadata(&path).expect("file").permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{name}");
            assert_eq!(std::fs::read(&path).expect("file"), content);
        }
        // One is there already: nothing of the others stays, and it is not touched.
        std::fs::remove_file(folder.join("owner.pem")).expect("removed");
        let again: [(&str, &[u8]); 2] = [("owner.pem", b"other"), ("owner.key", b"other")];
        let failure = write_private(&folder, &again).expect_err("exists");
        assert_eq!(failure.exit, Exit::Storage);
        assert!(!folder.join("owner.pem").exists());
        assert_eq!(
            std::fs::read(folder.join("owner.key")).expect("file"),
            b"key"
        );
    }
}

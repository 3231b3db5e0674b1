//! `vestibule-attester`: `/init` of the signed image, and a command for a normal host.

#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use attest_wire::v1::handover::Ability;
use attester::{AttestError, DevIdAuth, Gateway, Node, Options, Outcome};
use attester::{console, gather, init, output};
use clap::{Args, Parser, Subcommand, ValueEnum};
use hw::tpm::{DevIdKind, NodeDevice, TpmError};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

/// Proves this machine's TPM to a Vestibule gateway.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// One attempt; writes what an admission brings.
    Attest(Attest),
}

#[derive(Args)]
struct Attest {
    /// The TPM, `device:/dev/tpmrm0` or `swtpm:host=127.0.0.1,port=2321`.
    #[arg(long, default_value = "device:/dev/tpmrm0")]
    tcti: String,
    /// The gateway's attest endpoint, address and port.
    #[arg(long)]
    gateway: SocketAddr,
    /// PEM file of the pinned infra CA; may be given twice.
    #[arg(long, required = true)]
    anchor: Vec<PathBuf>,
    /// The firmware's event log.
    #[arg(long, default_value = gather::EVENT_LOG)]
    event_log: PathBuf,
    /// Where the list of PCR 15 extends of this boot is kept; must not survive a boot.
    #[arg(long, default_value = "/run/vestibule-pcr15")]
    extends: PathBuf,
    /// Folder for chain.pem, devid.pub, devid.priv, receipt.json and payloads/.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Key type of the DevID.
    #[arg(long, value_enum, default_value = "ecc-p256")]
    devid: DevIdArg,
    /// Protect the DevID by a random authValue, written to devid.auth.
    #[arg(long)]
    devid_auth: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum DevIdArg {
    EccP256,
    Rsa2048,
}

/// Exit codes (docs/OPERATIONS.md).
mod exit {
    pub const DONE: u8 = 0;
    pub const REFUSED: u8 = 1;
    pub const USAGE: u8 = 2;
    pub const TPM: u8 = 4;
    pub const STORAGE: u8 = 5;
    pub const NETWORK: u8 = 6;
}

fn main() -> ExitCode {
    hw::tpm::silence_tss_log();
    if std::process::id() == 1 {
        init::run();
    }
    let Command::Attest(arguments) = Cli::parse().command;
    match attest(&arguments) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("vestibule-attester: {error:#}");
            if is_absent(&error) {
                eprintln!("vestibule-attester: {}", console::WITHOUT_TPM);
            }
            ExitCode::from(code_of(&error))
        }
    }
}

fn attest(arguments: &Attest) -> anyhow::Result<u8> {
    let mut anchors = Vec::new();
    for file in &arguments.anchor {
        let read = || -> Result<Vec<_>, rustls::pki_types::pem::Error> {
            CertificateDer::pem_file_iter(file)?.collect()
        };
        anchors.extend(read().with_context(|| format!("anchor {}", file.display()))?);
    }
    let options = Options {
        devid_kind: match arguments.devid {
            DevIdArg::EccP256 => DevIdKind::EccP256,
            DevIdArg::Rsa2048 => DevIdKind::Rsa2048,
        },
        devid_auth: if arguments.devid_auth {
            DevIdAuth::Random
        } else {
            DevIdAuth::None
        },
        extends_file: Some(arguments.extends.clone()),
        can: vec![Ability::Payloads],
    };
    let gateway = Gateway {
        addr: arguments.gateway,
        anchors,
    };
    let facts = gather::gather(&arguments.event_log, Vec::new());
    let mut tpm = NodeDevice::open(&arguments.tcti).map_err(AttestError::from)?;
    let mut node = Node::prepare(&mut tpm, &options)?;
    let outcome = node.attest(&mut tpm, &facts, &gateway, &mut |step, detail| {
        console::say(step.as_str(), detail);
    })?;
    match outcome {
        Outcome::Admitted {
            chain,
            receipt,
            devid,
            payloads,
            grant: _,
            correlation,
        } => {
            console::say(
                "issue",
                &format!("LDevID for {}", output::subject_cn(&chain)),
            );
            console::say(
                "issue",
                &format!("receipt {}", output::receipt_digest(&receipt)),
            );
            console::say("issue", &format!("ADMITTED, correlation {correlation}"));
            if let Some(folder) = &arguments.out {
                output::write(folder, &chain, &devid, &receipt)
                    .and_then(|()| output::write_payloads(folder, &payloads))
                    .with_context(|| format!("folder {}", folder.display()))?;
            }
            Ok(exit::DONE)
        }
        Outcome::Pending {
            code,
            hint,
            correlation,
            retry_secs,
            report_sha256,
        } => {
            console::say("appraise", &format!("PENDING: {code}. {hint}"));
            console::say("appraise", &format!("report {report_sha256}"));
            console::say(
                "appraise",
                &format!("correlation {correlation}, retry in {retry_secs} s"),
            );
            Ok(exit::REFUSED)
        }
        Outcome::Refused {
            code,
            hint,
            correlation,
            retry_secs,
        } => {
            console::say("appraise", &format!("NOT ADMITTED: {code}. {hint}"));
            console::say(
                "appraise",
                &format!("correlation {correlation}, retry in {retry_secs} s"),
            );
            Ok(exit::REFUSED)
        }
    }
}

/// Whether there is no TPM to ask.
fn is_absent(error: &anyhow::Error) -> bool {
    matches!(
        error.downcast_ref::<AttestError>(),
        Some(AttestError::Tpm(TpmError::Absent { .. }))
    )
}

fn code_of(error: &anyhow::Error) -> u8 {
    match error.downcast_ref::<AttestError>() {
        Some(AttestError::Tpm(_) | AttestError::Extends(_)) => exit::TPM,
        Some(AttestError::Client(_) | AttestError::Message { .. } | AttestError::Payload(_)) => {
            exit::NETWORK
        }
        Some(AttestError::Pin(_) | AttestError::TooLarge { .. }) => exit::USAGE,
        Some(AttestError::Random(_)) => exit::TPM,
        None if error.is::<std::io::Error>() => exit::STORAGE,
        None => exit::USAGE,
    }
}

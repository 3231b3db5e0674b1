//! The command line of `vestibule`.
//!
//! Decides words, output and exit codes; docs/OPERATIONS.md has the same table. Commands that look
//! at or change a running appliance use the admin API with the owner's certificate; the others work
//! on files. Knows no protocol. Long because every command and its help stand here, for clap and for who
//! looks for one; each does its work in a file of its own.

mod appliance;
mod client;
mod desk_policy;
mod ek_ca;
mod gate;
mod inspect;
mod ledger;
mod local;
mod machine;
mod neighbours;
mod pcr;
mod policy;
mod recorded;
mod seal;
mod talos;

use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

pub use pcr::Way;
pub use recorded::{CatalogArgs, RecordedArgs};

use crate::config::{Config, DEFAULT_PATH, LoadError};
use crate::images::ImageError;
use crate::inventory::DeclaredError;
use crate::shell::listen::BindError;
use crate::telemetry;

/// How a command ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Done.
    Done = 0,
    /// Refused, or a check failed.
    Refused = 1,
    /// Wrong usage or configuration.
    Usage = 2,
    /// A privilege or a dependency is missing.
    Privilege = 3,
    /// The TPM or the seal.
    Tpm = 4,
    /// The storage.
    Storage = 5,
    /// The network or the peer.
    Network = 6,
}

impl Exit {
    /// All of them, for documents and tests.
    pub const ALL: [Exit; 7] = [
        Exit::Done,
        Exit::Refused,
        Exit::Usage,
        Exit::Privilege,
        Exit::Tpm,
        Exit::Storage,
        Exit::Network,
    ];

    /// Meaning, as in docs/OPERATIONS.md.
    pub fn meaning(self) -> &'static str {
        match self {
            Exit::Done => "done",
            Exit::Refused => "refused, or a check failed",
            Exit::Usage => "wrong usage or configuration",
            Exit::Privilege => "a privilege or a dependency is missing",
            Exit::Tpm => "the TPM or the seal",
            Exit::Storage => "the storage",
            Exit::Network => "the network or the peer",
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit as u8)
    }
}

/// Why a command failed: the text for the operator and the exit code.
#[derive(Debug)]
pub struct Failure {
    /// Exit code.
    pub exit: Exit,
    /// One line, or one line per mistake.
    pub text: String,
}

impl Failure {
    /// A failure from an error and its causes.
    pub fn new(exit: Exit, error: &(dyn std::error::Error + 'static)) -> Self {
        Self {
            exit,
            text: telemetry::chain(error),
        }
    }

    /// A failure told in our own words.
    pub fn told(exit: Exit, text: impl Into<String>) -> Self {
        Self {
            exit,
            text: text.into(),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Failure {}

impl From<LoadError> for Failure {
    fn from(error: LoadError) -> Self {
        Self::new(Exit::Usage, &error)
    }
}

impl From<DeclaredError> for Failure {
    fn from(error: DeclaredError) -> Self {
        Self::new(Exit::Usage, &error)
    }
}

impl From<ImageError> for Failure {
    fn from(error: ImageError) -> Self {
        let exit = match error {
            ImageError::Read { .. } => Exit::Usage,
            ImageError::Refused { .. } => Exit::Refused,
        };
        Self::new(exit, &error)
    }
}

impl From<BindError> for Failure {
    fn from(error: BindError) -> Self {
        Self::new(exit_of_io(&error.source), &error)
    }
}

impl From<store::StoreError> for Failure {
    fn from(error: store::StoreError) -> Self {
        Self::new(Exit::Storage, &error)
    }
}

/// A socket that may not be opened is a missing privilege; one that cannot be is the network.
pub(crate) fn exit_of_io(error: &std::io::Error) -> Exit {
    match error.kind() {
        std::io::ErrorKind::PermissionDenied => Exit::Privilege,
        _ => Exit::Network,
    }
}

/// Holds every machine at the door until its TPM proves who it is.
#[derive(Debug, Parser)]
#[command(name = "vestibule", version, disable_help_subcommand = true)]
pub struct Cli {
    /// Print JSON instead of text.
    #[arg(long, global = true)]
    pub json: bool,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the daemon.
    Serve(ConfigArg),
    /// Become the owner of this appliance; once, with the daemon stopped.
    Claim {
        /// Configuration.
        #[command(flatten)]
        config: ConfigArg,
        /// On the appliance's own console: whoever can read the state folder.
        #[arg(long, required = true)]
        local: bool,
        /// Folder for the owner's certificate, key and the CA certificates.
        #[arg(long)]
        out: PathBuf,
    },
    /// The certificate authorities.
    #[command(subcommand)]
    Ca(CaCommand),
    /// The seal on the CA keys.
    #[command(subcommand)]
    Seal(SealCommand),
    /// The configuration.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// The CAs that EK certificates may chain to.
    #[command(subcommand)]
    EkCa(EkCaCommand),
    /// The machines of a running appliance.
    #[command(subcommand)]
    Machine(MachineCommand),
    /// Pending claims of a running appliance.
    Claims(Desk),
    /// Boot images of a running appliance.
    #[command(subcommand)]
    Image(ImageCommand),
    /// The appraisal policy: of a running appliance, or a file at a desk.
    #[command(subcommand)]
    Policy(PolicyCommand),
    /// What a boot leaves in the PCRs.
    #[command(subcommand)]
    Pcr(PcrCommand),
    /// The signed ledger.
    #[command(subcommand)]
    Ledger(LedgerCommand),
    /// The state directory of a stopped daemon.
    #[command(subcommand)]
    Store(StoreCommand),
    /// State of a running appliance.
    Status(Desk),
    /// What LLDP says of the appliance's own cables.
    Neighbours(Desk),
    /// The gate to the uplink.
    #[command(subcommand)]
    Gate(GateCommand),
    /// Machine configs of Talos nodes.
    #[command(subcommand)]
    Talos(TalosCommand),
    /// Look into a capture file (pcap, pcapng), one JSON object for each frame; an event log, an
    /// attestation or certificates, one object.
    #[command(subcommand)]
    Inspect(InspectCommand),
}

/// `vestibule gate`
#[derive(Debug, Subcommand)]
pub enum GateCommand {
    /// What is open for whom, and whether the backend has it.
    List(Desk),
    /// Compare the backend with what the ledger says now, and put it right.
    Reconcile(Desk),
}

/// `vestibule inspect`
#[derive(Debug, Subcommand)]
pub enum InspectCommand {
    /// DHCPv4 and BOOTP, and what the server would reply.
    Dhcp(CaptureArg),
    /// DHCPv6, relayed or not, and what the server would reply.
    Dhcp6(CaptureArg),
    /// TFTP, on every port of a transfer.
    Tftp(CaptureArg),
    /// LLDP.
    Lldp(CaptureArg),
    /// A TPM's quote or other attestation: what it says, and whether a key of the files signed it.
    Quote(QuoteArg),
    /// A firmware's event log: one JSON object with its replay and what it says of the boot.
    Eventlog(EventLogArgs),
    /// A file of certificates: EK certificates, CAs, what an NV index holds. One JSON object.
    Ek(CertificateArg),
}

/// Files of one attestation.
#[derive(Debug, Clone, Args)]
pub struct QuoteArg {
    /// The attestation: a TPMS_ATTEST, or an evidence that has one.
    pub file: PathBuf,
    /// Another file of the same evidence: the key, the signature, the register values.
    #[arg(long = "with")]
    pub with: Vec<PathBuf>,
    /// The qualifying data that was asked for, in hex.
    #[arg(long)]
    pub nonce: Option<String>,
}

/// Which event log.
#[derive(Debug, Clone, Args)]
pub struct EventLogArgs {
    /// Event log, as in /sys/kernel/security/tpm0/binary_bios_measurements.
    pub file: PathBuf,
    /// Every event as well, as `event_list`.
    #[arg(long)]
    pub events: bool,
}

/// Which file of certificates.
#[derive(Debug, Clone, Args)]
pub struct CertificateArg {
    /// PEM, DER, PKCS #7, the content of an NV index, a UEFI signature list.
    pub file: PathBuf,
}

/// Which capture file.
#[derive(Debug, Clone, Args)]
pub struct CaptureArg {
    /// Capture file, pcap or pcapng.
    pub file: PathBuf,
}

/// Which configuration file.
#[derive(Debug, Clone, Args)]
pub struct ConfigArg {
    /// Configuration file.
    #[arg(long, default_value = DEFAULT_PATH)]
    pub config: PathBuf,
}

impl ConfigArg {
    fn load(&self) -> Result<Config, Failure> {
        Ok(Config::load(&self.config)?)
    }
}

/// `vestibule ca`
#[derive(Debug, Subcommand)]
pub enum CaCommand {
    /// Write the CA certificates (no keys) as PEM files.
    Export {
        /// Configuration.
        #[command(flatten)]
        config: ConfigArg,
        /// Folder.
        #[arg(long)]
        out: PathBuf,
    },
}

/// `vestibule seal`
#[derive(Debug, Subcommand)]
pub enum SealCommand {
    /// The boot state it opens in, and the one of this boot.
    Show(ConfigArg),
    /// Let it open in another boot state: a new image, other firmware. With the daemon stopped.
    Approve {
        /// Configuration.
        #[command(flatten)]
        config: ConfigArg,
        /// The owner's update key, as `claim` wrote it.
        #[arg(long)]
        update_key: PathBuf,
        /// Approve the state of this very boot.
        #[arg(long, conflicts_with_all = ["pcr4", "pcr7", "pcr11"], required_unless_present_all = ["pcr4", "pcr7", "pcr11"])]
        this_boot: bool,
        /// Value of PCR 4 to come, 64 hex digits.
        #[arg(long, requires_all = ["pcr7", "pcr11"])]
        pcr4: Option<String>,
        /// Value of PCR 7 to come.
        #[arg(long)]
        pcr7: Option<String>,
        /// Value of PCR 11 to come.
        #[arg(long)]
        pcr11: Option<String>,
    },
}

/// `vestibule config`
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// List every mistake in the configuration and the files it names.
    Check {
        /// Configuration.
        #[command(flatten)]
        config: ConfigArg,
        /// Leave out the boot images, which may not be built yet.
        #[arg(long)]
        without_images: bool,
    },
}

/// `vestibule ek-ca`
#[derive(Debug, Subcommand)]
pub enum EkCaCommand {
    /// Certificates with where they came from and expiry, and revocation lists: of a running appliance,
    /// or with --config the files that a configuration names.
    List {
        /// Only the files of this configuration; needs no daemon.
        #[arg(long)]
        config: Option<PathBuf>,
        /// The appliance.
        #[command(flatten)]
        desk: Desk,
    },
    /// Take CA certificates for EK chains: PEM, DER, PKCS #7; each is judged first.
    Import {
        /// Files.
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// Where you have them from; it stays in the ledger. Default: the names of the files.
        #[arg(long)]
        source: Option<String>,
        /// The appliance.
        #[command(flatten)]
        desk: Desk,
    },
    /// Take an imported certificate out.
    Remove {
        /// Its SHA-256, hex.
        sha256: String,
        /// Why; it stays in the ledger.
        #[arg(long)]
        why: String,
        /// The appliance.
        #[command(flatten)]
        desk: Desk,
    },
    /// EK certificates whose issuer is unknown, and where its certificate is said to be.
    Unmatched(Desk),
    /// Write the issuers of the EK certificates of admitted machines as PEM, for SPIRE's
    /// endorsement_ca_path.
    Export {
        /// File; replaced when it is there.
        file: PathBuf,
        /// Every CA that is known, not only the direct issuers.
        #[arg(long)]
        all: bool,
        /// The appliance.
        #[command(flatten)]
        desk: Desk,
    },
}

/// How to reach the admin API, and as whom.
#[derive(Debug, Clone, Args)]
pub struct Desk {
    /// Folder that `claim` has written; gives the defaults of the other options.
    #[arg(long, default_value = ".")]
    pub desk: PathBuf,
    /// Admin endpoint, https://ADDRESS:PORT; default: the file url of the desk.
    #[arg(long)]
    pub url: Option<String>,
    /// Client certificate; default: owner.pem of the desk.
    #[arg(long)]
    pub cert: Option<PathBuf>,
    /// Its private key; default: owner.key of the desk.
    #[arg(long)]
    pub key: Option<PathBuf>,
    /// CA of the admin endpoint; default: admin-ca.pem of the desk.
    #[arg(long)]
    pub ca: Option<PathBuf>,
}

/// One machine of a running appliance.
#[derive(Debug, Clone, Args)]
pub struct OneMachine {
    /// Its name.
    pub machine: String,
    /// The appliance.
    #[command(flatten)]
    pub desk: Desk,
}

/// `vestibule machine`
#[derive(Debug, Subcommand)]
pub enum MachineCommand {
    /// All machines, pending claims included.
    List(Desk),
    /// One machine and its timeline.
    Show(OneMachine),
    /// Bind a pending claim.
    Approve {
        /// Which.
        #[command(flatten)]
        one: OneMachine,
        /// The report digest that was compared, or its first 16 digits or more; the claim must still
        /// show it. Without it, whatever the claim shows now is approved.
        #[arg(long)]
        report: Option<String>,
        /// How the report digest was compared: console, exported-report or none.
        #[arg(long)]
        compared: String,
        /// Class, which selects the policy.
        #[arg(long)]
        class: Option<String>,
        /// Serial of the one disk that may be written.
        #[arg(long)]
        disk_serial: Option<String>,
        /// Switch port it is expected at, chassis/port.
        #[arg(long)]
        port: Option<String>,
    },
    /// Stop admitting it for now.
    Cordon(OneMachine),
    /// Undo cordon.
    Uncordon(OneMachine),
    /// State that it is installed: it boots its local disk from now on.
    Installed(OneMachine),
    /// End its access.
    Withdraw {
        /// Which.
        #[command(flatten)]
        one: OneMachine,
        /// Why; it stays in the ledger.
        #[arg(long)]
        why: String,
    },
    /// Seal a secret to its EK for tools of its own system, and print the line. Any system on that machine
    /// opens it; off unless handover.ekseal is set.
    Seal {
        /// The machine.
        #[command(flatten)]
        one: OneMachine,
        /// File with the secret, 1 to 128 bytes.
        #[arg(long)]
        secret_file: PathBuf,
        /// What it is called in the ledger.
        #[arg(long, default_value = "secret")]
        kind: String,
        /// Bind it to PCR 4, 7 and 11 of the machine's last admission.
        #[arg(long)]
        pcr: bool,
    },
    /// Take it out of the fleet.
    Retire(OneMachine),
    /// Authorise writing a disk image to its disk; the next boot from the network does it.
    Install {
        /// Which.
        #[command(flatten)]
        one: OneMachine,
        /// Name of the disk image in the catalogue.
        #[arg(long)]
        image: String,
        /// Its version; the newest that passes its floor when absent.
        #[arg(long = "image-version")]
        version: Option<u64>,
        /// Serial number of the disk; the declared one when absent.
        #[arg(long)]
        disk: Option<String>,
        /// Also where the machine is installed already: what is on its disk is lost.
        #[arg(long)]
        again: bool,
    },
    /// Begin once more an installation that failed, was cancelled or timed out.
    InstallRetry(OneMachine),
    /// End an unfinished installation.
    InstallCancel {
        /// Which.
        #[command(flatten)]
        one: OneMachine,
        /// Why; it stays in the ledger.
        #[arg(long)]
        why: String,
    },
}

/// `vestibule image`
#[derive(Debug, Subcommand)]
pub enum ImageCommand {
    /// The catalogue with floors.
    List(Desk),
    /// Raise the oldest acceptable version of an image.
    Floor {
        /// Name of the image.
        name: String,
        /// Lowest version that passes from now on.
        floor: u64,
        /// The appliance.
        #[command(flatten)]
        desk: Desk,
    },
    /// Refuse an image from now on.
    Withdraw {
        /// SHA-256 of the artefact, hex.
        sha256: String,
        /// The appliance.
        #[command(flatten)]
        desk: Desk,
    },
}

/// `vestibule ledger`
#[derive(Debug, Subcommand)]
pub enum LedgerCommand {
    /// Verify a ledger folder or an exported file against the infra CA certificate.
    Verify {
        /// Folder or file.
        path: PathBuf,
        /// Infra CA certificate, PEM or DER.
        #[arg(long, alias = "anchor")]
        ca: PathBuf,
    },
    /// Write the ledger as JSON Lines with a signed checkpoint.
    Export {
        /// State directory or ledger folder.
        path: PathBuf,
        /// File to write; must not exist.
        #[arg(long)]
        out: PathBuf,
        /// Do not hide TPM names.
        #[arg(long)]
        show_names: bool,
    },
    /// Take a restored state folder for the right one although the TPM has counted further. With the
    /// daemon stopped.
    Adopt {
        /// Configuration.
        #[command(flatten)]
        config: ConfigArg,
        /// The owner's update key, as `claim` wrote it.
        #[arg(long)]
        update_key: PathBuf,
        /// Why; it is written down.
        #[arg(long)]
        why: String,
    },
    /// Entries of a running appliance.
    Show {
        /// First sequence.
        #[arg(long, default_value_t = 0)]
        from: u64,
        /// Most entries.
        #[arg(long, default_value_t = 50)]
        max: u64,
        /// The appliance.
        #[command(flatten)]
        desk: Desk,
    },
}

/// `vestibule policy`
#[derive(Debug, Subcommand)]
pub enum PolicyCommand {
    /// What would be refused if every check were enforced, by the last evidence of each machine.
    WhatIf(Desk),
    /// What a policy file makes of a recorded boot: rows 9 to 11, as the daemon judges them.
    Test {
        /// Policy file.
        policy: PathBuf,
        /// The boot.
        #[command(flatten)]
        recorded: RecordedArgs,
        /// Class of the machine.
        #[arg(long)]
        class: Option<String>,
        /// The catalogue.
        #[command(flatten)]
        catalog: CatalogArgs,
    },
    /// Draft a policy from a recorded boot, on standard output, for review.
    Learn {
        /// The boot.
        #[command(flatten)]
        recorded: RecordedArgs,
        /// A catalog.json, or a folder that has one, to name the images by.
        #[arg(long)]
        catalog: Option<PathBuf>,
        /// List every entry of the dbx, not only their number.
        #[arg(long)]
        dbx_entries: bool,
    },
}

/// `vestibule pcr`
#[derive(Debug, Subcommand)]
pub enum PcrCommand {
    /// PCR 4 and PCR 11 of an image of the catalogue, for each way to boot it.
    Predict {
        /// Name of the image (the newest), NAME@VERSION, or SHA-256 of its file.
        image: String,
        /// Only this way; may be given again.
        #[arg(long = "path", value_enum)]
        paths: Vec<Way>,
        /// The catalogue.
        #[command(flatten)]
        catalog: CatalogArgs,
    },
}

/// `vestibule store`
#[derive(Debug, Subcommand)]
pub enum StoreCommand {
    /// Check the state directory; changes nothing.
    Check(StoreArgs),
    /// Make the database anew from the journals; says what it cannot restore.
    Rebuild(StoreArgs),
}

/// `vestibule talos`
#[derive(Debug, Subcommand)]
pub enum TalosCommand {
    /// Print the config that a machine would get. It holds the cluster's secrets.
    Render {
        /// Its name.
        machine: String,
        /// Configuration with `[talos]`.
        #[command(flatten)]
        config: ConfigArg,
        /// Take the machine's facts of a running appliance, from this desk; else of the inventory.
        #[arg(long)]
        desk: Option<PathBuf>,
        /// Its hardware address, where neither knows it.
        #[arg(long)]
        mac: Option<String>,
        /// Its address.
        #[arg(long)]
        address: Option<std::net::IpAddr>,
    },
    /// Check a machine config, without a daemon.
    Check {
        /// Machine config.
        file: PathBuf,
        /// Talos' config.schema.json of the release.
        #[arg(long)]
        schema: Option<PathBuf>,
    },
    /// Make the one-time code with which a machine's device flow is approved. Needs an owner.
    Code {
        /// Which.
        #[command(flatten)]
        one: OneMachine,
        /// How long it is good, in seconds.
        #[arg(long, default_value_t = 3_600)]
        window_secs: u64,
    },
}

/// Which state directory.
#[derive(Debug, Clone, Args)]
pub struct StoreArgs {
    /// Configuration that names it.
    #[command(flatten)]
    pub config: ConfigArg,
    /// Infra CA certificate (PEM or DER), when the store has lost it.
    #[arg(long, alias = "ca")]
    pub anchor: Option<PathBuf>,
}

/// Performs a command.
///
/// # Errors
/// [`Failure`] with the exit code.
pub fn run(cli: Cli) -> Result<Exit, Failure> {
    let out = Output { json: cli.json };
    match cli.command {
        Command::Serve(config) => appliance::run_daemon(config.load()?),
        Command::Claim {
            config,
            out: folder,
            ..
        } => appliance::claim(&out, &config.load()?, &folder),
        Command::Ca(CaCommand::Export {
            config,
            out: folder,
        }) => appliance::export(&out, &config.load()?, &folder),
        Command::Seal(SealCommand::Show(config)) => seal::show(&out, &config.load()?),
        Command::Seal(SealCommand::Approve {
            config,
            update_key,
            this_boot: _,
            pcr4,
            pcr7,
            pcr11,
        }) => {
            let state = match (pcr4, pcr7, pcr11) {
                (Some(pcr4), Some(pcr7), Some(pcr11)) => Some([pcr4, pcr7, pcr11]),
                _ => None,
            };
            seal::approve(&out, &config.load()?, &update_key, state)
        }
        Command::Config(ConfigCommand::Check {
            config,
            without_images,
        }) => local::check_config(&out, &config.load()?, without_images),
        Command::EkCa(command) => ek_ca::run(&out, command),
        Command::Machine(command) => machine::machine(&out, command),
        Command::Claims(desk) => machine::claims(&out, &desk),
        Command::Image(command) => machine::image(&out, command),
        Command::Status(desk) => machine::status(&out, &desk),
        Command::Neighbours(desk) => neighbours::run(&out, &desk),
        Command::Gate(command) => gate::run(&out, &command),
        Command::Talos(command) => talos::run(&out, command),
        Command::Inspect(command) => inspect::run(&command),
        Command::Policy(PolicyCommand::WhatIf(desk)) => policy::what_if(&out, &desk),
        Command::Policy(PolicyCommand::Test {
            policy,
            recorded,
            class,
            catalog,
        }) => desk_policy::test(&out, &policy, &recorded, class.as_deref(), &catalog),
        Command::Policy(PolicyCommand::Learn {
            recorded,
            catalog,
            dbx_entries,
        }) => desk_policy::learn(&out, &recorded, catalog.as_deref(), dbx_entries),
        Command::Pcr(PcrCommand::Predict {
            image,
            paths,
            catalog,
        }) => pcr::predict(&out, &image, &paths, &catalog),
        Command::Ledger(command) => ledger::run(&out, command),
        Command::Store(StoreCommand::Check(args)) => {
            local::check_store(&out, &args.config.load()?, args.anchor.as_deref())
        }
        Command::Store(StoreCommand::Rebuild(args)) => {
            local::rebuild_store(&out, &args.config.load()?, args.anchor.as_deref())
        }
    }
}

/// Where results go: text for people, JSON for tools.
pub(crate) struct Output {
    json: bool,
}

impl Output {
    /// Prints one result; a closed pipe is not an error of ours.
    fn print<T: serde::Serialize>(&self, value: &T, text: impl FnOnce() -> String) {
        use std::io::Write as _;
        let mut line = if self.json {
            serde_json::to_string(value)
                .unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"))
        } else {
            text()
        };
        if !line.ends_with('\n') {
            line.push('\n');
        }
        let _ = std::io::stdout().write_all(line.as_bytes());
    }
}

/// The DER bytes of the first certificate in a PEM or DER file.
fn read_certificate(path: &std::path::Path) -> Result<Vec<u8>, Failure> {
    use rustls_pki_types::CertificateDer;
    use rustls_pki_types::pem::PemObject as _;
    let bytes = std::fs::read(path).map_err(|error| {
        Failure::told(
            Exit::Usage,
            format!("cannot read {}: {error}", path.display()),
        )
    })?;
    if bytes.first() == Some(&0x30) {
        return Ok(bytes);
    }
    CertificateDer::from_pem_slice(&bytes)
        .map(|der| der.to_vec())
        .map_err(|error| {
            let text = format!("{} holds no certificate: {error}", path.display());
            Failure::told(Exit::Usage, text)
        })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_documents_have_the_same_exit_codes() {
        let text = include_str!("../../../docs/OPERATIONS.md");
        for exit in Exit::ALL {
            let row = format!("| {} | {} |", exit as u8, exit.meaning());
            assert!(text.contains(&row), "docs/OPERATIONS.md lacks {row}");
        }
    }

    /// Text files of the repository in which an operator may be told a command.
    fn texts(folder: &std::path::Path, found: &mut Vec<(PathBuf, String)>) {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().and_then(|n| n.to_str()).unwrap_or("");
            if path.is_dir() && !["target", ".git", "tests"].contains(&name) {
                texts(&path, found);
            } else if [".rs", ".md", ".toml", ".service"]
                .iter()
                .any(|e| name.ends_with(e))
                && let Ok(text) = std::fs::read_to_string(&path)
            {
                found.push((path, text));
            }
        }
    }

    /// A next step that names a command which does not exist helps nobody at night.
    #[test]
    fn every_command_that_is_named_exists() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let (mut found, mut named, mut wrong) = (Vec::new(), 0, Vec::new());
        texts(&root, &mut found);
        let cli = Cli::command();
        for (path, text) in &found {
            for (at, _) in text.match_indices("vestibule ") {
                let quoted = text[..at].ends_with('`');
                let of_a_word = |c: char| c.is_ascii_lowercase() || c == '-';
                let mut words = text[at + 10..].split(|c: char| !of_a_word(c));
                let first = words.next().unwrap_or("");
                let command = cli.find_subcommand(first);
                let fits = match command {
                    None => !quoted || first.is_empty() || first.starts_with('-'),
                    Some(command) if !command.has_subcommands() => true,
                    Some(command) => words
                        .next()
                        .filter(|word| !word.is_empty() && !word.starts_with('-'))
                        .is_none_or(|word| command.find_subcommand(word).is_some()),
                };
                named += usize::from(command.is_some());
                if !fits {
                    let line = text[at..].lines().next().unwrap_or("");
                    wrong.push(format!("{}: {line}", path.display()));
                }
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
        assert!(named > 40, "only {named} commands: the files were not read");
    }

    #[test]
    fn the_documents_list_every_command() {
        let text = include_str!("../../../docs/OPERATIONS.md");
        for command in Cli::command().get_subcommands() {
            let subs: Vec<_> = command.get_subcommands().collect();
            let names = if subs.is_empty() {
                vec![command.get_name().to_owned()]
            } else {
                subs.iter()
                    .map(|sub| format!("{} {}", command.get_name(), sub.get_name()))
                    .collect()
            };
            for name in names {
                let shown = format!("`vestibule {name}");
                assert!(text.contains(&shown), "docs/OPERATIONS.md lacks {shown}");
            }
        }
    }
}

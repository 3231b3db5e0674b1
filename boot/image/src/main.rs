//! The `boot-image` command: keys, packages and image folders of the boot chain.

#![forbid(unsafe_code)]

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use boot::catalog::Artefact;
use boot_image::assemble::{self, CMDLINE, Image, Parts};
use boot_image::{debs, keys::SiteKeys};
use clap::{Args, Parser, Subcommand};

/// Builds and signs what machines boot.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make the owner's Secure Boot keys and the image key.
    Keys {
        /// Folder for the keys; must not hold keys yet.
        #[arg(long)]
        out: PathBuf,
        /// Name of the site, for the certificates.
        #[arg(long, default_value = "Vestibule")]
        site: String,
    },
    /// Build and sign iPXE, the attester's UKI and their catalogue.
    Build(Box<Build>),
    /// Add a disk image for the installer to the catalogue of an image folder.
    Disk {
        /// The image: what is written to the disk, or that as Zstandard with the ending `.zst`.
        file: PathBuf,
        /// Name in the catalogue.
        #[arg(long)]
        name: String,
        /// Version in the catalogue; compared with the floor.
        #[arg(long)]
        version: u64,
        /// Folder with the keys.
        #[arg(long)]
        keys: PathBuf,
        /// Image folder.
        #[arg(long)]
        out: PathBuf,
    },
    /// Print what an EFI program or UKI leaves in the PCRs, as a catalogue entry.
    Measure {
        /// The file.
        file: PathBuf,
    },
    /// Enrol the keys into a copy of a factory-fresh OVMF variable store and switch Secure Boot on.
    Enrol {
        /// Folder with the keys.
        #[arg(long)]
        keys: PathBuf,
        /// The template, for example OVMF_VARS_4M.fd.
        #[arg(long)]
        template: PathBuf,
        /// Where to write.
        #[arg(long)]
        out: PathBuf,
    },
    /// Write CA certificates as the list that firmware takes for HTTPS boot.
    HttpsCa {
        /// Folder with the keys.
        #[arg(long)]
        keys: PathBuf,
        /// CA certificates, PEM.
        #[arg(long, required = true)]
        ca: Vec<PathBuf>,
        /// Where to write.
        #[arg(long)]
        out: PathBuf,
    },
    /// Unpack a package of a Debian suite into the cache and print its folder.
    Deb {
        /// Suite, for example `sid`.
        suite: String,
        /// Package, for example `ipxe`.
        package: String,
    },
}

#[derive(Args)]
struct Build {
    /// The attester program; becomes /init.
    #[arg(long)]
    attester: PathBuf,
    /// CA certificate (PEM) that the attester pins.
    #[arg(long)]
    anchor: PathBuf,
    /// Second anchor while the first is being replaced.
    #[arg(long)]
    anchor2: Option<PathBuf>,
    /// Version in the catalogue; compared with the floor.
    #[arg(long)]
    version: u64,
    /// Folder with the keys.
    #[arg(long)]
    keys: PathBuf,
    /// Image folder to write.
    #[arg(long)]
    out: PathBuf,
    /// Keep what the folder's catalogue has already.
    #[arg(long)]
    keep: bool,
    /// Kernel command line in place of the usual one.
    #[arg(long, default_value = CMDLINE)]
    cmdline: String,
    /// Words to add to the kernel command line.
    #[arg(long)]
    cmdline_add: Option<String>,
    /// Further kernel module that must be in the image; may be given many times.
    #[arg(long = "module")]
    modules: Vec<String>,
    /// Further file, `PATH_IN_IMAGE=FILE`, for example firmware of a network card; may be given many times.
    #[arg(long = "file", value_parser = parse_file)]
    files: Vec<(String, PathBuf)>,
    /// Debian suite of the kernel.
    #[arg(long, default_value = "bookworm")]
    kernel_suite: String,
    /// Kernel package; `linux-image-amd64` has the drivers of physical machines.
    #[arg(long, default_value = "linux-image-cloud-amd64")]
    kernel_package: String,
    /// Debian suite of systemd's stub.
    #[arg(long, default_value = "bookworm")]
    stub_suite: String,
    /// Debian suite of iPXE.
    #[arg(long, default_value = "sid")]
    ipxe_suite: String,
}

fn parse_file(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((path, file)) if path.starts_with('/') && !path.contains("/..") => {
            Ok((path.to_owned(), file.into()))
        }
        _ => Err("expected /PATH/IN/IMAGE=FILE".to_owned()),
    }
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("boot-image: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Keys { out, site } => {
            SiteKeys::generate(&out, &site)?;
            println!("keys for {site} in {}", out.display());
        }
        Command::Build(build) => build_image(&build)?,
        Command::Disk {
            file,
            name,
            version,
            keys,
            out,
        } => {
            let keys = SiteKeys::load(&keys)?;
            let image = assemble::add_disk(&out, &keys, &file, &name, version)?;
            println!(
                "{} {} {} {} bytes\n  sha256    {}\n  written   {} {} bytes",
                image.file,
                image.name,
                image.version,
                image.size_bytes,
                image.sha256,
                image.raw_sha256,
                image.raw_bytes
            );
        }
        Command::Measure { file } => {
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            let entry = Artefact::describe(
                file.file_stem()
                    .unwrap_or_default()
                    .to_string_lossy()
                    .as_ref(),
                boot::catalog::Role::Provision,
                boot::arch::Arch::X64Uefi,
                0,
                &name,
                &read(&file)?,
            )?;
            println!("{}", serde_json::to_string_pretty(&entry)?);
        }
        Command::Enrol {
            keys,
            template,
            out,
        } => write(&out, &SiteKeys::load(&keys)?.enrolled_vars(&template)?)?,
        Command::HttpsCa { keys, ca, out } => {
            let ca: Vec<&Path> = ca.iter().map(PathBuf::as_path).collect();
            write(&out, &SiteKeys::load(&keys)?.https_ca_list(&ca)?)?;
        }
        Command::Deb { suite, package } => {
            let unpacked = debs::fetch(&suite, &package)?;
            println!(
                "{} {} {}",
                unpacked.version,
                unpacked.sha256,
                unpacked.root.display()
            );
        }
    }
    Ok(())
}

fn build_image(build: &Build) -> anyhow::Result<()> {
    let keys = SiteKeys::load(&build.keys)?;
    let parts = Parts {
        kernel_suite: build.kernel_suite.clone(),
        kernel_package: build.kernel_package.clone(),
        stub_suite: build.stub_suite.clone(),
        ipxe_suite: build.ipxe_suite.clone(),
    };
    let fetched = parts.fetch()?;
    for package in [&fetched.kernel.unpacked, &fetched.stub, &fetched.ipxe] {
        println!(
            "{} {} sha256 {}",
            package.package, package.version, package.sha256
        );
        if let Some(before) = &package.changed_from {
            println!("warning: {} was {before} before", package.package);
        }
    }
    let cmdline = match &build.cmdline_add {
        Some(words) => format!("{} {words}", build.cmdline),
        None => build.cmdline.clone(),
    };
    let anchors: Vec<&Path> = [Some(&build.anchor), build.anchor2.as_ref()]
        .into_iter()
        .flatten()
        .map(PathBuf::as_path)
        .collect();
    let extra = build
        .files
        .iter()
        .map(|(path, file)| {
            let executable =
                std::fs::metadata(file).is_ok_and(|meta| meta.permissions().mode() & 0o100 != 0);
            let mode = if executable { 0o755 } else { 0o644 };
            Ok((path.clone(), read(file)?, mode))
        })
        .collect::<anyhow::Result<Vec<_>>>()?;
    let image = Image {
        init: &build.attester,
        anchors: &anchors,
        version: build.version,
        cmdline: &cmdline,
        modules: &build.modules,
        extra: &extra,
    };
    for entry in assemble::folder(&build.out, &fetched, &keys, &image, build.keep)? {
        println!(
            "{} {} {} {} bytes\n  sha256    {}\n  pe sha256 {}",
            entry.file, entry.name, entry.version, entry.size_bytes, entry.sha256, entry.pe_sha256
        );
        if let (Some(linux), Some(pcr11)) = (&entry.linux_pe_sha256, &entry.pcr11) {
            println!("  linux     {linux}\n  pcr 11    {pcr11}");
        }
    }
    Ok(())
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

fn write(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    std::fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
}

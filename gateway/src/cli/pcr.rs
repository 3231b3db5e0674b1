//! `vestibule pcr predict`: PCR 4 and PCR 11 of a catalogue entry, for each way to boot it.

use std::fmt::Write as _;

use boot::catalog::{Artefact, Kind, Role};
use boot::predict::{BootPath, PredictError, images, pcr4_of, pcr11_of};
use clap::ValueEnum;
use gateway_core::policy::role_name;
use serde::Serialize;

use super::recorded::CatalogArgs;
use super::{Exit, Failure, Output};

/// A way to boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Way {
    /// Firmware gets iPXE by PXE, iPXE gets the UKI.
    Pxe,
    /// Firmware gets the UKI by UEFI HTTP boot.
    Http,
    /// Firmware starts the UKI from a disk.
    Disk,
}

impl Way {
    fn path(self) -> BootPath {
        match self {
            Self::Pxe => BootPath::Pxe,
            Self::Http => BootPath::Http,
            Self::Disk => BootPath::Disk,
        }
    }
}

#[derive(Serialize)]
struct Report<'a> {
    image: &'a str,
    version: u64,
    arch: &'a str,
    role: &'static str,
    sha256: &'a str,
    bank: &'static str,
    /// As the stub leaves it; the same on each path.
    pcr11: String,
    /// After each boot phase of an installed system; the attester's own image passes none.
    pcr11_phases: Vec<Phase>,
    paths: Vec<OnPath<'a>>,
}

#[derive(Serialize)]
struct Phase {
    phases: String,
    pcr11: String,
}

#[derive(Serialize)]
struct OnPath<'a> {
    path: &'static str,
    /// None when the path is not possible.
    pcr4: Option<String>,
    /// What the firmware measures, in order.
    images: Vec<Started<'a>>,
    /// Why there is no value.
    error: Option<String>,
}

#[derive(Serialize)]
struct Started<'a> {
    image: &'a str,
    version: u64,
    pe_sha256: String,
}

/// Exit code 0 when every path that was asked for has its value; 1 when the catalogue has no such image or
/// one has none.
pub(super) fn predict(
    out: &Output,
    image: &str,
    ways: &[Way],
    catalog: &CatalogArgs,
) -> Result<Exit, Failure> {
    let artefacts = catalog.artefacts()?;
    let uki = wanted(&artefacts, image)?;
    // The one that the daemon serves to such a machine.
    let ipxe = artefacts
        .iter()
        .filter(|a| a.kind == Kind::Ipxe && a.role == Role::Provision && a.arch == uki.arch)
        .max_by_key(|a| a.version);
    let refused = |error: PredictError| Failure::new(Exit::Refused, &error);
    let (stub, phases) = pcr11_of(uki).map_err(refused)?;
    let asked: Vec<BootPath> = match ways.is_empty() {
        true => BootPath::ALL.to_vec(),
        false => ways.iter().map(|way| way.path()).collect(),
    };
    let report = Report {
        image: &uki.name,
        version: uki.version,
        arch: &uki.arch,
        role: role_name(uki.role),
        sha256: &uki.sha256,
        bank: "sha256",
        pcr11: hex::encode(stub),
        pcr11_phases: phases
            .into_iter()
            .map(|(phases, value)| Phase {
                phases,
                pcr11: hex::encode(value),
            })
            .collect(),
        paths: asked.iter().map(|path| on_path(*path, uki, ipxe)).collect(),
    };
    out.print(&report, || text(&report));
    // Without being asked for, a path that is not possible here is no failure.
    let missing = report.paths.iter().any(|path| path.pcr4.is_none());
    Ok(match missing && !ways.is_empty() {
        true => Exit::Refused,
        false => Exit::Done,
    })
}

/// By SHA-256 of the file, by `NAME@VERSION`, or the newest of a name.
fn wanted<'a>(artefacts: &'a [Artefact], image: &str) -> Result<&'a Artefact, Failure> {
    let (name, version) = match image.split_once('@') {
        Some((name, version)) => (name, version.parse().ok()),
        None => (image, None),
    };
    let found = artefacts
        .iter()
        .filter(|a| a.sha256 == image || a.name == name)
        .filter(|a| !image.contains('@') || Some(a.version) == version)
        .max_by_key(|a| a.version);
    found.ok_or_else(|| {
        let known: Vec<String> = artefacts
            .iter()
            .map(|a| format!("{}@{}", a.name, a.version))
            .collect();
        let text = format!(
            "no image {image:?} in the catalogue; it has {}",
            known.join(", ")
        );
        Failure::told(Exit::Refused, text)
    })
}

fn on_path<'a>(path: BootPath, uki: &'a Artefact, ipxe: Option<&'a Artefact>) -> OnPath<'a> {
    let value = pcr4_of(path, uki, ipxe);
    let started = images(path, uki, ipxe).unwrap_or_default();
    OnPath {
        path: path.name(),
        error: value.as_ref().err().map(ToString::to_string),
        pcr4: value.ok().map(hex::encode),
        images: started
            .into_iter()
            .map(|(artefact, digest)| Started {
                image: &artefact.name,
                version: artefact.version,
                pe_sha256: hex::encode(digest),
            })
            .collect(),
    }
}

fn text(report: &Report<'_>) -> String {
    let mut text = format!(
        "{} version {}, {}, {}, SHA-256 bank\n",
        report.image, report.version, report.arch, report.role
    );
    for path in &report.paths {
        let names: Vec<String> = path
            .images
            .iter()
            .map(|i| format!("{}@{}", i.image, i.version))
            .collect();
        let _ = match (&path.pcr4, &path.error) {
            (Some(value), _) => {
                writeln!(text, "PCR 4   {value}  {}: {}", path.path, names.join(", "))
            }
            (None, error) => writeln!(
                text,
                "PCR 4   {:<64}  {}: {}",
                "-",
                path.path,
                error.as_deref().unwrap_or_default()
            ),
        };
    }
    let _ = writeln!(text, "PCR 11  {}  after the stub", report.pcr11);
    for phase in &report.pcr11_phases {
        let _ = writeln!(text, "PCR 11  {}  {}", phase.pcr11, phase.phases);
    }
    text.push_str(
        "PCR 4 is for a machine with Secure Boot on that tried no other boot option before.\n",
    );
    text
}

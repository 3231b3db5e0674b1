//! PCR 4 and PCR 11 of a catalogue entry, for each way a machine can boot it.
//!
//! PCR 4 says which programs the firmware started and in which order, PCR 11 what the stub of the UKI
//! measured and, in an installed system, which boot phases systemd has passed. Values for an operator who
//! compares elsewhere; the appraisal judges PCR 4 by its events, because a machine that tried another
//! boot option first has more of them.

use sha2::{Digest as _, Sha256};

use crate::catalog::{Artefact, Kind};
use crate::measure::{Pcr, Sha256Digest, pcr4};

/// How the UKI is started, with Secure Boot on. Under it the kernel inside the UKI is not measured a
/// second time: systemd-stub starts it past the firmware's check, which is what measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BootPath {
    /// Firmware gets iPXE by PXE (or by HTTP, `http_boot = "ipxe"`), and iPXE gets the UKI.
    Pxe,
    /// Firmware gets the UKI by UEFI HTTP boot.
    Http,
    /// Firmware starts the UKI from a disk, without a boot loader between.
    Disk,
}

impl BootPath {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Pxe, Self::Http, Self::Disk];

    /// Word of the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pxe => "pxe",
            Self::Http => "http",
            Self::Disk => "disk",
        }
    }
}

/// Boot phases that `systemd-pcrphase` extends PCR 11 with, in their order (systemd-pcrphase.service(8)), up
/// to a running system. Each is measured as its word.
pub const PHASES: [&str; 4] = ["enter-initrd", "leave-initrd", "sysinit", "ready"];

/// Why there is no prediction.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PredictError {
    /// Only a UKI ends a boot.
    #[error("{0} is no UKI: what boots after it is not known")]
    NoUki(String),
    /// PXE goes through iPXE.
    #[error("no iPXE of architecture {0} in the catalogue")]
    NoIpxe(String),
    /// A digest of the catalogue is no digest.
    #[error("{name}: {field} is no SHA-256")]
    Digest {
        /// Name of the artefact.
        name: String,
        /// Which figure.
        field: &'static str,
    },
}

/// Programs that the firmware measures into PCR 4, in order: name, version, digest. iPXE 2.0 has the
/// UKI measured twice, when it is made an image and when it is started (recorded boots in
/// tests/vectors/eventlog).
///
/// # Errors
/// [`PredictError`].
pub fn images<'a>(
    path: BootPath,
    uki: &'a Artefact,
    ipxe: Option<&'a Artefact>,
) -> Result<Vec<(&'a Artefact, Sha256Digest)>, PredictError> {
    if uki.kind != Kind::Uki {
        return Err(PredictError::NoUki(uki.name.clone()));
    }
    let started: Vec<&Artefact> = match path {
        BootPath::Pxe => {
            let ipxe = ipxe.ok_or_else(|| PredictError::NoIpxe(uki.arch.clone()))?;
            vec![ipxe, uki, uki]
        }
        BootPath::Http | BootPath::Disk => vec![uki],
    };
    started
        .into_iter()
        .map(|artefact| {
            let digest = digest(artefact, "pe_sha256", Some(&artefact.pe_sha256))?;
            Ok((artefact, digest))
        })
        .collect()
}

/// PCR 4 of the SHA-256 bank after `path`, when the firmware tried no other boot option before.
///
/// # Errors
/// [`PredictError`].
pub fn pcr4_of(
    path: BootPath,
    uki: &Artefact,
    ipxe: Option<&Artefact>,
) -> Result<Sha256Digest, PredictError> {
    let images = images(path, uki, ipxe)?;
    let digests: Vec<Sha256Digest> = images.into_iter().map(|(_, digest)| digest).collect();
    Ok(pcr4(&digests))
}

/// PCR 11 of the SHA-256 bank: as the stub leaves it, whatever the path, and after each phase.
///
/// # Errors
/// [`PredictError`].
pub fn pcr11_of(
    uki: &Artefact,
) -> Result<(Sha256Digest, Vec<(String, Sha256Digest)>), PredictError> {
    if uki.kind != Kind::Uki {
        return Err(PredictError::NoUki(uki.name.clone()));
    }
    let stub = digest(uki, "pcr11", uki.pcr11.as_deref())?;
    let mut pcr = Pcr::holding(stub);
    let mut passed = String::new();
    let phases = PHASES.map(|phase| {
        pcr.extend(&Sha256::digest(phase).into());
        passed = match passed.is_empty() {
            true => phase.to_owned(),
            false => format!("{passed}:{phase}"),
        };
        (passed.clone(), pcr.value())
    });
    Ok((stub, phases.to_vec()))
}

fn digest(
    artefact: &Artefact,
    field: &'static str,
    text: Option<&str>,
) -> Result<Sha256Digest, PredictError> {
    let mut out = [0; 32];
    let decoded = text.map(|text| hex::decode_to_slice(text, &mut out));
    match decoded {
        Some(Ok(())) => Ok(out),
        _ => Err(PredictError::Digest {
            name: artefact.name.clone(),
            field,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Role;

    fn artefact(kind: Kind, pe: u8) -> Artefact {
        let uki = kind == Kind::Uki;
        Artefact {
            name: "a".into(),
            kind,
            role: Role::Provision,
            arch: "x86_64".into(),
            version: 1,
            file: "a.efi".into(),
            sha256: hex::encode([pe; 32]),
            size_bytes: 1,
            pe_sha256: hex::encode([pe; 32]),
            linux_pe_sha256: uki.then(|| hex::encode([3; 32])),
            pcr11: uki.then(|| hex::encode([4; 32])),
            cmdline: None,
        }
    }

    #[test]
    fn the_firmware_starts_other_programs_on_each_path() {
        let (uki, ipxe) = (artefact(Kind::Uki, 1), artefact(Kind::Ipxe, 2));
        let of = |path| pcr4_of(path, &uki, Some(&ipxe));
        assert_eq!(of(BootPath::Pxe), Ok(pcr4(&[[2; 32], [1; 32], [1; 32]])));
        assert_eq!(of(BootPath::Http), Ok(pcr4(&[[1; 32]])));
        assert_eq!(of(BootPath::Disk), of(BootPath::Http));
    }

    /// `systemd-measure calculate` writes the same words: each value is the one before it, extended.
    #[test]
    fn phases_follow_the_stub() {
        let (stub, phases) = pcr11_of(&artefact(Kind::Uki, 1)).unwrap();
        assert_eq!(stub, [4; 32]);
        let mut pcr = Pcr::holding([4; 32]);
        pcr.extend_with(b"enter-initrd");
        assert_eq!(phases[0], ("enter-initrd".into(), pcr.value()));
        pcr.extend_with(b"leave-initrd");
        assert_eq!(phases[1].0, "enter-initrd:leave-initrd");
        assert_eq!(phases[1].1, pcr.value());
        assert_eq!(phases[3].0, "enter-initrd:leave-initrd:sysinit:ready");
    }

    #[test]
    fn rejects_what_cannot_be_predicted() {
        let (uki, ipxe) = (artefact(Kind::Uki, 1), artefact(Kind::Ipxe, 2));
        assert_eq!(
            pcr4_of(BootPath::Pxe, &uki, None),
            Err(PredictError::NoIpxe("x86_64".into()))
        );
        assert_eq!(
            pcr4_of(BootPath::Http, &ipxe, None),
            Err(PredictError::NoUki("a".into()))
        );
        assert_eq!(pcr11_of(&ipxe), Err(PredictError::NoUki("a".into())));
        let mut torn = uki.clone();
        torn.pe_sha256.pop();
        assert!(matches!(
            pcr4_of(BootPath::Http, &torn, None),
            Err(PredictError::Digest {
                field: "pe_sha256",
                ..
            })
        ));
        torn.pcr11 = None;
        assert!(matches!(
            pcr11_of(&torn),
            Err(PredictError::Digest { field: "pcr11", .. })
        ));
    }
}

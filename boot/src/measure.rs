//! What a boot artefact leaves in the PCRs: predicted from its bytes, before any machine has booted it.
//!
//! Two readers: `boot-image` writes the result into the catalogue, the gateway computes it again when it loads an
//! artefact. PCR 4 gets the Authenticode digest of each EFI image that is started, PCR 11 the sections of the UKI
//! as systemd-stub measures them. Knows no event log: `gateway-core::appraisal` compares with what was logged.

use sha2::{Digest, Sha256};

use crate::pe::{Pe, PeError};

/// A SHA-256 digest or PCR value.
pub type Sha256Digest = [u8; 32];

/// Why an artefact cannot be measured.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MeasureError {
    /// The artefact itself is no PE image.
    #[error("the artefact is not a PE image")]
    Pe(#[from] PeError),
    /// The `.linux` section is no PE image: firmware would not start it.
    #[error("section .linux is not a PE image")]
    Linux(#[source] PeError),
    /// A UKI without kernel or initramfs.
    #[error("the UKI has no section {0}")]
    Section(&'static str),
    /// The stub does not say who it is, so how it measures is not known.
    #[error("section .sdmagic does not name a systemd-stub version: {0:?}")]
    Stub(String),
    /// A stub older than PCR 11 (systemd 252).
    #[error("systemd-stub {0} does not measure into pcr 11; 252 is the oldest that does")]
    TooOld(u32),
    /// A section that we cannot predict is present.
    #[error("section {0} changes what is booted and is not supported")]
    Unsupported(String),
    /// The embedded command line is no text.
    #[error("section .cmdline is not UTF-8")]
    Cmdline,
}

/// Every figure of an artefact that a catalogue entry holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Measured {
    /// SHA-256 of the file.
    pub sha256: Sha256Digest,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Authenticode SHA-256 of the image.
    pub pe_sha256: Sha256Digest,
    /// What a UKI adds; `None` for a plain EFI program such as iPXE.
    pub uki: Option<Uki>,
}

/// The figures of a UKI.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Uki {
    /// Major version of systemd-stub.
    pub stub_version: u32,
    /// Authenticode SHA-256 of the kernel inside.
    pub linux_pe_sha256: Sha256Digest,
    /// PCR 11 after the stub, before any boot phase of user space.
    pub pcr11: Sha256Digest,
    /// Embedded command line.
    pub cmdline: Option<String>,
}

/// Sections in the order in which systemd-stub measures them, with the first version that does. The order is that of
/// `UnifiedSection` in systemd's `src/fundamental/uki.h`; `.pcrsig` is left out there, since it signs the result.
const MEASURED_SECTIONS: [(&str, u32); 10] = [
    (".linux", 252),
    (".osrel", 252),
    (".cmdline", 252),
    (".initrd", 252),
    (".ucode", 256),
    (".splash", 252),
    (".dtb", 252),
    (".uname", 253),
    (".sbat", 254),
    (".pcrpkey", 252),
];

/// Sections that make one UKI several: profiles and device trees chosen at boot time.
const UNPREDICTABLE_SECTIONS: [&str; 4] = [".profile", ".dtbauto", ".hwids", ".efifw"];

/// Measures an artefact. A file with a `.linux` section is a UKI.
///
/// # Errors
/// [`MeasureError`].
pub fn measure(bytes: &[u8]) -> Result<Measured, MeasureError> {
    let pe = Pe::parse(bytes)?;
    let uki = match pe.section(".linux") {
        Some(linux) => Some(measure_uki(&pe, linux)?),
        None => None,
    };
    Ok(Measured {
        sha256: Sha256::digest(bytes).into(),
        size_bytes: bytes.len() as u64,
        pe_sha256: pe.authenticode_sha256()?,
        uki,
    })
}

fn measure_uki(pe: &Pe<'_>, linux: &[u8]) -> Result<Uki, MeasureError> {
    if let Some(section) = pe
        .sections
        .iter()
        .find(|section| UNPREDICTABLE_SECTIONS.contains(&section.name.as_str()))
    {
        return Err(MeasureError::Unsupported(section.name.clone()));
    }
    pe.section(".initrd")
        .ok_or(MeasureError::Section(".initrd"))?;
    let stub_version = stub_version(pe.section(".sdmagic").unwrap_or_default())?;
    let cmdline = pe
        .section(".cmdline")
        .map(|bytes| String::from_utf8(bytes.to_vec()).map_err(|_| MeasureError::Cmdline))
        .transpose()?;
    Ok(Uki {
        stub_version,
        linux_pe_sha256: Pe::parse(linux)
            .and_then(|kernel| kernel.authenticode_sha256())
            .map_err(MeasureError::Linux)?,
        pcr11: pcr11(pe, stub_version)?,
        cmdline,
    })
}

/// Major version from `#### LoaderInfo: systemd-stub 252.39-1~deb12u2 ####`.
fn stub_version(magic: &[u8]) -> Result<u32, MeasureError> {
    let text = String::from_utf8_lossy(magic);
    let version = text
        .split_once("systemd-stub ")
        .and_then(|(_, rest)| {
            let digits = rest
                .find(|c: char| !c.is_ascii_digit())
                .unwrap_or(rest.len());
            rest[..digits].parse().ok()
        })
        .ok_or_else(|| MeasureError::Stub(text.chars().take(80).collect()))?;
    if version < 252 {
        return Err(MeasureError::TooOld(version));
    }
    Ok(version)
}

/// PCR 11 of the SHA-256 bank as the stub leaves it.
fn pcr11(pe: &Pe<'_>, stub_version: u32) -> Result<Sha256Digest, MeasureError> {
    let mut pcr = Pcr::default();
    for (_, digest) in section_events(pe, stub_version)? {
        pcr.extend(&digest);
    }
    Ok(pcr.value())
}

/// What the stub of a UKI extends into PCR 11, in order: name of the section, measured digest. Two
/// entries for each section, its name with the ending NUL and its content.
///
/// # Errors
/// [`MeasureError`] for anything but a UKI that can be predicted.
pub fn stub_events(bytes: &[u8]) -> Result<Vec<(String, Sha256Digest)>, MeasureError> {
    let pe = Pe::parse(bytes)?;
    pe.section(".linux")
        .ok_or(MeasureError::Section(".linux"))?;
    section_events(
        &pe,
        stub_version(pe.section(".sdmagic").unwrap_or_default())?,
    )
}

fn section_events(
    pe: &Pe<'_>,
    stub_version: u32,
) -> Result<Vec<(String, Sha256Digest)>, MeasureError> {
    let mut events = Vec::new();
    for (name, since) in MEASURED_SECTIONS {
        if since > stub_version {
            continue;
        }
        let Some(section) = pe.sections.iter().find(|section| section.name == name) else {
            continue;
        };
        let mut content = pe
            .section(name)
            .ok_or_else(|| MeasureError::Unsupported(name.to_owned()))?
            .to_vec();
        // The stub reads the section from memory, where the loader has filled it up with zeros.
        if section.virtual_size - content.len() > ZERO_FILL_MAX {
            return Err(MeasureError::Unsupported(name.to_owned()));
        }
        content.resize(section.virtual_size, 0);
        let named = format!("{name}\0");
        events.push((name.to_owned(), Sha256::digest(named).into()));
        events.push((name.to_owned(), Sha256::digest(&content).into()));
    }
    Ok(events)
}

/// Most zeros a section may have beyond its file part.
const ZERO_FILL_MAX: usize = 1 << 20;

/// One PCR of the SHA-256 bank, zero after reset (TPM 2.0 Part 1 §17, `TPM2_PCR_Extend`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pcr(Sha256Digest);

impl Pcr {
    /// One that has this value already.
    pub fn holding(value: Sha256Digest) -> Self {
        Self(value)
    }

    /// Extends with the digest of `data`.
    pub fn extend_with(&mut self, data: &[u8]) {
        self.extend(&Sha256::digest(data).into());
    }

    /// Extends with a digest.
    pub fn extend(&mut self, digest: &Sha256Digest) {
        self.0 = Sha256::new()
            .chain_update(self.0)
            .chain_update(digest)
            .finalize()
            .into();
    }

    /// The value.
    pub fn value(&self) -> Sha256Digest {
        self.0
    }
}

/// PCR 4 of a boot through `images`, in the order in which firmware started them: the action "calling EFI
/// application", the separator, then one digest for each image (TCG PC Client Platform Firmware Profile 1.06
/// §3.3.4.5). A machine that tried other boot options first has more events; then only the log can tell.
pub fn pcr4(images: &[Sha256Digest]) -> Sha256Digest {
    let mut pcr = Pcr::default();
    pcr.extend_with(b"Calling EFI Application from Boot Option");
    pcr.extend_with(&[0; 4]);
    for image in images {
        pcr.extend(image);
    }
    pcr.value()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pe::tests::image;

    fn uki(magic: &str, extra: &[(&str, &[u8])]) -> Vec<u8> {
        let kernel = image(&[(".text", b"kernel")]);
        let mut sections: Vec<(&str, &[u8])> = vec![
            (".text", b"stub"),
            (".sdmagic", magic.as_bytes()),
            (".osrel", b"ID=x\n"),
            (".cmdline", b"quiet"),
            (".uname", b"6.1"),
            (".initrd", b"cpio"),
            (".linux", &kernel),
        ];
        sections.extend_from_slice(extra);
        image(&sections)
    }

    const V252: &str = "#### LoaderInfo: systemd-stub 252.39-1~deb12u2 ####";
    const V257: &str = "#### LoaderInfo: systemd-stub 257.9-1~deb13u1 ####";

    /// The order of the standard written out: kernel first, although it is the last section of the file.
    #[test]
    fn pcr11_follows_the_stub_and_not_the_file() {
        let file = uki(V252, &[]);
        let kernel = image(&[(".text", b"kernel")]);
        let mut pcr = Pcr::default();
        for (name, content) in [
            (&b".linux\0"[..], &kernel[..]),
            (b".osrel\0", b"ID=x\n"),
            (b".cmdline\0", b"quiet"),
            (b".initrd\0", b"cpio"),
        ] {
            pcr.extend_with(name);
            pcr.extend_with(content);
        }
        let found = measure(&file).unwrap().uki.unwrap();
        assert_eq!(found.pcr11, pcr.value());
        assert_eq!(found.stub_version, 252);
        assert_eq!(found.cmdline.as_deref(), Some("quiet"));
        // A newer stub also measures `.uname`, after the initramfs.
        pcr.extend_with(b".uname\0");
        pcr.extend_with(b"6.1");
        let newer = measure(&uki(V257, &[])).unwrap().uki.unwrap();
        assert_eq!(newer.pcr11, pcr.value());
    }

    #[test]
    fn every_measured_section_changes_pcr11() {
        let plain = measure(&uki(V257, &[])).unwrap().uki.unwrap();
        for name in [".ucode", ".splash", ".dtb", ".sbat", ".pcrpkey"] {
            let more = measure(&uki(V257, &[(name, b"x")])).unwrap().uki.unwrap();
            assert_ne!(more.pcr11, plain.pcr11, "{name}");
        }
        let signed = measure(&uki(V257, &[(".pcrsig", b"x")]))
            .unwrap()
            .uki
            .unwrap();
        assert_eq!(
            signed.pcr11, plain.pcr11,
            "a signature cannot measure itself"
        );
    }

    #[test]
    fn a_program_without_kernel_is_no_uki() {
        let found = measure(&image(&[(".text", b"ipxe")])).unwrap();
        assert_eq!(found.uki, None);
    }

    #[test]
    fn rejects_what_cannot_be_predicted() {
        let without_initrd = image(&[
            (".sdmagic", V252.as_bytes()),
            (".linux", &image(&[(".text", b"k")])),
        ]);
        assert_eq!(
            measure(&without_initrd),
            Err(MeasureError::Section(".initrd"))
        );
        assert!(matches!(
            measure(&uki("x", &[])),
            Err(MeasureError::Stub(_))
        ));
        assert_eq!(
            measure(&uki("systemd-stub 251.1", &[])),
            Err(MeasureError::TooOld(251))
        );
        assert_eq!(
            measure(&uki(V257, &[(".profile", b"x")])),
            Err(MeasureError::Unsupported(".profile".into()))
        );
        let no_kernel = image(&[
            (".sdmagic", V252.as_bytes()),
            (".initrd", b"x"),
            (".linux", b"not a kernel"),
        ]);
        assert!(matches!(measure(&no_kernel), Err(MeasureError::Linux(_))));
        assert!(matches!(measure(b"MZ"), Err(MeasureError::Pe(_))));
    }

    #[test]
    fn pcr4_depends_on_order() {
        assert_ne!(pcr4(&[[1; 32], [2; 32]]), pcr4(&[[2; 32], [1; 32]]));
        assert_ne!(pcr4(&[[1; 32]]), pcr4(&[[1; 32], [1; 32]]));
    }

    proptest::proptest! {
        #[test]
        fn never_panics(edits in proptest::collection::vec((0usize..0x800, proptest::num::u8::ANY), 0..12)) {
            let mut file = uki(V257, &[(".sbat", b"sbat,1")]);
            for (at, value) in edits {
                file[at] = value;
            }
            let _ = measure(&file);
        }
    }
}

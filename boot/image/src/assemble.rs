//! From packages, keys and the attester to a folder that a gateway serves: signed iPXE, signed UKI, signed catalogue.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use boot::arch::Arch;
use boot::catalog::{
    Artefact, CATALOG_FILE, CATALOG_VERSION, Catalog, CatalogError, Compression, DiskImage,
    ImageKey, Manifest, Role, SIGNATURE_FILE, check,
};
use sha2::{Digest as _, Sha256};

use crate::debs::{DebError, Debs, Kernel, Unpacked};
use crate::initramfs::{self, InitramfsError};
use crate::keys::{KeyError, SiteKeys};
use crate::modules::{self, ModuleError};
use crate::sign::{self, SignError};
use crate::uki::{self, UkiError};

/// Command line of the attester image.
///
/// `lockdown=integrity` and the signature rule keep the kernel what was measured; `kexec_load_disabled` is set before
/// /init starts, so nothing ever replaces the running kernel; no `init=`, no shell. The serial console is last and
/// thus /dev/console: it is the one a rack has.
pub const CMDLINE: &str = "console=tty0 console=ttyS0 lockdown=integrity module.sig_enforce=1 \
     sysctl.kernel.kexec_load_disabled=1 quiet panic=30";

/// Bytes of a disk image in memory at once.
const COPY_BYTES: usize = 1 << 20;

/// Why a folder could not be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// A package.
    #[error("package")]
    Package(#[from] DebError),
    /// Kernel modules.
    #[error("kernel modules")]
    Modules(#[from] ModuleError),
    /// The initramfs.
    #[error("initramfs")]
    Initramfs(#[from] InitramfsError),
    /// The UKI.
    #[error("unified kernel image")]
    Uki(#[from] UkiError),
    /// A signature.
    #[error("signature")]
    Sign(#[from] SignError),
    /// The catalogue.
    #[error("catalogue")]
    Catalog(#[from] CatalogError),
    /// Keys.
    #[error("keys")]
    Keys(#[from] KeyError),
    /// A file.
    #[error("file {path}")]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Which Debian suites and packages the image is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parts {
    /// Suite of the kernel.
    pub kernel_suite: String,
    /// Kernel metapackage: `linux-image-cloud-amd64` for virtual machines, `linux-image-amd64` for physical ones.
    pub kernel_package: String,
    /// Suite of `systemd-boot-efi`, which has the stub.
    pub stub_suite: String,
    /// Suite of `ipxe`; trixie's is the first that speaks HTTPS.
    pub ipxe_suite: String,
}

impl Default for Parts {
    fn default() -> Self {
        Self {
            kernel_suite: "bookworm".into(),
            kernel_package: "linux-image-cloud-amd64".into(),
            stub_suite: "bookworm".into(),
            ipxe_suite: "sid".into(),
        }
    }
}

/// The packages of [`Parts`], fetched.
#[derive(Debug, Clone)]
pub struct Fetched {
    /// Kernel and modules.
    pub kernel: Kernel,
    /// Package with the stub.
    pub stub: Unpacked,
    /// Package with iPXE.
    pub ipxe: Unpacked,
}

impl Parts {
    /// Fetches the packages into the host's cache.
    ///
    /// # Errors
    /// [`DebError`].
    pub fn fetch(&self) -> Result<Fetched, DebError> {
        let debs = Debs::from_host()?;
        Ok(Fetched {
            kernel: debs.fetch_kernel(&self.kernel_suite, &self.kernel_package)?,
            stub: debs.fetch(&self.stub_suite, "systemd-boot-efi")?,
            ipxe: debs.fetch(&self.ipxe_suite, "ipxe")?,
        })
    }
}

impl Fetched {
    /// The stub of systemd for x86-64.
    pub fn stub_file(&self) -> PathBuf {
        self.stub
            .root
            .join("usr/lib/systemd/boot/efi/linuxx64.efi.stub")
    }

    /// iPXE with all drivers for x86-64 UEFI.
    pub fn ipxe_file(&self) -> PathBuf {
        self.ipxe.root.join("usr/lib/ipxe/ipxe.efi")
    }
}

/// One attester image.
#[derive(Debug, Clone)]
pub struct Image<'a> {
    /// The attester program.
    pub init: &'a Path,
    /// Anchors it pins, one or two PEM files.
    pub anchors: &'a [&'a Path],
    /// Version in the catalogue; compared with the floor.
    pub version: u64,
    /// Kernel command line.
    pub cmdline: &'a str,
    /// Further modules that must be there.
    pub modules: &'a [String],
    /// Further files: path in the image, bytes, permission bits.
    pub extra: &'a [(String, Vec<u8>, u32)],
}

/// Builds the unsigned UKI.
///
/// # Errors
/// [`BuildError`].
pub fn unsigned_uki(fetched: &Fetched, image: &Image<'_>) -> Result<Vec<u8>, BuildError> {
    let modules = modules::collect(&fetched.kernel, image.modules, &modules::USUAL)?;
    let initrd = initramfs::build(&initramfs::Contents {
        init: image.init,
        anchors: image.anchors,
        image: &format!("attester {}", image.version),
        modules: &modules,
        extra: image.extra,
    })?;
    let version = image.version;
    let (unsigned, _) = uki::build(&uki::Contents {
        stub: &read(&fetched.stub_file())?,
        os_release: &format!(
            "ID=vestibule\nNAME=Vestibule\nVERSION_ID={version}\nPRETTY_NAME=\"Vestibule attester {version}\"\n"
        ),
        cmdline: image.cmdline,
        uname: &fetched.kernel.release,
        initrd: &initrd,
        linux: &read(&fetched.kernel.vmlinuz)?,
    })?;
    Ok(unsigned)
}

/// Builds an image folder: `ipxe.efi`, `attester.efi`, `catalog.json`, `catalog.sig`. With `keep`, entries of a
/// catalogue that is there already stay, so that an older version can go on booting until the floor rises.
///
/// # Errors
/// [`BuildError`].
pub fn folder(
    out: &Path,
    fetched: &Fetched,
    keys: &SiteKeys,
    image: &Image<'_>,
    keep: bool,
) -> Result<Vec<Artefact>, BuildError> {
    fs::create_dir_all(out).map_err(|source| io_error(out, source))?;
    let mut manifest = if keep {
        existing(out, keys)?
    } else {
        Manifest::default()
    };
    let ipxe = sign::sign(&read(&fetched.ipxe_file())?, keys)?;
    let uki = sign::sign(&unsigned_uki(fetched, image)?, keys)?;
    for (name, bytes) in [("ipxe", ipxe), ("attester", uki)] {
        add(out, &mut manifest.artefacts, name, image.version, &bytes)?;
    }
    write_manifest(out, keys, manifest).map(|manifest| manifest.artefacts)
}

/// Adds a disk image to the catalogue of an image folder and copies it there. A file that ends in `.zst` is
/// Zstandard and unpacked once, for the figures of what is written.
///
/// # Errors
/// [`BuildError`]; a folder without a catalogue is built first.
pub fn add_disk(
    out: &Path,
    keys: &SiteKeys,
    source: &Path,
    name: &str,
    version: u64,
) -> Result<DiskImage, BuildError> {
    let mut manifest = existing(out, keys)?;
    let packed = source.extension().is_some_and(|ext| ext == "zst");
    let (compression, ending) = match packed {
        true => (Compression::Zstd, "raw.zst"),
        false => (Compression::None, "raw"),
    };
    let file = format!("{name}-{version}.{ending}");
    let target = out.join(&file);
    let scratch = target.with_extension("new");
    fs::copy(source, &scratch).map_err(|error| io_error(source, error))?;
    let (sha256, size_bytes) = digest(open(&scratch)?, &scratch)?;
    let (raw_sha256, raw_bytes) = match compression {
        Compression::None => (sha256.clone(), size_bytes),
        Compression::Zstd => digest(boot::unzstd::Frames::new(open(&scratch)?), source)?,
    };
    let image = DiskImage {
        name: name.to_owned(),
        version,
        file,
        sha256,
        size_bytes,
        compression,
        raw_sha256,
        raw_bytes,
    };
    manifest.disks.push(image.clone());
    check(&manifest)?;
    fs::rename(&scratch, &target).map_err(|error| io_error(&target, error))?;
    write_manifest(out, keys, manifest)?;
    Ok(image)
}

fn open(path: &Path) -> Result<io::BufReader<fs::File>, BuildError> {
    let file = fs::File::open(path).map_err(|source| io_error(path, source))?;
    Ok(io::BufReader::with_capacity(COPY_BYTES, file))
}

/// SHA-256 and length of all that can be read.
fn digest(mut from: impl io::Read, path: &Path) -> Result<(String, u64), BuildError> {
    let (mut hash, mut length) = (Sha256::new(), 0);
    let mut buffer = vec![0; COPY_BYTES];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok((hex::encode(hash.finalize()), length)),
            Ok(count) => {
                hash.update(&buffer[..count]);
                length += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(io_error(path, error)),
        }
    }
}

/// Signs and writes the catalogue of `artefacts`, without disk images.
///
/// # Errors
/// [`BuildError`]; a catalogue that a gateway would refuse is not written.
pub fn write_catalog(
    out: &Path,
    keys: &SiteKeys,
    artefacts: Vec<Artefact>,
) -> Result<Vec<Artefact>, BuildError> {
    let manifest = Manifest {
        artefacts,
        ..Manifest::default()
    };
    write_manifest(out, keys, manifest).map(|manifest| manifest.artefacts)
}

fn write_manifest(out: &Path, keys: &SiteKeys, manifest: Manifest) -> Result<Manifest, BuildError> {
    let manifest = Manifest {
        version: CATALOG_VERSION,
        ..manifest
    };
    check(&manifest)?;
    let mut bytes = serde_json::to_vec_pretty(&manifest)
        .map_err(|error| CatalogError::Form(error.to_string()))?;
    bytes.push(b'\n');
    let signature = keys.sign_catalog(&bytes)?;
    // Both or neither must be seen: a gateway that reads in between refuses the pair and keeps what it has.
    write(&out.join(SIGNATURE_FILE), &signature)?;
    write(&out.join(CATALOG_FILE), &bytes)?;
    Ok(manifest)
}

/// Adds one file. The same program, already in the catalogue under another version, is not added twice.
fn add(
    out: &Path,
    artefacts: &mut Vec<Artefact>,
    name: &str,
    version: u64,
    bytes: &[u8],
) -> Result<(), BuildError> {
    let arch = Arch::X64Uefi;
    let plain = format!("{name}.efi");
    let taken = artefacts.iter().any(|entry| entry.file == plain);
    let file = if taken {
        format!("{name}-{version}.efi")
    } else {
        plain
    };
    let entry = Artefact::describe(name, Role::Provision, arch, version, &file, bytes)?;
    if artefacts
        .iter()
        .any(|other| other.pe_sha256 == entry.pe_sha256)
    {
        return Ok(());
    }
    write(&out.join(&file), bytes)?;
    artefacts.push(entry);
    Ok(())
}

fn existing(out: &Path, keys: &SiteKeys) -> Result<Manifest, BuildError> {
    let file = out.join(CATALOG_FILE);
    if !file.exists() {
        return Ok(Manifest::default());
    }
    let key = ImageKey::from_pem(&read(&keys.image_public_key())?)?;
    let catalog = Catalog::load(&read(&file)?, &read(&out.join(SIGNATURE_FILE))?, &key)?;
    Ok(Manifest {
        version: CATALOG_VERSION,
        artefacts: catalog.artefacts().to_vec(),
        disks: catalog.disks().to_vec(),
    })
}

fn read(path: &Path) -> Result<Vec<u8>, BuildError> {
    fs::read(path).map_err(|source| io_error(path, source))
}

/// Writes beside the target and renames: a reader sees the old file or the new one.
fn write(path: &Path, bytes: &[u8]) -> Result<(), BuildError> {
    let scratch = path.with_extension("new");
    fs::write(&scratch, bytes)
        .and_then(|()| fs::rename(&scratch, path))
        .map_err(|source| io_error(path, source))
}

fn io_error(path: &Path, source: io::Error) -> BuildError {
    BuildError::Io {
        path: path.to_owned(),
        source,
    }
}

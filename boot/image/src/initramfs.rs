//! The initramfs of an attester image: the program, its shared objects, kernel modules, the pinned anchors.
//!
//! What is in it is measured into PCR 11, so the same inputs give the same bytes.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::cpio::Archive;
use crate::exec::{Tool, ToolError};
use crate::keys::{self, KeyError};
use crate::libraries::{self, LibraryError};
use crate::modules::Module;

/// Where the module list is in the image: absolute paths, one a line, in the order of loading.
pub const MODULES_LIST: &str = "/etc/modules.order";
/// Where the anchors are: `anchor.pem`, and `anchor2.pem` while an anchor is being replaced.
pub const ANCHORS: [&str; 2] = ["/etc/vestibule/anchor.pem", "/etc/vestibule/anchor2.pem"];
/// Where the image says its name and version.
pub const IMAGE_NAME: &str = "/etc/vestibule/image";

/// Why there is no initramfs.
#[derive(Debug, thiserror::Error)]
pub enum InitramfsError {
    /// A file could not be read.
    #[error("file {path}")]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// An anchor is not a certificate.
    #[error("anchor")]
    Anchor(#[source] KeyError),
    /// No anchor, or more than two.
    #[error("an image pins one anchor, or two while one is being replaced; found {0}")]
    Anchors(usize),
    /// A shared object is missing.
    #[error("shared objects")]
    Libraries(#[source] LibraryError),
    /// `strip` or `zstd` failed.
    #[error("initramfs")]
    Tool(#[source] ToolError),
}

/// What goes into an initramfs.
#[derive(Debug, Clone)]
pub struct Contents<'a> {
    /// The program that becomes `/init`.
    pub init: &'a Path,
    /// One or two CA certificates (PEM) that the attester pins.
    pub anchors: &'a [&'a Path],
    /// Name and version, for the console and the hello.
    pub image: &'a str,
    /// Kernel modules in the order of loading.
    pub modules: &'a [Module],
    /// Further files: path in the image, bytes, permission bits.
    pub extra: &'a [(String, Vec<u8>, u32)],
}

/// Builds the archive and compresses it with zstd.
///
/// # Errors
/// [`InitramfsError`].
pub fn build(contents: &Contents<'_>) -> Result<Vec<u8>, InitramfsError> {
    compress(&archive(contents)?.to_bytes())
}

/// Puts the archive together.
///
/// # Errors
/// [`InitramfsError`].
pub fn archive(contents: &Contents<'_>) -> Result<Archive, InitramfsError> {
    let mut archive = Archive::default();
    for folder in [
        "/dev",
        "/proc",
        "/sys",
        "/run",
        "/tmp",
        "/etc",
        "/lib/modules",
    ] {
        archive.folder(folder);
    }
    // The kernel opens it for /init before anything can mount devtmpfs.
    archive.character_device("/dev/console", 5, 1);
    archive.file("/init", program(contents.init)?, 0o755);
    for library in libraries::needed_by(contents.init).map_err(InitramfsError::Libraries)? {
        archive.file(&place(&library), read(&library)?, 0o755);
    }
    let mut order = String::new();
    for module in contents.modules {
        let path = format!("/lib/modules/{}.ko", module.name);
        order.push_str(&path);
        order.push('\n');
        archive.file(&path, module.bytes.clone(), 0o644);
    }
    archive.file(MODULES_LIST, order, 0o644);
    if contents.anchors.is_empty() || contents.anchors.len() > ANCHORS.len() {
        return Err(InitramfsError::Anchors(contents.anchors.len()));
    }
    for (file, place) in contents.anchors.iter().zip(ANCHORS) {
        keys::certificates(file).map_err(InitramfsError::Anchor)?;
        archive.file(place, read(file)?, 0o644);
    }
    archive.file(IMAGE_NAME, format!("{}\n", contents.image), 0o644);
    for (path, bytes, mode) in contents.extra {
        archive.file(path, bytes.clone(), *mode);
    }
    Ok(archive)
}

/// The program without symbols, which only make the image larger: nobody debugs it on the machine.
fn program(path: &Path) -> Result<Vec<u8>, InitramfsError> {
    let bytes = read(path)?;
    if !bytes.starts_with(b"\x7fELF") {
        return Ok(bytes);
    }
    let folder = tempfile::tempdir().map_err(|source| io_error(path, source))?;
    let out = folder.path().join("init");
    let path = path
        .canonicalize()
        .map_err(|source| io_error(path, source))?;
    Tool {
        name: "strip",
        package: "binutils",
    }
    .run(
        folder.path(),
        [
            "--strip-all".as_ref(),
            "-o".as_ref(),
            out.as_os_str(),
            path.as_os_str(),
        ],
    )
    .map_err(InitramfsError::Tool)?;
    read(&out)
}

/// Where the loader looks without a cache: the folder in which the host has the object, if that is a
/// system folder, else `/usr/lib`.
fn place(library: &Path) -> String {
    let path = library.to_string_lossy();
    if path.starts_with("/lib") || path.starts_with("/usr/lib") {
        return path.into_owned();
    }
    let name = library
        .file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default();
    format!("/usr/lib/{name}")
}

fn compress(bytes: &[u8]) -> Result<Vec<u8>, InitramfsError> {
    let folder = tempfile::tempdir().map_err(|source| io_error(Path::new("/tmp"), source))?;
    let plain = folder.path().join("initramfs");
    fs::write(&plain, bytes).map_err(|source| io_error(&plain, source))?;
    Tool {
        name: "zstd",
        package: "zstd",
    }
    // One thread and a fixed level: the same bytes each time.
    .run(
        folder.path(),
        ["-q", "-15", "-T1", "--check", "-c", "initramfs"],
    )
    .map_err(InitramfsError::Tool)
}

fn read(path: &Path) -> Result<Vec<u8>, InitramfsError> {
    fs::read(path).map_err(|source| io_error(path, source))
}

fn io_error(path: &Path, source: io::Error) -> InitramfsError {
    InitramfsError::Io {
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::SiteKeys;

    #[test]
    fn the_same_inputs_give_the_same_bytes() {
        let folder = tempfile::tempdir().unwrap();
        SiteKeys::generate(folder.path(), "Lab").unwrap();
        let anchor = folder.path().join("PK.pem");
        let modules = [Module {
            name: "virtio".into(),
            bytes: b"\x7fELF".to_vec(),
        }];
        let contents = Contents {
            init: Path::new("/bin/ls"),
            anchors: &[&anchor],
            image: "attester 1",
            modules: &modules,
            extra: &[],
        };
        let first = build(&contents).unwrap();
        assert_eq!(first, build(&contents).unwrap());
        assert_eq!(first[..4], [0x28, 0xb5, 0x2f, 0xfd], "zstd");
        let archive = archive(&contents).unwrap();
        let paths: Vec<_> = archive.paths().collect();
        for path in ["init", "etc/vestibule/anchor.pem", "lib/modules/virtio.ko"] {
            assert!(paths.contains(&path), "{path}");
        }
        assert!(paths.iter().any(|path| path.ends_with("/libc.so.6")));
    }

    #[test]
    fn rejects_an_image_without_a_pin() {
        let contents = Contents {
            init: Path::new("/bin/ls"),
            anchors: &[],
            image: "attester 1",
            modules: &[],
            extra: &[],
        };
        assert!(matches!(build(&contents), Err(InitramfsError::Anchors(0))));
        let not_pem = Contents {
            anchors: &[Path::new("/bin/ls")],
            ..contents
        };
        assert!(matches!(build(&not_pem), Err(InitramfsError::Anchor(_))));
    }
}

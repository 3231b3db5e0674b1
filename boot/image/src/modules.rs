//! Kernel modules and what they need, in the order of loading.
//!
//! Reads `depends=` of each module itself: a package that was only unpacked has no `modules.dep`.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::debs::Kernel;
use crate::exec::{Tool, ToolError};

/// Why modules could not be collected.
#[derive(Debug, thiserror::Error)]
pub enum ModuleError {
    /// The kernel has no such module, neither as a file nor built in.
    #[error("kernel {release} has no module {name}")]
    Unknown {
        /// Kernel release.
        release: String,
        /// Module.
        name: String,
    },
    /// A file could not be read.
    #[error("module file {path}")]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A compressed module could not be unpacked.
    #[error("module {name}")]
    Unpack {
        /// Which.
        name: String,
        /// Why.
        #[source]
        source: ToolError,
    },
}

/// One module, ready for `finit_module(2)`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module {
    /// Name as `lsmod` shows it, with underscores.
    pub name: String,
    /// The ELF file, not compressed.
    pub bytes: Vec<u8>,
}

/// What an attester needs on virtual and physical machines, where the kernel has it: buses, network, disks, EFI
/// variables. TPM drivers are built into Debian's kernels.
pub const USUAL: [&str; 24] = [
    "virtio_pci",
    "virtio_net",
    "virtio_blk",
    "virtio_scsi",
    "virtio_rng",
    "efivarfs",
    "nvme",
    "ahci",
    "sd_mod",
    "tpm_crb",
    "tpm_tis",
    "e1000e",
    "igb",
    "igc",
    "ixgbe",
    "i40e",
    "ice",
    "bnxt_en",
    "tg3",
    "mlx4_en",
    "mlx5_core",
    "r8169",
    "sfc",
    "atlantic",
];

/// The modules of one kernel.
struct Tree<'a> {
    kernel: &'a Kernel,
    files: BTreeMap<String, PathBuf>,
    built_in: HashSet<String>,
}

/// Collects `required` and, where the kernel has them, `optional` modules, each after everything it depends on.
///
/// # Errors
/// [`ModuleError`].
pub fn collect(
    kernel: &Kernel,
    required: &[String],
    optional: &[&str],
) -> Result<Vec<Module>, ModuleError> {
    let tree = Tree::read(kernel)?;
    let mut order = Vec::new();
    let mut seen = HashSet::new();
    for name in required {
        tree.add(&plain(name), &mut seen, &mut order)?;
    }
    for name in optional {
        let name = plain(name);
        if tree.files.contains_key(&name) {
            tree.add(&name, &mut seen, &mut order)?;
        }
    }
    Ok(order)
}

impl<'a> Tree<'a> {
    fn read(kernel: &'a Kernel) -> Result<Self, ModuleError> {
        let mut files = BTreeMap::new();
        walk(&kernel.modules, &mut files)?;
        let list = kernel.modules.join("modules.builtin");
        let text = fs::read_to_string(&list).map_err(|source| io_error(&list, source))?;
        let built_in = text
            .lines()
            .filter_map(|line| module_name(Path::new(line)))
            .collect();
        Ok(Self {
            kernel,
            files,
            built_in,
        })
    }

    fn add(
        &self,
        name: &str,
        seen: &mut HashSet<String>,
        order: &mut Vec<Module>,
    ) -> Result<(), ModuleError> {
        if self.built_in.contains(name) || !seen.insert(name.to_owned()) {
            return Ok(());
        }
        let path = self.files.get(name).ok_or_else(|| ModuleError::Unknown {
            release: self.kernel.release.clone(),
            name: name.to_owned(),
        })?;
        let bytes = unpack(name, path)?;
        for needed in depends(&bytes) {
            self.add(&plain(&needed), seen, order)?;
        }
        order.push(Module {
            name: name.to_owned(),
            bytes,
        });
        Ok(())
    }
}

fn walk(folder: &Path, files: &mut BTreeMap<String, PathBuf>) -> Result<(), ModuleError> {
    for entry in fs::read_dir(folder).map_err(|source| io_error(folder, source))? {
        let entry = entry.map_err(|source| io_error(folder, source))?;
        let kind = entry
            .file_type()
            .map_err(|source| io_error(&entry.path(), source))?;
        if kind.is_dir() {
            walk(&entry.path(), files)?;
        } else if let Some(name) = module_name(&entry.path()) {
            files.insert(name, entry.path());
        }
    }
    Ok(())
}

/// `virtio_rng` of `.../virtio-rng.ko.xz`.
fn module_name(path: &Path) -> Option<String> {
    let file = path.file_name()?.to_str()?;
    let stem = [".ko", ".ko.xz", ".ko.zst"]
        .iter()
        .find_map(|ext| file.strip_suffix(ext))?;
    Some(plain(stem))
}

/// The kernel treats `-` and `_` in module names alike.
fn plain(name: &str) -> String {
    name.replace('-', "_")
}

fn unpack(name: &str, path: &Path) -> Result<Vec<u8>, ModuleError> {
    let tool = match path.extension().and_then(|ext| ext.to_str()) {
        Some("xz") => Tool {
            name: "xz",
            package: "xz-utils",
        },
        Some("zst") => Tool {
            name: "zstd",
            package: "zstd",
        },
        _ => return fs::read(path).map_err(|source| io_error(path, source)),
    };
    tool.run(
        Path::new("/"),
        ["-dc".as_ref(), "--".as_ref(), path.as_os_str()],
    )
    .map_err(|source| ModuleError::Unpack {
        name: name.to_owned(),
        source,
    })
}

/// `depends=` of `.modinfo`, whose entries are strings that end in NUL.
fn depends(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|window| window == KEY) else {
        return Vec::new();
    };
    let value = module[at + KEY.len()..]
        .split(|byte| *byte == 0)
        .next()
        .unwrap_or_default();
    String::from_utf8_lossy(value)
        .split(',')
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}

fn io_error(path: &Path, source: io::Error) -> ModuleError {
    ModuleError::Io {
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::debs::Unpacked;

    fn kernel(folder: &Path) -> Kernel {
        let modules = folder.join("lib/modules/6.1");
        for (path, text) in [
            (
                "kernel/net/virtio_net.ko",
                "\0depends=net-failover,virtio\0x",
            ),
            ("kernel/net/net_failover.ko", "\0depends=failover\0"),
            ("kernel/net/failover.ko", "\0depends=\0"),
            ("kernel/virtio.ko", "none"),
            ("kernel/loop_a.ko", "\0depends=loop_b\0"),
            ("kernel/loop_b.ko", "\0depends=loop_a\0"),
            ("modules.builtin", "kernel/drivers/char/tpm/tpm-crb.ko\n"),
        ] {
            let path = modules.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Kernel {
            unpacked: Unpacked {
                root: folder.into(),
                package: "linux-image".into(),
                version: "1".into(),
                sha256: String::new(),
                depends: String::new(),
                changed_from: None,
            },
            release: "6.1".into(),
            vmlinuz: folder.join("vmlinuz"),
            modules,
        }
    }

    fn names(modules: &[Module]) -> Vec<&str> {
        modules.iter().map(|module| module.name.as_str()).collect()
    }

    #[test]
    fn needed_modules_come_first_and_once() {
        let folder = tempfile::tempdir().unwrap();
        let kernel = kernel(folder.path());
        let required = ["virtio-net".to_owned(), "virtio".to_owned()];
        let found = collect(&kernel, &required, &["tpm_crb", "not_there"]).unwrap();
        assert_eq!(
            names(&found),
            ["failover", "net_failover", "virtio", "virtio_net"]
        );
    }

    #[test]
    fn a_circle_ends() {
        let folder = tempfile::tempdir().unwrap();
        let kernel = kernel(folder.path());
        let found = collect(&kernel, &["loop_a".to_owned()], &[]).unwrap();
        assert_eq!(names(&found), ["loop_b", "loop_a"]);
    }

    #[test]
    fn rejects_a_required_module_that_is_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let kernel = kernel(folder.path());
        let error = collect(&kernel, &["nope".to_owned()], &[]).unwrap_err();
        assert_eq!(error.to_string(), "kernel 6.1 has no module nope");
    }
}

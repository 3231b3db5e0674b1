//! Debian packages of any suite, unpacked beside the host and never installed on it.
//!
//! The archive is the one the machine already uses (`sources.rs`), its signatures are checked by apt,
//! and everything lands in `${XDG_CACHE_HOME:-~/.cache}/vestibule/debs`, which may be deleted at any time.
//! A package that is already there and was resolved within [`FRESH`] is used without any network; an older one
//! is looked up again, and kept when the archive cannot be reached.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::exec::{Tool, ToolError};
use crate::sources::{self, Mirror};

/// How long a resolved package is used before the archive is asked again.
pub const FRESH: Duration = Duration::from_secs(7 * 24 * 3600);
/// How long a fetched package index of a suite is good for further look-ups.
const INDEX_FRESH: Duration = Duration::from_secs(3600);
/// Environment variable that names a Debian mirror where the machine's own apt has none.
pub const MIRROR_ENV: &str = "VESTIBULE_DEBIAN_MIRROR";
/// Architecture of every package fetched here: that of the machines we boot.
const ARCHITECTURE: &str = "amd64";
const ATTEMPTS: u32 = 3;
/// Its time says when the index of a suite was fetched, within the suite's folder.
const INDEX_STAMP: &str = "apt/updated";

const APT_GET: Tool = Tool {
    name: "apt-get",
    package: "apt",
};
const APT_CACHE: Tool = Tool {
    name: "apt-cache",
    package: "apt",
};
const DPKG_DEB: Tool = Tool {
    name: "dpkg-deb",
    package: "dpkg",
};

/// Why a package could not be had.
#[derive(Debug, thiserror::Error)]
pub enum DebError {
    /// Neither HOME nor XDG_CACHE_HOME is set.
    #[error("no cache folder: neither XDG_CACHE_HOME nor HOME is set")]
    NoCache,
    /// The machine's apt names no Debian archive.
    #[error(
        "no Debian archive in this machine's apt sources; set {MIRROR_ENV} to the address of one"
    )]
    NoMirror,
    /// A suite or package name that is not one.
    #[error("{what} `{name}` is not a Debian {what} name")]
    Name {
        /// `suite` or `package`.
        what: &'static str,
        /// What was given.
        name: String,
    },
    /// The suite has no such package.
    #[error("suite {suite} has no package {package}")]
    NoPackage {
        /// Suite asked.
        suite: String,
        /// Package asked for.
        package: String,
    },
    /// The downloaded file is not the one the index names.
    #[error("package {package}: sha256 expected {expected}, found {found}")]
    Digest {
        /// Package.
        package: String,
        /// Digest of the signed index.
        expected: String,
        /// Digest of the file.
        found: String,
    },
    /// The package lacks a file we need.
    #[error("package {package} {version} has no {what}")]
    Content {
        /// Package.
        package: String,
        /// Its version.
        version: String,
        /// What is missing.
        what: &'static str,
    },
    /// The archive could not be reached or a tool failed.
    #[error("package {package} of {suite}")]
    Tool {
        /// Suite.
        suite: String,
        /// Package.
        package: String,
        /// The tool's own words.
        #[source]
        source: ToolError,
    },
    /// The cache could not be read or written.
    #[error("cache {path}")]
    Io {
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// One unpacked package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unpacked {
    /// Folder with the package's files, `root/usr/..`.
    pub root: PathBuf,
    /// Package name.
    pub package: String,
    /// Debian version.
    pub version: String,
    /// SHA-256 of the .deb, hex.
    pub sha256: String,
    /// `Depends:` of the package, as written.
    pub depends: String,
    /// Version that this suite's package had when it was last resolved, if it was another one:
    /// suites move, and a change is told.
    pub changed_from: Option<String>,
}

/// A kernel with its modules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    /// The package that has it.
    pub unpacked: Unpacked,
    /// Kernel release, as `uname -r` says.
    pub release: String,
    /// The bootable image.
    pub vmlinuz: PathBuf,
    /// Folder of the modules of this release.
    pub modules: PathBuf,
}

/// What the cache knows about a package of a suite.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Entry {
    version: String,
    sha256: String,
    depends: String,
    folder: String,
    resolved_unix_secs: u64,
    #[serde(default)]
    changed_from: Option<String>,
}

/// The cache and the archive behind it.
#[derive(Debug, Clone)]
pub struct Debs {
    cache: PathBuf,
    mirror: Option<Mirror>,
}

/// `${XDG_CACHE_HOME:-~/.cache}/vestibule`.
///
/// # Errors
/// [`DebError::NoCache`].
pub fn cache_dir() -> Result<PathBuf, DebError> {
    let absolute = |key: &str| {
        std::env::var_os(key)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    absolute("XDG_CACHE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".cache")))
        .map(|cache| cache.join("vestibule"))
        .ok_or(DebError::NoCache)
}

/// Fetches `package` of `suite` with the host's mirror and cache.
///
/// # Errors
/// [`DebError`].
pub fn fetch(suite: &str, package: &str) -> Result<Unpacked, DebError> {
    Debs::from_host()?.fetch(suite, package)
}

/// Fetches the kernel that the metapackage `meta` of `suite` stands for.
///
/// # Errors
/// [`DebError`].
pub fn fetch_kernel(suite: &str, meta: &str) -> Result<Kernel, DebError> {
    Debs::from_host()?.fetch_kernel(suite, meta)
}

impl Debs {
    /// The host's cache and mirror; [`MIRROR_ENV`] goes first.
    ///
    /// # Errors
    /// [`DebError::NoCache`], or the apt source that could not be read.
    pub fn from_host() -> Result<Self, DebError> {
        let mirror = match std::env::var(MIRROR_ENV) {
            Ok(main) if !main.is_empty() => Some(Mirror {
                main,
                security: None,
                signed_by: None,
            }),
            _ => sources::host_mirror(Path::new("/etc")).map_err(|source| DebError::Io {
                path: "/etc/apt".into(),
                source,
            })?,
        };
        Ok(Self {
            cache: cache_dir()?.join("debs"),
            mirror,
        })
    }

    /// A cache at `cache` with the archive `mirror`; `None` serves from the cache only.
    pub fn new(cache: impl Into<PathBuf>, mirror: Option<Mirror>) -> Self {
        Self {
            cache: cache.into(),
            mirror,
        }
    }

    /// Fetches and unpacks one package, without its dependencies.
    ///
    /// # Errors
    /// [`DebError`].
    pub fn fetch(&self, suite: &str, package: &str) -> Result<Unpacked, DebError> {
        check_name("suite", suite)?;
        check_name("package", package)?;
        let folder = self.cache.join(suite);
        fs::create_dir_all(&folder).map_err(|source| io_error(&folder, source))?;
        let _lock = lock(&folder.join("lock"))?;
        let known = read_entry(&folder, package);
        if let Some(entry) = &known
            && age(entry.resolved_unix_secs) < FRESH
        {
            return Ok(unpacked(&folder, package, entry));
        }
        let mut resolved = self.resolve(suite, package, &folder, known.as_ref());
        // Suites move: an index of an hour ago may name a file that has been replaced since.
        if matches!(resolved, Err(DebError::Tool { .. }))
            && fs::remove_file(folder.join(INDEX_STAMP)).is_ok()
        {
            resolved = self.resolve(suite, package, &folder, known.as_ref());
        }
        match (resolved, known) {
            (Ok(entry), _) => Ok(unpacked(&folder, package, &entry)),
            // Offline with an older copy: use it. Its digest was checked when it came.
            (Err(DebError::Tool { .. } | DebError::NoMirror), Some(entry)) => {
                Ok(unpacked(&folder, package, &entry))
            }
            (Err(error), _) => Err(error),
        }
    }

    /// Fetches the kernel package that a metapackage depends on.
    ///
    /// # Errors
    /// [`DebError`].
    pub fn fetch_kernel(&self, suite: &str, meta: &str) -> Result<Kernel, DebError> {
        let meta = self.fetch(suite, meta)?;
        let unpacked = match dependency(&meta.depends, "linux-image-") {
            Some(real) => self.fetch(suite, &real)?,
            None => meta,
        };
        let missing = |what| DebError::Content {
            package: unpacked.package.clone(),
            version: unpacked.version.clone(),
            what,
        };
        let modules = ["lib/modules", "usr/lib/modules"]
            .iter()
            .filter_map(|path| first_entry(&unpacked.root.join(path)))
            .next()
            .ok_or_else(|| missing("module folder"))?;
        let release = modules
            .file_name()
            .and_then(|name| name.to_str())
            .ok_or_else(|| missing("kernel release"))?
            .to_owned();
        let vmlinuz = [
            unpacked.root.join(format!("boot/vmlinuz-{release}")),
            modules.join("vmlinuz"),
        ]
        .into_iter()
        .find(|path| path.is_file())
        .ok_or_else(|| missing("kernel image"))?;
        Ok(Kernel {
            unpacked,
            release,
            vmlinuz,
            modules,
        })
    }

    /// Asks the archive, downloads and unpacks what is new, and writes the entry.
    fn resolve(
        &self,
        suite: &str,
        package: &str,
        folder: &Path,
        known: Option<&Entry>,
    ) -> Result<Entry, DebError> {
        let mirror = self.mirror.as_ref().ok_or(DebError::NoMirror)?;
        let tool = |source| DebError::Tool {
            suite: suite.to_owned(),
            package: package.to_owned(),
            source,
        };
        let apt = Apt::prepare(folder, mirror, suite)?;
        apt.update().map_err(tool)?;
        let stanza = apt.show(package).map_err(|error| match error {
            ToolError::Failed { .. } => DebError::NoPackage {
                suite: suite.to_owned(),
                package: package.to_owned(),
            },
            other => tool(other),
        })?;
        let field = |name: &str| control_field(&stanza, name);
        let (Some(version), Some(sha256)) = (field("Version"), field("SHA256")) else {
            return Err(DebError::NoPackage {
                suite: suite.to_owned(),
                package: package.to_owned(),
            });
        };
        let name = format!("{package}_{}_{sha256}", version.replace([':', '/'], "-"));
        let target = folder.join(&name);
        if !target.is_dir() {
            let scratch =
                tempfile::tempdir_in(folder).map_err(|source| io_error(folder, source))?;
            let deb = apt.download(package, scratch.path()).map_err(tool)?;
            let deb = deb.ok_or_else(|| DebError::NoPackage {
                suite: suite.to_owned(),
                package: package.to_owned(),
            })?;
            let bytes = fs::read(&deb).map_err(|source| io_error(&deb, source))?;
            let found = hex::encode(Sha256::digest(&bytes));
            if found != sha256 {
                return Err(DebError::Digest {
                    package: package.to_owned(),
                    expected: sha256,
                    found,
                });
            }
            let tree = scratch.path().join("tree");
            DPKG_DEB
                .run(
                    scratch.path(),
                    ["-x".as_ref(), deb.as_os_str(), tree.as_os_str()],
                )
                .map_err(tool)?;
            fs::rename(&tree, &target).map_err(|source| io_error(&target, source))?;
        }
        let entry = Entry {
            changed_from: known
                .filter(|known| known.version != version)
                .map(|known| known.version.clone()),
            version,
            sha256,
            depends: field("Depends").unwrap_or_default(),
            folder: name,
            resolved_unix_secs: unix_secs(),
        };
        write_entry(folder, package, &entry)?;
        Ok(entry)
    }
}

/// apt with folders of its own.
struct Apt {
    folder: PathBuf,
    stamp: PathBuf,
    options: Vec<String>,
}

impl Apt {
    fn prepare(folder: &Path, mirror: &Mirror, suite: &str) -> Result<Self, DebError> {
        let state = folder.join("apt");
        for sub in ["lists/partial", "cache/archives/partial", "empty"] {
            let path = state.join(sub);
            fs::create_dir_all(&path).map_err(|source| io_error(&path, source))?;
        }
        let list = state.join("sources.list");
        let text = mirror.sources_list(suite);
        // The same text keeps its time: the stamp below compares with it.
        if fs::read_to_string(&list).ok().as_deref() != Some(text.as_str()) {
            fs::write(&list, text).map_err(|source| io_error(&list, source))?;
            let _ = fs::remove_file(folder.join(INDEX_STAMP));
        }
        let status = state.join("status");
        fs::write(&status, "").map_err(|source| io_error(&status, source))?;
        let path = |sub: &str| state.join(sub).display().to_string();
        let options = [
            format!("Dir::Etc::SourceList={}", list.display()),
            format!("Dir::Etc::SourceParts={}", path("empty")),
            format!("Dir::Etc::PreferencesParts={}", path("empty")),
            format!("Dir::Etc::Preferences={}", path("no-preferences")),
            format!("Dir::State={}", state.display()),
            format!("Dir::State::Lists={}", path("lists")),
            format!("Dir::State::status={}", status.display()),
            format!("Dir::Cache={}", path("cache")),
            format!("APT::Architecture={ARCHITECTURE}"),
            format!("APT::Architectures={ARCHITECTURE}"),
            "APT::Sandbox::User=".to_owned(),
            "Acquire::Languages=none".to_owned(),
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".to_owned(),
            "Acquire::Retries=3".to_owned(),
            "Acquire::http::Timeout=30".to_owned(),
            "Acquire::https::Timeout=30".to_owned(),
            "APT::Get::List-Cleanup=true".to_owned(),
        ];
        Ok(Self {
            stamp: folder.join(INDEX_STAMP),
            folder: state,
            options: options
                .into_iter()
                .flat_map(|option| ["-o".to_owned(), option])
                .collect(),
        })
    }

    fn args<'a>(&'a self, rest: &[&'a str]) -> Vec<&'a str> {
        self.options
            .iter()
            .map(String::as_str)
            .chain(rest.iter().copied())
            .collect()
    }

    /// Fetches the package index, unless that was done within [`INDEX_FRESH`].
    fn update(&self) -> Result<(), ToolError> {
        let fresh = fs::metadata(&self.stamp)
            .and_then(|meta| meta.modified())
            .ok()
            .and_then(|time| SystemTime::now().duration_since(time).ok())
            .is_some_and(|age| age < INDEX_FRESH);
        if fresh {
            return Ok(());
        }
        self.get(&["-q", "--error-on=any", "update"])?;
        // Without the stamp the next look-up only asks the archive once more.
        let _ = fs::write(&self.stamp, "");
        Ok(())
    }

    fn show(&self, package: &str) -> Result<String, ToolError> {
        let text = APT_CACHE.run(
            &self.folder,
            self.args(&["show", "--no-all-versions", package]),
        )?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    fn download(&self, package: &str, into: &Path) -> Result<Option<PathBuf>, ToolError> {
        bounded(|| APT_GET.run(into, self.args(&["-q", "download", package])))?;
        Ok(fs::read_dir(into)
            .ok()
            .into_iter()
            .flatten()
            .filter_map(|entry| Some(entry.ok()?.path()))
            .find(|path| path.extension().is_some_and(|ext| ext == "deb")))
    }

    fn get(&self, rest: &[&str]) -> Result<Vec<u8>, ToolError> {
        bounded(|| APT_GET.run(&self.folder, self.args(rest)))
    }
}

/// Repeats what a network may have broken, a few times.
fn bounded<T>(mut work: impl FnMut() -> Result<T, ToolError>) -> Result<T, ToolError> {
    let mut attempt = 1;
    loop {
        match work() {
            Err(ToolError::Failed { .. }) if attempt < ATTEMPTS => {
                std::thread::sleep(Duration::from_secs(u64::from(attempt) * 2));
                attempt += 1;
            }
            other => return other,
        }
    }
}

/// The first dependency whose name starts with `prefix`.
fn dependency(depends: &str, prefix: &str) -> Option<String> {
    depends
        .split(',')
        .filter_map(|item| item.split_whitespace().next())
        .find(|name| name.starts_with(prefix))
        .map(str::to_owned)
}

/// One field of a control stanza (Debian policy 5.1); the first stanza counts.
fn control_field(stanza: &str, name: &str) -> Option<String> {
    stanza
        .lines()
        .take_while(|line| !line.is_empty())
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .map(|value| value.trim().to_owned())
}

/// Debian policy 5.6.1: these names become parts of paths and arguments.
fn check_name(what: &'static str, name: &str) -> Result<(), DebError> {
    let fine = name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.len() <= 128
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
    if fine {
        return Ok(());
    }
    Err(DebError::Name {
        what,
        name: name.to_owned(),
    })
}

fn unpacked(folder: &Path, package: &str, entry: &Entry) -> Unpacked {
    Unpacked {
        root: folder.join(&entry.folder),
        package: package.to_owned(),
        version: entry.version.clone(),
        sha256: entry.sha256.clone(),
        depends: entry.depends.clone(),
        changed_from: entry.changed_from.clone(),
    }
}

/// An entry counts only while its folder is there; a damaged one is as good as none.
fn read_entry(folder: &Path, package: &str) -> Option<Entry> {
    let text = fs::read(folder.join(format!("{package}.json"))).ok()?;
    let entry: Entry = serde_json::from_slice(&text).ok()?;
    (!entry.folder.contains('/') && folder.join(&entry.folder).is_dir()).then_some(entry)
}

fn write_entry(folder: &Path, package: &str, entry: &Entry) -> Result<(), DebError> {
    let path = folder.join(format!("{package}.json"));
    let text = serde_json::to_vec_pretty(entry).expect("an entry of strings and numbers");
    fs::write(&path, text).map_err(|source| io_error(&path, source))
}

fn first_entry(folder: &Path) -> Option<PathBuf> {
    let mut entries: Vec<_> = fs::read_dir(folder)
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    entries.sort();
    entries.into_iter().next()
}

/// One process at a time works in a suite's folder.
fn lock(path: &Path) -> Result<File, DebError> {
    let file = File::create(path).map_err(|source| io_error(path, source))?;
    file.lock().map_err(|source| io_error(path, source))?;
    Ok(file)
}

fn unix_secs() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |elapsed| elapsed.as_secs())
}

fn age(resolved_unix_secs: u64) -> Duration {
    Duration::from_secs(unix_secs().saturating_sub(resolved_unix_secs))
}

fn io_error(path: &Path, source: io::Error) -> DebError {
    DebError::Io {
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cached(cache: &Path, resolved_unix_secs: u64) -> Entry {
        let folder = cache.join("sid");
        fs::create_dir_all(folder.join("ipxe_1_aa/boot")).unwrap();
        let entry = Entry {
            version: "1".into(),
            sha256: "aa".into(),
            depends: String::new(),
            folder: "ipxe_1_aa".into(),
            resolved_unix_secs,
            changed_from: None,
        };
        write_entry(&folder, "ipxe", &entry).unwrap();
        entry
    }

    #[test]
    fn a_fresh_copy_needs_no_network() {
        let cache = tempfile::tempdir().unwrap();
        cached(cache.path(), unix_secs());
        let debs = Debs::new(cache.path(), None);
        let found = debs.fetch("sid", "ipxe").unwrap();
        assert_eq!(found.version, "1");
        assert!(found.root.join("boot").is_dir());
    }

    #[test]
    fn an_old_copy_serves_when_there_is_no_archive() {
        let cache = tempfile::tempdir().unwrap();
        cached(cache.path(), 1);
        let debs = Debs::new(cache.path(), None);
        assert_eq!(debs.fetch("sid", "ipxe").unwrap().sha256, "aa");
    }

    #[test]
    fn rejects_a_missing_archive_without_a_copy() {
        let cache = tempfile::tempdir().unwrap();
        let error = Debs::new(cache.path(), None)
            .fetch("sid", "ipxe")
            .unwrap_err();
        assert!(matches!(error, DebError::NoMirror), "{error}");
    }

    #[test]
    fn rejects_an_entry_whose_folder_is_gone() {
        let cache = tempfile::tempdir().unwrap();
        cached(cache.path(), unix_secs());
        fs::remove_dir_all(cache.path().join("sid/ipxe_1_aa")).unwrap();
        let error = Debs::new(cache.path(), None)
            .fetch("sid", "ipxe")
            .unwrap_err();
        assert!(matches!(error, DebError::NoMirror), "{error}");
    }

    #[test]
    fn rejects_names_that_would_leave_the_cache() {
        let debs = Debs::new("/nonexistent", None);
        for (suite, package) in [("../x", "ipxe"), ("sid", "-o"), ("sid", "a/b"), ("", "a")] {
            let error = debs.fetch(suite, package).unwrap_err();
            assert!(matches!(error, DebError::Name { .. }), "{error}");
        }
    }

    #[test]
    fn reads_control_fields_of_the_first_stanza() {
        let text = "Package: a\nVersion: 1:2-3\nDepends: linux-image-6.1.0-57-cloud-amd64 (= 6.1), x | y\n\nVersion: 9\n";
        assert_eq!(control_field(text, "Version").as_deref(), Some("1:2-3"));
        let depends = control_field(text, "Depends").unwrap();
        assert_eq!(
            dependency(&depends, "linux-image-").as_deref(),
            Some("linux-image-6.1.0-57-cloud-amd64")
        );
        assert_eq!(control_field(text, "SHA256"), None);
    }
}

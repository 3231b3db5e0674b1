//! The lldpd of the field, on one interface of a namespace.
//!
//! Unpacked beside the host and never installed on it: the package would start a daemon that speaks
//! on the host's own network, and make `lldpcli` setuid. It runs in a mount namespace with a `/run`
//! and a user of its own, as its privilege separation wants.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::netns::Netns;
use crate::run::{Process, Run, output};

/// Its suite: libraries of an older one run beside those of a newer host.
const SUITE: &str = "bookworm";
const START_LIMIT: Duration = Duration::from_secs(20);
const CLI_LIMIT: Duration = Duration::from_secs(10);
/// Packages with what they depend on: lldpd needs about ten beside the C library.
const PACKAGES_MAX: usize = 60;

/// Makes `/run` and the user that lldpd drops to, then becomes lldpd. All of it ends with the process.
const ENTER: &str = r#"set -e
mount -t tmpfs tmpfs /run
mkdir /run/lldpd
for file in passwd group; do cp /etc/$file /run/$file; done
echo '_lldpd:x:65533:65533::/run/lldpd:/usr/sbin/nologin' >> /run/passwd
echo '_lldpd:x:65533:' >> /run/group
for file in passwd group; do mount --bind /run/$file /etc/$file; done
exec "$@""#;

/// A running lldpd.
pub struct Lldpd {
    process: Process,
    files: Files,
    ns: Netns,
    socket: PathBuf,
}

#[derive(Debug, Clone)]
struct Files {
    daemon: PathBuf,
    cli: PathBuf,
    libraries: String,
}

impl Lldpd {
    /// Starts it on `interface` of `ns`; `config` has one `lldpcli` command a line.
    ///
    /// # Errors
    /// The package cannot be had, or it does not answer within 20 s.
    pub fn start(run: &Run, ns: &Netns, name: &str, interface: &str, config: &str) -> Result<Self> {
        let files = unpack()?;
        let path = |kind: &str| run.dir().join(format!("{name}.{kind}"));
        let (socket, pid, conf) = (path("sock"), path("pid"), path("conf"));
        std::fs::write(&conf, config)?;
        let mut command = ns.command("unshare");
        command
            .env("LD_LIBRARY_PATH", &files.libraries)
            .args([
                "--mount",
                "--propagation",
                "private",
                "sh",
                "-c",
                ENTER,
                "sh",
            ])
            .arg(&files.daemon)
            .args(["-d", "-I", interface, "-L"])
            .arg(&files.cli)
            .arg("-u")
            .arg(&socket)
            .arg("-p")
            .arg(&pid)
            .arg("-O")
            .arg(&conf);
        let process = run.spawn(name, &mut command)?;
        let mut lldpd = Self {
            process,
            files,
            ns: ns.clone(),
            socket,
        };
        let started = Instant::now();
        while lldpd.cli(&["show", "configuration"]).is_err() {
            if let Some(status) = lldpd.process.ended() {
                let log = std::fs::read_to_string(run.log(name)).unwrap_or_default();
                bail!("lldpd ended: {status}\n{log}");
            }
            if started.elapsed() > START_LIMIT {
                bail!("lldpd does not answer");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(lldpd)
    }

    /// `lldpcli args`.
    ///
    /// # Errors
    /// What it says.
    pub fn cli(&self, args: &[&str]) -> Result<String> {
        let mut command: Command = self.ns.command(&self.files.cli.to_string_lossy());
        command
            .env("LD_LIBRARY_PATH", &self.files.libraries)
            .arg("-u")
            .arg(&self.socket)
            .args(args);
        output(&mut command, CLI_LIMIT)
    }

    /// Its neighbours, `lldpcli -f json0 show neighbors details`: every member a list.
    ///
    /// # Errors
    /// As [`Lldpd::cli`].
    pub fn neighbours(&self) -> Result<Vec<Value>> {
        let text = self.cli(&["-f", "json0", "show", "neighbors", "details"])?;
        let value: Value = serde_json::from_str(&text).context("lldpcli")?;
        let list = value.pointer("/lldp/0/interface");
        Ok(list.and_then(Value::as_array).cloned().unwrap_or_default())
    }

    /// Ends it as an init system does: it says good-bye on the wire.
    pub fn stop(&mut self) {
        self.process.terminate(Duration::from_secs(5));
    }
}

fn unpack() -> Result<Files> {
    let mut wanted = vec!["lldpd".to_owned()];
    let (mut seen, mut roots) = (BTreeSet::new(), Vec::new());
    while let Some(package) = wanted.pop() {
        if !seen.insert(package.clone()) {
            continue;
        }
        if seen.len() > PACKAGES_MAX {
            bail!("lldpd needs more than {PACKAGES_MAX} packages");
        }
        let unpacked = boot_image::debs::fetch(SUITE, &package)?;
        wanted.extend(
            unpacked
                .depends
                .split(',')
                .filter_map(|item| item.split_whitespace().next())
                .map(|name| name.split(':').next().unwrap_or(name).to_owned())
                .filter(|name| name.starts_with("lib") && name != "libc6" && !on_host(name)),
        );
        roots.push(unpacked.root);
    }
    let program = |name: &str| {
        let path = roots.first().map(|root| root.join("usr/sbin").join(name));
        path.filter(|path| path.is_file())
            .with_context(|| format!("the package has no {name}"))
    };
    Ok(Files {
        daemon: program("lldpd")?,
        cli: program("lldpcli")?,
        libraries: library_path(&roots),
    })
}

fn library_path(roots: &[PathBuf]) -> String {
    let folders = roots.iter().flat_map(|root| {
        ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"].map(|folder| root.join(folder))
    });
    let folders = folders.filter(|folder: &PathBuf| Path::is_dir(folder));
    let folders: Vec<_> = folders.map(|f| f.to_string_lossy().into_owned()).collect();
    folders.join(":")
}

fn on_host(package: &str) -> bool {
    Command::new("dpkg-query")
        .args(["-W", "-f=${db:Status-Status}", package])
        .stderr(std::process::Stdio::null())
        .output()
        .is_ok_and(|out| out.stdout == b"installed")
}

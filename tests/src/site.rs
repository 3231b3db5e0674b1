//! One appliance with its segment: configured, claimed, with images built for its own anchor, and
//! served by the real daemon.
//!
//! The order is the operator's (docs/OPERATIONS.md): the CAs are made, the infra CA is exported,
//! the boot image is built with it as anchor, the daemon is started. The appliance's TPM is a real
//! swtpm whose PCRs 4, 7 and 11 are extended at each power-on, so the CA key is sealed to a
//! measured boot, not in development mode.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use boot::catalog::{Artefact, Kind, Manifest};
use gateway_core::record::JournalRecord;

use crate::admin::Desk;
use crate::event_log::Boot;
use crate::netns::{GATEWAY_ADDR, GATEWAY_ADDR6, MGMT_ADDR, POOL, POOL6, PREFIX, Segment};
use crate::programs;
use crate::run::{Process, Run, attempt, cache_dir, cpu_secs, output};
use crate::swtpm::{self, Swtpm, TCTI};

/// Template of the appliance's own TPM; the nodes use those from [`NODE_TEMPLATES`] on.
pub const GATEWAY_TEMPLATE: usize = 0;
/// First template for nodes.
pub const NODE_TEMPLATES: usize = 1;

/// The lease journal in the state folder.
const JOURNAL: &str = "leases.vjl";
const READY_LIMIT: Duration = Duration::from_secs(30);
const BUILD_LIMIT: Duration = Duration::from_secs(300);
const COMMAND_LIMIT: Duration = Duration::from_secs(60);

/// What differs between sites.
#[derive(Debug, Clone)]
pub struct Options {
    /// `strict`, `standard` or `observe`.
    pub preset: &'static str,
    /// A policy file in place of the preset alone.
    pub policy: Option<String>,
    /// `log.filter`.
    pub log_filter: &'static str,
    /// The daemon sees a battery-backed clock, whether this machine has one or not.
    pub rtc: bool,
    /// `none` or `pcr`.
    pub devid_auth: &'static str,
    /// `any`, `ecc-p256` or `rsa-2048`.
    pub devid_kind: &'static str,
    /// Version of the UKI that is built.
    pub version: u64,
    /// Prefix length of the provisioning segment, as the daemon is told.
    pub prefix: u8,
    /// First and last address handed out.
    pub pool: (Ipv4Addr, Ipv4Addr),
    /// `provisioning.lease_secs`; firmware and machines on their way get at most 600.
    pub lease_secs: u32,
    /// Debian suite of the iPXE that is signed and served.
    pub ipxe_suite: &'static str,
    /// IPv6 on the provisioning side as well.
    pub ipv6: bool,
    /// `server` or `proxy`.
    pub dhcp_mode: &'static str,
    /// `provisioning.conflict_probe_ms`.
    pub conflict_probe_ms: u16,
    /// `provisioning.rogue_probe_secs`.
    pub rogue_probe_secs: u32,
    /// More of the configuration, behind everything else.
    pub more: String,
    /// Whether the folder of EK roots has the CA of the machines' TPMs.
    pub ek_roots: bool,
    /// The `[gate]` of the configuration; empty for none.
    pub gate: String,
    /// `[talos]`; `{dir}` is the folder of the run.
    pub talos: Option<&'static str>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            preset: "standard",
            policy: None,
            log_filter: "info",
            rtc: false,
            devid_auth: "none",
            devid_kind: "any",
            version: 1,
            prefix: PREFIX,
            pool: POOL,
            lease_secs: 3_600,
            ipxe_suite: "sid",
            ipv6: false,
            dhcp_mode: "server",
            conflict_probe_ms: 40,
            rogue_probe_secs: 600,
            more: String::new(),
            ek_roots: true,
            gate: String::new(),
            talos: None,
        }
    }
}

/// The site.
pub struct Site {
    /// Its processes and folders.
    pub run: Run,
    /// Its network.
    pub segment: Segment,
    /// The appliance's TPM.
    pub tpm: Swtpm,
    /// The administrator.
    pub desk: Desk,
    /// Options it was made with.
    pub options: Options,
    daemon: Option<Process>,
    honest: OnceLock<Boot>,
}

impl Site {
    /// Makes a site and starts the daemon.
    ///
    /// # Errors
    /// Any step; the text names it.
    pub fn start(name: &str, options: Options) -> Result<Self> {
        let mut site = Self::prepare(name, options)?;
        site.serve()?;
        Ok(site)
    }

    /// Makes a site without starting the daemon.
    ///
    /// # Errors
    /// Any step; the text names it.
    pub fn prepare(name: &str, options: Options) -> Result<Self> {
        let run = Run::start(name)?;
        let segment = Segment::create(&run)?;
        if options.ipv6 {
            segment.with_ipv6()?;
        }
        if options.prefix != PREFIX {
            segment.with_prefix(options.prefix)?;
        }
        let tpm_dir = run.dir().join("tpm-gateway");
        swtpm::provision(GATEWAY_TEMPLATE, &tpm_dir)?;
        let tpm = Swtpm::start(&run, &segment.gw, "gateway", &tpm_dir)?;
        let desk = Desk {
            ns: segment.mgmt.clone(),
            files: run.dir().join("desk"),
            program: programs::vestibule()?,
        };
        let site = Self {
            run,
            segment,
            tpm,
            desk,
            options,
            daemon: None,
            honest: OnceLock::new(),
        };
        site.measure_boot()?;
        site.configure()?;
        site.claim()?;
        site.build_images(site.options.version, &site.image_dir())?;
        Ok(site)
    }

    /// The appliance's measured boot: the same three extends at every power-on.
    ///
    /// # Errors
    /// tpm2-tools refuses.
    pub fn measure_boot(&self) -> Result<()> {
        let extends = [(4, "4a"), (7, "7a"), (11, "ba")]
            .map(|(pcr, byte)| format!("{pcr}:sha256={}", byte.repeat(32)));
        output(self.tpm.tool("tpm2_pcrextend").args(extends), COMMAND_LIMIT)
            .map(drop)
            .context("measured boot of the appliance")
    }

    fn configure(&self) -> Result<()> {
        let dir = self.run.dir();
        for folder in ["state", "images", "desk", "ca", "ek-roots"] {
            fs::create_dir_all(dir.join(folder))?;
        }
        if self.options.ek_roots {
            let authority = swtpm::ek_authority()?;
            fs::copy(&authority.root, dir.join("ek-roots/root.pem"))?;
            fs::copy(&authority.issuer, dir.join("ek-roots/issuer.pem"))?;
        }
        let keys = site_keys()?;
        fs::copy(keys.image_public_key(), dir.join("image-key.pem"))?;
        self.declare("version = 1\n")?;
        if let Some(text) = &self.options.policy {
            self.write_policy(text)?;
        }
        fs::write(self.config(), config_text(dir, &self.options))?;
        Ok(())
    }

    /// Writes `inventory.toml`; the daemon reads it at its next start.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn declare(&self, text: &str) -> Result<()> {
        Ok(fs::write(self.run.dir().join("inventory.toml"), text)?)
    }

    /// Writes the policy file; the daemon reads it at its next start, if the site was made with one.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_policy(&self, text: &str) -> Result<()> {
        Ok(fs::write(self.run.dir().join("policy.toml"), text)?)
    }

    /// Pid of the running daemon.
    ///
    /// # Errors
    /// None was started.
    pub fn pid(&self) -> Result<u32> {
        self.daemon
            .as_ref()
            .map(Process::pid)
            .context("no daemon was started")
    }

    /// Processor seconds that the daemon has used since its start.
    pub fn cpu_secs(&self) -> f64 {
        self.daemon.as_ref().map_or(0.0, |d| cpu_secs(d.pid()))
    }

    /// Path of the configuration file.
    pub fn config(&self) -> PathBuf {
        self.run.dir().join("vestibule.toml")
    }

    /// Folder with the exported CA certificates.
    pub fn ca_dir(&self) -> PathBuf {
        self.run.dir().join("ca")
    }

    /// Folder of the state.
    pub fn state_dir(&self) -> PathBuf {
        self.run.dir().join("state")
    }

    /// Folder of the images.
    pub fn image_dir(&self) -> PathBuf {
        self.run.dir().join("images")
    }

    /// `vestibule args --config FILE` in the appliance's namespace.
    pub fn local(&self, args: &[&str]) -> Command {
        let mut command = self
            .segment
            .gw
            .command(&self.desk.program.to_string_lossy());
        command.args(args).arg("--config").arg(self.config());
        command
    }

    fn claim(&self) -> Result<()> {
        let mut claim = self.local(&["claim", "--local"]);
        output(claim.arg("--out").arg(&self.desk.files), COMMAND_LIMIT)
            .context("vestibule claim --local")?;
        let mut export = self.local(&["ca", "export"]);
        output(export.arg("--out").arg(self.ca_dir()), COMMAND_LIMIT)
            .context("vestibule ca export")?;
        Ok(())
    }

    /// Builds and signs the boot image with this site's anchor, as version `version`, into `out`.
    ///
    /// # Errors
    /// `boot-image build` fails.
    pub fn build_images(&self, version: u64, out: &Path) -> Result<()> {
        let mut build = Command::new(programs::find("boot-image")?);
        build
            .arg("build")
            .arg("--attester")
            .arg(programs::find("vestibule-attester")?)
            .arg("--anchor")
            .arg(self.ca_dir().join("infra-ca.pem"))
            .args(["--version", &version.to_string()])
            .args(["--ipxe-suite", self.options.ipxe_suite])
            .arg("--keys")
            .arg(keys_dir()?)
            .arg("--out")
            .arg(out);
        output(&mut build, BUILD_LIMIT)
            .map(drop)
            .context("boot-image build")
    }

    /// Adds a disk image to the catalogue; the daemon reads it at its next start.
    ///
    /// # Errors
    /// `boot-image disk` fails.
    pub fn add_disk(&self, file: &Path, name: &str, version: u64) -> Result<()> {
        let mut add = Command::new(programs::find("boot-image")?);
        add.arg("disk").arg(file).args(["--name", name]);
        add.args(["--version", &version.to_string()]);
        add.arg("--keys").arg(keys_dir()?);
        add.arg("--out").arg(self.image_dir());
        output(&mut add, BUILD_LIMIT)
            .map(drop)
            .context("boot-image disk")
    }

    /// The artefacts of the catalogue.
    ///
    /// # Errors
    /// The file is missing or not a catalogue.
    pub fn artefacts(&self) -> Result<Vec<Artefact>> {
        artefacts_of(&self.image_dir())
    }

    /// What a machine measures that boots our signed iPXE and UKI by PXE, as OVMF, iPXE and
    /// systemd-stub do it: the UKI twice under iPXE; the kernel inside it only in PCR 11.
    ///
    /// # Errors
    /// The images are missing or not what the catalogue says.
    pub fn honest_boot(&self) -> Result<Boot> {
        if let Some(boot) = self.honest.get() {
            return Ok(boot.clone());
        }
        let boot = self.boot_of(None)?;
        Ok(self.honest.get_or_init(|| boot).clone())
    }

    /// The same with this version of the UKI, else the newest.
    ///
    /// # Errors
    /// As [`Site::honest_boot`].
    pub fn boot_of(&self, version: Option<u64>) -> Result<Boot> {
        let artefacts = self.artefacts()?;
        let of = |kind, version: Option<u64>| {
            artefacts
                .iter()
                .filter(|a| a.kind == kind && version.is_none_or(|v| a.version == v))
                .max_by_key(|a| a.version)
                .with_context(|| format!("no {kind:?} in the catalogue"))
        };
        let (ipxe, uki) = (of(Kind::Ipxe, None)?, of(Kind::Uki, version)?);
        let bytes = fs::read(self.image_dir().join(&uki.file))?;
        Ok(Boot {
            secure_boot: true,
            db_cert: crate::http::certificates(&site_keys()?.db_certificate())?
                .first()
                .context("no db certificate")?
                .to_vec(),
            images: [&ipxe.pe_sha256, &uki.pe_sha256, &uki.pe_sha256]
                .into_iter()
                .map(|text| digest(text))
                .collect::<Result<_>>()?,
            stub: boot::measure::stub_events(&bytes)?,
            command_line: None,
        })
    }

    /// Starts the daemon and waits until it is ready.
    ///
    /// # Errors
    /// It ends, or is not ready within 30 s; the text has its last log lines.
    pub fn serve(&mut self) -> Result<Duration> {
        let started = Instant::now();
        self.launch()?;
        loop {
            if self
                .desk
                .health("/readyz")
                .is_ok_and(|(status, _)| status == 200)
            {
                return Ok(started.elapsed());
            }
            let ended = self.daemon.as_mut().and_then(Process::ended);
            if let Some(status) = ended {
                bail!("vestibule serve ended: {status}\n{}", self.log_tail());
            }
            if started.elapsed() > READY_LIMIT {
                bail!("vestibule serve is not ready\n{}", self.log_tail());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Starts the daemon and expects it to end by itself; returns exit code and log.
    ///
    /// # Errors
    /// It still runs after 30 s.
    pub fn serve_expecting_end(&mut self) -> Result<(Option<i32>, String)> {
        let before = self.log().len();
        self.launch()?;
        let mut daemon = self.daemon.take().context("no daemon")?;
        let status = daemon.wait(READY_LIMIT)?;
        Ok((status.code(), self.log()[before..].to_owned()))
    }

    fn launch(&mut self) -> Result<()> {
        if self.daemon.as_mut().is_some_and(|d| d.ended().is_none()) {
            bail!("the daemon runs already");
        }
        let mut command = match self.options.rtc {
            true => self.with_rtc(self.local(&["serve"]))?,
            false => self.local(&["serve"]),
        };
        self.daemon = Some(self.run.spawn("vestibule", &mut command)?);
        Ok(())
    }

    /// The same in a mount namespace whose /sys/class has a clock that has set the time: `ip netns exec` makes
    /// the namespace, so nobody else sees it.
    fn with_rtc(&self, command: Command) -> Result<Command> {
        let classes = self.run.dir().join("classes");
        fs::create_dir_all(classes.join("rtc/rtc9"))?;
        fs::write(classes.join("rtc/rtc9/hctosys"), "1\n")?;
        let script =
            "mount -t overlay overlay -o \"lowerdir=$0:/sys/class\" /sys/class && exec \"$@\"";
        // `ip netns exec NAME program args..`
        let words: Vec<_> = command.get_args().collect();
        let (netns, program) = words.split_at(3);
        let mut wrapped = Command::new(command.get_program());
        wrapped.args(netns).args(["sh", "-c", script]);
        wrapped.arg(classes).args(program);
        Ok(wrapped)
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        if let Some(daemon) = &mut self.daemon {
            daemon.kill();
        }
    }

    /// Stops the daemon as an init system does.
    ///
    /// # Errors
    /// It does not end cleanly within ten seconds.
    pub fn stop(&mut self) -> Result<()> {
        let Some(mut daemon) = self.daemon.take() else {
            return Ok(());
        };
        match daemon.terminate(Duration::from_secs(10)) {
            Some(status) if status.success() => Ok(()),
            other => bail!(
                "SIGTERM ended the daemon with {other:?}\n{}",
                self.log_tail()
            ),
        }
    }

    /// Whether the daemon still runs.
    pub fn running(&mut self) -> bool {
        self.daemon.as_mut().is_some_and(|d| d.ended().is_none())
    }

    /// Resident memory of the daemon in KiB (proc(5) `VmRSS`), and the most it had.
    pub fn memory_kib(&self) -> Option<(u64, u64)> {
        let pid = self.daemon.as_ref()?.pid();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let field = |name: &str| {
            status
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        };
        Some((field("VmRSS:")?, field("VmHWM:")?))
    }

    /// Everything the daemon has logged, over all its starts.
    pub fn log(&self) -> String {
        let raw = fs::read(self.run.log("vestibule")).unwrap_or_default();
        String::from_utf8_lossy(&raw).into_owned()
    }

    fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<_> = log.lines().collect();
        let from = lines.len().saturating_sub(20);
        lines[from..].iter().map(|l| format!("    {l}\n")).collect()
    }

    /// Every record in the lease journal on disk, whole frames or not.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn journal(&self) -> Result<Vec<JournalRecord>> {
        Self::journal_in(&self.state_dir())
    }

    /// The records of the journal in a state folder, in order.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn journal_in(state_dir: &Path) -> Result<Vec<JournalRecord>> {
        let path = state_dir.join(JOURNAL);
        let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(records_in(&bytes))
    }

    /// `vestibule ledger verify` over the ledger on disk.
    ///
    /// # Errors
    /// It does not verify; the text says why.
    pub fn verify_ledger(&self) -> Result<String> {
        let mut verify = Command::new(&self.desk.program);
        verify
            .args(["ledger", "verify"])
            .arg(self.state_dir().join("ledger"))
            .arg("--ca")
            .arg(self.ca_dir().join("infra-ca.pem"));
        let (status, out, err) = attempt(&mut verify, COMMAND_LIMIT)?;
        if !status.success() {
            bail!("ledger verify: {status}: {out}{err}");
        }
        Ok(out)
    }
}

/// The records in the bytes of a journal, in order. Between them lie line ends and the headers of
/// frames, whose bytes (lengths, sums, sequences) may be braces too: every brace is tried.
fn records_in(mut bytes: &[u8]) -> Vec<JournalRecord> {
    let mut records = Vec::new();
    while let Some(brace) = bytes.iter().position(|byte| *byte == b'{') {
        bytes = &bytes[brace..];
        let mut stream = serde_json::Deserializer::from_slice(bytes).into_iter::<JournalRecord>();
        let found = stream.next();
        let used = stream.byte_offset();
        bytes = match found {
            Some(Ok(record)) => {
                records.push(record);
                &bytes[used..]
            }
            _ => &bytes[1..],
        };
    }
    records
}

fn config_text(dir: &Path, options: &Options) -> String {
    let dir = dir.display();
    let pool = match options.dhcp_mode {
        "proxy" => String::new(),
        _ => format!(
            "[provisioning.pool]\nstart = \"{}\"\nend = \"{}\"\n",
            options.pool.0, options.pool.1
        ),
    };
    format!(
        r#"version = 1
[appliance]
name = "lab"
state_dir = "{dir}/state"
[provisioning]
interface = "prov0"
address = "{GATEWAY_ADDR}/{prefix}"
dhcp_mode = "{mode}"
lease_secs = {lease_secs}
conflict_probe_ms = {probe}
rogue_probe_secs = {rogue}
{pool}{ipv6}[management]
address = "{MGMT_ADDR}"
names = ["localhost"]
[tpm]
tcti = "{TCTI}"
[boot]
image_dir = "{dir}/images"
image_key = "{dir}/image-key.pem"
[inventory]
file = "{dir}/inventory.toml"
ek_roots_dir = "{dir}/ek-roots"
[policy]
{policy}
[devid]
kind = "{kind}"
auth = "{auth}"
[log]
format = "json"
filter = "{filter}"
{gate}
{more}
{talos}"#,
        more = options.more,
        talos = options
            .talos
            .unwrap_or_default()
            .replace("{dir}", &dir.to_string()),
        prefix = options.prefix,
        lease_secs = options.lease_secs,
        ipv6 = if options.ipv6 {
            ipv6_text()
        } else {
            String::new()
        },
        mode = options.dhcp_mode,
        probe = options.conflict_probe_ms,
        rogue = options.rogue_probe_secs,
        policy = match options.policy {
            Some(_) => format!("file = \"{dir}/policy.toml\""),
            None => format!("preset = \"{}\"", options.preset),
        },
        filter = options.log_filter,
        gate = options.gate,
        kind = options.devid_kind,
        auth = options.devid_auth,
    )
}

fn ipv6_text() -> String {
    let (start, end) = POOL6;
    format!(
        r#"[provisioning.ipv6]
address = "{GATEWAY_ADDR6}/64"
[provisioning.ipv6.pool]
start = "{start}"
end = "{end}"
"#
    )
}

/// The artefacts of the catalogue in `dir`.
///
/// # Errors
/// The file is missing or not a catalogue.
pub fn artefacts_of(dir: &Path) -> Result<Vec<Artefact>> {
    let path = dir.join("catalog.json");
    let text = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let manifest: Manifest =
        serde_json::from_slice(&text).with_context(|| format!("{}", path.display()))?;
    Ok(manifest.artefacts)
}

/// The lab's Secure Boot and image keys: made once, in the cache.
///
/// # Errors
/// They cannot be made or read.
pub fn site_keys() -> Result<boot_image::keys::SiteKeys> {
    Ok(boot_image::keys::SiteKeys::load_or_generate(
        &keys_dir()?,
        "Vestibule lab",
    )?)
}

fn keys_dir() -> Result<PathBuf> {
    let dir = cache_dir()?.join("lab/keys");
    if let Some(parent) = dir.parent() {
        fs::create_dir_all(parent)?;
    }
    Ok(dir)
}

/// The firmware of the lab's machines.
pub struct Firmware {
    /// Code flash.
    pub code: PathBuf,
    /// Variable flash with our keys, in the run's folder.
    pub vars: PathBuf,
    /// CA list for the firmware's TLS.
    pub tls_cas: PathBuf,
    /// Version of the package.
    pub version: String,
}

impl Firmware {
    /// OVMF of Debian sid (its TLS speaks ECDHE), with the lab's keys enrolled and the site's boot
    /// CA trusted; files are written to `dir`.
    ///
    /// # Errors
    /// The package cannot be had, or its variable store is not the expected one.
    pub fn prepare(dir: &Path, boot_ca: &Path) -> Result<Self> {
        let package = boot_image::debs::fetch("sid", "ovmf-generic")?;
        if let Some(from) = &package.changed_from {
            println!(
                "warning: OVMF of sid moved from {from} to {}",
                package.version
            );
        }
        let code = find_file(&package.root, "OVMF_CODE_4M.secboot.fd")?;
        let template = find_file(&package.root, "OVMF_VARS_4M.fd")?;
        let keys = site_keys()?;
        let vars = dir.join("vars-enrolled.fd");
        fs::write(&vars, keys.enrolled_vars(&template)?)?;
        let tls_cas = dir.join("tls-cas.esl");
        fs::write(&tls_cas, keys.https_ca_list(&[boot_ca])?)?;
        Ok(Self {
            code,
            vars,
            tls_cas,
            version: package.version,
        })
    }
}

fn digest(hex_text: &str) -> Result<[u8; 32]> {
    let mut out = [0; 32];
    hex::decode_to_slice(hex_text, &mut out).with_context(|| format!("{hex_text:?}"))?;
    Ok(out)
}

/// The first file of this name under `root`; a link counts.
///
/// # Errors
/// There is none.
pub fn find_file(root: &Path, name: &str) -> Result<PathBuf> {
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.file_name().is_some_and(|n| n == name) {
                return Ok(path);
            }
            if path.is_dir() && !path.is_symlink() {
                folders.push(path);
            }
        }
    }
    bail!("no {name} under {}", root.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_between_records_hide_none() {
        let json: &[u8] = br#"{"kind":"mark","mac":"52:54:00:66:00:01","machine":null,"step":"boot","at":1,"detail":"x"}"#;
        for header in [&b"\n"[..], b"R\x05\0\n", b"v\x07R{\0{\0", b"{", b""] {
            let bytes = [b"H{", json, header, json, header].concat();
            assert_eq!(records_in(&bytes).len(), 2, "{header:?}");
        }
        assert!(records_in(b"R{{{").is_empty());
    }

    #[test]
    fn the_daemon_takes_the_configuration() {
        for (ipv6, dhcp_mode) in [(false, "server"), (true, "server"), (false, "proxy")] {
            let options = Options {
                ipv6,
                dhcp_mode,
                ..Options::default()
            };
            let text = config_text(Path::new("/x"), &options);
            let config = gateway::config::Config::parse(&text, Path::new("/"));
            assert!(config.is_ok(), "{config:?}");
        }
    }
}

//! Real TPMs in software: made once, kept in the cache, copied for each run.
//!
//! A template is one manufactured TPM with its own EKs and certificates from the lab's own
//! authority. A machine of a run is a copy of one template, so no two machines of a run may use
//! the same one (unless a scenario wants a clone).

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::fcntl::{Flock, FlockArg};

use crate::netns::Netns;
use crate::run::{Process, Run, cache_dir, output};

/// TCP port of the commands in each namespace; control is the next one.
pub const PORT: u16 = 2321;
/// TCTI of a simulated TPM, from within its namespace.
pub const TCTI: &str = "swtpm:host=127.0.0.1,port=2321";

const SETUP_LIMIT: Duration = Duration::from_secs(60);
const START_LIMIT: Duration = Duration::from_secs(10);

/// The authority that signs the EK certificates of all templates.
pub struct EkAuthority {
    /// Root certificate, PEM.
    pub root: PathBuf,
    /// Issuing certificate, PEM.
    pub issuer: PathBuf,
}

/// Copies template `index` (made when missing) into `dir`.
///
/// # Errors
/// `swtpm_setup` fails, or the cache cannot be written.
pub fn provision(index: usize, dir: &Path) -> Result<()> {
    let template = template(index)?;
    fs::create_dir_all(dir)?;
    fs::copy(template.join(STATE_FILE), dir.join(STATE_FILE))
        .with_context(|| format!("cannot copy the TPM state to {}", dir.display()))?;
    Ok(())
}

/// An empty `dir` for a TPM that makes itself at its first start: seeds of its own, no certificates. For
/// hundreds of them, since manufacturing one takes a second.
///
/// # Errors
/// The folder cannot be made.
pub fn blank(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))
}

/// The authority's certificates.
///
/// # Errors
/// As [`provision`].
pub fn ek_authority() -> Result<EkAuthority> {
    template(0)?;
    let ca = cache()?.join("ca");
    Ok(EkAuthority {
        root: ca.join("swtpm-localca-rootca-cert.pem"),
        issuer: ca.join("issuercert.pem"),
    })
}

/// swtpm's file of everything that survives a power cut.
const STATE_FILE: &str = "tpm2-00.permall";

fn cache() -> Result<PathBuf> {
    let version = output(Command::new("swtpm").arg("--version"), START_LIMIT)?;
    // "TPM emulator version 0.7.1, Copyright ..": the state format may change with it.
    let version = version
        .split_whitespace()
        .nth(3)
        .unwrap_or("unknown")
        .trim_end_matches(',')
        .to_owned();
    Ok(cache_dir()?.join("swtpm").join(version))
}

fn template(index: usize) -> Result<PathBuf> {
    let cache = cache()?;
    let dir = cache.join(format!("tpm-{index:03}"));
    if dir.join(STATE_FILE).exists() {
        return Ok(dir);
    }
    fs::create_dir_all(&cache)?;
    // Serial numbers and the authority are one file each: two setups at once damage them.
    let lock = File::create(cache.join("lock"))?;
    let _lock = Flock::lock(lock, FlockArg::LockExclusive)
        .map_err(|(_, errno)| errno)
        .context("cannot lock the swtpm cache")?;
    if dir.join(STATE_FILE).exists() {
        return Ok(dir);
    }
    let making = cache.join(format!("making-{index:03}"));
    let _ = fs::remove_dir_all(&making);
    fs::create_dir_all(&making)?;
    let setup = write_authority(&cache.join("ca"))?;
    let vmid = format!("lab-{index:03}");
    let said = output(
        Command::new("swtpm_setup")
            .args(["--tpm2", "--create-ek-cert", "--create-platform-cert"])
            .args(["--lock-nvram", "--pcr-banks", "sha256", "--overwrite"])
            .args(["--vmid", &vmid])
            .arg("--tpmstate")
            .arg(&making)
            .arg("--config")
            .arg(&setup),
        SETUP_LIMIT,
    )
    .context("swtpm_setup")?;
    if !making.join(STATE_FILE).exists() {
        bail!("swtpm_setup left no {STATE_FILE}: {said}");
    }
    fs::rename(&making, &dir)?;
    Ok(dir)
}

fn write_authority(ca: &Path) -> Result<PathBuf> {
    fs::create_dir_all(ca)?;
    let dir = ca.display();
    let local = ca.join("localca.conf");
    fs::write(
        &local,
        format!(
            "statedir = {dir}\nsigningkey = {dir}/signkey.pem\nissuercert = {dir}/issuercert.pem\ncertserial = {dir}/certserial\n"
        ),
    )?;
    let options = ca.join("localca.options");
    fs::write(
        &options,
        "--tpm-manufacturer id:00001014\n--tpm-model swtpm\n--tpm-version id:20191023\n\
         --platform-manufacturer Lab\n--platform-version 1.0\n--platform-model Node\n",
    )?;
    let tool = find_program("swtpm_localca")?;
    let setup = ca.join("setup.conf");
    fs::write(
        &setup,
        format!(
            "create_certs_tool = {}\ncreate_certs_tool_config = {}\ncreate_certs_tool_options = {}\nactive_pcr_banks = sha256\n",
            tool.display(),
            local.display(),
            options.display()
        ),
    )?;
    Ok(setup)
}

fn find_program(name: &str) -> Result<PathBuf> {
    ["/usr/bin", "/usr/local/bin", "/usr/share/swtpm"]
        .iter()
        .map(|dir| Path::new(dir).join(name))
        .find(|path| path.exists())
        .with_context(|| format!("{name} is not installed (package swtpm-tools)"))
}

/// A running TPM with commands over TCP inside one namespace.
pub struct Swtpm {
    process: Process,
    dir: PathBuf,
    ns: Netns,
    name: String,
}

impl Swtpm {
    /// Starts the TPM in `dir` (see [`provision`]) and does `TPM2_Startup(CLEAR)`.
    ///
    /// # Errors
    /// It does not listen within ten seconds.
    pub fn start(run: &Run, ns: &Netns, name: &str, dir: &Path) -> Result<Self> {
        let process = Self::launch(run, ns, name, dir)?;
        Ok(Self {
            process,
            dir: dir.to_owned(),
            ns: ns.clone(),
            name: name.to_owned(),
        })
    }

    fn launch(run: &Run, ns: &Netns, name: &str, dir: &Path) -> Result<Process> {
        let mut command = ns.command("swtpm");
        command
            .args(["socket", "--tpm2", "--tpmstate"])
            .arg(format!("dir={},mode=0600", dir.display()))
            .args([
                "--server",
                &format!("type=tcp,port={PORT},bindaddr=127.0.0.1"),
            ])
            .args([
                "--ctrl",
                &format!("type=tcp,port={},bindaddr=127.0.0.1", PORT + 1),
            ])
            .args(["--flags", "not-need-init,startup-clear"]);
        let mut process = run.spawn(&format!("swtpm-{name}"), &mut command)?;
        let started = Instant::now();
        // The control port: a connection to the command port would count as the one client.
        while ns
            .enter(|| Ok(TcpStream::connect(("127.0.0.1", PORT + 1)).is_ok()))
            .is_ok_and(|up| !up)
        {
            if let Some(status) = process.ended() {
                bail!(
                    "swtpm of {name} ended at once: {status}; see {}",
                    run.log(&format!("swtpm-{name}")).display()
                );
            }
            if started.elapsed() > START_LIMIT {
                bail!("swtpm of {name} does not listen");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(process)
    }

    /// A power cut and a power-on: volatile state is lost, PCRs start at zero.
    ///
    /// # Errors
    /// As [`Swtpm::start`].
    pub fn power_cycle(&mut self, run: &Run) -> Result<()> {
        self.shut_down();
        self.process.kill();
        let _ = fs::remove_file(self.socket());
        self.process = Self::launch(run, &self.ns, &self.name, &self.dir)?;
        Ok(())
    }

    /// Off and on with commands over a Unix socket, which go-tpm opens like a device;
    /// [`Swtpm::power_cycle`] goes back to TCP.
    ///
    /// # Errors
    /// As [`Swtpm::start`].
    pub fn on_socket(&mut self, run: &Run) -> Result<PathBuf> {
        self.shut_down();
        self.process.kill();
        let socket = self.socket();
        let _ = fs::remove_file(&socket);
        let mut command = Command::new("swtpm");
        command
            .args(["socket", "--tpm2", "--tpmstate"])
            .arg(format!("dir={},mode=0600", self.dir.display()))
            .arg("--server")
            .arg(format!("type=unixio,path={}", socket.display()))
            .args(["--flags", "not-need-init,startup-clear"]);
        self.process = run.spawn(&format!("swtpm-{}", self.name), &mut command)?;
        wait_socket(&mut self.process, &self.name, &socket)?;
        Ok(socket)
    }

    /// `TPM2_Shutdown(CLEAR)` where SPIRE's agent used the TPM: its AK is under dictionary-attack protection,
    /// each stop without this counts as a failed try, and the third locks the TPM for a quarter of an hour.
    fn shut_down(&self) {
        const SHUTDOWN: [u8; 12] = [0x80, 1, 0, 0, 0, 12, 0, 0, 1, 0x45, 0, 0];
        if let Ok(mut stream) = UnixStream::connect(self.socket()) {
            let _ = stream.set_read_timeout(Some(Duration::from_secs(2)));
            let _ = stream.write_all(&SHUTDOWN);
            let mut answer = [0; 10];
            let _ = stream.read_exact(&mut answer);
        }
    }

    /// Where [`Swtpm::on_socket`] listens.
    pub fn socket(&self) -> PathBuf {
        self.dir.join("commands.sock")
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Cuts the power.
    pub fn stop(&mut self) {
        self.process.kill();
    }

    /// A tpm2-tools command against this TPM.
    pub fn tool(&self, program: &str) -> Command {
        let mut command = self.ns.command(program);
        command.env("TPM2TOOLS_TCTI", TCTI);
        command
    }
}

/// Starts the TPM in `dir` for QEMU: control over a Unix socket, data passed by descriptor.
///
/// # Errors
/// No socket within ten seconds.
pub fn start_for_qemu(run: &Run, name: &str, dir: &Path, socket: &Path) -> Result<Process> {
    let _ = fs::remove_file(socket);
    let mut process = run.spawn(
        &format!("swtpm-{name}"),
        Command::new("swtpm")
            .args(["socket", "--tpm2", "-t", "--tpmstate"])
            .arg(format!("dir={},mode=0600", dir.display()))
            .arg("--ctrl")
            .arg(format!("type=unixio,path={}", socket.display())),
    )?;
    wait_socket(&mut process, name, socket)?;
    Ok(process)
}

fn wait_socket(process: &mut Process, name: &str, socket: &Path) -> Result<()> {
    let started = Instant::now();
    while !socket.exists() {
        if let Some(status) = process.ended() {
            bail!("swtpm of {name} ended at once: {status}");
        }
        if started.elapsed() > START_LIMIT {
            bail!("swtpm of {name} made no socket");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Asks a QEMU monitor to end the machine.
pub fn monitor_quit(socket: &Path) {
    if let Ok(mut stream) = UnixStream::connect(socket) {
        let _ = stream.set_write_timeout(Some(Duration::from_secs(1)));
        let _ = stream.write_all(b"quit\n");
    }
}

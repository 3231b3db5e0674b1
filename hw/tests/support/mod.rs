//! A real swtpm for tests: manufactured with EK certificates, started on a free pair of loopback
//! ports, ended by its pid.

#![allow(dead_code)]

use std::fs;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// A software TPM with its own state.
pub struct Swtpm {
    state: TempDir,
    child: Option<Child>,
    port: u16,
}

impl Swtpm {
    /// Manufactures and starts one; `None` (and a SKIP line) when swtpm is not installed.
    pub fn start() -> Option<Self> {
        for tool in ["swtpm", "swtpm_setup"] {
            let found = Command::new(tool)
                .arg("--version")
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status();
            if found.is_err() {
                println!("SKIP {tool} is not installed");
                return None;
            }
        }
        let state = tempfile::tempdir().expect("temporary folder");
        manufacture(state.path());
        let mut swtpm = Self {
            state,
            child: None,
            port: 0,
        };
        swtpm.power_on();
        Some(swtpm)
    }

    /// What `hw` opens.
    pub fn tcti(&self) -> String {
        format!("swtpm:host=127.0.0.1,port={}", self.port)
    }

    /// Command port; the control port is the next one.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Cuts the power (no TPM2_Shutdown) and starts again: PCRs are reset, the seeds stay.
    pub fn power_cycle(&mut self) {
        self.power_off();
        self.power_on();
    }

    fn power_off(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("swtpm can be killed");
            child.wait().expect("swtpm can be waited for");
        }
    }

    fn power_on(&mut self) {
        for _ in 0..20 {
            self.port = free_port_pair();
            let mut child = Command::new("swtpm")
                .args(["socket", "--tpm2", "--flags", "not-need-init,startup-clear"])
                .arg("--tpmstate")
                .arg(format!("dir={}", self.state.path().display()))
                .arg("--server")
                .arg(format!("type=tcp,bindaddr=127.0.0.1,port={}", self.port))
                .arg("--ctrl")
                .arg(format!(
                    "type=tcp,bindaddr=127.0.0.1,port={}",
                    self.port + 1
                ))
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .expect("swtpm starts");
            let deadline = Instant::now() + Duration::from_secs(10);
            while Instant::now() < deadline && child.try_wait().expect("swtpm status").is_none() {
                if TcpStream::connect((Ipv4Addr::LOCALHOST, self.port + 1)).is_ok() {
                    self.child = Some(child);
                    return;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            let _ = child.kill();
            let _ = child.wait();
        }
        panic!("swtpm did not start");
    }
}

impl Drop for Swtpm {
    fn drop(&mut self) {
        self.power_off();
    }
}

fn free_port_pair() -> u16 {
    for _ in 0..200 {
        let first = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = first.local_addr().expect("its address").port();
        if port < u16::MAX && TcpListener::bind((Ipv4Addr::LOCALHOST, port + 1)).is_ok() {
            return port;
        }
    }
    panic!("no free pair of ports");
}

/// Runs `swtpm_setup` with a private CA; one at a time on this machine, since parallel runs fail.
fn manufacture(state: &Path) {
    let lock = fs::File::create(std::env::temp_dir().join("vestibule-swtpm-setup.lock"))
        .expect("lock file");
    let _lock = nix::fcntl::Flock::lock(lock, nix::fcntl::FlockArg::LockExclusive)
        .map_err(|(_, error)| error)
        .expect("lock");
    let ca = state.join("ca");
    fs::create_dir(&ca).expect("CA folder");
    let write = |name: &str, text: String| -> PathBuf {
        let path = ca.join(name);
        fs::write(&path, text).expect("configuration file");
        path
    };
    let at = |name: &str| ca.join(name).display().to_string();
    let localca = write(
        "localca.conf",
        format!(
            "statedir = {}\nsigningkey = {}\nissuercert = {}\ncertserial = {}\n",
            ca.display(),
            at("signkey.pem"),
            at("issuercert.pem"),
            at("certserial")
        ),
    );
    let options = write(
        "localca.options",
        "--tpm-manufacturer id:00001014\n--tpm-model swtpm\n--tpm-version id:20191023\n\
         --platform-manufacturer Lab\n--platform-version 1.0\n--platform-model QEMU\n"
            .to_owned(),
    );
    let setup = write(
        "setup.conf",
        format!(
            "create_certs_tool=swtpm_localca\ncreate_certs_tool_config={}\n\
             create_certs_tool_options={}\nactive_pcr_banks = sha256\n",
            localca.display(),
            options.display()
        ),
    );
    // swtpm_setup wants the tool by its full path.
    let tool = which("swtpm_localca").expect("swtpm_localca comes with swtpm_setup");
    let text = fs::read_to_string(&setup).expect("just written");
    fs::write(
        &setup,
        text.replace("=swtpm_localca", &format!("={}", tool.display())),
    )
    .expect("configuration file");
    let output = Command::new("swtpm_setup")
        .args([
            "--tpm2",
            "--create-ek-cert",
            "--create-platform-cert",
            "--lock-nvram",
        ])
        .args([
            "--pcr-banks",
            "sha256",
            "--overwrite",
            "--vmid",
            "test",
            "--tpmstate",
        ])
        .arg(state)
        .arg("--config")
        .arg(&setup)
        .output()
        .expect("swtpm_setup runs");
    assert!(
        output.status.success(),
        "swtpm_setup: {}",
        String::from_utf8_lossy(&output.stdout)
    );
}

fn which(tool: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|folder| folder.join(tool))
        .find(|path| path.is_file())
}

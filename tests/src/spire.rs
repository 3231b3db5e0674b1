//! The real spire-server and spire-agent, built from the module proxy as `tests/spire/go.mod` pins them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::netns::Netns;
use crate::run::{Process, Run, attempt, cache_dir, output};

/// Trust domain of the lab.
pub const TRUST_DOMAIN: &str = "example.org";
/// Where the server listens in its namespace.
pub const SERVER: &str = "127.0.0.1:8081";

const MODULE: [(&str, &str); 2] = [
    ("go.mod", include_str!("../spire/go.mod")),
    ("go.sum", include_str!("../spire/go.sum")),
];
const PACKAGE: &str = "github.com/spiffe/spire";
const VERSION_LIMIT: Duration = Duration::from_secs(60);
/// Cold on two cores it takes about ten minutes when others share them.
const BUILD_LIMIT: Duration = Duration::from_secs(1_500);
const LIMIT: Duration = Duration::from_secs(30);
const UP_LIMIT: Duration = Duration::from_secs(20);

/// The two programs and the source they were built from.
pub struct Programs {
    server: PathBuf,
    agent: PathBuf,
    /// SPIRE's own `policy_data.json`.
    pub policy_data: PathBuf,
}

/// The programs, built once for each `go.sum` into the cache; none and why without Go or C compiler.
///
/// # Errors
/// The build fails.
pub fn programs() -> Result<std::result::Result<Programs, String>> {
    let sum = hex::encode(Sha256::digest(MODULE[1].1));
    let cache = cache_dir()?.join("spire").join(&sum[..16]);
    let programs = Programs {
        server: cache.join("spire-server"),
        agent: cache.join("spire-agent"),
        policy_data: cache.join("policy_data.json"),
    };
    if programs.policy_data.is_file() {
        return Ok(Ok(programs));
    }
    if let Err(why) = tools() {
        return Ok(Err(why));
    }
    let making = cache.with_extension("making");
    fs::create_dir_all(&making)?;
    for (name, text) in MODULE {
        fs::write(making.join(name), text)?;
    }
    println!(
        "lab: building spire-server and spire-agent into {}",
        cache.display()
    );
    let started = Instant::now();
    let go = |args: &[&str]| {
        let mut go = Command::new("go");
        // The data store is SQLite in C. A go.mod that asks for a newer Go brings it itself.
        go.args(args)
            .current_dir(&making)
            .env("GOBIN", &making)
            .env("GOFLAGS", "-mod=readonly -buildvcs=false -p=2")
            .env("GOTOOLCHAIN", "auto")
            .env("CGO_ENABLED", "1");
        go
    };
    let mut install = go(&["install", "-trimpath", "-ldflags=-s -w"]);
    install.args(["spire-server", "spire-agent"].map(|name| format!("{PACKAGE}/cmd/{name}")));
    output(&mut install, BUILD_LIMIT).context("go install")?;
    let dir = output(&mut go(&["list", "-m", "-f", "{{.Dir}}", PACKAGE]), LIMIT)?;
    let data = Path::new(dir.trim()).join("pkg/server/authpolicy/policy_data.json");
    fs::create_dir_all(&cache)?;
    for name in ["spire-server", "spire-agent"] {
        fs::rename(making.join(name), cache.join(name))?;
    }
    fs::copy(&data, &programs.policy_data).with_context(|| data.display().to_string())?;
    println!("lab: SPIRE built in {} s", started.elapsed().as_secs());
    let _ = fs::remove_dir_all(&making);
    Ok(Ok(programs))
}

/// Whether SPIRE can be built here: a Go that brings the version that `go.mod` asks for (1.21 and newer do),
/// and a C compiler.
fn tools() -> std::result::Result<(), String> {
    let mut go = Command::new("go");
    let version = output(go.args(["env", "GOVERSION"]), VERSION_LIMIT).unwrap_or_default();
    let minor = version.trim().strip_prefix("go1.");
    let minor = minor.and_then(|rest| rest.split('.').next()?.parse::<u32>().ok());
    if minor.is_none_or(|minor| minor < 21) {
        let found = match version.trim() {
            "" => "none",
            version => version,
        };
        return Err(format!(
            "SPIRE is built with Go 1.21 or newer, found {found}"
        ));
    }
    match attempt(Command::new("cc").arg("--version"), VERSION_LIMIT) {
        Ok((status, ..)) if status.success() => Ok(()),
        _ => Err("SPIRE is built with a C compiler, found none".to_owned()),
    }
}

/// A running server.
pub struct Server {
    process: Option<Process>,
    program: PathBuf,
    ns: Netns,
    dir: PathBuf,
}

impl Server {
    /// Writes the configuration: `device_ca` and `ek_ca` are what the appliance exports, `policy` the
    /// authorization policy that ships with it.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn new(
        programs: &Programs,
        run: &Run,
        ns: &Netns,
        device_ca: &Path,
        ek_ca: &Path,
        policy: &str,
    ) -> Result<Self> {
        let dir = run.dir().join("spire");
        fs::create_dir_all(&dir)?;
        fs::write(dir.join("vestibule.rego"), policy)?;
        let (folder, data) = (dir.display(), programs.policy_data.display());
        let (device_ca, ek_ca) = (device_ca.display(), ek_ca.display());
        let text = format!(
            r#"server {{
  bind_address = "127.0.0.1"
  bind_port = "8081"
  socket_path = "{folder}/api.sock"
  trust_domain = "{TRUST_DOMAIN}"
  data_dir = "{folder}"
  log_level = "DEBUG"
  admin_ids = ["spiffe://{TRUST_DOMAIN}/vestibule"]
  ratelimit {{ attestation = false }}
  experimental {{
    cache_reload_interval = "1s"
    auth_opa_policy_engine {{ local {{
      rego_path = "{folder}/vestibule.rego"
      policy_data_path = "{data}"
    }} }}
  }}
}}
plugins {{
  DataStore "sql" {{ plugin_data {{ database_type = "sqlite3", connection_string = "{folder}/db.sqlite3" }} }}
  KeyManager "memory" {{ plugin_data {{}} }}
  NodeAttestor "tpm_devid" {{ plugin_data {{
    devid_ca_path = "{device_ca}"
    endorsement_ca_path = "{ek_ca}"
  }} }}
}}
"#
        );
        fs::write(dir.join("server.conf"), text)?;
        Ok(Self {
            process: None,
            program: programs.server.clone(),
            ns: ns.clone(),
            dir,
        })
    }

    /// Its socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.join("api.sock")
    }

    /// Starts it, waits until it is healthy, and writes its bundle.
    ///
    /// # Errors
    /// It is not healthy within 20 s.
    pub fn start(&mut self, run: &Run) -> Result<()> {
        let mut command = self.ns.command(&self.program.to_string_lossy());
        command.arg("run").arg("-config");
        command.arg(self.dir.join("server.conf"));
        let mut process = run.spawn("spire-server", &mut command)?;
        let started = Instant::now();
        while self.ask(&["healthcheck"]).is_err() {
            if let Some(status) = process.ended() {
                bail!("spire-server ended: {status}");
            }
            ensure!(started.elapsed() < UP_LIMIT, "spire-server is not healthy");
            std::thread::sleep(Duration::from_millis(100));
        }
        self.process = Some(process);
        fs::write(self.bundle(), self.ask(&["bundle", "show"])?)?;
        Ok(())
    }

    /// The trust domain's bundle, PEM.
    pub fn bundle(&self) -> PathBuf {
        self.dir.join("bundle.pem")
    }

    /// `spire-server ARGS -socketPath ..`: what it says.
    ///
    /// # Errors
    /// It fails.
    pub fn ask(&self, args: &[&str]) -> Result<String> {
        let mut command = Command::new(&self.program);
        command.args(args).arg("-socketPath").arg(self.socket());
        output(&mut command, LIMIT)
    }

    /// The same as JSON.
    ///
    /// # Errors
    /// It fails, or is no JSON.
    pub fn json(&self, args: &[&str]) -> Result<Value> {
        let said = self.ask(&[args, &["-output", "json"]].concat())?;
        serde_json::from_str(&said).with_context(|| said.clone())
    }

    /// Ids and selectors of the entries.
    ///
    /// # Errors
    /// As [`Server::json`].
    pub fn entries(&self) -> Result<Vec<Value>> {
        let all = self.json(&["entry", "show"])?;
        Ok(all["entries"].as_array().cloned().unwrap_or_default())
    }

    /// The agents that have attested, by the last segment of their SPIFFE ID; `true` for a banned one.
    ///
    /// # Errors
    /// As [`Server::json`].
    pub fn agents(&self) -> Result<Vec<(String, bool)>> {
        let all = self.json(&["agent", "list"])?;
        let agents = all["agents"].as_array().cloned().unwrap_or_default();
        Ok(agents
            .iter()
            .map(|agent| {
                let path = agent["id"]["path"].as_str().unwrap_or_default();
                let name = path.rsplit('/').next().unwrap_or_default();
                (name.to_owned(), agent["banned"] == true)
            })
            .collect())
    }
}

/// What an agent is given.
pub struct Blobs<'a> {
    /// Certificates, DER, leaf first.
    pub chain: &'a [Vec<u8>],
    /// The key.
    pub devid: &'a hw::tpm::DevId,
}

/// A machine's agent.
pub struct Agent {
    process: Process,
    program: PathBuf,
    socket: PathBuf,
    log: PathBuf,
    out: PathBuf,
}

impl Agent {
    /// Writes blobs and configuration into a folder of their own and starts the agent against the TPM
    /// behind the socket.
    ///
    /// # Errors
    /// It cannot start.
    pub fn start(
        programs: &Programs,
        server: &Server,
        run: &Run,
        name: &str,
        tpm: &Path,
        blobs: &Blobs<'_>,
    ) -> Result<Self> {
        let dir = run.dir().join(format!("agent-{name}"));
        fs::create_dir_all(&dir)?;
        // As the attester writes them on a real machine.
        let receipt = attest_wire::v1::Receipt {
            body: Vec::new().into(),
            sig: Vec::new().into(),
            chain: Vec::new(),
        };
        attester::output::write(&dir, blobs.chain, blobs.devid, &receipt)?;
        let password = blobs.devid.auth.as_ref().map_or("", |auth| auth.as_str());
        let (folder, bundle, tpm) = (dir.display(), server.bundle(), tpm.display());
        let bundle = bundle.display();
        let text = format!(
            r#"agent {{
  data_dir = "{folder}/data"
  log_level = "DEBUG"
  server_address = "127.0.0.1"
  server_port = "8081"
  socket_path = "{folder}/agent.sock"
  trust_bundle_path = "{bundle}"
  trust_domain = "{TRUST_DOMAIN}"
}}
plugins {{
  KeyManager "memory" {{ plugin_data {{}} }}
  NodeAttestor "tpm_devid" {{ plugin_data {{
    tpm_device_path = "{tpm}"
    devid_cert_path = "{folder}/chain.pem"
    devid_priv_path = "{folder}/devid.priv"
    devid_pub_path = "{folder}/devid.pub"
    devid_password = "{password}"
  }} }}
  WorkloadAttestor "unix" {{ plugin_data {{}} }}
}}
"#
        );
        fs::write(dir.join("agent.conf"), text)?;
        // A cold start: nothing but the blobs is kept.
        let _ = fs::remove_dir_all(dir.join("data"));
        let log = format!("spire-agent-{name}");
        let _ = fs::remove_file(run.log(&log));
        let mut command = server.ns.command(&programs.agent.to_string_lossy());
        command
            .arg("run")
            .arg("-config")
            .arg(dir.join("agent.conf"));
        Ok(Self {
            process: run.spawn(&log, &mut command)?,
            program: programs.agent.clone(),
            socket: dir.join("agent.sock"),
            log: run.log(&log),
            out: dir,
        })
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until it has attested.
    ///
    /// # Errors
    /// It ends, or takes longer than 30 s; the text has its errors.
    pub fn attested(&mut self) -> Result<()> {
        let started = Instant::now();
        while !self.log().contains("Node attestation was successful") {
            if self.process.ended().is_some() {
                bail!("the agent ended: {}", self.errors());
            }
            ensure!(started.elapsed() < LIMIT, "not attested: {}", self.errors());
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Waits until it has said why it does not attest. An agent that is refused for good ends, one that
    /// might be let in later tries again.
    ///
    /// # Errors
    /// It attests, ends with other words, or says nothing within 30 s.
    pub fn refused(&mut self, why: &str) -> Result<()> {
        let started = Instant::now();
        while !self.errors().contains(why) {
            let attested = self.log().contains("Node attestation was successful");
            ensure!(!attested, "it attested");
            let ended = self.process.ended().is_some();
            let late = started.elapsed() > LIMIT;
            // Once more: its last words may have come with its end.
            if (ended || late) && !self.errors().contains(why) {
                bail!("{}", self.errors());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Waits until it has ended.
    ///
    /// # Errors
    /// It runs on.
    pub fn ended(&mut self, limit: Duration) -> Result<()> {
        self.process.wait(limit).map(drop)
    }

    fn errors(&self) -> String {
        let log = self.log();
        let bad = ["level=error", "level=warning"];
        let wrong = log
            .lines()
            .filter(|line| bad.iter().any(|level| line.contains(level)));
        wrong.collect::<Vec<_>>().join("\n")
    }

    /// A workload's X.509-SVID by the Workload API, tried until this time has passed: the file with it.
    ///
    /// # Errors
    /// None.
    pub fn fetch(&self, limit: Duration) -> Result<PathBuf> {
        let started = Instant::now();
        loop {
            let mut fetch = Command::new(&self.program);
            fetch.args(["api", "fetch", "x509", "-silent", "-timeout", "2s"]);
            fetch.arg("-socketPath").arg(&self.socket);
            fetch.arg("-write").arg(&self.out);
            let (status, said, err) = attempt(&mut fetch, LIMIT)?;
            if status.success() {
                return Ok(self.out.join("svid.0.pem"));
            }
            if started.elapsed() > limit {
                bail!("no SVID: {said}{err}");
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

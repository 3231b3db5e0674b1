//! The administrator at the desk: the admin API over mTLS, and the real command line.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use gateway_core::identity::MachineId;
use gateway_core::record::Record;
use gateway_core::view::{LedgerView, MachineView, TimelineEntry};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::http::{Client, Tls, TlsClient};
use crate::netns::{MGMT_ADDR, Netns};
use crate::run::attempt;

/// Port of the admin endpoint.
pub const ADMIN_PORT: u16 = 9443;
/// Port of health and metrics.
pub const HEALTH_PORT: u16 = 9100;

const LIMIT: Duration = Duration::from_secs(20);
/// Entries asked for at once.
const PAGE: usize = 200;

/// The administrator's desk: its namespace and the folder with the owner's files.
#[derive(Clone)]
pub struct Desk {
    /// Namespace.
    pub ns: Netns,
    /// `owner.pem`, `owner.key`, `admin-ca.pem`.
    pub files: PathBuf,
    /// The `vestibule` binary.
    pub program: PathBuf,
}

impl Desk {
    /// Address of the admin endpoint.
    pub fn url() -> String {
        format!("https://{MGMT_ADDR}:{ADMIN_PORT}")
    }

    /// One request with the owner's certificate.
    ///
    /// # Errors
    /// No connection or no HTTP answer; a status above 299 is an answer.
    pub fn request(&self, method: &str, path: &str, body: &[u8]) -> Result<(u16, Vec<u8>)> {
        let tls = Tls {
            ca_pem: self.files.join("admin-ca.pem"),
            identity: Some((self.files.join("owner.pem"), self.files.join("owner.key"))),
        };
        let config = tls.config()?;
        let response = self.ns.enter(|| {
            let addr = SocketAddr::from((MGMT_ADDR, ADMIN_PORT));
            let headers = [
                ("Content-Type", "application/json"),
                ("Connection", "close"),
            ];
            TlsClient::connect(addr, config, LIMIT)?.request(method, path, &headers, body)
        })?;
        Ok((response.status, response.body))
    }

    /// `GET path`, decoded.
    ///
    /// # Errors
    /// Not 200, or not what was expected.
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        let (status, body) = self.request("GET", path, b"")?;
        let text = String::from_utf8_lossy(&body);
        if status != 200 {
            bail!("GET {path}: {status} {text}");
        }
        serde_json::from_slice(&body).with_context(|| format!("GET {path}: {text}"))
    }

    /// All machines, claims included.
    ///
    /// # Errors
    /// As [`Desk::get`].
    pub fn machines(&self) -> Result<Vec<MachineView>> {
        self.list("/v1/machines", "machines")
    }

    /// One machine's timeline, oldest first.
    ///
    /// # Errors
    /// As [`Desk::get`].
    pub fn timeline(&self, machine: &MachineId) -> Result<Vec<TimelineEntry>> {
        self.list(&format!("/v1/machines/{machine}/timeline"), "timeline")
    }

    /// The whole ledger.
    ///
    /// # Errors
    /// As [`Desk::get`].
    pub fn ledger(&self) -> Result<Vec<LedgerView>> {
        let mut all: Vec<LedgerView> = Vec::new();
        loop {
            let from = all.last().map_or(0, |entry| entry.seq + 1);
            let page: Vec<LedgerView> =
                self.list(&format!("/v1/ledger?from={from}&max={PAGE}"), "entries")?;
            if page.is_empty() {
                return Ok(all);
            }
            all.extend(page);
        }
    }

    /// Records of the ledger that satisfy `wanted`.
    ///
    /// # Errors
    /// As [`Desk::get`].
    pub fn records(&self, wanted: impl Fn(&Record) -> bool) -> Result<Vec<LedgerView>> {
        let mut ledger = self.ledger()?;
        ledger.retain(|entry| wanted(&entry.record));
        Ok(ledger)
    }

    /// A list, bare or under `key`.
    fn list<T: DeserializeOwned>(&self, path: &str, key: &str) -> Result<Vec<T>> {
        let value: Value = self.get(path)?;
        let list = match value {
            Value::Object(mut object) => object
                .remove(key)
                .with_context(|| format!("GET {path}: no {key:?}"))?,
            other => other,
        };
        serde_json::from_value(list).with_context(|| format!("GET {path}"))
    }

    /// Waits until some machine satisfies `wanted`.
    ///
    /// # Errors
    /// None within `limit`; the text lists what there is.
    pub fn wait_machine(
        &self,
        what: &str,
        limit: Duration,
        wanted: impl Fn(&MachineView) -> bool,
    ) -> Result<MachineView> {
        let started = Instant::now();
        loop {
            let machines = self.machines()?;
            if let Some(found) = machines.iter().find(|m| wanted(m)) {
                return Ok(found.clone());
            }
            if started.elapsed() > limit {
                let have: Vec<_> = machines
                    .iter()
                    .map(|m| format!("{} {} {:?}", m.machine, m.state, m.macs))
                    .collect();
                bail!("{what}: none within {} s; have {have:?}", limit.as_secs());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// `vestibule args` with the owner's files, from the desk.
    ///
    /// # Errors
    /// It cannot start or does not end.
    pub fn vestibule(&self, args: &[&str]) -> Result<(ExitStatus, String, String)> {
        attempt(&mut self.command(args), LIMIT)
    }

    /// The command itself, not yet started.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = self.ns.command(&self.program.to_string_lossy());
        command
            .args(args)
            .args(["--url", &Self::url()])
            .arg("--cert")
            .arg(self.files.join("owner.pem"))
            .arg("--key")
            .arg(self.files.join("owner.key"))
            .arg("--ca")
            .arg(self.files.join("admin-ca.pem"));
        command
    }

    /// `vestibule machine approve`.
    ///
    /// # Errors
    /// Refused.
    pub fn approve(&self, machine: &MachineId) -> Result<()> {
        let (status, out, err) =
            self.vestibule(&["machine", "approve", &machine.0, "--compared", "console"])?;
        if !status.success() {
            bail!("machine approve {machine}: {status}: {out}{err}");
        }
        Ok(())
    }

    /// A page of the plain health port.
    ///
    /// # Errors
    /// No connection or no HTTP answer.
    pub fn health(&self, path: &str) -> Result<(u16, String)> {
        self.ns.enter(|| {
            let addr = SocketAddr::from((MGMT_ADDR, HEALTH_PORT));
            let response = Client::plain(addr, Duration::from_secs(2))?.request(
                "GET",
                path,
                &[("Connection", "close")],
                b"",
            )?;
            Ok((
                response.status,
                String::from_utf8_lossy(&response.body).into_owned(),
            ))
        })
    }
}

/// The owner's files in `dir`.
pub fn owner_files(dir: &Path) -> [PathBuf; 3] {
    ["owner.pem", "owner.key", "admin-ca.pem"].map(|name| dir.join(name))
}

//! Doubles of a Talos node, named so: its KMS client and its metal platform. Talos' own code cannot be
//! had here (docs/OPERATIONS.md, Talos), so these do what its documents and source say it does.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::http::{Response, Tls, TlsClient};
use crate::netns::{GATEWAY_ADDR, Netns};
use crate::run::{attempt, cache_dir};

/// Go source of the KMS double, as committed.
const SOURCES: [(&str, &str); 3] = [
    ("go.mod", include_str!("../talos/go.mod")),
    ("go.sum", include_str!("../talos/go.sum")),
    ("main.go", include_str!("../talos/main.go")),
];
const BUILD_LIMIT: Duration = Duration::from_secs(180);
const CALL_LIMIT: Duration = Duration::from_secs(20);
const HTTP_LIMIT: Duration = Duration::from_secs(10);

/// The KMS double, built once into the cache; none without Go, with the reason.
///
/// # Errors
/// Go is there and cannot build it.
pub fn kms_double() -> Result<Result<PathBuf, String>> {
    let mut hash = Sha256::new();
    for (name, text) in SOURCES {
        hash.update(name.as_bytes());
        hash.update(text.as_bytes());
    }
    let folder = cache_dir()?.join("lab/talos");
    let program = folder.join(format!("kmsdouble-{}", &hex::encode(hash.finalize())[..16]));
    if program.is_file() {
        return Ok(Ok(program));
    }
    let Ok((status, version, _)) = attempt(Command::new("go").arg("version"), CALL_LIMIT) else {
        return Ok(Err(
            "no Go: the KMS is not called by google.golang.org/grpc".to_owned(),
        ));
    };
    ensure!(status.success(), "go version: {status}");
    let source = tempfile::tempdir()?;
    for (name, text) in SOURCES {
        fs::write(source.path().join(name), text)?;
    }
    fs::create_dir_all(&folder)?;
    let started = Instant::now();
    let fresh = folder.join(format!("new-{}", std::process::id()));
    let mut build = Command::new("go");
    build
        .args(["build", "-o"])
        .arg(&fresh)
        .arg(".")
        .current_dir(source.path())
        .env("CGO_ENABLED", "0")
        .env("GOTOOLCHAIN", "local")
        // One compiler at a time; go.sum holds.
        .env("GOFLAGS", "-p=1 -mod=readonly -trimpath");
    let (status, out, err) = attempt(&mut build, BUILD_LIMIT)?;
    if err.contains("requires go >=") {
        return Ok(Err(format!(
            "{}: too old for the KMS double",
            version.trim()
        )));
    }
    ensure!(status.success(), "go build: {status}: {out}{err}");
    fs::rename(&fresh, &program)?;
    let secs = started.elapsed().as_secs_f64();
    println!(
        "  the KMS double was built by {} in {secs:.1} s",
        version.trim()
    );
    Ok(Ok(program))
}

/// What the KMS double was told.
#[derive(Debug, PartialEq, Eq)]
pub enum Told {
    /// These bytes.
    Bytes(Vec<u8>),
    /// This gRPC code.
    Refused(String),
}

/// One call of the KMS double from a namespace.
///
/// # Errors
/// There was no call.
pub fn kms_call(
    program: &Path,
    ns: &Netns,
    ca: &Path,
    method: &str,
    uuid: &str,
    data: &[u8],
) -> Result<Told> {
    let mut command = ns.command(&program.to_string_lossy());
    command
        .arg(method)
        .arg(format!("{GATEWAY_ADDR}:{KMS_PORT}"))
        .arg(ca)
        .arg(uuid)
        .arg(hex::encode(data));
    let (status, out, err) = attempt(&mut command, CALL_LIMIT)?;
    let mut words = out.trim().splitn(3, ' ');
    match (words.next(), words.next()) {
        (Some("ok"), bytes) => Ok(Told::Bytes(hex::decode(bytes.unwrap_or_default())?)),
        (Some("refused"), Some(code)) => Ok(Told::Refused(code.to_owned())),
        _ => bail!("kmsdouble: {status}: {out}{err}"),
    }
}

/// Port of the KMS in the lab.
pub const KMS_PORT: u16 = 4050;

/// What a Talos node knows when it fetches its config.
#[derive(Debug, Clone)]
pub struct Variables {
    /// SMBIOS UUID.
    pub uuid: String,
    /// First hardware address.
    pub mac: String,
    /// META key 0x0b.
    pub code: String,
}

/// Double of Talos' metal platform with `talos.config.oauth.client_id=vestibule` and
/// `extra_variable` uuid, mac and code: the device flow as golang.org/x/oauth2 does it, then the config.
pub struct MetalDouble {
    ca: PathBuf,
    variables: Variables,
    /// What stands on its console: Talos prints names of variables there and the whole config URL.
    pub console: Vec<String>,
    device_code: String,
    interval: Duration,
    /// The bearer, once it has one.
    pub bearer: Option<String>,
}

impl MetalDouble {
    /// A node before its first request; `ca` is what its `TrustedRootsConfig` has.
    pub fn new(ca: &Path, variables: Variables) -> Self {
        Self {
            ca: ca.to_owned(),
            variables,
            console: Vec::new(),
            device_code: String::new(),
            interval: Duration::ZERO,
            bearer: None,
        }
    }

    fn request(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Result<Response> {
        let config = Tls {
            ca_pem: self.ca.clone(),
            identity: None,
        }
        .config()?;
        let addr = (GATEWAY_ADDR, 443).into();
        TlsClient::connect(addr, config, HTTP_LIMIT)?.request(
            method,
            path,
            headers,
            body.as_bytes(),
        )
    }

    fn form(&self, more: &[(&str, &str)]) -> String {
        let Variables { uuid, mac, code } = &self.variables;
        let own = [
            ("client_id", "vestibule"),
            ("uuid", uuid),
            ("mac", mac),
            ("code", code),
        ];
        let encode = |text: &str| {
            text.replace('%', "%25")
                .replace('+', "%2B")
                .replace(':', "%3A")
        };
        let pairs: Vec<String> = own
            .iter()
            .chain(more)
            .map(|(name, value)| format!("{name}={}", encode(value)))
            .collect();
        pairs.join("&")
    }

    fn post(&self, path: &str, more: &[(&str, &str)]) -> Result<(u16, Value)> {
        let form = ("Content-Type", "application/x-www-form-urlencoded");
        let response = self.request("POST", path, &[form], &self.form(more))?;
        let body = serde_json::from_slice(&response.body)
            .with_context(|| String::from_utf8_lossy(&response.body).into_owned())?;
        Ok((response.status, body))
    }

    /// `POST /device/code`.
    ///
    /// # Errors
    /// Not 200, or not what RFC 8628 section 3.2 requires.
    pub fn begin(&mut self) -> Result<()> {
        self.console.push(format!(
            "[OAuth] client ID: vestibule, device auth URL: https://{GATEWAY_ADDR}/device/code, extra \
             variables: [uuid mac code]"
        ));
        let (status, body) = self.post("/device/code", &[])?;
        ensure!(status == 200, "{status} {body}");
        let text = |key: &str| {
            body[key]
                .as_str()
                .with_context(|| format!("no {key} in {body}"))
        };
        self.console.push(format!(
            "[OAuth] please visit the URL {} and enter the code {}",
            text("verification_uri")?,
            text("user_code")?
        ));
        ensure!(
            body["expires_in"].as_u64().is_some_and(|secs| secs >= 60),
            "{body}"
        );
        self.interval = Duration::from_secs(body["interval"].as_u64().context("interval")?);
        text("device_code")?.clone_into(&mut self.device_code);
        Ok(())
    }

    /// How long it waits before a poll.
    pub fn interval(&self) -> Duration {
        self.interval
    }

    /// One poll of `/token`: none when it got its bearer, else the error.
    ///
    /// # Errors
    /// An answer that is none of RFC 8628.
    pub fn poll(&mut self) -> Result<Option<String>> {
        let grant = "urn:ietf:params:oauth:grant-type:device_code";
        let more = [
            ("grant_type", grant),
            ("device_code", self.device_code.as_str()),
        ];
        let (status, body) = self.post("/token", &more)?;
        if status == 200 {
            ensure!(body["token_type"] == "Bearer", "a bearer of another type");
            let token = body["access_token"].as_str().context("no token")?;
            self.bearer = Some(token.to_owned());
            self.console
                .push("[OAuth] device authorized successfully".to_owned());
            return Ok(None);
        }
        let error = body["error"].as_str().context("no error")?;
        if error == "slow_down" {
            self.interval += Duration::from_secs(5);
        }
        Ok(Some(error.to_owned()))
    }

    /// GET of the config; the URL goes to the console first.
    ///
    /// # Errors
    /// No answer.
    pub fn fetch(&mut self) -> Result<Response> {
        let Variables { uuid, mac, .. } = &self.variables;
        let path = format!("/talos/config?uuid={uuid}&mac={mac}");
        self.console.push(format!(
            "fetching machine config from: https://{GATEWAY_ADDR}{path}"
        ));
        let bearer = self.bearer.as_ref().map(|token| format!("Bearer {token}"));
        let headers: Vec<(&str, &str)> = bearer
            .iter()
            .map(|b| ("Authorization", b.as_str()))
            .collect();
        let response = self.request("GET", &path, &headers, "")?;
        if response.status != 200 {
            let body: Vec<u8> = response.body.iter().take(32).copied().collect();
            let hint = String::from_utf8_lossy(&body).into_owned();
            self.console
                .push(format!("failed to fetch: {} {hint}", response.status));
        }
        Ok(response)
    }
}

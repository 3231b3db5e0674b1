//! A simulated machine: a cable of its own on the switch, a real TPM in software, and the whole
//! walk in real packets. No firmware and no kernel: what those would have measured is extended
//! into the TPM and written into an event log, so the evidence is true.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use attest_wire::v1::handover::Ability;
use attest_wire::v1::{Disk, Nic, Platform};
use gateway_core::identity::MacAddr;
use rand_core::{OsRng, RngCore as _};
use sha2::{Digest as _, Sha256};

use crate::event_log::{Boot, EventLog};
use crate::exchange::Claims;
use crate::http::{Tls, TlsClient};
use crate::netns::{GATEWAY_ADDR, Netns};
use crate::pxe::{self, Dhcp, Lease, Stage};
use crate::run::output;
use crate::site::{NODE_TEMPLATES, Site};
use crate::swtpm::{self, Swtpm, TCTI};

/// The attest listener.
pub const ATTEST: SocketAddr = SocketAddr::V4(std::net::SocketAddrV4::new(GATEWAY_ADDR, 8443));
const FETCH_LIMIT: Duration = Duration::from_secs(60);
/// Pauses of the attester's boot program after an attempt without an answer.
const RETRY_FIRST: Duration = Duration::from_secs(5);
const RETRY_LONGEST: Duration = Duration::from_secs(60);

/// One simulated machine, powered on.
pub struct Machine {
    /// Short name, `n7`.
    pub name: String,
    /// Hardware address.
    pub mac: MacAddr,
    /// What it says about itself.
    pub claims: Claims,
    /// Its cable.
    pub ns: Netns,
    /// Its TPM.
    pub tpm: Swtpm,
    /// The log of the present boot.
    pub event_log: EventLog,
    boot_ca: PathBuf,
    anchor: PathBuf,
    extends_file: PathBuf,
    prefix: u8,
}

/// What the gateway answered to the attester.
pub enum Attested {
    /// In, with its LDevID.
    Admitted {
        /// Certificates, DER, leaf first.
        chain: Vec<Vec<u8>>,
        /// The key behind the leaf.
        devid: hw::tpm::DevId,
        /// Body of the receipt, JSON.
        receipt: Vec<u8>,
        /// Payloads that it opened.
        payloads: Vec<attest_wire::sealed::Item>,
    },
    /// A claim waits for its owner.
    Pending {
        /// Stable code.
        code: String,
    },
    /// Not in.
    Refused {
        /// Stable code.
        code: String,
        /// What the console says.
        hint: String,
        /// Finds the attempt in log and ledger.
        correlation: String,
    },
}

impl std::fmt::Debug for Attested {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Admitted { chain, .. } => write!(f, "admitted, {} certificates", chain.len()),
            Self::Pending { code } => write!(f, "pending, {code}"),
            Self::Refused { code, hint, .. } => write!(f, "refused, {code}: {hint}"),
        }
    }
}

/// What came with an admission, for [`Machine::admitted`].
pub struct Admitted {
    /// Certificates, DER, leaf first.
    pub chain: Vec<Vec<u8>>,
    /// The key behind the leaf.
    pub devid: hw::tpm::DevId,
    /// Signed verdict.
    pub receipt: attest_wire::v1::Receipt,
    /// Leave to install, if there is any.
    pub grant: Option<attest_wire::v1::handover::Grant>,
}

/// How long each step took, as the machine saw it.
pub type Timings = Vec<(&'static str, Duration)>;

impl Machine {
    /// Plugs in machine number `number` (1..) with the TPM of its own template.
    ///
    /// # Errors
    /// Namespace or TPM cannot be made.
    pub fn plug(site: &Site, number: usize) -> Result<Self> {
        Self::plug_with_tpm(site, number, NODE_TEMPLATES + number - 1)
    }

    /// Plugs in machine number `number` with a copy of TPM template `template`.
    ///
    /// # Errors
    /// Namespace or TPM cannot be made.
    pub fn plug_with_tpm(site: &Site, number: usize, template: usize) -> Result<Self> {
        Self::plug_in(site, number, |dir| swtpm::provision(template, dir))
    }

    /// Plugs in machine number `number` with a new TPM that has no EK certificate.
    ///
    /// # Errors
    /// Namespace or TPM cannot be made.
    pub fn plug_blank(site: &Site, number: usize) -> Result<Self> {
        Self::plug_in(site, number, swtpm::blank)
    }

    fn plug_in(
        site: &Site,
        number: usize,
        provision: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<Self> {
        let name = format!("n{number}");
        let mac = mac(number);
        let ns = site.segment.plug(&site.run, &name, mac)?;
        let dir = site.run.dir().join(format!("tpm-{name}"));
        provision(&dir)?;
        let tpm = Swtpm::start(&site.run, &ns, &name, &dir)?;
        Ok(Self {
            claims: Claims {
                serial: format!("LAB-{number:04}"),
                uuid: crate::vm::uuid(mac),
                mac: mac.to_string(),
                disk_serial: Some(format!("DISK-{number:04}")),
            },
            mac,
            ns,
            tpm,
            event_log: EventLog::default(),
            boot_ca: site.ca_dir().join("boot-ca.pem"),
            anchor: site.ca_dir().join("infra-ca.pem"),
            extends_file: site.run.dir().join(format!("pcr15-{name}")),
            prefix: site.options.prefix,
            name,
        })
    }

    /// Cuts the power and starts again, measuring `boot`.
    ///
    /// # Errors
    /// The TPM does not start.
    pub fn boot(&mut self, site: &Site, boot: &Boot) -> Result<()> {
        self.boot_log(site, EventLog::of(boot))
    }

    /// Cuts the power and starts again, measuring what this log says.
    ///
    /// # Errors
    /// The TPM does not start.
    pub fn boot_log(&mut self, site: &Site, log: EventLog) -> Result<()> {
        self.tpm.power_cycle(&site.run)?;
        // What was kept over attempts ends with the boot.
        let _ = std::fs::remove_file(&self.extends_file);
        self.measure(log)
    }

    /// The first boot after [`Machine::plug`], which switched it on.
    ///
    /// # Errors
    /// The TPM does not answer.
    pub fn measure(&mut self, log: EventLog) -> Result<()> {
        self.event_log = log;
        let log = self.event_log.clone();
        self.with_tpm(|tpm| crate::exchange::replay(tpm, &log))
    }

    /// Cuts the power and boots what the site serves.
    ///
    /// # Errors
    /// As [`Machine::boot`].
    pub fn boot_honestly(&mut self, site: &Site) -> Result<()> {
        let boot = site.honest_boot()?;
        self.boot(site, &boot)
    }

    /// One attempt of the real attester, with these choices; `progress` hears each step.
    ///
    /// # Errors
    /// No answer to act on.
    pub fn attest_with(
        &self,
        options: &attester::Options,
        progress: &mut (dyn FnMut(attester::Step, &str) + Send),
    ) -> Result<Attested> {
        let (attested, _) = self.attest_patiently(ATTEST, options, 1, progress)?;
        Ok(attested)
    }

    /// The same towards another address: what an attester does that is led astray.
    ///
    /// # Errors
    /// No answer to act on.
    pub fn attest_at(
        &self,
        gateway: SocketAddr,
        options: &attester::Options,
        progress: &mut (dyn FnMut(attester::Step, &str) + Send),
    ) -> Result<Attested> {
        let (attested, _) = self.attest_patiently(gateway, options, 1, progress)?;
        Ok(attested)
    }

    /// The real attester as a booted machine runs it: keys once, then attempts with its pauses between, at
    /// most so many, until one has an answer. How many it took.
    ///
    /// # Errors
    /// The last attempt had no answer to act on.
    pub fn attest_patiently(
        &self,
        gateway: SocketAddr,
        options: &attester::Options,
        attempts_max: u32,
        progress: &mut (dyn FnMut(attester::Step, &str) + Send),
    ) -> Result<(Attested, u32)> {
        let gateway = attester::Gateway {
            addr: gateway,
            anchors: crate::http::certificates(&self.anchor)?,
        };
        let options = attester::Options {
            extends_file: Some(self.extends_file.clone()),
            ..options.clone()
        };
        let facts = self.facts();
        let (outcome, attempts) = self.with_tpm(|tpm| {
            let mut node = attester::Node::prepare(tpm, &options)?;
            let mut pause = RETRY_FIRST;
            for attempt in 1.. {
                match node.attest(tpm, &facts, &gateway, progress) {
                    Ok(outcome) => return Ok((outcome, attempt)),
                    Err(attester::AttestError::Client(_)) if attempt < attempts_max => {
                        std::thread::sleep(pause);
                        pause = (pause * 2).min(RETRY_LONGEST);
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            unreachable!("more attempts than numbers")
        })?;
        let attested = match outcome {
            attester::Outcome::Admitted {
                chain,
                receipt,
                devid,
                payloads,
                ..
            } => Attested::Admitted {
                chain,
                devid,
                receipt: receipt.body.0,
                payloads,
            },
            attester::Outcome::Pending { code, .. } => Attested::Pending { code },
            attester::Outcome::Refused {
                code,
                hint,
                correlation,
                ..
            } => Attested::Refused {
                code,
                hint,
                correlation,
            },
        };
        Ok((attested, attempts))
    }

    /// Attests as the boot program does, with an attester that can install, and hands what came to `f`, while
    /// the TPM is open and the keys of this boot are loaded.
    ///
    /// # Errors
    /// Not admitted, or what `f` says.
    pub fn admitted<T: Send>(
        &self,
        f: impl FnOnce(
            &mut hw::tpm::NodeDevice,
            &attester::Node,
            &attester::Gateway,
            Admitted,
        ) -> Result<T>
        + Send,
    ) -> Result<T> {
        let gateway = attester::Gateway {
            addr: ATTEST,
            anchors: crate::http::certificates(&self.anchor)?,
        };
        let options = attester::Options {
            extends_file: Some(self.extends_file.clone()),
            can: vec![Ability::Payloads, Ability::Install],
            ..attester::Options::default()
        };
        let facts = self.facts();
        self.with_tpm(|tpm| {
            let mut node = attester::Node::prepare(tpm, &options)?;
            match node.attest(tpm, &facts, &gateway, &mut |_, _| {})? {
                attester::Outcome::Admitted {
                    chain,
                    receipt,
                    devid,
                    grant,
                    ..
                } => {
                    let came = Admitted {
                        chain,
                        devid,
                        receipt,
                        grant: grant.map(|grant| *grant),
                    };
                    f(tpm, &node, &gateway, came)
                }
                attester::Outcome::Pending { code, .. } => bail!("pending: {code}"),
                attester::Outcome::Refused { code, hint, .. } => bail!("refused: {code}: {hint}"),
            }
        })
    }

    /// One attempt with the attester's defaults.
    ///
    /// # Errors
    /// No answer to act on.
    pub fn attest(&self) -> Result<Attested> {
        self.attest_with(&attester::Options::default(), &mut |_, _| {})
    }

    fn facts(&self) -> attester::Facts {
        attester::Facts {
            arch: "x86_64".into(),
            platform: Platform {
                manufacturer: "Lab".into(),
                product: "Node".into(),
                serial: self.claims.serial.clone(),
                uuid: self.claims.uuid.clone(),
            },
            nics: vec![Nic {
                name: "eth0".into(),
                mac: self.claims.mac.clone(),
            }],
            disks: self
                .claims
                .disk_serial
                .iter()
                .map(|serial| Disk {
                    name: "vda".into(),
                    serial: serial.clone(),
                    model: "lab".into(),
                    size_bytes: 1 << 30,
                })
                .collect(),
            lldp: Vec::new(),
            boot_path: "pxe".into(),
            uki_hint: "lab".into(),
            event_log: self.event_log.bytes.clone(),
        }
    }

    /// Runs `f` with the TPM open, in the machine's namespace. swtpm has one client at a time.
    ///
    /// # Errors
    /// No TPM, or what `f` says.
    pub fn with_tpm<T: Send>(
        &self,
        f: impl FnOnce(&mut hw::tpm::NodeDevice) -> Result<T> + Send,
    ) -> Result<T> {
        self.ns.enter(|| {
            let mut tpm = hw::tpm::NodeDevice::open(TCTI)?;
            f(&mut tpm)
        })
    }

    /// One DHCP exchange; the address is then the machine's.
    ///
    /// # Errors
    /// No lease.
    pub fn lease(&self, stage: Stage) -> Result<Lease> {
        let lease = self
            .ns
            .enter(|| {
                Dhcp::open("eth0", self.mac, self.uuid_bytes())?.lease(stage, OsRng.next_u32())
            })
            .with_context(|| format!("{} {stage:?} DHCP", self.name))?;
        self.address(lease.addr)?;
        Ok(lease)
    }

    /// Only DISCOVER and OFFER.
    ///
    /// # Errors
    /// No offer.
    pub fn discover(&self) -> Result<()> {
        self.ns
            .enter(|| Dhcp::open("eth0", self.mac, self.uuid_bytes())?.discover(OsRng.next_u32()))
            .map(drop)
    }

    /// The same behind a switch that adds this option 82.
    ///
    /// # Errors
    /// No lease.
    pub fn lease_behind(&self, relayed: &[u8]) -> Result<Lease> {
        let lease = self.ns.enter(|| {
            Dhcp::open("eth0", self.mac, self.uuid_bytes())?
                .behind(relayed)
                .lease(Stage::Attester, OsRng.next_u32())
        })?;
        self.address(lease.addr)?;
        Ok(lease)
    }

    /// Runs `f` with a DHCP client on the machine's interface.
    ///
    /// # Errors
    /// The socket is refused, or what `f` says.
    pub fn with_dhcp<T: Send>(&self, f: impl FnOnce(&Dhcp) -> Result<T> + Send) -> Result<T> {
        self.ns
            .enter(|| f(&Dhcp::open("eth0", self.mac, self.uuid_bytes())?))
    }

    /// Gives the interface this address and no other.
    ///
    /// # Errors
    /// What `ip` says.
    pub fn address(&self, addr: std::net::Ipv4Addr) -> Result<()> {
        self.ns.ip(&["addr", "flush", "dev", "eth0"])?;
        self.ns.ip(&[
            "addr",
            "add",
            &format!("{addr}/{}", self.prefix),
            "dev",
            "eth0",
        ])
    }

    fn uuid_bytes(&self) -> [u8; 16] {
        let digest = Sha256::digest(self.claims.uuid.as_bytes());
        let mut id = [0u8; 16];
        id.copy_from_slice(&digest[..16]);
        id
    }

    /// The firmware's part of the walk: lease, iPXE by TFTP, lease again as iPXE, script and UKI
    /// over HTTPS. Returns the digest of the UKI and the time of each step.
    ///
    /// # Errors
    /// The step that failed.
    pub fn netboot(&self) -> Result<(String, Timings)> {
        let mut timings = Timings::new();
        let lease = self.lease(Stage::Pxe)?;
        timings.push(("discover", lease.offer_after));
        timings.push(("lease", lease.ack_after));
        if lease.boot_file.is_empty() {
            bail!("no boot file for {}", self.name);
        }
        let started = Instant::now();
        let ipxe = self
            .ns
            .enter(|| pxe::tftp(lease.next_server, &lease.boot_file))?;
        timings.push(("boot: iPXE by TFTP", started.elapsed()));
        if ipxe.get(..2) != Some(b"MZ") {
            bail!("{} is not a PE image", lease.boot_file);
        }
        let lease = self.lease(Stage::Ipxe)?;
        let started = Instant::now();
        let (script, digest) = self.fetch_uki(&lease.boot_file)?;
        timings.push(("boot: UKI by HTTPS", started.elapsed()));
        if !script.starts_with("#!ipxe") {
            bail!("{} is not an iPXE script: {script}", lease.boot_file);
        }
        Ok((digest, timings))
    }

    /// iPXE's script and the UKI that it names, over one HTTPS connection each way: GET of the
    /// script, HEAD of the UKI, two ranges of it.
    ///
    /// # Errors
    /// The request that failed.
    pub fn fetch_uki(&self, script_url: &str) -> Result<(String, String)> {
        let (addr, path) = split_url(script_url)?;
        let config = Tls {
            ca_pem: self.boot_ca.clone(),
            identity: None,
        }
        .config()?;
        self.ns.enter(|| {
            let mut client = TlsClient::connect(addr, config, FETCH_LIMIT)?;
            // iPXE fills in its own settings.
            let path = path.replace("${net0/mac}", &self.mac.to_string());
            let script = client.request("GET", &path, &[], b"")?;
            let text = String::from_utf8(script.body)?;
            let uki = text
                .split_whitespace()
                .find(|word| word.starts_with("https://") && word.ends_with(".efi"))
                .with_context(|| format!("no UKI in the script ({}): {text}", script.status))?
                .to_owned();
            let (_, uki) = split_url(&uki)?;
            let head = client.request("HEAD", &uki, &[], b"")?;
            let length: usize = head
                .header("content-length")
                .context("HEAD without Content-Length")?
                .parse()?;
            if head.status != 200 || length < 1024 {
                bail!("HEAD {uki}: {} {length} bytes", head.status);
            }
            let mut hash = Sha256::new();
            let middle = length / 2;
            for range in [
                format!("bytes=0-{}", middle - 1),
                format!("bytes={middle}-"),
            ] {
                let part = client.request("GET", &uki, &[("Range", &range)], b"")?;
                if part.status != 206 {
                    bail!("GET {uki} {range}: {}", part.status);
                }
                hash.update(&part.body);
            }
            Ok((text, hex::encode(hash.finalize())))
        })
    }
}

/// Hardware address of machine `number`.
pub fn mac(number: usize) -> MacAddr {
    let [.., a, b] = (number as u32).to_be_bytes();
    MacAddr([0x52, 0x54, 0x00, 0x66, a, b])
}

/// Address and path of an `https://ADDRESS[:PORT]/path` URL.
fn split_url(url: &str) -> Result<(SocketAddr, String)> {
    let rest = url
        .strip_prefix("https://")
        .with_context(|| format!("{url:?} is not HTTPS"))?;
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let addr = match host.parse::<SocketAddr>() {
        Ok(addr) => addr,
        Err(_) => SocketAddr::new(
            host.parse().with_context(|| format!("host of {url:?}"))?,
            443,
        ),
    };
    Ok((addr, format!("/{path}")))
}

/// `udhcpc`, `curl` and friends inside a machine's namespace.
///
/// # Errors
/// The program fails.
pub fn tool(ns: &Netns, program: &str, args: &[&str]) -> Result<String> {
    let mut command: Command = ns.command(program);
    output(command.args(args), FETCH_LIMIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_with_and_without_a_port() {
        let (addr, path) = split_url("https://10.66.0.1/boot/script.ipxe?mac=x").unwrap();
        assert_eq!(
            (addr.port(), path.as_str()),
            (443, "/boot/script.ipxe?mac=x")
        );
        let (addr, _) = split_url("https://10.66.0.1:8080/x").unwrap();
        assert_eq!(addr.port(), 8080);
        assert!(split_url("http://10.66.0.1/x").is_err());
    }
}

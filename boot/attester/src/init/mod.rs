//! `/init` of the signed image: brings the machine to the exchange, and says what happens.
//!
//! As PID 1 it never returns. The rule for everything that goes wrong:
//! - an attempt that fails, or a refusal: say it, wait (the gateway's retry time within 2 s and 1 h,
//!   else 5 to 60 s),
//!   look at network and facts again, try again;
//! - no TPM, no network: say what to do, look again every half minute;
//! - PCR 15 is not ours, or its list is full: only a reset helps, reboot after 30 s;
//! - an installation stops: what the owner must mend is said and the machine stays; what another boot may
//!   mend (the way to the gateway, a grant that has expired) reboots after 30 s;
//! - a panic (a defect of ours): say it, reboot after 30 s.
//!
//! There is no shell and no key that stops it.

mod dhcp;
mod installing;
mod network;
mod system;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use attest_wire::v1::handover::Ability;
use hw::tpm::{DevIdKind, NodeDevice, TpmError};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::console::{WITHOUT_TPM, say, say_error};
use crate::exchange::{AttestError, DevIdAuth, Gateway, Node, Options, Outcome};
use crate::extends::ExtendsError;
use crate::facts::Facts;
use crate::gather::{EVENT_LOG, gather};
use crate::output;
use network::{Network, Uplink};

/// Port of the gateway's attest endpoint.
const ATTEST_PORT: u16 = 8443;
/// Anchors and image name.
const CONFIG: &str = "/etc/vestibule";
/// Where chain and blobs go, and the list of PCR 15 extends.
const RUN: &str = "/run/vestibule";
/// Wait after an attempt that did not come to an answer; doubles up to the longest.
const RETRY_FIRST: Duration = Duration::from_secs(5);
const RETRY_LONGEST: Duration = Duration::from_secs(60);
/// Bounds of the retry time that a gateway may ask for.
const ANSWER_RETRY: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(3600));
/// Wait between looks for a TPM or a network that is not there.
const LOOK_AGAIN: Duration = Duration::from_secs(30);
/// Time to read the console before a reboot.
const REBOOT_PAUSE: Duration = Duration::from_secs(30);

/// Runs as PID 1; never returns.
pub fn run() -> ! {
    system::mount_all();
    say("boot", &format!("image {}", system::image_name()));
    system::load_modules();
    // A panic unwinds into the join below; PID 1 itself must not end, or the kernel panics.
    let walk = std::thread::Builder::new()
        .name("walk".to_owned())
        .spawn(walk);
    match walk.map(std::thread::JoinHandle::join) {
        Ok(Ok(end)) => match end {},
        Ok(Err(_)) => say(
            "boot",
            "the attester has failed (a defect). Rebooting in 30 s",
        ),
        Err(error) => say_error("boot", &error),
    }
    std::thread::sleep(REBOOT_PAUSE);
    system::reboot()
}

/// What the image says of the DevID (`/etc/vestibule/devid`, measured with the image): lines
/// `kind = ecc-p256|rsa-2048` and `auth = none|secret`. A line that cannot be read is said on the
/// console and leaves the default; the gateway refuses what its owner does not take.
fn image_options() -> Options {
    let mut options = Options::default();
    let text = std::fs::read_to_string(Path::new(CONFIG).join("devid")).unwrap_or_default();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        match line
            .split_once('=')
            .map(|(key, value)| (key.trim(), value.trim()))
        {
            Some(("kind", "ecc-p256")) => options.devid_kind = DevIdKind::EccP256,
            Some(("kind", "rsa-2048")) => options.devid_kind = DevIdKind::Rsa2048,
            Some(("auth", "none")) => options.devid_auth = DevIdAuth::None,
            Some(("auth", "secret")) => options.devid_auth = DevIdAuth::Random,
            _ => say(
                "boot",
                &format!("{CONFIG}/devid: cannot read {line:?}, ignored"),
            ),
        }
    }
    options
}

fn walk() -> Infallible {
    let options = Options {
        extends_file: Some(PathBuf::from(RUN).join("pcr15")),
        can: vec![Ability::Payloads, Ability::Install],
        ..image_options()
    };
    let anchors = anchors();
    let mut network = Network::start();
    let mut tpm = find_tpm();
    let mut node: Option<Node> = None;
    let mut retry = RETRY_FIRST;
    loop {
        let uplink = find_uplink(&mut network);
        let facts = gather(Path::new(EVENT_LOG), network.heard());
        let attempt = attempt(&mut tpm, &mut node, &options, &uplink, &anchors, &facts);
        match attempt {
            Ok(Outcome::Admitted {
                chain,
                receipt,
                devid,
                payloads,
                grant,
                correlation,
            }) => {
                say(
                    "issue",
                    &format!("LDevID for {}", output::subject_cn(&chain)),
                );
                say(
                    "issue",
                    &format!("receipt {}", output::receipt_digest(&receipt)),
                );
                let run = Path::new(RUN);
                let written = output::write(run, &chain, &devid, &receipt)
                    .and_then(|()| output::write_payloads(run, &payloads));
                say("issue", &format!("ADMITTED, correlation {correlation}"));
                let complete = written.is_ok();
                if let Err(error) = written {
                    say_error("issue", &error);
                    say(
                        "issue",
                        "nothing is installed without these files: restart the machine",
                    );
                }
                if let (Some(grant), Some(node), true) = (grant, &node, complete) {
                    let machine = output::subject_cn(&chain);
                    installing::run(
                        &mut tpm,
                        node,
                        &gateway_at(&uplink, &anchors),
                        &grant,
                        machine,
                    );
                }
                system::rest()
            }
            Ok(Outcome::Pending {
                code,
                hint,
                correlation,
                retry_secs,
                report_sha256,
            }) => {
                say_pending(&facts, &code, &hint, &report_sha256);
                say(
                    "appraise",
                    &format!("correlation {correlation}, retry in {retry_secs} s"),
                );
                retry = RETRY_FIRST;
                pause(answered_retry(retry_secs));
            }
            Ok(Outcome::Refused {
                code,
                hint,
                correlation,
                retry_secs,
            }) => {
                say("appraise", &format!("NOT ADMITTED: {code}. {hint}"));
                say(
                    "appraise",
                    &format!("correlation {correlation}, retry in {retry_secs} s"),
                );
                retry = RETRY_FIRST;
                pause(answered_retry(retry_secs));
            }
            Err(error) => {
                say_error("error", &error);
                if needs_reset(&error) {
                    say("error", "only a reset helps: rebooting in 30 s");
                    std::thread::sleep(REBOOT_PAUSE);
                    system::reboot();
                }
                network.forget(&uplink);
                say("error", &format!("next attempt in {} s", retry.as_secs()));
                pause(retry);
                retry = (retry * 2).min(RETRY_LONGEST);
            }
        }
    }
}

/// Keys once per boot, then one attempt.
fn attempt(
    tpm: &mut NodeDevice,
    node: &mut Option<Node>,
    options: &Options,
    uplink: &Uplink,
    anchors: &[CertificateDer<'static>],
    facts: &Facts,
) -> Result<Outcome, AttestError> {
    let node = match node {
        Some(node) => node,
        None => node.insert(Node::prepare(tpm, options)?),
    };
    let gateway = gateway_at(uplink, anchors);
    node.attest(tpm, facts, &gateway, &mut |step, detail| {
        say(step.as_str(), detail)
    })
}

fn gateway_at(uplink: &Uplink, anchors: &[CertificateDer<'static>]) -> Gateway {
    Gateway {
        addr: SocketAddr::from((uplink.gateway, ATTEST_PORT)),
        anchors: anchors.to_vec(),
    }
}

fn answered_retry(secs: u32) -> Duration {
    Duration::from_secs(u64::from(secs)).clamp(ANSWER_RETRY.0, ANSWER_RETRY.1)
}

/// Whether only a reset of the TPM can help.
fn needs_reset(error: &AttestError) -> bool {
    matches!(
        error,
        AttestError::Extends(ExtendsError::Foreign { .. } | ExtendsError::Full)
    )
}

fn say_pending(facts: &Facts, code: &str, hint: &str, report: &str) {
    say("appraise", &format!("PENDING: {code}. {hint}"));
    let platform = &facts.platform;
    say(
        "appraise",
        &format!(
            "{} {}, serial {}",
            platform.manufacturer, platform.product, platform.serial
        ),
    );
    for nic in &facts.nics {
        say("appraise", &format!("{} {}", nic.name, nic.mac));
    }
    say("appraise", &format!("report {report}"));
    say(
        "appraise",
        "compare serial and report with the claim on the gateway's admin page, then: vestibule machine approve",
    );
}

/// Waits for a TPM 2.0; says what to do while there is none.
fn find_tpm() -> NodeDevice {
    loop {
        match system::tpm_tcti() {
            Ok(tcti) => match NodeDevice::open(&tcti) {
                Ok(tpm) => return tpm,
                Err(error @ TpmError::Absent { .. }) => {
                    say_error("tpm", &error);
                    say(
                        "tpm",
                        "the TPM does not answer: power the machine off and on again",
                    );
                }
                Err(error) => say_error("tpm", &error),
            },
            Err(why) => {
                say("tpm", why);
                say("tpm", WITHOUT_TPM);
            }
        }
        pause(LOOK_AGAIN);
    }
}

/// Waits for an address and a gateway.
fn find_uplink(network: &mut Network) -> Uplink {
    loop {
        match network.uplink() {
            Ok(uplink) => return uplink,
            Err(why) => {
                say("network", &why);
                pause(RETRY_FIRST);
            }
        }
    }
}

/// The pinned CA certificates of this image. Without any, every attempt says so.
fn anchors() -> Vec<CertificateDer<'static>> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(CONFIG)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            let name = path
                .file_name()
                .and_then(|name| name.to_str())
                .unwrap_or_default();
            name.starts_with("anchor") && name.ends_with(".pem")
        })
        .collect();
    files.sort();
    let mut anchors = Vec::new();
    for file in files {
        match CertificateDer::pem_file_iter(&file) {
            Ok(certificates) => anchors.extend(certificates.flatten()),
            Err(error) => say("boot", &format!("{}: {error}", file.display())),
        }
    }
    anchors
}

fn pause(time: Duration) {
    std::thread::sleep(time);
}

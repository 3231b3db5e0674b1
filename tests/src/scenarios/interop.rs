//! Other people's clients against the daemon: each does on the wire what machines of the field do.

mod tls;

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use boot::catalog::Kind;
use gateway_core::identity::MacAddr;
use gateway_core::record::{JournalRecord, LeaseRecord};

use crate::netns::{GATEWAY_ADDR, Netns};
use crate::networkd::Networkd;
use crate::pxe::{Dhcp, Stage};
use crate::report::Report;
use crate::run::{attempt, output};
use crate::sim::{mac, tool};
use crate::site::{Options, Site};

const LIMIT: Duration = Duration::from_secs(60);

/// Runs the scenario.
///
/// # Errors
/// The site cannot be made.
pub fn run(report: &Report) -> Result<()> {
    let options = Options {
        // The shortest that the daemon takes: half of it passes before a client renews.
        lease_secs: 120,
        ..Options::default()
    };
    let site = Site::start("interop", options)?;
    let mut networkd = Leased::start(&site)?;
    let node = site.segment.plug(&site.run, "n1", mac(1))?;
    let dir = site.run.dir().to_owned();
    report.check("udhcpc gets a lease", udhcpc(&node, &dir));
    report.check(
        "dhclient gets a lease and releases it",
        dhclient(&site, &dir),
    );
    report.check(
        "the boot port answers in server mode too, as EDK2 asks there",
        boot_port(&node),
    );
    let artefacts = site.artefacts()?;
    let file_of = |kind| {
        artefacts
            .iter()
            .find(|a| a.kind == kind)
            .with_context(|| format!("no {kind:?}"))
    };
    let (ipxe, uki) = (file_of(Kind::Ipxe)?, file_of(Kind::Uki)?);
    let original = fs::read(site.image_dir().join(&ipxe.file))?;
    let gateway = GATEWAY_ADDR.to_string();
    for (name, program, args) in tftp_clients(&gateway, &ipxe.file) {
        let to = dir.join(format!("by-{name}"));
        let path = to.to_string_lossy().into_owned();
        let args: Vec<&str> = args
            .iter()
            .map(|a| if a == "OUT" { &path } else { a.as_str() })
            .collect();
        report.check(&format!("{name} fetches iPXE whole"), {
            tool(&node, program, &args).and_then(|_| {
                ensure!(fs::read(&to)? == original, "content differs");
                Ok(())
            })
        });
    }
    let url = format!("https://{gateway}/boot/{}/{}", uki.sha256, uki.file);
    let ca = site.ca_dir().join("boot-ca.pem");
    report.check("curl: HEAD, GET, a range, a repeated GET by ETag", {
        curl(
            &node,
            &dir,
            &url,
            &ca.to_string_lossy(),
            &site.image_dir().join(&uki.file),
        )
    });
    tls::run(report, &node, &dir, &ca.to_string_lossy(), &url);
    report.check(
        "systemd-networkd gets a lease, renews it at half its time and releases it",
        networkd.lived(),
    );
    if !report.failures().is_empty() {
        report.note(format!("logs kept in {}", site.run.keep_logs().display()));
    }
    Ok(())
}

/// systemd-networkd with a lease, while the other clients have their turn.
struct Leased<'a> {
    site: &'a Site,
    client: Networkd,
    mac: MacAddr,
}

impl<'a> Leased<'a> {
    fn start(site: &'a Site) -> Result<Self> {
        let mac = mac(3);
        let node = site.segment.plug(&site.run, "n3", mac)?;
        Ok(Self {
            client: Networkd::start(&site.run, &node)?,
            site,
            mac,
        })
    }

    /// What the journal says of its lease, oldest first.
    fn recorded(&self) -> Result<Vec<LeaseRecord>> {
        let journal = self.site.journal()?;
        let leases = journal.into_iter().filter_map(|record| match record {
            JournalRecord::Lease(lease) if lease.mac == self.mac => Some(lease),
            _ => None,
        });
        Ok(leases.collect())
    }

    fn lived(&mut self) -> Result<()> {
        self.client.wait_for("DHCPv4 address 10.66.0.", LIMIT)?;
        // It has its own way with T1 (RFC 2131 section 4.4.5): half the time, less a few seconds.
        self.client.wait_for("REQUEST (renewing)", LIMIT * 2)?;
        let started = std::time::Instant::now();
        while self.recorded()?.len() < 2 {
            ensure!(started.elapsed() < LIMIT, "no renewal on disk");
            std::thread::sleep(Duration::from_millis(50));
        }
        self.client.stop()?;
        let last = loop {
            let mut all = self.recorded()?;
            let last = all.pop().context("no lease on disk")?;
            if last.state == "released" || started.elapsed() > LIMIT {
                break last;
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        ensure!(last.state == "released", "{last:?}");
        Ok(())
    }
}

/// An address for the machine, through busybox's client.
fn udhcpc(node: &Netns, dir: &std::path::Path) -> Result<()> {
    let script = dir.join("udhcpc.script");
    fs::write(
        &script,
        "#!/bin/sh\n[ \"$1\" = bound ] || exit 0\nip addr flush dev \"$interface\"\nip addr add \"$ip/24\" dev \"$interface\"\n",
    )?;
    output(Command::new("chmod").arg("755").arg(&script), LIMIT)?;
    let path = script.to_string_lossy();
    tool(
        node,
        "udhcpc",
        &["-i", "eth0", "-n", "-q", "-t", "4", "-T", "2", "-s", &path],
    )?;
    let said = tool(node, "ip", &["-4", "addr", "show", "dev", "eth0"])?;
    ensure!(said.contains("inet 10.66.0."), "{said}");
    Ok(())
}

/// edk2#8149: firmware that took our offer for BINL asks port 4011 with its new address.
fn boot_port(node: &Netns) -> Result<()> {
    let said = tool(node, "ip", &["-4", "-br", "addr", "show", "dev", "eth0"])?;
    let own = said
        .split_whitespace()
        .find_map(|word| word.split_once('/')?.0.parse().ok())
        .with_context(|| format!("no address: {said}"))?;
    let answer = node.enter(|| {
        Dhcp::open("eth0", mac(1), [0; 16])?.boot_port(Stage::Pxe, 0x6600_0011, own, GATEWAY_ADDR)
    })?;
    ensure!(answer.addr.is_unspecified(), "yiaddr {}", answer.addr);
    ensure!(
        answer.boot_file.ends_with(".efi") && answer.next_server == GATEWAY_ADDR,
        "{answer:?}"
    );
    Ok(())
}

/// ISC's client, unpacked beside the host: installing it would change the host's own network.
fn dhclient(site: &Site, dir: &std::path::Path) -> Result<()> {
    let package = boot_image::debs::fetch("bookworm", "isc-dhcp-client")?;
    let program = package.root.join("sbin/dhclient");
    let program = if program.exists() {
        program
    } else {
        package.root.join("usr/sbin/dhclient")
    };
    let node = site.segment.plug(&site.run, "n2", mac(2))?;
    let name = |file: &str| dir.join(file).to_string_lossy().into_owned();
    let (leases, pid) = (name("dhclient.leases"), name("dhclient.pid"));
    let program = program.to_string_lossy().into_owned();
    let common = ["-sf", "/bin/true", "-lf", &leases, "-pf", &pid, "eth0"];
    let mut lease = vec!["-1", "-v"];
    lease.extend(common);
    let said = {
        let (status, out, err) = attempt(node.command(&program).args(&lease), LIMIT)?;
        ensure!(status.success(), "{out}{err}");
        out + &err
    };
    ensure!(said.contains("DHCPACK"), "{said}");
    let mut release = vec!["-r", "-v"];
    release.extend(common);
    let (status, out, err) = attempt(node.command(&program).args(&release), LIMIT)?;
    ensure!(status.success(), "release: {out}{err}");
    Ok(())
}

type Client = (&'static str, &'static str, Vec<String>);

fn tftp_clients(gateway: &str, file: &str) -> Vec<Client> {
    let words = |list: &[&str]| list.iter().map(|w| (*w).to_owned()).collect();
    let url = format!("tftp://{gateway}/{file}");
    vec![
        (
            "tftp-hpa",
            "tftp",
            words(&["-m", "binary", gateway, "-c", "get", file, "OUT"]),
        ),
        (
            "busybox",
            "busybox",
            words(&["tftp", "-g", "-r", file, "-l", "OUT", gateway]),
        ),
        (
            "busybox, blksize 1428",
            "busybox",
            words(&["tftp", "-g", "-b", "1428", "-r", file, "-l", "OUT", gateway]),
        ),
        (
            "curl",
            "curl",
            words(&["-sS", "-m", "30", "-o", "OUT", &url]),
        ),
        (
            "curl, blksize 1428",
            "curl",
            words(&[
                "-sS",
                "-m",
                "30",
                "--tftp-blksize",
                "1428",
                "-o",
                "OUT",
                &url,
            ]),
        ),
        (
            "atftp",
            "atftp",
            words(&["--get", "-r", file, "-l", "OUT", gateway]),
        ),
        (
            "atftp, blksize 1428, windowsize 16",
            "atftp",
            words(&[
                "--option",
                "blksize 1428",
                "--option",
                "windowsize 16",
                "--get",
                "-r",
                file,
                "-l",
                "OUT",
                gateway,
            ]),
        ),
    ]
}

fn curl(
    node: &Netns,
    dir: &std::path::Path,
    url: &str,
    ca: &str,
    original: &std::path::Path,
) -> Result<()> {
    let original = fs::read(original)?;
    let out = dir.join("by-curl-https");
    let path = out.to_string_lossy().into_owned();
    let base = ["-sS", "--fail", "-m", "60", "--cacert", ca];
    let ask = |extra: &[&str]| {
        let mut args = base.to_vec();
        args.extend_from_slice(extra);
        args.push(url);
        tool(node, "curl", &args)
    };
    let head = ask(&["-I"])?.to_lowercase();
    let length = format!("content-length: {}", original.len());
    ensure!(head.contains(&length), "HEAD: {head}");
    ask(&["-o", &path])?;
    ensure!(fs::read(&out)? == original, "GET: content differs");
    ask(&["-r", "1000-1999", "-o", &path])?;
    ensure!(fs::read(&out)? == original[1000..2000], "range differs");
    let etag = head
        .lines()
        .find_map(|line| line.strip_prefix("etag: "))
        .context("no ETag")?
        .trim()
        .to_owned();
    let condition = format!("If-None-Match: {etag}");
    let status = ask(&["-o", "/dev/null", "-w", "%{http_code}", "-H", &condition])?;
    ensure!(status == "304", "If-None-Match: {status}");
    Ok(())
}

//! IPv6 boot against the daemon: Router Advertisements, DHCPv6 and every boot service, by other
//! people's clients and by the packets of firmware.

use std::fs;
use std::net::{Ipv6Addr, SocketAddrV6, UdpSocket};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use boot::catalog::{Artefact, Kind};
use gateway_core::record::{JournalRecord, Lease6Record};
use netstack::dhcp6::{
    ALL_RELAYS_AND_SERVERS, CLIENT_PORT, Message, Options as Dhcp6Options, SERVER_PORT,
};

use crate::netns::{GATEWAY_ADDR6, Netns, POOL6};
use crate::report::Report;
use crate::run::attempt;
use crate::sim::{mac, tool};
use crate::site::{Options, Site};

const LIMIT: Duration = Duration::from_secs(60);
/// Duplicate address detection takes one to two seconds.
const LINK_LOCAL_LIMIT: Duration = Duration::from_secs(10);
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// Runs the scenario.
///
/// # Errors
/// The site cannot be made.
pub fn run(report: &Report) -> Result<()> {
    let options = Options {
        ipv6: true,
        ..Options::default()
    };
    let mut site = Site::start("ipv6", options)?;
    let node = site.segment.plug(&site.run, "n1", mac(1))?;
    report.check("rdisc6 is told at once: ask DHCPv6, no default route", {
        link_local(&node).and_then(|_| rdisc6(&node))
    });
    let lease = dhclient(&site);
    report.check(
        "dhclient -6 gets a lease that is on disk, and releases it",
        lease,
    );
    let artefacts = site.artefacts()?;
    let ipxe = file_of(&artefacts, Kind::Ipxe)?;
    let uki = file_of(&artefacts, Kind::Uki)?;
    let firmware = Firmware::new(&node, 1)?;
    report.check("PXEv6 firmware is led to iPXE by TFTP", {
        pxe(&site, &firmware, &node, ipxe)
    });
    report.check("HTTPv6 firmware gets the UKI over HTTPS by its address", {
        http(&site, &firmware, &node, uki)
    });
    report.check("iPXE gets its script over HTTPS by the address", {
        script(&site, &firmware, &node)
    });
    let path = format!("[{GATEWAY_ADDR6}]/boot/{}/{}", ipxe.sha256, ipxe.file);
    report.check("HTTPS serves iPXE over IPv6", {
        fetch(&site, &node, &format!("https://{path}"), ipxe)
    });
    report.check("plain HTTP refuses over IPv6 as it does over IPv4", {
        match fetch(&site, &node, &format!("http://{path}"), ipxe) {
            Ok(()) => Err(anyhow::anyhow!("plain HTTP served a file")),
            Err(error) => refused(&format!("{error:#}")),
        }
    });
    report.check("a lease survives kill -9 of the daemon", {
        restart(&mut site, &firmware)
    });
    Ok(())
}

fn file_of(artefacts: &[Artefact], kind: Kind) -> Result<&Artefact> {
    let found = artefacts.iter().find(|a| a.kind == kind);
    found.with_context(|| format!("no {kind:?}"))
}

/// The machine's link-local address, once it may use it.
fn link_local(node: &Netns) -> Result<Ipv6Addr> {
    let started = Instant::now();
    loop {
        let said = tool(
            node,
            "ip",
            &[
                "-6",
                "-o",
                "addr",
                "show",
                "dev",
                "eth0",
                "scope",
                "link",
                "-tentative",
            ],
        )?;
        let found = said
            .split_whitespace()
            .find_map(|word| word.strip_suffix("/64"));
        if let Some(addr) = found {
            return Ok(addr.parse()?);
        }
        if started.elapsed() > LINK_LOCAL_LIMIT {
            bail!("eth0 has no link-local address: {said}");
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// A program of a Debian package, unpacked beside the host.
fn program(package: &str, names: &[&str]) -> Result<PathBuf> {
    let root = boot_image::debs::fetch("bookworm", package)?.root;
    let mut paths = names.iter().map(|name| root.join(name));
    paths
        .find(|path| path.exists())
        .with_context(|| format!("no {names:?} in {package}"))
}

fn rdisc6(node: &Netns) -> Result<()> {
    let rdisc6 = program("ndisc6", &["bin/rdisc6", "usr/bin/rdisc6"])?;
    // One answer, and no waiting for further routers.
    let args = ["-1", "-w", "3000", "eth0"];
    let started = Instant::now();
    let (status, out, err) = attempt(node.command(&rdisc6.to_string_lossy()).args(args), LIMIT)?;
    let took = started.elapsed();
    ensure!(status.success(), "{out}{err}");
    let yes = |line: &str| out.lines().any(|l| l.contains(line) && l.contains("Yes"));
    ensure!(yes("Stateful address conf."), "{out}");
    ensure!(yes("Stateful other conf."), "{out}");
    let line = |start: &str| out.lines().find(|l| l.trim_start().starts_with(start));
    let lifetime = line("Router lifetime").context("no router lifetime")?;
    ensure!(lifetime.contains(" 0 (0x00000000)"), "{lifetime}");
    let prefix = line("Prefix").context("no prefix")?;
    ensure!(prefix.ends_with("fd00:66::/64"), "{prefix}");
    ensure!(
        line("Autonomous address conf.").is_some_and(|l| l.contains("No")),
        "{out}"
    );
    ensure!(took < Duration::from_secs(1), "answered after {took:?}");
    Ok(())
}

fn leases6(site: &Site) -> Result<Vec<Lease6Record>> {
    let of = |record| match record {
        JournalRecord::Lease6(lease) => Some(lease),
        JournalRecord::Lease(_) | JournalRecord::Mark(_) => None,
    };
    Ok(site.journal()?.into_iter().filter_map(of).collect())
}

/// ISC's client, unpacked beside the host: installing it would change the host's own network.
fn dhclient(site: &Site) -> Result<()> {
    let dhclient = program("isc-dhcp-client", &["sbin/dhclient", "usr/sbin/dhclient"])?;
    let node = site.segment.plug(&site.run, "n2", mac(2))?;
    link_local(&node)?;
    let dir = site.run.dir();
    let name = |file: &str| dir.join(file).to_string_lossy().into_owned();
    let (leases, pid) = (name("dhclient6.leases"), name("dhclient6.pid"));
    let dhclient = dhclient.to_string_lossy().into_owned();
    let common = ["-sf", "/bin/true", "-lf", &leases, "-pf", &pid, "eth0"];
    let run = |first: &[&str]| -> Result<String> {
        let mut args = first.to_vec();
        args.extend(common);
        let (status, out, err) = attempt(node.command(&dhclient).args(&args), LIMIT)?;
        ensure!(status.success(), "{first:?}: {out}{err}");
        Ok(out + &err)
    };
    let said = run(&["-6", "-1", "-v"])?;
    ensure!(said.contains("RCV: Reply message"), "{said}");
    let kept = fs::read_to_string(&leases)?;
    let addr = kept
        .split_once("iaaddr ")
        .and_then(|(_, rest)| rest.split_whitespace().next())
        .context("no address in dhclient's lease file")?;
    let addr: Ipv6Addr = addr.parse()?;
    ensure!(
        (POOL6.0..=POOL6.1).contains(&addr),
        "{addr} is not of the pool"
    );
    let of_addr = |leases: Vec<Lease6Record>| -> Vec<String> {
        let ours = leases.into_iter().filter(|lease| lease.addr == addr);
        ours.map(|lease| lease.state).collect()
    };
    let states = of_addr(leases6(site)?);
    ensure!(states == ["bound"], "journal: {states:?}");
    run(&["-6", "-r", "-v"])?;
    let states = of_addr(leases6(site)?);
    ensure!(states == ["bound", "released"], "journal: {states:?}");
    Ok(())
}

/// Sends what firmware sends, from the machine's port.
struct Firmware {
    socket: UdpSocket,
    index: u32,
    duid: Vec<u8>,
}

impl Firmware {
    fn new(node: &Netns, number: usize) -> Result<Self> {
        link_local(node)?;
        node.enter(|| {
            let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, CLIENT_PORT))?;
            socket.set_read_timeout(Some(ANSWER_LIMIT))?;
            let index = nix::net::if_::if_nametoindex("eth0")?;
            let duid = [&[0, 3, 0, 1][..], &mac(number).0].concat();
            Ok(Self {
                socket,
                index,
                duid,
            })
        })
    }

    /// One message and its answer; `server` and `addr` make it one to our server.
    fn ask(
        &self,
        kind: u8,
        options: &[(u16, Vec<u8>)],
        to: Option<(&[u8], Ipv6Addr)>,
    ) -> Result<Message> {
        let mut out = vec![kind, 0x76, 0x36, kind];
        let mut put = |code: u16, value: &[u8]| {
            out.extend_from_slice(&code.to_be_bytes());
            out.extend_from_slice(&(value.len() as u16).to_be_bytes());
            out.extend_from_slice(value);
        };
        put(1, &self.duid);
        let mut ia = vec![0; 12];
        if let Some((server, addr)) = to {
            put(2, server);
            ia.extend_from_slice(&[0, 5, 0, 24]);
            ia.extend_from_slice(&addr.octets());
            ia.extend_from_slice(&[0; 8]);
        }
        put(3, &ia);
        for (code, value) in options {
            put(*code, value);
        }
        let group = SocketAddrV6::new(ALL_RELAYS_AND_SERVERS, SERVER_PORT, 0, self.index);
        self.socket.send_to(&out, group)?;
        let mut buffer = [0; 2048];
        let (len, _) = self.socket.recv_from(&mut buffer).context("no answer")?;
        let message = Message::parse(&buffer[..len]).map_err(|e| anyhow::anyhow!("{e}"))?;
        ensure!(
            message.xid == 0x76_3600 | u32::from(kind),
            "another exchange's answer"
        );
        Ok(message)
    }

    /// Solicit, then Request: the address and the boot file URL.
    fn lease(&self, options: &[(u16, Vec<u8>)]) -> Result<(Ipv6Addr, String)> {
        let offer = self.ask(1, options, None)?;
        ensure!(
            offer.msg_type == 2,
            "Solicit is answered with {}",
            offer.msg_type
        );
        let addr = address(&offer)?;
        let server = offer
            .options
            .get(2)
            .context("no server identifier")?
            .to_vec();
        let reply = self.ask(3, options, Some((&server, addr)))?;
        ensure!(reply.msg_type == 7 && address(&reply)? == addr, "{reply:?}");
        let url = reply.options.get(59).context("no boot file URL")?;
        Ok((addr, String::from_utf8(url.to_vec())?))
    }
}

fn address(message: &Message) -> Result<Ipv6Addr> {
    let ia = message.options.get(3).and_then(|ia| ia.get(12..));
    let inner = Dhcp6Options::parse(ia.context("no IA_NA")?);
    let addr = inner.get(5).and_then(|value| value.first_chunk::<16>());
    Ok(Ipv6Addr::from(*addr.context("no address")?))
}

/// Architecture and vendor class as firmware sends them.
fn class(arch: u16, text: &str) -> Vec<(u16, Vec<u8>)> {
    let mut value = 343_u32.to_be_bytes().to_vec();
    value.extend_from_slice(&(text.len() as u16).to_be_bytes());
    value.extend_from_slice(text.as_bytes());
    vec![(61, arch.to_be_bytes().to_vec()), (16, value)]
}

/// Fetches `url` from the leased address and compares it with the artefact.
/// curl names the status of a refusal.
fn refused(said: &str) -> Result<()> {
    ensure!(said.contains("403"), "{said}");
    Ok(())
}

fn fetch(site: &Site, node: &Netns, url: &str, artefact: &Artefact) -> Result<()> {
    let out = site.run.dir().join("fetched-by-ipv6");
    let ca = site.ca_dir().join("boot-ca.pem");
    let (out_path, ca) = (out.to_string_lossy(), ca.to_string_lossy());
    tool(
        node,
        "curl",
        &[
            "-gsS", "--fail", "-m", "60", "--cacert", &ca, "-o", &out_path, url,
        ],
    )?;
    let original = fs::read(site.image_dir().join(&artefact.file))?;
    ensure!(fs::read(&out)? == original, "{url}: content differs");
    Ok(())
}

/// Gives the machine the address it was leased, as a host of the announced prefix.
fn use_address(node: &Netns, addr: Ipv6Addr) -> Result<()> {
    let address = format!("{addr}/64");
    node.ip(&["-6", "addr", "replace", &address, "dev", "eth0", "nodad"])
}

fn pxe(site: &Site, firmware: &Firmware, node: &Netns, ipxe: &Artefact) -> Result<()> {
    let (addr, url) = firmware.lease(&class(7, "PXEClient:Arch:00007:UNDI:003000"))?;
    ensure!(
        url == format!("tftp://[{GATEWAY_ADDR6}]/{}", ipxe.file),
        "{url}"
    );
    use_address(node, addr)?;
    fetch(site, node, &url, ipxe)
}

fn http(site: &Site, firmware: &Firmware, node: &Netns, uki: &Artefact) -> Result<()> {
    let (_, url) = firmware.lease(&class(16, "HTTPClient:Arch:00016:UNDI:003001"))?;
    ensure!(
        url.starts_with(&format!("https://[{GATEWAY_ADDR6}]/boot/")),
        "{url}"
    );
    fetch(site, node, &url, uki)
}

fn script(site: &Site, firmware: &Firmware, node: &Netns) -> Result<()> {
    let mut options = class(7, "PXEClient:Arch:00007:UNDI:003000");
    options.push((15, b"\0\x04iPXE".to_vec()));
    let (_, url) = firmware.lease(&options)?;
    let ca = site.ca_dir().join("boot-ca.pem");
    let said = tool(
        node,
        "curl",
        &[
            "-gsS",
            "--fail",
            "-m",
            "60",
            "--cacert",
            &ca.to_string_lossy(),
            &url,
        ],
    )?;
    ensure!(said.starts_with("#!ipxe"), "{said}");
    ensure!(
        said.contains(&format!("https://[{GATEWAY_ADDR6}]/boot/")),
        "{said}"
    );
    Ok(())
}

fn restart(site: &mut Site, firmware: &Firmware) -> Result<()> {
    let options = class(7, "PXEClient:Arch:00007:UNDI:003000");
    let (before, _) = firmware.lease(&options)?;
    site.kill();
    site.serve()?;
    let (after, _) = firmware.lease(&options)?;
    ensure!(before == after, "{before} became {after}");
    Ok(())
}

//! LLDP both ways between the daemon and a real lldpd on the switch's port, and what a segment can do
//! to it.

use std::io::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use gateway::neighbours::{LldpInterface, NeighbourList, NeighbourView};
use netstack::MacAddr;
use netstack::lldp::tlv::Capabilities;
use netstack::lldp::{Frame, Id, Lldpdu};
use serde_json::Value;

use crate::lldpd::Lldpd;
use crate::report::Report;
use crate::site::{Options, Site};
use crate::switch::Speaker;

/// The switch's end of the appliance's cable.
const PORT: &str = "p-gw";
const SOON: Duration = Duration::from_secs(8);

/// What the switch-side lldpd is told to say: custom, MED and 802.1 TLVs beside its own 802.3 ones.
const SWITCH: &str = "\
configure system hostname lab-lldpd
configure system description \"a switch of the lab\"
configure system capabilities enabled bridge,router
configure system ip management pattern 10.99.0.1
configure lldp tx-interval 1
configure lldp portidsubtype ifname
configure lldp custom-tlv oui 33,44,55 subtype 44 oui-info 45,45,45,45,45
configure lldp custom-tlv oui 33,44,55 subtype 45
configure lldp custom-tlv oui 00,80,c2 subtype 1 oui-info 00,64
configure lldp custom-tlv oui 00,80,c2 subtype 3 oui-info 00,64,04,70,72,6f,76
configure med policy application voice tagged vlan 5 priority voice dscp 46
configure med location coordinate latitude 48.85667N longitude 2.2014E altitude 117.47 m datum WGS84
";

/// Runs the scenario.
///
/// # Errors
/// The site or lldpd cannot be made.
pub fn run(report: &Report) -> Result<()> {
    let mut site = Site::prepare("lldp", Options::default())?;
    let fab = site.segment.fab.clone();
    fab.ip(&["addr", "add", "10.99.0.1/32", "dev", PORT])?;
    let mut lldpd = Lldpd::start(&site.run, &fab, "lldpd", PORT, SWITCH)?;
    // Two more interfaces: the uplink, and one that is not there yet.
    let mut config = std::fs::OpenOptions::new()
        .append(true)
        .open(site.config())?;
    config.write_all(b"[provisioning.lldp]\ninterfaces = [\"mgmt0\", \"late0\"]\n")?;
    site.serve()?;
    let outcome = steps(report, &mut site, &mut lldpd);
    if outcome.is_err() || !report.failures().is_empty() {
        report.note(format!("logs kept in {}", site.run.keep_logs().display()));
    }
    outcome
}

fn steps(report: &Report, site: &mut Site, lldpd: &mut Lldpd) -> Result<()> {
    report.check("lldpd shows us with all fields", {
        wait("us at lldpd", || shows_us(site, lldpd))
    });
    report.check("a fast start of four announcements", fast_start(site));
    report.check("we show lldpd with all fields", {
        wait("lldpd here", || shows_lldpd(site))
    });
    report.check("the command line shows it", command_line(site));
    report.check(
        "a host, a tagged frame and a second switch are told apart",
        several(site),
    );
    report.check("a neighbour that falls silent ages", ages(site));
    report.check("unreadable frames are counted and harm nobody", {
        malformed(site)
    });
    report.check("an interface that comes late is spoken on", late(site));
    report.check("a link that goes down forgets; up again it starts anew", {
        flap(site, lldpd)
    });
    report.check("lldpd's good-bye removes it at once", {
        lldpd.stop();
        gone(site, "lab-lldpd", "shutdown")
    });
    report.check("our good-bye removes us at once", good_bye(site));
    Ok(())
}

fn list(site: &Site) -> Result<NeighbourList> {
    site.desk.get("/v1/neighbours")
}

fn interface(site: &Site, name: &str) -> Result<LldpInterface> {
    let list = list(site)?;
    let found = list.interfaces.into_iter().find(|i| i.interface == name);
    found.with_context(|| format!("no interface {name}"))
}

/// The neighbour on the provisioning interface that calls itself `name`.
fn named(site: &Site, name: &str) -> Result<NeighbourView> {
    let prov = interface(site, "prov0")?;
    let found = prov
        .neighbours
        .iter()
        .find(|n| n.system_name.as_deref() == Some(name));
    found
        .cloned()
        .with_context(|| format!("no neighbour {name} in {:?}", prov.neighbours))
}

/// Repeats `check` until it holds, for [`SOON`].
fn wait<T>(what: &str, mut check: impl FnMut() -> Result<T>) -> Result<()> {
    let started = Instant::now();
    loop {
        match check() {
            Ok(_) => return Ok(()),
            Err(error) if started.elapsed() > SOON => {
                return Err(error.context(format!("{what}: not within {} s", SOON.as_secs())));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

fn gone(site: &Site, name: &str, change: &str) -> Result<()> {
    wait(&format!("{name} gone"), || match named(site, name) {
        Ok(there) => bail!("still there: {there:?}"),
        Err(_) => list(site),
    })?;
    let line = |l: &str| {
        l.contains("\"neighbour\"")
            && l.contains(&format!("\"change\":\"{change}\""))
            && l.contains(name)
    };
    ensure!(
        site.log().lines().any(line),
        "no line with {change} of {name} in the log"
    );
    Ok(())
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or("")
}

fn shows_us(site: &Site, lldpd: &Lldpd) -> Result<()> {
    let all = lldpd.neighbours()?;
    let [us] = all.as_slice() else {
        bail!("{} neighbours", all.len());
    };
    let mac = site.segment.gw.enter(|| {
        let nic = hw::nic::interfaces()
            .into_iter()
            .find(|i| i.name == "prov0");
        let mac = nic.and_then(|nic| nic.mac).context("prov0 has no MAC")?;
        Ok(hw::nic::format_mac(mac))
    })?;
    for (pointer, expected) in [
        ("/chassis/0/id/0/type", "mac"),
        ("/chassis/0/id/0/value", mac.as_str()),
        ("/chassis/0/name/0/value", "lab"),
        ("/chassis/0/mgmt-ip/0/value", "10.66.0.1"),
        ("/port/0/id/0/type", "ifname"),
        ("/port/0/id/0/value", "prov0"),
        ("/port/0/descr/0/value", "provisioning"),
        ("/port/0/ttl/0/value", "120"),
    ] {
        let found = text(us, pointer);
        ensure!(
            found == expected,
            "{pointer}: expected {expected:?}, found {found:?} in {us}"
        );
    }
    let description = text(us, "/chassis/0/descr/0/value");
    ensure!(
        description.contains("Vestibule") && description.contains(env!("CARGO_PKG_VERSION")),
        "description {description:?}"
    );
    let station = us
        .pointer("/chassis/0/capability")
        .and_then(Value::as_array)
        .is_some_and(|list| {
            list.iter()
                .any(|c| c["type"] == "Station" && c["enabled"] == true)
        });
    ensure!(station, "no capability Station in {us}");
    Ok(())
}

fn fast_start(site: &Site) -> Result<()> {
    wait("four announcements", || {
        let prov = interface(site, "prov0")?;
        ensure!(prov.sent >= 4, "{} sent", prov.sent);
        Ok(())
    })?;
    // Then one every 30 s: two more seconds bring none.
    let before = interface(site, "prov0")?.sent;
    std::thread::sleep(Duration::from_secs(2));
    let after = interface(site, "prov0")?.sent;
    ensure!(after <= before + 1, "{before}, then {after}");
    Ok(())
}

fn shows_lldpd(site: &Site) -> Result<()> {
    let there = named(site, "lab-lldpd")?;
    ensure!(there.role == "network_device", "{there:?}");
    ensure!(there.chassis_id.subtype == "mac_address", "{there:?}");
    ensure!(
        there.port_id.subtype == "interface_name" && there.port_id.value == PORT,
        "{there:?}"
    );
    ensure!(
        there.system_description.as_deref() == Some("a switch of the lab"),
        "{there:?}"
    );
    ensure!(there.port_description.as_deref() == Some(PORT), "{there:?}");
    ensure!(
        there.capabilities_enabled == ["bridge", "router"],
        "{there:?}"
    );
    ensure!(
        there.management_addresses.contains(&"10.99.0.1".to_owned()),
        "{there:?}"
    );
    ensure!(there.pvid == Some(100) && there.vlan.is_none(), "{there:?}");
    // lldpd says four intervals, one second each.
    ensure!((1..=121).contains(&there.ttl), "{there:?}");
    ensure!(
        there.first_heard <= there.last_heard && there.last_heard < there.expires,
        "{there:?}"
    );
    let prov = interface(site, "prov0")?;
    ensure!(
        prov.link_up && prov.problem.is_none() && prov.refused == 0,
        "{prov:?}"
    );
    let (_, metrics) = site.desk.health("/metrics")?;
    for wanted in [
        "vestibule_lldp_neighbours{interface=\"prov0\"} 1",
        "vestibule_lldp_neighbour_changes_total{change=\"new\"} 1",
    ] {
        ensure!(metrics.contains(wanted), "no {wanted:?} in\n{metrics}");
    }
    Ok(())
}

fn command_line(site: &Site) -> Result<()> {
    for (args, wanted) in [
        (&["neighbours"][..], "a switch of the lab"),
        (&["status"], "prov0: lab-lldpd/p-gw (network_device)"),
    ] {
        let (status, out, err) = site.desk.vestibule(args)?;
        ensure!(status.success(), "{args:?}: {status}: {out}{err}");
        ensure!(out.contains(wanted), "{args:?}: no {wanted:?} in\n{out}");
    }
    Ok(())
}

/// A frame of a made-up neighbour.
fn frame(last: u8, name: &str, ttl_secs: u16, capabilities: u16, vlan: Option<u16>) -> Vec<u8> {
    let mac = MacAddr([0x02, 0, 0x5e, 0, 1, last]);
    let mut pdu = Lldpdu::new(Id::mac(mac), Id::local(&format!("{last}")), ttl_secs);
    pdu.system_name = Some(name.to_owned());
    pdu.capabilities = Some(Capabilities {
        supported: capabilities,
        enabled: capabilities,
    });
    let mut frame = Frame::announce(mac, pdu);
    frame.vlan = vlan;
    frame.encode()
}

fn speak(site: &Site, frame: Vec<u8>) -> Result<Speaker> {
    Speaker::repeat(&site.segment.fab, PORT, Duration::from_millis(500), frame)
}

fn several(site: &Site) -> Result<()> {
    let station = Capabilities::STATION;
    let _voices = [
        speak(site, frame(1, "a-host", 3, station, None))?,
        speak(
            site,
            frame(2, "a-tagged-switch", 3, Capabilities::BRIDGE, Some(100)),
        )?,
        speak(
            site,
            frame(3, "a-priority-tagged-host", 3, station, Some(0)),
        )?,
    ];
    wait("four neighbours", || {
        named(site, "lab-lldpd")?;
        for (name, role, vlan) in [
            ("a-host", "end_station", None),
            ("a-tagged-switch", "network_device", Some(100)),
            ("a-priority-tagged-host", "end_station", Some(0)),
        ] {
            let there = named(site, name)?;
            ensure!(there.role == role && there.vlan == vlan, "{there:?}");
        }
        Ok(())
    })
}

fn ages(site: &Site) -> Result<()> {
    for name in ["a-host", "a-tagged-switch", "a-priority-tagged-host"] {
        gone(site, name, "aged")?;
    }
    named(site, "lab-lldpd").map(drop)
}

fn malformed(site: &Site) -> Result<()> {
    let mut short = frame(4, "short", 3, 0, None);
    short.truncate(20);
    let mut twice = frame(5, "twice", 3, 0, None);
    let end = twice.len() - 2;
    twice.splice(end.., [0x06, 0x02, 0, 9, 0, 0]);
    let before = interface(site, "prov0")?.refused;
    let voices = [speak(site, short)?, speak(site, twice)?];
    wait("refused frames", || {
        let refused = interface(site, "prov0")?.refused;
        ensure!(refused >= before + 4, "{refused} refused");
        Ok(())
    })?;
    drop(voices);
    named(site, "lab-lldpd")?;
    let (_, metrics) = site.desk.health("/metrics")?;
    for code in ["lldp.mandatory", "lldp.twice"] {
        let wanted = format!("vestibule_lldp_frames_total{{outcome=\"{code}\"}}");
        ensure!(metrics.contains(&wanted), "no {wanted} in\n{metrics}");
    }
    Ok(())
}

fn late(site: &Site) -> Result<()> {
    let problem = interface(site, "late0")?.problem.context("no problem")?;
    ensure!(problem.code == "lldp.interface", "{problem}");
    let gw = &site.segment.gw;
    gw.ip(&[
        "link", "add", "late0", "type", "veth", "peer", "name", "late1",
    ])?;
    for end in ["late0", "late1"] {
        gw.ip(&["link", "set", end, "up"])?;
    }
    wait("late0", || {
        let late = interface(site, "late0")?;
        ensure!(
            late.problem.is_none() && late.link_up && late.sent > 0,
            "{late:?}"
        );
        Ok(())
    })?;
    gw.ip(&["link", "del", "late0"])?;
    wait("late0 gone again", || {
        interface(site, "late0")?.problem.context("no problem")
    })
}

fn flap(site: &Site, lldpd: &Lldpd) -> Result<()> {
    let fab = &site.segment.fab;
    let sent = interface(site, "prov0")?.sent;
    fab.ip(&["link", "set", PORT, "down"])?;
    gone(site, "lab-lldpd", "link_down")?;
    ensure!(!interface(site, "prov0")?.link_up, "the link counts as up");
    fab.ip(&["link", "set", PORT, "up"])?;
    wait("lldpd here again", || named(site, "lab-lldpd"))?;
    wait("us at lldpd again", || shows_us(site, lldpd))?;
    wait("an announcement after the cut", || {
        let again = interface(site, "prov0")?.sent;
        ensure!(again > sent, "{sent} sent before, {again} after");
        Ok(())
    })
}

/// A second lldpd learns us, the daemon stops, and lldpd forgets us long before the 120 s are over.
fn good_bye(site: &mut Site) -> Result<()> {
    let fab = site.segment.fab.clone();
    let lldpd = Lldpd::start(&site.run, &fab, "lldpd-2", PORT, SWITCH)?;
    // A new neighbour makes the daemon announce itself at once.
    wait("us at lldpd", || shows_us(site, &lldpd))?;
    site.stop()?;
    wait("us gone", || {
        let left = lldpd.neighbours()?;
        ensure!(left.is_empty(), "{left:?}");
        Ok(())
    })
}

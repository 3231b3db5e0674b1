//! The provisioning segment: three sides, each its own network namespace.
//!
//! `fab` is the switch (bridge `prov`, one port per machine), `gw` the appliance (`prov0` on the
//! bridge, `mgmt0` on the management side), `mgmt` the administrator's desk. Nothing routes
//! between `prov` and `mgmt`. The host's own network is not touched.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use gateway_core::identity::MacAddr;
use nix::sched::{CloneFlags, setns};

use crate::run::{Run, output};

/// The appliance on the provisioning side.
pub const GATEWAY_ADDR: Ipv4Addr = Ipv4Addr::new(10, 66, 0, 1);
/// Prefix of the appliance's network there, unless a scenario makes it another.
pub const PREFIX: u8 = 24;
/// The appliance on the management side.
pub const MGMT_ADDR: Ipv4Addr = Ipv4Addr::new(10, 67, 0, 1);
/// The administrator.
pub const DESK_ADDR: Ipv4Addr = Ipv4Addr::new(10, 67, 0, 2);
/// First and last address of the pool: room for 200 machines, and the tenth that is kept for known
/// ones.
pub const POOL: (Ipv4Addr, Ipv4Addr) =
    (Ipv4Addr::new(10, 66, 0, 20), Ipv4Addr::new(10, 66, 0, 250));

/// The appliance on the provisioning side, where a site has IPv6.
pub const GATEWAY_ADDR6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x66, 0, 0, 0, 0, 0, 1);
/// First and last address of the IPv6 pool.
pub const POOL6: (Ipv6Addr, Ipv6Addr) = (
    Ipv6Addr::new(0xfd00, 0x66, 0, 0, 0, 0, 0, 0x100),
    Ipv6Addr::new(0xfd00, 0x66, 0, 0, 0, 0, 0, 0x1ff),
);

/// Six hundred machines may want it at once and run only when the daemon does not.
const LIMIT: Duration = Duration::from_secs(120);

/// One network namespace of a run.
#[derive(Debug, Clone)]
pub struct Netns {
    name: String,
}

impl Netns {
    /// Makes a namespace with its loopback up and IPv6 off until somebody wants it.
    ///
    /// # Errors
    /// `ip netns` refuses.
    pub fn create(run: &Run, role: &str) -> Result<Self> {
        let name = format!("vt-{}-{role}", run.id());
        run.note_netns(&name)?;
        ip(&["netns", "add", &name])?;
        let ns = Self { name };
        ns.ip(&["link", "set", "lo", "up"])?;
        Ok(ns)
    }

    /// Its name, for `ip netns exec`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// `program args` inside this namespace. The pid is the program's own: `ip` replaces itself.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, program]);
        command
    }

    /// `ip -n NAME ..`.
    ///
    /// # Errors
    /// What `ip` says.
    pub fn ip(&self, args: &[&str]) -> Result<()> {
        let mut all = vec!["-n", self.name.as_str()];
        all.extend_from_slice(args);
        ip(&all)
    }

    /// Runs `f` on a thread of this namespace: sockets opened there stay in it.
    ///
    /// # Errors
    /// The namespace is gone, or what `f` says.
    pub fn enter<T: Send>(&self, f: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    self.join_thread()?;
                    f()
                })
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Moves the calling thread into this namespace, for good.
    ///
    /// # Errors
    /// The namespace is gone.
    pub fn join_thread(&self) -> Result<()> {
        let path = format!("/run/netns/{}", self.name);
        let file = std::fs::File::open(&path).with_context(|| format!("cannot open {path}"))?;
        setns(file, CloneFlags::CLONE_NEWNET).with_context(|| format!("cannot enter {path}"))
    }
}

/// The three sides.
pub struct Segment {
    /// The switch.
    pub fab: Netns,
    /// The appliance.
    pub gw: Netns,
    /// The administrator's desk.
    pub mgmt: Netns,
}

impl Segment {
    /// Makes the switch, the appliance's two links and the desk.
    ///
    /// # Errors
    /// What `ip` says.
    pub fn create(run: &Run) -> Result<Self> {
        let segment = Self {
            fab: Netns::create(run, "fab")?,
            gw: Netns::create(run, "gw")?,
            mgmt: Netns::create(run, "mgmt")?,
        };
        let Self { fab, gw, mgmt } = &segment;
        fab.ip(&[
            "link",
            "add",
            "prov",
            "type",
            "bridge",
            "mcast_snooping",
            "0",
        ])?;
        // 802.1AB: a switch consumes LLDP at the port; group_fwd_mask stays 0.
        fab.ip(&["link", "set", "prov", "up"])?;
        fab.ip(&[
            "link",
            "add",
            "p-gw",
            "type",
            "veth",
            "peer",
            "name",
            "prov0",
            "netns",
            gw.name(),
        ])?;
        fab.ip(&["link", "set", "p-gw", "master", "prov", "up"])?;
        let address = format!("{GATEWAY_ADDR}/{PREFIX}");
        gw.ip(&["addr", "add", &address, "dev", "prov0"])?;
        gw.ip(&["link", "set", "prov0", "up"])?;
        mgmt.ip(&[
            "link",
            "add",
            "desk0",
            "type",
            "veth",
            "peer",
            "name",
            "mgmt0",
            "netns",
            gw.name(),
        ])?;
        gw.ip(&["addr", "add", &format!("{MGMT_ADDR}/24"), "dev", "mgmt0"])?;
        gw.ip(&["link", "set", "mgmt0", "up"])?;
        mgmt.ip(&["addr", "add", &format!("{DESK_ADDR}/24"), "dev", "desk0"])?;
        mgmt.ip(&["link", "set", "desk0", "up"])?;
        Ok(segment)
    }

    /// Gives the appliance its IPv6 address. It stays tentative for a while, as on a real link.
    ///
    /// # Errors
    /// What `ip` says.
    pub fn with_ipv6(&self) -> Result<()> {
        let address = format!("{GATEWAY_ADDR6}/64");
        self.gw.ip(&["addr", "add", &address, "dev", "prov0"])
    }

    /// Makes the appliance's network on the segment another one than a /24.
    ///
    /// # Errors
    /// What `ip` says.
    pub fn with_prefix(&self, prefix: u8) -> Result<()> {
        let address = |prefix| format!("{GATEWAY_ADDR}/{prefix}");
        self.gw
            .ip(&["addr", "del", &address(PREFIX), "dev", "prov0"])?;
        self.gw
            .ip(&["addr", "add", &address(prefix), "dev", "prov0"])
    }

    /// A port with a machine's cable: its own namespace with `eth0` of that hardware address, up,
    /// without an address. The switch's end is `p-NAME` in `fab`.
    ///
    /// # Errors
    /// What `ip` says.
    pub fn plug(&self, run: &Run, name: &str, mac: MacAddr) -> Result<Netns> {
        let node = Netns::create(run, name)?;
        let port = port_name(name);
        let mac = mac.to_string();
        self.fab.ip(&[
            "link",
            "add",
            &port,
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "address",
            &mac,
            "netns",
            node.name(),
        ])?;
        self.fab
            .ip(&["link", "set", &port, "master", "prov", "up"])?;
        node.ip(&["link", "set", "eth0", "up"])?;
        Ok(node)
    }

    /// A port with a tap for QEMU, which must run in `fab`; the same one for the same name. Returns
    /// the tap's name.
    ///
    /// # Errors
    /// What `ip` says.
    pub fn tap(&self, name: &str) -> Result<String> {
        let tap = format!("tap-{name}");
        if self.fab.ip(&["link", "show", "dev", &tap]).is_ok() {
            return Ok(tap);
        }
        self.fab.ip(&["tuntap", "add", &tap, "mode", "tap"])?;
        self.fab
            .ip(&["link", "set", &tap, "master", "prov", "up"])?;
        Ok(tap)
    }
}

/// The switch's end of a machine's cable.
pub fn port_name(name: &str) -> String {
    format!("p-{name}")
}

fn ip(args: &[&str]) -> Result<()> {
    output(Command::new("ip").args(args), LIMIT)
        .map(drop)
        .with_context(|| format!("ip {}", args.join(" ")))
}

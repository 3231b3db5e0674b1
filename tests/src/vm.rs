//! A machine with real firmware: QEMU without KVM, OVMF with Secure Boot and SMM, swtpm.
//!
//! QEMU runs inside the switch's namespace, where its tap is. One VM at a time on this machine
//! (a file lock in the cache), since two emulated machines on two cores slow each other below
//! the firmware's own time-outs.

use std::fs::{self, File};
use std::io::{BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};
use gateway_core::identity::MacAddr;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use crate::netns::Segment;
use crate::run::{Process, Run, cache_dir};
use crate::swtpm;

/// How the firmware fetches its first image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FirmwareBoot {
    /// PXE: DHCP option 93 = 7, TFTP.
    Pxe,
    /// UEFI HTTP boot: option 93 = 16.
    Http,
    /// PXE by firmware with IPv6 alone: DHCPv6 option 61 = 7, TFTP. iPXE after it speaks both.
    Pxe6,
    /// UEFI HTTP boot over IPv6 alone: option 61 = 16.
    Http6,
}

impl FirmwareBoot {
    /// Whether the firmware speaks IPv6, and not IPv4.
    pub fn is_ipv6(self) -> bool {
        match self {
            Self::Pxe | Self::Http => false,
            Self::Pxe6 | Self::Http6 => true,
        }
    }

    /// What of OVMF's network stack is switched off (names of its fw_cfg files).
    fn switched_off(self) -> &'static [&'static str] {
        match self {
            Self::Pxe => &["IPv6Support", "IPv6PXESupport"],
            Self::Http => &["IPv6Support", "IPv6PXESupport", "IPv4PXESupport"],
            Self::Pxe6 => &["IPv4Support", "IPv4PXESupport"],
            Self::Http6 => &["IPv4Support", "IPv4PXESupport", "IPv6PXESupport"],
        }
    }
}

/// What to boot.
pub struct Spec<'a> {
    /// Short name: tap, logs, sockets.
    pub name: &'a str,
    /// Hardware address of the one NIC.
    pub mac: MacAddr,
    /// SMBIOS type 1 serial number.
    pub serial: &'a str,
    /// OVMF code image with SMM and HTTPS.
    pub code: &'a Path,
    /// Variable store with PK, KEK and db enrolled; copied.
    pub vars: &'a Path,
    /// `EFI_SIGNATURE_LIST` of CAs for the firmware's and iPXE's TLS.
    pub tls_cas: Option<&'a Path>,
    /// State of the TPM (see [`swtpm::provision`]).
    pub tpm: &'a Path,
    /// How it boots.
    pub boot: FirmwareBoot,
    /// A disk image to attach, with its serial number.
    pub disk: Option<(&'a Path, &'a str)>,
}

/// A machine that is none of the site's kind, without TPM and Secure Boot: its firmware asks what it
/// may boot, and that is all it is for.
pub enum Visitor<'a> {
    /// A PC with a BIOS, whose NIC has iPXE in its option ROM.
    SeaBios {
        /// The ROM.
        rom: &'a Path,
    },
    /// 64-bit ARM with EDK2.
    Aavmf {
        /// Code image.
        code: &'a Path,
        /// Variable store; copied.
        vars: &'a Path,
        /// As [`Spec::tls_cas`].
        tls_cas: &'a Path,
    },
}

impl Visitor<'_> {
    fn program(&self) -> &'static str {
        match self {
            Self::SeaBios { .. } => "qemu-system-x86_64",
            Self::Aavmf { .. } => "qemu-system-aarch64",
        }
    }

    fn arguments(&self, dir: &Path, mac: MacAddr) -> Result<Vec<String>> {
        let nic = format!("virtio-net-pci,netdev=n0,mac={mac}");
        let words: Vec<String> = match self {
            Self::SeaBios { rom } => {
                // The ROM is for the modern device and looks for its PCI identifier.
                let rom = rom.display();
                let nic = format!("{nic},bootindex=1,romfile={rom},disable-legacy=on");
                // Without graphics SeaBIOS and what it starts speak on the serial port.
                ["-machine", "pc,graphics=off", "-vga", "none", "-m", "128"]
                    .into_iter()
                    .chain(["-device", &nic])
                    .map(str::to_owned)
                    .collect()
            }
            Self::Aavmf {
                code,
                vars,
                tls_cas,
            } => {
                let own = dir.join("vars.fd");
                fs::copy(vars, &own).context("cannot copy the variable store")?;
                let code = format!(
                    "if=pflash,format=raw,unit=0,readonly=on,file={}",
                    code.display()
                );
                let own = format!("if=pflash,format=raw,unit=1,file={}", own.display());
                let cas = format!("name=etc/edk2/https/cacerts,file={}", tls_cas.display());
                // It finds no boot option with an older processor, or where QEMU names the order.
                let nic = format!("{nic},romfile=");
                ["-machine", "virt", "-cpu", "max", "-m", "512"]
                    .into_iter()
                    .chain(["-drive", &code, "-drive", &own, "-device", &nic])
                    .chain(["-device", "virtio-rng-pci", "-fw_cfg", &cas])
                    .map(str::to_owned)
                    .collect()
            }
        };
        Ok(words)
    }
}

/// One line of the serial console.
#[derive(Debug, Clone)]
pub struct SerialLine {
    /// Wall clock at arrival, milliseconds since 1970.
    pub at_ms: u64,
    /// Text without escape sequences.
    pub text: String,
}

/// A running machine.
pub struct Vm {
    qemu: Process,
    tpm: Option<Process>,
    monitor: PathBuf,
    serial: Arc<Mutex<Vec<SerialLine>>>,
    /// Where the console is written, stamped.
    pub serial_log: PathBuf,
    started: Instant,
    _lock: Flock<File>,
}

impl Vm {
    /// Powers the machine on; waits for the VM lock first.
    ///
    /// # Errors
    /// QEMU or swtpm do not start.
    pub fn start(run: &Run, segment: &Segment, spec: &Spec<'_>) -> Result<Self> {
        let lock = lock()?;
        let dir = run.dir().join(format!("vm-{}", spec.name));
        fs::create_dir_all(&dir)?;
        let vars = dir.join("vars.fd");
        fs::copy(spec.vars, &vars).context("cannot copy the variable store")?;
        let socket = dir.join("tpm.sock");
        let tpm = swtpm::start_for_qemu(run, spec.name, spec.tpm, &socket)?;
        let tap = segment.tap(spec.name)?;
        let monitor = dir.join("monitor");
        let mut command = segment.fab.command("qemu-system-x86_64");
        command.args(arguments(spec, &vars, &socket, &tap, &monitor));
        Self::launch(run, spec.name, command, monitor, Some(tpm), lock)
    }

    /// Powers on a machine of another kind; waits for the VM lock first.
    ///
    /// # Errors
    /// QEMU does not start.
    pub fn visit(
        run: &Run,
        segment: &Segment,
        name: &str,
        mac: MacAddr,
        visitor: &Visitor<'_>,
    ) -> Result<Self> {
        let lock = lock()?;
        let dir = run.dir().join(format!("vm-{name}"));
        fs::create_dir_all(&dir)?;
        let monitor = dir.join("monitor");
        let tap = segment.tap(name)?;
        let mut command = segment.fab.command(visitor.program());
        command.args(visitor.arguments(&dir, mac)?);
        let netdev = format!("tap,id=n0,ifname={tap},script=no,downscript=no");
        let monitor_at = format!("unix:{},server=on,wait=off", monitor.display());
        command.args(["-name", name, "-accel", "tcg", "-netdev", &netdev]);
        command.args(["-uuid", &uuid(mac), "-display", "none", "-no-reboot"]);
        command.args(["-monitor", &monitor_at, "-serial", "stdio"]);
        Self::launch(run, name, command, monitor, None, lock)
    }

    fn launch(
        run: &Run,
        name: &str,
        mut command: Command,
        monitor: PathBuf,
        tpm: Option<Process>,
        lock: Flock<File>,
    ) -> Result<Self> {
        let errors = File::create(run.log(&format!("qemu-{name}")))?;
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(errors);
        let mut qemu = run.spawn_raw(&format!("qemu-{name}"), &mut command)?;
        let serial_log = run.log(&format!("serial-{name}"));
        let serial = Arc::new(Mutex::new(Vec::new()));
        let stdout = qemu.take_stdout().context("QEMU has no standard output")?;
        read_serial(stdout, File::create(&serial_log)?, Arc::clone(&serial));
        Ok(Self {
            qemu,
            tpm,
            monitor,
            serial,
            serial_log,
            started: Instant::now(),
            _lock: lock,
        })
    }

    /// Everything the console has said so far.
    pub fn lines(&self) -> Vec<SerialLine> {
        self.serial
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .clone()
    }

    /// Waits for a line that holds `needle`.
    ///
    /// # Errors
    /// The machine ended, or `limit` passed; the text has the last lines of the console.
    pub fn wait_for(&mut self, needle: &str, limit: Duration) -> Result<SerialLine> {
        self.wait_for_any(&[needle], limit).map(|(_, line)| line)
    }

    /// Waits for a line that holds one of `needles`; says which.
    ///
    /// # Errors
    /// As [`Vm::wait_for`].
    pub fn wait_for_any(
        &mut self,
        needles: &[&str],
        limit: Duration,
    ) -> Result<(usize, SerialLine)> {
        let started = Instant::now();
        let mut seen = 0;
        loop {
            let lines = self.lines();
            for line in &lines[seen..] {
                if let Some(which) = needles.iter().position(|n| line.text.contains(n)) {
                    return Ok((which, line.clone()));
                }
            }
            seen = lines.len();
            if let Some(status) = self.qemu.ended() {
                bail!(
                    "the VM ended ({status}) before {needles:?}\n{}",
                    tail(&lines)
                );
            }
            if started.elapsed() > limit {
                bail!(
                    "no {needles:?} within {} s\n{}",
                    limit.as_secs(),
                    tail(&lines)
                );
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Seconds since power-on.
    pub fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    /// Processor seconds that QEMU has used.
    pub fn cpu_secs(&self) -> f64 {
        crate::run::cpu_secs(self.qemu.pid())
    }

    /// Cuts the power this very moment, whatever is in the machine's memory.
    pub fn cut_power(&mut self) {
        self.qemu.kill();
        self.power_off();
    }

    /// Cuts the power.
    pub fn power_off(&mut self) {
        swtpm::monitor_quit(&self.monitor);
        let _ = self.qemu.wait(Duration::from_secs(3));
        self.qemu.kill();
        if let Some(tpm) = &mut self.tpm {
            tpm.kill();
        }
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        self.power_off();
    }
}

/// VMs at once on this machine: each keeps one core busy (TCG).
const AT_ONCE: usize = 2;

/// A place among the VMs of this machine.
fn lock() -> Result<Flock<File>> {
    let dir = cache_dir()?;
    fs::create_dir_all(&dir)?;
    loop {
        for place in 0..AT_ONCE {
            let file = File::create(dir.join(format!("vm.lock.{place}")))?;
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => return Ok(lock),
                Err((_, Errno::EWOULDBLOCK)) => {}
                Err((_, errno)) => return Err(errno).context("cannot lock for a VM"),
            }
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn arguments(spec: &Spec<'_>, vars: &Path, tpm: &Path, tap: &str, monitor: &Path) -> Vec<String> {
    let mut args: Vec<String> = Vec::new();
    let mut push = |words: &[&str]| args.extend(words.iter().map(|w| (*w).to_owned()));
    push(&[
        "-name",
        spec.name,
        "-machine",
        "q35,smm=on",
        "-accel",
        "tcg",
    ]);
    // la57 off: OVMF hangs with five-level paging under TCG.
    push(&["-cpu", "max,la57=off", "-smp", "1", "-m", "512"]);
    push(&["-global", "driver=cfi.pflash01,property=secure,value=on"]);
    push(&["-global", "ICH9-LPC.disable_s3=1"]);
    let code = format!(
        "if=pflash,format=raw,unit=0,readonly=on,file={}",
        spec.code.display()
    );
    let vars = format!("if=pflash,format=raw,unit=1,file={}", vars.display());
    push(&["-drive", &code, "-drive", &vars]);
    let netdev = format!("tap,id=n0,ifname={tap},script=no,downscript=no");
    // romfile= empty: else QEMU's own iPXE ROM takes the place of the firmware's PXE.
    let nic = format!(
        "virtio-net-pci,netdev=n0,mac={},bootindex=1,romfile=",
        spec.mac
    );
    push(&["-netdev", &netdev, "-device", &nic]);
    let chardev = format!("socket,id=chrtpm,path={}", tpm.display());
    push(&[
        "-chardev",
        &chardev,
        "-tpmdev",
        "emulator,id=tpm0,chardev=chrtpm",
    ]);
    push(&["-device", "tpm-crb,tpmdev=tpm0"]);
    push(&["-object", "rng-random,filename=/dev/urandom,id=rng0"]);
    push(&["-device", "virtio-rng-pci,rng=rng0"]);
    let smbios = format!(
        "type=1,serial={},manufacturer=Lab,product=Node",
        spec.serial
    );
    push(&["-smbios", &smbios, "-uuid", &uuid(spec.mac)]);
    if let Some((image, serial)) = spec.disk {
        let drive = format!("if=none,id=d0,format=raw,file={}", image.display());
        // Behind the NIC in the boot order, as machines are that ask the network first.
        let disk = format!("virtio-blk-pci,drive=d0,serial={serial},bootindex=2");
        push(&["-drive", &drive, "-device", &disk]);
    }
    for part in spec.boot.switched_off() {
        let switch = format!("name=opt/org.tianocore/{part},string=n");
        push(&["-fw_cfg", &switch]);
    }
    if let Some(list) = spec.tls_cas {
        let cas = format!("name=etc/edk2/https/cacerts,file={}", list.display());
        push(&["-fw_cfg", &cas]);
    }
    let monitor = format!("unix:{},server=on,wait=off", monitor.display());
    push(&[
        "-display",
        "none",
        "-no-reboot",
        "-monitor",
        &monitor,
        "-serial",
        "stdio",
    ]);
    args
}

/// A stable system UUID from the hardware address.
pub fn uuid(mac: MacAddr) -> String {
    format!("7e571b01-0000-4000-8000-{}", hex::encode(mac.0))
}

fn read_serial(
    stdout: std::process::ChildStdout,
    mut log: File,
    lines: Arc<Mutex<Vec<SerialLine>>>,
) {
    std::thread::spawn(move || {
        let mut reader = BufReader::new(stdout);
        let mut raw: Vec<u8> = Vec::new();
        let mut byte = [0u8];
        while reader.read_exact(&mut byte).is_ok() {
            if byte[0] != b'\n' && byte[0] != b'\r' {
                raw.push(byte[0]);
                continue;
            }
            let text = plain(&raw);
            raw.clear();
            if text.is_empty() {
                continue;
            }
            let at_ms = now_ms();
            let _ = writeln!(log, "{at_ms} {text}");
            lines
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner)
                .push(SerialLine { at_ms, text });
        }
    });
}

/// Text without ECMA-48 control sequences and without trailing blanks.
fn plain(raw: &[u8]) -> String {
    let mut out = String::new();
    let text = String::from_utf8_lossy(raw);
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\u{1b}' {
            if !c.is_control() {
                out.push(c);
            }
            continue;
        }
        // CSI: ESC [ parameters, then one final byte @..~. Anything else: ESC and one character.
        if chars.next() == Some('[') {
            for c in chars.by_ref() {
                if ('@'..='~').contains(&c) {
                    break;
                }
            }
        }
    }
    out.trim().to_owned()
}

fn tail(lines: &[SerialLine]) -> String {
    let from = lines.len().saturating_sub(25);
    lines[from..]
        .iter()
        .map(|line| format!("    {}\n", line.text))
        .collect()
}

/// Wall clock, milliseconds since 1970.
pub fn now_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn console_text_loses_its_control_sequences_only() {
        for (raw, expected) in [
            (
                &b"\x1b[2J\x1b[01;01HBdsDxe: starting"[..],
                "BdsDxe: starting",
            ),
            (
                b"\x1b[0mvestibule: [hello] ok \x1b[K",
                "vestibule: [hello] ok",
            ),
            (
                b"plain [text] with ] brackets",
                "plain [text] with ] brackets",
            ),
            (b"\x1b[", ""),
        ] {
            assert_eq!(plain(raw), expected);
        }
    }
}

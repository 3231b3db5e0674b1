//! What a Debian 12 or 13 machine must have, and why. One list; installed only when missing.

use std::process::{Command, Stdio};

use anyhow::{Result, bail};

use crate::exec;

/// For what a package is needed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Need {
    /// To compile the workspace.
    Build,
    /// To run the lab and the demo.
    Lab,
    /// To run every test.
    Test,
    /// To run the benchmarks: the peers.
    Bench,
}

/// Package, need, reason.
const PACKAGES: &[(&str, Need, &str)] = &[
    (
        "gcc",
        Need::Build,
        "C parts of aws-lc and the linker driver",
    ),
    ("libc6-dev", Need::Build, "headers for the same"),
    ("pkg-config", Need::Build, "finds the TPM stack"),
    (
        "libtss2-dev",
        Need::Build,
        "TPM2 software stack (ESYS, TCTI device and swtpm)",
    ),
    (
        "swtpm",
        Need::Lab,
        "a real TPM 2.0 in software, for the appliance and for each node",
    ),
    (
        "swtpm-tools",
        Need::Lab,
        "manufactures it with an EK certificate",
    ),
    (
        "tpm2-tools",
        Need::Lab,
        "loads an LDevID with somebody else's code; extends a PCR",
    ),
    ("qemu-system-x86", Need::Lab, "the machine that is booted"),
    (
        "sbsigntool",
        Need::Lab,
        "signs iPXE and the UKI for Secure Boot",
    ),
    (
        "binutils",
        Need::Lab,
        "strips what goes into the boot image",
    ),
    ("kmod", Need::Lab, "module dependencies for the initramfs"),
    ("zstd", Need::Lab, "compressed kernel modules and initramfs"),
    ("xz-utils", Need::Lab, "compressed kernel modules"),
    ("iproute2", Need::Lab, "network namespaces, bridges, taps"),
    ("nftables", Need::Lab, "the gate's backend"),
    (
        "conntrack",
        Need::Lab,
        "says what is tracked with somebody else's code",
    ),
    (
        "openssl",
        Need::Lab,
        "verifies the LDevID chain with somebody else's code",
    ),
    (
        "ca-certificates",
        Need::Lab,
        "trust for the package mirrors when they are HTTPS",
    ),
    ("curl", Need::Test, "peer for the HTTPS and TFTP responders"),
    ("gnutls-bin", Need::Test, "a third TLS stack"),
    ("tftp-hpa", Need::Test, "peer for the TFTP server"),
    (
        "atftp",
        Need::Test,
        "the one packaged TFTP client with windowsize",
    ),
    ("udhcpc", Need::Test, "peer for the DHCP server"),
    ("busybox-static", Need::Test, "a third TFTP client"),
    ("git", Need::Test, "the tests read what is committed"),
    (
        "cpio",
        Need::Test,
        "reads our initramfs with somebody else's code",
    ),
    (
        "python3-venv",
        Need::Test,
        "a private place for the tools that check the Yocto layer",
    ),
    (
        "systemd",
        Need::Test,
        "judges the daemon's unit file; its networkd is a peer for the DHCP server",
    ),
    (
        "qemu-system-arm",
        Need::Test,
        "a machine with firmware for ARM asks what it may boot",
    ),
    ("g++", Need::Test, "builds libFuzzer for `cargo xtask fuzz`"),
    (
        "dnsmasq-base",
        Need::Bench,
        "the DHCP and TFTP server most sites have",
    ),
    (
        "libwrap0",
        Need::Bench,
        "library of the TFTP servers that are unpacked beside the host: tftpd-hpa, atftpd",
    ),
    (
        "kea-dhcp4-server",
        Need::Bench,
        "the DHCP server of large sites",
    ),
    (
        "nginx-light",
        Need::Bench,
        "the HTTPS server most sites have",
    ),
    (
        "python3-gpg",
        Need::Bench,
        "what keylime needs and the package index does not have",
    ),
    (
        "libefivar1",
        Need::Bench,
        "keylime reads device paths with it",
    ),
];

/// Installs what is missing for `need` and everything below it. Says what it does.
pub fn install(need: Need) -> Result<()> {
    if std::env::var_os("VESTIBULE_NO_INSTALL").is_some() {
        return Ok(());
    }
    let missing: Vec<_> = PACKAGES
        .iter()
        .filter(|(name, n, _)| *n <= need && !installed(name))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    check_distribution()?;
    println!("xtask: installing {} Debian package(s):", missing.len());
    for (name, _, why) in &missing {
        println!("  {name:18} {why}");
    }
    let env = "DEBIAN_FRONTEND=noninteractive";
    let update = exec::as_root(&["env", env, "apt-get", "update", "-q"]);
    let outcome = exec::Run::new(&update[0], &update[1..])
        .limit_secs(600)
        .collect()?;
    if !outcome.ok() {
        print_tail(&outcome.lines);
        bail!("apt-get update: {}", outcome.describe());
    }
    let mut words = vec![
        "env",
        env,
        "apt-get",
        "install",
        "-y",
        "-q",
        "--no-install-recommends",
    ];
    words.extend(missing.iter().map(|(name, _, _)| *name));
    let install = exec::as_root(&words);
    let quiet = NoServices::ask(need)?;
    let outcome = exec::Run::new(&install[0], &install[1..])
        .limit_secs(1800)
        .collect();
    drop(quiet);
    let outcome = outcome?;
    if !outcome.ok() {
        print_tail(&outcome.lines);
        bail!("apt-get install: {}", outcome.describe());
    }
    println!("xtask: installed in {:.0} s", outcome.secs);
    Ok(())
}

/// While it lives, packages do not start their services: a peer is measured in a namespace of its
/// own, and a DHCP server must not come up on this machine's network (Debian Policy 9.3.3.2,
/// `policy-rc.d`).
struct NoServices;

const POLICY: &str = "/usr/sbin/policy-rc.d";

impl NoServices {
    /// Only the peers are servers. A policy that is there already is the owner's and stays.
    fn ask(need: Need) -> Result<Option<Self>> {
        if need != Need::Bench || std::path::Path::new(POLICY).exists() {
            return Ok(None);
        }
        let script = format!("printf '#!/bin/sh\\nexit 101\\n' > {POLICY} && chmod 755 {POLICY}");
        run_as_root(&["sh", "-c", &script])?;
        Ok(Some(Self))
    }
}

impl Drop for NoServices {
    fn drop(&mut self) {
        if let Err(error) = run_as_root(&["rm", "-f", POLICY]) {
            eprintln!("xtask: remove {POLICY} by hand: {error:#}");
        }
    }
}

fn run_as_root(words: &[&str]) -> Result<()> {
    let words = exec::as_root(words);
    let outcome = exec::Run::new(&words[0], &words[1..])
        .limit_secs(60)
        .collect()?;
    if !outcome.ok() {
        bail!("{}: {}", words.join(" "), outcome.describe());
    }
    Ok(())
}

/// Prints the list.
pub fn print() {
    for (name, need, why) in PACKAGES {
        let need = match need {
            Need::Build => "build",
            Need::Lab => "lab",
            Need::Test => "test",
            Need::Bench => "bench",
        };
        let state = if installed(name) {
            "present"
        } else {
            "missing"
        };
        println!("{name:18} {need:6} {state:8} {why}");
    }
}

fn print_tail(lines: &[String]) {
    for line in lines.iter().rev().take(15).rev() {
        eprintln!("  {line}");
    }
}

fn installed(package: &str) -> bool {
    Command::new("dpkg-query")
        .args(["-W", "-f=${db:Status-Status}", package])
        .stderr(Stdio::null())
        .output()
        .is_ok_and(|out| out.stdout == b"installed")
}

fn check_distribution() -> Result<()> {
    let text = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let field = |key: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(key))
            .map(|value| value.trim_matches('"').to_owned())
            .unwrap_or_default()
    };
    match (field("ID=").as_str(), field("VERSION_ID=").as_str()) {
        ("debian", "12" | "13") => Ok(()),
        ("debian" | "ubuntu", version) => {
            println!(
                "xtask: {} {version} is untested; Debian 12 and 13 are tested",
                field("ID=")
            );
            Ok(())
        }
        (other, _) => bail!(
            "packages are missing and this is {other:?}, not Debian: install what `cargo xtask packages` lists, then set VESTIBULE_NO_INSTALL=1"
        ),
    }
}

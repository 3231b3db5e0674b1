//! `cargo xtask`: one command for the demo, the tests, the lab and the benches.
//!
//! Decides what to install, build and run, and in which order; knows nothing of the product. It
//! depends on nothing of the workspace, so it builds in seconds on a machine with only git,
//! rustup and a C linker.

#![forbid(unsafe_code)]

mod exec;
mod fuzz;
mod packages;
mod skips;
mod stages;
mod tally;
mod tools;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};

const USAGE: &str = "\
usage: cargo xtask COMMAND

  demo [--keep]        boot one VM from DHCPDISCOVER to its LDevID and print the timeline
                       (--keep leaves the gateway running until Ctrl-C)
  test [STAGE..]       every check: fmt clippy build test doc deny fuzz yocto lab; prints the seconds
                       of each stage and one line of counts (default: all stages)
  lab list             the scenarios of the lab
  lab run NAME..       run scenarios; each prints PASS or FAIL and why
  bench [NAME [--rounds N]]
                       one benchmark against its peers, release build; writes target/bench/NAME.json
                       (without a name: the list)
  fuzz [--seconds N] [--seed N] [TARGET..]
                       coverage-guided runs under libFuzzer, ten minutes each; keeps what is new and
                       writes tests/fuzz/LOG.md
  packages             what would be installed, and why

Each command installs what is missing on Debian 12 or 13 and says so.";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match dispatch(&args) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::from(3)
        }
    }
}

fn dispatch(args: &[String]) -> Result<ExitCode> {
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["demo", rest @ ..] => lab("demo", rest, Profile::Dev),
        ["lab", "list"] => {
            build_lab(Profile::Dev)?;
            Ok(exec::replace(
                &binary("lab", Profile::Dev)?,
                &["list"],
                false,
            )?)
        }
        ["lab", "run", names @ ..] if !names.is_empty() => lab("run", names, Profile::Dev),
        ["bench", rest @ ..] => {
            packages::install(packages::Need::Bench)?;
            lab("bench", rest, Profile::Release)
        }
        ["test", names @ ..] => stages::test(names),
        ["fuzz", words @ ..] => fuzz::fuzz(words),
        ["packages"] => {
            packages::print();
            Ok(ExitCode::SUCCESS)
        }
        [] | ["help" | "-h" | "--help"] => {
            println!("{USAGE}");
            Ok(ExitCode::SUCCESS)
        }
        _ => {
            eprintln!("xtask: unknown command {:?}\n\n{USAGE}", args.join(" "));
            Ok(ExitCode::from(2))
        }
    }
}

/// Build profile of what the lab runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Profile {
    /// The one profile of all CI work.
    Dev,
    /// Benches only.
    Release,
}

/// Installs, builds, then becomes the `lab` binary (as root: it makes network namespaces).
fn lab(verb: &str, rest: &[&str], profile: Profile) -> Result<ExitCode> {
    packages::install(packages::Need::Lab)?;
    build_lab(profile)?;
    let mut args = vec![verb];
    args.extend_from_slice(rest);
    exec::replace(&binary("lab", profile)?, &args, true)
}

fn build_lab(profile: Profile) -> Result<()> {
    packages::install(packages::Need::Build)?;
    let mut args = vec![
        "build",
        "-p",
        "gateway",
        "-p",
        "attester",
        "-p",
        "boot-image",
        "-p",
        "lab",
    ];
    if profile == Profile::Release {
        args.push("--release");
    }
    println!("xtask: cargo {}", args.join(" "));
    let outcome = exec::Run::new(exec::cargo(), &args)
        .limit_secs(3600)
        .passthrough()?;
    if !outcome.ok() {
        bail!("cargo build: {}", outcome.describe());
    }
    Ok(())
}

/// Path of a built binary. The file must exist: a missing one is a broken build, said so here.
fn binary(name: &str, profile: Profile) -> Result<PathBuf> {
    let folder = match profile {
        Profile::Dev => "debug",
        Profile::Release => "release",
    };
    let path = target_dir().join(folder).join(name);
    path.canonicalize()
        .with_context(|| format!("no binary at {}", path.display()))
}

/// Root of the checkout.
fn root() -> PathBuf {
    // tests/xtask is two folders below the root.
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .map(PathBuf::from)
        .unwrap_or_default()
}

/// Where cargo puts what it builds.
fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

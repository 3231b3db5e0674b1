//! Cargo tools and components that the checks need, in the cache outside the clone.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};

use crate::exec;

const CARGO_DENY_VERSION: &str = "0.20.2";

/// `${XDG_CACHE_HOME:-~/.cache}/vestibule`. Everything in it can be made again.
pub fn cache_dir() -> Result<PathBuf> {
    if let Some(dir) = std::env::var_os("XDG_CACHE_HOME").filter(|d| !d.is_empty()) {
        return Ok(PathBuf::from(dir).join("vestibule"));
    }
    let home = std::env::var_os("HOME").context("neither XDG_CACHE_HOME nor HOME is set")?;
    Ok(PathBuf::from(home).join(".cache/vestibule"))
}

/// Path of cargo-deny, built once into the cache.
pub fn cargo_deny() -> Result<PathBuf> {
    let root = cache_dir()?.join("tools");
    let path = root.join("bin/cargo-deny");
    let version = exec::Run::new(&path, &["--version"])
        .limit_secs(20)
        .collect();
    if version.is_ok_and(|o| o.lines.iter().any(|l| l.ends_with(CARGO_DENY_VERSION))) {
        return Ok(path);
    }
    println!(
        "xtask: building cargo-deny {CARGO_DENY_VERSION} into {}",
        root.display()
    );
    let root = root.to_string_lossy().into_owned();
    let args = [
        "install",
        "cargo-deny",
        "--locked",
        "--version",
        CARGO_DENY_VERSION,
        "--root",
        &root,
    ];
    let outcome = exec::Run::new(exec::cargo(), &args)
        .limit_secs(1800)
        .collect()?;
    if !outcome.ok() {
        bail!("cargo install cargo-deny: {}", outcome.describe());
    }
    Ok(path)
}

/// Adds rustfmt and clippy where rustup was installed with its minimal profile.
pub fn components() -> Result<()> {
    for (probe, component) in [("fmt", "rustfmt"), ("clippy", "clippy")] {
        let present = exec::Run::new(exec::cargo(), &[probe, "--version"])
            .limit_secs(60)
            .collect()?;
        if present.ok() {
            continue;
        }
        println!("xtask: rustup component add {component}");
        let outcome = exec::Run::new("rustup", &["component", "add", component])
            .limit_secs(600)
            .collect()?;
        if !outcome.ok() {
            bail!("rustup component add {component}: {}", outcome.describe());
        }
    }
    Ok(())
}

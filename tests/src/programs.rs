//! Where the programs under test are: beside the `lab` binary, as cargo builds them.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};

/// Path of a program of the workspace, from the folder of the running binary.
///
/// # Errors
/// It was not built.
pub fn find(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    // A test binary lies one folder deeper, in deps.
    for dir in own.ancestors().skip(1).take(2) {
        let path = dir.join(name);
        if path.is_file() {
            return Ok(path);
        }
    }
    bail!(
        "no {name} beside {}: run through `cargo xtask`",
        own.display()
    )
}

/// `vestibule`.
///
/// # Errors
/// It was not built.
pub fn vestibule() -> Result<PathBuf> {
    find("vestibule").context("package gateway")
}

//! The `boot-image` command: keys and packages of the boot chain.

#![forbid(unsafe_code)]

use std::path::PathBuf;

use boot_image::{debs, keys::SiteKeys};
use clap::{Parser, Subcommand};

/// Builds and signs what machines boot.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make the owner's Secure Boot keys and the image key.
    Keys {
        /// Folder for the keys; must not hold keys yet.
        #[arg(long)]
        out: PathBuf,
        /// Name of the site, for the certificates.
        #[arg(long, default_value = "Vestibule")]
        site: String,
    },
    /// Unpack a package of a Debian suite into the cache and print its folder.
    Deb {
        /// Suite, for example `sid`.
        suite: String,
        /// Package, for example `ipxe`.
        package: String,
    },
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Keys { out, site } => {
            SiteKeys::generate(&out, &site)?;
            println!("keys for {site} in {}", out.display());
        }
        Command::Deb { suite, package } => {
            let unpacked = debs::fetch(&suite, &package)?;
            println!(
                "{} {} {}",
                unpacked.version,
                unpacked.sha256,
                unpacked.root.display()
            );
        }
    }
    Ok(())
}

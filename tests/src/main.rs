//! The `lab` program: what `cargo xtask demo`, `lab`, `bench` and the lab stage of `test` run.

#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use gateway::shell::tftp::{Options, Ports};
use lab::bench;
use lab::report::Report;
use lab::scenarios::{self, Scenario};

/// The lab: namespaces, software TPMs, simulated and real machines.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Lists the scenarios.
    List,
    /// Runs scenarios by name.
    Run {
        /// Their names.
        #[arg(required = true)]
        names: Vec<String>,
    },
    /// Runs the scenarios of the suite.
    Ci,
    /// Boots one VM through the walk and tells it.
    Demo {
        /// Leave the gateway running, with its admin endpoint on 127.0.0.1.
        #[arg(long)]
        keep: bool,
    },
    /// Serves a folder with the product's TFTP engine alone, for benches and tests.
    #[command(hide = true)]
    ServeTftp {
        /// The folder.
        folder: PathBuf,
        /// Address and port.
        address: SocketAddr,
        /// A port for each transfer.
        #[arg(long)]
        own_ports: bool,
    },
    /// Runs a benchmark; without a name, lists them.
    Bench {
        /// Its name.
        name: Option<String>,
        /// Rounds of each figure; fewer than five are for trying out.
        #[arg(long, default_value_t = bench::ROUNDS)]
        rounds: usize,
    },
}

fn main() -> ExitCode {
    // Refusals are what the scenarios want to see; they say so themselves. Before any thread.
    hw::tpm::silence_tss_log();
    clear_on_signals();
    match Cli::parse().command {
        Command::List => {
            for scenario in scenarios::ALL {
                println!("{:18} {}", scenario.name, scenario.what);
            }
            ExitCode::SUCCESS
        }
        Command::Run { names } => {
            let unknown: Vec<_> = names
                .iter()
                .filter(|n| scenarios::find(n).is_none())
                .cloned()
                .collect();
            if !unknown.is_empty() {
                eprintln!("lab: no scenario {}; see `lab list`", unknown.join(", "));
                return ExitCode::from(2);
            }
            run_all(names.iter().filter_map(|name| scenarios::find(name)))
        }
        Command::Ci => ExitCode::from(u8::from(!lab::lanes::run_suite())),
        Command::Demo { keep } => demo(keep),
        Command::ServeTftp {
            folder,
            address,
            own_ports,
        } => serve_tftp(&folder, address, own_ports),
        Command::Bench { name, rounds } => run_bench(name.as_deref(), rounds),
    }
}

fn run_all(list: impl Iterator<Item = &'static Scenario>) -> ExitCode {
    let mut failed = false;
    for scenario in list {
        failed |= !scenarios::run(scenario);
    }
    ExitCode::from(u8::from(failed))
}

fn run_bench(name: Option<&str>, rounds: usize) -> ExitCode {
    match name {
        // The whole chain has no peer that does the same: its scenario prints the figures.
        Some("storm") => run_all(std::iter::once(&scenarios::LARGE_STORM)),
        Some(name) => match bench::find(name) {
            Some(bench) => bench::run(bench, rounds.max(1)),
            None => {
                eprintln!("lab: no benchmark {name:?}; see `lab bench`");
                ExitCode::from(2)
            }
        },
        None => {
            for bench in bench::ALL {
                println!("{:18} {}", bench.name, bench.what);
            }
            println!("{:18} {}", "storm", scenarios::LARGE_STORM.what);
            ExitCode::SUCCESS
        }
    }
}

fn serve_tftp(folder: &Path, address: SocketAddr, own_ports: bool) -> ExitCode {
    let mut options = Options::default();
    // All clients of a load have one address.
    options.bounds.per_peer_max = options.bounds.transfers_max;
    if own_ports {
        options.ports = Ports::Ephemeral;
    }
    match lab::tftp_server::serve_folder(folder, address, options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lab: {error:#}");
            ExitCode::from(3)
        }
    }
}

fn demo(keep: bool) -> ExitCode {
    let report = Report::new("demo");
    if let Err(error) = scenarios::walk::demo(&report, keep) {
        report.fail("walk", &format!("{error:#}"));
    }
    ExitCode::from(u8::from(!report.failures().is_empty()))
}

/// Ctrl-C and SIGTERM clear away what this process made, then end it.
fn clear_on_signals() {
    std::thread::spawn(|| {
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
        else {
            return;
        };
        runtime.block_on(async {
            use tokio::signal::unix::{SignalKind, signal};
            let (Ok(mut interrupt), Ok(mut terminate)) = (
                signal(SignalKind::interrupt()),
                signal(SignalKind::terminate()),
            ) else {
                return;
            };
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            lab::lanes::end_children();
            lab::run::clear_own();
            std::process::exit(130);
        });
    });
}

//! `vestibule`: arguments, command, exit code. What it does is in `gateway::cli`.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser as _;
use gateway::cli::{self, Cli, Exit};

fn main() -> ExitCode {
    hw::heap::configure();
    hw::tpm::silence_tss_log();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are asked for and end well; everything else is wrong usage.
            let exit = if error.use_stderr() {
                Exit::Usage
            } else {
                Exit::Done
            };
            let _ = error.print();
            return exit.into();
        }
    };
    match cli::run(cli) {
        Ok(exit) => exit.into(),
        Err(failure) => {
            for line in failure.text.lines() {
                eprintln!("vestibule: {line}");
            }
            failure.exit.into()
        }
    }
}

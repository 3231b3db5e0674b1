//! `cargo xtask test`: the stages, their limits, their seconds, and one line of counts.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};

use crate::exec::{self, Outcome, Run};
use crate::packages::{self, Need};
use crate::tally::Tally;
use crate::{Profile, binary, build_lab, root, skips, target_dir, tools};

/// One stage. A stage that is `barrier` stops the run when it fails: what follows rests on it.
struct Stage {
    name: &'static str,
    what: &'static str,
    barrier: bool,
    run: fn() -> Result<Tally>,
}

const STAGES: &[Stage] = &[
    Stage {
        name: "fmt",
        what: "cargo fmt --check",
        barrier: false,
        run: fmt,
    },
    Stage {
        name: "clippy",
        what: "cargo clippy -D warnings",
        barrier: false,
        run: clippy,
    },
    Stage {
        name: "build",
        what: "all programs",
        barrier: true,
        run: build,
    },
    Stage {
        name: "test",
        what: "unit and integration tests",
        barrier: false,
        run: test_all,
    },
    Stage {
        name: "doc",
        what: "cargo doc -D warnings",
        barrier: false,
        run: doc,
    },
    Stage {
        name: "deny",
        what: "bans, licences, sources",
        barrier: false,
        run: deny,
    },
    Stage {
        name: "fuzz",
        what: "every fuzz body for some seconds, on stable",
        barrier: false,
        run: fuzz,
    },
    Stage {
        name: "yocto",
        what: "checks of the layer",
        barrier: false,
        run: yocto,
    },
    Stage {
        name: "lab",
        what: "scenarios: simulated machines and VMs",
        barrier: false,
        run: lab,
    },
];

/// Runs the named stages, or all.
pub fn test(names: &[&str]) -> Result<ExitCode> {
    if let Some(unknown) = names.iter().find(|n| STAGES.iter().all(|s| s.name != **n)) {
        let known: Vec<_> = STAGES.iter().map(|s| s.name).collect();
        eprintln!("xtask: no stage {unknown:?}; stages: {}", known.join(" "));
        return Ok(ExitCode::from(2));
    }
    packages::install(Need::Test)?;
    tools::components()?;
    let mut total = Tally::default();
    let mut table = Vec::new();
    for stage in STAGES {
        if !names.is_empty() && !names.contains(&stage.name) {
            continue;
        }
        println!("stage {}: {}", stage.name, stage.what);
        let started = Instant::now();
        let tally = (stage.run)().unwrap_or_else(|error| {
            println!("  {error:#}");
            Tally::single(stage.name, false)
        });
        let failed = tally.failed > 0;
        let row = format!(
            "{:8} {:7.1} s  {:5} passed {:3} failed {:3} skipped",
            stage.name,
            started.elapsed().as_secs_f64(),
            tally.passed,
            tally.failed,
            tally.skips.len()
        );
        println!("stage {row}");
        table.push(row);
        total.add(tally);
        if failed && stage.barrier {
            println!("stage {} failed: what follows rests on it", stage.name);
            break;
        }
    }
    report(&table, &mut total)
}

fn report(table: &[String], total: &mut Tally) -> Result<ExitCode> {
    println!();
    for row in table {
        println!("{row}");
    }
    let path = root().join(".ci/skips");
    let list = std::fs::read_to_string(&path)
        .with_context(|| format!("cannot read {}", path.display()))?;
    let patterns = skips::parse(&list);
    for skip in &total.skips {
        println!("skipped: {skip}");
    }
    let outside: Vec<String> = skips::not_allowed(&total.skips, &patterns)
        .into_iter()
        .map(|skip| format!("skip outside .ci/skips: {skip}"))
        .collect();
    total.failed += outside.len();
    total.failures.extend(outside);
    for failure in &total.failures {
        println!("failed: {failure}");
    }
    println!(
        "{} passed, {} failed, {} skipped",
        total.passed,
        total.failed,
        total.skips.len()
    );
    Ok(if total.failed == 0 && total.passed > 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(1)
    })
}

/// One cargo command that passes or fails as a whole; its output is shown when it fails.
fn cargo(name: &str, args: &[&str], limit_secs: u64, env: &[(&str, &str)]) -> Result<Tally> {
    let mut run = Run::new(exec::cargo(), args).limit_secs(limit_secs);
    for (key, value) in env {
        run = run.env(key, value);
    }
    let outcome = run.collect()?;
    if !outcome.ok() {
        show(&outcome, 60);
    }
    Ok(Tally::single(name, outcome.ok()))
}

fn show(outcome: &Outcome, tail: usize) {
    let skip = outcome.lines.len().saturating_sub(tail);
    for line in &outcome.lines[skip..] {
        println!("  {line}");
    }
    println!("  {}", outcome.describe());
}

fn fmt() -> Result<Tally> {
    let mut tally = cargo("fmt", &["fmt", "--all", "--check"], 120, &[])?;
    let args = ["fmt", "--all", "--check", "--manifest-path", FUZZ];
    tally.add(cargo("fmt of tests/fuzz", &args, 120, &[])?);
    Ok(tally)
}

fn clippy() -> Result<Tally> {
    let args = [
        "clippy",
        "--workspace",
        "--all-targets",
        "--locked",
        "--",
        "-D",
        "warnings",
    ];
    cargo("clippy", &args, 2400, &[])
}

fn build() -> Result<Tally> {
    build_lab(Profile::Dev)?;
    let args = ["test", "--workspace", "--locked", "--no-run"];
    cargo("build", &args, 2400, &[])
}

fn test_all() -> Result<Tally> {
    let args = [
        "test",
        "--workspace",
        "--locked",
        "--no-fail-fast",
        "--",
        "--show-output",
    ];
    let outcome = Run::new(exec::cargo(), &args).limit_secs(1500).collect()?;
    let mut tally = Tally::from_libtest(&outcome.lines);
    if !outcome.ok() {
        print_failures(&outcome.lines);
        println!("  {}", outcome.describe());
        if tally.failed == 0 {
            // Killed at the limit, or a test binary that died: no result line tells.
            tally.add(Tally::single("cargo test", false));
        }
    }
    Ok(tally)
}

/// The `failures:` blocks of libtest and everything about binaries that ended early.
fn print_failures(lines: &[String]) {
    let mut inside = false;
    for line in lines {
        if line == "failures:" {
            inside = true;
        } else if line.starts_with("test result:") {
            inside = false;
        }
        if inside || line.starts_with("error") || line.contains("(signal:") {
            println!("  {line}");
        }
    }
}

fn doc() -> Result<Tally> {
    let args = ["doc", "--workspace", "--no-deps", "--locked"];
    cargo("doc", &args, 900, &[("RUSTDOCFLAGS", "-D warnings")])
}

fn deny() -> Result<Tally> {
    let program = tools::cargo_deny()?;
    let mut tally = Tally::default();
    for check in ["bans", "licenses", "sources"] {
        let args = ["--locked", "--config", ".cargo/deny.toml", "check", check];
        let outcome = Run::new(&program, &args).limit_secs(300).collect()?;
        if !outcome.ok() {
            show(&outcome, 40);
        }
        tally.add(Tally::single(&format!("deny {check}"), outcome.ok()));
    }
    Ok(tally)
}

/// The fuzz targets are a workspace of their own, outside the product's.
const FUZZ: &str = "tests/fuzz/Cargo.toml";
/// Seconds for each target, two at once: enough for what a random walk from the seeds finds at all.
const FUZZ_SECS: &str = "15";

fn fuzz() -> Result<Tally> {
    let target = target_dir().join("fuzz");
    let target = target.to_string_lossy();
    let build = [
        "build",
        "--quiet",
        "--locked",
        "--manifest-path",
        FUZZ,
        "--target-dir",
        &target,
        "-p",
        "smoke",
    ];
    let mut tally = cargo("build of tests/fuzz", &build, 1200, &[])?;
    if tally.failed == 0 {
        let program = target_dir().join("fuzz/debug/smoke");
        let run = Run::new(program, &["--seconds", FUZZ_SECS]).limit_secs(900);
        tally.add(verdicts("fuzz", run)?);
    }
    Ok(tally)
}

fn yocto() -> Result<Tally> {
    let script = root().join("yocto/tests/run");
    if !script.exists() {
        bail!("no {}", script.display());
    }
    verdicts("yocto", Run::new(&script, &[] as &[&str]).limit_secs(900))
}

fn lab() -> Result<Tally> {
    let program = binary("lab", Profile::Dev)?;
    let words = exec::as_root(&[&program.to_string_lossy(), "ci"]);
    verdicts("lab", Run::new(&words[0], &words[1..]).limit_secs(3000))
}

/// A program that prints `PASS name`, `FAIL name why`, `SKIP reason`, and agrees with its exit code.
fn verdicts(name: &str, run: Run) -> Result<Tally> {
    let outcome = run.echo().collect()?;
    let mut tally = Tally::from_verdicts(&outcome.lines);
    if outcome.ok() == (tally.failed > 0) || tally.passed + tally.failed == 0 {
        tally.add(Tally::single(
            &format!(
                "{name}: {} with {} FAIL lines",
                outcome.describe(),
                tally.failed
            ),
            false,
        ));
    }
    Ok(tally)
}

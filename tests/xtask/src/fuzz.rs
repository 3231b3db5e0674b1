//! `cargo xtask fuzz`: every fuzz target under libFuzzer, with coverage, on the stable toolchain.
//!
//! The instrumentation is LLVM's own and needs no unstable flag. What a run found that the seeds
//! do not reach is kept, small, in `tests/fuzz/corpus`; its figures go to `tests/fuzz/LOG.md`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;

use anyhow::{Context as _, Result, bail};

use crate::exec::{self, Run};
use crate::packages::{self, Need};
use crate::{root, target_dir};

const MANIFEST: &str = "tests/fuzz/Cargo.toml";
/// Coverage instrumentation as libFuzzer reads it.
const FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares \
    -Ccodegen-units=1";
/// Seconds for each target unless told.
const SECONDS_DEFAULT: u64 = 600;
/// Targets at once.
const WORKERS: usize = 2;
/// Files kept of one target, and the length of one: a repository is no archive of a campaign.
const KEPT_MAX: usize = 40;
const KEPT_LEN_MAX: u64 = 2_048;
/// The table of the log.
const LOG: &str = "tests/fuzz/LOG.md";
const LOG_HEAD: &str = "# Coverage-guided runs\n\n\
    Written by `cargo xtask fuzz`. Coverage counts edges of the instrumented code that the inputs reach; features also\n\
    count how often. A row stays until the same target is run again.\n\n\
    | target | date | seed | seconds | executions | edges | features | inputs | peak RSS MB | result |\n\
    |---|---|---|---|---|---|---|---|---|---|\n";

/// What one run told.
#[derive(Debug, Default, PartialEq, Eq)]
struct Figures {
    executions: u64,
    edges: u64,
    features: u64,
    inputs: u64,
    peak_rss_mb: u64,
}

/// Runs the named targets, or all.
pub fn fuzz(words: &[&str]) -> Result<ExitCode> {
    let Some((seconds, seed, names)) = arguments(words) else {
        eprintln!("xtask: usage: fuzz [--seconds N] [--seed N] [TARGET..]");
        return Ok(ExitCode::from(2));
    };
    packages::install(Need::Test)?;
    let host = host()?;
    build(&host)?;
    let seeds = target_dir().join("fuzz-seeds");
    let known = export(&seeds)?;
    if let Some(unknown) = names.iter().find(|name| !known.contains(name)) {
        eprintln!("xtask: no target {unknown:?}; targets: {}", known.join(" "));
        return Ok(ExitCode::from(2));
    }
    let list = if names.is_empty() { known } else { names };
    let programs = target_dir()
        .join("fuzz-coverage")
        .join(&host)
        .join("release");
    let queue = Mutex::new(list.into_iter());
    let rows = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                loop {
                    let Some(name) = queue.lock().ok().and_then(|mut queue| queue.next()) else {
                        return;
                    };
                    let outcome = one(&programs.join(&name), &name, &seeds, seconds, seed);
                    report(&name, &outcome);
                    if let Ok(mut rows) = rows.lock() {
                        rows.push((name, outcome));
                    }
                }
            });
        }
    });
    let rows = rows.into_inner().unwrap_or_default();
    log(&rows, seconds, seed)?;
    let failed = rows.iter().filter(|(_, outcome)| outcome.is_err()).count();
    println!("{} passed, {failed} failed, 0 skipped", rows.len() - failed);
    Ok(ExitCode::from(u8::from(failed > 0)))
}

fn arguments(words: &[&str]) -> Option<(u64, u64, Vec<String>)> {
    let (mut seconds, mut seed, mut names) = (SECONDS_DEFAULT, 1, Vec::new());
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match *word {
            "--seconds" => seconds = words.next()?.parse().ok().filter(|n| *n > 0)?,
            "--seed" => seed = words.next()?.parse().ok().filter(|n| *n > 0)?,
            flag if flag.starts_with('-') => return None,
            name => names.push(name.to_owned()),
        }
    }
    Some((seconds, seed, names))
}

/// The host's triple. Naming it keeps the instrumentation out of build scripts.
fn host() -> Result<String> {
    let outcome = Run::new("rustc", &["-vV"]).limit_secs(60).collect()?;
    outcome
        .lines
        .iter()
        .find_map(|line| line.strip_prefix("host: "))
        .map(str::to_owned)
        .with_context(|| format!("rustc -vV names no host: {}", outcome.describe()))
}

fn build(host: &str) -> Result<()> {
    let target = target_dir().join("fuzz-coverage");
    let target = target.to_string_lossy();
    let args = [
        "build",
        "--release",
        "--locked",
        "--manifest-path",
        MANIFEST,
        "--features",
        "libfuzzer",
        "--bins",
        "--target",
        host,
        "--target-dir",
        &target,
    ];
    println!("xtask: cargo {} (instrumented)", args.join(" "));
    let outcome = Run::new(exec::cargo(), &args)
        .env("RUSTFLAGS", FLAGS)
        .limit_secs(2400)
        .passthrough()?;
    if !outcome.ok() {
        bail!("cargo build of {MANIFEST}: {}", outcome.describe());
    }
    Ok(())
}

/// Writes every target's seeds below `to`; the folders' names are the targets.
fn export(to: &Path) -> Result<Vec<String>> {
    let folder = to.to_string_lossy();
    let target = target_dir().join("fuzz");
    let target = target.to_string_lossy();
    let args = [
        "run",
        "--quiet",
        "--locked",
        "--manifest-path",
        MANIFEST,
        "--target-dir",
        &target,
        "-p",
        "smoke",
        "--",
        "--export",
        &folder,
    ];
    // Without the field files: what is kept of a run is committed, and they are not.
    let outcome = Run::new(exec::cargo(), &args)
        .env("VESTIBULE_CORPUS", "")
        .limit_secs(1200)
        .collect()?;
    if !outcome.ok() {
        let tail = outcome.lines.last().cloned().unwrap_or_default();
        bail!("seeds of {MANIFEST}: {}: {tail}", outcome.describe());
    }
    let mut names: Vec<String> = std::fs::read_dir(to)
        .with_context(|| format!("cannot read {}", to.display()))?
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    Ok(names)
}

/// One target: the run, then what it found beyond the seeds.
fn one(program: &Path, name: &str, seeds: &Path, seconds: u64, seed: u64) -> Result<Figures> {
    let work = target_dir().join("fuzz-work").join(name);
    let artifacts = root().join("tests/fuzz/artifacts").join(name);
    for folder in [&work, &artifacts] {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot make {}", folder.display()))?;
    }
    let seeds = seeds.join(name);
    let args = [
        format!("-max_total_time={seconds}"),
        format!("-seed={seed}"),
        format!("-artifact_prefix={}/", artifacts.display()),
        "-print_final_stats=1".to_owned(),
        "-timeout=5".to_owned(),
        "-rss_limit_mb=1024".to_owned(),
        work.to_string_lossy().into_owned(),
        seeds.to_string_lossy().into_owned(),
    ];
    let outcome = Run::new(program, &args)
        .limit_secs(seconds + 300)
        .collect()?;
    let figures = figures(&outcome.lines);
    if !outcome.ok() {
        let why = outcome
            .lines
            .iter()
            .find(|line| line.contains("panicked at") || line.contains("ERROR: libFuzzer"))
            .cloned()
            .unwrap_or_default();
        bail!(
            "{}: {why}; input in {}",
            outcome.describe(),
            artifacts.display()
        );
    }
    keep(program, name, &work, &seeds)?;
    Ok(figures)
}

/// Copies into the repository the smallest inputs that reach what no seed reaches.
fn keep(program: &Path, name: &str, work: &Path, seeds: &Path) -> Result<()> {
    let merged = target_dir().join("fuzz-merged").join(name);
    let _ = std::fs::remove_dir_all(&merged);
    std::fs::create_dir_all(&merged)
        .with_context(|| format!("cannot make {}", merged.display()))?;
    // The first folder receives what the later ones add to it: seeds first, so that the second
    // merge adds new inputs only.
    let path = |path: &Path| path.to_string_lossy().into_owned();
    let merge = |from: &Path| -> Result<()> {
        let args = ["-merge=1".to_owned(), path(&merged), path(from)];
        let outcome = Run::new(program, &args).limit_secs(900).collect()?;
        if !outcome.ok() {
            bail!("merge of {}: {}", from.display(), outcome.describe());
        }
        Ok(())
    };
    merge(seeds)?;
    let before = files(&merged);
    merge(work)?;
    let mut found: Vec<(u64, PathBuf)> = files(&merged)
        .into_iter()
        .filter(|(path, len)| !before.contains_key(path) && *len <= KEPT_LEN_MAX)
        .map(|(path, len)| (len, path))
        .collect();
    found.sort();
    let to = root().join("tests/fuzz/corpus").join(name);
    let _ = std::fs::remove_dir_all(&to);
    std::fs::create_dir_all(&to).with_context(|| format!("cannot make {}", to.display()))?;
    for (_, file) in found.into_iter().take(KEPT_MAX) {
        let Some(name) = file.file_name() else {
            continue;
        };
        std::fs::copy(&file, to.join(name))
            .with_context(|| format!("cannot keep {}", file.display()))?;
    }
    Ok(())
}

fn files(folder: &Path) -> BTreeMap<PathBuf, u64> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| Some((entry.path(), entry.metadata().ok()?.len())))
        .collect()
}

/// Reads libFuzzer's closing lines.
fn figures(lines: &[String]) -> Figures {
    let mut out = Figures::default();
    let number = |text: Option<&str>| text.and_then(|text| text.parse().ok()).unwrap_or(0);
    for line in lines {
        if let Some(value) = line.strip_prefix("stat::number_of_executed_units:") {
            out.executions = number(Some(value.trim()));
        } else if let Some(value) = line.strip_prefix("stat::peak_rss_mb:") {
            out.peak_rss_mb = number(Some(value.trim()));
        } else if line.starts_with('#') {
            let words: Vec<&str> = line.split_whitespace().collect();
            for pair in words.windows(2) {
                match pair[0] {
                    "cov:" => out.edges = number(Some(pair[1])),
                    "ft:" => out.features = number(Some(pair[1])),
                    "corp:" => out.inputs = number(pair[1].split('/').next()),
                    _ => {}
                }
            }
        }
    }
    out
}

fn report(name: &str, outcome: &Result<Figures>) {
    match outcome {
        Ok(f) => println!(
            "PASS fuzz-{name} {} executions, {} edges, {} features, {} inputs, {} MB",
            f.executions, f.edges, f.features, f.inputs, f.peak_rss_mb
        ),
        Err(error) => println!("FAIL fuzz-{name} {error:#}"),
    }
}

/// Replaces the rows of the targets that were run.
fn log(rows: &[(String, Result<Figures>)], seconds: u64, seed: u64) -> Result<()> {
    let path = root().join(LOG);
    let old = std::fs::read_to_string(&path).unwrap_or_default();
    let date = Run::new("date", &["-u", "+%Y-%m-%d"])
        .limit_secs(10)
        .collect()?;
    let date = date.lines.first().map_or("", String::as_str);
    std::fs::write(&path, table(&old, rows, seconds, seed, date))
        .with_context(|| format!("cannot write {}", path.display()))
}

fn table(
    old: &str,
    rows: &[(String, Result<Figures>)],
    seconds: u64,
    seed: u64,
    date: &str,
) -> String {
    let mut table: BTreeMap<String, String> = old
        .lines()
        .filter_map(|line| {
            let name = line.strip_prefix("| ")?.split(' ').next()?;
            let known = name != "target" && !name.starts_with('-');
            known.then(|| (name.to_owned(), line.to_owned()))
        })
        .collect();
    for (name, outcome) in rows {
        let row = match outcome {
            Ok(f) => format!(
                "| {name} | {date} | {seed} | {seconds} | {} | {} | {} | {} | {} | held |",
                f.executions, f.edges, f.features, f.inputs, f.peak_rss_mb
            ),
            Err(_) => format!("| {name} | {date} | {seed} | {seconds} | | | | | | failed |"),
        };
        table.insert(name.clone(), row);
    }
    table.values().fold(LOG_HEAD.to_owned(), |mut text, row| {
        let _ = writeln!(text, "{row}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_libfuzzer_says_at_its_end() {
        let lines = [
            "#2\tINITED cov: 10 ft: 11 corp: 1/4b exec/s: 0 rss: 30Mb",
            "#91 DONE   cov: 153 ft: 410 corp: 22/301b lim: 4 exec/s: 45 rss: 41Mb",
            "Done 91 runs in 2 second(s)",
            "stat::number_of_executed_units: 91",
            "stat::peak_rss_mb:              41",
        ]
        .map(str::to_owned);
        let want = Figures {
            executions: 91,
            edges: 153,
            features: 410,
            inputs: 22,
            peak_rss_mb: 41,
        };
        assert_eq!(figures(&lines), want);
    }

    #[test]
    fn a_run_replaces_its_own_row_only() {
        let row = |name: &str| (name.to_owned(), Ok(Figures::default()));
        let first = table("", &[row("dhcp"), row("lldp")], 5, 1, "2026-01-01");
        let second = table(&first, &[row("lldp")], 9, 2, "2026-01-02");
        assert!(second.contains("| dhcp | 2026-01-01 | 1 | 5 |"), "{second}");
        assert!(second.contains("| lldp | 2026-01-02 | 2 | 9 |"), "{second}");
        assert_eq!(second.lines().count(), first.lines().count());
        assert!(second.starts_with(LOG_HEAD));
    }

    #[test]
    fn rejects_flags_it_does_not_know() {
        assert_eq!(arguments(&["--secs", "4"]), None);
        assert_eq!(arguments(&["--seconds", "0"]), None);
        assert_eq!(
            arguments(&["--seconds", "4", "dhcp"]),
            Some((4, 1, vec!["dhcp".to_owned()]))
        );
    }
}

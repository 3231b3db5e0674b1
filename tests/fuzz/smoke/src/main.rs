//! Runs every fuzz body over its seeds and over mutated seeds, for some seconds each, on a stable
//! toolchain. Finds shallow mistakes only: without coverage it is no replacement for `cargo xtask fuzz`.
//!
//! `smoke --export FOLDER` writes every target's seeds as files, for libFuzzer.
//!
//! `smoke [--seconds N] [--seed N] [TARGET..]` prints `PASS` or `FAIL` for each target and the sums.
//! A failure keeps its input in `artifacts/`; the same seed walks the same way.

#![forbid(unsafe_code)]

mod mutate;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use mutate::Rng;
use vestibule_fuzz::{TARGETS, Target};

/// An input that takes longer hangs the daemon for everybody.
const RUN_MAX: Duration = Duration::from_secs(1);
/// Bytes of a seed file that are looked at.
const FILE_MAX_BYTES: u64 = 4 * 1024 * 1024;
/// Targets at once.
const WORKERS: usize = 2;
/// Inputs cut from one folder; the rest adds little.
const FOLDER_INPUTS_MAX: usize = 2000;

struct Arguments {
    seconds: u64,
    seed: u64,
    export: Option<PathBuf>,
    names: Vec<String>,
}

fn arguments() -> Result<Arguments, String> {
    let mut out = Arguments {
        seconds: 3,
        seed: 1,
        export: None,
        names: Vec::new(),
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        if word == "--export" {
            let folder = words.next().ok_or("--export needs a folder")?;
            out.export = Some(folder.into());
            continue;
        }
        let mut number = || {
            words
                .next()
                .and_then(|text| text.parse().ok())
                .ok_or(format!("{word} needs a number"))
        };
        match word.as_str() {
            "--seconds" => out.seconds = number()?,
            "--seed" => out.seed = number()?,
            name if TARGETS.iter().any(|t| t.name == name) => out.names.push(word),
            _ => return Err(format!("unknown word {word}")),
        }
    }
    Ok(out)
}

/// A file's bytes; of a `.hex` vector what its digits stand for, up to the first that is none.
fn content(path: &Path) -> Option<Vec<u8>> {
    let bytes = std::fs::read(path).ok()?;
    if path.extension().is_none_or(|extension| extension != "hex") {
        return Some(bytes);
    }
    let digits: Vec<u8> = bytes
        .iter()
        .filter(|byte| !byte.is_ascii_whitespace())
        .map_while(|byte| char::from(*byte).to_digit(16))
        .map(|digit| digit as u8)
        .collect();
    Some(
        digits
            .chunks_exact(2)
            .map(|pair| pair[0] << 4 | pair[1])
            .collect(),
    )
}

/// All inputs to start from.
fn seeds(target: &Target) -> Vec<Vec<u8>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let mut out = (target.built_in)();
    for folder in target.folders {
        let folder = match folder.strip_prefix("corpus:") {
            None => root.join(folder),
            Some(name) => match std::env::var_os("VESTIBULE_CORPUS") {
                Some(corpus) => Path::new(&corpus).join(name),
                None => continue,
            },
        };
        let Ok(entries) = std::fs::read_dir(folder) else {
            continue;
        };
        let mut files: Vec<_> = entries
            .flatten()
            .filter(|e| {
                e.metadata()
                    .is_ok_and(|m| m.is_file() && m.len() <= FILE_MAX_BYTES)
            })
            .map(|e| e.path())
            .collect();
        files.sort();
        let mut inputs: Vec<Vec<u8>> = files
            .iter()
            .filter_map(|path| content(path))
            .flat_map(target.cut)
            .collect();
        inputs.truncate(FOLDER_INPUTS_MAX);
        out.append(&mut inputs);
    }
    // What coverage-guided runs found before: inputs as they are.
    let found = root.join("tests/fuzz/corpus").join(target.name);
    let mut found: Vec<_> = std::fs::read_dir(found)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect();
    found.sort();
    out.extend(found.iter().filter_map(|path| std::fs::read(path).ok()));
    out
}

/// Writes every target's seeds below `folder`.
///
/// # Errors
/// What cannot be written.
fn export(folder: &Path) -> std::io::Result<()> {
    for target in TARGETS {
        let folder = folder.join(target.name);
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder)?;
        for (number, seed) in seeds(target).iter().enumerate() {
            std::fs::write(folder.join(format!("{number:05}")), seed)?;
        }
    }
    Ok(())
}

/// Keeps an input where `cargo xtask fuzz` does, and says where; prints it when that is impossible.
fn keep(name: &str, input: &[u8]) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../artifacts")
        .join(name);
    let file = folder.join("smoke");
    match std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(&file, input)) {
        Ok(()) => format!("input of {} bytes in {}", input.len(), file.display()),
        Err(_) => {
            let hex: String = input.iter().map(|b| format!("{b:02x}")).collect();
            format!("input {hex}")
        }
    }
}

/// One input.
///
/// # Errors
/// What the body did instead of returning in time.
fn run(target: &Target, input: &[u8]) -> Result<(), String> {
    let start = Instant::now();
    let outcome = catch_unwind(AssertUnwindSafe(|| (target.body)(input)));
    let why = match outcome {
        Err(panic) => panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("panic")
            .to_owned(),
        Ok(()) if start.elapsed() > RUN_MAX => format!("took {:?}", start.elapsed()),
        Ok(()) => return Ok(()),
    };
    let why: String = why.chars().take(300).collect();
    Err(format!("{why}; {}", keep(target.name, input)))
}

fn smoke(target: &Target, arguments: &Arguments) -> Result<String, String> {
    let seeds = seeds(target);
    let mut rng = Rng::new(arguments.seed, target.name);
    let end = Instant::now() + Duration::from_secs(arguments.seconds);
    let mut runs = 0u64;
    for input in &seeds {
        run(target, input)?;
        runs += 1;
    }
    let mut input = Vec::new();
    while Instant::now() < end {
        mutate::mutate(&mut rng, &seeds, &mut input);
        run(target, &input)?;
        runs += 1;
    }
    Ok(format!("{runs} runs from {} seeds", seeds.len()))
}

fn main() -> ExitCode {
    let arguments = match arguments() {
        Ok(arguments) => arguments,
        Err(why) => {
            eprintln!("smoke: {why}; usage: smoke [--seconds N] [--seed N] [TARGET..]");
            return ExitCode::from(2);
        }
    };
    if let Some(folder) = &arguments.export {
        return match export(folder) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!(
                    "smoke: cannot write seeds below {}: {error}",
                    folder.display()
                );
                ExitCode::FAILURE
            }
        };
    }
    std::panic::set_hook(Box::new(|_| {}));
    let wanted =
        |t: &&Target| arguments.names.is_empty() || arguments.names.iter().any(|n| n == t.name);
    let queue = Mutex::new(TARGETS.iter().filter(wanted));
    let (passed, failed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
                    let Some(target) = next else { return };
                    let count = match smoke(target, &arguments) {
                        Ok(figures) => {
                            println!("PASS fuzz-{} {figures}", target.name);
                            &passed
                        }
                        Err(why) => {
                            println!("FAIL fuzz-{} seed {}: {why}", target.name, arguments.seed);
                            &failed
                        }
                    };
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    let (passed, failed) = (passed.into_inner(), failed.into_inner());
    println!("{passed} passed, {failed} failed, 0 skipped");
    ExitCode::from(u8::from(failed > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(body: fn(&[u8])) -> Target {
        Target {
            name: "made-up",
            body,
            built_in: || vec![b"seed".to_vec()],
            folders: &[],
            cut: |file| vec![file],
        }
    }

    const ARGUMENTS: Arguments = Arguments {
        seconds: 5,
        seed: 1,
        export: None,
        names: Vec::new(),
    };

    #[test]
    fn a_panic_is_found_and_its_input_kept() {
        let why = smoke(
            &target(|data| assert!(data.len() < 6, "six bytes")),
            &ARGUMENTS,
        );
        let why = why.expect_err("a mutation makes the seed longer");
        assert!(why.starts_with("six bytes; input of "), "{why}");
    }

    #[test]
    fn rejects_a_body_that_hangs() {
        let why = run(&target(|_| std::thread::sleep(2 * RUN_MAX)), b"");
        assert!(why.expect_err("too slow").starts_with("took "));
    }

    #[test]
    fn the_same_seed_walks_the_same_way() {
        let walk = |seed| {
            let (mut rng, mut out) = (Rng::new(seed, "x"), Vec::new());
            (0..100)
                .map(|_| {
                    mutate::mutate(&mut rng, &[b"seed".to_vec(), b"other".to_vec()], &mut out);
                    out.clone()
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(walk(1), walk(1));
        assert_ne!(walk(1), walk(2));
    }

    #[test]
    fn hex_vectors_become_bytes() {
        let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors/dhcp");
        let first = std::fs::read_dir(vectors)
            .expect("the vectors of the repository")
            .flatten()
            .map(|entry| entry.path())
            .find(|path| path.extension().is_some_and(|extension| extension == "hex"))
            .expect("at least one");
        let packet = content(&first).expect("readable");
        assert_eq!(packet[236..240], [99, 130, 83, 99], "{}", first.display());
    }

    #[test]
    fn every_target_has_seeds_and_a_file() {
        for target in TARGETS {
            assert!(!seeds(target).is_empty(), "{}", target.name);
            let file = format!("../fuzz_targets/{}.rs", target.name);
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
            assert!(path.exists(), "{}", path.display());
        }
    }
}

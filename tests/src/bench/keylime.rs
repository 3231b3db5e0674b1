//! keylime as a peer: its own Python code from the package index, in a virtual environment of the
//! cache, run by `tests/peers/keylime_appraise.py`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::Deserialize;

use super::version;
use crate::run::{cache_dir, output};

/// What is installed; `gpg` comes from Debian (python3-gpg), the index has no build of it.
const PACKAGES: &[&str] = &[
    "keylime==7.14.1",
    "cryptography==45.0.7",
    "PyYAML==6.0.2",
    "lark==1.3.1",
    "jsonschema==4.26.0",
    "packaging",
    "SQLAlchemy==2.1.9",
    "tornado",
    "pyasn1==0.6.5",
    "pyasn1_modules==0.4.2",
    "psutil",
    "Jinja2",
    "typing_extensions",
    "requests",
];
const SCRIPT: &str = include_str!("../../peers/keylime_appraise.py");
const INSTALL_LIMIT: Duration = Duration::from_secs(300);
const ROUND_LIMIT: Duration = Duration::from_secs(120);

const LOGGING: &str = "[logging]\nversion = 2.5\n[loggers]\nkeys = root,keylime\n[handlers]\nkeys = console\n\
    [formatters]\nkeys = plain\n[formatter_plain]\nformat = %(message)s\n[logger_root]\nlevel = ERROR\n\
    handlers = console\n[handler_console]\nclass = StreamHandler\nlevel = ERROR\nformatter = plain\n\
    args = (sys.stderr,)\n[logger_keylime]\nlevel = ERROR\nqualname = keylime\nhandlers =\n";
const VERIFIER: &str = "[verifier]\nversion = 2.5\nmeasured_boot_imports = []\n\
    measured_boot_policy_name = accept-all\nmeasured_boot_evaluate = always\n";

/// Installed and configured.
pub struct Keylime {
    python: PathBuf,
    dir: PathBuf,
    tools: String,
}

#[derive(Deserialize)]
struct Answer {
    seconds: Vec<f64>,
}

impl Keylime {
    /// Installs it where it is missing, and writes its configuration to `dir`.
    ///
    /// # Errors
    /// The package index, Debian's python3-gpg or tpm2-tools cannot be had.
    pub fn install(dir: &Path) -> Result<Self> {
        version("python3-gpg")?;
        let tools = version("tpm2-tools")?;
        let env = cache_dir()?
            .join("bench")
            .join(PACKAGES[0].replace("==", "-"));
        let python = env.join("bin/python3");
        let done = env.join("installed");
        if fs::read_to_string(&done).ok().as_deref() != Some(&PACKAGES.join("\n")) {
            let _ = fs::remove_dir_all(&env);
            let mut venv = Command::new("/usr/bin/python3");
            venv.args(["-m", "venv", "--system-site-packages"])
                .arg(&env);
            output(&mut venv, INSTALL_LIMIT).context("cannot make a virtual environment")?;
            let mut pip = Command::new(&python);
            // What Debian has of the same is older, and would be taken.
            pip.args(["-m", "pip", "install", "--quiet", "--ignore-installed"])
                .args(PACKAGES);
            output(&mut pip, INSTALL_LIMIT).context("cannot install keylime")?;
            fs::write(&done, PACKAGES.join("\n"))?;
        }
        for (name, text) in [
            ("logging.conf", LOGGING),
            ("verifier.conf", VERIFIER),
            ("appraise.py", SCRIPT),
        ] {
            fs::write(dir.join(name), text)?;
        }
        Ok(Self {
            python,
            dir: dir.to_owned(),
            tools,
        })
    }

    /// For the table.
    pub fn name(&self) -> String {
        format!("{}, {}", PACKAGES[0].replace("==", " "), self.tools)
    }

    /// Seconds of processor time of each appraisal of `task`, the script's argument.
    ///
    /// # Errors
    /// It refuses the evidence, or does not run.
    pub fn appraise(&self, task: &str) -> Result<Vec<f64>> {
        let input = self.dir.join("task.json");
        fs::write(&input, task)?;
        let mut python = Command::new(&self.python);
        python
            .arg(self.dir.join("appraise.py"))
            .arg(&input)
            .env("KEYLIME_LOGGING_CONFIG", self.dir.join("logging.conf"))
            .env("KEYLIME_VERIFIER_CONFIG", self.dir.join("verifier.conf"));
        let text = output(&mut python, ROUND_LIMIT).context("keylime")?;
        let answer: Answer = serde_json::from_str(&text)
            .with_context(|| format!("keylime printed no result: {text}"))?;
        Ok(answer.seconds)
    }
}

//! The iPXE script of a boot plan.
//!
//! Every script says on the console what it does, and none loops in silence: a failed fetch or a hold waits, counts
//! and asks the gateway again, since the answer may have changed. Values are checked or made harmless before they
//! become words of a script; iPXE expands `${..}` and splits at `&&`, `||` and `;`.

use crate::catalog::{Artefact, is_name, is_sha256};
use crate::plan::{BootPlan, BootPolicy, artefact_url};

/// Widest console line, characters: an 80-column serial console that wraps at the last one.
const COLUMNS_MAX: usize = 79;
/// Seconds before a failed fetch of the UKI is tried again.
const FETCH_RETRY_SECS: u32 = 5;
/// Longest URL that goes into a script.
const URL_BYTES_MAX: usize = 400;

/// Why no script can be written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScriptError {
    /// A value cannot become a word of a script.
    #[error("{what} cannot stand in an ipxe script: {found:?}")]
    Value {
        /// Which value.
        what: &'static str,
        /// It, at most 80 characters.
        found: String,
    },
    /// Provision was planned without an attester.
    #[error("no attester to provision with")]
    NoAttester,
}

/// Writes the script. `script_url` is where iPXE asks again; `uki` is needed to provision.
///
/// # Errors
/// [`ScriptError`].
pub fn render(
    plan: &BootPlan,
    uki: Option<&Artefact>,
    policy: &BootPolicy,
    script_url: &str,
) -> Result<String, ScriptError> {
    check_url("script url", script_url)?;
    match plan {
        BootPlan::Provision => provision(uki.ok_or(ScriptError::NoAttester)?, policy, script_url),
        BootPlan::LocalDisk => Ok(local_disk()),
        BootPlan::Hold { reason, retry_secs } => Ok(hold(reason, *retry_secs, script_url)),
    }
}

fn provision(uki: &Artefact, policy: &BootPolicy, script_url: &str) -> Result<String, ScriptError> {
    if !is_name(&uki.file) || !is_name(&uki.name) || !is_sha256(&uki.sha256) {
        return Err(value_error("artefact", &uki.file));
    }
    let url = artefact_url("https", &policy.https_host, uki);
    check_url("artefact url", &url)?;
    let mut script = head();
    say(
        &mut script,
        &format!(
            "[boot] {} {}, {} KiB, sha256 {}...",
            uki.name,
            uki.version,
            uki.size_bytes / 1024,
            &uki.sha256[..16]
        ),
    );
    // `chain` comes back when the fetch fails, when firmware refuses the signature, or when the image exits.
    script.push_str(&format!(
        "chain --autofree {url} || echo {PREFIX} [boot] fetch or signature refused, code ${{errno}}\n"
    ));
    script.push_str("echo vestibule: [boot] not started, attempt ${vestibule-try}\n");
    ask_again(&mut script, FETCH_RETRY_SECS, script_url);
    Ok(script)
}

fn local_disk() -> String {
    let mut script = head();
    say(&mut script, "[boot] installed: booting the local disk");
    // An error, on purpose: EDK2 shows its boot menu when a boot option returns success, and goes on
    // to the next one when it fails (UEFI section 3.1.7).
    script.push_str("exit 1\n");
    script
}

fn hold(reason: &str, retry_secs: u32, script_url: &str) -> String {
    let mut script = head();
    say(&mut script, "[boot] held, this machine does not boot now");
    for line in wrap(
        &harmless(reason),
        COLUMNS_MAX - PREFIX.len() - WHY.len() - 2,
    ) {
        say(&mut script, &format!("{WHY} {line}"));
    }
    script.push_str("echo vestibule: [boot] look ${vestibule-try}\n");
    ask_again(&mut script, retry_secs.max(1), script_url);
    script
}

const PREFIX: &str = "vestibule:";
const WHY: &str = "why:";

/// The setting survives into the next script of the same iPXE.
fn head() -> String {
    "#!ipxe\nisset ${vestibule-try} || set vestibule-try:int32 0\ninc vestibule-try\n".to_owned()
}

fn say(script: &mut String, text: &str) {
    script.push_str(&format!("echo {PREFIX} {}\n", harmless(text)));
}

/// Waits, fetches the script anew, and for as long as that fails tries again and says so.
fn ask_again(script: &mut String, secs: u32, script_url: &str) {
    say(script, &format!("[boot] asking again in {secs} s"));
    script.push_str(&format!(
        ":again\nsleep {secs}\n\
         chain --replace --autofree {script_url} || echo {PREFIX} [boot] no answer, code ${{errno}}\n\
         inc vestibule-try\necho {PREFIX} [boot] attempt ${{vestibule-try}}\ngoto again\n"
    ));
}

/// Text that iPXE prints as it is: letters, digits and plain punctuation, single spaces; everything else becomes `?`.
fn harmless(text: &str) -> String {
    let clean: String = text
        .chars()
        .map(|c| match c {
            c if c.is_whitespace() => ' ',
            c if c.is_ascii_alphanumeric() || ".,:/()[]+-=_@%".contains(c) => c,
            _ => '?',
        })
        .collect();
    clean.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Words in lines of at most `width` characters; ASCII only, a longer word is cut.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let word: String = word.chars().take(width).collect();
        let last = lines.last_mut().expect("starts with one line");
        if last.is_empty() {
            *last = word;
        } else if last.len() + 1 + word.len() <= width {
            last.push(' ');
            last.push_str(&word);
        } else {
            lines.push(word);
        }
    }
    lines
}

fn check_url(what: &'static str, url: &str) -> Result<(), ScriptError> {
    let fine = (url.starts_with("https://") || url.starts_with("http://"))
        && url.len() <= URL_BYTES_MAX
        && url
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || ".:/[]-_?=&%".contains(c))
        // A single `&` separates query values; two would end the command.
        && !url.contains("&&");
    if fine {
        return Ok(());
    }
    Err(value_error(what, url))
}

fn value_error(what: &'static str, found: &str) -> ScriptError {
    ScriptError::Value {
        what,
        found: found.chars().take(80).collect(),
    }
}

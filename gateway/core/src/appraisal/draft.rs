//! A draft of a policy, made from one recorded boot, for a person to read.
//!
//! Writes down what that boot did and nothing else: who vouched, which drivers ran, how much the dbx
//! revokes, what came as a command line, which images of the catalogue ran. Does not say that any of
//! it was good, and is applied by nobody: it is text. The draft is judged against its own boot, and
//! what would still refuse it stands in its head. A list holds what a policy has room for; of a boot
//! with more, the head says what is refused.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

use super::boot_events::{BootEvents, ImageKind};
use super::dbx::Dbx;
use super::events::BANK;
use super::recorded::{RecordedBoot, RecordedContext, appraise_recorded};
use super::variables::Proof;
use super::x509::Cert;
use super::{CatalogEntry, PCRS_ALWAYS, QUOTED_PCRS, TimeTrust, replay};
use crate::policy::{
    COMMAND_LINE_MAX_BYTES, COMMAND_LINES_MAX, DBX_ENTRIES_MAX, DIGESTS_MAX, NAMES_MAX, Policy,
    command_line_digest, role_name,
};
use crate::reason::Reason;

/// Characters of foreign text in a comment.
const COMMENT_MAX: usize = 400;

/// What a draft is made with.
#[derive(Debug, Clone, Copy)]
pub struct DraftContext<'a> {
    /// Images that are known; with none of them the draft names none.
    pub catalog: &'a [CatalogEntry],
    /// List every entry of the dbx, not only their number.
    pub dbx_entries: bool,
    /// The time its boot is judged at.
    pub time: TimeTrust,
}

/// A draft.
#[derive(Debug, Clone)]
pub struct Draft {
    /// TOML with comments.
    pub text: String,
    /// What the draft still refuses of its own boot: nothing that a policy could allow.
    pub refused: Vec<Reason>,
}

/// Drafts a policy.
///
/// # Errors
/// Why the log cannot be read.
pub fn draft(boot: &RecordedBoot<'_>, ctx: &DraftContext<'_>) -> Result<Draft, Vec<Reason>> {
    let log = replay::parsed(boot.log, &mut Vec::new())?;
    let events = BootEvents::read(&log).filter(|events| events.bank == BANK);
    let mut body = String::from("version = 1\npreset = \"standard\"\n");
    if let Some(pcrs) = boot.pcrs {
        let differs = |pcr: &u8| {
            let one = pcrs.get(pcr).map(|value| (*pcr, *value));
            !replay::differences(&log, &one.into_iter().collect(), "read").is_empty()
        };
        let differing: Vec<u8> = QUOTED_PCRS.into_iter().filter(differs).collect();
        quote(&mut body, &differing);
    }
    body.push_str("\n[boot]\n");
    if let Some(events) = &events {
        authorities(&mut body, events);
        drivers(&mut body, events);
        dbx(&mut body, events, ctx.dbx_entries);
        command_lines(&mut body, events);
        images(&mut body, events, ctx.catalog);
    }
    let refused = judged(boot, ctx, &body)?;
    let mut text = head(boot, &refused);
    text.push_str(&body);
    Ok(Draft { text, refused })
}

/// What the draft says of the boot it was made from.
fn judged(
    boot: &RecordedBoot<'_>,
    ctx: &DraftContext<'_>,
    body: &str,
) -> Result<Vec<Reason>, Vec<Reason>> {
    let policy = Policy::parse(body).map_err(|mistakes| {
        let found: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
        vec![Reason::new(
            "gateway.defect",
            "a draft without mistakes",
            found.join("; "),
            "gateway_core::appraisal::draft",
            "report this: it is a defect",
        )]
    })?;
    let context = RecordedContext {
        policy: &policy,
        class: None,
        catalog: ctx.catalog,
        time: ctx.time,
    };
    let mut refused = appraise_recorded(boot, &context).refused;
    if ctx.catalog.is_empty() {
        // Without a catalogue nothing is known of images, and nothing is said of them.
        refused.retain(|reason| !["boot.image", "boot.uki"].contains(&reason.code.as_ref()));
    }
    Ok(refused)
}

fn head(boot: &RecordedBoot<'_>, refused: &[Reason]) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "# DRAFT, for review. Made by `vestibule policy learn` from one recorded boot:\n\
         #   event log of {} bytes, SHA-256 {}\n\
         # It allows what that machine did. Nothing says that this was good: no quote vouches for the log.\n\
         # Read every line, try it with `vestibule policy test`, then name it in policy.file. Keys: docs/POLICY.md",
        boot.log.len(),
        hex::encode(Sha256::digest(boot.log)),
    );
    if !refused.is_empty() {
        text.push_str("#\n# Even so this boot is refused, and no policy should let it pass:\n");
    }
    for reason in refused {
        let found = format!(
            "{}: expected {}, found {}",
            reason.code, reason.expected, reason.found
        );
        let _ = writeln!(text, "#   {}", commented(&found));
    }
    text.push('\n');
    text
}

/// Registers that disagree with the log may be left out if no decision rests on them.
fn quote(body: &mut String, differing: &[u8]) {
    let leave_out = |pcr: &u8| differing.contains(pcr) && !PCRS_ALWAYS.contains(pcr);
    if !differing.iter().any(leave_out) {
        return;
    }
    let kept: Vec<u8> = QUOTED_PCRS
        .into_iter()
        .filter(|pcr| !leave_out(pcr))
        .collect();
    let out: Vec<u8> = differing.iter().copied().filter(leave_out).collect();
    let _ = writeln!(
        body,
        "\n[quote]\n# Without {out:?}: something measures there that the firmware's log does not have.\npcrs = {kept:?}"
    );
}

fn authorities(body: &mut String, events: &BootEvents<'_>) {
    let mut seen = BTreeSet::new();
    let mut lines = String::new();
    for authority in &events.authorities {
        let voucher = authority.variable.voucher();
        let digest = hex::encode(Sha256::digest(voucher));
        let whose = match authority.variable.certificate() {
            Some(der) => Cert::parse(der).map_or("a certificate".into(), |c| c.subject_text()),
            None => authority.variable.voucher_kind().to_owned(),
        };
        if seen.len() < DIGESTS_MAX && seen.insert(digest.clone()) {
            let name = &authority.variable.name;
            item(&mut lines, &digest, &format!("{name}: {whose}"));
        }
    }
    if lines.is_empty() {
        body.push_str("# Nobody vouched for an image: with Secure Boot on somebody would have.\n");
    } else {
        body.push_str("# Who vouched for an image (PCR 7). Drivers of cards are among what they vouched for.\n");
        let _ = write!(body, "authority_sha256 = [\n{lines}]\n");
    }
}

fn drivers(body: &mut String, events: &BootEvents<'_>) {
    let mut seen = BTreeSet::new();
    let mut lines = String::new();
    for image in &events.images {
        if image.kind == ImageKind::Driver && seen.len() < DIGESTS_MAX && seen.insert(image.digest)
        {
            let digest = hex::encode(image.digest);
            item(&mut lines, &digest, &format!("event {}", image.event));
        }
    }
    body.push_str(
        "# Drivers of add-in cards (PCR 2); their firmware updates change the digests.\n",
    );
    let _ = write!(
        body,
        "option_roms = \"listed\"\noption_rom_sha256 = [{}{lines}]\n",
        if lines.is_empty() { "" } else { "\n" }
    );
}

fn dbx(body: &mut String, events: &BootEvents<'_>, list: bool) {
    let measured = events
        .databases
        .iter()
        .filter(|database| database.variable.is_dbx() && database.proof == Proof::Whole);
    // The least of them, as row 11 takes it.
    let dbx = measured
        .map(|database| Dbx::read(database.variable.data))
        .min_by_key(Dbx::entries)
        .unwrap_or_default();
    if dbx.entries() == 0 {
        body.push_str("# The dbx is empty or not measured: nothing is revoked on that machine.\n");
        return;
    }
    let count = dbx.entries().min(DBX_ENTRIES_MAX);
    let _ = writeln!(body, "# What the dbx revoked.\ndbx_min_entries = {count}");
    if list {
        dbx_entries(body, "dbx_sha256", &dbx.images);
        dbx_entries(body, "dbx_certificate_sha256", &dbx.named);
    }
}

fn dbx_entries(body: &mut String, key: &str, digests: &BTreeSet<[u8; 32]>) {
    let lines: Vec<String> = digests
        .iter()
        .take(DIGESTS_MAX)
        .map(|digest| format!("    \"{}\",\n", hex::encode(digest)))
        .collect();
    if !lines.is_empty() {
        let _ = write!(body, "{key} = [\n{}]\n", lines.concat());
    }
}

fn command_lines(body: &mut String, events: &BootEvents<'_>) {
    let (mut texts, mut digests) = (String::new(), String::new());
    let mut seen = BTreeSet::new();
    for loaded in events.loaded.iter().filter(|loaded| loaded.pcr == 12) {
        // Digests and texts are one list, and each may be the longest.
        if seen.len() >= DIGESTS_MAX || !seen.insert(loaded.digest) {
            continue;
        }
        let digest = hex::encode(loaded.digest);
        match &loaded.text {
            Some(text)
                if texts.lines().count() < COMMAND_LINES_MAX
                    && text.len() <= COMMAND_LINE_MAX_BYTES
                    && plain(text)
                    && command_line_digest(text) == loaded.digest =>
            {
                let escaped = text.replace('\\', "\\\\").replace('"', "\\\"");
                let _ = writeln!(texts, "    \"{escaped}\",");
            }
            Some(text) => item(&mut digests, &digest, text),
            None => item(
                &mut digests,
                &digest,
                "a credential, or what else is no text",
            ),
        }
    }
    if !seen.is_empty() {
        body.push_str("# From outside the UKI (PCR 12).\n");
    }
    if !texts.is_empty() {
        let _ = write!(body, "command_lines = [\n{texts}]\n");
    }
    if !digests.is_empty() {
        let _ = write!(body, "command_line_sha256 = [\n{digests}]\n");
    }
}

fn images(body: &mut String, events: &BootEvents<'_>, catalog: &[CatalogEntry]) {
    let mut ran: Vec<&CatalogEntry> = Vec::new();
    for image in &events.images {
        if image.kind != ImageKind::Application {
            continue;
        }
        let digest = hex::encode(image.digest);
        let entries = catalog
            .iter()
            .filter(|entry| entry.artefact.pe_sha256.eq_ignore_ascii_case(&digest));
        for entry in entries {
            let known = |known: &&CatalogEntry| known.artefact.name == entry.artefact.name;
            if ran.len() < NAMES_MAX && !ran.iter().any(known) {
                ran.push(entry);
            }
        }
    }
    let kept = ran.iter().map(|entry| &entry.artefact);
    let names: Vec<String> = kept.clone().map(|a| format!("\"{}\"", a.name)).collect();
    if catalog.is_empty() {
        body.push_str(
            "# Without a catalogue (--catalog): images, roles and floors are left open.\n",
        );
        return;
    }
    if names.is_empty() {
        body.push_str("# No image of the catalogue ran: images, roles and floors are left open.\n");
        return;
    }
    let mut roles: Vec<&str> = kept
        .clone()
        .filter(|artefact| artefact.kind == boot::catalog::Kind::Uki)
        .map(|artefact| role_name(artefact.role))
        .collect();
    roles.dedup();
    body.push_str("# Images of the catalogue that ran (PCR 4).\n");
    let _ = writeln!(body, "images = [{}]", names.join(", "));
    if !roles.is_empty() {
        let _ = writeln!(body, "roles = {roles:?}");
    }
    for artefact in kept.filter(|artefact| artefact.version > 0) {
        let _ = write!(
            body,
            "\n[[boot.floor]]\nimage = \"{}\"\nversion = {}\n",
            artefact.name, artefact.version
        );
    }
}

fn item(lines: &mut String, digest: &str, comment: &str) {
    let _ = writeln!(lines, "    \"{digest}\", # {}", commented(comment));
}

fn plain(text: &str) -> bool {
    text.chars().all(|c| c == ' ' || c.is_ascii_graphic())
}

/// Foreign text in a comment: one line of ASCII, so that nothing in it can look like another line or
/// turn the order of what a reviewer reads.
fn commented(text: &str) -> String {
    text.chars()
        .flat_map(|c| {
            let kept = c == ' ' || c.is_ascii_graphic();
            let escaped = (!kept).then(|| c.escape_default());
            kept.then_some(c)
                .into_iter()
                .chain(escaped.into_iter().flatten())
        })
        .take(COMMENT_MAX)
        .collect()
}

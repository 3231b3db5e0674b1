//! The page: machines, claims and one machine's timeline, rendered on the server without scripts.
//!
//! Decides only how things look. Every text that comes from outside passes [`Html::text`]; it
//! changes nothing, approving is done with the command it shows.

use std::fmt::Write as _;

use gateway_core::identity::UnixMillis;
use gateway_core::reason::Reason;
use gateway_core::view::{ImageView, MachineView, StatusView, TimelineEntry};

use crate::handle::Caller;

/// The style sheet.
pub(super) const STYLE: &str = "\
:root{color-scheme:light dark}\
body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:76rem;padding:0 1rem}\
h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}\
table{border-collapse:collapse;width:100%}\
th,td{text-align:left;padding:.3rem .6rem;border-bottom:1px solid #8884;vertical-align:top}\
code,.mono{font-family:ui-monospace,monospace;font-size:.92em;overflow-wrap:anywhere}\
.warn{border-left:.3rem solid #c60;padding:.4rem .8rem}\
.quiet{opacity:.7}\
dl{display:grid;grid-template-columns:max-content 1fr;gap:.2rem 1rem;margin:.3rem 0}\
dt{opacity:.7}dd{margin:0}\
";

/// HTML under construction.
struct Html(String);

impl Html {
    fn page(title: &str) -> Self {
        let mut html = Self(String::from(
            "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta name=\"viewport\" content=\"width=device-width\">\
             <meta http-equiv=\"refresh\" content=\"10\">\
             <link rel=\"stylesheet\" href=\"/style.css\"><title>",
        ));
        html.text(title);
        html.raw("</title></head><body><h1>");
        html.text(title);
        html.raw("</h1>");
        html
    }

    /// Our own markup.
    fn raw(&mut self, markup: &str) -> &mut Self {
        self.0.push_str(markup);
        self
    }

    /// Text from anywhere.
    fn text(&mut self, text: &str) -> &mut Self {
        for c in text.chars() {
            match c {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                '\'' => self.0.push_str("&#39;"),
                c if c.is_control() => self.0.push('\u{fffd}'),
                c => self.0.push(c),
            }
        }
        self
    }

    fn cell(&mut self, text: &str) -> &mut Self {
        self.raw("<td>").text(text).raw("</td>")
    }

    fn code(&mut self, text: &str) -> &mut Self {
        self.raw("<code>").text(text).raw("</code>")
    }

    fn reasons(&mut self, reasons: &[Reason]) -> &mut Self {
        for reason in reasons {
            self.raw("<dl><dt>code</dt><dd>").code(&reason.code);
            self.raw("</dd><dt>expected</dt><dd>")
                .text(&reason.expected);
            self.raw("</dd><dt>found</dt><dd>").text(&reason.found);
            self.raw("</dd><dt>source</dt><dd>").text(&reason.source);
            self.raw("</dd><dt>next</dt><dd>").text(&reason.next);
            self.raw("</dd></dl>");
        }
        self
    }

    fn done(mut self) -> String {
        self.raw("</body></html>\n");
        self.0
    }
}

/// The front page.
pub(super) fn index(
    status: &StatusView,
    machines: &[MachineView],
    images: &[ImageView],
    caller: &Caller,
) -> String {
    let mut html = Html::page(&format!("Vestibule: {}", status.appliance));
    if status.seal == "development" {
        html.raw("<p class=\"warn\">The CA keys are sealed in development mode: they are not bound to a measured boot of this appliance.</p>");
    }
    html.raw("<p>You are ")
        .text(&caller.cn)
        .raw(", role ")
        .text(caller.role.as_str())
        .raw(". ")
        .text(&format!(
            "{} ledger entries, {} leases, {} attest sessions.",
            status.ledger_entries, status.leases, status.sessions
        ))
        .raw("</p>");
    claims(&mut html, machines);
    machine_table(&mut html, machines);
    html.raw("<h2>Images</h2><table><tr><th>name<th>version<th>floor<th>arch<th>sha256<th></tr>");
    for image in images {
        let artefact = &image.artefact;
        html.raw("<tr>")
            .cell(&artefact.name)
            .cell(&artefact.version.to_string())
            .cell(&image.floor.to_string())
            .cell(&artefact.arch)
            .raw("<td>")
            .code(&artefact.sha256)
            .raw("</td>")
            .cell(if image.withdrawn { "withdrawn" } else { "" })
            .raw("</tr>");
    }
    html.raw("</table><h2>Refusals since start</h2><table><tr><th>code<th>count</tr>");
    for (code, count) in &status.refusals {
        html.raw("<tr>")
            .cell(code)
            .cell(&count.to_string())
            .raw("</tr>");
    }
    html.raw("</table>");
    html.done()
}

fn claims(html: &mut Html, machines: &[MachineView]) {
    html.raw("<h2>Pending claims</h2>");
    let mut pending = machines.iter().filter(|m| m.state == "pending").peekable();
    if pending.peek().is_none() {
        html.raw("<p class=\"quiet\">None.</p>");
        return;
    }
    html.raw("<p>A claim proved that it holds its keys, and nothing more. Compare the digest with the machine's console before approving.</p>");
    for claim in pending {
        html.raw("<h3>").text(&claim.machine.0).raw("</h3><dl>");
        if let Some(digest) = &claim.report_sha256 {
            html.raw("<dt>report</dt><dd>").code(digest).raw("</dd>");
        }
        html.raw("<dt>serial claimed</dt><dd>")
            .text(claim.serial.as_deref().unwrap_or("none"))
            .raw("</dd><dt>assurance</dt><dd>")
            .text(claim.assurance.as_deref().unwrap_or("none"))
            .raw("</dd><dt>EK names</dt><dd>");
        for name in &claim.ek_names {
            html.code(&name.0).raw("<br>");
        }
        html.raw("</dd><dt>approve</dt><dd>")
            .code(&format!(
                "vestibule machine approve {} --report {} --compared console",
                claim.machine,
                claim.report_sha256.as_deref().unwrap_or("?")
            ))
            .raw("</dd></dl>");
    }
}

fn machine_table(html: &mut Html, machines: &[MachineView]) {
    html.raw("<h2>Machines</h2><table><tr><th>machine<th>state<th>since<th>boots<th>MAC<th>port<th>last refusal</tr>");
    for machine in machines {
        let macs: Vec<String> = machine.macs.iter().map(ToString::to_string).collect();
        let code = machine.reasons.first().map_or("", |reason| &reason.code);
        html.raw("<tr><td><a href=\"/machines/")
            .text(&path_segment(&machine.machine.0))
            .raw("\">")
            .text(&machine.machine.0)
            .raw("</a></td>")
            .cell(&machine.state)
            .cell(&clock(machine.since))
            .cell(&machine.boot)
            .cell(&macs.join(" "))
            .cell(machine.port.as_deref().unwrap_or(""))
            .cell(code)
            .raw("</tr>");
    }
    html.raw("</table>");
}

/// One machine with its timeline.
pub(super) fn machine(machine: &MachineView, timeline: &[TimelineEntry]) -> String {
    let mut html = Html::page(&format!("Vestibule: {}", machine.machine));
    html.raw("<p><a href=\"/\">All machines</a></p><dl>");
    let macs: Vec<String> = machine.macs.iter().map(ToString::to_string).collect();
    let eks: Vec<&str> = machine
        .ek_names
        .iter()
        .map(|name| name.0.as_str())
        .collect();
    for (name, value) in [
        ("state", machine.state.clone()),
        ("since", clock(machine.since)),
        ("boots", machine.boot.clone()),
        ("class", machine.class.clone().unwrap_or_default()),
        ("serial", machine.serial.clone().unwrap_or_default()),
        ("disk", machine.disk_serial.clone().unwrap_or_default()),
        ("port", machine.port.clone().unwrap_or_default()),
        ("MAC", macs.join(" ")),
        ("EK names", eks.join(" ")),
        ("assurance", machine.assurance.clone().unwrap_or_default()),
        (
            "LDevID until",
            machine.ldevid_not_after.map(clock).unwrap_or_default(),
        ),
        ("gate", gate_text(machine)),
        ("report", machine.report_sha256.clone().unwrap_or_default()),
    ] {
        if !value.is_empty() {
            html.raw("<dt>").text(name).raw("</dt><dd class=\"mono\">");
            html.text(&value).raw("</dd>");
        }
    }
    html.raw("</dl>");
    if !machine.reasons.is_empty() {
        html.raw("<h2>Last verdict</h2>").reasons(&machine.reasons);
    }
    html.raw("<h2>Timeline</h2><table><tr><th>time<th>step<th>from<th>what</tr>");
    for entry in timeline {
        let step = entry
            .step
            .and_then(|step| serde_json::to_value(step).ok())
            .and_then(|value| value.as_str().map(str::to_owned))
            .unwrap_or_default();
        let mut source = entry.source.clone();
        if let Some(seq) = entry.seq {
            let _ = write!(source, " {seq}");
        }
        html.raw("<tr>")
            .cell(&clock(entry.at))
            .cell(&step)
            .cell(&source)
            .raw("<td>")
            .text(&entry.text)
            .reasons(&entry.reasons)
            .raw("</td></tr>");
    }
    html.raw("</table>");
    html.done()
}

/// Nothing where the appliance has no gate.
fn gate_text(machine: &MachineView) -> String {
    let Some(gate) = &machine.gate else {
        return String::new();
    };
    match gate.until {
        None => "closed".to_owned(),
        Some(until) => format!("until {}: {}", clock(until), gate.open.join("; ")),
    }
}

/// UTC with milliseconds, as in the log.
fn clock(at: UnixMillis) -> String {
    let nanos = i128::from(at.0) * 1_000_000;
    match time::OffsetDateTime::from_unix_timestamp_nanos(nanos) {
        Ok(t) => format!(
            "{:04}-{:02}-{:02} {:02}:{:02}:{:02}.{:03}",
            t.year(),
            u8::from(t.month()),
            t.day(),
            t.hour(),
            t.minute(),
            t.second(),
            t.millisecond()
        ),
        Err(_) => format!("{} ms", at.0),
    }
}

/// One URL path segment (RFC 3986 section 3.3), everything but unreserved characters encoded.
fn path_segment(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped() {
        let mut html = Html(String::new());
        html.text("<script>\"'&\u{1b}");
        assert_eq!(html.0, "&lt;script&gt;&quot;&#39;&amp;\u{fffd}");
        assert_eq!(path_segment("a/b \u{e9}"), "a%2Fb%20%C3%A9");
    }

    #[test]
    fn time_is_utc() {
        assert_eq!(
            clock(UnixMillis(1_796_040_000_123)),
            "2026-11-30 12:00:00.123"
        );
        assert!(clock(UnixMillis(u64::MAX)).ends_with(" ms"));
    }
}

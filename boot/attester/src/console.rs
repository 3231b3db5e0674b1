//! Lines for an 80x25 serial console: plain ASCII, `vestibule: [step] text`, wrapped.

use std::io::Write;

/// Columns used; the last one stays free, since some terminals wrap after it.
const COLUMNS: usize = 79;
/// Continuation lines.
const INDENT: &str = "  ";

/// What to do about a machine that shows no TPM.
pub const WITHOUT_TPM: &str = "without a TPM 2.0 this machine cannot prove who it is and is not admitted. \
    Switch on the TPM in the firmware setup (also called PTT or fTPM, under Security or Trusted Computing) \
    and reboot; a server may need a TPM module";

/// Prints one message.
pub fn say(step: &str, text: &str) {
    let mut out = std::io::stdout().lock();
    // A console that cannot be written to is no reason to stop.
    let _ = out.write_all(layout(step, text).as_bytes());
    let _ = out.flush();
}

/// Prints an error with its causes.
pub fn say_error(step: &str, error: &dyn std::error::Error) {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        // Some errors repeat their cause in their own text.
        if !text.contains(&inner_text) {
            text.push_str(": ");
            text.push_str(&inner_text);
        }
        cause = inner.source();
    }
    say(step, &text);
}

/// Wraps at spaces, or within a word that is longer than a line.
fn layout(step: &str, text: &str) -> String {
    let mut lines = String::new();
    let mut line = format!("vestibule: [{step}]");
    for word in text.split_whitespace() {
        let word: String = word
            .chars()
            .map(|c| if c.is_ascii_graphic() { c } else { '?' })
            .collect();
        let mut rest = word.as_str();
        if line.len() + 1 + rest.len() > COLUMNS && rest.len() <= COLUMNS - INDENT.len() {
            push_line(&mut lines, &mut line);
        }
        while !rest.is_empty() {
            let space = usize::from(line != INDENT);
            let room = COLUMNS.saturating_sub(line.len() + space);
            if room == 0 {
                push_line(&mut lines, &mut line);
                continue;
            }
            let (now, later) = rest.split_at(room.min(rest.len()));
            if space == 1 {
                line.push(' ');
            }
            line.push_str(now);
            rest = later;
            if !rest.is_empty() {
                push_line(&mut lines, &mut line);
            }
        }
    }
    lines.push_str(&line);
    lines.push('\n');
    lines
}

fn push_line(lines: &mut String, line: &mut String) {
    lines.push_str(line);
    lines.push('\n');
    INDENT.clone_into(line);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fits_the_console_and_loses_nothing() {
        let long = "x".repeat(200);
        let text = format!(
            "one two three {long} {} end\x1b[2J \u{e9}",
            "word ".repeat(40)
        );
        let shown = layout("appraise", &text);
        assert!(shown.lines().all(|line| line.len() <= COLUMNS), "{shown}");
        assert!(shown.starts_with("vestibule: [appraise] one two three"));
        assert!(shown.ends_with("end?[2J ?\n"), "{shown}");
        assert_eq!(shown.matches('x').count(), 200);
        assert_eq!(shown.matches("word").count(), 40);
        assert!(shown.is_ascii());
    }

    #[test]
    fn short_text_is_one_line() {
        assert_eq!(
            layout("hello", "10.0.0.1:8443"),
            "vestibule: [hello] 10.0.0.1:8443\n"
        );
        assert_eq!(layout("hello", ""), "vestibule: [hello]\n");
        let exact = "y".repeat(COLUMNS - "vestibule: [s] ".len());
        assert_eq!(layout("s", &exact).lines().count(), 1);
        assert_eq!(layout("s", &format!("{exact}y")).lines().count(), 2);
    }
}

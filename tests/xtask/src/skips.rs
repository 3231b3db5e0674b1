//! The committed list of checks that may be skipped, `.ci/skips`: a skip outside it is a failure.

/// The patterns of the list: one a line, `#` starts a comment, `*` stands for any text.
pub fn parse(text: &str) -> Vec<String> {
    text.lines()
        .map(|line| line.split('#').next().unwrap_or("").trim())
        .filter(|line| !line.is_empty())
        .map(String::from)
        .collect()
}

/// Those skips that no pattern covers.
pub fn not_allowed<'a>(skips: &'a [String], patterns: &[String]) -> Vec<&'a str> {
    skips
        .iter()
        .map(String::as_str)
        .filter(|skip| !patterns.iter().any(|pattern| matches(pattern, skip)))
        .collect()
}

fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or("");
    let Some(mut rest) = text.strip_prefix(first) else {
        return false;
    };
    let mut last = None;
    for part in parts {
        if let Some(middle) = last.replace(part) {
            match rest.find(middle) {
                Some(at) => rest = &rest[at + middle.len()..],
                None => return false,
            }
        }
    }
    match last {
        Some(end) => rest.ends_with(end),
        None => rest.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_covers_any_text_and_nothing_else_does() {
        for (pattern, text, expected) in [
            ("corpus: absent", "corpus: absent", true),
            ("corpus: absent", "corpus: absent today", false),
            (
                "corpus*: absent*",
                "corpus_dhcp: absent (VESTIBULE_CORPUS)",
                true,
            ),
            (
                "corpus*: absent",
                "corpus_dhcp: absent (VESTIBULE_CORPUS)",
                false,
            ),
            ("*", "", true),
            ("", "x", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern:?} on {text:?}");
        }
    }

    #[test]
    fn a_skip_outside_the_list_is_named() {
        let patterns = parse("# why\ncorpus*: absent*  # no corpus in a clean clone\n\n");
        let skips = ["corpus_lldp: absent".to_owned(), "swtpm: absent".to_owned()];
        assert_eq!(not_allowed(&skips, &patterns), ["swtpm: absent"]);
    }
}

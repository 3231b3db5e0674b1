//! The machine's own apt mirror, read from `sources.list(5)` in both of its forms.
//!
//! Decides which mirror other Debian suites are asked from: the one this machine already trusts. Knows
//! no network; a machine that is not Debian has no such mirror and must be given one.

use std::path::Path;

/// One `deb` entry.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Source {
    /// Mirror addresses, in order.
    pub uris: Vec<String>,
    /// Suites, for example `bookworm` and `bookworm-updates`.
    pub suites: Vec<String>,
    /// Components, for example `main`.
    pub components: Vec<String>,
    /// Keyring file, when the entry names one.
    pub signed_by: Option<String>,
}

/// Where Debian's packages come from on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mirror {
    /// The main archive.
    pub main: String,
    /// The security archive, if the machine has one.
    pub security: Option<String>,
    /// Keyring file that signs both.
    pub signed_by: Option<String>,
}

impl Mirror {
    /// The private `sources.list` for `suite`: the archive, and its security suite where one exists.
    pub fn sources_list(&self, suite: &str) -> String {
        let options = match &self.signed_by {
            Some(keyring) => format!("[signed-by={keyring}] "),
            None => String::new(),
        };
        let mut text = format!("deb {options}{} {suite} main\n", self.main);
        // The moving suites have no security archive of their own.
        let moving = ["sid", "unstable", "experimental"].contains(&suite);
        if let (Some(security), false) = (&self.security, moving) {
            text.push_str(&format!("deb {options}{security} {suite}-security main\n"));
        }
        text
    }
}

/// Parses the one-line form: `deb [options] uri suite component...`.
pub fn parse_one_line(text: &str) -> Vec<Source> {
    text.lines().filter_map(one_line).collect()
}

fn one_line(line: &str) -> Option<Source> {
    let line = line.split('#').next().unwrap_or_default().trim();
    let rest = line.strip_prefix("deb")?;
    if !rest.starts_with(char::is_whitespace) {
        return None;
    }
    let mut rest = rest.trim_start();
    let mut signed_by = None;
    if let Some(after) = rest.strip_prefix('[') {
        let (options, tail) = after.split_once(']')?;
        signed_by = options
            .split_whitespace()
            .find_map(|option| option.strip_prefix("signed-by="))
            .map(str::to_owned);
        rest = tail.trim_start();
    }
    let mut words = rest.split_whitespace().map(str::to_owned);
    Some(Source {
        uris: vec![words.next()?],
        suites: vec![words.next()?],
        components: words.collect(),
        signed_by,
    })
}

/// Parses the deb822 form: stanzas of `Field: value`, separated by empty lines.
pub fn parse_deb822(text: &str) -> Vec<Source> {
    let mut found = Vec::new();
    let mut stanza: Vec<(String, String)> = Vec::new();
    for line in text.lines().chain([""]) {
        if line.starts_with('#') {
            continue;
        }
        if line.trim().is_empty() {
            found.extend(stanza_source(&stanza));
            stanza.clear();
        } else if line.starts_with([' ', '\t']) {
            if let Some((_, value)) = stanza.last_mut() {
                value.push(' ');
                value.push_str(line.trim());
            }
        } else if let Some((field, value)) = line.split_once(':') {
            stanza.push((field.trim().to_ascii_lowercase(), value.trim().to_owned()));
        }
    }
    found
}

fn stanza_source(stanza: &[(String, String)]) -> Option<Source> {
    let words = |field: &str| -> Vec<String> {
        stanza
            .iter()
            .filter(|(name, _)| name == field)
            .flat_map(|(_, value)| value.split_whitespace().map(str::to_owned))
            .collect()
    };
    let disabled = words("enabled").iter().any(|word| word == "no");
    if disabled || !words("types").iter().any(|word| word == "deb") {
        return None;
    }
    Some(Source {
        uris: words("uris"),
        suites: words("suites"),
        components: words("components"),
        // An embedded key spans lines; only a file can be named in a one-line entry.
        signed_by: words("signed-by")
            .first()
            .filter(|value| value.starts_with('/'))
            .cloned(),
    })
}

/// Chooses the mirror that carries `codename`'s `main`: addresses that say `debian` first, since third
/// parties also publish a `bookworm main`.
pub fn choose_mirror(sources: &[Source], codename: &str) -> Option<Mirror> {
    let with_suite = |suite: &str| -> Option<(String, Option<String>)> {
        let mut fits: Vec<_> = sources
            .iter()
            .filter(|source| source.suites.iter().any(|name| name == suite))
            .filter(|source| source.components.iter().any(|name| name == "main"))
            .filter_map(|source| Some((source.uris.first()?.clone(), source.signed_by.clone())))
            .collect();
        fits.sort_by_key(|(uri, _)| !uri.to_ascii_lowercase().contains("debian"));
        fits.into_iter().next()
    };
    let (main, signed_by) = with_suite(codename)?;
    let security = with_suite(&format!("{codename}-security")).map(|(uri, _)| uri);
    Some(Mirror {
        main,
        security,
        signed_by,
    })
}

/// `VERSION_CODENAME` of an `os-release(5)` text, if it is Debian's.
pub fn debian_codename(os_release: &str) -> Option<String> {
    let value = |key: &str| {
        os_release
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
            .map(|value| value.trim_matches('"').to_owned())
    };
    (value("ID")? == "debian").then(|| value("VERSION_CODENAME"))?
}

/// Reads the mirror of the machine whose `/etc` is at `etc`.
///
/// # Errors
/// The file that could not be read. `Ok(None)` when this is not Debian or it has no mirror.
pub fn host_mirror(etc: &Path) -> std::io::Result<Option<Mirror>> {
    let os_release = std::fs::read_to_string(etc.join("os-release"))?;
    let Some(codename) = debian_codename(&os_release) else {
        return Ok(None);
    };
    let mut sources = Vec::new();
    let list = etc.join("apt/sources.list");
    if list.is_file() {
        sources.extend(parse_one_line(&std::fs::read_to_string(list)?));
    }
    let parts = etc.join("apt/sources.list.d");
    if parts.is_dir() {
        let mut files: Vec<_> = std::fs::read_dir(parts)?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .collect();
        files.sort();
        for file in files {
            match file.extension().and_then(|ext| ext.to_str()) {
                Some("list") => sources.extend(parse_one_line(&std::fs::read_to_string(&file)?)),
                Some("sources") => sources.extend(parse_deb822(&std::fs::read_to_string(&file)?)),
                _ => {}
            }
        }
    }
    Ok(choose_mirror(&sources, &codename))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEB822: &str = "\
Types: deb
# comment in a stanza
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main
 contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb-src
URIs: http://mirror.example/source
Suites: bookworm
Components: main

Enabled: no
Types: deb
URIs: http://other.example/debian
Suites: bookworm
Components: main
";

    #[test]
    fn reads_deb822() {
        let sources = parse_deb822(DEB822);
        assert_eq!(sources.len(), 2, "source and disabled entries do not count");
        assert_eq!(sources[0].suites, ["bookworm", "bookworm-updates"]);
        assert_eq!(sources[1].components, ["main", "contrib"]);
        let mirror = choose_mirror(&sources, "bookworm").unwrap();
        assert_eq!(mirror.main, "http://mirror.example/debian");
        assert_eq!(
            mirror.security.as_deref(),
            Some("http://mirror.example/debian-security")
        );
    }

    #[test]
    fn reads_one_line_with_options_and_comments() {
        let sources = parse_one_line(
            "# x\ndeb-src http://a/debian trixie main\ndeb [arch=amd64 signed-by=/k.gpg] http://a/debian trixie main contrib # c\ndebian\n",
        );
        assert_eq!(
            sources,
            [Source {
                uris: vec!["http://a/debian".into()],
                suites: vec!["trixie".into()],
                components: vec!["main".into(), "contrib".into()],
                signed_by: Some("/k.gpg".into()),
            }]
        );
    }

    #[test]
    fn a_third_party_main_does_not_win() {
        let sources = parse_one_line(
            "deb http://apt.vendor.example bookworm main\ndeb http://mirror/debian bookworm main\n",
        );
        let mirror = choose_mirror(&sources, "bookworm").unwrap();
        assert_eq!(mirror.main, "http://mirror/debian");
        assert_eq!(mirror.security, None);
    }

    #[test]
    fn rejects_a_machine_that_is_not_debian() {
        assert_eq!(debian_codename("ID=ubuntu\nVERSION_CODENAME=noble\n"), None);
        assert_eq!(
            debian_codename("ID=debian\nVERSION_CODENAME=\"trixie\"\n").as_deref(),
            Some("trixie")
        );
    }

    #[test]
    fn moving_suites_have_no_security_archive() {
        let mirror = Mirror {
            main: "http://m/debian".into(),
            security: Some("http://m/debian-security".into()),
            signed_by: Some("/k.gpg".into()),
        };
        assert_eq!(
            mirror.sources_list("sid"),
            "deb [signed-by=/k.gpg] http://m/debian sid main\n"
        );
        assert!(
            mirror
                .sources_list("bookworm")
                .contains("debian-security bookworm-security main")
        );
    }

    proptest::proptest! {
        #[test]
        fn never_panics(text in ".*") {
            let sources = [parse_one_line(&text), parse_deb822(&text)].concat();
            let _ = choose_mirror(&sources, "bookworm");
            let _ = debian_codename(&text);
        }
    }
}

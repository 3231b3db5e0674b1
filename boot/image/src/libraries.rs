//! The shared objects a program needs at run time, as the system's loader finds them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::exec::{Tool, ToolError};

const LDD: Tool = Tool {
    name: "ldd",
    package: "libc-bin",
};

/// Objects that libraries open by name when they run, so that no header names them.
/// `libtss2-tctildr` opens the one for the kernel's TPM device.
const OPENED_BY: [(&str, &str); 1] = [("libtss2-tctildr.so.0", "libtss2-tcti-device.so.0")];

/// Why the shared objects could not be found.
#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    /// The loader does not find one.
    #[error("{program} needs {library}, which is not installed")]
    NotFound {
        /// Who needs it.
        program: PathBuf,
        /// File name.
        library: String,
    },
    /// `ldd` failed.
    #[error("shared objects of {program}")]
    Tool {
        /// Of which program.
        program: PathBuf,
        /// Why.
        #[source]
        source: ToolError,
    },
}

/// Everything `program` needs, loader included, by path. A static program needs nothing.
///
/// # Errors
/// [`LibraryError`].
pub fn needed_by(program: &Path) -> Result<Vec<PathBuf>, LibraryError> {
    let mut found = direct(program)?;
    for (opener, opened) in OPENED_BY {
        let Some(opener) = found.get(opener) else {
            continue;
        };
        let path = opener.with_file_name(opened);
        if !path.is_file() {
            return Err(LibraryError::NotFound {
                program: opener.clone(),
                library: opened.to_owned(),
            });
        }
        let more = direct(&path)?;
        found.extend(more);
        found.insert(opened.to_owned(), path);
    }
    Ok(found.into_values().collect())
}

fn direct(program: &Path) -> Result<BTreeMap<String, PathBuf>, LibraryError> {
    let absolute = std::path::absolute(program).unwrap_or_else(|_| program.to_owned());
    let text = match LDD.run(Path::new("/"), [&absolute]) {
        Ok(text) => text,
        Err(ToolError::Failed { stderr, .. }) if stderr.contains("not a dynamic executable") => {
            return Ok(BTreeMap::new());
        }
        Err(source) => {
            return Err(LibraryError::Tool {
                program: program.to_owned(),
                source,
            });
        }
    };
    parse(program, &String::from_utf8_lossy(&text))
}

/// Reads `name => /path (0x..)` and `/path/of/loader (0x..)`; `linux-vdso` has no file.
fn parse(program: &Path, text: &str) -> Result<BTreeMap<String, PathBuf>, LibraryError> {
    let mut found = BTreeMap::new();
    for line in text.lines() {
        let line = line.trim();
        let (name, target) = line.split_once(" => ").unwrap_or((line, line));
        if target.starts_with("not found") {
            return Err(LibraryError::NotFound {
                program: program.to_owned(),
                library: name.to_owned(),
            });
        }
        let path = target.split(" (").next().unwrap_or_default();
        if path.starts_with('/') {
            let name = Path::new(name).file_name().map_or_else(
                || name.to_owned(),
                |name| name.to_string_lossy().into_owned(),
            );
            found.insert(name, PathBuf::from(path));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\tlinux-vdso.so.1 (0x00007ffe)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x7f)\n\t/lib64/ld-linux-x86-64.so.2 (0x7f)\n";

    #[test]
    fn reads_ldd() {
        let found = parse(Path::new("/init"), TEXT).unwrap();
        assert_eq!(
            found.into_values().collect::<Vec<_>>(),
            [
                PathBuf::from("/lib64/ld-linux-x86-64.so.2"),
                PathBuf::from("/lib/x86_64-linux-gnu/libc.so.6"),
            ]
        );
        assert!(
            parse(Path::new("/init"), "\tstatically linked\n")
                .unwrap()
                .is_empty()
        );
    }

    #[test]
    fn rejects_a_library_that_is_not_installed() {
        let error = parse(Path::new("/init"), "\tlibx.so.1 => not found\n").unwrap_err();
        assert_eq!(
            error.to_string(),
            "/init needs libx.so.1, which is not installed"
        );
    }

    #[test]
    fn finds_the_libraries_of_a_system_program() {
        let found = needed_by(Path::new("/bin/ls")).unwrap();
        assert!(found.iter().any(|path| path.ends_with("libc.so.6")));
        assert!(
            found
                .iter()
                .any(|path| path.to_string_lossy().contains("/ld-"))
        );
    }
}

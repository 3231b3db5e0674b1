//! Runs one outside tool with an argument list. Never a shell: nothing here is ever re-parsed.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::{Command, Stdio};

/// Why an outside tool did not do its work.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// The program is not on PATH.
    #[error("{tool} is not installed (Debian package {package})")]
    Missing {
        /// Program name.
        tool: &'static str,
        /// Debian package that has it.
        package: &'static str,
    },
    /// The program could not be started.
    #[error("{tool} did not start")]
    Start {
        /// Program name.
        tool: &'static str,
        /// What the kernel said.
        #[source]
        source: std::io::Error,
    },
    /// The program ran and failed.
    #[error("{tool} failed with {status}: {stderr}")]
    Failed {
        /// Program name.
        tool: &'static str,
        /// Exit status in words.
        status: String,
        /// The end of its standard error, at most 2000 bytes.
        stderr: String,
    },
}

/// One tool, with the Debian package that has it, for the message when it is absent.
#[derive(Debug, Clone, Copy)]
pub struct Tool {
    /// Program name, looked up on PATH and in the system directories.
    pub name: &'static str,
    /// Debian package.
    pub package: &'static str,
}

/// Directories where Debian keeps tools that a user's PATH often lacks.
const SYSTEM_DIRS: [&str; 3] = ["/usr/sbin", "/sbin", "/usr/bin"];

impl Tool {
    /// Runs the tool in `dir` and returns its standard output.
    ///
    /// # Errors
    /// [`ToolError`] when it is absent, does not start, or exits with anything but 0.
    pub fn run<I, A>(self, dir: &Path, args: I) -> Result<Vec<u8>, ToolError>
    where
        I: IntoIterator<Item = A>,
        A: AsRef<OsStr>,
    {
        let args: Vec<OsString> = args
            .into_iter()
            .map(|arg| arg.as_ref().to_os_string())
            .collect();
        let output = Command::new(self.path())
            .args(&args)
            .current_dir(dir)
            .env("LC_ALL", "C")
            .env("DEBIAN_FRONTEND", "noninteractive")
            .stdin(Stdio::null())
            .output()
            .map_err(|source| self.start_error(source))?;
        if output.status.success() {
            return Ok(output.stdout);
        }
        Err(ToolError::Failed {
            tool: self.name,
            status: output.status.to_string(),
            stderr: tail(&output.stderr, 2000),
        })
    }

    fn path(self) -> OsString {
        SYSTEM_DIRS
            .iter()
            .map(|dir| Path::new(dir).join(self.name))
            .find(|path| path.is_file())
            .map_or_else(|| self.name.into(), Into::into)
    }

    fn start_error(self, source: std::io::Error) -> ToolError {
        if source.kind() == std::io::ErrorKind::NotFound {
            return ToolError::Missing {
                tool: self.name,
                package: self.package,
            };
        }
        ToolError::Start {
            tool: self.name,
            source,
        }
    }
}

fn tail(bytes: &[u8], max: usize) -> String {
    let start = bytes.len().saturating_sub(max);
    String::from_utf8_lossy(&bytes[start..])
        .trim()
        .replace('\n', "; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absent_tool_names_its_package() {
        let tool = Tool {
            name: "no-such-tool-here",
            package: "nothing",
        };
        let error = tool.run(Path::new("/"), ["x"]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "no-such-tool-here is not installed (Debian package nothing)"
        );
    }

    #[test]
    fn a_failing_tool_says_why() {
        let tool = Tool {
            name: "ls",
            package: "coreutils",
        };
        let error = tool
            .run(Path::new("/"), ["/no/such/place"])
            .unwrap_err()
            .to_string();
        assert!(error.contains("/no/such/place"), "{error}");
        assert!(error.contains("exit status"), "{error}");
    }
}

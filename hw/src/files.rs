//! How many files this process may have open: every connection is one.

use std::io;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Raises the soft limit to the hard one and returns it. A service manager or a shell often gives
/// 1024, kept low for programs that use `select`, of which we are none.
///
/// # Errors
/// The kernel's.
pub fn raise_open_files() -> io::Result<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft < hard {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    }
    Ok(hard)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_becomes_the_hard_one() {
        let hard = raise_open_files().unwrap();
        let found = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        assert_eq!(found, (hard, hard));
    }
}

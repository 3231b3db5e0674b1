//! The gate as a program of the operator that moves a switch port to another VLAN.
//!
//! It is called as `PROGRAM MACHINE PORT open|close`, without a shell and one call at a time, and
//! answers by its exit code: 0 is done, anything else is not. It must be safe to repeat. It cannot be
//! asked what is there, so this backend remembers what it did, and at a start everything is told
//! again. Nothing closes by itself while the daemon is down: the switch's own re-authentication time
//! is what ends an opening then.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use super::{Change, Element, Gate, GateError, Listing, SwitchPort, program};

/// A switch over SSH or SNMP answers within seconds.
const LIMIT: Duration = Duration::from_secs(10);

/// The backend.
#[derive(Debug)]
pub struct Hook {
    program: PathBuf,
    open: BTreeSet<SwitchPort>,
}

impl Hook {
    /// Nothing is known to be open yet.
    pub fn new(program: PathBuf) -> Self {
        Self {
            program,
            open: BTreeSet::new(),
        }
    }

    fn call(&self, at: &SwitchPort, action: &str) -> Result<(), GateError> {
        // Operators may name ports as they like, but not so that a program takes one for an option.
        if at.port.starts_with('-') || at.machine.starts_with('-') {
            return Err(GateError::new(
                format!("switch port of machine {}", at.machine),
                "a name that does not start with a dash",
                format!("{:?}", at.port),
                "declare the port by another name",
            ));
        }
        let args = [at.machine.as_str(), at.port.as_str(), action];
        let done = program::run(&self.program, &args, b"", 0, LIMIT)?;
        if done.status.success() {
            return Ok(());
        }
        Err(GateError::new(
            format!("{} {}", self.program.display(), args.join(" ")),
            "exit code 0",
            format!("{}: {}", done.status, done.said),
            "run it by hand with these arguments; it is tried again until it works",
        ))
    }

    fn change(&mut self, element: &Element, open: bool) -> Result<(), GateError> {
        let Element::Port(at) = element else {
            return Err(GateError::new(
                "gate backend hook",
                "a switch port",
                "a pair of addresses",
                "report this: it is a defect",
            ));
        };
        self.call(at, if open { "open" } else { "close" })?;
        if open {
            self.open.insert(at.clone());
        } else {
            self.open.remove(at);
        }
        Ok(())
    }
}

impl Gate for Hook {
    fn install(&mut self, open: &[(Element, Duration)], shut: &[Element]) -> Result<(), GateError> {
        let wanted: BTreeSet<&Element> = open.iter().map(|(element, _)| element).collect();
        let held: Vec<Element> = self.open.iter().cloned().map(Element::Port).collect();
        let close = held.iter().chain(shut).filter(|e| !wanted.contains(e));
        let changes: Vec<Change> = close
            .cloned()
            .map(Change::Close)
            .chain(open.iter().map(|(e, left)| Change::Open(e.clone(), *left)))
            .collect();
        self.apply(&changes)
    }

    /// One that fails does not keep the others from being made; the first error is told.
    fn apply(&mut self, changes: &[Change]) -> Result<(), GateError> {
        let mut first = Ok(());
        let closes = changes.iter().filter(|c| matches!(c, Change::Close(_)));
        let opens = changes.iter().filter(|c| matches!(c, Change::Open(..)));
        for change in closes.chain(opens) {
            let done = match change {
                Change::Close(element) => self.change(element, false),
                Change::Open(Element::Port(at), _) if self.open.contains(at) => Ok(()),
                Change::Open(element, _) => self.change(element, true),
            };
            first = first.and(done);
        }
        first
    }

    fn list(&mut self) -> Result<Listing, GateError> {
        let open = self.open.iter().cloned();
        Ok(Listing {
            open: open.map(|at| (Element::Port(at), None)).collect(),
            intact: true,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn port(machine: &str, port: &str) -> Element {
        Element::Port(SwitchPort {
            machine: machine.to_owned(),
            port: port.to_owned(),
        })
    }

    fn hook(dir: &tempfile::TempDir, body: &str) -> Hook {
        let path = dir.path().join("hook");
        std::fs::write(&path, format!("#!/bin/sh\n{body}\n")).expect("written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("set");
        Hook::new(path)
    }

    #[test]
    fn arguments_arrive_as_they_are_and_a_start_tells_all() {
        let dir = tempfile::tempdir().expect("a folder");
        let log = dir.path().join("log");
        let mut gate = hook(&dir, &format!("echo \"$#|$1|$2|$3\" >> {}", log.display()));
        let (a, b) = (port("m1", "leaf 1/$(id)"), port("m2", "leaf-1/2"));
        let long = Duration::from_secs(60);
        let open = [(a.clone(), long)];
        gate.install(&open, &[b.clone(), a.clone()]).expect("done");
        // What is open already is not told again.
        gate.apply(&[Change::Open(a.clone(), long)]).expect("done");
        gate.apply(&[Change::Open(b.clone(), long), Change::Close(a)])
            .expect("done");
        let said = std::fs::read_to_string(&log).expect("a log");
        let lines: Vec<&str> = said.lines().collect();
        let expected = [
            "3|m2|leaf-1/2|close",
            "3|m1|leaf 1/$(id)|open",
            "3|m1|leaf 1/$(id)|close",
            "3|m2|leaf-1/2|open",
        ];
        assert_eq!(lines, expected);
        assert_eq!(gate.list().expect("listed").open, [(b, None)]);
    }

    #[test]
    fn a_failure_is_told_and_keeps_nothing_else_back() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut gate = hook(
            &dir,
            "[ \"$1\" = m2 ] && { echo no such port >&2; exit 4; }; exit 0",
        );
        let long = Duration::from_secs(60);
        let (a, b, c) = (port("m1", "1"), port("m2", "2"), port("m3", "3"));
        let all: Vec<_> = [&a, &b, &c].map(|e| (e.clone(), long)).into();
        let error = gate.install(&all, &[]).expect_err("m2 fails");
        let text = error.to_string();
        for part in ["m2 2 open", "exit code 0", "exit status: 4: no such port"] {
            assert!(text.contains(part), "{part} is missing: {text}");
        }
        assert_eq!(gate.list().expect("listed").open, [(a, None), (c, None)]);
        let error = gate.apply(&[Change::Open(port("m4", "--all"), long)]);
        assert!(error.is_err_and(|e| e.expected.contains("dash")));
    }
}

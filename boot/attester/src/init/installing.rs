//! After the admission: the installation that was granted, and what follows for the machine.

use std::path::Path;

use attest_wire::v1::handover::Grant;
use hw::tpm::NodeDevice;

use super::{REBOOT_PAUSE, RUN, system};
use crate::console::{say, say_error};
use crate::exchange::{AttestError, Gateway, Node, Step};
use crate::install::disk::{Roots, find};
use crate::install::grant::{Used, check};
use crate::install::link::{Link, own};
use crate::install::package::Package;
use crate::install::{InstallError, Refused, install};
use crate::pin::Pin;

/// Grants that were used in this boot, a nonce a line.
const USED: &str = "grants";

/// Installs and reboots into what was installed. Comes back when the owner must look first.
pub(super) fn run(
    tpm: &mut NodeDevice,
    node: &Node,
    gateway: &Gateway,
    grant: &Grant,
    machine: String,
) {
    let step = Step::Install.as_str();
    match granted(tpm, node, gateway, grant, machine) {
        Ok(()) => {
            say(step, "INSTALLED: rebooting into the local disk");
            system::leave();
        }
        Err(Ended::Install(error @ InstallError::Refused(_))) => {
            say_error(step, &error);
            say(
                step,
                "NOT INSTALLED: mend it, then: vestibule machine install-retry",
            );
        }
        Err(Ended::Install(error)) => {
            say_error(step, &error);
            say(step, "rebooting in 30 s: the next boot goes on");
            std::thread::sleep(REBOOT_PAUSE);
            system::reboot();
        }
        Err(Ended::Before(error)) => say_error(step, &error),
    }
}

enum Ended {
    Before(AttestError),
    Install(InstallError),
}

impl<E: Into<AttestError>> From<E> for Ended {
    fn from(error: E) -> Self {
        Self::Before(error.into())
    }
}

fn granted(
    tpm: &mut NodeDevice,
    node: &Node,
    gateway: &Gateway,
    grant: &Grant,
    machine: String,
) -> Result<(), Ended> {
    let refused = |refused: Refused| Ended::Install(refused.into());
    let pin = Pin::new(&gateway.anchors)?;
    let own = own(tpm, node, machine)?;
    let mut used = Used::open(Path::new(RUN).join(USED));
    let body = check(&pin, grant, &own, &mut used).map_err(refused)?;
    let package = Package::from_folder(Path::new(RUN)).map_err(|error| {
        let expected = "files of the package that can be read";
        refused(Refused::new("package.read", expected, error.to_string()))
    })?;
    let mut link = Link::new(tpm, gateway)?;
    let found = |body: &_| open(body);
    let mut told = |text: &str| say(Step::Install.as_str(), text);
    install(&body, &package, &mut link, found, &mut told).map_err(Ended::Install)
}

fn open(
    body: &attest_wire::v1::handover::GrantBody,
) -> Result<(String, hw::block::BlockDisk), Refused> {
    find(&Roots::default(), &body.disk_serial, body.image.raw_bytes)
}

//! Installing under a grant (docs/PROTOCOL.md section 6), as one straight path: check the grant against this
//! TPM and this boot, find the disk, wipe, write, put the package in its place, read everything back; a
//! signed report after each.
//!
//! A crash at any point is safe. The head of the disk is zeroed first and written last, so a disk that is
//! not whole does not boot; the next boot gets a grant of its own and begins again, or, where the image
//! had been written before, reads it back first. No grant, no wipe.

pub mod disk;
pub mod grant;
pub mod image;
pub mod link;
pub mod package;

use attest_wire::v1::handover::{GrantBody, InstallStep, ProgressAnswer, ProgressBody};
use sha2::{Digest as _, Sha256};

use crate::client::ClientError;
use disk::Disk;
use hw::tpm::TpmError;
use image::{disk_io, read_back};
use package::Package;

/// Emptied at both ends of the disk in any case, in bytes: boot sectors, both partition tables and the
/// first structures of what was there.
pub const ENDS_BYTES: u64 = 8 << 20;

/// A named reason that no retry helps against.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code}: expected {expected}, found {found}")]
pub struct Refused {
    /// Stable code.
    pub code: &'static str,
    /// What should be.
    pub expected: String,
    /// What is.
    pub found: String,
}

impl Refused {
    /// A reason.
    pub fn new(code: &'static str, expected: impl Into<String>, found: impl Into<String>) -> Self {
        Self {
            code,
            expected: expected.into(),
            found: found.into(),
        }
    }
}

/// Why an installation stopped.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// Something is not as granted; the owner must look.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The gateway does not go on.
    #[error("the gateway says {code}: {hint}")]
    Gateway {
        /// Stable code.
        code: String,
        /// One line.
        hint: String,
    },
    /// The way to the gateway, for longer than we try.
    #[error("the gateway cannot be reached")]
    Link(#[from] ClientError),
    /// The TPM.
    #[error(transparent)]
    Tpm(#[from] TpmError),
}

/// Where the image comes from.
pub trait Source {
    /// Bytes of the file with this digest from `offset` on: at least one, as many as the other side likes.
    fn piece(&mut self, sha256: &str, offset: u64) -> Result<Vec<u8>, InstallError>;
}

/// Who is told how far it is.
pub trait Reports {
    /// Signs and sends one report, again where the answer is lost.
    fn report(&mut self, body: &[u8]) -> Result<ProgressAnswer, InstallError>;
}

/// Both, as the gateway is.
pub trait Gateway: Source + Reports {}
impl<T: Source + Reports> Gateway for T {}

/// One installation under a grant that was checked.
struct Walk<'a> {
    body: &'a GrantBody,
    gateway: &'a mut dyn Gateway,
    say: &'a mut dyn FnMut(&str),
    seq: u32,
}

/// Installs under a grant that [`grant::check`] has passed. `find` opens the disk.
///
/// # Errors
/// [`InstallError`]; what is [`InstallError::Refused`] was reported as `failed` where that was possible.
pub fn install<D: Disk>(
    body: &GrantBody,
    package: &Package,
    gateway: &mut dyn Gateway,
    find: impl FnOnce(&GrantBody) -> Result<(String, D), Refused>,
    say: &mut dyn FnMut(&str),
) -> Result<(), InstallError> {
    let mut walk = Walk {
        body,
        gateway,
        say,
        seq: 0,
    };
    let outcome = walk.run(package, find);
    if let Err(InstallError::Refused(refused)) = &outcome {
        let text: String = refused.to_string().chars().take(400).collect();
        // The owner is told if it can be; the console says it in any case.
        if let Err(error) = walk.report(InstallStep::Failed, "", &text) {
            (walk.say)(&format!("the failure could not be reported: {error}"));
        }
    }
    outcome
}

/// Takes the head away: what is on the disk does not boot.
fn behead(disk: &mut dyn Disk, body: &GrantBody) -> std::io::Result<()> {
    let head = (package::HEAD_BYTES as u64).min(body.image.raw_bytes);
    disk.zero(0, head).map(drop)
}

impl Walk<'_> {
    fn run<D: Disk>(
        &mut self,
        package: &Package,
        find: impl FnOnce(&GrantBody) -> Result<(String, D), Refused>,
    ) -> Result<(), InstallError> {
        grant::check_payloads(self.body, package)?;
        let (name, mut disk) = find(self.body)?;
        let image = &self.body.image;
        let detail = format!(
            "disk {name}, serial {}, {} bytes; image {} {}",
            self.body.disk_serial,
            disk.size(),
            image.name,
            image.version
        );
        self.report(InstallStep::Checked, "", &detail)?;
        let head = match self.written_before(&mut disk)? {
            Some(head) => head,
            None => self.write(&mut disk)?,
        };
        let archive = package.archive();
        let finished = self.finish(&mut disk, &head, &archive);
        if let Err(InstallError::Refused(_) | InstallError::Gateway { .. }) = &finished {
            // What is not as granted, or not wanted any more, does not boot. Without an answer it may
            // be on record as verified: the next boot reads it again.
            let _ = behead(&mut disk, self.body).and_then(|()| disk.sync());
        }
        finished
    }

    fn finish(
        &mut self,
        disk: &mut dyn Disk,
        head: &image::Head,
        archive: &[u8],
    ) -> Result<(), InstallError> {
        let configured = self.configure(disk, head, archive)?;
        self.report(
            InstallStep::Configured,
            &hex::encode(Sha256::digest(archive)),
            &configured,
        )?;
        self.verify(disk, archive)
    }

    /// The image as an earlier boot left it, if it is whole: only its report was lost.
    fn written_before(&mut self, disk: &mut dyn Disk) -> Result<Option<image::Head>, InstallError> {
        if !self.body.reread {
            return Ok(None);
        }
        let image = &self.body.image;
        (self.say)(
            "an earlier boot had written the image: reading the disk before anything is wiped",
        );
        let (found, head) = read_back(disk, image)?;
        if found == image.raw_sha256 {
            (self.say)("the disk holds the image: it is not written again");
            return Ok(Some(head));
        }
        (self.say)(&format!(
            "the disk reads as {found}: it is wiped and written again"
        ));
        Ok(None)
    }

    /// Wipes and writes everything but the head.
    fn write(&mut self, disk: &mut dyn Disk) -> Result<image::Head, InstallError> {
        (self.say)("wiping: what is on the disk is lost from here on");
        let wiped = wipe(disk)?;
        self.report(InstallStep::Wiped, "", &wiped)?;
        let image = &self.body.image;
        let (total, say) = (image.raw_bytes, &mut *self.say);
        let mut tenth = 0;
        let mut told = |at: u64| {
            if at * 10 / total > tenth {
                tenth = at * 10 / total;
                say(&format!("writing: {} of {} MiB", at >> 20, total >> 20));
            }
        };
        let head = image::write(&mut *self.gateway, image, disk, &mut told)?;
        disk.sync().map_err(disk_io)?;
        let detail = format!("{total} bytes, the head still to come");
        self.report(InstallStep::Written, &image.raw_sha256, &detail)?;
        Ok(head)
    }

    /// The package, then the head: from here on the disk boots.
    fn configure(
        &mut self,
        disk: &mut dyn Disk,
        head: &image::Head,
        archive: &[u8],
    ) -> Result<String, InstallError> {
        // An earlier boot may have left a head: a disk whose package is half written must not boot.
        behead(disk, self.body).map_err(disk_io)?;
        disk.sync().map_err(disk_io)?;
        let detail = match head.place {
            None if !self.body.payloads.is_empty() => {
                let expected = format!("a partition {} for the payloads", package::LABEL);
                return Err(Refused::new("image.place", expected, "none").into());
            }
            None => "the image has no place for a package".to_owned(),
            Some(place) if archive.len() as u64 > place.length => {
                let expected = format!("at least {} bytes", archive.len());
                let found = format!("partition {} of {}", package::LABEL, place.length);
                return Err(Refused::new("image.place", expected, found).into());
            }
            Some(place) => {
                disk.write_at(place.from, archive).map_err(disk_io)?;
                let (from, used) = (place.from, archive.len() as u64);
                disk.zero(from + used, place.length - used)
                    .map_err(disk_io)?;
                format!("package of {used} bytes in partition {}", package::LABEL)
            }
        };
        disk.sync().map_err(disk_io)?;
        disk.write_at(0, &head.bytes).map_err(disk_io)?;
        disk.sync().map_err(disk_io)?;
        Ok(detail)
    }

    fn verify(&mut self, disk: &mut dyn Disk, archive: &[u8]) -> Result<(), InstallError> {
        let image = &self.body.image;
        let (found, head) = read_back(disk, image)?;
        if found != image.raw_sha256 {
            return Err(Refused::new("disk.digest", image.raw_sha256.clone(), found).into());
        }
        if let Some(place) = head.place {
            let mut kept = zeroize::Zeroizing::new(vec![0; archive.len()]);
            disk.read_at(place.from, &mut kept).map_err(disk_io)?;
            if *kept != archive {
                let expected = "the package as it was written";
                return Err(Refused::new("disk.digest", expected, "another").into());
            }
        }
        let detail = format!("{} bytes read back", image.raw_bytes);
        self.report(InstallStep::Verified, &found, &detail)
    }

    /// Says and reports one step; the gateway has it on record when this returns.
    fn report(
        &mut self,
        step: InstallStep,
        sha256: &str,
        detail: &str,
    ) -> Result<(), InstallError> {
        (self.say)(&format!("{}: {detail}", step.as_str()));
        self.seq += 1;
        let body = ProgressBody {
            grant: self.body.grant.clone(),
            seq: self.seq,
            step,
            sha256: sha256.to_owned(),
            detail: detail.to_owned(),
        };
        let body = serde_json::to_vec(&body).expect("a report of strings and numbers encodes");
        let answer = self.gateway.report(&body)?;
        if answer.accepted {
            return Ok(());
        }
        Err(InstallError::Gateway {
            code: answer.code,
            hint: answer.hint,
        })
    }
}

/// Empties the disk and says with what. The head goes first: from then on nothing boots from it.
fn wipe(disk: &mut dyn Disk) -> Result<String, InstallError> {
    let size = disk.size();
    let ends = ENDS_BYTES.min(size);
    let tail = size - ends;
    let head = disk.zero(0, ends).map_err(disk_io)?;
    disk.sync().map_err(disk_io)?;
    let all = disk.discard_all();
    // A discarded range may read as anything.
    let again = disk.zero(0, ends).map_err(disk_io)?;
    let end = disk.zero(tail, ends).map_err(disk_io)?;
    disk.forget_cached().map_err(disk_io)?;
    for from in [0, tail] {
        let mut bytes = vec![0xff; ends as usize];
        disk.read_at(from, &mut bytes).map_err(disk_io)?;
        if bytes.iter().any(|byte| *byte != 0) {
            let found = format!("contents within {ends} bytes from {from}");
            return Err(Refused::new("disk.wipe", "zeros at both ends", found).into());
        }
    }
    let mib = ends >> 20;
    Ok(format!(
        "first {mib} MiB {}, {}, first {mib} MiB {}, last {mib} MiB {}; both ends read as zeros; no sanitize was attempted",
        head.as_str(),
        all.map_or("no discard: the device does not take it", |all| all
            .as_str()),
        again.as_str(),
        end.as_str()
    ))
}

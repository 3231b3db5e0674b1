//! What an administrator may do, and what it needs.

use crate::admission::effect::Rules;
use crate::admission::event::Event;
use crate::admission::installing::Install;
use crate::admission::machine::State;
use crate::admission::registry::Registry;
use crate::appraisal::ek::{EkRoots, KnownCa, Provenance};
use crate::catalog::CatalogEntry;
use crate::identity::MachineId;
use crate::install::DiskEntry;
use crate::limits::OPERATOR_TEXT_MAX_BYTES;
use crate::policy::DEFAULT_CLASS;
use crate::reason::Reason;
use crate::record::{Act, Claim};

/// Who asks, taken from a verified client certificate.
#[derive(Debug, Clone)]
pub struct Caller {
    /// Subject CN.
    pub cn: String,
    /// Role.
    pub role: Role,
}

/// Roles of the admin endpoint, ascending.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Reads.
    Viewer,
    /// Approves, cordons, withdraws: all that answers a bad night.
    Operator,
    /// Everything.
    Owner,
}

impl Role {
    /// Name in certificates, API and ledger.
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Viewer => "viewer",
            Role::Operator => "operator",
            Role::Owner => "owner",
        }
    }
}

/// What an administrator may do.
#[derive(Debug, Clone)]
pub enum Command {
    /// Bind a pending claim.
    Approve {
        /// The claim.
        machine: MachineId,
        /// Digest of the report that the owner has seen, hex: the claim must still be that one.
        report_sha256: String,
        /// Class.
        class: Option<String>,
        /// Require this disk.
        disk_serial: Option<String>,
        /// Require this switch port.
        port: Option<String>,
        /// How the report digest was compared: `console`, `exported-report` or `none`.
        compared: String,
    },
    /// Stop admitting for now.
    Cordon(MachineId),
    /// Undo of cordon.
    Uncordon(MachineId),
    /// The owner states that the machine is installed: boot its local disk.
    MarkInstalled(MachineId),
    /// End access.
    Withdraw(MachineId, String),
    /// Leave the fleet.
    Retire(MachineId),
    /// Authorise, repeat or end an installation.
    Install(MachineId, Install),
    /// Raise the oldest acceptable version of an image.
    ImageFloor(String, u64),
    /// Refuse an image, by SHA-256.
    ImageWithdraw(String),
    /// Take an imported CA certificate out, by SHA-256; why.
    EkCaRemove(String, String),
}

/// CA certificates to be taken for EK chains.
#[derive(Debug, Clone)]
pub struct EkCaImport {
    /// Each one's DER.
    pub certificates: Vec<Vec<u8>>,
    /// Where the owner has them from, in the owner's words.
    pub source: String,
}

impl Command {
    fn needs(&self) -> Role {
        match self {
            Command::Approve { .. }
            | Command::Cordon(_)
            | Command::Uncordon(_)
            | Command::MarkInstalled(_)
            | Command::Withdraw(..) => Role::Operator,
            Command::Retire(_)
            | Command::Install(..)
            | Command::ImageFloor(..)
            | Command::ImageWithdraw(_)
            | Command::EkCaRemove(..) => Role::Owner,
        }
    }
}

/// Checks a command against role, machine and state; the act may then be recorded.
///
/// # Errors
/// `admin.role`, `machine.unknown`, `machine.state`, `machine.class`, `claim.changed`, `malformed.command`,
/// `image.unknown`, `image.floor`, `ek_ca.unknown`.
pub fn to_act(
    command: Command,
    caller: &Caller,
    registry: &Registry,
    disks: &[DiskEntry],
    rules: &Rules,
) -> Result<Act, Reason> {
    demand(caller, command.needs())?;
    match command {
        Command::Approve {
            machine,
            report_sha256,
            class,
            disk_serial,
            port,
            compared,
        } => {
            let claim = seen_claim(registry, &machine, &report_sha256)?;
            if let Some(class) = &class {
                text("class", class)?;
                rules.policy.know_class(
                    class,
                    "correct the name, leave --class out for the general rules, or write the class into the policy",
                )?;
            }
            approve(registry, machine, claim, class, disk_serial, port, compared)
        }
        Command::Cordon(machine) => {
            fits(registry, &machine, &Event::Cordoned).map(|()| Act::Cordon { machine })
        }
        Command::Uncordon(machine) => {
            fits(registry, &machine, &Event::Uncordoned).map(|()| Act::Uncordon { machine })
        }
        Command::MarkInstalled(machine) => {
            fits(registry, &machine, &Event::Installed).map(|()| Act::MarkInstalled { machine })
        }
        Command::Withdraw(machine, why) => {
            text("why", &why)?;
            fits(registry, &machine, &Event::Withdrawn { why: why.clone() })
                .map(|()| Act::Withdraw { machine, why })
        }
        Command::Retire(machine) => {
            fits(registry, &machine, &Event::Retired).map(|()| Act::Retire { machine })
        }
        Command::Install(..) => unreachable!("Admission::command takes installations itself"),
        Command::ImageFloor(name, floor) => image_floor(&rules.catalog, disks, name, floor),
        Command::ImageWithdraw(sha256) => {
            let boots = rules.catalog.iter().map(|e| &e.artefact.sha256);
            let known = boots.chain(disks.iter().map(|e| &e.image.sha256));
            if known.into_iter().any(|digest| *digest == sha256) {
                Ok(Act::ImageWithdraw { sha256 })
            } else {
                Err(unknown_image("an image of the catalogue", &sha256))
            }
        }
        Command::EkCaRemove(sha256, why) => {
            text("why", &why)?;
            ek_ca_remove(&rules.ek_roots, sha256.to_ascii_lowercase(), why)
        }
    }
}

/// Whether the caller's role suffices.
pub(crate) fn demand(caller: &Caller, needs: Role) -> Result<(), Reason> {
    if caller.role >= needs {
        return Ok(());
    }
    Err(Reason::new(
        "admin.role",
        format!("role {}", needs.as_str()),
        format!("role {} of {}", caller.role.as_str(), caller.cn),
        "docs/OPERATIONS.md, roles",
        "ask somebody with that role",
    ))
}

fn ek_ca_remove(roots: &EkRoots, sha256: String, why: String) -> Result<Act, Reason> {
    let of_this = roots.list().map(|(known, _)| known);
    let of_this: Vec<&KnownCa> = of_this
        .filter(|known| hex::encode(known.id) == sha256)
        .collect();
    let imported = |known: &&&KnownCa| matches!(known.from, Provenance::Imported { .. });
    if let Some(known) = of_this.iter().find(imported) {
        let subject = known.cert.subject_text();
        return Ok(Act::EkCaRemove {
            sha256,
            subject,
            why,
        });
    }
    let (found, next) = match of_this.first() {
        Some(known) => (
            known.from.to_string(),
            "take the file out of inventory.ek_roots_dir and restart",
        ),
        None => (
            crate::appraisal::shown(&sha256),
            "vestibule ek-ca list shows all",
        ),
    };
    Err(Reason::new(
        "ek_ca.unknown",
        "SHA-256 of an imported CA certificate",
        found,
        "docs/OPERATIONS.md, TPM vendors",
        next,
    ))
}

/// The claim, if it is the one that the owner has seen: between looking and approving its name may
/// have gone to other keys, or its facts may have changed.
fn seen_claim<'r>(
    registry: &'r Registry,
    machine: &MachineId,
    report_sha256: &str,
) -> Result<&'r Claim, Reason> {
    fits(registry, machine, &Event::Approved)?;
    let claim = registry.get(machine).and_then(|m| m.claim.as_ref());
    let claim = claim.ok_or_else(|| unknown_machine(machine))?;
    if claim.report_sha256.eq_ignore_ascii_case(report_sha256) {
        return Ok(claim);
    }
    Err(Reason::new(
        "claim.changed",
        format!("report {} of claim {machine}", claim.report_sha256),
        format!("report {}", crate::appraisal::shown(report_sha256)),
        "docs/PROTOCOL.md section 7",
        "look at the claim again and compare the digest with the machine's own console",
    ))
}

fn approve(
    registry: &Registry,
    machine: MachineId,
    claim: &Claim,
    class: Option<String>,
    disk_serial: Option<String>,
    port: Option<String>,
    compared: String,
) -> Result<Act, Reason> {
    for (key, value) in [("disk_serial", &disk_serial), ("port", &port)] {
        if let Some(value) = value {
            text(key, value)?;
        }
    }
    if !["console", "exported-report", "none"].contains(&compared.as_str()) {
        return Err(Reason::new(
            "malformed.command",
            "compared: console, exported-report or none",
            compared,
            "docs/PROTOCOL.md section 7",
            "say how the report digest was compared with the machine's own screen",
        ));
    }
    for ek in &claim.ek_names {
        let owner = crate::appraisal::EkDirectory::owner(registry.directory().as_ref(), ek)
            .map(|binding| binding.machine.clone());
        if let Some(owner) = owner {
            return Err(Reason::new(
                "ek.ambiguous",
                "keys bound to no other machine",
                format!("EK {ek} of claim {machine} is bound to {owner}"),
                "docs/PROTOCOL.md section 3, row 3",
                "a key names one machine: withdraw the other binding first",
            ));
        }
    }
    Ok(Act::Approve {
        machine,
        ek_names: claim.ek_names.clone(),
        serial: claim.serial.clone(),
        disk_serial,
        port,
        class: class.unwrap_or_else(|| DEFAULT_CLASS.to_owned()),
        compared,
    })
}

fn image_floor(
    catalog: &[CatalogEntry],
    disks: &[DiskEntry],
    name: String,
    floor: u64,
) -> Result<Act, Reason> {
    let boots = catalog.iter().map(|e| (&e.artefact.name, e.floor));
    let mut all = boots.chain(disks.iter().map(|e| (&e.image.name, e.floor)));
    let Some((_, before)) = all.find(|(of, _)| **of == name) else {
        return Err(unknown_image("an image name of the catalogue", &name));
    };
    if floor < before {
        return Err(Reason::new(
            "image.floor",
            format!("a floor of at least {before}"),
            floor.to_string(),
            "docs/PROTOCOL.md section 4: a floor never falls",
            "add and approve a newer image instead",
        ));
    }
    Ok(Act::ImageFloor { name, floor })
}

pub(super) fn fits(registry: &Registry, id: &MachineId, event: &Event) -> Result<(), Reason> {
    let Some(machine) = registry.get(id) else {
        return Err(unknown_machine(id));
    };
    match machine.state.next(event) {
        Ok(_) => Ok(()),
        Err(_) => Err(Reason::new(
            "machine.state",
            format!("a state that allows {}", event.name()),
            format!("machine {id} is {}", State::name(&machine.state)),
            "docs/PROTOCOL.md section 9",
            "vestibule machine show tells its state and what led there",
        )),
    }
}

pub(super) fn text(key: &str, value: &str) -> Result<(), Reason> {
    if !value.is_empty()
        && value.len() <= OPERATOR_TEXT_MAX_BYTES
        && !value.chars().any(char::is_control)
    {
        return Ok(());
    }
    Err(Reason::new(
        "malformed.command",
        format!("{key}: 1 to {OPERATOR_TEXT_MAX_BYTES} bytes without control characters"),
        format!("{} bytes", value.len()),
        "gateway/core/src/limits.rs",
        "shorten it",
    ))
}

pub(crate) fn unknown_machine(id: &MachineId) -> Reason {
    Reason::new(
        "machine.unknown",
        "a machine or claim of this appliance",
        id.to_string(),
        "the ledger",
        "vestibule machine list shows all names",
    )
}

fn unknown_image(expected: &str, found: &str) -> Reason {
    Reason::new(
        "image.unknown",
        expected,
        found.to_owned(),
        "the catalogue",
        "vestibule image list shows all images",
    )
}

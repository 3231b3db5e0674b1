//! Which machine a node that runs Talos is, by what it says and where it is. This is the lifecycle gate:
//! the machine is known, in service, and at its own lease and port. It is no attestation: whoever takes
//! the machine's addresses on its segment passes it (docs/THREAT-MODEL.md).

use std::net::IpAddr;

use crate::admission::machine::State;
use crate::admission::registry::{Machine, Registry};
use crate::appraisal::{RelayWord, shown};
use crate::identity::MacAddr;
use crate::reason::Reason;

/// Where a request came from.
#[derive(Debug, Clone)]
pub struct Caller {
    /// Its address.
    pub peer: IpAddr,
    /// Hardware address of the lease behind it.
    pub mac: Option<MacAddr>,
    /// Option 82 of that lease.
    pub relay: Option<RelayWord>,
}

/// A system UUID in its usual form, lower case; none for what boards show that were given none
/// (all zero, all one: SMBIOS 3.7 section 7.2.1).
pub fn uuid(text: &str) -> Option<String> {
    let text = text.to_ascii_lowercase();
    let form = text.len() == 36
        && text.char_indices().all(|(at, c)| match at {
            8 | 13 | 18 | 23 => c == '-',
            _ => c.is_ascii_hexdigit(),
        });
    let digits = |digit| text.chars().all(|c| c == digit || c == '-');
    (form && !digits('0') && !digits('f')).then_some(text)
}

/// The one machine that was admitted with this UUID and has not left; a machine that left only when no
/// other has it. Boards that share a UUID are common: two are ambiguous, and neither is served.
///
/// # Errors
/// `node.uuid`, `node.unknown`, `node.ambiguous`.
pub fn known<'r>(registry: &'r Registry, node_uuid: &str) -> Result<&'r Machine, Reason> {
    let Some(wanted) = uuid(node_uuid) else {
        return Err(Reason::new(
            "node.uuid",
            "a system UUID, neither all zero nor all one",
            shown(node_uuid),
            "SMBIOS 3.7 section 7.2.1",
            "set the board's UUID in its firmware, then attest again",
        ));
    };
    let mut all = registry.iter().filter(|machine| {
        machine.admitted && machine.node_uuid.as_deref() == Some(wanted.as_str())
    });
    let mut left = None;
    let mut found: Option<&Machine> = None;
    for machine in all.by_ref() {
        match found {
            _ if machine.state.has_left() => left = Some(machine),
            None => found = Some(machine),
            Some(other) => {
                return Err(Reason::new(
                    "node.ambiguous",
                    format!("one machine with UUID {wanted}"),
                    format!("{} and {}", other.id, machine.id),
                    "docs/OPERATIONS.md, Talos",
                    "give one of the boards a UUID of its own and attest it again",
                ));
            }
        }
    }
    found.or(left).ok_or_else(|| {
        Reason::new(
            "node.unknown",
            "the UUID of a machine that was admitted",
            wanted,
            "docs/OPERATIONS.md, Talos",
            "the machine attests first; its UUID is bound by that",
        )
    })
}

/// Whether the machine is in service.
///
/// # Errors
/// `machine.state`.
pub fn in_service(machine: &Machine) -> Result<(), Reason> {
    if machine.state.may_attest() {
        return Ok(());
    }
    Err(Reason::new(
        "machine.state",
        "a machine in service",
        format!("machine {} is {}", machine.id, State::name(&machine.state)),
        "docs/PROTOCOL.md section 9",
        "uncordon it; a withdrawn machine stays out",
    ))
}

/// Whether the caller is where the machine belongs: at the lease of one of its addresses, and at its
/// declared switch port as far as option 82 names one.
///
/// # Errors
/// `node.address`, `node.port`.
pub fn at_home(registry: &Registry, machine: &Machine, caller: &Caller) -> Result<(), Reason> {
    let owner = caller.mac.and_then(|mac| registry.by_mac(mac));
    if owner.is_none_or(|owner| owner.id != machine.id) {
        let found = match (caller.mac, owner) {
            (None, _) => format!("{}, which nobody leased", caller.peer),
            (Some(mac), None) => format!("{} of {mac}, no machine's", caller.peer),
            (Some(mac), Some(owner)) => format!("{} of {mac}, machine {}", caller.peer, owner.id),
        };
        return Err(Reason::new(
            "node.address",
            format!("the lease of machine {}", machine.id),
            found,
            "docs/OPERATIONS.md, Talos",
            "the node uses the address that this gateway leased to it",
        ));
    }
    let declared = machine.binding.as_ref().and_then(|b| b.port.as_deref());
    if let (Some(declared), Some(relay)) = (declared, &caller.relay)
        && relay.contradicts(declared)
    {
        return Err(Reason::new(
            "node.port",
            format!("switch port {}", shown(declared)),
            "option 82 of its lease names another",
            "docs/OPERATIONS.md, Talos",
            "check the cabling, then the declared port",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_name_nobody() {
        let good = "4C4C4544-0042-3510-8052-B7C04F564433";
        assert_eq!(uuid(good), Some(good.to_ascii_lowercase()));
        for bad in [
            "",
            "00000000-0000-0000-0000-000000000000",
            "FFFFFFFF-ffff-FFFF-FFFF-FFFFFFFFFFFF",
            "4c4c454400423510-8052-b7c04f564433--",
            "4c4c4544-0042-3510-8052-b7c04f56443",
            "4c4c4544-0042-3510-8052-b7c04f56443g",
            "é4c4544-0042-3510-8052-b7c04f564433",
        ] {
            assert_eq!(uuid(bad), None, "{bad}");
        }
    }
}

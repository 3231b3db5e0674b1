//! OAuth 2.0 Device Authorization Grant (RFC 8628) for the machine config of a Talos node.
//!
//! Talos takes its config from a URL that it prints on its console, and shows a bearer that it got by this
//! flow. The bearer is as good as the approval behind it. Here only one thing approves: a 256-bit code
//! that was made for one machine and that it sends in the body of its request (META key 0x0b,
//! `extra_variable=code`), from the machine's own lease and port, within the code's window. There is
//! no page on which a person could approve by mistake.
//!
//! A code is used up when the config was handed out. Shown again after that, or from another place
//! at any time, it was copied: the machine is withdrawn. Until then the node may begin anew, since
//! answers get lost. Codes, device codes and bearers are kept as digests, compared in constant time, and
//! end with the process: the machine then attests again.

use std::net::IpAddr;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use super::node::{self, Caller};
use crate::admission::registry::{Machine, Registry};
use crate::identity::{MacAddr, MachineId, UnixMillis};
use crate::reason::Reason;
use crate::record::{TalosEvent, TalosRecord};

/// `grant_type` of RFC 8628 section 3.4.
pub const GRANT_TYPE: &str = "urn:ietf:params:oauth:grant-type:device_code";
/// Life of a device code: Talos begins anew when it has ended.
pub const FLOW_SECS: u64 = 600;
/// Seconds between two polls (RFC 8628 section 3.2), at first.
pub const INTERVAL_SECS: u64 = 5;
/// Life of a bearer: Talos fetches at once and tries for three minutes.
pub const BEARER_SECS: u64 = 300;
/// Longest window of a code.
pub const WINDOW_MAX_MS: u64 = 24 * 3_600_000;
/// Flows at once, and of one address: the oldest makes room.
const FLOWS_MAX: usize = 1_024;
const FLOWS_PEER_MAX: usize = 4;
/// Letters of a user code (RFC 8628 section 6.1): no vowels, nothing that looks like another.
const USER_CODE: &[u8] = b"BCDFGHJKLMNPQRSTVWXZ";

/// What the owner decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// `talos.config.oauth.client_id`.
    pub client_id: String,
}

/// Body of `POST /device/code`.
#[derive(Debug, Default)]
pub struct DeviceRequest {
    /// Client id.
    pub client_id: String,
    /// The one-time code.
    pub code: Zeroizing<String>,
    /// UUID, if sent.
    pub uuid: Option<String>,
    /// Hardware address, if sent.
    pub mac: Option<String>,
}

/// Answer to it (RFC 8628 section 3.2).
#[derive(Debug)]
pub struct DeviceAnswer {
    /// Secret of the flow.
    pub device_code: Zeroizing<String>,
    /// Shown on the console; approves nothing.
    pub user_code: String,
}

/// Body of `POST /token`.
#[derive(Debug, Default)]
pub struct TokenRequest {
    /// Client id.
    pub client_id: String,
    /// Grant type.
    pub grant_type: String,
    /// Device code.
    pub device_code: Zeroizing<String>,
}

/// `error` of RFC 6749 section 5.2 and RFC 8628 section 3.5.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OAuthError {
    /// Another client id.
    InvalidClient,
    /// No such device code.
    InvalidGrant,
    /// Another grant type.
    UnsupportedGrantType,
    /// The machine is held; ask again.
    AuthorizationPending,
    /// Ask more slowly.
    SlowDown,
    /// It will never be approved.
    AccessDenied,
    /// The device code has ended.
    ExpiredToken,
}

impl OAuthError {
    /// Its name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            OAuthError::InvalidClient => "invalid_client",
            OAuthError::InvalidGrant => "invalid_grant",
            OAuthError::UnsupportedGrantType => "unsupported_grant_type",
            OAuthError::AuthorizationPending => "authorization_pending",
            OAuthError::SlowDown => "slow_down",
            OAuthError::AccessDenied => "access_denied",
            OAuthError::ExpiredToken => "expired_token",
        }
    }
}

/// What follows from a request, beside its answer.
#[derive(Debug)]
pub(crate) enum Follows {
    /// For the ledger.
    Record(TalosRecord),
    /// For log and summaries.
    Refused(Reason),
    /// A copied code: end the machine's access.
    Withdraw(MachineId, &'static str),
}

struct Code {
    machine: MachineId,
    digest: [u8; 32],
    until: UnixMillis,
    delivered: bool,
}

struct Flow {
    digest: [u8; 32],
    peer: IpAddr,
    /// Approved for it as soon as it is in service; none is denied.
    machine: Option<MachineId>,
    until: UnixMillis,
    polled: UnixMillis,
    interval_ms: u64,
}

struct Bearer {
    digest: [u8; 32],
    peer: IpAddr,
    machine: MachineId,
    until: UnixMillis,
}

/// The authorization server's memory.
pub(crate) struct Device {
    settings: Settings,
    codes: Vec<Code>,
    flows: Vec<Flow>,
    bearers: Vec<Bearer>,
}

impl Device {
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            codes: Vec::new(),
            flows: Vec::new(),
            bearers: Vec::new(),
        }
    }

    /// Makes the one code of a machine; an older one ends. It has to reach the machine sealed.
    ///
    /// # Errors
    /// `machine.state`, `talos.not_admitted`.
    pub fn issue_code(
        &mut self,
        now: UnixMillis,
        machine: &Machine,
        window_ms: u64,
        random: &[u8; 32],
    ) -> Result<(Zeroizing<String>, TalosRecord), Reason> {
        node::in_service(machine)?;
        if !machine.admitted {
            return Err(Reason::new(
                "talos.not_admitted",
                "a machine that was admitted",
                format!("machine {} never was", machine.id),
                "docs/PROTOCOL.md section 6",
                "let it attest first",
            ));
        }
        let code = Zeroizing::new(URL_SAFE_NO_PAD.encode(random));
        let until = UnixMillis(now.0.saturating_add(window_ms.min(WINDOW_MAX_MS)));
        self.forget(&machine.id);
        self.codes.push(Code {
            machine: machine.id.clone(),
            digest: digest(&code),
            until,
            delivered: false,
        });
        let record = TalosRecord {
            machine: machine.id.clone(),
            peer: None,
            event: TalosEvent::CodeIssued { until },
        };
        Ok((code, record))
    }

    /// `POST /device/code`. The answer tells nothing of the code: that is for `/token` to say.
    pub fn device_code(
        &mut self,
        now: UnixMillis,
        registry: &Registry,
        caller: &Caller,
        request: &DeviceRequest,
        random: &[u8; 32],
        follows: &mut Vec<Follows>,
    ) -> Result<DeviceAnswer, OAuthError> {
        self.end_old(now);
        if request.client_id != self.settings.client_id {
            follows.push(Follows::Refused(wrong_client(&self.settings.client_id)));
            return Err(OAuthError::InvalidClient);
        }
        let machine = self.approved_for(registry, caller, request, follows);
        if let Some(machine) = &machine {
            self.flows
                .retain(|flow| flow.machine.as_ref() != Some(machine));
            self.bearers.retain(|bearer| bearer.machine != *machine);
        }
        self.make_room(caller.peer);
        let device_code = Zeroizing::new(URL_SAFE_NO_PAD.encode(random));
        self.flows.push(Flow {
            digest: digest(&device_code),
            peer: caller.peer,
            machine,
            until: after_secs(now, FLOW_SECS),
            polled: now,
            interval_ms: INTERVAL_SECS * 1_000,
        });
        Ok(DeviceAnswer {
            user_code: user_code(&device_code),
            device_code,
        })
    }

    /// The machine whose code was shown from its own place.
    fn approved_for(
        &mut self,
        registry: &Registry,
        caller: &Caller,
        request: &DeviceRequest,
        follows: &mut Vec<Follows>,
    ) -> Option<MachineId> {
        let shown = digest(&request.code);
        // Every code is compared, so that the time tells nothing of which one.
        let mut found = None;
        for code in &self.codes {
            if same(&code.digest, &shown) {
                found = Some((code.machine.clone(), code.delivered));
            }
        }
        let Some((id, delivered)) = found else {
            let found = if request.code.is_empty() {
                "none"
            } else {
                "another, or one that has ended"
            };
            follows.push(Follows::Refused(wrong_code(found)));
            return None;
        };
        let machine = registry.get(&id)?;
        let elsewhere = caller.mac.and_then(|mac| registry.by_mac(mac));
        let misuse = match of_machine(registry, machine, caller, request) {
            Err(reason) => {
                follows.push(Follows::Refused(reason));
                // Only another machine's lease proves a copy: a lease can be given back in somebody
                // else's name, and a node may have an address or a UUID that its evidence had not.
                elsewhere.filter(|other| other.id != machine.id)?;
                Some("shown from another machine's place")
            }
            Ok(()) if delivered => Some("shown after the config was delivered"),
            Ok(()) => None,
        };
        let Some(how) = misuse else {
            return Some(id);
        };
        follows.push(Follows::Record(TalosRecord {
            machine: id.clone(),
            peer: Some(caller.peer),
            event: TalosEvent::CodeMisused {
                how: how.to_owned(),
            },
        }));
        follows.push(Follows::Refused(misused(&id, how)));
        follows.push(Follows::Withdraw(id.clone(), how));
        self.forget(&id);
        None
    }

    /// `POST /token`.
    pub fn token(
        &mut self,
        now: UnixMillis,
        registry: &Registry,
        caller: &Caller,
        request: &TokenRequest,
        random: &[u8; 32],
        follows: &mut Vec<Follows>,
    ) -> Result<Zeroizing<String>, OAuthError> {
        if request.client_id != self.settings.client_id {
            return Err(OAuthError::InvalidClient);
        }
        if request.grant_type != GRANT_TYPE {
            return Err(OAuthError::UnsupportedGrantType);
        }
        let shown = digest(&request.device_code);
        let at = position(self.flows.iter().map(|flow| &flow.digest), &shown);
        let Some(flow) = at.and_then(|at| self.flows.get_mut(at)) else {
            return Err(OAuthError::InvalidGrant);
        };
        if flow.peer != caller.peer {
            follows.push(Follows::Refused(elsewhere(flow.peer, caller.peer)));
            return Err(OAuthError::AccessDenied);
        }
        if now >= flow.until {
            return Err(OAuthError::ExpiredToken);
        }
        let waited = now.0.saturating_sub(flow.polled.0);
        flow.polled = now;
        // A client's clock and ours need not agree to the millisecond.
        if waited + 250 < flow.interval_ms {
            flow.interval_ms += INTERVAL_SECS * 1_000;
            return Err(OAuthError::SlowDown);
        }
        let Some(id) = flow.machine.clone() else {
            return Err(OAuthError::AccessDenied);
        };
        let fresh = self
            .codes
            .iter()
            .any(|code| code.machine == id && now < code.until && !code.delivered);
        let machine = registry
            .get(&id)
            .filter(|_| fresh)
            .ok_or(OAuthError::AccessDenied)?;
        if let Err(reason) = node::in_service(machine) {
            follows.push(Follows::Refused(reason));
            return Err(match machine.state.has_left() {
                true => OAuthError::AccessDenied,
                false => OAuthError::AuthorizationPending,
            });
        }
        if let Err(reason) = node::at_home(registry, machine, caller) {
            follows.push(Follows::Refused(reason));
            return Err(OAuthError::AccessDenied);
        }
        // A device code is for one token.
        self.flows.retain(|flow| !same(&flow.digest, &shown));
        let token = Zeroizing::new(URL_SAFE_NO_PAD.encode(random));
        self.bearers.push(Bearer {
            digest: digest(&token),
            peer: caller.peer,
            machine: id.clone(),
            until: after_secs(now, BEARER_SECS),
        });
        follows.push(Follows::Record(TalosRecord {
            machine: id,
            peer: Some(caller.peer),
            event: TalosEvent::ConfigApproved,
        }));
        Ok(token)
    }

    /// `GET` of the config with a bearer: the machine it is for. The same bearer may ask again while it
    /// lives: a transfer may break off. The code is used up once the config is `made`: a mistake in the
    /// template costs the machine nothing.
    ///
    /// # Errors
    /// `talos.bearer`, `node.address`, `node.port`, `machine.state`.
    pub fn config(
        &mut self,
        now: UnixMillis,
        registry: &Registry,
        caller: &Caller,
        bearer: &str,
        made: bool,
        follows: &mut Vec<Follows>,
    ) -> Result<MachineId, Reason> {
        self.end_old(now);
        let shown = digest(bearer);
        let at = position(self.bearers.iter().map(|bearer| &bearer.digest), &shown);
        let found = at.and_then(|at| self.bearers.get(at));
        let found = found.filter(|bearer| bearer.peer == caller.peer);
        let Some((bearer, machine)) = found.and_then(|b| Some((b, registry.get(&b.machine)?)))
        else {
            return Err(Reason::new(
                "talos.bearer",
                "a bearer of this address that has not ended",
                "none, or another",
                "docs/PROTOCOL.md section 6",
                "talos.config.oauth.client_id on the kernel command line; the code in META 0x0b",
            ));
        };
        node::at_home(registry, machine, caller)?;
        node::in_service(machine)?;
        let id = bearer.machine.clone();
        if let Some(code) = self.codes.iter_mut().find(|code| code.machine == id)
            && made
            && !code.delivered
        {
            code.delivered = true;
            follows.push(Follows::Record(TalosRecord {
                machine: id.clone(),
                peer: Some(caller.peer),
                event: TalosEvent::ConfigDelivered,
            }));
        }
        Ok(id)
    }

    fn forget(&mut self, machine: &MachineId) {
        self.codes.retain(|code| code.machine != *machine);
        self.flows
            .retain(|flow| flow.machine.as_ref() != Some(machine));
        self.bearers.retain(|bearer| bearer.machine != *machine);
    }

    /// A used code is remembered to the end of its window, so that its second use is seen.
    fn end_old(&mut self, now: UnixMillis) {
        self.codes.retain(|code| now < code.until);
        // Kept for a while after its end: the node is told `expired_token`, not that it never was.
        self.flows
            .retain(|flow| now.0 < flow.until.0 + FLOW_SECS * 1_000);
        self.bearers.retain(|bearer| now < bearer.until);
    }

    fn make_room(&mut self, peer: IpAddr) {
        let of_peer = self.flows.iter().filter(|flow| flow.peer == peer).count();
        if of_peer >= FLOWS_PEER_MAX
            && let Some(at) = self.flows.iter().position(|flow| flow.peer == peer)
        {
            self.flows.remove(at);
        }
        if self.flows.len() >= FLOWS_MAX {
            self.flows.remove(0);
        }
    }
}

/// Whether the request comes from the machine's place and says nothing else of itself.
fn of_machine(
    registry: &Registry,
    machine: &Machine,
    caller: &Caller,
    request: &DeviceRequest,
) -> Result<(), Reason> {
    node::at_home(registry, machine, caller)?;
    let uuid = request.uuid.as_deref().filter(|uuid| !uuid.is_empty());
    let mac = request.mac.as_deref().filter(|mac| !mac.is_empty());
    let own_uuid = uuid.is_none_or(|uuid| node::uuid(uuid) == machine.node_uuid);
    let own_mac = mac.is_none_or(|mac| {
        mac.parse::<MacAddr>()
            .is_ok_and(|mac| machine.macs.contains(&mac))
    });
    if own_uuid && own_mac {
        return Ok(());
    }
    Err(Reason::new(
        "talos.variables",
        format!("uuid and mac of machine {}", machine.id),
        if own_uuid {
            "another mac"
        } else {
            "another uuid"
        },
        "docs/PROTOCOL.md section 6",
        "the code was made for another machine",
    ))
}

fn position<'d>(digests: impl Iterator<Item = &'d [u8; 32]>, shown: &[u8; 32]) -> Option<usize> {
    let mut found = None;
    for (at, digest) in digests.enumerate() {
        if same(digest, shown) {
            found = Some(at);
        }
    }
    found
}

fn digest(secret: &str) -> [u8; 32] {
    Sha256::digest(secret.as_bytes()).into()
}

fn same(a: &[u8; 32], b: &[u8; 32]) -> bool {
    verify_slices_are_equal(a, b).is_ok()
}

fn after_secs(now: UnixMillis, secs: u64) -> UnixMillis {
    UnixMillis(now.0.saturating_add(secs * 1_000))
}

/// Eight letters that follow from the device code and do not lead back to it.
fn user_code(device_code: &str) -> String {
    let bytes = Sha256::new()
        .chain_update(b"vestibule/user-code/v1\0")
        .chain_update(device_code.as_bytes())
        .finalize();
    let mut text = String::with_capacity(9);
    for (at, byte) in bytes.iter().take(8).enumerate() {
        if at == 4 {
            text.push('-');
        }
        let letter = USER_CODE.get(usize::from(*byte) % USER_CODE.len());
        text.push(char::from(letter.copied().unwrap_or(b'B')));
    }
    text
}

fn wrong_client(expected: &str) -> Reason {
    Reason::new(
        "talos.client_id",
        format!("client_id {expected}"),
        "another",
        "RFC 8628 section 3.1",
        "talos.config.oauth.client_id and [talos] client_id are to be the same",
    )
}

fn wrong_code(found: &str) -> Reason {
    Reason::new(
        "talos.code",
        "a one-time code that was made for this machine and has not ended",
        found,
        "docs/PROTOCOL.md section 6",
        "attest the machine again, or make another code and write it to META key 0x0b",
    )
}

fn misused(machine: &MachineId, how: &'static str) -> Reason {
    Reason::new(
        "talos.code_misused",
        format!("the code of machine {machine} once, from its own place"),
        how,
        "docs/PROTOCOL.md section 6",
        "somebody has a copy of it: the machine was withdrawn; find out how, then enrol it anew",
    )
}

fn elsewhere(expected: IpAddr, found: IpAddr) -> Reason {
    Reason::new(
        "talos.device_code",
        format!("its device code from {expected}"),
        found.to_string(),
        "RFC 8628 section 5.2",
        "somebody has a copy of a device code; the node begins anew by itself",
    )
}

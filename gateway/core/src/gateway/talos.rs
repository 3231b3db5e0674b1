//! What Talos nodes ask: one method for each request; records first, as everywhere.

use std::net::IpAddr;

use zeroize::Zeroizing;

use super::Gateway;
use crate::admission::command::{self, Role};
use crate::admission::event::Event;
use crate::identity::{MachineId, UnixMillis};
use crate::reason::Reason;
use crate::record::{Act, OperatorAct, Record};
use crate::talos::device::{DeviceAnswer, DeviceRequest, Follows, OAuthError, TokenRequest};
use crate::talos::kms;
use crate::talos::node::Caller;

/// Facts of a machine for its config, by variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigFacts {
    /// Name.
    pub machine: MachineId,
    /// SMBIOS serial of its binding.
    pub serial: Option<String>,
    /// Class.
    pub class: String,
    /// Address that it asks from.
    pub address: IpAddr,
    /// Hardware address of that lease.
    pub mac: Option<crate::identity::MacAddr>,
}

impl Gateway {
    /// Seals or unseals a disk key.
    ///
    /// # Errors
    /// [`kms::Refused`].
    pub fn disk_key(&mut self, now: UnixMillis, call: &kms::Call) -> kms::Answer {
        let caller = self.caller(call.peer);
        let Some(service) = &mut self.talos.kms else {
            return Err(kms::Refused {
                code: kms::Code::PermissionDenied,
                reason: Box::new(not_served("kms")),
            });
        };
        let (answer, record) = service.handle(now, self.admission.registry(), &caller, call);
        if let Some(record) = record {
            self.talos_record(now, Record::Talos(record));
        }
        if let Err(refused) = &answer {
            let reasons = vec![refused.reason.as_ref().clone()];
            self.admission
                .refuse_unproven(now, "kms", &call.correlation, reasons, &mut self.out);
        }
        answer
    }

    /// Makes a one-time code for the device flow; the caller delivers it.
    ///
    /// # Errors
    /// `machine.unknown`, `machine.state`, `talos.not_admitted`, `talos.not_served`, `admin.role`.
    pub fn talos_code(
        &mut self,
        now: UnixMillis,
        by: &command::Caller,
        machine: &MachineId,
        window_ms: u64,
        random: &[u8; 32],
    ) -> Result<Zeroizing<String>, Reason> {
        command::demand(by, Role::Owner)?;
        let Some(device) = &mut self.talos.device else {
            return Err(not_served("device"));
        };
        let Some(machine) = self.admission.registry().get(machine) else {
            return Err(command::unknown_machine(machine));
        };
        let (code, record) = device.issue_code(now, machine, window_ms, random)?;
        self.talos_record(now, Record::Talos(record));
        Ok(code)
    }

    /// `POST /device/code`.
    ///
    /// # Errors
    /// [`OAuthError`].
    pub fn device_code(
        &mut self,
        now: UnixMillis,
        peer: IpAddr,
        request: &DeviceRequest,
        random: &[u8; 32],
        correlation: &str,
    ) -> Result<DeviceAnswer, OAuthError> {
        let (caller, mut follows) = (self.caller(peer), Vec::new());
        let Some(device) = &mut self.talos.device else {
            return Err(OAuthError::InvalidClient);
        };
        let registry = self.admission.registry();
        let answer = device.device_code(now, registry, &caller, request, random, &mut follows);
        self.follow(now, follows, correlation);
        answer
    }

    /// `POST /token`.
    ///
    /// # Errors
    /// [`OAuthError`].
    pub fn device_token(
        &mut self,
        now: UnixMillis,
        peer: IpAddr,
        request: &TokenRequest,
        random: &[u8; 32],
        correlation: &str,
    ) -> Result<Zeroizing<String>, OAuthError> {
        let (caller, mut follows) = (self.caller(peer), Vec::new());
        let Some(device) = &mut self.talos.device else {
            return Err(OAuthError::InvalidClient);
        };
        let registry = self.admission.registry();
        let answer = device.token(now, registry, &caller, request, random, &mut follows);
        self.follow(now, follows, correlation);
        answer
    }

    /// `GET /talos/config`: for whom, if the bearer is good; asked again once the config is `made`.
    ///
    /// # Errors
    /// Why not.
    pub fn talos_config(
        &mut self,
        now: UnixMillis,
        peer: IpAddr,
        bearer: &str,
        made: bool,
        correlation: &str,
    ) -> Result<ConfigFacts, Reason> {
        let (caller, mut follows) = (self.caller(peer), Vec::new());
        let Some(device) = &mut self.talos.device else {
            return Err(not_served("device"));
        };
        let registry = self.admission.registry();
        let answer = device.config(now, registry, &caller, bearer, made, &mut follows);
        if let Err(reason) = &answer {
            follows.push(Follows::Refused(reason.clone()));
        }
        self.follow(now, follows, correlation);
        let id = answer?;
        let machine = self.admission.registry().get(&id);
        let binding = machine.and_then(|machine| machine.binding.as_ref());
        Ok(ConfigFacts {
            serial: binding.and_then(|binding| binding.serial.clone()),
            class: binding.map_or_else(|| "default".to_owned(), |binding| binding.class.clone()),
            machine: id,
            address: peer,
            mac: caller.mac,
        })
    }

    fn caller(&self, peer: IpAddr) -> Caller {
        let mac = self.mac_of(peer);
        let relay = match (peer, mac) {
            (IpAddr::V4(addr), Some(mac)) => self.relay_word(addr, mac),
            (IpAddr::V6(_), _) | (_, None) => None,
        };
        Caller { peer, mac, relay }
    }

    fn talos_record(&mut self, now: UnixMillis, record: Record) {
        self.talos.apply(&record);
        self.admission.write(now, record, &mut self.out);
    }

    fn follow(&mut self, now: UnixMillis, follows: Vec<Follows>, correlation: &str) {
        for follows in follows {
            match follows {
                Follows::Record(record) => self.talos_record(now, Record::Talos(record)),
                Follows::Refused(reason) => self.admission.refuse_unproven(
                    now,
                    "talos",
                    correlation,
                    vec![reason],
                    &mut self.out,
                ),
                Follows::Withdraw(machine, how) => self.withdraw(now, machine, how),
            }
        }
        self.settle_gate(now);
    }

    fn withdraw(&mut self, now: UnixMillis, machine: MachineId, how: &str) {
        let why = format!("its one-time code was {how}");
        let event = Event::Withdrawn { why: why.clone() };
        let found = self.admission.registry().get(&machine);
        if found.is_none_or(|machine| machine.state.next(&event).is_err()) {
            return;
        }
        let act = OperatorAct {
            by: "gateway".to_owned(),
            role: "gateway".to_owned(),
            act: Act::Withdraw { machine, why },
        };
        self.admission.withdraw(now, act, &mut self.out);
    }
}

fn not_served(what: &str) -> Reason {
    Reason::new(
        "talos.not_served",
        format!("[talos] with {what}"),
        "it is not configured",
        "docs/OPERATIONS.md, Talos",
        "see config.example.toml",
    )
}

//! Everything of one attempt: a node, what is declared, the policy and the catalogue. Tests change one field
//! of it, or one of a message on its way.

use std::collections::BTreeMap;

use attest_wire::tpm::HashAlg;
use attest_wire::v1::{Binding as WireBinding, Evidence, Hello};
use boot::catalog::{Artefact, Kind, Role};
use gateway_core::appraisal::{
    Appraisal, Binding, CatalogEntry, DevIdRules, EkDirectory, EkRoots, EvidenceContext,
    HelloContext, RelayWord, TimeTrust, appraise_evidence, appraise_hello, make_challenge,
};
use gateway_core::identity::{EkName, MacAddr, MachineId};
use gateway_core::policy::{Policy, Preset};
use rand_core::OsRng;

use super::log::{self, Entry, LogBuilder};
use super::{Node, NodeEk, Session};

pub const IPXE: [u8; 32] = [0xa1; 32];
pub const UKI: [u8; 32] = [0xb2; 32];
pub const KERNEL: [u8; 32] = [0xc3; 32];
pub const STUB: [[u8; 32]; 2] = [[0xd4; 32], [0xe5; 32]];
pub const EXPORTER: [u8; 32] = [0x42; 32];
pub const SESSION: [u8; 16] = [0x51; 16];

#[derive(Default)]
pub struct Registry {
    pub owners: BTreeMap<EkName, Binding>,
    pub macs: BTreeMap<String, MachineId>,
}

impl EkDirectory for Registry {
    fn owner(&self, ek: &EkName) -> Option<&Binding> {
        self.owners.get(ek)
    }

    fn mac_owner(&self, mac: MacAddr) -> Option<MachineId> {
        self.macs.get(&mac.to_string()).cloned()
    }
}

/// Everything of one attempt; tests change one field of it.
pub struct World {
    pub node: Node,
    pub registry: Registry,
    pub policy: Policy,
    pub roots: EkRoots,
    pub time: TimeTrust,
    pub devid: DevIdRules,
    pub catalog: Vec<CatalogEntry>,
    pub relay: Option<RelayWord>,
}

pub fn pcr11() -> String {
    let value = STUB.iter().fold(vec![0u8; 32], |value, digest| {
        HashAlg::Sha256.digest(&[&value, digest])
    });
    hex::encode(value)
}

pub fn entry(kind: Kind, name: &str, version: u64, pe: [u8; 32]) -> CatalogEntry {
    let uki = kind == Kind::Uki;
    CatalogEntry {
        artefact: Artefact {
            name: name.into(),
            kind,
            role: Role::Provision,
            arch: "x86_64".into(),
            version,
            file: format!("{name}.efi"),
            sha256: hex::encode([version as u8; 32]),
            size_bytes: 1,
            pe_sha256: hex::encode(pe),
            linux_pe_sha256: uki.then(|| hex::encode(KERNEL)),
            pcr11: uki.then(pcr11),
            cmdline: None,
        },
        floor: 1,
        withdrawn: false,
    }
}

/// iPXE measures the UKI a second time; the stub loads the kernel (docs/OPERATIONS.md).
pub fn honest_log() -> Vec<Entry> {
    log::honest(&[IPXE, UKI, UKI, KERNEL], &STUB)
}

impl World {
    /// A bound machine on its good boot.
    pub fn new() -> Self {
        let node = Node::new(LogBuilder::write(&honest_log()));
        let mut world = Self {
            node,
            registry: Registry::default(),
            policy: Policy::preset(Preset::Standard),
            roots: EkRoots::default(),
            time: TimeTrust::None,
            devid: DevIdRules::default(),
            catalog: vec![
                entry(Kind::Ipxe, "ipxe", 1, IPXE),
                entry(Kind::Uki, "attester", 3, UKI),
            ],
            relay: None,
        };
        world.bind("m-1");
        world
    }

    pub fn bind(&mut self, machine: &str) {
        let ek_names: Vec<EkName> = self.node.eks.iter().map(name_of).collect();
        for name in &ek_names {
            let binding = Binding {
                machine: MachineId(machine.into()),
                may_attest: Ok(()),
                serial: Some("LAB-0001".into()),
                disk_serial: Some("DISK-1".into()),
                port: None,
                class: "standard".into(),
                ek_names: ek_names.clone(),
                counters: Some((7, 2)),
                boot_mark: None,
            };
            self.registry.owners.insert(name.clone(), binding);
        }
    }

    pub fn binding(&mut self) -> &mut Binding {
        self.registry.owners.values_mut().next().unwrap()
    }

    pub fn boots(&mut self, entries: &[Entry]) {
        self.node.log = LogBuilder::write(entries);
    }

    pub fn run(&self) -> Appraisal {
        self.run_with(|_| {}, |_, _| {})
    }

    /// One exchange; the closures edit the messages on their way.
    pub fn run_with(
        &self,
        hello: impl FnOnce(&mut Hello),
        evidence: impl FnOnce(&mut Evidence, &WireBinding),
    ) -> Appraisal {
        let mut message = self.node.hello();
        hello(&mut message);
        let body = serde_json::to_vec(&message).unwrap();
        let verified = match appraise_hello(&body, &self.hello_context()) {
            Ok(verified) => verified,
            Err(refusal) => return Appraisal::Refused(refusal),
        };
        let issued = make_challenge(&verified, SESSION, EXPORTER, &mut OsRng).unwrap();
        let session = Session {
            hello_body: &body,
            challenge_body: &issued.body,
            exporter: EXPORTER,
        };
        let mut message = self.node.evidence(&session);
        let binding = WireBinding::new(&body, &issued.body, EXPORTER);
        evidence(&mut message, &binding);
        let body = serde_json::to_vec(&message).unwrap();
        appraise_evidence(verified, issued, &body, &self.evidence_context())
    }

    pub fn hello_context(&self) -> HelloContext<'_> {
        HelloContext {
            policy: &self.policy,
            bindings: &self.registry,
            ek_roots: &self.roots,
            time: self.time,
            devid: self.devid,
        }
    }

    pub fn evidence_context(&self) -> EvidenceContext<'_> {
        EvidenceContext {
            policy: &self.policy,
            bindings: &self.registry,
            catalog: &self.catalog,
            time: self.time,
            relay: self.relay.as_ref(),
        }
    }
}

pub fn name_of(ek: &NodeEk) -> EkName {
    EkName(ek.public.name().to_hex())
}

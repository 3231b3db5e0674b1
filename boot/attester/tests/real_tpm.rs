//! The whole exchange with a real (software) TPM: waiting, then admitted, over a restart of the
//! attester within one boot.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod support;
#[path = "../../../hw/tests/support/mod.rs"]
mod swtpm;

use attester::{AttestError, DevIdAuth, Gateway, Node, Options, Outcome};
use hw::tpm::{DevIdKind, NodeDevice, NodeTpm};
use support::honest::{Decision, Lie, honest};
use support::{Ca, facts, serve_one};
use swtpm::Swtpm;

fn gateway_once(
    infra: &Ca,
    device: &Ca,
    decision: Decision,
) -> (Gateway, std::sync::mpsc::Receiver<usize>) {
    let (sender, receiver) = std::sync::mpsc::channel();
    let script = honest(
        infra.clone(),
        device.clone(),
        decision,
        move |hello, evidence| {
            assert_eq!(hello.eks.len(), 2);
            assert!(hello.eks.iter().all(|ek| ek.cert.is_some()));
            sender.send(evidence.pcr15_extends.len()).unwrap();
        },
    );
    let (addr, _server) = serve_one(infra.attest_leaf(), false, script);
    (
        Gateway {
            addr,
            anchors: vec![infra.der.clone()],
        },
        receiver,
    )
}

#[test]
fn waits_restarts_and_is_admitted_in_one_boot() {
    let Some(swtpm) = Swtpm::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let (infra, device) = (Ca::new("infra"), Ca::new("device"));
    let options = Options {
        devid_kind: DevIdKind::EccP256,
        devid_auth: DevIdAuth::Random,
        extends_file: Some(folder.path().join("pcr15")),
        can: vec![attest_wire::v1::handover::Ability::Payloads],
    };
    let mut attempts = 0;
    // A new process twice: keys are made again, the list of extends goes on.
    for decisions in [
        [Decision::LetWait, Decision::LetWait],
        [Decision::LetWait, Decision::Admit],
    ] {
        let mut tpm = NodeDevice::open(&swtpm.tcti()).unwrap();
        let mut node = Node::prepare(&mut tpm, &options).unwrap();
        for decision in decisions {
            let (gateway, seen) = gateway_once(&infra, &device, decision);
            let outcome = node
                .attest(&mut tpm, &facts(), &gateway, &mut |_, _| {})
                .unwrap();
            attempts += 1;
            assert_eq!(seen.recv().unwrap(), attempts);
            match outcome {
                Outcome::Pending { .. } => assert!(decision == Decision::LetWait),
                Outcome::Admitted { chain, devid, .. } => {
                    assert!(decision == Decision::Admit);
                    assert_eq!(chain.len(), 2);
                    assert_eq!(devid.auth.unwrap().len(), 32);
                }
                Outcome::Refused { code, .. } => panic!("{code}"),
            }
        }
    }
    // Without the list, PCR 15 is somebody else's.
    let mut tpm = NodeDevice::open(&swtpm.tcti()).unwrap();
    let without = Options {
        extends_file: None,
        ..options
    };
    assert!(matches!(
        Node::prepare(&mut tpm, &without),
        Err(AttestError::Extends(_))
    ));
}

#[test]
fn opens_what_the_gateway_sealed_and_refuses_what_others_did() {
    let Some(swtpm) = Swtpm::start() else { return };
    let (infra, device) = (Ca::new("infra"), Ca::new("device"));
    let mut tpm = NodeDevice::open(&swtpm.tcti()).unwrap();
    let mut node = Node::prepare(&mut tpm, &Options::default()).unwrap();
    let mut extends = 0;
    for (lie, told) in [
        (Lie::Nothing, ""),
        (Lie::Signer, "statement of sealed payloads"),
        (Lie::Label, "statement of sealed payloads"),
        (Lie::Machine, "machine: expected node-7, found node-8"),
        (Lie::Receipt, "receipt: expected"),
        (Lie::Pcrs, "policy: expected"),
        (Lie::Ciphertext, "items: expected"),
        (Lie::Nothing, ""),
    ] {
        let (gateway, seen) = gateway_once(&infra, &device, Decision::Deliver(lie));
        let outcome = node.attest(&mut tpm, &facts(), &gateway, &mut |_, _| {});
        // The mark of each session, and the closing constant after each that brought a payload.
        extends += 1;
        assert_eq!(seen.recv().unwrap(), extends, "{lie:?}");
        extends += 1;
        match outcome {
            Ok(Outcome::Admitted { payloads, .. }) => {
                assert_eq!(lie, Lie::Nothing);
                assert_eq!(payloads[0].kind, "user-data");
                assert_eq!(payloads[0].bytes[..], *b"#cloud-config");
            }
            Err(AttestError::Payload(error)) => {
                let text = error.to_string();
                assert!(!told.is_empty() && text.contains(told), "{lie:?}: {text}");
            }
            Ok(_) | Err(_) => panic!("{lie:?}: another outcome"),
        }
    }
}

#[test]
fn rejects_credentials_of_another_tpm() {
    let Some(swtpm) = Swtpm::start() else { return };
    let Some(other) = Swtpm::start() else { return };
    let (infra, device) = (Ca::new("infra"), Ca::new("device"));
    let (gateway, _seen) = gateway_once(&infra, &device, Decision::Admit);
    // The node claims the other TPM's endorsement keys: it cannot activate what they protect.
    struct Liar(NodeDevice, NodeDevice);
    impl NodeTpm for Liar {
        fn properties(&mut self) -> Result<hw::tpm::TpmProperties, hw::tpm::TpmError> {
            self.0.properties()
        }
        fn endorsement_keys(&mut self) -> Result<Vec<hw::tpm::EndorsementKey>, hw::tpm::TpmError> {
            self.1.endorsement_keys()
        }
        fn ek_chain(&mut self) -> Result<Vec<u8>, hw::tpm::TpmError> {
            self.1.ek_chain()
        }
        fn create_ak(&mut self, unique: [u8; 64]) -> Result<Vec<u8>, hw::tpm::TpmError> {
            self.0.create_ak(unique)
        }
        fn create_devid(
            &mut self,
            kind: DevIdKind,
            auth: Option<zeroize::Zeroizing<String>>,
        ) -> Result<hw::tpm::DevId, hw::tpm::TpmError> {
            self.0.create_devid(kind, auth)
        }
        fn activate(
            &mut self,
            _: &[u8],
            blob: &[u8],
            secret: &[u8],
        ) -> Result<zeroize::Zeroizing<Vec<u8>>, hw::tpm::TpmError> {
            let own = self.0.endorsement_keys()?;
            self.0.activate(&own[0].public, blob, secret)
        }
        fn unseal_import(
            &mut self,
            ek: &[u8],
            public: &[u8],
            private: &[u8],
            secret: &[u8],
            pcrs: &[u8],
        ) -> Result<zeroize::Zeroizing<Vec<u8>>, hw::tpm::TpmError> {
            self.0.unseal_import(ek, public, private, secret, pcrs)
        }
        fn certify_devid(&mut self, q: &[u8; 32]) -> Result<hw::tpm::Attested, hw::tpm::TpmError> {
            self.0.certify_devid(q)
        }
        fn sign_devid(&mut self, digest: &[u8; 32]) -> Result<Vec<u8>, hw::tpm::TpmError> {
            self.0.sign_devid(digest)
        }
        fn quote(
            &mut self,
            q: &[u8; 32],
            pcrs: &[u8],
        ) -> Result<hw::tpm::Attested, hw::tpm::TpmError> {
            self.0.quote(q, pcrs)
        }
        fn pcr_read(&mut self, pcrs: &[u8]) -> Result<Vec<[u8; 32]>, hw::tpm::TpmError> {
            self.0.pcr_read(pcrs)
        }
        fn pcr_extend(&mut self, pcr: u8, digest: &[u8; 32]) -> Result<(), hw::tpm::TpmError> {
            self.0.pcr_extend(pcr, digest)
        }
    }
    let mut liar = Liar(
        NodeDevice::open(&swtpm.tcti()).unwrap(),
        NodeDevice::open(&other.tcti()).unwrap(),
    );
    let result = attester::attest(&mut liar, &facts(), &gateway, &Options::default());
    assert!(matches!(result, Err(AttestError::Tpm(_))));
    assert_eq!(
        liar.pcr_read(&[15]).unwrap(),
        [[0; 32]],
        "nothing was bound to the failed session"
    );
}

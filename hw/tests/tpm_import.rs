//! Secrets sealed to an EK at PCR values, against a real swtpm.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test, helpers included

mod support;

use attest_wire::credential::{policy_pcr_sha256, wrap_for_import};
use attest_wire::templates::{Template, ek_template};
use attest_wire::tpm::Public;
use hw::tpm::{DevIdKind, NodeDevice, NodeTpm, TpmError};
use support::Swtpm;

const PCRS: [u8; 4] = [4, 7, 11, 15];
const SECRET: [u8; 32] = [0x5a; 32];

/// Public, private and secret of a blob for this EK at the present values.
fn wrapped(tpm: &mut NodeDevice, ek: &[u8]) -> [Vec<u8>; 3] {
    let values = tpm.pcr_read(&PCRS).unwrap();
    let numbered: Vec<(u8, [u8; 32])> = PCRS.into_iter().zip(values).collect();
    let ek = Public::decode(ek).unwrap();
    let policy = policy_pcr_sha256(&numbered);
    let blob = wrap_for_import(&ek, &policy, &SECRET, &mut rand_core::OsRng).unwrap();
    [blob.public.encode(), blob.private, blob.secret]
}

fn unseal(
    tpm: &mut NodeDevice,
    ek: &[u8],
    [public, private, secret]: &[Vec<u8>; 3],
) -> Result<Vec<u8>, TpmError> {
    tpm.unseal_import(ek, public, private, secret, &PCRS)
        .map(|opened| opened.to_vec())
}

fn code(result: Result<Vec<u8>, TpmError>) -> (&'static str, u32) {
    match result {
        Err(TpmError::Command { command, code, .. }) => (command, code),
        other => panic!("{other:?}"),
    }
}

/// The certified keys of swtpm (RSA-2048 L, P-384 H), and P-256 L as a TPM without a certificate for
/// RSA makes it.
fn keys(tpm: &mut NodeDevice) -> Vec<Vec<u8>> {
    let mut keys: Vec<Vec<u8>> = tpm
        .endorsement_keys()
        .unwrap()
        .into_iter()
        .map(|key| key.public)
        .collect();
    keys.push(tpm.endorsement_key(Template::EkP256L).unwrap().public);
    let of: Vec<Template> = keys
        .iter()
        .map(|key| ek_template(&Public::decode(key).unwrap()).unwrap())
        .collect();
    assert_eq!(
        of,
        [Template::EkRsa2048L, Template::EkP384H, Template::EkP256L]
    );
    keys
}

#[test]
fn opens_on_this_tpm_at_these_values_and_nowhere_else() {
    let Some(swtpm) = Swtpm::start() else { return };
    let Some(other) = Swtpm::start() else { return };
    let mut tpm = NodeDevice::open(&swtpm.tcti()).unwrap();
    let mut foreign = NodeDevice::open(&other.tcti()).unwrap();
    let eks = keys(&mut tpm);
    let foreign_eks = keys(&mut foreign);
    // AK and DevID stay loaded: with the EK all three object slots are in use.
    let ak = tpm.create_ak([1; 64]).unwrap();
    tpm.create_devid(DevIdKind::EccP256, None).unwrap();
    tpm.pcr_extend(15, &[9; 32]).unwrap();
    for (ek, foreign_ek) in eks.iter().zip(&foreign_eks) {
        let blob = wrapped(&mut tpm, ek);
        // More often than there are slots: nothing is left loaded.
        for _ in 0..4 {
            assert_eq!(unseal(&mut tpm, ek, &blob).unwrap(), SECRET);
        }
        // One byte of each part.
        for part in 0..3 {
            let mut altered = blob.clone();
            let last = altered[part].len() - 1;
            altered[part][last] ^= 1;
            assert_eq!(
                code(unseal(&mut tpm, ek, &altered)).0,
                "Import",
                "part {part}"
            );
        }
        let with_more = [
            [&blob[0][..], &[0]].concat(),
            blob[1].clone(),
            blob[2].clone(),
        ];
        assert!(matches!(
            unseal(&mut tpm, ek, &with_more),
            Err(TpmError::Malformed { .. })
        ));
        // Another TPM: under its own key, since it has no other.
        let values = tpm.pcr_read(&PCRS).unwrap();
        assert_ne!(foreign.pcr_read(&PCRS).unwrap(), values);
        assert_eq!(code(unseal(&mut foreign, foreign_ek, &blob)).0, "Import");
        assert!(matches!(
            unseal(&mut foreign, ek, &blob),
            Err(TpmError::Malformed { .. })
        ));
        // One more extend.
        tpm.pcr_extend(15, &[1; 32]).unwrap();
        assert_eq!(code(unseal(&mut tpm, ek, &blob)), ("Unseal", 0x99d));
        // A blob for the values that are there now opens again.
        let blob = wrapped(&mut tpm, ek);
        assert_eq!(unseal(&mut tpm, ek, &blob).unwrap(), SECRET);
    }
    // AK and DevID are as they were.
    tpm.quote(&[2; 32], &PCRS).unwrap();
    tpm.certify_devid(&[3; 32]).unwrap();
    let secret = attest_wire::credential::make_credential(
        &Public::decode(&eks[0]).unwrap(),
        &Public::decode(&ak).unwrap().name(),
        &SECRET,
        &mut rand_core::OsRng,
    )
    .unwrap();
    let opened = tpm
        .activate(&eks[0], &secret.id_object, &secret.secret)
        .unwrap();
    assert_eq!(opened[..], SECRET);
}

#[test]
fn a_blob_of_the_boot_before_does_not_open() {
    let Some(mut swtpm) = Swtpm::start() else {
        return;
    };
    let mut tpm = NodeDevice::open(&swtpm.tcti()).unwrap();
    tpm.pcr_extend(4, &[4; 32]).unwrap();
    tpm.pcr_extend(15, &[9; 32]).unwrap();
    let ek = tpm.endorsement_keys().unwrap().remove(0).public;
    let blob = wrapped(&mut tpm, &ek);
    assert_eq!(unseal(&mut tpm, &ek, &blob).unwrap(), SECRET);
    drop(tpm);
    swtpm.power_cycle();
    let mut tpm = NodeDevice::open(&swtpm.tcti()).unwrap();
    tpm.pcr_extend(4, &[4; 32]).unwrap();
    assert_eq!(tpm.endorsement_keys().unwrap().remove(0).public, ek);
    assert_eq!(code(unseal(&mut tpm, &ek, &blob)), ("Unseal", 0x99d));
}

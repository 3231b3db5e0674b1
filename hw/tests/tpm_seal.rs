//! The appliance's sealing, against a real swtpm.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test, helpers included

mod support;

use std::str::FromStr;

use hw::tpm::{
    ApplianceDevice, NodeDevice, NodeTpm, SealBlob, SealMode, SealTpm, TpmError, UpdateKey,
};
use sha2::{Digest as _, Sha256};
use support::Swtpm;
use tss_esapi::Context;
use tss_esapi::attributes::NvIndexAttributesBuilder;
use tss_esapi::handles::{NvIndexHandle, NvIndexTpmHandle};
use tss_esapi::interface_types::algorithm::HashingAlgorithm;
use tss_esapi::interface_types::resource_handles::{NvAuth, Provision};
use tss_esapi::interface_types::session_handles::AuthSession;
use tss_esapi::structures::{MaxNvBuffer, NvPublicBuilder};
use tss_esapi::tcti_ldr::TctiNameConf;

fn update_key() -> UpdateKey {
    UpdateKey::generate(&mut rand_core::OsRng)
}

fn appliance(swtpm: &Swtpm) -> ApplianceDevice {
    ApplianceDevice::open(&swtpm.tcti()).unwrap()
}

fn extend(swtpm: &Swtpm, pcr: u8, digest: [u8; 32]) {
    NodeDevice::open(&swtpm.tcti())
        .unwrap()
        .pcr_extend(pcr, &digest)
        .unwrap();
}

fn broken(result: Result<zeroize::Zeroizing<[u8; 32]>, TpmError>) -> String {
    match result {
        Err(error @ TpmError::SealBroken { .. }) => error.to_string(),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("opened"),
    }
}

#[test]
fn seal_opens_again_after_power_cuts_and_only_in_the_same_boot_state() {
    let Some(mut swtpm) = Swtpm::start() else {
        return;
    };
    let (blob, key) = appliance(&swtpm).seal(1, &update_key()).unwrap();
    assert_eq!(blob.mode, SealMode::Development);
    // Kept on disk as text.
    let text = serde_json::to_string(&blob).unwrap();
    assert!(!text.contains(&hex::encode(&key[..])));
    let blob: SealBlob = serde_json::from_str(&text).unwrap();

    swtpm.power_cycle();
    assert_eq!(appliance(&swtpm).unseal(&blob).unwrap(), key);
    // More often than there are slots.
    let mut tpm = appliance(&swtpm);
    for _ in 0..5 {
        assert_eq!(tpm.unseal(&blob).unwrap(), key);
    }
    drop(tpm);

    // A PCR outside the policy does no harm, one inside names itself.
    extend(&swtpm, 10, [1; 32]);
    assert_eq!(appliance(&swtpm).unseal(&blob).unwrap(), key);
    extend(&swtpm, 7, [1; 32]);
    let text = broken(appliance(&swtpm).unseal(&blob));
    assert!(
        text.contains("PCR 7 (Secure Boot state) was 0000"),
        "{text}"
    );
    assert!(text.contains("vestibule seal approve"), "{text}");
    assert!(
        !text.contains("PCR 4 ") && !text.contains("PCR 11 "),
        "{text}"
    );

    swtpm.power_cycle();
    assert_eq!(appliance(&swtpm).unseal(&blob).unwrap(), key);
}

#[test]
fn measured_boot_is_sealed_as_such_and_an_approved_state_opens_it() {
    let Some(mut swtpm) = Swtpm::start() else {
        return;
    };
    extend(&swtpm, 4, [4; 32]);
    let update = update_key();
    let (mut blob, key) = appliance(&swtpm).seal(1, &update).unwrap();
    assert_eq!(blob.mode, SealMode::Measured);

    swtpm.power_cycle();
    let text = broken(appliance(&swtpm).unseal(&blob));
    assert!(text.contains("PCR 4 (boot loader and kernel)"), "{text}");

    // The owner approves another boot loader: same halves, same key.
    extend(&swtpm, 4, [5; 32]);
    let next = Sha256::digest([[0; 32], [5; 32]].concat()).into();
    assert!(
        blob.approve(&update_key(), [next, [0; 32], [0; 32]])
            .is_err(),
        "not the owner's key"
    );
    blob.approve(&update, [next, [0; 32], [0; 32]]).unwrap();
    assert_eq!(appliance(&swtpm).unseal(&blob).unwrap(), key);
}

#[test]
fn rejects_another_tpm_with_both_names() {
    let Some(swtpm) = Swtpm::start() else { return };
    let Some(other) = Swtpm::start() else { return };
    let update = update_key();
    let (blob, _) = appliance(&swtpm).seal(1, &update).unwrap();
    // The other TPM even has an index of that number.
    let (theirs, _) = appliance(&other).seal(1, &update).unwrap();
    assert_eq!(blob.nv_index, theirs.nv_index);
    match appliance(&other).unseal(&blob) {
        Err(TpmError::ForeignObject {
            what: "storage root key",
            expected,
            found,
        }) => {
            assert_eq!(expected, blob.srk_name);
            assert_eq!(found, theirs.srk_name);
        }
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("opened"),
    }
}

#[test]
fn rejects_edited_blobs() {
    let Some(swtpm) = Swtpm::start() else { return };
    let update = update_key();
    let (blob, key) = appliance(&swtpm).seal(1, &update).unwrap();
    let (second, other_key) = appliance(&swtpm).seal(2, &update).unwrap();
    assert_ne!(
        second.nv_index, blob.nv_index,
        "an index in use is left alone"
    );
    assert_ne!(key, other_key);

    type Edit = fn(&mut SealBlob, &SealBlob);
    let edits: [(&str, Edit); 5] = [
        ("epoch", |blob, second| blob.epoch = second.epoch),
        ("signature", |blob, second| {
            blob.policy_signature.clone_from(&second.policy_signature);
        }),
        ("private", |blob, second| {
            blob.private.clone_from(&second.private)
        }),
        ("object", |blob, second| {
            blob.private.clone_from(&second.private);
            blob.public.clone_from(&second.public);
        }),
        ("index", |blob, second| {
            blob.nv_index = second.nv_index;
            blob.nv_name.clone_from(&second.nv_name);
        }),
    ];
    for (what, edit) in edits {
        let mut edited = blob.clone();
        edit(&mut edited, &second);
        let text = broken(appliance(&swtpm).unseal(&edited));
        assert!(
            text.contains("does not belong to this seal"),
            "{what}: {text}"
        );
    }
    let mut foreign = blob.clone();
    foreign.update_key_public = hex::encode(update_key().public());
    broken(appliance(&swtpm).unseal(&foreign));
    let mut garbage = blob.clone();
    garbage.policy_signature = "00ff".to_owned();
    assert!(matches!(
        appliance(&swtpm).unseal(&garbage),
        Err(TpmError::Malformed { .. })
    ));
    assert_eq!(
        appliance(&swtpm).unseal(&blob).unwrap(),
        key,
        "the unedited blob opens"
    );
}

/// What anybody with the (empty) owner authorization can do to our index.
fn replace_index(swtpm: &Swtpm, index: u32, redefine: bool) {
    let mut ctx = Context::new(TctiNameConf::from_str(&swtpm.tcti()).unwrap()).unwrap();
    let tpm_handle = NvIndexTpmHandle::new(index).unwrap();
    let password = (Some(AuthSession::Password), None, None);
    let object = ctx.tr_from_tpm_public(tpm_handle.into()).unwrap();
    ctx.execute_with_sessions(password, |ctx| {
        ctx.nv_undefine_space(Provision::Owner, NvIndexHandle::from(object))
    })
    .unwrap();
    if !redefine {
        return;
    }
    let attributes = NvIndexAttributesBuilder::new()
        .with_owner_write(true)
        .with_owner_read(true)
        .build()
        .unwrap();
    let public = NvPublicBuilder::new()
        .with_nv_index(tpm_handle)
        .with_index_name_algorithm(HashingAlgorithm::Sha256)
        .with_index_attributes(attributes)
        .with_data_area_size(32)
        .build()
        .unwrap();
    ctx.execute_with_sessions(password, |ctx| {
        let nv = ctx.nv_define_space(Provision::Owner, None, public).unwrap();
        ctx.nv_write(
            NvAuth::Owner,
            nv,
            MaxNvBuffer::try_from(vec![0; 32]).unwrap(),
            0,
        )
        .unwrap();
    });
}

#[test]
fn missing_and_foreign_index_are_alarms() {
    let Some(swtpm) = Swtpm::start() else { return };
    let (blob, _) = appliance(&swtpm).seal(1, &update_key()).unwrap();
    replace_index(&swtpm, blob.nv_index, true);
    let text = broken(appliance(&swtpm).unseal(&blob));
    assert!(
        text.contains("is not ours any more") && text.contains("alarm"),
        "{text}"
    );
    assert!(text.contains(&blob.nv_name), "{text}");
    replace_index(&swtpm, blob.nv_index, false);
    let text = broken(appliance(&swtpm).unseal(&blob));
    assert!(text.contains("is gone") && text.contains("alarm"), "{text}");
}

#[test]
fn random_bytes_are_as_many_as_asked_and_differ() {
    let Some(swtpm) = Swtpm::start() else { return };
    let mut tpm = appliance(&swtpm);
    for count in [0, 1, 32, 33, 200] {
        assert_eq!(tpm.random(count).unwrap().len(), count);
    }
    assert_ne!(tpm.random(32).unwrap(), tpm.random(32).unwrap());
}

#[test]
fn the_counter_moves_by_one_under_the_seal_and_never_back() {
    let Some(mut swtpm) = Swtpm::start() else {
        return;
    };
    let (blob, _) = appliance(&swtpm).seal(1, &update_key()).unwrap();
    let first = blob.counter.first;
    assert_eq!(appliance(&swtpm).counter(&blob).unwrap(), first);
    appliance(&swtpm).advance(&blob, first + 1).unwrap();
    swtpm.power_cycle();
    assert_eq!(appliance(&swtpm).counter(&blob).unwrap(), first + 1);
    // Asked again after the answer was lost: it was done.
    appliance(&swtpm).advance(&blob, first + 1).unwrap();
    assert_eq!(appliance(&swtpm).counter(&blob).unwrap(), first + 1);
    // Whoever asks for another value than the next is told what it counts, and moves nothing.
    for to in [first, first + 3] {
        match appliance(&swtpm).advance(&blob, to) {
            Err(error @ TpmError::SealBroken { .. }) => {
                let text = error.to_string();
                let counts = format!("counts {}", first + 1);
                assert!(text.contains(&counts), "{text}");
            }
            other => panic!("{to}: {other:?}"),
        }
    }
    // In another boot it does not move.
    extend(&swtpm, 4, [7; 32]);
    appliance(&swtpm).advance(&blob, first + 2).unwrap_err();
    assert_eq!(appliance(&swtpm).counter(&blob).unwrap(), first + 1);
}

#[test]
fn a_counter_that_is_gone_or_made_anew_is_an_alarm_and_does_not_fall() {
    let Some(swtpm) = Swtpm::start() else { return };
    let (blob, _) = appliance(&swtpm).seal(1, &update_key()).unwrap();
    let first = blob.counter.first;
    appliance(&swtpm).advance(&blob, first + 1).unwrap();
    replace_index(&swtpm, blob.counter.nv_index, true);
    let text = appliance(&swtpm).counter(&blob).unwrap_err().to_string();
    assert!(
        text.contains("counter of the ledger") && text.contains("is not ours any more"),
        "{text}"
    );
    replace_index(&swtpm, blob.counter.nv_index, false);
    let text = appliance(&swtpm).counter(&blob).unwrap_err().to_string();
    assert!(text.contains("is gone") && text.contains("alarm"), "{text}");
    // The next counter of this TPM begins where this one ended.
    let (other, _) = appliance(&swtpm).seal(1, &update_key()).unwrap();
    assert!(other.counter.first > first + 1, "{:?}", other.counter);
}

#[test]
fn a_blob_that_names_another_counter_opens_no_key() {
    let Some(swtpm) = Swtpm::start() else { return };
    let (blob, key) = appliance(&swtpm).seal(1, &update_key()).unwrap();
    let (second, _) = appliance(&swtpm).seal(1, &update_key()).unwrap();
    let mut edited = blob.clone();
    edited.counter = second.counter;
    assert_ne!(appliance(&swtpm).unseal(&edited).unwrap(), key);
    let mut edited = blob;
    edited.counter.first += 1;
    assert_ne!(appliance(&swtpm).unseal(&edited).unwrap(), key);
}

#[test]
fn a_seal_that_was_not_kept_is_discarded_by_its_plan_and_nobody_else_s_is() {
    let Some(mut swtpm) = Swtpm::start() else {
        return;
    };
    let (kept, key) = appliance(&swtpm).seal(1, &update_key()).unwrap();
    let update = update_key();
    let plan = appliance(&swtpm).plan(1, &update).unwrap();
    assert_eq!(
        appliance(&swtpm).discard(&plan).unwrap(),
        0,
        "nothing was made yet"
    );
    let (lost, _) = appliance(&swtpm).seal_planned(1, &update, &plan).unwrap();
    assert_eq!(
        (lost.nv_index, lost.counter.nv_index),
        (plan.nv_index, plan.counter_index)
    );
    // The power goes before the seal is kept; the plan is, as text.
    swtpm.power_cycle();
    let text = serde_json::to_string(&plan).unwrap();
    let plan = serde_json::from_str(&text).unwrap();
    // A plan that names another's indices removes nothing.
    let mut other = appliance(&swtpm).plan(1, &update_key()).unwrap();
    (other.nv_index, other.counter_index) = (kept.nv_index, kept.counter.nv_index);
    assert_eq!(appliance(&swtpm).discard(&other).unwrap(), 0);
    assert_eq!(appliance(&swtpm).discard(&plan).unwrap(), 2);
    assert_eq!(appliance(&swtpm).discard(&plan).unwrap(), 0);
    assert!(broken(appliance(&swtpm).unseal(&lost)).contains("is gone"));
    // The next start takes the same place, and the other seal is as it was.
    let again = appliance(&swtpm).plan(1, &update_key()).unwrap();
    assert_eq!(again.nv_index, plan.nv_index);
    assert_eq!(appliance(&swtpm).unseal(&kept).unwrap(), key);
}

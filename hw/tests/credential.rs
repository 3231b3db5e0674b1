//! The software side of credentials and import blobs (`attest-wire`) against a real swtpm, and its
//! templates and decoders against what the TPM and tss-esapi say.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test, helpers included

mod support;

use std::str::FromStr;

use attest_wire::credential::{make_credential, policy_pcr_sha256, wrap_for_import};
use attest_wire::templates::{Template, devid_templates, ek_template};
use attest_wire::tpm::{
    Attest, AttestBody, Public, RH_ENDORSEMENT, RH_OWNER, qualified_name, qualified_name_of_primary,
};
use hw::tpm::{DevIdKind, NodeDevice, NodeTpm};
use rand_core::OsRng;
use support::Swtpm;
use tss_esapi::Context;
use tss_esapi::attributes::SessionAttributesBuilder;
use tss_esapi::constants::SessionType;
use tss_esapi::handles::{AuthHandle, KeyHandle, SessionHandle};
use tss_esapi::interface_types::algorithm::HashingAlgorithm;
use tss_esapi::interface_types::resource_handles::Hierarchy;
use tss_esapi::interface_types::session_handles::{AuthSession, PolicySession};
use tss_esapi::structures::{
    Digest, DigestList, EncryptedSecret, Nonce, PcrSelectionListBuilder, PcrSlot, Private,
    Public as TssPublic, SymmetricDefinition, SymmetricDefinitionObject,
};
use tss_esapi::tcti_ldr::TctiNameConf;
use tss_esapi::traits::{Marshall, UnMarshall};

type Sessions = (
    Option<AuthSession>,
    Option<AuthSession>,
    Option<AuthSession>,
);
const PASSWORD: Sessions = (Some(AuthSession::Password), None, None);

/// PolicyC of the H-range templates, SHA-384 (TCG EK Credential Profile, B.6.4).
const POLICY_C_SHA384: &str = "d6032ce61f2fb3c240eb3cf6a33237ef2b6a16f4293c22b455e261cffd217ad5\
                               b4947c2d73e63005eed2dc2b3593d165";

#[test]
fn the_tpm_opens_our_credentials_and_no_other_does() {
    let (Some(swtpm), Some(other)) = (Swtpm::start(), Swtpm::start()) else {
        return;
    };
    let mut node = NodeDevice::open(&swtpm.tcti()).unwrap();
    let mut stranger = NodeDevice::open(&other.tcti()).unwrap();
    let eks = node.endorsement_keys().unwrap();
    let foreign = stranger.endorsement_keys().unwrap();
    let ak = Public::decode(&node.create_ak([1; 64]).unwrap()).unwrap();
    let wrong_ak = Public::decode(&stranger.create_ak([2; 64]).unwrap()).unwrap();
    let mut templates = Vec::new();
    for ek in &eks {
        let public = Public::decode(&ek.public).unwrap();
        templates.push(ek_template(&public).unwrap());
        for round in 0..5u8 {
            let secret = [round; 32];
            let blob = make_credential(&public, &ak.name(), &secret, &mut OsRng).unwrap();
            let opened = node.activate(&ek.public, &blob.id_object, &blob.secret);
            assert_eq!(opened.unwrap().as_slice(), secret, "{templates:?}");
        }
        let blob = make_credential(&public, &wrong_ak.name(), &[7; 32], &mut OsRng).unwrap();
        let opened = node.activate(&ek.public, &blob.id_object, &blob.secret);
        assert!(opened.is_err(), "bound to another AK's Name");
    }
    for ek in &foreign {
        let public = Public::decode(&ek.public).unwrap();
        let blob = make_credential(&public, &ak.name(), &[7; 32], &mut OsRng).unwrap();
        let same_kind = eks.iter().find(|own| own.public.len() == ek.public.len());
        let Some(own) = same_kind else { continue };
        let opened = node.activate(&own.public, &blob.id_object, &blob.secret);
        assert!(opened.is_err(), "wrapped for another TPM");
    }
    println!("{} kinds of EK activated: {templates:?}", templates.len());
    assert!(templates.contains(&Template::EkRsa2048L) && templates.contains(&Template::EkP384H));
}

#[test]
fn keys_and_attestations_of_the_tpm_decode_to_what_the_templates_say() {
    let Some(swtpm) = Swtpm::start() else { return };
    let mut node = NodeDevice::open(&swtpm.tcti()).unwrap();
    let ak = node.create_ak([9; 64]).unwrap();
    agrees_with_tss(&ak);
    let ak = Public::decode(&ak).unwrap();
    assert_eq!(Template::Ak.check(&ak), Ok(()));
    for kind in [DevIdKind::EccP256, DevIdKind::Rsa2048] {
        let made = node.create_devid(kind, None).unwrap();
        agrees_with_tss(&made.public);
        let devid = Public::decode(&made.public).unwrap();
        let srk = Public::decode(&made.srk_public).unwrap();
        let (_, parent) = devid_templates(&devid).unwrap();
        assert_eq!(parent.check(&srk), Ok(()));
        let attested = node.certify_devid(&[3; 32]).unwrap();
        let attest = Attest::decode(&attested.attest).unwrap();
        assert_eq!(attest.encode(), attested.attest);
        assert_eq!(attest.extra_data, [3; 32]);
        let signer = qualified_name_of_primary(RH_ENDORSEMENT, &ak);
        assert_eq!(attest.qualified_signer, signer.as_bytes());
        let under = qualified_name(&qualified_name_of_primary(RH_OWNER, &srk), &devid);
        let expected = AttestBody::Certify {
            name: devid.name().as_bytes().to_vec(),
            qualified_name: under.as_bytes().to_vec(),
        };
        assert_eq!(attest.body, expected);
    }
    let quoted = node.quote(&[4; 32], &[0, 7, 15]).unwrap();
    let attest = Attest::decode(&quoted.attest).unwrap();
    assert_eq!(attest.encode(), quoted.attest);
    let theirs = tss_esapi::structures::Attest::unmarshall(&quoted.attest).unwrap();
    assert_eq!(theirs.clock_info().reset_count(), attest.clock.reset_count);
    assert_eq!(theirs.firmware_version(), attest.firmware_version);
    let AttestBody::Quote { pcr_select, .. } = attest.body else {
        panic!("no quote");
    };
    assert_eq!(pcr_select[0].pcrs(), [0, 7, 15]);
    for ek in node.endorsement_keys().unwrap() {
        agrees_with_tss(&ek.public);
    }
}

/// Both decoders accept the bytes and write them back; both refuse a truncated copy.
fn agrees_with_tss(public: &[u8]) {
    assert_eq!(Public::decode(public).unwrap().encode(), public);
    let theirs = TssPublic::unmarshall(public).unwrap();
    assert_eq!(theirs.marshall().unwrap(), public);
    for len in 0..public.len() {
        assert!(Public::decode(&public[..len]).is_err());
        assert!(TssPublic::unmarshall(&public[..len]).is_err());
    }
}

fn policy_session(ctx: &mut Context, hash: HashingAlgorithm) -> (AuthSession, PolicySession) {
    ctx.set_sessions((None, None, None));
    let session = ctx
        .start_auth_session(
            None,
            None,
            None,
            SessionType::Policy,
            SymmetricDefinition::AES_128_CFB,
            hash,
        )
        .unwrap()
        .unwrap();
    let (attributes, mask) = SessionAttributesBuilder::new().build();
    ctx.tr_sess_set_attributes(session, attributes, mask)
        .unwrap();
    (session, PolicySession::try_from(session).unwrap())
}

/// A fresh session that satisfies an EK's policy.
fn ek_session(ctx: &mut Context, high: bool) -> AuthSession {
    let hash = if high {
        HashingAlgorithm::Sha384
    } else {
        HashingAlgorithm::Sha256
    };
    let (session, policy) = policy_session(ctx, hash);
    ctx.execute_with_sessions(PASSWORD, |ctx| {
        ctx.policy_secret(
            policy,
            AuthHandle::Endorsement,
            Nonce::default(),
            Digest::default(),
            Nonce::default(),
            None,
        )
    })
    .unwrap();
    if high {
        let a = ctx.policy_get_digest(policy).unwrap();
        let c = Digest::try_from(hex::decode(POLICY_C_SHA384).unwrap()).unwrap();
        let mut branches = DigestList::new();
        branches.add(a).unwrap();
        branches.add(c).unwrap();
        ctx.policy_or(policy, branches).unwrap();
    }
    session
}

fn flush(ctx: &mut Context, session: AuthSession) {
    ctx.flush_context(SessionHandle::from(session).into())
        .unwrap();
}

/// TPM2_Import and TPM2_Load under an EK, TPM2_Unseal under PolicyPCR {7, 15}.
fn open_import(
    ctx: &mut Context,
    ek: KeyHandle,
    high: bool,
    blob: &attest_wire::credential::ImportBlob,
) -> Result<Vec<u8>, tss_esapi::Error> {
    let public = TssPublic::unmarshall(&blob.public.encode())?;
    let session = ek_session(ctx, high);
    let imported = ctx.execute_with_sessions((Some(session), None, None), |ctx| {
        ctx.import(
            ek.into(),
            None,
            public.clone(),
            Private::try_from(blob.private.clone())?,
            EncryptedSecret::try_from(blob.secret.clone())?,
            SymmetricDefinitionObject::Null,
        )
    });
    flush(ctx, session);
    let private = imported?;
    let session = ek_session(ctx, high);
    let loaded = ctx.execute_with_sessions((Some(session), None, None), |ctx| {
        ctx.load(ek, private, public)
    });
    flush(ctx, session);
    let object = loaded?;
    let (session, policy) = policy_session(ctx, HashingAlgorithm::Sha256);
    let selection = PcrSelectionListBuilder::new()
        .with_selection(HashingAlgorithm::Sha256, &[PcrSlot::Slot7, PcrSlot::Slot15])
        .build()?;
    ctx.policy_pcr(policy, Digest::default(), selection)?;
    let unsealed =
        ctx.execute_with_sessions((Some(session), None, None), |ctx| ctx.unseal(object.into()));
    flush(ctx, session);
    ctx.flush_context(object.into())?;
    Ok(unsealed?.to_vec())
}

#[test]
fn the_tpm_imports_and_opens_our_blob_in_the_named_boot_only() {
    let Some(swtpm) = Swtpm::start() else { return };
    let mut ctx = Context::new(TctiNameConf::from_str(&swtpm.tcti()).unwrap()).unwrap();
    let here = policy_pcr_sha256(&[(7, [0; 32]), (15, [0; 32])]);
    let elsewhere = policy_pcr_sha256(&[(7, [0; 32]), (15, [1; 32])]);
    for (template, high) in [
        (Template::EkRsa2048L, false),
        (Template::EkP256L, false),
        (Template::EkP384H, true),
    ] {
        let input = template.create_primary_input().encode();
        let ek = ctx
            .execute_with_sessions(PASSWORD, |ctx| {
                ctx.create_primary(
                    Hierarchy::Endorsement,
                    TssPublic::unmarshall(&input)?,
                    None,
                    None,
                    None,
                    None,
                )
            })
            .unwrap();
        let public = Public::decode(&ek.out_public.marshall().unwrap()).unwrap();
        assert_eq!(template.check(&public), Ok(()));
        for len in [32, 128] {
            let secret = vec![0x5a; len];
            let blob = wrap_for_import(&public, &here, &secret, &mut OsRng).unwrap();
            let opened = open_import(&mut ctx, ek.key_handle, high, &blob);
            assert_eq!(opened.unwrap(), secret, "{template:?}");
        }
        let blob = wrap_for_import(&public, &elsewhere, &[1; 32], &mut OsRng).unwrap();
        assert!(open_import(&mut ctx, ek.key_handle, high, &blob).is_err());
        let mut blob = wrap_for_import(&public, &here, &[1; 32], &mut OsRng).unwrap();
        blob.public.auth_policy[0] ^= 1;
        let altered = open_import(&mut ctx, ek.key_handle, high, &blob);
        assert!(altered.is_err(), "the policy is bound by the blob's HMAC");
        ctx.flush_context(ek.key_handle.into()).unwrap();
    }
    assert!(
        wrap_for_import(
            &Template::EkP256L.create_primary_input(),
            &here,
            &[0; 129],
            &mut OsRng
        )
        .is_err()
    );
}

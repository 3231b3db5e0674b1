//! A node's TPM, against a real swtpm.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test, helpers included

mod support;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::str::FromStr;
use std::sync::{Arc, Mutex};

use hw::tpm::{DevId, DevIdKind, NodeDevice, NodeTpm, TpmError};
use p256::ecdsa::signature::hazmat::PrehashVerifier;
use sha2::{Digest as _, Sha256, Sha384};
use support::Swtpm;
use tss_esapi::Context;
use tss_esapi::interface_types::resource_handles::Hierarchy;
use tss_esapi::interface_types::session_handles::AuthSession;
use tss_esapi::structures::{
    Attest, AttestInfo, Auth, Digest, HashcheckTicket, Name, Private, Public, Signature,
    SignatureScheme,
};
use tss_esapi::tcti_ldr::TctiNameConf;
use tss_esapi::traits::UnMarshall;
use tss_esapi::tss2_esys::{TPM2B_DIGEST, TPMT_TK_HASHCHECK};
use zeroize::Zeroizing;

const PASSWORD: (
    Option<AuthSession>,
    Option<AuthSession>,
    Option<AuthSession>,
) = (Some(AuthSession::Password), None, None);

fn context(swtpm: &Swtpm) -> Context {
    Context::new(TctiNameConf::from_str(&swtpm.tcti()).unwrap()).unwrap()
}

fn sha256(parts: &[&[u8]]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part);
    }
    hash.finalize().into()
}

/// Name of a public area whose nameAlg is SHA-256 or SHA-384.
fn name_of(public: &[u8]) -> Vec<u8> {
    let mut name = public[2..4].to_vec();
    match name[1] {
        0x0b => name.extend(Sha256::digest(public)),
        _ => name.extend(Sha384::digest(public)),
    }
    name
}

/// TPM2_MakeCredential on another TPM: an implementation that is not ours.
fn make_credential(
    other: &Swtpm,
    ek_public: &[u8],
    secret: &[u8],
    ak_public: &[u8],
) -> (Vec<u8>, Vec<u8>) {
    let mut ctx = context(other);
    let ek = ctx
        .load_external_public(Public::unmarshall(ek_public).unwrap(), Hierarchy::Null)
        .unwrap();
    let (blob, encrypted) = ctx
        .make_credential(
            ek,
            Digest::try_from(secret).unwrap(),
            Name::try_from(name_of(ak_public)).unwrap(),
        )
        .unwrap();
    (blob.value().to_vec(), encrypted.value().to_vec())
}

fn make_credential_in_software(
    ek: &attest_wire::tpm::Public,
    object: &attest_wire::tpm::Name,
    secret: &[u8],
) -> attest_wire::credential::CredentialBlob {
    attest_wire::credential::make_credential(ek, object, secret, &mut rand_core::OsRng).unwrap()
}

fn verify_ecdsa(ak_public: &[u8], message: &[u8], signature: &[u8]) {
    let point = [&[4], &ak_public[22..54], &ak_public[56..88]].concat();
    let key = p256::ecdsa::VerifyingKey::from_sec1_bytes(&point).unwrap();
    let Signature::EcDsa(parts) = Signature::unmarshall(signature).unwrap() else {
        panic!("not ECDSA");
    };
    let mut raw = [0; 64];
    for (half, part) in raw
        .chunks_mut(32)
        .zip([parts.signature_r().value(), parts.signature_s().value()])
    {
        half[32 - part.len()..].copy_from_slice(part);
    }
    let signature = p256::ecdsa::Signature::from_slice(&raw).unwrap();
    key.verify_prehash(&Sha256::digest(message), &signature)
        .unwrap();
}

#[test]
fn endorsement_keys_come_with_their_certificates() {
    let Some(swtpm) = Swtpm::start() else { return };
    let mut tpm = NodeDevice::open(&swtpm.tcti()).unwrap();
    let properties = tpm.properties().unwrap();
    assert_eq!(properties.manufacturer, "IBM");
    assert!(properties.firmware.contains('.'), "{properties:?}");

    let keys = tpm.endorsement_keys().unwrap();
    // swtpm_setup certifies RSA-2048 of the low and P-384 of the high range.
    assert_eq!(keys.len(), 2);
    assert_eq!(keys[0].public.len(), 314);
    assert_eq!(keys[1].public.len(), 170);
    for key in &keys {
        let public = attest_wire::tpm::Public::decode(&key.public).unwrap();
        attest_wire::templates::ek_template(&public).unwrap();
        let cert = key.cert_nv.as_ref().expect("has a certificate");
        assert_eq!(cert[0], 0x30);
        // The key of the public area is the one in the certificate.
        let unique = &key.public[key.public.len() - 48..];
        assert!(cert.windows(48).any(|window| window == unique));
    }
    assert_eq!(tpm.ek_chain().unwrap(), Vec::<u8>::new());
    // The same keys again: an EK is derived, not made up.
    let again = tpm.endorsement_keys().unwrap();
    assert_eq!(again[0].public, keys[0].public);
    assert_eq!(again[1].public, keys[1].public);
}

#[test]
fn ak_is_new_for_each_unique_and_made_by_our_template() {
    let Some(swtpm) = Swtpm::start() else { return };
    let mut tpm = NodeDevice::open(&swtpm.tcti()).unwrap();
    let first = tpm.create_ak([1; 64]).unwrap();
    let second = tpm.create_ak([2; 64]).unwrap();
    assert_ne!(first, second);
    for public in [first, second] {
        let decoded = attest_wire::tpm::Public::decode(&public).unwrap();
        attest_wire::templates::Template::Ak
            .check(&decoded)
            .unwrap();
        assert_eq!(public.len(), 88);
        assert_eq!(
            hex::encode(&public[..22]),
            "0023000b00050472000000100018000b000300100020"
        );
    }
}

#[test]
fn activates_credentials_of_both_ranges_and_refuses_foreign_ones() {
    let Some(swtpm) = Swtpm::start() else { return };
    let Some(other) = Swtpm::start() else { return };
    let mut tpm = NodeDevice::open(&swtpm.tcti()).unwrap();
    let keys = tpm.endorsement_keys().unwrap();
    let ak = tpm.create_ak([3; 64]).unwrap();
    // The DevID stays loaded beside the AK: with the EK all three object slots are in use.
    tpm.create_devid(DevIdKind::EccP256, None).unwrap();
    for key in &keys {
        let secret = [0x5a; 32];
        let (blob, encrypted) = make_credential(&other, &key.public, &secret, &ak);
        // More often than there are slots: nothing is left loaded.
        for _ in 0..5 {
            let opened = tpm.activate(&key.public, &blob, &encrypted).unwrap();
            assert_eq!(opened[..], secret);
        }
        let mut altered = blob.clone();
        altered[4] ^= 1;
        assert!(matches!(
            tpm.activate(&key.public, &altered, &encrypted),
            Err(TpmError::Command {
                command: "ActivateCredential",
                ..
            })
        ));
        // Credential for another AK of the same TPM.
        let mut other_ak = ak.clone();
        other_ak[30] ^= 1;
        let (blob, encrypted) = make_credential(&other, &key.public, &secret, &other_ak);
        assert!(tpm.activate(&key.public, &blob, &encrypted).is_err());
        assert!(tpm.activate(&key.public, &[], &[]).is_err());
        assert!(tpm.activate(&key.public, &[0; 4096], &encrypted).is_err());
    }
    // The software MakeCredential of the gateway gives what this TPM opens.
    for key in &keys {
        let public = attest_wire::tpm::Public::decode(&key.public).unwrap();
        let object = attest_wire::tpm::Public::decode(&ak).unwrap().name();
        for secret in [[0x77; 32].as_slice(), &[1]] {
            let made = make_credential_in_software(&public, &object, secret);
            let opened = tpm
                .activate(&key.public, &made.id_object, &made.secret)
                .unwrap();
            assert_eq!(opened[..], *secret);
        }
    }
    // An EK of another TPM is not ours to use.
    let foreign = NodeDevice::open(&other.tcti())
        .unwrap()
        .endorsement_keys()
        .unwrap();
    assert!(matches!(
        tpm.activate(&foreign[0].public, &[0; 68], &[0; 256]),
        Err(TpmError::Malformed { .. })
    ));
    // And after all these refusals the TPM still works.
    let (blob, encrypted) = make_credential(&other, &keys[1].public, &[9; 32], &ak);
    assert_eq!(
        tpm.activate(&keys[1].public, &blob, &encrypted).unwrap()[..],
        [9; 32]
    );
}

#[test]
fn quote_is_signed_by_an_endorsement_primary_over_the_values_read() {
    let Some(swtpm) = Swtpm::start() else { return };
    let mut tpm = NodeDevice::open(&swtpm.tcti()).unwrap();
    let ak = tpm.create_ak([4; 64]).unwrap();
    tpm.pcr_extend(15, &[0xaa; 32]).unwrap();
    let pcrs = [4, 7, 11, 15];
    let values = tpm.pcr_read(&pcrs).unwrap();
    assert_eq!(values[3], sha256(&[&[0; 32], &[0xaa; 32]]));

    let quote = tpm.quote(&[0x11; 32], &pcrs).unwrap();
    verify_ecdsa(&ak, &quote.attest, &quote.signature);
    let attest = Attest::unmarshall(&quote.attest).unwrap();
    assert_eq!(attest.extra_data().value(), [0x11; 32]);
    let name = name_of(&ak);
    let mut qualified = vec![0x00, 0x0b];
    qualified.extend(sha256(&[&[0x40, 0, 0, 0x0b], &name]));
    assert_eq!(attest.qualified_signer().value(), qualified);
    let AttestInfo::Quote { info } = attest.attested() else {
        panic!("not a quote")
    };
    assert_eq!(info.pcr_digest().value(), sha256(&[&values.concat()]));
}

#[test]
fn pcr_reads_keep_the_order_asked_and_refuse_what_does_not_exist() {
    let Some(swtpm) = Swtpm::start() else { return };
    let mut tpm = NodeDevice::open(&swtpm.tcti()).unwrap();
    for pcr in 0..16 {
        tpm.pcr_extend(pcr, &[pcr; 32]).unwrap();
    }
    // More than the eight that one TPM2_PCR_Read answers, and not ascending.
    let asked: Vec<u8> = (0..16).rev().collect();
    let values = tpm.pcr_read(&asked).unwrap();
    for (pcr, value) in asked.iter().zip(&values) {
        assert_eq!(*value, sha256(&[&[0; 32], &[*pcr; 32]]), "PCR {pcr}");
    }
    for pcr in [24, 31, 32, 255] {
        assert!(tpm.pcr_read(&[pcr]).is_err());
        assert!(tpm.pcr_extend(pcr, &[0; 32]).is_err());
        assert!(tpm.quote(&[0; 32], &[pcr]).is_err());
    }
}

/// Loads the DevID blobs under the SRK as any other program would, and signs.
fn load_and_sign(swtpm: &Swtpm, devid: &DevId) -> tss_esapi::Result<Signature> {
    let mut ctx = context(swtpm);
    let srk = [&devid.srk_public[..22], &[0; 4]].concat();
    let srk = if devid.srk_public[1] == 0x01 {
        [&devid.srk_public[..24], &[0, 0]].concat()
    } else {
        srk
    };
    let srk = Public::unmarshall(&srk)?;
    let digest = Digest::try_from([7; 32].as_slice())?;
    let srk = ctx
        .execute_with_sessions(PASSWORD, |ctx| {
            ctx.create_primary(Hierarchy::Owner, srk, None, None, None, None)
        })?
        .key_handle;
    let key = ctx.execute_with_sessions(PASSWORD, |ctx| {
        let private = Private::try_from(devid.private.clone())?;
        ctx.load(srk, private, Public::unmarshall(&devid.public)?)
    })?;
    if let Some(auth) = &devid.auth {
        ctx.tr_set_auth(key.into(), Auth::try_from(auth.as_bytes())?)?;
    }
    let ticket = HashcheckTicket::try_from(TPMT_TK_HASHCHECK {
        tag: 0x8024,
        hierarchy: 0x4000_0007,
        digest: TPM2B_DIGEST::default(),
    })?;
    ctx.execute_with_sessions(PASSWORD, |ctx| {
        ctx.sign(key, digest, SignatureScheme::Null, ticket)
    })
}

#[test]
fn devid_is_certified_and_loads_again_after_a_power_cut() {
    let Some(mut swtpm) = Swtpm::start() else {
        return;
    };
    let Some(other) = Swtpm::start() else { return };
    let auth = || {
        Some(Zeroizing::new(
            "0123456789abcdefghijklmnopqrstuv".to_owned(),
        ))
    };
    for (kind, auth, sizes) in [
        (DevIdKind::EccP256, None, (88, 126)),
        (DevIdKind::EccP256, auth(), (88, 126)),
        (DevIdKind::Rsa2048, None, (280, 222)),
        (DevIdKind::Rsa2048, auth(), (280, 222)),
    ] {
        let mut tpm = NodeDevice::open(&swtpm.tcti()).unwrap();
        let ak = tpm.create_ak([5; 64]).unwrap();
        assert!(
            tpm.certify_devid(&[0; 32]).is_err(),
            "there is no DevID yet"
        );
        let devid = tpm.create_devid(kind, auth).unwrap();
        assert_eq!((devid.public.len(), devid.private.len()), sizes, "{kind:?}");

        let certify = tpm.certify_devid(&[0x22; 32]).unwrap();
        verify_ecdsa(&ak, &certify.attest, &certify.signature);
        let attest = Attest::unmarshall(&certify.attest).unwrap();
        assert_eq!(attest.extra_data().value(), [0x22; 32]);
        let AttestInfo::Certify { info } = attest.attested() else {
            panic!("not a certify")
        };
        assert_eq!(info.name().value(), name_of(&devid.public));
        let mut parent = vec![0x00, 0x0b];
        parent.extend(sha256(&[&[0x40, 0, 0, 0x01], &name_of(&devid.srk_public)]));
        let mut qualified = vec![0x00, 0x0b];
        qualified.extend(sha256(&[&parent, &name_of(&devid.public)]));
        assert_eq!(info.qualified_name().value(), qualified);
        drop(tpm);

        swtpm.power_cycle();
        load_and_sign(&swtpm, &devid).unwrap();
        if devid.auth.is_some() {
            let without = DevId {
                auth: None,
                ..devid.clone()
            };
            load_and_sign(&swtpm, &without).unwrap_err();
        }
        load_and_sign(&other, &devid).unwrap_err();
    }
}

#[test]
fn rejects_devid_auth_that_esys_would_replace_by_its_hash() {
    let Some(swtpm) = Swtpm::start() else { return };
    let mut tpm = NodeDevice::open(&swtpm.tcti()).unwrap();
    for auth in [
        "short",
        "0123456789abcdefghijklmnopqrstuvw",
        "ä123456789abcdefghijklmnopqrstu",
    ] {
        let auth = Some(Zeroizing::new(auth.to_owned()));
        assert!(matches!(
            tpm.create_devid(DevIdKind::EccP256, auth),
            Err(TpmError::Malformed {
                what: "DevID authValue",
                ..
            })
        ));
    }
}

/// A high-range EK used by password would add one failure to the lockout counter at every unclean
/// stop, and be locked out at the fourth boot. Ours is used by policy.
#[test]
fn high_range_ek_survives_four_power_cuts() {
    let Some(mut swtpm) = Swtpm::start() else {
        return;
    };
    let Some(other) = Swtpm::start() else { return };
    for boot in 0..5_u8 {
        let mut tpm = NodeDevice::open(&swtpm.tcti()).unwrap();
        let keys = tpm.endorsement_keys().unwrap();
        let ak = tpm.create_ak([boot; 64]).unwrap();
        let (blob, encrypted) = make_credential(&other, &keys[1].public, &[boot; 32], &ak);
        let opened = tpm.activate(&keys[1].public, &blob, &encrypted).unwrap();
        assert_eq!(opened[..], [boot; 32]);
        std::mem::drop(tpm);
        swtpm.power_cycle();
    }
}

#[test]
fn opening_clears_what_a_killed_process_left_behind() {
    let Some(swtpm) = Swtpm::start() else { return };
    {
        // TPM2_CreatePrimary and TPM2_StartAuthSession as bytes: nothing in this process knows the
        // handles when the connection ends, as after a kill -9.
        let mut bus = TcpStream::connect((Ipv4Addr::LOCALHOST, swtpm.port())).unwrap();
        let mut command = |tag: u16, code: u32, body: &[u8]| {
            let size = (10 + body.len()) as u32;
            let header = [
                &tag.to_be_bytes()[..],
                &size.to_be_bytes(),
                &code.to_be_bytes(),
            ];
            bus.write_all(&[&header.concat(), body].concat()).unwrap();
            let mut answer = [0; 10];
            bus.read_exact(&mut answer).unwrap();
            let size = u32::from_be_bytes(answer[2..6].try_into().unwrap());
            bus.read_exact(&mut vec![0; size as usize - 10]).unwrap();
            u32::from_be_bytes(answer[6..].try_into().unwrap())
        };
        let template = "0023000b00030472000000060080004300100003001000000000";
        let primary =
            format!("40000001000000094000000900000000000004000000 00001a{template}000000000000")
                .replace(' ', "");
        let primary = hex::decode(primary).unwrap();
        let session = hex::decode(format!(
            "40000007400000070010{}0000000010000b",
            "00".repeat(16)
        ));
        let session = session.unwrap();
        for _ in 0..3 {
            assert_eq!(command(0x8002, 0x131, &primary), 0);
            assert_eq!(command(0x8001, 0x176, &session), 0);
        }
        assert_eq!(
            command(0x8002, 0x131, &primary),
            0x902,
            "three slots for objects"
        );
        assert_eq!(
            command(0x8001, 0x176, &session),
            0x903,
            "three slots for sessions"
        );
    }
    let mut tpm = NodeDevice::open(&swtpm.tcti()).unwrap();
    tpm.create_ak([6; 64]).unwrap();
    tpm.create_devid(DevIdKind::EccP256, None).unwrap();
    assert_eq!(tpm.endorsement_keys().unwrap().len(), 2);
}

/// Forwards one port pair to a TPM and keeps everything that passes.
fn record_bus(target: u16) -> (u16, Arc<Mutex<Vec<u8>>>) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    for _ in 0..200 {
        let first = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = first.local_addr().unwrap().port();
        let Ok(second) = TcpListener::bind((Ipv4Addr::LOCALHOST, port + 1)) else {
            continue;
        };
        for (listener, to) in [(first, target), (second, target + 1)] {
            let seen = Arc::clone(&seen);
            std::thread::spawn(move || {
                for client in listener.incoming().flatten() {
                    let server = TcpStream::connect((Ipv4Addr::LOCALHOST, to)).unwrap();
                    for (mut from, mut into) in [
                        (client.try_clone().unwrap(), server.try_clone().unwrap()),
                        (server, client),
                    ] {
                        let seen = Arc::clone(&seen);
                        std::thread::spawn(move || {
                            let mut buffer = [0; 8192];
                            while let Ok(n @ 1..) = from.read(&mut buffer) {
                                seen.lock().unwrap().extend_from_slice(&buffer[..n]);
                                if into.write_all(&buffer[..n]).is_err() {
                                    break;
                                }
                            }
                            let _ = into.shutdown(Shutdown::Both);
                        });
                    }
                }
            });
        }
        return (port, seen);
    }
    panic!("no free pair of ports");
}

#[test]
fn secrets_do_not_cross_the_bus_in_clear() {
    let Some(swtpm) = Swtpm::start() else { return };
    let Some(other) = Swtpm::start() else { return };
    let (port, seen) = record_bus(swtpm.port());
    let mut tpm = NodeDevice::open(&format!("swtpm:host=127.0.0.1,port={port}")).unwrap();
    let contains = |needle: &[u8]| {
        seen.lock()
            .unwrap()
            .windows(needle.len())
            .any(|window| window == needle)
    };
    let auth = "vwxyz0123456789abcdefghijklmnopq";
    let keys = tpm.endorsement_keys().unwrap();
    let ak = tpm.create_ak([8; 64]).unwrap();
    let devid = tpm
        .create_devid(DevIdKind::EccP256, Some(Zeroizing::new(auth.to_owned())))
        .unwrap();
    tpm.certify_devid(&[1; 32]).unwrap();
    let secrets = [[0xc3; 32], [0x3c; 32]];
    for (key, secret) in keys.iter().zip(secrets) {
        let (blob, encrypted) = make_credential(&other, &key.public, &secret, &ak);
        // After a refused command the next one must still be encrypted.
        tpm.activate(&key.public, &blob[1..], &encrypted)
            .unwrap_err();
        assert_eq!(
            tpm.activate(&key.public, &blob, &encrypted).unwrap()[..],
            secret
        );
    }
    assert!(contains(&devid.public[24..56]), "the recorder sees the bus");
    assert!(!contains(auth.as_bytes()), "DevID authValue on the bus");
    for secret in secrets {
        assert!(!contains(&secret), "activated credential on the bus");
    }
}

#[test]
fn rejects_a_tcti_where_nothing_answers() {
    for tcti in [
        "device:/dev/tpm-that-is-not-there",
        "swtpm:host=127.0.0.1,port=1",
        "nonsense",
    ] {
        match NodeDevice::open(tcti) {
            Err(TpmError::Absent { tcti: named, .. }) => assert_eq!(named, tcti),
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("{tcti} opened"),
        }
    }
}

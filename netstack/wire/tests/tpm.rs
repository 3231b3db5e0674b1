//! TPM structures: golden bytes both ways, strictness, and no panic on any input.

use attest_wire::templates::{Template, devid_templates, ek_template};
use attest_wire::tpm::{
    Attest, AttestBody, ClockInfo, Curve, DecodeError, HashAlg, PcrSelection, Public, PublicKind,
    RH_ENDORSEMENT, RH_OWNER, Scheme, Signature, pcr_selections, qualified_name,
    qualified_name_of_primary,
};
use p256::elliptic_curve::sec1::ToEncodedPoint as _;
use proptest::prelude::*;

/// The template with the curve's generator, or a modulus of ones, as `unique`.
fn key(template: Template) -> Public {
    let mut public = template.public();
    match &mut public.kind {
        PublicKind::Ecc { curve, x, y, .. } => {
            let point = match curve {
                Curve::P384 => p384::AffinePoint::GENERATOR
                    .to_encoded_point(false)
                    .as_bytes()
                    .to_vec(),
                _ => p256::AffinePoint::GENERATOR
                    .to_encoded_point(false)
                    .as_bytes()
                    .to_vec(),
            };
            let size = curve.size();
            *x = point[1..=size].to_vec();
            *y = point[size + 1..].to_vec();
        }
        PublicKind::Rsa {
            key_bits, modulus, ..
        } => {
            *modulus = vec![0xff; usize::from(*key_bits) / 8];
        }
        PublicKind::KeyedHash { .. } => {}
    }
    public
}

#[test]
fn ak_encodes_as_in_the_recipe() {
    let ak = key(Template::Ak);
    let bytes = ak.encode();
    assert_eq!(bytes.len(), 88);
    let text = hex::encode(&bytes);
    assert!(
        text.starts_with("0023000b00050472000000100018000b000300100020"),
        "{text}"
    );
    assert_eq!(Public::decode(&bytes), Ok(ak.clone()));
    assert_eq!(Template::Ak.check(&ak), Ok(()));
}

#[test]
fn names_have_the_documented_form() {
    let ak = key(Template::Ak);
    let name = ak.name();
    assert_eq!(name.as_bytes()[..2], [0x00, 0x0b]);
    assert_eq!(
        name.as_bytes()[2..],
        HashAlg::Sha256.digest(&[&ak.encode()])
    );
    let signer = qualified_name_of_primary(RH_ENDORSEMENT, &ak);
    let by_hand = HashAlg::Sha256.digest(&[&[0x40, 0, 0, 0x0b], name.as_bytes()]);
    assert_eq!(signer.as_bytes()[2..], by_hand);
    let (srk, devid) = (key(Template::SrkP256), key(Template::DevIdP256));
    let parent = qualified_name_of_primary(RH_OWNER, &srk);
    let by_hand = HashAlg::Sha256.digest(&[parent.as_bytes(), devid.name().as_bytes()]);
    assert_eq!(qualified_name(&parent, &devid).as_bytes()[2..], by_hand);
}

#[test]
fn every_ek_template_is_recognised() {
    for template in [
        Template::EkRsa2048L,
        Template::EkRsa2048H,
        Template::EkRsa3072H,
        Template::EkRsa4096H,
        Template::EkP256L,
        Template::EkP256H,
        Template::EkP384H,
    ] {
        assert_eq!(ek_template(&key(template)), Ok(template));
    }
}

#[test]
fn rejects_every_field_that_differs_from_the_template() {
    type Edit = fn(&mut Public);
    let edits: [(&str, Edit); 6] = [
        ("nameAlg", |p| p.name_alg = HashAlg::Sha384),
        ("objectAttributes", |p| p.attributes ^= 1 << 31),
        ("objectAttributes", |p| p.attributes &= !(1 << 16)),
        ("authPolicy", |p| p.auth_policy = vec![0; 32]),
        ("parameters", |p| {
            if let PublicKind::Ecc { scheme, .. } = &mut p.kind {
                *scheme = Scheme::Null;
            }
        }),
        ("unique", |p| {
            if let PublicKind::Ecc { y, .. } = &mut p.kind {
                y[31] ^= 1;
            }
        }),
    ];
    for (field, edit) in edits {
        let mut ak = key(Template::Ak);
        edit(&mut ak);
        assert_eq!(Template::Ak.check(&ak).expect_err(field).field, field);
    }
    let mut ek = key(Template::EkRsa2048L);
    ek.attributes |= 1 << 18;
    let mismatch = ek_template(&ek).expect_err("sign is set");
    assert_eq!(mismatch.field, "objectAttributes");
    let mut short = key(Template::EkRsa2048L);
    if let PublicKind::Rsa { modulus, .. } = &mut short.kind {
        modulus[0] = 0x7f;
    }
    assert_eq!(ek_template(&short).expect_err("2047 bits").field, "unique");
    let mut devid = key(Template::DevIdRsa2048);
    devid.attributes |= 1 << 16;
    let mismatch = devid_templates(&devid).expect_err("restricted");
    assert_eq!(mismatch.field, "objectAttributes");
}

fn quote() -> Attest {
    Attest {
        qualified_signer: vec![0x00, 0x0b, 1, 2],
        extra_data: vec![7; 32],
        clock: ClockInfo {
            clock: 1382,
            reset_count: 26,
            restart_count: 1,
            safe: true,
        },
        firmware_version: 0x2019_1023_0016_3636,
        body: AttestBody::Quote {
            pcr_select: vec![PcrSelection::of(0x000b, &[4, 7, 11])],
            pcr_digest: vec![9; 32],
        },
    }
}

#[test]
fn attest_and_signature_round_trip() {
    let bodies = [
        quote().body,
        AttestBody::Certify {
            name: vec![1; 34],
            qualified_name: vec![2; 34],
        },
        AttestBody::Time {
            time: 5,
            clock: quote().clock,
            firmware_version: 1,
        },
        AttestBody::Creation {
            object_name: vec![3; 34],
            creation_hash: vec![4; 32],
        },
    ];
    for body in bodies {
        let attest = Attest { body, ..quote() };
        assert_eq!(Attest::decode(&attest.encode()), Ok(attest));
    }
    let (hash, sig) = (HashAlg::Sha256, vec![1; 256]);
    for signature in [
        Signature::RsaSsa {
            hash,
            sig: sig.clone(),
        },
        Signature::RsaPss { hash, sig },
        Signature::Ecdsa {
            hash,
            r: vec![1; 31],
            s: vec![2; 32],
        },
    ] {
        assert_eq!(Signature::decode(&signature.encode()), Ok(signature));
    }
    let selection = PcrSelection::of(0x000b, &[4, 7, 11]);
    assert_eq!(selection.select, [0x90, 0x08, 0x00]);
    assert_eq!(selection.pcrs(), [4, 7, 11]);
}

#[test]
fn rejects_trailing_truncated_and_foreign_bytes() {
    let mut bytes = quote().encode();
    for len in 0..bytes.len() {
        assert!(Attest::decode(&bytes[..len]).is_err(), "prefix of {len}");
    }
    bytes.push(0);
    assert!(matches!(
        Attest::decode(&bytes),
        Err(DecodeError::Trailing { count: 1, .. })
    ));
    bytes.pop();
    bytes[0] = 0xfe;
    let error = Attest::decode(&bytes).expect_err("magic");
    assert!(matches!(
        error,
        DecodeError::Value {
            field: "TPMS_ATTEST.magic",
            ..
        }
    ));
    let mut public = key(Template::Ak).encode();
    public.push(0);
    assert!(matches!(
        Public::decode(&public),
        Err(DecodeError::Trailing { .. })
    ));
    public.truncate(80);
    assert!(matches!(
        Public::decode(&public),
        Err(DecodeError::Truncated { .. })
    ));
    let unknown_hash = [0x00, 0x18, 0x00, 0x27, 0, 0, 0, 0];
    assert!(matches!(
        Signature::decode(&unknown_hash),
        Err(DecodeError::Value { .. })
    ));
    assert!(pcr_selections(&[0, 0, 0, 17]).is_err());
}

proptest! {
    #[test]
    fn decoders_never_panic_and_keep_what_they_accept(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        if let Ok(public) = Public::decode(&bytes) {
            prop_assert_eq!(public.encode(), bytes.clone());
        }
        if let Ok(signature) = Signature::decode(&bytes) {
            prop_assert_eq!(signature.encode(), bytes.clone());
        }
        let mut attest = 0xff54_4347u32.to_be_bytes().to_vec();
        attest.extend_from_slice(&bytes);
        if let Ok(decoded) = Attest::decode(&attest) {
            prop_assert_eq!(decoded.encode(), attest);
        }
        let _ = pcr_selections(&bytes);
    }

    #[test]
    fn mutated_structures_never_panic(at in 0usize..120, to in any::<u8>()) {
        for mut bytes in [key(Template::Ak).encode(), quote().encode()] {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = to;
            }
            if let Ok(public) = Public::decode(&bytes) {
                prop_assert_eq!(public.encode(), bytes.clone());
                let _ = ek_template(&public);
                let _ = public.spki_der();
            }
            if let Ok(attest) = Attest::decode(&bytes) {
                prop_assert_eq!(attest.encode(), bytes.clone());
            }
        }
    }
}

#![allow(clippy::unwrap_used, reason = "tests: a failed step ends them")]

use p256::elliptic_curve::sec1::ToEncodedPoint as _;
use proptest::prelude::*;
use rand_core::{RngCore as _, SeedableRng as _};

use super::*;
use crate::templates::Template;
use crate::v1::{self, AttestationResult, RESULT_MAX_BYTES, Verdict};

/// Bytes that are the same for the same seed.
pub(crate) fn rng(seed: u64) -> rand_chacha::ChaCha20Rng {
    rand_chacha::ChaCha20Rng::seed_from_u64(seed)
}

/// An EK L-2 with some key.
pub(crate) fn ek_p256() -> Public {
    let point = p256::SecretKey::random(&mut rng(99)).public_key();
    let point = point.to_encoded_point(false);
    let mut public = Template::EkP256L.public();
    if let PublicKind::Ecc { x, y, .. } = &mut public.kind {
        *x = point.x().unwrap().to_vec();
        *y = point.y().unwrap().to_vec();
    }
    public
}

const PCRS: [[u8; 32]; 4] = [[4; 32], [7; 32], [11; 32], [15; 32]];
const RECEIPT: [u8; 32] = [0x22; 32];

fn expected(ek: &Public) -> Expected<'_> {
    Expected {
        machine: "node-7",
        receipt_sha256: RECEIPT,
        ek,
        pcrs: PCRS,
    }
}

fn item(kind: &str, bytes: &[u8]) -> Item {
    Item {
        kind: kind.to_owned(),
        bytes: Zeroizing::new(bytes.to_vec()),
    }
}

fn seal_with(items: &[Item], seed: u64) -> Result<Sealed, SealError> {
    let ek = ek_p256();
    let target = Target {
        machine: "node-7",
        receipt_sha256: RECEIPT,
        index: 1,
        ek: &ek,
        pcrs: PCRS,
    };
    seal(&target, items, &mut rng(seed))
        .map(|unsigned| unsigned.signed(vec![1], vec![vec![2].into()]))
}

/// The secret is the first that is drawn.
fn secret_of(seed: u64) -> [u8; 32] {
    let mut secret = [0; 32];
    rng(seed).fill_bytes(&mut secret);
    secret
}

#[test]
fn what_is_sealed_opens_with_the_secret_alone() {
    let sealed = seal_with(
        &[item("user-data", b"#cloud-config"), item("empty", b"")],
        1,
    )
    .unwrap();
    let ek = ek_p256();
    check(&sealed, &expected(&ek)).unwrap();
    let opened = open(&sealed, &expected(&ek), &secret_of(1)).unwrap();
    let texts: Vec<(&str, &[u8])> = opened
        .iter()
        .map(|item| (item.kind.as_str(), item.bytes.as_slice()))
        .collect();
    assert_eq!(
        texts,
        [("user-data", b"#cloud-config".as_slice()), ("empty", b"")]
    );
    assert!(open(&sealed, &expected(&ek), &secret_of(2)).is_err());
    assert!(open(&sealed, &expected(&ek), &[]).is_err());
    assert_eq!(format!("{:?}", opened[0]), "user-data: 13 bytes");
}

#[test]
fn rejects_one_changed_field_at_a_time() {
    let ek = ek_p256();
    let fresh = || seal_with(&[item("user-data", b"x"), item("meta-data", b"y")], 3).unwrap();
    type Edit = fn(&mut Sealed);
    let edits: [(&str, Edit); 9] = [
        ("statement", |s| s.statement.0.truncate(5)),
        ("items", |s| s.items[0].ciphertext.0[0] ^= 1),
        ("items", |s| drop(s.items.pop())),
        ("items", |s| s.items.swap(0, 1)),
        ("kind", |s| s.items[1].kind = "user-data".into()),
        ("kind", |s| s.items[0].kind = "../x".into()),
        ("wrapped Name", |s| *s.public.0.last_mut().unwrap() ^= 1),
        ("wrapped Name", |s| s.public.0[7] ^= 0x40),
        ("statement", |s| s.public.0.push(0)),
    ];
    for (what, edit) in edits {
        let mut sealed = fresh();
        edit(&mut sealed);
        let error = check(&sealed, &expected(&ek)).unwrap_err().to_string();
        assert!(error.contains(what), "{what}: {error}");
    }
    let mut other = ek.clone();
    other.attributes ^= attributes::USER_WITH_AUTH;
    let about: [(&str, Expected<'_>); 4] = [
        (
            "machine",
            Expected {
                machine: "node-8",
                ..expected(&ek)
            },
        ),
        (
            "receipt",
            Expected {
                receipt_sha256: [0; 32],
                ..expected(&ek)
            },
        ),
        ("EK Name", expected(&other)),
        (
            "policy",
            Expected {
                pcrs: [[0; 32]; 4],
                ..expected(&ek)
            },
        ),
    ];
    for (what, expected) in about {
        let error = check(&fresh(), &expected).unwrap_err().to_string();
        assert!(error.contains(what), "{what}: {error}");
    }
}

#[test]
fn a_ciphertext_opens_for_its_kind_machine_and_receipt_alone() {
    let ek = ek_p256();
    let mut sealed = seal_with(&[item("user-data", b"x")], 4).unwrap();
    for expected in [
        Expected {
            machine: "node-8",
            ..expected(&ek)
        },
        Expected {
            receipt_sha256: [0; 32],
            ..expected(&ek)
        },
    ] {
        assert!(open(&sealed, &expected, &secret_of(4)).is_err());
    }
    sealed.items[0].kind = "meta-data".into();
    let error = open(&sealed, &expected(&ek), &secret_of(4)).err();
    let kind = "meta-data".to_owned();
    assert_eq!(error, Some(OpenError::Cipher { kind }));
}

#[test]
fn rejects_what_is_too_much_or_has_no_name() {
    let many: Vec<Item> = (0..=SEALED_ITEMS_MAX)
        .map(|n| item(&format!("k{n}"), b""))
        .collect();
    assert_eq!(
        seal_with(&many, 5).err(),
        Some(SealError::Count(SEALED_ITEMS_MAX + 1))
    );
    assert_eq!(seal_with(&[], 5).err(), Some(SealError::Count(0)));
    for kind in [
        "",
        "-x",
        "User",
        "a/b",
        "a.b",
        &"k".repeat(KIND_MAX_BYTES + 1),
    ] {
        assert!(
            matches!(seal_with(&[item(kind, b"")], 5), Err(SealError::Kind(_))),
            "{kind:?}"
        );
    }
    assert!(matches!(
        seal_with(&[item("a", b""), item("a", b"")], 5),
        Err(SealError::Kind(_))
    ));
    let large = vec![0; SEALED_ITEM_MAX_BYTES - TAG_BYTES + 1];
    assert!(matches!(
        seal_with(&[item("a", &large)], 5),
        Err(SealError::TooLarge { .. })
    ));
    let half = vec![0; SEALED_TOTAL_MAX_BYTES / 2];
    let error = seal_with(&[item("a", &half), item("b", &half)], 5).err();
    assert!(matches!(error, Some(SealError::TooLarge { kind, .. }) if kind == "b"));
}

#[test]
fn the_largest_payloads_fit_a_result() {
    let large = vec![0; SEALED_TOTAL_MAX_BYTES - TAG_BYTES];
    let mut sealed = seal_with(&[item("user-data", &large)], 6).unwrap();
    sealed.chain = vec![vec![0; 1024].into(); 2];
    let result = AttestationResult {
        verdict: Verdict::Admitted,
        code: "admitted".into(),
        hint: "x".repeat(512),
        correlation: "c".repeat(16),
        retry_secs: 0,
        receipt: Some(v1::Receipt {
            body: vec![0; 16 * 1024].into(),
            sig: vec![0; 72].into(),
            chain: vec![vec![0; 1024].into(); 2],
        }),
        devid_chain: vec![vec![0; 1024].into(); 2],
        sealed: Some(Box::new(sealed)),
        grant: None,
    };
    let body = serde_json::to_vec(&result).unwrap();
    assert!(body.len() <= RESULT_MAX_BYTES, "{} bytes", body.len());
    assert_eq!(v1::decode_result(&body).unwrap(), result);
}

#[test]
fn the_closing_constant_is_fixed() {
    assert_eq!(
        hex(&closed_digest()),
        hex(&Sha256::digest(b"vestibule/closed/v1"))
    );
}

proptest! {
    #[test]
    fn any_payload_comes_back(bytes in proptest::collection::vec(any::<u8>(), 0..2000), seed in 0_u64..1000) {
        let ek = ek_p256();
        let sealed = seal_with(&[item("user-data", &bytes)], seed).unwrap();
        check(&sealed, &expected(&ek)).unwrap();
        let opened = open(&sealed, &expected(&ek), &secret_of(seed)).unwrap();
        prop_assert_eq!(&opened[0].bytes[..], &bytes[..]);
    }

    #[test]
    fn a_changed_bit_of_the_ciphertext_never_opens(at in 0_usize..29, bit in 0_u8..8) {
        let ek = ek_p256();
        let mut sealed = seal_with(&[item("user-data", b"#cloud-config")], 7).unwrap();
        sealed.items[0].ciphertext.0[at] ^= 1 << bit;
        prop_assert!(check(&sealed, &expected(&ek)).is_err());
        prop_assert!(open(&sealed, &expected(&ek), &secret_of(7)).is_err());
    }

    #[test]
    fn any_sealed_is_checked_without_a_panic(
        statement in proptest::collection::vec(any::<u8>(), 0..100),
        public in proptest::collection::vec(any::<u8>(), 0..100),
        secret in proptest::collection::vec(any::<u8>(), 0..40),
    ) {
        let ek = ek_p256();
        let mut sealed = seal_with(&[item("user-data", b"x")], 8).unwrap();
        sealed.statement = statement.into();
        prop_assert!(check(&sealed, &expected(&ek)).is_err());
        sealed.public = public.into();
        prop_assert!(check(&sealed, &expected(&ek)).is_err());
        prop_assert!(open(&sealed, &expected(&ek), &secret).is_err());
    }
}

/// The released bytes: label, salt, info, nonce, additional data and policy are part of the wire.
#[test]
fn the_released_result_opens() {
    let text = include_str!("../../../../tests/vectors/wire/v1/result-sealed.json").trim_end();
    let result = v1::decode_result(text.as_bytes()).unwrap();
    let sealed = result.sealed.unwrap();
    let ek = ek_p256();
    check(&sealed, &expected(&ek)).unwrap();
    let opened = open(&sealed, &expected(&ek), &secret_of(42)).unwrap();
    assert_eq!(opened[0].kind, "user-data");
    assert_eq!(opened[0].bytes[..], *b"#cloud-config");
}

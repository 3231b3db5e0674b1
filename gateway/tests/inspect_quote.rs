//! `vestibule inspect quote`: every handed attestation against what other tools say of it, and damaged
//! ones, which may give errors and never a panic.

#![allow(clippy::unwrap_used, reason = "a test: a failed step ends it")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use gateway::inspect::{Source, quote};
use serde_json::Value;

/// An attestation as our AK makes it: P-256, and what goes with it.
mod made {
    use attest_wire::tpm::{
        Attest, AttestBody, ClockInfo, Curve, HashAlg, PcrSelection, Public, PublicKind, Scheme,
        Signature, SymDef, attributes,
    };
    use aws_lc_rs::rand::SystemRandom;
    use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};

    pub struct Made {
        pub attest: Vec<u8>,
        pub signature: Vec<u8>,
        pub public: Vec<u8>,
        pub values: Vec<Vec<u8>>,
    }

    pub fn quote(nonce: &[u8]) -> Made {
        let values: Vec<Vec<u8>> = (0..4u8).map(|n| vec![n; 32]).collect();
        let parts: Vec<&[u8]> = values.iter().map(Vec::as_slice).collect();
        let attest = Attest {
            qualified_signer: [&[0, 11][..], &[7; 32]].concat(),
            extra_data: nonce.to_vec(),
            clock: ClockInfo {
                clock: 5,
                reset_count: 6,
                restart_count: 7,
                safe: true,
            },
            firmware_version: 8,
            body: AttestBody::Quote {
                pcr_select: vec![PcrSelection::of(11, &[0, 1, 2, 3])],
                pcr_digest: HashAlg::Sha256.digest(&parts),
            },
        }
        .encode();
        let rng = SystemRandom::new();
        let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(algorithm, &rng).unwrap();
        let key = EcdsaKeyPair::from_pkcs8(algorithm, pkcs8.as_ref()).unwrap();
        let sig = key.sign(&rng, &attest).unwrap();
        let (r, s) = sig.as_ref().split_at(32);
        let (x, y) = key.public_key().as_ref()[1..].split_at(32);
        let public = Public {
            name_alg: HashAlg::Sha256,
            attributes: attributes::SIGN | attributes::RESTRICTED,
            auth_policy: Vec::new(),
            kind: PublicKind::Ecc {
                symmetric: SymDef::Null,
                scheme: Scheme::Ecdsa(HashAlg::Sha256),
                curve: Curve::P256,
                kdf: Scheme::Null,
                x: x.to_vec(),
                y: y.to_vec(),
            },
        };
        Made {
            signature: Signature::Ecdsa {
                hash: HashAlg::Sha256,
                r: r.to_vec(),
                s: s.to_vec(),
            }
            .encode(),
            public: public.encode(),
            attest,
            values,
        }
    }
}

fn look(files: &[(&str, &[u8])], nonce: Option<&[u8]>) -> Value {
    let sources: Vec<Source<'_>> = files
        .iter()
        .map(|&(name, octets)| Source { name, octets })
        .collect();
    serde_json::from_str(&quote(&sources, nonce).0).unwrap()
}

#[test]
fn a_quote_of_separate_files_is_verified_and_one_changed_octet_is_not() {
    let made = made::quote(b"asked");
    let values = made.values.concat();
    let look = |attest: &[u8], values: &[u8]| {
        let files = [
            ("q", attest),
            ("s", made.signature.as_slice()),
            ("k", made.public.as_slice()),
            ("v", values),
        ];
        look(&files, Some(b"asked"))["attests"][0].clone()
    };
    let good = look(&made.attest, &values);
    assert_eq!(good["type"], "quote");
    assert_eq!(good["nonce_matches"], true);
    assert_eq!(good["signature"]["valid"], true);
    assert_eq!(good["signature"]["key"]["at"], "k");
    assert_eq!(good["signature"]["key"]["restricted"], true);
    assert_eq!(good["pcrs"]["digest_matches"], true);
    let mut forged = made.attest.clone();
    *forged.last_mut().unwrap() ^= 1;
    let bad = look(&forged, &values);
    assert_eq!(bad["signature"]["valid"], false);
    assert_eq!(bad["signature"]["error"]["code"], "quote.signature");
    assert_eq!(bad["pcrs"]["digest_matches"], false);
    let mut other = values.clone();
    other[40] ^= 1;
    assert_eq!(look(&made.attest, &other)["pcrs"]["digest_matches"], false);
}

#[test]
fn one_json_with_everything_and_a_nonce_that_was_not_asked() {
    let made = made::quote(b"other");
    let values: Vec<String> = made.values.iter().map(hex::encode).collect();
    let evidence = serde_json::json!({
        "tpm": {
            "message": hex::encode(&made.attest),
            "sig": made.signature,
            "ak": hex::encode(&made.public),
            "pcrs": values,
        }
    });
    let line = look(&[("e", evidence.to_string().as_bytes())], Some(b"asked"));
    let attest = &line["attests"][0];
    assert_eq!(attest["at"], "e.tpm.message");
    assert_eq!(attest["nonce_matches"], false);
    assert_eq!(attest["signature"]["valid"], true);
    assert_eq!(attest["pcrs"]["digest_matches"], true);
}

#[test]
fn rejects_files_without_an_attestation_each_with_its_code() {
    let made = made::quote(b"asked");
    let old = hex::encode(b"\x01\x01\x00\x00QUOT0123456789");
    for (file, code) in [
        (made.public.as_slice(), "quote.absent"),
        (&[][..], "quote.absent"),
        (&made.attest[..made.attest.len() - 1], "quote.malformed"),
        (old.as_bytes(), "quote.tpm12"),
    ] {
        let line = look(&[("f", file)], None);
        assert_eq!(line["error"]["code"], code, "{line}");
        assert_eq!(line["attests"].as_array().unwrap().len(), 0, "{line}");
    }
}

#[test]
fn a_key_that_cannot_sign_is_no_reason_to_call_a_signature_bad() {
    let made = made::quote(b"asked");
    let files = [("q", made.attest.as_slice()), ("s", &made.signature)];
    let line = look(&files, None);
    assert_eq!(line["attests"][0]["signature"]["valid"], Value::Null);
    assert_eq!(
        line["attests"][0]["signature"]["error"]["code"],
        "quote.no_key"
    );
}

#[test]
fn trustee_295_a_padded_nonce_is_another_nonce() {
    let made = made::quote(&[&[7; 48][..], &[0; 16]].concat());
    let nonce_matches = |nonce: &[u8]| {
        let line = look(&[("q", &made.attest)], Some(nonce));
        line["attests"][0]["nonce_matches"].clone()
    };
    assert_eq!(nonce_matches(&[7; 48]), false);
    assert_eq!(nonce_matches(&[&[7; 48][..], &[0; 16]].concat()), true);
}

#[test]
fn webauthn_server_17_ecc_parameters_are_read_in_their_order() {
    let made = made::quote(b"asked");
    let key = &look(&[("k", &made.public)], None)["keys"][0];
    assert_eq!(
        (&key["type"], &key["curve"]),
        (&"ecc".into(), &"P-256".into())
    );
    // type, nameAlg, attributes, policy, symmetric, scheme with its hash, curve, kdf, point
    assert_eq!(
        made.public.len(),
        2 + 2 + 4 + 2 + 2 + 4 + 2 + 2 + 2 * (2 + 32)
    );
}

#[test]
fn pytss_555_a_key_from_pem_verifies_but_has_no_name() {
    use attest_wire::tpm::Public;
    use base64::Engine as _;
    let made = made::quote(b"asked");
    let der = Public::decode(&made.public).unwrap().spki_der().unwrap();
    let words = base64::engine::general_purpose::STANDARD.encode(der);
    let pem = format!("-----BEGIN PUBLIC KEY-----\n{words}\n-----END PUBLIC KEY-----\n");
    let files = [
        ("q", made.attest.as_slice()),
        ("s", &made.signature),
        ("k", pem.as_bytes()),
    ];
    let line = look(&files, None);
    let signature = &line["attests"][0]["signature"];
    assert_eq!(signature["valid"], true, "{line}");
    assert_eq!(signature["key"]["name"], Value::Null);
    assert_eq!(signature["key"]["restricted"], Value::Null);
}

#[test]
fn damage_anywhere_is_an_error_or_a_false_and_never_a_panic() {
    let made = made::quote(b"asked");
    let evidence = serde_json::json!({ "m": hex::encode(&made.attest), "s": made.signature });
    let whole = evidence.to_string().into_bytes();
    for file in [whole.as_slice(), &made.attest, &made.values.concat()] {
        for cut in 0..file.len() {
            look(&[("f", &file[..cut])], None);
            let mut changed = file.to_vec();
            changed[cut] ^= 0x55;
            look(&[("f", &changed)], None);
        }
    }
}

/// The handed field files; `None` without them.
fn corpus() -> Option<PathBuf> {
    let root = std::env::var_os("VESTIBULE_CORPUS").map(PathBuf::from);
    if root.is_none() {
        println!("SKIP VESTIBULE_CORPUS is not set");
    }
    root
}

#[derive(Default)]
struct Counts {
    files: usize,
    fields: usize,
    signatures: usize,
    digests: usize,
    differ: Vec<String>,
}

impl Counts {
    fn field(&mut self, subject: &str, name: &str, ours: &Value, theirs: &Value) {
        self.fields += 1;
        let number = |value: &Value| match value {
            Value::String(text) => {
                let digits = text.strip_prefix("0x")?;
                u64::from_str_radix(digits, 16).ok()
            }
            Value::Bool(value) => Some(u64::from(*value)),
            other => other.as_u64(),
        };
        let same = ours == theirs || number(ours).is_some_and(|ours| number(theirs) == Some(ours));
        if !same {
            let line = format!("{subject}: {name}: ours {ours}, expected {theirs}");
            self.differ.push(line);
        }
    }

    fn attest(&mut self, subject: &str, ours: &Value, theirs: &Value) {
        for (name, expected) in [
            ("qualified_signer", "qualifiedSigner"),
            ("extra_data", "extraData"),
            ("clock", "clock"),
            ("reset_count", "resetCount"),
            ("restart_count", "restartCount"),
            ("safe", "safe"),
            ("firmware_version", "firmwareVersion"),
            ("pcr_digest", "pcrDigest"),
            ("object_name", "creationObjectName"),
            ("creation_hash", "creationHash"),
            ("trailing", "trailing"),
        ] {
            if let Some(theirs) = theirs.get(expected) {
                self.field(subject, name, &ours[name], theirs);
            }
        }
        let types = BTreeMap::from([
            ("0x8018", "quote"),
            ("0x801a", "creation"),
            ("0x8017", "certify"),
        ]);
        let kind = types[theirs["type"].as_str().unwrap()];
        self.field(subject, "type", &ours["type"], &kind.into());
        for (index, selected) in theirs["pcrSelect"]
            .as_array()
            .into_iter()
            .flatten()
            .enumerate()
        {
            let selection = &ours["pcr_select"][index];
            self.field(subject, "pcrs", &selection["pcrs"], &selected["pcrs"]);
            let banks = BTreeMap::from([("0x4", "sha1"), ("0xb", "sha256"), ("0xc", "sha384")]);
            let bank = banks[selected["hash"].as_str().unwrap()];
            self.field(subject, "hash", &selection["hash"], &bank.into());
        }
    }
}

fn expectation(root: &Path, name: &str) -> Value {
    let file = root.join("expected").join(format!("quote__{name}.json"));
    serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
}

#[test]
fn attestations_of_the_field_agree_with_other_tools() {
    let Some(root) = corpus() else { return };
    let mut names: Vec<String> = std::fs::read_dir(root.join("quote"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let read = |name: &str| std::fs::read(root.join("quote").join(name)).unwrap();
    let expected: BTreeMap<&str, Value> = names
        .iter()
        .map(|name| (name.as_str(), expectation(&root, name)))
        .collect();
    let mut counts = Counts::default();
    for name in &names {
        let expect = &expected[name.as_str()];
        // The file first, then what belongs to the same evidence.
        let group = &expect["group"];
        let others = names.iter().filter(|other| {
            *other != name && !group.is_null() && expected[other.as_str()]["group"] == *group
        });
        let files: Vec<(&str, Vec<u8>)> = std::iter::once(name)
            .chain(others)
            .map(|name| (name.as_str(), read(name)))
            .collect();
        let sources: Vec<(&str, &[u8])> = files.iter().map(|(n, f)| (*n, f.as_slice())).collect();
        let line = look(&sources, None);
        counts.files += 1;
        for (member, signature) in [
            ("attest", "signature"),
            ("ak_creation_attest", "ak_creation_signature"),
        ] {
            let Some(theirs) = expect.get(member) else {
                continue;
            };
            let kind = if member == "attest" {
                "quote"
            } else {
                "creation"
            };
            let ours = line["attests"].as_array().unwrap().iter().find(|ours| {
                ours["type"] == kind && ours["at"].as_str().unwrap().starts_with(name.as_str())
            });
            let Some(ours) = ours else {
                counts
                    .differ
                    .push(format!("{name}: no {kind} found: {line}"));
                continue;
            };
            counts.attest(name, ours, theirs);
            if expect[signature] == "valid" {
                counts.signatures += 1;
                counts.field(name, "valid", &ours["signature"]["valid"], &true.into());
            }
            if expect.get("pcr_digest_matches").is_some() && member == "attest" {
                counts.digests += 1;
                let matches = &ours["pcrs"]["digest_matches"];
                counts.field(name, "digest_matches", matches, &true.into());
            }
        }
        if let Some(sig) = expect.get("sig") {
            let ours = &line["attests"][0]["signature"];
            assert_eq!(
                (sig["alg"].as_str(), ours["alg"].as_str()),
                (Some("0x14"), Some("rsassa"))
            );
            assert_eq!(
                (sig["hash"].as_str(), ours["hash"].as_str()),
                (Some("0x4"), Some("sha1"))
            );
        }
    }
    println!(
        "quote: {} files, {} fields, {} signatures, {} digests of values; {} differ",
        counts.files,
        counts.fields,
        counts.signatures,
        counts.digests,
        counts.differ.len()
    );
    assert!(counts.differ.is_empty(), "{}", counts.differ.join("\n"));
    assert!(counts.fields >= 100 && counts.signatures >= 5 && counts.digests >= 2);
}

#[test]
fn safeboot_53_a_golden_value_that_the_quote_does_not_have_is_seen() {
    let Some(root) = corpus() else { return };
    let read = |name: &str| std::fs::read(root.join("quote").join(name)).unwrap();
    let (attest, key) = (
        read("safeboot__t490_quote.out"),
        read("safeboot__t490_ak.pub"),
    );
    let (sig, printed) = (
        read("safeboot__t490_quote.sig"),
        read("safeboot__pcrs-t490.txt"),
    );
    let text = String::from_utf8(printed).unwrap();
    let look = |values: &str| {
        let files = [
            ("q", attest.as_slice()),
            ("k", key.as_slice()),
            ("s", sig.as_slice()),
            ("v", values.as_bytes()),
        ];
        look(&files, Some(&[0xab, 0xcd, 0xef]))["attests"][0].clone()
    };
    // What the tool printed has lost a leading zero of PCR 0.
    let good = look(&text);
    assert_eq!(good["signature"]["valid"], true, "{good}");
    assert_eq!(good["pcrs"]["digest_matches"], true, "{good}");
    let bad = look(&text.replace("0xC28F", "0xD28F"));
    assert_eq!(bad["pcrs"]["digest_matches"], false, "{bad}");
}

#[test]
fn the_program_says_by_its_exit_code_whether_there_is_an_attestation() {
    let dir = tempfile::tempdir().unwrap();
    let made = made::quote(b"asked");
    let path = |name: &str, octets: &[u8]| {
        let path = dir.path().join(name);
        std::fs::write(&path, octets).unwrap();
        path
    };
    let (attest, key) = (path("q", &made.attest), path("k", &made.public));
    let run = |args: &[&std::ffi::OsStr]| {
        Command::new(env!("CARGO_BIN_EXE_vestibule"))
            .args(["inspect", "quote"])
            .args(args)
            .output()
            .unwrap()
    };
    let whole = run(&[
        attest.as_os_str(),
        "--with".as_ref(),
        key.as_os_str(),
        "--with".as_ref(),
        path("s", &made.signature).as_os_str(),
        "--nonce".as_ref(),
        hex::encode("asked").as_ref(),
    ]);
    assert_eq!(whole.status.code(), Some(0));
    let line: Value = serde_json::from_slice(&whole.stdout).unwrap();
    assert_eq!(line["attests"][0]["signature"]["valid"], true, "{line}");
    assert_eq!(run(&[key.as_os_str()]).status.code(), Some(1));
    assert_eq!(run(&["/nowhere".as_ref()]).status.code(), Some(2));
    let nonce = run(&[attest.as_os_str(), "--nonce".as_ref(), "xyz".as_ref()]);
    assert_eq!(nonce.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&nonce.stderr).contains("--nonce: expected hex"));
}

//! Real event logs, quotes and certificates from the field, compared with what other tools say.
//!
//! Reads the folder named by `VESTIBULE_CORPUS`; without it each test prints `SKIP` and passes.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use attest_wire::tpm::{
    Attest, AttestBody, HashAlg, Public, PublicKind, Scheme, Signature, SymDef, strip_tpm2b,
};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use gateway_core::appraisal::ek::EkRoots;
use gateway_core::appraisal::eventlog::{Format, Log};
use gateway_core::appraisal::verify_tpm_signature;
use gateway_core::appraisal::x509::{Cert, CertKey, RsaUse};
use serde_json::Value;

fn corpus() -> Option<PathBuf> {
    let folder = std::env::var_os("VESTIBULE_CORPUS");
    if folder.is_none() {
        println!("SKIP VESTIBULE_CORPUS is not set");
    }
    folder.map(PathBuf::from)
}

/// Every expected-values file whose name begins with `kind__`, with the bytes it speaks about.
fn cases(root: &Path, kind: &str) -> Vec<(String, Value, Vec<u8>)> {
    let mut out = Vec::new();
    for entry in std::fs::read_dir(root.join("expected")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if !name.starts_with(&format!("{kind}__")) {
            continue;
        }
        let expected: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let file = expected["file"].as_str().unwrap().to_owned();
        let bytes = std::fs::read(root.join(&file)).unwrap();
        out.push((file, expected, bytes));
    }
    out.sort_by(|a, b| a.0.cmp(&b.0));
    out
}

#[test]
fn event_logs_replay_to_the_expected_pcrs() {
    let Some(root) = corpus() else { return };
    let (mut files, mut values, mut refused, mut foreign) = (0, 0, 0, 0);
    for (file, expected, bytes) in cases(&root, "eventlog") {
        files += 1;
        let complete = expected["replay"]["complete"].as_bool().unwrap();
        let log = match Log::parse(&bytes) {
            Ok(log) => log,
            Err(error) => {
                assert!(!complete, "{file}: {error}");
                refused += 1;
                continue;
            }
        };
        assert!(complete, "{file}: must be refused");
        let layout = match log.format {
            Format::Sha1 => "sha1-legacy",
            Format::CryptoAgile | Format::Ccel => "crypto-agile",
        };
        assert_eq!(expected["replay"]["format"], layout, "{file}");
        let confidential = log.format == Format::Ccel;
        assert_eq!(expected["subkind"] == "ccel", confidential, "{file}");
        let events = expected["replay"]["events"].as_u64().unwrap() as usize;
        assert_eq!(log.count(), events, "{file}");
        let padding = expected["replay"]["padding_from"].as_u64();
        assert_eq!(log.padding_from.map(|at| at as u64), padding, "{file}");
        for (bank, pcrs) in expected["expected_pcrs"].as_object().unwrap() {
            let Some(alg) = HashAlg::ALL.into_iter().find(|alg| alg.name() == bank) else {
                foreign += 1;
                continue;
            };
            let replay = log.replay(alg).unwrap();
            let found: BTreeMap<String, String> = replay
                .iter()
                .map(|(pcr, value)| (pcr.to_string(), hex::encode(value)))
                .collect();
            let want: BTreeMap<String, String> = pcrs
                .as_object()
                .unwrap()
                .iter()
                .map(|(pcr, value)| (pcr.clone(), value.as_str().unwrap().to_owned()))
                .collect();
            assert_eq!(found, want, "{file} {bank}");
            values += want.len();
        }
    }
    println!(
        "{files} logs, {values} PCR values equal, {refused} refused, {foreign} banks of unknown hash"
    );
    assert!(files >= 38 && values >= 400, "the corpus shrank");
}

#[test]
fn damaged_logs_never_panic_and_never_replay_to_the_true_values() {
    let Some(root) = corpus() else { return };
    let path = root.join("eventlog/tpm2-tools__event-sd-boot-fedora37.bin");
    let bytes = std::fs::read(path).unwrap();
    let honest = Log::parse(&bytes).unwrap().replay(HashAlg::Sha256).unwrap();
    for len in 0..bytes.len() {
        if let Ok(log) = Log::parse(&bytes[..len]) {
            assert_ne!(log.replay(HashAlg::Sha256), Some(honest.clone()), "{len}");
        }
    }
    let mut damaged = bytes.clone();
    for at in 0..bytes.len() {
        damaged[at] ^= 0x41;
        let _ = Log::parse(&damaged).map(|log| log.replay(HashAlg::Sha256));
        damaged[at] ^= 0x41;
    }
}

fn verified(public: &Public, attest: &[u8], signature: &[u8]) -> Result<Attest, String> {
    let signature = Signature::decode(signature).map_err(|e| e.to_string())?;
    verify_tpm_signature(public, attest, &signature)?;
    Attest::decode(attest).map_err(|e| e.to_string())
}

/// Values of a tpm2-tools "pcrs" file for one bank: 12-byte TPML_DIGEST slots of 64 bytes.
fn tools_pcrs(file: &[u8]) -> Vec<Vec<u8>> {
    let counts = &file[4 + 16 * 8..];
    let count = u32::from_le_bytes(counts[4..8].try_into().unwrap()) as usize;
    (0..count)
        .map(|slot| {
            let at = 8 + slot * 66;
            let size = u16::from_le_bytes(counts[at..at + 2].try_into().unwrap()) as usize;
            counts[at + 2..at + 2 + size].to_vec()
        })
        .collect()
}

fn digest_of(attest: &Attest) -> &[u8] {
    let AttestBody::Quote { pcr_digest, .. } = &attest.body else {
        panic!("no quote");
    };
    pcr_digest
}

#[test]
fn quote_of_a_laptop_verifies_and_a_wrong_golden_value_fails() {
    let Some(root) = corpus() else { return };
    let read = |name: &str| std::fs::read(root.join("quote").join(name)).unwrap();
    let ak = Public::decode(&read("safeboot__t490_ak.pub")).unwrap();
    let message = read("safeboot__t490_quote.out");
    let signature = read("safeboot__t490_quote.sig");
    let attest = verified(&ak, &message, &signature).unwrap();
    assert_eq!(hex::encode(&attest.extra_data), "abcdef");
    assert_eq!(
        (attest.clock.reset_count, attest.clock.restart_count),
        (35, 4)
    );
    let mut values = tools_pcrs(&read("safeboot__t490_quote.pcr"));
    assert_eq!(values.len(), 4);
    let digest = |values: &[Vec<u8>]| {
        let parts: Vec<&[u8]> = values.iter().map(Vec::as_slice).collect();
        HashAlg::Sha256.digest(&parts)
    };
    assert_eq!(digest(&values), digest_of(&attest));
    // osresearch/safeboot#53: PCR 4 changed from c28f.. to d28f.. must fail.
    assert_eq!(values[3][..2], [0xc2, 0x8f]);
    values[3][0] = 0xd2;
    assert_ne!(digest(&values), digest_of(&attest));
    // The same boot's event log replays to the quoted values.
    let log = std::fs::read(root.join("eventlog/safeboot__t490_eventlog.bin")).unwrap();
    let replay = Log::parse(&log).unwrap().replay(HashAlg::Sha256).unwrap();
    values[3][0] = 0xc2;
    let replayed: Vec<Vec<u8>> = [0, 1, 2, 4].map(|pcr| replay[&pcr].clone()).to_vec();
    assert_eq!(replayed, values);
    let mut forged = message;
    forged[40] ^= 1;
    assert!(verified(&ak, &forged, &signature).is_err());
}

#[test]
fn quote_and_names_of_keylime_verify() {
    let Some(root) = corpus() else { return };
    let read = |name: &str| std::fs::read(root.join("quote").join(name)).unwrap();
    let public = read("keylime__kl_ak.pub");
    let ak = Public::decode(strip_tpm2b("TPM2B_PUBLIC", &public).unwrap()).unwrap();
    assert_eq!(ak.name().as_bytes(), read("keylime__kl_ak.name"));
    let message = read("keylime__kl_quote.out");
    let attest = verified(&ak, &message, &read("keylime__kl_quotesig.out")).unwrap();
    assert_eq!(attest.extra_data, read("keylime__kl_rand.out"));
    let AttestBody::Quote { pcr_select, .. } = &attest.body else {
        panic!("no quote");
    };
    assert_eq!(pcr_select[0].pcrs(), [15, 16, 22]);
    let ek = read("keylime__kl_ek.pub");
    let ek = Public::decode(strip_tpm2b("TPM2B_PUBLIC", &ek).unwrap()).unwrap();
    attest_wire::templates::ek_template(&ek).unwrap();
    let vectors: Value =
        serde_json::from_slice(&read("keylime__tpm2_objects_vectors.json")).unwrap();
    let value = |name: &str| {
        let found = vectors
            .as_array()
            .unwrap()
            .iter()
            .find(|v| v["name"] == name);
        found.unwrap()["value"].as_str().unwrap().to_owned()
    };
    let public = STANDARD.decode(value("test_pub")).unwrap();
    let public = Public::decode(strip_tpm2b("TPM2B_PUBLIC", &public).unwrap()).unwrap();
    assert_eq!(public.name().to_hex(), value("test_pub_correct_name"));
}

#[test]
fn quote_and_creation_of_a_windows_machine_verify() {
    let Some(root) = corpus() else { return };
    let path = root.join("quote/go-attestation__windows_gcp_shielded_vm.json");
    let dump: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let bytes = |value: &Value| STANDARD.decode(value.as_str().unwrap()).unwrap();
    let ak = Public::decode(&bytes(&dump["AK"]["Public"])).unwrap();
    let quote = &dump["Quote"];
    let attest = verified(&ak, &bytes(&quote["Quote"]), &bytes(&quote["Signature"])).unwrap();
    let pcrs: BTreeMap<u64, Vec<u8>> = dump["Log"]["PCRs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|pcr| (pcr["Index"].as_u64().unwrap(), bytes(&pcr["Digest"])))
        .collect();
    let parts: Vec<&[u8]> = pcrs.values().map(Vec::as_slice).collect();
    // Only the SHA-1 bank is quoted: our row 9 would refuse it.
    assert_eq!(HashAlg::Sha1.digest(&parts), digest_of(&attest));
    let raw = bytes(&dump["Log"]["Raw"]);
    let replay = Log::parse(&raw).unwrap().replay(HashAlg::Sha1).unwrap();
    for (pcr, value) in replay {
        assert_eq!(pcrs[&u64::from(pcr)], value, "PCR {pcr}");
    }
    let created = verified(
        &ak,
        &bytes(&dump["AK"]["CreateAttestation"]),
        &bytes(&dump["AK"]["CreateSignature"]),
    )
    .unwrap();
    let AttestBody::Creation { object_name, .. } = created.body else {
        panic!("no creation");
    };
    assert_eq!(object_name, ak.name().as_bytes());
}

#[test]
fn quote_of_a_software_tpm_verifies_with_padded_nonce() {
    let Some(root) = corpus() else { return };
    let path = root.join("quote/trustee__tpm_evidence.json");
    let dump: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let bytes = |value: &Value| STANDARD.decode(value.as_str().unwrap()).unwrap();
    let quote = &dump["tpm_quote"];
    let ak = rsa_public(&bytes(&dump["ak_public"]));
    let attest = verified(&ak, &bytes(&quote["message"]), &bytes(&quote["signature"])).unwrap();
    // confidential-containers/trustee#295: a 48-byte nonce padded to 64; lengths are compared.
    assert_eq!(attest.extra_data.len(), 64);
    let values: Vec<Vec<u8>> = quote["pcrs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|value| hex::decode(value.as_str().unwrap()).unwrap())
        .collect();
    let parts: Vec<&[u8]> = values.iter().map(Vec::as_slice).collect();
    assert_eq!(HashAlg::Sha256.digest(&parts), digest_of(&attest));
}

/// A signing key from a SubjectPublicKeyInfo; only modulus and exponent matter here.
fn rsa_public(spki: &[u8]) -> Public {
    use x509_parser::prelude::FromDer as _;
    let (_, spki) = x509_parser::x509::SubjectPublicKeyInfo::from_der(spki).unwrap();
    let (_, key) =
        x509_parser::public_key::RSAPublicKey::from_der(&spki.subject_public_key.data).unwrap();
    Public {
        name_alg: HashAlg::Sha256,
        attributes: 0,
        auth_policy: Vec::new(),
        kind: PublicKind::Rsa {
            symmetric: SymDef::Null,
            scheme: Scheme::Null,
            key_bits: 2048,
            exponent: 0,
            modulus: key.modulus.to_vec(),
        },
    }
}

#[test]
fn structures_of_go_attestation_decode_and_the_genuine_ones_verify() {
    let Some(root) = corpus() else { return };
    let path = root.join("quote/go-attestation__activation_vectors.json");
    let vectors: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let (mut publics, mut attests, mut signatures) = (vec![], vec![], vec![]);
    for vector in vectors.as_array().unwrap() {
        let bytes = STANDARD.decode(vector["base64"].as_str().unwrap()).unwrap();
        match vector["field"].as_str().unwrap() {
            "Public" => publics.push(Public::decode(&bytes).unwrap()),
            "CreateAttestation" => attests.push(bytes),
            "CreateSignature" => signatures.push(Signature::decode(&bytes).unwrap()),
            _ => {}
        }
    }
    let names: Vec<Vec<u8>> = publics
        .iter()
        .map(|p| p.name().as_bytes().to_vec())
        .collect();
    let mut genuine = 0;
    for attest in &attests {
        let AttestBody::Creation { object_name, .. } = Attest::decode(attest).unwrap().body else {
            panic!("no creation");
        };
        if let Some(at) = names.iter().position(|name| *name == object_name) {
            let key = &publics[at];
            genuine += usize::from(
                signatures
                    .iter()
                    .any(|signature| verify_tpm_signature(key, attest, signature).is_ok()),
            );
        }
    }
    println!(
        "{} publics, {} attestations, {genuine} verify",
        publics.len(),
        attests.len()
    );
    assert!(genuine >= 1);
}

/// Certificates of one file: PEM blocks or one DER.
fn certs_of(bytes: &[u8]) -> Vec<Result<Cert, String>> {
    if bytes.windows(10).any(|w| w == b"-----BEGIN") {
        x509_parser::pem::Pem::iter_from_buffer(bytes)
            .filter_map(Result::ok)
            .filter(|block| block.label == "CERTIFICATE")
            .map(|block| Cert::parse(&block.contents).map_err(|e| e.to_string()))
            .collect()
    } else {
        vec![Cert::parse(bytes).map_err(|e| e.to_string())]
    }
}

fn sha256_hex(bytes: &[u8]) -> String {
    hex::encode(HashAlg::Sha256.digest(&[bytes]))
}

#[test]
fn ek_certificates_parse_as_expected() {
    let Some(root) = corpus() else { return };
    let mut compared = 0;
    for (file, expected, bytes) in cases(&root, "ekcert") {
        let certs = certs_of(&bytes);
        for (cert, want) in certs.iter().zip(expected["certs"].as_array().unwrap()) {
            let cert = cert.as_ref().unwrap_or_else(|e| panic!("{file}: {e}"));
            assert_eq!(sha256_hex(&cert.der), want["der_sha256"], "{file}");
            assert_eq!(hex::encode(&cert.serial), want["serial_raw"], "{file}");
            if let Some(model) = want["san_tpm"]["model"].as_str() {
                let tpm = cert
                    .tpm
                    .as_ref()
                    .unwrap_or_else(|| panic!("{file}: no names"));
                assert_eq!(tpm.model, model, "{file}");
                assert_eq!(want["san_tpm"]["manufacturer"], tpm.manufacturer, "{file}");
                assert_eq!(want["san_tpm"]["version"], tpm.version, "{file}");
            }
            if want["observation"]
                .as_str()
                .is_some_and(|o| o.contains("OAEP"))
            {
                let oaep = matches!(
                    cert.key,
                    CertKey::Rsa {
                        usage: RsaUse::OaepOnly,
                        ..
                    }
                );
                assert!(oaep, "{file}");
            }
            assert!(!matches!(cert.key, CertKey::Other(_)), "{file}");
            compared += 1;
        }
    }
    println!("{compared} EK certificates compared");
    assert!(compared >= 18, "the corpus shrank");
}

#[test]
fn ca_certificates_parse_and_sign_the_ek_certificates() {
    let Some(root) = corpus() else { return };
    let mut authorities = Vec::new();
    let (mut files, mut refused) = (0, 0);
    for (file, expected, bytes) in cases(&root, "ca") {
        files += 1;
        let certs = certs_of(&bytes);
        let want = expected["certs"].as_array().unwrap();
        assert_eq!(certs.len(), want.len(), "{file}");
        for (cert, want) in certs.into_iter().zip(want) {
            let readable = want["openssl_ok"].as_bool() != Some(false);
            match cert {
                Ok(cert) => {
                    assert!(readable, "{file}: must be refused");
                    assert_eq!(sha256_hex(&cert.der), want["der_sha256"], "{file}");
                    authorities.push(cert);
                }
                Err(error) => {
                    assert!(!readable, "{file}: {error}");
                    refused += 1;
                }
            }
        }
        let _ = EkRoots::default().add(&bytes);
    }
    let mut signed = 0;
    let mut expected_signed = 0;
    for (file, expected, bytes) in cases(&root, "ekcert") {
        let verdict = &expected["certs"][0]["chain_against_collected_CAs"];
        let ok = verdict["openssl_verify_ignore_critical_no_time_partial"] == "OK";
        let leaf = certs_of(&bytes).remove(0).unwrap();
        let found = authorities
            .iter()
            .any(|ca| ca.subject == leaf.issuer && leaf.signed_by(ca));
        if ok {
            expected_signed += 1;
            assert!(found, "{file}: OpenSSL finds the issuer, we do not");
        }
        signed += usize::from(found);
    }
    println!(
        "{files} files, {} CA certificates, {refused} refused; {signed} EK certificates signed by one \
         ({expected_signed} by OpenSSL)",
        authorities.len()
    );
    assert!(files >= 100, "the corpus shrank");
}

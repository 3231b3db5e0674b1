//! `vestibule inspect ek`, the real program, against what OpenSSL, pyca/cryptography and Go say of
//! every handed certificate; and damaged certificates, which give errors and never a panic.

use std::collections::BTreeMap;
use std::path::Path;

use gateway::inspect::ek::inspect;
use serde_json::Value;

use super::{Random, corpus, vestibule};

/// What the program says of a file, and its exit code.
fn said(path: &Path) -> (Value, i32) {
    let output = vestibule("ek", path);
    let lines = super::lines(&output);
    assert_eq!(lines.len(), 1, "{}: one object", path.display());
    let code = output.status.code().expect("an exit code");
    (lines.into_iter().next().unwrap(), code)
}

fn expected_of(kind: &str, path: &Path) -> (String, String) {
    let name = path.file_name().unwrap().to_string_lossy().into_owned();
    let folder = path.parent().unwrap().with_file_name("expected");
    let text = std::fs::read_to_string(folder.join(format!("{kind}__{name}.json"))).unwrap();
    (name, text)
}

/// Counts and differences.
#[derive(Default)]
struct Agreement {
    files: usize,
    certs: usize,
    refused: usize,
    fields: BTreeMap<&'static str, usize>,
    differ: Vec<String>,
    /// What another tool cannot read and we do, by tool.
    beyond: BTreeMap<&'static str, usize>,
}

impl Agreement {
    fn same(&mut self, subject: &str, name: &'static str, ours: &str, theirs: &str) {
        *self.fields.entry(name).or_default() += 1;
        if ours != theirs {
            self.differ
                .push(format!("{subject} {name}: {ours:?}, expected {theirs:?}"));
        }
    }

    fn text(&mut self, subject: &str, name: &'static str, ours: &Value, theirs: &Value) {
        let (Some(ours), Some(theirs)) = (ours.as_str(), theirs.as_str()) else {
            return;
        };
        self.same(subject, name, ours, theirs);
    }

    fn cert(&mut self, subject: &str, ours: &Value, theirs: &Value, key: &str) {
        self.certs += 1;
        let fine = theirs["openssl_ok"] == true;
        self.same(
            subject,
            "readable",
            &ours["error"].is_null().to_string(),
            &fine.to_string(),
        );
        if !fine {
            self.refused += 1;
            let code = ours["error"]["code"].as_str().unwrap_or_default();
            self.same(subject, "error", code, "ek.cert.encoding");
            return;
        }
        self.text(
            subject,
            "der_sha256",
            &ours["der_sha256"],
            &theirs["der_sha256"],
        );
        self.text(subject, "serial", &ours["serial"], &theirs["serial_raw"]);
        self.text(
            subject,
            "serial_number",
            &ours["serial_number"],
            &theirs["openssl_serial"],
        );
        self.text(
            subject,
            "subject",
            &ours["subject"],
            &theirs["openssl_subject"],
        );
        self.text(
            subject,
            "issuer",
            &ours["issuer"],
            &theirs["openssl_issuer"],
        );
        self.text(
            subject,
            "signature",
            &ours["signature"],
            &theirs["signature_oid"],
        );
        for (ours, theirs, name) in [
            (
                &ours["not_before"],
                &theirs["openssl_notBefore"],
                "not_before",
            ),
            (&ours["not_after"], &theirs["openssl_notAfter"], "not_after"),
        ] {
            let theirs = openssl_time(theirs.as_str().expect("a time"));
            self.same(subject, name, ours.as_str().unwrap_or_default(), &theirs);
        }
        if let Some(theirs) = theirs["key"].as_str() {
            let part = match &ours["key"] {
                Value::Object(key) if key.contains_key("bits") => key["bits"].to_string(),
                key => key["curve"].as_str().unwrap_or_default().to_owned(),
            };
            let ours = format!(
                "{}-{part}",
                ours["key"]["type"].as_str().unwrap_or_default()
            );
            self.same(subject, "key", &ours, theirs);
        }
        for name in ["manufacturer", "model", "version"] {
            let theirs = &theirs["san_tpm"][name];
            self.text(subject, "tpm", &ours["tpm"][name], theirs);
            if ours["tpm"][name].is_null() != theirs.is_null() {
                self.differ
                    .push(format!("{subject} tpm.{name}: {} {theirs}", ours["tpm"]));
            }
        }
        let has = |id: &str| ours["quirks"].as_array().unwrap().iter().any(|q| q == id);
        let flags = [
            (
                "serial negative",
                has("Q09-ek-cert-serial-negative"),
                theirs["serial_negative"] == true,
            ),
            (
                "serial not minimal",
                has("Q03-ek-cert-serial"),
                theirs["serial_nonminimal"] == true,
            ),
            (
                "padded",
                has("Q01-ek-cert-padded"),
                octets_around(theirs) > 0,
            ),
            (
                "ca",
                ours["ca"] == true,
                theirs["go1.19_crypto_x509"]["isca"] == true,
            ),
            (
                "subject empty",
                has("Q20-ek-cert-subject-empty"),
                theirs["openssl_subject"] == "",
            ),
            (
                "set unsorted",
                has("Q11-ek-cert-name-unsorted"),
                unsorted(theirs),
            ),
        ];
        for (name, ours, theirs) in flags {
            self.same(subject, name, &ours.to_string(), &theirs.to_string());
        }
        // What cannot be read at all has no word on its key.
        if theirs["cryptography_ok"] == true {
            let ours = has("Q02-ek-cert-oaep-oid").to_string();
            self.same(
                subject,
                "oaep",
                &ours,
                &theirs["key_error"].is_string().to_string(),
            );
        }
        let form = ours["form"]
            .as_str()
            .unwrap_or_default()
            .replace("nv-header", "der");
        self.same(
            subject,
            "form",
            &form,
            theirs["encoding"].as_str().unwrap_or_default(),
        );
        let padding = octets_around(theirs).to_string();
        self.same(subject, "padding", &ours["padding"].to_string(), &padding);
        self.extensions(subject, ours, theirs);
        for (tool, refuses) in [
            ("cryptography", theirs["cryptography_ok"] == false),
            ("cryptography, key", theirs["key_error"].is_string()),
            (
                "go, error",
                theirs["go1.19_crypto_x509"]["error"].is_string(),
            ),
            ("go, critical extension", go_unhandled(theirs)),
            ("openssl, bare file", key == "bare"),
        ] {
            *self.beyond.entry(tool).or_default() += usize::from(refuses);
        }
        // Go does not know the names of a critical SAN; we have read them.
        if go_unhandled(theirs) {
            self.same(
                subject,
                "critical known",
                &ours["unknown_critical"].to_string(),
                "null",
            );
        }
    }

    /// The extensions that OpenSSL prints as text.
    fn extensions(&mut self, subject: &str, ours: &Value, theirs: &Value) {
        let Some(text) = theirs["openssl_extensions_text"].as_array() else {
            return;
        };
        let lines: Vec<&str> = text.iter().filter_map(Value::as_str).collect();
        for pair in lines.windows(2) {
            let [title, value] = pair else { continue };
            let title = title.split(": critical").next().unwrap_or_default();
            match title.trim_end_matches(':') {
                "X509v3 Extended Key Usage" => {
                    let theirs: Vec<&str> = value.split(", ").map(purpose).collect();
                    self.same(subject, "eku", &joined(&ours["eku"]), &theirs.join(" "));
                }
                "X509v3 Key Usage" => {
                    let theirs: Vec<&str> = value.split(", ").map(usage).collect();
                    self.same(
                        subject,
                        "key_usage",
                        &joined(&ours["key_usage"]),
                        &theirs.join(" "),
                    );
                }
                "X509v3 Subject Key Identifier" => {
                    let ours = ours["subject_key_id"].as_str().unwrap_or_default();
                    self.same(subject, "subject_key_id", ours, &plain(value));
                }
                "X509v3 Authority Key Identifier" if !value.starts_with("DirName") => {
                    let theirs = plain(value.trim_start_matches("keyid:"));
                    let ours = ours["authority_key_id"].as_str().unwrap_or_default();
                    self.same(subject, "authority_key_id", ours, &theirs);
                }
                "X509v3 Basic Constraints" => {
                    let length = ours["path_len"].as_u64();
                    let length = length.map_or(String::new(), |l| format!(", pathlen:{l}"));
                    let ca = if ours["ca"] == true {
                        "CA:TRUE"
                    } else {
                        "CA:FALSE"
                    };
                    self.same(
                        subject,
                        "basic constraints",
                        &format!("{ca}{length}"),
                        value,
                    );
                }
                _ => {}
            }
        }
        let after = |from: &str, prefix: &str| -> Vec<String> {
            let start = lines.iter().position(|line| line.starts_with(from));
            let urls = lines[start.map_or(lines.len(), |at| at + 1)..].iter();
            urls.take_while(|line| {
                !line.starts_with("X509v3") && !line.starts_with("Authority Info")
            })
            .filter_map(|line| line.strip_prefix(prefix).map(str::to_owned))
            .collect()
        };
        let crls = after("X509v3 CRL Distribution", "URI:").join(" ");
        self.same(subject, "crl_urls", &joined(&ours["crl_urls"]), &crls);
        let issuers = after("Authority Information Access", "CA Issuers - URI:").join(" ");
        self.same(
            subject,
            "ca_issuers",
            &joined(&ours["ca_issuers"]),
            &issuers,
        );
    }

    fn finish(self, kind: &str, files: usize, certs: usize, fields: usize) {
        let compared: usize = self.fields.values().sum();
        println!(
            "{kind}: {} files, {} certificates ({} refused), {compared} fields compared: {:?}",
            self.files, self.certs, self.refused, self.fields
        );
        println!("{kind}: read here and refused by {:?}", self.beyond);
        assert!(self.differ.is_empty(), "{:#?}", self.differ);
        assert!(
            self.files >= files && self.certs >= certs && compared >= fields,
            "the corpus shrank"
        );
    }
}

fn joined(list: &Value) -> String {
    let items = list.as_array().map(Vec::as_slice).unwrap_or_default();
    let items: Vec<&str> = items.iter().filter_map(Value::as_str).collect();
    items.join(" ")
}

fn plain(colons: &str) -> String {
    colons.replace(':', "").to_lowercase()
}

fn octets_around(theirs: &Value) -> u64 {
    let count = |name: &str| theirs[name].as_i64().unwrap_or(0).max(0) as u64;
    count("prefix_len") + count("trailing_len")
}

fn unsorted(theirs: &Value) -> bool {
    let error = theirs["cryptography_error"].as_str().unwrap_or_default();
    error.contains("InvalidSetOrdering")
}

fn go_unhandled(theirs: &Value) -> bool {
    let unhandled = &theirs["go1.19_crypto_x509"]["unhandled_critical"];
    unhandled.as_array().is_some_and(|list| !list.is_empty())
}

fn purpose(name: &str) -> &str {
    match name {
        "TLS Web Server Authentication" => "1.3.6.1.5.5.7.3.1",
        "TLS Web Client Authentication" => "1.3.6.1.5.5.7.3.2",
        "Code Signing" => "1.3.6.1.5.5.7.3.3",
        "OCSP Signing" => "1.3.6.1.5.5.7.3.9",
        other => other,
    }
}

fn usage(name: &str) -> &str {
    match name {
        "Digital Signature" => "digitalSignature",
        "Non Repudiation" => "nonRepudiation",
        "Key Encipherment" => "keyEncipherment",
        "Data Encipherment" => "dataEncipherment",
        "Key Agreement" => "keyAgreement",
        "Certificate Sign" => "keyCertSign",
        "CRL Sign" => "cRLSign",
        "Encipher Only" => "encipherOnly",
        "Decipher Only" => "decipherOnly",
        other => other,
    }
}

/// `Jan 17 00:00:00 2014 GMT` as RFC 3339.
fn openssl_time(text: &str) -> String {
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let parts: Vec<&str> = text.split_whitespace().collect();
    let [month, day, time, year, "GMT"] = parts[..] else {
        panic!("no time: {text}");
    };
    let month = MONTHS
        .iter()
        .position(|name| *name == month)
        .expect("a month")
        + 1;
    format!("{year}-{month:02}-{day:0>2}T{time}Z")
}

fn agrees(kind: &str, files: usize, certs: usize, fields: usize) {
    let Some(paths) = corpus(kind) else {
        return;
    };
    let mut agreement = Agreement::default();
    for path in &paths {
        let (name, expected) = expected_of(kind, path);
        let expected: Value = serde_json::from_str(&expected).unwrap();
        let (ours, code) = said(path);
        agreement.files += 1;
        let Some(theirs) = expected["certs"].as_array() else {
            continue;
        };
        let found = ours["certs"].as_array().expect("a list");
        assert_eq!(found.len(), theirs.len(), "{name}: certificates");
        let all = theirs.iter().all(|cert| cert["openssl_ok"] == true);
        assert_eq!(code, i32::from(!all), "{name}: exit code");
        assert!(ours["error"].is_null(), "{name}: {}", ours["error"]);
        let bare = expected["openssl_accepts_raw_file"] == false;
        for (index, (ours, theirs)) in found.iter().zip(theirs).enumerate() {
            let key = if bare { "bare" } else { "" };
            agreement.cert(&format!("{name}[{index}]"), ours, theirs, key);
        }
    }
    agreement.finish(kind, files, certs, fields);
}

#[test]
fn ek_certificates_agree_with_three_other_readers() {
    agrees("ekcert", 18, 18, 400);
}

#[test]
fn ca_certificates_agree_with_three_other_readers() {
    agrees("ca", 128, 310, 7000);
}

/// Certificates, and updates of the dbx: those are signed by the owners of the KEK, whose
/// certificates are in them.
#[test]
fn secure_boot_certificates_agree_and_updates_show_their_signers() {
    agrees("sbkeys", 6, 4, 90);
    let Some(paths) = corpus("sbkeys") else {
        return;
    };
    let (mut updates, mut signers) = (0, 0);
    for path in paths {
        let (_, expected) = expected_of("sbkeys", &path);
        if !expected.contains("EFI_VARIABLE_AUTHENTICATION_2") {
            continue;
        }
        updates += 1;
        let (ours, code) = said(&path);
        assert_eq!(code, 0, "{ours}");
        for cert in ours["certs"].as_array().unwrap() {
            assert_eq!(cert["form"], "pkcs7", "{cert}");
            assert!(cert["error"].is_null(), "{cert}");
            let subject = cert["subject"].as_str().unwrap();
            assert!(subject.contains("Microsoft"), "{subject}");
            signers += 1;
        }
        assert!(
            ours["others"].to_string().contains("no certificates"),
            "{}",
            ours["others"]
        );
    }
    println!("sbkeys: {updates} signed updates, {signers} certificates in them");
    assert!(updates >= 2 && signers >= 4);
}

/// A decimal number of any size as hex without leading zeros.
fn hex_of(decimal: &str) -> String {
    let mut octets: Vec<u8> = vec![0];
    for digit in decimal.bytes() {
        let mut carry = u32::from(digit - b'0');
        for octet in octets.iter_mut().rev() {
            carry += u32::from(*octet) * 10;
            *octet = carry as u8;
            carry >>= 8;
        }
        if carry > 0 {
            octets.insert(0, carry as u8);
        }
    }
    hex::encode(octets).trim_start_matches('0').to_owned()
}

/// The digits behind `"name":` in the text; numbers too large for a JSON reader stand there.
fn digits<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let at = text.find(&format!("\"{name}\":"))?;
    let rest = text[at..].split_once(':')?.1.trim_start();
    let end = rest.find(|c: char| !c.is_ascii_digit())?;
    Some(&rest[..end])
}

#[test]
fn platform_certificates_are_named_and_never_taken_for_ek_certificates() {
    let Some(paths) = corpus("platcert") else {
        return;
    };
    let (mut files, mut read, mut refused, mut fields) = (0, 0, 0, 0);
    for path in paths {
        files += 1;
        let (name, text) = expected_of("platcert", &path);
        let (ours, code) = said(&path);
        assert_eq!(code, 1, "{name}: no certificate of a key");
        assert!(
            ours["certs"].as_array().unwrap().is_empty() || ours["certs"][0]["error"].is_object()
        );
        let list = ours["attribute_certs"].as_array().unwrap();
        let expected: Value = serde_json::from_str(&text).unwrap();
        if expected["asn1parse_rc"] != 0 {
            refused += 1;
            println!("{name}: {} {ours}", expected["asn1parse_rc"]);
            continue;
        }
        assert_eq!(list.len(), 1, "{name}: {ours}");
        assert_eq!(
            ours["error"]["code"], "ek.file.attribute_certificate",
            "{name}"
        );
        let cert = &list[0];
        assert!(cert["error"].is_null(), "{name}: {}", cert["error"]);
        read += 1;
        let upstream = &expected["upstream_json"];
        if upstream.is_null() {
            continue;
        }
        let mut same = |what: &str, ours: &Value, theirs: String| {
            fields += 1;
            let ours = ours.as_str().unwrap_or_default();
            assert_eq!(ours, theirs, "{name} {what}");
        };
        let number = |value: &Value| {
            let text = value.as_str().unwrap_or_default().trim_start_matches('0');
            Value::from(text)
        };
        let holder_text = &text[text.find("\"Holder\":").expect("a holder")..];
        let serial = hex_of(digits(&text, "SerialNumber").expect("a serial"));
        same("serial", &number(&cert["serial"]), serial);
        let serial = hex_of(digits(holder_text, "Serial").expect("a holder's serial"));
        same("holder", &number(&cert["holder"]["serial"]), serial);
        for (ours, theirs) in [("not_before", "NotBefore"), ("not_after", "NotAfter")] {
            same(
                ours,
                &cert[ours],
                upstream[theirs].as_str().unwrap().to_owned(),
            );
        }
        for (ours, theirs) in [
            ("manufacturer", "PlatformManufacturer"),
            ("model", "PlatformModel"),
            ("version", "PlatformVersion"),
            ("serial", "PlatformSerial"),
        ] {
            let theirs = upstream[theirs].as_str().unwrap().to_owned();
            same(ours, &cert["platform"][ours], theirs);
        }
        let version = &upstream["TCGPlatformSpecification"]["Version"];
        let parts = ["MajorVersion", "MinorVersion", "Revision"].map(|p| version[p].to_string());
        same(
            "specification",
            &cert["platform_specification"],
            parts.join("."),
        );
        for (ours, theirs) in [
            (&cert["issuer"], &upstream["Issuer"]),
            (&cert["holder"]["issuer"], &upstream["Holder"]["Issuer"]),
        ] {
            let cn = theirs["CommonName"].as_str().unwrap();
            let own = ours.as_str().unwrap_or_default();
            let own = own.split(',').find_map(|part| part.strip_prefix("CN="));
            same("common name", &Value::from(own), cn.to_owned());
        }
    }
    println!("platcert: {files} files, {read} read, {refused} refused, {fields} fields compared");
    assert!(files >= 21 && read + refused == files && fields >= 70);
}

#[test]
fn damaged_certificates_give_errors_and_never_a_panic() {
    let mut files = vec![
        b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n".to_vec(),
        b"{\"pubhash\":\"AA\",\"certificate\":\"MIIB\"}".to_vec(),
        vec![0x30; 2000],
    ];
    for kind in ["ekcert", "ca", "platcert", "sbkeys"] {
        for path in corpus(kind).unwrap_or_default() {
            let bytes = std::fs::read(path).unwrap();
            // Bundles repeat themselves.
            files.push(bytes[..bytes.len().min(8192)].to_vec());
        }
    }
    let mut random = Random(0x0ec0_de5e_ed01_2345);
    let (mut tried, mut whole) = (0, 0);
    for file in &files {
        for _ in 0..150 {
            let seen = inspect(&random.damage(file));
            tried += 1;
            whole += usize::from(seen.whole());
            let json = serde_json::to_value(&seen).expect("JSON");
            let none = json["certs"].as_array().unwrap().is_empty();
            assert_eq!(none, json["error"].is_object(), "{json}");
        }
        for cut in 0..file.len().min(40) {
            let _ = inspect(&file[..cut]);
        }
    }
    println!(
        "{} files, {tried} damaged ones, {whole} still read whole",
        files.len()
    );
    assert!(tried >= 450);
}

//! Faults that were reported of other readers of EK certificates, each with a certificate of that
//! form, made octet by octet and signed: it is read as it is, its chain verifies, and what is odd
//! about it is named. Listed in docs/FIELD-BUGS.md.

#![allow(clippy::unwrap_used)]

mod support;
#[path = "support/vendor.rs"]
mod vendor;

use base64::Engine as _;
use gateway_core::appraisal::ek::{self, Assurance};
use gateway_core::appraisal::quirks::Quirk;
use gateway_core::appraisal::x509::{
    self, Cert, CertKey, Form, Vendor as Maker, What, cert_url, contents, public_hash, read_chain,
};
use gateway_core::policy::{Policy, Preset};
use rand_core::OsRng;
use support::NodeEk;
use vendor::{
    C, CN, Made, NOW, O, TPM_MANUFACTURER, TPM_MODEL, TPM_VERSION, Vendor, attribute, eku_ek,
    extension, intermediate, issue, name, oid, rtc, san_of, tlv, tpm_name,
};

/// What the certificate of a change is judged as: assurance and deviations, or the code.
fn judged(change: impl FnOnce(&mut Made)) -> Result<(Assurance, Vec<Quirk>), String> {
    let vendor = Vendor::new();
    let mut made = Made::new(&vendor.ek, &vendor.ica);
    change(&mut made);
    let cert = made.by(&vendor.ica);
    let policy = Policy::preset(Preset::Standard);
    vendor.judge_at(&cert, &[&vendor.ica.der], rtc(NOW), &policy)
}

fn tolerated(change: impl FnOnce(&mut Made)) -> Vec<Quirk> {
    judged(change).expect("it passes").1
}

fn names_of(change: impl FnOnce(&mut Made)) -> Option<(String, String, String)> {
    let (assurance, _) = judged(change).expect("it passes");
    let Assurance::VendorChain { tpm, .. } = assurance else {
        panic!("a chain");
    };
    tpm.map(|tpm| (tpm.manufacturer, tpm.model, tpm.version))
}

#[test]
fn nothing_is_odd_about_a_good_certificate() {
    assert_eq!(tolerated(|_| {}), []);
    let vendor = Vendor::new();
    let cert = Made::new(&vendor.ek, &vendor.ica).by(&vendor.ica);
    let cert = Cert::parse(&cert).unwrap();
    assert_eq!(
        cert.quirks,
        [Quirk::EkCertSubjectEmpty, Quirk::EkCertSanCritical]
    );
}

#[test]
fn devid_provisioning_tool_10_no_subject_alternative_name() {
    // Google's vTPM certificates name the machine in the subject and have no SAN.
    let change = |made: &mut Made| {
        made.extensions = vec![extension(&[0x55, 0x1d, 15], true, &[3, 2, 5, 0x20])];
        made.subject = name(&[&attribute(O, 0x0c, b"Google Compute Engine")]);
    };
    assert_eq!(names_of(change), None);
}

#[test]
fn rustcrypto_formats_821_negative_serial() {
    for serial in [&[0xee, 0x2b, 0x3d][..], &[0x80], &[0xff; 20]] {
        let quirks = tolerated(|made| made.serial = serial.to_vec());
        assert!(quirks.contains(&Quirk::EkCertSerialNegative), "{quirks:?}");
    }
    let quirks = tolerated(|made| made.serial = vec![1; 40]);
    assert_eq!(quirks, [Quirk::EkCertSerialRange]);
    let quirks = tolerated(|made| made.serial = vec![0]);
    assert_eq!(quirks, [Quirk::EkCertSerialRange]);
}

#[test]
fn pki_framework_114_empty_subject_and_critical_san() {
    // An AIK certificate is read as well, and is no EK certificate.
    let aik = |made: &mut Made| {
        let purposes = tlv(0x30, &[&oid(&[0x67, 0x81, 5, 8, 3])]);
        made.extensions[1] = extension(&[0x55, 0x1d, 37], false, &purposes);
    };
    assert_eq!(judged(aik).unwrap_err(), "ek.cert.eku");
    assert!(names_of(|_| {}).is_some());
}

#[test]
fn certvalidator_38_and_spire_tpm_plugin_19_critical_san_of_a_directory_name() {
    assert!(names_of(|_| {}).is_some());
    // Another critical extension is not passed over with it.
    let other = |made: &mut Made| {
        let unknown = extension(&[0x2a, 3, 4], true, &[5, 0]);
        made.extensions.push(unknown);
    };
    assert_eq!(judged(other).unwrap_err(), "ek.cert.extension");
    // Nor is a critical SAN that cannot be read.
    let unreadable = |made: &mut Made| {
        made.extensions[0] = extension(&[0x55, 0x1d, 17], true, &[0x30, 3, 0xa4, 5, 0x30]);
    };
    assert_eq!(judged(unreadable).unwrap_err(), "ek.cert.extension");
    let beside = |made: &mut Made| {
        made.extensions[0] = extension(&[0x55, 0x1d, 17], false, &[0x30, 3, 0xa4, 5, 0x30]);
    };
    assert_eq!(tolerated(beside), [Quirk::EkCertExtensionForm]);
}

#[test]
fn spire_tpm_plugin_13_the_certificate_of_swtpm() {
    let change = |made: &mut Made| {
        made.subject = name(&[&attribute(CN, 0x0c, b"unknown")]);
        let names = name(&[
            &attribute(TPM_MANUFACTURER, 0x0c, b"id:00001014"),
            &attribute(TPM_MODEL, 0x0c, b"swtpm"),
            &attribute(TPM_VERSION, 0x0c, b"id:20191023"),
        ]);
        made.extensions = vec![
            san_of(true, &names),
            extension(&[0x55, 0x1d, 19], true, &[0x30, 0]),
            eku_ek(),
        ];
    };
    let names = names_of(change).unwrap();
    assert_eq!((&*names.0, &*names.1), ("id:00001014", "swtpm"));
}

#[test]
fn swtpm_273_a_model_is_text_and_nothing_else() {
    for model in ["id:swtpm", "swtpm"] {
        let names = names_of(|made| {
            let names = name(&[
                &attribute(TPM_MANUFACTURER, 0x0c, b"id:00001014"),
                &attribute(TPM_MODEL, 0x0c, model.as_bytes()),
                &attribute(TPM_VERSION, 0x0c, b"id:1"),
            ]);
            made.extensions[0] = san_of(true, &names);
        });
        assert_eq!(names.unwrap().1, model);
    }
}

#[test]
fn go_attestation_236_an_ek_of_another_template_or_nonce_is_named() {
    let vendor = Vendor::new();
    let cert = Made::new(&vendor.ek, &vendor.ica).by(&vendor.ica);
    // The TPM made an EK without the nonce: another key than that of the certificate.
    let other = NodeEk::p256(&mut OsRng).public;
    let reason = ek::appraise_cert(
        &other,
        &cert,
        &[],
        &vendor.roots(),
        rtc(NOW),
        &Policy::preset(Preset::Standard),
        &mut ek::Noted::default(),
    )
    .unwrap_err();
    assert_eq!(reason.code, "ek.cert.key");
    assert!(reason.next.contains("another template"), "{reason}");
}

#[test]
fn swtpm_426_a_certificate_for_another_key_is_refused_before_its_chain_is_looked_at() {
    let vendor = Vendor::new();
    let other = NodeEk::p256(&mut OsRng).public;
    let cert = issue(&other, &vendor.ica, |_| {});
    let judged = vendor.judge(&cert, &[&vendor.ica.der]);
    assert_eq!(judged.unwrap_err(), "ek.cert.key");
    // The same point on another curve is another key.
    let change = |made: &mut Made| {
        let secp256k1 = oid(&[0x2b, 0x81, 4, 0, 10]);
        let p256 = oid(&[0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7]);
        let at = made.spki.windows(p256.len()).position(|w| w == p256);
        let at = at.expect("P-256");
        let key = &made.spki[at + p256.len()..];
        let ec = oid(&[0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1]);
        made.spki = tlv(0x30, &[&tlv(0x30, &[&ec, &secp256k1]), key]);
    };
    assert_eq!(super_code(change), "ek.cert.key");
}

fn super_code(change: impl FnOnce(&mut Made)) -> String {
    judged(change).expect_err("it is refused")
}

#[test]
fn go_attestation_362_serial_with_leading_zeros() {
    for serial in [&[0, 0, 0x12][..], &[0, 0x12], &[0xff, 0xff, 0x01]] {
        let quirks = tolerated(|made| made.serial = serial.to_vec());
        let expected = serial[1] & 0x80 == serial[0] & 0x80;
        assert_eq!(
            quirks.contains(&Quirk::EkCertSerialNotMinimal),
            expected,
            "{serial:02x?}"
        );
    }
    // One zero before a set bit is how a positive number is written.
    assert_eq!(tolerated(|made| made.serial = vec![0, 0xe9]), []);
}

/// Header of an NV index by the TPM 1.2 rules.
fn header(len: usize) -> Vec<u8> {
    let size = ((len + 2) as u16).to_be_bytes();
    [&[0x10, 0x01, 0x00][..], &size, &[0x10, 0x02]].concat()
}

#[test]
fn go_attestation_38_the_header_of_an_nv_index_is_cut_and_its_length_checked() {
    let vendor = Vendor::new();
    let cert = Made::new(&vendor.ek, &vendor.ica).by(&vendor.ica);
    let nv = [&header(cert.len())[..], &cert].concat();
    assert_eq!(Cert::parse(&nv).unwrap().der, cert);
    let mut long = nv.clone();
    long[3..5].copy_from_slice(&0xfff0u16.to_be_bytes());
    assert!(Cert::parse(&long).is_err());
    let mut short = nv;
    short[3..5].copy_from_slice(&40u16.to_be_bytes());
    assert!(Cert::parse(&short).is_err());
}

#[test]
fn go_tpm_397_and_hirs_23_octets_behind_the_certificate() {
    let vendor = Vendor::new();
    let cert = Made::new(&vendor.ek, &vendor.ica).by(&vendor.ica);
    let policy = Policy::preset(Preset::Standard);
    for behind in [&[0; 300][..], &[0xff; 7], &[0x11; 192], &[0x0a], &[0x30; 9]] {
        let nv = [&cert[..], behind].concat();
        let chain: &[&[u8]] = &[&vendor.ica.der];
        let (_, quirks) = vendor.judge_at(&nv, chain, rtc(NOW), &policy).unwrap();
        assert_eq!(quirks, [Quirk::EkCertPadded], "{behind:02x?}");
    }
    // What is no certificate at all is the client's fault and says where it ends.
    let judged = vendor.judge(&cert[..cert.len() - 3], &[]);
    assert_eq!(judged.unwrap_err(), "ek.cert.encoding");
}

#[test]
fn keylime_944_an_rdn_that_is_not_sorted() {
    let vendor = Vendor::new();
    // Nuvoton's root: CN, O and C in one SET, in that order.
    let parts = [
        attribute(CN, 0x13, b"Nuvoton TPM Root CA 2110"),
        attribute(O, 0x13, b"Nuvoton Technology Corporation"),
        attribute(C, 0x13, b"TW"),
    ]
    .concat();
    let unsorted = tlv(0x30, &[&tlv(0x31, &[&parts])]);
    let mut made = Made::new(&vendor.ek, &vendor.ica);
    made.subject = unsorted.clone();
    let cert = made.by(&vendor.ica);
    let policy = Policy::preset(Preset::Standard);
    let chain: &[&[u8]] = &[&vendor.ica.der];
    let (_, quirks) = vendor.judge_at(&cert, chain, rtc(NOW), &policy).unwrap();
    assert_eq!(quirks, [Quirk::EkCertNameUnsorted]);
    let cert = Cert::parse(&cert).unwrap();
    assert_eq!(cert.subject, unsorted, "never encoded anew");
    assert_eq!(
        cert.subject_text(),
        "C=TW+O=Nuvoton Technology Corporation+CN=Nuvoton TPM Root CA 2110"
    );
}

#[test]
fn hirs_1203_security_assertions_with_either_tagging() {
    // tcg-at-tpmSecurityAssertions with implicit and with explicit tags, and the specification.
    let specification = {
        let fields = [&tlv(0x0c, &[b"2.0"])[..], &[2, 1, 0], &[2, 2, 0, 0x8a]].concat();
        let values = tlv(0x31, &[&tlv(0x30, &[&fields])]);
        tlv(0x30, &[&oid(&[0x67, 0x81, 5, 2, 16]), &values])
    };
    let assertions = |fields: &[u8]| {
        let values = tlv(0x31, &[&tlv(0x30, &[fields])]);
        tlv(0x30, &[&oid(&[0x67, 0x81, 5, 2, 18]), &values])
    };
    let implicit = assertions(&[0x80, 1, 0xff, 0x81, 1, 0]);
    let explicit = assertions(&[0xa0, 3, 10, 1, 0, 0xa1, 3, 10, 1, 0]);
    for one in [implicit, explicit, vec![0x30, 1, 0xff]] {
        for critical in [true, false] {
            let change = |made: &mut Made| {
                let value = tlv(0x30, &[&specification, &one]);
                let extension = extension(&[0x55, 0x1d, 9], critical, &value);
                made.extensions.push(extension);
            };
            assert_eq!(tolerated(change), []);
            let vendor = Vendor::new();
            let mut made = Made::new(&vendor.ek, &vendor.ica);
            change(&mut made);
            let cert = Cert::parse(&made.by(&vendor.ica)).unwrap();
            let read = cert.specification.expect("the specification");
            assert_eq!((&*read.family, read.level, read.revision), ("2.0", 0, 138));
        }
    }
}

#[test]
fn keylime_1027_the_answer_of_intel_s_service() {
    let vendor = Vendor::new();
    let cert = Made::new(&vendor.ek, &vendor.ica).by(&vendor.ica);
    let url_safe = base64::engine::general_purpose::URL_SAFE;
    let encode = |octets: &[u8]| url_safe.encode(octets).replace('=', "%3D");
    let hash = public_hash(&Cert::parse(&cert).unwrap().key).unwrap();
    let answer = format!(
        "{{\"pubhash\":\"{}\",\"certificate\":\"{}\"}}",
        encode(&hash),
        encode(&cert)
    );
    let found = contents(answer.as_bytes());
    let object = &found.objects[0];
    assert_eq!(
        (object.form, &object.what),
        (Form::IntelJson, &What::Certificate)
    );
    assert_eq!(object.der[..], cert);
    assert_eq!(object.public_hash.as_deref(), Some(&hash[..]));
    let damaged = contents(b"{\"pubhash\":\"AA\",\"certificate\":\"*\"}").objects;
    assert!(matches!(damaged[0].what, What::Damaged(_)));
}

#[test]
fn tpm2_tools_3158_where_amd_and_intel_have_the_certificate() {
    // The exponent as four octets after the algorithm identifiers, and half of the hash.
    let key = CertKey::Rsa {
        n: vec![0xab; 256],
        e: vec![1, 0, 1],
        usage: x509::RsaUse::Any,
    };
    let amd = cert_url(Maker::Amd, &key).unwrap();
    let name = amd.strip_prefix("https://ftpm.amd.com/pki/aia/").unwrap();
    assert_eq!(name.len(), 32);
    let intel = cert_url(Maker::Intel, &key).unwrap();
    assert!(intel.ends_with("%3D"), "{intel}");
    let Some(root) = std::env::var_os("VESTIBULE_CORPUS") else {
        println!("SKIP VESTIBULE_CORPUS is not set: no vectors");
        return;
    };
    let path = std::path::Path::new(&root).join("quote/go-attestation__ek_cert_url_vectors.json");
    let vectors = std::fs::read(path).unwrap();
    let vectors: serde_json::Value = serde_json::from_slice(&vectors).unwrap();
    let mut compared = 0;
    for vector in vectors.as_array().unwrap() {
        let pem = vector["ek_public_pem"].as_str().unwrap();
        let (_, pem) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).unwrap();
        // A certificate around the key: the reader takes nothing less.
        let vendor = Vendor::new();
        let mut made = Made::new(&vendor.ek, &vendor.ica);
        made.spki = pem.contents;
        let cert = Cert::parse(&made.by(&vendor.ica)).unwrap();
        let maker = Maker::of(vector["vendor"].as_str().unwrap()).unwrap();
        let url = cert_url(maker, &cert.key).unwrap();
        assert_eq!(vector["ek_cert_url"], url);
        compared += 1;
    }
    assert!(compared >= 2, "the vectors shrank");
}

#[test]
fn tpm2_tss_2934_a_chain_that_is_split_over_nv_indices() {
    let vendor = Vendor::new();
    let below = intermediate(&vendor.ica, "On-die CA", |_| {});
    let cert = issue(&vendor.ek, &below, |_| {});
    let chain = [&below.der[..], &vendor.ica.der].concat();
    let whole: Vec<Vec<u8>> = vec![below.der.clone(), vendor.ica.der.clone()];
    let padded = [&below.der[..], &[0xff; 40], &vendor.ica.der, &[0; 9]].concat();
    // One part each, all in one, cut anywhere into indices of some size, padded.
    let mut ways: Vec<Vec<Vec<u8>>> = vec![whole.clone(), vec![chain.clone()], vec![padded]];
    for size in [64, 300, 512, 800] {
        ways.push(chain.chunks(size).map(<[u8]>::to_vec).collect());
    }
    for way in &ways {
        let read = read_chain(way.iter().map(Vec::as_slice));
        let read: Vec<&[u8]> = read.iter().map(|cert| &cert.der[..]).collect();
        assert_eq!(read, whole, "{} parts", way.len());
        vendor.judge(&cert, &read).unwrap();
    }
    // A part that is damaged costs itself.
    let damaged = [&below.der[..100], &vendor.ica.der[..]];
    let read = read_chain(damaged);
    assert_eq!(read.len(), 1);
    assert_eq!(read[0].der, vendor.ica.der);
    assert!(read_chain(vec![&chain[..]; 40]).len() <= 16);
}

#[test]
fn the_kinds_of_oddity_each_with_its_name() {
    type Change = Box<dyn Fn(&mut Made)>;
    let cn = |tag: u8, text: &'static [u8]| name(&[&attribute(CN, tag, text)]);
    let time = |tag: u8, text: &'static str| tlv(tag, &[text.as_bytes()]);
    let subject = |raw: Vec<u8>| -> Change { Box::new(move |made| made.subject.clone_from(&raw)) };
    let until = |raw: Vec<u8>| -> Change { Box::new(move |made| made.not_after.clone_from(&raw)) };
    let table: Vec<(Quirk, Change)> = vec![
        (Quirk::EkCertNameOctets, subject(cn(0x13, b"a_b@c"))),
        (Quirk::EkCertNameOctets, subject(cn(0x0c, &[0xe4]))),
        (Quirk::EkCertNameTeletex, subject(cn(0x14, &[b'a', 0xe4]))),
        (Quirk::EkCertTimeForm, until(time(0x17, "3401010000Z"))),
        (Quirk::EkCertTimeForm, until(time(0x18, "20340101000000Z"))),
        (
            Quirk::EkCertTimeForm,
            until(time(0x17, "340101020000+0200")),
        ),
        (
            Quirk::EkCertVersion,
            Box::new(|made| made.version = Vec::new()),
        ),
        (
            Quirk::EkCertBerLength,
            Box::new(|made| made.subject = vec![0x30, 0x82, 0, 0]),
        ),
        (
            Quirk::EkCertTpmInSubject,
            Box::new(|made| {
                made.subject = tpm_name();
                made.extensions.remove(0);
            }),
        ),
    ];
    for (quirk, change) in table {
        assert_eq!(tolerated(|made| change(made)), [quirk]);
    }
    // Year 9999: no end, in the form of RFC 5280 section 4.1.2.5.
    let endless = until(time(0x18, "99991231235959Z"));
    assert_eq!(tolerated(|made| endless(made)), []);
    let names = names_of(|made| {
        made.subject = tpm_name();
        made.extensions.remove(0);
    });
    assert_eq!(names.unwrap().0, "id:54534554");
}

#[test]
fn the_kinds_of_rsa_key() {
    let ek = NodeEk::rsa(&mut OsRng).public;
    let vendor = Vendor::new();
    let spki = ek.spki_der().unwrap();
    let rsa = |last: u8, params: &[u8]| {
        let bits = spki.windows(2).position(|w| w == [3, 0x82]).unwrap();
        let id = oid(&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, last]);
        tlv(0x30, &[&tlv(0x30, &[&id, params]), &spki[bits..]])
    };
    let judged = |spki: Vec<u8>| {
        let mut made = Made::new(&ek, &vendor.ica);
        made.spki = spki;
        let cert = made.by(&vendor.ica);
        let chain = [Cert::parse(&vendor.ica.der).unwrap()];
        let mut noted = ek::Noted::default();
        let policy = Policy::preset(Preset::Standard);
        ek::appraise_cert(
            &ek,
            &cert,
            &chain,
            &vendor.roots(),
            rtc(NOW),
            &policy,
            &mut noted,
        )
        .map(|_| noted.quirks)
        .map_err(|reason| reason.code.into_owned())
    };
    assert_eq!(judged(rsa(1, &[5, 0])), Ok(vec![]));
    assert_eq!(judged(rsa(1, &[])), Ok(vec![Quirk::EkCertRsaNullMissing]));
    assert_eq!(judged(rsa(7, &[0x30, 0])), Ok(vec![Quirk::EkCertOaepOid]));
    assert_eq!(judged(rsa(7, &[])), Ok(vec![Quirk::EkCertOaepOid]));
    assert_eq!(judged(rsa(10, &[])), Err("ek.cert.usage".into()));
}

#[test]
fn rejects_what_readers_disagree_about() {
    let refused = |change: &dyn Fn(&mut Made)| super_code(|made| change(made));
    // One extension twice: which of the two counts?
    let twice = |made: &mut Made| made.extensions.push(eku_ek());
    assert_eq!(refused(&twice), "ek.cert.encoding");
    let twice = |made: &mut Made| {
        let constraints = |ca: &[u8]| extension(&[0x55, 0x1d, 19], true, &tlv(0x30, &[ca]));
        made.extensions.push(constraints(&[]));
        made.extensions.push(constraints(&[1, 1, 0xff]));
    };
    assert_eq!(refused(&twice), "ek.cert.encoding");
    // An extension that decides, unreadable.
    for id in [15, 19, 37] {
        let broken = |made: &mut Made| {
            made.extensions.truncate(1);
            let value = extension(&[0x55, 0x1d, id], false, &[0x30, 9, 1]);
            made.extensions.push(value);
        };
        assert_eq!(refused(&broken), "ek.cert.encoding", "{id}");
    }
    let no_time = |made: &mut Made| made.not_after = tlv(0x17, &[b"340199000000Z"]);
    assert_eq!(refused(&no_time), "ek.cert.encoding");
    // Another signature algorithm outside than inside.
    let vendor = Vendor::new();
    let mut cert = Made::new(&vendor.ek, &vendor.ica).by(&vendor.ica);
    let inner = vendor.ica.algorithm();
    let at = cert.windows(inner.len()).rposition(|w| w == inner).unwrap();
    cert[at + inner.len() - 1] = 3;
    let judged = vendor.judge(&cert, &[&vendor.ica.der]);
    assert_eq!(judged.unwrap_err(), "ek.cert.encoding");
}

#[test]
fn a_ca_for_other_purposes_and_a_self_issued_one() {
    let vendor = Vendor::new();
    let aik = intermediate(&vendor.root, "AIK CA", |params| {
        let purpose = rcgen::ExtendedKeyUsagePurpose::Other(vec![2, 23, 133, 8, 3]);
        params.extended_key_usages = vec![purpose];
    });
    let cert = issue(&vendor.ek, &aik, |_| {});
    assert_eq!(vendor.judge(&cert, &[&aik.der]).unwrap_err(), "ek.cert.ca");
    let ek = intermediate(&vendor.root, "EK CA", |params| {
        let purpose = rcgen::ExtendedKeyUsagePurpose::Other(vec![2, 23, 133, 8, 1]);
        params.extended_key_usages = vec![purpose];
    });
    let cert = issue(&vendor.ek, &ek, |_| {});
    vendor.judge(&cert, &[&ek.der]).unwrap();
    // A CA's own change of keys does not use up the path length above it.
    let short = intermediate(&vendor.root, "Short CA", |params| {
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Constrained(0));
    });
    let next = intermediate(&short, "Short CA", |_| {});
    let cert = issue(&vendor.ek, &next, |_| {});
    vendor.judge(&cert, &[&next.der, &short.der]).unwrap();
}

#[test]
fn a_name_in_another_string_type_is_the_same_issuer() {
    let change = |made: &mut Made| {
        made.issuer = name(&[&attribute(CN, 0x13, b"VENDOR EK  CA")]);
    };
    assert_eq!(tolerated(change), []);
    let other = |made: &mut Made| made.issuer = name(&[&attribute(CN, 0x13, b"Vendor EK CB")]);
    assert_eq!(super_code(other), "ek.cert.chain");
}

/// Our reader against another one, over certificates of the library and of the corpus.
#[test]
fn the_fields_are_those_of_another_reader() {
    use x509_parser::prelude::{FromDer as _, X509Certificate};
    let vendor = Vendor::new();
    let mut files = vec![
        vendor.root.der.clone(),
        vendor.ica.der.clone(),
        issue(&vendor.ek, &vendor.ica, |_| {}),
    ];
    if let Some(root) = std::env::var_os("VESTIBULE_CORPUS") {
        for kind in ["ekcert", "ca", "sbkeys"] {
            let folder = std::path::Path::new(&root).join(kind);
            for entry in std::fs::read_dir(folder).unwrap() {
                let bytes = std::fs::read(entry.unwrap().path()).unwrap();
                let found = contents(&bytes).objects.into_iter();
                files.extend(found.map(|object| object.der.into_owned()));
            }
        }
    } else {
        println!("SKIP VESTIBULE_CORPUS is not set: only certificates of our own");
    }
    let (mut same, mut only_here) = (0, 0);
    for der in &files {
        let Ok(ours) = Cert::read(der) else { continue };
        let Ok((_, theirs)) = X509Certificate::from_der(der) else {
            only_here += 1;
            continue;
        };
        let tbs = &theirs.tbs_certificate;
        assert_eq!(ours.serial, tbs.raw_serial());
        assert_eq!(ours.issuer, tbs.issuer.as_raw());
        assert_eq!(ours.subject, tbs.subject.as_raw());
        assert_eq!(ours.not_before, tbs.validity.not_before.timestamp());
        assert_eq!(ours.not_after, tbs.validity.not_after.timestamp());
        assert_eq!(ours.key_bits, tbs.subject_pki.subject_public_key.data[..]);
        let usage = tbs.key_usage().unwrap().map(|usage| usage.value.flags);
        assert_eq!(ours.key_usage, usage);
        let basic = tbs.basic_constraints().unwrap();
        let basic = basic.map(|basic| (basic.value.ca, basic.value.path_len_constraint));
        assert_eq!(ours.basic_constraints, basic);
        same += 1;
    }
    println!("{same} certificates read alike, {only_here} by us only");
    assert!(same >= 3);
}

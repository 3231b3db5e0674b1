//! The CAs against other people's verifiers: openssl, webpki, x509-parser.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use attest_wire::oid::{self, Oid};
use gateway_core::identity::{EkName, MachineId};
use gateway_core::issuer::ldevid_profile;
use rcgen::PublicKeyData;
use rustls_pki_types::{ServerName, UnixTime};
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert, aws_lc_rs as algs};
use x509_parser::prelude::*;

use super::x509::{node_key, pem};
use super::*;

/// 2026-11-30.
const NOW: UnixMillis = UnixMillis(1_796_000_000_000);
const DAY: u64 = 86_400_000;
const KEK: [u8; 32] = [0x42; 32];

fn names() -> Names {
    Names {
        appliance: "vestibule-1".into(),
        boot: ServerNames {
            dns: vec!["boot.example".into()],
            ip: vec![[10, 77, 0, 1].into()],
        },
        admin: ServerNames {
            dns: vec!["admin.example".into()],
            ip: vec![[192, 0, 2, 1].into()],
        },
    }
}

struct Site {
    dir: tempfile::TempDir,
    opened: Opened,
    store: Store,
}

fn site() -> Site {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("state")).unwrap();
    let opened = Ca::create(&store, &KEK, NOW, names()).unwrap();
    Site { dir, opened, store }
}

impl Site {
    fn leaf(&self, kind: LeafKind) -> Vec<u8> {
        self.opened.ca.leaf(kind).unwrap().chain()[0].to_vec()
    }

    fn ldevid(&self, spki: &[u8]) -> Vec<u8> {
        let ek = EkName(format!("000b{}", "5c".repeat(32)));
        let profile = ldevid_profile(&MachineId("rack-1".into()), &ek, NOW, [0xff; 20]).unwrap();
        let key = node_key(spki).unwrap();
        self.opened.device.authority.sign(&profile, &key).unwrap()
    }

    /// `openssl verify` of a certificate under a CA at [`NOW`].
    fn openssl(&self, ca: &[u8], der: &[u8], options: &[&str]) -> bool {
        let file = |name: &str, der: &[u8]| {
            let path = self.dir.path().join(name);
            fs::write(&path, pem("CERTIFICATE", der)).unwrap();
            path
        };
        let at = (NOW.0 / 1000).to_string();
        let done = Command::new("openssl")
            .args(["verify", "-x509_strict", "-attime", &at, "-CAfile"])
            .arg(file("ca.pem", ca))
            .args(options)
            .arg(file("leaf.pem", der))
            .output();
        done.unwrap().status.success()
    }
}

/// A node's public key and its kind's name.
fn node_keys() -> Vec<(&'static str, Vec<u8>)> {
    let rsa = rcgen::KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, rcgen::RsaKeySize::_2048)
        .unwrap();
    let ecc = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
    vec![
        ("RSA-2048", rsa.subject_public_key_info()),
        ("P-256", ecc.subject_public_key_info()),
    ]
}

fn webpki_accepts(ca: &[u8], der: &[u8], purpose: Oid) -> bool {
    let (ca, der) = (CertificateDer::from(ca), CertificateDer::from(der));
    let algorithms = [
        algs::ECDSA_P384_SHA384,
        algs::ECDSA_P256_SHA256,
        algs::RSA_PKCS1_2048_8192_SHA256,
    ];
    EndEntityCert::try_from(&der).is_ok_and(|cert| {
        cert.verify_for_usage(
            &algorithms,
            &[anchor_from_trusted_cert(&ca).unwrap()],
            &[],
            UnixTime::since_unix_epoch(Duration::from_millis(NOW.0)),
            KeyUsage::required(purpose.der),
            None,
            None,
        )
        .is_ok()
    })
}

#[test]
fn openssl_verifies_each_chain_for_its_purpose_only() {
    let site = site();
    let ca = &site.opened.ca;
    let (infra, admin, boot) = (ca.infra_ca(), ca.admin_ca(), ca.boot_ca());
    let device = site.opened.device.certificate();
    let client = ca.admin_client("ada", AdminRole::Owner, NOW).unwrap();
    let (_, client) = parse_x509_pem(client.cert_pem.as_bytes()).unwrap();
    let (server, user) = (["-purpose", "sslserver"], ["-purpose", "sslclient"]);
    let (_, node) = node_keys().remove(0);
    for (name, under, der, as_server, as_client) in [
        ("attest", &infra, site.leaf(LeafKind::Attest), false, false),
        (
            "receipt",
            &infra,
            site.leaf(LeafKind::Receipt),
            false,
            false,
        ),
        ("grant", &infra, site.leaf(LeafKind::Grant), false, false),
        ("boot", &boot, site.leaf(LeafKind::Boot), true, false),
        ("boot-rsa", &boot, site.leaf(LeafKind::BootRsa), true, false),
        (
            "admin-server",
            &admin,
            site.leaf(LeafKind::AdminServer),
            true,
            false,
        ),
        ("admin", &admin, client.contents, false, true),
        ("ldevid", &device, site.ldevid(&node), false, false),
    ] {
        assert!(site.openssl(under, &der, &[]), "{name}");
        assert_eq!(
            site.openssl(under, &der, &server),
            as_server,
            "{name} as a server"
        );
        assert_eq!(
            site.openssl(under, &der, &user),
            as_client,
            "{name} as a client"
        );
        for other in [&infra, &admin, &boot, &device] {
            assert_eq!(site.openssl(other, &der, &[]), other == under, "{name}");
        }
    }
}

#[test]
fn webpki_accepts_each_purpose_alone() {
    let site = site();
    let ca = &site.opened.ca;
    let (_, node) = node_keys().remove(1);
    let client = ca.admin_client("ada", AdminRole::Viewer, NOW).unwrap();
    let (_, client) = parse_x509_pem(client.cert_pem.as_bytes()).unwrap();
    let device = site.opened.device.certificate();
    let purposes = [
        oid::EKU_ATTEST,
        oid::EKU_RECEIPT,
        oid::EKU_GRANT,
        oid::EKU_SERVER_AUTH,
        oid::EKU_CLIENT_AUTH,
        oid::EKU_VERIFIED_TPM_FIXED,
    ];
    for (under, der, purpose) in [
        (ca.infra_ca(), site.leaf(LeafKind::Attest), oid::EKU_ATTEST),
        (
            ca.infra_ca(),
            site.leaf(LeafKind::Receipt),
            oid::EKU_RECEIPT,
        ),
        (ca.infra_ca(), site.leaf(LeafKind::Grant), oid::EKU_GRANT),
        (
            ca.boot_ca(),
            site.leaf(LeafKind::Boot),
            oid::EKU_SERVER_AUTH,
        ),
        (
            ca.boot_ca(),
            site.leaf(LeafKind::BootRsa),
            oid::EKU_SERVER_AUTH,
        ),
        (
            ca.admin_ca(),
            site.leaf(LeafKind::AdminServer),
            oid::EKU_SERVER_AUTH,
        ),
        (ca.admin_ca(), client.contents, oid::EKU_CLIENT_AUTH),
        (device, site.ldevid(&node), oid::EKU_VERIFIED_TPM_FIXED),
    ] {
        for asked in purposes {
            let accepted = webpki_accepts(&under, &der, asked);
            assert_eq!(
                accepted,
                asked == purpose,
                "{} for {}",
                purpose.dotted,
                asked.dotted
            );
        }
    }
}

#[test]
fn servers_have_their_names_and_no_other() {
    let site = site();
    let valid_for = |kind, name: &str| {
        let der = CertificateDer::from(site.leaf(kind));
        let name = ServerName::try_from(name.to_owned()).unwrap();
        EndEntityCert::try_from(&der)
            .unwrap()
            .verify_is_valid_for_subject_name(&name)
            .is_ok()
    };
    for (kind, good, bad) in [
        (
            LeafKind::Attest,
            attest_wire::v1::ATTEST_SERVER_NAME,
            "boot.example",
        ),
        (LeafKind::Boot, "boot.example", "admin.example"),
        (LeafKind::Boot, "10.77.0.1", "192.0.2.1"),
        (LeafKind::BootRsa, "10.77.0.1", "192.0.2.1"),
        (LeafKind::AdminServer, "192.0.2.1", "10.77.0.1"),
        (LeafKind::AdminServer, "admin.example", "boot.example"),
    ] {
        assert!(valid_for(kind, good), "{kind:?} {good}");
        assert!(!valid_for(kind, bad), "{kind:?} {bad}");
    }
}

#[test]
fn an_ldevid_is_what_spire_takes() {
    let site = site();
    for (kind, spki) in node_keys() {
        let der = site.ldevid(&spki);
        let (rest, cert) = X509Certificate::from_der(&der).unwrap();
        assert!(rest.is_empty());
        assert_eq!(cert.public_key().raw, &spki[..], "{kind}");
        assert_eq!(cert.subject().to_string(), "CN=rack-1");
        assert_eq!(
            cert.issuer().to_string(),
            "O=vestibule-1, CN=vestibule-1 device CA"
        );
        let serial = cert.raw_serial();
        assert!(serial.len() == 20 && serial[0] < 0x80, "{serial:02x?}");
        let life = cert.validity().not_after.timestamp() - cert.validity().not_before.timestamp();
        assert_eq!(life, 86_400);
        // Go refuses unknown critical extensions, and a critical SAN of otherNames only is one.
        for extension in cert.extensions() {
            let known = matches!(
                extension.parsed_extension(),
                ParsedExtension::KeyUsage(_) | ParsedExtension::BasicConstraints(_)
            );
            assert!(known || !extension.critical, "{}", extension.oid);
        }
        let san = cert.subject_alternative_name().unwrap().unwrap();
        let kinds: Vec<String> = san
            .value
            .general_names
            .iter()
            .map(|name| match name {
                GeneralName::OtherName(id, _) => id.to_id_string(),
                other => panic!("unexpected {other:?}"),
            })
            .collect();
        assert_eq!(
            kinds,
            [
                oid::HARDWARE_MODULE_NAME.dotted,
                oid::PERMANENT_IDENTIFIER.dotted
            ]
        );
        let usage = cert.key_usage().unwrap().unwrap().value;
        assert!(usage.digital_signature() && !usage.key_cert_sign());
        assert!(
            site.openssl(&site.opened.device.certificate(), &der, &[]),
            "{kind}"
        );
    }
}

#[test]
fn rejects_node_keys_of_other_kinds() {
    let p384 = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).unwrap();
    let ed25519 = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
    let mut short = node_keys().remove(0).1;
    short.truncate(60);
    // RSA-1024 from its DER: modulus of 128 bytes, exponent 65537.
    let mut weak =
        hex::decode("30819f300d06092a864886f70d010101050003818d0030818902818100").unwrap();
    weak.extend([0xc1; 128]);
    weak.extend([0x02, 0x03, 1, 0, 1]);
    for (name, spki) in [
        ("P-384", p384.subject_public_key_info()),
        ("Ed25519", ed25519.subject_public_key_info()),
        ("cut", short),
        ("RSA-1024", weak),
        ("nothing", Vec::new()),
    ] {
        match node_key(&spki) {
            Err(CaError::Refused(reason)) => assert_eq!(reason.code, "issue.key", "{name}"),
            other => panic!("{name}: expected issue.key, found {:?}", other.err()),
        }
    }
}

#[test]
fn the_device_ca_signs_nothing_else() {
    let site = site();
    let issuer = Issuer::new("vestibule-1").unwrap();
    let client = issuer.admin_client("ada", AdminRole::Owner, NOW, [1; 20]);
    let (dns, ip) = (Vec::new(), Vec::new());
    let key = NewKey::generate(&issuer.attest(NOW, [1; 20])).unwrap();
    let device = &site.opened.device.authority;
    for profile in [
        issuer.attest(NOW, [1; 20]),
        issuer.receipt(NOW, [1; 20]),
        issuer.boot(KeyKind::P256, &dns, &ip, NOW, [1; 20]),
        issuer.admin_server(&dns, &ip, NOW, [1; 20]),
        client.unwrap(),
        issuer.ca(Which::Infra, NOW, [1; 20]),
        issuer.ca(Which::Device, NOW, [1; 20]),
    ] {
        assert!(
            matches!(
                device.sign(&profile, key.pair()),
                Err(CaError::WrongIssuer { .. })
            ),
            "{}",
            profile.name
        );
    }
    // Nor does any other CA sign an LDevID.
    let ek = EkName("00".into());
    let ldevid = ldevid_profile(&MachineId("m".into()), &ek, NOW, [1; 20]).unwrap();
    let ca = &site.opened.ca;
    for other in [&ca.infra, &ca.admin, &ca.boot] {
        assert!(matches!(
            other.sign(&ldevid, key.pair()),
            Err(CaError::WrongIssuer { .. })
        ));
    }
    assert!(matches!(
        ca.authority(&ldevid),
        Err(CaError::WrongIssuer { .. })
    ));
}

#[test]
fn each_ca_has_its_own_key_and_signs_no_further_ca() {
    let site = site();
    let mut keys = BTreeSet::new();
    for which in Which::ALL {
        let der = site.store.public(&ca_name(which)).unwrap().unwrap();
        let (_, cert) = X509Certificate::from_der(&der).unwrap();
        let constraints = cert.basic_constraints().unwrap().unwrap();
        assert!(constraints.critical);
        assert_eq!(constraints.value.path_len_constraint, Some(0));
        assert!(keys.insert(cert.public_key().raw.to_vec()), "{which:?}");
        assert!(site.openssl(&der, &der, &[]), "{which:?}");
    }
    assert_eq!(keys.len(), 5);
}

#[test]
fn opens_again_under_the_same_key_only() {
    let site = site();
    let infra = site.opened.ca.infra_ca();
    let attest = site.leaf(LeafKind::Attest);
    let Site { dir, opened, store } = site;
    drop(opened);
    let again = Ca::open_or_create(&store, &KEK, NOW, names()).unwrap();
    assert_eq!(again.ca.infra_ca(), infra);
    assert!(again.records.is_empty());
    assert_eq!(
        again.ca.leaf(LeafKind::Attest).unwrap().chain()[0][..],
        attest
    );
    assert!(matches!(
        Ca::open(&store, &[0x43; 32], names()),
        Err(CaError::Store(StoreError::SecretBroken { .. }))
    ));
    assert!(matches!(
        Ca::create(&store, &KEK, NOW, names()),
        Err(CaError::Exists)
    ));
    drop((again, store, dir));
}

#[test]
fn rejects_a_store_without_cas() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    assert!(matches!(
        Ca::open(&store, &KEK, names()),
        Err(CaError::Absent { .. })
    ));
    assert!(matches!(
        export(dir.path(), &dir.path().join("out")),
        Err(CaError::Absent { .. })
    ));
    let long = Names {
        appliance: "x".repeat(100),
        ..names()
    };
    assert!(matches!(
        Ca::create(&store, &KEK, NOW, long),
        Err(CaError::Refused(_))
    ));
}

#[test]
fn a_creation_that_broke_off_begins_again() {
    let site = site();
    let Site { dir, opened, store } = site;
    drop(opened);
    let other = tempfile::tempdir().unwrap();
    let half = Store::open(other.path()).unwrap();
    // Everything but the infra CA is there.
    for which in [Which::Device, Which::Admin, Which::Boot] {
        let name = ca_name(which);
        let document = store.public(&name).unwrap().unwrap();
        half.put_public(&name, &document).unwrap();
    }
    assert!(!Ca::exists(&half).unwrap());
    let opened = Ca::open_or_create(&half, &KEK, NOW, names()).unwrap();
    assert_eq!(opened.records.len(), 11);
    drop((dir, store));
}

/// A daemon that lost its database must not start over under the same name.
#[test]
fn rejects_new_cas_beside_an_old_ledger() {
    let site = site();
    let infra = site.opened.ca.infra_ca();
    let signer = site.opened.ca.receipt_signer().unwrap();
    let ledger = site.store.open_ledger(Box::new(signer), &infra).unwrap();
    let batch = store::Batch {
        ledger: site.opened.records.clone(),
        ..store::Batch::default()
    };
    ledger.committer.commit(batch).unwrap();
    let state = site.store.dir().to_path_buf();
    let Site { dir, opened, store } = site;
    drop((ledger, opened, store));
    fs::remove_dir_all(state.join("db")).unwrap();
    assert!(matches!(
        Store::open(&state),
        Err(StoreError::ValuesLost { .. })
    ));
    fs::remove_file(state.join("db.kept")).unwrap();
    store::rebuild(&state, Some(&infra)).unwrap();
    let store = Store::open(&state).unwrap();
    assert!(matches!(
        Ca::open_or_create(&store, &KEK, NOW, names()),
        Err(CaError::Lost)
    ));
    drop(dir);
}

#[test]
fn leaves_renew_at_two_thirds_or_with_new_names() {
    let site = site();
    let ca = &site.opened.ca;
    assert!(ca.renew_due(NOW).unwrap().is_empty());
    assert!(
        ca.renew_due(UnixMillis(NOW.0 + 59 * DAY))
            .unwrap()
            .is_empty()
    );
    let renewed = ca.renew_due(UnixMillis(NOW.0 + 61 * DAY)).unwrap();
    let kinds: Vec<LeafKind> = renewed.iter().map(|(kind, ..)| *kind).collect();
    assert_eq!(
        kinds,
        [
            LeafKind::Receipt,
            LeafKind::Grant,
            LeafKind::Attest,
            LeafKind::AdminServer
        ]
    );
    for (kind, leaf, record) in &renewed {
        assert_eq!(leaf.chain(), ca.leaf(*kind).unwrap().chain());
        assert_eq!(record.not_after, leaf.not_after());
        assert_eq!(record.not_after.0, NOW.0 + (61 + 90) * DAY);
    }
    assert!(
        ca.renew_due(UnixMillis(NOW.0 + 61 * DAY))
            .unwrap()
            .is_empty()
    );
    let Site { dir, opened, store } = site;
    drop(opened);
    let mut moved = names();
    moved.boot.ip = vec![[10, 78, 0, 1].into()];
    let opened = Ca::open(&store, &KEK, moved).unwrap();
    let renewed = opened.ca.renew_due(UnixMillis(NOW.0 + 61 * DAY)).unwrap();
    let kinds: Vec<LeafKind> = renewed.iter().map(|(kind, ..)| *kind).collect();
    assert_eq!(kinds, [LeafKind::Boot, LeafKind::BootRsa]);
    drop(dir);
}

#[test]
fn boot_certificates_serve_machines_without_a_clock() {
    let site = site();
    for der in [
        site.opened.ca.boot_ca().to_vec(),
        site.leaf(LeafKind::Boot),
        site.leaf(LeafKind::BootRsa),
    ] {
        let (_, cert) = X509Certificate::from_der(&der).unwrap();
        assert_eq!(
            cert.validity().not_before.to_string(),
            "Jan  1 00:00:00 2000 +00:00"
        );
        assert!(cert.validity().not_after.to_string().contains("2099"));
        // PKCS #1 v1.5 with SHA-256: what every iPXE can check.
        assert_eq!(
            cert.signature_algorithm.algorithm.to_id_string(),
            "1.2.840.113549.1.1.11"
        );
    }
    assert_eq!(
        site.opened.ca.leaf(LeafKind::Boot).unwrap().chain()[1],
        site.opened.ca.boot_ca()
    );
}

#[test]
fn roles_are_the_organizational_unit() {
    let site = site();
    for (role, name) in [
        (AdminRole::Viewer, "viewer"),
        (AdminRole::Operator, "operator"),
        (AdminRole::Owner, "owner"),
    ] {
        let client = site.opened.ca.admin_client("ada", role, NOW).unwrap();
        let (_, parsed) = parse_x509_pem(client.cert_pem.as_bytes()).unwrap();
        let cert = parsed.parse_x509().unwrap();
        let units: Vec<_> = cert
            .subject()
            .iter_organizational_unit()
            .map(|u| u.as_str().unwrap())
            .collect();
        assert_eq!(units, [name]);
        assert_eq!(client.record.subject_cn, "ada");
        // The key is the certificate's.
        let key = rcgen::KeyPair::from_pem(&client.key_pem).unwrap();
        assert_eq!(cert.public_key().raw, key.subject_public_key_info());
    }
}

#[test]
fn receipts_and_ledger_heads_are_signed_by_the_receipt_key() {
    let site = site();
    let signer = site.opened.ca.receipt_signer().unwrap();
    let receipt = signer.receipt(b"{}".to_vec()).unwrap();
    let der = CertificateDer::from(receipt.chain[0].0.clone());
    let cert = EndEntityCert::try_from(&der).unwrap();
    let check = |message: &[u8]| {
        cert.verify_signature(algs::ECDSA_P256_SHA256, message, &receipt.sig.0)
            .is_ok()
    };
    assert!(check(b"vestibule/receipt/v1\0{}"));
    assert!(!check(b"vestibule/ledger/v1\0{}"));
    assert!(!check(b"{}"));
    let infra = site.opened.ca.infra_ca();
    let ledger = site.store.open_ledger(Box::new(signer), &infra).unwrap();
    let batch = store::Batch {
        at: NOW,
        ledger: site.opened.records.clone(),
        ..store::Batch::default()
    };
    let committed = ledger.committer.commit(batch).unwrap();
    assert_eq!(committed.last_seq, 11);
    let report = store::verify(site.store.dir(), &infra).unwrap();
    assert_eq!((report.entries, report.head), (11, committed.head));
    // The other CAs' certificates verify no ledger.
    assert!(store::verify(site.store.dir(), &site.opened.ca.admin_ca()).is_err());
}

#[test]
fn no_private_key_is_on_disk_in_clear() {
    let site = site();
    let key = StoreKey::derive(&KEK, "ca");
    let ca_names = Which::ALL.map(ca_name);
    let leaf_names = LeafKind::ALL.map(|kind| kind.store_name().to_owned());
    let secrets: Vec<_> = ca_names
        .iter()
        .chain(&leaf_names)
        .map(|name| (name, site.store.secret(&key, name).unwrap().unwrap()))
        .collect();
    // The search itself must be able to find something: the certificates are there in clear.
    let infra = site.opened.ca.infra_ca();
    let (mut files, mut certificates) = (0, 0);
    let mut open = vec![site.dir.path().to_path_buf()];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
                continue;
            }
            let bytes = fs::read(&path).unwrap();
            files += 1;
            certificates += usize::from(bytes.windows(24).any(|w| *w == infra[100..124]));
            for (name, secret) in &secrets {
                // Any 24 bytes of the private half would do; the public key is in the open.
                let window = match secret.len() {
                    len if len > 1000 => &secret[len / 2..len / 2 + 24],
                    _ => &secret[36..60],
                };
                assert!(
                    !bytes.windows(24).any(|w| w == window),
                    "{name} in {}",
                    path.display()
                );
            }
        }
    }
    assert!(
        files > 5 && certificates >= 1,
        "{files} files, {certificates} with a certificate"
    );
}

#[test]
fn exported_files_are_the_ca_certificates() {
    let site = site();
    let out = site.dir.path().join("out");
    let files = export(site.store.dir(), &out).unwrap();
    let names: Vec<_> = files
        .iter()
        .map(|f| f.file_name().unwrap().to_str().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "infra-ca.pem",
            "device-ca.pem",
            "boot-ca.pem",
            "admin-ca.pem"
        ]
    );
    for (file, der) in files.iter().zip([
        site.opened.ca.infra_ca(),
        site.opened.device.certificate(),
        site.opened.ca.boot_ca(),
        site.opened.ca.admin_ca(),
    ]) {
        let text = fs::read(file).unwrap();
        let (_, parsed) = parse_x509_pem(&text).unwrap();
        assert_eq!(parsed.contents, der.to_vec());
    }
}

/// Row 45: certificates lie in the database as they are. One of another key, with the same name and
/// from a CA that the writer owns, must not become ours.
#[test]
fn attack_45_a_certificate_that_somebody_put_beside_our_key_is_an_alarm() {
    let other = site();
    for which in Which::ALL {
        let site = site();
        let name = ca_name(which);
        let foreign = other.store.public(&name).unwrap().unwrap();
        site.store.put_public(&name, &foreign).unwrap();
        // The AK CA signs nothing yet and is opened with the others all the same.
        let opened = Ca::open(&site.store, &KEK, names());
        match opened {
            Err(CaError::Exchanged { name }) => assert_eq!(name, which.name()),
            Ok(_) if which == Which::Ak => {}
            Ok(_) => panic!("{} was taken", which.name()),
            Err(error) => panic!("{}: {error}", which.name()),
        }
    }
    for kind in LeafKind::ALL {
        let site = site();
        let name = kind.store_name();
        let foreign = other.store.public(name).unwrap().unwrap();
        site.store.put_public(name, &foreign).unwrap();
        assert!(
            matches!(
                Ca::open(&site.store, &KEK, names()),
                Err(CaError::Exchanged { .. })
            ),
            "{name} was taken"
        );
    }
}

//! The store of CAs for EK chains, against the whole core: import, what is judged again, removal,
//! restarts, what SPIRE is told, and what a liar tries.

#![allow(clippy::unwrap_used)]

mod support;
#[path = "support/vendor.rs"]
mod vendor;

use std::net::Ipv4Addr;

use attest_wire::v1::Verdict as WireVerdict;
use gateway_core::admission::command::{Caller, Command, EkCaImport, Role};
use gateway_core::admission::registry::Registry;
use gateway_core::appraisal::ek_record::decode_der;
use gateway_core::appraisal::{EkRoots, TimeTrust, x509};
use gateway_core::identity::{EkName, MachineId, UnixMillis};
use gateway_core::inventory::Inventory;
use gateway_core::limits::{
    CLAIM_CHANGE_MS, EK_CA_MAX_BYTES, EK_CAS_PER_IMPORT_MAX, EK_UNMATCHED_MAX,
};
use gateway_core::policy::Preset;
use gateway_core::reason::Reason;
use gateway_core::record::{Act, Claim, EkCause, EkCertificate, EkCertificates, Record};
use gateway_core::view::{EkCaImported, EkCaOutcome, EkCaResult, Expiry};
use rand_core::OsRng;
use rcgen::{CustomExtension, IsCa, Issuer, KeyPair};
use support::site::{Site, node};
use support::{Node, NodeEk};
use time::Duration;
use vendor::{Ca, NOW, at, ca_params, intermediate, issue, root, tlv, unlimited};

const PEER: Ipv4Addr = Ipv4Addr::new(10, 66, 0, 100);
const AIA: &[u8] = b"http://pki.example/ek-ca.cer";

/// Authority information access with one caIssuers address.
fn aia() -> CustomExtension {
    let method = [0x06, 8, 0x2b, 6, 1, 5, 5, 7, 0x30, 2];
    let one = tlv(0x30, &[&method, &tlv(0x86, &[AIA])]);
    CustomExtension::from_oid_content(&[1, 3, 6, 1, 5, 5, 7, 1, 1], tlv(0x30, &[&one]))
}

/// A node whose EK certificate is of this CA.
fn certified(ca: &Ca) -> Node {
    let mut node = node();
    let cert = issue(&node.eks[0].public, ca, |params| {
        params.custom_extensions.push(aia());
    });
    node.eks[0].cert = Some(cert);
    node
}

fn owner() -> Caller {
    Caller {
        cn: "ada".into(),
        role: Role::Owner,
    }
}

fn import_as(site: &mut Site, caller: &Caller, ders: &[&[u8]]) -> Result<EkCaImported, Reason> {
    let import = EkCaImport {
        certificates: ders.iter().map(|der| der.to_vec()).collect(),
        source: "vendor's site, by telephone".into(),
    };
    let (now, time) = (site.now, site.time);
    let done = site.gateway.import_ek_cas(now, time, caller, &import);
    site.drain();
    done
}

fn import(site: &mut Site, ders: &[&[u8]]) -> EkCaImported {
    import_as(site, &owner(), ders).unwrap()
}

fn one(site: &mut Site, der: &[u8]) -> EkCaResult {
    import(site, &[der]).results.remove(0)
}

/// The code that refuses this certificate; nothing of it is on record.
fn refused(site: &mut Site, der: &[u8]) -> String {
    let before = site.disk.ledger.len();
    let result = one(site, der);
    assert_eq!(result.outcome, EkCaOutcome::Refused, "{result:?}");
    assert_eq!(site.disk.ledger.len(), before);
    let reason = result.reason.unwrap();
    assert!(!reason.next.is_empty());
    reason.code.into_owned()
}

fn remove(site: &mut Site, der: &[u8]) {
    let sha256 = hex::encode(gateway_core::appraisal::ek::id_of(der));
    site.act(Command::EkCaRemove(
        sha256,
        "the vendor lost its key".into(),
    ));
}

/// The claim of this node, and its name.
fn claim(site: &mut Site, node: &Node, conn: u64) -> String {
    let (status, result) = site.attempt(node, conn, PEER);
    assert_eq!((status, result.verdict), (202, WireVerdict::Pending));
    let newest = site.gateway.machines().into_iter();
    let newest = newest.max_by_key(|machine| machine.last_seq).unwrap();
    newest.machine.0
}

fn assurance(site: &Site, id: &str) -> String {
    site.machine(id).assurance.unwrap()
}

fn codes(site: &Site, id: &str) -> Vec<String> {
    let reasons = site.machine(id).reasons.into_iter();
    reasons.map(|reason| reason.code.into_owned()).collect()
}

fn waiting(site: &Site) -> Vec<(String, String)> {
    let list = site.gateway.ek_unmatched().unmatched;
    let machine = |one: &gateway_core::view::EkUnmatchedMachine| one.machine.0.clone();
    list.iter()
        .flat_map(|issuer| {
            let name = issuer.issuer.clone();
            issuer
                .machines
                .iter()
                .map(move |m| (name.clone(), machine(m)))
        })
        .collect()
}

/// The records of EK certificates in the ledger.
fn ek_records(site: &Site) -> Vec<&EkCertificates> {
    let records = site.disk.ledger.iter().map(|(.., record)| record);
    records
        .filter_map(|record| match record {
            Record::EkCertificates(certificates) => Some(certificates),
            _ => None,
        })
        .collect()
}

/// Attests again and again, each time with another of these certificates, or with none.
fn alternate(site: &mut Site, node: &mut Node, certs: &[Vec<u8>], conns: std::ops::Range<u64>) {
    let begun = site.now;
    for conn in conns {
        let turn = conn as usize % (certs.len() + 1);
        node.eks[0].cert = certs.get(turn).cloned();
        let (status, result) = site.attempt_refused(node, conn, PEER);
        assert!(matches!(status, 200 | 202 | 403), "{}", result.hint);
        assert!(
            status != 403 || result.code == "issue.budget",
            "{}",
            result.code
        );
    }
    assert!(site.now.0 < begun.0 + CLAIM_CHANGE_MS);
}

fn last(site: &Site) -> &Record {
    &site.disk.ledger.last().unwrap().2
}

#[test]
fn a_ca_that_arrives_vouches_for_the_claim_that_waits_without_the_machine() {
    let vendor_root = root("Vendor Root");
    let ica = intermediate(&vendor_root, "Vendor EK CA", |_| {});
    let mut site = Site::new();
    let node = certified(&ica);
    let id = claim(&mut site, &node, 1);
    assert_eq!(assurance(&site, &id), "bare-ek");
    assert_eq!(codes(&site, &id), ["ek.cert.chain"]);

    let list = site.gateway.ek_unmatched();
    let [issuer] = list.unmatched.as_slice() else {
        panic!("{list:?}");
    };
    assert_eq!(issuer.issuer, "CN=Vendor EK CA");
    assert_eq!(issuer.ca_issuers, ["http://pki.example/ek-ca.cer"]);
    let [machine] = issuer.machines.as_slice() else {
        panic!("{list:?}");
    };
    assert!(machine.kept && machine.proven);
    assert_eq!(
        (machine.machine.0.as_str(), &*machine.state),
        (&*id, "pending")
    );
    assert!(machine.since.0 > 0 && machine.serial.len() >= 2);
    assert_eq!(site.gateway.status().ek_unmatched, 1);

    // Asking again writes nothing more.
    let before = site.disk.ledger.len();
    claim(&mut site, &node, 2);
    assert_eq!(site.disk.ledger.len(), before);

    // The intermediate alone is taken, and is worth nothing.
    let result = one(&mut site, &ica.der);
    assert_eq!(result.outcome, EkCaOutcome::Imported);
    assert_eq!(result.role.as_deref(), Some("intermediate"));
    assert!(result.notes[0].contains("worth nothing yet"), "{result:?}");
    site.wait(1);
    assert_eq!(assurance(&site, &id), "bare-ek");

    // With its root both are worth something, to the claim that waits as well.
    let done = import(&mut site, &[&vendor_root.der]);
    assert_eq!(done.results[0].role.as_deref(), Some("root"));
    assert_eq!(done.judged_again, 1);
    assert_eq!(
        assurance(&site, &id),
        "bare-ek",
        "judged in turns of its own"
    );
    assert!(site.gateway.poll_timeout().unwrap() <= site.now);
    site.wait(1);
    assert_eq!(assurance(&site, &id), "vendor-chain");
    assert!(codes(&site, &id).is_empty());
    assert!(waiting(&site).is_empty());
    let Record::EkCertificates(record) = last(&site) else {
        panic!("{:?}", last(&site));
    };
    assert_eq!(record.cause, EkCause::CaArrived);
    assert_eq!(record.certs[0].path.len(), 2);
    let timeline = site.gateway.timeline(&MachineId(id.clone())).unwrap();
    assert!(
        timeline
            .iter()
            .any(|entry| entry.text.contains("a CA arrived"))
    );

    // Nothing of it is lost by a restart, and the machine is admitted with its vendor's word.
    site.restart();
    assert_eq!(assurance(&site, &id), "vendor-chain");
    assert_eq!(site.gateway.ek_cas(site.now).certificates.len(), 2);
    site.approve(&id);
    let (status, result) = site.attempt(&node, 3, PEER);
    assert_eq!(
        (status, result.verdict),
        (200, WireVerdict::Admitted),
        "{}",
        result.hint
    );
    let verdict = site
        .disk
        .ledger
        .iter()
        .rev()
        .find_map(|(.., record)| match record {
            Record::Verdict(verdict) => Some(verdict),
            _ => None,
        });
    assert_eq!(verdict.unwrap().assurance, "vendor-chain");

    // SPIRE is told the direct issuer and nothing above it.
    let export = site.gateway.ek_export(false);
    let [only] = export.certificates.as_slice() else {
        panic!("{export:?}");
    };
    assert_eq!(decode_der(&only.der).unwrap(), ica.der);
    assert_eq!(only.machines, [MachineId(id)]);
    assert!(export.without.is_empty());
    assert_eq!(site.gateway.ek_export(true).certificates.len(), 2);
}

#[test]
fn a_restart_between_claim_and_ca_loses_nothing() {
    let ca = root("Vendor Root");
    let mut site = Site::new();
    let id = claim(&mut site, &certified(&ca), 1);
    site.restart();
    assert_eq!(waiting(&site), [("CN=Vendor Root".to_owned(), id.clone())]);
    assert_eq!(import(&mut site, &[&ca.der]).judged_again, 1);
    // Power goes before the turn that would have judged it: the next start does.
    site.restart();
    assert_eq!(assurance(&site, &id), "bare-ek");
    site.wait(1);
    assert_eq!(assurance(&site, &id), "vendor-chain");
    // A CA that lies in the folder at a start does the same.
    let other = root("Other Root");
    let mut late = certified(&other);
    late.serial = "LAB-0002".into();
    let second = claim(&mut site, &late, 2);
    assert_eq!(assurance(&site, &second), "bare-ek");
    site.declared
        .ek_roots
        .add_from("other.pem", &other.der)
        .unwrap();
    site.restart();
    site.wait(1);
    assert_eq!(assurance(&site, &second), "vendor-chain");
}

#[test]
fn a_root_that_the_machine_lacks_completes_the_chain_it_brings() {
    let vendor_root = root("Vendor Root");
    let die = intermediate(&vendor_root, "CA of one die", |_| {});
    let mut site = Site::new();
    let mut node = certified(&die);
    node.ek_chain = vec![die.der.clone()];
    let id = claim(&mut site, &node, 1);
    // What is missing is the root, not the issuer of the EK certificate.
    assert_eq!(waiting(&site), [("CN=Vendor Root".to_owned(), id.clone())]);
    import(&mut site, &[&vendor_root.der]);
    site.wait(1);
    assert_eq!(assurance(&site, &id), "vendor-chain");
    site.approve(&id);
    assert_eq!(site.attempt(&node, 2, PEER).0, 200);
    // Its direct issuer is in no store; it was kept with the machine, over a restart.
    site.restart();
    let export = site.gateway.ek_export(false);
    assert_eq!(export.certificates.len(), 1, "{export:?}");
    assert_eq!(decode_der(&export.certificates[0].der).unwrap(), die.der);
}

#[test]
fn only_cas_are_taken_and_each_is_told_why_not() {
    let vendor_root = root("Vendor Root");
    let mut site = Site::new();
    let ek = NodeEk::p256(&mut OsRng).public;
    let leaf = issue(&ek, &vendor_root, |_| {});
    assert_eq!(refused(&mut site, &leaf), "ek_ca.not_ca");
    let no_ca = intermediate(&vendor_root, "no CA", |p| p.is_ca = IsCa::ExplicitNoCa);
    assert_eq!(refused(&mut site, &no_ca.der), "ek_ca.not_ca");
    let usage = intermediate(&vendor_root, "no certSign", |p| {
        p.key_usages = vec![rcgen::KeyUsagePurpose::DigitalSignature];
    });
    assert_eq!(refused(&mut site, &usage.der), "ek_ca.not_ca");
    let server = intermediate(&vendor_root, "for servers", |p| {
        p.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    });
    assert_eq!(refused(&mut site, &server.der), "ek_ca.not_ca");
    let critical = intermediate(&vendor_root, "critical", |p| {
        let mut unknown = CustomExtension::from_oid_content(&[1, 2, 3, 4], vec![5, 0]);
        unknown.set_criticality(true);
        p.custom_extensions = vec![unknown];
    });
    assert_eq!(refused(&mut site, &critical.der), "ek_ca.extension");
    // Self-signed by its names only.
    let mut forged = vendor_root.der.clone();
    *forged.last_mut().unwrap() ^= 1;
    assert_eq!(refused(&mut site, &forged), "ek_ca.signature");
    for bytes in [
        &b"no certificate"[..],
        &[],
        &[&leaf[..], &[0]].concat(),
        &leaf[..40],
    ] {
        assert_eq!(refused(&mut site, bytes), "ek_ca.encoding");
    }
    let large = vec![0x30; EK_CA_MAX_BYTES + 1];
    assert_eq!(refused(&mut site, &large), "ek_ca.size");
    assert!(site.gateway.ek_cas(site.now).certificates.is_empty());
    // A bad one beside a good one does not take it away.
    let done = import(&mut site, &[&leaf, &vendor_root.der]);
    let outcomes: Vec<_> = done.results.iter().map(|result| result.outcome).collect();
    assert_eq!(outcomes, [EkCaOutcome::Refused, EkCaOutcome::Imported]);
}

#[test]
fn what_an_owner_should_know_of_a_ca_is_said() {
    let mut site = Site::new();
    let vendor_root = root("Vendor Root");
    assert_eq!(
        one(&mut site, &vendor_root.der).outcome,
        EkCaOutcome::Imported
    );
    let records = site.disk.ledger.len();
    assert_eq!(one(&mut site, &vendor_root.der).outcome, EkCaOutcome::Known);
    assert_eq!(site.disk.ledger.len(), records, "a duplicate is no record");
    let now = i64::try_from(site.now.0 / 1000).unwrap();
    let over = intermediate(&vendor_root, "Old CA", |p| p.not_after = at(now - 86_400));
    let result = one(&mut site, &over.der);
    assert_eq!(result.outcome, EkCaOutcome::Imported);
    assert!(
        result.notes[0].starts_with("expired at 2027-"),
        "{result:?}"
    );
    let soon = intermediate(&vendor_root, "Ending CA", |p| {
        p.not_after = at(now + 86_400)
    });
    assert!(one(&mut site, &soon.der).notes[0].starts_with("expires within 90 days"));
    // An intermediate before its root in one request lacks nothing.
    let (other, below) = {
        let other = root("Other Root");
        let below = intermediate(&other, "Other CA", |_| {});
        (other, below)
    };
    let done = import(&mut site, &[&below.der, &other.der]);
    assert!(
        done.results.iter().all(|result| result.notes.is_empty()),
        "{done:?}"
    );

    let list = site.gateway.ek_cas(site.now).certificates;
    let of = |subject: &str| list.iter().find(|ca| ca.subject == subject).unwrap();
    let row = of("CN=Vendor Root");
    assert_eq!(
        (&*row.role, row.anchor, row.expiry),
        ("root", true, Expiry::Valid)
    );
    let from = row.imported.as_deref().unwrap();
    assert!(from.starts_with("imported by ada at 2027-"), "{from}");
    assert!(
        from.contains("vendor's site, by telephone (record 1)"),
        "{from}"
    );
    assert_eq!(of("CN=Old CA").expiry, Expiry::Expired);
    assert_eq!(of("CN=Ending CA").expiry, Expiry::Soon);
    assert!(!of("CN=Other CA").anchor);
    // Files and imports side by side, each with its own provenance, over a restart.
    site.declared
        .ek_roots
        .add_from("folder/x.pem", &root("File Root").der)
        .unwrap();
    site.restart();
    let again = site.gateway.ek_cas(site.now).certificates;
    assert_eq!(again.len(), list.len() + 1);
    assert_eq!(again[0].file.as_deref(), Some("folder/x.pem"));
    for ca in &list {
        assert!(again.contains(ca), "{ca:?}");
    }
    // The ledger alone has the bytes.
    let ders = site
        .disk
        .ledger
        .iter()
        .filter_map(|(.., record)| match record {
            Record::Operator(act) => match &act.act {
                Act::EkCaImport { der, .. } => decode_der(der),
                _ => None,
            },
            _ => None,
        });
    assert_eq!(ders.filter(|der| *der == vendor_root.der).count(), 1);
}

#[test]
fn only_an_owner_imports_and_removes_and_a_request_is_bounded() {
    let ca = root("Vendor Root");
    let mut site = Site::new();
    for role in [Role::Viewer, Role::Operator] {
        let caller = Caller {
            cn: "eve".into(),
            role,
        };
        let reason = import_as(&mut site, &caller, &[&ca.der]).unwrap_err();
        assert_eq!(reason.code, "admin.role");
        let command = Command::EkCaRemove("00".repeat(32), "because".into());
        let now = site.now;
        let reason = site.gateway.command(now, &caller, command).unwrap_err();
        assert_eq!(reason.code, "admin.role");
    }
    let many = vec![ca.der.as_slice(); EK_CAS_PER_IMPORT_MAX + 1];
    for ders in [&many[..], &[]] {
        let reason = import_as(&mut site, &owner(), ders).unwrap_err();
        assert_eq!(reason.code, "malformed.command");
    }
    for source in ["", "a\nb", &"x".repeat(200)] {
        let import = EkCaImport {
            certificates: vec![ca.der.clone()],
            source: source.into(),
        };
        let now = site.now;
        let done = site
            .gateway
            .import_ek_cas(now, TimeTrust::None, &owner(), &import);
        assert_eq!(done.unwrap_err().code, "malformed.command");
    }
    assert!(site.disk.ledger.is_empty());
    // A file is not taken out by a command, nor is what was never there.
    site.declared.ek_roots.add_from("x.pem", &ca.der).unwrap();
    site.restart();
    assert_eq!(one(&mut site, &ca.der).outcome, EkCaOutcome::Known);
    let sha256 = hex::encode(gateway_core::appraisal::ek::id_of(&ca.der));
    let reason = site
        .ask(Command::EkCaRemove(sha256, "why not".into()))
        .unwrap_err();
    assert_eq!(reason.code, "ek_ca.unknown");
    assert!(reason.found.contains("x.pem"), "{reason}");
}

/// The name of a vendor is worth nothing: the key decides.
#[test]
fn a_cas_name_alone_matches_nothing() {
    let real = root("Vendor Root");
    let made_up = root("Vendor Root");
    let mut site = Site::new();
    import(&mut site, &[&real.der]);
    let mut liar = certified(&made_up);
    let id = claim(&mut site, &liar, 1);
    assert_eq!(assurance(&site, &id), "bare-ek");
    assert_eq!(codes(&site, &id), ["ek.cert.signature"]);
    assert_eq!(waiting(&site).len(), 1);
    // It brings the made-up root itself: still nothing.
    liar.ek_chain = vec![made_up.der.clone()];
    site.wait(61_000);
    let id = claim(&mut site, &liar, 2);
    site.restart();
    site.wait(1);
    assert_eq!(assurance(&site, &id), "bare-ek");
    // Two CAs of one name that an owner trusts are both tried.
    import(&mut site, &[&made_up.der]);
    site.wait(1);
    assert_eq!(assurance(&site, &id), "vendor-chain");
    assert!(codes(&site, &id).is_empty());
    assert_eq!(site.gateway.ek_cas(site.now).certificates.len(), 2);
}

#[test]
fn a_ca_changes_its_key_under_its_own_name() {
    let old = root("Vendor Root");
    let new_key = KeyPair::generate().unwrap();
    let mut params = ca_params("Vendor Root", unlimited());
    params.use_authority_key_identifier_extension = true;
    let mut site = Site::new();
    let rolled = params
        .signed_by(&new_key, &old.issuer)
        .unwrap()
        .der()
        .to_vec();
    let cert = x509::Cert::read(&rolled).unwrap();
    assert!(cert.self_issued());
    import(&mut site, &[&old.der]);
    let result = one(&mut site, &rolled);
    assert_eq!(result.role.as_deref(), Some("intermediate"), "{result:?}");
    assert!(
        result.notes.is_empty(),
        "its chain to the old key is there: {result:?}"
    );
    let rolled = Ca {
        der: rolled,
        issuer: Issuer::new(ca_params("Vendor Root", unlimited()), new_key),
    };
    let id = claim(&mut site, &certified(&rolled), 1);
    assert_eq!(assurance(&site, &id), "vendor-chain");
}

#[test]
fn a_ca_that_is_taken_out_vouches_for_nobody() {
    let ca = root("Vendor Root");
    let mut site = Site::new();
    import(&mut site, &[&ca.der]);
    let node = certified(&ca);
    let id = claim(&mut site, &node, 1);
    assert_eq!(assurance(&site, &id), "vendor-chain");
    remove(&mut site, &ca.der);
    assert_eq!(assurance(&site, &id), "bare-ek");
    assert_eq!(codes(&site, &id), ["ek_ca.removed"]);
    let list = site.gateway.ek_unmatched().unmatched;
    assert!(
        !list[0].machines[0].kept,
        "its bytes were not kept: at its next attestation"
    );
    assert!(site.gateway.ek_cas(site.now).certificates.is_empty());
    site.restart();
    assert_eq!(assurance(&site, &id), "bare-ek");
    assert!(site.gateway.ek_cas(site.now).certificates.is_empty());
    // Its next attestation says what is known now.
    claim(&mut site, &node, 2);
    assert_eq!(codes(&site, &id), ["ek.cert.chain"]);
    // An approved machine of that CA is refused, and nothing about it is exported.
    site.approve(&id);
    let (status, result) = site.attempt_refused(&node, 3, PEER);
    assert_eq!((status, result.verdict), (403, WireVerdict::NotAdmitted));
    assert!(site.refused.iter().any(|code| code == "ek.cert.chain"));
    // Back again, it is admitted again.
    import(&mut site, &[&ca.der]);
    site.wait(1);
    assert_eq!(assurance(&site, &id), "vendor-chain");
    assert_eq!(site.attempt(&node, 4, PEER).0, 200);
    remove(&mut site, &ca.der);
    let export = site.gateway.ek_export(true);
    assert!(export.certificates.is_empty());
    assert!(
        export.without[0].why.contains("CN=Vendor Root"),
        "{export:?}"
    );
}

/// A file that is gone after a restart vouches for nobody, though the ledger says nothing of it.
#[test]
fn a_file_that_is_taken_out_vouches_for_nobody_after_the_restart() {
    let ca = root("File Root");
    let mut site = Site::new();
    site.declared.ek_roots.add_from("x.pem", &ca.der).unwrap();
    site.restart();
    let node = certified(&ca);
    let id = claim(&mut site, &node, 1);
    site.approve(&id);
    assert_eq!(site.attempt(&node, 2, PEER).0, 200);
    assert_eq!(site.gateway.ek_export(false).certificates.len(), 1);
    let with_file = std::mem::take(&mut site.declared.ek_roots);
    site.restart();
    assert_eq!(assurance(&site, &id), "bare-ek");
    assert_eq!(codes(&site, &id), ["ek_ca.removed"]);
    assert_eq!(waiting(&site).len(), 1);
    let export = site.gateway.ek_export(true);
    assert!(export.certificates.is_empty(), "{export:?}");
    assert_eq!(export.without.len(), 1);
    // The file is back.
    site.declared.ek_roots = with_file;
    site.restart();
    assert_eq!(assurance(&site, &id), "vendor-chain");
    assert!(codes(&site, &id).is_empty());
    assert_eq!(site.gateway.ek_export(false).certificates.len(), 1);
}

#[test]
fn a_ca_that_is_a_file_too_goes_on_vouching_when_the_import_is_taken_out() {
    let ca = root("Vendor Root");
    let mut site = Site::new();
    import(&mut site, &[&ca.der]);
    site.declared.ek_roots.add_from("x.pem", &ca.der).unwrap();
    site.restart();
    let node = certified(&ca);
    let id = claim(&mut site, &node, 1);
    remove(&mut site, &ca.der);
    for _ in 0..2 {
        assert_eq!(assurance(&site, &id), "vendor-chain");
        assert!(codes(&site, &id).is_empty() && waiting(&site).is_empty());
        site.restart();
    }
    site.declared.ek_roots = EkRoots::default();
    site.restart();
    assert_eq!(assurance(&site, &id), "bare-ek");
    assert_eq!(codes(&site, &id), ["ek_ca.removed"]);
}

/// SPIRE trusts each certificate of the file by itself.
#[test]
fn an_export_of_all_leaves_out_what_row_4_takes_in_no_chain() {
    let vendor_root = root("Vendor Root");
    let good = intermediate(&vendor_root, "Good CA", |_| {});
    let over = at(NOW) - Duration::days(1);
    let old = intermediate(&vendor_root, "Old CA", |p| p.not_after = over);
    let below = intermediate(&old, "Below the old CA", |_| {});
    let orphan = intermediate(&root("Unknown Root"), "Orphan CA", |_| {});
    // A root that was renewed under its key: what it signed is worth something again.
    let renewed = root("Renewed Root");
    let mut params = ca_params("Renewed Root", unlimited());
    params.not_after = over;
    let before = params.self_signed(renewed.issuer.key()).unwrap();
    let kept = intermediate(&renewed, "Kept CA", |_| {});
    let mut site = Site::new();
    site.time = vendor::rtc(NOW);
    import(
        &mut site,
        &[
            &vendor_root.der,
            &good.der,
            &old.der,
            &below.der,
            &orphan.der,
            before.der(),
            &kept.der,
            &renewed.der,
        ],
    );
    let export = site.gateway.ek_export(true);
    let mut subjects: Vec<_> = export.certificates.iter().map(|ca| &*ca.subject).collect();
    subjects.sort_unstable();
    assert_eq!(
        subjects,
        [
            "CN=Good CA",
            "CN=Kept CA",
            "CN=Renewed Root",
            "CN=Vendor Root"
        ]
    );
    assert!(
        export
            .certificates
            .iter()
            .all(|ca| decode_der(&ca.der).unwrap() != before.der().to_vec())
    );
    let mut skipped: Vec<_> = export
        .skipped
        .iter()
        .map(|ca| (&*ca.subject, ca.why.split(':').next().unwrap()))
        .collect();
    skipped.sort_unstable();
    assert_eq!(
        skipped,
        [
            ("CN=Below the old CA", "a CA above it is not valid"),
            ("CN=Old CA", "ek.cert.expired"),
            ("CN=Orphan CA", "no chain to a root"),
            ("CN=Renewed Root", "ek.cert.expired"),
        ]
    );
    assert!(site.gateway.ek_export(false).skipped.is_empty());
}

#[test]
fn a_ca_taken_out_while_the_evidence_is_judged_admits_nobody() {
    let vendor_root = root("Vendor Root");
    let ica = intermediate(&vendor_root, "Vendor EK CA", |_| {});
    for gone in [&vendor_root, &ica] {
        let mut site = Site::new();
        import(&mut site, &[&vendor_root.der, &ica.der]);
        let node = certified(&ica);
        let id = claim(&mut site, &node, 1);
        site.approve(&id);
        let hello = site.hello(&node, 2, PEER);
        site.hold = true;
        site.evidence(&node, 2, &hello);
        remove(&mut site, &gone.der);
        site.release();
        let (status, result) = site.result();
        assert_eq!((status, &*result.code), (403, "ek_ca.removed"));
        assert!(result.devid_chain.is_empty());
        // Nor does the attempt put the chain back on record.
        assert_eq!(ek_records(&site).len(), 1);
        assert_eq!(assurance(&site, &id), "bare-ek");
        assert_eq!(waiting(&site).len(), 1);
    }
}

/// A software TPM signs itself as many certificates as it likes.
#[test]
fn certificates_that_alternate_fill_no_ledger() {
    let made = [root("Made up"), root("Made up too")];
    let mut site = Site::new();
    let mut node = node();
    let certs = made
        .each_ref()
        .map(|ca| issue(&node.eks[0].public, ca, |_| {}));
    alternate(&mut site, &mut node, &certs, 0..50);
    site.restart();
    alternate(&mut site, &mut node, &certs, 50..100);
    assert_eq!(ek_records(&site).len(), 1);
    site.wait(CLAIM_CHANGE_MS);
    alternate(&mut site, &mut node, &certs, 100..110);
    assert_eq!(ek_records(&site).len(), 2);
}

/// Nor does one that an owner has approved, with certificates that its vendor signed.
#[test]
fn certificates_of_a_bound_machine_that_alternate_fill_no_ledger() {
    let ca = root("Vendor Root");
    let mut site = Site::new();
    import(&mut site, &[&ca.der]);
    let mut node = node();
    let certs = [(); 2].map(|()| issue(&node.eks[0].public, &ca, |_| {}));
    node.eks[0].cert = Some(certs[0].clone());
    let id = claim(&mut site, &node, 1);
    site.approve(&id);
    alternate(&mut site, &mut node, &certs, 2..102);
    assert!(site.disk.ledger.len() > 60, "it was admitted, and refused");
    assert_eq!(ek_records(&site).len(), 1);
    site.wait(CLAIM_CHANGE_MS);
    alternate(&mut site, &mut node, &certs, 102..112);
    assert_eq!(ek_records(&site).len(), 2);
}

#[test]
fn keys_that_are_not_proven_fill_no_list() {
    let ca = root("Vendor Root");
    let mut site = Site::new();
    let honest = certified(&ca);
    // A hello shows the certificate of a TPM that somebody else has.
    site.hello(&honest, 1, PEER);
    site.replies.clear();
    let mut thief = certified(&ca);
    thief.eks[0].public = honest.eks[0].public.clone();
    thief.eks[0].cert = honest.eks[0].cert.clone();
    let (status, _) = site.attempt_refused(&thief, 2, PEER);
    assert_eq!(status, 403);
    assert!(site.gateway.ek_unmatched().unmatched.is_empty());
    let on_record =
        |(.., record): &(u64, UnixMillis, Record)| matches!(record, Record::EkCertificates(_));
    assert!(!site.disk.ledger.iter().any(on_record));
}

#[test]
fn the_list_is_bounded_and_says_what_it_dropped() {
    let mut registry = Registry::default();
    for number in 0..=EK_UNMATCHED_MAX as u64 {
        let machine = MachineId(format!("m-{number}"));
        let ek_name = EkName(format!("000b{number:064x}"));
        let claim = Claim {
            machine: machine.clone(),
            ek_names: vec![ek_name.clone()],
            serial: number.to_string(),
            macs: Vec::new(),
            disks: Vec::new(),
            port: None,
            assurance: "bare-ek".into(),
            report_sha256: "00".into(),
            would_refuse: Vec::new(),
            correlation: "x".into(),
        };
        let certificates = EkCertificates {
            machine,
            cause: EkCause::Attestation,
            assurance: "bare-ek".into(),
            certs: vec![EkCertificate {
                ek_name,
                proven: true,
                ek_cert_sha256: number.to_string(),
                ek_cert_serial: "01".into(),
                path: Vec::new(),
                issuer: "CN=Vendor".into(),
                issuer_key: None,
                ca_issuers: Vec::new(),
                reason: None,
                ek_cert_der: Some("MAA=".into()),
            }],
            chain: Vec::new(),
            reasons: Vec::new(),
        };
        let at = UnixMillis(number);
        registry.apply(2 * number + 1, at, &Record::Claim(claim));
        registry.apply(2 * number + 2, at, &Record::EkCertificates(certificates));
    }
    assert_eq!(registry.ek_unmatched().count(), EK_UNMATCHED_MAX);
    assert_eq!(registry.ek_unmatched_dropped(), 1);
    let first = registry.ek_unmatched().next().unwrap();
    assert_eq!(first.0.id.0, "m-1", "the oldest made room");
    let oldest = registry.get(&MachineId("m-0".into())).unwrap();
    assert!(!oldest.ek.as_ref().unwrap().is_kept(), "its bytes are gone");
}

/// A claim that was rejected waits for no CA.
#[test]
fn a_rejected_claim_leaves_the_list() {
    let mut site = Site::new();
    let id = claim(&mut site, &certified(&root("Vendor Root")), 1);
    assert_eq!(waiting(&site).len(), 1);
    site.act(Command::Withdraw(MachineId(id), "not ours".into()));
    assert!(waiting(&site).is_empty());
    site.restart();
    assert!(waiting(&site).is_empty());
}

/// Intermediates of the store lengthen no chain beyond its bound, nor past an expired issuer.
#[test]
fn what_row_4_demands_of_a_chain_holds_for_imported_cas() {
    let vendor_root = root("Vendor Root");
    let narrow = intermediate(&vendor_root, "Narrow CA", |p| {
        p.is_ca = IsCa::Ca(rcgen::BasicConstraints::Constrained(0));
    });
    let below = intermediate(&narrow, "Below CA", |_| {});
    let old = intermediate(&vendor_root, "Old CA", |p| {
        p.not_after = at(NOW) - Duration::days(1);
    });
    let mut site = Site::new();
    site.time = vendor::rtc(NOW);
    import(
        &mut site,
        &[&vendor_root.der, &narrow.der, &below.der, &old.der],
    );
    for (conn, ca, code) in [(1, &below, "ek.cert.ca"), (2, &old, "ek.cert.expired")] {
        let mut node = certified(ca);
        node.serial = format!("LAB-{conn}");
        let id = claim(&mut site, &node, conn);
        assert_eq!(assurance(&site, &id), "bare-ek");
        assert_eq!(codes(&site, &id), [code]);
    }
}

/// Every CA of the field's vendors that the corpus has goes in as what it is, and comes back from the
/// ledger alone.
#[test]
fn the_vendors_cas_of_the_corpus_are_taken() {
    let Some(corpus) = std::env::var_os("VESTIBULE_CORPUS") else {
        return;
    };
    let mut ders = std::collections::BTreeSet::new();
    for entry in std::fs::read_dir(std::path::Path::new(&corpus).join("ca")).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        for object in x509::contents(&bytes).objects {
            if object.what == x509::What::Certificate {
                ders.insert(object.der.into_owned());
            }
        }
    }
    assert!(ders.len() > 150, "{}", ders.len());
    let mut site = Site::with(Inventory::default(), Preset::Standard);
    let ders: Vec<&[u8]> = ders.iter().map(Vec::as_slice).collect();
    let mut refused = Vec::new();
    for chunk in ders.chunks(EK_CAS_PER_IMPORT_MAX) {
        for result in import(&mut site, chunk).results {
            if result.outcome == EkCaOutcome::Refused {
                let code = result.reason.unwrap().code;
                refused.push((code.into_owned(), result.subject));
            }
        }
    }
    let list = site.gateway.ek_cas(site.now).certificates;
    assert_eq!(list.len() + 1, ders.len());
    // Microsoft's CA for attestation keys says that it is for those alone.
    let [(code, subject)] = refused.as_slice() else {
        panic!("{refused:#?}");
    };
    assert_eq!(code, "ek_ca.not_ca");
    assert!(subject.starts_with("CN=WUS-IFX-KEYID-"), "{subject}");
    site.restart();
    assert_eq!(site.gateway.ek_cas(site.now).certificates, list);
}

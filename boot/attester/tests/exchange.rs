//! The exchange against a small TLS server: what the node sends, and what it refuses to believe.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod support;

use std::net::SocketAddr;

use attest_wire::oid::{EKU_RECEIPT, EKU_SERVER_AUTH};
use attest_wire::v1::{
    AttestationResult, Binding, Bytes, Challenge, Credential, Verdict, decode_evidence,
    decode_hello,
};
use attester::client::ClientError;
use attester::{AttestError, DevIdAuth, Gateway, Node, Options, Outcome, attest};
use hmac::{Hmac, Mac};
use rustls::pki_types::CertificateDer;
use sha2::Sha256;
use support::{Ca, Reply, SoftTpm, facts, serve_one};

fn gateway(addr: SocketAddr, ca: &Ca) -> Gateway {
    Gateway {
        addr,
        anchors: vec![ca.der.clone()],
    }
}

fn challenge() -> Challenge {
    let credential = |ek, byte| Credential {
        ek,
        blob: Bytes(vec![byte; 32]),
        secret: Bytes(vec![byte; 64]),
    };
    Challenge {
        session: Bytes(vec![5; 16]),
        nonce: Bytes(vec![6; 32]),
        credentials: vec![credential(0, 0xa0), credential(1, 0xa1)],
        pcr_selection: vec![4, 7, 10, 11, 15],
    }
}

fn result(verdict: Verdict) -> AttestationResult {
    AttestationResult {
        verdict,
        code: "some.code".to_owned(),
        hint: "a hint\x1b[2J".to_owned(),
        correlation: "c-1".to_owned(),
        retry_secs: 9,
        receipt: None,
        devid_chain: Vec::new(),
        sealed: None,
        grant: None,
    }
}

fn json<T: serde::Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).unwrap()
}

fn pending() -> Vec<u8> {
    json(&result(Verdict::Pending))
}

fn admitted(ca: &Ca, ldevid: CertificateDer<'_>) -> AttestationResult {
    AttestationResult {
        receipt: Some(ca.receipt(b"{\"verdict\":\"admitted\"}")),
        devid_chain: vec![Bytes(ldevid.to_vec()), Bytes(ca.der.to_vec())],
        sealed: None,
        grant: None,
        ..result(Verdict::Admitted)
    }
}

#[test]
fn evidence_is_bound_to_bodies_and_connection() {
    let ca = Ca::new("infra");
    let mut tpm = SoftTpm::new();
    tpm.restless_reads = 2;
    let mut extends = Vec::new();
    let mut node = Node::prepare(&mut tpm, &Options::default()).unwrap();
    for attempt in 1..=3_usize {
        let mut hello_body = Vec::new();
        let (sender, receiver) = std::sync::mpsc::channel();
        let (addr, server) = serve_one(ca.attest_leaf(), false, move |count, request, exporter| {
            if count == 0 {
                assert_eq!(request.line, "POST /v1/hello HTTP/1.1");
                let hello = decode_hello(&request.body).unwrap();
                assert_eq!(hello.eks.len(), 2);
                assert_eq!(hello.ek_chain.len(), 2, "split, padding cut");
                assert_eq!(hello.platform.serial, "SN-1");
                assert_eq!(hello.tpm.model.len(), 128, "cut to the bound");
                hello_body.clone_from(&request.body);
                return Reply::Json(200, json(&challenge()));
            }
            assert_eq!(request.line, "POST /v1/evidence HTTP/1.1");
            let evidence = decode_evidence(&request.body).unwrap();
            let binding = Binding::new(&hello_body, &json(&challenge()), exporter(&[5; 16]));
            for (proof, byte) in evidence.activated.iter().zip([0xa0, 0xa1]) {
                let mut mac = Hmac::<Sha256>::new_from_slice(&[byte; 32]).unwrap();
                mac.update(&binding.digest("activation"));
                mac.verify_slice(&proof.0).unwrap();
            }
            assert_eq!(evidence.session.0, [5; 16]);
            assert_eq!(evidence.devid_certify.attest.0, binding.digest("devid"));
            assert_eq!(evidence.quote.attest.0, binding.digest("quote"));
            assert_eq!(evidence.pcr15_extends.len(), attempt);
            assert_eq!(
                evidence.pcr15_extends.last().unwrap().0,
                binding.digest("boot")
            );
            let read: Vec<u8> = evidence
                .pcr_values
                .iter()
                .map(|value| value.index)
                .collect();
            assert_eq!(read, [4, 7, 10, 11, 15]);
            assert_eq!(
                evidence.pcr_values[2].digest.0, [10; 32],
                "quoted once it held still"
            );
            assert_eq!(evidence.event_log.0, [7; 100]);
            let report = decode_hello(&hello_body).unwrap().report_sha256();
            sender.send((evidence, hex::encode(report))).unwrap();
            Reply::Json(200, pending())
        });
        let mut steps = Vec::new();
        let outcome = node
            .attest(&mut tpm, &facts(), &gateway(addr, &ca), &mut |step, _| {
                steps.push(step.as_str());
            })
            .unwrap();
        assert_eq!(steps, ["hello", "challenge", "evidence", "appraise"]);
        let Outcome::Pending {
            code,
            hint,
            correlation,
            retry_secs,
            report_sha256,
        } = outcome
        else {
            panic!("not pending")
        };
        assert_eq!(
            (code.as_str(), correlation.as_str(), retry_secs),
            ("some.code", "c-1", 9)
        );
        assert_eq!(
            hint, "a hint?[2J",
            "no control character reaches the console"
        );
        assert_eq!(server.join().unwrap(), 2, "both requests on one connection");
        let (evidence, report) = receiver.recv().unwrap();
        assert_eq!(report_sha256, report, "what the owner compares");
        // The list of this boot grows and keeps its order.
        assert_eq!(evidence.pcr15_extends[..attempt - 1], extends);
        extends = evidence.pcr15_extends;
    }
    // Bound first, quoted after: PCR 15 holds B("boot") when the quote is made.
    let order: Vec<&str> = tpm
        .calls
        .iter()
        .rev()
        .take(5)
        .rev()
        .map(|call| call.0)
        .collect();
    assert_eq!(
        order,
        ["activate", "activate", "extend", "certify", "quote"]
    );
}

#[test]
fn admitted_brings_chain_receipt_and_key() {
    let ca = Ca::new("infra");
    let device_ca = Ca::new("device");
    let mut tpm = SoftTpm::new();
    let ldevid = device_ca.certify_point(&tpm.devid_point());
    let body = json(&admitted(&ca, ldevid.clone()));
    let (addr, _server) = serve_one(ca.attest_leaf(), false, move |count, _, _| match count {
        0 => Reply::Json(200, json(&challenge())),
        _ => Reply::Json(200, body.clone()),
    });
    let options = Options {
        devid_auth: DevIdAuth::Random,
        ..Options::default()
    };
    let outcome = attest(&mut tpm, &facts(), &gateway(addr, &ca), &options).unwrap();
    let Outcome::Admitted {
        chain,
        receipt,
        devid,
        ..
    } = outcome
    else {
        panic!("not admitted")
    };
    assert_eq!(chain[0], ldevid.to_vec());
    assert_eq!(receipt.body.0, b"{\"verdict\":\"admitted\"}");
    let auth = devid.auth.unwrap();
    assert_eq!(auth.len(), 32);
    assert!(
        auth.bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    );
}

#[test]
fn refusal_of_the_hello_is_an_outcome() {
    let ca = Ca::new("infra");
    let (addr, server) = serve_one(ca.attest_leaf(), false, |_, _, _| {
        Reply::Json(403, json(&result(Verdict::NotAdmitted)))
    });
    let mut tpm = SoftTpm::new();
    let outcome = attest(&mut tpm, &facts(), &gateway(addr, &ca), &Options::default()).unwrap();
    assert!(matches!(outcome, Outcome::Refused { retry_secs: 9, .. }));
    assert_eq!(server.join().unwrap(), 1, "no evidence after a refusal");
    assert!(
        tpm.calls.is_empty(),
        "nothing was extended, signed or activated"
    );
}

#[test]
fn rejects_admission_that_is_of_no_use() {
    let ca = Ca::new("infra");
    let other = Ca::new("other");
    let tpm = SoftTpm::new();
    let own = other.certify_point(&tpm.devid_point());
    let foreign = other.certify_point(&SoftTpm::new().devid_point());
    let good = admitted(&ca, own.clone());
    type Edit = Box<dyn Fn(&mut AttestationResult)>;
    let edits: Vec<(&str, Edit)> = vec![
        (
            "another key",
            Box::new(move |r| r.devid_chain[0] = Bytes(foreign.to_vec())),
        ),
        ("without an LDevID", Box::new(|r| r.devid_chain.clear())),
        (
            "not a certificate",
            Box::new(|r| r.devid_chain[0] = Bytes(vec![1, 2, 3])),
        ),
        ("without a receipt", Box::new(|r| r.receipt = None)),
        (
            "not under the pinned CA",
            Box::new(move |r| r.receipt = Some(other.receipt(b"{}"))),
        ),
        (
            "signature",
            Box::new(|r| r.receipt.as_mut().unwrap().body = Bytes(b"{ }".to_vec())),
        ),
        (
            "without certificates",
            Box::new(|r| r.receipt.as_mut().unwrap().chain.clear()),
        ),
    ];
    // The unedited result passes with this very TPM.
    let mut tpm = Some(tpm);
    let mut run = |body: Vec<u8>| {
        let (addr, _server) = serve_one(ca.attest_leaf(), false, move |count, _, _| match count {
            0 => Reply::Json(200, json(&challenge())),
            _ => Reply::Json(200, body.clone()),
        });
        let mut node_tpm = tpm.take().unwrap();
        node_tpm.pcr15 = [0; 32];
        let outcome = attest(
            &mut node_tpm,
            &facts(),
            &gateway(addr, &ca),
            &Options::default(),
        );
        tpm = Some(node_tpm);
        outcome
    };
    assert!(matches!(run(json(&good)), Ok(Outcome::Admitted { .. })));
    for (expected, edit) in edits {
        let mut edited = good.clone();
        edit(&mut edited);
        match run(json(&edited)) {
            Err(error) => assert!(error.to_string().contains(expected), "{expected}: {error}"),
            Ok(_) => panic!("{expected}: believed"),
        }
    }
}

#[test]
fn rejects_challenges_that_ask_what_this_node_does_not_do() {
    type Edit = fn(&mut Challenge);
    let edits: [(&str, Edit); 8] = [
        ("session", |c| c.session = Bytes(vec![1; 15])),
        ("nonce", |c| c.nonce = Bytes(Vec::new())),
        ("credentials", |c| c.credentials.clear()),
        ("did not offer", |c| c.credentials[1].ek = 2),
        ("twice", |c| c.credentials[1].ek = 0),
        ("leaves out 15", |c| c.pcr_selection = vec![4, 7, 11]),
        ("pcr_selection", |c| c.pcr_selection = vec![7, 4, 15]),
        ("pcr_selection", |c| c.pcr_selection = vec![4, 15, 24]),
    ];
    for (expected, edit) in edits {
        let ca = Ca::new("infra");
        let mut edited = challenge();
        edit(&mut edited);
        let (addr, server) = serve_one(ca.attest_leaf(), false, move |_, _, _| {
            Reply::Json(200, json(&edited))
        });
        let mut tpm = SoftTpm::new();
        match attest(&mut tpm, &facts(), &gateway(addr, &ca), &Options::default()) {
            Err(error) => assert!(error.to_string().contains(expected), "{expected}: {error}"),
            Ok(_) => panic!("{expected}: answered"),
        }
        assert!(tpm.calls.is_empty(), "{expected}: the TPM was used");
        assert_eq!(server.join().unwrap(), 1);
    }
}

#[test]
fn attack_35_wrong_pin_no_server_but_the_pinned_one() {
    let ca = Ca::new("infra");
    let other = Ca::new("infra");
    let name = attest_wire::v1::ATTEST_SERVER_NAME;
    let eku = attest_wire::oid::EKU_ATTEST;
    let cases = [
        (
            "another CA of the same name",
            other.attest_leaf(),
            false,
            "pinned CA",
        ),
        ("no key purpose", ca.leaf(&[name], None), false, "pinned CA"),
        (
            "a web server's purpose",
            ca.leaf(&[name], Some(EKU_SERVER_AUTH)),
            false,
            "pinned CA",
        ),
        (
            "the receipt key",
            ca.leaf(&[name], Some(EKU_RECEIPT)),
            false,
            "pinned CA",
        ),
        (
            "another name",
            ca.leaf(&["other.example"], Some(eku)),
            false,
            "expected exactly",
        ),
        (
            "a second name",
            ca.leaf(&[name, "a.example"], Some(eku)),
            false,
            "expected exactly",
        ),
        (
            "a wildcard",
            ca.leaf(&["*.vestibule.internal"], Some(eku)),
            false,
            "expected exactly",
        ),
        (
            "an address only",
            ca.leaf(&["127.0.0.1"], Some(eku)),
            false,
            "expected exactly",
        ),
        ("TLS 1.2", ca.attest_leaf(), true, "TLS"),
    ];
    for (what, leaf, tls12, expected) in cases {
        let (addr, server) = serve_one(leaf, tls12, |_, _, _| panic!("a request was sent"));
        let mut tpm = SoftTpm::new();
        match attest(&mut tpm, &facts(), &gateway(addr, &ca), &Options::default()) {
            Err(AttestError::Client(error)) => {
                assert_eq!(
                    matches!(error, ClientError::NotPinned(_)),
                    !tls12,
                    "{what}: {error}"
                );
                assert!(error.to_string().contains(expected), "{what}: {error}");
            }
            Err(error) => panic!("{what}: {error}"),
            Ok(_) => panic!("{what}: believed"),
        }
        assert_eq!(server.join().unwrap(), 0, "{what}");
    }
}

#[test]
fn dates_do_not_matter() {
    let ca = Ca::new("infra");
    let leaf = ca.expired_leaf(
        &[attest_wire::v1::ATTEST_SERVER_NAME],
        attest_wire::oid::EKU_ATTEST,
    );
    let (addr, _server) = serve_one(leaf, false, |count, _, _| match count {
        0 => Reply::Json(200, json(&challenge())),
        _ => Reply::Json(200, pending()),
    });
    let outcome = attest(
        &mut SoftTpm::new(),
        &facts(),
        &gateway(addr, &ca),
        &Options::default(),
    )
    .unwrap();
    assert!(matches!(outcome, Outcome::Pending { .. }));
}

#[test]
fn either_of_two_anchors_is_enough() {
    let (old, new) = (Ca::new("infra 1"), Ca::new("infra 2"));
    let (addr, _server) = serve_one(new.attest_leaf(), false, |_, _, _| {
        Reply::Json(403, json(&result(Verdict::NotAdmitted)))
    });
    let gateway = Gateway {
        addr,
        anchors: vec![old.der, new.der],
    };
    attest(&mut SoftTpm::new(), &facts(), &gateway, &Options::default()).unwrap();
}

#[test]
fn rejects_answers_that_are_not_our_http() {
    let cases: [(&str, Reply); 6] = [
        ("connection lost", Reply::Close),
        ("not usable", Reply::Raw(b"SSH-2.0-x\r\n\r\n".to_vec())),
        (
            "not spoken",
            Reply::Raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec()),
        ),
        (
            "more bytes",
            Reply::Raw(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nxx".to_vec()),
        ),
        (
            "head longer",
            Reply::Raw([b"HTTP/1.1 200 OK\r\nx: ".as_slice(), &[b'y'; 20_000]].concat()),
        ),
        (
            "HTTP status 500 without a result",
            Reply::Json(500, b"oops".to_vec()),
        ),
    ];
    for (expected, reply) in cases {
        let ca = Ca::new("infra");
        let mut reply = Some(reply);
        let (addr, _server) = serve_one(ca.attest_leaf(), false, move |_, _, _| {
            reply.take().unwrap()
        });
        let mut tpm = SoftTpm::new();
        match attest(&mut tpm, &facts(), &gateway(addr, &ca), &Options::default()) {
            Err(error) => assert!(error.to_string().contains(expected), "{expected}: {error}"),
            Ok(_) => panic!("{expected}: believed"),
        }
    }
}

#[test]
fn rejects_before_connecting_what_cannot_work() {
    let ca = Ca::new("infra");
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 1));
    let mut tpm = SoftTpm::new();
    let no_anchor = Gateway {
        addr: nowhere,
        anchors: Vec::new(),
    };
    let options = Options::default();
    assert!(matches!(
        attest(&mut tpm, &facts(), &no_anchor, &options),
        Err(AttestError::Pin(_))
    ));
    let garbage = Gateway {
        addr: nowhere,
        anchors: vec![CertificateDer::from(vec![1, 2, 3])],
    };
    assert!(matches!(
        attest(&mut tpm, &facts(), &garbage, &options),
        Err(AttestError::Pin(_))
    ));
    assert!(matches!(
        attest(&mut tpm, &facts(), &gateway(nowhere, &ca), &options),
        Err(AttestError::Client(ClientError::Connect { .. }))
    ));
    let mut huge = facts();
    huge.event_log = vec![0; 300 * 1024];
    assert!(matches!(
        attest(&mut tpm, &huge, &gateway(nowhere, &ca), &options),
        Err(AttestError::TooLarge {
            what: "event log",
            ..
        })
    ));
    tpm.pcr15 = [1; 32];
    assert!(matches!(
        attest(&mut tpm, &facts(), &gateway(nowhere, &ca), &options),
        Err(AttestError::Extends(_))
    ));
}

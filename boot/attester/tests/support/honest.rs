//! A gateway that checks what a real TPM must prove, in the simplest words, and then admits or lets
//! wait. The real checks are the appraisal's; these only show that the node's side is true.

use attest_wire::credential::make_credential;
use attest_wire::oid::{EKU_GRANT, EKU_RECEIPT};
use attest_wire::sealed::{Item, Target, seal};
use attest_wire::templates::{Template, devid_templates, ek_template};
use attest_wire::tpm::{
    Attest, AttestBody, Public, RH_ENDORSEMENT, Signature, qualified_name_of_primary,
};
use attest_wire::v1::handover::{GRANT_LABEL, SEALED_LABEL, SEALED_PCRS, Sealed};
use attest_wire::v1::{
    AttestationResult, Binding, Bytes, Challenge, Credential, Evidence, Hello, Verdict,
    decode_evidence, decode_hello,
};
use hmac::{Hmac, Mac};
use p256::ecdsa::signature::hazmat::PrehashVerifier;
use sha2::{Digest, Sha256};

use super::{Ca, Reply, Script};

/// PCRs asked for.
const PCRS: [u8; 6] = [0, 4, 7, 11, 12, 15];

/// What the gateway says in the end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    Admit,
    LetWait,
    /// Admits, with a payload.
    Deliver(Lie),
}

/// What is wrong with a payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lie {
    Nothing,
    /// Signed by the receipt key.
    Signer,
    /// Signed by the right key under another label.
    Label,
    /// For another machine.
    Machine,
    /// For another receipt.
    Receipt,
    /// At other PCR values.
    Pcrs,
    /// The ciphertext was changed after it was signed.
    Ciphertext,
}

/// A script for one connection. `seen` gets hello and evidence.
pub fn honest(
    infra: Ca,
    device: Ca,
    decision: Decision,
    mut seen: impl FnMut(&Hello, &Evidence) + Send + 'static,
) -> impl Script {
    let mut hello_body = Vec::new();
    let mut challenge_body = Vec::new();
    let mut secrets: Vec<[u8; 32]> = Vec::new();
    move |count, request, exporter| {
        if count == 0 {
            hello_body.clone_from(&request.body);
            let hello = decode_hello(&hello_body).unwrap();
            let challenge = challenge(&hello, &mut secrets);
            challenge_body = serde_json::to_vec(&challenge).unwrap();
            return Reply::Json(200, challenge_body.clone());
        }
        let hello = decode_hello(&hello_body).unwrap();
        let evidence = decode_evidence(&request.body).unwrap();
        let binding = Binding::new(&hello_body, &challenge_body, exporter(&[7; 16]));
        check(&hello, &evidence, &binding, &secrets);
        seen(&hello, &evidence);
        let mut result = AttestationResult {
            verdict: Verdict::Pending,
            code: "ek.unknown".to_owned(),
            hint: "waits for its owner".to_owned(),
            correlation: "test".to_owned(),
            retry_secs: 2,
            receipt: None,
            devid_chain: Vec::new(),
            sealed: None,
            grant: None,
        };
        if decision != Decision::LetWait {
            let point = Public::decode(&hello.devid_pub.0)
                .unwrap()
                .ecc_point()
                .unwrap();
            result.verdict = Verdict::Admitted;
            result.code = "admitted".to_owned();
            let body = b"{\"verdict\":\"admitted\",\"machine\":\"node-7\"}";
            result.receipt = Some(infra.receipt(body));
            if let Decision::Deliver(lie) = decision {
                result.sealed = Some(Box::new(sealed(&infra, &hello, &evidence, body, lie)));
            }
            result.devid_chain = vec![
                Bytes(device.certify_point(&point).to_vec()),
                Bytes(device.der.to_vec()),
            ];
        }
        Reply::Json(200, serde_json::to_vec(&result).unwrap())
    }
}

fn sealed(infra: &Ca, hello: &Hello, evidence: &Evidence, receipt: &[u8], lie: Lie) -> Sealed {
    let value = |pcr: u8| -> [u8; 32] {
        let value = evidence.pcr_values.iter().find(|v| v.index == pcr);
        value.unwrap().digest.0.as_slice().try_into().unwrap()
    };
    let mut pcrs = SEALED_PCRS.map(value);
    if lie == Lie::Pcrs {
        pcrs[0] = [9; 32];
    }
    let ek = Public::decode(&hello.eks[0].public.0).unwrap();
    let target = Target {
        machine: if lie == Lie::Machine {
            "node-8"
        } else {
            "node-7"
        },
        receipt_sha256: match lie {
            Lie::Receipt => [0; 32],
            _ => Sha256::digest(receipt).into(),
        },
        index: 0,
        ek: &ek,
        pcrs,
    };
    let item = Item {
        kind: "user-data".to_owned(),
        bytes: zeroize::Zeroizing::new(b"#cloud-config".to_vec()),
    };
    let unsigned = seal(&target, &[item], &mut rand_core::OsRng).unwrap();
    let (purpose, label) = match lie {
        Lie::Signer => (EKU_RECEIPT, SEALED_LABEL),
        Lie::Label => (EKU_GRANT, GRANT_LABEL),
        _ => (EKU_GRANT, SEALED_LABEL),
    };
    let (sig, chain) = infra.sign(purpose, label, unsigned.body());
    let mut sealed = unsigned.signed(sig, chain);
    if lie == Lie::Ciphertext {
        sealed.items[0].ciphertext.0[0] ^= 1;
    }
    sealed
}

fn challenge(hello: &Hello, secrets: &mut Vec<[u8; 32]>) -> Challenge {
    let ak = Public::decode(&hello.ak_pub.0).unwrap();
    Template::Ak.check(&ak).unwrap();
    let devid = Public::decode(&hello.devid_pub.0).unwrap();
    let (_, srk) = devid_templates(&devid).unwrap();
    srk.check(&Public::decode(&hello.srk_pub.0).unwrap())
        .unwrap();
    let credentials = hello.eks.iter().enumerate().map(|(index, offer)| {
        let ek = Public::decode(&offer.public.0).unwrap();
        ek_template(&ek).unwrap();
        let secret = [0x40 + index as u8; 32];
        secrets.push(secret);
        let made = make_credential(&ek, &ak.name(), &secret, &mut rand_core::OsRng).unwrap();
        Credential {
            ek: index as u8,
            blob: Bytes(made.id_object),
            secret: Bytes(made.secret),
        }
    });
    Challenge {
        session: Bytes(vec![7; 16]),
        nonce: Bytes(vec![8; 32]),
        credentials: credentials.collect(),
        pcr_selection: PCRS.to_vec(),
    }
}

fn check(hello: &Hello, evidence: &Evidence, binding: &Binding, secrets: &[[u8; 32]]) {
    assert_eq!(evidence.activated.len(), secrets.len());
    for (proof, secret) in evidence.activated.iter().zip(secrets) {
        let mut mac = Hmac::<Sha256>::new_from_slice(secret).unwrap();
        mac.update(&binding.digest("activation"));
        mac.verify_slice(&proof.0).unwrap();
    }
    let ak = Public::decode(&hello.ak_pub.0).unwrap();
    let verified = |attested: &attest_wire::v1::Attested| {
        let key = p256::ecdsa::VerifyingKey::from_sec1_bytes(&ak.ecc_point().unwrap()).unwrap();
        let raw = Signature::decode(&attested.sig.0)
            .unwrap()
            .ecdsa_fixed(32)
            .unwrap();
        let signature = p256::ecdsa::Signature::from_slice(&raw).unwrap();
        key.verify_prehash(&Sha256::digest(&attested.attest.0), &signature)
            .unwrap();
        Attest::decode(&attested.attest.0).unwrap()
    };
    let certify = verified(&evidence.devid_certify);
    assert_eq!(certify.extra_data, binding.digest("devid"));
    let devid = Public::decode(&hello.devid_pub.0).unwrap();
    let AttestBody::Certify { name, .. } = &certify.body else {
        panic!("not a certify")
    };
    assert_eq!(name.as_slice(), devid.name().as_bytes());

    let quote = verified(&evidence.quote);
    assert_eq!(quote.extra_data, binding.digest("quote"));
    let expected = qualified_name_of_primary(RH_ENDORSEMENT, &ak);
    assert_eq!(quote.qualified_signer.as_slice(), expected.as_bytes());
    let AttestBody::Quote { pcr_digest, .. } = &quote.body else {
        panic!("not a quote")
    };
    let mut values = Sha256::new();
    for value in &evidence.pcr_values {
        values.update(&value.digest.0);
    }
    assert_eq!(pcr_digest.as_slice(), values.finalize().as_slice());

    let replayed = evidence.pcr15_extends.iter().fold([0; 32], |pcr, extend| {
        <[u8; 32]>::from(
            Sha256::new()
                .chain_update(pcr)
                .chain_update(&extend.0)
                .finalize(),
        )
    });
    assert_eq!(evidence.pcr_values.last().unwrap().digest.0, replayed);
    assert_eq!(
        evidence.pcr15_extends.last().unwrap().0,
        binding.digest("boot")
    );
}

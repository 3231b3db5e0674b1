//! TPM 2.0 structures that come from a node.

use attest_wire::templates::{Template, devid_templates, ek_template};
use attest_wire::tpm::{Attest, Public, Signature, pcr_selections};

const TEMPLATES: [Template; 12] = [
    Template::EkRsa2048L,
    Template::EkP256L,
    Template::EkRsa2048H,
    Template::EkP256H,
    Template::EkP384H,
    Template::EkRsa3072H,
    Template::EkRsa4096H,
    Template::Ak,
    Template::SrkRsa2048,
    Template::SrkP256,
    Template::DevIdRsa2048,
    Template::DevIdP256,
];

/// `TPMT_PUBLIC`. One encoding for each key: the Name is a hash of these bytes.
pub fn public(data: &[u8]) {
    let Ok(public) = Public::decode(data) else {
        return;
    };
    assert_eq!(public.encode(), data, "two encodings of one public area");
    let _ = public.name().to_hex();
    let _ = public.ecc_point();
    let _ = public.rsa_components();
    let _ = public.spki_der();
    let _ = ek_template(&public);
    let _ = devid_templates(&public);
    for template in TEMPLATES {
        let _ = template.check(&public);
    }
}

/// `TPMS_ATTEST` and the selections in it.
pub fn attest(data: &[u8]) {
    if let Ok(selections) = pcr_selections(data) {
        for selection in selections {
            let _ = selection.pcrs();
        }
    }
    if let Ok(attest) = Attest::decode(data) {
        assert_eq!(attest.encode(), data, "two encodings of one attestation");
    }
}

/// `TPMT_SIGNATURE`.
pub fn signature(data: &[u8]) {
    let Ok(signature) = Signature::decode(data) else {
        return;
    };
    assert_eq!(signature.encode(), data, "two encodings of one signature");
    for size in [0, 32, 48, 66] {
        if let Some(fixed) = signature.ecdsa_fixed(size) {
            assert_eq!(fixed.len(), 2 * size);
        }
    }
}

/// Each template, as a key would fill it.
pub fn public_seeds() -> Vec<Vec<u8>> {
    TEMPLATES
        .into_iter()
        .flat_map(|template| {
            [
                template.create_primary_input().encode(),
                template.public().encode(),
            ]
        })
        .collect()
}

fn sized(bytes: &[u8]) -> Vec<u8> {
    let mut out = (bytes.len() as u16).to_be_bytes().to_vec();
    out.extend_from_slice(bytes);
    out
}

/// A quote, a certify, a time and a creation attestation.
pub fn attest_seeds() -> Vec<Vec<u8>> {
    let name = [&[0, 0x0b][..], &[7; 32]].concat();
    let quote = [
        &[0, 0, 0, 1, 0, 0x0b, 3, 0x90, 0x98, 0][..],
        &sized(&[9; 32]),
    ]
    .concat();
    let pair = [sized(&name), sized(&name)].concat();
    [
        (0x8018u16, quote),
        (0x8017, pair.clone()),
        (0x8019, vec![0; 33]),
        (0x801a, pair),
    ]
    .into_iter()
    .map(|(kind, body)| {
        [
            &[0xff, b'T', b'C', b'G'][..],
            &kind.to_be_bytes(),
            &sized(&name),
            &sized(&[5; 32]),
            // clock, resetCount, restartCount, safe, firmwareVersion
            &[0; 8],
            &[0; 8],
            &[1],
            &[0; 8],
            &body,
        ]
        .concat()
    })
    .collect()
}

/// RSASSA, RSAPSS and ECDSA with SHA-256.
pub fn signature_seeds() -> Vec<Vec<u8>> {
    let head = |alg: u8| [&[0, alg][..], &[0, 0x0b]].concat();
    vec![
        [head(0x14), sized(&[1; 256])].concat(),
        [head(0x16), sized(&[1; 256])].concat(),
        [head(0x18), sized(&[1; 32]), sized(&[2; 31])].concat(),
    ]
}

//! Messages of the attestation exchange: hello and evidence are read by the gateway, challenge and
//! result by the attester.

use std::fmt::Debug;

use attest_wire::sealed::{Expected, check, open};
use attest_wire::templates::Template;
use attest_wire::tpm::Public;
use attest_wire::v1::{self, Binding, Malformed};
use serde::Serialize;

/// Decodes; what was accepted must be accepted again after encoding, and be equal.
fn round_trip<T: Serialize + PartialEq + Debug>(
    decode: fn(&[u8]) -> Result<T, Malformed>,
    body: &[u8],
) {
    let Ok(message) = decode(body) else { return };
    let encoded = serde_json::to_vec(&message).expect("a decoded message can be encoded");
    match decode(&encoded) {
        Ok(again) => assert_eq!(again, message),
        // The encoding can be longer than the input (escapes), and so too long: nothing else.
        Err(malformed) => assert_eq!(malformed.code, "malformed.size", "{malformed}"),
    }
}

/// Hello.
pub fn hello(body: &[u8]) {
    round_trip(v1::decode_hello, body);
    // The binding takes any bytes.
    let _ = Binding::new(body, body, [0; 32]).digest("quote");
}

/// Evidence.
pub fn evidence(body: &[u8]) {
    round_trip(v1::decode_evidence, body);
}

/// Challenge and result; the report of an installer, which travels the other way.
pub fn reply(body: &[u8]) {
    round_trip(v1::decode_challenge, body);
    round_trip(v1::decode_result, body);
    round_trip(
        |body| v1::decode_progress(body).map(|(progress, _)| progress),
        body,
    );
}

/// Sealed payloads as the node takes them: what was decoded is compared with a session and opened, without
/// a TPM.
pub fn sealed(body: &[u8]) {
    let Ok(result) = v1::decode_result(body) else {
        return;
    };
    let Some(payloads) = result.sealed else {
        return;
    };
    let Ok(ek) = Public::decode(&Template::EkP256L.create_primary_input().encode()) else {
        return;
    };
    let expected = Expected {
        machine: "node-7",
        receipt_sha256: [0x22; 32],
        ek: &ek,
        pcrs: [[0; 32]; 4],
    };
    let _ = check(&payloads, &expected);
    if let Ok(items) = open(&payloads, &expected, &[0; 32]) {
        assert!(items.is_empty(), "opened without its secret");
    }
}

/// Small JSON with the traps of JSON in it.
pub fn seeds() -> Vec<Vec<u8>> {
    [
        r#"{}"#,
        r#"{"version":1,"version":1}"#,
        r#"{"version":1e999,"arch":"\ud800","eks":[[[[[[[["#,
        r#"{"body":"eyJncmFudCI6IiIsInNlcSI6MSwic3RlcCI6IndpcGVkIiwic2hhMjU2IjoiIiwiZGV0YWlsIjoiIn0","sig":"AA"}"#,
        r#"{"verdict":"admitted","code":"","hint":"","correlation":"","retry_secs":0,"sealed":{"statement":"AA","sig":"AA","chain":["AA"],"ek":0,"public":"AA","private":"AA","secret":"AA","items":[{"kind":"a","ciphertext":"AAAAAAAAAAAAAAAAAAAAAA"}]},"grant":{"body":"AA","sig":"AA","chain":["AA"]}}"#,
        r#"{"session":"AAAA","nonce":"__--","credentials":[],"pcr_selection":[255,256,-1]}"#,
    ]
    .into_iter()
    .map(|text| text.as_bytes().to_vec())
    .collect()
}

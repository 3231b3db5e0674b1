//! The released v1 messages, byte for byte in both directions, and one refusal per rule.

use attest_wire::v1::{self, Bytes};

/// One released message by its file name.
macro_rules! vector {
    ($name:literal) => {
        include_str!(concat!("../../../tests/vectors/wire/v1/", $name)).trim_end()
    };
}

fn same<T: serde::Serialize>(decoded: &T, text: &str) {
    assert_eq!(
        serde_json::to_string(decoded).expect("messages serialise"),
        text
    );
}

#[test]
fn released_messages_decode_and_encode_to_the_same_bytes() {
    for text in [
        vector!("hello.json"),
        vector!("hello-full.json"),
        vector!("hello-can.json"),
    ] {
        same(&v1::decode_hello(text.as_bytes()).expect(text), text);
    }
    let text = vector!("challenge.json");
    same(&v1::decode_challenge(text.as_bytes()).expect(text), text);
    let text = vector!("evidence.json");
    same(&v1::decode_evidence(text.as_bytes()).expect(text), text);
    for text in [
        vector!("result-admitted.json"),
        vector!("result-pending.json"),
        vector!("result-refused.json"),
        vector!("result-sealed.json"),
    ] {
        same(&v1::decode_result(text.as_bytes()).expect(text), text);
    }
}

#[test]
fn binding_of_the_released_messages() {
    let binding = v1::Binding::new(
        vector!("hello-full.json").as_bytes(),
        vector!("challenge.json").as_bytes(),
        [0x42; 32],
    );
    for line in vector!("binding.txt").lines() {
        let (label, digest) = line.split_once(' ').expect("label and digest");
        assert_eq!(hex::encode(binding.digest(label)), digest, "{label}");
    }
}

fn hello_with(edit: impl FnOnce(&mut v1::Hello)) -> Result<v1::Hello, v1::Malformed> {
    let mut hello = v1::decode_hello(vector!("hello-full.json").as_bytes()).expect("vector");
    edit(&mut hello);
    v1::decode_hello(&serde_json::to_vec(&hello).expect("messages serialise"))
}

fn evidence_with(edit: impl FnOnce(&mut v1::Evidence)) -> Result<v1::Evidence, v1::Malformed> {
    let mut evidence = v1::decode_evidence(vector!("evidence.json").as_bytes()).expect("vector");
    edit(&mut evidence);
    v1::decode_evidence(&serde_json::to_vec(&evidence).expect("messages serialise"))
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, v1::Malformed>, code: &str, field: &str) {
    let malformed = result.expect_err("must be refused");
    assert_eq!((malformed.code, malformed.field), (code, field));
}

#[test]
fn rejects_each_hello_field_out_of_bounds() {
    type Edit = fn(&mut v1::Hello);
    let table: [(Edit, &str, &str); 12] = [
        (|h| h.version = 2, "malformed.version", "version"),
        (|h| h.eks.clear(), "malformed.count", "eks"),
        (
            |h| h.eks = vec![h.eks[0].clone(); 9],
            "malformed.count",
            "eks",
        ),
        (
            |h| h.eks[0].public = Bytes(vec![0; 641]),
            "malformed.field",
            "eks.pub",
        ),
        (
            |h| h.eks[0].cert = Some(Bytes(vec![])),
            "malformed.field",
            "eks.cert",
        ),
        (
            |h| h.ek_chain = vec![Bytes(vec![0; 8193])],
            "malformed.field",
            "ek_chain",
        ),
        (|h| h.ak_pub = Bytes(vec![]), "malformed.field", "ak_pub"),
        (
            |h| h.platform.serial = "x".repeat(129),
            "malformed.field",
            "platform.serial",
        ),
        (
            |h| h.nics = vec![h.nics[0].clone(); 65],
            "malformed.count",
            "nics",
        ),
        (
            |h| h.disks = vec![h.disks[0].clone(); 65],
            "malformed.count",
            "disks",
        ),
        (
            |h| h.lldp = vec![h.lldp[0].clone(); 17],
            "malformed.count",
            "lldp",
        ),
        (
            |h| h.lldp[0].frame = Bytes(vec![0; 1601]),
            "malformed.field",
            "lldp.frame",
        ),
    ];
    hello_with(|_| {}).expect("unmodified hello passes");
    for (edit, code, field) in table {
        refused(hello_with(edit), code, field);
    }
}

#[test]
fn rejects_each_evidence_field_out_of_bounds() {
    type Edit = fn(&mut v1::Evidence);
    let table: [(Edit, &str, &str); 7] = [
        (
            |e| e.session = Bytes(vec![0; 15]),
            "malformed.field",
            "session",
        ),
        (
            |e| e.activated[0] = Bytes(vec![0; 33]),
            "malformed.field",
            "activated",
        ),
        (
            |e| e.quote.attest = Bytes(vec![0; 1025]),
            "malformed.field",
            "quote",
        ),
        (
            |e| e.pcr_values.swap(0, 1),
            "malformed.field",
            "pcr_values.index",
        ),
        (
            |e| e.pcr_values[0].digest = Bytes(vec![0; 20]),
            "malformed.field",
            "pcr_values.digest",
        ),
        (
            |e| e.pcr15_extends.clear(),
            "malformed.count",
            "pcr15_extends",
        ),
        (
            |e| e.event_log = Bytes(vec![0; 256 * 1024 + 1]),
            "malformed.field",
            "event_log",
        ),
    ];
    evidence_with(|_| {}).expect("unmodified evidence passes");
    for (edit, code, field) in table {
        refused(evidence_with(edit), code, field);
    }
}

#[test]
fn rejects_unknown_and_duplicate_keys_and_other_encodings() {
    let text = vector!("hello.json");
    let edited = [
        text.replacen('{', "{\"extra\":1,", 1),
        text.replacen('{', "{\"version\":1,", 1),
        text.replacen("\"pub\":", "\"pub\":\"AAAA\",\"pub\":", 1),
        text.replacen("\"ak_pub\":\"", "\"ak_pub\":\"*", 1),
        text.replacen("\"ak_pub\":\"", "\"ak_pub\":\"=", 1),
        format!("{text}{{}}"),
        text[..text.len() - 1].to_owned(),
    ];
    for body in &edited {
        assert_ne!(body, text);
        refused(v1::decode_hello(body.as_bytes()), "malformed.json", "hello");
    }
    refused(v1::decode_hello(b""), "malformed.size", "hello");
    let blank = vec![b' '; v1::EVIDENCE_MAX_BYTES + 1];
    refused(
        v1::decode_hello(&blank[..v1::HELLO_MAX_BYTES + 1]),
        "malformed.size",
        "hello",
    );
    refused(v1::decode_evidence(&blank), "malformed.size", "evidence");
}

#[test]
fn refusals_quote_no_control_character() {
    let body = vector!("hello.json").replacen('{', "{\"a\\u001b[2Jb\":1,", 1);
    let malformed = v1::decode_hello(body.as_bytes()).expect_err("unknown key");
    assert!(!malformed.to_string().chars().any(char::is_control));
}

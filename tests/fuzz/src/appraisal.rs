//! What the verifier reads of a node's evidence: event log and EK certificate.

use attest_wire::templates::Template;
use attest_wire::tpm::HashAlg;
use gateway_core::appraisal::boot_events::BootEvents;
use gateway_core::appraisal::draft::{DraftContext, draft};
use gateway_core::appraisal::eventlog::Log;
use gateway_core::appraisal::events::Markers;
use gateway_core::appraisal::notices::{NOTICES_MAX, notices};
use gateway_core::appraisal::recorded::{RecordedBoot, RecordedContext, appraise_recorded};
use gateway_core::appraisal::variables::{Signature, Variable};
use gateway_core::appraisal::x509::{AttributeCert, Cert, Crl, What, contents, read_chain};
use gateway_core::appraisal::{
    Binding, DevIdRules, EkDirectory, EkRoots, HelloContext, TimeTrust, appraise_hello, ek,
};
use gateway_core::identity::EkName;
use gateway_core::policy::{Policy, Preset};

/// An event log is parsed, replayed in each bank, and each event looked at.
pub fn event_log(data: &[u8]) {
    let reading = Log::read(data);
    if let Some(log) = &reading.log {
        told(log, data.len());
    }
    let log = match (Log::parse(data), reading.error) {
        (Ok(log), None) => log,
        (Err(refused), Some(error)) => {
            assert_eq!(refused, error);
            assert!(!error.expected().is_empty() && !error.found().is_empty());
            return;
        }
        (parsed, error) => panic!("{parsed:?} read with {error:?}"),
    };
    assert_eq!(reading.log.as_ref(), Some(&log));
    for alg in [
        HashAlg::Sha1,
        HashAlg::Sha256,
        HashAlg::Sha384,
        HashAlg::Sha512,
    ] {
        if let Some(pcrs) = log.replay(alg) {
            assert!(pcrs.values().all(|value| value.len() == alg.size()));
        }
    }
    let markers = Markers::new();
    for event in &log.events {
        let _ = markers.of(event);
        let _ = Variable::proven(event);
        let _ = Variable::parse(event.data);
        let _ = Signature::lists(event.data);
    }
    // Padding is no part of the log.
    let mut padded = data.to_vec();
    padded.extend_from_slice(&[0xff; 64]);
    if let Ok(again) = Log::parse(&padded) {
        assert_eq!(again.replay(HashAlg::Sha256), log.replay(HashAlg::Sha256));
    }
    drafted(data);
}

/// A draft of a policy can be read, whatever the log says, and is true to what it says of its own boot.
fn drafted(data: &[u8]) {
    let (boot, time) = (
        RecordedBoot {
            log: data,
            pcrs: None,
        },
        TimeTrust::None,
    );
    let context = DraftContext {
        catalog: &[],
        dbx_entries: true,
        time,
    };
    let Ok(made) = draft(&boot, &context) else {
        return;
    };
    assert!(made.text.is_ascii(), "{}", made.text);
    let policy = Policy::parse(&made.text);
    let policy = policy.unwrap_or_else(|mistakes| panic!("{mistakes:?}\n{}", made.text));
    let context = RecordedContext {
        policy: &policy,
        class: None,
        catalog: &[],
        time,
    };
    let mut refused = appraise_recorded(&boot, &context).refused;
    refused.retain(|reason| !["boot.image", "boot.uki"].contains(&reason.code.as_ref()));
    assert_eq!(refused, made.refused);
}

/// What a log says, of as much of it as could be read: bounded, and of events that are there.
fn told(log: &Log<'_>, len: usize) {
    assert!(notices(log).len() <= NOTICES_MAX + 1);
    let Some(boot) = BootEvents::read(log) else {
        return;
    };
    let known = |event: usize| log.events.iter().any(|there| there.index == event);
    for image in &boot.images {
        assert!(known(image.event) && image.digest.len() == boot.bank.size());
    }
    for attempt in &boot.attempts {
        assert!(attempt.images.iter().all(|&event| event > attempt.event));
    }
    for database in &boot.databases {
        let entries = database.entries.as_deref().unwrap_or_default();
        assert!(
            entries.len() * 17 <= len,
            "more entries than there is room for"
        );
        assert!(entries.iter().all(|entry| !entry.digest().is_empty()));
    }
    for authority in &boot.authorities {
        let certificate = authority.variable.certificate().unwrap_or_default();
        assert!(certificate.len() <= authority.variable.data.len());
    }
    // What somebody says of Secure Boot rests on a digest in this log.
    assert!(boot.secure_boot.is_none() || !log.events.is_empty());
}

/// What a file holds, whatever it is wrapped in; and the same octets cut as NV indices would.
fn wrapped(data: &[u8]) {
    for object in contents(data).objects {
        assert!(object.offset <= data.len());
        match object.what {
            What::Certificate => drop(Cert::read(&object.der)),
            What::AttributeCertificate => drop(AttributeCert::read(&object.der)),
            What::Crl => drop(Crl::read(&object.der)),
            What::Damaged(_) => assert!(object.der.is_empty()),
            What::Pkcs7 | What::Other(_) => {}
        }
    }
    let whole: Vec<Vec<u8>> = read_chain([data]).into_iter().map(|c| c.der).collect();
    assert!(whole.len() <= 16);
    let _ = read_chain(data.chunks(100));
}

/// A certificate from a TPM's NV memory, and files of vendors' roots. Against no root and against
/// itself as the only root: neither may make a chain for a key it does not hold.
pub fn ek_cert(data: &[u8]) {
    let mut roots = EkRoots::default();
    let _ = roots.add(data);
    let _ = roots.add_crls(data);
    wrapped(data);
    let policy = Policy::preset(Preset::Standard);
    let chain: Vec<Cert> = Cert::parse(data).into_iter().collect();
    for cert in &chain {
        // What was read reads again, to the same.
        assert_eq!(
            Cert::read(&cert.der).map(|c| c.serial),
            Ok(cert.serial.clone())
        );
        let _ = (cert.subject_text(), cert.issuer_text(), ek::usage(cert));
    }
    for template in [Template::EkRsa2048L, Template::EkP256L] {
        let key = template.create_primary_input();
        for roots in [&EkRoots::default(), &roots] {
            let judged = ek::appraise_cert(
                &key,
                data,
                &chain,
                roots,
                TimeTrust::None,
                &policy,
                &mut ek::Noted::default(),
            );
            assert!(judged.is_err(), "a certificate for a key of zeros");
        }
    }
}

fn event(pcr: u32, kind: u32, digests: &[u8], data: &[u8]) -> Vec<u8> {
    [
        &pcr.to_le_bytes()[..],
        &kind.to_le_bytes(),
        digests,
        &(data.len() as u32).to_le_bytes(),
        data,
    ]
    .concat()
}

/// A crypto-agile log with locality, a variable and a separator, and a SHA-1 log.
pub fn event_log_seeds() -> Vec<Vec<u8>> {
    let spec_id = [
        &b"Spec ID Event03\0"[..],
        &[0, 0, 0, 0, 0, 2, 0, 2],
        &[2, 0, 0, 0],
        &[4, 0, 20, 0, 0x0b, 0, 32, 0],
        &[0],
    ]
    .concat();
    let digests = |data: &[u8]| {
        [
            &[2, 0, 0, 0, 4, 0][..],
            &HashAlg::Sha1.digest(&[data]),
            &[0x0b, 0],
            &HashAlg::Sha256.digest(&[data]),
        ]
        .concat()
    };
    let variable = [
        &[
            0x61, 0xdf, 0xe4, 0x8b, 0xca, 0x93, 0xd2, 0x11, 0xaa, 0x0d, 0, 0xe0, 0x98, 3, 0x2b,
            0x8c,
        ][..],
        &10u64.to_le_bytes(),
        &1u64.to_le_bytes(),
        b"S\0e\0c\0u\0r\0e\0B\0o\0o\0t\0",
        &[1],
    ]
    .concat();
    let separator = [0; 4];
    let agile = [
        event(0, 3, &[0; 20], &spec_id),
        event(0, 3, &digests(&[]), b"StartupLocality\0\x03"),
        event(7, 0x8000_0001, &digests(&variable), &variable),
        event(4, 4, &digests(&separator), &separator),
    ]
    .concat();
    let sha1 = event(4, 4, &HashAlg::Sha1.digest(&[&separator]), &separator);
    // A key database, an authority and an image behind the separator; measurement registers.
    let certificate = [&[7; 16][..], &[0x30, 3, 5, 1, 0]].concat();
    let list = [
        &[
            0xa1, 0x59, 0xc0, 0xa5, 0xe4, 0x94, 0xa7, 0x4a, 0x87, 0xb5, 0xab, 0x15, 0x5c, 0x2b,
            0xf0, 0x72,
        ][..],
        &(28 + 21u32).to_le_bytes(),
        &0u32.to_le_bytes(),
        &21u32.to_le_bytes(),
        &certificate,
    ]
    .concat();
    let db = |content: &[u8]| {
        [
            &[
                0xcb, 0xb2, 0x19, 0xd7, 0x3a, 0x3d, 0x96, 0x45, 0xa3, 0xbc, 0xda, 0xd0, 0x0e, 0x67,
                0x65, 0x6f,
            ][..],
            &2u64.to_le_bytes(),
            &(content.len() as u64).to_le_bytes(),
            b"d\0b\0",
            content,
        ]
        .concat()
    };
    let (list, certificate) = (db(&list), db(&certificate));
    let path = [
        &[0; 24][..],
        &8u64.to_le_bytes(),
        &[4, 4, 4, 0, 0x7f, 0xff, 4, 0],
    ]
    .concat();
    let call = b"Calling EFI Application from Boot Option";
    let rest = |settings: u32, images: u32| {
        [
            event(settings, 0x8000_0001, &digests(&list), &list),
            event(settings, 4, &digests(&separator), &separator),
            event(settings, 0x8000_00e0, &digests(&certificate), &certificate),
            event(images, 0x8000_0007, &digests(call), call),
            event(images, 0x8000_0003, &digests(b"image"), &path),
            event(8, 0x0d, &digests(b"boot"), b"grub_cmd: boot\0"),
        ]
        .concat()
    };
    let boot = [event(0, 3, &[0; 20], &spec_id), rest(7, 4)].concat();
    let confidential = [event(1, 3, &[0; 20], &spec_id), rest(1, 2)].concat();
    // As many events of zeros as fit an evidence body, and no padding at the end.
    let zeros = [&vec![0; 262_143][..], &[1]].concat();
    vec![agile, sha1.repeat(3), boot, confidential, zeros]
}

/// No certificate can be made without a key: the field files and mutations must do.
pub fn ek_cert_seeds() -> Vec<Vec<u8>> {
    vec![include_bytes!("ek-like.der").to_vec(), crl_seed()]
}

/// An indirect revocation list with a distribution point; nobody signed it.
fn crl_seed() -> Vec<u8> {
    fn tlv(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
        let content = parts.concat();
        let len = content.len();
        let mut out = vec![tag];
        if len > 127 {
            out.extend_from_slice(&[0x82, (len >> 8) as u8]);
        }
        out.push(len as u8);
        out.extend(content);
        out
    }
    let extension = |id: u8, value: &[u8]| {
        let id = [6, 3, 0x55, 0x1d, id];
        tlv(0x30, &[&id, &[1, 1, 0xff], &tlv(4, &[value])])
    };
    let algorithm = tlv(0x30, &[&[6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2]]);
    let attribute = tlv(0x30, &[&[6, 3, 0x55, 4, 3], &tlv(0x0c, &[b"root"])]);
    let name = tlv(0x30, &[&tlv(0x31, &[&attribute])]);
    let date = tlv(0x18, &[b"20250101000000Z"]);
    let issuer = tlv(0x30, &[&tlv(0xa4, &[&name])]);
    let entries = [
        tlv(
            0x30,
            &[&[2, 1, 7], &date, &tlv(0x30, &[&extension(29, &issuer)])],
        ),
        tlv(
            0x30,
            &[
                &[2, 1, 8],
                &date,
                &tlv(0x30, &[&extension(21, &[10, 1, 1])]),
            ],
        ),
    ];
    let point = tlv(0xa0, &[&tlv(0xa0, &[&tlv(0x86, &[b"http://x/y.crl"])])]);
    let extensions = [
        extension(28, &tlv(0x30, &[&point, &[0x84, 1, 0xff]])),
        extension(20, &[2, 1, 1]),
    ];
    let tbs = tlv(
        0x30,
        &[
            &[2, 1, 1],
            &algorithm,
            &name,
            &date,
            &date,
            &tlv(0x30, &[&entries.concat()]),
            &tlv(0xa0, &[&tlv(0x30, &[&extensions.concat()])]),
        ],
    );
    tlv(0x30, &[&tbs, &algorithm, &tlv(3, &[&[0; 64]])])
}

/// Nobody is known.
struct Stranger;

impl EkDirectory for Stranger {
    fn owner(&self, _ek: &EkName) -> Option<&Binding> {
        None
    }
}

/// The first request of a node, through rows 1 to 6 as the daemon judges it.
pub fn hello(body: &[u8]) {
    let policy = Policy::preset(Preset::Standard);
    let judged = appraise_hello(
        body,
        &HelloContext {
            policy: &policy,
            bindings: &Stranger,
            ek_roots: &EkRoots::default(),
            time: TimeTrust::None,
            devid: DevIdRules::default(),
        },
    );
    match judged {
        Ok(hello) => assert!(hello.machine().is_none(), "a stranger is bound"),
        Err(refusal) => {
            assert!(!refusal.reasons.is_empty(), "refused without a reason");
            let (code, _) = refusal.told();
            assert_eq!(code, "not_admitted", "an unproven node is told more");
        }
    }
}

//! Event logs of public bug reports, written here in their form (docs/FIELD-BUGS.md).

#![allow(clippy::unwrap_used, reason = "a test: a failed step ends it")]

#[allow(dead_code, reason = "shared with the appraisal's tests")]
#[path = "support/log.rs"]
mod log;

use attest_wire::tpm::HashAlg;
use gateway_core::appraisal::boot_events::BootEvents;
use gateway_core::appraisal::eventlog::{Format, Log, LogError};
use gateway_core::appraisal::events::type_name;
use gateway_core::appraisal::notices::notices;
use log::{Entry, LogBuilder, event1};

const EV_POST_CODE: u32 = 1;
const EV_S_CRTM_CONTENTS: u32 = 7;

fn codes(log: &Log<'_>) -> Vec<&'static str> {
    notices(log).iter().map(|notice| notice.code).collect()
}

fn sha1(data: &[u8]) -> [u8; 20] {
    HashAlg::Sha1.digest(&[data]).try_into().unwrap()
}

/// PCR 0 after one extend from a start value that ends in `locality`.
fn extended_once(alg: HashAlg, locality: u8, digest: &[u8]) -> Vec<u8> {
    let mut start = vec![0; alg.size()];
    *start.last_mut().unwrap() = locality;
    alg.digest(&[&start, digest])
}

#[test]
fn cmcp_433_and_go_attestation_150_an_empty_log_is_an_error_of_its_own() {
    let error = Log::parse(&[]).unwrap_err();
    assert_eq!((error.code(), error), ("eventlog.empty", LogError::Empty));
}

/// fwupd/fwupd#4431, nsacyber/HIRS#960, tpm2-software/tpm2-tools#3256 (one SHA-256 bank, locality 3).
#[test]
fn fwupd_4431_hirs_960_and_tpm2_tools_3256_the_locality_is_the_seed_of_pcr_0() {
    for locality in [0, 3, 4] {
        let told = [&b"StartupLocality\0"[..], &[locality]].concat();
        let log = LogBuilder::write(&[
            Entry::of(0, log::EV_NO_ACTION, [0; 32], &told),
            Entry::of(0, log::EV_S_CRTM_VERSION, [5; 32], b"v"),
            Entry::of(1, log::EV_S_CRTM_VERSION, [5; 32], b"v"),
        ]);
        let log = Log::parse(&log.bytes).unwrap();
        assert_eq!(log.startup_locality, Some(locality));
        let pcrs = log.replay(HashAlg::Sha256).unwrap();
        let alg = HashAlg::Sha256;
        assert_eq!(pcrs[&0], extended_once(alg, locality, &[5; 32]));
        assert_eq!(pcrs[&1], extended_once(alg, 0, &[5; 32]), "PCR 0 alone");
    }
}

#[test]
fn tpm2_tools_3242_only_the_exact_event_in_pcr_0_is_a_locality() {
    for (pcr, data) in [
        (0, &b"StartupLocality\0"[..]),
        (0, b"StartupLocality\0\x03\x00"),
        (0, b"startuplocality\0\x03"),
        (0, b"SP800-155 Event\0\x03"),
        (0, b"StartupLocality\0\x02"),
        (7, b"StartupLocality\0\x03"),
    ] {
        let log = LogBuilder::write(&[
            Entry::of(pcr, log::EV_NO_ACTION, [0; 32], data),
            Entry::of(0, log::EV_S_CRTM_VERSION, [5; 32], b"v"),
        ]);
        let log = Log::parse(&log.bytes).unwrap();
        assert_eq!(log.startup_locality, None, "{data:?}");
        let pcr0 = &log.replay(HashAlg::Sha256).unwrap()[&0];
        assert_eq!(pcr0, &extended_once(HashAlg::Sha256, 0, &[5; 32]));
        let told = codes(&log).contains(&"eventlog.locality");
        assert_eq!(told, data.starts_with(b"StartupLocality\0"), "{data:?}");
    }
    // Twice, and late: the first counts, both are told.
    let told = |locality| {
        let data = [&b"StartupLocality\0"[..], &[locality]].concat();
        Entry::of(0, log::EV_NO_ACTION, [0; 32], &data)
    };
    let log = LogBuilder::write(&[
        Entry::of(0, log::EV_S_CRTM_VERSION, [5; 32], b"v"),
        told(3),
        told(4),
    ]);
    let log = Log::parse(&log.bytes).unwrap();
    assert_eq!(log.startup_locality, Some(3));
    let twice = codes(&log)
        .iter()
        .filter(|code| **code == "eventlog.locality")
        .count();
    assert_eq!(twice, 2);
}

#[test]
fn go_attestation_208_a_sha1_log_that_begins_with_a_locality() {
    let bytes = [
        event1(0, log::EV_NO_ACTION, &[0; 20], b"StartupLocality\0\x03"),
        event1(0, log::EV_S_CRTM_VERSION, &sha1(b"v"), b"v"),
    ]
    .concat();
    let log = Log::parse(&bytes).unwrap();
    assert_eq!((log.format, log.count()), (Format::Sha1, 2));
    let pcr0 = &log.replay(HashAlg::Sha1).unwrap()[&0];
    assert_eq!(pcr0, &extended_once(HashAlg::Sha1, 3, &sha1(b"v")));
}

/// systemd/systemd#35820 (EV_S_CRTM_CONTENTS first), tpm2-software/tpm2-tools#2204 (EV_S_CRTM_VERSION
/// first, as a cloud's firmware logs).
#[test]
fn systemd_35820_and_tpm2_tools_2204_a_sha1_log_without_spec_id() {
    for kind in [EV_S_CRTM_CONTENTS, log::EV_S_CRTM_VERSION] {
        let bytes = [
            event1(0, kind, &[6; 20], b"first"),
            event1(4, log::EV_SEPARATOR, &sha1(&[0; 4]), &[0; 4]),
        ]
        .concat();
        let log = Log::parse(&bytes).unwrap();
        assert_eq!((log.format, log.count()), (Format::Sha1, 2));
        assert_eq!(log.spec_id, None);
        let pcrs = log.replay(HashAlg::Sha1).unwrap();
        assert_eq!(pcrs[&0], extended_once(HashAlg::Sha1, 0, &[6; 20]));
        assert_eq!(log.replay(HashAlg::Sha256), None);
    }
}

#[test]
fn tpm2_tools_2017_a_post_code_is_a_text_or_an_address() {
    let blob = [&0xffe0_0000u64.to_le_bytes()[..], &0x1000u64.to_le_bytes()].concat();
    for data in [&b"POST CODE"[..], &blob, b"ACPI DATA", b""] {
        let log = LogBuilder::write(&[Entry::of(0, EV_POST_CODE, [7; 32], data)]);
        let log = Log::parse(&log.bytes).unwrap();
        assert_eq!(type_name(log.events[0].kind), "EV_POST_CODE");
        assert_eq!(log.events[0].data, data);
        assert_eq!(codes(&log), Vec::<&str>::new());
    }
}

#[test]
fn tpm2_tools_2881_bad_event_data_never_stop_the_replay() {
    let name_too_long = [&log::GLOBAL[..], &[0xff; 8], &[1, 0, 0, 0, 0, 0, 0, 0, 7]].concat();
    let cut = &log::variable(log::GLOBAL, "SecureBoot", &[1])[..30];
    for data in [&name_too_long[..], cut, b""] {
        for kind in [log::EV_VARIABLE, log::EV_VARIABLE_BOOT, log::EV_AUTHORITY] {
            let log = LogBuilder::write(&[
                Entry::of(7, kind, [8; 32], data),
                Entry::measured(7, log::EV_SEPARATOR, &[0; 4]),
            ]);
            let log = Log::parse(&log.bytes).unwrap();
            let first = extended_once(HashAlg::Sha256, 0, &[8; 32]);
            let both = HashAlg::Sha256.digest(&[&first, &log::sha256(&[0; 4])]);
            assert_eq!(log.replay(HashAlg::Sha256).unwrap()[&7], both);
            assert_eq!(codes(&log), ["eventlog.variable"]);
            assert_eq!(BootEvents::read(&log).unwrap().secure_boot, None);
        }
    }
}

#[test]
fn tpm2_tools_3457_a_digest_of_something_else_is_noted_only() {
    let version = Entry::of(0, log::EV_S_CRTM_VERSION, [9; 32], &log::utf16("1.2.3\0"));
    let log = LogBuilder::write(&[version]);
    let log = Log::parse(&log.bytes).unwrap();
    assert_eq!(codes(&log), ["eventlog.data"]);
    let pcr0 = &log.replay(HashAlg::Sha256).unwrap()[&0];
    assert_eq!(pcr0, &extended_once(HashAlg::Sha256, 0, &[9; 32]));
}

/// No report: a dynamic launch sets PCR 17 to 22 to zero before its first extend.
#[test]
fn what_extends_pcr_17_begins_at_zero_and_what_nothing_extends_is_all_ones() {
    let log = LogBuilder::write(&[Entry::of(17, log::EV_S_CRTM_VERSION, [5; 32], b"v")]);
    let log = Log::parse(&log.bytes).unwrap();
    let alg = HashAlg::Sha256;
    let pcrs = log.replay(alg).unwrap();
    assert_eq!(pcrs[&17], extended_once(alg, 0, &[5; 32]));
    assert_eq!(pcrs.get(&18), None);
    assert_eq!(log.reset_value(alg, 18), [0xff; 32]);
}

/// No report: the forms of logs that the collected ones do not have.
#[test]
fn registers_and_banks_that_are_not_ours_are_read_by_their_size() {
    let event = |pcr: u32, kind: u32, digests: &[(u16, usize)]| {
        let mut out = pcr.to_le_bytes().to_vec();
        out.extend(kind.to_le_bytes());
        out.extend((digests.len() as u32).to_le_bytes());
        for (alg, len) in digests {
            out.extend(alg.to_le_bytes());
            out.extend(vec![3; *len]);
        }
        out.extend(0u32.to_le_bytes());
        out
    };
    let banks = [(0x0027, 32), (0x000b, 32), (0x7fff, 40)];
    let all = banks.map(|(alg, size)| (alg, usize::from(size)));
    let bytes = [
        log::header(&banks),
        event(0xffff_ffff, log::EV_NO_ACTION, &all),
        event(0, 8, &all),
        event(1, 8, &all[..1]),
    ]
    .concat();
    let read = Log::parse(&bytes).unwrap();
    assert_eq!((read.format, read.count()), (Format::CryptoAgile, 4));
    let pcrs = read.replay(HashAlg::Sha256).unwrap();
    assert_eq!(pcrs.keys().collect::<Vec<_>>(), [&0]);
    let told = codes(&read);
    for code in [
        "eventlog.bank_unknown",
        "eventlog.digest_missing",
        "eventlog.no_action_digest",
    ] {
        assert!(told.contains(&code), "{code} is not in {told:?}");
    }
    // An event that is extended names its register.
    let bytes = [log::header(&banks), event(0xffff_ffff, 8, &all)].concat();
    let reading = Log::read(&bytes);
    assert_eq!(reading.log.unwrap().count(), 1, "what came before is kept");
    assert_eq!(reading.error.unwrap().code(), "eventlog.malformed");
}

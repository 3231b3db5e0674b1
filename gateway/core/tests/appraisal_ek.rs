//! Row 4: certificates of endorsement keys, made by a CA of our own, one thing wrong at a time.

#![allow(clippy::unwrap_used)]

mod support;
#[path = "support/vendor.rs"]
mod vendor;

use gateway_core::appraisal::ek::{Assurance, EkRoots, Noted, TimeTrust, appraise_cert};
use gateway_core::appraisal::quirks::Quirk;
use gateway_core::identity::UnixMillis;
use gateway_core::policy::{Policy, Preset};
use rand_core::OsRng;
use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, ExtendedKeyUsagePurpose, IsCa,
    KeyUsagePurpose,
};
use support::NodeEk;
use time::Duration;
use vendor::{NOW, Vendor, at, intermediate, issue, root, rtc, unlimited};

#[track_caller]
fn refused(result: Result<Assurance, String>, code: &str) {
    assert_eq!(result.expect_err("must be refused"), code);
}

#[test]
fn a_vendor_chain_passes_and_names_the_tpm() {
    let vendor = Vendor::new();
    let cert = issue(&vendor.ek, &vendor.ica, |_| {});
    let assurance = vendor.judge(&cert, &[&vendor.ica.der]).unwrap();
    let Assurance::VendorChain { tpm, .. } = assurance else {
        panic!("a chain");
    };
    assert_eq!(tpm.unwrap().manufacturer, "id:54534554");
    // An intermediate that the operator trusts directly needs no chain.
    let mut roots = EkRoots::default();
    roots.add(&vendor.ica.der).unwrap();
    let policy = Policy::preset(Preset::Strict);
    appraise_cert(
        &vendor.ek,
        &cert,
        &[],
        &roots,
        rtc(NOW),
        &policy,
        &mut Noted::default(),
    )
    .unwrap();
}

#[test]
fn nv_header_and_padding_are_cut() {
    let vendor = Vendor::new();
    let cert = issue(&vendor.ek, &vendor.ica, |_| {});
    let size = (cert.len() + 2) as u16;
    let header = [&[0x10, 0x01, 0x00][..], &size.to_be_bytes(), &[0x10, 0x02]].concat();
    let policy = Policy::preset(Preset::Standard);
    for nv in [
        [&cert[..], &[0; 300]].concat(),
        [&cert[..], &[0xff; 7]].concat(),
        [&header[..], &cert, &[0; 9]].concat(),
    ] {
        let (_, quirks) = vendor
            .judge_at(&nv, &[&vendor.ica.der], rtc(NOW), &policy)
            .unwrap();
        assert_eq!(quirks, [Quirk::EkCertPadded]);
    }
    let mut wrong = [&header[..], &cert].concat();
    wrong[3] = 0xff;
    refused(vendor.judge(&wrong, &[&vendor.ica.der]), "ek.cert.encoding");
    refused(
        vendor.judge(&cert[..cert.len() - 1], &[]),
        "ek.cert.encoding",
    );
    refused(vendor.judge(b"garbage", &[]), "ek.cert.encoding");
}

#[test]
fn rejects_a_certificate_of_another_key() {
    let vendor = Vendor::new();
    let other = NodeEk::p256(&mut OsRng).public;
    let cert = issue(&other, &vendor.ica, |_| {});
    refused(vendor.judge(&cert, &[&vendor.ica.der]), "ek.cert.key");
}

#[test]
fn rejects_other_usages_and_unknown_critical_extensions() {
    let vendor = Vendor::new();
    let judged = |change: &dyn Fn(&mut CertificateParams)| {
        let cert = issue(&vendor.ek, &vendor.ica, change);
        vendor.judge(&cert, &[&vendor.ica.der])
    };
    judged(&|_| {}).unwrap();
    refused(
        judged(&|p| p.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth]),
        "ek.cert.eku",
    );
    refused(
        judged(&|p| p.key_usages = vec![KeyUsagePurpose::DigitalSignature]),
        "ek.cert.usage",
    );
    refused(
        judged(&|p| {
            p.key_usages.clear();
            p.extended_key_usages.clear();
        }),
        "ek.cert.usage",
    );
    refused(
        judged(&|p| {
            p.is_ca = unlimited();
            p.key_usages.push(KeyUsagePurpose::KeyCertSign);
        }),
        "ek.cert.usage",
    );
    refused(
        judged(&|p| {
            let mut extension = CustomExtension::from_oid_content(&[1, 2, 3, 4], vec![5, 0]);
            extension.set_criticality(true);
            p.custom_extensions.push(extension);
        }),
        "ek.cert.extension",
    );
}

#[test]
fn rejects_by_the_time_that_is_trusted() {
    let vendor = Vendor::new();
    let cert = issue(&vendor.ek, &vendor.ica, |_| {});
    let strict = Policy::preset(Preset::Standard);
    let lax = "version = 1\npreset = \"standard\"\n[ek]\nallow_expired = true\n";
    let lax = Policy::parse(lax).unwrap();
    let year = 366 * 86_400;
    let floor = |secs: i64| TimeTrust::Floor(UnixMillis(secs as u64 * 1000));
    let table = [
        (rtc(NOW), &strict, None),
        (rtc(NOW + year), &strict, Some("ek.cert.expired")),
        (rtc(NOW + year), &lax, None),
        (rtc(NOW - year), &strict, Some("ek.cert.not_yet_valid")),
        // A floor only says "at least this late".
        (floor(NOW - year), &strict, None),
        (floor(NOW + year), &strict, Some("ek.cert.expired")),
        (TimeTrust::None, &strict, None),
    ];
    for (time, policy, code) in table {
        let result = vendor.judge_at(&cert, &[&vendor.ica.der], time, policy);
        assert_eq!(result.err().as_deref(), code, "{time:?}");
    }
}

#[test]
fn rejects_chains_that_end_nowhere_or_in_an_impostor() {
    let vendor = Vendor::new();
    let cert = issue(&vendor.ek, &vendor.ica, |_| {});
    refused(vendor.judge(&cert, &[]), "ek.cert.chain");
    // Self-made CAs with the vendor's names.
    let false_root = root("Vendor Root");
    let false_ica = intermediate(&false_root, "Vendor EK CA", |_| {});
    let forged = issue(&vendor.ek, &false_ica, |_| {});
    refused(
        vendor.judge(&forged, &[&false_ica.der]),
        "ek.cert.signature",
    );
    refused(
        vendor.judge(&forged, &[&vendor.ica.der]),
        "ek.cert.signature",
    );
    refused(
        vendor.judge(&forged, &[&false_ica.der, &false_root.der]),
        "ek.cert.signature",
    );
}

#[test]
fn rejects_intermediates_that_may_not_issue() {
    let vendor = Vendor::new();
    let judged = |change: &dyn Fn(&mut CertificateParams)| {
        let ica = intermediate(&vendor.root, "Other EK CA", change);
        let cert = issue(&vendor.ek, &ica, |_| {});
        vendor.judge(&cert, &[&ica.der])
    };
    judged(&|_| {}).unwrap();
    refused(judged(&|p| p.is_ca = IsCa::ExplicitNoCa), "ek.cert.ca");
    refused(judged(&|p| p.is_ca = IsCa::NoCa), "ek.cert.ca");
    refused(
        judged(&|p| p.key_usages = vec![KeyUsagePurpose::DigitalSignature]),
        "ek.cert.ca",
    );
    refused(
        judged(&|p| p.not_after = at(NOW) - Duration::days(1)),
        "ek.cert.expired",
    );
    // A path length of 0 allows no further CA below.
    let short = intermediate(&vendor.root, "Short CA", |p| {
        p.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    });
    let below = intermediate(&short, "Below CA", |_| {});
    let direct = issue(&vendor.ek, &short, |_| {});
    vendor.judge(&direct, &[&short.der]).unwrap();
    let cert = issue(&vendor.ek, &below, |_| {});
    refused(vendor.judge(&cert, &[&below.der, &short.der]), "ek.cert.ca");
}

#[test]
fn rejects_chains_that_are_too_long_without_endless_work() {
    let vendor = Vendor::new();
    let mut chain = vec![intermediate(&vendor.root, "CA 0", |_| {})];
    for depth in 1..8 {
        let next = intermediate(chain.last().unwrap(), &format!("CA {depth}"), |_| {});
        chain.push(next);
    }
    let cert = issue(&vendor.ek, chain.last().unwrap(), |_| {});
    let ders: Vec<&[u8]> = chain.iter().map(|ca| ca.der.as_slice()).collect();
    refused(vendor.judge(&cert, &ders), "ek.cert.chain");
    // Two CAs of one name that vouch for each other.
    let a = root("Loop");
    let b = intermediate(&a, "Loop", |_| {});
    let cert = issue(&vendor.ek, &b, |_| {});
    let looped = vendor.judge(&cert, &[&a.der, &b.der]);
    assert!(looped.is_err());
}

/// A bare EK, approved by its Name, is a policy: demanded everywhere, reported for one class.
#[test]
fn a_class_may_take_a_bare_ek_that_the_inventory_names() {
    use gateway_core::appraisal::Appraisal;
    use support::world::World;
    let text = "version = 1\npreset = \"standard\"\n[ek]\nrequire_cert = true\n\
                [[class]]\nname = \"bare\"\n[class.checks]\nek_cert = \"report\"\n";
    let mut world = World::new();
    world.policy = Policy::parse(text).unwrap();
    world.binding().class = "default".into();
    let Appraisal::Refused(refusal) = world.run() else {
        panic!("a bare EK passed a policy that demands a certificate");
    };
    assert_eq!(refusal.code(), "ek.cert.missing");
    world.binding().class = "bare".into();
    let Appraisal::Admitted(admission) = world.run() else {
        panic!("the class takes it");
    };
    assert_eq!(admission.facts.assurance, "bare-ek");
    assert_eq!(admission.reported[0].code, "ek.cert.missing");
    // A stranger is of no class: it does not even become a claim.
    world.registry.owners.clear();
    let Appraisal::Refused(refusal) = world.run() else {
        panic!("a stranger without a certificate passed");
    };
    assert_eq!(refusal.code(), "ek.cert.missing");
}

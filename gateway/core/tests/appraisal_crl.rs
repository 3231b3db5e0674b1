//! Row 4: revocation lists, direct and indirect, made octet by octet; one thing wrong at a time.

#![allow(clippy::unwrap_used)]

mod support;
#[path = "support/vendor.rs"]
mod vendor;

use gateway_core::appraisal::TimeTrust;
use gateway_core::appraisal::ek::{EkRoots, Noted, appraise_cert};
use gateway_core::appraisal::x509::{Cert, Crl, CrlError};
use gateway_core::identity::UnixMillis;
use gateway_core::policy::{Policy, Preset};
use rcgen::{CertificateParams, CrlDistributionPoint, KeyUsagePurpose};
use vendor::{Ca, Made, NOW, Vendor, extension, generalized, intermediate, issue, root, rtc, tlv};

const URL: &str = "http://vendor.example/ek.crl";
const DAY: i64 = 86_400;

/// One entry: serial, reason, and the issuer it names.
#[derive(Clone, Default)]
struct Entry {
    serial: Vec<u8>,
    reason: Option<u8>,
    issuer: Option<Vec<u8>>,
    more: Vec<u8>,
}

/// A list that is in time and revokes nothing; each field may be something else.
#[derive(Clone)]
struct List {
    entries: Vec<Entry>,
    this_update: String,
    next_update: Option<String>,
    extensions: Vec<Vec<u8>>,
}

impl Default for List {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            this_update: "20250501000000Z".into(),
            next_update: Some("20250701000000Z".into()),
            extensions: Vec::new(),
        }
    }
}

impl List {
    fn of(serial: &[u8]) -> Self {
        Self {
            entries: vec![Entry {
                serial: serial.to_vec(),
                reason: Some(1),
                ..Entry::default()
            }],
            ..Self::default()
        }
    }

    fn with(mut self, extension: Vec<u8>) -> Self {
        self.extensions.push(extension);
        self
    }

    fn by(&self, ca: &Ca) -> Vec<u8> {
        self.named(&ca.subject(), ca)
    }

    fn named(&self, issuer: &[u8], ca: &Ca) -> Vec<u8> {
        let entries: Vec<u8> = self.entries.iter().flat_map(entry).collect();
        let next = self.next_update.as_deref().map(generalized);
        let extensions = tlv(0xa0, &[&tlv(0x30, &[&self.extensions.concat()])]);
        let tbs = tlv(
            0x30,
            &[
                &[2, 1, 1],
                &ca.algorithm(),
                issuer,
                &generalized(&self.this_update),
                &next.unwrap_or_default(),
                &if entries.is_empty() {
                    Vec::new()
                } else {
                    tlv(0x30, &[&entries])
                },
                if self.extensions.is_empty() {
                    &[]
                } else {
                    &extensions
                },
            ],
        );
        ca.signed(&tbs)
    }
}

fn entry(entry: &Entry) -> Vec<u8> {
    let mut extensions = entry.more.clone();
    if let Some(reason) = entry.reason {
        let code = tlv(0x0a, &[&[reason]]);
        extensions.extend(extension(&[0x55, 0x1d, 21], false, &code));
    }
    if let Some(issuer) = &entry.issuer {
        let names = tlv(0x30, &[&tlv(0xa4, &[issuer])]);
        extensions.extend(extension(&[0x55, 0x1d, 29], true, &names));
    }
    let extensions = if extensions.is_empty() {
        Vec::new()
    } else {
        tlv(0x30, &[&extensions])
    };
    let date = generalized("20250401120000Z");
    tlv(0x30, &[&tlv(0x02, &[&entry.serial]), &date, &extensions])
}

/// IssuingDistributionPoint with these fields.
fn issuing(fields: &[&[u8]]) -> Vec<u8> {
    extension(&[0x55, 0x1d, 28], true, &tlv(0x30, fields))
}

fn point_name(url: &str) -> Vec<u8> {
    tlv(0xa0, &[&tlv(0xa0, &[&tlv(0x86, &[url.as_bytes()])])])
}

const INDIRECT: &[u8] = &[0x84, 1, 0xff];

fn published(params: &mut CertificateParams) {
    params.crl_distribution_points = vec![CrlDistributionPoint {
        uris: vec![URL.into()],
    }];
}

/// A vendor whose EK certificate names a distribution point.
struct Site {
    vendor: Vendor,
    cert: Vec<u8>,
    serial: Vec<u8>,
}

/// What came of it: the codes that were reported, or the one that refused.
type Judged = Result<Vec<String>, String>;

impl Site {
    fn new() -> Self {
        let vendor = Vendor::new();
        let cert = issue(&vendor.ek, &vendor.ica, published);
        let serial = Cert::parse(&cert).unwrap().serial;
        Self {
            vendor,
            cert,
            serial,
        }
    }

    fn judge(&self, lists: &[Vec<u8>]) -> Judged {
        self.judge_at(lists, rtc(NOW), &Policy::preset(Preset::Standard))
    }

    fn enforced(&self, lists: &[Vec<u8>]) -> Judged {
        let text = "version = 1\npreset = \"standard\"\n[ek]\ncrl = \"enforce\"\n";
        self.judge_at(lists, rtc(NOW), &Policy::parse(text).unwrap())
    }

    fn judge_at(&self, lists: &[Vec<u8>], time: TimeTrust, policy: &Policy) -> Judged {
        let mut roots = self.vendor.roots();
        for list in lists {
            assert_eq!(roots.add_crls(list), Ok(1));
        }
        self.judge_with(&roots, time, policy)
    }

    fn judge_with(&self, roots: &EkRoots, time: TimeTrust, policy: &Policy) -> Judged {
        let chain = [Cert::parse(&self.vendor.ica.der).unwrap()];
        let mut noted = Noted::default();
        let ek = &self.vendor.ek;
        appraise_cert(ek, &self.cert, &chain, roots, time, policy, &mut noted)
            .map(|_| {
                let codes = noted.crl.iter().map(|reason| reason.code.to_string());
                codes.collect()
            })
            .map_err(|reason| {
                assert!(!reason.found.is_empty() && !reason.next.is_empty());
                reason.code.into_owned()
            })
    }
}

fn passes(reported: &[&str]) -> Judged {
    Ok(reported.iter().map(|code| (*code).to_owned()).collect())
}

fn refused(code: &str) -> Judged {
    Err(code.to_owned())
}

#[test]
fn attack_24_a_revoked_certificate_is_refused_whatever_the_time_and_the_list_s_age() {
    let site = Site::new();
    let list = List::of(&site.serial);
    let policy = Policy::preset(Preset::Standard);
    let old = List {
        this_update: "20200101000000Z".into(),
        next_update: Some("20200201000000Z".into()),
        ..list.clone()
    };
    for list in [list.by(&site.vendor.ica), old.by(&site.vendor.ica)] {
        for time in [rtc(NOW), TimeTrust::None, TimeTrust::Floor(UnixMillis(0))] {
            let lists = std::slice::from_ref(&list);
            assert_eq!(
                site.judge_at(lists, time, &policy),
                refused("ek.cert.revoked"),
                "{time:?}"
            );
        }
    }
    // The honest neighbour: the same list with another serial.
    let other = List::of(&[0x55; 8]).by(&site.vendor.ica);
    assert_eq!(site.judge(&[other]), passes(&[]));
}

#[test]
fn a_serial_is_found_with_and_without_leading_zeros() {
    let site = Site::new();
    for serial in [&[0, 0, 0][..], &[]] {
        let serial = [serial, &site.serial].concat();
        let list = List::of(&serial).by(&site.vendor.ica);
        assert_eq!(site.judge(&[list]), refused("ek.cert.revoked"));
    }
}

#[test]
fn a_revoked_intermediate_ends_its_path_and_no_other() {
    let site = Site::new();
    let ica = Cert::parse(&site.vendor.ica.der).unwrap();
    let list = List::of(&ica.serial).by(&site.vendor.root);
    assert_eq!(
        site.judge(std::slice::from_ref(&list)),
        refused("ek.cert.revoked")
    );
    // The operator trusts the intermediate itself: then nothing above it is asked for.
    let mut roots = site.vendor.roots();
    roots.add(&site.vendor.ica.der).unwrap();
    roots.add_crls(&list).unwrap();
    let policy = Policy::preset(Preset::Standard);
    let judged = site.judge_with(&roots, rtc(NOW), &policy);
    assert_eq!(judged, passes(&["ek.crl.missing"]));
}

#[test]
fn what_is_missing_is_reported_and_refused_where_the_policy_says_so() {
    let site = Site::new();
    // Who loads no list has not asked for it.
    assert_eq!(site.judge(&[]), passes(&[]));
    assert_eq!(site.enforced(&[]), refused("ek.crl.missing"));
    let of_root = List::default().by(&site.vendor.root);
    assert_eq!(
        site.judge(std::slice::from_ref(&of_root)),
        passes(&["ek.crl.missing"])
    );
    assert_eq!(
        site.enforced(std::slice::from_ref(&of_root)),
        refused("ek.crl.missing")
    );
    let of_ica = List::default().by(&site.vendor.ica);
    assert_eq!(site.enforced(&[of_root.clone(), of_ica]), passes(&[]));
    // A certificate that names no list: its maker publishes none.
    let mut quiet = Site::new();
    quiet.cert = issue(&quiet.vendor.ek, &quiet.vendor.ica, |_| {});
    let of_root = List::default().by(&quiet.vendor.root);
    assert_eq!(quiet.enforced(&[of_root]), passes(&[]));
}

#[test]
fn a_stale_list_is_reported_by_the_time_that_is_trusted() {
    let site = Site::new();
    let list = List::default().by(&site.vendor.ica);
    let lists = std::slice::from_ref(&list);
    let policy = Policy::preset(Preset::Standard);
    let late = NOW + 60 * DAY;
    let early = NOW - 60 * DAY;
    let floor = |secs: i64| TimeTrust::Floor(UnixMillis(secs as u64 * 1000));
    let stale: &[&str] = &["ek.crl.stale"];
    for (time, reported) in [
        (rtc(NOW), &[][..]),
        (rtc(late), stale),
        (rtc(early), stale),
        (floor(late), stale),
        (floor(early), &[]),
        (TimeTrust::None, &[]),
    ] {
        let judged = site.judge_at(lists, time, &policy);
        assert_eq!(judged, passes(reported), "{time:?}");
    }
    let endless = List {
        next_update: None,
        ..List::default()
    };
    let endless = endless.by(&site.vendor.ica);
    assert_eq!(site.judge(std::slice::from_ref(&endless)), passes(stale));
    assert_eq!(site.enforced(&[endless]), refused("ek.crl.stale"));
}

#[test]
fn a_list_that_the_issuer_did_not_sign_revokes_nothing() {
    let site = Site::new();
    let impostor = root("Vendor EK CA");
    let forged = List::of(&site.serial).by(&impostor);
    let unsigned: &[&str] = &["ek.crl.signature"];
    assert_eq!(site.judge(std::slice::from_ref(&forged)), passes(unsigned));
    assert_eq!(site.enforced(&[forged]), refused("ek.crl.signature"));
    // One bit of a good list.
    let mut damaged = List::of(&site.serial).by(&site.vendor.ica);
    let last = damaged.len() - 40;
    damaged[last] ^= 1;
    assert_eq!(site.judge(&[damaged]), passes(unsigned));
    // A CA whose key usage leaves lists out.
    let mut site = Site::new();
    site.vendor.ica = intermediate(&site.vendor.root, "Vendor EK CA", |params| {
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    });
    site.cert = issue(&site.vendor.ek, &site.vendor.ica, published);
    let serial = Cert::parse(&site.cert).unwrap().serial;
    let list = List::of(&serial).by(&site.vendor.ica);
    assert_eq!(site.judge(&[list]), passes(unsigned));
}

#[test]
fn a_list_of_another_key_of_the_same_name_says_nothing() {
    let site = Site::new();
    let mut made = Made::new(&site.vendor.ek, &site.vendor.ica);
    made.serial = vec![0x42];
    let site = Site {
        cert: made.by(&site.vendor.ica),
        serial: vec![0x42],
        ..site
    };
    let identifier =
        |id: &[u8]| extension(&[0x55, 0x1d, 35], false, &tlv(0x30, &[&tlv(0x80, &[id])]));
    let ski = Cert::parse(&site.vendor.ica.der).unwrap().ski.unwrap();
    let other = List::of(&site.serial).with(identifier(&[9; 20]));
    assert_eq!(site.judge(&[other.by(&site.vendor.ica)]), passes(&[]));
    let own = List::of(&site.serial).with(identifier(&ski));
    assert_eq!(
        site.judge(&[own.by(&site.vendor.ica)]),
        refused("ek.cert.revoked")
    );
}

/// Intel's form: the root signs one list for all of its issuers.
#[test]
fn an_indirect_list_revokes_for_the_issuers_that_its_entries_name() {
    let site = Site::new();
    let (ica, root) = (site.vendor.ica.subject(), &site.vendor.root);
    let entry = |serial: &[u8], issuer: Option<&[u8]>| Entry {
        serial: serial.to_vec(),
        issuer: issuer.map(<[u8]>::to_vec),
        ..Entry::default()
    };
    let list = |entries: Vec<Entry>| {
        List {
            entries,
            ..List::default()
        }
        .with(issuing(&[INDIRECT]))
        .by(root)
    };
    let own = &site.serial[..];
    let named = list(vec![entry(own, Some(&ica))]);
    assert_eq!(site.judge(&[named]), refused("ek.cert.revoked"));
    // An entry's issuer holds for those behind it.
    let behind = list(vec![entry(&[1], Some(&ica)), entry(own, None)]);
    assert_eq!(site.judge(&[behind]), refused("ek.cert.revoked"));
    // The same serial of another issuer: the list's own, or one named later.
    let other = list(vec![entry(own, None), entry(&[1], Some(&ica))]);
    assert_eq!(site.judge(&[other]), passes(&["ek.crl.missing"]));
    let foreign = list(vec![
        entry(own, Some(&root.subject())),
        entry(&[1], Some(&ica)),
    ]);
    assert_eq!(site.judge(&[foreign]), passes(&["ek.crl.missing"]));
    // Signed by somebody whom the owner does not trust for it.
    let stranger = vendor::root("Stranger");
    let forged = List {
        entries: vec![entry(own, Some(&ica))],
        ..List::default()
    };
    let forged = forged.with(issuing(&[INDIRECT])).by(&stranger);
    assert_eq!(site.judge(&[forged]), passes(&["ek.crl.signature"]));
}

#[test]
fn an_indirect_list_covers_the_certificates_that_name_its_issuer() {
    let mut site = Site::new();
    let root = site.vendor.root.subject();
    let mut made = Made::new(&site.vendor.ek, &site.vendor.ica);
    let point = tlv(
        0x30,
        &[&point_name(URL), &tlv(0xa2, &[&tlv(0xa4, &[&root])])],
    );
    let points = extension(&[0x55, 0x1d, 31], false, &tlv(0x30, &[&point]));
    made.extensions.push(points);
    site.cert = made.by(&site.vendor.ica);
    let lists = |fields: &[&[u8]]| {
        let list = List::default().with(issuing(fields));
        site.judge(&[list.by(&site.vendor.root)])
    };
    assert_eq!(lists(&[INDIRECT]), passes(&[]));
    let name = point_name(URL);
    assert_eq!(lists(&[&name, INDIRECT]), passes(&[]));
    let missing: &[&str] = &["ek.crl.missing"];
    assert_eq!(
        lists(&[&point_name("http://other.example"), INDIRECT]),
        passes(missing)
    );
    assert_eq!(
        lists(&[&[0x84, 1, 0]]),
        passes(missing),
        "not an indirect one"
    );
}

#[test]
fn a_list_covers_only_what_its_distribution_point_says() {
    let site = Site::new();
    let missing: &[&str] = &["ek.crl.missing"];
    for (fields, reported) in [
        (vec![&[0x81, 1, 0xff][..]], &[][..]),
        (vec![&[0x82, 1, 0xff]], missing),
        (vec![&[0x85, 1, 0xff]], missing),
        (vec![&[0x83, 2, 1, 0x40]], missing),
    ] {
        let list = List::default().with(issuing(&fields));
        let judged = site.judge(&[list.by(&site.vendor.ica)]);
        assert_eq!(judged, passes(reported), "{fields:02x?}");
    }
    // An entry counts whatever else the list leaves out.
    let list = List::of(&site.serial).with(issuing(&[&[0x83, 2, 1, 0x40]]));
    assert_eq!(
        site.judge(&[list.by(&site.vendor.ica)]),
        refused("ek.cert.revoked")
    );
}

fn crl_number(number: u8) -> Vec<u8> {
    extension(&[0x55, 0x1d, 20], false, &tlv(2, &[&[number]]))
}

/// A complete list of that number.
fn complete(number: u8, entries: Vec<Entry>) -> List {
    List {
        entries,
        ..List::default()
    }
    .with(crl_number(number))
}

/// A delta list on top of the complete ones from `base` on.
fn delta(base: u8, number: u8, entries: Vec<Entry>) -> List {
    let base = extension(&[0x55, 0x1d, 27], true, &tlv(2, &[&[base]]));
    complete(number, entries).with(base)
}

fn because(serial: &[u8], reason: u8) -> Vec<Entry> {
    vec![Entry {
        serial: serial.to_vec(),
        reason: Some(reason),
        ..Entry::default()
    }]
}

const HOLD: u8 = 6;
const REMOVE: u8 = 8;

#[test]
fn attack_24_a_delta_list_revokes_on_top_of_its_base_and_without_it() {
    let site = Site::new();
    let ica = &site.vendor.ica;
    let base = complete(5, Vec::new()).by(ica);
    let own = because(&site.serial, 1);
    assert_eq!(site.enforced(std::slice::from_ref(&base)), passes(&[]));
    let revoked = delta(5, 6, own.clone()).by(ica);
    assert_eq!(
        site.judge(&[base.clone(), revoked.clone()]),
        refused("ek.cert.revoked")
    );
    // Whatever is wrong with its base, a signed list that names the certificate refuses it.
    assert_eq!(site.judge(&[revoked]), refused("ek.cert.revoked"));
    let quiet = delta(5, 6, because(&[0x55; 8], 1)).by(ica);
    assert_eq!(site.enforced(&[base.clone(), quiet]), passes(&[]));
    // Not signed by the issuer: it revokes nothing, and the complete list stands.
    let forged = delta(5, 6, own).by(&root("Vendor EK CA"));
    assert_eq!(site.enforced(&[base, forged]), passes(&[]));
}

#[test]
fn a_delta_list_takes_back_a_hold_and_nothing_else() {
    let site = Site::new();
    let ica = &site.vendor.ica;
    let held = complete(5, because(&site.serial, HOLD)).by(ica);
    let taken = |base, number| delta(base, number, because(&site.serial, REMOVE));
    let judged = |list: &List, by: &Ca| site.judge(&[held.clone(), list.by(by)]);
    assert_eq!(
        site.judge(std::slice::from_ref(&held)),
        refused("ek.cert.revoked")
    );
    assert_eq!(judged(&taken(5, 6), ica), passes(&[]));
    assert_eq!(judged(&taken(4, 9), ica), passes(&[]), "a base before it");
    // It does not continue this list: made for a later one, or made before it.
    for (base, number) in [(6, 7), (4, 5), (3, 4)] {
        let judged = judged(&taken(base, number), ica);
        assert_eq!(judged, refused("ek.cert.revoked"), "{base} {number}");
    }
    // Numbers have no sign octet here: 0x80 is more than 0x7f.
    let held_80 = complete(0x7f, because(&site.serial, HOLD)).by(ica);
    let wide = extension(&[0x55, 0x1d, 20], false, &tlv(2, &[&[0, 0x80]]));
    let base = extension(&[0x55, 0x1d, 27], true, &tlv(2, &[&[0x7f]]));
    let after = List {
        entries: because(&site.serial, REMOVE),
        ..List::default()
    };
    let after = after.with(wide).with(base).by(ica);
    assert_eq!(site.judge(&[held_80, after]), passes(&[]));
    // Signed by another key, or of another scope.
    let impostor = root("Vendor EK CA");
    assert_eq!(judged(&taken(5, 6), &impostor), refused("ek.cert.revoked"));
    let scoped = taken(5, 6).with(issuing(&[&point_name(URL)]));
    assert_eq!(judged(&scoped, ica), refused("ek.cert.revoked"));
    // Out of time: what it takes back it may have revoked again.
    let stale = List {
        next_update: Some("20250515000000Z".into()),
        ..taken(5, 6)
    };
    assert_eq!(judged(&stale, ica), refused("ek.cert.revoked"));
    // No hold: nothing takes it back. Nor is the word one in a complete list.
    for reason in [1, 0, REMOVE] {
        let lists = [
            complete(5, because(&site.serial, reason)).by(ica),
            taken(5, 6).by(ica),
        ];
        assert_eq!(site.judge(&lists), refused("ek.cert.revoked"), "{reason}");
    }
    // Held by one delta list and released by a later one, and the other way round.
    let base = complete(5, Vec::new()).by(ica);
    let hold = |number| delta(5, number, because(&site.serial, HOLD)).by(ica);
    let lists = |hold_at, free_at| [base.clone(), hold(hold_at), taken(5, free_at).by(ica)];
    assert_eq!(site.judge(&lists(6, 7)), passes(&[]));
    assert_eq!(site.judge(&lists(7, 6)), refused("ek.cert.revoked"));
    // On top of a complete list that the issuer did not sign.
    let forged = complete(5, Vec::new()).by(&impostor);
    let lists = [forged, hold(6), taken(5, 7).by(ica)];
    assert_eq!(site.judge(&lists), refused("ek.cert.revoked"));
}

#[test]
fn a_delta_list_keeps_its_base_in_time_and_covers_nothing_alone() {
    let site = Site::new();
    let ica = &site.vendor.ica;
    let old = List {
        next_update: Some("20250515000000Z".into()),
        ..complete(5, Vec::new())
    };
    let old = old.by(ica);
    assert_eq!(
        site.enforced(std::slice::from_ref(&old)),
        refused("ek.crl.stale")
    );
    let current = delta(5, 6, Vec::new()).by(ica);
    assert_eq!(site.enforced(&[old.clone(), current.clone()]), passes(&[]));
    let stale = List {
        next_update: Some("20250516000000Z".into()),
        ..delta(5, 6, Vec::new())
    };
    assert_eq!(
        site.enforced(&[old.clone(), stale.by(ica)]),
        refused("ek.crl.stale")
    );
    // Alone, of another number or of another issuer it is named, and nothing is known.
    assert_eq!(
        site.enforced(std::slice::from_ref(&current)),
        refused("ek.crl.delta")
    );
    assert_eq!(
        site.judge(std::slice::from_ref(&current)),
        passes(&["ek.crl.delta"])
    );
    let mut roots = site.vendor.roots();
    let of_root = complete(5, Vec::new()).by(&site.vendor.root);
    for list in [&complete(9, Vec::new()).by(ica), &of_root, &current] {
        roots.add_crls_from("a file", list).unwrap();
    }
    let loose = roots.loose_deltas();
    assert_eq!(loose.len(), 1);
    assert_eq!((loose[0].0, &*loose[0].1.code), ("a file", "ek.crl.delta"));
    assert!(loose[0].1.found.contains("number 09"), "{:?}", loose[0].1);
    roots.add_crls(&old).unwrap();
    assert!(roots.loose_deltas().is_empty());
}

#[test]
fn a_complete_list_says_where_its_delta_lists_are() {
    let ca = root("CA");
    let point = tlv(0x30, &[&point_name(URL)]);
    let freshest = extension(&[0x55, 0x1d, 46], false, &tlv(0x30, &[&point]));
    let crl = Crl::read(&complete(5, Vec::new()).with(freshest).by(&ca)).unwrap();
    assert_eq!((crl.freshest, crl.base), (vec![URL.to_owned()], None));
}

#[test]
fn rejects_lists_that_say_what_is_not_understood() {
    let ca = root("CA");
    let delta = extension(&[0x55, 0x1d, 27], true, &[2, 1, 1]);
    let unknown = extension(&[0x2a, 3, 4], true, &[5, 0]);
    let read = |list: &List| Crl::read(&list.by(&ca)).err();
    let list = List::of(&[7]);
    assert_eq!(read(&list), None);
    assert_eq!(
        read(&list.clone().with(delta.clone())),
        Some(CrlError::DeltaNumber)
    );
    let numbered = list.clone().with(delta).with(crl_number(2));
    assert_eq!(read(&numbered), None);
    assert_eq!(
        read(&numbered.with(unknown.clone())),
        Some(CrlError::UnknownCritical("1.2.3.4".into()))
    );
    let negative = extension(&[0x55, 0x1d, 20], false, &[2, 1, 0xff]);
    assert!(matches!(
        read(&list.clone().with(negative)),
        Some(CrlError::Parse(_))
    ));
    let critical = Some(CrlError::UnknownCritical("1.2.3.4".into()));
    assert_eq!(read(&list.clone().with(unknown.clone())), critical);
    let mut entry = list.clone();
    entry.entries[0].more = unknown;
    assert_eq!(read(&entry), critical);
    let mut nameless = list;
    nameless.entries[0].more = extension(&[0x55, 0x1d, 29], true, &[0x30, 0]);
    assert!(matches!(read(&nameless), Some(CrlError::Parse(_))));
    let mut roots = EkRoots::default();
    assert!(roots.add_crls(b"no list").is_err());
    assert!(roots.add_crls(&ca.der).is_err(), "a certificate is no list");
    assert!(
        roots.add(&List::default().by(&ca)).is_err(),
        "nor the reverse"
    );
}

#[test]
fn a_cut_or_damaged_list_is_an_error_and_never_a_panic() {
    let ca = root("CA");
    let list = List::of(&[7]).with(issuing(&[&point_name(URL), INDIRECT]));
    let octets = list
        .with(extension(&[0x55, 0x1d, 20], false, &[2, 1, 9]))
        .by(&ca);
    for len in 0..octets.len() {
        assert!(Crl::read(&octets[..len]).is_err(), "{len}");
    }
    let signer = Cert::parse(&ca.der).unwrap();
    let good = Crl::read(&octets).unwrap();
    assert!(good.signed_by(&signer) && good.len() == 1);
    let mut damaged = octets.clone();
    let mut read = 0;
    for at in 0..octets.len() {
        for bit in 0..8 {
            damaged[at] ^= 1 << bit;
            if let Ok(crl) = Crl::read(&damaged) {
                read += 1;
                assert!(
                    !crl.signed_by(&signer),
                    "octet {at} bit {bit} is not signed"
                );
            }
            damaged[at] ^= 1 << bit;
        }
    }
    println!(
        "{} damaged lists, {read} of them readable, none signed",
        octets.len() * 8
    );
}

#[test]
fn the_library_s_lists_are_read_as_well() {
    use rcgen::{CertificateRevocationListParams, KeyIdMethod, RevokedCertParams, SerialNumber};
    let site = Site::new();
    let params = CertificateRevocationListParams {
        this_update: vendor::at(NOW) - time::Duration::days(1),
        next_update: vendor::at(NOW) + time::Duration::days(1),
        crl_number: SerialNumber::from(7),
        issuing_distribution_point: None,
        revoked_certs: vec![RevokedCertParams {
            serial_number: SerialNumber::from_slice(&site.serial),
            revocation_time: vendor::at(NOW),
            reason_code: Some(rcgen::RevocationReason::KeyCompromise),
            invalidity_date: None,
        }],
        key_identifier_method: KeyIdMethod::Sha256,
    };
    let list = params.signed_by(&site.vendor.ica.issuer).unwrap();
    let pem = list.pem().unwrap();
    assert_eq!(site.judge(&[pem.into_bytes()]), refused("ek.cert.revoked"));
}

/// Through the whole appraisal: an honest machine with a vendor's certificate is admitted; what is not
/// known of revocation stands in its record, and a revoked certificate ends it at row 4.
#[test]
fn attack_24_the_machine_of_a_revoked_ek_is_refused_and_the_honest_one_admitted() {
    use gateway_core::appraisal::Appraisal;
    use support::world::World;
    let world = |list: Option<&List>, enforce: bool| {
        let mut world = World::new();
        let vendor = Vendor::new();
        let ek = world.node.eks[0].public.clone();
        let cert = issue(&ek, &vendor.ica, published);
        let serial = Cert::parse(&cert).unwrap().serial;
        world.node.eks[0].cert = Some(cert);
        world.node.ek_chain = vec![vendor.ica.der.clone()];
        world.roots = vendor.roots();
        world.time = rtc(NOW);
        if let Some(list) = list {
            let mut list = list.clone();
            for entry in &mut list.entries {
                entry.serial.clone_from(&serial);
            }
            world.roots.add_crls(&list.by(&vendor.ica)).unwrap();
        }
        if enforce {
            let text = "version = 1\npreset = \"standard\"\n[ek]\ncrl = \"enforce\"\n";
            world.policy = Policy::parse(text).unwrap();
        }
        match world.run() {
            Appraisal::Admitted(admission) => {
                assert_eq!(admission.facts.assurance, "vendor-chain");
                let row = admission.checks.iter().find(|check| check.row == 4);
                let codes = admission.reported.iter().map(|r| r.code.to_string());
                Ok((codes.collect(), row.unwrap().tolerated.clone()))
            }
            Appraisal::Refused(refusal) => Err(refusal.code().to_owned()),
            Appraisal::Possession(_) => panic!("the machine is bound"),
        }
    };
    let nothing: (Vec<String>, Option<String>) = (vec![], None);
    assert_eq!(world(None, false), Ok(nothing.clone()));
    assert_eq!(world(Some(&List::default()), true), Ok(nothing));
    let stale = List {
        next_update: Some("20250502000000Z".into()),
        ..List::default()
    };
    let (codes, tolerated) = world(Some(&stale), false).unwrap();
    assert_eq!(codes, ["ek.crl.stale"]);
    assert!(tolerated.unwrap().contains("ek.crl.stale"));
    assert_eq!(world(Some(&stale), true), Err("ek.crl.stale".into()));
    assert_eq!(world(None, true), Err("ek.crl.missing".into()));
    let revoked = List::of(&[]);
    assert_eq!(world(Some(&revoked), false), Err("ek.cert.revoked".into()));
}

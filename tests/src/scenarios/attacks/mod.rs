//! The liars' suite: real machines of the segment that lie to the running daemon. Each row is a function
//! named by its number; each lie is refused with its code, told in log, API and ledger with expected, found,
//! source and next step; and the honest machine is admitted beside it.
//!
//! Rows that need a scenario of their own are functions there: `ELSEWHERE` in the tests below. Which lie is
//! shown where is in docs/THREAT-MODEL.md.

mod boot;
mod channel;
mod devid;
mod door;
mod ek;
mod identity;
mod liar;
mod log;
mod port;
mod quote;
mod scene;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::pxe::Stage;
use crate::report::Report;
use crate::sim::{Attested, Machine};
use crate::site::Site;
use crate::vendor::Vendor;
use liar::Liar;
use scene::{DECLARED_PORT, GUARDED, Scene};

/// Rows told with one session after the other before the honest machine is looked after again.
const HONEST_EVERY: usize = 6;

/// What a row needs.
enum Act {
    /// The site and its honest machine.
    Site(fn(&mut Scene<'_>) -> Result<()>),
    /// A machine with its TPM open.
    Keys(fn(&mut Liar<'_, '_>) -> Result<()>),
    /// A machine whose power may be cut.
    Boot(fn(&mut Scene<'_>, &mut Machine) -> Result<()>),
}

/// One row.
struct Row {
    name: &'static str,
    act: Act,
}

macro_rules! rows {
    ($($kind:ident $module:ident::$function:ident,)*) => {
        &[$(Row { name: stringify!($function), act: Act::$kind($module::$function) },)*]
    };
}

/// In this order: what is refused before activation first, since its sums come a minute later; what ends
/// images last.
const ROWS: &[Row] = rows![
    Site door::attack_37_challenges_that_nobody_answers,
    Keys ek::attack_24_ek_certificates_that_prove_nothing,
    Keys identity::attack_25_two_machines_claim_one_ek,
    Keys identity::attack_10_an_ak_of_another_tpm_beside_an_approved_ek,
    Keys identity::attack_38_the_gateway_is_no_oracle_for_credentials,
    Keys channel::attack_06_evidence_relayed_through_another_host,
    Keys channel::attack_53_hello_and_evidence_on_two_connections,
    Keys channel::attack_53_a_proxy_that_ends_tls,
    Keys quote::attack_08_an_ak_name_that_is_not_of_its_public,
    Keys quote::attack_09_an_unrestricted_key_signs_a_forged_attest,
    Keys devid::attack_11_a_software_key_as_devid,
    Keys log::attack_16_an_edited_event_log,
    Keys port::attack_27_lldp_of_another_port,
    Keys port::attack_28_option_82_that_disagrees_with_lldp,
    Keys identity::attack_01_an_admitted_machine_with_the_address_of_another,
    Keys identity::attack_02_an_admitted_machine_in_the_case_of_another,
    Keys quote::attack_04_a_quote_of_an_earlier_session,
    Keys quote::attack_05_the_nonce_of_another_machine_s_session,
    Keys quote::attack_07_extra_data_absent_zero_or_ones,
    Keys quote::attack_13_a_quote_over_the_sha1_bank,
    Keys quote::attack_14_a_quote_without_pcr_7_or_11,
    Keys quote::attack_15_pcr_values_that_are_not_of_the_digest,
    Keys quote::attack_54_an_ak_in_the_owner_hierarchy,
    Keys quote::attack_65_a_nonce_absent_or_nil,
    Keys devid::attack_12_a_devid_certified_by_another_ak,
    Site channel::attack_53_the_real_attester_tells_a_proxy_nothing,
    Site identity::attack_01_the_address_of_another_machine,
    Site identity::attack_02_everything_of_another_machine_but_its_tpm,
    Site identity::attack_26_a_cloned_tpm_on_two_hosts_at_once,
    Boot boot::attack_17_secure_boot_off,
    Boot boot::attack_18_an_unknown_authority,
    Boot boot::attack_21_a_changed_command_line,
    Boot boot::attack_22_an_extra_efi_application,
    Boot boot::attack_23_the_boot_aggregate_of_another_path,
    Boot boot::attack_20_a_withdrawn_image,
    Boot boot::attack_19_an_old_signed_image_below_the_floor,
    Boot door::attack_66_a_tpm_that_the_firmware_switched_off,
];

/// Runs the scenario.
///
/// # Errors
/// The site cannot be made, or a machine that tells the truth is not admitted.
pub fn run(report: &Report) -> Result<()> {
    let vendor = Vendor::new(ek::NAME)?;
    let site = scene::site(&vendor)?;
    let outcome = all(report, &site, &vendor);
    if outcome.is_err() || !report.failures().is_empty() {
        report.note(format!("logs kept in {}", site.run.keep_logs().display()));
    }
    outcome
}

fn all(report: &Report, site: &Site, vendor: &Vendor) -> Result<()> {
    let mut scene = Scene::open(site, vendor)?;
    let mut liar = Machine::plug(site, 2)?;
    enrol(&mut scene, &mut liar)?;
    sites(report, &mut scene, true);
    keys(report, &mut scene, &liar)?;
    sites(report, &mut scene, false);
    boots(report, &mut scene, &mut liar);
    report.check("in the end the honest machine boots and passes", {
        scene.honest.boot_honestly(site).and_then(|()| {
            scene.honest.lease(Stage::Attester)?;
            scene.honest_passes()
        })
    });
    report.check(
        "every refusal is in the ledger and counted by the API",
        scene.recorded(),
    );
    report.check(
        "what every check enforced would refuse: nothing honest",
        what_if(site),
    );
    report.check("the ledger verifies", site.verify_ledger().map(drop));
    let codes = scene.codes();
    report.note(format!(
        "{} lies, {} codes: {}; {} honest admissions",
        codes.values().sum::<u64>(),
        codes.len(),
        codes.keys().copied().collect::<Vec<_>>().join(" "),
        scene.admissions
    ));
    Ok(())
}

/// Admits the machine that will lie, as one with a declared port, in a class that refuses by it.
fn enrol(scene: &mut Scene<'_>, liar: &mut Machine) -> Result<()> {
    liar.boot_honestly(scene.site)?;
    liar.netboot()?;
    match liar.attest()? {
        Attested::Pending { code } => ensure!(code == "ek.unknown", "code {code}"),
        other => anyhow::bail!("the liar's first attempt: {other:?}"),
    }
    let claim = scene.approve(liar, &["--class", GUARDED, "--port", DECLARED_PORT])?;
    super::walk::no_certificate(scene.site, &claim)?;
    // PCR 15 begins anew: from now on it does not use the attester's own list.
    liar.boot_honestly(scene.site)
}

/// Rows of the site: those that come first, or the others.
fn sites(report: &Report, scene: &mut Scene<'_>, first: bool) {
    let keys = ROWS.iter().position(|row| matches!(row.act, Act::Keys(_)));
    let (before, after) = ROWS.split_at(keys.unwrap_or(0));
    for row in if first { before } else { after } {
        if let Act::Site(act) = row.act {
            told(report, row, scene, act);
        }
    }
}

fn keys(report: &Report, scene: &mut Scene<'_>, machine: &Machine) -> Result<()> {
    boot::attesting(scene, machine, |liar| {
        liar.truth_passes().context("before it lies")?;
        for (turn, row) in ROWS.iter().enumerate() {
            let Act::Keys(act) = row.act else { continue };
            let outcome = act(liar);
            say(report, row, liar.scene, outcome);
            if turn % HONEST_EVERY == 0 {
                report.check("the honest machine passes", liar.scene.honest_passes());
            }
        }
        report.check(
            "the liar passes when it tells the truth",
            liar.truth_passes(),
        );
        Ok(())
    })
}

fn boots(report: &Report, scene: &mut Scene<'_>, machine: &mut Machine) {
    for row in ROWS {
        if let Act::Boot(act) = row.act {
            told(report, row, scene, |scene| act(scene, machine));
        }
    }
}

fn told(
    report: &Report,
    row: &Row,
    scene: &mut Scene<'_>,
    act: impl FnOnce(&mut Scene<'_>) -> Result<()>,
) {
    let outcome = act(scene);
    say(report, row, scene, outcome);
}

/// One line for each row: its name, and what was told since the last.
fn say(report: &Report, row: &Row, scene: &mut Scene<'_>, outcome: Result<()>) {
    let name = format!("{}: {}", row.name, scene.told_since().join(" "));
    report.check(name.trim_end_matches([' ', ':']), outcome);
}

/// By its last evidence, which was honest, no machine would be refused.
fn what_if(site: &Site) -> Result<()> {
    let (status, out, err) = site.desk.vestibule(&["policy", "what-if", "--json"])?;
    ensure!(status.success(), "policy what-if: {status}: {out}{err}");
    let told: Value = serde_json::from_str(&out)?;
    ensure!(told["judged"].as_u64() >= Some(1), "{told}");
    let refused = told["would_refuse"].as_array().context("no list")?;
    ensure!(refused.is_empty(), "{told}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of the suite that must be shown against the running daemon.
    const SHOWN: &[u8] = &[
        1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26,
        27, 28, 36, 37, 38, 43, 44, 53, 54, 61, 65, 66,
    ];
    /// Those that have a scenario of their own: file, function.
    const ELSEWHERE: &[(&str, &str, &str)] = &[
        (
            "hellos.rs",
            include_str!("../hellos.rs"),
            "attack_36_ten_thousand_hellos_with_made_up_keys",
        ),
        (
            "hellos.rs",
            include_str!("../hellos.rs"),
            "attack_61_claims_of_software_keys_beside_a_real_machine",
        ),
        (
            "rollback.rs",
            include_str!("../rollback.rs"),
            "attack_43_yesterday_s_copy_of_the_state",
        ),
        (
            "rollback.rs",
            include_str!("../rollback.rs"),
            "attack_44_a_ledger_cut_edited_or_thinned",
        ),
    ];
    const SOURCES: &[(&str, &str)] = &[
        ("boot", include_str!("boot.rs")),
        ("channel", include_str!("channel.rs")),
        ("devid", include_str!("devid.rs")),
        ("door", include_str!("door.rs")),
        ("ek", include_str!("ek.rs")),
        ("identity", include_str!("identity.rs")),
        ("log", include_str!("log.rs")),
        ("port", include_str!("port.rs")),
        ("quote", include_str!("quote.rs")),
    ];

    /// Number of a row by the name of its function.
    fn number(name: &str) -> u8 {
        let digits = name.strip_prefix("attack_").and_then(|rest| rest.get(..2));
        digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
    }

    /// Every function of the suite, and the path of its file as the documents write it.
    fn functions() -> Vec<(String, &'static str)> {
        let own = SOURCES.iter().flat_map(|(module, text)| {
            let names = text.lines().filter_map(|line| {
                let name = line.strip_prefix("pub fn ")?.split('(').next()?;
                name.starts_with("attack_").then_some(name)
            });
            names.map(move |name| (format!("attacks/{module}.rs"), name))
        });
        let elsewhere = ELSEWHERE
            .iter()
            .map(|(file, _, name)| ((*file).to_owned(), *name));
        own.chain(elsewhere).collect()
    }

    #[test]
    fn every_row_has_a_function_and_no_other_has() {
        let numbers: Vec<u8> = functions().iter().map(|(_, name)| number(name)).collect();
        for row in SHOWN {
            assert!(numbers.contains(row), "row {row} is shown nowhere");
        }
        for found in &numbers {
            assert!(SHOWN.contains(found), "row {found} is not in the list");
        }
    }

    #[test]
    fn every_function_is_run() {
        for (file, name) in functions() {
            let told = ROWS.iter().filter(|row| row.name == name).count();
            match ELSEWHERE.iter().find(|(_, _, other)| *other == name) {
                // Defined, and called from the steps of its scenario.
                Some((_, text, _)) => {
                    let called = text.matches(name).count();
                    assert!(
                        text.contains(&format!("fn {name}(")) && called > 1,
                        "{name}"
                    );
                }
                None => assert_eq!(told, 1, "{file}: {name} is not in the table once"),
            }
        }
    }

    #[test]
    fn the_threat_model_names_every_function() {
        let text = include_str!("../../../../docs/THREAT-MODEL.md");
        for (file, name) in functions() {
            let row = format!("`tests/src/scenarios/{file}::{name}`");
            let line = text.lines().find(|line| line.contains(&row));
            let line = line.unwrap_or_else(|| panic!("{row} is missing"));
            let head = format!("| {} | ", number(name));
            assert!(line.starts_with(&head), "{row} is in another row: {line}");
        }
    }
}

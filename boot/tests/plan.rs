//! What a machine boots: one table over standing and kind of client, and the scripts byte for byte.

#![allow(clippy::unwrap_used, reason = "a test says what failed by panicking")]

use boot::arch::Arch;
use boot::catalog::{Artefact, Kind, Role};
use boot::ipxe::{ScriptError, render};
use boot::plan::{
    BootAnswerFile, BootPlan, BootPolicy, Choice, HttpBoot, MachineFacts, Standing, boot_answer,
    plan, script_url,
};

fn policy() -> BootPolicy {
    BootPolicy {
        https_host: "10.66.0.1".into(),
        http_host: "10.66.0.1:8080".into(),
        http_boot: HttpBoot::UkiOverHttps,
        hold_retry_secs: 30,
    }
}

fn artefact(kind: Kind) -> Artefact {
    let digest = "ab".repeat(32);
    let uki = kind == Kind::Uki;
    Artefact {
        name: if uki { "attester" } else { "ipxe" }.into(),
        kind,
        role: Role::Provision,
        arch: "x86_64".into(),
        version: 3,
        file: if uki { "attester.efi" } else { "ipxe.efi" }.into(),
        sha256: digest.clone(),
        size_bytes: 20_480,
        pe_sha256: digest.clone(),
        linux_pe_sha256: uki.then(|| digest.clone()),
        pcr11: uki.then(|| digest.clone()),
        cmdline: None,
    }
}

fn facts(standing: Standing) -> MachineFacts {
    MachineFacts {
        standing,
        arch: Some(Arch::X64Uefi),
        is_ipxe: false,
        is_http_client: false,
        mac: Some([0x52, 0x54, 0, 0x66, 0, 1]),
    }
}

fn held() -> Standing {
    Standing::Held {
        reason: "withdrawn on 2026-11-30".into(),
    }
}

const SCRIPT: &str = "https://10.66.0.1/boot/script.ipxe?mac=52:54:00:66:00:01&arch=x86_64";

#[test]
fn every_standing_and_client() {
    let (ipxe, uki) = (artefact(Kind::Ipxe), artefact(Kind::Uki));
    let choice = Choice {
        ipxe: Some(&ipxe),
        uki: Some(&uki),
    };
    let uki_url = format!("https://10.66.0.1/boot/{}/attester.efi", uki.sha256);
    // Who can fetch the UKI over HTTPS can fetch iPXE over it: nothing goes over plain HTTP unasked.
    let ipxe_url = format!("https://10.66.0.1/boot/{}/ipxe.efi", ipxe.sha256);
    let tftp = || BootAnswerFile::Tftp("ipxe.efi".into());
    let url = |url: &str| BootAnswerFile::Url(url.to_owned());
    let table = [
        // standing, ipxe, http -> answer
        (Standing::Attest, false, false, tftp()),
        (Standing::Attest, false, true, url(&uki_url)),
        (Standing::Attest, true, false, url(SCRIPT)),
        // iPXE started by HTTP boot still says HTTPClient or PXEClient: it gets the script, never a binary again.
        (Standing::Attest, true, true, url(SCRIPT)),
        (Standing::Installed, false, false, BootAnswerFile::None),
        (Standing::Installed, false, true, BootAnswerFile::None),
        (Standing::Installed, true, false, url(SCRIPT)),
        (held(), false, false, tftp()),
        (held(), false, true, url(&ipxe_url)),
        (held(), true, false, url(SCRIPT)),
    ];
    for (standing, is_ipxe, is_http_client, expected) in table {
        let facts = MachineFacts {
            is_ipxe,
            is_http_client,
            ..facts(standing)
        };
        let plan = plan(&facts, choice, &policy());
        assert_eq!(
            boot_answer(&plan, &facts, choice, &policy()),
            expected,
            "{facts:?}"
        );
    }
}

#[test]
fn old_firmware_gets_what_the_owner_allows_over_plain_http() {
    let (ipxe, uki) = (artefact(Kind::Ipxe), artefact(Kind::Uki));
    let choice = Choice {
        ipxe: Some(&ipxe),
        uki: Some(&uki),
    };
    let held = || BootPlan::Hold {
        reason: "cordoned".into(),
        retry_secs: 30,
    };
    let table = [
        (
            HttpBoot::UkiOverHttps,
            BootPlan::Provision,
            "https",
            "attester.efi",
        ),
        (
            HttpBoot::IpxeOverHttp,
            BootPlan::Provision,
            "http",
            "ipxe.efi",
        ),
        (
            HttpBoot::UkiOverHttp,
            BootPlan::Provision,
            "http",
            "attester.efi",
        ),
        (HttpBoot::UkiOverHttps, held(), "https", "ipxe.efi"),
        (HttpBoot::IpxeOverHttp, held(), "http", "ipxe.efi"),
        (HttpBoot::UkiOverHttp, held(), "http", "ipxe.efi"),
    ];
    for (http_boot, plan, scheme, file) in table {
        let policy = BootPolicy {
            http_boot,
            ..policy()
        };
        let facts = MachineFacts {
            is_http_client: true,
            ..facts(Standing::Attest)
        };
        let answer = boot_answer(&plan, &facts, choice, &policy);
        let BootAnswerFile::Url(url) = &answer else {
            panic!("{http_boot:?}: {answer:?}");
        };
        assert!(
            url.starts_with(&format!("{scheme}://10.66.0.1")) && url.ends_with(file),
            "{http_boot:?}: {url}"
        );
    }
}

#[test]
fn holds_with_a_reason_when_nothing_fits() {
    for (arch, word) in [
        (Some(Arch::X64Uefi), "x86_64 attester"),
        (Some(Arch::X86Bios), "UEFI"),
        (None, "option 93"),
    ] {
        let facts = MachineFacts {
            arch,
            ..facts(Standing::Attest)
        };
        match plan(&facts, Choice::default(), &policy()) {
            BootPlan::Hold { reason, retry_secs } => {
                assert!(reason.contains(word), "{reason}");
                assert_eq!(retry_secs, 30);
            }
            other => panic!("{arch:?}: {other:?}"),
        }
    }
}

#[test]
fn scripts_are_the_recorded_ones() {
    let uki = artefact(Kind::Uki);
    let hold = BootPlan::Hold {
        reason: "withdrawn on 2026-11-30 by owner: the box was sold; ask ${user} && reboot || `x` \u{1b}[2J before you do anything else with it"
            .into(),
        retry_secs: 30,
    };
    for (name, plan) in [
        ("provision", BootPlan::Provision),
        ("local-disk", BootPlan::LocalDisk),
        ("hold", hold),
    ] {
        let script = render(&plan, Some(&uki), &policy(), SCRIPT).unwrap();
        let path = format!(
            "{}/../tests/vectors/boot/{name}.ipxe",
            env!("CARGO_MANIFEST_DIR")
        );
        if std::env::var_os("VESTIBULE_WRITE_VECTORS").is_some() {
            std::fs::write(&path, &script).unwrap();
        }
        assert_eq!(script, std::fs::read_to_string(&path).unwrap(), "{name}");
        for line in script.lines().filter(|line| line.starts_with("echo ")) {
            let shown = line.trim_start_matches("echo ");
            assert!(shown.len() < 80 || shown.contains("${"), "{shown}");
        }
    }
}

#[test]
fn a_hold_never_loops_in_silence() {
    let hold = BootPlan::Hold {
        reason: "x".into(),
        retry_secs: 0,
    };
    let script = render(&hold, None, &policy(), SCRIPT).unwrap();
    assert!(script.contains("sleep 1\n"), "{script}");
    let looped = script.split_once(":again\n").unwrap().1;
    assert!(
        looped.contains("sleep") && looped.contains("echo"),
        "{looped}"
    );
}

#[test]
fn rejects_provision_without_an_attester() {
    assert_eq!(
        render(&BootPlan::Provision, None, &policy(), SCRIPT),
        Err(ScriptError::NoAttester)
    );
}

#[test]
fn rejects_values_that_would_be_commands() {
    let uki = artefact(Kind::Uki);
    for url in [
        "https://h/x\nshell",
        "https://h/x && shell",
        "https://h/x&&shell",
        "https://h/${x}",
        "https://h/x;y",
        "tftp://h/x",
        "",
    ] {
        let error = render(&BootPlan::LocalDisk, None, &policy(), url).unwrap_err();
        assert!(matches!(error, ScriptError::Value { .. }), "{url}");
    }
    let mut bad = uki.clone();
    bad.file = "x y".into();
    assert!(render(&BootPlan::Provision, Some(&bad), &policy(), SCRIPT).is_err());
    let bad_host = BootPolicy {
        https_host: "h || shell".into(),
        ..policy()
    };
    assert!(render(&BootPlan::Provision, Some(&uki), &bad_host, SCRIPT).is_err());
}

#[test]
fn the_script_url_names_the_machine() {
    assert_eq!(
        script_url(
            &policy(),
            Some(Arch::X64Uefi),
            Some([0x52, 0x54, 0, 0x66, 0, 1])
        ),
        SCRIPT
    );
    assert_eq!(
        script_url(&policy(), None, None),
        "https://10.66.0.1/boot/script.ipxe"
    );
}

proptest::proptest! {
    /// Whatever a reason says, it stays words of `echo`.
    #[test]
    fn no_reason_becomes_a_command(reason in ".{0,300}") {
        let hold = BootPlan::Hold { reason, retry_secs: 5 };
        let script = render(&hold, None, &policy(), SCRIPT).unwrap();
        let mut whys = 0;
        for line in script.lines() {
            let known = ["#!ipxe", "isset ", "inc ", "echo vestibule:", ":again", "sleep 5", "chain ", "goto again"];
            proptest::prop_assert!(known.iter().any(|start| line.starts_with(start)), "{}", line);
            if line.starts_with("echo vestibule: why:") {
                whys += 1;
                proptest::prop_assert!(line.len() <= 5 + 79, "{}", line);
                proptest::prop_assert!(!line.contains(['$', '&', '|', ';', '`', '\\', '"']), "{}", line);
            }
        }
        proptest::prop_assert!(whys > 0);
    }
}

//! What policy, inventory and catalogue name and the others do not have: mostly a slip of the pen.
//!
//! `vestibule config check` and the start of the daemon tell the same.

use std::collections::BTreeMap;

use boot::catalog::Artefact;
use gateway_core::appraisal::EkRoots;
use gateway_core::inventory::Inventory;
use gateway_core::policy::Policy;

/// Images that the policy names and the catalogue does not have: a name that is mistyped in a floor
/// would hold for nothing.
pub fn images<'p>(policy: &'p Policy, artefacts: &[Artefact]) -> Vec<&'p str> {
    let known = |name: &&str| artefacts.iter().any(|a| a.name == **name);
    policy.images().into_iter().filter(|n| !known(n)).collect()
}

/// Digests that the policy withdraws and no entry has, in words: mistyped, or the entry is gone already.
pub fn withdrawals(policy: &Policy, artefacts: &[Artefact]) -> Vec<String> {
    let known = |digest: &String| {
        artefacts.iter().any(|artefact| {
            [&artefact.sha256, &artefact.pe_sha256]
                .into_iter()
                .any(|of_entry| of_entry.eq_ignore_ascii_case(digest))
        })
    };
    let digests = policy.withdrawn().into_iter().map(hex::encode);
    digests
        .filter(|digest| !known(digest))
        .map(|digest| {
            format!("policy: no image of the catalogue has the withdrawn digest {digest}")
        })
        .collect()
}

/// Classes of declared machines that a policy with classes does not have, in words: row 3 refuses
/// their machines.
pub fn classes(policy: &Policy, inventory: &Inventory) -> Vec<String> {
    let mut machines: BTreeMap<&str, usize> = BTreeMap::new();
    for machine in &inventory.machines {
        if policy.lacks(&machine.class) {
            *machines.entry(&machine.class).or_default() += 1;
        }
    }
    machines
        .into_iter()
        .map(|(class, count)| {
            format!(
                "inventory: the policy has no class {class:?} ({}), so its {count} machines are refused \
                 (machine.class); correct the name, or write the class into the policy: a [[class]] with \
                 just that name has the general rules",
                policy.classes_text()
            )
        })
        .collect()
}

/// Delta lists whose complete list is not loaded, in words: they revoke, and nothing else of them counts.
pub fn deltas(roots: &EkRoots) -> Vec<String> {
    let loose = roots.loose_deltas().into_iter();
    loose
        .map(|(file, reason)| {
            format!(
                "{file}: {}: expected {}, found {}; {}",
                reason.code, reason.expected, reason.found, reason.next
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use boot::catalog::{Kind, Role};

    use super::*;

    fn policy(more: &str) -> Policy {
        let text = format!("version = 1\npreset = \"standard\"\n{more}");
        Policy::parse(&text).expect("valid")
    }

    fn attester() -> [Artefact; 1] {
        [Artefact {
            name: "attester".into(),
            kind: Kind::Ipxe,
            role: Role::Provision,
            arch: "x86_64".into(),
            version: 1,
            file: "a.efi".into(),
            sha256: "AA".repeat(32),
            size_bytes: 1,
            pe_sha256: "bb".repeat(32),
            linux_pe_sha256: None,
            pcr11: None,
            cmdline: None,
        }]
    }

    #[test]
    fn a_policy_may_name_only_images_of_the_catalogue() {
        let told = |more: &str| images(&policy(more), &attester()).join(" ");
        assert_eq!(told(""), "");
        assert_eq!(told("[boot]\nimages = [\"attester\"]\n"), "");
        let floor = "[[boot.floor]]\nimage = \"atester\"\nversion = 7\n";
        assert_eq!(told(floor), "atester");
        let of_class =
            "[[class]]\nname = \"c\"\n[class.boot]\nimages = [\"talos\", \"attester\"]\n";
        assert_eq!(told(of_class), "talos");
    }

    #[test]
    fn a_withdrawal_of_nothing_is_told() {
        let list = |bytes: [&str; 3]| {
            let digests = bytes.map(|byte| format!("{:?}", byte.repeat(32)));
            format!("withdrawn_sha256 = [{}]\n", digests.join(", "))
        };
        let general = format!("[boot]\n{}", list(["aa", "bb", "bb"]));
        let told = |text: &str| withdrawals(&policy(text), &attester());
        assert!(told(&general).is_empty());
        let of_class = format!(
            "{general}[[class]]\nname = \"c\"\n[class.boot]\n{}",
            list(["aa", "bb", "cc"])
        );
        let told = told(&of_class);
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].ends_with(&"cc".repeat(32)), "{told:?}");
    }

    #[test]
    fn a_class_that_the_policy_does_not_have_is_told() {
        let inventory = Inventory::parse(
            "version = 1\n[[machine]]\nserial = \"ABC1\"\nclass = \"contrl\"\n\
             [[machine]]\nserial = \"ABC2\"\nclass = \"contrl\"\n\
             [[machine]]\nserial = \"ABC3\"\nclass = \"worker\"\n\
             [[machine]]\nserial = \"ABC4\"\nclass = \"default\"\n",
        )
        .expect("valid");
        let told = |text: &str| classes(&policy(text), &inventory);
        assert!(told("").is_empty(), "without classes all rules are general");
        let two = "[[class]]\nname = \"control\"\n[[class]]\nname = \"worker\"\n";
        let told = told(two);
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(
            told[0].contains(
                "no class \"contrl\" (it has control, worker, default), so its 2 machines"
            ),
            "{told:?}"
        );
    }
}

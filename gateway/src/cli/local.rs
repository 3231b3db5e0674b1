//! Commands on this machine's own files: configuration and state directory.

use std::path::Path;

use boot::catalog::Artefact;
use gateway_core::policy::Policy;
use serde_json::json;

use super::{Exit, Failure, Output};
use crate::config::Config;
use crate::images::Images;
use crate::inventory::Declared;

/// `vestibule config check`: the file itself was checked when it was loaded; here come the files
/// it names, every one that fails.
pub(super) fn check_config(
    out: &Output,
    config: &Config,
    without_images: bool,
) -> Result<Exit, Failure> {
    let mut problems: Vec<Failure> = Vec::new();
    let declared = match Declared::load(config) {
        Ok(declared) => Some(declared),
        Err(error) => {
            problems.push(error.into());
            None
        }
    };
    if !without_images {
        match (Images::load(&config.boot), &declared) {
            (Ok((catalog, _)), Some(declared)) => {
                problems.extend(unknown_images(&declared.policy, catalog.artefacts()));
            }
            (Ok(_), None) => {}
            (Err(error), _) => problems.push(error.into()),
        }
    }
    if let Some(first) = problems.first() {
        let lines: Vec<&str> = problems.iter().map(|f| f.text.as_str()).collect();
        return Err(Failure::told(first.exit, lines.join("\n")));
    }
    let machines = declared.as_ref().map_or(0, |d| d.inventory.machines.len());
    let roots = declared.as_ref().map_or(0, |d| d.ek_roots.len());
    let crls = declared.as_ref().map_or(0, |d| d.ek_roots.crl_count());
    let value = json!({ "ok": true, "machines": machines, "ek_roots": roots, "ek_crls": crls });
    out.print(&value, || {
        format!("ok: {machines} declared machines, {roots} EK roots, {crls} revocation lists")
    });
    Ok(Exit::Done)
}

/// Images that the policy names and the catalogue does not have: a name that is mistyped in a floor would
/// hold for nothing.
fn unknown_images(policy: &Policy, artefacts: &[Artefact]) -> Option<Failure> {
    let known = |name: &&str| artefacts.iter().any(|a| a.name == **name);
    let unknown: Vec<&str> = policy.images().into_iter().filter(|n| !known(n)).collect();
    (!unknown.is_empty()).then(|| {
        let text = format!(
            "policy: expected names of images of the catalogue, found {}",
            unknown.join(", ")
        );
        Failure::told(Exit::Usage, text)
    })
}

/// `vestibule store check`
pub(super) fn check_store(
    out: &Output,
    config: &Config,
    anchor: Option<&Path>,
) -> Result<Exit, Failure> {
    let anchor = anchor.map(super::read_certificate).transpose()?;
    let report = store::check(&config.appliance.state_dir, anchor.as_deref())?;
    let entries = report.ledger.as_ref().map(|ledger| ledger.entries);
    let value = json!({
        "ledger_entries": entries,
        "leases": report.leases,
        "marks": report.marks,
        "seals": report.seals,
        "secrets": report.secrets,
        "documents": report.documents,
        "torn_bytes": report.torn_bytes,
        "problems": report.problems,
    });
    out.print(&value, || {
        let mut text = format!(
            "ledger entries  {}\nleases          {}\nwalk marks      {}\nsealed blobs    {}\nsecrets         {}\ndocuments       {}\ntorn bytes      {}\n",
            entries.map_or_else(|| "none".to_owned(), |n| n.to_string()),
            report.leases,
            report.marks,
            report.seals.join(" "),
            report.secrets.join(" "),
            report.documents.join(" "),
            report.torn_bytes,
        );
        for problem in &report.problems {
            text.push_str(&format!("problem         {problem}\n"));
        }
        text
    });
    Ok(if report.problems.is_empty() {
        Exit::Done
    } else {
        Exit::Refused
    })
}

/// `vestibule store rebuild`
pub(super) fn rebuild_store(
    out: &Output,
    config: &Config,
    anchor: Option<&Path>,
) -> Result<Exit, Failure> {
    let anchor = anchor.map(super::read_certificate).transpose()?;
    let report = store::rebuild(&config.appliance.state_dir, anchor.as_deref())?;
    let value = json!({
        "ledger_entries": report.entries,
        "leases": report.leases,
        "carried": report.carried,
        "old_database": report.old_database,
        "lost": report.lost,
    });
    out.print(&value, || {
        let mut text = format!(
            "ledger entries  {}\nleases          {}\ncarried over    {}\n",
            report.entries, report.leases, report.carried
        );
        if let Some(old) = &report.old_database {
            text.push_str(&format!("old database    {}\n", old.display()));
        }
        for lost in &report.lost {
            text.push_str(&format!("not restored    {lost}\n"));
        }
        text
    });
    Ok(Exit::Done)
}

#[cfg(test)]
mod tests {
    use boot::catalog::{Kind, Role};

    use super::*;

    #[test]
    fn a_policy_may_name_only_images_of_the_catalogue() {
        let attester = Artefact {
            name: "attester".into(),
            kind: Kind::Ipxe,
            role: Role::Provision,
            arch: "x86_64".into(),
            version: 1,
            file: "a.efi".into(),
            sha256: String::new(),
            size_bytes: 1,
            pe_sha256: String::new(),
            linux_pe_sha256: None,
            pcr11: None,
            cmdline: None,
        };
        let told = |more: &str| {
            let text = format!("version = 1\npreset = \"standard\"\n{more}");
            let policy = Policy::parse(&text).expect("valid");
            unknown_images(&policy, std::slice::from_ref(&attester)).map(|failure| failure.text)
        };
        assert_eq!(told(""), None);
        assert_eq!(told("[boot]\nimages = [\"attester\"]\n"), None);
        let floor = "[[boot.floor]]\nimage = \"atester\"\nversion = 7\n";
        assert_eq!(
            told(floor).as_deref(),
            Some("policy: expected names of images of the catalogue, found atester")
        );
        let of_class =
            "[[class]]\nname = \"c\"\n[class.boot]\nimages = [\"talos\", \"attester\"]\n";
        assert!(told(of_class).is_some_and(|text| text.ends_with("found talos")));
    }
}

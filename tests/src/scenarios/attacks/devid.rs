//! DevIDs that are not of this TPM, or that nobody restricted has certified.

use anyhow::{Context as _, Result, ensure};
use hw::tpm::NodeTpm as _;

use super::liar::{Liar, signed};
use crate::exchange::SoftwareKey;

/// Attributes of our DevID template.
const DEVID: u32 = 0x0004_0472;

pub fn attack_11_a_software_key_as_devid(liar: &mut Liar<'_, '_>) -> Result<()> {
    let key = SoftwareKey::generate();
    let mut hello = liar.hello.clone();
    hello.devid_pub = key.public(DEVID).into();
    liar.refused_after(
        &hello,
        "a software key beside the TPM's certification of another",
        "devid.certify",
        |_, _, _, _| Ok(()),
    )?;
    liar.refused_after(
        &hello,
        "a software key that certifies itself",
        "devid.certify",
        |evidence, _, _, _| {
            evidence.devid_certify.sig = key.sign(&evidence.devid_certify.attest.0)?.into();
            Ok(())
        },
    )?;
    // Our template without noDA: the attributes are bytes 4 to 8 of TPMT_PUBLIC, noDA is bit 10.
    let mut hello = liar.hello.clone();
    hello.devid_pub.0[6] &= !0x04;
    liar.hello_refused("a DevID of another template", "devid.template", &hello)
}

pub fn attack_12_a_devid_certified_by_another_ak(liar: &mut Liar<'_, '_>) -> Result<()> {
    let (own, unique) = (liar.hello.ak_pub.0.clone(), liar.unique);
    liar.evidence_refused(
        "certified by another AK of the same TPM",
        "devid.certify",
        |evidence, node, _, binding| {
            node.tpm.create_ak([0x17; 64])?;
            let certify = node.tpm.certify_devid(&binding.digest("devid"))?;
            evidence.devid_certify = signed(certify);
            ensure!(node.tpm.create_ak(unique)? == own, "another AK");
            Ok(())
        },
    )?;
    let honest = &liar.scene.honest;
    let theirs = honest.with_tpm(|tpm| {
        tpm.create_ak([0x18; 64])?;
        tpm.create_devid(hw::tpm::DevIdKind::EccP256, None)?;
        Ok(tpm.certify_devid(&[0; 32])?)
    })?;
    liar.evidence_refused(
        "certified by another TPM",
        "devid.certify",
        |evidence, _, _, _| {
            // Their signature over our session's statement.
            let ours = evidence.devid_certify.attest.clone();
            evidence.devid_certify = signed(theirs);
            evidence.devid_certify.attest = ours;
            Ok(())
        },
    )?;
    liar.evidence_refused(
        "not certified at all",
        "devid.certify",
        |evidence, _, _, _| {
            let sig = evidence.devid_certify.sig.0.last_mut();
            *sig.context("an empty signature")? ^= 1;
            Ok(())
        },
    )
}

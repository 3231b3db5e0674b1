//! Row 24: EK certificates that say nothing for the EK beside them. The TPM and its keys are genuine.

use anyhow::{Context as _, Result, ensure};
use attest_wire::v1::{Hello, Verdict};
use rcgen::{ExtendedKeyUsagePurpose, IsCa, date_time_ymd};

use super::liar::Liar;
use super::scene::REVOKED;
use crate::vendor::Vendor;

/// The vendor's name, which anybody can write into a certificate.
pub const NAME: &str = "Lab TPM Vendor";

pub fn attack_24_ek_certificates_that_prove_nothing(liar: &mut Liar<'_, '_>) -> Result<()> {
    let vendor = liar.scene.vendor;
    let (root, issuing) = (&vendor.root, &vendor.issuing);
    let ek = liar.hello.eks[0].public.0.clone();
    let chain = vec![issuing.der.clone()];
    let good = issuing.certify(&ek, |_| {})?;

    let bare = {
        let mut hello = liar.hello.clone();
        hello.eks.iter_mut().for_each(|ek| ek.cert = None);
        hello
    };
    liar.hello_refused("no certificate at all", "ek.cert.missing", &bare)?;
    let mut damaged = good.clone();
    damaged.truncate(good.len() - 1);
    let impostor = Vendor::new(NAME)?;
    let no_ca = root.below("Lab TPM Vendor EK CA", |params| {
        params.is_ca = IsCa::ExplicitNoCa
    })?;
    let expired = issuing.certify(&ek, |params| params.not_after = date_time_ymd(2021, 1, 1))?;
    let server = issuing.certify(&ek, |params| {
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    })?;
    let another = issuing.certify(&liar.hello.ak_pub.0, |_| {})?;
    let revoked = issuing.certify(&ek, |params| params.serial_number = Some(REVOKED.into()))?;
    for (lie, code, cert, chain) in [
        (
            "without its chain",
            "ek.cert.chain",
            good.clone(),
            Vec::new(),
        ),
        ("cut by a byte", "ek.cert.encoding", damaged, chain.clone()),
        ("expired", "ek.cert.expired", expired, chain.clone()),
        ("a TLS server's", "ek.cert.eku", server, chain.clone()),
        (
            "of a CA of one's own with the vendor's name",
            "ek.cert.signature",
            impostor.issuing.certify(&ek, |_| {})?,
            vec![impostor.issuing.der.clone(), impostor.root.der.clone()],
        ),
        (
            "by an intermediate that is no CA",
            "ek.cert.ca",
            no_ca.certify(&ek, |_| {})?,
            vec![no_ca.der.clone()],
        ),
        ("of another key", "ek.cert.key", another, chain.clone()),
        ("revoked", "ek.cert.revoked", revoked, chain.clone()),
    ] {
        let hello = with_cert(&liar.hello, cert, chain);
        liar.hello_refused(lie, code, &hello)?;
    }
    // The vendor's good certificate passes, so none of these failed for another reason.
    let honest = std::mem::replace(&mut liar.hello, Hello::clone(&bare));
    liar.hello = with_cert(&honest, good, chain);
    let result = liar.honestly();
    liar.hello = honest;
    let result = result.context("the good certificate")?;
    ensure!(
        result.verdict == Verdict::Admitted,
        "the good certificate: {} {}",
        result.code,
        result.hint
    );
    Ok(())
}

fn with_cert(hello: &Hello, cert: Vec<u8>, chain: Vec<Vec<u8>>) -> Hello {
    let mut hello = hello.clone();
    hello.eks[0].cert = Some(cert.into());
    hello.ek_chain = chain.into_iter().map(Into::into).collect();
    hello
}

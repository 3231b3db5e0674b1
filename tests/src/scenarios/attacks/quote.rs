//! Quotes that are not of this key, this session or these registers.

use anyhow::{Context as _, Result};
use attest_wire::tpm::HashAlg;
use attest_wire::v1::Binding;
use hw::tpm::NodeTpm as _;
use rand_core::{OsRng, RngCore as _};

use super::liar::{Liar, signed};
use super::scene::When;
use crate::exchange::{Connection, SoftwareKey, say_hello};
use crate::sim::ATTEST;

/// Attributes of a signing key that is not restricted: it signs what it is given.
const UNRESTRICTED: u32 = 0x0004_0472;
/// Those of our AK.
const AK: u32 = 0x0005_0472;

pub fn attack_04_a_quote_of_an_earlier_session(liar: &mut Liar<'_, '_>) -> Result<()> {
    let mut connection = Connection::open(ATTEST)?;
    let (challenge, binding) = say_hello(&mut connection, &liar.hello)?
        .map_err(|refusal| anyhow::anyhow!("honest hello refused: {}", refusal.code))?;
    let kept = liar.node.evidence(&liar.hello, &challenge, &binding)?;
    drop(connection);
    let quote = kept.quote.clone();
    liar.evidence_refused("an earlier quote", "quote.nonce", |evidence, _, _, _| {
        evidence.quote = quote;
        Ok(())
    })?;
    liar.evidence_refused(
        "earlier quote and certification",
        "devid.certify",
        |evidence, _, _, _| {
            evidence.quote = kept.quote;
            evidence.devid_certify = kept.devid_certify;
            Ok(())
        },
    )
}

pub fn attack_05_the_nonce_of_another_machine_s_session(liar: &mut Liar<'_, '_>) -> Result<()> {
    // The other machine is being challenged at the same time.
    let (theirs, _open) = liar.scene.honest.with_tpm(|tpm| {
        let mut pcr15 = Vec::new();
        let mut node = crate::exchange::Node {
            tpm,
            pcr15: &mut pcr15,
            claims: liar.scene.honest.claims.clone(),
            event_log: Vec::new(),
        };
        let (hello, _) = node.hello()?;
        let mut connection = Connection::open(ATTEST)?;
        let (_, binding) = say_hello(&mut connection, &hello)?
            .map_err(|refusal| anyhow::anyhow!("their hello refused: {}", refusal.code))?;
        Ok((binding, connection))
    })?;
    liar.evidence_refused(
        "a quote over another session's nonce",
        "quote.nonce",
        |evidence, node, challenge, _| {
            let quote = node
                .tpm
                .quote(&theirs.digest("quote"), &challenge.pcr_selection)?;
            evidence.quote = signed(quote);
            Ok(())
        },
    )
}

pub fn attack_07_extra_data_absent_zero_or_ones(liar: &mut Liar<'_, '_>) -> Result<()> {
    for (what, data) in [
        ("absent", &[][..]),
        ("zero", &[0; 32]),
        ("0xff", &[0xff; 32]),
    ] {
        liar.evidence_refused(
            &format!("extraData {what}"),
            "quote.nonce",
            |evidence, node, challenge, _| {
                let pcrs = &challenge.pcr_selection;
                evidence.quote = signed(node.tpm.quote_otherwise(data, HashAlg::Sha256, pcrs)?);
                Ok(())
            },
        )?;
    }
    Ok(())
}

pub fn attack_08_an_ak_name_that_is_not_of_its_public(liar: &mut Liar<'_, '_>) -> Result<()> {
    // The public of a key of one's own: its Name is not that of any object in this TPM.
    let mut hello = liar.hello.clone();
    hello.ak_pub = SoftwareKey::generate().public(AK).into();
    let mut connection = Connection::open(ATTEST)?;
    let (challenge, binding) = say_hello(&mut connection, &hello)?
        .map_err(|refusal| anyhow::anyhow!("hello refused: {}", refusal.code))?;
    let evidence = liar.guessed(&hello, &challenge, &binding)?;
    let result = crate::exchange::send_evidence(&mut connection, &evidence)?;
    liar.scene.refused(
        "an AK of another Name",
        "ak.activation",
        When::Unproven,
        &result,
    )?;
    // The right key, named by another hash.
    let mut hello = liar.hello.clone();
    hello.ak_pub.0[3] = 0x0c;
    liar.hello_refused("an AK named by SHA-384", "ak.template", &hello)
}

pub fn attack_09_an_unrestricted_key_signs_a_forged_attest(liar: &mut Liar<'_, '_>) -> Result<()> {
    let forged = SoftwareKey::generate();
    let mut hello = liar.hello.clone();
    hello.ak_pub = forged.public(UNRESTRICTED).into();
    liar.hello_refused("an AK without restricted", "ak.template", &hello)?;
    liar.evidence_refused(
        "a TPMS_ATTEST forged by such a key",
        "quote.signature",
        |evidence, _, _, _| {
            // Magic, type and nonce stay; the PCR digest, the last field, becomes what one wishes.
            let attest = &mut evidence.quote.attest.0;
            *attest.last_mut().context("an empty TPMS_ATTEST")? ^= 1;
            evidence.quote.sig = forged.sign(attest)?.into();
            Ok(())
        },
    )?;
    liar.evidence_refused(
        "an attest without the magic",
        "quote.magic",
        |evidence, _, _, _| {
            evidence.quote.attest.0[0] ^= 1;
            Ok(())
        },
    )?;
    liar.evidence_refused(
        "a certification posing as the quote",
        "quote.type",
        |evidence, _, _, _| {
            evidence.quote = evidence.devid_certify.clone();
            Ok(())
        },
    )
}

pub fn attack_13_a_quote_over_the_sha1_bank(liar: &mut Liar<'_, '_>) -> Result<()> {
    liar.evidence_refused(
        "the SHA-1 bank only",
        "quote.bank",
        |evidence, node, challenge, binding| {
            let data = binding.digest("quote");
            let pcrs = &challenge.pcr_selection;
            evidence.quote = signed(node.tpm.quote_otherwise(&data, HashAlg::Sha1, pcrs)?);
            Ok(())
        },
    )
}

pub fn attack_14_a_quote_without_pcr_7_or_11(liar: &mut Liar<'_, '_>) -> Result<()> {
    for left_out in [7, 11] {
        liar.evidence_refused(
            &format!("PCR {left_out} neither quoted nor sent"),
            "quote.selection",
            |evidence, node, challenge, binding| {
                let mut pcrs = challenge.pcr_selection.clone();
                pcrs.retain(|pcr| *pcr != left_out);
                evidence.quote = signed(node.tpm.quote(&binding.digest("quote"), &pcrs)?);
                evidence.pcr_values.retain(|value| value.index != left_out);
                Ok(())
            },
        )?;
        liar.evidence_refused(
            &format!("PCR {left_out} quoted and not sent"),
            "quote.selection",
            |evidence, _, _, _| {
                evidence.pcr_values.retain(|value| value.index != left_out);
                Ok(())
            },
        )?;
    }
    Ok(())
}

pub fn attack_15_pcr_values_that_are_not_of_the_digest(liar: &mut Liar<'_, '_>) -> Result<()> {
    liar.evidence_refused("one value changed", "quote.digest", |evidence, _, _, _| {
        let value = evidence
            .pcr_values
            .iter_mut()
            .find(|value| value.index == 4);
        value.context("no PCR 4")?.digest.0[0] ^= 1;
        Ok(())
    })?;
    liar.evidence_refused(
        "two values exchanged",
        "quote.digest",
        |evidence, _, _, _| {
            let digest = evidence.pcr_values[4].digest.clone();
            evidence.pcr_values[4].digest = evidence.pcr_values[7].digest.clone();
            evidence.pcr_values[7].digest = digest;
            Ok(())
        },
    )
}

pub fn attack_54_an_ak_in_the_owner_hierarchy(liar: &mut Liar<'_, '_>) -> Result<()> {
    let mut unique = [0u8; 64];
    OsRng.fill_bytes(&mut unique);
    let mut hello = liar.hello.clone();
    hello.ak_pub = liar.node.tpm.create_owner_ak(unique)?.into();
    let told = liar.refused_after(&hello, "an owner's AK", "quote.signer", |_, _, _, _| Ok(()));
    // The AK of the honest hello again: a primary key is made of seed and template.
    let again = liar.node.tpm.create_ak(liar.unique)?;
    anyhow::ensure!(again == liar.hello.ak_pub.0, "another AK");
    told
}

pub fn attack_65_a_nonce_absent_or_nil(liar: &mut Liar<'_, '_>) -> Result<()> {
    let body = serde_json::to_vec(&liar.hello)?;
    for (what, nonce) in [("absent", None), ("nil", Some(vec![0u8; 32]))] {
        let body = body.clone();
        liar.evidence_refused(
            &format!("a quote over a challenge whose nonce is {what}"),
            "quote.nonce",
            |evidence, node, challenge, binding| {
                let mut other = serde_json::to_value(challenge)?;
                let members = other.as_object_mut().context("a challenge is an object")?;
                match &nonce {
                    None => drop(members.remove("nonce")),
                    Some(nil) => {
                        let nil = attest_wire::v1::Bytes(nil.clone());
                        members.insert("nonce".into(), serde_json::to_value(nil)?);
                    }
                }
                let other = serde_json::to_vec(&other)?;
                let unbound = Binding::new(&body, &other, binding.exporter);
                let quote = node
                    .tpm
                    .quote(&unbound.digest("quote"), &challenge.pcr_selection)?;
                evidence.quote = signed(quote);
                Ok(())
            },
        )?;
    }
    liar.evidence_refused(
        "a quote over the bare nonce",
        "quote.nonce",
        |evidence, node, challenge, _| {
            let (nonce, pcrs) = (challenge.nonce.0.clone(), &challenge.pcr_selection);
            evidence.quote = signed(node.tpm.quote_otherwise(&nonce, HashAlg::Sha256, pcrs)?);
            Ok(())
        },
    )
}

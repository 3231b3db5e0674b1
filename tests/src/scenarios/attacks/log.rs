//! Event logs that were edited on their way.

use std::ops::Range;

use anyhow::{Context as _, Result, ensure};
use attest_wire::v1::EVIDENCE_PATH;

use super::liar::Liar;
use super::scene::When;
use crate::exchange::{Connection, result, say_hello};
use crate::sim::ATTEST;

const EV_NO_ACTION: u32 = 3;
/// Beyond any log, and beyond any body.
const HUGE: usize = 64 << 20;

pub fn attack_16_an_edited_event_log(liar: &mut Liar<'_, '_>) -> Result<()> {
    let honest = liar.node.event_log.clone();
    let events = events(&honest)?;
    let of_pcr = |pcr: u8| {
        let mut of = events.iter().filter(|e| honest[e.start] == pcr);
        let first = of.next().cloned();
        (first, of.next_back().cloned())
    };
    let (first, last) = match of_pcr(7) {
        (Some(first), Some(last)) => (first, last),
        _ => anyhow::bail!("fewer than two events in PCR 7"),
    };
    let image = of_pcr(4).1.context("fewer than two events in PCR 4")?;
    let digest = |event: &Range<usize>| event.start + 14..event.start + 46;

    let mut retyped = honest.clone();
    retyped[image.start + 4..image.start + 8].copy_from_slice(&EV_NO_ACTION.to_le_bytes());
    let mut dropped = honest.clone();
    dropped.drain(image.clone());
    let mut appended = honest.clone();
    appended.extend_from_slice(&honest[image.clone()]);
    let mut swapped = honest.clone();
    swapped[digest(&first)].copy_from_slice(&honest[digest(&last)]);
    swapped[digest(&last)].copy_from_slice(&honest[digest(&first)]);
    let mut changed = honest.clone();
    changed[image.start + 14] ^= 1;
    let truncated = honest[..honest.len() - 7].to_vec();
    for (lie, code, log) in [
        (
            "type changed to one that is not extended",
            "eventlog.replay",
            retyped,
        ),
        ("an event dropped", "eventlog.replay", dropped),
        ("an event appended", "eventlog.replay", appended),
        ("two digests swapped", "eventlog.replay", swapped),
        ("a digest changed", "eventlog.replay", changed),
        ("truncated within an event", "eventlog.malformed", truncated),
        ("0 bytes", "eventlog.empty", Vec::new()),
        ("the SHA-1 bank only", "eventlog.bank", sha1_only(&honest)?),
    ] {
        liar.evidence_refused(lie, code, |evidence, _, _, _| {
            evidence.event_log = log.into();
            Ok(())
        })?;
    }
    too_large(liar, &honest)
}

/// A log over its bound in evidence within its own, and evidence that says it has 64 MiB.
fn too_large(liar: &mut Liar<'_, '_>, honest: &[u8]) -> Result<()> {
    let mut connection = Connection::open(ATTEST)?;
    let (challenge, binding) = say_hello(&mut connection, &liar.hello)?
        .map_err(|refusal| anyhow::anyhow!("hello refused: {}", refusal.code))?;
    let mut evidence = liar.node.evidence(&liar.hello, &challenge, &binding)?;
    evidence.event_log.0.resize(256 * 1024 + 1, 0);
    let refusal = crate::exchange::send_evidence(&mut connection, &evidence)?;
    liar.scene
        .refused("257 KiB", "malformed.field", When::Unproven, &refusal)?;
    let mut connection = Connection::open(ATTEST)?;
    say_hello(&mut connection, &liar.hello)?
        .map_err(|refusal| anyhow::anyhow!("hello refused: {}", refusal.code))?;
    let (status, body) = connection.post_of_length(EVIDENCE_PATH, HUGE, honest)?;
    ensure!(status == 413, "64 MiB: status {status}");
    let refusal = result(status, &body)?;
    liar.scene
        .refused("64 MiB", "malformed.size", When::Unproven, &refusal)
}

/// Where each `TCG_PCR_EVENT2` of a log with one SHA-256 bank lies.
fn events(log: &[u8]) -> Result<Vec<Range<usize>>> {
    let size = |at: usize| -> Result<usize> {
        let bytes = log.get(at..at + 4).context("the log ends early")?;
        Ok(u32::from_le_bytes(bytes.try_into()?) as usize)
    };
    let mut at = 32 + size(28)?;
    let mut events = Vec::new();
    while at < log.len() {
        let end = at + 50 + size(at + 46)?;
        events.push(at..end);
        at = end;
    }
    Ok(events)
}

/// The same events with digests of 20 bytes, as firmware with a SHA-1 bank alone writes them.
fn sha1_only(log: &[u8]) -> Result<Vec<u8>> {
    let sha1 = 0x0004u16.to_le_bytes();
    let events = events(log)?;
    let start = events.first().context("no event")?.start;
    let mut out = log[..start].to_vec();
    // Behind signature, class, version and count: algorithm and size of the one digest.
    let bank = 32 + 16 + 4 + 4 + 4;
    out[bank..bank + 2].copy_from_slice(&sha1);
    out[bank + 2..bank + 4].copy_from_slice(&20u16.to_le_bytes());
    for event in events {
        let event = &log[event];
        out.extend_from_slice(&event[..12]);
        out.extend_from_slice(&sha1);
        out.extend_from_slice(&event[14..34]);
        out.extend_from_slice(&event[46..]);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event_log::{Boot, EventLog};

    #[test]
    fn the_events_of_a_log_are_found_and_written_for_another_bank() {
        let boot = Boot {
            secure_boot: true,
            db_cert: vec![0x30, 0],
            images: vec![[1; 32]],
            stub: Vec::new(),
            command_line: None,
        };
        let log = EventLog::of(&boot);
        let found = events(&log.bytes).unwrap();
        assert_eq!(found.len(), log.extends.len());
        for (event, (pcr, digest)) in found.iter().zip(&log.extends) {
            assert_eq!(log.bytes[event.start], *pcr);
            assert_eq!(log.bytes[event.start + 14..event.start + 46], digest[..]);
        }
        let other = sha1_only(&log.bytes).unwrap();
        let other = gateway_core::appraisal::eventlog::Log::parse(&other).unwrap();
        assert_eq!(other.events.len(), found.len());
        assert!(other.replay(attest_wire::tpm::HashAlg::Sha256).is_none());
    }
}

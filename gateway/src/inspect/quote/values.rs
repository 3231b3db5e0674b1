//! Register values in the files, put in the order of a quote's selection (TPM 2.0 Part 1 section 17).

use attest_wire::tpm::{HashAlg, PcrSelection};

use super::pieces::{Found, Values};

/// Registers of a selection; a `pcrSelect` has four octets at most.
const SELECTED_MAX: usize = 16 * 32;
/// Digests in one `TPML_DIGEST`, and the octets that each has room for.
const DIGESTS: usize = 8;
const DIGEST_ROOM: usize = 64;
/// Selections that a `TPML_PCR_SELECTION` has room for, and octets of each in memory.
const SELECTIONS: usize = 16;
const SELECTION_ROOM: usize = 8;

/// Values that cover a selection.
pub(super) struct Candidate {
    /// File and path in it.
    pub at: String,
    /// `TPM_ALG_ID` of the bank, register, value: in the order of the selection.
    pub values: Vec<(u16, u8, Vec<u8>)>,
}

/// Every set of values that covers the selection.
pub(super) fn candidates(select: &[PcrSelection], found: &Found) -> Vec<Candidate> {
    let wanted: Vec<(u16, u8)> = select
        .iter()
        .flat_map(|selection| {
            selection
                .pcrs()
                .into_iter()
                .map(|pcr| (selection.hash, pcr))
        })
        .take(SELECTED_MAX)
        .collect();
    if wanted.is_empty() {
        return Vec::new();
    }
    let listed = found.values.iter().filter_map(|values| {
        let picked = pick(&wanted, values)?;
        Some(candidate(&values.at, &wanted, picked))
    });
    let pieces = found.pieces.iter().filter_map(|piece| {
        let values = serialized(&piece.octets)
            .and_then(|values| in_order(&wanted, values))
            .or_else(|| concatenated(&wanted, &piece.octets))?;
        Some(candidate(&piece.at, &wanted, values))
    });
    listed.chain(pieces).collect()
}

fn candidate(at: &str, wanted: &[(u16, u8)], values: Vec<Vec<u8>>) -> Candidate {
    let values = wanted.iter().zip(values);
    Candidate {
        at: at.to_owned(),
        values: values
            .map(|(&(hash, pcr), value)| (hash, pcr, value))
            .collect(),
    }
}

fn fits(hash: u16, value: &[u8]) -> bool {
    HashAlg::from_id(hash).is_some_and(|alg| alg.size() == value.len())
}

/// By their numbers; by position where there is one for every register; else in order.
fn pick(wanted: &[(u16, u8)], values: &Values) -> Option<Vec<Vec<u8>>> {
    let values = &values.values;
    let numbered = values.iter().all(|(number, _)| number.is_some());
    if !numbered && values.len() == wanted.len() && values.len() < 24 {
        let bare = values.iter().map(|(_, value)| value.clone()).collect();
        return in_order(wanted, bare);
    }
    wanted
        .iter()
        .map(|&(hash, pcr)| {
            let at = |(index, (number, value)): (usize, &(Option<u32>, Vec<u8>))| {
                let number = number.unwrap_or(u32::try_from(index).ok()?);
                (number == u32::from(pcr) && fits(hash, value)).then(|| value.clone())
            };
            values.iter().enumerate().find_map(at)
        })
        .collect()
}

fn in_order(wanted: &[(u16, u8)], values: Vec<Vec<u8>>) -> Option<Vec<Vec<u8>>> {
    let whole = values.len() == wanted.len()
        && wanted
            .iter()
            .zip(&values)
            .all(|(&(hash, _), value)| fits(hash, value));
    whole.then_some(values)
}

/// The values one behind the other (`tpm2_quote --pcrs_format values`).
fn concatenated(wanted: &[(u16, u8)], octets: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut rest = octets;
    let mut values = Vec::new();
    for &(hash, _) in wanted {
        let (value, after) = rest.split_at_checked(HashAlg::from_id(hash)?.size())?;
        values.push(value.to_vec());
        rest = after;
    }
    rest.is_empty().then_some(values)
}

/// What tpm2-tools write: a `TPML_PCR_SELECTION` and several `TPML_DIGEST` as they stand in the memory of a
/// little-endian machine.
fn serialized(octets: &[u8]) -> Option<Vec<Vec<u8>>> {
    let le32 = |at: usize| {
        let four = octets.get(at..at.checked_add(4)?)?;
        Some(u32::from_le_bytes(four.try_into().ok()?) as usize)
    };
    let lists_at = 4 + SELECTIONS * SELECTION_ROOM;
    let (selections, lists) = (le32(0)?, le32(lists_at)?);
    let list_len = 4 + DIGESTS * (2 + DIGEST_ROOM);
    let begun = lists_at + 4;
    if selections > SELECTIONS || octets.len() != begun + lists.checked_mul(list_len)? {
        return None;
    }
    let mut values = Vec::new();
    for list in octets[begun..].chunks_exact(list_len) {
        let (count, digests) = list.split_first_chunk::<4>()?;
        let count = u32::from_le_bytes(*count) as usize;
        for digest in digests.chunks_exact(2 + DIGEST_ROOM).take(count) {
            let (size, value) = digest.split_first_chunk::<2>()?;
            values.push(
                value
                    .get(..usize::from(u16::from_le_bytes(*size)))?
                    .to_vec(),
            );
        }
    }
    Some(values)
}

//! `TPMS_ATTEST`: what an attestation key signs.

use crate::codec::{DecodeError, Reader, put_sized};

/// `TPM_GENERATED_VALUE`: only the TPM itself signs bytes that begin with it.
pub const TPM_GENERATED: u32 = 0xff54_4347;

const ST_ATTEST_CERTIFY: u16 = 0x8017;
const ST_ATTEST_QUOTE: u16 = 0x8018;
const ST_ATTEST_TIME: u16 = 0x8019;
const ST_ATTEST_CREATION: u16 = 0x801a;

/// Largest `TPM2B_NAME` or digest, bytes: nameAlg and SHA-512.
const NAME_MAX: usize = 66;
/// Largest `TPM2B_DATA`, bytes: a `TPMT_HA` of SHA-512.
const DATA_MAX: usize = 66;
/// Banks in one selection; TPMs have at most a handful.
const SELECTIONS_MAX: u32 = 16;

/// `TPMS_CLOCK_INFO`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockInfo {
    /// Milliseconds of powered time; may step back after an unclean stop.
    pub clock: u64,
    /// TPM Resets since TPM2_Clear.
    pub reset_count: u32,
    /// TPM Restarts since the last Reset.
    pub restart_count: u32,
    /// No value of `clock` greater than this was reported before.
    pub safe: bool,
}

impl ClockInfo {
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            clock: reader.u64("TPMS_CLOCK_INFO.clock")?,
            reset_count: reader.u32("TPMS_CLOCK_INFO.resetCount")?,
            restart_count: reader.u32("TPMS_CLOCK_INFO.restartCount")?,
            safe: match reader.u8("TPMS_CLOCK_INFO.safe")? {
                0 => false,
                1 => true,
                other => {
                    return Err(DecodeError::Value {
                        field: "TPMS_CLOCK_INFO.safe",
                        found: u64::from(other),
                    });
                }
            },
        })
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.clock.to_be_bytes());
        out.extend_from_slice(&self.reset_count.to_be_bytes());
        out.extend_from_slice(&self.restart_count.to_be_bytes());
        out.push(u8::from(self.safe));
    }
}

/// `TPMS_PCR_SELECTION`: PCRs of one bank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PcrSelection {
    /// `TPM_ALG_ID` of the bank, also one we cannot compute.
    pub hash: u16,
    /// Bitmap as sent; PCR n is bit n%8 of byte n/8.
    pub select: Vec<u8>,
}

impl PcrSelection {
    /// Selects the given PCRs (0 to 23) of a bank.
    pub fn of(hash: u16, pcrs: &[u8]) -> Self {
        let mut select = vec![0u8; 3];
        for &pcr in pcrs {
            if let Some(byte) = select.get_mut(usize::from(pcr / 8)) {
                *byte |= 1 << (pcr % 8);
            }
        }
        Self { hash, select }
    }

    /// PCR numbers, ascending.
    pub fn pcrs(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for (index, byte) in (0u8..).zip(&self.select) {
            out.extend(
                (0..8)
                    .filter(|bit| byte & (1 << bit) != 0)
                    .map(|bit| index * 8 + bit),
            );
        }
        out
    }
}

/// Reads a `TPML_PCR_SELECTION` that fills `bytes` exactly.
///
/// # Errors
/// [`DecodeError`] names the field.
pub fn pcr_selections(bytes: &[u8]) -> Result<Vec<PcrSelection>, DecodeError> {
    let mut reader = Reader::new(bytes);
    let out = read_selections(&mut reader)?;
    reader.finish("TPML_PCR_SELECTION")?;
    Ok(out)
}

fn read_selections(reader: &mut Reader<'_>) -> Result<Vec<PcrSelection>, DecodeError> {
    let count = reader.u32("TPML_PCR_SELECTION.count")?;
    if count > SELECTIONS_MAX {
        return Err(DecodeError::Value {
            field: "TPML_PCR_SELECTION.count",
            found: u64::from(count),
        });
    }
    (0..count)
        .map(|_| {
            let hash = reader.u16("TPMS_PCR_SELECTION.hash")?;
            let size = reader.u8("TPMS_PCR_SELECTION.sizeofSelect")?;
            if size > 4 {
                return Err(DecodeError::Value {
                    field: "TPMS_PCR_SELECTION.sizeofSelect",
                    found: u64::from(size),
                });
            }
            Ok(PcrSelection {
                hash,
                select: reader
                    .take("TPMS_PCR_SELECTION.pcrSelect", usize::from(size))?
                    .to_vec(),
            })
        })
        .collect()
}

/// Appends a `TPML_PCR_SELECTION` of one SHA-256 selection.
pub(crate) fn put_pcr_selection(out: &mut Vec<u8>, pcrs: &[u8]) {
    put_selections(out, &[PcrSelection::of(0x000b, pcrs)]);
}

fn put_selections(out: &mut Vec<u8>, selections: &[PcrSelection]) {
    let count = u32::try_from(selections.len()).expect("a selection list has few entries");
    out.extend_from_slice(&count.to_be_bytes());
    for selection in selections {
        out.extend_from_slice(&selection.hash.to_be_bytes());
        out.push(u8::try_from(selection.select.len()).expect("a selection has at most 4 bytes"));
        out.extend_from_slice(&selection.select);
    }
}

/// `TPMU_ATTEST`, by type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttestBody {
    /// `TPMS_CERTIFY_INFO` (TPM2_Certify).
    Certify {
        /// Name of the certified object.
        name: Vec<u8>,
        /// Its qualified name.
        qualified_name: Vec<u8>,
    },
    /// `TPMS_QUOTE_INFO` (TPM2_Quote).
    Quote {
        /// What was quoted.
        pcr_select: Vec<PcrSelection>,
        /// Digest over the values, banks in order, numbers ascending.
        pcr_digest: Vec<u8>,
    },
    /// `TPMS_TIME_ATTEST_INFO` (TPM2_GetTime).
    Time {
        /// Milliseconds since reset.
        time: u64,
        /// Clock.
        clock: ClockInfo,
        /// Firmware version.
        firmware_version: u64,
    },
    /// `TPMS_CREATION_INFO` (TPM2_CertifyCreation).
    Creation {
        /// Name of the object.
        object_name: Vec<u8>,
        /// Hash of its creation data.
        creation_hash: Vec<u8>,
    },
}

/// `TPMS_ATTEST`. Means something only under a verified signature of a restricted key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attest {
    /// Qualified name of the signing key.
    pub qualified_signer: Vec<u8>,
    /// `extraData`: the caller's `qualifyingData`.
    pub extra_data: Vec<u8>,
    /// Clock and counters of the TPM.
    pub clock: ClockInfo,
    /// Firmware version.
    pub firmware_version: u64,
    /// Type-specific part.
    pub body: AttestBody,
}

impl Attest {
    /// Decodes a whole `TPMS_ATTEST`.
    ///
    /// # Errors
    /// [`DecodeError`] names the field; a wrong magic is `TPMS_ATTEST.magic`.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let attest = Self::read(&mut reader)?;
        reader.finish("TPMS_ATTEST")?;
        Ok(attest)
    }

    /// Decodes a `TPMS_ATTEST` that other bytes may follow: the structure and how many bytes it has.
    ///
    /// # Errors
    /// As [`Attest::decode`].
    pub fn decode_prefix(bytes: &[u8]) -> Result<(Self, usize), DecodeError> {
        let mut reader = Reader::new(bytes);
        let attest = Self::read(&mut reader)?;
        Ok((attest, bytes.len() - reader.left()))
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let magic = reader.u32("TPMS_ATTEST.magic")?;
        if magic != TPM_GENERATED {
            return Err(DecodeError::Value {
                field: "TPMS_ATTEST.magic",
                found: u64::from(magic),
            });
        }
        let kind = reader.u16("TPMS_ATTEST.type")?;
        let qualified_signer = reader
            .sized("TPMS_ATTEST.qualifiedSigner", NAME_MAX)?
            .to_vec();
        let extra_data = reader.sized("TPMS_ATTEST.extraData", DATA_MAX)?.to_vec();
        let clock = ClockInfo::read(reader)?;
        let firmware_version = reader.u64("TPMS_ATTEST.firmwareVersion")?;
        let body = match kind {
            ST_ATTEST_CERTIFY => AttestBody::Certify {
                name: reader.sized("TPMS_CERTIFY_INFO.name", NAME_MAX)?.to_vec(),
                qualified_name: reader
                    .sized("TPMS_CERTIFY_INFO.qualifiedName", NAME_MAX)?
                    .to_vec(),
            },
            ST_ATTEST_QUOTE => AttestBody::Quote {
                pcr_select: read_selections(reader)?,
                pcr_digest: reader
                    .sized("TPMS_QUOTE_INFO.pcrDigest", NAME_MAX)?
                    .to_vec(),
            },
            ST_ATTEST_TIME => AttestBody::Time {
                time: reader.u64("TPMS_TIME_INFO.time")?,
                clock: ClockInfo::read(reader)?,
                firmware_version: reader.u64("TPMS_TIME_ATTEST_INFO.firmwareVersion")?,
            },
            ST_ATTEST_CREATION => AttestBody::Creation {
                object_name: reader
                    .sized("TPMS_CREATION_INFO.objectName", NAME_MAX)?
                    .to_vec(),
                creation_hash: reader
                    .sized("TPMS_CREATION_INFO.creationHash", NAME_MAX)?
                    .to_vec(),
            },
            other => {
                return Err(DecodeError::Value {
                    field: "TPMS_ATTEST.type",
                    found: u64::from(other),
                });
            }
        };
        Ok(Self {
            qualified_signer,
            extra_data,
            clock,
            firmware_version,
            body,
        })
    }

    /// Encodes, magic first.
    pub fn encode(&self) -> Vec<u8> {
        let kind = match self.body {
            AttestBody::Certify { .. } => ST_ATTEST_CERTIFY,
            AttestBody::Quote { .. } => ST_ATTEST_QUOTE,
            AttestBody::Time { .. } => ST_ATTEST_TIME,
            AttestBody::Creation { .. } => ST_ATTEST_CREATION,
        };
        let mut out = TPM_GENERATED.to_be_bytes().to_vec();
        out.extend_from_slice(&kind.to_be_bytes());
        put_sized(&mut out, &self.qualified_signer);
        put_sized(&mut out, &self.extra_data);
        self.clock.encode(&mut out);
        out.extend_from_slice(&self.firmware_version.to_be_bytes());
        match &self.body {
            AttestBody::Certify {
                name: first,
                qualified_name: second,
            }
            | AttestBody::Creation {
                object_name: first,
                creation_hash: second,
            } => {
                put_sized(&mut out, first);
                put_sized(&mut out, second);
            }
            AttestBody::Quote {
                pcr_select,
                pcr_digest,
            } => {
                put_selections(&mut out, pcr_select);
                put_sized(&mut out, pcr_digest);
            }
            AttestBody::Time {
                time,
                clock,
                firmware_version,
            } => {
                out.extend_from_slice(&time.to_be_bytes());
                clock.encode(&mut out);
                out.extend_from_slice(&firmware_version.to_be_bytes());
            }
        }
        out
    }
}

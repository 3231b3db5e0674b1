//! Big-endian reading and writing of TPM 2.0 structures, with bounds.
//!
//! Knows lengths and numbers, nothing of what they mean.

/// A TPM structure could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The bytes end inside a field.
    #[error("{field}: expected {needed} more bytes, found {left}")]
    Truncated {
        /// Field by its name in TPM 2.0 Part 2.
        field: &'static str,
        /// Bytes the field needs.
        needed: usize,
        /// Bytes that are left.
        left: usize,
    },
    /// Bytes follow the end of the structure.
    #[error("{field}: {count} bytes follow its end")]
    Trailing {
        /// The structure.
        field: &'static str,
        /// How many bytes are left over.
        count: usize,
    },
    /// A sized buffer is longer than its type allows.
    #[error("{field}: expected at most {max} bytes, found {found}")]
    TooLong {
        /// The field.
        field: &'static str,
        /// Largest size, bytes.
        max: usize,
        /// Size found, bytes.
        found: usize,
    },
    /// A value that the structure does not allow or that we do not know.
    #[error("{field}: value {found:#x} is not supported")]
    Value {
        /// The field.
        field: &'static str,
        /// What was read.
        found: u64,
    },
}

/// Reads from the front of a slice.
#[derive(Clone)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) fn take(
        &mut self,
        field: &'static str,
        count: usize,
    ) -> Result<&'a [u8], DecodeError> {
        let Some((head, rest)) = self.rest.split_at_checked(count) else {
            return Err(DecodeError::Truncated {
                field,
                needed: count,
                left: self.rest.len(),
            });
        };
        self.rest = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], DecodeError> {
        let mut out = [0u8; N];
        out.copy_from_slice(self.take(field, N)?);
        Ok(out)
    }

    pub(crate) fn u8(&mut self, field: &'static str) -> Result<u8, DecodeError> {
        Ok(self.array::<1>(field)?[0])
    }

    pub(crate) fn u16(&mut self, field: &'static str) -> Result<u16, DecodeError> {
        self.array(field).map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self, field: &'static str) -> Result<u32, DecodeError> {
        self.array(field).map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self, field: &'static str) -> Result<u64, DecodeError> {
        self.array(field).map(u64::from_be_bytes)
    }

    /// A `TPM2B_*`: UINT16 size and that many bytes.
    pub(crate) fn sized(
        &mut self,
        field: &'static str,
        max: usize,
    ) -> Result<&'a [u8], DecodeError> {
        let found = usize::from(self.u16(field)?);
        if found > max {
            return Err(DecodeError::TooLong { field, max, found });
        }
        self.take(field, found)
    }

    pub(crate) fn left(&self) -> usize {
        self.rest.len()
    }

    pub(crate) fn finish(self, field: &'static str) -> Result<(), DecodeError> {
        match self.rest.len() {
            0 => Ok(()),
            count => Err(DecodeError::Trailing { field, count }),
        }
    }
}

/// Appends a `TPM2B_*`. Callers keep buffers below 64 KiB: every decoder here bounds them.
pub(crate) fn put_sized(out: &mut Vec<u8>, bytes: &[u8]) {
    let size = u16::try_from(bytes.len()).expect("TPM buffers are shorter than 64 KiB");
    out.extend_from_slice(&size.to_be_bytes());
    out.extend_from_slice(bytes);
}

/// The inside of one `TPM2B_*` that fills `bytes` exactly.
///
/// # Errors
/// [`DecodeError`] when the size field and the bytes do not agree.
pub fn strip_tpm2b<'a>(field: &'static str, bytes: &'a [u8]) -> Result<&'a [u8], DecodeError> {
    let mut reader = Reader::new(bytes);
    let inside = reader.sized(field, usize::from(u16::MAX))?;
    reader.finish(field)?;
    Ok(inside)
}

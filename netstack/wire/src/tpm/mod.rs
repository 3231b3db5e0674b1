//! TPM 2.0 structures that node and gateway exchange: decode and encode, byte for byte.
//!
//! Decoding is strict: no trailing bytes, bounded sizes, only the algorithms below. A decoded
//! value is still untrusted; what it must contain is decided by the templates and the appraisal.
//! Structure names are those of TPM 2.0 Library Part 2, revision 1.59.

mod alg;
mod attest;
mod public;
mod signature;

pub use crate::codec::{DecodeError, strip_tpm2b};
pub use alg::HashAlg;
pub(crate) use attest::put_pcr_selection;
pub use attest::{Attest, AttestBody, ClockInfo, PcrSelection, TPM_GENERATED, pcr_selections};
pub use public::{
    Curve, Name, Public, PublicKind, Scheme, SymDef, attributes, qualified_name,
    qualified_name_of_primary,
};
pub use signature::Signature;

/// `TPM_RH_OWNER`.
pub const RH_OWNER: u32 = 0x4000_0001;
/// `TPM_RH_ENDORSEMENT`.
pub const RH_ENDORSEMENT: u32 = 0x4000_000b;

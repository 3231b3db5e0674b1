//! Oddities of real firmware and TPMs that are tolerated, each with an id for logs and reports.
//!
//! A quirk never changes a decision on its own: what is tolerated here is nothing that a decision
//! rests on. New ones get an id, a cause and a test vector.

/// A tolerated oddity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Quirk {
    /// TCG header before or padding behind a certificate in NV.
    EkCertPadded,
    /// EK key type id-RSAES-OAEP instead of rsaEncryption.
    EkCertOaepOid,
    /// Serial number is no minimal INTEGER.
    EkCertSerialNotMinimal,
    /// A signature of the chain uses SHA-1.
    EkChainSha1,
    /// StartupLocality 3 or 4: PCR 0 does not begin at zero.
    StartupLocality,
    /// Padding behind the last event of the log.
    LogPadded,
    /// A variable event has one stray byte more than was hashed.
    VariablePadded,
    /// An authority's digest covers the variable's content only.
    AuthorityContentHashed,
}

impl Quirk {
    /// Stable id.
    pub const fn id(self) -> &'static str {
        match self {
            Self::EkCertPadded => "Q01-ek-cert-padded",
            Self::EkCertOaepOid => "Q02-ek-cert-oaep-oid",
            Self::EkCertSerialNotMinimal => "Q03-ek-cert-serial",
            Self::EkChainSha1 => "Q04-ek-chain-sha1",
            Self::StartupLocality => "Q05-startup-locality",
            Self::LogPadded => "Q06-log-padded",
            Self::VariablePadded => "Q07-variable-padded",
            Self::AuthorityContentHashed => "Q08-authority-content-hashed",
        }
    }

    /// Where it was met.
    pub const fn seen(self) -> &'static str {
        match self {
            Self::EkCertPadded => "Nuvoton NPCT6xx, Infineon SLB9635: NV index larger than the DER",
            Self::EkCertOaepOid => "STMicro ST33, Infineon SLB9635",
            Self::EkCertSerialNotMinimal => "Nuvoton: serial with leading zeros",
            Self::EkChainSha1 => "vendor chains before 2016",
            Self::StartupLocality => "Intel TXT and servers with an H-CRTM",
            Self::LogPadded => "confidential computing event logs, some vendors' tables",
            Self::VariablePadded => "shim before 15.4: \"Shim\" authority in PCR 7",
            Self::AuthorityContentHashed => "UEFI firmware before 2018",
        }
    }
}

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
    /// Serial number is negative.
    EkCertSerialNegative,
    /// Serial number is zero or longer than 20 octets.
    EkCertSerialRange,
    /// The SET of an RDN with several attributes is not sorted.
    EkCertNameUnsorted,
    /// A string of a name has octets that its type does not have.
    EkCertNameOctets,
    /// A name uses TeletexString.
    EkCertNameTeletex,
    /// A time is not in the form of RFC 5280.
    EkCertTimeForm,
    /// rsaEncryption without its NULL.
    EkCertRsaNullMissing,
    /// A length is longer than it had to be.
    EkCertBerLength,
    /// TPM attributes stand in the subject instead of the subject alternative name.
    EkCertTpmInSubject,
    /// Extensions in a certificate that is not of version 3.
    EkCertVersion,
    /// An extension that decides nothing could not be read.
    EkCertExtensionForm,
    /// Empty subject: legal, and a stumbling block for other readers.
    EkCertSubjectEmpty,
    /// Critical subject alternative name: legal, and a stumbling block for other readers.
    EkCertSanCritical,
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
            Self::EkCertSerialNegative => "Q09-ek-cert-serial-negative",
            Self::EkCertSerialRange => "Q10-ek-cert-serial-range",
            Self::EkCertNameUnsorted => "Q11-ek-cert-name-unsorted",
            Self::EkCertNameOctets => "Q12-ek-cert-name-octets",
            Self::EkCertNameTeletex => "Q13-ek-cert-name-teletex",
            Self::EkCertTimeForm => "Q14-ek-cert-time-form",
            Self::EkCertRsaNullMissing => "Q15-ek-cert-rsa-null-missing",
            Self::EkCertBerLength => "Q16-ek-cert-ber-length",
            Self::EkCertTpmInSubject => "Q17-ek-cert-tpm-in-subject",
            Self::EkCertVersion => "Q18-ek-cert-version",
            Self::EkCertExtensionForm => "Q19-ek-cert-extension-form",
            Self::EkCertSubjectEmpty => "Q20-ek-cert-subject-empty",
            Self::EkCertSanCritical => "Q21-ek-cert-san-critical",
            Self::StartupLocality => "Q05-startup-locality",
            Self::LogPadded => "Q06-log-padded",
            Self::VariablePadded => "Q07-variable-padded",
            Self::AuthorityContentHashed => "Q08-authority-content-hashed",
        }
    }

    /// Whether it breaks a rule. The others are legal and noted only where somebody looks at one
    /// certificate.
    pub const fn deviates(self) -> bool {
        !matches!(self, Self::EkCertSubjectEmpty | Self::EkCertSanCritical)
    }

    /// Where it was met.
    pub const fn seen(self) -> &'static str {
        match self {
            Self::EkCertPadded => "Nuvoton NPCT6xx, Infineon SLB9635: NV index larger than the DER",
            Self::EkCertOaepOid => "STMicro ST33, Infineon SLB9635",
            Self::EkCertSerialNotMinimal => "Nuvoton: serial with leading zeros",
            Self::EkChainSha1 => "vendor chains before 2016",
            Self::EkCertSerialNegative => "serials made of random octets, EC-ACC",
            Self::EkCertSerialRange => "self-made CAs",
            Self::EkCertNameUnsorted => "Nuvoton: issuer and root with CN, O, C in one RDN",
            Self::EkCertNameOctets => "underscores and at signs in PrintableString",
            Self::EkCertNameTeletex => "older CA software",
            Self::EkCertTimeForm => "GeneralizedTime before 2050, no seconds, an offset",
            Self::EkCertRsaNullMissing => "hand-made encoders",
            Self::EkCertBerLength => "lengths of fixed size",
            Self::EkCertTpmInSubject => "TPM 1.2 era generators",
            Self::EkCertVersion => "self-made CAs",
            Self::EkCertExtensionForm => "octets behind an extension's value",
            Self::EkCertSubjectEmpty => "STMicro, Infineon, Nuvoton: the TPM is named in the SAN",
            Self::EkCertSanCritical => "wherever the subject is empty (RFC 5280 section 4.2.1.6)",
            Self::StartupLocality => "Intel TXT and servers with an H-CRTM",
            Self::LogPadded => "confidential computing event logs, some vendors' tables",
            Self::VariablePadded => "shim before 15.4: \"Shim\" authority in PCR 7",
            Self::AuthorityContentHashed => "UEFI firmware before 2018",
        }
    }
}

//! Object identifiers that the gateway's certificates use, and which of them are ours.
//!
//! Decides only how an OID is written. Who may hold a certificate with one of them is the issuer's
//! business (`gateway_core::issuer`); what it permits is the verifier's.
//!
//! Our own arc hangs under `2.25` (Recommendation ITU-T X.667 section 7: one UUID as the next arc,
//! no registration needed). The UUID is `8f118131-0c44-4214-9fdc-75c088310ad8`, drawn at random
//! once. Its arc has 128 bits, more than many decoders keep in an integer, so compare the encoded
//! bytes and never the numbers, and keep these OIDs out of certificates that third parties read:
//! admin roles therefore are `organizationalUnitName` values and not key purposes.

/// An object identifier in both of its spellings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Oid {
    /// Dotted decimal, for people.
    pub dotted: &'static str,
    /// Contents octets of the DER `OBJECT IDENTIFIER` (X.690 section 8.19), without tag and length.
    pub der: &'static [u8],
}

/// Our arc, `2.25.<UUID>`, followed by the given arcs below 128.
macro_rules! ours {
    ($dotted:literal, $($arc:literal),+) => {
        Oid {
            dotted: concat!("2.25.190170492760653235289598557232793979608.", $dotted),
            der: &[
                0x69, 0x82, 0x9e, 0x91, 0xc0, 0xcc, 0xa1, 0xc4, 0xa2, 0x88, 0xa9, 0x9f, 0xee, 0x9d,
                0xb8, 0x88, 0xc1, 0xc4, 0x95, 0x58, $($arc),+
            ],
        }
    };
}

/// Key purpose of the attest endpoint's TLS certificate: the only one an attester talks to.
pub const EKU_ATTEST: Oid = ours!("1.1", 1, 1);
/// Key purpose of the key that signs ledger heads and receipts.
pub const EKU_RECEIPT: Oid = ours!("1.2", 1, 2);
/// Key purpose of the key that signs grants.
pub const EKU_GRANT: Oid = ours!("1.3", 1, 3);

/// `id-kp-serverAuth`, RFC 5280 section 4.2.1.12.
pub const EKU_SERVER_AUTH: Oid = Oid {
    dotted: "1.3.6.1.5.5.7.3.1",
    der: &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, 0x01],
};
/// `id-kp-clientAuth`, RFC 5280 section 4.2.1.12.
pub const EKU_CLIENT_AUTH: Oid = Oid {
    dotted: "1.3.6.1.5.5.7.3.2",
    der: &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, 0x02],
};
/// `tcg-cap-verifiedTPMFixed`: the key was shown to be fixedTPM (TCG OID registry).
pub const EKU_VERIFIED_TPM_FIXED: Oid = Oid {
    dotted: "2.23.133.11.1.2",
    der: &[0x67, 0x81, 0x05, 0x0b, 0x01, 0x02],
};
/// `id-on-permanentIdentifier`, RFC 4043 section 2.
pub const PERMANENT_IDENTIFIER: Oid = Oid {
    dotted: "1.3.6.1.5.5.7.8.3",
    der: &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x08, 0x03],
};
/// `id-on-hardwareModuleName`, RFC 4108 section 5.
pub const HARDWARE_MODULE_NAME: Oid = Oid {
    dotted: "1.3.6.1.5.5.7.8.4",
    der: &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x08, 0x04],
};
/// `tcg-sv-tpm20`, the `hwType` of a TPM 2.0 (TCG OID registry).
pub const HW_TYPE_TPM20: Oid = Oid {
    dotted: "2.23.133.1.2",
    der: &[0x67, 0x81, 0x05, 0x01, 0x02],
};
/// `id-ce-subjectAltName`, RFC 5280 section 4.2.1.6.
pub const SUBJECT_ALT_NAME: Oid = Oid {
    dotted: "2.5.29.17",
    der: &[0x55, 0x1d, 0x11],
};
/// `id-ce-extKeyUsage`, RFC 5280 section 4.2.1.12.
pub const EXTENDED_KEY_USAGE: Oid = Oid {
    dotted: "2.5.29.37",
    der: &[0x55, 0x1d, 0x25],
};

/// `organizationalUnitName` of an admin client certificate that may look.
pub const ADMIN_ROLE_VIEWER: &str = "viewer";
/// `organizationalUnitName` of an admin client certificate that may also approve and withdraw.
pub const ADMIN_ROLE_OPERATOR: &str = "operator";
/// `organizationalUnitName` of an admin client certificate that may also change trust.
pub const ADMIN_ROLE_OWNER: &str = "owner";

#[cfg(test)]
mod tests {
    use super::*;

    fn encode(dotted: &str) -> Vec<u8> {
        let arcs: Vec<u128> = dotted.split('.').map(|a| a.parse().unwrap()).collect();
        let mut out = Vec::new();
        let head = [arcs[0] * 40 + arcs[1]];
        for arc in head.iter().chain(&arcs[2..]) {
            let groups = (128 - arc.leading_zeros()).div_ceil(7).max(1);
            for group in (0..groups).rev() {
                let more = if group > 0 { 0x80 } else { 0 };
                out.push(((arc >> (7 * group)) & 0x7f) as u8 | more);
            }
        }
        out
    }

    #[test]
    fn both_spellings_name_the_same_oid() {
        for oid in [
            EKU_ATTEST,
            EKU_RECEIPT,
            EKU_GRANT,
            EKU_SERVER_AUTH,
            EKU_CLIENT_AUTH,
            EKU_VERIFIED_TPM_FIXED,
            PERMANENT_IDENTIFIER,
            HARDWARE_MODULE_NAME,
            HW_TYPE_TPM20,
            SUBJECT_ALT_NAME,
            EXTENDED_KEY_USAGE,
        ] {
            assert_eq!(encode(oid.dotted), oid.der, "{}", oid.dotted);
        }
    }
}

//! The appraisal as a table: row, check, what is judged, stable codes (docs/PROTOCOL.md section 3).
//!
//! Codes are part of the interface: they appear in the ledger, the API, metrics and consoles, and
//! are never renamed.

/// One row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Check {
    /// Row 1.
    Message,
    /// Row 2.
    EkTemplate,
    /// Row 3.
    EkBinding,
    /// Row 4.
    EkCert,
    /// Row 5.
    Ak,
    /// Row 6.
    DevId,
    /// Row 7.
    Activation,
    /// Row 8.
    DevIdCertify,
    /// Row 9.
    Quote,
    /// Row 10.
    EventLog,
    /// Row 11.
    Boot,
    /// Row 12.
    Platform,
    /// Row 13.
    Port,
    /// Row 14.
    Freshness,
}

/// A row for readers: the verifier, the documentation test and the page show the same words.
#[derive(Debug)]
pub struct Row {
    /// Number in PROTOCOL section 3.
    pub number: u8,
    /// The check.
    pub check: Check,
    /// What is judged.
    pub judged: &'static str,
    /// Every code the row can give.
    pub codes: &'static [&'static str],
}

/// Rows 1 to 14, in the order they are judged.
pub const TABLE: [Row; 14] = [
    Row {
        number: 1,
        check: Check::Message,
        judged: "sizes, counts, encodings; unknown and duplicate fields",
        codes: &[
            "malformed.size",
            "malformed.json",
            "malformed.version",
            "malformed.count",
            "malformed.field",
            "malformed.public",
            "channel.mismatch",
        ],
    },
    Row {
        number: 2,
        check: Check::EkTemplate,
        judged: "each EK public equals a TCG template; no EK twice",
        codes: &["ek.template"],
    },
    Row {
        number: 3,
        check: Check::EkBinding,
        judged: "EKs bound to one machine that may attest now, of a class of the policy, or an open enrolment",
        codes: &[
            "ek.unknown",
            "ek.ambiguous",
            "machine.state",
            "machine.class",
        ],
    },
    Row {
        number: 4,
        check: Check::EkCert,
        judged: "EK certificate: key, chain to a known root, validity, usage",
        codes: &[
            "ek.cert.missing",
            "ek.cert.encoding",
            "ek.cert.key",
            "ek.cert.eku",
            "ek.cert.usage",
            "ek.cert.extension",
            "ek.cert.chain",
            "ek.cert.ca",
            "ek.cert.signature",
            "ek.cert.expired",
            "ek.cert.not_yet_valid",
            "ek.cert.revoked",
            "ek.crl.missing",
            "ek.crl.stale",
            "ek.crl.signature",
            "ek.crl.delta",
        ],
    },
    Row {
        number: 5,
        check: Check::Ak,
        judged: "AK public equals our template; Name computed by us",
        codes: &["ak.template", "ak.name"],
    },
    Row {
        number: 6,
        check: Check::DevId,
        judged: "DevID and SRK publics equal their templates; qualified name",
        codes: &["devid.template", "devid.parent", "devid.kind", "devid.auth"],
    },
    Row {
        number: 7,
        check: Check::Activation,
        judged: "every challenged EK gave its secret back, bound to this session",
        codes: &["ak.activation"],
    },
    Row {
        number: 8,
        check: Check::DevIdCertify,
        judged: "the AK certified exactly this DevID under that SRK",
        codes: &["devid.certify", "devid.parent"],
    },
    Row {
        number: 9,
        check: Check::Quote,
        judged: "signature, signer, qualifyingData, selection, bank, digest of the values",
        codes: &[
            "quote.malformed",
            "quote.magic",
            "quote.type",
            "quote.signature",
            "quote.signer",
            "quote.nonce",
            "quote.bank",
            "quote.selection",
            "quote.digest",
        ],
    },
    Row {
        number: 10,
        check: Check::EventLog,
        judged: "the event log replays to the quoted PCRs; PCR 15 is this session's",
        codes: &[
            "eventlog.empty",
            "eventlog.malformed",
            "eventlog.bank",
            "eventlog.replay",
            "eventlog.pcr15",
        ],
    },
    Row {
        number: 11,
        check: Check::Boot,
        judged: "Secure Boot on, dbx, no debug, separators, every image catalogued, allowed and current",
        codes: &[
            "boot.secure_boot",
            "boot.variable",
            "boot.authority",
            "boot.dbx",
            "boot.debug",
            "boot.dma",
            "boot.separator",
            "boot.image",
            "boot.uki",
            "boot.floor",
            "boot.withdrawn",
            "boot.entry",
            "boot.role",
            "boot.option_rom",
            "boot.pcr11",
            "boot.cmdline",
            "boot.pcr13",
        ],
    },
    Row {
        number: 12,
        check: Check::Platform,
        judged: "serial equals the binding's; declared disk present exactly once",
        codes: &[
            "platform.serial",
            "platform.mac",
            "disk.missing",
            "disk.ambiguous",
        ],
    },
    Row {
        number: 13,
        check: Check::Port,
        judged: "LLDP neighbour is the declared port, frame fresh, option 82 agrees; unauthenticated",
        codes: &[
            "port.unseen",
            "port.stale",
            "port.mismatch",
            "port.ambiguous",
            "port.not_switch",
            "port.option82",
        ],
    },
    Row {
        number: 14,
        check: Check::Freshness,
        judged: "TPM counters never fall, and one boot keeps its marks in PCR 15",
        codes: &["freshness.cleared", "freshness.restart", "freshness.clone"],
    },
];

impl Check {
    /// Its row.
    pub fn row(self) -> &'static Row {
        TABLE
            .iter()
            .find(|row| row.check == self)
            .expect("every check has its row")
    }

    /// Name for logs and the API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Message => "message",
            Self::EkTemplate => "ek_template",
            Self::EkBinding => "ek_binding",
            Self::EkCert => "ek_cert",
            Self::Ak => "ak",
            Self::DevId => "devid",
            Self::Activation => "activation",
            Self::DevIdCertify => "devid_certify",
            Self::Quote => "quote",
            Self::EventLog => "event_log",
            Self::Boot => "boot",
            Self::Platform => "platform",
            Self::Port => "port",
            Self::Freshness => "freshness",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every code is in the row of docs/PROTOCOL.md, in full or as `.detail` after its area.
    #[test]
    fn the_documentation_lists_every_code() {
        let text = include_str!("../../../../docs/PROTOCOL.md");
        for row in &TABLE {
            let head = format!("| {} | ", row.number);
            let line = text.lines().find(|line| line.starts_with(&head));
            let line = line.unwrap_or_else(|| panic!("row {} is missing", row.number));
            for code in row.codes {
                let detail = code.rsplit('.').next().unwrap_or(code);
                let listed =
                    line.contains(&format!("`{code}`")) || line.contains(&format!("`.{detail}`"));
                assert!(listed, "row {} does not list {code}", row.number);
            }
        }
    }
}

//! The walk of one machine as a table. The same step names are used in the driver, the tests, the
//! tracing spans, the lease journal and the ledger.

use serde::{Deserialize, Serialize};

/// One step of the walk, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// DHCPDISCOVER arrived.
    Discover,
    /// A lease was acknowledged.
    Lease,
    /// A boot artefact was asked for.
    Boot,
    /// The attester said hello.
    Hello,
    /// A challenge was sent.
    Challenge,
    /// Evidence arrived.
    Evidence,
    /// The evidence was judged.
    Appraise,
    /// An LDevID was issued.
    Issue,
    /// A disk is written under a grant.
    Install,
}

impl Step {
    /// Name in journal, ledger, log and documents.
    pub const fn name(self) -> &'static str {
        match self {
            Step::Discover => "discover",
            Step::Lease => "lease",
            Step::Boot => "boot",
            Step::Hello => "hello",
            Step::Challenge => "challenge",
            Step::Evidence => "evidence",
            Step::Appraise => "appraise",
            Step::Issue => "issue",
            Step::Install => "install",
        }
    }
}

/// One row of the walk.
pub struct Row {
    /// The step.
    pub step: Step,
    /// What arrives.
    pub input: &'static str,
    /// Which module decides.
    pub decided_by: &'static str,
    /// Where it is written down, before its effect is visible. Only an OFFER leaves before its mark:
    /// it binds nobody.
    pub record: &'static str,
}

/// The walk, in order.
pub const WALK: &[Row] = &[
    Row {
        step: Step::Discover,
        input: "DHCPDISCOVER",
        decided_by: "netstack::dhcp",
        record: "journal: mark",
    },
    Row {
        step: Step::Lease,
        input: "DHCPREQUEST",
        decided_by: "netstack::dhcp",
        record: "journal: lease, mark",
    },
    Row {
        step: Step::Boot,
        input: "TFTP RRQ or HTTP GET",
        decided_by: "gateway_core::bootfile, boot::plan",
        record: "journal: mark",
    },
    Row {
        step: Step::Hello,
        input: "POST /v1/hello",
        decided_by: "gateway_core::appraisal rows 1-6",
        record: "journal: mark",
    },
    Row {
        step: Step::Challenge,
        input: "hello passed",
        decided_by: "gateway_core::admission",
        record: "journal: mark",
    },
    Row {
        step: Step::Evidence,
        input: "POST /v1/evidence",
        decided_by: "gateway_core::admission",
        record: "journal: mark",
    },
    Row {
        step: Step::Appraise,
        input: "evidence",
        decided_by: "gateway_core::appraisal rows 7-14",
        record: "ledger: verdict or claim",
    },
    Row {
        step: Step::Issue,
        input: "Verified<Admission>",
        decided_by: "gateway_core::issuer",
        record: "ledger: certificate",
    },
    Row {
        step: Step::Install,
        input: "a run, POST /v1/progress",
        decided_by: "gateway_core::install",
        record: "ledger: run, grant, progress, run_end",
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_written_down_by_its_name() {
        for row in WALK {
            let written = serde_json::to_value(row.step).expect("a step encodes");
            assert_eq!(written, row.step.name());
        }
    }
}

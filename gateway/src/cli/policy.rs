//! `vestibule policy`: what the policy lets pass that the strictest would not.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use gateway_core::reason::Reason;
use gateway_core::record::{Act, EkCause, EkCertificates, Record};
use gateway_core::view::LedgerView;
use serde::Serialize;

use super::client::Client;
use super::machine::plain;
use super::{Desk, Exit, Failure, Output};
use crate::admin::types::LedgerPage;

/// Entries asked for at once, the most that the API gives: each page costs the appliance a segment.
const PAGE: usize = 1000;
/// What is said of an EK certificate whose chain is not found.
const EK_CHAIN_CODES: [&str; 4] = [
    "ek.cert.chain",
    "ek.cert.signature",
    "ek.cert.ca",
    "ek_ca.removed",
];

/// `vestibule policy what-if`
pub(super) fn what_if(out: &Output, desk: &Desk) -> Result<Exit, Failure> {
    let client = Client::open(desk)?;
    let mut evidence = Evidence::default();
    let mut from = 0;
    loop {
        let page: LedgerPage = client.get(&format!("/v1/ledger?from={from}&max={PAGE}"))?;
        for entry in &page.entries {
            evidence.saw(entry);
        }
        if page.next == from || page.entries.is_empty() {
            break;
        }
        from = page.next;
    }
    let report = evidence.report();
    out.print(&report, || report.text());
    Ok(Exit::Done)
}

/// The last that is on record of each machine.
#[derive(Default)]
struct Evidence {
    machines: BTreeMap<String, Last>,
    /// Machines whose access ended: a verdict that came later is nobody's question.
    left: BTreeSet<String>,
}

struct Last {
    seq: u64,
    /// `admitted`, `refused` or `claim`.
    verdict: &'static str,
    reasons: Vec<Reason>,
}

impl Evidence {
    fn saw(&mut self, entry: &LedgerView) {
        let (machine, verdict, reasons) = match &entry.record {
            Record::Verdict(verdict) => {
                let Some(machine) = &verdict.machine else {
                    return;
                };
                if self.left.contains(&machine.0) {
                    return;
                }
                let word = if verdict.admitted {
                    "admitted"
                } else {
                    "refused"
                };
                (machine, word, &verdict.reasons)
            }
            Record::Claim(claim) => {
                self.left.remove(&claim.machine.0);
                (&claim.machine, "claim", &claim.would_refuse)
            }
            Record::Operator(act) => {
                match &act.act {
                    Act::Withdraw { machine, .. } | Act::Retire { machine } => {
                        self.machines.remove(&machine.0);
                        self.left.insert(machine.0.clone());
                    }
                    Act::Approve { machine, .. } => {
                        self.left.remove(&machine.0);
                    }
                    _ => {}
                }
                return;
            }
            Record::Genesis(_)
            | Record::RefusalSummary(_)
            | Record::Talos(_)
            | Record::Certificate(_)
            | Record::Anchor(_)
            | Record::Gate(_)
            | Record::Policy(_)
            | Record::Pruned(_)
            | Record::Bridge(_)
            | Record::Delivery(_)
            | Record::Run(_)
            | Record::Grant(_)
            | Record::Progress(_)
            | Record::RunEnd(_) => return,
            Record::EkCertificates(record) => {
                self.judged_again(record);
                return;
            }
        };
        let last = Last {
            seq: entry.seq,
            verdict,
            reasons: reasons.clone(),
        };
        self.machines.insert(machine.0.clone(), last);
    }

    /// A chain that was found later takes back what was said of a missing issuer.
    fn judged_again(&mut self, record: &EkCertificates) {
        let chained = record.certs.iter().all(|cert| !cert.path.is_empty());
        if record.cause != EkCause::CaArrived || !chained {
            return;
        }
        if let Some(last) = self.machines.get_mut(&record.machine.0) {
            last.reasons
                .retain(|reason| !EK_CHAIN_CODES.contains(&reason.code.as_ref()));
        }
    }

    fn report(&self) -> Report<'_> {
        let mut codes = BTreeMap::<&str, usize>::new();
        let mut machines = Vec::new();
        for (name, last) in &self.machines {
            let of_this: BTreeSet<&str> = last.reasons.iter().map(|r| r.code.as_ref()).collect();
            for code in of_this {
                *codes.entry(code).or_default() += 1;
            }
            if !last.reasons.is_empty() {
                machines.push(WouldRefuse {
                    machine: name,
                    verdict: last.verdict,
                    seq: last.seq,
                    reasons: &last.reasons,
                });
            }
        }
        Report {
            judged: self.machines.len(),
            would_refuse: machines,
            codes,
        }
    }
}

#[derive(Serialize)]
struct Report<'a> {
    /// Machines with a verdict or claim on record.
    judged: usize,
    /// Those that every check enforced would refuse.
    would_refuse: Vec<WouldRefuse<'a>>,
    /// How many machines each code is about.
    codes: BTreeMap<&'a str, usize>,
}

#[derive(Serialize)]
struct WouldRefuse<'a> {
    machine: &'a str,
    verdict: &'static str,
    /// Ledger sequence of the evidence's record.
    seq: u64,
    reasons: &'a [Reason],
}

impl Report<'_> {
    fn text(&self) -> String {
        let mut text = String::new();
        for one in &self.would_refuse {
            let WouldRefuse {
                machine,
                verdict,
                seq,
                reasons,
            } = one;
            let _ = writeln!(text, "{} ({verdict}, record {seq})", plain(machine));
            for reason in *reasons {
                let _ = writeln!(text, "  {}", plain(&reason.to_string()));
            }
        }
        let _ = writeln!(
            text,
            "with every check enforced {} of {} machines would be refused, by their last verdict or claim on record \
             (who does not prove a key has none)",
            self.would_refuse.len(),
            self.judged
        );
        for (code, count) in &self.codes {
            let _ = writeln!(text, "  {count:>5}  {code}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use gateway_core::identity::{MachineId, UnixMillis};
    use gateway_core::record::{Claim, OperatorAct, Verdict};

    use super::*;

    fn reason(code: &'static str) -> Reason {
        Reason::new(code, "this", "that\u{7}", "PROTOCOL 3", "look")
    }

    fn verdict(machine: &str, admitted: bool, codes: &[&'static str]) -> Record {
        Record::Verdict(Verdict {
            machine: Some(MachineId(machine.to_owned())),
            admitted,
            ek_names: Vec::new(),
            ak_name: String::new(),
            node_uuid: None,
            macs: Vec::new(),
            counters: None,
            boot_mark: None,
            image_sha256: None,
            port: None,
            assurance: "bare-ek".to_owned(),
            devid_auth: "none".to_owned(),
            seal: "measured".to_owned(),
            reasons: codes.iter().map(|code| reason(code)).collect(),
            policy_sha256: String::new(),
            correlation: String::new(),
            ek_keys: Vec::new(),
        })
    }

    fn claim(machine: &str, codes: &[&'static str]) -> Record {
        Record::Claim(Claim {
            machine: MachineId(machine.to_owned()),
            ek_names: Vec::new(),
            serial: String::new(),
            macs: Vec::new(),
            disks: Vec::new(),
            port: None,
            assurance: "bare-ek".to_owned(),
            report_sha256: String::new(),
            would_refuse: codes.iter().map(|code| reason(code)).collect(),
            correlation: String::new(),
        })
    }

    fn seen(records: Vec<Record>) -> Evidence {
        let mut evidence = Evidence::default();
        for (seq, record) in (1..).zip(records) {
            let at = UnixMillis(0);
            evidence.saw(&LedgerView { seq, at, record });
        }
        evidence
    }

    #[test]
    fn the_last_evidence_of_each_machine_counts() {
        let evidence = seen(vec![
            verdict("a", true, &["port.absent", "boot.floor"]),
            verdict("b", true, &[]),
            verdict("a", true, &["port.absent"]),
            claim("c", &["port.absent"]),
        ]);
        let report = evidence.report();
        assert_eq!((report.judged, report.would_refuse.len()), (3, 2));
        assert_eq!(report.codes, BTreeMap::from([("port.absent", 2)]));
        assert_eq!(report.would_refuse[0].seq, 3);
        let text = report.text();
        assert!(text.contains("2 of 3 machines would be refused"), "{text}");
        assert!(!text.contains('\u{7}'), "control characters stay out");
        assert!(text.contains("next: look"), "{text}");
    }

    #[test]
    fn a_chain_that_was_found_later_takes_its_reason_back() {
        use gateway_core::identity::EkName;
        use gateway_core::record::EkCertificate;
        let judged = |cause, path: &[&str]| {
            Record::EkCertificates(EkCertificates {
                machine: MachineId("a".to_owned()),
                cause,
                assurance: "vendor-chain".to_owned(),
                certs: vec![EkCertificate {
                    ek_name: EkName("000b".to_owned()),
                    proven: true,
                    ek_cert_sha256: "00".to_owned(),
                    ek_cert_serial: "01".to_owned(),
                    path: path.iter().map(|ca| (*ca).to_owned()).collect(),
                    issuer: "CN=Vendor".to_owned(),
                    issuer_key: None,
                    ca_issuers: Vec::new(),
                    reason: None,
                    ek_cert_der: None,
                }],
                chain: Vec::new(),
                reasons: Vec::new(),
            })
        };
        let codes = |record| {
            let claim = claim("a", &["ek.cert.chain", "boot.floor"]);
            let report = seen(vec![claim, record]);
            report.report().codes.len()
        };
        assert_eq!(codes(judged(EkCause::CaArrived, &["aa"])), 1);
        assert_eq!(codes(judged(EkCause::CaArrived, &[])), 2);
        assert_eq!(codes(judged(EkCause::Attestation, &["aa"])), 2);
    }

    #[test]
    fn machines_that_left_are_not_asked_about() {
        let withdraw = Record::Operator(OperatorAct {
            by: "owner".to_owned(),
            role: "owner".to_owned(),
            act: Act::Withdraw {
                machine: MachineId("a".to_owned()),
                why: "sold".to_owned(),
            },
        });
        let evidence = seen(vec![verdict("a", true, &["port.absent"]), withdraw]);
        assert_eq!(evidence.report().judged, 0);
    }
}

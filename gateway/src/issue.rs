//! Issues an LDevID for a machine that was admitted, and signs its receipt. Blocking; runs on a
//! worker. Only an [`IssueRequest`] gets here, and only an appraisal that admitted makes one.

use gateway_core::admission::effect::{IssueRequest, IssuedDevId};
use gateway_core::identity::UnixMillis;
use gateway_core::issuer;
use gateway_core::reason::Reason;
use hw::clock::Clock;

use crate::ca::{CaError, DeviceCa, ReceiptSigner};

/// The device CA and the receipt key.
pub struct Issuer {
    device: DeviceCa,
    receipts: ReceiptSigner,
    clock: Clock,
}

impl Issuer {
    /// Takes both for the life of the daemon.
    pub fn new(device: DeviceCa, receipts: ReceiptSigner) -> Self {
        Self {
            device,
            receipts,
            clock: Clock,
        }
    }

    /// The certificate, its record, and the verdict signed as a receipt.
    ///
    /// # Errors
    /// A [`Reason`] for the ledger and the log.
    pub fn issue(&self, request: &IssueRequest) -> Result<IssuedDevId, Reason> {
        let now = UnixMillis(self.clock.now_ms());
        let mut random = [0; 20];
        crate::random::fill(&mut random);
        let profile = issuer::ldevid(&request.admission, now, random)?;
        let correlation = request.verdict.correlation.clone();
        let mut issued = self
            .device
            .issue(&profile, Some(correlation))
            .map_err(|e| e.reason())?;
        issued.record.machine = Some(request.machine.clone());
        let body = serde_json::to_vec(&request.verdict).map_err(|e| {
            CaError::Refused(Reason::new(
                "issue.receipt",
                "a verdict that encodes",
                e.to_string(),
                "gateway::issue",
                "report this: it is a defect",
            ))
            .reason()
        })?;
        let receipt = self.receipts.receipt(body).map_err(|e| e.reason())?;
        Ok(IssuedDevId {
            record: issued.record,
            chain: issued.chain,
            receipt,
        })
    }
}

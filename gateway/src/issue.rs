//! Issues an LDevID for a machine that was admitted, signs its receipt, and seals its payloads.
//! Blocking; runs on a worker. Only an [`IssueRequest`] gets here, and only an appraisal that admitted makes one.

use attest_wire::v1::handover::{GRANT_LABEL, Grant, SEALED_LABEL};
use gateway_core::admission::effect::{Delivered, IssueRequest, IssuedDevId, SignedGrant};
use gateway_core::handover::{Handover, Prepared, Recipient};
use gateway_core::identity::UnixMillis;
use gateway_core::install::GrantOrder;
use gateway_core::issuer;
use gateway_core::reason::Reason;
use hw::clock::Clock;
use rand_core::OsRng;

use crate::ca::{CaError, DeviceCa, GrantSigner, ReceiptSigner};

/// The device CA, the receipt key, the grant key, and what goes with an admission.
pub struct Issuer {
    device: DeviceCa,
    receipts: ReceiptSigner,
    grants: GrantSigner,
    handover: Handover,
    clock: Clock,
}

impl Issuer {
    /// Takes all of it for the life of the daemon.
    pub fn new(
        device: DeviceCa,
        receipts: ReceiptSigner,
        grants: GrantSigner,
        handover: Handover,
    ) -> Self {
        Self {
            device,
            receipts,
            grants,
            handover,
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
        let delivery = self.deliver(request, &receipt.body.0).map_err(Box::new);
        // A machine is not installed without what it was to be given.
        let grant = match (&delivery, request.grant.as_deref()) {
            (Ok(delivered), Some(order)) => {
                let mut order = order.clone();
                if let Some(delivered) = delivered {
                    order.payloads.clone_from(&delivered.record.items);
                }
                Some(self.grant(order)?)
            }
            (Err(_), _) | (_, None) => None,
        };
        Ok(IssuedDevId {
            delivery,
            grant,
            record: issued.record,
            chain: issued.chain,
            receipt,
        })
    }

    /// Seals and signs what the machine is given.
    fn deliver(
        &self,
        request: &IssueRequest,
        receipt: &[u8],
    ) -> Result<Option<Box<Delivered>>, Reason> {
        let recipient = Recipient {
            admission: &request.admission,
            receipt,
            peer: request.peer,
            correlation: &request.verdict.correlation,
        };
        let Some(prepared) = self.handover.prepare(&recipient, &mut OsRng)? else {
            return Ok(None);
        };
        let Prepared { unsigned, record } = prepared;
        let sig = self.grants.sign(SEALED_LABEL, unsigned.body());
        let sig = sig.map_err(|e| e.reason())?;
        Ok(Some(Box::new(Delivered {
            record,
            sealed: Box::new(unsigned.signed(sig, self.grants.chain())),
        })))
    }

    /// Completes and signs a grant; the same boot gets the same one again.
    fn grant(&self, mut order: GrantOrder) -> Result<Box<SignedGrant>, Reason> {
        if order.fresh {
            let (mut grant, mut nonce) = ([0; 16], [0; 32]);
            crate::random::fill(&mut grant);
            crate::random::fill(&mut nonce);
            order.record.grant = hex::encode(grant);
            order.record.nonce = hex::encode(nonce);
        }
        let body = serde_json::to_vec(&order.body()).map_err(|e| {
            Reason::new(
                "issue.grant",
                "a grant that encodes",
                e.to_string(),
                "gateway::issue",
                "report this: it is a defect",
            )
        })?;
        let sig = self
            .grants
            .sign(GRANT_LABEL, &body)
            .map_err(|e| e.reason())?;
        let grant = Grant {
            body: body.into(),
            sig: sig.into(),
            chain: self.grants.chain(),
        };
        Ok(Box::new(SignedGrant { order, grant }))
    }
}

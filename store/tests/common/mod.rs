//! A ledger key under a throw-away infra CA, and records to write.
#![allow(dead_code, clippy::unwrap_used)]

use gateway_core::identity::{EkName, MacAddr, UnixMillis};
use gateway_core::reason::Reason;
use gateway_core::record::{
    Claim, Genesis, JournalRecord, LeaseRecord, Mark, Record, RefusalSummary,
};
use gateway_core::walk::Step;
use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, DnType, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, SigningKey,
};
use store::{Batch, LedgerSigner};

/// An infra CA.
pub struct Infra {
    issuer: Issuer<'static, KeyPair>,
    pub der: Vec<u8>,
}

impl Infra {
    pub fn new() -> Self {
        Self::of(KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).unwrap())
    }

    /// The CA whose key and certificate are in `dir`, made if needed.
    pub fn open_or_create(dir: &std::path::Path) -> Self {
        let (key, cert) = (dir.join("infra.key"), dir.join("infra.der"));
        match std::fs::read_to_string(&key) {
            Ok(pem) => Self {
                der: std::fs::read(cert).unwrap(),
                ..Self::of(KeyPair::from_pem(&pem).unwrap())
            },
            Err(_) => {
                let pair = KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).unwrap();
                let pem = pair.serialize_pem();
                let made = Self::of(pair);
                std::fs::write(cert, &made.der).unwrap();
                std::fs::write(key, pem).unwrap();
                made
            }
        }
    }

    fn of(key: KeyPair) -> Self {
        let mut params = CertificateParams::default();
        params
            .distinguished_name
            .push(DnType::CommonName, "infra CA");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let der = params.self_signed(&key).unwrap().der().to_vec();
        Self {
            issuer: Issuer::new(params, key),
            der,
        }
    }

    /// A ledger key with the receipt purpose.
    pub fn signer(&self) -> Signer {
        self.signer_for(attest_wire::oid::EKU_RECEIPT.der)
    }

    /// A key with the purpose whose OID contents are given.
    pub fn signer_for(&self, eku: &[u8]) -> Signer {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "ledger");
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        let len = u8::try_from(eku.len()).unwrap();
        let value = [&[0x30, len + 2, 0x06, len], eku].concat();
        params
            .custom_extensions
            .push(CustomExtension::from_oid_content(&[2, 5, 29, 37], value));
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        Signer {
            key,
            cert: cert.der().to_vec(),
        }
    }
}

/// A ledger key.
pub struct Signer {
    key: KeyPair,
    cert: Vec<u8>,
}

impl LedgerSigner for Signer {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, String> {
        SigningKey::sign(&self.key, message).map_err(|e| e.to_string())
    }

    fn chain_der(&self) -> Vec<Vec<u8>> {
        vec![self.cert.clone()]
    }
}

/// The name of a made-up EK.
pub fn ek_name(n: u8) -> EkName {
    EkName(format!("000b{}", hex::encode([n; 32])))
}

pub fn genesis() -> Record {
    Record::Genesis(Genesis {
        appliance: "test".into(),
        seal: "development".into(),
        infra_ca_sha256: "00".repeat(32),
    })
}

/// A claim that shows an EK Name as a field and inside a text.
pub fn claim(n: u8) -> Record {
    Record::Claim(Claim {
        machine: gateway_core::identity::MachineId(format!("m-{n}")),
        ek_names: vec![ek_name(n)],
        serial: "S".into(),
        macs: vec![MacAddr([2, 0, 0, 0, 0, n])],
        disks: vec![],
        port: None,
        assurance: "bare-ek".into(),
        report_sha256: "11".repeat(32),
        would_refuse: vec![Reason::new(
            "ek.unknown",
            "an enrolled EK",
            format!("EK {}", ek_name(n)),
            "inventory",
            "approve the claim",
        )],
        correlation: "c".into(),
    })
}

/// A record of about `bytes` bytes of JSON.
pub fn sized(bytes: usize) -> Record {
    let mut record = RefusalSummary {
        ingress: String::new(),
        count: 1,
        last: Reason::new("ek.unknown", "an enrolled EK", "x", "inventory", "approve"),
        correlation: "c".into(),
    };
    let bare = serde_json::to_string(&Record::RefusalSummary(record.clone())).unwrap();
    record.ingress = "i".repeat(bytes.saturating_sub(bare.len()));
    Record::RefusalSummary(record)
}

pub fn lease(n: u8, state: &str) -> JournalRecord {
    JournalRecord::Lease(LeaseRecord {
        addr: std::net::Ipv4Addr::new(10, 0, 0, n),
        client: format!("01{n:012x}"),
        mac: MacAddr([2, 0, 0, 0, 0, n]),
        state: state.into(),
        expires: UnixMillis(1000),
        port: None,
    })
}

pub fn mark(n: u8, step: Step) -> JournalRecord {
    JournalRecord::Mark(Mark {
        mac: MacAddr([2, 0, 0, 0, 0, n]),
        machine: None,
        step,
        at: UnixMillis(u64::from(n)),
        detail: String::new(),
    })
}

/// A batch with these records.
pub fn batch(ledger: Vec<Record>, journal: Vec<JournalRecord>) -> Batch {
    Batch {
        at: UnixMillis(1_700_000_000_000),
        ledger,
        journal,
        ..Batch::default()
    }
}

//! The appliance's certificate authorities: made once, kept encrypted, used through typed doors.
//!
//! Decides when a certificate is made, renewed and written down. What it says is decided by
//! `gateway_core::issuer`; where the key that encrypts all this comes from is hw's business.
//!
//! The device CA is a value of its own ([`DeviceCa`]), signs LDevIDs only, and its key is never in
//! the hands of [`Ca`] again after [`Ca::create`]. Private keys are in the store under AES-256-GCM;
//! CA certificates are also plain PEM files in `ca/` of the state directory, for `ca export` beside
//! a running daemon.

mod leaf;
mod x509;

#[cfg(test)]
mod tests;

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use gateway_core::identity::UnixMillis;
use gateway_core::issuer::{
    AdminRole, Ca as Which, CertProfile, Issuer, KeyKind, LDevIdProfile, SignedBy,
};
use gateway_core::reason::Reason;
use gateway_core::record::{Certificate, Record};
use rustls_pki_types::CertificateDer;
use store::{KeyPair as StoredPair, Store, StoreError, StoreKey};
use zeroize::Zeroizing;

pub use leaf::{GrantSigner, Leaf, LeafKind, ReceiptSigner};
pub(crate) use x509::{pem, sha1_hex};

use x509::{Authority, NewKey};

/// Folder of the CA certificates in the state directory.
const PEM_DIR: &str = "ca";

/// What goes wrong with certificates.
#[derive(Debug, thiserror::Error)]
pub enum CaError {
    /// The store failed, or the key it is encrypted under is not the one it was made with.
    #[error("the store of the certificate authorities failed")]
    Store(#[from] StoreError),
    /// A name or key does not fit a certificate.
    #[error("{0}")]
    Refused(Reason),
    /// The X.509 library or the key refused.
    #[error("certificate {what} cannot be made or read")]
    X509 {
        /// Profile or CA.
        what: &'static str,
        /// The cause.
        #[source]
        source: rcgen::Error,
    },
    /// A CA was asked for a certificate that another one signs.
    #[error("{ca} does not sign {profile} certificates")]
    WrongIssuer {
        /// The CA that was asked.
        ca: &'static str,
        /// The profile.
        profile: &'static str,
    },
    /// There are no CAs in this store yet.
    #[error("{name} is not in the store: this appliance has no certificate authorities yet")]
    Absent {
        /// What was looked for.
        name: String,
    },
    /// A certificate in the store is not that of the key beside it.
    #[error(
        "ca.exchanged: expected the certificate of this appliance's own key {name}, found one of another \
         key: somebody wrote to the database. Treat it as an alarm; restore the newest copy of the state \
         folder"
    )]
    Exchanged {
        /// Which.
        name: &'static str,
    },
    /// There are CAs already; they are never overwritten.
    #[error("this appliance has its certificate authorities already")]
    Exists,
    /// The ledger shows that there were CAs, and the database has none.
    #[error(
        "the ledger of this appliance has entries, but its certificate authorities are gone: \
         restore the state folder from a backup; new ones would be trusted by no machine"
    )]
    Lost,
    /// A PEM file cannot be read or written.
    #[error("cannot {op} {}", path.display())]
    File {
        /// What was tried.
        op: &'static str,
        /// On what.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// No randomness.
    #[error("the random number generator is not available")]
    Random,
}

impl From<Reason> for CaError {
    fn from(reason: Reason) -> Self {
        Self::Refused(reason)
    }
}

impl CaError {
    /// For the wire, the ledger and the page.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Refused(reason) => reason.clone(),
            other => Reason::new(
                "issue.failed",
                "a certificate",
                other.to_string(),
                "gateway::ca",
                "see the log of the appliance",
            ),
        }
    }
}

/// How a server is called.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerNames {
    /// DNS names.
    pub dns: Vec<String>,
    /// Addresses.
    pub ip: Vec<IpAddr>,
}

/// Names of this appliance, from the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    /// Of the appliance.
    pub appliance: String,
    /// Of the boot endpoint.
    pub boot: ServerNames,
    /// Of the admin endpoint.
    pub admin: ServerNames,
}

/// The CAs that the daemon itself uses, and the leaves it serves with.
pub struct Ca {
    store: Store,
    key: StoreKey,
    issuer: Issuer,
    names: Names,
    infra: Authority,
    admin: Authority,
    boot: Authority,
    leaves: Mutex<Vec<Arc<Leaf>>>,
}

/// The device CA: LDevIDs and nothing else.
pub struct DeviceCa {
    authority: Authority,
}

/// The CAs, opened.
pub struct Opened {
    /// Everything but devices.
    pub ca: Ca,
    /// Devices.
    pub device: DeviceCa,
    /// One record for each certificate just made; empty when they were there already. To be
    /// written to the ledger before any of them is served.
    pub records: Vec<Record>,
}

/// A freshly issued certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issued {
    /// DER, leaf first, without the root.
    pub chain: Vec<Vec<u8>>,
    /// To be written before anybody sees the certificate.
    pub record: Certificate,
}

/// An administrator's certificate with its key, handed out once and kept nowhere.
pub struct ClientIdentity {
    /// Certificate, PEM.
    pub cert_pem: String,
    /// Private key, PKCS #8 PEM.
    pub key_pem: Zeroizing<String>,
    /// To be written before it is handed out.
    pub record: Certificate,
}

impl Ca {
    /// Whether this store has CAs.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn exists(store: &Store) -> Result<bool, CaError> {
        Ok(store.public(store::INFRA_CA)?.is_some())
    }

    /// Opens the CAs, or makes them at the first start.
    ///
    /// # Errors
    /// As [`Ca::create`] and [`Ca::open`].
    pub fn open_or_create(
        store: &Store,
        kek: &[u8; 32],
        now: UnixMillis,
        names: Names,
    ) -> Result<Opened, CaError> {
        if Self::exists(store)? {
            Self::open(store, kek, names)
        } else {
            Self::create(store, kek, now, names)
        }
    }

    /// Makes all CAs and the first leaves. `kek` is what the appliance's TPM unseals.
    ///
    /// The infra CA is written last: without it, nothing before counts and a repeated start begins
    /// again.
    ///
    /// # Errors
    /// [`CaError::Exists`], [`CaError::Lost`], a name that fits no subject, or the store.
    pub fn create(
        store: &Store,
        kek: &[u8; 32],
        now: UnixMillis,
        names: Names,
    ) -> Result<Opened, CaError> {
        if Self::exists(store)? {
            return Err(CaError::Exists);
        }
        if !store.ledger().page(1, 1)?.is_empty() {
            return Err(CaError::Lost);
        }
        let key = StoreKey::derive(kek, "ca");
        let issuer = Issuer::new(&names.appliance)?;
        let mut records = Vec::new();
        let mut made = Vec::new();
        for which in Which::ALL {
            let profile = issuer.ca(which, now, x509::random()?);
            let new_key = NewKey::generate(&profile)?;
            let authority = Authority::create(which, &profile, &new_key)?;
            records.push(Record::Certificate(x509::record(
                &profile,
                authority.der(),
                None,
            )));
            made.push((which, new_key, authority));
        }
        let others: Vec<_> = made.iter().filter(|(w, ..)| *w != Which::Infra).collect();
        let infra: Vec<_> = made.iter().filter(|(w, ..)| *w == Which::Infra).collect();
        for group in [others, infra] {
            let names: Vec<String> = group.iter().map(|(w, ..)| ca_name(*w)).collect();
            let pairs: Vec<StoredPair<'_>> = group
                .iter()
                .zip(&names)
                .map(|((_, new_key, authority), name)| StoredPair {
                    name,
                    secret: new_key.pkcs8(),
                    public: authority.der(),
                })
                .collect();
            store.put_key_pairs(&key, &pairs)?;
        }
        let mut opened = Self::assemble(store, key, issuer, names, Vec::new())?;
        opened.records = records;
        for kind in LeafKind::ALL {
            let (_, record) = opened.ca.renew(kind, now)?;
            opened.records.push(Record::Certificate(record));
        }
        Ok(opened)
    }

    /// Opens the CAs that [`Ca::create`] made. A leaf that is missing is made by
    /// [`Ca::renew_due`].
    ///
    /// # Errors
    /// [`CaError::Absent`], or [`StoreError::SecretBroken`] under another `kek`.
    pub fn open(store: &Store, kek: &[u8; 32], names: Names) -> Result<Opened, CaError> {
        let key = StoreKey::derive(kek, "ca");
        let issuer = Issuer::new(&names.appliance)?;
        let mut leaves = Vec::new();
        for kind in LeafKind::ALL {
            leaves.extend(Leaf::load(store, &key, kind)?.map(Arc::new));
        }
        Self::assemble(store, key, issuer, names, leaves)
    }

    fn assemble(
        store: &Store,
        key: StoreKey,
        issuer: Issuer,
        names: Names,
        leaves: Vec<Arc<Leaf>>,
    ) -> Result<Opened, CaError> {
        let device = DeviceCa {
            authority: load(store, &key, Which::Device)?,
        };
        let ca = Self {
            infra: load(store, &key, Which::Infra)?,
            admin: load(store, &key, Which::Admin)?,
            boot: load(store, &key, Which::Boot)?,
            store: store.clone(),
            key,
            issuer,
            names,
            leaves: Mutex::new(leaves),
        };
        ca.write_pem_files(&device)?;
        Ok(Opened {
            ca,
            device,
            records: Vec::new(),
        })
    }

    /// CA certificates as PEM files, replaced when they differ.
    fn write_pem_files(&self, device: &DeviceCa) -> Result<(), CaError> {
        let dir = self.store.dir().join(PEM_DIR);
        fs::create_dir_all(&dir).map_err(file_error("create", &dir))?;
        for authority in [&self.infra, &device.authority, &self.boot, &self.admin] {
            let path = dir.join(format!("{}.pem", authority.which().name()));
            write_if_changed(&path, &x509::pem("CERTIFICATE", authority.der()))?;
        }
        Ok(())
    }

    /// The infra CA certificate: what a UKI pins and a ledger verifies against.
    pub fn infra_ca(&self) -> CertificateDer<'static> {
        self.infra.der().to_vec().into()
    }

    /// The admin CA certificate: what client certificates verify against.
    pub fn admin_ca(&self) -> CertificateDer<'static> {
        self.admin.der().to_vec().into()
    }

    /// The boot CA certificate: what firmware trusts.
    pub fn boot_ca(&self) -> CertificateDer<'static> {
        self.boot.der().to_vec().into()
    }

    /// The current leaf of a kind.
    ///
    /// # Errors
    /// [`CaError::Absent`] before [`Ca::renew_due`] has made it.
    pub fn leaf(&self, kind: LeafKind) -> Result<Arc<Leaf>, CaError> {
        let leaves = self.leaves.lock().unwrap_or_else(PoisonError::into_inner);
        let found = leaves.iter().find(|leaf| leaf.kind() == kind).cloned();
        found.ok_or_else(|| CaError::Absent {
            name: kind.store_name().into(),
        })
    }

    /// The key for the ledger and for receipts.
    ///
    /// # Errors
    /// As [`Ca::leaf`].
    pub fn receipt_signer(&self) -> Result<ReceiptSigner, CaError> {
        ReceiptSigner::new(&*self.leaf(LeafKind::Receipt)?)
    }

    /// The key that signs grants and what is said of sealed payloads.
    ///
    /// # Errors
    /// The leaf was not made, or is damaged.
    pub fn grant_signer(&self) -> Result<GrantSigner, CaError> {
        GrantSigner::new(&*self.leaf(LeafKind::Grant)?)
    }

    /// Renews what is missing, has lived two thirds of its life, or has other names than the
    /// configuration. The new leaf is stored; its record is to be written before it is served.
    ///
    /// # Errors
    /// The store or the X.509 library.
    pub fn renew_due(
        &self,
        now: UnixMillis,
    ) -> Result<Vec<(LeafKind, Arc<Leaf>, Certificate)>, CaError> {
        let mut renewed = Vec::new();
        for kind in LeafKind::ALL {
            let due = match self.leaf(kind) {
                Ok(leaf) => leaf.is_due(now, self.server_names(kind)),
                Err(_) => true,
            };
            if due {
                let (leaf, record) = self.renew(kind, now)?;
                renewed.push((kind, leaf, record));
            }
        }
        Ok(renewed)
    }

    /// Configured names of a leaf; none for those whose names are fixed.
    fn server_names(&self, kind: LeafKind) -> Option<&ServerNames> {
        match kind {
            LeafKind::Attest | LeafKind::Receipt | LeafKind::Grant => None,
            LeafKind::Boot | LeafKind::BootRsa => Some(&self.names.boot),
            LeafKind::AdminServer => Some(&self.names.admin),
        }
    }

    fn profile(&self, kind: LeafKind, now: UnixMillis) -> Result<CertProfile, CaError> {
        let random = x509::random()?;
        let (boot, admin) = (&self.names.boot, &self.names.admin);
        Ok(match kind {
            LeafKind::Attest => self.issuer.attest(now, random),
            LeafKind::Receipt => self.issuer.receipt(now, random),
            LeafKind::Grant => self.issuer.grant(now, random),
            LeafKind::Boot => {
                let (dns, ip) = (&boot.dns, &boot.ip);
                self.issuer.boot(KeyKind::P256, dns, ip, now, random)
            }
            LeafKind::BootRsa => {
                let (dns, ip) = (&boot.dns, &boot.ip);
                self.issuer.boot(KeyKind::Rsa3072, dns, ip, now, random)
            }
            LeafKind::AdminServer => self.issuer.admin_server(&admin.dns, &admin.ip, now, random),
        })
    }

    /// Makes, stores and takes into use one leaf.
    fn renew(&self, kind: LeafKind, now: UnixMillis) -> Result<(Arc<Leaf>, Certificate), CaError> {
        let profile = self.profile(kind, now)?;
        let key = NewKey::generate(&profile)?;
        let der = self.authority(&profile)?.sign(&profile, key.pair())?;
        self.store.put_key_pairs(
            &self.key,
            &[StoredPair {
                name: kind.store_name(),
                secret: key.pkcs8(),
                public: &der,
            }],
        )?;
        let record = x509::record(&profile, &der, None);
        let leaf = Leaf::load(&self.store, &self.key, kind)?.ok_or_else(|| CaError::Absent {
            name: kind.store_name().into(),
        })?;
        let leaf = Arc::new(leaf);
        let mut leaves = self.leaves.lock().unwrap_or_else(PoisonError::into_inner);
        leaves.retain(|old| old.kind() != kind);
        leaves.push(leaf.clone());
        Ok((leaf, record))
    }

    fn authority(&self, profile: &CertProfile) -> Result<&Authority, CaError> {
        match profile.signed_by {
            SignedBy::Ca(Which::Infra) => Ok(&self.infra),
            SignedBy::Ca(Which::Admin) => Ok(&self.admin),
            SignedBy::Ca(Which::Boot) => Ok(&self.boot),
            SignedBy::Ca(other @ (Which::Device | Which::Ak)) => Err(CaError::WrongIssuer {
                ca: other.name(),
                profile: profile.name,
            }),
            SignedBy::Itself => Err(CaError::WrongIssuer {
                ca: "a CA",
                profile: profile.name,
            }),
        }
    }

    /// A client certificate for an administrator.
    ///
    /// # Errors
    /// A name that fits no subject.
    pub fn admin_client(
        &self,
        person: &str,
        role: AdminRole,
        now: UnixMillis,
    ) -> Result<ClientIdentity, CaError> {
        let profile = self
            .issuer
            .admin_client(person, role, now, x509::random()?)?;
        let key = NewKey::generate(&profile)?;
        let der = self.admin.sign(&profile, key.pair())?;
        Ok(ClientIdentity {
            cert_pem: x509::pem("CERTIFICATE", &der),
            key_pem: Zeroizing::new(x509::pem("PRIVATE KEY", key.pkcs8())),
            record: x509::record(&profile, &der, None),
        })
    }
}

impl DeviceCa {
    /// The certificate: `devid_ca_path` of a SPIRE server.
    pub fn certificate(&self) -> CertificateDer<'static> {
        self.authority.der().to_vec().into()
    }

    /// Signs an LDevID for the key in the profile; there is no other door.
    ///
    /// # Errors
    /// The key is neither RSA-2048 or longer nor P-256.
    pub fn issue(
        &self,
        ldevid: &LDevIdProfile,
        correlation: Option<String>,
    ) -> Result<Issued, CaError> {
        let key = x509::node_key(ldevid.spki_der())?;
        let der = self.authority.sign(ldevid.profile(), &key)?;
        Ok(Issued {
            record: x509::record(ldevid.profile(), &der, correlation),
            chain: vec![der],
        })
    }
}

fn ca_name(which: Which) -> String {
    format!("ca/{}", which.name())
}

fn load(store: &Store, key: &StoreKey, which: Which) -> Result<Authority, CaError> {
    let name = ca_name(which);
    let (Some(der), Some(pkcs8)) = (store.public(&name)?, store.secret(key, &name)?) else {
        return Err(CaError::Absent { name });
    };
    Authority::open(which, &der, &pkcs8)
}

/// Copies the CA certificates of a state directory to `out`, beside a running daemon too. Returns
/// the files written.
///
/// # Errors
/// There are none yet, or a file cannot be written.
pub fn export(state_dir: &Path, out: &Path) -> Result<Vec<PathBuf>, CaError> {
    fs::create_dir_all(out).map_err(file_error("create", out))?;
    let mut written = Vec::new();
    for which in [Which::Infra, Which::Device, Which::Boot, Which::Admin] {
        let name = format!("{}.pem", which.name());
        let from = state_dir.join(PEM_DIR).join(&name);
        let pem = fs::read_to_string(&from).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => CaError::Absent { name: name.clone() },
            _ => file_error("read", &from)(source),
        })?;
        let to = out.join(&name);
        write_if_changed(&to, &pem)?;
        written.push(to);
    }
    Ok(written)
}

fn file_error(op: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CaError {
    let path = path.to_path_buf();
    move |source| CaError::File { op, path, source }
}

/// A public file: written beside and renamed, so that a reader never sees half of it.
fn write_if_changed(path: &Path, text: &str) -> Result<(), CaError> {
    if fs::read_to_string(path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    let new = path.with_extension("pem.new");
    fs::write(&new, text)
        .and_then(|()| fs::rename(&new, path))
        .map_err(file_error("write", path))
}

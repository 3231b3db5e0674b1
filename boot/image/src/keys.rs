//! The owner's keys of the boot chain: PK, KEK and db of Secure Boot, and the image key that signs the catalogue.
//!
//! One folder holds them all; whoever has it decides what the site's machines run. Private keys are files with mode
//! 0600 and belong offline after a build. The files are in the forms that firmware set-up screens (`*.cer`, DER),
//! `KeyTool` and `-fw_cfg` (`*.esl`), `sbsign` and `openssl` (`*.pem`, `*.key`) read.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PKCS_RSA_SHA256, SerialNumber,
};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;

use crate::efi::{self, Databases, Guid, VarsError};

/// Why keys could not be made or read.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The folder has keys already; they are never overwritten.
    #[error("{0} has keys already; remove the folder yourself if they are to be replaced")]
    Exists(PathBuf),
    /// A file could not be read or written.
    #[error("key file {path}")]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file does not hold what its name says.
    #[error("key file {path} is not {expected}")]
    Form {
        /// Which.
        path: PathBuf,
        /// What it should be.
        expected: &'static str,
    },
    /// Key or certificate generation failed.
    #[error("{name} could not be made")]
    Make {
        /// Which key.
        name: &'static str,
        /// Why.
        #[source]
        source: rcgen::Error,
    },
    /// The system has no randomness.
    #[error("no randomness for the owner's GUID")]
    Random,
    /// The flash template did not take the keys.
    #[error("variable store {path}")]
    Vars {
        /// Which template.
        path: PathBuf,
        /// Why.
        #[source]
        source: VarsError,
    },
}

/// The owner's boot keys in one folder.
#[derive(Debug, Clone)]
pub struct SiteKeys {
    folder: PathBuf,
    owner: Guid,
}

const SECURE_BOOT_KEYS: [(&str, &str); 3] = [
    ("PK", "platform key"),
    ("KEK", "key exchange key"),
    ("db", "image signing key"),
];

impl SiteKeys {
    /// Makes new keys for `site` in `folder`: RSA-2048 for Secure Boot, which is what all firmware reads, P-256 for
    /// the catalogue.
    ///
    /// # Errors
    /// [`KeyError`]; existing keys are an error.
    pub fn generate(folder: &Path, site: &str) -> Result<Self, KeyError> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .map_err(|source| io_error(folder, source))?;
        if folder.join("PK.key").exists() || folder.join("image.key").exists() {
            return Err(KeyError::Exists(folder.to_owned()));
        }
        let mut owner = [0; 16];
        aws_lc_rs::rand::fill(&mut owner).map_err(|_| KeyError::Random)?;
        // RFC 9562 version 4, in the byte order of a UEFI GUID.
        owner[7] = (owner[7] & 0x0f) | 0x40;
        owner[8] = (owner[8] & 0x3f) | 0x80;
        let keys = Self {
            folder: folder.to_owned(),
            owner: Guid(owner),
        };
        for (name, title) in SECURE_BOOT_KEYS {
            keys.make_secure_boot_key(name, &format!("{site} Secure Boot {title}"))?;
        }
        keys.make_image_key()?;
        keys.write("owner.guid", format!("{}\n", keys.owner).as_bytes())?;
        Ok(keys)
    }

    /// Reads the keys of `folder`.
    ///
    /// # Errors
    /// The first file that is missing or is not what its name says.
    pub fn load(folder: &Path) -> Result<Self, KeyError> {
        let path = folder.join("owner.guid");
        let text = fs::read_to_string(&path).map_err(|source| io_error(&path, source))?;
        let keys = Self {
            folder: folder.to_owned(),
            owner: parse_guid(text.trim()).ok_or(KeyError::Form {
                path,
                expected: "a GUID",
            })?,
        };
        for file in ["db.key", "db.pem", "image.key", "image.pub"] {
            let path = keys.path(file);
            fs::metadata(&path).map_err(|source| io_error(&path, source))?;
        }
        Ok(keys)
    }

    /// The keys of `folder`, made if it has none.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn load_or_generate(folder: &Path, site: &str) -> Result<Self, KeyError> {
        if folder.join("owner.guid").exists() {
            return Self::load(folder);
        }
        Self::generate(folder, site)
    }

    /// Private key that signs EFI images, PKCS #8 in PEM, for `sbsign`.
    pub fn db_key(&self) -> PathBuf {
        self.path("db.key")
    }

    /// Its certificate in PEM.
    pub fn db_certificate(&self) -> PathBuf {
        self.path("db.pem")
    }

    /// Public image key (SPKI in PEM): what the gateway is configured with.
    pub fn image_public_key(&self) -> PathBuf {
        self.path("image.pub")
    }

    /// Signs the catalogue: ECDSA P-256 with SHA-256 over the file's bytes, DER, as `openssl dgst -sha256 -sign` does.
    ///
    /// # Errors
    /// [`KeyError`] when the image key cannot be read or used.
    pub fn sign_catalog(&self, bytes: &[u8]) -> Result<Vec<u8>, KeyError> {
        use rcgen::SigningKey as _;
        let path = self.path("image.key");
        let pem = fs::read_to_string(&path).map_err(|source| io_error(&path, source))?;
        let form = KeyError::Form {
            path,
            expected: "a P-256 private key",
        };
        let Ok(key) = KeyPair::from_pem(&pem) else {
            return Err(form);
        };
        if !key.is_compatible(&PKCS_ECDSA_P256_SHA256) {
            return Err(form);
        }
        key.sign(bytes).map_err(|source| KeyError::Make {
            name: "catalogue signature",
            source,
        })
    }

    /// The databases as `EFI_SIGNATURE_LIST`: PK, KEK, db.
    ///
    /// # Errors
    /// A certificate file that cannot be read.
    pub fn signature_lists(&self) -> Result<[Vec<u8>; 3], KeyError> {
        let list = |name: &str| -> Result<Vec<u8>, KeyError> {
            let path = self.path(&format!("{name}.esl"));
            fs::read(&path).map_err(|source| io_error(&path, source))
        };
        Ok([list("PK")?, list("KEK")?, list("db")?])
    }

    /// A copy of the factory-fresh flash part `template` (`OVMF_VARS_4M.fd`) with these keys enrolled and Secure
    /// Boot on.
    ///
    /// # Errors
    /// [`KeyError::Vars`] when the template is not an empty variable store.
    pub fn enrolled_vars(&self, template: &Path) -> Result<Vec<u8>, KeyError> {
        let flash = fs::read(template).map_err(|source| io_error(template, source))?;
        let [pk, kek, db] = self.signature_lists()?;
        efi::enrol(
            &flash,
            Databases {
                pk: &pk,
                kek: &kek,
                db: &db,
            },
        )
        .map_err(|source| KeyError::Vars {
            path: template.to_owned(),
            source,
        })
    }

    /// CA certificates in PEM as the list that firmware takes for its HTTPS boot client: QEMU
    /// `-fw_cfg name=etc/edk2/https/cacerts,file=LIST`, or the variable `TlsCaCertificate`.
    ///
    /// # Errors
    /// [`KeyError::Form`] for a file without certificates.
    pub fn https_ca_list(&self, ca_files: &[&Path]) -> Result<Vec<u8>, KeyError> {
        let mut list = Vec::new();
        for path in ca_files {
            for certificate in certificates(path)? {
                list.extend(efi::x509_list(self.owner, &certificate));
            }
        }
        Ok(list)
    }

    fn make_secure_boot_key(&self, name: &'static str, common_name: &str) -> Result<(), KeyError> {
        let make = |source| KeyError::Make { name, source };
        let key = KeyPair::generate_for(&PKCS_RSA_SHA256).map_err(make)?;
        let mut params = CertificateParams::default();
        let mut subject = DistinguishedName::new();
        subject.push(DnType::CommonName, common_name);
        params.distinguished_name = subject;
        // Firmware does not look at dates; tools do, and a wrong clock at a build must not matter.
        params.not_before = rcgen::date_time_ymd(2000, 1, 1);
        params.not_after = rcgen::date_time_ymd(2049, 12, 31);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        if name == "db" {
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::CodeSigning];
        }
        let mut serial = [0; 16];
        aws_lc_rs::rand::fill(&mut serial).map_err(|_| KeyError::Random)?;
        serial[0] &= 0x7f;
        params.serial_number = Some(SerialNumber::from_slice(&serial));
        let certificate = params.self_signed(&key).map_err(make)?;
        self.write_private(&format!("{name}.key"), key.serialize_pem().as_bytes())?;
        self.write(&format!("{name}.pem"), certificate.pem().as_bytes())?;
        self.write(&format!("{name}.cer"), certificate.der())?;
        self.write(
            &format!("{name}.esl"),
            &efi::x509_list(self.owner, certificate.der()),
        )
    }

    fn make_image_key(&self) -> Result<(), KeyError> {
        let key =
            KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(|source| KeyError::Make {
                name: "image key",
                source,
            })?;
        self.write_private("image.key", key.serialize_pem().as_bytes())?;
        self.write("image.pub", key.public_key_pem().as_bytes())
    }

    fn path(&self, file: &str) -> PathBuf {
        self.folder.join(file)
    }

    fn write(&self, file: &str, bytes: &[u8]) -> Result<(), KeyError> {
        let path = self.path(file);
        fs::write(&path, bytes).map_err(|source| io_error(&path, source))
    }

    fn write_private(&self, file: &str, bytes: &[u8]) -> Result<(), KeyError> {
        let path = self.path(file);
        fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .and_then(|mut out| {
                out.write_all(bytes)?;
                out.sync_all()
            })
            .map_err(|source| io_error(&path, source))
    }
}

/// Every certificate of a PEM file, at least one.
///
/// # Errors
/// [`KeyError`].
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, KeyError> {
    let text = fs::read(path).map_err(|source| io_error(path, source))?;
    let form = || KeyError::Form {
        path: path.to_owned(),
        expected: "a PEM file with certificates",
    };
    let found = CertificateDer::pem_slice_iter(&text)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|_| form())?;
    if found.is_empty() {
        return Err(form());
    }
    Ok(found)
}

/// The text form of a GUID, as [`Guid`]'s `Display` writes it.
fn parse_guid(text: &str) -> Option<Guid> {
    let bytes: [u8; 16] = hex::decode(text.replace('-', "")).ok()?.try_into().ok()?;
    let g = bytes;
    let guid = Guid([
        g[3], g[2], g[1], g[0], g[5], g[4], g[7], g[6], g[8], g[9], g[10], g[11], g[12], g[13],
        g[14], g[15],
    ]);
    (guid.to_string() == text).then_some(guid)
}

fn io_error(path: &Path, source: io::Error) -> KeyError {
    KeyError::Io {
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn makes_keys_that_openssl_reads() {
        let folder = tempfile::tempdir().unwrap();
        let keys = SiteKeys::generate(folder.path(), "Lab").unwrap();
        let mode = fs::metadata(keys.db_key()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let openssl = crate::exec::Tool {
            name: "openssl",
            package: "openssl",
        };
        let subject = openssl
            .run(
                folder.path(),
                ["x509", "-in", "db.pem", "-noout", "-subject"],
            )
            .unwrap();
        assert!(String::from_utf8_lossy(&subject).contains("Lab Secure Boot image signing key"));

        let signature = keys.sign_catalog(b"catalogue").unwrap();
        fs::write(folder.path().join("sig"), signature).unwrap();
        fs::write(folder.path().join("data"), b"catalogue").unwrap();
        let verify = [
            "dgst",
            "-sha256",
            "-verify",
            "image.pub",
            "-signature",
            "sig",
            "data",
        ];
        openssl.run(folder.path(), verify).unwrap();
        fs::write(folder.path().join("data"), b"cataloguf").unwrap();
        openssl.run(folder.path(), verify).unwrap_err();

        let again = SiteKeys::load(folder.path()).unwrap();
        assert_eq!(again.owner, keys.owner);
        assert_eq!(
            again.signature_lists().unwrap()[2][44..],
            fs::read(folder.path().join("db.cer")).unwrap()
        );
    }

    #[test]
    fn rejects_to_overwrite_keys() {
        let folder = tempfile::tempdir().unwrap();
        SiteKeys::generate(folder.path(), "Lab").unwrap();
        let error = SiteKeys::generate(folder.path(), "Lab").unwrap_err();
        assert!(matches!(error, KeyError::Exists(_)), "{error}");
    }

    #[test]
    fn rejects_an_empty_ca_file() {
        let folder = tempfile::tempdir().unwrap();
        let keys = SiteKeys::generate(folder.path(), "Lab").unwrap();
        let pem = folder.path().join("db.pem");
        assert!(keys.https_ca_list(&[&pem, &pem]).unwrap().len() > 1000);
        let empty = folder.path().join("empty.pem");
        fs::write(&empty, "").unwrap();
        let error = keys.https_ca_list(&[&empty]).unwrap_err();
        assert!(matches!(error, KeyError::Form { .. }), "{error}");
    }

    #[test]
    fn rejects_a_folder_without_keys() {
        let folder = tempfile::tempdir().unwrap();
        let error = SiteKeys::load(folder.path()).unwrap_err();
        assert!(matches!(error, KeyError::Io { .. }), "{error}");
    }

    #[test]
    fn guid_text_round_trips() {
        let text = "8be4df61-93ca-11d2-aa0d-00e098032b8c";
        assert_eq!(parse_guid(text), Some(efi::GLOBAL_VARIABLE));
        assert_eq!(parse_guid("8be4df6193ca11d2aa0d00e098032b8c"), None);
        assert_eq!(parse_guid("x"), None);
    }
}

//! What is kept of an admission, as files: the chain, the key blobs, the receipt.

use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use attest_wire::sealed::{Item, is_kind};
use attest_wire::v1::Receipt;
use hw::tpm::DevId;
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, X509Certificate};

/// SHA-256 of the receipt's body, hex: what the console shows and the ledger finds.
pub fn receipt_digest(receipt: &Receipt) -> String {
    hex::encode(Sha256::digest(&receipt.body.0))
}

/// Subject CN of the LDevID, for people.
pub fn subject_cn(chain: &[Vec<u8>]) -> String {
    chain
        .first()
        .and_then(|der| X509Certificate::from_der(der).ok())
        .and_then(|(_, cert)| {
            cert.subject()
                .iter_common_name()
                .next()
                .and_then(|cn| cn.as_str().ok().map(str::to_owned))
        })
        .unwrap_or_default()
}

/// Writes `chain.pem`, `devid.pub`, `devid.priv` (without TPM2B size, as SPIRE's agent reads them),
/// `srk.pub`, `receipt.json` and, if there is one, `devid.auth`, readable for the owner only.
///
/// # Errors
/// The first file that could not be written.
pub fn write(folder: &Path, chain: &[Vec<u8>], devid: &DevId, receipt: &Receipt) -> io::Result<()> {
    private_folder(folder)?;
    let file = |name: &str, bytes: &[u8]| private_file(&folder.join(name), bytes);
    file("chain.pem", pem(chain).as_bytes())?;
    file("devid.pub", &devid.public)?;
    file("devid.priv", &devid.private)?;
    file("srk.pub", &devid.srk_public)?;
    if let Some(auth) = &devid.auth {
        file("devid.auth", auth.as_bytes())?;
    }
    let receipt = serde_json::to_vec(receipt).map_err(io::Error::other)?;
    file("receipt.json", &receipt)
}

/// Folder of the payloads within the folder of an admission.
pub const PAYLOADS: &str = "payloads";

/// Writes each payload to a file named by its kind, readable for the owner only, in place of those of an
/// earlier admission: what is no longer delivered does not stay.
///
/// # Errors
/// The first file that could not be written.
pub fn write_payloads(folder: &Path, payloads: &[Item]) -> io::Result<()> {
    let folder = folder.join(PAYLOADS);
    match std::fs::remove_dir_all(&folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    private_folder(&folder)?;
    for item in payloads {
        // The kind was checked before it was opened; it decides a path here.
        if !is_kind(&item.kind) {
            return Err(io::Error::other(format!(
                "no kind of payload: {:?}",
                item.kind
            )));
        }
        private_file(&folder.join(&item.kind), &item.bytes)?;
    }
    Ok(())
}

fn private_folder(folder: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
}

fn private_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// PEM text of DER certificates (RFC 7468).
fn pem(chain: &[Vec<u8>]) -> String {
    use base64::Engine as _;
    let mut out = String::new();
    for der in chain {
        let text = base64::engine::general_purpose::STANDARD.encode(der);
        out.push_str("-----BEGIN CERTIFICATE-----\n");
        let mut rest = text.as_str();
        while !rest.is_empty() {
            let (line, later) = rest.split_at(rest.len().min(64));
            out.push_str(line);
            out.push('\n');
            rest = later;
        }
        out.push_str("-----END CERTIFICATE-----\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use attest_wire::v1::Bytes;
    use rustls::pki_types::{CertificateDer, pem::PemObject};
    use std::os::unix::fs::PermissionsExt;
    use zeroize::Zeroizing;

    #[test]
    fn writes_files_that_read_back_and_that_others_cannot_read() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("a/b");
        let chain = vec![vec![0x30; 100], vec![0x31; 48]];
        let devid = DevId {
            srk_public: vec![1],
            public: vec![2; 88],
            private: vec![3; 126],
            auth: Some(Zeroizing::new("secret".to_owned())),
        };
        let receipt = Receipt {
            body: Bytes(vec![4]),
            sig: Bytes(vec![5]),
            chain: Vec::new(),
        };
        write(&out, &chain, &devid, &receipt).unwrap();
        let read: Vec<Vec<u8>> = CertificateDer::pem_file_iter(out.join("chain.pem"))
            .unwrap()
            .map(|der| der.unwrap().to_vec())
            .collect();
        assert_eq!(read, chain);
        assert_eq!(std::fs::read(out.join("devid.pub")).unwrap(), devid.public);
        assert_eq!(std::fs::read(out.join("devid.auth")).unwrap(), b"secret");
        for entry in std::fs::read_dir(&out).unwrap() {
            let mode = entry.unwrap().metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o077, 0);
        }
        let item = |kind: &str| Item {
            kind: kind.to_owned(),
            bytes: Zeroizing::new(b"#cloud-config".to_vec()),
        };
        write_payloads(&out, &[item("user-data"), item("meta-data")]).unwrap();
        write_payloads(&out, &[item("user-data")]).unwrap();
        let files: Vec<_> = std::fs::read_dir(out.join(PAYLOADS))
            .unwrap()
            .map(|entry| entry.unwrap())
            .collect();
        assert_eq!(files.len(), 1, "what is no longer delivered is gone");
        let mode = files[0].metadata().unwrap().permissions().mode();
        assert_eq!(
            (mode & 0o777, files[0].file_name().to_str()),
            (0o600, Some("user-data"))
        );
        assert_eq!(std::fs::read(files[0].path()).unwrap(), b"#cloud-config");
        write_payloads(&out, &[item("../chain.pem")]).unwrap_err();
        assert_eq!(subject_cn(&chain), "");
        assert_eq!(receipt_digest(&receipt), hex::encode(Sha256::digest([4])));
    }
}

//! The files that `[handover]` names. Their contents are secret: they are wiped when they are replaced, and
//! an error tells of them no more than a name of a variable.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use gateway_core::handover::{Content, FILE_MAX_BYTES, Handover, Payload, Spire, Template};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use zeroize::{Zeroize as _, Zeroizing};

use super::DeclaredError;
use crate::config::{HandoverFiles, LoadError, PayloadFile, PayloadSpire};

/// Largest trust bundle, in bytes: some dozens of certificates.
const BUNDLE_MAX_BYTES: usize = 64 * 1024;

/// Reads every payload.
///
/// # Errors
/// The first file that cannot be used.
pub fn load(files: &HandoverFiles) -> Result<Handover, DeclaredError> {
    let payloads = files.payloads.iter().map(payload);
    let payloads = payloads.collect::<Result<Vec<_>, _>>()?;
    let spire = files.spire.as_ref().map(spire).transpose()?;
    Handover::new(payloads, spire).map_err(|wrong| DeclaredError::Payloads(wrong.join("; ")))
}

fn payload(declared: &PayloadFile) -> Result<Payload, DeclaredError> {
    let bytes = read(&declared.file, FILE_MAX_BYTES)?;
    let content = if declared.template {
        Content::Template(template(&declared.file, bytes)?)
    } else {
        Content::Bytes(bytes)
    };
    Ok(Payload {
        kind: declared.kind.clone(),
        scope: declared.scope.clone(),
        content,
    })
}

fn template(path: &Path, mut bytes: Zeroizing<Vec<u8>>) -> Result<Template, DeclaredError> {
    let wrong = |why: String| DeclaredError::Payload {
        path: path.to_owned(),
        why,
    };
    let text = String::from_utf8(std::mem::take(&mut *bytes)).map_err(|error| {
        error.into_bytes().zeroize();
        wrong("expected UTF-8; a binary file has template = false".to_owned())
    })?;
    Template::parse(Zeroizing::new(text)).map_err(|error| wrong(error.to_string()))
}

fn spire(declared: &PayloadSpire) -> Result<Spire, DeclaredError> {
    let path = &declared.bundle;
    let bytes = read(path, BUNDLE_MAX_BYTES)?;
    let wrong = |why: &str| DeclaredError::Payload {
        path: path.clone(),
        why: why.to_owned(),
    };
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let certificates = certificates.map_err(|_| wrong("expected certificates in PEM"))?;
    if certificates.is_empty() {
        return Err(wrong(
            "expected at least one certificate in PEM, found none",
        ));
    }
    for certificate in &certificates {
        x509_parser::parse_x509_certificate(certificate)
            .map_err(|_| wrong("expected X.509 certificates"))?;
    }
    let bundle = String::from_utf8(bytes.to_vec()).map_err(|_| wrong("expected PEM text"))?;
    Ok(Spire {
        trust_domain: declared.trust_domain.clone(),
        server_address: declared.address.clone(),
        server_port: declared.port,
        bundle,
    })
}

/// The whole file, in one buffer of its size: one that grows leaves what it held behind.
fn read(path: &Path, max: usize) -> Result<Zeroizing<Vec<u8>>, DeclaredError> {
    let unreadable = |source| LoadError::Read {
        path: path.to_owned(),
        source,
    };
    let file = File::open(path).map_err(unreadable)?;
    let size = file.metadata().map_err(unreadable)?.len();
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    let too_large = || DeclaredError::Payload {
        path: path.to_owned(),
        why: format!("expected at most {max} bytes, found more"),
    };
    if size > max {
        return Err(too_large());
    }
    let mut bytes = Zeroizing::new(Vec::with_capacity(size + 1));
    file.take(max as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(unreadable)?;
    if bytes.len() > max {
        return Err(too_large());
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestCa;
    use gateway_core::handover::Scope;

    fn declared(path: &Path, template: bool) -> HandoverFiles {
        HandoverFiles {
            payloads: vec![PayloadFile {
                kind: "user-data".to_owned(),
                scope: Scope::All,
                file: path.to_owned(),
                template,
            }],
            ..HandoverFiles::default()
        }
    }

    #[test]
    fn rejects_files_that_cannot_be_payloads() {
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("user-data");
        let error = |files: &HandoverFiles| match load(files) {
            Err(error) => format!("{error}"),
            Ok(_) => panic!("taken"),
        };
        let told = error(&declared(&path, true));
        assert!(
            told.contains("cannot read") && told.contains("user-data"),
            "{told}"
        );
        std::fs::write(&path, "a\npassword {{ secret }}\n").expect("written");
        let told = error(&declared(&path, true));
        assert!(
            told.contains("line 2") && told.contains("\"secret\""),
            "{told}"
        );
        assert!(!told.contains("password"), "{told}");
        load(&declared(&path, false)).map(drop).expect("as it is");
        std::fs::write(&path, [0xff, 0xfe]).expect("written");
        assert!(error(&declared(&path, true)).contains("UTF-8"));
        std::fs::write(&path, vec![b'x'; FILE_MAX_BYTES + 1]).expect("written");
        assert!(error(&declared(&path, false)).contains("at most"));
    }

    #[test]
    fn the_bundle_of_spire_holds_certificates() {
        let dir = tempfile::tempdir().expect("dir");
        let bundle = dir.path().join("bundle.pem");
        let files = HandoverFiles {
            spire: Some(PayloadSpire {
                address: "spire.example.net".to_owned(),
                port: 8081,
                trust_domain: "example.net".to_owned(),
                bundle: bundle.clone(),
            }),
            ..HandoverFiles::default()
        };
        for text in [
            "",
            "no PEM",
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        ] {
            std::fs::write(&bundle, text).expect("written");
            assert!(load(&files).is_err(), "{text:?}");
        }
        std::fs::write(&bundle, TestCa::new("spire").pem).expect("written");
        assert!(!load(&files).expect("a bundle").is_empty());
    }
}

//! What TFTP serves: artefacts of the signed catalogue by their file name, to machines that are to
//! be provisioned. There is no folder behind it, so there is nothing to escape from.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use netstack::tftp::{ErrorCode, ErrorReply};

use crate::handle::{BootQuery, Handle};
use crate::images::ImageStore;
use crate::metrics::{Metrics, REQUESTS_REFUSED, TFTP};
use crate::shell::tftp::{FileSource, Report};
use crate::telemetry;

/// The artefacts and the driver that says who may have them.
pub struct BootSource {
    /// Who may fetch what.
    pub handle: Handle,
    /// The artefacts.
    pub images: ImageStore,
    /// Counters.
    pub metrics: Arc<Metrics>,
}

impl FileSource for BootSource {
    async fn open(&self, peer: SocketAddr, name: &str) -> Result<Bytes, ErrorReply> {
        // Second stages ask beside the first file, which lies at the top; EFI writes `\`.
        let wanted = name.trim_start_matches(['/', '\\']).to_owned();
        let images = self.images.current();
        let Some(image) = images
            .iter()
            .find(|image| image.artefact.file == wanted)
            .cloned()
        else {
            tracing::info!(%peer, name, "tftp: no such artefact in the catalogue");
            return Err(ErrorReply::new(ErrorCode::FileNotFound, "no such artefact"));
        };
        let query = BootQuery {
            peer: peer.ip(),
            mac: None,
            arch: None,
            what: wanted,
        };
        match self.handle.boot_fetch(query).await {
            Ok(Ok(())) => image.bytes().await.map_err(|error| {
                let reason = error.reason();
                telemetry::refused("tftp", peer, &reason);
                self.metrics.count(REQUESTS_REFUSED, reason.code.clone());
                ErrorReply::new(ErrorCode::NotDefined, reason.code)
            }),
            Ok(Err(reason)) => Err(ErrorReply::new(ErrorCode::AccessViolation, reason.code)),
            Err(_busy) => Err(ErrorReply::new(ErrorCode::NotDefined, "busy, ask again")),
        }
    }

    fn finished(&self, report: &Report) {
        self.metrics.count(TFTP, report.end.code());
    }

    fn refused(&self, _peer: SocketAddr, code: &'static str) {
        self.metrics.count(TFTP, code);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::images::{Images, tests::artefact};

    fn source() -> BootSource {
        let dir = tempfile::tempdir().expect("dir");
        std::fs::write(dir.path().join("a.efi"), b"hello").expect("written");
        std::fs::write(dir.path().join("key.pem"), b"secret").expect("written");
        std::os::unix::fs::symlink("key.pem", dir.path().join("link")).expect("linked");
        let images = Images::read(dir.path(), &[artefact("a.efi", b"hello")]).expect("read");
        BootSource {
            // Nobody answers at the other end: who gets so far is told that we are busy.
            handle: Handle::new(1).0,
            images: ImageStore::new(images),
            metrics: Arc::default(),
        }
    }

    async fn code(source: &BootSource, name: &str) -> ErrorCode {
        let peer = ([10, 0, 0, 1], 2070).into();
        source.open(peer, name).await.expect_err("no file").code
    }

    /// ATTACKS row 34.
    #[tokio::test]
    async fn attack_34_traversal_nul_and_symlink_names_are_no_artefacts() {
        let source = source();
        for name in [
            "../a.efi",
            "x/../a.efi",
            "./a.efi",
            "/etc/passwd",
            "..\\..\\etc\\passwd",
            "a.efi/",
            "a.efi\0.txt",
            "A.EFI",
            "key.pem",
            "link",
            "catalog.json",
            "",
            "/",
        ] {
            assert_eq!(
                code(&source, name).await,
                ErrorCode::FileNotFound,
                "{name:?}"
            );
        }
    }

    /// ValdikSS/Super-UEFIinSecureBoot-Disk#4: names derived from the path of the first file.
    #[tokio::test]
    async fn super_uefi_4_a_name_beside_the_first_file_is_found() {
        let source = source();
        for name in ["a.efi", "/a.efi", "//a.efi", "\\a.efi"] {
            // Found: what is told is that nobody decides, not that it is missing.
            assert_eq!(code(&source, name).await, ErrorCode::NotDefined, "{name:?}");
        }
    }
}

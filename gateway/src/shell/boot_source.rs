//! What TFTP serves: artefacts of the signed catalogue by their file name, to machines that are to
//! be provisioned. There is no folder behind it, so there is nothing to escape from.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use netstack::tftp::{ErrorCode, ErrorReply};

use crate::handle::{BootQuery, Handle};
use crate::images::ImageStore;
use crate::metrics::{Metrics, TFTP};
use crate::shell::tftp::{FileSource, Report};

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
        let wanted = name.trim_start_matches('/').to_owned();
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
            Ok(Ok(())) => Ok(image.bytes.clone()),
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

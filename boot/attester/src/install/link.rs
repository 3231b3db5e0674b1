//! The installer's way to its TPM and to the gateway.

use std::time::Duration;

use attest_wire::tpm::Attest;
use attest_wire::v1::Bytes;
use attest_wire::v1::handover::{
    IMAGE_PATH, PROGRESS_PATH, Progress, ProgressAnswer, progress_digest,
};
use hw::tpm::NodeTpm;
use rustls::ClientConfig;

use super::grant::Own;
use super::{InstallError, Reports, Source};
use crate::client::{Answer, ClientError, Connection};
use crate::exchange::{AttestError, Gateway, Node};
use crate::pin::Pin;

/// Bytes asked for at a time; the gateway may answer fewer.
const PIECE_BYTES: usize = 512 * 1024;
/// Attempts without one byte or answer in between, with pauses of 1, 2, 4 and then 8 s.
const TRIES: u32 = 12;

/// Reads of this TPM what a grant is compared with. The quote is for its `clockInfo` alone.
///
/// # Errors
/// The TPM.
pub fn own(tpm: &mut dyn NodeTpm, node: &Node, machine: String) -> Result<Own, AttestError> {
    let quote = tpm.quote(&[0; 32], &[crate::extends::PCR])?;
    let attest = Attest::decode(&quote.attest).map_err(|error| AttestError::Message {
        message: "clock of the TPM",
        why: error.to_string(),
    })?;
    Ok(Own {
        machine,
        ek_names: node.ek_names(),
        reset: attest.clock.reset_count,
        restart: attest.clock.restart_count,
        clock_ms: attest.clock.clock,
    })
}

/// TPM and gateway of one installation.
pub struct Link<'a> {
    tpm: &'a mut dyn NodeTpm,
    gateway: Gateway,
    config: ClientConfig,
    connection: Option<Connection>,
    pause: Duration,
}

impl<'a> Link<'a> {
    /// Nothing is connected yet.
    ///
    /// # Errors
    /// The pin.
    pub fn new(tpm: &'a mut dyn NodeTpm, gateway: &Gateway) -> Result<Self, AttestError> {
        let pin = Pin::new(&gateway.anchors)?;
        Ok(Self {
            tpm,
            gateway: gateway.clone(),
            config: pin.client_config().map_err(ClientError::Tls)?,
            connection: None,
            pause: Duration::from_secs(1),
        })
    }

    /// Asks until there is an answer. Connections end by themselves after a while, and a gateway that is
    /// started anew goes on where it was.
    fn ask(
        &mut self,
        ask: impl Fn(&mut Connection) -> Result<Answer, ClientError>,
    ) -> Result<Answer, InstallError> {
        let mut pause = self.pause;
        for left in (0..TRIES).rev() {
            let fresh = self.connection.is_none();
            let open = match self.connection.take() {
                Some(open) => Ok(open),
                None => Connection::open(self.gateway.addr, self.config.clone()),
            };
            let error = match open.and_then(|mut open| Ok((ask(&mut open)?, open))) {
                Ok((answer, open)) if answer.status < 500 => {
                    self.connection = Some(open);
                    return Ok(answer);
                }
                Ok((answer, _)) => ClientError::Answer {
                    why: format!("HTTP status {}", answer.status),
                },
                Err(error) => error,
            };
            if left == 0 || matches!(error, ClientError::NotPinned(_)) {
                return Err(error.into());
            }
            // One that was open already has just come to its end.
            if fresh {
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_secs(8));
            }
        }
        unreachable!("the last try returns")
    }
}

impl Source for Link<'_> {
    fn piece(&mut self, sha256: &str, offset: u64) -> Result<Vec<u8>, InstallError> {
        let path = format!("{IMAGE_PATH}{sha256}");
        let answer = self.ask(|open| open.get_from(&path, offset, PIECE_BYTES))?;
        if answer.status == 206 {
            return Ok(answer.body);
        }
        let told = serde_json::from_slice::<ProgressAnswer>(&answer.body);
        let (code, hint) = match told {
            Ok(told) => (told.code, told.hint),
            Err(_) => (format!("HTTP status {}", answer.status), String::new()),
        };
        Err(InstallError::Gateway { code, hint })
    }
}

impl Reports for Link<'_> {
    fn report(&mut self, body: &[u8]) -> Result<ProgressAnswer, InstallError> {
        let sig = self.tpm.sign_devid(&progress_digest(body))?;
        let progress = Progress {
            body: Bytes(body.to_vec()),
            sig: Bytes(sig),
        };
        let sent = serde_json::to_vec(&progress).expect("bytes encode");
        let answer = self.ask(|open| open.post(PROGRESS_PATH, &sent))?;
        serde_json::from_slice(&answer.body).map_err(|error| {
            let why = format!(
                "HTTP status {} without a progress answer: {error}",
                answer.status
            );
            InstallError::Link(ClientError::Answer { why })
        })
    }
}

//! What Talos listeners and the admin API ask of the core, as one kind of request of the driver.

use std::net::IpAddr;

use gateway_core::admission::command::Caller;
use gateway_core::gateway::{ConfigFacts, Gateway};
use gateway_core::identity::{MachineId, UnixMillis};
use gateway_core::reason::Reason;
use gateway_core::talos::device::{DeviceAnswer, DeviceRequest, OAuthError, TokenRequest};
use gateway_core::talos::kms;
use tokio::sync::oneshot;
use zeroize::Zeroizing;

use crate::effects::Perform;
use crate::handle::{Busy, Handle, Request};

type Reply<T> = oneshot::Sender<T>;

/// One of them. All are answered when their records are on disk.
pub(crate) enum Ask {
    DiskKey(kms::Call, Reply<kms::Answer>),
    Code(
        Caller,
        MachineId,
        u64,
        Reply<Result<Zeroizing<String>, Reason>>,
    ),
    Device(
        Origin,
        DeviceRequest,
        Reply<Result<DeviceAnswer, OAuthError>>,
    ),
    Token(
        Origin,
        TokenRequest,
        Reply<Result<Zeroizing<String>, OAuthError>>,
    ),
    Config(
        Origin,
        Zeroizing<String>,
        bool,
        Reply<Result<ConfigFacts, Reason>>,
    ),
}

/// Where a request came from, and how it is found in the log.
#[derive(Debug, Clone)]
pub(crate) struct Origin {
    pub peer: IpAddr,
    pub correlation: String,
}

impl Origin {
    pub fn of(peer: IpAddr) -> Self {
        let mut id = [0; 8];
        crate::random::fill(&mut id);
        Self {
            peer,
            correlation: hex::encode(id),
        }
    }
}

impl Ask {
    pub fn run(self, gateway: &mut Gateway, now: UnixMillis) -> Perform {
        let mut random = Zeroizing::new([0; 32]);
        crate::random::fill(&mut *random);
        match self {
            Ask::DiskKey(call, reply) => Perform::answer(reply, gateway.disk_key(now, &call)),
            Ask::Code(by, machine, window_ms, reply) => {
                let made = gateway.talos_code(now, &by, &machine, window_ms, &random);
                Perform::answer(reply, made)
            }
            Ask::Device(origin, request, reply) => {
                let (peer, id) = (origin.peer, &origin.correlation);
                let answer = gateway.device_code(now, peer, &request, &random, id);
                Perform::answer(reply, answer)
            }
            Ask::Token(origin, request, reply) => {
                let (peer, id) = (origin.peer, &origin.correlation);
                let answer = gateway.device_token(now, peer, &request, &random, id);
                Perform::answer(reply, answer)
            }
            Ask::Config(origin, bearer, made, reply) => {
                let (peer, id) = (origin.peer, &origin.correlation);
                let answer = gateway.talos_config(now, peer, &bearer, made, id);
                Perform::answer(reply, answer)
            }
        }
    }
}

impl Handle {
    async fn talos<T>(&self, make: impl FnOnce(Reply<T>) -> Ask) -> Result<T, Busy> {
        let (tx, rx) = oneshot::channel();
        let request = Request::Talos(Box::new(make(tx)));
        self.tx.send(request).await.map_err(|_| Busy)?;
        rx.await.map_err(|_| Busy)
    }

    /// Seals or unseals a disk key.
    pub(crate) async fn disk_key(&self, call: kms::Call) -> Result<kms::Answer, Busy> {
        self.talos(|reply| Ask::DiskKey(call, reply)).await
    }

    /// Makes a one-time code for a machine.
    pub(crate) async fn talos_code(
        &self,
        by: Caller,
        machine: MachineId,
        window_ms: u64,
    ) -> Result<Result<Zeroizing<String>, Reason>, Busy> {
        self.talos(|reply| Ask::Code(by, machine, window_ms, reply))
            .await
    }

    /// `POST /device/code`.
    pub(crate) async fn device_code(
        &self,
        origin: Origin,
        request: DeviceRequest,
    ) -> Result<Result<DeviceAnswer, OAuthError>, Busy> {
        self.talos(|reply| Ask::Device(origin, request, reply))
            .await
    }

    /// `POST /token`.
    pub(crate) async fn device_token(
        &self,
        origin: Origin,
        request: TokenRequest,
    ) -> Result<Result<Zeroizing<String>, OAuthError>, Busy> {
        self.talos(|reply| Ask::Token(origin, request, reply)).await
    }

    /// `GET /talos/config`.
    pub(crate) async fn talos_config(
        &self,
        origin: Origin,
        bearer: Zeroizing<String>,
        made: bool,
    ) -> Result<Result<ConfigFacts, Reason>, Busy> {
        self.talos(|reply| Ask::Config(origin, bearer, made, reply))
            .await
    }
}

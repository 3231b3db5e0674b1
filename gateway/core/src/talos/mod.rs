//! Talos Linux: what a node's machine config says, who may unseal a disk key, who may fetch a config.
//!
//! Everything here is pure. Files are read, sockets served and randomness drawn by the shell
//! (`gateway/src/talos`).

pub mod device;
pub mod kms;
pub mod node;
pub mod render;
pub mod schema;
pub mod yaml;

use kms::Kms;

/// What of Talos is served.
#[derive(Debug, Default)]
pub struct Settings {
    /// Key of the disk keys, where the KMS is served.
    pub kms: Option<kms::Key>,
    /// The device flow, where it is served.
    pub device: Option<device::Settings>,
}

/// The state of it.
pub(crate) struct Talos {
    pub kms: Option<Kms>,
    pub device: Option<device::Device>,
}

impl Talos {
    pub fn new(settings: Settings) -> Self {
        Self {
            kms: settings.kms.map(Kms::new),
            device: settings.device.map(device::Device::new),
        }
    }

    /// Folds one ledger record in, in a replay and while running alike.
    pub fn apply(&mut self, record: &crate::record::Record) {
        if let Some(kms) = &mut self.kms {
            kms.apply(record);
        }
    }
}

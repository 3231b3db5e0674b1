//! Talos Linux: what a node's machine config says, who may unseal a disk key, who may fetch a config.
//!
//! Everything here is pure. Files are read, sockets served and randomness drawn by the shell
//! (`gateway/src/talos`).

pub mod render;
pub mod schema;
pub mod yaml;

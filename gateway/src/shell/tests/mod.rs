//! The listeners against real clients: curl, openssl and gnutls-cli, on loopback.

mod attest;
mod boot;
mod firmware;
mod health;
mod hostile;
mod tls;
mod tls_reload;

//! The listeners against real clients: curl, openssl and gnutls-cli, on loopback.

mod attest;
mod boot;
mod health;
mod tls;

//! The lab: a virtual provisioning segment, real TPMs in software, machines that are simulated or
//! booted from real firmware, and the scenarios that prove the walk.
//!
//! Nothing here decides anything of the product. The lab starts the real daemon as its own
//! process, speaks to it over real sockets in namespaces, and reads what happened from the
//! daemon's ledger, its log and the machine's serial console.

#![forbid(unsafe_code)]

pub mod admin;
pub mod bench;
pub mod dhcp_load;
pub mod efi_disk;
pub mod event_log;
pub mod exchange;
pub mod forward;
pub mod http;
pub mod lanes;
pub mod lldpd;
pub mod lossy;
pub mod netns;
pub mod networkd;
pub mod programs;
pub mod pxe;
pub mod report;
pub mod run;
pub mod scenarios;
pub mod sim;
pub mod site;
pub mod soft_tpm;
pub mod spire;
pub mod switch;
pub mod swtpm;
pub mod talos;
pub mod tftp_load;
pub mod tftp_server;
pub mod timeline;
pub mod tls_load;
pub mod udp_path;
pub mod vendor;
pub mod vm;

//! What is done with bytes that an enemy chose: one function for each parser of untrusted input.
//!
//! A body calls the parser's public function and checks what must hold for *every* input: it
//! returns, and what it accepted survives a round trip. The targets in `fuzz_targets/` and the
//! smoke run in `smoke/` call nothing else.

#![forbid(unsafe_code)]

pub mod appraisal;
pub mod boot;
pub mod capture;
pub mod dhcp;
pub mod dhcp6;
pub mod dhcp_sequence;
pub mod lldp;
pub mod tftp;
pub mod tpm;
pub mod wire;

/// One target.
pub struct Target {
    /// Name, also of the file in `fuzz_targets/`.
    pub name: &'static str,
    /// The body.
    pub body: fn(&[u8]),
    /// Seeds that are always there.
    pub built_in: fn() -> Vec<Vec<u8>>,
    /// Folders with seed files: below the repository's root, or below the field files
    /// (`corpus:NAME`, when `VESTIBULE_CORPUS` is set). Absent ones give none.
    pub folders: &'static [&'static str],
    /// Cuts one seed file into inputs.
    pub cut: fn(Vec<u8>) -> Vec<Vec<u8>>,
}

/// Every target.
pub const TARGETS: &[Target] = &[
    Target {
        name: "dhcp",
        body: dhcp::server,
        built_in: dhcp::seeds,
        folders: &["tests/vectors/dhcp", "corpus:dhcp"],
        cut: dhcp::payloads,
    },
    Target {
        name: "dhcp_sequence",
        body: dhcp_sequence::run,
        built_in: dhcp_sequence::seeds,
        folders: &[],
        cut: whole,
    },
    Target {
        name: "dhcp6",
        body: dhcp6::sequence,
        built_in: dhcp6::seeds,
        folders: &["corpus:dhcp"],
        cut: dhcp6::payloads,
    },
    Target {
        name: "router_solicitation",
        body: dhcp6::solicitation,
        built_in: dhcp6::solicitation_seeds,
        folders: &[],
        cut: whole,
    },
    Target {
        name: "tftp",
        body: tftp::transfer,
        built_in: tftp::seeds,
        folders: &["tests/vectors/tftp"],
        cut: tftp::single,
    },
    Target {
        name: "tftp_listener",
        body: tftp::listener,
        built_in: tftp::listener_seeds,
        folders: &["tests/vectors/tftp"],
        cut: tftp::single_of_a_client,
    },
    Target {
        name: "lldp",
        body: lldp::frame,
        built_in: lldp::seeds,
        folders: &["tests/vectors/lldp", "corpus:lldp"],
        cut: lldp::frames,
    },
    Target {
        name: "capture",
        body: capture::file,
        built_in: capture::seeds,
        folders: &["corpus:dhcp", "corpus:lldp", "corpus:tftp"],
        cut: whole,
    },
    Target {
        name: "wire_hello",
        body: wire::hello,
        built_in: wire::seeds,
        folders: &["tests/vectors/wire/v1"],
        cut: whole,
    },
    Target {
        name: "wire_evidence",
        body: wire::evidence,
        built_in: wire::seeds,
        folders: &["tests/vectors/wire/v1"],
        cut: whole,
    },
    Target {
        name: "wire_reply",
        body: wire::reply,
        built_in: wire::seeds,
        folders: &["tests/vectors/wire/v1"],
        cut: whole,
    },
    Target {
        name: "wire_sealed",
        body: wire::sealed,
        built_in: wire::seeds,
        folders: &["tests/vectors/wire/v1"],
        cut: whole,
    },
    Target {
        name: "tpm_public",
        body: tpm::public,
        built_in: tpm::public_seeds,
        folders: &["tests/vectors/tpm"],
        cut: whole,
    },
    Target {
        name: "tpm_attest",
        body: tpm::attest,
        built_in: tpm::attest_seeds,
        folders: &["tests/vectors/tpm", "corpus:quote"],
        cut: whole,
    },
    Target {
        name: "tpm_signature",
        body: tpm::signature,
        built_in: tpm::signature_seeds,
        folders: &["tests/vectors/tpm", "corpus:quote"],
        cut: whole,
    },
    Target {
        name: "hello",
        body: appraisal::hello,
        built_in: wire::seeds,
        folders: &["tests/vectors/wire/v1"],
        cut: whole,
    },
    Target {
        name: "event_log",
        body: appraisal::event_log,
        built_in: appraisal::event_log_seeds,
        folders: &["tests/vectors/eventlog", "corpus:eventlog"],
        cut: whole,
    },
    Target {
        name: "ek_cert",
        body: appraisal::ek_cert,
        built_in: appraisal::ek_cert_seeds,
        folders: &[
            "corpus:ekcert",
            "corpus:ca",
            "corpus:platcert",
            "corpus:sbkeys",
        ],
        cut: whole,
    },
    Target {
        name: "pe",
        body: boot::pe,
        built_in: boot::pe_seeds,
        folders: &["tests/vectors/boot"],
        cut: whole,
    },
    Target {
        name: "catalog",
        body: boot::catalog,
        built_in: boot::catalog_seeds,
        folders: &["tests/vectors/boot"],
        cut: whole,
    },
    Target {
        name: "ipxe_script",
        body: boot::ipxe_script,
        built_in: boot::ipxe_seeds,
        folders: &["tests/vectors/boot"],
        cut: whole,
    },
];

/// The file is one input.
fn whole(file: Vec<u8>) -> Vec<Vec<u8>> {
    vec![file]
}

/// Inputs that begin `before` bytes ahead of each `mark` in a capture file. Good enough for seeds.
fn around(file: &[u8], mark: &[u8], before: usize, len_max: usize) -> Vec<Vec<u8>> {
    (before..file.len().saturating_sub(mark.len()))
        .filter(|&at| file[at..].starts_with(mark))
        .map(|at| at - before)
        .map(|start| file[start..file.len().min(start + len_max)].to_vec())
        .collect()
}

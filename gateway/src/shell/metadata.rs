//! Paths by which machines ask other services for their data: NoCloud, EC2, OpenStack, Tinkerbell.
//!
//! Decides only that they are answered alike on every listener: 403, a code, nothing else. No URL is a
//! proof of identity; what a machine gets, it gets sealed with its admission (docs/PROTOCOL.md section 6).

use gateway_core::reason::Reason;
use hyper::{Response, StatusCode, header};

use crate::shell::http::{self, Body};

/// The code of the refusal, and its whole body.
pub const CODE: &str = "handover.unattested";
/// Names of NoCloud's files, whatever the folder.
const FILES: [&str; 4] = ["user-data", "meta-data", "vendor-data", "network-config"];
/// First segments of the other services.
const FOLDERS: [&str; 5] = [
    "metadata",
    "latest",
    "openstack",
    "hegel",
    "computeMetadata",
];

/// Whether a path asks for a machine's data without attestation.
pub fn asks(path: &str) -> bool {
    if path.starts_with("/boot/") || path.starts_with("/v1/") {
        return false;
    }
    let mut segments = path.split('/').filter(|segment| !segment.is_empty());
    let first = segments.next().unwrap_or_default();
    FOLDERS.contains(&first)
        || is_date(first)
        || FILES.contains(&first)
        || segments.any(|segment| FILES.contains(&segment))
}

/// A version of EC2's service, `2009-04-04`.
fn is_date(segment: &str) -> bool {
    segment.len() == 10
        && segment.bytes().enumerate().all(|(at, byte)| match at {
            4 | 7 => byte == b'-',
            _ => byte.is_ascii_digit(),
        })
}

/// For log and counters.
pub fn reason(found: String) -> Reason {
    Reason::new(
        CODE,
        "an attestation: a machine's data is sealed to its TPM and sent with the result",
        found,
        "docs/PROTOCOL.md section 6",
        "boot the machine with the gateway's image; declare its payloads in [handover]",
    )
}

/// What whoever asks is told.
pub fn refusal() -> Response<Body> {
    let text = format!("{CODE}\n");
    let mut response = http::response(StatusCode::FORBIDDEN, "text/plain; charset=utf-8", text);
    http::set(&mut response, header::CACHE_CONTROL, "no-store");
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_paths_are_known_and_ours_are_not_among_them() {
        for path in [
            "/user-data",
            "/meta-data",
            "/nocloud/node-7/user-data",
            "/node-7/vendor-data",
            "/2009-04-04/meta-data/instance-id",
            "/2009-04-04/",
            "/latest/user-data",
            "/latest/api/token",
            "/metadata",
            "/metadata/v1.json",
            "/openstack/latest/meta_data.json",
            "//user-data",
        ] {
            assert!(asks(path), "{path}");
        }
        for path in [
            "/",
            "",
            "/boot/script.ipxe",
            "/boot/ab/user-data",
            "/v1/hello",
            "/healthz",
            "/2009-04-0x/",
            "/metadata.json",
        ] {
            assert!(!asks(path), "{path}");
        }
    }
}

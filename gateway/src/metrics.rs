//! Counters and gauges of the daemon in the Prometheus text format (version 0.0.4).
//!
//! Decides nothing. Labels are stable codes and listener names, never a machine: what one machine
//! did is in the ledger and the log. Series per family are bounded, so that a hostile peer cannot
//! grow this table.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};

/// Most label values per family; further ones are counted as `other`.
const SERIES_MAX: usize = 256;

/// One counter family: name, label key, help.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Family {
    /// Metric name with unit suffix.
    pub name: &'static str,
    /// The one label.
    pub label: &'static str,
    /// Help line.
    pub help: &'static str,
}

/// Connections accepted, per listener.
pub const CONNECTIONS: Family = Family {
    name: "vestibule_connections_total",
    label: "listener",
    help: "Connections accepted.",
};
/// Connections turned away by a bound, per listener.
pub const CONNECTIONS_REFUSED: Family = Family {
    name: "vestibule_connections_refused_total",
    label: "listener",
    help: "Connections turned away by a bound.",
};
/// Connections that stood still and gave way to a newcomer at a bound, per listener.
pub const CONNECTIONS_EVICTED: Family = Family {
    name: "vestibule_connections_evicted_total",
    label: "listener",
    help: "Connections that stood still and gave way to a newcomer at a bound.",
};
/// Failed TLS handshakes, per code.
pub const TLS_REFUSED: Family = Family {
    name: "vestibule_tls_refused_total",
    label: "code",
    help: "TLS handshakes that did not complete.",
};
/// HTTP responses, per listener and status class.
pub const RESPONSES: Family = Family {
    name: "vestibule_http_responses_total",
    label: "response",
    help: "HTTP responses, as listener/status.",
};
/// Boot artefact bytes handed to the transport, per listener.
pub const BOOT_BYTES: Family = Family {
    name: "vestibule_boot_bytes_total",
    label: "listener",
    help: "Bytes of boot artefacts promised in responses.",
};
/// Requests refused by the shell before any appraisal, per code.
pub const REQUESTS_REFUSED: Family = Family {
    name: "vestibule_requests_refused_total",
    label: "code",
    help: "Requests refused before they reached the gateway's core.",
};
/// Refusals of the core, per code.
pub const REFUSED: Family = Family {
    name: "vestibule_refused_total",
    label: "code",
    help: "Refusals of the core: appraisals, claims, sessions, DHCP and boot.",
};
/// Calls of the KMS for Talos nodes, per operation and outcome.
pub const KMS_CALLS: Family = Family {
    name: "vestibule_kms_calls_total",
    label: "call",
    help: "Seal and unseal of disk keys, as operation/outcome.",
};
/// Acts of administrators, per act and outcome.
pub const ADMIN_ACTS: Family = Family {
    name: "vestibule_admin_acts_total",
    label: "act",
    help: "Acts of administrators, as act/outcome.",
};
/// DHCP datagrams, per outcome.
pub const DHCP: Family = Family {
    name: "vestibule_dhcp_datagrams_total",
    label: "outcome",
    help: "DHCP datagrams, by what became of them.",
};
/// DHCPv6 datagrams, per outcome.
pub const DHCP6: Family = Family {
    name: "vestibule_dhcp6_datagrams_total",
    label: "outcome",
    help: "DHCPv6 datagrams, by what became of them.",
};
/// Router Solicitations and Advertisements, per outcome.
pub const RA: Family = Family {
    name: "vestibule_router_advertisement_messages_total",
    label: "outcome",
    help: "Router Solicitations and Advertisements, by what became of them.",
};
/// TFTP transfers, per outcome.
pub const TFTP: Family = Family {
    name: "vestibule_tftp_transfers_total",
    label: "outcome",
    help: "TFTP transfers, by what became of them.",
};
/// LLDP frames, per outcome.
pub const LLDP_FRAMES: Family = Family {
    name: "vestibule_lldp_frames_total",
    label: "outcome",
    help: "LLDP frames, by what became of them.",
};
/// Changes of LLDP neighbours.
pub const LLDP_NEIGHBOURS: Family = Family {
    name: "vestibule_lldp_neighbour_changes_total",
    label: "change",
    help: "LLDP neighbours that came, changed or went, and links that fell silent.",
};

/// Changes of the gate, per outcome.
pub const GATE: Family = Family {
    name: "vestibule_gate_changes_total",
    label: "outcome",
    help: "Elements of the gate opened and closed, changes that failed, differences put right.",
};
/// Rounds of the SPIRE registrar, per outcome.
pub const SPIRE_ROUNDS: Family = Family {
    name: "vestibule_spire_rounds_total",
    label: "outcome",
    help: "Rounds of the SPIRE registrar: the server answered, or it did not.",
};
/// What SPIRE was told, per change and outcome.
pub const SPIRE_CHANGES: Family = Family {
    name: "vestibule_spire_changes_total",
    label: "change",
    help: "Entries and agents changed at the SPIRE server and EK hash files, as change/outcome.",
};

/// All counters. Shared by reference; never global.
#[derive(Debug, Default)]
pub struct Metrics {
    counters: Mutex<BTreeMap<Family, BTreeMap<Cow<'static, str>, u64>>>,
}

impl Metrics {
    /// Adds `by` to one series.
    pub fn add(&self, family: Family, value: impl Into<Cow<'static, str>>, by: u64) {
        let mut counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        let series = counters.entry(family).or_default();
        let mut value = value.into();
        if series.len() >= SERIES_MAX && !series.contains_key(&value) {
            value = Cow::Borrowed("other");
        }
        let count = series.entry(value).or_insert(0);
        *count = count.saturating_add(by);
    }

    /// Adds one to one series.
    pub fn count(&self, family: Family, value: impl Into<Cow<'static, str>>) {
        self.add(family, value, 1);
    }

    /// Current value of one series; 0 when it was never counted.
    pub fn get(&self, family: Family, value: &str) -> u64 {
        let counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        counters
            .get(&family)
            .and_then(|series| series.get(value))
            .copied()
            .unwrap_or(0)
    }

    /// All counters as text.
    pub fn render(&self) -> String {
        let counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        let mut out = String::new();
        for (family, series) in counters.iter() {
            head(&mut out, family.name, family.help, "counter");
            for (value, count) in series {
                line(&mut out, family.name, &[(family.label, value)], *count);
            }
        }
        out
    }
}

/// Writes the `HELP` and `TYPE` lines of one family.
pub fn head(out: &mut String, name: &str, help: &str, kind: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

/// Writes one sample.
pub fn line(out: &mut String, name: &str, labels: &[(&str, &str)], value: u64) {
    out.push_str(name);
    for (index, (key, text)) in labels.iter().enumerate() {
        out.push(if index == 0 { '{' } else { ',' });
        let _ = write!(out, "{key}=\"");
        for c in text.chars() {
            match c {
                '\\' => out.push_str("\\\\"),
                '"' => out.push_str("\\\""),
                '\n' => out.push_str("\\n"),
                c => out.push(c),
            }
        }
        out.push('"');
    }
    if !labels.is_empty() {
        out.push('}');
    }
    let _ = writeln!(out, " {value}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renders_the_text_format() {
        let metrics = Metrics::default();
        metrics.count(TLS_REFUSED, "tls.no_ecdhe");
        metrics.count(TLS_REFUSED, "tls.no_ecdhe");
        metrics.count(CONNECTIONS, "a\"b\\\n");
        assert_eq!(
            metrics.render(),
            "# HELP vestibule_connections_total Connections accepted.\n\
             # TYPE vestibule_connections_total counter\n\
             vestibule_connections_total{listener=\"a\\\"b\\\\\\n\"} 1\n\
             # HELP vestibule_tls_refused_total TLS handshakes that did not complete.\n\
             # TYPE vestibule_tls_refused_total counter\n\
             vestibule_tls_refused_total{code=\"tls.no_ecdhe\"} 2\n"
        );
    }

    #[test]
    fn series_are_bounded() {
        let metrics = Metrics::default();
        for n in 0..SERIES_MAX + 50 {
            metrics.count(REQUESTS_REFUSED, format!("code-{n}"));
        }
        assert_eq!(metrics.get(REQUESTS_REFUSED, "other"), 50);
        assert_eq!(metrics.render().lines().count(), SERIES_MAX + 3);
    }
}

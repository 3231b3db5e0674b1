//! The messages of SPIRE's server API that are used here (`spire.api.server.entry.v1`,
//! `spire.api.server.agent.v1`, `spire.api.types`, spire-api-sdk at SPIRE 1.13): fields by number, those
//! that nobody here reads or sets left out. protobuf skips what it does not know.

use gateway_core::spire;

/// `spire.api.types.SPIFFEID`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct SpiffeId {
    #[prost(string, tag = "1")]
    pub trust_domain: String,
    #[prost(string, tag = "2")]
    pub path: String,
}

/// `spire.api.types.Selector`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Selector {
    #[prost(string, tag = "1")]
    pub kind: String,
    #[prost(string, tag = "2")]
    pub value: String,
}

/// `spire.api.types.SelectorMatch`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct SelectorMatch {
    #[prost(message, repeated, tag = "1")]
    pub selectors: Vec<Selector>,
    #[prost(int32, tag = "2")]
    pub behavior: i32,
}

/// `MATCH_ANY`: at least one of them.
pub(super) const MATCH_ANY: i32 = 3;

/// `spire.api.types.Status`, with the codes of gRPC.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Status {
    #[prost(int32, tag = "1")]
    pub code: i32,
    #[prost(string, tag = "2")]
    pub message: String,
}

/// `spire.api.types.Entry`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Entry {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(message, optional, tag = "2")]
    pub spiffe_id: Option<SpiffeId>,
    #[prost(message, optional, tag = "3")]
    pub parent_id: Option<SpiffeId>,
    #[prost(message, repeated, tag = "4")]
    pub selectors: Vec<Selector>,
    #[prost(int32, tag = "5")]
    pub x509_svid_ttl: i32,
}

/// `spire.api.types.EntryMask`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct EntryMask {
    #[prost(bool, tag = "2")]
    pub spiffe_id: bool,
    #[prost(bool, tag = "3")]
    pub parent_id: bool,
    #[prost(bool, tag = "4")]
    pub selectors: bool,
    #[prost(bool, tag = "5")]
    pub x509_svid_ttl: bool,
}

impl EntryMask {
    /// What we say something about, and nothing else.
    pub fn ours() -> Self {
        Self {
            spiffe_id: true,
            parent_id: true,
            selectors: true,
            x509_svid_ttl: true,
        }
    }
}

/// `ListEntriesRequest`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ListEntriesRequest {
    #[prost(message, optional, tag = "2")]
    pub output_mask: Option<EntryMask>,
    #[prost(int32, tag = "3")]
    pub page_size: i32,
    #[prost(string, tag = "4")]
    pub page_token: String,
}

/// `ListEntriesResponse`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ListEntriesResponse {
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<Entry>,
    #[prost(string, tag = "2")]
    pub next_page_token: String,
}

/// `BatchCreateEntryRequest`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct BatchCreateEntryRequest {
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<Entry>,
    #[prost(message, optional, tag = "2")]
    pub output_mask: Option<EntryMask>,
}

/// `BatchUpdateEntryRequest`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct BatchUpdateEntryRequest {
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<Entry>,
    #[prost(message, optional, tag = "2")]
    pub input_mask: Option<EntryMask>,
    #[prost(message, optional, tag = "3")]
    pub output_mask: Option<EntryMask>,
}

/// `BatchDeleteEntryRequest`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct BatchDeleteEntryRequest {
    #[prost(string, repeated, tag = "1")]
    pub ids: Vec<String>,
}

/// The responses of the three batch calls: a status for each item, in order. What else they hold is not
/// read.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct BatchResponse {
    #[prost(message, repeated, tag = "1")]
    pub results: Vec<BatchResult>,
}

/// One item of it.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct BatchResult {
    #[prost(message, optional, tag = "1")]
    pub status: Option<Status>,
}

/// `ListAgentsRequest.Filter`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct AgentFilter {
    #[prost(string, tag = "1")]
    pub by_attestation_type: String,
    #[prost(message, optional, tag = "2")]
    pub by_selector_match: Option<SelectorMatch>,
}

/// `spire.api.types.AgentMask`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct AgentMask {
    #[prost(bool, tag = "5")]
    pub selectors: bool,
    #[prost(bool, tag = "6")]
    pub banned: bool,
}

/// `ListAgentsRequest`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ListAgentsRequest {
    #[prost(message, optional, tag = "1")]
    pub filter: Option<AgentFilter>,
    #[prost(message, optional, tag = "2")]
    pub output_mask: Option<AgentMask>,
    #[prost(int32, tag = "3")]
    pub page_size: i32,
    #[prost(string, tag = "4")]
    pub page_token: String,
}

/// `ListAgentsResponse`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ListAgentsResponse {
    #[prost(message, repeated, tag = "1")]
    pub agents: Vec<Agent>,
    #[prost(string, tag = "2")]
    pub next_page_token: String,
}

/// `spire.api.types.Agent`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Agent {
    #[prost(message, optional, tag = "1")]
    pub id: Option<SpiffeId>,
    #[prost(message, repeated, tag = "5")]
    pub selectors: Vec<Selector>,
    #[prost(bool, tag = "6")]
    pub banned: bool,
}

/// `BanAgentRequest` and `DeleteAgentRequest`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct AgentRequest {
    #[prost(message, optional, tag = "1")]
    pub id: Option<SpiffeId>,
}

/// `google.protobuf.Empty`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Empty {}

impl From<&spire::Selector> for Selector {
    fn from(selector: &spire::Selector) -> Self {
        Self {
            kind: selector.kind.clone(),
            value: selector.value.clone(),
        }
    }
}

impl From<Selector> for spire::Selector {
    fn from(selector: Selector) -> Self {
        Self {
            kind: selector.kind,
            value: selector.value,
        }
    }
}

impl Entry {
    /// For this trust domain.
    pub fn of(entry: &spire::Entry, trust_domain: &str) -> Self {
        let id = |path: &String| SpiffeId {
            trust_domain: trust_domain.to_owned(),
            path: path.clone(),
        };
        Self {
            id: entry.id.clone(),
            spiffe_id: Some(id(&entry.path)),
            parent_id: Some(id(&entry.parent)),
            selectors: entry.selectors.iter().map(Selector::from).collect(),
            x509_svid_ttl: entry.x509_svid_ttl_secs,
        }
    }
}

impl From<Entry> for spire::Entry {
    fn from(entry: Entry) -> Self {
        let path = |id: Option<SpiffeId>| id.map(|id| id.path).unwrap_or_default();
        Self {
            id: entry.id,
            path: path(entry.spiffe_id),
            parent: path(entry.parent_id),
            selectors: entry.selectors.into_iter().map(Into::into).collect(),
            x509_svid_ttl_secs: entry.x509_svid_ttl,
        }
    }
}

impl From<Agent> for spire::Agent {
    fn from(agent: Agent) -> Self {
        Self {
            path: agent.id.map(|id| id.path).unwrap_or_default(),
            selectors: agent.selectors.into_iter().map(Into::into).collect(),
            banned: agent.banned,
        }
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;

    /// Golden bytes: tag and wire type of each field as the `.proto` files of the SDK number them.
    #[test]
    fn an_entry_is_written_as_the_sdk_numbers_it() {
        let entry = spire::Entry {
            id: "i".into(),
            path: "/n".into(),
            parent: "/p".into(),
            selectors: [spire::Selector {
                kind: "t".into(),
                value: "v".into(),
            }]
            .into(),
            x509_svid_ttl_secs: 60,
        };
        let bytes = Entry::of(&entry, "td").encode_to_vec();
        let golden = [
            &b"\x0a\x01i"[..],
            b"\x12\x08\x0a\x02td\x12\x02/n",
            b"\x1a\x08\x0a\x02td\x12\x02/p",
            b"\x22\x06\x0a\x01t\x12\x01v",
            b"\x28\x3c",
        ]
        .concat();
        assert_eq!(bytes, golden);
        let read = Entry::decode(&golden[..]).expect("a message");
        assert_eq!(spire::Entry::from(read), entry);
    }

    #[test]
    fn what_the_sdk_has_beside_is_skipped() {
        // types.Agent: id, attestation_type = 2, serial = 3, expires_at = 4, selectors, banned, can_reattest = 7.
        let bytes = b"\x0a\x08\x0a\x02td\x12\x02/a\x12\x09tpm_devid\x1a\x01s\x20\x05\x2a\x06\x0a\x01t\x12\x01v\x30\x01\x38\x01";
        let agent = spire::Agent::from(Agent::decode(&bytes[..]).expect("a message"));
        assert!(agent.banned);
        assert_eq!((agent.path.as_str(), agent.selectors.len()), ("/a", 1));
    }
}

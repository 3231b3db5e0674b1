//! Live attestation sessions: one per TLS connection, hello to evidence, and the bounds on them.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use crate::appraisal::{CatalogEntry, HelloFacts, Issued, RelayWord, Verified};
use crate::identity::{ConnId, MacAddr, MachineId, UnixMillis};
use crate::limits;
use crate::reason::Reason;

/// How far a session is.
pub(super) enum Phase {
    /// The hello is with a worker.
    JudgingHello,
    /// The challenge is out.
    Challenged(Box<(Verified<HelloFacts>, Issued)>),
    /// The evidence is with a worker, judged by this catalogue, or the certificate with the CA.
    Judging(Arc<Vec<CatalogEntry>>),
}

/// One session.
pub(super) struct Session {
    pub peer: IpAddr,
    /// Hardware address of the lease behind `peer`; all zero when there is none.
    pub mac: MacAddr,
    /// Option 82 of that lease.
    pub relay: Option<RelayWord>,
    /// Interface or relay.
    pub ingress: String,
    /// Finds this attempt in log, ledger and on the node's console.
    pub correlation: String,
    pub deadline: UnixMillis,
    /// The machine its keys are bound to, once known.
    pub machine: Option<MachineId>,
    pub phase: Phase,
}

/// All sessions.
#[derive(Default)]
pub(super) struct Sessions {
    by_conn: BTreeMap<ConnId, Session>,
    per_peer: HashMap<IpAddr, usize>,
}

impl Sessions {
    /// Takes a new session in.
    ///
    /// # Errors
    /// `session.limit` or `channel.reused` with what to do.
    pub fn open(&mut self, conn: ConnId, session: Session) -> Result<(), Reason> {
        if self.by_conn.contains_key(&conn) {
            return Err(Reason::new(
                "channel.reused",
                "one hello per connection",
                "a second hello",
                "docs/PROTOCOL.md section 2",
                "the node opens a new connection for each attempt",
            ));
        }
        let from_peer = self.per_peer.get(&session.peer).copied().unwrap_or(0);
        let (limit, found) = if self.by_conn.len() >= limits::SESSIONS_MAX {
            (
                limits::SESSIONS_MAX,
                format!("{} sessions", self.by_conn.len()),
            )
        } else if from_peer >= limits::SESSIONS_PER_PEER_MAX {
            (
                limits::SESSIONS_PER_PEER_MAX,
                format!("{from_peer} sessions of {}", session.peer),
            )
        } else {
            *self.per_peer.entry(session.peer).or_default() += 1;
            self.by_conn.insert(conn, session);
            return Ok(());
        };
        Err(Reason::new(
            "session.limit",
            format!("fewer than {limit} sessions"),
            found,
            "gateway/core/src/limits.rs",
            "wait: sessions end after 60 s; if it persists look for a flood on this port",
        ))
    }

    pub fn get_mut(&mut self, conn: ConnId) -> Option<&mut Session> {
        self.by_conn.get_mut(&conn)
    }

    pub fn close(&mut self, conn: ConnId) -> Option<Session> {
        let session = self.by_conn.remove(&conn)?;
        if let Some(count) = self.per_peer.get_mut(&session.peer) {
            *count -= 1;
            if *count == 0 {
                self.per_peer.remove(&session.peer);
            }
        }
        Some(session)
    }

    pub fn len(&self) -> usize {
        self.by_conn.len()
    }

    /// The earliest deadline.
    pub fn deadline(&self) -> Option<UnixMillis> {
        self.by_conn.values().map(|s| s.deadline).min()
    }

    /// Connections whose time is over.
    pub fn expired(&self, now: UnixMillis) -> Vec<ConnId> {
        self.by_conn
            .iter()
            .filter(|(_, s)| s.deadline <= now)
            .map(|(conn, _)| *conn)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn session(peer: u32, deadline: u64) -> Session {
        Session {
            peer: IpAddr::V4(Ipv4Addr::from_bits(peer)),
            mac: MacAddr([0; 6]),
            relay: None,
            ingress: "prov".into(),
            correlation: String::new(),
            deadline: UnixMillis(deadline),
            machine: None,
            phase: Phase::JudgingHello,
        }
    }

    fn code(opened: Result<(), Reason>) -> String {
        opened.expect_err("must be refused").code.into_owned()
    }

    #[test]
    fn rejects_one_more_session_of_a_peer_until_one_closes() {
        let mut sessions = Sessions::default();
        let most = limits::SESSIONS_PER_PEER_MAX as u64;
        for conn in 0..most {
            sessions
                .open(ConnId(conn), session(1, 10))
                .expect("within the bound");
        }
        assert_eq!(
            code(sessions.open(ConnId(most), session(1, 10))),
            "session.limit"
        );
        sessions
            .open(ConnId(most), session(2, 10))
            .expect("another peer is not held up");
        assert!(sessions.close(ConnId(0)).is_some());
        sessions
            .open(ConnId(most + 1), session(1, 10))
            .expect("one has closed");
    }

    #[test]
    fn rejects_sessions_beyond_the_total() {
        let mut sessions = Sessions::default();
        let most = limits::SESSIONS_MAX as u64;
        for conn in 0..most {
            let peer = conn as u32;
            sessions
                .open(ConnId(conn), session(peer, 10))
                .expect("within the bound");
        }
        assert_eq!(
            code(sessions.open(ConnId(most), session(u32::MAX, 10))),
            "session.limit"
        );
        assert_eq!(sessions.len() as u64, most);
    }

    #[test]
    fn rejects_a_second_hello_and_ends_at_the_deadline() {
        let mut sessions = Sessions::default();
        sessions.open(ConnId(1), session(1, 10)).expect("first");
        assert_eq!(
            code(sessions.open(ConnId(1), session(1, 10))),
            "channel.reused"
        );
        assert_eq!(sessions.deadline(), Some(UnixMillis(10)));
        assert!(sessions.expired(UnixMillis(9)).is_empty());
        assert_eq!(sessions.expired(UnixMillis(10)), [ConnId(1)]);
    }
}

//! DHCPv6 leases between the server core and the lease journal.

use netstack::dhcp6;

use crate::identity::{MacAddr, UnixMillis};
use crate::record::Lease6Record;

/// What is written down of a lease.
pub fn to_record(lease: &dhcp6::Lease) -> Lease6Record {
    Lease6Record {
        addr: lease.addr,
        duid: lease.client.duid.to_string(),
        iaid: lease.client.iaid,
        mac: lease.mac.map(|mac| MacAddr(mac.0)),
        state: match lease.state {
            dhcp6::LeaseState::Offered => "offered",
            dhcp6::LeaseState::Bound => "bound",
            dhcp6::LeaseState::Released => "released",
            dhcp6::LeaseState::Expired => "expired",
            dhcp6::LeaseState::Declined => "declined",
        }
        .to_owned(),
        expires: UnixMillis(lease.expires_ms),
    }
}

/// The lease of a record; none for a state that is not kept over a restart.
pub fn from_record(record: &Lease6Record) -> Option<dhcp6::Lease> {
    let state = match record.state.as_str() {
        "bound" => dhcp6::LeaseState::Bound,
        "released" => dhcp6::LeaseState::Released,
        "declined" => dhcp6::LeaseState::Declined,
        _ => return None,
    };
    Some(dhcp6::Lease {
        addr: record.addr,
        client: dhcp6::ClientKey {
            duid: dhcp6::Duid::from_bytes(hex::decode(&record.duid).ok()?)?,
            iaid: record.iaid,
        },
        mac: record.mac.map(|mac| netstack::MacAddr(mac.0)),
        state,
        expires_ms: record.expires.0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_survives_the_journal_and_an_offer_does_not() {
        let lease = |state| dhcp6::Lease {
            addr: "2001:db8::5".parse().unwrap(),
            client: dhcp6::ClientKey {
                duid: dhcp6::Duid::from_bytes(vec![0, 4, 7]).unwrap(),
                iaid: 9,
            },
            mac: Some(netstack::MacAddr([2, 0, 0, 0, 0, 7])),
            state,
            expires_ms: 17,
        };
        let bound = lease(dhcp6::LeaseState::Bound);
        let json = serde_json::to_string(&to_record(&bound)).unwrap();
        assert_eq!(
            json,
            r#"{"addr":"2001:db8::5","duid":"000407","iaid":9,"mac":"02:00:00:00:00:07","state":"bound","expires":17}"#
        );
        let read: Lease6Record = serde_json::from_str(&json).unwrap();
        assert_eq!(from_record(&read), Some(bound));
        let offered = to_record(&lease(dhcp6::LeaseState::Offered));
        assert_eq!(from_record(&offered), None);
    }
}

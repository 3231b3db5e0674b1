//! TFTP: a request from anywhere on the segment, and what comes to a transfer's port.

use netstack::tftp::packet::Packet;
use netstack::tftp::{Limits, Transfer};

/// Largest payload on Ethernet.
const PAYLOAD_MAX: usize = 1472;
/// More packets than a transfer of this size can need, retransmissions included.
const PACKETS_MAX: usize = 100_000;

/// Cuts an input into datagrams: one length byte before each.
fn datagrams(mut data: &[u8]) -> Vec<&[u8]> {
    let mut out = Vec::new();
    while let Some((&len, rest)) = data.split_first() {
        let (one, rest) = rest.split_at(usize::from(len).min(rest.len()));
        out.push(one);
        data = rest;
    }
    out
}

/// The first datagram asks, the others go to the transfer, 100 ms apart; then the client is gone.
pub fn transfer(data: &[u8]) {
    let mut datagrams = datagrams(data).into_iter();
    let Some(first) = datagrams.next() else {
        return;
    };
    let request = match Packet::parse(first) {
        Ok(Packet::ReadRequest(request)) => request,
        Ok(_) => return,
        Err(error) => {
            if let Some(reply) = error.reply() {
                assert!(
                    Packet::parse(&reply.encode()).is_ok(),
                    "we cannot read our own ERROR"
                );
            }
            return;
        }
    };
    let file = vec![0xa5; 5000];
    let limits = Limits::default();
    let mut transfer = Transfer::new(0, &request, file.len() as u64, limits);
    let mut out = Vec::new();
    let mut sent = 0;
    let mut drain = |transfer: &mut Transfer, now_ms| {
        let mut burst = 0;
        while transfer.poll_transmit(now_ms, &file, &mut out) {
            assert!(out.len() <= PAYLOAD_MAX, "a packet that would fragment");
            burst += 1;
            sent += 1;
        }
        assert!(
            burst <= transfer.window().max(1),
            "more than a window at once"
        );
        assert!(sent <= PACKETS_MAX, "one datagram buys packets without end");
    };
    let mut now_ms = 0;
    drain(&mut transfer, now_ms);
    for datagram in datagrams {
        now_ms += 100;
        transfer.handle(now_ms, datagram);
        transfer.handle_timeout(now_ms);
        drain(&mut transfer, now_ms);
    }
    // However it went: alone, the transfer comes to its end.
    while let Some(deadline) = transfer.poll_timeout() {
        assert!(
            deadline <= limits.lifetime_ms,
            "a deadline after the end of life"
        );
        now_ms = now_ms.max(deadline);
        transfer.handle_timeout(now_ms);
        drain(&mut transfer, now_ms);
    }
    assert!(transfer.outcome().is_some());
    assert!(transfer.stats().acked_len <= file.len() as u64);
}

/// One datagram of a file as an input.
pub fn single(datagram: Vec<u8>) -> Vec<Vec<u8>> {
    match u8::try_from(datagram.len()) {
        Ok(len) => vec![[vec![len], datagram].concat()],
        Err(_) => Vec::new(),
    }
}

/// Requests with each option, and the start of a transfer.
pub fn seeds() -> Vec<Vec<u8>> {
    let request = |text: &[u8]| [&[0, 1][..], text].concat();
    let ack = |block: u8| vec![0, 4, 0, block];
    let walks = [
        vec![request(b"ipxe.efi\0octet\0"), ack(1), ack(2), ack(2)],
        vec![
            request(
                b"ipxe.efi\0octet\0tsize\x000\0blksize\x001428\0windowsize\x004\0timeout\x002\0",
            ),
            ack(0),
            ack(3),
            ack(1),
            vec![0, 5, 0, 8, b'x', 0],
        ],
        vec![
            request(b"ipxe.efi\0octet\0blksize\x008\0windowsize\x0065535\0"),
            ack(0),
            ack(200),
        ],
        vec![request(b"../../etc/passwd\0netascii\0")],
        vec![[&[0, 2][..], b"x\0octet\0"].concat()],
    ];
    walks
        .into_iter()
        .map(|walk| {
            walk.into_iter()
                .flat_map(|datagram| [vec![datagram.len() as u8], datagram].concat())
                .collect()
        })
        .collect()
}

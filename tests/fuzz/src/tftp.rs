//! TFTP: a request from anywhere on the segment, and what comes to a transfer's port.

use std::net::SocketAddr;

use netstack::tftp::packet::Packet;
use netstack::tftp::{Bounds, ErrorCode, ErrorReply, Event, Limits, Server, Transfer};

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
    let mut drain = |transfer: &mut Transfer, now_us| {
        let mut burst = 0;
        while transfer.poll_transmit(now_us, &file, &mut out) {
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
    let mut now_us = 0;
    drain(&mut transfer, now_us);
    for datagram in datagrams {
        now_us += 100_000;
        transfer.handle(now_us, datagram);
        transfer.handle_timeout(now_us);
        drain(&mut transfer, now_us);
    }
    // However it went: alone, the transfer comes to its end.
    while let Some(deadline) = transfer.poll_timeout() {
        assert!(
            deadline <= limits.lifetime_us,
            "a deadline after the end of life"
        );
        now_us = now_us.max(deadline);
        transfer.handle_timeout(now_us);
        drain(&mut transfer, now_us);
    }
    assert!(transfer.outcome().is_some());
    assert!(transfer.stats().acked_len <= file.len() as u64);
}

/// A listener with few slots: one byte says from which of eight clients a datagram comes and how
/// long after the last one, then comes the datagram as in [`transfer`]. At the end all is silence.
pub fn listener(data: &[u8]) {
    let bounds = Bounds {
        transfers_max: 6,
        per_peer_max: 3,
        netascii_max: 2,
        ..Bounds::default()
    };
    let mut server: Server<Vec<u8>> = Server::new(bounds);
    let mut out = Vec::new();
    let mut now_us = 0;
    let mut rest = data;
    while let Some((&who, tail)) = rest.split_first()
        && let Some((&len, tail)) = tail.split_first()
    {
        let (datagram, tail) = tail.split_at(usize::from(len).min(tail.len()));
        rest = tail;
        now_us += u64::from(who >> 3) * 50_000;
        let peer = SocketAddr::from(([10, 0, 0, who & 3], 2070 + u16::from(who & 4)));
        server.handle_timeout(now_us);
        server.handle(now_us, peer, datagram);
        drain(&mut server, now_us, &mut out);
        assert!(server.len() <= bounds.transfers_max, "more than its slots");
    }
    let mut turns = 0;
    while let Some(due_us) = server.poll_timeout() {
        now_us = now_us.max(due_us);
        server.handle_timeout(now_us);
        drain(&mut server, now_us, &mut out);
        turns += 1;
        assert!(turns < PACKETS_MAX, "a transfer without an end");
    }
    assert!(server.is_empty(), "a transfer that nothing ends");
}

/// Sends everything and finds every file but one.
fn drain(server: &mut Server<Vec<u8>>, now_us: u64, out: &mut Vec<u8>) {
    loop {
        while let Some(burst) = server.poll_burst(now_us, out) {
            assert_eq!(burst.len, out.len());
            assert!(burst.segment > 0 && burst.segment <= PAYLOAD_MAX);
            for packet in out.chunks(burst.segment) {
                assert!(
                    Packet::parse(packet).is_ok(),
                    "we cannot read our own packet"
                );
            }
            out.clear();
        }
        let Some(event) = server.poll_event() else {
            return;
        };
        if let Event::Open { id, name, .. } = event {
            let contents = if name.len() == 1 {
                Err(ErrorReply::new(ErrorCode::FileNotFound, "no such file"))
            } else {
                Ok(vec![0xa5; 5000])
            };
            server.opened(now_us, id, contents, Some(1500));
        }
    }
}

/// Two clients, a repeated request, a loss, a stray.
pub fn listener_seeds() -> Vec<Vec<u8>> {
    let request = b"\0\x01ipxe.efi\0octet\0blksize\x001428\0windowsize\x004\0";
    let walk: [(u8, &[u8]); 9] = [
        (0, request),
        (8, request),
        (9, b"\0\x01note\0netascii\0"),
        (0, b"\0\x04\0\0"),
        (8, b"\0\x04\0\x02"),
        (1, b"\0\x04\0\x01"),
        (2, b"\0\x04\0\x07"),
        (0xf8, b"\0\x04\0\x04"),
        (1, b"\0\x05\0\0\0"),
    ];
    let bytes = walk
        .iter()
        .flat_map(|(who, datagram)| [&[*who, datagram.len() as u8], *datagram].concat())
        .collect();
    vec![bytes]
}

/// One datagram of a file as an input for [`listener`].
pub fn single_of_a_client(datagram: Vec<u8>) -> Vec<Vec<u8>> {
    let framed = single(datagram).into_iter();
    framed.map(|input| [vec![8], input].concat()).collect()
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

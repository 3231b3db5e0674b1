//! The listener's decisions against scripted clients: slots, bounds, bursts, last words.

use super::*;

const S: u64 = 1_000_000;

struct Bench {
    server: Server<Vec<u8>>,
    now: u64,
    ended: Vec<(String, &'static str)>,
    refused: Vec<&'static str>,
    opens: Vec<(TransferId, String)>,
    file_len: usize,
}

/// What went out: to which port of the client, and the packets.
type Sent = Vec<(u16, Vec<Vec<u8>>)>;

impl Bench {
    fn new(bounds: Bounds) -> Self {
        Self {
            server: Server::new(bounds),
            now: 0,
            ended: Vec::new(),
            refused: Vec::new(),
            opens: Vec::new(),
            file_len: 100_000,
        }
    }

    fn events(&mut self) {
        while let Some(event) = self.server.poll_event() {
            match event {
                Event::Open { id, name, .. } => self.opens.push((id, name)),
                Event::Ended(_, report) => {
                    self.ended.push((report.name.clone(), report.end.code()));
                }
                Event::Refused { code, .. } => self.refused.push(code),
            }
        }
    }

    /// Answers what was asked for: any name but `missing` is a file.
    fn open(&mut self) {
        self.events();
        for (id, name) in std::mem::take(&mut self.opens) {
            let found = if name == "missing" {
                Err(ErrorReply::new(ErrorCode::FileNotFound, "no such file"))
            } else {
                Ok(vec![7; self.file_len])
            };
            self.server.opened(self.now, id, found, Some(1500));
        }
    }

    fn sent(&mut self) -> Sent {
        let mut sent = Vec::new();
        let mut out = Vec::new();
        while let Some(burst) = self.server.poll_burst(self.now, &mut out) {
            assert_eq!(burst.len, out.len());
            assert!(burst.len <= BURST_LEN_MAX);
            let packets: Vec<_> = out.chunks(burst.segment).map(<[u8]>::to_vec).collect();
            assert!(packets.len() <= BURST_PACKETS_MAX);
            sent.push((burst.to.port(), packets));
            out.clear();
        }
        self.events();
        sent
    }

    fn put(&mut self, from: SocketAddr, datagram: &[u8]) -> Sent {
        self.server.handle(self.now, from, datagram);
        self.open();
        self.sent()
    }
}

fn client(host: u8, port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, host], port))
}

fn rrq(name: &str, options: &str) -> Vec<u8> {
    [b"\0\x01", name.as_bytes(), b"\0octet\0", options.as_bytes()].concat()
}

fn ack(block: u16) -> Vec<u8> {
    [[0, 4], block.to_be_bytes()].concat()
}

#[test]
fn a_window_is_one_burst_of_equal_packets() {
    let mut bench = Bench::new(Bounds::default());
    let options = "blksize\x001428\0windowsize\x0016\0";
    let sent = bench.put(client(1, 1000), &rrq("f", options));
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].1[0][..2], [0, 6]);
    let sent = bench.put(client(1, 1000), &ack(0));
    let [(1000, packets)] = &sent[..] else {
        panic!("{sent:?}")
    };
    assert_eq!(packets.len(), 16);
    for (n, packet) in packets.iter().enumerate() {
        assert_eq!(packet[..4], [0, 3, 0, n as u8 + 1]);
        assert_eq!(packet.len(), 1432);
    }
    // 100,000 octets are 71 blocks; the last is short and ends its burst.
    for block in [16, 32, 48, 64] {
        bench.put(client(1, 1000), &ack(block));
    }
    let sent = bench.put(client(1, 1000), &ack(70));
    assert_eq!(sent[0].1.len(), 1);
    assert_eq!(sent[0].1[0].len(), 4 + 100_000 - 70 * 1428);
    bench.put(client(1, 1000), &ack(71));
    assert_eq!(bench.ended, [("f".to_owned(), "tftp.complete")]);
    assert!(bench.server.is_empty());
    assert_eq!(bench.server.poll_timeout(), None);
}

#[test]
fn two_clients_do_not_mix() {
    let mut bench = Bench::new(Bounds::default());
    let (a, b) = (client(1, 1000), client(2, 1000));
    bench.put(a, &rrq("a", ""));
    bench.put(b, &rrq("b", ""));
    bench.server.handle(0, a, &ack(1));
    bench.server.handle(0, b, &ack(1));
    let sent = bench.sent();
    assert_eq!(sent.len(), 2);
    assert!(
        sent.iter()
            .all(|(_, packets)| packets[0][..4] == [0, 3, 0, 2])
    );
    bench.put(a, b"\0\x05\0\0gone\0");
    assert_eq!(bench.ended, [("a".to_owned(), "tftp.client_error")]);
    assert_eq!(bench.server.len(), 1);
}

#[test]
fn a_repeated_request_is_no_second_transfer_and_another_one_replaces_the_first() {
    let mut bench = Bench::new(Bounds::default());
    let a = client(1, 1000);
    assert_eq!(bench.put(a, &rrq("one", "")).len(), 1);
    assert_eq!(bench.put(a, &rrq("one", "")).len(), 1, "answered again");
    assert_eq!(bench.server.len(), 1);
    bench.put(a, &rrq("two", ""));
    assert_eq!(bench.ended, [("one".to_owned(), "tftp.superseded")]);
    assert_eq!(bench.server.len(), 1);
}

#[test]
fn a_repeated_request_while_the_file_is_looked_for_asks_once() {
    let mut bench = Bench::new(Bounds::default());
    for _ in 0..3 {
        bench.server.handle(0, client(1, 1), &rrq("f", ""));
    }
    bench.server.handle(0, client(1, 1), &ack(1));
    bench.events();
    assert_eq!(bench.opens.len(), 1);
    let (id, _) = bench.opens[0];
    bench.put(client(1, 1), b"\0\x05\0\0gave up\0");
    assert_eq!(bench.ended, [("f".to_owned(), "tftp.client_error")]);
    bench.server.opened(1, id, Ok(vec![1]), None);
    assert!(bench.sent().is_empty(), "an answer too late");
}

/// tinkerbell/tinkerbell#424: iPXE goes on only when it is told at once.
#[test]
fn a_request_too_many_is_silent_and_served_when_it_comes_again() {
    let mut bench = Bench::new(Bounds::default());
    bench.server.handle(0, client(1, 1000), &rrq("f", ""));
    bench.events();
    let (id, _) = bench.opens.remove(0);
    bench.server.gone(0, id, End::Busy);
    assert!(
        bench.sent().is_empty(),
        "an ERROR would end the client's boot"
    );
    assert_eq!(bench.ended, [("f".to_owned(), "tftp.busy")]);

    let sent = bench.put(client(1, 1000), &rrq("f", ""));
    assert_eq!(sent[0].1[0][..4], [0, 3, 0, 1]);
}

#[test]
fn a_missing_file_is_error_1_at_once() {
    let mut bench = Bench::new(Bounds::default());
    let sent = bench.put(client(1, 1000), &rrq("missing", "tsize\x000\0"));
    assert_eq!(sent[0].1[0][..4], [0, 5, 0, 1]);
    assert_eq!(bench.ended, [("missing".to_owned(), "tftp.refused")]);
}

#[test]
fn rejects_more_than_its_share_from_one_address() {
    let bounds = Bounds {
        per_peer_max: 2,
        ..Bounds::default()
    };
    let mut bench = Bench::new(bounds);
    bench.put(client(1, 1), &rrq("f", ""));
    bench.put(client(1, 2), &rrq("f", ""));
    let sent = bench.put(client(1, 3), &rrq("f", ""));
    assert_eq!(sent[0].1[0][..4], [0, 5, 0, 0]);
    assert_eq!(bench.refused, ["tftp.per_peer_max"]);
    bench.put(client(2, 1), &rrq("f", ""));
    assert_eq!(bench.server.len(), 3);
    bench.put(client(1, 1), b"\0\x05\0\0\0");
    bench.put(client(1, 3), &rrq("f", ""));
    assert_eq!(bench.server.len(), 3, "a freed share is given again");
}

#[test]
fn spoofed_requests_do_not_lock_out_those_who_answer() {
    let bounds = Bounds {
        transfers_max: 4,
        ..Bounds::default()
    };
    let mut bench = Bench::new(bounds);
    let real = client(200, 1);
    bench.put(real, &rrq("real", ""));
    bench.put(real, &ack(1));
    for host in 1..=100 {
        bench.put(client(host, 1), &rrq("spoofed", ""));
        assert!(bench.server.len() <= 4);
    }
    assert_eq!(bench.ended.len(), 97);
    assert!(
        bench
            .ended
            .iter()
            .all(|(name, code)| { (name.as_str(), *code) == ("spoofed", "tftp.evicted") })
    );
    assert_eq!(bench.put(real, &ack(2)).len(), 1, "goes on");
    // When all slots belong to clients that answered, the next one is told to wait.
    for host in 98..=100 {
        bench.put(client(host, 1), &ack(1));
    }
    let sent = bench.put(client(150, 1), &rrq("late", ""));
    assert_eq!(sent[0].1[0][..4], [0, 5, 0, 0]);
    assert_eq!(bench.refused, ["tftp.transfers_max"]);
}

/// ATTACKS row 34: what an address gets that never answers.
#[test]
fn attack_34_amplification_ends_at_six_packets() {
    let mut bench = Bench::new(Bounds::default());
    let options = "blksize\x001468\0windowsize\x0032\0";
    let (mut packets, mut octets) = (0, 0);
    let mut count = |sent: Sent| {
        for (_, burst) in sent {
            packets += burst.len();
            octets += burst.iter().map(Vec::len).sum::<usize>();
        }
    };
    let request = rrq("f", options);
    count(bench.put(client(1, 1), &request));
    while let Some(due) = bench.server.poll_timeout() {
        bench.now = due;
        bench.server.handle_timeout(due);
        count(bench.sent());
    }
    assert_eq!(bench.ended, [("f".to_owned(), "tftp.timed_out")]);
    assert_eq!(packets, 6);
    assert!(octets <= 6 * request.len(), "{octets}");
}

/// ATTACKS row 34: an ERROR or ACK must come from the client's own address and port.
#[test]
fn attack_34_spoofed_error_and_ack_from_elsewhere_do_nothing() {
    let mut bench = Bench::new(Bounds::default());
    bench.put(client(1, 1000), &rrq("f", ""));
    for from in [client(1, 1001), client(2, 1000)] {
        bench.put(from, b"\0\x05\0\0spoofed\0");
        bench.put(from, &ack(1));
    }
    assert_eq!(bench.refused, ["tftp.stray"; 4]);
    assert!(bench.ended.is_empty());
    assert_eq!(bench.put(client(1, 1000), &ack(1)).len(), 1);
}

/// ATTACKS row 34: a thousand copies of one ACK buy one packet.
#[test]
fn attack_34_ack_storm_buys_nothing() {
    for options in ["", "windowsize\x008\0"] {
        let mut bench = Bench::new(Bounds::default());
        bench.put(client(1, 1), &rrq("f", options));
        if !options.is_empty() {
            bench.put(client(1, 1), &ack(0));
        }
        let mut packets = 0;
        for n in 0..1000 {
            bench.now = n;
            for (_, burst) in bench.put(client(1, 1), &ack(1)) {
                packets += burst.len();
            }
        }
        // The window after block 1, and once more in case it was lost.
        assert!(
            packets <= if options.is_empty() { 1 } else { 16 },
            "{packets}"
        );
    }
}

#[test]
fn netascii_copies_are_bounded() {
    let bounds = Bounds {
        netascii_max: 1,
        netascii_len_max: 100,
        ..Bounds::default()
    };
    let mut bench = Bench::new(bounds);
    let request = b"\0\x01f\0netascii\0";
    let sent = bench.put(client(1, 1), request);
    assert_eq!(sent[0].1[0][..4], [0, 5, 0, 4], "too long");
    bench.file_len = 50;
    let sent = bench.put(client(1, 1), request);
    assert_eq!(sent[0].1[0][..4], [0, 3, 0, 1]);
    let sent = bench.put(client(2, 1), request);
    assert_eq!(sent[0].1[0][..4], [0, 5, 0, 0], "one at a time");
    bench.put(client(1, 1), &ack(1));
    let sent = bench.put(client(2, 1), request);
    assert_eq!(sent[0].1[0][..4], [0, 3, 0, 1]);
}

#[test]
fn a_stop_tells_everybody() {
    let mut bench = Bench::new(Bounds::default());
    bench.put(client(1, 1), &rrq("running", ""));
    bench.server.handle(0, client(2, 2), &rrq("opening", ""));
    bench.server.stop(S);
    let sent = bench.sent();
    let ports: Vec<_> = sent.iter().map(|(port, _)| *port).collect();
    assert_eq!(ports, [1, 2]);
    assert!(sent.iter().all(|(_, p)| p[0][..4] == [0, 5, 0, 0]));
    assert_eq!(bench.ended.len(), 2);
    assert!(bench.server.is_empty());
}

#[test]
fn a_client_whose_port_is_closed_is_let_go() {
    let mut bench = Bench::new(Bounds::default());
    bench.put(client(1, 1), &rrq("f", ""));
    bench.server.peer_gone(S, client(9, 9));
    bench.server.peer_gone(S, client(1, 1));
    assert!(bench.sent().is_empty());
    assert_eq!(bench.ended, [("f".to_owned(), "tftp.peer_gone")]);
}

#[test]
fn blocks_fit_the_path_of_each_client() {
    let mut bench = Bench::new(Bounds::default());
    bench
        .server
        .handle(0, client(1, 1), &rrq("f", "blksize\x001468\0"));
    bench.events();
    let (id, _) = bench.opens.remove(0);
    bench.server.opened(0, id, Ok(vec![0; 5000]), Some(1400));
    assert_eq!(bench.sent()[0].1[0], b"\0\x06blksize\x001368\0");
}

proptest::proptest! {
    /// Whatever comes from whomever in whatever order: no panic, the bounds hold, and left alone
    /// every transfer ends.
    #[test]
    fn any_sequence_stays_within_the_bounds_and_ends(
        inputs in proptest::collection::vec((0u8..6, 0u8..4, 0u16..3, 0u16..40, 0u64..2_000_000), 0..120),
    ) {
        let bounds = Bounds { transfers_max: 5, per_peer_max: 2, ..Bounds::default() };
        let mut bench = Bench::new(bounds);
        for (kind, host, port, word, wait) in inputs {
            bench.now += wait;
            let from = client(host, port);
            let datagram = match kind {
                0 => rrq("f", ""),
                1 => rrq("f", "windowsize\x009\0blksize\x00600\0"),
                2 => rrq("missing", "tsize\x000\0"),
                3 | 4 => ack(word),
                _ => [[0, 5], word.to_be_bytes()].concat(),
            };
            bench.server.handle_timeout(bench.now);
            bench.put(from, &datagram);
            proptest::prop_assert!(bench.server.len() <= 5);
        }
        let mut rounds = 0;
        while let Some(due) = bench.server.poll_timeout() {
            bench.now = bench.now.max(due);
            bench.server.handle_timeout(bench.now);
            bench.sent();
            rounds += 1;
            proptest::prop_assert!(rounds < 1000);
        }
        proptest::prop_assert!(bench.server.is_empty());
        proptest::prop_assert!(bench.server.half_open.len() <= 2 * 5 + 1);
        proptest::prop_assert!(bench.server.timers.is_empty());
    }
}

//! Timelines of a transfer against a scripted client, and against a lossy network.

use super::super::Mode;
use super::*;

fn request(options: &[(&str, &str)]) -> Request {
    Request {
        filename: "ipxe.efi".into(),
        mode: Mode::Octet,
        options: options
            .iter()
            .map(|(n, v)| ((*n).to_owned(), (*v).to_owned()))
            .collect(),
    }
}

fn transfer(options: &[(&str, &str)], len: u64) -> Transfer {
    Transfer::new(0, &request(options), len, Limits::default())
}

fn file(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i % 251) as u8).collect()
}

/// Everything it wants to send now: DATA as (block, length), the OACK as text.
fn drain(transfer: &mut Transfer, now: u64, file: &[u8]) -> Vec<String> {
    let mut out = Vec::new();
    let mut sent = Vec::new();
    while transfer.poll_transmit(now, file, &mut out) {
        sent.push(match Packet::parse(&out).unwrap() {
            Packet::Data { block, data } => format!("{block}:{}", data.len()),
            Packet::OptionAck { options } => options
                .iter()
                .map(|(n, v)| format!("{n}={v}"))
                .collect::<Vec<_>>()
                .join(" "),
            other => panic!("{other:?}"),
        });
    }
    sent
}

fn ack(block: u16) -> Vec<u8> {
    [[0, 4], block.to_be_bytes()].concat()
}

#[test]
fn plain_rfc_1350_in_lock_step() {
    let file = file(1100);
    let mut t = transfer(&[], 1100);
    assert_eq!(drain(&mut t, 0, &file), ["1:512"]);
    t.handle(1, &ack(1));
    assert_eq!(drain(&mut t, 1, &file), ["2:512"]);
    t.handle(2, &ack(2));
    assert_eq!(drain(&mut t, 2, &file), ["3:76"]);
    assert_eq!(t.outcome(), None);
    t.handle(3, &ack(3));
    assert_eq!(t.outcome(), Some(&Outcome::Complete));
    assert_eq!((t.poll_timeout(), t.stats().acked_len), (None, 1100));
}

#[test]
fn a_multiple_of_the_block_size_ends_with_an_empty_block() {
    for (len, last) in [(0usize, "1:0"), (512, "2:0")] {
        let file = file(len);
        let mut t = transfer(&[], len as u64);
        let mut sent = Vec::new();
        for block in 1..=2 {
            sent.extend(drain(&mut t, 0, &file));
            t.handle(0, &ack(block));
        }
        assert_eq!(sent.last().map(String::as_str), Some(last));
        assert_eq!(t.outcome(), Some(&Outcome::Complete));
    }
}

#[test]
fn the_oack_has_what_was_asked_and_understood_and_no_more() {
    let table: [(&[(&str, &str)], &str); 10] = [
        (
            &[("tsize", "0"), ("blksize", "1468"), ("windowsize", "4")],
            "tsize=9 blksize=1468 windowsize=4",
        ),
        (&[("blksize", "65464")], "blksize=1468"),
        (&[("blksize", "99999")], "blksize=1468"),
        (&[("windowsize", "64")], "windowsize=32"),
        (&[("timeout", "3"), ("multicast", "")], "timeout=3"),
        (&[("blksize", "512"), ("blksize", "1024")], "blksize=512"),
        (&[("blksize", "7")], ""),
        (
            &[("blksize", "-1"), ("timeout", "0"), ("windowsize", "0")],
            "",
        ),
        (&[("timeout", "256"), ("windowsize", "65536")], ""),
        (&[("unknown", "1")], ""),
    ];
    for (options, want) in table {
        let mut t = transfer(options, 9);
        let sent = drain(&mut t, 0, &file(9));
        let want = if want.is_empty() { "1:9" } else { want };
        assert_eq!(sent, [want], "{options:?}");
    }
}

#[test]
fn data_follows_ack_0_only() {
    let file = file(9);
    let mut t = transfer(&[("tsize", "0")], 9);
    assert_eq!(drain(&mut t, 0, &file), ["tsize=9"]);
    t.handle(1, &ack(1));
    assert!(drain(&mut t, 1, &file).is_empty());
    t.handle(2, &ack(0));
    assert_eq!(drain(&mut t, 2, &file), ["1:9"]);
}

/// pin/tftp#125 and our own capture of OVMF: RRQ with tsize 0, OACK, ERROR 8, second RRQ.
#[test]
fn a_uefi_size_probe_ends_quietly() {
    let mut t = transfer(&[("tsize", "0"), ("blksize", "1468")], 9);
    drain(&mut t, 0, &file(9));
    t.handle(1, b"\0\x05\0\x08User aborted the transfer\0");
    assert_eq!(t.outcome(), Some(&Outcome::Probed));
    assert!(!t.poll_transmit(2, &file(9), &mut Vec::new()));
}

#[test]
fn an_error_of_the_client_ends_it_without_an_answer() {
    let mut t = transfer(&[], 9);
    drain(&mut t, 0, &file(9));
    t.handle(1, b"\0\x05\0\x03disk full\0");
    let want = ErrorReply::new(ErrorCode::DiskFull, "disk full");
    assert_eq!(t.outcome(), Some(&Outcome::ClientError(want)));
    assert!(!t.poll_transmit(2, &file(9), &mut Vec::new()));
    let mut t = transfer(&[("tsize", "0")], 9);
    t.handle(1, b"\0\x05\0\x03\0");
    assert!(
        matches!(t.outcome(), Some(Outcome::ClientError(_))),
        "disk full is no probe"
    );
}

#[test]
fn the_sorcerers_apprentice_stays_away() {
    let file = file(5000);
    let mut t = transfer(&[], 5000);
    drain(&mut t, 0, &file);
    t.handle(1, &ack(1));
    assert_eq!(drain(&mut t, 1, &file), ["2:512"]);
    for _ in 0..3 {
        t.handle(2, &ack(1));
        assert!(
            drain(&mut t, 2, &file).is_empty(),
            "a late duplicate is not answered"
        );
    }
    assert_eq!(t.stats().ignored, 3);
}

#[test]
fn a_window_is_sent_at_once_and_restarts_after_a_loss() {
    let file = file(10 * 512);
    let mut t = transfer(&[("windowsize", "4")], 10 * 512);
    drain(&mut t, 0, &file);
    t.handle(0, &ack(0));
    assert_eq!(
        drain(&mut t, 0, &file),
        ["1:512", "2:512", "3:512", "4:512"]
    );
    t.handle(1, &ack(4));
    assert_eq!(
        drain(&mut t, 1, &file),
        ["5:512", "6:512", "7:512", "8:512"]
    );
    // Block 7 was lost: the client says 6.
    t.handle(2, &ack(6));
    assert_eq!(
        drain(&mut t, 2, &file),
        ["7:512", "8:512", "9:512", "10:512"]
    );
    // The very first of the next window was lost: the same ACK again, answered once.
    t.handle(3, &ack(6));
    assert_eq!(
        drain(&mut t, 3, &file),
        ["7:512", "8:512", "9:512", "10:512"]
    );
    t.handle(3, &ack(6));
    assert!(drain(&mut t, 3, &file).is_empty());
    t.handle(4, &ack(10));
    assert_eq!(drain(&mut t, 4, &file), ["11:0"]);
    t.handle(5, &ack(11));
    assert_eq!(t.outcome(), Some(&Outcome::Complete));
    assert_eq!(t.stats().blocks_again, 6);
}

#[test]
fn an_ack_beyond_a_restarted_window_counts() {
    let file = file(6 * 512);
    let mut t = transfer(&[("windowsize", "4")], 6 * 512);
    drain(&mut t, 0, &file);
    t.handle(0, &ack(0));
    drain(&mut t, 0, &file);
    t.handle(1, &ack(2));
    t.handle(1, &ack(4));
    assert_eq!(drain(&mut t, 1, &file), ["5:512", "6:512", "7:0"]);
}

const MS: u64 = 1_000;
const S: u64 = 1_000_000;

/// Waits for each deadline; when something was sent again.
fn sent_again(t: &mut Transfer, file: &[u8]) -> Vec<u64> {
    let mut at = Vec::new();
    while t.outcome().is_none() {
        let now = t.poll_timeout().unwrap();
        t.handle_timeout(now - 1);
        assert!(drain(t, now - 1, file).is_empty(), "not a moment too early");
        t.handle_timeout(now);
        if !drain(t, now, file).is_empty() {
            at.push(now);
        }
    }
    at
}

#[test]
fn silence_from_the_start_is_met_with_back_off_and_an_early_end() {
    let file = file(9);
    let mut t = transfer(&[], 9);
    drain(&mut t, 0, &file);
    let at = sent_again(&mut t, &file);
    assert_eq!(
        at,
        [500, 1500, 3500, 7500, 15_500].map(|ms| ms * MS),
        "five packets to an address that may be spoofed"
    );
    assert_eq!(t.outcome(), Some(&Outcome::TimedOut));
}

#[test]
fn a_client_that_falls_silent_is_given_its_time() {
    let file = file(5000);
    let mut t = transfer(&[], 5000);
    drain(&mut t, 0, &file);
    t.handle(MS, &ack(1));
    drain(&mut t, MS, &file);
    let at = sent_again(&mut t, &file);
    assert_eq!(t.outcome(), Some(&Outcome::TimedOut));
    assert_eq!(at[0], 21 * MS, "soon at first");
    let last = *at.last().unwrap();
    assert!((40 * S..47 * S).contains(&last), "{last}");
    assert!(at.len() <= 16, "and backed off: {at:?}");
}

#[test]
fn the_oack_is_sent_again_too() {
    let mut t = transfer(&[("tsize", "0")], 9);
    assert_eq!(drain(&mut t, 0, &file(9)), ["tsize=9"]);
    t.handle_timeout(500 * MS);
    assert_eq!(drain(&mut t, 500 * MS, &file(9)), ["tsize=9"]);
}

#[test]
fn a_repeated_request_is_answered_at_once_until_the_client_answered() {
    let file = file(5000);
    for (options, first) in [(&[("tsize", "0")][..], "tsize=5000"), (&[], "1:512")] {
        let mut t = transfer(options, 5000);
        assert_eq!(drain(&mut t, 0, &file), [first]);
        t.handle_repeated_request();
        assert_eq!(drain(&mut t, 100, &file), [first], "one for one");
        assert!(drain(&mut t, 100, &file).is_empty());
        t.handle(200, &ack(u16::from(options.is_empty())));
        drain(&mut t, 200, &file);
        t.handle_repeated_request();
        assert!(drain(&mut t, 300, &file).is_empty(), "a late duplicate");
    }
}

#[test]
fn a_broken_window_is_sent_again_once_however_often_the_client_says_so() {
    let file = file(40 * 512);
    let mut t = transfer(&[("windowsize", "16")], 40 * 512);
    drain(&mut t, 0, &file);
    t.handle(300, &ack(0));
    assert_eq!(drain(&mut t, 300, &file).len(), 16);
    // Block 5 was lost; the receiver acknowledges 4 for each of the eleven behind it.
    t.handle(600, &ack(4));
    assert_eq!(drain(&mut t, 600, &file).len(), 16);
    for n in 1..11 {
        t.handle(600 + n, &ack(4));
        assert!(drain(&mut t, 600 + n, &file).is_empty(), "no second window");
    }
    // Block 5 was lost again: this ACK comes a round trip later.
    t.handle(900, &ack(4));
    assert_eq!(drain(&mut t, 900, &file).len(), 16);
}

#[test]
fn measured_round_trips_shorten_the_wait_and_a_chosen_timeout_stays() {
    let file = file(100 * 512);
    let mut t = transfer(&[], 100 * 512);
    let mut now = 0;
    for block in 1..=20 {
        drain(&mut t, now, &file);
        now += 200;
        t.handle(now, &ack(block));
    }
    drain(&mut t, now, &file);
    assert_eq!(t.poll_timeout(), Some(now + 20 * MS), "the shortest wait");
    // A retransmitted block is no sample (Karn).
    t.handle_timeout(now + 20 * MS);
    drain(&mut t, now + 20 * MS, &file);
    t.handle(now + 10 * S, &ack(21));
    drain(&mut t, now + 10 * S, &file);
    assert_eq!(
        t.poll_timeout(),
        Some(now + 10 * S + 40 * MS),
        "backed off, not stretched by the silence"
    );

    let mut t = transfer(&[], 100 * 512);
    let mut now = 0;
    for block in 1..=40 {
        drain(&mut t, now, &file);
        now += 60 * MS;
        t.handle(now, &ack(block));
    }
    drain(&mut t, now, &file);
    let wait = t.poll_timeout().unwrap() - now;
    assert!((60 * MS..70 * MS).contains(&wait), "a slow client: {wait}");

    let mut t = transfer(&[("timeout", "5")], 9);
    drain(&mut t, 0, &file);
    assert_eq!(t.poll_timeout(), Some(5 * S));
    t.handle_timeout(5 * S);
    drain(&mut t, 5 * S, &file);
    assert_eq!(
        t.poll_timeout(),
        Some(10 * S),
        "RFC 2349: the client's interval, every time"
    );
}

#[test]
fn blocks_fit_the_path() {
    for (mtu, ipv6, want) in [
        (1500, false, 1468),
        (1500, true, 1448),
        (1280, true, 1228),
        (576, false, 544),
        (9000, false, 8968),
        (65_536, false, 65_464),
        (0, false, 8),
    ] {
        assert_eq!(block_len_for(mtu, ipv6), want, "{mtu} {ipv6}");
    }
}

#[test]
fn rejects_a_client_that_trickles() {
    let file = file(1 << 20);
    let mut t = transfer(&[], 1 << 20);
    let mut now = 0;
    let mut block = 0;
    while t.outcome().is_none() {
        drain(&mut t, now, &file);
        now += 10 * S;
        t.handle_timeout(now);
        drain(&mut t, now, &file);
        block += 1;
        t.handle(now, &ack(block));
    }
    assert_eq!((t.outcome(), now), (Some(&Outcome::TooSlow), 1800 * S));
}

#[test]
fn noise_is_ignored() {
    let mut t = transfer(&[], 5000);
    drain(&mut t, 0, &file(5000));
    for noise in [
        &b""[..],
        b"\0\x09",
        b"\0\x03\0\x01x",
        b"\0\x06tsize\x000\0",
        b"\0\x01f\0octet\0",
    ] {
        t.handle(1, noise);
    }
    t.handle(1, &ack(7));
    assert_eq!((t.outcome(), t.stats().ignored), (None, 6));
}

/// eblot/pybootd#21, Callisto82/tftp.net#6: block numbers past 32767 and past 65535.
#[test]
fn block_numbers_roll_over_to_0_or_1() {
    for (roll_over, after) in [(RollOver::Zero, 0u16), (RollOver::One, 1)] {
        let blocks = 65_540u64;
        let len = blocks * 8 - 1;
        let file = file(len as usize);
        let limits = Limits {
            roll_over,
            ..Limits::default()
        };
        let mut t = Transfer::new(
            0,
            &request(&[("blksize", "8"), ("windowsize", "3")]),
            len,
            limits,
        );
        let mut out = Vec::new();
        let (mut got, mut numbers, mut last) = (Vec::new(), Vec::new(), None);
        while t.outcome().is_none() {
            while t.poll_transmit(0, &file, &mut out) {
                match Packet::parse(&out).unwrap() {
                    Packet::Data { block, data } => {
                        got.extend_from_slice(data);
                        numbers.push(block);
                        last = Some(block);
                    }
                    _ => last = Some(0),
                }
            }
            t.handle(0, &ack(last.unwrap()));
        }
        assert_eq!(t.outcome(), Some(&Outcome::Complete));
        assert!(got == file, "contents");
        assert_eq!(numbers[65_534..65_536], [65_535, after]);
        assert!(t.stats().rolled_over);
    }
}

/// A receiver as RFC 7440 describes it, behind a network that loses, repeats and reorders.
fn lossy(seed: u64, len: usize, window: u64, block_len: u64) -> (Outcome, Vec<u8>, Stats) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % 100
    };
    let file = file(len);
    let (b, w) = (block_len.to_string(), window.to_string());
    let mut t = Transfer::new(
        0,
        &request(&[("blksize", &b), ("windowsize", &w)]),
        len as u64,
        Limits {
            handshake_retries_max: 40,
            silence_max_us: 400 * S,
            ..Limits::default()
        },
    );
    let (mut now, mut out, mut got, mut expected) = (0u64, Vec::new(), Vec::new(), 1u64);
    let (mut in_window, mut done, mut to_server) = (0, false, Vec::<u16>::new());
    for _ in 0..200_000 {
        let mut to_client = Vec::new();
        while t.poll_transmit(now, &file, &mut out) {
            match random() {
                0..10 => {}
                10..15 => to_client.extend([out.clone(), out.clone()]),
                15..20 => to_client.insert(0, out.clone()),
                _ => to_client.push(out.clone()),
            }
        }
        for packet in to_client {
            match Packet::parse(&packet).unwrap() {
                Packet::OptionAck { .. } => to_server.push(0),
                Packet::Data { block, data } if block == expected as u16 && !done => {
                    got.extend_from_slice(data);
                    expected += 1;
                    in_window += 1;
                    done = (data.len() as u64) < block_len;
                    if in_window == window || done {
                        in_window = 0;
                        to_server.push((expected - 1) as u16);
                    }
                }
                Packet::Data { .. } => {
                    in_window = 0;
                    to_server.push((expected - 1) as u16);
                }
                other => panic!("{other:?}"),
            }
        }
        for block in to_server.drain(..) {
            if random() >= 10 {
                t.handle(now, &ack(block));
            }
        }
        if let Some(outcome) = t.outcome() {
            return (outcome.clone(), got, t.stats());
        }
        now += 1;
        if !t.poll_transmit(now, &file, &mut out) {
            now = t.poll_timeout().unwrap();
            t.handle_timeout(now);
        } else if let Packet::Data { block, data } = Packet::parse(&out).unwrap()
            && block == expected as u16
            && !done
        {
            got.extend_from_slice(data);
            expected += 1;
            in_window += 1;
            done = (data.len() as u64) < block_len;
            if done {
                t.handle(now, &ack((expected - 1) as u16));
            }
        }
    }
    panic!("seed {seed}: no end");
}

#[test]
fn a_lossy_network_delivers_the_file() {
    for seed in 1..60 {
        let window = 1 + seed % 8;
        let (outcome, got, stats) = lossy(seed, 40_000, window, 512);
        assert!(got == file(40_000), "seed {seed}");
        // The receiver may have everything while its last ACK was lost for good.
        assert!(
            matches!(outcome, Outcome::Complete | Outcome::TimedOut),
            "seed {seed}"
        );
        assert!(stats.blocks_sent < 79 * 8, "seed {seed}: {stats:?}");
    }
}

proptest::proptest! {
    #[test]
    fn never_panics_and_ends(
        len in 0u64..5000,
        blksize in 0u32..70_000,
        windowsize in 0u32..70,
        packets in proptest::collection::vec((0u16..7, 0u16..20, 0u64..3_000_000), 0..60),
    ) {
        let (b, w) = (blksize.to_string(), windowsize.to_string());
        let mut t = transfer(&[("blksize", &b), ("windowsize", &w)], len);
        let file = file(len as usize);
        let (mut now, mut out) = (0, Vec::new());
        for (opcode, word, wait) in packets {
            let mut sent = 0;
            while t.poll_transmit(now, &file, &mut out) {
                sent += 1;
                proptest::prop_assert!(sent <= 33, "a window and the OACK at most");
                proptest::prop_assert!(out.len() <= 1472);
            }
            now += wait;
            t.handle(now, &[opcode.to_be_bytes(), word.to_be_bytes()].concat());
            t.handle_timeout(now);
        }
        while t.outcome().is_none() {
            now = t.poll_timeout().unwrap().max(now + 1);
            t.handle_timeout(now);
            while t.poll_transmit(now, &file, &mut out) {}
        }
    }
}

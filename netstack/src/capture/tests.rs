//! Every form of file and link layer by a small golden one; each refusal with its offset.

use super::*;
use crate::MacAddr;

/// Ethernet, IPv4, UDP from port 68 to 67, payload `hi`.
fn frame() -> Vec<u8> {
    let mut out = vec![0xff; 6];
    out.extend_from_slice(&[2, 0, 0, 0, 0, 1, 0x08, 0x00]);
    out.extend_from_slice(&packet());
    out
}

fn packet() -> Vec<u8> {
    let mut out = vec![0x45, 0, 0, 30, 0, 1, 0, 0, 64, 17, 0, 0];
    out.extend_from_slice(&[0, 0, 0, 0, 255, 255, 255, 255]);
    out.extend_from_slice(&[0, 68, 0, 67, 0, 10, 0, 0, b'h', b'i']);
    out
}

fn u32_in(big: bool, value: u32) -> [u8; 4] {
    if big {
        value.to_be_bytes()
    } else {
        value.to_le_bytes()
    }
}

fn pcap(magic: u32, big: bool, link: u32, frames: &[Vec<u8>]) -> Vec<u8> {
    let mut out = u32_in(big, magic).to_vec();
    let version = if big { [0, 2, 0, 4] } else { [2, 0, 4, 0] };
    out.extend_from_slice(&version);
    for value in [0, 0, 65_535, link] {
        out.extend_from_slice(&u32_in(big, value));
    }
    for frame in frames {
        let len = frame.len() as u32;
        for value in [7, 5, len, len + 4] {
            out.extend_from_slice(&u32_in(big, value));
        }
        if magic == 0xa1b2_cd34 {
            out.extend_from_slice(&[0; 8]);
        }
        out.extend_from_slice(frame);
    }
    out
}

fn block(big: bool, kind: u32, body: &[u8]) -> Vec<u8> {
    let mut padded = body.to_vec();
    padded.resize(body.len().next_multiple_of(4), 0);
    let len = u32_in(big, padded.len() as u32 + 12);
    [&u32_in(big, kind)[..], &len, &padded, &len].concat()
}

fn section(big: bool) -> Vec<u8> {
    let version = if big { [0, 1, 0, 0] } else { [1, 0, 0, 0] };
    block(
        big,
        0x0a0d_0d0a,
        &[&u32_in(big, 0x1a2b_3c4d)[..], &version, &[0xff; 8]].concat(),
    )
}

fn interface(big: bool, link: u16, options: &[u8]) -> Vec<u8> {
    let link = if big {
        link.to_be_bytes()
    } else {
        link.to_le_bytes()
    };
    block(big, 1, &[&link[..], &[0; 6], options].concat())
}

fn enhanced(big: bool, interface: u32, units: u32, frame: &[u8]) -> Vec<u8> {
    let len = frame.len() as u32;
    let head = [interface, 0, units, len, len]
        .map(|value| u32_in(big, value))
        .concat();
    block(big, 6, &[&head[..], frame].concat())
}

fn all(file: &[u8]) -> Result<Vec<Frame<'_>>, CaptureError> {
    Reader::new(file)?.collect()
}

#[test]
fn pcap_in_each_byte_order_and_resolution() {
    let frames = [frame(), frame()];
    for big in [false, true] {
        for (magic, nanoseconds) in [(0xa1b2_c3d4, 5000), (0xa1b2_3c4d, 5), (0xa1b2_cd34, 5000)] {
            let file = pcap(magic, big, 1, &frames);
            let read = all(&file).unwrap();
            assert_eq!(read.len(), 2);
            assert_eq!(
                read[1],
                Frame {
                    number: 2,
                    link: LinkType::ETHERNET,
                    data: &frame(),
                    wire_len: 48,
                    time_ns: Some(7_000_000_000 + nanoseconds),
                }
            );
        }
    }
    let with_fcs = pcap(0xa1b2_c3d4, true, 0x2400_0001, &frames);
    assert_eq!(
        all(&with_fcs).unwrap()[0].link,
        LinkType::ETHERNET,
        "the FCS bits are no link type"
    );
    assert!(all(&pcap(0xa1b2_c3d4, true, 1, &[])).unwrap().is_empty());
}

#[test]
fn pcapng_in_each_byte_order_and_block() {
    for big in [false, true] {
        let nanoseconds = if big {
            [0, 9, 0, 1, 9, 0, 0, 0]
        } else {
            [9, 0, 1, 0, 9, 0, 0, 0]
        };
        let len = frame().len() as u32;
        let old = [&[0; 12][..], &u32_in(big, len), &u32_in(big, len), &frame()].concat();
        let file = [
            section(big),
            interface(big, 1, &[]),
            interface(big, 101, &nanoseconds),
            block(big, 5, b"statistics"),
            enhanced(big, 0, 9, &frame()),
            enhanced(big, 1, 9, &packet()),
            block(big, 3, &[&u32_in(big, len)[..], &frame()].concat()),
            block(big, 2, &old),
            // A new section, in the other byte order, has its own interfaces.
            section(!big),
            interface(!big, 113, &[]),
            enhanced(!big, 0, 1, &frame()),
        ]
        .concat();
        let read = all(&file).unwrap();
        let seen: Vec<_> = read
            .iter()
            .map(|f| (f.number, f.link.0, f.time_ns))
            .collect();
        let want = [
            (1, 1, Some(9000)),
            (2, 101, Some(9)),
            (3, 1, None),
            (4, 1, Some(0)),
            (5, 113, Some(1000)),
        ];
        assert_eq!(seen, want);
        assert_eq!(read[2].data, frame());
    }
}

#[test]
fn rejects_what_is_no_capture() {
    for (file, found) in [
        (&b""[..], "an empty file"),
        (b"\x1f\x8b\x08\x00", "a gzip file"),
        (b"\x28\xb5\x2f\xfd\x00", "a zstd file"),
        (b"{\"a\"", "at offset 0: 7b226122"),
        (b"\xd4\xc3", "at offset 0: d4c3"),
    ] {
        let explained = Reader::new(file).unwrap_err().explain();
        assert_eq!(
            (explained.code, explained.found.as_str()),
            ("capture.format", found)
        );
    }
}

#[test]
fn rejects_damage_and_names_its_offset() {
    let good = pcap(0xa1b2_c3d4, false, 1, &[frame(), frame()]);
    let second = 24 + 16 + 44;
    let damaged = |at: usize, value: u8| {
        let mut file = good.clone();
        file[at] = value;
        file
    };
    let ng = [
        section(true),
        interface(true, 1, &[]),
        enhanced(true, 0, 0, &frame()),
    ]
    .concat();
    let packet_at = 28 + 20;
    let ng_with = |at: usize, value: u8| {
        let mut file = ng.clone();
        file[at] = value;
        file
    };
    let table: [(Vec<u8>, usize, &str, &str); 12] = [
        (
            good[..20].to_vec(),
            0,
            "capture.truncated",
            "a pcap file header of 24 bytes",
        ),
        (damaged(4, 3), 0, "capture.malformed", "pcap version 2"),
        (
            good[..second + 7].to_vec(),
            1,
            "capture.truncated",
            "a record header of 16 bytes",
        ),
        (
            good[..good.len() - 1].to_vec(),
            1,
            "capture.truncated",
            "a frame of 44 bytes",
        ),
        (
            damaged(second + 11, 1),
            1,
            "capture.frame_too_long",
            "at most 1048576 bytes",
        ),
        (
            ng_with(9, 0),
            0,
            "capture.malformed",
            "the byte-order magic 1a2b3c4d",
        ),
        (
            ng_with(packet_at + 7, 8),
            0,
            "capture.malformed",
            "a block length of 12 or more, a multiple of 4",
        ),
        (
            ng_with(packet_at + 7, 79),
            0,
            "capture.malformed",
            "a block length of 12 or more, a multiple of 4",
        ),
        (
            ng_with(packet_at + 6, 1),
            0,
            "capture.truncated",
            "a block of 332 bytes",
        ),
        (
            ng_with(ng.len() - 1, 0),
            0,
            "capture.malformed",
            "the block length again",
        ),
        (
            ng_with(packet_at + 11, 1),
            0,
            "capture.malformed",
            "an interface described before",
        ),
        (
            ng_with(packet_at + 23, 99),
            0,
            "capture.truncated",
            "a frame of 99 bytes",
        ),
    ];
    for (file, before, code, expected) in table {
        let mut reader = match Reader::new(&file) {
            Ok(reader) => reader,
            Err(error) => {
                let explained = error.explain();
                assert_eq!(
                    (explained.code, explained.expected.as_str()),
                    (code, expected)
                );
                assert!(explained.found.contains("offset"), "{explained}");
                continue;
            }
        };
        let read: Vec<_> = reader.by_ref().collect();
        assert_eq!(read.len(), before + 1, "{expected}");
        let explained = read[before].as_ref().unwrap_err().explain();
        assert_eq!(
            (explained.code, explained.expected.as_str()),
            (code, expected)
        );
        assert!(explained.found.contains("offset"), "{explained}");
        assert_eq!(reader.next(), None, "nothing after an error");
    }
}

fn datagram(link: u16, data: &[u8]) -> Result<(Packet<'_>, Datagram<'_>), LinkError> {
    let frame = Frame {
        number: 1,
        link: LinkType(link),
        data,
        wire_len: 0,
        time_ns: None,
    };
    let packet = Packet::parse(&frame)?;
    let datagram = Datagram::parse(&packet)?;
    Ok((packet, datagram))
}

#[test]
fn every_link_layer_leads_to_the_datagram() {
    let me = [2, 0, 0, 0, 0, 1];
    let sll = [&[0, 0, 0, 1, 0, 6][..], &me, &[0, 0, 0x08, 0x00], &packet()].concat();
    let sll2 = [
        &[0x08, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 6][..],
        &me,
        &[0, 0],
        &packet(),
    ]
    .concat();
    let tagged = [
        &frame()[..12],
        &[0x88, 0xa8, 0, 5, 0x81, 0, 0x20, 7],
        &frame()[12..],
    ]
    .concat();
    let table: [(u16, Vec<u8>, bool, &[u16]); 7] = [
        (1, frame(), true, &[]),
        (1, tagged, true, &[5, 7]),
        (113, sll, true, &[]),
        (276, sll2, true, &[]),
        (101, packet(), false, &[]),
        (0, [&[2, 0, 0, 0][..], &packet()].concat(), false, &[]),
        (108, [&[0, 0, 0, 2][..], &packet()].concat(), false, &[]),
    ];
    for (link, data, has_mac, vlans) in table {
        let (packet, datagram) = datagram(link, &data).unwrap();
        assert_eq!(
            packet.source,
            has_mac.then_some(MacAddr(me)),
            "link type {link}"
        );
        assert_eq!(packet.vlans, vlans);
        assert_eq!(datagram.source.to_string(), "0.0.0.0:68");
        assert_eq!(datagram.destination.to_string(), "255.255.255.255:67");
        assert_eq!((datagram.payload, datagram.missing), (&b"hi"[..], 0));
    }
}

#[test]
fn ipv6_and_datagrams_that_were_cut() {
    let udp = [0x02, 0x22, 0x02, 0x23, 0, 10, 0, 0, b'h', b'i'];
    let ipv6 = |next: u8, body: &[u8]| {
        let head = [0x60, 0, 0, 0, 0, body.len() as u8, next, 64];
        [&head[..], &[0xfe; 16], &[0xff; 16], body].concat()
    };
    let packet6 = ipv6(17, &udp);
    assert_eq!(datagram(101, &packet6).unwrap().1.payload, b"hi");
    let options = ipv6(0, &[&[17, 0, 1, 4, 0, 0, 0, 0][..], &udp].concat());
    assert_eq!(datagram(101, &options).unwrap().1.payload, b"hi");
    let fragment = ipv6(44, &[&[17, 0, 0, 1, 0, 0, 0, 9][..], &udp].concat());
    assert!(matches!(
        datagram(101, &fragment),
        Err(LinkError::Fragment { .. })
    ));

    let whole = frame();
    let cut = &whole[..whole.len() - 1];
    let (_, datagram) = datagram(1, cut).unwrap();
    assert_eq!((datagram.payload, datagram.missing), (&b"h"[..], 1));
}

#[test]
fn rejects_frames_without_a_datagram() {
    let with = |at: usize, value: u8| {
        let mut frame = frame();
        frame[at] = value;
        frame
    };
    let tags = [0x81, 0, 0, 1].repeat(5);
    let table: [(u16, Vec<u8>, &str); 10] = [
        (105, frame(), "frame.link_type"),
        (1, frame()[..13].to_vec(), "frame.short"),
        (1, [&frame()[..12], &[0x81, 0, 0]].concat(), "frame.short"),
        (
            1,
            [&frame()[..12], &tags, &frame()[12..]].concat(),
            "frame.tags",
        ),
        (1, with(13, 6), "frame.not_ip"),
        (1, with(14, 0x41), "frame.ip_header"),
        (1, with(20, 0x20), "frame.fragment"),
        (1, with(21, 9), "frame.fragment"),
        (1, with(23, 1), "frame.not_udp"),
        (1, frame()[..14 + 20 + 7].to_vec(), "frame.short"),
    ];
    for (link, data, code) in table {
        let error = datagram(link, &data).unwrap_err();
        assert_eq!(error.code(), code);
        assert!(!error.explain().expected.is_empty());
    }
    let first = datagram(1, &with(20, 0x20)).unwrap_err();
    assert_eq!(first, LinkError::Fragment { first: true });
    let later = datagram(1, &with(21, 9)).unwrap_err();
    assert_eq!(later, LinkError::Fragment { first: false });
}

proptest::proptest! {
    #[test]
    fn never_panics(
        form in 0usize..4, changes in proptest::collection::vec((0usize..400, 0u8..), 0..12), end in 0usize..400,
    ) {
        let ng = |big| [section(big), interface(big, 1, &[]), enhanced(big, 0, 0, &frame())].concat();
        let mut file = match form {
            0 => pcap(0xa1b2_c3d4, false, 1, &[frame(), frame()]),
            1 => pcap(0xa1b2_3c4d, true, 113, &[frame()]),
            2 => ng(false),
            _ => ng(true),
        };
        for (at, value) in changes {
            let at = at % file.len();
            file[at] = value;
        }
        file.truncate(end.max(4));
        let Ok(reader) = Reader::new(&file) else { return Ok(()) };
        for frame in reader.flatten() {
            proptest::prop_assert!(frame.data.len() <= file.len());
            if let Ok(packet) = Packet::parse(&frame) {
                let _ = Datagram::parse(&packet);
            }
        }
    }
}

//! Capture files: whatever an operator is sent.

use netstack::capture::{Datagram, Packet, Reader};

/// Frames are counted from 1, lie within the file, and end with the first error.
pub fn file(data: &[u8]) {
    let Ok(mut reader) = Reader::new(data) else {
        return;
    };
    let mut number = 0;
    while let Some(frame) = reader.next() {
        let frame = match frame {
            Ok(frame) => frame,
            Err(error) => {
                assert!(!error.explain().expected.is_empty());
                assert!(reader.next().is_none(), "frames after an error");
                return;
            }
        };
        number += 1;
        assert_eq!(frame.number, number);
        assert!(frame.data.len() <= data.len(), "more than the file has");
        let Ok(packet) = Packet::parse(&frame) else {
            continue;
        };
        if let Ok(datagram) = Datagram::parse(&packet) {
            assert!(datagram.payload.len() <= frame.data.len());
        }
    }
}

/// One small file of each form.
pub fn seeds() -> Vec<Vec<u8>> {
    let frame = [
        &[0xff; 12][..],
        &[0x08, 0x00, 0x45, 0, 0, 30, 0, 1, 0, 0, 64, 17, 0, 0],
        &[0, 0, 0, 0, 255, 255, 255, 255],
        &[0, 68, 0, 67, 0, 10, 0, 0, b'h', b'i'],
    ]
    .concat();
    let len = frame.len() as u8;
    let pcap = [
        &[0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0][..],
        &[0; 8],
        &[0xff, 0xff, 0, 0, 1, 0, 0, 0],
        &[1, 0, 0, 0, 2, 0, 0, 0, len, 0, 0, 0, len, 0, 0, 0],
        &frame,
    ]
    .concat();
    let section = [
        &[
            0x0a, 0x0d, 0x0d, 0x0a, 0, 0, 0, 28, 0x1a, 0x2b, 0x3c, 0x4d, 0, 1, 0, 0,
        ][..],
        &[0xff; 8],
        &[0, 0, 0, 28],
    ]
    .concat();
    let interface = [0, 0, 0, 1, 0, 0, 0, 20, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 20];
    let block_len = (32 + frame.len()) as u8;
    let packet = [
        &[0, 0, 0, 6, 0, 0, 0, block_len][..],
        &[0; 12],
        &[0, 0, 0, len, 0, 0, 0, len],
        &frame,
        &[0, 0, 0, block_len],
    ]
    .concat();
    vec![pcap, [&section[..], &interface, &packet].concat()]
}

//! What each kind of boot client is told, from packets that firmware sent and from bug reports.

use super::*;

const SCRIPT: &str = "https://[2001:db8:20::1]/boot/script.ipxe?arch=x86_64";
const UKI: &str = "https://[2001:db8:20::1]/boot/ab/attester.efi";
const NBP: &str = "tftp://[2001:db8:20::1]/ipxe.efi";

struct Loader;

impl BootAnswer for Loader {
    fn boot(&self, client: &ClientInfo) -> BootFile {
        BootFile::Url(
            match client {
                _ if client.is_ipxe => SCRIPT,
                _ if client.is_http_client => UKI,
                _ if client.is_pxe_client => NBP,
                _ => return BootFile::None,
            }
            .into(),
        )
    }
}

fn answer(bytes: &[u8]) -> (ClientInfo, Answer) {
    let outcome = server().handle(0, bytes, &ingress(), &Loader);
    let answer = Answer::of(&outcome);
    (outcome.client.unwrap(), answer)
}

fn ascii_class(enterprise: u32, class: &[u8]) -> Vec<u8> {
    let mut value = enterprise.to_be_bytes().to_vec();
    value.extend_from_slice(&(class.len() as u16).to_be_bytes());
    value.extend_from_slice(class);
    value
}

/// Solicit of OVMF (edk2 2022.11) at its PXEv6 boot option.
const OVMF_PXE: &str = "019c3f690001000e0001000131e5eb4e5254000000020008000200000003000cc92fde5b\
    ffffffffffffffff00060008003b003c00170010003e0003010300003d0002000700100026000001570020\
    505845436c69656e743a417263683a30303030373a554e44493a303033303030";

#[test]
fn ovmf_pxe_gets_a_tftp_url_and_neither_class_nor_parameters() {
    let bytes = hex::decode(OVMF_PXE).unwrap();
    let (client, answer) = answer(&bytes);
    assert!(client.is_pxe_client && !client.is_http_client && !client.is_ipxe);
    assert_eq!((client.arch, client.ndi), (Some(7), Some([1, 3, 0])));
    assert_eq!(client.requested, [59, 60, 23, 16]);
    assert_eq!(client.vendor_classes[0].enterprise, 343);
    assert!(client.notes.is_empty());
    assert_eq!(answer.url(), Some(NBP));
    // With PXEClient in option 16, EDK2 takes the offer for BINL and asks port 4011.
    assert_eq!(answer.get(code::VENDOR_CLASS), None);
}

/// tianocore/edk2 issue 10114: a reply with option 60 is dropped, "BootFile does not exist". The
/// client asks for 60 all the same.
#[test]
fn edk2_10114_no_boot_file_parameters_although_asked_for() {
    let bytes = hex::decode(OVMF_PXE).unwrap();
    let (client, answer) = answer(&bytes);
    assert!(client.asks_for(60));
    assert_eq!(answer.get(60), None);
}

#[test]
fn uefi_http_boot_gets_its_class_back_with_the_url() {
    let class = ascii_class(343, b"HTTPClient:Arch:00016:UNDI:003001");
    let packet = Packet::new(MessageType::Solicit, 1)
        .ia(1, &[])
        .option(code::ARCH, &[0, 16])
        .option(code::VENDOR_CLASS, &class);
    let (client, answer) = answer(&packet.bytes());
    assert!(client.is_http_client && !client.is_pxe_client);
    assert_eq!((client.arch, answer.url()), (Some(16), Some(UKI)));
    assert_eq!(
        answer.get(code::VENDOR_CLASS),
        Some(&ascii_class(343, b"HTTPClient")[..])
    );
}

#[test]
fn ipxe_gets_the_script_whatever_its_vendor_class_says() {
    let class = ascii_class(343, b"HTTPClient:Arch:00016:UNDI:003010");
    let packet = Packet::new(MessageType::Solicit, 1)
        .ia(1, &[])
        .option(code::USER_CLASS, b"\0\x04iPXE")
        .option(code::VENDOR_CLASS, &class);
    let (client, answer) = answer(&packet.bytes());
    assert!(client.is_ipxe);
    assert_eq!(
        client.arch,
        Some(16),
        "from the vendor class when option 61 is absent"
    );
    assert_eq!(answer.url(), Some(SCRIPT));
    assert_eq!(answer.get(code::VENDOR_CLASS), None);
}

#[test]
fn a_system_that_boots_nothing_gets_an_address_only() {
    let packet = Packet::new(MessageType::Solicit, 1)
        .ia(1, &[])
        .option(code::OPTION_REQUEST, &[0, 59]);
    assert_eq!(answer(&packet.bytes()).1.url(), None);
}

/// insomniacslk/dhcp issue 395, first form: D-Link writes the inner length of option 16 little
/// endian. The option is noted and read, the packet answered.
#[test]
fn insomniacslk_dhcp_395_little_endian_vendor_class() {
    let mut class = 343_u32.to_be_bytes().to_vec();
    class.extend_from_slice(&9_u16.to_le_bytes());
    class.extend_from_slice(b"PXEClient");
    let packet = Packet::new(MessageType::Solicit, 1)
        .option(code::VENDOR_CLASS, &class)
        .ia(1, &[]);
    let (client, answer) = answer(&packet.bytes());
    let note = OptionNote {
        code: 16,
        kind: NoteKind::LittleEndian,
    };
    assert_eq!(client.notes, [note]);
    assert_eq!(client.vendor_classes[0].data, [b"PXEClient".to_vec()]);
    assert_eq!(answer.addr(), ip("2001:db8:20::100"));
}

/// Second form: an enterprise number and no data; and shorter still.
#[test]
fn insomniacslk_dhcp_395_vendor_class_without_data() {
    for class in [&[0, 0, 1, 87][..], &[0, 0], &[]] {
        let packet = Packet::new(MessageType::Solicit, 1)
            .option(code::VENDOR_CLASS, class)
            .ia(1, &[]);
        let (client, answer) = answer(&packet.bytes());
        let note = OptionNote {
            code: 16,
            kind: NoteKind::BadLength { len: class.len() },
        };
        assert_eq!(client.notes, [note]);
        assert_eq!(answer.addr(), ip("2001:db8:20::100"), "{class:?}");
    }
}

/// Cisco's installer sends its user class without the inner length.
#[test]
fn a_raw_user_class_is_one_class() {
    let packet = Packet::new(MessageType::Solicit, 1)
        .option(code::USER_CLASS, b"exr-config")
        .ia(1, &[]);
    let (client, _) = answer(&packet.bytes());
    assert_eq!(client.user_class, [b"exr-config".to_vec()]);
    assert_eq!(
        client.notes,
        [OptionNote {
            code: 15,
            kind: NoteKind::Unframed
        }]
    );
    let raw_ipxe = Packet::new(MessageType::Solicit, 1)
        .option(code::USER_CLASS, b"iPXE")
        .ia(1, &[]);
    assert!(answer(&raw_ipxe.bytes()).0.is_ipxe);
}

#[test]
fn the_uuid_of_a_duid_uuid_is_known() {
    let mut packet = Packet::new(MessageType::Solicit, 1).ia(1, &[]);
    packet.options[0].1 = [&[0, 4][..], &[7; 16]].concat();
    let (client, answer) = answer(&packet.bytes());
    assert_eq!(client.uuid(), Some([7; 16]));
    assert_eq!(answer.get(code::CLIENT_ID).unwrap().len(), 18);
}

#[test]
fn rejects_a_boot_file_that_is_no_url_before_anything_is_leased() {
    struct Bad(String);
    impl BootAnswer for Bad {
        fn boot(&self, _client: &ClientInfo) -> BootFile {
            BootFile::Url(self.0.clone())
        }
    }
    let packet = Packet::new(MessageType::Solicit, 1)
        .option(code::RAPID_COMMIT, &[])
        .ia(1, &[]);
    for url in [String::new(), "tftp://a b".into(), "h".repeat(513)] {
        let mut server = server();
        let outcome = server.handle(0, &packet.bytes(), &ingress(), &Bad(url));
        assert_eq!(outcome.refused.unwrap().code(), "dhcp6.boot_file");
        assert!(outcome.reply.is_none() && server.leases().next().is_none());
    }
}

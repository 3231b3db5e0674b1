//! Files beside the daemon (images, the catalogue) and text that ends up in an iPXE script.

use boot::arch::ClientArch;
use boot::catalog::{self, Catalog, ImageKey, Manifest};
use boot::ipxe;
use boot::measure::measure;
use boot::pe::Pe;
use boot::plan::{BootPlan, BootPolicy, HttpBoot};

/// A PE image, and a UKI.
pub fn pe(data: &[u8]) {
    let _ = measure(data);
    let Ok(pe) = Pe::parse(data) else { return };
    for section in &pe.sections {
        let _ = pe.section(&section.name);
    }
    let Ok(digest) = pe.authenticode_sha256() else {
        return;
    };
    // The checksum is the one field of the headers that a signature leaves open.
    let mut other = data.to_vec();
    other[pe.layout.checksum] ^= 0xff;
    let same = Pe::parse(&other).and_then(|pe| pe.authenticode_sha256());
    assert_eq!(same, Ok(digest), "the digest covers the checksum field");
}

/// The catalogue and the key it is signed with.
pub fn catalog(data: &[u8]) {
    let _ = ImageKey::from_der(data);
    let _ = ImageKey::from_pem(data);
    let Ok(manifest) = serde_json::from_slice::<Manifest>(data) else {
        return;
    };
    if catalog::check(&manifest).is_ok() {
        let encoded = serde_json::to_vec(&manifest).expect("a manifest can be encoded");
        let again: Manifest = serde_json::from_slice(&encoded).expect("and be read again");
        assert_eq!(again, manifest);
    }
    // Whatever it says, without the signature it is nothing.
    let key = ImageKey::from_pem(KEY_PEM.as_bytes()).expect("our own key");
    assert!(Catalog::load(data, data, &key).is_err());
}

/// A reason for a hold, which may quote what a machine sent, in a script that iPXE runs.
pub fn ipxe_script(data: &[u8]) {
    let _ = ClientArch::from_option_93(data);
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let policy = BootPolicy {
        https_host: "10.0.0.1".into(),
        http_host: "10.0.0.1".into(),
        http_boot: HttpBoot::UkiOverHttps,
        hold_retry_secs: 30,
    };
    let plan = BootPlan::Hold {
        reason: text.into(),
        retry_secs: 30,
    };
    let url = "https://10.0.0.1/boot/script.ipxe";
    let script = ipxe::render(&plan, None, &policy, url).expect("a hold needs no artefact");
    assert!(script.is_ascii());
    for line in script.lines().filter(|line| line.contains("why:")) {
        assert!(line.starts_with("echo "), "{line}");
        assert!(
            !line.contains(['$', '&', '|', ';', '`', '#', '"', '\\']),
            "{line}"
        );
    }
    let commands = |script: &str| {
        script
            .lines()
            .filter(|line| !line.starts_with("echo "))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let plain = BootPlan::Hold {
        reason: "plain".into(),
        retry_secs: 30,
    };
    let plain = ipxe::render(&plain, None, &policy, url).expect("a hold needs no artefact");
    assert_eq!(
        commands(&script),
        commands(&plain),
        "a reason added a command"
    );
}

/// P-256, made for this test; nobody has the private part.
const KEY_PEM: &str = include_str!("image-key.pem");

/// A PE32+ image with the given sections.
fn image(sections: &[(&str, &[u8])]) -> Vec<u8> {
    const OPTIONAL: usize = 0x98;
    let mut file = vec![0; 0x400];
    let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"MZ");
    put(0x3c, &[0x80]);
    put(0x80, b"PE\0\0");
    put(0x86, &[sections.len() as u8]);
    put(0x94, &[240]);
    put(OPTIONAL, &[0x0b, 0x02]);
    put(OPTIONAL + 32, &0x1000u32.to_le_bytes());
    put(OPTIONAL + 36, &0x200u32.to_le_bytes());
    put(OPTIONAL + 60, &0x400u32.to_le_bytes());
    put(OPTIONAL + 108, &[16]);
    for (index, (name, content)) in sections.iter().enumerate() {
        let row = OPTIONAL + 240 + 40 * index;
        let raw = content.len().next_multiple_of(0x200);
        let start = file.len();
        file[row..row + name.len()].copy_from_slice(name.as_bytes());
        for (offset, value) in [
            (8, content.len()),
            (12, 0x1000 * (index + 1)),
            (16, raw),
            (20, start),
        ] {
            file[row + offset..row + offset + 4].copy_from_slice(&(value as u32).to_le_bytes());
        }
        file.extend_from_slice(content);
        file.resize(start + raw, 0);
    }
    file
}

/// A small image and a small UKI.
pub fn pe_seeds() -> Vec<Vec<u8>> {
    let kernel = image(&[(".text", b"kernel")]);
    let uki = image(&[
        (".sdmagic", b"#### LoaderInfo: systemd-stub 257 ####"),
        (".osrel", b"ID=vestibule\n"),
        (".cmdline", b"console=ttyS0"),
        (".linux", &kernel),
        (".initrd", b"initrd"),
    ]);
    vec![kernel, uki]
}

/// A catalogue with one artefact, and a key.
pub fn catalog_seeds() -> Vec<Vec<u8>> {
    let digest = "ab".repeat(32);
    let text = format!(
        r#"{{"version":1,"artefacts":[{{"name":"attester","kind":"uki","role":"provision","arch":"x86_64","version":1,"file":"attester.efi","sha256":"{digest}","size_bytes":1,"pe_sha256":"{digest}","linux_pe_sha256":"{digest}","pcr11":"{digest}","cmdline":"quiet"}}]}}"#
    );
    vec![text.into_bytes(), KEY_PEM.as_bytes().to_vec()]
}

/// Reasons with what iPXE would act on.
pub fn ipxe_seeds() -> Vec<Vec<u8>> {
    [
        "${net0/mac} && shell",
        "a\nshell\n",
        "|| goto x; #",
        "\u{202e}abc\0\r\u{1b}[2J",
    ]
    .into_iter()
    .map(|text| text.as_bytes().to_vec())
    .collect()
}

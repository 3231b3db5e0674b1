//! An event log as our firmware, iPXE and systemd-stub write it, and the PCR values it stands for.
//!
//! A simulated machine extends its real swtpm with exactly what it logs, so its evidence is true.
//! Format: TCG PC Client Platform Firmware Profile, section 10, crypto-agile with one SHA-256 bank.

use sha2::{Digest as _, Sha256};

const EV_NO_ACTION: u32 = 0x03;
const EV_SEPARATOR: u32 = 0x04;
const EV_S_CRTM_VERSION: u32 = 0x08;
const EV_IPL: u32 = 0x0d;
const EV_EFI_VARIABLE_DRIVER_CONFIG: u32 = 0x8000_0001;
const EV_EFI_VARIABLE_BOOT: u32 = 0x8000_0002;
const EV_EFI_BOOT_SERVICES_APPLICATION: u32 = 0x8000_0003;
const EV_EFI_ACTION: u32 = 0x8000_0007;
const EV_EFI_VARIABLE_AUTHORITY: u32 = 0x8000_00e0;

const EFI_GLOBAL_VARIABLE: [u8; 16] = [
    0x61, 0xdf, 0xe4, 0x8b, 0xca, 0x93, 0xd2, 0x11, 0xaa, 0x0d, 0x00, 0xe0, 0x98, 0x03, 0x2b, 0x8c,
];
const EFI_IMAGE_SECURITY_DATABASE: [u8; 16] = [
    0xcb, 0xb2, 0x19, 0xd7, 0x3a, 0x3d, 0x96, 0x45, 0xa3, 0xbc, 0xda, 0xd0, 0x0e, 0x67, 0x65, 0x6f,
];

/// What a machine boots, for its log.
#[derive(Debug, Clone)]
pub struct Boot {
    /// `SecureBoot` is 1.
    pub secure_boot: bool,
    /// DER of the certificate in db that the images are signed with.
    pub db_cert: Vec<u8>,
    /// Authenticode SHA-256 of every image that firmware or stub loads, in order.
    pub images: Vec<[u8; 32]>,
    /// What systemd-stub measures into PCR 11: label and measured digest, in order.
    pub stub: Vec<(String, [u8; 32])>,
    /// A command line that iPXE hands over (the stub measures it into PCR 12), if any.
    pub command_line: Option<String>,
}

/// A log and its extends.
#[derive(Debug, Clone, Default)]
pub struct EventLog {
    /// The bytes, as the kernel exports them.
    pub bytes: Vec<u8>,
    /// PCR and digest of every event that is extended, in order.
    pub extends: Vec<(u8, [u8; 32])>,
}

impl EventLog {
    /// The log of one boot.
    pub fn of(boot: &Boot) -> Self {
        let mut log = Self::default();
        log.spec_id();
        log.measured(0, EV_S_CRTM_VERSION, &utf16("vestibule lab firmware\0"));
        let flag = [u8::from(boot.secure_boot)];
        let list = signature_list(&boot.db_cert);
        for (guid, name, data) in [
            (EFI_GLOBAL_VARIABLE, "SecureBoot", flag.as_slice()),
            (EFI_GLOBAL_VARIABLE, "PK", &list),
            (EFI_GLOBAL_VARIABLE, "KEK", &list),
            (EFI_IMAGE_SECURITY_DATABASE, "db", &list),
            (EFI_IMAGE_SECURITY_DATABASE, "dbx", &[]),
        ] {
            log.measured(
                7,
                EV_EFI_VARIABLE_DRIVER_CONFIG,
                &variable(guid, name, data),
            );
        }
        log.measured(7, EV_SEPARATOR, &[0; 4]);
        log.measured(
            1,
            EV_EFI_VARIABLE_BOOT,
            &variable(EFI_GLOBAL_VARIABLE, "BootOrder", &[0, 0]),
        );
        log.measured(
            4,
            EV_EFI_ACTION,
            b"Calling EFI Application from Boot Option",
        );
        for pcr in 0..=6 {
            log.measured(pcr, EV_SEPARATOR, &[0; 4]);
        }
        if boot.secure_boot {
            // The EFI_SIGNATURE_DATA of db that vouched for the image: owner and certificate.
            let entry = [&[0u8; 16], boot.db_cert.as_slice()].concat();
            log.measured(
                7,
                EV_EFI_VARIABLE_AUTHORITY,
                &variable(EFI_IMAGE_SECURITY_DATABASE, "db", &entry),
            );
        }
        for image in &boot.images {
            // UEFI_IMAGE_LOAD_EVENT: location, length, link time address, device path length.
            log.event(4, EV_EFI_BOOT_SERVICES_APPLICATION, *image, &[0; 32]);
        }
        for (label, digest) in &boot.stub {
            log.event(11, EV_IPL, *digest, &utf16(&format!("{label}\0")));
        }
        if let Some(line) = &boot.command_line {
            log.measured(12, EV_IPL, &utf16(&format!("{line}\0")));
        }
        log.measured(5, EV_EFI_ACTION, b"Exit Boot Services Invocation");
        log.measured(
            5,
            EV_EFI_ACTION,
            b"Exit Boot Services Returned with Success",
        );
        log
    }

    /// An event whose digest is that of its data.
    pub fn measured(&mut self, pcr: u8, kind: u32, data: &[u8]) {
        self.event(pcr, kind, Sha256::digest(data).into(), data);
    }

    /// `TCG_PCR_EVENT2`.
    pub fn event(&mut self, pcr: u8, kind: u32, digest: [u8; 32], data: &[u8]) {
        let out = &mut self.bytes;
        out.extend(u32::from(pcr).to_le_bytes());
        out.extend(kind.to_le_bytes());
        out.extend(1u32.to_le_bytes());
        // TPM_ALG_SHA256.
        out.extend(0x000b_u16.to_le_bytes());
        out.extend(digest);
        out.extend((data.len() as u32).to_le_bytes());
        out.extend(data);
        self.extends.push((pcr, digest));
    }

    /// `TCG_PCR_EVENT` with the `TCG_EfiSpecIDEvent`: names the one bank.
    fn spec_id(&mut self) {
        let mut spec = b"Spec ID Event03\0".to_vec();
        spec.extend(0u32.to_le_bytes());
        // Version 2.00, errata 0, 64-bit.
        spec.extend([0, 2, 0, 2]);
        spec.extend(1u32.to_le_bytes());
        spec.extend(0x000b_u16.to_le_bytes());
        spec.extend(32u16.to_le_bytes());
        spec.push(0);
        let out = &mut self.bytes;
        out.extend(0u32.to_le_bytes());
        out.extend(EV_NO_ACTION.to_le_bytes());
        out.extend([0; 20]);
        out.extend((spec.len() as u32).to_le_bytes());
        out.extend(spec);
    }

    /// Value of a PCR after all extends, from zero.
    pub fn pcr(&self, index: u8) -> [u8; 32] {
        self.extends
            .iter()
            .filter(|(pcr, _)| *pcr == index)
            .fold([0; 32], |value, (_, digest)| {
                Sha256::new()
                    .chain_update(value)
                    .chain_update(digest)
                    .finalize()
                    .into()
            })
    }
}

fn utf16(text: &str) -> Vec<u8> {
    text.encode_utf16().flat_map(u16::to_le_bytes).collect()
}

/// `UEFI_VARIABLE_DATA`.
fn variable(guid: [u8; 16], name: &str, data: &[u8]) -> Vec<u8> {
    let mut out = guid.to_vec();
    out.extend((name.encode_utf16().count() as u64).to_le_bytes());
    out.extend((data.len() as u64).to_le_bytes());
    out.extend(utf16(name));
    out.extend(data);
    out
}

/// `EFI_SIGNATURE_LIST` with one X.509 certificate (UEFI section 32.4.1).
fn signature_list(cert: &[u8]) -> Vec<u8> {
    // EFI_CERT_X509_GUID.
    let mut out = vec![
        0xa1, 0x59, 0xc0, 0xa5, 0xe4, 0x94, 0xa7, 0x4a, 0x87, 0xb5, 0xab, 0x15, 0x5c, 0x2b, 0xf0,
        0x72,
    ];
    let size = 16 + cert.len() as u32;
    out.extend((28 + size).to_le_bytes());
    out.extend(0u32.to_le_bytes());
    out.extend(size.to_le_bytes());
    out.extend([0; 16]);
    out.extend(cert);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn boot() -> Boot {
        Boot {
            secure_boot: true,
            db_cert: vec![0x30, 0],
            images: vec![[1; 32], [2; 32]],
            stub: vec![(".linux".into(), [3; 32])],
            command_line: None,
        }
    }

    #[test]
    fn pcr_values_are_the_fold_of_the_extends() {
        let log = EventLog::of(&boot());
        let first: [u8; 32] = Sha256::digest([[0u8; 32], [3; 32]].concat()).into();
        assert_eq!(log.pcr(11), first);
        assert_eq!(log.pcr(12), [0; 32]);
        assert_ne!(
            log.pcr(4),
            EventLog::of(&Boot {
                images: vec![],
                ..boot()
            })
            .pcr(4)
        );
    }

    #[test]
    fn only_a_changed_command_line_touches_pcr_12() {
        let line = Boot {
            command_line: Some("init=/bin/sh".into()),
            ..boot()
        };
        let (honest, changed) = (EventLog::of(&boot()), EventLog::of(&line));
        for pcr in 0..16 {
            assert_eq!(honest.pcr(pcr) == changed.pcr(pcr), pcr != 12, "PCR {pcr}");
        }
    }
}

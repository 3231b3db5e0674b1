//! What a boot says of itself, read from its event log: for `inspect`, and for drafts of a policy.
//!
//! Decides nothing. Proven and claimed are kept apart: databases, authorities, markers and Secure
//! Boot rest on digests; the path of an image, an event type and a text that no digest covers are
//! the log's word and say so. Whether the log itself is true only a quote can tell.

use std::collections::BTreeSet;

use attest_wire::tpm::HashAlg;

use super::eventlog::{Event, Format, Log};
use super::events::{
    EV_EFI_BOOT_SERVICES_APPLICATION, EV_EFI_BOOT_SERVICES_DRIVER, EV_EFI_RUNTIME_SERVICES_DRIVER,
    Marker, Markers,
};
use super::variables::{
    EFI_GLOBAL_VARIABLE, EFI_IMAGE_SECURITY_DATABASE, Proof, Signature, Variable,
};

/// Secure Boot as PCR 7 proves it, fed in the order of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SecureBoot {
    on: Option<bool>,
    ended: bool,
}

impl SecureBoot {
    /// The separator: the firmware's settings are all told, what follows vouches for images.
    pub fn separator(&mut self) {
        self.ended = true;
    }

    /// A proven variable. One that says "on" counts before the separator only: behind it anybody
    /// may measure it.
    pub fn variable(&mut self, variable: &Variable<'_>) {
        if variable.is_global("SecureBoot") {
            let is_on = variable.data == [1];
            if !self.ended || !is_on {
                self.on = Some(self.on.unwrap_or(true) && is_on);
            }
        }
    }

    /// Whether a proven variable vouches for an image. Told by its place and content, which are
    /// proven, and not by the event type, which is not: behind the separator there is nothing else
    /// but shim's own state, and before it settings are lists, never one certificate.
    pub fn is_authority(&self, variable: &Variable<'_>) -> bool {
        if variable.is_global("SecureBoot") || variable.is_shim_state() {
            return false;
        }
        self.ended || variable.certificate().is_some()
    }

    /// Whether the separator has been.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// On, off, or not told.
    pub fn is_on(&self) -> Option<bool> {
        self.on
    }
}

/// PK, KEK, db, dbx and their kin, as measured before the separator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Database<'a> {
    /// Number of the event.
    pub event: usize,
    /// The variable.
    pub variable: Variable<'a>,
    /// How its digest covers it.
    pub proof: Proof,
    /// Its entries; none when the content is no signature list.
    pub entries: Option<Vec<Signature<'a>>>,
}

/// What the boot manager was told: `BootOrder` and the options, `Boot0000` and on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootVariable<'a> {
    /// Number of the event.
    pub event: usize,
    /// The variable.
    pub variable: Variable<'a>,
    /// How its digest covers it; much firmware hashes the content only.
    pub proof: Proof,
}

impl<'a> BootVariable<'a> {
    /// Numbers of `BootOrder`, if it is that.
    pub fn order(&self) -> Option<Vec<u16>> {
        let data = self.variable.data;
        let is_order = self.variable.name == "BootOrder" && data.len().is_multiple_of(2);
        let numbers = data
            .chunks_exact(2)
            .map(|octets| u16::from_le_bytes([octets[0], octets[1]]));
        is_order.then(|| numbers.collect())
    }

    /// Description and device path of an option (`EFI_LOAD_OPTION`, UEFI 2.10 section 3.1.3); none
    /// when it is no option or its lengths do not fit.
    pub fn option(&self) -> Option<(String, &'a [u8])> {
        let number = self.variable.name.strip_prefix("Boot")?;
        if number.len() != 4 || !number.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        let (head, rest) = self.variable.data.split_at_checked(6)?;
        let path_len = usize::from(u16::from_le_bytes([head[4], head[5]]));
        let end = rest.chunks_exact(2).position(|unit| unit == [0, 0])?;
        let description = utf16(&rest[..2 * end])?;
        let path = rest.get(2 * end + 2..)?.get(..path_len)?;
        Some((description, path))
    }
}

/// A variable that vouched for an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authority<'a> {
    /// Number of the event.
    pub event: usize,
    /// The variable it was found in.
    pub variable: Variable<'a>,
    /// How its digest covers it.
    pub proof: Proof,
}

/// What kind of image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageKind {
    /// Started by the boot manager, or by what it started.
    Application,
    /// From an add-in card.
    Driver,
}

/// An image that was measured before it ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Image<'a> {
    /// Number of the event.
    pub event: usize,
    /// Register.
    pub pcr: u8,
    /// Event type: the log's word.
    pub type_claimed: u32,
    /// Where it is: that register's images are all of this kind, whatever the type says.
    pub kind: ImageKind,
    /// Authenticode digest of the image, proven by the quote alone.
    pub digest: &'a [u8],
    /// `EFI_DEVICE_PATH_PROTOCOL` of the event data: the log's word. Empty when there is none.
    pub device_path: &'a [u8],
}

/// One boot option that the firmware started.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Attempt {
    /// Number of the event "Calling EFI Application from Boot Option".
    pub event: usize,
    /// Numbers of the images' events that came after it.
    pub images: Vec<usize>,
    /// It came back, and the next option was tried.
    pub returned: bool,
}

/// A marker where it stood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Marked {
    /// Number of the event.
    pub event: usize,
    /// Register.
    pub pcr: u8,
    /// What it says.
    pub marker: Marker,
}

/// What a boot loader, a stub or a kernel measured: PCR 8 to 15.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loaded<'a> {
    /// Number of the event.
    pub event: usize,
    /// Register.
    pub pcr: u8,
    /// Event type: the log's word.
    pub type_claimed: u32,
    /// Its digest.
    pub digest: &'a [u8],
    /// Its text, when it is one.
    pub text: Option<String>,
    /// Whether the digest covers the text; a digest of a file covers no name.
    pub proven: bool,
}

/// Prefixes of a text that say what was measured and are not hashed (GRUB).
const PREFIXES: [&[u8]; 3] = [b"grub_cmd: ", b"kernel_cmdline: ", b"module_cmdline: "];

/// Everything of a log that has a meaning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootEvents<'a> {
    /// Bank that was looked at.
    pub bank: HashAlg,
    /// On, off, or not told.
    pub secure_boot: Option<bool>,
    /// The value rests on a name that no digest covers: TPM 1.2 firmware hashed contents only.
    pub secure_boot_by_name: bool,
    /// Key databases.
    pub databases: Vec<Database<'a>>,
    /// What the boot manager was told.
    pub boot_variables: Vec<BootVariable<'a>>,
    /// What vouched for images.
    pub authorities: Vec<Authority<'a>>,
    /// Applications and drivers, in the order of the log.
    pub images: Vec<Image<'a>>,
    /// Separators and the firmware's texts.
    pub markers: Vec<Marked>,
    /// Boot options that were tried.
    pub attempts: Vec<Attempt>,
    /// Measurements of loader, stub and kernel.
    pub loaded: Vec<Loaded<'a>>,
}

/// Registers of a log by what is measured there.
struct Registers {
    settings: u8,
    boot_variables: u8,
    images: u8,
    drivers: u8,
    loader: std::ops::RangeInclusive<u8>,
}

impl Registers {
    fn of(format: Format) -> Self {
        match format {
            Format::Sha1 | Format::CryptoAgile => Self {
                settings: 7,
                boot_variables: 1,
                images: 4,
                drivers: 2,
                loader: 8..=15,
            },
            // PCR 1 and 7 are RTMR 0, PCR 2 to 6 RTMR 1, PCR 8 to 15 RTMR 2; register 0 is MRTD.
            Format::Ccel => Self {
                settings: 1,
                boot_variables: 1,
                images: 2,
                drivers: 2,
                loader: 3..=3,
            },
        }
    }
}

impl<'a> BootEvents<'a> {
    /// Bank to look at: the one that decisions are made in, else the strongest there is.
    pub fn bank_of(log: &Log<'_>) -> Option<HashAlg> {
        let order = [
            HashAlg::Sha256,
            HashAlg::Sha384,
            HashAlg::Sha512,
            HashAlg::Sm3,
            HashAlg::Sha1,
        ];
        order
            .into_iter()
            .find(|alg| log.banks.iter().any(|&(id, _)| id == alg.id()))
    }

    /// Reads a log; none when it has no bank that we can compute.
    pub fn read(log: &Log<'a>) -> Option<Self> {
        let bank = Self::bank_of(log)?;
        let mut all = Self {
            bank,
            secure_boot: None,
            secure_boot_by_name: false,
            databases: Vec::new(),
            boot_variables: Vec::new(),
            authorities: Vec::new(),
            images: Vec::new(),
            markers: Vec::new(),
            attempts: Vec::new(),
            loaded: Vec::new(),
        };
        let registers = Registers::of(log.format);
        let markers = Markers::in_bank(bank);
        let mut state = SecureBoot::default();
        for event in log.events.iter().filter(|event| event.extends()) {
            let marker = markers.of(event);
            if let Some(marker) = marker {
                all.mark(event, marker);
                if marker == Marker::Separator && event.pcr == registers.settings {
                    state.separator();
                }
            } else if all.boot_variable(event, &registers) {
            } else if event.pcr == registers.settings {
                all.setting(event, log.format, &mut state);
            } else if let Some(kind) = image_kind(&registers, log.format, event) {
                all.image(event, kind);
            } else if registers.loader.contains(&event.pcr) {
                all.loaded(event);
            }
        }
        all.secure_boot = state.is_on();
        Some(all)
    }

    fn mark(&mut self, event: &Event<'a>, marker: Marker) {
        self.markers.push(Marked {
            event: event.index,
            pcr: event.pcr,
            marker,
        });
        match marker {
            Marker::BootCalled => self.attempts.push(Attempt {
                event: event.index,
                ..Attempt::default()
            }),
            Marker::BootReturned => {
                if let Some(attempt) = self.attempts.last_mut() {
                    attempt.returned = true;
                }
            }
            Marker::Separator
            | Marker::SeparatorError
            | Marker::BootAction
            | Marker::ExitBootServicesCalled
            | Marker::ExitBootServicesDone
            | Marker::ExitBootServicesFailed
            | Marker::Debug
            | Marker::DmaOff => {}
        }
    }

    /// Takes the event if it is a variable of the boot manager.
    fn boot_variable(&mut self, event: &Event<'a>, registers: &Registers) -> bool {
        if event.pcr != registers.boot_variables {
            return false;
        }
        let found = Variable::covered(event, self.bank).filter(|(variable, _)| {
            variable.guid == EFI_GLOBAL_VARIABLE && variable.name.starts_with("Boot")
        });
        let taken = found.is_some();
        self.boot_variables
            .extend(found.map(|(variable, proof)| BootVariable {
                event: event.index,
                variable,
                proof,
            }));
        taken
    }

    fn setting(&mut self, event: &Event<'a>, format: Format, state: &mut SecureBoot) {
        let Some((variable, proof)) = Variable::covered(event, self.bank) else {
            return;
        };
        state.variable(&variable);
        self.secure_boot_by_name |= variable.is_global("SecureBoot") && proof == Proof::Content;
        // RTMR 0 has the boot variables of PCR 1 as well: there the content must tell.
        let may_vouch = format != Format::Ccel || variable.certificate().is_some();
        if may_vouch && state.is_authority(&variable) {
            self.authorities.push(Authority {
                event: event.index,
                variable,
                proof,
            });
            return;
        }
        let keys = variable.guid == EFI_IMAGE_SECURITY_DATABASE
            || (variable.guid == EFI_GLOBAL_VARIABLE
                && matches!(variable.name.as_str(), "PK" | "KEK"));
        if keys {
            self.databases.push(Database {
                event: event.index,
                entries: Signature::lists(variable.data),
                variable,
                proof,
            });
        }
    }

    fn image(&mut self, event: &Event<'a>, kind: ImageKind) {
        let Some(digest) = event.digest(self.bank) else {
            return;
        };
        self.images.push(Image {
            event: event.index,
            pcr: event.pcr,
            type_claimed: event.kind,
            kind,
            digest,
            device_path: device_path(event.data).unwrap_or_default(),
        });
        if kind == ImageKind::Application
            && let Some(attempt) = self.attempts.last_mut()
        {
            attempt.images.push(event.index);
        }
    }

    fn loaded(&mut self, event: &Event<'a>) {
        let Some(digest) = event.digest(self.bank) else {
            return;
        };
        self.loaded.push(Loaded {
            event: event.index,
            pcr: event.pcr,
            type_claimed: event.kind,
            digest,
            text: text(event.data),
            proven: covers(self.bank, digest, event.data),
        });
    }

    /// Registers with more than one separator, as some loaders of confidential machines measure.
    pub fn separators_doubled(&self) -> BTreeSet<u8> {
        let mut once = BTreeSet::new();
        let separators = self
            .markers
            .iter()
            .filter(|marked| marked.marker == Marker::Separator);
        separators
            .filter(|marked| !once.insert(marked.pcr))
            .map(|marked| marked.pcr)
            .collect()
    }
}

/// In PCR 4 whatever is no marker is an image, as row 11 takes it; in PCR 2 whatever is none is
/// there because of a card. RTMR 1 has both and more: there the type must do.
fn image_kind(registers: &Registers, format: Format, event: &Event<'_>) -> Option<ImageKind> {
    let claimed = match event.kind {
        EV_EFI_BOOT_SERVICES_APPLICATION => Some(ImageKind::Application),
        EV_EFI_BOOT_SERVICES_DRIVER | EV_EFI_RUNTIME_SERVICES_DRIVER => Some(ImageKind::Driver),
        _ => None,
    };
    match format {
        Format::Ccel => claimed.filter(|_| event.pcr == registers.images),
        Format::Sha1 | Format::CryptoAgile if event.pcr == registers.images => {
            Some(ImageKind::Application)
        }
        Format::Sha1 | Format::CryptoAgile => {
            (event.pcr == registers.drivers).then_some(ImageKind::Driver)
        }
    }
}

/// `UEFI_IMAGE_LOAD_EVENT` (PFP 10.2.3): three numbers, the length of the path, the path.
fn device_path(data: &[u8]) -> Option<&[u8]> {
    let (len, rest) = data.get(24..)?.split_at_checked(8)?;
    let len = usize::try_from(u64::from_le_bytes(len.try_into().ok()?)).ok()?;
    rest.get(..len)
}

/// Text of an event that its digest covers.
pub(super) fn proven_text(bank: HashAlg, event: &Event<'_>) -> Option<String> {
    let digest = event.digest(bank)?;
    text(event.data).filter(|_| covers(bank, digest, event.data))
}

/// Text of an event: UTF-16 (stubs), or UTF-8 with or without its NUL (GRUB, kernels). A tagged
/// event has its text behind the tag.
fn text(data: &[u8]) -> Option<String> {
    let readable = |text: String| {
        let text = text.trim_end_matches('\0').to_owned();
        let fits = !text.is_empty()
            && !text
                .chars()
                .any(|c| c.is_control() && !"\t\n\r".contains(c));
        fits.then_some(text)
    };
    let octets = std::str::from_utf8(data).ok().map(str::to_owned);
    octets
        .and_then(readable)
        .or_else(|| {
            utf16(data)
                .filter(|text| mostly_ascii(text))
                .and_then(readable)
        })
        .or_else(|| {
            let (head, tagged) = data.split_at_checked(8)?;
            let len = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
            let fits = usize::try_from(len) == Ok(tagged.len());
            let text = std::str::from_utf8(tagged).ok().filter(|_| fits)?;
            readable(text.to_owned())
        })
}

/// Octets of any kind read as UTF-16 of some sort; a text of firmware or loader is mostly ASCII.
fn mostly_ascii(text: &str) -> bool {
    let ascii = text.chars().filter(char::is_ascii).count();
    2 * ascii >= text.chars().count()
}

fn utf16(data: &[u8]) -> Option<String> {
    if !data.len().is_multiple_of(2) {
        return None;
    }
    let units = data
        .chunks_exact(2)
        .map(|c| u16::from_le_bytes([c[0], c[1]]));
    char::decode_utf16(units).collect::<Result<_, _>>().ok()
}

/// Whether the digest is one of the text, in a form that the field hashes it in.
fn covers(bank: HashAlg, digest: &[u8], data: &[u8]) -> bool {
    let shorter = |data: &[u8]| data.strip_suffix(&[0]).map(<[u8]>::to_vec);
    let mut forms = vec![data.to_vec()];
    for prefix in PREFIXES {
        forms.extend(data.strip_prefix(prefix).map(<[u8]>::to_vec));
    }
    // systemd-stub logs a section's name in UTF-16 and hashes it in ASCII.
    if let Some(wide) = utf16(data).filter(|text| text.is_ascii()) {
        forms.push(wide.into_bytes());
    }
    let ended: Vec<Vec<u8>> = forms.iter().filter_map(|form| shorter(form)).collect();
    forms.extend(ended);
    forms.iter().any(|form| bank.digest(&[form]) == digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn boot_variable<'a>(name: &str, data: &'a [u8]) -> BootVariable<'a> {
        BootVariable {
            event: 1,
            variable: Variable {
                guid: EFI_GLOBAL_VARIABLE,
                name: name.into(),
                data,
            },
            proof: Proof::Content,
        }
    }

    #[test]
    fn boot_options_and_their_order_are_read() {
        let wide: Vec<u8> = "UEFI PXEv4\0"
            .encode_utf16()
            .flat_map(u16::to_le_bytes)
            .collect();
        let path = [0x7f, 0xff, 4, 0];
        let option = [&[1, 0, 0, 0, 4, 0][..], &wide, &path, b"optional"].concat();
        assert_eq!(
            boot_variable("Boot000A", &option).option(),
            Some(("UEFI PXEv4".into(), &path[..]))
        );
        for (name, data) in [
            ("BootOrder", &option[..]),
            ("Boot000", &option),
            ("Boot000G", &option),
            ("Boot0000", &option[..5]),
            ("Boot0000", &option[..20]),
            ("Boot0000", &option[..6 + wide.len() + 3]),
        ] {
            assert_eq!(boot_variable(name, data).option(), None, "{name}");
        }
        let order = [1, 0, 0, 1];
        assert_eq!(
            boot_variable("BootOrder", &order).order(),
            Some(vec![1, 256])
        );
        assert_eq!(boot_variable("BootOrder", &order[..3]).order(), None);
        assert_eq!(boot_variable("Boot0000", &order).order(), None);
    }

    #[test]
    fn texts_of_loaders_stubs_and_kernels_are_read() {
        let wide: Vec<u8> = ".linux\0"
            .encode_utf16()
            .flat_map(u16::to_le_bytes)
            .collect();
        let tagged = [
            &[0xec, 0x22, 0x3b, 0x8f, 13, 0, 0, 0][..],
            b"Linux initrd\0",
        ]
        .concat();
        for (data, read) in [
            (&b"grub_cmd: boot\0"[..], Some("grub_cmd: boot")),
            (&wide, Some(".linux")),
            (&tagged, Some("Linux initrd")),
            (b"", None),
            (&[0; 4], None),
            (&[0x10, 0, 0, 0], None),
            (&[0xff; 4], None),
        ] {
            assert_eq!(text(data).as_deref(), read);
        }
        let bank = HashAlg::Sha256;
        for (hashed, data) in [
            (&b"boot"[..], &b"grub_cmd: boot\0"[..]),
            (b"boot\0", b"grub_cmd: boot\0"),
            (b".linux\0", &wide),
            (b"boot", b"boot"),
        ] {
            assert!(covers(bank, &bank.digest(&[hashed]), data));
        }
        assert!(!covers(
            bank,
            &bank.digest(&[b"a file"]),
            b"/boot/grub.cfg\0"
        ));
    }
}

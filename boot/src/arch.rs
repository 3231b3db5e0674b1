//! DHCP option 93 to an architecture (RFC 4578 §2.1, IANA "Processor Architecture Types").
//!
//! Decides which of our images a client could run. Knows no image and no machine.

use serde::{Deserialize, Serialize};

/// Instruction set and firmware interface of a boot client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arch {
    /// x86 with a BIOS: no Secure Boot, no measured boot we could appraise.
    X86Bios,
    /// x86, 32 bits, UEFI.
    X86Uefi,
    /// x86-64, UEFI.
    X64Uefi,
    /// ARM, 32 bits, UEFI.
    Arm32Uefi,
    /// ARM, 64 bits, UEFI.
    Arm64Uefi,
    /// RISC-V, 64 bits, UEFI.
    Riscv64Uefi,
    /// LoongArch, 64 bits, UEFI.
    Loong64Uefi,
}

/// What option 93 says about a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientArch {
    /// The architecture.
    pub arch: Arch,
    /// The firmware boots by HTTP (UEFI 2.10 §24.7), not by TFTP.
    pub http: bool,
}

/// Why option 93 names no architecture we know.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ArchError {
    /// RFC 4578 §2.1: one or more 16-bit values.
    #[error("option 93: expected an even number of bytes above 0, found {0}")]
    Length(usize),
    /// A registered or private type that we boot nothing on.
    #[error("option 93: no boot support for architecture type {0}")]
    Unsupported(u16),
}

impl Arch {
    /// Every architecture, for tables.
    pub const ALL: [Self; 7] = [
        Self::X86Bios,
        Self::X86Uefi,
        Self::X64Uefi,
        Self::Arm32Uefi,
        Self::Arm64Uefi,
        Self::Riscv64Uefi,
        Self::Loong64Uefi,
    ];

    /// Name in catalogue, API and URLs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::X86Bios => "x86_bios",
            Self::X86Uefi => "x86_uefi",
            Self::X64Uefi => "x86_64",
            Self::Arm32Uefi => "arm",
            Self::Arm64Uefi => "arm64",
            Self::Riscv64Uefi => "riscv64",
            Self::Loong64Uefi => "loong64",
        }
    }

    /// From the name of [`Self::as_str`].
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|arch| arch.as_str() == name)
    }
}

impl std::fmt::Display for Arch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl ClientArch {
    /// Reads the data of option 93. A client may list several types; the first we know counts.
    ///
    /// # Errors
    /// [`ArchError`].
    pub fn from_option_93(data: &[u8]) -> Result<Self, ArchError> {
        if data.is_empty() || !data.len().is_multiple_of(2) {
            return Err(ArchError::Length(data.len()));
        }
        let types = || {
            data.chunks_exact(2)
                .map(|b| u16::from_be_bytes([b[0], b[1]]))
        };
        types()
            .find_map(Self::from_type)
            .ok_or_else(|| ArchError::Unsupported(types().next().unwrap_or_default()))
    }

    /// One type number. 9 is "EBC" in the registry, but RFC 4578 had 7 and 9 the other way round and firmware
    /// of both kinds exists: both mean x86-64 UEFI.
    pub fn from_type(number: u16) -> Option<Self> {
        let (arch, http) = match number {
            0 => (Arch::X86Bios, false),
            6 => (Arch::X86Uefi, false),
            7 | 9 => (Arch::X64Uefi, false),
            10 => (Arch::Arm32Uefi, false),
            11 => (Arch::Arm64Uefi, false),
            15 => (Arch::X86Uefi, true),
            16 => (Arch::X64Uefi, true),
            18 => (Arch::Arm32Uefi, true),
            19 => (Arch::Arm64Uefi, true),
            20 => (Arch::X86Bios, true),
            27 => (Arch::Riscv64Uefi, false),
            28 => (Arch::Riscv64Uefi, true),
            39 => (Arch::Loong64Uefi, false),
            40 => (Arch::Loong64Uefi, true),
            _ => return None,
        };
        Some(Self { arch, http })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_registry() {
        for (data, arch, http) in [
            (&[0, 0][..], Arch::X86Bios, false),
            (&[0, 7], Arch::X64Uefi, false),
            (&[0, 9], Arch::X64Uefi, false),
            (&[0, 16], Arch::X64Uefi, true),
            (&[0, 11], Arch::Arm64Uefi, false),
            (&[0, 19], Arch::Arm64Uefi, true),
            (&[0, 12, 0, 7], Arch::X64Uefi, false),
        ] {
            assert_eq!(
                ClientArch::from_option_93(data),
                Ok(ClientArch { arch, http }),
                "{data:?}"
            );
        }
    }

    #[test]
    fn rejects_odd_and_empty() {
        assert_eq!(ClientArch::from_option_93(&[]), Err(ArchError::Length(0)));
        assert_eq!(
            ClientArch::from_option_93(&[0, 7, 0]),
            Err(ArchError::Length(3))
        );
    }

    #[test]
    fn rejects_what_we_boot_nothing_on() {
        assert_eq!(
            ClientArch::from_option_93(&[0, 2]),
            Err(ArchError::Unsupported(2))
        );
        assert_eq!(
            ClientArch::from_option_93(&[0xff, 0xff, 0, 2]),
            Err(ArchError::Unsupported(0xffff))
        );
    }

    #[test]
    fn names_round_trip() {
        for arch in Arch::ALL {
            assert_eq!(Arch::from_name(arch.as_str()), Some(arch));
        }
        assert_eq!(Arch::from_name("pdp11"), None);
    }
}

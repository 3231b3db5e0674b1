//! What this boot has extended into PCR 15, in order.
//!
//! The verifier replays the list, so it must be complete: an attempt that failed half-way stays in
//! it. The list is written down before the TPM is told, and compared with PCR 15 when it is read
//! back. Knows nothing of what the digests mean.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::PathBuf;

use attest_wire::v1::PCR15_EXTENDS_MAX;
use hw::tpm::{NodeTpm, TpmError};
use sha2::{Digest, Sha256};

/// The PCR of the exchange (docs/PROTOCOL.md section 2).
pub const PCR: u8 = 15;
/// The list cannot be continued.
#[derive(Debug, thiserror::Error)]
pub enum ExtendsError {
    /// PCR 15 is not what our list makes of it.
    #[error(
        "PCR 15 is {found}, our {known} extends make {expected}: other software extended it, or \
         the list of this boot is lost; reboot to start clean"
    )]
    Foreign {
        /// Value replayed from the list, hex.
        expected: String,
        /// Value of the TPM, hex.
        found: String,
        /// Extends in the list.
        known: usize,
    },
    /// Too many attempts in one boot.
    #[error("{PCR15_EXTENDS_MAX} attempts in this boot: reboot to start a new list")]
    Full,
    /// The list on disk cannot be read or written.
    #[error("list of extends at {path}")]
    File {
        /// Which file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The TPM refused.
    #[error(transparent)]
    Tpm(#[from] TpmError),
}

/// The list.
#[derive(Debug)]
pub struct Extends {
    digests: Vec<[u8; 32]>,
    file: Option<PathBuf>,
}

impl Extends {
    /// Continues the list of this boot and [checks](Self::check) it. With a file, the list survives
    /// a restart of the attester (the file must not survive a boot: `/run`).
    ///
    /// # Errors
    /// [`ExtendsError::Foreign`] when PCR 15 says otherwise.
    pub fn open(tpm: &mut dyn NodeTpm, file: Option<PathBuf>) -> Result<Self, ExtendsError> {
        let mut list = Self {
            digests: Vec::new(),
            file,
        };
        list.load()?;
        list.check(tpm)?;
        Ok(list)
    }

    /// Compares the list with PCR 15; drops the last entry when it was written down and the TPM was
    /// never told (a crash or an error in between).
    ///
    /// # Errors
    /// [`ExtendsError::Foreign`] when PCR 15 says otherwise.
    pub fn check(&mut self, tpm: &mut dyn NodeTpm) -> Result<(), ExtendsError> {
        let found = tpm.pcr_read(&[PCR])?.pop().unwrap_or_default();
        if replay(&self.digests) == found {
            return Ok(());
        }
        if let Some((_, earlier)) = self.digests.split_last()
            && replay(earlier) == found
        {
            self.digests.pop();
            return self.rewrite();
        }
        Err(ExtendsError::Foreign {
            expected: hex::encode(replay(&self.digests)),
            found: hex::encode(found),
            known: self.digests.len(),
        })
    }

    /// Writes the digest down, then extends PCR 15 with it.
    ///
    /// # Errors
    /// [`ExtendsError::Full`], or what disk and TPM say.
    pub fn extend(&mut self, tpm: &mut dyn NodeTpm, digest: [u8; 32]) -> Result<(), ExtendsError> {
        if self.digests.len() >= PCR15_EXTENDS_MAX {
            return Err(ExtendsError::Full);
        }
        self.digests.push(digest);
        if let Err(error) = self.append(&digest) {
            self.digests.pop();
            return Err(error);
        }
        Ok(tpm.pcr_extend(PCR, &digest)?)
    }

    /// All extends of this boot, in order.
    pub fn digests(&self) -> &[[u8; 32]] {
        &self.digests
    }

    fn load(&mut self) -> Result<(), ExtendsError> {
        let Some(path) = &self.file else {
            return Ok(());
        };
        let mut bytes = Vec::new();
        match File::open(path) {
            Ok(file) => {
                let limit = (PCR15_EXTENDS_MAX * 32) as u64;
                file.take(limit)
                    .read_to_end(&mut bytes)
                    .map_err(|source| self.io(source))?;
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(source) => return Err(self.io(source)),
        }
        // A torn last entry was never extended.
        self.digests = bytes.as_chunks::<32>().0.to_vec();
        Ok(())
    }

    fn append(&self, digest: &[u8; 32]) -> Result<(), ExtendsError> {
        let Some(path) = &self.file else {
            return Ok(());
        };
        OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .and_then(|mut file| {
                // Cuts a torn entry first, so that entries stay aligned.
                file.set_len(32 * (self.digests.len() as u64 - 1))?;
                file.write_all(digest)?;
                file.sync_data()
            })
            .map_err(|source| self.io(source))
    }

    fn rewrite(&self) -> Result<(), ExtendsError> {
        let Some(path) = &self.file else {
            return Ok(());
        };
        std::fs::write(path, self.digests.concat()).map_err(|source| self.io(source))
    }

    fn io(&self, source: std::io::Error) -> ExtendsError {
        ExtendsError::File {
            path: self.file.clone().unwrap_or_default(),
            source,
        }
    }
}

/// PCR value after these extends, SHA-256 bank, from reset.
fn replay(digests: &[[u8; 32]]) -> [u8; 32] {
    digests.iter().fold([0; 32], |value, digest| {
        let mut hash = Sha256::new();
        hash.update(value);
        hash.update(digest);
        hash.finalize().into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use hw::tpm::{Attested, DevId, DevIdKind, EndorsementKey, TpmProperties};
    use zeroize::Zeroizing;

    /// A TPM that has one PCR and fails on demand.
    #[derive(Default)]
    struct OnePcr {
        value: [u8; 32],
        fail: bool,
    }

    impl OnePcr {
        fn refuse<T>() -> Result<T, TpmError> {
            Err(TpmError::Lockout)
        }
    }

    impl NodeTpm for OnePcr {
        fn properties(&mut self) -> Result<TpmProperties, TpmError> {
            Self::refuse()
        }
        fn endorsement_keys(&mut self) -> Result<Vec<EndorsementKey>, TpmError> {
            Self::refuse()
        }
        fn ek_chain(&mut self) -> Result<Vec<u8>, TpmError> {
            Self::refuse()
        }
        fn create_ak(&mut self, _: [u8; 64]) -> Result<Vec<u8>, TpmError> {
            Self::refuse()
        }
        fn create_devid(
            &mut self,
            _: DevIdKind,
            _: Option<Zeroizing<String>>,
        ) -> Result<DevId, TpmError> {
            Self::refuse()
        }
        fn activate(
            &mut self,
            _: &[u8],
            _: &[u8],
            _: &[u8],
        ) -> Result<Zeroizing<Vec<u8>>, TpmError> {
            Self::refuse()
        }
        fn unseal_import(
            &mut self,
            _: &[u8],
            _: &[u8],
            _: &[u8],
            _: &[u8],
            _: &[u8],
        ) -> Result<Zeroizing<Vec<u8>>, TpmError> {
            Self::refuse()
        }
        fn certify_devid(&mut self, _: &[u8; 32]) -> Result<Attested, TpmError> {
            Self::refuse()
        }
        fn sign_devid(&mut self, _: &[u8; 32]) -> Result<Vec<u8>, TpmError> {
            Self::refuse()
        }
        fn quote(&mut self, _: &[u8; 32], _: &[u8]) -> Result<Attested, TpmError> {
            Self::refuse()
        }
        fn pcr_read(&mut self, pcrs: &[u8]) -> Result<Vec<[u8; 32]>, TpmError> {
            assert_eq!(pcrs, [PCR]);
            Ok(vec![self.value])
        }
        fn pcr_extend(&mut self, pcr: u8, digest: &[u8; 32]) -> Result<(), TpmError> {
            assert_eq!(pcr, PCR);
            if self.fail {
                return Self::refuse();
            }
            let mut hash = Sha256::new();
            hash.update(self.value);
            hash.update(digest);
            self.value = hash.finalize().into();
            Ok(())
        }
    }

    #[test]
    fn continues_after_a_restart_and_drops_what_the_tpm_was_never_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pcr15");
        let mut tpm = OnePcr::default();
        let mut list = Extends::open(&mut tpm, Some(path.clone())).unwrap();
        list.extend(&mut tpm, [1; 32]).unwrap();
        list.extend(&mut tpm, [2; 32]).unwrap();
        assert_eq!(
            Extends::open(&mut tpm, Some(path.clone()))
                .unwrap()
                .digests(),
            list.digests()
        );

        tpm.fail = true;
        list.extend(&mut tpm, [3; 32]).unwrap_err();
        tpm.fail = false;
        let mut again = Extends::open(&mut tpm, Some(path.clone())).unwrap();
        assert_eq!(again.digests(), [[1; 32], [2; 32]]);
        again.extend(&mut tpm, [4; 32]).unwrap();
        list.check(&mut tpm).unwrap_err();

        // A torn entry: power went while it was written, so the TPM was never told.
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.extend([9; 7]);
        std::fs::write(&path, bytes).unwrap();
        let mut torn = Extends::open(&mut tpm, Some(path.clone())).unwrap();
        torn.extend(&mut tpm, [5; 32]).unwrap();
        let last = Extends::open(&mut tpm, Some(path)).unwrap();
        assert_eq!(last.digests(), [[1; 32], [2; 32], [4; 32], [5; 32]]);
    }

    #[test]
    fn rejects_a_pcr_that_others_extended() {
        let mut tpm = OnePcr::default();
        let mut list = Extends::open(&mut tpm, None).unwrap();
        list.extend(&mut tpm, [1; 32]).unwrap();
        tpm.pcr_extend(PCR, &[2; 32]).unwrap();
        assert!(matches!(
            list.check(&mut tpm),
            Err(ExtendsError::Foreign { known: 1, .. })
        ));
        assert!(matches!(
            Extends::open(&mut tpm, None),
            Err(ExtendsError::Foreign { known: 0, .. })
        ));
    }

    #[test]
    fn rejects_more_attempts_than_evidence_can_carry() {
        let mut tpm = OnePcr::default();
        let mut list = Extends::open(&mut tpm, None).unwrap();
        for _ in 0..PCR15_EXTENDS_MAX {
            list.extend(&mut tpm, [1; 32]).unwrap();
        }
        assert!(matches!(
            list.extend(&mut tpm, [1; 32]),
            Err(ExtendsError::Full)
        ));
        list.check(&mut tpm).unwrap();
    }
}

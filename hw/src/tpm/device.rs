//! One open TPM: transport, response codes, sessions, handles.
//!
//! Decides how a command is repeated, when a session or object is flushed, and how a response code
//! becomes a [`TpmError`]. Does not know what the commands are for.

use std::str::FromStr;
use std::time::Duration;

use attest_wire::tpm::HashAlg;
use tss_esapi::attributes::SessionAttributesBuilder;
use tss_esapi::constants::response_code::{Tss2ResponseCode, Tss2ResponseCodeKind};
use tss_esapi::constants::tss::{
    TPM2_LOADED_SESSION_FIRST, TPM2_NV_INDEX_FIRST, TPM2_TRANSIENT_FIRST,
};
use tss_esapi::constants::{CapabilityType, PropertyTag, SessionType};
use tss_esapi::handles::{
    KeyHandle, NvIndexHandle, NvIndexTpmHandle, ObjectHandle, SessionHandle, TpmHandle,
};
use tss_esapi::interface_types::algorithm::HashingAlgorithm;
use tss_esapi::interface_types::resource_handles::{Hierarchy, NvAuth};
use tss_esapi::interface_types::session_handles::{AuthSession, PolicySession};
use tss_esapi::structures::{
    CapabilityData, PcrSelectionList, PcrSelectionListBuilder, PcrSlot, Public, SymmetricDefinition,
};
use tss_esapi::tcti_ldr::TctiNameConf;
use tss_esapi::traits::{Marshall, UnMarshall};
use tss_esapi::{Context, Error as EsysError};
use zeroize::Zeroizing;

use super::template::name;
use super::{TpmError, TpmProperties};

/// The three session slots of one command.
pub(super) type Slots = (
    Option<AuthSession>,
    Option<AuthSession>,
    Option<AuthSession>,
);
/// Empty authValue by password.
pub(super) const PASSWORD: Slots = (Some(AuthSession::Password), None, None);
/// No authorization.
pub(super) const NO_SESSION: Slots = (None, None, None);

/// How often a command is repeated after TPM_RC_RETRY, TPM_RC_YIELDED or TPM_RC_TESTING.
const RETRY_MAX: u32 = 20;
/// Pause between repetitions.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// Largest NV index we read, in bytes (NV_INDEX_MAX of the TPMs we know is 2048).
const NV_READ_MAX: usize = 8 * 1024;

/// A TPM that is open, with nobody else on it (or behind a resource manager).
pub(super) struct Device {
    ctx: Context,
}

impl Device {
    /// Opens a TCTI: `device:/dev/tpmrm0`, `swtpm:host=127.0.0.1,port=2321`.
    ///
    /// Without a resource manager, objects and sessions that an earlier process left behind are
    /// flushed: such a transport has one client at a time and only three slots of each.
    ///
    /// # Errors
    /// [`TpmError::Absent`] when nothing answers there.
    pub fn open(tcti: &str) -> Result<Self, TpmError> {
        let absent = |source: Box<dyn std::error::Error + Send + Sync>| TpmError::Absent {
            tcti: tcti.to_owned(),
            source,
        };
        if let Some(path) = tcti.strip_prefix("device:") {
            std::fs::metadata(path).map_err(|e| absent(Box::new(e)))?;
        }
        let name = TctiNameConf::from_str(tcti).map_err(|e| absent(Box::new(e)))?;
        let mut ctx = Context::new(name).map_err(|e| absent(Box::new(e)))?;
        ctx.get_tpm_property(PropertyTag::Manufacturer)
            .map_err(|e| absent(Box::new(e)))?;
        let mut device = Self { ctx };
        if !tcti.contains("tpmrm") && !tcti.starts_with("tabrmd") {
            device.flush_leftovers(TPM2_TRANSIENT_FIRST)?;
            device.flush_leftovers(TPM2_LOADED_SESSION_FIRST)?;
        }
        Ok(device)
    }

    /// Runs one command with these sessions; repeats it while the TPM says "later".
    pub fn run<T>(
        &mut self,
        command: &'static str,
        slots: Slots,
        mut call: impl FnMut(&mut Context) -> tss_esapi::Result<T>,
    ) -> Result<T, TpmError> {
        let mut tries = 0;
        loop {
            match self.ctx.execute_with_sessions(slots, &mut call) {
                Ok(value) => return Ok(value),
                Err(error) if tries < RETRY_MAX && says_later(error) => {
                    tries += 1;
                    std::thread::sleep(RETRY_PAUSE);
                }
                Err(error) => return Err(command_error(command, error)),
            }
        }
    }

    /// Runs one command that carries a secret over the bus under `session`.
    ///
    /// Both encryption flags are set before every such command: ESYS drops the one a command cannot
    /// use and does not restore it after an error, and the next secret would travel in clear. The
    /// caller flushes the session after an error ([`Device::with_salted`] does).
    pub fn run_protected<T>(
        &mut self,
        command: &'static str,
        slots: Slots,
        session: AuthSession,
        mut call: impl FnMut(&mut Context) -> tss_esapi::Result<T>,
    ) -> Result<T, TpmError> {
        let (attributes, mask) = SessionAttributesBuilder::new()
            .with_decrypt(true)
            .with_encrypt(true)
            .build();
        self.run(command, slots, |ctx| {
            ctx.tr_sess_set_attributes(session, attributes, mask)?;
            call(ctx)
        })
    }

    /// `TPM2_CreatePrimary`, hands the key to `work`, flushes it afterwards in any case.
    pub fn with_primary<T>(
        &mut self,
        hierarchy: Hierarchy,
        template: &[u8],
        work: impl FnOnce(&mut Self, KeyHandle, &[u8]) -> Result<T, TpmError>,
    ) -> Result<T, TpmError> {
        let (key, public) = self.create_primary(hierarchy, template)?;
        self.with_object(key.into(), |device| work(device, key, &public))
    }

    /// `TPM2_CreatePrimary` with empty auth; returns the handle and the `TPMT_PUBLIC`.
    pub fn create_primary(
        &mut self,
        hierarchy: Hierarchy,
        template: &[u8],
    ) -> Result<(KeyHandle, Vec<u8>), TpmError> {
        let template = public_from(template)?;
        let made = self.run("CreatePrimary", PASSWORD, |ctx| {
            ctx.create_primary(hierarchy, template.clone(), None, None, None, None)
        })?;
        match public_bytes(&made.out_public) {
            Ok(public) => Ok((made.key_handle, public)),
            Err(error) => {
                self.flush(made.key_handle.into())?;
                Err(error)
            }
        }
    }

    /// Runs `work`, then flushes `object` in any case; the first error wins.
    pub fn with_object<T>(
        &mut self,
        object: ObjectHandle,
        work: impl FnOnce(&mut Self) -> Result<T, TpmError>,
    ) -> Result<T, TpmError> {
        let result = work(self);
        let flushed = self.flush(object);
        let value = result?;
        flushed?;
        Ok(value)
    }

    /// Starts an HMAC session salted to `key`, for parameter encryption, and flushes it afterwards.
    /// Only as good as the caller's comparison of the key's Name.
    pub fn with_salted<T>(
        &mut self,
        key: KeyHandle,
        work: impl FnOnce(&mut Self, AuthSession) -> Result<T, TpmError>,
    ) -> Result<T, TpmError> {
        let session = self.start(Some(key), SessionType::Hmac, HashingAlgorithm::Sha256)?;
        self.with_object(SessionHandle::from(session).into(), |device| {
            work(device, session)
        })
    }

    /// Starts an unsalted HMAC session: the authValue proves itself without travelling. For an
    /// authValue of 32 random characters only, since a short one could be guessed from it.
    pub fn with_hmac<T>(
        &mut self,
        work: impl FnOnce(&mut Self, AuthSession) -> Result<T, TpmError>,
    ) -> Result<T, TpmError> {
        let session = self.start(None, SessionType::Hmac, HashingAlgorithm::Sha256)?;
        self.with_object(SessionHandle::from(session).into(), |device| {
            work(device, session)
        })
    }

    /// Starts a policy session and flushes it afterwards. Each use takes a fresh one.
    pub fn with_policy<T>(
        &mut self,
        hash: HashingAlgorithm,
        work: impl FnOnce(&mut Self, PolicySession, AuthSession) -> Result<T, TpmError>,
    ) -> Result<T, TpmError> {
        let session = self.start(None, SessionType::Policy, hash)?;
        self.with_object(SessionHandle::from(session).into(), |device| {
            let policy = PolicySession::try_from(session)
                .map_err(|e| command_error("StartAuthSession", e))?;
            work(device, policy, session)
        })
    }

    fn start(
        &mut self,
        key: Option<KeyHandle>,
        kind: SessionType,
        hash: HashingAlgorithm,
    ) -> Result<AuthSession, TpmError> {
        self.run("StartAuthSession", NO_SESSION, |ctx| {
            ctx.start_auth_session(
                key,
                None,
                None,
                kind,
                SymmetricDefinition::AES_128_CFB,
                hash,
            )
        })?
        .ok_or_else(|| malformed("StartAuthSession", "no session handle"))
    }

    /// `TPM2_FlushContext`.
    pub fn flush(&mut self, object: ObjectHandle) -> Result<(), TpmError> {
        self.run("FlushContext", NO_SESSION, |ctx| ctx.flush_context(object))
    }

    /// Compares the Name ESYS holds for a key with the Name of the public we computed ourselves:
    /// an interposer's key is believed by ESYS.
    pub fn require_name(
        &mut self,
        what: &'static str,
        key: KeyHandle,
        expected: &[u8],
    ) -> Result<(), TpmError> {
        let found = self.run("TR_GetName", NO_SESSION, |ctx| ctx.tr_get_name(key.into()))?;
        if found.value() == expected {
            return Ok(());
        }
        Err(TpmError::ForeignObject {
            what,
            expected: hex::encode(expected),
            found: hex::encode(found.value()),
        })
    }

    /// Manufacturer, model and firmware.
    pub fn properties(&mut self) -> Result<TpmProperties, TpmError> {
        let mut word = |tag| {
            self.run("GetCapability", NO_SESSION, |ctx| ctx.get_tpm_property(tag))
                .map(Option::unwrap_or_default)
        };
        let text = |words: &[u32]| -> String {
            words
                .iter()
                .flat_map(|word| word.to_be_bytes())
                .filter(|byte| byte.is_ascii_graphic() || *byte == b' ')
                .map(char::from)
                .collect::<String>()
                .trim()
                .to_owned()
        };
        let manufacturer = text(&[word(PropertyTag::Manufacturer)?]);
        let model = text(&[
            word(PropertyTag::VendorString1)?,
            word(PropertyTag::VendorString2)?,
            word(PropertyTag::VendorString3)?,
            word(PropertyTag::VendorString4)?,
        ]);
        let firmware = format!(
            "{:x}.{:x}",
            word(PropertyTag::FirmwareVersion1)?,
            word(PropertyTag::FirmwareVersion2)?
        );
        Ok(TpmProperties {
            manufacturer,
            model,
            firmware,
        })
    }

    /// Random bytes of the TPM's generator, in pieces of at most 32 bytes.
    pub fn random(&mut self, count: usize) -> Result<Zeroizing<Vec<u8>>, TpmError> {
        let mut bytes = Zeroizing::new(Vec::with_capacity(count));
        while bytes.len() < count {
            let ask = (count - bytes.len()).min(32);
            let got = self.run("GetRandom", NO_SESSION, |ctx| ctx.get_random(ask))?;
            if got.value().is_empty() {
                return Err(malformed("GetRandom", "no bytes"));
            }
            let take = got.value().len().min(ask);
            bytes.extend_from_slice(&got.value()[..take]);
        }
        Ok(bytes)
    }

    /// Values of the SHA-256 bank, in the order asked. `TPM2_PCR_Read` answers at most eight.
    pub fn pcr_read(&mut self, pcrs: &[u8]) -> Result<Vec<[u8; 32]>, TpmError> {
        let mut values = Vec::with_capacity(pcrs.len());
        for pcr in pcrs {
            let selection = selection(&[*pcr])?;
            let (_, _, digests) = self.run("PCR_Read", NO_SESSION, |ctx| {
                ctx.pcr_read(selection.clone())
            })?;
            let digest = match digests.value() {
                [one] => <[u8; 32]>::try_from(one.value()).ok(),
                _ => None,
            };
            values.push(digest.ok_or_else(|| {
                malformed(
                    "PCR_Read",
                    &format!("no SHA-256 value of PCR {pcr}: is that bank on?"),
                )
            })?);
        }
        Ok(values)
    }

    /// Which NV indices in `first..=last` are defined, ascending.
    pub fn nv_indices(&mut self, first: u32, last: u32) -> Result<Vec<u32>, TpmError> {
        debug_assert!(first >= TPM2_NV_INDEX_FIRST);
        let handles = self.handles(first)?;
        Ok(handles
            .into_iter()
            .map(u32::from)
            .filter(|h| (first..=last).contains(h))
            .collect())
    }

    /// Reads a whole NV index with empty auth, in pieces of NV_BUFFER_MAX.
    pub fn nv_read_all(&mut self, index: u32) -> Result<Vec<u8>, TpmError> {
        self.with_nv(index, |device, handle| {
            let (public, _) = device.run("NV_ReadPublic", NO_SESSION, |ctx| {
                ctx.nv_read_public(handle)
            })?;
            let size = public.data_size().min(NV_READ_MAX);
            let piece_max = device
                .run("GetCapability", NO_SESSION, |ctx| {
                    ctx.get_tpm_property(PropertyTag::NvBufferMax)
                })?
                .map_or(512, |max| max.clamp(32, 1024) as usize);
            let auth = if public.attributes().auth_read() {
                NvAuth::NvIndex(handle)
            } else {
                NvAuth::Owner
            };
            let mut bytes = Vec::with_capacity(size);
            while bytes.len() < size {
                let piece = (size - bytes.len()).min(piece_max) as u16;
                let offset = bytes.len() as u16;
                let got = device.run("NV_Read", PASSWORD, |ctx| {
                    ctx.nv_read(auth, handle, piece, offset)
                })?;
                if got.value().is_empty() {
                    return Err(malformed("NV_Read", "no bytes"));
                }
                bytes.extend_from_slice(got.value());
            }
            bytes.truncate(size);
            Ok(bytes)
        })
    }

    /// Takes an ESYS handle of an existing NV index for the time of `work`.
    pub fn with_nv<T>(
        &mut self,
        index: u32,
        work: impl FnOnce(&mut Self, NvIndexHandle) -> Result<T, TpmError>,
    ) -> Result<T, TpmError> {
        let tpm_handle = nv_tpm_handle(index)?;
        let mut object = self.run("NV_ReadPublic", NO_SESSION, |ctx| {
            ctx.tr_from_tpm_public(tpm_handle.into())
        })?;
        let result = work(self, NvIndexHandle::from(object));
        let closed = self.run("TR_Close", NO_SESSION, |ctx| ctx.tr_close(&mut object));
        let value = result?;
        closed?;
        Ok(value)
    }

    /// All handles of one range, from `first` on.
    fn handles(&mut self, first: u32) -> Result<Vec<TpmHandle>, TpmError> {
        let range = first & 0xff00_0000;
        let mut found = Vec::new();
        let mut from = first;
        loop {
            let (data, more) = self.run("GetCapability", NO_SESSION, |ctx| {
                ctx.get_capability(CapabilityType::Handles, from, 64)
            })?;
            let CapabilityData::Handles(list) = data else {
                return Err(malformed("GetCapability", "not a handle list"));
            };
            let list = list.into_inner();
            let Some(last) = list.last().map(|handle| u32::from(*handle)) else {
                return Ok(found);
            };
            found.extend(
                list.iter()
                    .filter(|handle| u32::from(**handle) & 0xff00_0000 == range),
            );
            // A hostile TPM must not keep us here: handles only ascend and are bounded.
            if !more || last < from || last & 0xff00_0000 != range || found.len() > 512 {
                return Ok(found);
            }
            from = last + 1;
        }
    }

    fn flush_leftovers(&mut self, first: u32) -> Result<(), TpmError> {
        let (data, _) = self.run("GetCapability", NO_SESSION, |ctx| {
            ctx.get_capability(CapabilityType::Handles, first, 16)
        })?;
        let CapabilityData::Handles(list) = data else {
            return Err(malformed("GetCapability", "not a handle list"));
        };
        for handle in list.into_inner() {
            let adopted = self.run("ReadPublic", NO_SESSION, |ctx| {
                ctx.tr_from_tpm_public(handle)
            })?;
            match self.ctx.flush_context(adopted) {
                // The crate's bookkeeping does not know an adopted session; the TPM flushed it.
                Ok(()) | Err(EsysError::WrapperError(_)) => {}
                Err(error) => return Err(command_error("FlushContext", error)),
            }
        }
        Ok(())
    }
}

/// SHA-256 selection of these PCRs.
pub(super) fn selection(pcrs: &[u8]) -> Result<PcrSelectionList, TpmError> {
    selection_of(HashingAlgorithm::Sha256, pcrs)
}

/// Selection of these PCRs of one bank.
pub(super) fn selection_of(
    bank: HashingAlgorithm,
    pcrs: &[u8],
) -> Result<PcrSelectionList, TpmError> {
    let mut slots = Vec::with_capacity(pcrs.len());
    for pcr in pcrs {
        let slot = 1_u32
            .checked_shl(u32::from(*pcr))
            .filter(|_| *pcr < 24)
            .and_then(|bit| PcrSlot::try_from(bit).ok())
            .ok_or_else(|| malformed("PCR selection", &format!("there is no PCR {pcr}")))?;
        slots.push(slot);
    }
    PcrSelectionListBuilder::new()
        .with_selection(bank, &slots)
        .build()
        .map_err(|e| command_error("PCR selection", e))
}

/// Decodes a `TPMT_PUBLIC` for ESYS.
pub(super) fn public_from(bytes: &[u8]) -> Result<Public, TpmError> {
    Public::unmarshall(bytes).map_err(|e| malformed("TPMT_PUBLIC", &e.to_string()))
}

/// Encodes a `TPMT_PUBLIC`.
pub(super) fn public_bytes(public: &Public) -> Result<Vec<u8>, TpmError> {
    public
        .marshall()
        .map_err(|e| malformed("TPMT_PUBLIC", &e.to_string()))
}

/// Name of one of our own SHA-256 keys from its public area.
pub(super) fn own_name(public: &[u8]) -> Vec<u8> {
    name(HashAlg::Sha256, public)
}

/// NV handle from its number.
pub(super) fn nv_tpm_handle(index: u32) -> Result<NvIndexTpmHandle, TpmError> {
    NvIndexTpmHandle::new(index).map_err(|e| command_error("NV index", e))
}

/// A decoding failure.
pub(super) fn malformed(what: &'static str, why: &str) -> TpmError {
    TpmError::Malformed {
        what,
        why: why.to_owned(),
    }
}

/// Turns an ESYS error into ours; the number of a response code is only in its text.
pub(super) fn command_error(command: &'static str, error: EsysError) -> TpmError {
    let EsysError::Tss2Error(code) = error else {
        return TpmError::Command {
            command,
            code: 0,
            source: Box::new(error),
        };
    };
    if code.kind() == Some(Tss2ResponseCodeKind::Lockout) {
        return TpmError::Lockout;
    }
    let inner = match code {
        Tss2ResponseCode::FormatZero(zero) => zero.to_string(),
        Tss2ResponseCode::FormatOne(one) => one.to_string(),
        Tss2ResponseCode::Success => String::new(),
    };
    let code = inner
        .rsplit_once("0x")
        .and_then(|(_, digits)| u32::from_str_radix(digits, 16).ok())
        .unwrap_or(0);
    TpmError::Command {
        command,
        code,
        source: Box::new(error),
    }
}

fn says_later(error: EsysError) -> bool {
    let EsysError::Tss2Error(code) = error else {
        return false;
    };
    matches!(
        code.kind(),
        Some(
            Tss2ResponseCodeKind::Retry
                | Tss2ResponseCodeKind::Yielded
                | Tss2ResponseCodeKind::Testing
        )
    )
}

/// Stops the TSS libraries from writing their own lines to standard error: on a serial console of
/// 80x25 they hide ours, and every refusal is reported by us anyway.
///
/// Does something only while the process has one thread: call it first thing in `main`.
pub fn silence_tss_log() {
    let threads = std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count);
    // As /init there is no /proc yet, and no second thread either: the kernel starts PID 1 with one.
    if threads == 1 || std::process::id() == 1 {
        // SAFETY: this process has one thread (just counted, or PID 1 at its start), so nobody
        // reads the environment while it changes.
        unsafe { std::env::set_var("TSS2_LOG", "all+none") };
    }
}

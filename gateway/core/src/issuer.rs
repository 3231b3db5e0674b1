//! What a certificate says: names, lifetime, purposes, issuer, as data (docs/PROTOCOL.md, the PKI).
//!
//! Decides every field that a certificate of this appliance can have. Does not know private keys
//! nor how X.509 is written: `gateway::ca` turns a profile into a certificate. Time and randomness
//! are arguments.
//!
//! An LDevID is a type of its own: the device CA signs nothing else, because a SPIRE server takes
//! any certificate under `devid_ca_path` for a device.

use std::net::IpAddr;

use attest_wire::oid::{self, Oid};
use attest_wire::v1::ATTEST_SERVER_NAME;

use crate::appraisal::{Admission, Verified};
use crate::identity::{EkName, MachineId, UnixMillis};
use crate::reason::Reason;

const SECOND: u64 = 1000;
const HOUR: u64 = 3600 * SECOND;
const DAY: u64 = 24 * HOUR;

/// 2026-01-01T00:00:00Z. No clock of a running appliance can truly be before this release; an
/// unset clock then still makes CAs that outlive the hardware.
const RELEASE_FLOOR: UnixMillis = UnixMillis(1_767_225_600 * SECOND);
/// 2000-01-01T00:00:00Z: begin of everything that firmware checks with a dead RTC battery.
const BOOT_BEGIN: UnixMillis = UnixMillis(946_684_800 * SECOND);
/// 2099-12-31T00:00:00Z: end of the same.
const BOOT_END: UnixMillis = UnixMillis(4_102_358_400 * SECOND);

const CA_LIFE: u64 = 3652 * DAY;
const LEAF_LIFE: u64 = 90 * DAY;
const ADMIN_CLIENT_LIFE: u64 = 365 * DAY;
/// Install-time LDevIDs end within a day (docs/PROTOCOL.md, roles).
const LDEVID_LIFE: u64 = 24 * HOUR;
/// Clocks of peers that check dates may be this far behind ours.
const SKEW: u64 = HOUR;

/// Upper bound of `commonName` and `organizationName` (RFC 5280 appendix A.1), in characters.
const NAME_MAX_CHARS: usize = 64;
/// An appliance name leaves room for ` administration CA`.
const APPLIANCE_MAX_CHARS: usize = 40;

/// The CAs of an appliance. Each has one key, and no key serves two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ca {
    /// TLS of the attest endpoint, ledger and receipts; pinned by the UKI.
    Infra,
    /// LDevIDs and nothing else.
    Device,
    /// Attestation keys.
    Ak,
    /// Admin endpoint and its clients.
    Admin,
    /// HTTPS boot.
    Boot,
}

impl Ca {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Infra, Self::Device, Self::Ak, Self::Admin, Self::Boot];

    /// Name in the store, in records and of the exported file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Infra => "infra-ca",
            Self::Device => "device-ca",
            Self::Ak => "ak-ca",
            Self::Admin => "admin-ca",
            Self::Boot => "boot-ca",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Infra => "infrastructure CA",
            Self::Device => "device CA",
            Self::Ak => "attestation key CA",
            Self::Admin => "administration CA",
            Self::Boot => "boot CA",
        }
    }
}

/// What an administrator may do. In a client certificate the role is the one
/// `organizationalUnitName` of the subject: every TLS library can show it, and only the admin CA,
/// which signs nothing else, can put it there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AdminRole {
    /// May look.
    Viewer,
    /// May also approve, cordon and withdraw.
    Operator,
    /// May also change trust, floors and roles.
    Owner,
}

impl AdminRole {
    /// The name in certificates, API and ledger.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => oid::ADMIN_ROLE_VIEWER,
            Self::Operator => oid::ADMIN_ROLE_OPERATOR,
            Self::Owner => oid::ADMIN_ROLE_OWNER,
        }
    }
}

/// Type of a certified key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyKind {
    /// ECDSA on P-256.
    P256,
    /// ECDSA on P-384.
    P384,
    /// RSA with a 3072-bit modulus.
    Rsa3072,
    /// The node's own key, as certified by its AK.
    Node,
}

/// Who signs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignedBy {
    /// The certified key itself.
    Itself,
    /// This CA.
    Ca(Ca),
}

/// `keyUsage`, always critical.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyUse {
    /// `digitalSignature`.
    Sign,
    /// `keyCertSign` and `cRLSign`.
    Certify,
}

/// `subjectAltName`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AltNames {
    /// No such extension.
    None,
    /// Names of a TLS server.
    Server {
        /// `dNSName`s.
        dns: Vec<String>,
        /// `iPAddress`es.
        ip: Vec<IpAddr>,
    },
    /// DER of `GeneralNames`; the extension is not critical, since Go (and so SPIRE) refuses a
    /// critical one that holds only `otherName`s.
    Device(Vec<u8>),
}

/// Everything a certificate says but its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertProfile {
    /// Name of the profile, as in [`crate::record::Certificate::profile`].
    pub name: &'static str,
    /// Who signs it.
    pub signed_by: SignedBy,
    /// Type of the key it is for.
    pub key: KeyKind,
    /// 20 octets, positive.
    pub serial: [u8; 20],
    /// Subject `commonName`.
    pub common_name: String,
    /// Subject `organizationalUnitName`: the role of an administrator.
    pub organizational_unit: Option<&'static str>,
    /// Subject `organizationName`: the appliance.
    pub organization: Option<String>,
    /// `subjectAltName`.
    pub alt_names: AltNames,
    /// Begin of validity.
    pub not_before: UnixMillis,
    /// End of validity.
    pub not_after: UnixMillis,
    /// `pathLenConstraint` of a CA; none for a leaf (`cA` false).
    pub ca_path_len: Option<u8>,
    /// `keyUsage`.
    pub key_use: KeyUse,
    /// `extKeyUsage`; empty for a CA.
    pub purposes: Vec<Oid>,
}

/// An LDevID to be signed by the device CA, with the key it is for. Only [`ldevid`] makes one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LDevIdProfile {
    profile: CertProfile,
    spki_der: Vec<u8>,
}

impl LDevIdProfile {
    /// What it says.
    pub fn profile(&self) -> &CertProfile {
        &self.profile
    }

    /// `SubjectPublicKeyInfo` (DER) of the DevID that the node's AK certified.
    pub fn spki_der(&self) -> &[u8] {
        &self.spki_der
    }
}

/// When a certificate is due for renewal: after two thirds of its life.
pub fn renew_at(not_before: UnixMillis, not_after: UnixMillis) -> UnixMillis {
    let life = not_after.0.saturating_sub(not_before.0);
    UnixMillis(not_before.0.saturating_add(life / 3 * 2))
}

/// A random serial made positive and exactly 20 octets long (RFC 5280 section 4.1.2.2).
fn serial(mut random: [u8; 20]) -> [u8; 20] {
    random[0] = (random[0] & 0x7f) | 0x40;
    random
}

fn ends(now: UnixMillis, life: u64) -> UnixMillis {
    UnixMillis(now.max(RELEASE_FLOOR).0.saturating_add(life))
}

fn begins(now: UnixMillis) -> UnixMillis {
    UnixMillis(now.0.saturating_sub(SKEW))
}

/// Makes the profiles of one appliance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issuer {
    appliance: String,
}

impl Issuer {
    /// For the appliance of this name.
    ///
    /// # Errors
    /// `issue.name`: empty, too long for a subject, or with control characters.
    pub fn new(appliance: &str) -> Result<Self, Reason> {
        check_name("appliance.name", appliance, APPLIANCE_MAX_CHARS)?;
        Ok(Self {
            appliance: appliance.to_owned(),
        })
    }

    /// A self-signed CA: P-384 for ten years; the boot CA RSA-3072 from 2000 to 2099, because
    /// firmware has few algorithms and no clock.
    pub fn ca(&self, ca: Ca, now: UnixMillis, random: [u8; 20]) -> CertProfile {
        let (key, not_before, not_after) = match ca {
            Ca::Boot => (KeyKind::Rsa3072, BOOT_BEGIN, BOOT_END),
            Ca::Infra | Ca::Device | Ca::Admin | Ca::Ak => {
                (KeyKind::P384, begins(now), ends(now, CA_LIFE))
            }
        };
        CertProfile {
            name: ca.name(),
            signed_by: SignedBy::Itself,
            key,
            serial: serial(random),
            common_name: format!("{} {}", self.appliance, ca.title()),
            organizational_unit: None,
            organization: Some(self.appliance.clone()),
            alt_names: AltNames::None,
            not_before,
            not_after,
            ca_path_len: Some(0),
            key_use: KeyUse::Certify,
            purposes: Vec::new(),
        }
    }

    fn leaf(
        &self,
        name: &'static str,
        signed_by: Ca,
        purpose: Oid,
        now: UnixMillis,
        random: [u8; 20],
    ) -> CertProfile {
        CertProfile {
            name,
            signed_by: SignedBy::Ca(signed_by),
            key: KeyKind::P256,
            serial: serial(random),
            common_name: format!("{} {name}", self.appliance),
            organizational_unit: None,
            organization: Some(self.appliance.clone()),
            alt_names: AltNames::None,
            not_before: begins(now),
            not_after: ends(now, LEAF_LIFE),
            ca_path_len: None,
            key_use: KeyUse::Sign,
            purposes: vec![purpose],
        }
    }

    /// TLS of the attest endpoint: the one name that attesters require.
    pub fn attest(&self, now: UnixMillis, random: [u8; 20]) -> CertProfile {
        CertProfile {
            alt_names: AltNames::Server {
                dns: vec![ATTEST_SERVER_NAME.to_owned()],
                ip: Vec::new(),
            },
            ..self.leaf("attest", Ca::Infra, oid::EKU_ATTEST, now, random)
        }
    }

    /// The key that signs ledger heads and receipts.
    pub fn receipt(&self, now: UnixMillis, random: [u8; 20]) -> CertProfile {
        self.leaf("receipt", Ca::Infra, oid::EKU_RECEIPT, now, random)
    }

    /// The key that signs grants to install, and what is said of sealed payloads.
    pub fn grant(&self, now: UnixMillis, random: [u8; 20]) -> CertProfile {
        self.leaf("grant", Ca::Infra, oid::EKU_GRANT, now, random)
    }

    /// TLS of the boot endpoint, in both key types that firmware asks for; an URL with an address
    /// needs the `iPAddress`, one with a name the `dNSName`.
    pub fn boot(
        &self,
        key: KeyKind,
        dns: &[String],
        ip: &[IpAddr],
        now: UnixMillis,
        random: [u8; 20],
    ) -> CertProfile {
        let name = match key {
            KeyKind::Rsa3072 => "boot-rsa",
            KeyKind::P256 | KeyKind::P384 | KeyKind::Node => "boot",
        };
        CertProfile {
            key,
            alt_names: AltNames::Server {
                dns: dns.to_vec(),
                ip: ip.to_vec(),
            },
            not_before: BOOT_BEGIN,
            not_after: BOOT_END,
            ..self.leaf(name, Ca::Boot, oid::EKU_SERVER_AUTH, now, random)
        }
    }

    /// TLS of the admin endpoint.
    pub fn admin_server(
        &self,
        dns: &[String],
        ip: &[IpAddr],
        now: UnixMillis,
        random: [u8; 20],
    ) -> CertProfile {
        CertProfile {
            alt_names: AltNames::Server {
                dns: dns.to_vec(),
                ip: ip.to_vec(),
            },
            ..self.leaf("admin-server", Ca::Admin, oid::EKU_SERVER_AUTH, now, random)
        }
    }

    /// An administrator's client certificate.
    ///
    /// # Errors
    /// `issue.name`: the name does not fit a subject.
    pub fn admin_client(
        &self,
        person: &str,
        role: AdminRole,
        now: UnixMillis,
        random: [u8; 20],
    ) -> Result<CertProfile, Reason> {
        check_name("name of the administrator", person, NAME_MAX_CHARS)?;
        Ok(CertProfile {
            common_name: person.to_owned(),
            organizational_unit: Some(role.as_str()),
            not_after: ends(now, ADMIN_CLIENT_LIFE),
            ..self.leaf("admin", Ca::Admin, oid::EKU_CLIENT_AUTH, now, random)
        })
    }
}

/// An install-time LDevID for the DevID that a machine's AK certified.
///
/// # Errors
/// As [`ldevid_profile`]; `issue.key` also when the DevID has no X.509 form.
pub fn ldevid(
    admission: &Verified<Admission>,
    now: UnixMillis,
    random: [u8; 20],
) -> Result<LDevIdProfile, Reason> {
    let binding = &admission.binding;
    let ek_name = binding
        .ek_names
        .first()
        .ok_or_else(|| no_key("no EK Name"))?;
    let spki_der = admission.devid.spki_der();
    Ok(LDevIdProfile {
        profile: ldevid_profile(&binding.machine, ek_name, now, random)?,
        spki_der: spki_der.ok_or_else(|| no_key("a DevID of another type"))?,
    })
}

fn no_key(found: impl Into<String>) -> Reason {
    Reason::new(
        "issue.key",
        "a machine bound to an EK Name in hex, and an RSA or ECC DevID",
        found,
        "docs/PROTOCOL.md, keys and certificates",
        "bind the machine to its EK Name again",
    )
}

/// What an install-time LDevID says, without the right to issue it: subject CN is the machine's
/// name and becomes SPIRE's selector; the SAN names the TPM by its EK Name, `hwSerialNum` in bytes
/// and `identifierValue` in hex, without assigner: the issuing CA is the assigner then (RFC 4043
/// section 2). Neither is read by SPIRE.
///
/// # Errors
/// `issue.name` when the machine's name does not fit a subject, `issue.key` when the EK Name is not
/// hex.
pub fn ldevid_profile(
    machine: &MachineId,
    ek_name: &EkName,
    now: UnixMillis,
    random: [u8; 20],
) -> Result<CertProfile, Reason> {
    check_name("machine name", &machine.0, NAME_MAX_CHARS)?;
    let ek = hex::decode(&ek_name.0).map_err(|e| no_key(format!("{:?}: {e}", ek_name.0)))?;
    Ok(CertProfile {
        name: "ldevid",
        signed_by: SignedBy::Ca(Ca::Device),
        key: KeyKind::Node,
        serial: serial(random),
        common_name: machine.0.clone(),
        organizational_unit: None,
        organization: None,
        alt_names: AltNames::Device(device_names(&ek, &ek_name.0)),
        not_before: begins(now),
        not_after: UnixMillis(now.0.saturating_add(LDEVID_LIFE - SKEW)),
        ca_path_len: None,
        key_use: KeyUse::Sign,
        purposes: vec![oid::EKU_VERIFIED_TPM_FIXED],
    })
}

fn check_name(what: &str, name: &str, max: usize) -> Result<(), Reason> {
    let chars = name.chars().count();
    if chars == 0 || chars > max || name.trim() != name || name.chars().any(char::is_control) {
        return Err(Reason::new(
            "issue.name",
            format!("{what}: 1 to {max} characters, no control characters or outer spaces"),
            format!("{name:?} ({chars} characters)"),
            "RFC 5280 appendix A.1",
            "choose a shorter, plain name",
        ));
    }
    Ok(())
}

mod tag {
    //! DER identifier octets (X.690 section 8.1.2).
    pub const OCTET_STRING: u8 = 0x04;
    pub const OID: u8 = 0x06;
    pub const UTF8_STRING: u8 = 0x0c;
    pub const SEQUENCE: u8 = 0x30;
    /// `[0]`, constructed: `otherName` in `GeneralName`, and `value` in `OtherName`.
    pub const CONTEXT_0: u8 = 0xa0;
}

/// One DER value with a definite length.
fn der(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let len: usize = parts.iter().map(|p| p.len()).sum();
    let mut out = vec![tag];
    if len < 0x80 {
        out.push(len as u8);
    } else {
        let bytes = len.to_be_bytes();
        let skip = bytes.iter().take_while(|&&b| b == 0).count();
        out.push(0x80 | (bytes.len() - skip) as u8);
        out.extend_from_slice(&bytes[skip..]);
    }
    for part in parts {
        out.extend_from_slice(part);
    }
    out
}

fn other_name(kind: Oid, value: &[u8]) -> Vec<u8> {
    let kind = der(tag::OID, &[kind.der]);
    der(tag::CONTEXT_0, &[&kind, &der(tag::CONTEXT_0, &[value])])
}

/// `GeneralNames` with a HardwareModuleName (RFC 4108 section 5) and a PermanentIdentifier
/// (RFC 4043 section 2).
fn device_names(serial: &[u8], identifier: &str) -> Vec<u8> {
    let module = der(
        tag::SEQUENCE,
        &[
            &der(tag::OID, &[oid::HW_TYPE_TPM20.der]),
            &der(tag::OCTET_STRING, &[serial]),
        ],
    );
    let permanent = der(
        tag::SEQUENCE,
        &[&der(tag::UTF8_STRING, &[identifier.as_bytes()])],
    );
    der(
        tag::SEQUENCE,
        &[
            &other_name(oid::HARDWARE_MODULE_NAME, &module),
            &other_name(oid::PERMANENT_IDENTIFIER, &permanent),
        ],
    )
}

/// `extKeyUsage` (RFC 5280 section 4.2.1.12) in DER. Ours have an arc of 128 bits, which X.509
/// writers that keep arcs in machine words cannot express.
pub fn purposes_der(purposes: &[Oid]) -> Vec<u8> {
    let ids: Vec<Vec<u8>> = purposes.iter().map(|p| der(tag::OID, &[p.der])).collect();
    let ids: Vec<&[u8]> = ids.iter().map(Vec::as_slice).collect();
    der(tag::SEQUENCE, &ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: UnixMillis = UnixMillis(1_796_000_000_000);
    const RANDOM: [u8; 20] = [0xff; 20];

    fn issuer() -> Issuer {
        Issuer::new("box").unwrap()
    }

    fn ek() -> EkName {
        EkName(format!("000b{}", "5c".repeat(32)))
    }

    fn device(machine: &str) -> Result<CertProfile, Reason> {
        ldevid_profile(&MachineId(machine.into()), &ek(), NOW, RANDOM)
    }

    /// The PKI as one table: who signs what, with which key, for how long, for which purpose.
    #[test]
    fn profiles_are_as_the_table_says() {
        let (i, dns, ip) = (
            issuer(),
            vec!["boot".to_owned()],
            vec![[10, 0, 0, 1].into()],
        );
        let ca = |which| i.ca(which, NOW, RANDOM);
        let infra = SignedBy::Ca(Ca::Infra);
        let admin = SignedBy::Ca(Ca::Admin);
        let boot = SignedBy::Ca(Ca::Boot);
        let day = |p: &CertProfile| (p.not_after.0 - NOW.0) / DAY;
        for (profile, signed_by, key, days, path_len, purpose) in [
            (
                ca(Ca::Infra),
                SignedBy::Itself,
                KeyKind::P384,
                3652,
                Some(0),
                None,
            ),
            (
                ca(Ca::Device),
                SignedBy::Itself,
                KeyKind::P384,
                3652,
                Some(0),
                None,
            ),
            (
                ca(Ca::Ak),
                SignedBy::Itself,
                KeyKind::P384,
                3652,
                Some(0),
                None,
            ),
            (
                ca(Ca::Admin),
                SignedBy::Itself,
                KeyKind::P384,
                3652,
                Some(0),
                None,
            ),
            (
                ca(Ca::Boot),
                SignedBy::Itself,
                KeyKind::Rsa3072,
                26693,
                Some(0),
                None,
            ),
            (
                i.attest(NOW, RANDOM),
                infra,
                KeyKind::P256,
                90,
                None,
                Some(oid::EKU_ATTEST),
            ),
            (
                i.receipt(NOW, RANDOM),
                infra,
                KeyKind::P256,
                90,
                None,
                Some(oid::EKU_RECEIPT),
            ),
            (
                i.boot(KeyKind::P256, &dns, &ip, NOW, RANDOM),
                boot,
                KeyKind::P256,
                26693,
                None,
                Some(oid::EKU_SERVER_AUTH),
            ),
            (
                i.boot(KeyKind::Rsa3072, &dns, &ip, NOW, RANDOM),
                boot,
                KeyKind::Rsa3072,
                26693,
                None,
                Some(oid::EKU_SERVER_AUTH),
            ),
            (
                i.admin_server(&dns, &ip, NOW, RANDOM),
                admin,
                KeyKind::P256,
                90,
                None,
                Some(oid::EKU_SERVER_AUTH),
            ),
            (
                i.admin_client("ada", AdminRole::Owner, NOW, RANDOM)
                    .unwrap(),
                admin,
                KeyKind::P256,
                365,
                None,
                Some(oid::EKU_CLIENT_AUTH),
            ),
            (
                device("rack-1").unwrap(),
                SignedBy::Ca(Ca::Device),
                KeyKind::Node,
                0,
                None,
                Some(oid::EKU_VERIFIED_TPM_FIXED),
            ),
        ] {
            let name = profile.name;
            assert_eq!(profile.signed_by, signed_by, "{name}");
            assert_eq!(profile.key, key, "{name}");
            assert_eq!(day(&profile), days, "{name}");
            assert_eq!(profile.ca_path_len, path_len, "{name}");
            assert_eq!(profile.purposes, Vec::from_iter(purpose), "{name}");
            let certify = profile.key_use == KeyUse::Certify;
            assert_eq!(certify, path_len.is_some(), "{name}");
            assert!(profile.not_before < NOW, "{name}");
            assert_eq!(profile.serial[0], 0x7f, "{name}");
        }
    }

    #[test]
    fn an_ldevid_lives_a_day_at_most() {
        let profile = device("rack-1").unwrap();
        assert_eq!(profile.not_after.0 - profile.not_before.0, 24 * HOUR);
    }

    #[test]
    fn an_unset_clock_still_makes_cas_that_last() {
        let ca = issuer().ca(Ca::Infra, UnixMillis(5), RANDOM);
        assert_eq!(ca.not_before, UnixMillis(0));
        assert_eq!(ca.not_after.0, RELEASE_FLOOR.0 + CA_LIFE);
    }

    #[test]
    fn serials_are_positive_and_have_20_octets() {
        for random in [[0u8; 20], [0xff; 20], [0x80; 20]] {
            let serial = serial(random);
            assert!((0x40..0x80).contains(&serial[0]));
            assert_eq!(serial[1..], random[1..]);
        }
    }

    #[test]
    fn renewal_is_due_at_two_thirds() {
        let at = renew_at(UnixMillis(0), UnixMillis(90 * DAY));
        assert_eq!(at, UnixMillis(60 * DAY));
    }

    #[test]
    fn device_names_bytes_are_pinned() {
        // Written by hand from RFC 4108 section 5 and RFC 4043 section 2.
        let expected = concat!(
            "303a",
            "a01a06082b06010505070804a00e300c060567810501020403010203",
            "a01c06082b06010505070803a010300e0c0c303030623031303230337831",
        );
        let names = device_names(&[1, 2, 3], "000b010203x1");
        assert_eq!(hex::encode(names), expected);
    }

    #[test]
    fn long_values_get_long_lengths() {
        let value = [0u8; 300];
        assert_eq!(der(4, &[&value])[..4], [4, 0x82, 1, 44]);
        assert_eq!(der(4, &[&value[..200]])[..3], [4, 0x81, 200]);
        assert_eq!(der(4, &[&value[..127]])[..2], [4, 127]);
    }

    #[test]
    fn rejects_names_that_do_not_fit_a_subject() {
        for bad in ["", " x", "a\nb", &"x".repeat(65)] {
            assert_eq!(device(bad).unwrap_err().code, "issue.name", "{bad:?}");
            let client = issuer().admin_client(bad, AdminRole::Viewer, NOW, RANDOM);
            assert_eq!(client.unwrap_err().code, "issue.name", "{bad:?}");
        }
        assert!(device(&"x".repeat(64)).is_ok());
        assert_eq!(Issuer::new(&"x".repeat(41)).unwrap_err().code, "issue.name");
    }

    #[test]
    fn rejects_an_ek_name_that_is_not_hex() {
        let refused = ldevid_profile(&MachineId("m".into()), &EkName("zz".into()), NOW, RANDOM);
        assert_eq!(refused.unwrap_err().code, "issue.key");
    }
}

//! Who made a TPM, and where its maker offers a certificate that the TPM does not hold.

use sha2::{Digest as _, Sha256};

use super::CertKey;

/// Makers that publish EK certificates under the hash of the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Vendor {
    /// Intel PTT before the 11th generation: `ekop.intel.com`, JSON with the certificate in it.
    Intel,
    /// AMD fTPM: `ftpm.amd.com`, DER.
    Amd,
}

impl Vendor {
    /// From the manufacturer attribute, `id:` and eight hex digits or four letters.
    pub fn of(manufacturer: &str) -> Option<Self> {
        match manufacturer_text(manufacturer)?.as_str() {
            "INTC" => Some(Self::Intel),
            "AMD" => Some(Self::Amd),
            _ => None,
        }
    }
}

/// The vendor's letters (TCG Vendor ID Registry) of a manufacturer attribute: `id:53544D20` is
/// `STM`. Some write the letters themselves behind `id:`.
pub fn manufacturer_text(attribute: &str) -> Option<String> {
    let id = attribute.strip_prefix("id:").unwrap_or(attribute);
    let octets = match hex::decode(id) {
        Ok(octets) if octets.len() == 4 => octets,
        _ => id.as_bytes().to_vec(),
    };
    let letters = octets.split(|&octet| octet == 0).next()?;
    let text = std::str::from_utf8(letters).ok()?.trim_end();
    let plain = (1..=4).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic());
    plain.then(|| text.to_owned())
}

/// What Intel's service calls `pubhash`: SHA-256 of modulus and 65537 as three octets, or of both
/// coordinates.
pub fn public_hash(key: &CertKey) -> Option<[u8; 32]> {
    let hash = match key {
        CertKey::Rsa { n, e, .. } => Sha256::new().chain_update(n).chain_update(e),
        CertKey::Ec { point, .. } => Sha256::new().chain_update(point.strip_prefix(&[4])?),
        CertKey::Other(_) => return None,
    };
    Some(hash.finalize().into())
}

/// Where the vendor's service has the certificate of this key.
pub fn cert_url(vendor: Vendor, key: &CertKey) -> Option<String> {
    match vendor {
        Vendor::Intel => {
            use base64::Engine as _;
            let hash = base64::engine::general_purpose::URL_SAFE.encode(public_hash(key)?);
            let hash = hash.replace('=', "%3D");
            Some(format!("https://ekop.intel.com/ekcertservice/{hash}"))
        }
        Vendor::Amd => {
            // The TCG algorithm identifiers of the key before it; first half of the hash.
            let hash = match key {
                CertKey::Rsa { n, e, .. } => {
                    let mut exponent = [0; 4];
                    let at = 4usize.checked_sub(e.len())?;
                    exponent[at..].copy_from_slice(e);
                    Sha256::new()
                        .chain_update([0, 0, 0x22, 0x22])
                        .chain_update(exponent)
                        .chain_update(n)
                        .finalize()
                }
                CertKey::Ec { .. } | CertKey::Other(_) => return None,
            };
            let half = hex::encode_upper(&hash[..16]);
            Some(format!("https://ftpm.amd.com/pki/aia/{half}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manufacturers_in_every_spelling() {
        let table = [
            ("id:53544D20", Some("STM")),
            ("id:4E544300", Some("NTC")),
            ("id:49465800", Some("IFX")),
            ("id:414D4400", Some("AMD")),
            ("id:494E5443", Some("INTC")),
            ("id:IBM", Some("IBM")),
            ("INTC", Some("INTC")),
            // swtpm's number is no text, and a model is not parsed.
            ("id:00001014", None),
            ("id:", None),
            ("id:swtpm", None),
        ];
        for (attribute, text) in table {
            assert_eq!(manufacturer_text(attribute).as_deref(), text, "{attribute}");
        }
        assert_eq!(Vendor::of("id:414D4400"), Some(Vendor::Amd));
        assert_eq!(Vendor::of("id:53544D20"), None);
    }
}

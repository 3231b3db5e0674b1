//! Signs EFI images with the site's db key, by `sbsign`, and checks the result with `sbverify`.

use std::fs;
use std::io;
use std::path::PathBuf;

use crate::exec::{Tool, ToolError};
use crate::keys::SiteKeys;

const SBSIGN: Tool = Tool {
    name: "sbsign",
    package: "sbsigntool",
};
const SBVERIFY: Tool = Tool {
    name: "sbverify",
    package: "sbsigntool",
};

/// Why an image could not be signed.
#[derive(Debug, thiserror::Error)]
pub enum SignError {
    /// A tool failed.
    #[error("signature")]
    Tool(#[from] ToolError),
    /// A scratch file could not be written or read.
    #[error("scratch file of the signature")]
    Io(#[from] io::Error),
}

/// Signs `image` with the db key of `keys`. The signature names its time, so two differ; what they sign does not.
///
/// # Errors
/// [`SignError`].
pub fn sign(image: &[u8], keys: &SiteKeys) -> Result<Vec<u8>, SignError> {
    let folder = tempfile::tempdir()?;
    fs::write(folder.path().join("in.efi"), image)?;
    let absolute = |path: PathBuf| std::path::absolute(path);
    let (key, certificate) = (absolute(keys.db_key())?, absolute(keys.db_certificate())?);
    let arguments = [
        "--key".as_ref(),
        key.as_os_str(),
        "--cert".as_ref(),
        certificate.as_os_str(),
        "--output".as_ref(),
        "out.efi".as_ref(),
        "in.efi".as_ref(),
    ];
    SBSIGN.run(folder.path(), arguments)?;
    let arguments = [
        "--cert".as_ref(),
        certificate.as_os_str(),
        "out.efi".as_ref(),
    ];
    SBVERIFY.run(folder.path(), arguments)?;
    Ok(fs::read(folder.path().join("out.efi"))?)
}

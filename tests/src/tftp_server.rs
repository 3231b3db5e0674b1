//! The product's TFTP engine alone in a process: what benches compare with other servers, and
//! whose memory tests read.
//!
//! The daemon serves artefacts of a signed catalogue to machines it knows; here the same engine
//! serves a folder, read once, to everybody.

use std::collections::HashMap;
use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use bytes::Bytes;
use gateway::shell::tftp::{FileSource, Options, serve};
use netstack::tftp::{ErrorCode, ErrorReply};
use tokio_util::sync::CancellationToken;

/// Files by name.
#[derive(Debug, Default)]
pub struct Files(HashMap<String, Bytes>);

impl Files {
    /// Of these names and contents.
    pub fn of(files: impl IntoIterator<Item = (&'static str, Vec<u8>)>) -> Self {
        let owned = files.into_iter();
        Self(
            owned
                .map(|(name, contents)| (name.to_owned(), contents.into()))
                .collect(),
        )
    }

    /// All files of a folder.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn of_folder(folder: &Path) -> Result<Self> {
        let mut files = HashMap::new();
        for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                let name = entry.file_name().to_string_lossy().into_owned();
                files.insert(name, fs::read(entry.path())?.into());
            }
        }
        Ok(Self(files))
    }
}

impl FileSource for Files {
    async fn open(&self, _peer: SocketAddr, name: &str) -> Result<Bytes, ErrorReply> {
        let found = self.0.get(name.trim_start_matches('/')).cloned();
        found.ok_or_else(|| ErrorReply::new(ErrorCode::FileNotFound, "no such file"))
    }
}

/// Serves a folder until the process ends.
///
/// # Errors
/// The folder or the port.
pub fn serve_folder(folder: &Path, address: SocketAddr, options: Options) -> Result<()> {
    let files = Arc::new(Files::of_folder(folder)?);
    let socket = UdpSocket::bind(address).with_context(|| format!("cannot bind {address}"))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()?;
    runtime.block_on(serve(socket, files, options, CancellationToken::new()))?;
    Ok(())
}

/// A server of some files on a thread of this process; ended when dropped.
pub struct Serving {
    /// Where it listens.
    pub address: SocketAddr,
    stop: CancellationToken,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Serving {
    /// Starts one on loopback.
    ///
    /// # Errors
    /// The port is refused.
    pub fn start(files: Files, options: Options) -> Result<Self> {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        let address = socket.local_addr()?;
        let stop = CancellationToken::new();
        let token = stop.clone();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()?;
        let thread = std::thread::spawn(move || {
            if let Err(error) = runtime.block_on(serve(socket, Arc::new(files), options, token)) {
                println!("the TFTP server ended: {error}");
            }
        });
        Ok(Self {
            address,
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Contents without a period that a block size could hide: a lost, repeated or swapped block shows.
pub fn pattern(len: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

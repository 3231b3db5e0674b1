//! cpio archives in the `newc` form that the kernel unpacks (Documentation/driver-api/early-userspace/buffer-format).
//!
//! Deterministic: entries sorted by path, all times zero, owner root, inode numbers by position. Parent folders are
//! added by themselves. Knows nothing of what the files are for.

use std::collections::BTreeMap;

/// What an entry is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Node {
    Folder,
    File { bytes: Vec<u8>, mode: u32 },
    Link(String),
    Device { major: u32, minor: u32 },
}

/// An archive being put together. Paths are absolute; the last entry for a path counts.
#[derive(Debug, Clone, Default)]
pub struct Archive {
    nodes: BTreeMap<String, Node>,
}

const FOLDER: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_000;
const CHARACTER_DEVICE: u32 = 0o020_000;

impl Archive {
    /// Adds a folder, mode 0755.
    pub fn folder(&mut self, path: &str) {
        self.add(path, Node::Folder);
    }

    /// Adds a file with permission bits `mode`.
    pub fn file(&mut self, path: &str, bytes: impl Into<Vec<u8>>, mode: u32) {
        self.add(
            path,
            Node::File {
                bytes: bytes.into(),
                mode,
            },
        );
    }

    /// Adds a symbolic link.
    pub fn link(&mut self, path: &str, target: &str) {
        self.add(path, Node::Link(target.to_owned()));
    }

    /// Adds a character device, mode 0600.
    pub fn character_device(&mut self, path: &str, major: u32, minor: u32) {
        self.add(path, Node::Device { major, minor });
    }

    /// Paths of all entries, sorted.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.nodes.keys().map(String::as_str)
    }

    fn add(&mut self, path: &str, node: Node) {
        let path = path.trim_matches('/');
        for (at, _) in path.match_indices('/') {
            self.nodes
                .entry(path[..at].to_owned())
                .or_insert(Node::Folder);
        }
        self.nodes.insert(path.to_owned(), node);
    }

    /// The archive's bytes, padded to 512.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for (index, (path, node)) in self.nodes.iter().enumerate() {
            push(&mut out, number(index + 1), path, node);
        }
        push(
            &mut out,
            0,
            "TRAILER!!!",
            &Node::File {
                bytes: Vec::new(),
                mode: 0,
            },
        );
        out.resize(out.len().next_multiple_of(512), 0);
        out
    }
}

fn push(out: &mut Vec<u8>, inode: u32, path: &str, node: &Node) {
    let empty = Vec::new();
    let (mode, links, data, device) = match node {
        Node::Folder => (FOLDER | 0o755, 2, &empty[..], (0, 0)),
        Node::File { bytes, mode } => (FILE | mode, 1, &bytes[..], (0, 0)),
        Node::Link(target) => (LINK | 0o777, 1, target.as_bytes(), (0, 0)),
        Node::Device { major, minor } => {
            (CHARACTER_DEVICE | 0o600, 1, &empty[..], (*major, *minor))
        }
    };
    // The trailer has no type.
    let mode = if inode == 0 { 0 } else { mode };
    let fields = [
        inode,
        mode,
        0,
        0,
        links,
        0,
        number(data.len()),
        0,
        0,
        device.0,
        device.1,
        number(path.len() + 1),
        0,
    ];
    out.extend_from_slice(b"070701");
    for field in fields {
        out.extend_from_slice(format!("{field:08X}").as_bytes());
    }
    out.extend_from_slice(path.as_bytes());
    out.push(0);
    out.resize(out.len().next_multiple_of(4), 0);
    out.extend_from_slice(data);
    out.resize(out.len().next_multiple_of(4), 0);
}

fn number(value: usize) -> u32 {
    u32::try_from(value).expect("files of an initramfs are far below 4 GiB")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::Tool;

    #[test]
    fn the_system_cpio_reads_it() {
        let mut archive = Archive::default();
        archive.file("/init", b"#!/bin/sh\n".to_vec(), 0o755);
        archive.file("/etc/vestibule/image", b"attester 1\n".to_vec(), 0o644);
        archive.link("/bin/sh", "busybox");
        archive.folder("/proc");
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.cpio"), archive.to_bytes()).unwrap();
        let cpio = Tool {
            name: "cpio",
            package: "cpio",
        };
        let extract = ["-i", "-d", "--quiet", "-F", "a.cpio"];
        cpio.run(folder.path(), extract).unwrap();
        let read = |path: &str| std::fs::read_to_string(folder.path().join(path)).unwrap();
        assert_eq!(read("init"), "#!/bin/sh\n");
        assert_eq!(read("etc/vestibule/image"), "attester 1\n");
        assert_eq!(
            std::fs::read_link(folder.path().join("bin/sh")).unwrap(),
            std::path::Path::new("busybox")
        );
        assert!(folder.path().join("proc").is_dir());
    }

    #[test]
    fn order_of_adding_does_not_matter() {
        let mut a = Archive::default();
        a.file("/b", b"1".to_vec(), 0o644);
        a.character_device("/dev/console", 5, 1);
        let mut b = Archive::default();
        b.character_device("/dev/console", 5, 1);
        b.file("/b", b"1".to_vec(), 0o644);
        assert_eq!(a.to_bytes(), b.to_bytes());
        assert_eq!(a.paths().collect::<Vec<_>>(), ["b", "dev", "dev/console"]);
    }
}

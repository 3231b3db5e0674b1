//! The netascii form of a file (RFC 764 as used by RFC 1350): LF becomes CR LF, CR becomes CR NUL.

/// The octets to send for `file`; at most twice as many.
pub fn encode(file: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(file.len() + file.len() / 16);
    for &octet in file {
        match octet {
            b'\n' => out.extend_from_slice(b"\r\n"),
            b'\r' => out.extend_from_slice(b"\r\0"),
            _ => out.push(octet),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_ends_and_bare_returns() {
        assert_eq!(encode(b"a\nb\r\nc\r"), b"a\r\nb\r\0\r\nc\r\0");
        assert!(encode(b"").is_empty());
    }
}

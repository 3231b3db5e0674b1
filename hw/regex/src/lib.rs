//! Stands in for the crate `regex` (docs/adr/0005-regex-lite.md): the same type from the same
//! maintainers, without the Unicode tables and the engines that are built for speed.

#![forbid(unsafe_code)]

pub use regex_lite::Regex;

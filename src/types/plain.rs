//! Tells text from what is no UTF-8 text yet: files that are packed, or written in another encoding.
//!
//! In: the bytes of a file, or its first ones. Out: the text without its byte order mark, or what the file is and what to do with it.
//! Not here: reading files (`config::files`), what the text means.

/// The mark that some editors put before UTF-8.
const MARK: &[u8] = b"\xEF\xBB\xBF";

/// What files begin with that are packed, and what unpacks them.
const PACKED: [(&[u8], &str); 5] = [
    (b"\x1F\x8B", "gzip: unpack it first, with `gunzip`"),
    (b"\x28\xB5\x2F\xFD", "zstd: unpack it first, with `zstd -d`"),
    (b"\xFD7zXZ\x00", "xz: unpack it first, with `unxz`"),
    (b"BZh", "bzip2: unpack it first, with `bunzip2`"),
    (b"PK\x03\x04", "a zip archive: unpack it first, with `unzip`"),
];

/// How many of the first bytes are a mark and no text; or what the file is instead of text.
pub fn begins(head: &[u8]) -> Result<usize, String> {
    if head.starts_with(MARK) {
        return Ok(MARK.len());
    }
    if let Some((_, what)) = PACKED.iter().find(|(magic, _)| head.starts_with(magic)) {
        return Err(format!("the file is {what}"));
    }
    // a mark, or text of which each second byte is zero, which no UTF-8 of ours has
    let wide = |a: u8, b: u8| (a == 0) != (b == 0);
    if head.starts_with(&[0xFF, 0xFE]) || head.starts_with(&[0xFE, 0xFF]) || matches!(head, [a, b, ..] if wide(*a, *b)) {
        return Err("the file is UTF-16: convert it to UTF-8, such as with `iconv -f UTF-16 -t UTF-8`".into());
    }
    Ok(0)
}

/// The text of a file.
pub fn text(bytes: &[u8]) -> Result<&str, String> {
    let from = begins(bytes)?;
    let bytes = bytes.get(from..).unwrap_or_default();
    std::str::from_utf8(bytes).map_err(|e| format!("byte {} is not UTF-8: save the file as UTF-8", from + e.valid_up_to()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_passed_over_and_what_is_no_text_is_named() {
        assert_eq!(text("\u{feff}{\"a\": \"\u{feff}\"}".as_bytes()).unwrap(), "{\"a\": \"\u{feff}\"}");
        assert_eq!(text(b"").unwrap(), "");
        for (bytes, told) in [
            (&b"\x1F\x8B\x08\x00"[..], "gunzip"),
            (b"\x28\xB5\x2F\xFD\x00", "zstd"),
            (b"PK\x03\x04", "unzip"),
            (b"\xFF\xFE{\x00", "UTF-16"),
            (b"\xFE\xFF\x00{", "UTF-16"),
            (b"{\x00\"\x00", "iconv"),
            (b"\x00{\x00\"", "iconv"),
            (b"ab\xFF", "byte 2"),
        ] {
            let e = text(bytes).unwrap_err();
            assert!(e.contains(told), "{e}");
        }
    }
}

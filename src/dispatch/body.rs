//! The text of an answer, or why there is none: what is compressed is opened within bounds, what is no text is never taken for text.
//!
//! In: an [`Answer`] as it came. Out: its text, or an [`Unreadable`] that says in words what came instead. Invariants: never more than the given
//! bound in memory, whatever a small body would become; bytes that are not UTF-8 are never handed on with holes in them.
//! Cost: linear in the opened body. Pure. Not here: JSON inside the text (`response`), statuses (`http`).

use crate::dispatch::engine::Receipt;
use crate::dispatch::guard::{Answer, CallError};
use crate::error::Code;
use crate::types::message::Cause;
use flate2::read::{DeflateDecoder, MultiGzDecoder, ZlibDecoder};
use std::borrow::Cow;
use std::fmt;
use std::io::Read;
use std::sync::Arc;

/// Why an answer is no text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// It would become larger than allowed.
    TooLarge,
    /// Compressed in a way that is not read here.
    Encoding(String),
    /// Says that it is compressed, and is not, or ends too early.
    Damaged(String),
    /// No UTF-8.
    Binary {
        /// `Content-Type` as it came.
        content_type: String,
        /// Size in bytes.
        len: usize,
    },
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge => f.write_str("the answer is too large"),
            Self::Encoding(name) => {
                write!(f, "the answer has content-encoding {name}, which is not read: answer plainly, or with gzip or deflate")
            }
            Self::Damaged(name) => write!(f, "the answer has content-encoding {name} but can't be opened with it"),
            Self::Binary { content_type, len } => {
                write!(
                    f,
                    "the answer has content-type {content_type}: {len} bytes that are no UTF-8 text; answer JSON or UTF-8 text, or say where the data can be fetched"
                )
            }
        }
    }
}

impl Unreadable {
    /// The receipt of an answer that says "done" but can't be read: no other attempt would answer otherwise.
    pub fn receipt(&self, status: u16) -> Receipt {
        match self {
            Self::TooLarge => {
                Receipt::Nacked { cause: Cause::Broken, reason: Arc::from(CallError::TooLarge.to_string()), retry_after: None }
            }
            Self::Encoding(_) | Self::Damaged(_) | Self::Binary { .. } => {
                Receipt::Refused { code: Code::AgentRejected, reason: Arc::from(format!("status {status}: {self}")) }
            }
        }
    }
}

/// A short form of a header value of a stranger's.
fn shown(text: &str) -> String {
    let short: String = text.chars().filter(|c| c.is_ascii_graphic() || *c == ' ').take(80).collect();
    if short.is_empty() { "(none)".into() } else { short }
}

/// The text of `answer`, at most `max` bytes of it.
pub fn text(answer: &Answer, max: usize) -> Result<Cow<'_, str>, Unreadable> {
    let bytes = opened(answer, max)?;
    let len = bytes.len();
    let binary = || Unreadable::Binary { content_type: shown(&answer.content_type), len };
    let text = match bytes {
        Cow::Borrowed(bytes) => std::str::from_utf8(bytes).map(Cow::Borrowed).map_err(|_| binary())?,
        Cow::Owned(bytes) => String::from_utf8(bytes).map(Cow::Owned).map_err(|_| binary())?,
    };
    if text.contains('\0') { Err(binary()) } else { Ok(text) }
}

fn opened(answer: &Answer, max: usize) -> Result<Cow<'_, [u8]>, Unreadable> {
    let body = answer.body.as_slice();
    let encoding = answer.encoding.trim().to_ascii_lowercase();
    match encoding.as_str() {
        _ if body.is_empty() => Ok(Cow::Borrowed(body)),
        "" | "identity" if body.len() <= max => Ok(Cow::Borrowed(body)),
        "" | "identity" => Err(Unreadable::TooLarge),
        "gzip" | "x-gzip" => inflate(MultiGzDecoder::new(body), max, &encoding),
        // zlib by the standard, raw by habit of some servers
        "deflate" => match inflate(ZlibDecoder::new(body), max, &encoding) {
            Err(Unreadable::Damaged(_)) => inflate(DeflateDecoder::new(body), max, &encoding),
            other => other,
        },
        other => Err(Unreadable::Encoding(shown(other))),
    }
}

fn inflate(reader: impl Read, max: usize, encoding: &str) -> Result<Cow<'static, [u8]>, Unreadable> {
    let mut out = Vec::new();
    // one byte more than allowed tells that there is more
    match reader.take(max as u64 + 1).read_to_end(&mut out) {
        Ok(_) if out.len() > max => Err(Unreadable::TooLarge),
        Ok(_) => Ok(Cow::Owned(out)),
        Err(_) => Err(Unreadable::Damaged(shown(encoding))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::read::{DeflateEncoder, GzEncoder, ZlibEncoder};

    fn answer(encoding: &str, content_type: &str, body: Vec<u8>) -> Answer {
        Answer { status: 200, retry_after: None, content_type: content_type.into(), encoding: encoding.into(), body }
    }

    fn all(mut reader: impl Read) -> Vec<u8> {
        let mut out = Vec::new();
        reader.read_to_end(&mut out).unwrap();
        out
    }

    #[test]
    fn compressed_answers_are_opened() {
        let plain = "{\"价格\": 7}".as_bytes();
        let level = Compression::default();
        for (encoding, body) in [
            ("gzip", all(GzEncoder::new(plain, level))),
            ("X-GZIP", all(GzEncoder::new(plain, level))),
            ("deflate", all(ZlibEncoder::new(plain, level))),
            ("deflate", all(DeflateEncoder::new(plain, level))),
            ("identity", plain.to_vec()),
            ("", plain.to_vec()),
        ] {
            assert_eq!(text(&answer(encoding, "application/json", body), 100).unwrap(), "{\"价格\": 7}", "{encoding}");
        }
        assert_eq!(text(&answer("gzip", "", Vec::new()), 100).unwrap(), "", "nothing is nothing");
    }

    #[test]
    fn a_bomb_goes_off_outside() {
        let bomb = all(GzEncoder::new(std::io::repeat(b'x').take(50_000_000), Compression::best()));
        assert!(bomb.len() < 100_000);
        assert_eq!(text(&answer("gzip", "", bomb), 2_000_000), Err(Unreadable::TooLarge));
        assert_eq!(text(&answer("", "", vec![b'x'; 101]), 100), Err(Unreadable::TooLarge));
        assert!(matches!(Unreadable::TooLarge.receipt(200), Receipt::Nacked { cause: Cause::Broken, .. }));
    }

    #[test]
    fn what_is_no_text_is_named() {
        let png = text(&answer("", "image/png", vec![0x89, b'P', b'N', b'G', 0xff]), 100).unwrap_err();
        assert!(png.to_string().contains("image/png") && png.to_string().contains("5 bytes"), "{png}");
        assert!(matches!(png.receipt(200), Receipt::Refused { code: Code::AgentRejected, .. }));
        let other = text(&answer("br", "", vec![1, 2]), 100).unwrap_err();
        assert!(other.to_string().contains("br"), "{other}");
        assert!(matches!(text(&answer("gzip", "", b"{\"a\":1}".to_vec()), 100), Err(Unreadable::Damaged(_))));
        assert!(matches!(text(&answer("", "", b"a\0b".to_vec()), 100), Err(Unreadable::Binary { .. })));
        let hostile = text(&answer("", "a\u{1b}[2J\nb", vec![0xff]), 100).unwrap_err().to_string();
        assert!(!hostile.contains('\u{1b}') && !hostile.contains('\n'), "{hostile:?}");
    }
}

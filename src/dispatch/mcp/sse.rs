//! Server-sent events, cut out of the bytes of a stream.
//!
//! In: bytes as they come. Out: the data of each whole event. Only `data` counts; names, ids and comments are passed over. Invariant: never more than
//! [`MAX_EVENT`] bytes wait. Cost: linear. Not here: what the data says (`message`).

use crate::types::envelope::MAX_PAYLOAD;

/// Largest event in bytes: a payload and what surrounds it.
pub const MAX_EVENT: usize = MAX_PAYLOAD + 64 * 1024;

/// The events of one stream.
#[derive(Debug, Default)]
pub struct Events {
    line: Vec<u8>,
    data: Vec<u8>,
    has_data: bool,
    /// The last byte was a carriage return: a line feed after it belongs to it.
    after_cr: bool,
    begun: bool,
}

/// An event is larger than allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLarge;

impl Events {
    /// Takes bytes; answers the data of the events that are whole now.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, TooLarge> {
        let mut whole = Vec::new();
        for &b in bytes {
            let feed_of_cr = std::mem::replace(&mut self.after_cr, b == b'\r') && b == b'\n';
            match b {
                b'\n' if feed_of_cr => {}
                b'\n' | b'\r' => self.end_of_line(&mut whole),
                _ => self.line.push(b),
            }
            if self.line.len() + self.data.len() > MAX_EVENT {
                return Err(TooLarge);
            }
        }
        Ok(whole)
    }

    fn end_of_line(&mut self, whole: &mut Vec<Vec<u8>>) {
        let mut line = std::mem::take(&mut self.line);
        if !std::mem::replace(&mut self.begun, true) && line.starts_with(b"\xef\xbb\xbf") {
            line.drain(..3);
        }
        if line.is_empty() {
            let data = std::mem::take(&mut self.data);
            if std::mem::take(&mut self.has_data) {
                whole.push(data);
            }
            return;
        }
        let (name, value) = match line.iter().position(|b| *b == b':') {
            Some(at) => (line.get(..at).unwrap_or_default(), line.get(at + 1..).unwrap_or_default()),
            None => (line.as_slice(), &[][..]),
        };
        if name == b"data" {
            if std::mem::replace(&mut self.has_data, true) {
                self.data.push(b'\n');
            }
            self.data.extend_from_slice(value.strip_prefix(b" ").unwrap_or(value));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(text: &str) -> Vec<String> {
        let events = Events::default().push(text.as_bytes()).unwrap();
        events.into_iter().map(|d| String::from_utf8(d).unwrap()).collect()
    }

    #[test]
    fn events_are_read_in_every_line_ending() {
        for end in ["\n", "\r\n", "\r"] {
            let text = [
                "\u{feff}: hello",
                "",
                "event: message",
                "id: 7",
                "data: {\"a\":",
                "data: 1}",
                "",
                "data",
                "",
                "retry: 9",
                "",
                "data:x",
                "",
            ]
            .join(end);
            assert_eq!(all(&format!("{text}{end}")), ["{\"a\":\n1}", "", "x"], "{end:?}");
        }
        assert_eq!(all("data: never closed\n"), Vec::<String>::new());
    }

    #[test]
    fn an_endless_event_is_refused() {
        let mut events = Events::default();
        let piece = vec![b'x'; 100_000];
        assert!((0..30).any(|_| events.push(&piece).is_err()));
    }

    proptest! {
        #[test]
        fn the_cut_changes_nothing(text in "(data: [a-z]{0,5}|id: 1|:|\r\n|\n|\r){0,12}", cut in 1usize..7) {
            let whole = Events::default().push(text.as_bytes()).unwrap();
            let mut events = Events::default();
            let pieces: Vec<Vec<u8>> = text.as_bytes().chunks(cut).flat_map(|p| events.push(p).unwrap()).collect();
            prop_assert_eq!(whole, pieces);
        }
    }
}

//! Log lines: text for people or JSON for machines, always one line an event, on standard error.
//!
//! Texts of manifests and requests are hostile: control characters, line and paragraph separators, direction marks and
//! the invisible tag block are written as escapes, so that no input can forge a line or drive a terminal.

use std::io::{self, Write};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::{EnvFilter, Registry};

/// Builds the subscriber that writes to `out`. `filter` is checked by the configuration; a broken one logs `info`.
pub fn subscriber<W>(filter: &str, json: bool, out: W) -> impl tracing::Subscriber + Send + Sync
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let filter = EnvFilter::try_new(filter).unwrap_or_else(|_| EnvFilter::new("info"));
    let out = OneLine { out, json };
    let (text, lines) = if json {
        (None, Some(tracing_subscriber::fmt::layer().json().flatten_event(true).with_writer(out)))
    } else {
        (Some(tracing_subscriber::fmt::layer().with_ansi(false).with_writer(out)), None)
    };
    Registry::default().with(filter).with(text).with(lines)
}

/// Installs the process's subscriber on standard error. A second call (tests) changes nothing.
pub fn install(filter: &str, json: bool) {
    if tracing::subscriber::set_global_default(subscriber(filter, json, io::stderr)).is_err() {
        tracing::debug!("logging was set up before");
    }
}

/// Whether a character could break a line, drive a terminal, or hide in a text.
pub fn is_hostile(c: char) -> bool {
    c.is_control()
        || matches!(c as u32, 0x00AD | 0x061C | 0x180E | 0x200B..=0x200F | 0x2028..=0x202E | 0x2060..=0x206F | 0xFEFF | 0xFFF9..=0xFFFB | 0xE0000..=0xE0FFF)
}

/// Writes hostile characters as `\u{…}`. For text that people read on a terminal.
pub fn escaped(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut out, c| {
        push(&mut out, c, false);
        out
    })
}

fn push(out: &mut String, c: char, json: bool) {
    if !is_hostile(c) {
        out.push(c);
    } else if json {
        let mut units = [0u16; 2];
        for unit in c.encode_utf16(&mut units) {
            out.push_str(&format!("\\u{unit:04x}"));
        }
    } else {
        out.push_str(&format!("\\u{{{:x}}}", c as u32));
    }
}

struct OneLine<W> {
    out: W,
    json: bool,
}

impl<'a, W: MakeWriter<'a>> MakeWriter<'a> for OneLine<W> {
    type Writer = OneLineWriter<W::Writer>;

    fn make_writer(&'a self) -> Self::Writer {
        OneLineWriter { out: self.out.make_writer(), json: self.json }
    }
}

/// Takes one event a call, as the formatter hands it over.
struct OneLineWriter<W> {
    out: W,
    json: bool,
}

impl<W: Write> Write for OneLineWriter<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let mut line = String::with_capacity(text.len() + 1);
        text.trim_end_matches('\n').chars().for_each(|c| push(&mut line, c, self.json));
        line.push('\n');
        self.out.write_all(line.as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl Write for Sink {
        fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(buf);
            Ok(buf.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    const HOSTILE: &str = "a\nINFO forged\r\x1b[2J\u{202e}x\u{2028}\u{e0041}\0\u{9b}退款";

    fn logged(json: bool) -> String {
        let sink = Sink::default();
        let out = sink.clone();
        tracing::subscriber::with_default(subscriber("info", json, move || out.clone()), || {
            tracing::info!(name = HOSTILE, other = ?HOSTILE, "{HOSTILE}");
            tracing::debug!("not shown");
        });
        let bytes = sink.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn an_event_stays_one_line() {
        for json in [false, true] {
            let text = logged(json);
            assert_eq!(text.lines().count(), 1, "{text:?}");
            assert!(text.ends_with('\n') && !text.trim_end_matches('\n').chars().any(is_hostile), "{text:?}");
            assert!(text.contains("退款"));
        }
    }

    #[test]
    fn json_lines_are_json() {
        let value: serde_json::Value = serde_json::from_str(&logged(true)).unwrap();
        assert_eq!(value["name"], HOSTILE);
        assert_eq!(value["level"], "INFO");
    }
}

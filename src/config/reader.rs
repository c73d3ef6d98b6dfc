//! Reads settings out of a TOML table, never stopping at the first fault.
//!
//! In: a table and overrides as text. Out: values in range (the default where a fault was), faults with key paths, and
//! the list of settings that were asked for. Invariant: a key that nobody asked for is a fault.
//!
//! Not here: which settings there are.

use crate::config::Override;
use crate::types::{Fault, span};
use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;
use toml::{Table, Value};

/// One setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// Key path, such as `server.limits.k_max`; `[]` stands for the entries of a list.
    pub path: String,
    /// What it takes, in words.
    pub takes: String,
    /// Its default as text.
    pub default: String,
    /// Variable that overrides it; empty inside lists.
    pub variable: String,
}

#[derive(Default)]
struct Shared {
    faults: Vec<Fault>,
    keys: Vec<Key>,
    /// Keys that came as text, and from where.
    loose: HashMap<String, String>,
}

/// A table of the configuration, with its place.
pub struct Reader<'a> {
    table: Option<&'a Table>,
    path: String,
    asked: Vec<String>,
    shared: &'a RefCell<Shared>,
}

/// Reads the whole configuration: values, faults, and the keys that were asked for.
pub fn run<T>(table: &Table, overrides: &[Override], read: impl FnOnce(&mut Reader<'_>) -> T) -> (T, Vec<Fault>, Vec<Key>) {
    let mut table = table.clone();
    let shared = RefCell::new(Shared::default());
    for over in overrides {
        if put(&mut table, &over.key, &over.value) {
            shared.borrow_mut().loose.insert(over.key.clone(), over.from.clone());
        } else {
            let fault = Fault::new(&over.key, "a key path such as server.grpc_addr", format!("correct {}", over.from));
            shared.borrow_mut().faults.push(fault);
        }
    }
    let mut root = Reader { table: Some(&table), path: String::new(), asked: Vec::new(), shared: &shared };
    let value = read(&mut root);
    root.finish();
    let shared = shared.into_inner();
    (value, shared.faults, shared.keys)
}

fn put(table: &mut Table, key: &str, value: &str) -> bool {
    let mut parts: Vec<&str> = key.split('.').collect();
    let Some(last) = parts.pop().filter(|p| !p.is_empty()) else { return false };
    let mut at = table;
    for part in parts {
        let next = at.entry(part.to_string()).or_insert_with(|| Value::Table(Table::new()));
        match next.as_table_mut() {
            Some(table) if !part.is_empty() => at = table,
            Some(_) | None => return false,
        }
    }
    at.insert(last.to_string(), Value::String(value.to_string()));
    true
}

impl<'a> Reader<'a> {
    fn key(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_string() } else { format!("{}.{name}", self.path) }
    }

    /// Notes a fault at `name` of this table.
    pub fn fault(&self, name: &str, expected: impl Into<String>, hint: impl Into<String>) {
        let key = self.key(name);
        let mut shared = self.shared.borrow_mut();
        let hint = match shared.loose.get(&key) {
            Some(from) => format!("{} ({from})", hint.into()),
            None => hint.into(),
        };
        shared.faults.push(Fault::new(key, expected, hint));
    }

    fn ask(&mut self, name: &str, takes: &str, default: String) -> Option<&'a Value> {
        self.asked.push(name.to_string());
        let path = general(&self.key(name));
        let variable = if path.contains("[]") { String::new() } else { format!("REACH_{}", path.replace('.', "_").to_uppercase()) };
        let mut shared = self.shared.borrow_mut();
        if shared.keys.iter().all(|k| k.path != path) {
            shared.keys.push(Key { path, takes: takes.to_string(), default, variable });
        }
        self.table.and_then(|t| t.get(name))
    }

    /// Asks for a value; text from a variable or a flag is read as TOML first.
    fn value<T>(&mut self, name: &str, takes: &str, default: T, shown: String, read: impl Fn(&Value) -> Option<T>) -> T {
        let Some(value) = self.ask(name, takes, shown) else { return default };
        let loose = self.shared.borrow().loose.contains_key(&self.key(name));
        let plain = value.as_str().filter(|_| loose).and_then(|text| toml::from_str::<Table>(&format!("v = {text}")).ok());
        let read = read(value).or_else(|| plain.and_then(|t| t.get("v").and_then(&read)));
        read.unwrap_or_else(|| {
            let written: String = value.to_string().chars().take(60).collect();
            self.fault(name, takes, format!("it says {written}"));
            default
        })
    }

    /// A text.
    pub fn text(&mut self, name: &str, default: &str) -> String {
        self.value(name, "a text", default.to_string(), format!("{default:?}"), |v| v.as_str().map(str::to_string))
    }

    /// A text that may be left out.
    pub fn optional(&mut self, name: &str) -> Option<String> {
        Some(self.text(name, "")).filter(|t| !t.is_empty())
    }

    /// True or false.
    pub fn flag(&mut self, name: &str, default: bool) -> bool {
        self.value(name, "true or false", default, default.to_string(), Value::as_bool)
    }

    /// A whole number in a range.
    pub fn int(&mut self, name: &str, default: usize, range: RangeInclusive<usize>) -> usize {
        let takes = format!("a whole number from {} to {}", range.start(), range.end());
        self.value(name, &takes, default, default.to_string(), |v| {
            v.as_integer().and_then(|n| usize::try_from(n).ok()).filter(|n| range.contains(n))
        })
    }

    /// A number in a range.
    pub fn number(&mut self, name: &str, default: f64, range: RangeInclusive<f64>) -> f64 {
        let takes = format!("a number from {} to {}", range.start(), range.end());
        self.value(name, &takes, default, default.to_string(), |v| {
            v.as_float().or_else(|| v.as_integer().map(|n| n as f64)).filter(|n| range.contains(n))
        })
    }

    /// A size: a number of bytes, or a text such as `4 MiB`.
    pub fn bytes(&mut self, name: &str, default: &str, range: RangeInclusive<u64>) -> u64 {
        let takes = format!("a size such as \"4 MiB\", from {} to {}", show_bytes(*range.start()), show_bytes(*range.end()));
        let standard = parse_bytes(default).unwrap_or_default();
        self.value(name, &takes, standard, format!("{default:?}"), |v| {
            let n = v.as_integer().and_then(|n| u64::try_from(n).ok()).or_else(|| v.as_str().and_then(parse_bytes));
            n.filter(|n| range.contains(n))
        })
    }

    /// A duration in a range, both ends written as text.
    pub fn span(&mut self, name: &str, default: &str, from: &str, to: &str) -> Duration {
        let of = |text: &str| span::parse(text).unwrap_or_default();
        let takes = format!("a duration such as \"30s\", from {from} to {to}");
        self.value(name, &takes, of(default), format!("{default:?}"), |v| {
            v.as_str().and_then(|t| span::parse(t).ok()).filter(|d| (of(from)..=of(to)).contains(d))
        })
    }

    /// An address `ip:port`.
    pub fn addr(&mut self, name: &str, default: SocketAddr) -> SocketAddr {
        self.value(name, "an address such as \"127.0.0.1:7700\"", default, format!("\"{default}\""), |v| v.as_str()?.parse().ok())
    }

    /// A list of texts.
    pub fn list(&mut self, name: &str, default: &[&str]) -> Vec<String> {
        let standard = default.iter().map(ToString::to_string).collect();
        self.value(name, "a list of texts", standard, format!("{default:?}"), |v| {
            v.as_array()?.iter().map(|t| t.as_str().map(str::to_string)).collect()
        })
    }

    /// One of several words.
    pub fn word(&mut self, name: &str, default: &str, words: &[&str]) -> String {
        let takes = format!("one of {}", words.join(", "));
        self.value(name, &takes, default.to_string(), format!("{default:?}"), |v| {
            v.as_str().filter(|t| words.contains(t)).map(str::to_string)
        })
    }

    /// A table inside this one.
    pub fn section<T>(&mut self, name: &str, read: impl FnOnce(&mut Reader<'_>) -> T) -> T {
        self.asked.push(name.to_string());
        let value = self.table.and_then(|t| t.get(name));
        if value.is_some_and(|v| !v.is_table()) {
            self.fault(name, "a table", format!("write [{}]", self.key(name)));
        }
        let mut inner = self.inner(value.and_then(Value::as_table), self.key(name));
        let read = read(&mut inner);
        inner.finish();
        read
    }

    /// A list of tables `[[…]]`.
    pub fn tables<T>(&mut self, name: &str, read: impl Fn(&mut Reader<'_>) -> T) -> Vec<T> {
        self.asked.push(name.to_string());
        let value = self.table.and_then(|t| t.get(name));
        let entries = value.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        if value.is_some_and(|v| !v.is_array()) || entries.iter().any(|v| !v.is_table()) {
            self.fault(name, "a list of tables", format!("write [[{}]] before each", self.key(name)));
        }
        if entries.is_empty() {
            // the keys are known without an entry, too; what an empty one lacks is no fault
            let faults = self.shared.borrow().faults.len();
            drop(read(&mut self.inner(None, format!("{}[]", self.key(name)))));
            self.shared.borrow_mut().faults.truncate(faults);
        }
        let mut all = Vec::new();
        for (i, table) in entries.iter().filter_map(Value::as_table).enumerate() {
            let mut inner = self.inner(Some(table), format!("{}[{i}]", self.key(name)));
            all.push(read(&mut inner));
            inner.finish();
        }
        all
    }

    /// Names of the entries of this table that were written.
    pub fn names(&self) -> Vec<String> {
        self.table.map(|t| t.keys().cloned().collect()).unwrap_or_default()
    }

    fn inner<'b>(&self, table: Option<&'b Table>, path: String) -> Reader<'b>
    where
        'a: 'b,
    {
        Reader { table, path, asked: Vec::new(), shared: self.shared }
    }

    fn finish(self) {
        for name in self.names() {
            if !self.asked.contains(&name) {
                let near = self.asked.iter().min_by_key(|known| distance(known, &name)).filter(|known| distance(known, &name) <= 3);
                let hint =
                    near.map_or_else(|| format!("remove it; known here: {}", self.asked.join(", ")), |k| format!("did you mean {k}?"));
                self.fault(&name, "a known setting", hint);
            }
        }
    }
}

/// `auth.tokens[3].caller` as `auth.tokens[].caller`.
fn general(path: &str) -> String {
    let mut out = String::new();
    let mut inside = false;
    for c in path.chars() {
        match c {
            '[' => inside = true,
            ']' => inside = false,
            _ if inside => continue,
            _ => {}
        }
        out.push(c);
    }
    out
}

/// Edits between two short names (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut corner = i;
        let mut left = i + 1;
        for (slot, y) in row.iter_mut().skip(1).zip(&b) {
            let cost = (corner + usize::from(x != *y)).min(left + 1).min(*slot + 1);
            corner = *slot;
            *slot = cost;
            left = cost;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or_default()
}

const UNITS: [(&str, u64); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

fn parse_bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let (number, unit) = UNITS.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, *unit))).unwrap_or((text, 1));
    number.trim().parse::<u64>().ok()?.checked_mul(unit)
}

fn show_bytes(n: u64) -> String {
    UNITS
        .iter()
        .find(|(_, unit)| n >= *unit && n.is_multiple_of(*unit))
        .map_or(n.to_string(), |(name, unit)| format!("{} {name}", n / unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_as_people_write_them() {
        assert_eq!(parse_bytes("4 MiB"), Some(4 << 20));
        assert_eq!(parse_bytes("4MiB"), Some(4 << 20));
        assert_eq!(parse_bytes("17"), Some(17));
        assert_eq!(parse_bytes("-1"), None);
        assert_eq!(parse_bytes("99999999999999 GiB"), None);
        assert_eq!(show_bytes(4 << 20), "4 MiB");
    }

    #[test]
    fn near_names_are_near() {
        assert_eq!(distance("k_max", "k_max"), 0);
        assert_eq!(distance("k_max", "k_maxx"), 1);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("kitten", "sitting"), 3);
    }

    #[test]
    fn places_in_lists_are_one_setting() {
        assert_eq!(general("a.b[12].c"), "a.b[].c");
    }
}

//! A checksum over the columns of a row, kept with it: SQLite notices when its pages are out of order, not when a letter in one changed.
//!
//! In: columns in a fixed order. Out: CRC-32 as an integer. Rows written before format 4 have none and are believed.
//! Cost: about a nanosecond a byte. Not here: which columns of which table.

use super::StoreError;

/// Collects columns; each counts with its kind and length, so that what moves from one column to the next is noticed.
#[derive(Default)]
pub struct Sum(flate2::Crc);

impl Sum {
    fn part(mut self, kind: u8, bytes: &[u8]) -> Self {
        self.0.update(&[kind]);
        self.0.update(&(bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
        self
    }

    /// A blob.
    pub fn blob(self, bytes: &[u8]) -> Self {
        self.part(1, bytes)
    }

    /// A text.
    pub fn text(self, text: &str) -> Self {
        self.part(2, text.as_bytes())
    }

    /// A text or NULL.
    pub fn maybe(self, text: Option<&str>) -> Self {
        match text {
            Some(text) => self.text(text),
            None => self.part(0, &[]),
        }
    }

    /// A number.
    pub fn number(self, n: i64) -> Self {
        self.part(3, &n.to_le_bytes())
    }

    /// A number or NULL.
    pub fn maybe_number(self, n: Option<i64>) -> Self {
        match n {
            Some(n) => self.number(n),
            None => self.part(0, &[]),
        }
    }

    /// The checksum.
    pub fn done(self) -> i64 {
        i64::from(self.0.sum())
    }

    /// Compares with what the row says; `row` names it.
    pub fn check(self, said: Option<i64>, row: impl FnOnce() -> String) -> Result<(), StoreError> {
        match said {
            Some(said) if said != self.done() => Err(StoreError::Row { row: row(), what: "its checksum is wrong".into() }),
            Some(_) | None => Ok(()),
        }
    }
}

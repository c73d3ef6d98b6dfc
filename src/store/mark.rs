//! How far the write-ahead log was written when the last commit was answered, in a small file beside it.
//!
//! SQLite takes a damaged frame for the end of its log: everything after it would be gone without a word. The mark says how many frames were
//! answered, so that a log which ends before them is named. It is written after each commit and never synced: a killed process leaves it true, a power
//! cut at worst older than the log, which is harmless.
//! In: the folder's files, as `https://sqlite.org/walformat.html` describes them. Cost: a read of 48 and a write of 20 bytes a commit; checking reads the
//! log once, at start. Not here: damage inside the store's own file (SQLite's check, and `store::sum`).

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 4] = b"RMK1";
const SIZE: usize = 20;
const WAL_HEADER: usize = 32;
const FRAME_HEADER: usize = 24;
/// Generations that a log may be ahead of its mark: the mark of a commit that was never answered is missing.
const AHEAD: u32 = 1 << 16;

/// The file beside `db`.
pub fn path(db: &Path) -> PathBuf {
    beside(db, "-mark")
}

/// The write-ahead log beside `db`.
pub fn log_path(db: &Path) -> PathBuf {
    beside(db, "-wal")
}

fn beside(db: &Path, what: &str) -> PathBuf {
    let mut name = db.as_os_str().to_owned();
    name.push(what);
    PathBuf::from(name)
}

/// A position in the log: its generation and how many frames of it hold commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Position {
    salts: [u8; 8],
    frames: u32,
}

/// Keeps the mark of an open store.
pub struct Mark {
    file: File,
    index: Option<File>,
    db: PathBuf,
    warned: bool,
}

impl Mark {
    /// Opens or makes the mark beside `db`. `None` when it can't be written: then the log is believed.
    pub fn open(db: &Path) -> Option<Self> {
        match OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path(db)) {
            Ok(file) => Some(Self { file, index: None, db: db.to_path_buf(), warned: false }),
            Err(error) => {
                tracing::warn!(%error, "no mark beside the store: damage at the end of its log would not be noticed");
                None
            }
        }
    }

    /// Notes that everything up to now is answered for.
    pub fn set(&mut self) {
        if self.index.is_none() {
            self.index = File::open(beside(&self.db, "-shm")).ok();
        }
        let position = self.index.as_mut().and_then(position_of);
        let written = match position {
            Some(position) => self.write(&encode(&position)),
            None => return,
        };
        if let Err(error) = written
            && !self.warned
        {
            self.warned = true;
            tracing::warn!(%error, "the mark beside the store is not written: damage at the end of its log would not be noticed");
        }
    }

    /// Says that the log is about to be emptied: nothing is expected in it.
    pub fn clear(&mut self) {
        if let Err(error) = self.write(&[0; SIZE]).and_then(|()| self.file.set_len(0)) {
            tracing::warn!(%error, "the mark beside the store could not be emptied");
        }
    }

    fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.file.seek(SeekFrom::Start(0))?;
        self.file.write_all(bytes)
    }
}

fn encode(position: &Position) -> [u8; SIZE] {
    let mut out = [0; SIZE];
    out[..4].copy_from_slice(MAGIC);
    out[4..12].copy_from_slice(&position.salts);
    out[12..16].copy_from_slice(&position.frames.to_le_bytes());
    let sum = crc(&out[..16]);
    out[16..].copy_from_slice(&sum.to_le_bytes());
    out
}

fn crc(bytes: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(bytes);
    crc.sum()
}

fn le(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |b| u32::from_le_bytes(*b))
}

fn be(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |b| u32::from_be_bytes(*b))
}

fn native(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |b| u32::from_ne_bytes(*b))
}

/// What the index of the log says: two copies of its header, equal when nobody is writing it.
fn position_of(index: &mut File) -> Option<Position> {
    let mut head = [0; 96];
    index.seek(SeekFrom::Start(0)).ok()?;
    index.read_exact(&mut head).ok()?;
    let (one, two) = head.split_at(48);
    if one != two || one[12] != 1 {
        return None;
    }
    let mut salts = [0; 8];
    salts.copy_from_slice(&one[32..40]);
    Some(Position { salts, frames: native(&one[16..20]) })
}

/// Pages that the log beside `db` holds now; `None` when nobody has it open.
pub fn pages(db: &Path) -> Option<u32> {
    position_of(&mut File::open(beside(db, "-shm")).ok()?).map(|p| p.frames)
}

/// What was noted; `Ok(None)` when nothing is expected in the log.
fn noted(db: &Path) -> Result<Option<Position>, String> {
    let mut bytes = Vec::new();
    match File::open(path(db)).and_then(|f| f.take(64).read_to_end(&mut bytes)) {
        Ok(_) => {}
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e.to_string()),
    }
    if bytes.iter().all(|b| *b == 0) {
        return Ok(None);
    }
    if bytes.len() != SIZE || bytes[..4] != *MAGIC || le(&bytes[16..]) != crc(&bytes[..16]) {
        return Err("it is not readable".into());
    }
    let mut salts = [0; 8];
    salts.copy_from_slice(&bytes[4..12]);
    Ok(Some(Position { salts, frames: le(&bytes[12..16]) }).filter(|p| p.frames > 0))
}

/// Empties the mark beside `db`, where there is one: this store will not be marked, and what is written now must not be held against an old mark.
pub fn forget(db: &Path) -> Option<Mark> {
    if let Ok(file) = OpenOptions::new().write(true).open(path(db))
        && let Err(error) = file.set_len(0)
    {
        tracing::warn!(%error, "the mark beside the store could not be emptied");
    }
    None
}

/// Whether `db` is missing although parts of a store lie beside it; which one.
pub fn orphaned(db: &Path) -> Option<PathBuf> {
    let filled = |p: &PathBuf| std::fs::metadata(p).is_ok_and(|m| m.len() > 0);
    [log_path(db), path(db)].into_iter().find(filled)
}

/// Whether the log beside `db` holds everything that was answered; else what is wrong with it. To be asked before SQLite opens the store.
pub fn verify(db: &Path) -> Result<(), String> {
    let position = match noted(db) {
        Ok(Some(position)) => position,
        Ok(None) => return Ok(()),
        Err(what) => {
            // the store may be whole: only its witness is gone
            tracing::warn!(file = %path(db).display(), what, "the mark beside the store is damaged: the end of its log can't be checked");
            return Ok(());
        }
    };
    let log = log_path(db);
    let name = log.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut bytes = Vec::new();
    match File::open(&log).and_then(|mut f| f.read_to_end(&mut bytes)) {
        Ok(_) => {}
        Err(e) if e.kind() == ErrorKind::NotFound => {}
        Err(e) => return Err(format!("its log {name} can't be read: {e}")),
    }
    let all = position.frames;
    let Some((header, frames)) = bytes.split_at_checked(WAL_HEADER) else {
        return Err(format!("its log {name} is missing or cut off, with {all} pages of answered writes"));
    };
    let little = match be(header) {
        0x377f_0682 => true,
        0x377f_0683 => false,
        _ => return Err(format!("the beginning of its log {name} is damaged")),
    };
    let mut sums = checksum((0, 0), &header[..24], little);
    if sums != (be(&header[24..]), be(&header[28..])) {
        return Err(format!("the beginning of its log {name} is damaged"));
    }
    let salts = &header[16..24];
    if *salts != position.salts {
        // the log began anew, which happens only after all of it went into the store's file
        let ahead = be(salts).wrapping_sub(be(&position.salts));
        return if (1..=AHEAD).contains(&ahead) { Ok(()) } else { Err(format!("its log {name} is that of another store or time")) };
    }
    let page = usize::try_from(be(&header[8..])).unwrap_or(0);
    if !(512..=65536).contains(&page) {
        return Err(format!("the beginning of its log {name} is damaged"));
    }
    let mut sound = 0;
    for frame in frames.chunks_exact(FRAME_HEADER + page) {
        let (head, body) = frame.split_at(FRAME_HEADER);
        sums = checksum(checksum(sums, &head[..8], little), body, little);
        if head[8..16] != *salts || sums != (be(&head[16..]), be(&head[20..])) {
            break;
        }
        sound += 1;
        if sound >= all {
            return Ok(());
        }
    }
    Err(format!("its log {name} is damaged at page {} of {all}", sound + 1))
}

/// The checksum of SQLite's log, over words of the byte order that its header names.
fn checksum(from: (u32, u32), bytes: &[u8], little: bool) -> (u32, u32) {
    let word = |b: &[u8]| if little { le(b) } else { be(b) };
    bytes.chunks_exact(8).fold(from, |(a, b), pair| {
        let a = a.wrapping_add(word(&pair[..4])).wrapping_add(b);
        let b = b.wrapping_add(word(&pair[4..])).wrapping_add(a);
        (a, b)
    })
}

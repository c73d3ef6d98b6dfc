//! Writing files so that a crash leaves the old one or the new one, never half of either; reading text files that people made.

use crate::types::plain;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

static NEXT: AtomicU64 = AtomicU64::new(0);

/// The text of a file without its byte order mark; what is packed or no UTF-8 is an error that says what it is.
pub fn read_text(path: &Path) -> io::Result<String> {
    let bytes = std::fs::read(path)?;
    let text = plain::text(&bytes).map_err(|why| io::Error::new(io::ErrorKind::InvalidData, why))?;
    Ok(text.to_string())
}

/// The same for files that are read line by line.
pub fn open_text(path: &Path, capacity: usize) -> io::Result<BufReader<File>> {
    let mut file = BufReader::with_capacity(capacity.max(64), File::open(path)?);
    let mark = plain::begins(file.fill_buf()?).map_err(|why| io::Error::new(io::ErrorKind::InvalidData, why))?;
    file.consume(mark);
    Ok(file)
}

/// Replaces `path` by `bytes`: written beside it, synced, renamed over it, and the folder synced. Folders above are made.
/// Cost: two syncs. The file that was there keeps its place until the new one is whole.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        Some(_) | None => Path::new("."),
    };
    let name = path.file_name().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the path names no file"))?;
    std::fs::create_dir_all(folder)?;
    let mut beside = std::ffi::OsString::from(".");
    beside.push(name);
    beside.push(format!(".{}-{}.tmp", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
    let beside = folder.join(beside);
    let written = (|| {
        let mut file = OpenOptions::new().write(true).create_new(true).open(&beside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&beside, path)
    })();
    match written {
        Ok(()) => File::open(folder)?.sync_all(),
        Err(e) => {
            // the half-written file is of no use; what matters is the first error
            drop(std::fs::remove_file(&beside));
            Err(e)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_read_without_its_mark_and_packed_files_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        write_atomic(&path, b"\xEF\xBB\xBF{}\n[]\n").unwrap();
        let lines: Vec<String> = open_text(&path, 64).unwrap().lines().map(|l| l.unwrap()).collect();
        assert_eq!((read_text(&path).unwrap().as_str(), lines), ("{}\n[]\n", vec!["{}".to_string(), "[]".to_string()]));
        write_atomic(&path, b"\x1F\x8B\x08").unwrap();
        for e in [read_text(&path).unwrap_err(), open_text(&path, 64).unwrap_err()] {
            assert!(e.to_string().contains("gunzip"), "{e}");
        }
    }

    #[test]
    fn replaces_and_leaves_nothing_beside() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/er/file.json");
        write_atomic(&path, b"one").unwrap();
        write_atomic(&path, b"two").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn a_failure_leaves_the_old_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("folder");
        std::fs::create_dir(&path).unwrap();
        assert!(write_atomic(&path, b"x").is_err(), "a folder is not replaced by a file");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        assert!(write_atomic(Path::new("/"), b"x").is_err());
    }
}

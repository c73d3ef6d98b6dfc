//! Manifests from files: one file or every manifest file of a folder, all faults named by file and place.

use crate::error::Error;
use crate::types::Fault;
use crate::types::document::{self, Format};
use crate::types::manifest::Manifest;
use crate::types::manifest_check::{Rules, check_all};
use std::path::{Path, PathBuf};

/// Largest number of files read from a folder.
const MAX_FILES: usize = 100_000;

/// What was read.
#[derive(Clone, Debug, Default)]
pub struct FromFiles {
    /// Checked manifests, in the order of the files' names.
    pub manifests: Vec<Manifest>,
    /// Faults, each with its file; the other manifests are good.
    pub faults: Vec<Fault>,
    /// Warnings, each with its file.
    pub warnings: Vec<Fault>,
}

fn collect(folder: &Path, out: &mut Vec<PathBuf>) -> std::io::Result<()> {
    let mut entries: Vec<PathBuf> = std::fs::read_dir(folder)?.flatten().map(|e| e.path()).collect();
    entries.sort();
    for path in entries {
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        if name.starts_with('.') || out.len() >= MAX_FILES {
            continue;
        }
        if path.is_dir() {
            collect(&path, out)?;
        } else if Format::of_name(&name).is_some() {
            out.push(path);
        }
    }
    Ok(())
}

/// Reads `path`, a manifest file (JSON, JSONL, YAML) or a folder of them.
pub fn read(path: &Path, rules: &Rules) -> Result<FromFiles, Error> {
    let place = path.display().to_string();
    let fault = |e: std::io::Error| Error::invalid_at(&place, "a readable manifest file or folder", e.to_string());
    let mut files = Vec::new();
    if path.is_dir() {
        collect(path, &mut files).map_err(fault)?;
        if files.is_empty() {
            return Err(Error::invalid_at(&place, "at least one .yaml, .yml, .json or .jsonl file", "the folder has none"));
        }
    } else {
        files.push(path.to_path_buf());
    }
    let mut out = FromFiles::default();
    for file in files {
        let shown = file.display().to_string();
        let bytes = std::fs::read(&file).map_err(|e| Error::invalid_at(&shown, "a readable file", e.to_string()))?;
        let one = read_text(&shown, &bytes, rules);
        out.manifests.extend(one.manifests);
        out.faults.extend(one.faults);
        out.warnings.extend(one.warnings);
    }
    Ok(out)
}

/// Reads the manifests of one file's content; `name` says the format and stands in faults.
pub fn read_text(name: &str, bytes: &[u8], rules: &Rules) -> FromFiles {
    let mut out = FromFiles::default();
    let named = |place: String, f: Fault| Fault { pointer: format!("{place}{}", f.pointer), ..f };
    let documents = match document::read(bytes, Format::of_name(name)) {
        Ok(documents) => documents,
        Err(faults) => {
            out.faults.extend(faults.into_iter().map(|f| named(format!("{name} "), f)));
            return out;
        }
    };
    let checked = check_all(&documents, rules);
    for (at, faults) in checked.faulty {
        out.faults.extend(faults.into_iter().map(|f| named(format!("{name}:{at} "), f)));
    }
    for checked in checked.manifests {
        let agent = checked.manifest.key();
        out.warnings.extend(checked.warnings.into_iter().map(|f| named(format!("{name} ({agent}) "), f)));
        out.manifests.push(checked.manifest);
    }
    out
}

//! Vectors that were computed elsewhere, as if they were a model: how a remote embedding model is compared without calling it.
//!
//! In: JSON lines `{"text": …, "vector": […]}`, or `NAME.npy` (f4, f8 or f2, rows × dimensions) with its texts beside it in `NAME.txt.jsonl`
//! (one JSON string a line). Out: an encoder that knows those texts and no others.
//! Invariant: a text without a vector is an error that says so; vectors are scaled to length 1; all have one dimension.

use super::fp32::normalised;
use super::{Embed, EmbedError, Embedding, ModelInfo};
use crate::config::files::read_text;
use crate::types::{Lang, plain};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

/// Known vectors by text.
pub struct Precomputed {
    info: ModelInfo,
    by_text: HashMap<Arc<str>, Arc<[f32]>>,
}

#[derive(Deserialize)]
struct Row {
    text: String,
    #[serde(alias = "embedding")]
    vector: Vec<f32>,
}

fn fault(path: &Path, why: impl ToString) -> EmbedError {
    EmbedError::Missing(format!("{}: {}", path.display(), why.to_string()))
}

/// Rows of an npy file.
fn npy(bytes: &[u8]) -> Result<Vec<Vec<f32>>, String> {
    let magic = bytes.get(..6).filter(|m| *m == b"\x93NUMPY").map(|_| bytes.get(6).copied().unwrap_or(0));
    let (length, start) = match (magic, bytes.get(8..12)) {
        (Some(1), Some(n)) => (usize::from(u16::from_le_bytes([n[0], n[1]])), 10),
        (Some(2 | 3), Some(n)) => (u32::from_le_bytes([n[0], n[1], n[2], n[3]]) as usize, 12),
        _ => return Err("not an npy file".into()),
    };
    let header = bytes.get(start..start + length).and_then(|h| std::str::from_utf8(h).ok()).ok_or("its header is cut off")?;
    let after = |key: &str| header.split_once(key).map(|(_, rest)| rest.trim_start_matches([':', ' ', '\'', '"']));
    let kind: String = after("'descr'").unwrap_or("").chars().take_while(|c| *c != '\'').collect();
    if after("'fortran_order'").is_some_and(|r| r.starts_with("True")) {
        return Err("fortran order; save it in C order".into());
    }
    let shape: Vec<usize> = after("'shape'")
        .and_then(|r| r.strip_prefix('(')?.split(')').next())
        .map(|r| r.split(',').filter_map(|n| n.trim().parse().ok()).collect())
        .unwrap_or_default();
    let [rows, dim] = shape.as_slice() else { return Err(format!("its shape is {shape:?}; rows × dimensions are asked")) };
    let data = bytes.get(start + length..).unwrap_or_default();
    let values: Vec<f32> = match kind.as_str() {
        "<f4" => data.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
        "<f8" => data.as_chunks::<8>().0.iter().map(|b| f64::from_le_bytes(*b) as f32).collect(),
        "<f2" => data.as_chunks::<2>().0.iter().map(|b| half::f16::from_le_bytes(*b).to_f32()).collect(),
        other => return Err(format!("values of kind {other:?}; <f4, <f8 and <f2 can be read")),
    };
    if *dim == 0 || values.len() != rows * dim {
        return Err(format!("{} values where {rows} × {dim} were announced", values.len()));
    }
    Ok(values.chunks_exact(*dim).map(<[f32]>::to_vec).collect())
}

impl Precomputed {
    /// Reads vectors. `lang` = the languages they are good for.
    pub fn read(path: &Path, lang: Lang) -> Result<Self, EmbedError> {
        let bytes = std::fs::read(path).map_err(|e| fault(path, e))?;
        let mut rows: Vec<(String, Vec<f32>)> = Vec::new();
        if path.extension().is_some_and(|e| e == "npy") {
            let beside = path.with_extension("txt.jsonl");
            let texts = read_text(&beside).map_err(|e| fault(&beside, format!("the texts of the rows: {e}")))?;
            let texts: Vec<String> = texts
                .lines()
                .filter(|l| !l.trim().is_empty())
                .map(|l| serde_json::from_str(l).map_err(|e| fault(&beside, format!("one JSON string a line: {e}"))))
                .collect::<Result<_, _>>()?;
            let vectors = npy(&bytes).map_err(|why| fault(path, why))?;
            if texts.len() != vectors.len() {
                return Err(fault(&beside, format!("{} texts for {} rows", texts.len(), vectors.len())));
            }
            rows.extend(texts.into_iter().zip(vectors));
        } else {
            let text = plain::text(&bytes).map_err(|why| fault(path, why))?;
            for (i, line) in text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()) {
                let row: Row = serde_json::from_str(line)
                    .map_err(|e| fault(path, format!("line {}: an object with text and vector was expected: {e}", i + 1)))?;
                rows.push((row.text, row.vector));
            }
        }
        let dim = rows.first().map_or(0, |(_, v)| v.len());
        let mut by_text = HashMap::with_capacity(rows.len());
        for (i, (text, vector)) in rows.into_iter().enumerate() {
            if vector.len() != dim {
                return Err(fault(path, format!("row {} has {} dimensions, the first has {dim}", i + 1, vector.len())));
            }
            let unit = normalised(vector).ok_or_else(|| fault(path, format!("row {} is zero or not a number", i + 1)))?;
            let (text, unit): (Arc<str>, Arc<[f32]>) = (Arc::from(text.trim()), Arc::from(unit));
            if by_text.insert(text.clone(), unit.clone()).is_some_and(|before: Arc<[f32]>| before != unit) {
                let shown: String = text.chars().take(40).collect();
                return Err(fault(path, format!("row {}: {shown:?} stands in it twice with different vectors", i + 1)));
            }
        }
        if by_text.is_empty() {
            return Err(fault(path, "no vector in it"));
        }
        let name = path.file_stem().map_or_else(|| "vectors".into(), |s| s.to_string_lossy().into_owned());
        let digest = hex::encode(Sha256::digest(&bytes));
        let fingerprint = format!("{name}/precomputed/{}", digest.get(..16).unwrap_or(&digest)).into();
        let info = ModelInfo { name: name.into(), lang, dim, max_tokens: usize::MAX, precision: "precomputed", fingerprint, proven: false };
        Ok(Self { info, by_text })
    }

    /// Texts it knows.
    pub fn len(&self) -> usize {
        self.by_text.len()
    }

    /// Whether it knows none; never.
    pub fn is_empty(&self) -> bool {
        self.by_text.is_empty()
    }
}

impl Embed for Precomputed {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn embed(&self, texts: &[&str]) -> Result<Vec<Embedding>, EmbedError> {
        let one = |text: &&str| {
            let vector = self.by_text.get(text.trim()).cloned().ok_or_else(|| {
                let shown: String = text.chars().take(40).collect();
                EmbedError::Missing(format!(
                    "{} has no vector for {shown:?}; `reach eval models --texts FILE` writes every text that is needed",
                    self.info.name
                ))
            })?;
            Ok(Embedding { vector, tokens: 0, truncated: false })
        };
        texts.iter().map(one).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn put(folder: &Path, name: &str, bytes: &[u8]) -> std::path::PathBuf {
        let path = folder.join(name);
        std::fs::File::create(&path).unwrap().write_all(bytes).unwrap();
        path
    }

    #[test]
    fn json_lines_and_npy_give_the_same_vectors() {
        let folder = tempfile::tempdir().unwrap();
        let lines =
            put(folder.path(), "a.jsonl", "{\"text\":\"退款\",\"vector\":[3,4]}\n{\"text\":\"b\",\"embedding\":[0,2]}\n".as_bytes());
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2), }\n";
        bytes.extend(u16::try_from(header.len()).unwrap().to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend([3.0f32, 4.0, 0.0, 2.0].iter().flat_map(|v| v.to_le_bytes()));
        let rows = put(folder.path(), "b.npy", &bytes);
        put(folder.path(), "b.txt.jsonl", "\"退款\"\n\"b\"\n".as_bytes());
        let (a, b) = (Precomputed::read(&lines, Lang::Mixed).unwrap(), Precomputed::read(&rows, Lang::Mixed).unwrap());
        for text in ["退款", " b "] {
            assert_eq!(a.embed(&[text]).unwrap(), b.embed(&[text]).unwrap());
        }
        assert_eq!(&*a.embed(&["退款"]).unwrap()[0].vector, &[0.6, 0.8]);
        assert!(a.embed(&["?"]).unwrap_err().to_string().contains("--texts"));
        assert_ne!(a.info().fingerprint, b.info().fingerprint);
    }

    #[test]
    fn mixed_dimensions_and_broken_files_are_refused() {
        // PEERS I13
        let folder = tempfile::tempdir().unwrap();
        let mixed = put(folder.path(), "m.jsonl", b"{\"text\":\"a\",\"vector\":[1,0]}\n{\"text\":\"b\",\"vector\":[1,0,0]}\n");
        assert!(Precomputed::read(&mixed, Lang::Mixed).err().unwrap().to_string().contains("3 dimensions"));
        let twice = put(folder.path(), "t.jsonl", b"{\"text\":\"refund\",\"vector\":[1,0]}\n{\"text\":\"refund \",\"vector\":[0,1]}\n");
        assert!(Precomputed::read(&twice, Lang::Mixed).err().unwrap().to_string().contains("row 2: \"refund\""));
        let same = put(folder.path(), "s.jsonl", b"\xEF\xBB\xBF{\"text\":\"a\",\"vector\":[1,0]}\n{\"text\":\"a\",\"vector\":[2,0]}\n");
        assert_eq!(Precomputed::read(&same, Lang::Mixed).unwrap().len(), 1);
        let packed = put(folder.path(), "p.jsonl", b"\x1F\x8B\x08\x00");
        assert!(Precomputed::read(&packed, Lang::Mixed).err().unwrap().to_string().contains("gunzip"));
        for bad in [&b"\x93NUMPY"[..], b"", b"\x93NUMPY\x01\x00\xff\xff{}", b"\x93NUMPY\x01\x00\x02\x00{}"] {
            let path = put(folder.path(), "bad.npy", bad);
            put(folder.path(), "bad.txt.jsonl", b"\"a\"\n");
            assert!(Precomputed::read(&path, Lang::Mixed).is_err());
        }
    }
}

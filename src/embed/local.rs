//! A model from any folder with `model.safetensors`, `tokenizer.json` and `config.json`: BERT or XLM-RoBERTa, pooled by its first token.
//!
//! In: a folder. Out: an encoder. What the catalogue says of its own models is read from `config.json` here.
//! Its name begins with `local-`: it never passes for the model of the catalogue whose calibration it may not deserve.
//! Invariant: a model that is pooled in another way is refused by name, never run as if it were not. Nothing is written.

use super::bundle::Bundle;
use super::cache::{CONFIG, Files, Sums, TOKENIZER, WEIGHTS, hex_sha256};
use super::catalog::{Arch, ModelSpec, Pooling};
use super::fp32::Fp32;
use super::int8::Int8;
use super::models::Precision;
use super::{Embed, EmbedError};
use crate::types::Lang;
use std::path::Path;
use std::sync::Arc;

/// Longest input that is read of a model without an entry in the catalogue.
const MAX_TOKENS: usize = 512;

fn damaged(file: &Path, why: impl ToString) -> EmbedError {
    EmbedError::Damaged { file: file.display().to_string(), why: why.to_string() }
}

/// Reads a model out of `folder`.
pub fn read(folder: &Path, lang: Lang) -> Result<Bundle, EmbedError> {
    let file = |name: &str| std::fs::read(folder.join(name)).map_err(|e| damaged(&folder.join(name), e));
    let (weights, tokenizer, config) = (file(WEIGHTS)?, file(TOKENIZER)?, file(CONFIG)?);
    let shown = folder.join(CONFIG);
    let shape: serde_json::Value = serde_json::from_slice(&config).map_err(|e| damaged(&shown, e))?;
    let (arch, first) = match shape.get("model_type").and_then(serde_json::Value::as_str) {
        Some("bert") => (Arch::Bert, 0),
        Some("xlm-roberta") => (Arch::XlmRoberta, 2),
        other => return Err(damaged(&shown, format!("model_type is {other:?}; bert and xlm-roberta can be run"))),
    };
    let number = |key: &str| {
        let found = shape.get(key).and_then(serde_json::Value::as_u64).and_then(|n| usize::try_from(n).ok());
        found.ok_or_else(|| damaged(&shown, format!("it has no number {key}")))
    };
    let pooling = folder.join("1_Pooling").join(CONFIG);
    if let Ok(text) = std::fs::read_to_string(&pooling) {
        let pooled: serde_json::Value = serde_json::from_str(&text).map_err(|e| damaged(&pooling, e))?;
        if pooled.get("pooling_mode_cls_token").and_then(serde_json::Value::as_bool) == Some(false) {
            return Err(damaged(&pooling, "the model is not pooled by its first token; compute its vectors elsewhere and compare those"));
        }
    }
    let name: String = folder
        .canonicalize()
        .ok()
        .and_then(|f| f.file_name().map(|n| format!("local-{}", n.to_string_lossy().to_lowercase())))
        .unwrap_or_else(|| "local-model".into());
    let spec = ModelSpec {
        name,
        arch,
        lang,
        dim: number("hidden_size")?,
        max_tokens: number("max_position_embeddings")?.saturating_sub(first).min(MAX_TOKENS),
        pooling: Pooling::Cls,
        query_instruction: String::new(),
        lowercase: false,
        licence: "unknown".into(),
        hub: None,
        maven: None,
    };
    let sums = [(WEIGHTS, &weights), (TOKENIZER, &tokenizer), (CONFIG, &config)];
    let sums = sums.iter().map(|(n, data)| ((*n).to_string(), hex_sha256(data))).collect();
    let files = Files { weights, tokenizer, config, folder: folder.to_path_buf(), sums: Sums { source: "folder".into(), files: sums } };
    Bundle::of(&spec, files)
}

/// Loads a model out of `folder`.
pub fn load(folder: &Path, lang: Lang, precision: Precision) -> Result<Arc<dyn Embed>, EmbedError> {
    let bundle = read(folder, lang)?;
    Ok(match precision {
        Precision::Int8 => Arc::new(Int8::of(bundle)?),
        Precision::Fp32 => Arc::new(Fp32::load(bundle)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_not_be_run_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            std::io::Write::write_all(&mut std::fs::File::create(folder.path().join(name)).unwrap(), text.as_bytes())
        };
        let fails = || read(folder.path(), Lang::En).err().unwrap().to_string();
        assert!(fails().contains(WEIGHTS));
        put(WEIGHTS, "").unwrap();
        put(TOKENIZER, "{}").unwrap();
        put(CONFIG, r#"{"model_type": "gpt2"}"#).unwrap();
        assert!(fails().contains("gpt2"));
        std::fs::create_dir(folder.path().join("1_Pooling")).unwrap();
        put("1_Pooling/config.json", r#"{"pooling_mode_cls_token": false}"#).unwrap();
        put(CONFIG, r#"{"model_type": "bert", "hidden_size": 8, "max_position_embeddings": 512}"#).unwrap();
        assert!(fails().contains("first token"));
    }
}

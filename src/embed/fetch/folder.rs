//! Fills a stage from a folder that holds a model as safetensors or as ONNX fp32. Also the last step of the Maven source.

use crate::embed::cache::{CONFIG, Stage, TOKENIZER, WEIGHTS};
use crate::embed::catalog::{Arch, ModelSpec};
use crate::embed::onnx;
use std::fs;
use std::path::{Path, PathBuf};

/// Takes weights, tokenizer and configuration out of `folder`. Returns where they came from, in words.
pub fn fill(folder: &Path, spec: &ModelSpec, stage: &Stage) -> Result<String, String> {
    if !folder.is_dir() {
        return Err(format!("{} is not a folder", folder.display()));
    }
    let tokenizer = read(&folder.join(TOKENIZER))?;
    check_tokenizer(&tokenizer)?;
    put(stage, TOKENIZER, &tokenizer)?;

    let safetensors = folder.join(WEIGHTS);
    if safetensors.is_file() {
        let config = read(&folder.join(CONFIG))?;
        check_dim(&config, spec)?;
        let weights = read(&safetensors)?;
        ::safetensors::SafeTensors::deserialize(&weights).map_err(|e| format!("{WEIGHTS} can't be read: {e}"))?;
        put(stage, CONFIG, &config)?;
        put(stage, WEIGHTS, &weights)?;
        return Ok(format!("folder {}", folder.display()));
    }
    let onnx = [folder.join("model.onnx"), folder.join("onnx").join("model.onnx")].into_iter().find(|p| p.is_file());
    let onnx: PathBuf = onnx.ok_or_else(|| format!("it has neither {WEIGHTS} nor model.onnx"))?;
    fill_from_onnx(read(&onnx)?, spec, stage)?;
    Ok(format!("folder {} (ONNX)", folder.display()))
}

/// Converts an ONNX export and puts weights and configuration on the stage.
pub fn fill_from_onnx(file: Vec<u8>, spec: &ModelSpec, stage: &Stage) -> Result<(), String> {
    if spec.arch != Arch::Bert {
        return Err("only BERT models can be imported from ONNX; use a folder with model.safetensors".into());
    }
    let imported = onnx::import(file.into())?;
    let config = serde_json::to_vec_pretty(&imported.config).map_err(|e| e.to_string())?;
    check_dim(&config, spec)?;
    put(stage, CONFIG, &config)?;
    safetensors::serialize_to_file(imported.tensors, None, &stage.dir().join(WEIGHTS))
        .map_err(|e| format!("{WEIGHTS} can't be written: {e}"))
}

/// Whether `data` is a tokenizer.
pub fn check_tokenizer(data: &[u8]) -> Result<(), String> {
    tokenizers::Tokenizer::from_bytes(data).map(|_| ()).map_err(|e| format!("{TOKENIZER} can't be read: {e}"))
}

/// Whether `config.json` fits the catalogue.
pub fn check_dim(config: &[u8], spec: &ModelSpec) -> Result<(), String> {
    let config: serde_json::Value = serde_json::from_slice(config).map_err(|e| format!("{CONFIG} can't be read: {e}"))?;
    match config.get("hidden_size").and_then(serde_json::Value::as_u64) {
        Some(dim) if dim == spec.dim as u64 => Ok(()),
        Some(dim) => Err(format!("its vectors have {dim} dimensions, those of `{}` have {}", spec.name, spec.dim)),
        None => Err(format!("{CONFIG} has no hidden_size")),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|e| format!("{} can't be read: {e}", path.file_name().unwrap_or_default().to_string_lossy()))
}

fn put(stage: &Stage, file: &str, data: &[u8]) -> Result<(), String> {
    stage.put(file, data).map_err(|e| format!("{file} can't be written: {e}"))
}

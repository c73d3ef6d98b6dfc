//! How a model is named on the command line, and how it is loaded.
//!
//! `NAME` of the catalogue, a folder with `model.safetensors`, or vectors from elsewhere (`.jsonl`, `.npy`); then `@f32` or `@int8`, then `:zh`, `:en`
//! (folders and vectors; both languages when left out). Several joined by `+` run side by side, each text going to the model of its language.

use crate::embed::cache::{Cache, WEIGHTS};
use crate::embed::catalog::Catalog;
use crate::embed::fetch::{FetchConfig, Fetcher, Progress};
use crate::embed::models::{Models, Precision, load_one};
use crate::embed::precomputed::Precomputed;
use crate::embed::worker::WorkerConfig;
use crate::embed::{Embed, EmbedError, local};
use crate::types::Lang;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

/// Where an arm comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// By its name in the catalogue.
    Catalog(String),
    /// Out of a folder.
    Folder(PathBuf),
    /// Vectors from elsewhere.
    Vectors(PathBuf),
}

/// One arm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArmSpec {
    /// Where it comes from.
    pub what: What,
    /// Arithmetic.
    pub precision: Precision,
    /// Language it is used for.
    pub lang: Lang,
}

/// One model, or several side by side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// As it was written.
    pub name: String,
    /// Its arms.
    pub arms: Vec<ArmSpec>,
}

fn arm(text: &str) -> Result<ArmSpec, String> {
    let (rest, lang) = match text.rsplit_once(':') {
        Some((rest, "zh")) => (rest, Lang::Zh),
        Some((rest, "en")) => (rest, Lang::En),
        Some(_) | None => (text, Lang::Mixed),
    };
    let (rest, precision) = match rest.rsplit_once('@') {
        Some((rest, "f32" | "fp32")) => (rest, Precision::Fp32),
        Some((rest, "int8")) => (rest, Precision::Int8),
        Some((_, other)) => return Err(format!("{text}: {other:?} is no precision; write @f32 or @int8")),
        None => (rest, Precision::Int8),
    };
    if rest.is_empty() {
        return Err("an empty name; write a name of the catalogue, a folder, or a file of vectors".into());
    }
    let path = PathBuf::from(rest);
    let vectors = rest.ends_with(".jsonl") || rest.ends_with(".npy");
    let what = if vectors {
        What::Vectors(path)
    } else if rest.contains('/') || rest.starts_with('.') {
        What::Folder(path)
    } else {
        What::Catalog(rest.to_string())
    };
    Ok(ArmSpec { what, precision, lang })
}

impl FromStr for Spec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let arms = text.split('+').map(|t| arm(t.trim())).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { name: text.trim().to_string(), arms })
    }
}

impl Spec {
    /// Loads it; models of the catalogue that are not here are fetched when `fetch` is given. Blocks. Returns the encoders and the bytes of their weights.
    pub fn load(&self, dir: &Path, fetch: Option<&FetchConfig>, progress: &dyn Progress) -> Result<(Vec<Arc<dyn Embed>>, u64), EmbedError> {
        let catalog = Catalog::shipped();
        let cache = Cache::new(dir);
        let mut bytes = 0;
        let mut size = |path: &Path| bytes += std::fs::metadata(path).map_or(0, |m| m.len());
        let mut arms: Vec<Arc<dyn Embed>> = Vec::new();
        for arm in &self.arms {
            arms.push(match &arm.what {
                What::Catalog(name) => {
                    let known = || catalog.models.iter().map(|m| m.name.as_str()).collect::<Vec<_>>().join(", ");
                    let spec = catalog.get(name).ok_or_else(|| {
                        EmbedError::Missing(format!(
                            "no model is called `{name}`: the catalogue has {}; a folder is written with a / in it",
                            known()
                        ))
                    })?;
                    if let Some(fetch) = fetch {
                        Fetcher::new(catalog.clone(), cache.clone(), fetch.clone()).ensure_present(name, progress)?;
                    }
                    size(&cache.path(name).join(WEIGHTS));
                    load_one(spec, &cache, arm.precision)?
                }
                What::Folder(folder) => {
                    size(&folder.join(WEIGHTS));
                    local::load(folder, arm.lang, arm.precision)?
                }
                What::Vectors(path) => {
                    size(path);
                    Arc::new(Precomputed::read(path, arm.lang)?)
                }
            });
        }
        Ok((arms, bytes))
    }
}

/// Models out of loaded encoders, with the shipped worker.
pub fn models(arms: Vec<Arc<dyn Embed>>) -> Result<Models, EmbedError> {
    Models::from_arms(arms, &WorkerConfig::default(), 64 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_and_how() {
        let spec: Spec = "bge-small-zh-v1.5+bge-small-en-v1.5@f32".parse().unwrap();
        assert_eq!(
            spec.arms[0],
            ArmSpec { what: What::Catalog("bge-small-zh-v1.5".into()), precision: Precision::Int8, lang: Lang::Mixed }
        );
        assert_eq!(spec.arms[1].precision, Precision::Fp32);
        let spec: Spec = "./my/model@int8:en".parse().unwrap();
        assert_eq!((&spec.arms[0].what, spec.arms[0].lang), (&What::Folder("./my/model".into()), Lang::En));
        let spec: Spec = "remote.npy:zh".parse().unwrap();
        assert_eq!(spec.arms[0].what, What::Vectors("remote.npy".into()));
        assert!("a@bf16".parse::<Spec>().is_err() && "a++b".parse::<Spec>().is_err());
    }
}

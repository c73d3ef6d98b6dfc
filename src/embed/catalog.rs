//! The catalogue of models, `models/catalog.toml`: what each model is and where it can be had.
//!
//! In: TOML text. Out: checked [`ModelSpec`]s, or every fault at once with its key path.
//! Invariant: a checksum is either what was seen or [`Pin::Unknown`]; names are unique and safe as folder names.
//! Not here: fetching (`fetch`), the files on disk (`cache`).

use crate::types::{Fault, Lang};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

/// The catalogue as shipped.
pub const SHIPPED: &str = include_str!("../../models/catalog.toml");

/// Architecture of an encoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arch {
    /// BERT.
    Bert,
    /// XLM-RoBERTa.
    XlmRoberta,
}

/// How a text's vector is taken from the token vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// The vector of the first token.
    Cls,
}

/// A checksum or a revision: seen, or not yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pin {
    /// As seen; lower-case hex for checksums.
    Known(String),
    /// Never seen by us: the first pull pins what it got.
    Unknown,
}

impl Pin {
    /// Whether `seen` contradicts the pin.
    pub fn contradicts(&self, seen: &str) -> bool {
        match self {
            Self::Known(pinned) => !pinned.eq_ignore_ascii_case(seen),
            Self::Unknown => false,
        }
    }
}

/// A repository on the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubSource {
    /// `owner/name`.
    pub repo: String,
    /// Commit.
    pub revision: Pin,
    /// Checksums of its files.
    pub sha256: BTreeMap<String, Pin>,
}

/// A Maven artifact with an ONNX fp32 export inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MavenSource {
    /// `group:artifact:version`.
    pub artifact: String,
    /// Checksums: `artifact.jar`, `model.onnx`, `tokenizer.json`.
    pub sha256: BTreeMap<String, Pin>,
}

/// One model of the catalogue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelSpec {
    /// Name, also the folder name in the cache.
    pub name: String,
    /// Architecture.
    pub arch: Arch,
    /// Languages it speaks.
    pub lang: Lang,
    /// Length of its vectors.
    pub dim: usize,
    /// Longest input in tokens.
    pub max_tokens: usize,
    /// Pooling.
    pub pooling: Pooling,
    /// What its makers put before a query in retrieval; empty = nothing. Not applied here.
    pub query_instruction: String,
    /// Whether texts are folded to lower case before they are tokenised.
    pub lowercase: bool,
    /// Licence of the weights.
    pub licence: String,
    /// On the hub.
    pub hub: Option<HubSource>,
    /// As a Maven artifact.
    pub maven: Option<MavenSource>,
}

/// The checked catalogue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Catalog {
    /// Models, in the order of the file.
    pub models: Vec<ModelSpec>,
}

impl Catalog {
    /// The catalogue that ships with the program. A test proves that it has no faults.
    pub fn shipped() -> Self {
        Self::parse(SHIPPED).unwrap_or(Self { models: Vec::new() })
    }

    /// Reads a catalogue; reports every fault it finds.
    pub fn parse(text: &str) -> Result<Self, Vec<Fault>> {
        let raw: RawCatalog = toml::from_str(text).map_err(|e| {
            vec![Fault::new("", "a catalogue in TOML with the documented keys", e.to_string().trim_end().replace('\n', " | "))]
        })?;
        let mut faults = Vec::new();
        if raw.format != Some(1) {
            faults.push(Fault::new("format", "1", "this program reads format 1"));
        }
        let mut names = BTreeSet::new();
        let mut models = Vec::new();
        for (i, m) in raw.model.into_iter().enumerate() {
            let at = format!("model[{i}]");
            if let Some(name) = &m.name
                && !names.insert(name.clone())
            {
                faults.push(Fault::new(format!("{at}.name"), "a name that no other model has", format!("rename one of the `{name}`")));
            }
            models.extend(check_model(&at, m, &mut faults));
        }
        if faults.is_empty() { Ok(Self { models }) } else { Err(faults) }
    }

    /// The model called `name`.
    pub fn get(&self, name: &str) -> Option<&ModelSpec> {
        self.models.iter().find(|m| m.name == name)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawCatalog {
    format: Option<u32>,
    #[serde(default)]
    model: Vec<RawModel>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawModel {
    name: Option<String>,
    arch: Option<String>,
    languages: Option<Vec<String>>,
    dim: Option<usize>,
    max_tokens: Option<usize>,
    pooling: Option<String>,
    query_instruction: Option<String>,
    lowercase: Option<bool>,
    licence: Option<String>,
    hub: Option<RawHub>,
    maven: Option<RawMaven>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawHub {
    repo: Option<String>,
    revision: Option<String>,
    #[serde(default)]
    sha256: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawMaven {
    artifact: Option<String>,
    #[serde(default)]
    sha256: BTreeMap<String, String>,
}

fn check_model(at: &str, m: RawModel, faults: &mut Vec<Fault>) -> Option<ModelSpec> {
    let before = faults.len();
    let mut need = |key: &str, ok: bool, expected: &str| {
        if !ok {
            faults.push(Fault::new(format!("{at}.{key}"), expected, "see the head of models/catalog.toml"));
        }
    };
    let name = m.name.unwrap_or_default();
    need("name", is_model_name(&name), "a-z, 0-9, '-', '.' and '_', beginning with a letter or digit, at most 64 characters");
    let arch = match m.arch.as_deref() {
        Some("bert") => Some(Arch::Bert),
        Some("xlm-roberta") => Some(Arch::XlmRoberta),
        Some(_) | None => None,
    };
    need("arch", arch.is_some(), "`bert` or `xlm-roberta`");
    let languages = m.languages.unwrap_or_default();
    let lang = match languages.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["zh"] => Some(Lang::Zh),
        ["en"] => Some(Lang::En),
        ["zh", "en"] | ["en", "zh"] => Some(Lang::Mixed),
        _ => None,
    };
    need("languages", lang.is_some(), "a list of `zh`, `en` or both");
    let dim = m.dim.unwrap_or(0);
    need("dim", (1..=8192).contains(&dim), "a number in 1..=8192");
    let max_tokens = m.max_tokens.unwrap_or(0);
    need("max_tokens", (8..=32_768).contains(&max_tokens), "a number in 8..=32768");
    let pooling = (m.pooling.as_deref() == Some("cls")).then_some(Pooling::Cls);
    need("pooling", pooling.is_some(), "`cls`");
    let licence = m.licence.unwrap_or_default();
    need("licence", !licence.is_empty(), "the licence of the weights");
    need("hub", m.hub.is_some() || m.maven.is_some(), "at least one source, `hub` or `maven`");
    let hub = m.hub.map(|h| {
        let repo = h.repo.unwrap_or_default();
        need("hub.repo", repo.split('/').filter(|p| !p.is_empty()).count() == 2, "`owner/name`");
        let revision = pin(h.revision.as_deref().unwrap_or("unknown"));
        HubSource { repo, revision, sha256: checksums("hub", h.sha256, &mut need) }
    });
    let maven = m.maven.map(|v| {
        let artifact = v.artifact.unwrap_or_default();
        let plain = artifact.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':'));
        need("maven.artifact", plain && artifact.split(':').filter(|p| !p.is_empty()).count() == 3, "`group:artifact:version`");
        MavenSource { artifact, sha256: checksums("maven", v.sha256, &mut need) }
    });
    if faults.len() > before {
        return None;
    }
    Some(ModelSpec {
        name,
        arch: arch?,
        lang: lang?,
        dim,
        max_tokens,
        pooling: pooling?,
        query_instruction: m.query_instruction.unwrap_or_default(),
        lowercase: m.lowercase.unwrap_or(false),
        licence,
        hub,
        maven,
    })
}

fn checksums(source: &str, raw: BTreeMap<String, String>, need: &mut impl FnMut(&str, bool, &str)) -> BTreeMap<String, Pin> {
    raw.into_iter()
        .map(|(file, text)| {
            let ok = text == "unknown" || (text.len() == 64 && text.chars().all(|c| c.is_ascii_hexdigit()));
            need(&format!("{source}.sha256.\"{file}\""), ok, "64 hex digits, or `unknown`");
            (file, pin(&text))
        })
        .collect()
}

fn pin(text: &str) -> Pin {
    if text == "unknown" { Pin::Unknown } else { Pin::Known(text.to_ascii_lowercase()) }
}

/// Whether `name` can name a model: it becomes a folder name, so nothing that could leave the cache folder.
pub fn is_model_name(name: &str) -> bool {
    name.len() <= 64
        && name.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.' | '_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_catalogue_has_no_faults_and_the_seven_models() {
        let catalog = Catalog::parse(SHIPPED).unwrap();
        let dims: Vec<_> = catalog.models.iter().map(|m| (m.name.as_str(), m.dim)).collect();
        assert_eq!(
            dims,
            [
                ("bge-small-zh-v1.5", 512),
                ("bge-base-zh-v1.5", 768),
                ("bge-large-zh-v1.5", 1024),
                ("bge-small-en-v1.5", 384),
                ("bge-base-en-v1.5", 768),
                ("bge-large-en-v1.5", 1024),
                ("bge-m3", 1024)
            ]
        );
        assert_eq!(catalog.get("bge-m3").unwrap().lang, Lang::Mixed);
        assert!(catalog.get("bge-small-zh-v1.5").unwrap().maven.is_some());
        assert_eq!(Catalog::shipped(), catalog);
    }

    #[test]
    fn every_fault_is_named_with_its_key() {
        let text = r#"
            format = 2
            [[model]]
            name = "../x"
            arch = "gpt"
            languages = ["fr"]
            dim = 0
            max_tokens = 1
            pooling = "mean"
            licence = ""
            [model.hub]
            repo = "nobody"
            sha256 = { "model.safetensors" = "abc" }
        "#;
        let faults = Catalog::parse(text).unwrap_err();
        let keys: Vec<_> = faults.iter().map(|f| f.pointer.as_str()).collect();
        assert_eq!(
            keys,
            [
                "format",
                "model[0].name",
                "model[0].arch",
                "model[0].languages",
                "model[0].dim",
                "model[0].max_tokens",
                "model[0].pooling",
                "model[0].licence",
                "model[0].hub.repo",
                "model[0].hub.sha256.\"model.safetensors\""
            ]
        );
        assert!(Catalog::parse("format = 1\ncolour = 3").unwrap_err()[0].hint.contains("colour"));
    }

    #[test]
    fn a_pin_contradicts_only_what_was_seen_otherwise() {
        assert!(!Pin::Unknown.contradicts("aa"));
        assert!(!Pin::Known("aa".into()).contradicts("AA"));
        assert!(Pin::Known("aa".into()).contradicts("ab"));
    }
}

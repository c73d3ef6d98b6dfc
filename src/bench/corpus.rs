//! Fleets and requests to measure with: manifests of the corpora, and any number more by recombining them.
//!
//! In: folders of manifests, a seed. Out: the same fleet for the same input. A recombined capability takes the first words of one name and the
//! last of another, a sentence of each description, and one example; it remembers its two parents, so that its vectors can be made from theirs.
//! Not here: vectors (`scale`).

use crate::error::Error;
use crate::ingest::files;
use crate::types::manifest::{Capability, Manifest, Texts};
use crate::types::manifest_check::{Long, Rules};
use crate::types::text::words_of_name;
use crate::types::{Lang, Namespace};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// xorshift: the same numbers on every machine.
#[derive(Clone, Debug)]
pub struct Draw(u64);

impl Draw {
    /// Draws of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// The next number.
    pub fn roll(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 11
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        self.roll() as usize % n.max(1)
    }

    /// About normal, mean 0, deviation 1.
    pub fn normal(&mut self) -> f32 {
        let sum: f32 = (0..4).map(|_| (self.roll() & 0xFFFF) as f32 / 65_536.0 - 0.5).sum();
        sum * 1.732
    }
}

/// The corpora where this repository's neighbours keep them, else the demonstration fleet; what was found is named.
pub fn places() -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir("../shared/data")
        .into_iter()
        .flatten()
        .flatten()
        .filter(|e| e.file_name().to_string_lossy().starts_with("scale_"))
        .map(|e| e.path().join("manifests.jsonl"))
        .filter(|p| p.is_file())
        .collect();
    found.sort();
    if found.is_empty() { vec![PathBuf::from("datasets/fleet")] } else { found }
}

/// Reads every manifest of `places`; of agents that stand in several, the first counts.
pub fn read(places: &[PathBuf]) -> Result<Vec<Manifest>, Error> {
    let mut out: Vec<Manifest> = Vec::new();
    let mut known = std::collections::HashSet::new();
    for place in places {
        let read = files::read(place, &Rules { long: Long::Cut })?;
        out.extend(read.manifests.into_iter().filter(|m| known.insert(m.key())));
    }
    if out.is_empty() {
        return Err(Error::invalid_at("manifests", "at least one sound manifest", "name files or folders with --manifests"));
    }
    Ok(out)
}

/// Language of a capability's description.
pub fn lang_of(capability: &Capability) -> Lang {
    if capability.description.zh.is_some() { Lang::Zh } else { Lang::En }
}

/// Agents until there are `n` capabilities, the languages in turns as long as both last, spread over the corpora.
pub fn take(all: &[Manifest], n: usize, seed: u64) -> Vec<Manifest> {
    let mut draw = Draw::new(seed);
    let mut keyed: Vec<(u64, &Manifest)> = all.iter().map(|m| (draw.roll(), m)).collect();
    keyed.sort_by(|a, b| a.0.cmp(&b.0).then_with(|| a.1.key().cmp(&b.1.key())));
    let (zh, en): (Vec<&Manifest>, Vec<&Manifest>) =
        keyed.into_iter().map(|(_, m)| m).partition(|m| m.capabilities.first().is_some_and(|c| lang_of(c) == Lang::Zh));
    let (mut zh, mut en) = (zh.into_iter(), en.into_iter());
    let (mut out, mut have) = (Vec::new(), 0);
    while have < n {
        let pair: Vec<&Manifest> = [zh.next(), en.next()].into_iter().flatten().collect();
        if pair.is_empty() {
            break;
        }
        for manifest in pair {
            if have < n {
                let mut manifest = manifest.clone();
                manifest.capabilities.truncate(n - have);
                have += manifest.capabilities.len();
                out.push(manifest);
            }
        }
    }
    out
}

/// A capability made of two others.
#[derive(Clone, Debug)]
pub struct Born {
    /// An agent with this one capability.
    pub manifest: Manifest,
    /// Places of its parents among what it was made from.
    pub parents: (usize, usize),
}

/// Namespaces of a recombined fleet, by the share of the fleet they hold: 50 %, 5 %, 0.1 %, and a hundred for the rest.
pub const SHARES: [(&str, f64); 3] = [("half", 0.5), ("twentieth", 0.05), ("thousandth", 0.001)];

fn namespace(draw: &mut Draw) -> String {
    let at = draw.below(100_000) as f64 / 100_000.0;
    let mut from = 0.0;
    for (name, share) in SHARES {
        from += share;
        if at < from {
            return name.to_owned();
        }
    }
    format!("rest-{:02}", draw.below(100))
}

/// The `number`th capability made of `base`, agents of one capability in `lang`. The same for the same input.
pub fn recombined(base: &[Manifest], lang: Lang, number: usize, seed: u64) -> Option<Born> {
    let mut draw = Draw::new(seed ^ (number as u64).wrapping_mul(0xD134_2543_DE82_EF95));
    let parents = (draw.below(base.len()), draw.below(base.len()));
    let (a, b) = (base.get(parents.0)?, base.get(parents.1)?);
    let (one, two) = (a.capabilities.first()?, b.capabilities.first()?);
    let words = |c: &Capability| words_of_name(&c.intent).split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let (head, tail) = (words(one), words(two));
    let name: Vec<String> =
        head.iter().take(head.len().div_ceil(2)).chain(tail.iter().skip(tail.len() / 2)).cloned().chain([format!("{number:x}")]).collect();
    let text = |c: &Capability| if lang == Lang::Zh { c.description.zh.clone() } else { c.description.en.clone() }.unwrap_or_default();
    let (first, second) = (sentence(&text(one), 0), sentence(&text(two), 1));
    let description = format!("{first} {second}");
    let description = if lang == Lang::Zh { Texts { zh: Some(description), en: None } } else { Texts { zh: None, en: Some(description) } };
    let mut manifest = a.clone();
    manifest.namespace = Namespace::new(&namespace(&mut draw)).ok()?;
    manifest.agent_id = Arc::from(format!("agent-{number:x}"));
    manifest.ttl = None;
    manifest.health_check = None;
    manifest.capabilities = vec![Capability {
        intent: Arc::from(name.join("_")),
        aliases: Vec::new(),
        description,
        examples: vec![format!("{} {}", sentence(&text(two), 0), head.join(" "))],
        input_schema: None,
        output_schema: None,
        ..one.clone()
    }];
    Some(Born { manifest, parents })
}

/// The first or, where there is one, the second sentence of a text, not too long.
fn sentence(text: &str, which: usize) -> String {
    let parts: Vec<&str> = text.split_inclusive(['.', '。', '；', ';', '!', '！']).map(str::trim).filter(|p| p.len() > 3).collect();
    let part = parts.get(which).or(parts.first()).copied().unwrap_or(text);
    part.chars().take(160).collect()
}

/// Requests of a language: the lines of a file, else of the texts beside the corpora, else of the shipped pools.
pub fn texts(lang: Lang, file: Option<&Path>) -> Result<(Vec<String>, String), Error> {
    let short = if lang == Lang::Zh { "zh" } else { "en" };
    let lines = |text: &str| text.lines().map(str::trim).filter(|l| !l.is_empty()).map(str::to_owned).collect::<Vec<_>>();
    let beside = PathBuf::from(format!("../shared/tools/texts_{short}.txt"));
    let path = file.map(Path::to_path_buf).or_else(|| beside.is_file().then_some(beside));
    if let Some(path) = path {
        let place = path.display().to_string();
        let text =
            crate::config::files::read_text(&path).map_err(|e| Error::invalid_at(&place, "a file of one text a line", e.to_string()))?;
        let found = lines(&text);
        if found.is_empty() {
            return Err(Error::invalid_at(&place, "at least one text", "one a line"));
        }
        return Ok((found, place));
    }
    let pool = &crate::view::POOLS[usize::from(lang != Lang::Zh)];
    Ok(([pool.requests, pool.talk].into_iter().flat_map(lines).collect(), "the shipped pools".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base() -> Vec<Manifest> {
        read(&[PathBuf::from("datasets/fleet")]).unwrap()
    }

    #[test]
    fn a_fleet_of_any_size_is_the_same_every_time() {
        let base = base();
        let some = take(&base, 10, 3);
        assert_eq!(some.iter().map(|m| m.capabilities.len()).sum::<usize>(), 10);
        assert_eq!(some, take(&base, 10, 3));
        let one: Vec<Manifest> =
            base.iter().filter(|m| m.capabilities.first().is_some_and(|c| c.description.en.is_some())).cloned().collect();
        let made: Vec<Born> = (0..2_000).filter_map(|i| recombined(&one, Lang::En, i, 5)).collect();
        assert_eq!(made.len(), 2_000);
        assert_eq!(made[7].manifest, recombined(&one, Lang::En, 7, 5).unwrap().manifest);
        let half = made.iter().filter(|b| b.manifest.namespace.as_str() == "half").count();
        assert!((900..1_100).contains(&half), "{half}");
        let names: std::collections::BTreeSet<_> = made.iter().map(|b| b.manifest.capabilities[0].intent.clone()).collect();
        assert_eq!(names.len(), 2_000, "every name is its own");
    }

    #[test]
    fn there_are_always_texts() {
        for lang in [Lang::Zh, Lang::En] {
            assert!(texts(lang, None).unwrap().0.len() >= 100);
        }
        assert!(texts(Lang::En, Some(Path::new("no/such/file"))).is_err());
    }
}

//! The last lesson on disk, so that a restart knows at once what was learned; the next lesson replaces it.
//!
//! In: learned parts with the grants that they belong to. Out: `lessons.z` beside the store (JSON, zlib), and back. Capabilities are named by their keys,
//! for slots are numbered anew at every start; who is gone is left out. A file that can't be read, or of other models, is as good as none:
//! everything in it can be learned again. Cost: one write a lesson that changed something. Not here: what a lesson is (`learn`).

use super::Ingest;
use super::learn::who_asks;
use crate::config::files::write_atomic;
use crate::history::learned::head::Head;
use crate::history::learned::{Part, Vectors};
use crate::index::Visible;
use crate::types::principal::Grant;
use crate::view::View;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

/// Form of the file; another one is not read.
const FORM: u32 = 1;
/// Name of the file.
const FILE: &str = "lessons.z";

#[derive(Serialize, Deserialize)]
struct File {
    form: u32,
    /// Fingerprints of the models, in the order of the View.
    models: Vec<Arc<str>>,
    parts: Vec<Kept>,
}

/// A part, by names.
#[derive(Serialize, Deserialize)]
struct Kept {
    grant: Grant,
    fingerprint: u64,
    classes: usize,
    class_of: BTreeMap<String, u32>,
    losses: BTreeMap<String, f32>,
    heads: Vec<(Arc<str>, Arc<Head>)>,
    nobody: Option<(u32, f32)>,
    strangers: Vec<(Arc<str>, Vectors)>,
    heard: HashMap<String, Vec<(u32, f32)>>,
}

impl Kept {
    fn of(view: &View, grant: Grant, part: &Part) -> Self {
        let name = |slot: &u32| view.cap(*slot).map(|c| c.key_text());
        Self {
            grant,
            fingerprint: part.fingerprint,
            classes: part.slots_of.len(),
            class_of: part.class_of.iter().filter_map(|(slot, class)| Some((name(slot)?, *class))).collect(),
            losses: part.losses.iter().filter_map(|(slot, loss)| Some((name(slot)?, *loss))).collect(),
            heads: part.heads.clone(),
            nobody: part.nobody,
            strangers: part.strangers.clone(),
            heard: part.heard.clone(),
        }
    }

    fn part(self, slots: &HashMap<String, u32>) -> Part {
        let mut slots_of: Vec<Vec<u32>> = vec![Vec::new(); self.classes];
        let mut class_of = HashMap::new();
        for (name, class) in &self.class_of {
            if let (Some(slot), Some(of)) = (slots.get(name), slots_of.get_mut(*class as usize)) {
                of.push(*slot);
                class_of.insert(*slot, *class);
            }
        }
        slots_of.iter_mut().for_each(|s| s.sort_unstable());
        let losses = self.losses.iter().filter_map(|(name, loss)| Some((*slots.get(name)?, *loss))).collect();
        let Self { fingerprint, heads, nobody, strangers, heard, .. } = self;
        Part { fingerprint, class_of, slots_of, heads, losses, nobody, strangers, heard }
    }
}

fn models_of(view: &View) -> Vec<Arc<str>> {
    view.arms.iter().map(|a| a.model.fingerprint.clone()).collect()
}

impl Ingest {
    fn lessons_file(&self) -> PathBuf {
        self.store.path().with_file_name(FILE)
    }

    /// Keeps what is learned now. A disk that takes nothing costs a lesson after the next start, so it is only told.
    pub(super) async fn keep_lessons(&self) {
        let (view, path) = (self.views.load(), self.lessons_file());
        let written = tokio::task::spawn_blocking(move || {
            let of = |(_, grant): (String, Grant)| {
                let part = view.learned.part(&view.visible(&who_asks(grant.clone())))?;
                Some(Kept::of(&view, grant, part))
            };
            let parts = view.learned.demand().grants().into_iter().filter_map(of).collect();
            let mut zip = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
            serde_json::to_writer(&mut zip, &File { form: FORM, models: models_of(&view), parts }).map_err(std::io::Error::other)?;
            write_atomic(&path, &zip.finish()?)
        });
        match written.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "what was learned is not kept beside the store; after a restart it is learned again"),
            Err(error) => tracing::warn!(%error, "what was learned is not kept"),
        }
    }

    /// Something is to be forgotten: what was learned from it is no longer kept.
    pub(super) fn drop_lessons(&self) {
        if let Err(error) = std::fs::remove_file(self.lessons_file())
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(%error, "what was learned is still beside the store; the next lesson replaces it");
        }
    }

    /// Takes up what the last lesson left, as far as it fits the models and the fleet; answers for how many parts.
    pub async fn recall_lessons(&self) -> usize {
        let path = self.lessons_file();
        let read = tokio::task::spawn_blocking(move || {
            let file = std::fs::File::open(path).ok()?;
            let unzipped = flate2::read::ZlibDecoder::new(std::io::BufReader::new(file));
            serde_json::from_reader::<_, File>(std::io::BufReader::new(unzipped)).ok()
        });
        let Some(file) = read.await.ok().flatten() else { return 0 };
        let view = self.views.load();
        if file.form != FORM || file.models != models_of(&view) {
            return 0;
        }
        let slots: HashMap<String, u32> = view.catalog.capabilities().map(|c| (c.key_text(), c.slot)).collect();
        let mut parts: Vec<(Visible, Arc<Part>)> = Vec::new();
        for kept in file.parts {
            let visible = view.visible(&who_asks(kept.grant.clone()));
            // who asked before the restart goes on asking
            view.learned.demand().ask(&kept.grant);
            if !parts.iter().any(|(v, _)| *v == visible) {
                parts.push((visible, Arc::new(kept.part(&slots))));
            }
        }
        let count = parts.len();
        self.views.update(|old| View { learned: Arc::new(old.learned.with(parts.clone())), ..old.clone() });
        count
    }
}

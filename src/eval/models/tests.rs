use super::{Task, measure, page, report, spec, speed::Speed, table, texts};
use crate::embed::precomputed::Precomputed;
use crate::embed::testing::Fake;
use crate::embed::{Embed, EmbedError, Embedding, ModelInfo};
use crate::eval::queries;
use crate::ingest::files;
use crate::route::dice::Dice;
use crate::types::Lang;
use crate::types::manifest_check::Rules;
use crate::types::policy::Policy;
use std::path::Path;
use std::sync::Arc;

fn task(n: usize) -> Task {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("datasets");
    Task {
        manifests: files::read(&root.join("fleet"), &Rules::default()).unwrap().manifests,
        queries: queries::sample(queries::read(&root.join("queries.jsonl"), Some("dev")).unwrap(), Some(n), 3),
        aim: "auto precision >= 0.8".parse().unwrap(),
        policy: Policy::default(),
        seed: 7,
    }
}

/// An encoder whose vectors are mostly noise.
struct Damaged(Fake, ModelInfo);

impl Embed for Damaged {
    fn info(&self) -> &ModelInfo {
        &self.1
    }

    fn embed(&self, texts: &[&str]) -> Result<Vec<Embedding>, EmbedError> {
        let mut out = self.0.embed(texts)?;
        for (text, e) in texts.iter().zip(&mut out) {
            let mut dice = Dice::new(text.bytes().fold(1, |h: u64, b| h.wrapping_mul(31).wrapping_add(u64::from(b))));
            let noisy = e.vector.iter().map(|v| v * 0.1 + dice.unit() - 0.5).collect();
            e.vector = crate::embed::fp32::normalised(noisy).unwrap_or_default().into();
        }
        Ok(out)
    }
}

fn damaged() -> Damaged {
    let fake = Fake::new("damaged", Lang::Mixed, 128);
    let info = ModelInfo { fingerprint: "damaged/fake/x".into(), ..fake.info().clone() };
    Damaged(fake, info)
}

#[tokio::test]
async fn a_damaged_model_comes_last_and_not_by_chance() {
    let task = task(80);
    let sound = |name: &str, dim| -> Arc<dyn Embed> { Arc::new(Fake::new(name, Lang::Mixed, dim)) };
    let arms: [(&str, Arc<dyn Embed>); 3] =
        [("wide", sound("wide", 512)), ("damaged", Arc::new(damaged())), ("narrow", sound("narrow", 128))];
    let (mut all, mut capabilities) = (Vec::new(), 0);
    for (name, arm) in arms {
        let folder = tempfile::tempdir().unwrap();
        let models = Arc::new(spec::models(vec![arm]).unwrap());
        let (of, n) = measure(&task, name, models, Speed::default(), folder.path(), || {}).await.unwrap();
        capabilities = n;
        all.push(of);
    }
    let report = report(&task, capabilities, all);
    assert_eq!(report.models.last().unwrap().name, "damaged", "{}", table::text(&report));
    for pair in report.pairs.iter().filter(|p| p.worse == "damaged") {
        assert!(pair.p < 0.01 && pair.mrr_gain.1 > 0.0, "{pair:?}");
    }
    let html = page::html(&report);
    assert!(html.contains("damaged") && !html.contains("NaN"));
}

#[tokio::test]
async fn vectors_from_elsewhere_are_enough() {
    let task = task(12);
    let folder = tempfile::tempdir().unwrap();
    let needed = texts::needed(&task, folder.path()).await.unwrap();
    let fake = Fake::new("remote", Lang::Mixed, 64);
    let lines: Vec<String> =
        needed.iter().map(|t| serde_json::json!({"text": t, "vector": fake.embed(&[t]).unwrap()[0].vector.to_vec()}).to_string()).collect();
    let path = folder.path().join("remote.jsonl");
    std::io::Write::write_all(&mut std::fs::File::create(&path).unwrap(), lines.join("\n").as_bytes()).unwrap();
    let vectors: Arc<dyn Embed> = Arc::new(Precomputed::read(&path, Lang::Mixed).unwrap());
    let run = |arm: Arc<dyn Embed>| {
        let task = &task;
        async move {
            let folder = tempfile::tempdir().unwrap();
            measure(task, "m", Arc::new(spec::models(vec![arm]).unwrap()), Speed::default(), folder.path(), || {}).await.unwrap().0
        }
    };
    let (a, b) = (run(vectors).await, run(Arc::new(Fake::new("remote", Lang::Mixed, 64))).await);
    assert_eq!((a.whole, a.dense, &a.each), (b.whole, b.dense, &b.each));
}

//! The real small models: against vectors of ONNX Runtime, alone and in company, cut, damaged, and under load.

#![allow(clippy::unwrap_used)]

use agent_reach::clock::{Clock, SystemClock};
use agent_reach::embed::bundle::Bundle;
use agent_reach::embed::cache::{CONFIG, Cache, SUMS, TOKENIZER, WEIGHTS, default_dir};
use agent_reach::embed::catalog::Catalog;
use agent_reach::embed::fp32::Fp32;
use agent_reach::embed::golden;
use agent_reach::embed::int8::{Int8, cache as kept};
use agent_reach::embed::models::{ArmId, Models, ModelsConfig};
use agent_reach::embed::testing::models;
use agent_reach::embed::worker::{WorkClass, Worker, WorkerConfig};
use agent_reach::embed::{Embed, EmbedError, Embedding};
use agent_reach::types::Lang;
use serde::Deserialize;
use std::path::Path;
use std::sync::{Arc, OnceLock};

#[derive(Deserialize)]
struct Fixture {
    model: String,
    golden: Vec<Golden>,
}

#[derive(Deserialize)]
struct Golden {
    text: String,
    tokens: u32,
    vector: Vec<f32>,
}

fn golden(lang: &str) -> Fixture {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/golden_{lang}.json"));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn cos(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let dot = |x: &[f32], y: &[f32]| x.iter().zip(y).map(|(p, q)| f64::from(*p) * f64::from(*q)).sum::<f64>();
    dot(a, b) / (dot(a, a).sqrt() * dot(b, b).sqrt())
}

/// The reference encoder of a model; the weights come by the ordinary way.
fn reference(name: &str) -> Arc<dyn Embed> {
    static LOADED: OnceLock<Vec<Arc<dyn Embed>>> = OnceLock::new();
    let load = || {
        models().unwrap();
        let (catalog, cache) = (Catalog::shipped(), Cache::new(default_dir()));
        let one = |name| -> Arc<dyn Embed> { Arc::new(Fp32::load(Bundle::read(catalog.get(name).unwrap(), &cache).unwrap()).unwrap()) };
        vec![one("bge-small-zh-v1.5"), one("bge-small-en-v1.5")]
    };
    LOADED.get_or_init(load).iter().find(|m| &*m.info().name == name).unwrap().clone()
}

fn one(model: &dyn Embed, text: &str) -> Embedding {
    model.embed(&[text]).unwrap().remove(0)
}

#[test]
fn vectors_are_those_of_the_reference_implementation() {
    for lang in ["zh", "en"] {
        let fixture = golden(lang);
        assert!(fixture.golden.len() >= 20);
        let model = reference(&fixture.model);
        let worst = fixture.golden.iter().map(|g| {
            let got = one(&*model, &g.text);
            assert_eq!(got.tokens, g.tokens, "{lang} {:?}", g.text);
            let length: f64 = got.vector.iter().map(|x| f64::from(*x).powi(2)).sum();
            assert!((length - 1.0).abs() < 1e-5);
            let cosine = cos(&got.vector, &g.vector);
            assert!(cosine >= 0.9999, "{lang} {:?}: {cosine}", g.text);
            cosine
        });
        println!("{lang}: lowest cosine to the reference {}", worst.fold(1.0, f64::min));
    }
}

/// T1, T3: the real weights prove themselves in both precisions; other weights under their name don't.
#[test]
fn weights_are_known_by_what_they_make_of_a_text() {
    models().unwrap();
    let (catalog, cache) = (Catalog::shipped(), Cache::new(default_dir()));
    for name in ["bge-small-zh-v1.5", "bge-small-en-v1.5"] {
        let spec = catalog.get(name).unwrap();
        let read = || Bundle::read(spec, &cache).unwrap();
        let (exact, fast) = (golden::lowest(&*reference(name)).unwrap(), golden::lowest(&Int8::of(read()).unwrap()).unwrap());
        println!("{name}: lowest cosine {exact} in f32, {fast} in int8");
        assert!(exact > 0.9999 && fast >= golden::SAME, "{name}: {exact} {fast}");
        assert!(Fp32::load(read()).unwrap().prove().info().proven);
        // the same model, trained a little further: one number of fifty is half as large again
        let mut other = read();
        let header = u64::from_le_bytes(other.files.weights[..8].try_into().unwrap()) as usize + 8;
        for bytes in other.files.weights[header..].chunks_exact_mut(4).step_by(50) {
            let x = f32::from_le_bytes((&*bytes).try_into().unwrap());
            bytes.copy_from_slice(&(x * 1.5).to_le_bytes());
        }
        let other = Fp32::load(other).unwrap().prove();
        assert!(!other.info().proven, "{name}: {:?}", golden::lowest(&other));
        println!("{name}: lowest cosine of other weights {:?}", golden::lowest(&other));
    }
}

#[test]
fn a_text_alone_and_in_company_has_the_same_vector() {
    for lang in ["zh", "en"] {
        let fixture = golden(lang);
        let model = reference(&fixture.model);
        let equal = if lang == "zh" {
            ["我要退款", "我要换货", "我要发票"]
        } else {
            ["book a ticket", "book a table", "book a flight"]
        };
        let lengths: Vec<u32> = equal.iter().map(|t| one(&*model, t).tokens).collect();
        assert!(lengths.windows(2).all(|w| w[0] == w[1]), "equal lengths: {lengths:?}");
        let mixed: Vec<&str> = fixture.golden.iter().map(|g| g.text.as_str()).chain(equal).collect();
        let mut same_bits = 0;
        for batch in [equal.as_slice(), mixed.as_slice()] {
            let together = model.embed(batch).unwrap();
            for (text, got) in batch.iter().zip(&together) {
                let alone = one(&*model, text).vector;
                assert!(cos(&got.vector, &alone) > 0.9999, "{text:?}");
                same_bits += usize::from(got.vector == alone);
            }
        }
        println!("{lang}: {same_bits} of {} vectors have the same bits alone and in company", equal.len() + mixed.len());
    }
}

#[test]
fn any_text_is_answered_and_long_ones_say_that_they_were_cut() {
    let clock = SystemClock;
    for name in ["bge-small-zh-v1.5", "bge-small-en-v1.5"] {
        let model = reference(name);
        let fits = one(&*model, &"退款 ".repeat(200));
        assert!(!fits.truncated && fits.tokens <= 512);
        let long = one(&*model, &"refund 退款 ".repeat(24_000));
        assert!(long.truncated && long.tokens == 512);
        let begin = clock.instant();
        let word = one(&*model, &"a".repeat(1 << 20));
        let noise = one(&*model, &"\u{0}\u{1}\u{202e}".repeat(400_000));
        assert!(clock.instant().duration_since(begin).as_secs() < 5, "a megabyte takes no longer than a page");
        assert!(word.truncated && noise.truncated);
        assert_eq!(one(&*model, "").tokens, 2);
        assert_eq!(one(&*model, "").vector, one(&*model, " \n\t ").vector);
        assert_ne!(one(&*model, "[SEP]").vector, one(&*model, "").vector, "typed special tokens are text");
    }
}

#[test]
fn a_damaged_model_is_an_error_that_names_the_file() {
    models().unwrap();
    let name = "bge-small-en-v1.5";
    let (from, dir) = (default_dir().join(name), tempfile::tempdir().unwrap());
    let folder = dir.path().join(name);
    let config = ModelsConfig { names: vec![name.into()], dir: dir.path().into(), fetch: None, ..ModelsConfig::default() };
    for damaged in [WEIGHTS, TOKENIZER, CONFIG, SUMS] {
        std::fs::create_dir_all(&folder).unwrap();
        for file in [WEIGHTS, TOKENIZER, CONFIG, SUMS] {
            std::fs::copy(from.join(file), folder.join(file)).unwrap();
        }
        let file = std::fs::File::options().write(true).open(folder.join(damaged)).unwrap();
        let half = file.metadata().unwrap().len() / 2;
        file.set_len(half).unwrap();
        let error = Models::load(&config, &agent_reach::embed::fetch::Quiet).err().unwrap();
        assert!(matches!(&error, EmbedError::Damaged { file, .. } if file.ends_with(damaged)), "{damaged}: {error}");
        assert_eq!(error.code().as_str(), "failed_precondition");
    }
}

#[test]
fn meaning_is_near_and_fingerprints_tell_models_apart() {
    let models = models().unwrap();
    assert_eq!(models.arms().count(), 2);
    let prints = models.fingerprints();
    assert_ne!(prints[0], prints[1]);
    let zh = reference("bge-small-zh-v1.5");
    let ask = one(&*zh, "钱什么时候退给我");
    let near = cos(&ask.vector, &one(&*zh, "退款进度查询").vector);
    let far = cos(&ask.vector, &one(&*zh, "代码评审").vector);
    assert!(near > far + 0.1, "{near} {far}");
    assert_eq!(models.for_lang(Lang::Zh), [ArmId(0)]);
}

#[test]
fn eight_bits_are_close_to_the_reference_implementation() {
    models().unwrap();
    let (catalog, cache) = (Catalog::shipped(), Cache::new(default_dir()));
    for lang in ["zh", "en"] {
        let mut fixture = golden(lang);
        if cfg!(debug_assertions) {
            println!("a few short texts only: kernels without optimisation take 0.3 s a text");
            fixture.golden.retain(|g| g.tokens < 12);
            fixture.golden.truncate(8);
        }
        let model = Int8::load(catalog.get(&fixture.model).unwrap(), &cache).unwrap();
        assert_ne!(model.info().fingerprint, reference(&fixture.model).info().fingerprint);
        let texts: Vec<&str> = fixture.golden.iter().map(|g| g.text.as_str()).collect();
        let got = model.embed(&texts).unwrap();
        let cosines: Vec<f64> = got.iter().zip(&fixture.golden).map(|(e, g)| cos(&e.vector, &g.vector)).collect();
        let (mean, worst) = (cosines.iter().sum::<f64>() / cosines.len() as f64, cosines.iter().copied().fold(1.0, f64::min));
        println!("{lang} on {}: cosine to the reference {mean:.5}, lowest {worst:.5}", model.kernel().name());
        assert!(mean >= 0.999 && worst >= 0.995, "{lang}: {mean} {worst}");
        for (g, e) in fixture.golden.iter().zip(&got).filter(|(g, _)| g.tokens < 20) {
            assert_eq!((e.tokens, e.truncated), (g.tokens, false));
            assert_eq!(&one(&model, &g.text), e, "alone and in company the same bits");
        }
    }
}

#[test]
#[cfg_attr(debug_assertions, ignore = "quantising without optimisation takes a minute; run it with --release")]
fn kept_int8_weights_are_used_when_sound_and_made_anew_when_not() {
    models().unwrap();
    let name = "bge-small-zh-v1.5";
    let (from, dir) = (default_dir().join(name), tempfile::tempdir().unwrap());
    let folder = dir.path().join(name);
    std::fs::create_dir_all(&folder).unwrap();
    for file in [WEIGHTS, TOKENIZER, CONFIG, SUMS] {
        std::fs::copy(from.join(file), folder.join(file)).unwrap();
    }
    let (catalog, cache) = (Catalog::shipped(), Cache::new(dir.path()));
    let load = || Int8::load(catalog.get(name).unwrap(), &cache);
    let first = one(&load().unwrap(), "我要退款").vector;
    let file = folder.join(kept::FILE);
    let good = std::fs::read(&file).unwrap();

    // with the published weights gone, only the kept ones can answer
    std::fs::rename(folder.join(WEIGHTS), folder.join("away")).unwrap();
    assert_eq!(one(&load().unwrap(), "我要退款").vector, first);
    std::fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(good.len() as u64 / 2).unwrap();
    assert!(load().is_err());
    std::fs::rename(folder.join("away"), folder.join(WEIGHTS)).unwrap();
    assert_eq!(one(&load().unwrap(), "我要退款").vector, first);
    assert!(std::fs::read(&file).unwrap() == good, "made anew, byte for byte");
}

/// Figures of this machine: `cargo test --test embed figures -- --ignored --nocapture`.
#[test]
#[ignore = "prints figures, checks nothing"]
fn figures() {
    models().unwrap();
    let clock = SystemClock;
    let begin = clock.instant();
    let loaded = Models::load(&ModelsConfig { fetch: None, ..ModelsConfig::default() }, &agent_reach::embed::fetch::Quiet).unwrap();
    println!("both small models loaded in {:.0} ms", clock.instant().duration_since(begin).as_secs_f64() * 1e3);
    println!("one text after warming up, ms: {:?}", loaded.warm_up().unwrap());
    for (name, file) in [("bge-small-zh-v1.5", "texts_zh.txt"), ("bge-small-en-v1.5", "texts_en.txt")] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/tools").join(file);
        let Ok(texts) = std::fs::read_to_string(&path) else {
            println!("skipped: figures of {name}: ../shared is not here");
            continue;
        };
        let model = reference(name);
        let mut took: Vec<f64> = texts
            .lines()
            .take(200)
            .map(|line| {
                let begin = clock.instant();
                one(&*model, line);
                clock.instant().duration_since(begin).as_secs_f64() * 1e3
            })
            .collect();
        took.sort_by(f64::total_cmp);
        println!("{name} {}: p50 {:.2} ms, p95 {:.2} ms", model.info().precision, took[took.len() / 2], took[took.len() * 95 / 100]);
    }
    // PEERS.md E6: texts at once are not slower than one after another
    let model = reference("bge-small-zh-v1.5");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let worker = Worker::start(&WorkerConfig::default(), None).unwrap();
    let texts: Vec<Arc<str>> = (0..32).map(|i| Arc::from(format!("帮我查一下第{i}号订单的物流到哪里了"))).collect();
    let run = |parallel: bool| {
        let begin = clock.instant();
        runtime.block_on(async {
            let calls = texts.iter().map(|t| worker.embed(&model, vec![t.clone()], WorkClass::Query));
            if parallel {
                assert!(futures::future::join_all(calls).await.iter().all(Result::is_ok));
            } else {
                for call in calls {
                    call.await.unwrap();
                }
            }
        });
        clock.instant().duration_since(begin).as_secs_f64() * 1e3
    };
    run(true);
    println!("32 single texts: one after another {:.0} ms, at once {:.0} ms", run(false), run(true));
}

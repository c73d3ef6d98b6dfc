//! The worker with encoders that block, panic and count.

use super::*;
use crate::embed::testing::Fake;
use crate::types::Lang;
use futures::future::join_all;
use futures::{FutureExt, join};

fn text(s: &str) -> Vec<Arc<str>> {
    vec![s.into()]
}

fn texts(prefix: &str, n: usize) -> Vec<Arc<str>> {
    (0..n).map(|i| format!("{prefix}{i}").into()).collect()
}

/// A fake whose encoder stands still until it is opened.
fn gated() -> (Arc<Fake>, Arc<dyn Embed>) {
    let fake = Arc::new(Fake::new("gated", Lang::Zh, 8));
    fake.close();
    (fake.clone(), fake)
}

async fn until(what: impl Fn() -> bool) {
    for _ in 0..2_000 {
        if what() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("it did not come to that within 10 s");
}

fn one_thread(slots: usize) -> Worker {
    let config = WorkerConfig { threads: 1, query_slots: slots, ingest_slots: slots, max_batch: 1, ..WorkerConfig::default() };
    Worker::start(&config, None).unwrap()
}

#[tokio::test]
async fn answers_come_in_order_and_equal_texts_are_computed_once() {
    let worker = Worker::start(&WorkerConfig::default(), None).unwrap();
    let (fake, model) = gated();
    let calls = join_all((0..50).map(|_| worker.embed(&model, text("the same"), WorkClass::Query)));
    let opener = async {
        until(|| worker.stats().joined == 49).await;
        fake.open();
    };
    let (answers, ()) = join!(calls, opener);
    assert!(answers.iter().all(|a| a.as_ref().unwrap() == answers[0].as_ref().unwrap()));
    assert_eq!(fake.seen(), ["the same"]);

    let many = worker.embed(&model, texts("t", 300), WorkClass::Ingest).await.unwrap();
    let alone = worker.embed(&model, text("t217"), WorkClass::Query).await.unwrap();
    assert_eq!(many.len(), 300);
    assert_eq!(many[217], alone[0]);
    assert_ne!(many[217], many[216]);
    assert!(worker.embed(&model, vec![], WorkClass::Query).await.unwrap().is_empty());
    let stats = worker.stats();
    assert_eq!((stats.embedded, stats.queued, stats.failed), (302, 0, 0));
}

#[tokio::test]
async fn a_full_queue_sheds_at_once_with_a_hint_and_recovers() {
    let worker = one_thread(4);
    let (fake, model) = gated();
    let mut waiting = Box::pin(join_all(texts("w", 4).into_iter().map(|t| worker.embed(&model, vec![t], WorkClass::Query))));
    assert!(waiting.as_mut().now_or_never().is_none());
    let shed = worker.embed(&model, text("one too many"), WorkClass::Query).now_or_never().expect("at once").err().unwrap();
    assert!(matches!(shed, EmbedError::Overloaded { retry_after } if retry_after >= Duration::from_millis(20)));
    assert_eq!(crate::error::Error::from(shed).code.as_str(), "overloaded");
    assert_eq!(worker.stats().shed, 1);
    // the other class has room of its own
    let ingest = worker.embed(&model, text("ingest"), WorkClass::Ingest);
    let opener = async { fake.open() };
    let (waited, ingested, ()) = join!(waiting, ingest, opener);
    assert!(waited.iter().all(Result::is_ok) && ingested.is_ok());
    assert!(worker.embed(&model, text("one too many"), WorkClass::Query).await.is_ok());
}

#[tokio::test]
async fn a_call_larger_than_the_queue_waits_for_room() {
    let worker = one_thread(3);
    let model: Arc<dyn Embed> = Arc::new(Fake::new("m", Lang::En, 8));
    let (a, b) = join!(worker.embed(&model, texts("a", 100), WorkClass::Ingest), async {
        tokio::task::yield_now().await;
        worker.embed(&model, texts("b", 2), WorkClass::Query).await
    });
    assert_eq!((a.unwrap().len(), b.unwrap().len()), (100, 2));
}

#[tokio::test]
async fn who_left_is_not_computed() {
    let worker = one_thread(16);
    let (fake, model) = gated();
    let mut first = Box::pin(worker.embed(&model, text("first"), WorkClass::Query));
    assert!(first.as_mut().now_or_never().is_none());
    until(|| fake.entered() == 1).await;
    let mut left = Box::pin(worker.embed(&model, text("left"), WorkClass::Query));
    assert!(left.as_mut().now_or_never().is_none());
    let stays = worker.embed(&model, text("stays"), WorkClass::Query);
    drop(left);
    let (first, stays, ()) = join!(first, stays, async { fake.open() });
    assert!(first.is_ok() && stays.is_ok());
    assert_eq!(fake.seen(), ["first", "stays"]);
    assert_eq!(worker.stats().dropped, 1);
}

#[tokio::test]
async fn a_panic_is_an_error_of_that_text_only() {
    let worker = Worker::start(&WorkerConfig { threads: 1, max_batch: 8, ..WorkerConfig::default() }, None).unwrap();
    let (fake, model) = gated();
    let mut first = Box::pin(worker.embed(&model, text("holds the thread"), WorkClass::Query));
    assert!(first.as_mut().now_or_never().is_none());
    until(|| fake.entered() == 1).await;
    let wanted = ["ok 1", "please panic", "ok 2", "please fail", "ok 3"];
    let calls = join_all(wanted.iter().map(|t| worker.embed(&model, text(t), WorkClass::Query)));
    let opener = async {
        until(|| worker.stats().queued == 5).await;
        fake.open();
    };
    let (first, answers, ()) = join!(first, calls, opener);
    assert!(first.is_ok());
    let good: Vec<bool> = answers.iter().map(Result::is_ok).collect();
    assert_eq!(good, [true, false, true, false, true]);
    assert!(answers[1].as_ref().err().unwrap().to_string().contains("panicked"));
    assert!(worker.stats().panics >= 1 && worker.stats().failed == 2);
    assert!(worker.embed(&model, text("still alive"), WorkClass::Query).await.is_ok());
}

#[tokio::test]
async fn queries_overtake_a_long_ingest_and_ingest_gets_done() {
    let worker = one_thread(512);
    let (fake, model) = gated();
    let mut ingest = Box::pin(worker.embed(&model, texts("i", 40), WorkClass::Ingest));
    assert!(ingest.as_mut().now_or_never().is_none());
    until(|| fake.entered() == 1).await;
    let queries = worker.embed(&model, texts("q", 40), WorkClass::Query);
    let opener = async {
        until(|| worker.stats().queued == 79).await;
        fake.open();
    };
    let (ingested, answered, ()) = join!(ingest, queries, opener);
    assert!(ingested.is_ok() && answered.is_ok());
    let seen = fake.seen();
    let place = |t: &str| seen.iter().position(|s| s == t).unwrap();
    assert!(place("q39") < place("i10"), "queries first: {seen:?}");
    assert!(place("i2") < place("q39"), "ingest moves: {seen:?}");
}

#[tokio::test]
async fn a_stopped_worker_says_so() {
    let worker = one_thread(16);
    let (fake, model) = gated();
    let mut under_way = Box::pin(worker.embed(&model, text("under way"), WorkClass::Query));
    assert!(under_way.as_mut().now_or_never().is_none());
    worker.stop();
    fake.open();
    assert_eq!(under_way.await, Err(EmbedError::Stopped));
    assert_eq!(worker.embed(&model, text("late"), WorkClass::Query).await, Err(EmbedError::Stopped));
}

/// An encoder that notes how many threads a parallel product in it would use.
struct Threads(Fake, parking_lot::Mutex<Vec<usize>>);

impl Embed for Threads {
    fn info(&self) -> &crate::embed::ModelInfo {
        self.0.info()
    }
    fn embed(&self, texts: &[&str]) -> Result<Vec<Embedding>, EmbedError> {
        self.1.lock().push(rayon::current_num_threads());
        self.0.embed(texts)
    }
}

/// PEERS.md E6: single texts at once must not fight over cores. Each inference thread is a pool of its own; the time is in `figures` of tests/embed.rs.
#[tokio::test]
async fn an_inference_thread_uses_one_core() {
    let worker = Worker::start(&WorkerConfig { threads: 3, ..WorkerConfig::default() }, None).unwrap();
    let threads = Arc::new(Threads(Fake::new("m", Lang::En, 8), parking_lot::Mutex::default()));
    let model: Arc<dyn Embed> = threads.clone();
    worker.embed(&model, texts("t", 16), WorkClass::Query).await.unwrap();
    let seen = threads.1.lock();
    assert!(!seen.is_empty() && seen.iter().all(|n| *n == 1), "{seen:?}");
}

//! From a request to a decision: checks it, embeds what must be embedded, decides on the current View, and logs.
//!
//! The async shell of the read path; everything that decides is pure and lives beside it. A text that is a name is not embedded at all.
//! Overload of the encoder, a passed deadline and models that are not loaded yet are errors, never a decision from nothing.

use crate::clock::Clock;
use crate::embed::Embedding;
use crate::embed::models::ArmId;
use crate::embed::worker::WorkClass;
use crate::error::{Code, Error};
use crate::route::prepare::{Limits, prepare};
use crate::route::shortlist::Shortlist;
use crate::route::{pipeline, reading};
use crate::telemetry::metrics::{Histogram, observe};
use crate::types::decision::{Decision, Note};
use crate::types::id::time_ordered;
use crate::types::lang::Lang;
use crate::types::policy::Policy;
use crate::types::query::{PartKind, Query, QueryPart, QueryVector};
use crate::types::request::ResolveRequest;
use crate::types::{Principal, hash};
use crate::view::{View, Views};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A decision and how it came about.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// The decision.
    pub decision: Decision,
    /// Language of the query by its script.
    pub lang: Lang,
    /// Microseconds from request to decision, embedding included.
    pub took_us: u64,
    /// Of these, for filter, recall, rank and decide.
    pub route_us: u64,
    /// Warnings of the way there, beside those of the decision.
    pub notes: Vec<Note>,
}

/// Takes decisions for the log. Must not block.
pub trait DecisionSink: Send + Sync {
    /// One decision, with what it was made from.
    fn take(&self, query: &Query, list: &Shortlist, decision: &Decision, policy: &Policy);
}

/// Settings of the resolver.
#[derive(Clone, Debug)]
pub struct ResolverConfig {
    /// Bounds of a request.
    pub limits: Limits,
    /// No tokens are configured: the request's caller and tenant are taken at their word.
    pub local: bool,
    /// Longest a request may take when it names no deadline.
    pub deadline: Duration,
}

impl Default for ResolverConfig {
    fn default() -> Self {
        Self { limits: Limits::default(), local: true, deadline: Duration::from_secs(10) }
    }
}

/// Resolves requests.
pub struct Resolver {
    views: Arc<Views>,
    clock: Arc<dyn Clock>,
    sink: Option<Arc<dyn DecisionSink>>,
    config: ResolverConfig,
    /// Drawn once, so that ids and dice of two processes differ.
    seed: u64,
    count: AtomicU64,
}

impl Resolver {
    /// Puts a resolver together.
    pub fn new(views: Arc<Views>, clock: Arc<dyn Clock>, sink: Option<Arc<dyn DecisionSink>>, config: ResolverConfig) -> Self {
        let mut seed = [0u8; 8];
        if getrandom::fill(&mut seed).is_err() {
            // without entropy the dice are still dice, only predictable
            seed = clock.now_ms().to_le_bytes();
        }
        Self { views, clock, sink, config, seed: u64::from_le_bytes(seed), count: AtomicU64::new(0) }
    }

    fn draw(&self) -> u64 {
        crate::route::dice::Dice::new(self.seed ^ self.count.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x2545_F491_4F6C_DD1D)).roll()
    }

    /// Checks a request and gives it its vectors: what [`pipeline::decide`] takes, with warnings of the way there.
    pub async fn prepared(&self, who: &Principal, request: &ResolveRequest) -> Result<(Query, Vec<Note>), Error> {
        self.embedded(who, request).await.map(|(query, notes, _)| (query, notes))
    }

    /// The same, with the View to decide on: the newest, so that a registration that came while we embedded counts; but after a swap of models the
    /// vectors belong to the one before it.
    async fn embedded(&self, who: &Principal, request: &ResolveRequest) -> Result<(Query, Vec<Note>, Arc<View>), Error> {
        let (mut query, notes) = prepare(who, request, self.config.local, &self.config.limits, self.clock.now_ms(), self.draw())?;
        let limit = query.deadline_ms.map_or(self.config.deadline, |ms| Duration::from_millis(ms).min(self.config.deadline));
        let view = self.views.load();
        match tokio::time::timeout(limit, self.embed(&view, &mut query)).await {
            Ok(done) => done?,
            Err(_) => return Err(Error::new(Code::DeadlineExceeded, format!("no decision within {} ms", limit.as_millis()))),
        }
        let newest = self.views.load();
        let view = if Arc::ptr_eq(&newest.models, &view.models) { newest } else { view };
        Ok((query, notes, view))
    }

    /// Resolves one request.
    pub async fn resolve(&self, who: &Principal, request: &ResolveRequest) -> Result<Resolved, Error> {
        let begin = self.clock.instant();
        let (query, notes, view) = self.embedded(who, request).await?;
        let routing = self.clock.instant();
        let (list, mut decision) = pipeline::decide(&view, &query);
        let done = self.clock.instant();
        observe(Histogram::Route, &["embed"], routing.duration_since(begin).as_secs_f64());
        observe(Histogram::Route, &["decide"], done.duration_since(routing).as_secs_f64());
        if !query.vectors.is_empty() && view.learned.part(&view.visible(&query.principal)).is_none() {
            view.learned.demand().ask(&query.principal.namespaces);
        }
        decision.decision_id = self.id();
        if query.vectors.iter().any(|v| v.truncated) {
            decision.warnings.push(Note::new("field_truncated", "the text is longer than the model's window; its end was not read"));
        }
        if let Some(sink) = &self.sink {
            sink.take(&query, &list, &decision, &view.policy);
        }
        if !request.explain {
            for candidate in &mut decision.candidates {
                candidate.evidence.clear();
            }
        }
        Ok(Resolved {
            decision,
            lang: query.lang,
            took_us: u64::try_from(done.duration_since(begin).as_micros()).unwrap_or(u64::MAX),
            route_us: u64::try_from(done.duration_since(routing).as_micros()).unwrap_or(u64::MAX),
            notes,
        })
    }

    /// Resolves several; one result each, in their order. Their texts go to the encoder side by side.
    pub async fn resolve_batch(&self, who: &Principal, requests: &[ResolveRequest]) -> Vec<Result<Resolved, Error>> {
        futures::future::join_all(requests.iter().map(|r| self.resolve(who, r))).await
    }

    fn id(&self) -> String {
        let mut bytes = [0u8; 16];
        if getrandom::fill(&mut bytes).is_err() {
            bytes = hash::ContentHash::of_text(&format!("{}-{}", self.draw(), self.clock.now_ms())).0[..16].try_into().unwrap_or([0; 16]);
        }
        hex::encode(time_ordered(self.clock.now_ms(), bytes))
    }

    /// Gives the query and its parts their vectors.
    async fn embed(&self, view: &View, query: &mut Query) -> Result<(), Error> {
        let skip = query.text.is_empty()
            || query.capability.is_some()
            || !view.names.exact(&query.text, &view.visible(&query.principal)).is_empty();
        if skip {
            return Ok(());
        }
        let shape = reading::read(&query.text);
        let mut wanted: Option<Arc<str>> = shape.wanted.map(Arc::from);
        // where only what rides on a request was left out, the rest is all there is to look at
        let core = if shape.unwanted.is_none() { wanted.take() } else { None };
        let mut parts: Vec<(PartKind, Arc<str>)> = Vec::new();
        parts.extend(wanted.map(|t| (PartKind::Wanted, t)));
        parts.extend(shape.unwanted.map(|t| (PartKind::Unwanted, Arc::from(t))));
        parts.extend(shape.clauses.into_iter().map(|t| (PartKind::Clause, Arc::from(t))));
        let whole = self.vectors(view, core.as_ref().unwrap_or(&query.text), query.lang, true);
        let each = futures::future::try_join_all(parts.into_iter().map(|(kind, text)| async move {
            let vectors = self.vectors(view, &text, Lang::of(&text), false).await?;
            Ok::<_, Error>(QueryPart { kind, text, vectors })
        }));
        let (vectors, parts) = futures::future::try_join(whole, each).await?;
        query.vectors = vectors;
        query.parts = parts;
        query.parts.extend(core.map(|text| QueryPart { kind: PartKind::Wanted, text, vectors: query.vectors.clone() }));
        Ok(())
    }

    /// Vectors of a text by the models of its language, and by the others where part of the fleet is written only in theirs.
    async fn vectors(&self, view: &View, text: &Arc<str>, lang: Lang, across: bool) -> Result<Vec<QueryVector>, Error> {
        let fleet = view.catalog.capability_count();
        let filled = |arm: ArmId| view.arms.get(arm.0).map_or(0, |a| a.dense.len());
        let models = &view.models;
        let native: Vec<ArmId> = models.for_lang(lang);
        let covered = native.iter().map(|a| filled(*a)).max().unwrap_or(0);
        let mut arms: Vec<ArmId> = native.into_iter().filter(|a| filled(*a) > 0).collect();
        let alone = arms.is_empty();
        if across && covered < fleet || alone {
            // Chinese characters are unknown to an English model: what it makes of them finds by chance
            let reads = |of: Lang| alone || of != Lang::En || lang != Lang::Zh;
            arms.extend(models.arms().filter(|(id, info)| filled(*id) > 0 && reads(info.lang)).map(|(id, _)| id));
            arms.sort_unstable();
            arms.dedup();
        }
        let one = |arm: ArmId| async move {
            let info = models.info(arm).cloned();
            let found: Vec<Embedding> = models.embed(arm, std::slice::from_ref(text), WorkClass::Query).await?;
            Ok::<_, Error>(info.zip(found.into_iter().next()).map(|(info, e)| QueryVector {
                model: info.fingerprint,
                vector: e.vector,
                tokens: e.tokens,
                truncated: e.truncated,
            }))
        };
        let vectors = futures::future::try_join_all(arms.into_iter().map(one)).await?;
        Ok(vectors.into_iter().flatten().collect())
    }
}

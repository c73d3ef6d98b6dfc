//! The service functions of messages, for every door: submit, follow, list, replay; work and receipts of agents.
//!
//! A caller that waits for its result holds none of the places of ordinary requests, so that a slow agent delays nobody else's call: it has places of
//! its own (`dispatch.waiting`), and beyond them gets its id at once.
//! Not here: what a message goes through (`dispatch`).

use crate::api::convert_message as convert;
use crate::api::pb;
use crate::api::service::{Call, Open, Service};
use crate::dispatch::engine::Receipt;
use crate::dispatch::service::{Dispatcher, Pulled, Session, Submitted};
use crate::error::{Code, Error};
use crate::types::envelope::{Mode, ReachId, SubmitRequest};
use crate::types::message::{Entry, Message, State};
use crate::types::request::AgentState;
use crate::types::{Grant, Principal};
use futures::future::{BoxFuture, FutureExt};
use futures::stream::{self, BoxStream, FuturesUnordered, StreamExt};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast::{self, error::RecvError};

/// Most dead letters of one replay.
const REPLAYS: usize = 100;
/// Pause between two of them: a replay of many must not be a flood.
const REPLAY_PAUSE: Duration = Duration::from_millis(5);

/// The request in the trace that came with the call, unless it names its own.
fn in_trace(call: &Call, request: SubmitRequest) -> SubmitRequest {
    let trace_id = request.trace_id.or_else(|| call.trace.as_deref().map(str::to_owned));
    SubmitRequest { trace_id, ..request }
}

impl Service {
    fn dispatcher(&self) -> Result<&Dispatcher, Error> {
        self.parts.dispatch.as_ref().ok_or_else(|| {
            Error::new(
                Code::FailedPrecondition,
                "messages are delivered by a running server: start one with `reach serve`, and name it with --server",
            )
        })
    }

    /// Takes in a message. Waits for the result when it is wanted, at most until the deadline of the call; then the message goes on without its caller.
    pub async fn submit(&self, call: &Call, message: pb::SubmitRequest) -> Result<pb::Reply, Error> {
        let mode = message.mode.as_deref().map_or(Some(Mode::Sync), Mode::parse);
        if mode == Some(Mode::Broadcast) {
            return self.broadcast(call, message).await;
        }
        let waits = mode == Some(Mode::Sync) && message.callback.is_none();
        let submitted = self.take_in(call, message).await?;
        let mut reply = convert::submitted(&submitted);
        if !waits || submitted.message.head.state.is_terminal() {
            return Ok(reply);
        }
        let Ok(_place) = self.waiting.try_acquire() else {
            let text = "too many callers wait for results (dispatch.waiting): ask for this one by its id";
            reply.warnings.push(pb::Note { code: "not_waited".into(), text: text.into() });
            return Ok(reply);
        };
        let m = &submitted.message;
        let now = self.dispatcher()?.now_ms();
        let left = Duration::from_millis(u64::try_from(m.head.expires_ms - now).unwrap_or(0)) + Duration::from_secs(1);
        let within = call.deadline.unwrap_or(left).min(self.limits().deadline_max);
        let ended = self.dispatcher()?.wait(m.id(), within).await?;
        Ok(pb::Reply { existing: reply.existing, slow_down_ms: reply.slow_down_ms, ..convert::reply(&ended) })
    }

    async fn take_in(&self, call: &Call, message: pb::SubmitRequest) -> Result<Submitted, Error> {
        self.run(call, "submit", None, async {
            let request = in_trace(call, convert::submit(message)?);
            self.dispatcher()?.submit(call.who.clone(), request).await
        })
        .await
    }

    async fn broadcast(&self, call: &Call, message: pb::SubmitRequest) -> Result<pb::Reply, Error> {
        self.run(call, "broadcast", None, async {
            let request = in_trace(call, convert::submit(message)?);
            let all = self.dispatcher()?.broadcast(call.who.clone(), request).await?;
            if let [only] = &all[..]
                && only.message.head.agent.is_none()
            {
                // nobody matches: the message itself came back
                return Ok(convert::submitted(only));
            }
            let existing = all.iter().all(|s| s.existing);
            let parts: Vec<Message> = all.into_iter().map(|s| s.message).collect();
            convert::broadcast_reply(&parts, existing).ok_or_else(|| Error::internal("a broadcast without a message"))
        })
        .await
    }

    /// Takes in a message and follows it.
    pub async fn submit_stream(
        self: &Arc<Self>,
        call: &Call,
        mut message: pb::SubmitRequest,
    ) -> Result<BoxStream<'static, pb::MessageEvent>, Error> {
        message.mode.get_or_insert_with(|| Mode::Stream.as_str().into());
        if message.mode.as_deref() == Some(Mode::Broadcast.as_str()) {
            return Err(Error::invalid_at("/mode", "another mode than broadcast", "watch each message of a broadcast by its id"));
        }
        let open = self.open()?;
        let submitted = self.take_in(call, message).await?;
        self.follow(submitted.message.id(), open).await
    }

    /// The life of a message so far and as it goes on; the reply comes last.
    pub async fn watch_message(
        self: &Arc<Self>,
        call: &Call,
        message: pb::GetMessageRequest,
    ) -> Result<BoxStream<'static, pb::MessageEvent>, Error> {
        let open = self.open()?;
        let found = self.run(call, "watch_message", None, async {
            let missing = match self.find(call, &message).await {
                Ok(found) => return Ok(found),
                Err(missing) => missing,
            };
            let who = self.dispatcher()?.named(call.who.clone(), message.caller.as_deref(), message.tenant.as_deref());
            let parts = self.parts_of(&who, &message.message_id, missing).await?;
            let ids: Vec<String> = parts.iter().take(5).map(|m| m.id().to_string()).collect();
            let hint = format!(
                "a broadcast has no life of its own: watch each of its {} parts by its reach id, such as {}",
                parts.len(),
                ids.join(", ")
            );
            Err(Error::new(Code::FailedPrecondition, hint))
        });
        let found = found.await?;
        self.follow(found.id(), open).await
    }

    async fn follow(&self, id: ReachId, open: Open) -> Result<BoxStream<'static, pb::MessageEvent>, Error> {
        let dispatcher = self.dispatcher()?.clone();
        // subscribed before the log is read, so that nothing is missed
        let news = dispatcher.watch(id);
        let mut follow = Follow { dispatcher, id, news: Some(news), seen: 0, ready: VecDeque::new(), over: false, _open: open };
        follow.catch_up().await?;
        Ok(stream::unfold(follow, |mut f| async move { f.next().await.map(|event| (event, f)) }).boxed())
    }

    async fn find(&self, call: &Call, m: &pb::GetMessageRequest) -> Result<Message, Error> {
        let dispatcher = self.dispatcher()?;
        let who = dispatcher.named(call.who.clone(), m.caller.as_deref(), m.tenant.as_deref());
        dispatcher.get(&who, &m.message_id).await
    }

    /// The parts of the broadcast of that id; where there is none, `missing` is the answer.
    async fn parts_of(&self, who: &Principal, id: &str, missing: Error) -> Result<Vec<Message>, Error> {
        let parts = if missing.code == Code::NotFound { self.dispatcher()?.parts(who, id).await? } else { Vec::new() };
        if parts.is_empty() { Err(missing) } else { Ok(parts) }
    }

    /// The whole life of a message.
    pub async fn get_message(&self, call: &Call, message: pb::GetMessageRequest) -> Result<pb::Message, Error> {
        self.run(call, "get_message", None, async {
            let dispatcher = self.dispatcher()?;
            let found = match self.find(call, &message).await {
                Ok(found) => found,
                Err(missing) => {
                    let who = dispatcher.named(call.who.clone(), message.caller.as_deref(), message.tenant.as_deref());
                    let parts = self.parts_of(&who, &message.message_id, missing).await?;
                    return convert::broadcast(&parts).ok_or_else(|| Error::not_found("message"));
                }
            };
            let log = dispatcher.log(found.id()).await?;
            Ok(convert::message(&found, Some(&log)))
        })
        .await
    }

    /// Calls a message off; a broadcast in all its parts.
    pub async fn cancel(&self, call: &Call, message: pb::CancelRequest) -> Result<pb::Reply, Error> {
        self.run(call, "cancel", None, async {
            let dispatcher = self.dispatcher()?;
            let who = dispatcher.named(call.who.clone(), message.caller.as_deref(), message.tenant.as_deref());
            let reason: String = message.reason.unwrap_or_default().chars().filter(|c| !c.is_control()).take(500).collect();
            let reason = if reason.is_empty() { "called off by its sender" } else { &reason };
            let missing = match dispatcher.cancel(&who, &message.message_id, reason).await {
                Ok(m) => return Ok(convert::reply(&m)),
                Err(e) => e,
            };
            let mut parts = self.parts_of(&who, &message.message_id, missing).await?;
            for part in &mut parts {
                *part = dispatcher.cancel(&who, &part.id().to_string(), reason).await?;
            }
            convert::broadcast_reply(&parts, false).ok_or_else(|| Error::not_found("message"))
        })
        .await
    }

    /// Messages, newest first. `dead` = dead letters alone.
    pub async fn list_messages(
        &self,
        call: &Call,
        message: pb::ListMessagesRequest,
        dead: bool,
    ) -> Result<pb::ListMessagesResponse, Error> {
        self.run(call, if dead { "list_dead_letters" } else { "list_messages" }, None, async {
            let mut filter = convert::filter(&message)?;
            if dead {
                if filter.state.is_some_and(|s| s != State::DeadLetter) {
                    return Err(Error::invalid_at("/state", "dead_letter, or nothing", "list other messages at /v1/messages"));
                }
                filter.state = Some(State::DeadLetter);
            }
            let page = self.dispatcher()?.list(&call.who, filter).await?;
            Ok(pb::ListMessagesResponse {
                messages: page.messages.iter().map(|m| convert::message(m, None)).collect(),
                next: page.next.map(|n| n.to_string()),
            })
        })
        .await
    }

    /// Delivers dead letters once more, one after the other.
    pub async fn replay(&self, call: &Call, message: pb::ReplayRequest) -> Result<pb::ReplayResponse, Error> {
        self.run(call, "replay", Some(self.limits().deadline_max), async {
            let dispatcher = self.dispatcher()?;
            let filtered = message.dead_tag.is_some() || message.agent.is_some() || message.limit.is_some();
            if message.ids.len() > REPLAYS || message.ids.is_empty() != filtered {
                return Err(Error::invalid_at(
                    "/ids",
                    format!("1 to {REPLAYS} reach ids, or a filter with a limit"),
                    "name them, or say which",
                ));
            }
            let limit = message.limit.map_or(REPLAYS, |n| n as usize);
            if !(1..=REPLAYS).contains(&limit) {
                return Err(Error::invalid_at("/limit", format!("a number from 1 to {REPLAYS}"), "replay the rest with another call"));
            }
            let mut ids = message.ids;
            if ids.is_empty() {
                let which =
                    pb::ListMessagesRequest { dead_tag: message.dead_tag, agent: message.agent, limit: Some(1_000), ..Default::default() };
                let filter = crate::dispatch::port::Filter { state: Some(State::DeadLetter), ..convert::filter(&which)? };
                // the oldest first, as they came; what was replayed already is left alone
                for letter in dispatcher.list(&call.who, filter).await?.messages.iter().rev() {
                    if ids.len() < limit && dispatcher.later_reach(letter).await?.is_none() {
                        ids.push(letter.id().to_string());
                    }
                }
            }
            let mut seen = std::collections::HashSet::new();
            ids.retain(|id| seen.insert(id.clone()));
            let ttl = message.ttl_ms.map(Duration::from_millis);
            if ttl.is_some_and(|t| t.is_zero() || t > crate::types::envelope::MAX_TTL) {
                return Err(Error::invalid_at("/ttl_ms", "1 ms to 24 h", "leave it out for that of the dead letter"));
            }
            let mut results = Vec::with_capacity(ids.len());
            for id in ids {
                let (reply, error) = match dispatcher.replay(&call.who, &id, ttl).await {
                    Ok(s) => (Some(convert::submitted(&s)), None),
                    Err(e) => (None, Some(crate::api::convert::error(&e))),
                };
                results.push(pb::ReplayResult { replayed_from: id, reply, error });
                tokio::time::sleep(REPLAY_PAUSE).await;
            }
            Ok(pb::ReplayResponse { results })
        })
        .await
    }

    /// What delivery does now, as far as the caller may see it.
    pub async fn stats(&self, call: &Call) -> Result<pb::StatsResponse, Error> {
        self.run(call, "stats", None, async {
            let d = self.dispatcher()?;
            let all = call.who.namespaces == Grant::All;
            let ms = |n: i64| u64::try_from(n).unwrap_or(0);
            let keep = d.retention();
            let counts = d.counters().named().into_iter().map(|(name, value)| pb::Count { name: name.into(), value });
            Ok(pb::StatsResponse {
                lanes: d.lanes().iter().filter(|l| call.who.owns(&l.agent.namespace)).map(convert::lane).collect(),
                counts: if all { counts.collect() } else { Vec::new() },
                open: all.then(|| d.open_len() as u64),
                retention_ms: ms(keep.keep_ms),
                retention_dead_ms: ms(keep.keep_dead_ms),
                callbacks: !d.secrets().is_empty(),
            })
        })
        .await
    }

    /// The message that an agent names: by its reach id, or by the message id of what is out to an agent of the caller's.
    fn reach_of(&self, call: &Call, id: &str) -> Result<ReachId, Error> {
        match convert::reach_id(id) {
            Ok(reach) => Ok(reach),
            Err(missing) => self.dispatcher()?.out_under(&call.who, id).ok_or(missing),
        }
    }

    async fn receive(&self, call: &Call, id: &str, delivery: u32, receipt: Result<Receipt, Error>) -> Result<pb::ReceiptReply, Error> {
        self.run(call, "receipt", None, async {
            let state = self.dispatcher()?.receipt_of(&call.who, None, self.reach_of(call, id)?, delivery, receipt?).await?;
            Ok(convert::receipt_reply(id, delivery, Ok(state)))
        })
        .await
    }

    /// The agent has done it.
    pub async fn ack(&self, call: &Call, m: pb::AckRequest) -> Result<pb::ReceiptReply, Error> {
        let (id, delivery) = (m.message_id.clone(), m.delivery);
        self.receive(call, &id, delivery, convert::ack(m)).await
    }

    /// The agent has not done it.
    pub async fn nack(&self, call: &Call, m: pb::NackRequest) -> Result<pb::ReceiptReply, Error> {
        let (id, delivery) = (m.message_id.clone(), m.delivery);
        self.receive(call, &id, delivery, convert::nack(m)).await
    }

    /// Another receipt of the agent.
    pub async fn receipt(&self, call: &Call, m: pb::ReceiptRequest) -> Result<pb::ReceiptReply, Error> {
        let (id, delivery) = (m.message_id.clone(), m.delivery);
        self.receive(call, &id, delivery, convert::receipt(m)).await
    }

    /// Opens the session of a pulling agent; `first` says who it is. Only who owns the agent's namespace may, for others there is no such agent.
    pub async fn work(
        self: &Arc<Self>,
        call: &Call,
        first: pb::WorkRequest,
        requests: BoxStream<'static, Result<pb::WorkRequest, Error>>,
    ) -> Result<BoxStream<'static, Result<pb::WorkItem, Error>>, Error> {
        let open = self.open()?;
        let session = self
            .run(call, "work", None, async {
                let agent = crate::api::convert::agent_key(first.agent.as_ref())?;
                let _: AgentState = self.parts.registry.get(&call.who, &agent, None).await?;
                if !call.who.owns(&agent.namespace) {
                    return Err(Error::not_found("agent"));
                }
                let dispatcher = self.dispatcher()?;
                let target = dispatcher.target_of(&agent).ok_or_else(|| Error::not_found("agent"))?;
                if first.started {
                    dispatcher.agent_started(&target);
                }
                Ok(dispatcher.work(&target))
            })
            .await?;
        let dispatcher = self.dispatcher()?.clone();
        let working =
            Working { dispatcher, who: call.who.clone(), session, requests, receipts: FuturesUnordered::new(), ended: false, _open: open };
        working.take(first);
        Ok(stream::unfold(working, |mut w| async move { w.next().await.map(|item| (item, w)) }).boxed())
    }
}

/// A message that is followed.
struct Follow {
    dispatcher: Dispatcher,
    id: ReachId,
    news: Option<broadcast::Receiver<(Entry, bool)>>,
    seen: u32,
    ready: VecDeque<pb::MessageEvent>,
    over: bool,
    _open: Open,
}

impl Follow {
    async fn next(&mut self) -> Option<pb::MessageEvent> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            if self.over {
                return None;
            }
            match self.news.as_mut()?.recv().await {
                Ok((entry, last)) => {
                    self.push(&entry);
                    if last {
                        // what was told last is durable: the stored message is the ended one
                        self.catch_up().await.ok()?;
                    }
                }
                Err(RecvError::Lagged(_)) => self.catch_up().await.ok()?,
                Err(RecvError::Closed) => {
                    self.catch_up().await.ok()?;
                    self.over = true;
                }
            }
        }
    }

    fn push(&mut self, entry: &Entry) {
        if entry.seq > self.seen {
            self.seen = entry.seq;
            let entry = Some(convert::entry(entry));
            self.ready.push_back(pb::MessageEvent { reach_id: self.id.to_string(), entry, reply: None });
        }
    }

    /// Everything that the store knows and that was not told yet.
    async fn catch_up(&mut self) -> Result<(), Error> {
        let message = self.dispatcher.stored(self.id).await?;
        for entry in self.dispatcher.log(self.id).await? {
            self.push(&entry);
        }
        if message.head.state.is_terminal() {
            self.over = true;
            let reply = Some(convert::reply(&message));
            self.ready.push_back(pb::MessageEvent { reach_id: self.id.to_string(), entry: None, reply });
        }
        Ok(())
    }
}

impl Drop for Follow {
    fn drop(&mut self) {
        self.news = None;
        self.dispatcher.unwatch(self.id);
    }
}

/// The open session of a pulling agent.
struct Working {
    dispatcher: Dispatcher,
    who: Principal,
    session: Session,
    requests: BoxStream<'static, Result<pb::WorkRequest, Error>>,
    receipts: FuturesUnordered<BoxFuture<'static, pb::WorkItem>>,
    ended: bool,
    _open: Open,
}

impl Working {
    /// Takes what the agent says. Receipts reach the engine in their order, at once; their answers wait for the disk.
    fn take(&self, request: pb::WorkRequest) {
        for r in request.receipts {
            let (id, delivery) = (r.reach_id.clone(), r.delivery);
            let begun = convert::reach_id(&id).and_then(|reach| Ok((reach, convert::work_receipt(r)?)));
            let answer =
                begun.map(|(reach, receipt)| self.dispatcher.receipt_of(&self.who, Some(self.session.agent()), reach, delivery, receipt));
            let told = async move {
                let answer = match answer {
                    Ok(waiting) => waiting.await,
                    Err(e) => Err(e),
                };
                pb::WorkItem { receipt: Some(convert::receipt_reply(&id, delivery, answer)), ..Default::default() }
            };
            self.receipts.push(told.boxed());
        }
        if request.want > 0 {
            self.session.demand(request.want.min(100_000));
        }
    }

    async fn next(&mut self) -> Option<Result<pb::WorkItem, Error>> {
        loop {
            if self.ended && self.receipts.is_empty() {
                return None;
            }
            tokio::select! {
                told = self.session.recv(), if !self.ended => match told? {
                    Pulled::Work(d) => return Some(Ok(pb::WorkItem { work: Some(convert::work(&d)), ..Default::default() })),
                    Pulled::Cancel { id, delivery } => {
                        let cancel = Some(pb::WorkCancel { reach_id: id.to_string(), delivery });
                        return Some(Ok(pb::WorkItem { cancel, ..Default::default() }));
                    }
                },
                Some(item) = self.receipts.next(), if !self.receipts.is_empty() => return Some(Ok(item)),
                request = self.requests.next(), if !self.ended => match request {
                    Some(Ok(request)) => self.take(request),
                    Some(Err(e)) => {
                        self.ended = true;
                        return Some(Err(e));
                    }
                    None => self.ended = true,
                },
            }
        }
    }
}

//! Words for people: why a candidate was dropped. Pure formatting of typed reasons.

use crate::types::decision::{DropReason, Dropped};

/// One sentence such as `orders/desk refund_create: closed until 09:00 Asia/Shanghai`.
pub fn why_not(dropped: &Dropped) -> String {
    format!("{} {}: {}", dropped.agent, dropped.capability, words(&dropped.why))
}

/// The reason alone.
pub fn words(why: &DropReason) -> String {
    match why {
        DropReason::ScopeMissing { scope } => format!("needs the scope {scope}"),
        DropReason::Region { serves } => format!("serves only {}", serves.join(", ")),
        DropReason::Closed { opens: Some(opens) } => format!("closed until {opens}"),
        DropReason::Closed { opens: None } => "closed".into(),
        DropReason::Attribute { name } => format!("its attribute {name} is another"),
        DropReason::Cost { cost, max } => format!("costs {cost}, more than the allowed {max}"),
        DropReason::LeaseExpired => "sent no heartbeat inside its lease".into(),
        DropReason::Unreachable => "can't be reached".into(),
        DropReason::Draining => "takes no new work (draining)".into(),
        DropReason::Breaker => "failed again and again: it gets no new work for a while".into(),
        DropReason::Overloaded => "is overloaded".into(),
        DropReason::Payload { pointer, expected } if pointer.is_empty() => format!("the payload does not fit: expected {expected}"),
        DropReason::Payload { pointer, expected } => format!("the payload does not fit at {pointer:?}: expected {expected}"),
        DropReason::Rule { name } => format!("denied by the rule {name:?}"),
        DropReason::NotPreferred => "is not among the preferred agents".into(),
        DropReason::NotTarget => "is not the target".into(),
        DropReason::Excluded => "was excluded by the caller".into(),
        DropReason::UnderFloor => "is too unlike the request".into(),
    }
}

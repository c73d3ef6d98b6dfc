//! Does a payload fit a capability's input schema? Misfits are dropped with the place and what was expected there.
//! The schema was compiled when it was registered. Cost: one validation, bounded by the size of the payload.

use crate::catalog::CapEntry;
use crate::types::decision::DropReason;
use serde_json::Value;

/// The reason why `payload` does not fit, or `None` when it fits or the capability has no schema.
pub fn misfit(cap: &CapEntry, payload: &Value) -> Option<DropReason> {
    let schema = cap.input.as_ref()?;
    let fault = schema.first_fault(payload)?;
    Some(DropReason::Payload { pointer: fault.pointer, expected: fault.expected })
}

//! Does a payload fit a capability's input schema? Misfits are dropped with the place and what was expected there.
//! The schema was compiled when it was registered. Cost: one validation, bounded by the size of the payload.

use crate::catalog::CapEntry;
use crate::types::decision::DropReason;
use serde_json::Value;

/// The reason why `payload` does not fit, or `None` when it fits or the capability has no schema.
pub fn misfit(cap: &CapEntry, payload: &Value) -> Option<DropReason> {
    let fault = cap.input()?.validate(payload).err()?.into_iter().next()?;
    Some(DropReason::Payload { pointer: fault.pointer, expected: fault.expected })
}

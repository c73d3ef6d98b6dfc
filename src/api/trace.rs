//! The trace of a caller, as it comes with a call: `traceparent` of W3C Trace Context (`https://www.w3.org/TR/trace-context/`).
//!
//! Not here: what is done with it (`api::deliver`), passing it on (`dispatch::http`).

use std::sync::Arc;

/// Trace id of a `traceparent`: 32 hexadecimal digits. Nothing where the value is not of that form, which begins a trace anew, as the standard says.
pub fn trace_id(traceparent: &str) -> Option<Arc<str>> {
    let mut parts = traceparent.trim().split('-');
    let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let hex = |text: &str, digits: usize| text.len() == digits && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    let zero = |text: &str| text.bytes().all(|b| b == b'0');
    let sound = hex(version, 2) && version != "ff" && hex(trace, 32) && !zero(trace) && hex(span, 16) && !zero(span) && hex(flags, 2);
    // the first version has four parts; later ones may have more
    (sound && (version != "00" || parts.next().is_none())).then(|| trace.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_standards_form_is_read_and_nothing_else() {
        let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
        for good in [format!("00-{trace}-00f067aa0ba902b7-01"), format!(" 01-{trace}-00f067aa0ba902b7-00-more")] {
            assert_eq!(trace_id(&good).as_deref(), Some(trace), "{good}");
        }
        let upper = trace.to_uppercase();
        for bad in [
            String::new(),
            trace.into(),
            format!("00-{trace}-00f067aa0ba902b7"),
            format!("00-{trace}-00f067aa0ba902b7-01-more"),
            format!("ff-{trace}-00f067aa0ba902b7-01"),
            format!("00-{trace}-0000000000000000-01"),
            format!("00-{upper}-00f067aa0ba902b7-01"),
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01".into(),
        ] {
            assert_eq!(trace_id(&bad), None, "{bad}");
        }
    }
}

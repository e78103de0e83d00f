//! W3C Trace Context (<https://www.w3.org/TR/trace-context/>).

use crate::traceparent::{TRACEPARENT, fields};
use http::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};

/// The header with what vendors know of a trace. It means nothing without [`TRACEPARENT`].
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
/// The flag of a trace that is recorded.
const SAMPLED: u8 = 1;
/// The flag of a trace with a random id.
const RANDOM: u8 = 2;
/// Longest value of [`TRACESTATE`] that a span keeps, in bytes: what every vendor must pass on.
const MAX_STATE: usize = 512;

/// Returns the span of the client that sent a request with these headers, if the client has named one.
pub(super) fn parent(headers: &HeaderMap) -> Option<SpanContext> {
    let [version, trace, parent, flags] = fields(only(headers, &TRACEPARENT)?)?;
    // Of other flags and versions, nothing is known.
    let known = if version == "00" { SAMPLED | RANDOM } else { SAMPLED };
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()? & known);
    let (trace, parent) = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(parent).ok()?);
    let state = only(headers, &TRACESTATE).filter(|value| value.len() <= MAX_STATE);
    let state = state.and_then(|value| value.to_str().ok()?.parse().ok()).unwrap_or(TraceState::NONE);
    Some(SpanContext::new(trace, parent, flags, true, state))
}

/// Returns the value of a header that does not occur twice.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a HeaderValue> {
    let mut values = headers.get_all(name).iter();
    values.next().filter(|_| values.next().is_none())
}

/// Makes a span the parent of what the application does with a request.
pub(super) fn propagate(span: &SpanContext, has_parent: bool, headers: &mut HeaderMap) {
    let value = format!("00-{}-{}-{:02x}", span.trace_id(), span.span_id(), span.trace_flags());
    let Ok(value) = HeaderValue::try_from(value) else { return };
    headers.insert(TRACEPARENT, value);
    if !has_parent {
        headers.remove(TRACESTATE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

    #[test]
    fn a_request_has_one_parent_or_none() {
        let mut headers = HeaderMap::new();
        assert!(parent(&headers).is_none());
        let value: HeaderValue = format!("00-{TRACE}-00f067aa0ba902b7-01").parse().unwrap();
        headers.insert(TRACEPARENT, value.clone());
        let found = parent(&headers).unwrap();
        assert_eq!(
            (found.trace_id().to_string(), found.span_id().to_string(), found.is_sampled()),
            (TRACE.to_owned(), "00f067aa0ba902b7".to_owned(), true)
        );
        headers.append(TRACEPARENT, value);
        assert!(parent(&headers).is_none());

        for (value, flags) in [
            (format!("00-{TRACE}-00f067aa0ba902b7-ff"), 3),
            (format!("01-{TRACE}-00f067aa0ba902b7-ff-new"), 1),
            (format!("00-{TRACE}-00f067aa0ba902b7-02"), 2),
        ] {
            headers.insert(TRACEPARENT, value.parse().unwrap());
            assert_eq!(parent(&headers).unwrap().trace_flags().to_u8(), flags, "{value}");
        }
        for (state, kept) in [("a=b", "a=b"), ("", ""), (&*format!("a={}", "b".repeat(512)), "")] {
            headers.insert(TRACESTATE, state.parse().unwrap());
            assert_eq!(parent(&headers).unwrap().trace_state().header(), kept);
        }
    }

    #[test]
    fn the_state_of_another_trace_is_not_passed_on() {
        let ids = (TraceId::from_hex(TRACE).unwrap(), SpanId::from_hex("00f067aa0ba902b7").unwrap());
        let span = SpanContext::new(ids.0, ids.1, TraceFlags::SAMPLED, false, TraceState::NONE);
        for (has_parent, state) in [(true, Some("a=b")), (false, None)] {
            let mut headers = HeaderMap::new();
            headers.insert(TRACESTATE, HeaderValue::from_static("a=b"));
            propagate(&span, has_parent, &mut headers);
            assert_eq!(headers[TRACEPARENT], format!("00-{TRACE}-00f067aa0ba902b7-01"));
            assert_eq!(headers.get(TRACESTATE).map(|value| value.to_str().unwrap()), state);
        }
    }
}

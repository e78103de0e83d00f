//! The header `traceparent` (<https://www.w3.org/TR/trace-context/>): it names the trace that a request belongs to.

use http::{HeaderMap, HeaderName, HeaderValue};

/// The header that names a request's trace.
pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// Lengths of the fields of a value.
const LENGTHS: [usize; 4] = [2, 32, 16, 2];

/// Returns the version, the trace, the parent and the flags of a value of [`TRACEPARENT`].
#[must_use]
pub fn fields(value: &HeaderValue) -> Option<[&str; 4]> {
    let text = value.to_str().ok()?;
    let mut parts = text.split('-');
    let fields = [parts.next()?, parts.next()?, parts.next()?, parts.next()?];
    let is_hex = |text: &str| text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let is_valid = fields.iter().zip(LENGTHS).all(|(field, length)| field.len() == length && is_hex(field));
    // Later versions may have more fields.
    let has_rest = parts.next().is_some();
    let [version, trace, parent, _] = fields;
    let is_zero = |text: &str| text.bytes().all(|byte| byte == b'0');
    let is_valid = is_valid && version != "ff" && !is_zero(trace) && !is_zero(parent);
    (is_valid && !(version == "00" && has_rest)).then_some(fields)
}

/// Returns the id of the trace in a value of [`TRACEPARENT`].
#[must_use]
pub fn trace_id(value: &HeaderValue) -> Option<&str> {
    fields(value).map(|[_, trace, ..]| trace)
}

/// Returns the id of the trace that a request with these headers belongs to.
pub(crate) fn trace_of(headers: &HeaderMap) -> Option<&str> {
    headers.get(TRACEPARENT).and_then(trace_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

    #[test]
    fn only_a_valid_trace_id_is_read() {
        let id = |text: &str| {
            let value = text.parse().unwrap();
            trace_id(&value).map(str::to_owned)
        };
        assert_eq!(id(&format!("00-{TRACE}-00f067aa0ba902b7-01")).as_deref(), Some(TRACE));
        assert_eq!(id(&format!("01-{TRACE}-00f067aa0ba902b7-01-later")).as_deref(), Some(TRACE));
        for wrong in [
            "",
            "00",
            "00-x-y-01",
            &format!("00-{TRACE}"),
            &format!("00-{TRACE}-00f067aa0ba902b7"),
            &format!("00-{TRACE}-00f067aa0ba902b7-1"),
            &format!("00-{TRACE}-00f067aa0ba902b7-01-"),
            &format!("ff-{TRACE}-00f067aa0ba902b7-01"),
            &format!("00-{TRACE}-0000000000000000-01"),
            &format!("00-{}-00f067aa0ba902b7-01", "0".repeat(32)),
            &format!("00-{}-00f067aa0ba902b7-01", TRACE.to_uppercase()),
        ] {
            assert_eq!(id(wrong), None, "{wrong}");
        }
    }
}

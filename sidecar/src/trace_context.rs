//! W3C Trace Context (<https://www.w3.org/TR/trace-context/>), which requests carry to the application unchanged.

use http::{HeaderName, HeaderValue};

/// The header that names a request's trace.
pub(crate) const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// Returns the id of the trace in a value of [`TRACEPARENT`].
pub(crate) fn trace_id(value: &HeaderValue) -> Option<&str> {
    let text = value.to_str().ok()?;
    let mut parts = text.split('-');
    let id = parts.nth(1)?;
    let is_hex = |text: &str| text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    (id.len() == 32 && is_hex(id) && parts.next()?.len() == 16).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_valid_trace_id_is_logged() {
        let id = |text: &str| {
            let value = text.parse().unwrap();
            trace_id(&value).map(str::to_owned)
        };
        let valid = "4bf92f3577b34da6a3ce929d0e0e4736";
        assert_eq!(id(&format!("00-{valid}-00f067aa0ba902b7-01")).as_deref(), Some(valid));
        for wrong in [
            "",
            "00",
            "00-x-y-01",
            &format!("00-{valid}"),
            &format!("00-{}-00f067aa0ba902b7-01", valid.to_uppercase()),
        ] {
            assert_eq!(id(wrong), None, "{wrong}");
        }
    }
}

//! Log lines about denials.

use http::HeaderMap;
use sluice_store::KeyHash;

use crate::config::snapshot::Snapshot;
use crate::limit::active::Effect;
use crate::limit::index::LimitIndex;
use crate::log_sampler::LogSampler;

/// Logs some denials of a sidecar.
#[derive(Debug, Default)]
pub(crate) struct DenialLog(LogSampler);

impl DenialLog {
    /// Logs a denial, or counts it if there were enough lines in this second. `describe` returns the client in words and the pattern
    /// of the path that the limit applies to.
    pub(crate) fn denied(
        &self,
        snapshot: &Snapshot,
        index: LimitIndex,
        key: KeyHash,
        headers: &HeaderMap,
        describe: impl FnOnce() -> (String, Option<String>),
    ) {
        if !tracing::enabled!(tracing::Level::INFO) {
            return;
        }
        let Some(left_out) = self.0.take() else { return };
        let policy = snapshot.policy(index);
        let limit = &policy.limits[usize::from(index.limit)].name;
        let outcome = match snapshot.limit(index).effect {
            Effect::Deny => "a request was denied",
            Effect::Mark(_) => "a request was marked",
            Effect::Observe => "a request would have been denied",
        };
        let (client, path) = describe();
        tracing::info!(
            policy = policy.qualified_name(),
            limit,
            client,
            %key,
            path,
            trace = trace_id(headers),
            left_out,
            "{outcome}"
        );
    }
}

/// Returns the id of the trace in the header `traceparent` of W3C Trace Context.
fn trace_id(headers: &HeaderMap) -> Option<&str> {
    let text = headers.get("traceparent")?.to_str().ok()?;
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
            let mut headers = HeaderMap::new();
            headers.insert("traceparent", text.parse().unwrap());
            trace_id(&headers).map(str::to_owned)
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

//! Log lines about denials.

use std::sync::Arc;
use std::time::Instant;

use http::HeaderMap;
use sluice_store::KeyHash;

use crate::config::snapshot::Snapshot;
use crate::limit::active::Effect;
use crate::limit::index::LimitIndex;
use crate::per_second::LogSampler;
use crate::trace::{TRACEPARENT, trace_id};

/// Logs some denials of a sidecar.
#[derive(Debug, Default)]
pub(crate) struct DenialLog(LogSampler);

impl DenialLog {
    /// Logs a denial, or counts it if there were enough lines in the second of `now`. `describe` returns the client in words and
    /// the pattern of the path that the limit applies to.
    pub(crate) fn denied(
        &self,
        snapshot: &Snapshot,
        index: LimitIndex,
        key: KeyHash,
        (headers, now): (&HeaderMap, Instant),
        describe: impl FnOnce() -> (Arc<str>, Option<String>),
    ) {
        if !tracing::enabled!(tracing::Level::INFO) {
            return;
        }
        let active = snapshot.limit(index);
        let Some(left_out) = self.0.take_of(&active.last_logged, now) else { return };
        let policy = snapshot.policy(index);
        let limit = &policy.limits[usize::from(index.limit)].name;
        let outcome = match active.effect {
            Effect::Deny => "a request was denied",
            Effect::Mark(_) => "a request was marked",
            Effect::Observe => "a request would have been denied",
        };
        let (client, path) = describe();
        tracing::info!(
            policy = policy.qualified_name(),
            limit,
            client = &*client,
            %key,
            path,
            trace = headers.get(TRACEPARENT).and_then(trace_id),
            left_out,
            "{outcome}"
        );
    }
}

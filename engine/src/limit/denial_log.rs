//! Log lines about denials.

use std::sync::Arc;
use std::time::Instant;

use sluice_store::KeyHash;

use crate::limit::active::Effect;
use crate::limit::index::LimitIndex;
use crate::limit::snapshot::Snapshot;
use crate::per_second::LogSampler;

/// The name of these lines in log filters, wherever this file is. `docs/operations.md` tells it.
const TARGET: &str = "sluice::denials";

/// A denied request, in words beside its client.
#[derive(Debug)]
pub(crate) struct DeniedRequest<'a> {
    /// The pattern of the path that the limit applies to.
    pub(crate) path: Option<String>,
    /// Id of the trace that the request belongs to.
    pub(crate) trace: Option<&'a str>,
}

/// Logs some denials of a process.
#[derive(Debug, Default)]
pub(crate) struct DenialLog(LogSampler);

impl DenialLog {
    /// Logs a denial, or counts it if there were enough lines in the second of `now`. `client` and `request` describe the request.
    pub(crate) fn denied<'a>(
        &self,
        snapshot: &Snapshot,
        index: LimitIndex,
        key: KeyHash,
        now: Instant,
        (client, request): (impl FnOnce() -> Arc<str>, impl FnOnce() -> DeniedRequest<'a>),
    ) {
        if !tracing::enabled!(target: TARGET, tracing::Level::INFO) {
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
        let DeniedRequest { path, trace } = request();
        tracing::info!(
            target: TARGET,
            policy = policy.qualified_name(),
            limit,
            client = &*client(),
            %key,
            path,
            trace,
            left_out,
            "{outcome}"
        );
    }
}

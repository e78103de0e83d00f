//! The state of a client's counter.

use sluice_config::client_pages::{CounterState, RateState};
use sluice_limiter::Decision;
use sluice_store::KeyHash;

use crate::limit::index::LimitIndex;
use crate::limit::snapshot::Snapshot;

/// Reads the counter of a client.
pub(super) async fn read(snapshot: &Snapshot, index: LimitIndex, key: KeyHash) -> CounterState {
    let limit = snapshot.limit(index);
    if limit.adaptive.is_some() {
        let reason = "the limit adapts to the load of the pod and has no counters";
        return CounterState::Unknown(reason.to_owned());
    }
    let rates = snapshot.rates(index);
    let decisions = match snapshot.limiter(index).peek(&rates.plan, key).await {
        Ok(Some(decisions)) => decisions,
        Ok(None) => {
            let reason = "this pod counts the limit by itself, and the limit counts denials: reading the counter could count as one";
            return CounterState::Unknown(reason.to_owned());
        }
        Err(error) => {
            let on_store_failure = snapshot.policy(index).on_store_failure;
            return CounterState::NoStore { error: error.to_string(), on_store_failure };
        }
    };
    let seconds = |micros: u64| micros as f64 / 1e6;
    let blocked_seconds = rates.names.blocked_for(&decisions).map(seconds);
    let of_rate = |(rule, decision): (&str, Decision)| RateState {
        rule: rule.trim_end().to_owned(),
        limit: decision.limit,
        remaining: decision.remaining,
        has_room: decision.admitted && blocked_seconds.is_none(),
        reset_seconds: rates.names.has_reset.then(|| seconds(decision.reset)),
        blocked_seconds,
    };
    CounterState::Rates(rates.names.rules(&decisions).map(of_rate).collect())
}

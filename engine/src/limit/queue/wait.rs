//! Whether a denied request waits, and where.

use std::time::Duration;

use sluice_store::PlannedCounter;

use crate::limit::index::LimitIndex;
use crate::limit::snapshot::Snapshot;
use crate::limit::state::State;

/// Time between two checks of a request that waits for a slot. Nothing tells when another pod releases one.
const SLOT_POLL: Duration = Duration::from_millis(50);

/// The wait of a request that its limits deny.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wait {
    /// The limit in whose queue the request waits: the one with the longest wait.
    pub(crate) limit: LimitIndex,
    /// The key whose line it joins.
    pub(super) key: u128,
    /// Cost of the request.
    pub(super) cost: u64,
    /// Time before which it is no use to ask again.
    pub(super) after: Duration,
}

impl Wait {
    /// Returns the wait of a request; `None` if it is admitted, if one of the limits that deny it has no queue, if one of its limits counts
    /// denied requests, or if no wait helps.
    pub(crate) fn of(snapshot: &Snapshot, states: &[State]) -> Option<Self> {
        // A request that waits asks several times, and each denial would count in such a limit.
        let counts = |counter: &PlannedCounter| {
            let mut rates = counter.limit.spec.rates.iter();
            rates.any(|rate| rate.count_denied && !rate.counts_only_own_denials())
        };
        if states.iter().any(|state| state.part.counters.iter().any(counts)) {
            return None;
        }
        let mut longest: Option<Self> = None;
        let decisions = states.iter().flat_map(|state| state.decisions().map(move |one| (state, one)));
        for (state, (n, index, decisions)) in decisions {
            let mut denials = decisions.iter().filter(|decision| !decision.admitted).peekable();
            if denials.peek().is_none() {
                continue;
            }
            let limit = snapshot.limit(index);
            limit.queue.as_ref()?;
            let after = if limit.concurrency.is_some() {
                SLOT_POLL
            } else {
                let mut waits = denials.map(|decision| decision.retry_after);
                Duration::from_micros(waits.try_fold(0, |longest, wait| Some(longest.max(wait?)))?)
            };
            if longest.is_none_or(|longest| after > longest.after) {
                let PlannedCounter { key, cost, .. } = &state.part.counters[n];
                longest = Some(Self { limit: index, key: key.0, cost: *cost, after });
            }
        }
        longest
    }
}

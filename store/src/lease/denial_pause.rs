//! The pause after a denial by the store, in which requests are denied without a call.
//!
//! The pause can be longer than the store's own retry-after, and so can deny what the store would admit.
//! Where quota comes back gradually, a call is worth its cost only when some quota has accumulated, and none
//! is lost meanwhile. In a fixed window the rest of the quota would be lost, so there the pause is never
//! longer than the store's retry-after. Other holders return what they do not use, so some of the paused
//! requests still probe the store: one in [`PROBE_EVERY`], and at least one a minute if there are requests.

use super::sizing::worthwhile_block;
use crate::check::CheckResponse;
use crate::plan::lease_terms::LeaseTerms;

/// Shortest pause, in microseconds, unless the limit refills quickly.
const SHORTEST_PAUSE: u64 = 50_000;

/// One in this many paused requests probes the store, but not before [`FIRST_PROBE`].
const PROBE_EVERY: u32 = 64;
/// Shortest time between two probes, in microseconds.
const FIRST_PROBE: u64 = 1_000_000;
/// Time after which the next request probes the store in any case, in microseconds.
const LATEST_PROBE: u64 = 60_000_000;

/// The state of the pause. Instants are microseconds of this process's clock.
#[derive(Debug, Default)]
pub(super) struct DenialPause {
    until: u64,
    /// Smallest cost that the pause denies.
    least_cost: u64,
    /// Time of the last probe, or of the denial.
    probed_at: u64,
    /// Number of requests denied since then.
    denied_since: u32,
    /// Time at which the store would admit a request again, by its own retry-after.
    retry_at: u64,
    /// Number of consecutive calls in which the store granted nothing.
    empty_calls: u32,
}

impl DenialPause {
    /// Reports whether acquiring is paused.
    pub(super) fn is_active(&self, now: u64) -> bool {
        now < self.until
    }

    /// Reports whether the pause denies a request of this cost.
    pub(super) fn covers(&self, cost: u64, now: u64) -> bool {
        now < self.until && cost.max(1) >= self.least_cost
    }

    /// Counts a request that the pause covers, and reports whether this one should probe the store.
    pub(super) fn probe_is_due(&mut self, now: u64) -> bool {
        let waited = now.saturating_sub(self.probed_at);
        self.denied_since = self.denied_since.saturating_add(1);
        let due = waited >= LATEST_PROBE || (waited >= FIRST_PROBE && self.denied_since >= PROBE_EVERY);
        if due {
            (self.probed_at, self.denied_since) = (now, 0);
        }
        due
    }

    /// Returns the time until a denied request should be retried, in microseconds.
    pub(super) fn retry_after(&self, now: u64) -> u64 {
        self.retry_at.max(self.until).saturating_sub(now).max(1)
    }

    /// Ends the pause, after the store granted all that was requested.
    pub(super) fn end(&mut self) {
        (self.empty_calls, self.until) = (0, 0);
    }

    /// Begins a pause if the response denies. `cost` is the cost that was denied, `empty` means that the
    /// store granted nothing, and `share` is the holder's share of the usage.
    pub(super) fn begin(
        &mut self,
        terms: &LeaseTerms,
        share: f64,
        response: &CheckResponse,
        cost: u64,
        empty: bool,
        now: u64,
    ) {
        let denials = response.decisions.iter().filter(|decision| !decision.admitted);
        let Some(retry_after) = denials.map(|decision| decision.retry_after.unwrap_or(u64::MAX)).max() else {
            return;
        };
        if retry_after == u64::MAX {
            // The cost exceeds the limit, so no wait helps. Smaller costs may still be admitted.
            return;
        }
        self.retry_at = now + retry_after;
        self.least_cost = cost;
        (self.probed_at, self.denied_since) = (now, 0);
        self.until = now + self.length(terms, share, retry_after);
        self.empty_calls = if empty { (self.empty_calls + 1).min(16) } else { 0 };
    }

    /// Returns the length of a pause: the store's retry-after, or the time until a worthwhile block has come
    /// back. It is shorter at first, and doubles with each empty call, as other holders may return what they
    /// do not use.
    fn length(&self, terms: &LeaseTerms, share: f64, retry_after: u64) -> u64 {
        let own_capacity = (terms.capacity as f64 * share).max(1.0);
        let refill = terms.refill_time as f64 * worthwhile_block(terms, share) / own_capacity;
        let shortest = SHORTEST_PAUSE.min(terms.refill_time / 10);
        let floor = (refill as u64).clamp(shortest, (terms.refill_time / 10).max(shortest));
        let backoff = floor.saturating_mul(1 << self.empty_calls);
        let wait = retry_after.min(backoff);
        if terms.refills_gradually { floor.max(wait) } else { wait }
    }
}

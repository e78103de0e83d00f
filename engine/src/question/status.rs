//! The part of an answer for each limit that was asked for.

use std::sync::Arc;

use sluice_config::descriptor::RateUnit;

/// The status of a descriptor, or of a limit that an application has named.
#[derive(Debug, Clone)]
pub struct Status {
    /// The decision of its rule.
    pub outcome: Outcome,
    /// The limit that counts it, if one does.
    pub limit: Option<CurrentLimit>,
    /// Hits that remain, for a gateway: none if it has no room.
    pub remaining: u64,
    /// The number that is left, also if it is too little.
    pub left: u64,
    /// Time until the limit has more, in seconds, rounded up, if that is known. A limit on concurrent requests has no such time, nor one
    /// that never admits the cost.
    pub reset_seconds: Option<u64>,
    /// Time after which the request may be admitted, in seconds, rounded up, if it has no room; `None` if it never is.
    pub retry_after_seconds: Option<u64>,
    /// Whether a denial of its rule is only told in the metadata of the answer.
    pub is_quota: bool,
}

impl Status {
    /// A descriptor that nothing is for.
    pub(crate) const UNMATCHED: Self = Self::without_limit(Outcome::Unmatched, 0, false);

    /// A descriptor that no limit counts.
    pub(crate) const fn without_limit(outcome: Outcome, remaining: u64, is_quota: bool) -> Self {
        Self {
            outcome,
            limit: None,
            remaining,
            left: remaining,
            reset_seconds: None,
            retry_after_seconds: None,
            is_quota,
        }
    }

    /// Denied, or would be, without being counted: `limit` admits nothing for this time.
    pub(crate) fn nothing(
        outcome: Outcome,
        limit: CurrentLimit,
        reset_seconds: Option<u64>,
        is_quota: bool,
    ) -> Self {
        let limit = Some(limit);
        Self { limit, reset_seconds, ..Self::without_limit(outcome, 0, is_quota) }
    }

    /// Compares what is left with a cost, which was not charged. `capacity` is the greatest cost that the limit ever admits, and
    /// `denied` the outcome without room.
    pub(crate) fn compare(&mut self, cost: u64, capacity: u64, denied: Outcome) {
        if self.outcome == Outcome::WithinLimit && self.left < cost {
            self.outcome = denied;
            self.retry_after_seconds = (cost <= capacity).then(|| self.reset_seconds.unwrap_or(0).max(1));
        }
    }

    /// Orders decisions about one request: the greatest is the one that a client should know.
    fn strictness(&self) -> (Outcome, std::cmp::Reverse<u64>) {
        (self.outcome, std::cmp::Reverse(self.remaining))
    }

    /// Takes another limit's decision about the descriptor over if it is the stricter one.
    pub(crate) fn merge(&mut self, other: Self) {
        if other.strictness() > self.strictness() {
            *self = other;
        }
    }
}

/// The decision of a rule about a descriptor, from the mildest to the strictest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// No rule is for it.
    Unmatched,
    /// Its rule admits everything.
    Unlimited,
    /// The limit has no room, and is in Shadow.
    Observed,
    /// The limit has room.
    WithinLimit,
    /// The limit has no room, and only the metadata of the answer tells it.
    QuotaExceeded,
    /// The limit has no room.
    OverLimit,
}

/// A limit, as an answer names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CurrentLimit {
    /// Number of requests in each period.
    pub requests: u64,
    /// The period, in milliseconds; of a limit on concurrent requests 0.
    pub period_millis: u64,
    /// The period is this unit ...
    pub unit: RateUnit,
    /// ... so many times.
    pub multiplier: u32,
    /// Name of the rule; empty without one.
    pub name: Arc<str>,
}

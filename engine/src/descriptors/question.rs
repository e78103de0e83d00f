//! A question, and its answer.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use sluice_config::descriptor::{Pair, RateUnit};
use smallvec::SmallVec;

/// A question about the descriptors of one request.
#[derive(Debug)]
pub struct Question<'a> {
    /// The domain.
    pub domain: &'a [u8],
    /// The descriptors.
    pub descriptors: SmallVec<[Descriptor<'a>; 2]>,
    /// The longest time that all calls to the store may take together.
    pub budget: Duration,
    /// Whether nothing is denied, so that each limit is counted alone.
    pub is_shadow: bool,
    /// Headers of the call, which may name its trace.
    pub headers: &'a HeaderMap,
}

/// A descriptor of a question.
#[derive(Debug)]
pub struct Descriptor<'a> {
    /// The pairs, in their order.
    pub pairs: SmallVec<[Pair<'a>; 4]>,
    /// Its cost.
    pub hits: Hits,
    /// A rate in place of that of the rule.
    pub rate: Option<OverrideRate>,
}

/// A rate that a descriptor brings along.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OverrideRate {
    /// Number of requests in each unit; with 0, none is admitted.
    pub requests: u32,
    /// The unit.
    pub unit: RateUnit,
}

/// The cost of a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hits {
    /// One hit, which is charged if there is room.
    One,
    /// These hits were used: they are charged whether or not there is room.
    Used(u64),
    /// None. The counter is only looked at.
    None,
    /// These hits are given back.
    GivenBack(u64),
}

/// The status of a descriptor.
#[derive(Debug, Clone)]
pub struct Status {
    /// The decision of its rule.
    pub outcome: Outcome,
    /// The limit that counts it, if one does.
    pub limit: Option<CurrentLimit>,
    /// Hits that remain.
    pub remaining: u64,
    /// Time until the limit has more, in seconds, rounded up.
    pub reset_seconds: u64,
    /// Whether a denial of its rule is only told in the metadata of the answer.
    pub is_quota: bool,
    /// Headers of the response that report the limit, as its policy says.
    pub headers: Vec<(&'static str, String)>,
}

impl Status {
    /// A descriptor that nothing is for.
    pub(crate) const UNMATCHED: Self = Self::without_limit(Outcome::Unmatched, 0, false);

    /// A descriptor that no limit counts.
    pub(crate) const fn without_limit(outcome: Outcome, remaining: u64, is_quota: bool) -> Self {
        Self { outcome, limit: None, remaining, reset_seconds: 0, is_quota, headers: Vec::new() }
    }

    /// Orders decisions about one request: the greatest is the one that a client should know.
    #[must_use]
    pub fn strictness(&self) -> (Outcome, std::cmp::Reverse<u64>) {
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
    /// The period is this unit ...
    pub unit: RateUnit,
    /// ... so many times.
    pub multiplier: u32,
    /// Name of the rule; empty without one.
    pub name: Arc<str>,
}

/// The answer to a question.
#[derive(Debug)]
pub struct Answer {
    /// A status for each descriptor, in their order.
    pub statuses: Vec<Status>,
    /// Whether the domain has rules.
    pub is_known_domain: bool,
    /// The mark of the limits that have counted the request, for sidecars behind the gateway.
    pub charged: Option<String>,
    /// The store's failure, if it did not answer.
    pub store_failure: Option<&'static str>,
}

impl Answer {
    /// Reports whether a descriptor is over its limit, so that the request is denied.
    #[must_use]
    pub fn is_over_limit(&self) -> bool {
        self.statuses.iter().any(|status| status.outcome == Outcome::OverLimit)
    }
}

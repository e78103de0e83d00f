//! A question, and its answer.

use std::time::Duration;

use http::HeaderMap;
use sluice_config::descriptor::{Pair, RateUnit};
use smallvec::SmallVec;

use crate::question::{Outcome, Status};

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
    /// The pairs, in their order, without that of the reservation.
    pub pairs: SmallVec<[Pair<'a>; 4]>,
    /// The id of the reservation that it settles, if it has one.
    pub reservation: Option<&'a [u8]>,
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
    /// Nothing was said: one hit, which is charged if there is room.
    Unset,
    /// One hit, which is charged if there is room.
    One,
    /// These hits were used: they are charged whether or not there is room.
    Used(u64),
    /// None. The counter is only looked at.
    None,
    /// These hits are given back.
    GivenBack(u64),
}

/// The answer to a question.
#[derive(Debug)]
pub struct Answer {
    /// A status for each descriptor, in their order.
    pub statuses: Vec<Status>,
    /// The headers by which a response reports the limits of policies, as these say.
    pub headers: HeaderMap,
    /// Whether the domain has rules.
    pub is_known_domain: bool,
    /// The mark of the limits that have counted the request, for sidecars behind the gateway.
    pub charged: Option<String>,
    /// The id by which what was reserved is settled.
    pub reservation: Option<String>,
    /// The number of counters in which something was reserved.
    pub reserved: usize,
    /// The number of reports that name a reservation, and not what was used: it stays as it is.
    pub without_hits: usize,
    /// For each report whether it has found the reservation that it settles.
    pub settled: Vec<bool>,
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

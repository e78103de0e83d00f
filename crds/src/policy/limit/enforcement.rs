//! Hard, soft and elastic enforcement of rates. Checks the treatment of requests that a limit denies.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sluice_config::duration::Duration;
use sluice_config::policy as compiled;
use sluice_config::policy::{Boosted, OnLimit};
use sluice_config::prepared::rejection::{Rejection, mark_header};
use sluice_limiter as limiter;
use sluice_limiter::{MAX_PERIOD_MS, Requests};

use crate::checks::field::{Field, number};
use crate::policy::Rate;

/// Strictness with which the rates are enforced. Exactly one field is required.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub enum Enforcement {
    /// Admits no more than the rates.
    Hard(Hard),
    /// Admits more than the rates for some time; only for slidingWindowCounter and fixedWindow.
    Soft(Soft),
    /// Admits more requests in a pod while that pod has spare capacity; only for a limit with exactly one
    /// rate.
    Elastic(Elastic),
}

/// Has no fields: write {}.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct Hard {}

/// Additional requests for some time.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Soft {
    /// Number of additional requests, 1 to 1000 percent of the rate, rounded down.
    #[schemars(range(min = 1, max = 1000))]
    pub over_percent: i64,
    /// Time for which additional requests are admitted, beginning with the first: a duration from 1ms to
    /// 8784h. They are available again one whole period after the window of the last additional request.
    #[serde(rename = "for")]
    pub duration: Duration,
}

/// A higher number of requests while the pod has spare capacity.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Elastic {
    /// Number of requests per period of the rate while the pod has spare capacity. Must be higher than the
    /// rate's own number.
    #[schemars(range(min = 1, max = 1_099_511_627_776i64))]
    pub requests: i64,
    /// Percentage of its capacity below which a pod has spare capacity, 1 to 100, measured over the last
    /// second.
    #[schemars(range(min = 1, max = 100))]
    pub utilization_below_percent: i64,
    /// Capacity of a pod, 100 percent of utilization.
    pub capacity: Capacity,
}

/// The capacity of a pod. Exactly one field is required.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub enum Capacity {
    /// Number of requests that the application of a pod can process at the same time, 1 to 1000000. A request
    /// is in flight from the moment when it is forwarded until its response is complete.
    InFlight(#[schemars(range(min = 1, max = 1_000_000))] i64),
}

impl Default for Enforcement {
    fn default() -> Self {
        Self::Hard(Hard {})
    }
}

impl Enforcement {
    /// Returns the soft extra of each rate, if the limit is soft.
    pub(crate) fn soft(&self, at: &Field<'_>) -> Option<limiter::Soft> {
        match self {
            Self::Soft(Soft { over_percent, duration }) => {
                let millis = at.at("soft.for").millis(*duration, MAX_PERIOD_MS)?;
                at.at("soft.overPercent").accept(limiter::Soft::new(number(*over_percent), millis))
            }
            Self::Hard(_) | Self::Elastic(_) => None,
        }
    }

    /// Returns the boosted number of requests, if the limit is elastic.
    pub(crate) fn boosted(&self, at: &Field<'_>, rates: &[Rate]) -> Option<Boosted> {
        match self {
            Self::Elastic(elastic) => elastic.compile(&at.at("elastic"), rates),
            Self::Hard(_) | Self::Soft(_) => None,
        }
    }
}

impl Elastic {
    fn compile(&self, at: &Field<'_>, rates: &[Rate]) -> Option<Boosted> {
        match rates {
            [rate] if self.requests <= rate.requests => at.at("requests").violation(format_args!(
                "must be higher than the {} requests of the rate, but is {}",
                rate.requests, self.requests
            )),
            [] | [_] => {}
            rates => at.violation(format_args!(
                "is only allowed with exactly one rate, but the limit has {}: make a limit for each rate",
                rates.len()
            )),
        }
        let Capacity::InFlight(capacity) = self.capacity;
        Some(Boosted {
            requests: at.at("requests").accept(Requests::new(number(self.requests)))?,
            below_percent: number(self.utilization_below_percent),
            capacity: compiled::Capacity::InFlight(number(capacity)),
        })
    }
}

/// Largest `maxWait` of a queue, in milliseconds.
const MAX_WAIT_MILLIS: u64 = 300_000;

/// Checks the treatment of requests that a limit denies.
pub(crate) fn check_on_limit(at: &Field<'_>, on_limit: &OnLimit) {
    let OnLimit { reject, queue, mark, block } = on_limit;
    if let Some(mark) = mark {
        let others = [("reject", reject.is_some()), ("queue", queue.is_some()), ("block", block.is_some())];
        for (name, _) in others.into_iter().filter(|(_, is_set)| *is_set) {
            at.at(name).violation("is not allowed with mark, which lets every request pass: remove it");
        }
        at.at("mark.header").accept(mark_header(&mark.header));
    }
    if queue.is_some() && block.is_some() {
        at.at("block").violation("is not allowed with queue: remove one of them");
    }
    if *on_limit == OnLimit::default() {
        at.violation("at least one of reject, queue, mark, block must be set");
    }
    if let Some(Err(nack)) = reject.as_ref().map(Rejection::new) {
        // The error begins with the field.
        match nack.0.split_once(": ") {
            Some((field, problem)) => at.at("reject").at(field).violation(problem),
            None => at.at("reject").violation(nack),
        }
    }
    if let Some(queue) = queue {
        at.at("queue.maxWait").millis(queue.max_wait, MAX_WAIT_MILLIS);
    }
    if let Some(block) = block {
        let within = at.at("block.within").accept(block.within.period());
        if within.and(at.at("block.for").accept(block.duration.period())).is_some() {
            at.at("block.after").accept(block.rate());
        }
    }
}

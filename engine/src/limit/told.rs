//! The numbers that answers tell: headers, rejections, descriptors and JSON take theirs from here.

use std::cmp::Reverse;

use sluice_limiter::Decision;

use crate::limit::index::LimitIndex;
use crate::limit::snapshot::Snapshot;

/// The one rate that an answer has room for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Told {
    pub(crate) limit: LimitIndex,
    /// Its position among the rates of the limit.
    pub(crate) position: usize,
    pub(crate) decision: Decision,
    /// Microseconds until a request that is denied would be admitted; `None` if it is not denied.
    wait: Option<u64>,
}

/// A wait that does not help.
const HOPELESS: u64 = u64::MAX;

impl Told {
    /// Returns the rate that denies for the longest time, or in an admission the one that will deny first. Limits come with the
    /// decisions of their rates.
    pub(crate) fn of<'a>(
        snapshot: &'a Snapshot,
        is_denial: bool,
        limits: impl Iterator<Item = (LimitIndex, &'a [Decision])>,
    ) -> Option<Self> {
        let mut told: Option<Self> = None;
        for (limit, decisions) in limits {
            let names = &snapshot.rates(limit).names;
            let blocked_for = if is_denial { names.blocked_for(decisions) } else { None };
            for (position, _, decision) in names.deciding(decisions) {
                let own = (!decision.admitted).then(|| decision.retry_after.unwrap_or(HOPELESS));
                let wait = own.max(blocked_for);
                let is_next = if is_denial {
                    wait.is_some() && told.is_none_or(|other| wait > other.wait)
                } else {
                    let tightness = |decision: &Decision| (decision.remaining, Reverse(decision.reset));
                    told.is_none_or(|other| tightness(&decision) < tightness(&other.decision))
                };
                if is_next {
                    told = Some(Self { limit, position, decision, wait });
                }
            }
        }
        told
    }

    /// Returns the seconds after which a request that is denied would be admitted, rounded up; `None` if no wait helps.
    pub(crate) fn retry_after(&self) -> Option<u64> {
        self.wait.filter(|&wait| wait != HOPELESS).map(|wait| wait.div_ceil(1_000_000).max(1))
    }

    /// Returns the microseconds until the rate has more. A rate that denies for good has no such time, nor has one of slots, which
    /// depend on how long requests take.
    pub(crate) fn reset(&self, snapshot: &Snapshot) -> Option<u64> {
        reset(snapshot, self.limit, &self.decision)
    }
}

/// Returns the microseconds until a rate of a limit has more, if that is known.
pub(crate) fn reset(snapshot: &Snapshot, limit: LimitIndex, decision: &Decision) -> Option<u64> {
    let is_hopeless = !decision.admitted && decision.retry_after.is_none();
    (snapshot.rates(limit).names.has_reset && !is_hopeless).then_some(decision.reset)
}

//! A check of one request against one counter of a token bucket or of the generic cell rate algorithm: what `decide` says
//! of it, in one go and on the entry itself. What does not change from check to check is divided once. The tests compare it
//! with `decide`.

use sluice_limiter::{Algorithm, Decision, Rate};

use super::entry::{Entry, Id, Layout};
use crate::check::CheckResponse;

/// A time: whole microseconds, and a rest in units of 1 / requests of one.
type Span = (u64, u64);

/// What a check is told, but for what follows from it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Verdict {
    /// How far the bucket is ahead of now.
    ahead: u64,
    rest: u64,
    /// Microseconds, if it is denied.
    wait: Option<u64>,
}

/// A bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Bucket {
    requests: u64,
    /// Milliseconds.
    period: u64,
    burst: u64,
    /// The time of one request.
    one: Span,
    /// The time of as many as it holds.
    capacity: Span,
    layout: Layout,
}

impl Bucket {
    pub(super) fn of(rate: &Rate, layout: Layout) -> Option<Self> {
        let (Algorithm::TokenBucket { burst } | Algorithm::Gcra { burst }) = rate.algorithm else {
            return None;
        };
        let (requests, burst) = (rate.requests.get(), burst.get());
        let span = |count: u64| {
            let product = u128::from(count) * u128::from(rate.period.micros());
            let whole = u64::try_from(product.checked_div(requests.into())?).ok()?;
            Some((whole, (product % u128::from(requests)) as u64))
        };
        let period = rate.period.millis();
        Some(Self { requests, period, burst, one: span(1)?, capacity: span(burst)?, layout })
    }

    /// What the entry of a counter holds if it counts by this rate.
    pub(super) fn tagged(&self, id: Id) -> Id {
        id.tagged(&self.layout)
    }

    /// Decides at `now`, and takes one. `None`, and nothing changed, if the entry comes from another number or clock.
    #[inline]
    pub(super) fn check(&self, entry: &mut Entry, now: u64) -> Option<Verdict> {
        let (rest, micros) = entry.counts();
        let free = entry.instant() * 1000 + micros;
        let (mut ahead, latest) =
            (free.saturating_sub(now), self.capacity.0 + u64::from(self.capacity.1 > 0));
        let mut rest = if free < now { 0 } else { rest };
        if rest >= self.requests || ahead > latest {
            return None;
        }
        let mut after = self.plus((ahead, rest), self.one);
        let wait = if after <= self.capacity {
            let free = now + after.0;
            if !entry.set(&self.layout, free / 1000, after.1, free % 1000) {
                return None;
            }
            (ahead, rest) = after;
            None
        } else {
            after = self.minus(after, self.capacity);
            Some(after.0 + u64::from(after.1 > 0))
        };
        Some(Verdict { ahead, rest, wait })
    }

    /// The answer that says so.
    #[inline]
    pub(super) fn answer(&self, verdict: Verdict, now: u64) -> CheckResponse {
        let Verdict { ahead, rest, wait } = verdict;
        let decision = Decision {
            admitted: wait.is_none(),
            limit: self.requests,
            period: self.period,
            remaining: self.requests_in(self.minus(self.capacity, (ahead, rest))).min(self.burst),
            reset: ahead + u64::from(rest > 0),
            retry_after: wait,
            delay: 0,
        };
        CheckResponse::of_one(decision, now)
    }

    #[inline]
    fn plus(&self, one: Span, other: Span) -> Span {
        let rest = one.1 + other.1;
        let carry = u64::from(rest >= self.requests);
        (one.0 + other.0 + carry, rest - carry * self.requests)
    }

    /// The difference, or nothing.
    #[inline]
    fn minus(&self, one: Span, other: Span) -> Span {
        if one <= other {
            (0, 0)
        } else if one.1 >= other.1 {
            (one.0 - other.0, one.1 - other.1)
        } else {
            (one.0 - other.0 - 1, one.1 + self.requests - other.1)
        }
    }

    /// How many requests fit in a time.
    #[inline]
    fn requests_in(&self, time: Span) -> u64 {
        match time.0.checked_mul(self.requests).and_then(|product| product.checked_add(time.1)) {
            Some(units) => units / (self.period * 1000),
            None => {
                let units = u128::from(time.0) * u128::from(self.requests) + u128::from(time.1);
                (units / u128::from(self.period * 1000)) as u64
            }
        }
    }
}

//! A token bucket or the generic cell rate algorithm, with a cost of 1, decided and charged on the cell
//! itself. Quotients that do not change from check to check are computed once.

use sluice_limiter::{Decision, Rate, Shape};

use crate::memory::cell::{CounterId, Layout, TableCell};

/// A duration: whole microseconds, and a rest in units of 1 / requests of a microsecond.
type Span = (u64, u64);

/// The part of a decision that the other numbers follow from.
#[derive(Debug, Clone, Copy)]
pub(in crate::memory) struct BucketVerdict {
    /// Time until the bucket is full again, in microseconds, and the rest.
    ahead: u64,
    rest: u64,
    /// Time until one request fits, in microseconds, if the check is denied.
    wait: Option<u64>,
}

/// A token bucket, or the generic cell rate algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::memory) struct Bucket {
    requests: u64,
    /// Period in milliseconds.
    period: u64,
    burst: u64,
    /// Time of one request.
    one: Span,
    /// Time of a full burst.
    capacity: Span,
    layout: Layout,
}

impl Bucket {
    pub(super) fn of(rate: &Rate, layout: Layout) -> Option<Self> {
        let Some(Shape::Bucket(burst)) = rate.shape() else { return None };
        let requests = rate.requests.get();
        let span = |count: u64| {
            let product = u128::from(count) * u128::from(rate.period.micros());
            let whole = u64::try_from(product.checked_div(requests.into())?).ok()?;
            Some((whole, (product % u128::from(requests)) as u64))
        };
        let period = rate.period.millis();
        Some(Self { requests, period, burst, one: span(1)?, capacity: span(burst)?, layout })
    }

    /// Returns the id in the cell of a counter with this rate.
    #[inline]
    pub(in crate::memory) fn tagged(&self, id: CounterId) -> CounterId {
        id.tagged(&self.layout)
    }

    /// Decides a check at `now` and charges it. Returns `None` and changes nothing if the cell was written
    /// with another number of requests, or by a clock that was ahead.
    #[inline]
    pub(in crate::memory) fn check(&self, cell: &mut TableCell, now: u64) -> Option<BucketVerdict> {
        let (rest, micros) = cell.counts();
        let free = cell.instant() * 1000 + micros;
        let (mut ahead, latest) =
            (free.saturating_sub(now), self.capacity.0 + u64::from(self.capacity.1 > 0));
        let mut rest = if free < now { 0 } else { rest };
        if rest >= self.requests || ahead > latest {
            return None;
        }
        let mut after = self.plus((ahead, rest), self.one);
        let wait = if after <= self.capacity {
            let free = now + after.0;
            if !cell.set(&self.layout, free / 1000, after.1, free % 1000) {
                return None;
            }
            (ahead, rest) = after;
            None
        } else {
            after = self.minus(after, self.capacity);
            Some(after.0 + u64::from(after.1 > 0))
        };
        Some(BucketVerdict { ahead, rest, wait })
    }

    /// Returns the whole decision.
    #[inline]
    pub(in crate::memory) fn decision(&self, verdict: BucketVerdict) -> Decision {
        let BucketVerdict { ahead, rest, wait } = verdict;
        Decision {
            admitted: wait.is_none(),
            limit: self.requests,
            period: self.period,
            remaining: self.requests_in(self.minus(self.capacity, (ahead, rest))).min(self.burst),
            reset: ahead + u64::from(rest > 0),
            retry_after: wait,
            delay: 0,
        }
    }

    #[inline]
    fn plus(&self, one: Span, other: Span) -> Span {
        let rest = one.1 + other.1;
        let carry = u64::from(rest >= self.requests);
        (one.0 + other.0 + carry, rest - carry * self.requests)
    }

    /// Returns the difference, or zero if it is negative.
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

    /// Returns the number of requests that fit into a duration.
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

//! Counting requests in a record. Instants are microseconds since the Unix epoch, in the rate's own time.

use super::algorithm::Algorithm;
use super::definition::Rate;
use crate::algorithm::gcra::BucketSize;
use crate::algorithm::{clock_windows, concurrency, fixed_window, gcra, log, sliding_window, warm_up};
use crate::number::MAX_COUNT;
use crate::record::Record;

impl Rate {
    /// Returns the record of this rate at `now`, and the instant that counts.
    ///
    /// That instant is never before the newest window stored, so time never runs backwards for a counter. A
    /// record from more than a period ahead, left by a wrong clock, is rebased: all its usage counts now.
    /// That denies requests for one more period at most, and never forgets any.
    #[must_use]
    #[inline]
    pub fn roll(&self, stored: Option<Record>, now: u64) -> (Record, u64) {
        let tag = self.tag();
        let Some(stored) = stored.filter(|record| record.tag == tag) else {
            return (self.fresh(now), now);
        };
        let quota = self.quota();
        match self.algorithm {
            Algorithm::SlidingWindowCounter { .. } => clock_windows::roll(stored, now),
            Algorithm::FixedWindow(alignment) => fixed_window::roll(alignment, quota, stored, now),
            Algorithm::SlidingWindowLog { .. } => log::roll(quota, stored, now),
            Algorithm::TokenBucket { burst } | Algorithm::Gcra { burst } => {
                (gcra::roll(BucketSize::Burst(burst), quota, stored, now), now)
            }
            Algorithm::LeakyBucket { max_wait } => {
                (gcra::roll(BucketSize::Delay(max_wait), quota, stored, now), now)
            }
            Algorithm::WarmUp(parameters) => (warm_up::roll(parameters, quota, stored, now), now),
            Algorithm::Concurrency { .. } => (concurrency::roll(quota, stored, now), now),
        }
    }

    fn fresh(&self, now: u64) -> Record {
        match self.algorithm {
            Algorithm::WarmUp(parameters) => warm_up::fresh(parameters, self.tag(), now),
            _ => Record::empty(self.tag(), now),
        }
    }

    /// Returns the usage of a rolled record, in requests.
    #[must_use]
    #[inline]
    pub fn used(&self, record: &Record, now: u64) -> u64 {
        let quota = self.quota();
        match self.algorithm {
            Algorithm::SlidingWindowCounter { bound, .. } => sliding_window::used(bound, record, now),
            Algorithm::FixedWindow(_) => record.current,
            Algorithm::SlidingWindowLog { .. } => log::used(record),
            Algorithm::TokenBucket { burst } | Algorithm::Gcra { burst } => {
                gcra::used(BucketSize::Burst(burst), quota, record, now)
            }
            Algorithm::LeakyBucket { max_wait } => {
                gcra::used(BucketSize::Delay(max_wait), quota, record, now)
            }
            Algorithm::WarmUp(_) => warm_up::used(record, now),
            Algorithm::Concurrency { .. } => concurrency::used(record),
        }
    }

    /// Reports whether a rolled record has room for `cost`. A cost of 0 is a peek and needs one request left.
    #[must_use]
    #[inline]
    pub fn has_room(&self, record: &Record, now: u64, cost: u64) -> bool {
        let (quota, cost) = (self.quota(), cost.max(1));
        match self.algorithm {
            Algorithm::SlidingWindowCounter { bound, .. } => {
                sliding_window::has_room(bound, self.soft, quota, record, now, cost)
            }
            Algorithm::FixedWindow(_) => fixed_window::has_room(self.soft, quota, record, now, cost),
            Algorithm::SlidingWindowLog { min_interval, .. } => {
                log::has_room(min_interval, quota, record, now, cost)
            }
            Algorithm::TokenBucket { burst } | Algorithm::Gcra { burst } => {
                gcra::has_room(BucketSize::Burst(burst), quota, record, now, cost)
            }
            Algorithm::LeakyBucket { max_wait } => {
                gcra::has_room(BucketSize::Delay(max_wait), quota, record, now, cost)
            }
            Algorithm::WarmUp(_) => warm_up::has_room(quota, record, now, cost),
            Algorithm::Concurrency { holder } => concurrency::has_room(holder, quota, record, cost),
        }
    }

    /// Returns a rolled record after `cost` was admitted. Counts saturate at [`MAX_COUNT`].
    #[must_use]
    #[inline]
    pub fn charge(&self, mut record: Record, now: u64, cost: u64) -> Record {
        let quota = self.quota();
        match self.algorithm {
            Algorithm::SlidingWindowCounter { bound, .. } => {
                sliding_window::charge(bound, self.soft, quota, &mut record, now, cost);
            }
            Algorithm::FixedWindow(_) => fixed_window::charge(self.soft, quota, &mut record, now, cost),
            Algorithm::SlidingWindowLog { .. } => log::charge(quota, &mut record, now, cost),
            Algorithm::TokenBucket { .. } | Algorithm::Gcra { .. } | Algorithm::LeakyBucket { .. } => {
                gcra::charge(quota, &mut record, now, cost);
            }
            Algorithm::WarmUp(parameters) => warm_up::charge(parameters, quota, &mut record, cost),
            Algorithm::Concurrency { holder } => {
                concurrency::charge(holder, quota, &mut record, now, cost);
            }
        }
        record
    }

    /// Returns a rolled record after `cost` was denied. It is unchanged unless this rate counts denials.
    #[must_use]
    #[inline]
    pub fn charge_denied(&self, mut record: Record, now: u64, cost: u64) -> Record {
        if self.counts_denied() {
            log::charge(self.quota(), &mut record, now, cost.max(1));
        }
        record
    }

    /// Reports whether denied requests count too.
    #[must_use]
    #[inline]
    pub fn counts_denied(&self) -> bool {
        matches!(self.algorithm, Algorithm::SlidingWindowLog { count_denied: true, .. })
    }

    /// Reports whether equal checks at the same instant may be decided together, from their number alone.
    #[must_use]
    pub fn is_mergeable(&self) -> bool {
        match self.algorithm {
            Algorithm::WarmUp(_) => false,
            Algorithm::SlidingWindowLog { min_interval, count_denied } => min_interval == 0 && !count_denied,
            _ => true,
        }
    }

    /// Returns the record as it was before `cost` was charged at `now`.
    #[must_use]
    pub fn undo_charge(&self, mut record: Record, now: u64, cost: u64) -> Record {
        match self.algorithm {
            Algorithm::TokenBucket { .. } | Algorithm::Gcra { .. } | Algorithm::LeakyBucket { .. } => {
                gcra::undo_charge(self.quota(), &mut record, cost);
                record
            }
            _ => self.settle(record, now, now, -(cost.min(MAX_COUNT) as i64)),
        }
    }

    /// Returns a record, rolled to `now`, with a correction of what was charged at the instant `charged`.
    ///
    /// The correction goes to the window that was charged: `delta` more, or less if it is negative. A refund
    /// never goes below zero used, and does nothing if that window has expired. For a leaky bucket `charged`
    /// is the time at which the request left: that of the check plus its delay.
    #[must_use]
    pub fn settle(&self, mut record: Record, now: u64, charged: u64, delta: i64) -> Record {
        let quota = self.quota();
        match self.algorithm {
            Algorithm::SlidingWindowCounter { .. } => clock_windows::settle(&mut record, charged, delta),
            Algorithm::FixedWindow(alignment) => {
                fixed_window::settle(alignment, &mut record, charged, delta);
            }
            Algorithm::SlidingWindowLog { .. } => log::settle(quota, &mut record, charged, delta),
            Algorithm::TokenBucket { burst } | Algorithm::Gcra { burst } => {
                gcra::settle(BucketSize::Burst(burst), quota, &mut record, charged, delta);
            }
            Algorithm::LeakyBucket { max_wait } => {
                gcra::settle(BucketSize::Delay(max_wait), quota, &mut record, charged, delta);
            }
            Algorithm::WarmUp(_) => warm_up::settle(quota, &mut record, delta),
            Algorithm::Concurrency { holder } => {
                concurrency::settle(holder, quota, &mut record, now, delta);
            }
        }
        record
    }
}

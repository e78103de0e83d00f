//! The decision about a check.

use super::algorithm::Algorithm;
use super::definition::Rate;
use crate::algorithm::gcra::BucketSize;
use crate::algorithm::view::RecordView;
use crate::algorithm::{concurrency, fixed_window, gcra, log, sliding_window, warm_up};
use crate::decision::Decision;
use crate::record::Record;

impl Rate {
    /// Returns this rate's decision about a check of `cost`.
    ///
    /// `record` and `now` come from [`Rate::roll`]. `has_room` is the result of [`Rate::has_room`] on that
    /// record. If the whole check was admitted, `charged` is set and the cost is already charged to `record`.
    #[must_use]
    #[inline]
    pub fn decision(&self, record: &Record, now: u64, cost: u64, has_room: bool, charged: bool) -> Decision {
        let (quota, cost) = (self.quota(), cost.max(1));
        match self.algorithm {
            Algorithm::SlidingWindowCounter { bound, .. } => {
                sliding_window::decide(bound, self.soft, quota, record, now, cost, has_room)
            }
            Algorithm::FixedWindow(_) => fixed_window::decide(self.soft, quota, record, now, cost, has_room),
            Algorithm::TokenBucket { burst } | Algorithm::Gcra { burst } => {
                gcra::decide(BucketSize::Burst(burst), quota, record, now, cost, has_room, charged)
            }
            Algorithm::LeakyBucket { max_wait } => {
                gcra::decide(BucketSize::Delay(max_wait), quota, record, now, cost, has_room, charged)
            }
            Algorithm::WarmUp(_) => warm_up::decide(quota, record, now, cost, has_room),
            Algorithm::SlidingWindowLog { .. } | Algorithm::Concurrency { .. } => {
                self.decide_from_view(&self.view(record, cost), now, cost, has_room)
            }
        }
    }

    /// Returns the summary of a record with a long tail that [`Rate::decide_from_view`] needs.
    #[must_use]
    pub fn view(&self, record: &Record, cost: u64) -> RecordView {
        match self.algorithm {
            Algorithm::Concurrency { .. } => concurrency::view(record),
            _ => log::view(self.quota(), record, cost),
        }
    }

    /// Returns the decision about a check, as [`Rate::decision`], from the view of a record.
    #[must_use]
    pub fn decide_from_view(&self, view: &RecordView, now: u64, cost: u64, has_room: bool) -> Decision {
        let (quota, cost) = (self.quota(), cost.max(1));
        match self.algorithm {
            Algorithm::SlidingWindowLog { min_interval, .. } => {
                log::decide(min_interval, quota, view, now, cost, has_room)
            }
            _ => concurrency::decide(quota, view, now, cost, has_room),
        }
    }

    /// Reports whether the record that the view summarizes has room for `cost`.
    #[must_use]
    pub fn view_has_room(&self, view: &RecordView, now: u64, cost: u64) -> bool {
        let (quota, cost) = (self.quota(), cost.max(1));
        match self.algorithm {
            Algorithm::SlidingWindowLog { min_interval, .. } => {
                log::view_has_room(min_interval, quota, view, now, cost)
            }
            _ => concurrency::view_has_room(quota, view, cost),
        }
    }
}

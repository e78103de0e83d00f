//! The times at which leases are reviewed for unused quota.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Reviews in the order of their times. Each lease is in here at most once.
#[derive(Debug, Default)]
pub(super) struct ReviewSchedule {
    /// Time of the review, in microseconds of this process's clock, and the id of the lease.
    reviews: Mutex<BinaryHeap<Reverse<(u64, u128)>>>,
    earlier: Notify,
}

/// The next review.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NextReview {
    /// Review this lease now. It is no longer scheduled.
    Due(u128),
    /// Nothing is due before this time.
    At(u64),
    /// Nothing is scheduled.
    None,
}

impl ReviewSchedule {
    pub(super) fn add(&self, at: u64, id: u128) {
        let mut reviews = self.lock();
        let is_first = reviews.peek().is_none_or(|&Reverse((first, _))| at < first);
        reviews.push(Reverse((at, id)));
        if is_first {
            self.earlier.notify_one();
        }
    }

    pub(super) fn next(&self, now: u64) -> NextReview {
        let mut reviews = self.lock();
        match reviews.peek() {
            Some(&Reverse((at, _))) if at > now => NextReview::At(at),
            _ => reviews.pop().map_or(NextReview::None, |Reverse((_, id))| NextReview::Due(id)),
        }
    }

    /// Waits until a review is added before all others.
    pub(super) async fn earlier(&self) {
        self.earlier.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, BinaryHeap<Reverse<(u64, u128)>>> {
        self.reviews.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! Sorts requests by time, within a bounded stretch of it: lines are written when a response ends, so some follow later ones.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use super::LoggedRequest;

/// Longest time that a request is held back, in microseconds of the log.
const MAX_LATE: u64 = 5 * 60 * 1_000_000;
/// Number of requests that are held back at most.
const MAX_HELD: usize = 1_000_000;

/// Requests that are held back, because earlier ones may follow.
#[derive(Default)]
pub(super) struct Sorter {
    held: BinaryHeap<Reverse<Held>>,
    /// Number of requests that were added.
    added: u64,
    newest: u64,
    has_ended: bool,
}

struct Held {
    at: u64,
    /// Requests of one time stay in the order of the log.
    number: u64,
    request: Box<LoggedRequest>,
}

impl Held {
    fn order(&self) -> (u64, u64) {
        (self.at, self.number)
    }
}

impl PartialEq for Held {
    fn eq(&self, other: &Self) -> bool {
        self.order() == other.order()
    }
}

impl Eq for Held {}

impl PartialOrd for Held {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Held {
    fn cmp(&self, other: &Self) -> Ordering {
        self.order().cmp(&other.order())
    }
}

impl Sorter {
    /// Reports whether the earliest request can be taken.
    pub(super) fn is_ready(&self) -> bool {
        let is_old = |earliest: u64| self.newest - earliest > MAX_LATE;
        self.has_ended || self.held.len() >= MAX_HELD || self.first().is_some_and(is_old)
    }

    /// Adds the next request, or the end of all requests.
    pub(super) fn add(&mut self, request: Option<LoggedRequest>) {
        let Some(request) = request else {
            self.has_ended = true;
            return;
        };
        self.added += 1;
        self.newest = self.newest.max(request.at);
        let held = Held { at: request.at, number: self.added, request: Box::new(request) };
        self.held.push(Reverse(held));
    }

    /// Returns the time of the earliest request.
    pub(super) fn first(&self) -> Option<u64> {
        self.held.peek().map(|Reverse(held)| held.at)
    }

    /// Takes the earliest request.
    pub(super) fn take(&mut self) -> Option<LoggedRequest> {
        self.held.pop().map(|Reverse(held)| *held.request)
    }
}

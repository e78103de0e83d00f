//! Sorts requests by time, within a bounded stretch of it: lines are written when a response ends, so some follow later ones.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, VecDeque};

use super::LoggedRequest;

/// Longest time that a request is held back, in microseconds of the log.
const MAX_LATE: u64 = 5 * 60 * 1_000_000;
/// Number of requests by whose times the log has not come so far: clocks of single lines may be wrong.
const AHEAD: usize = 8;
/// Number of requests that are held back at most.
const MAX_HELD: usize = 1_000_000;
/// Memory of the requests that are held back at most, in bytes.
const MAX_BYTES: usize = 1 << 30;

/// Requests that are held back, because earlier ones may follow.
#[derive(Default)]
pub(super) struct Sorter {
    /// Those that were not earlier than the one before them here.
    in_order: VecDeque<Held>,
    late: BinaryHeap<Reverse<Held>>,
    /// Memory of all of them.
    bytes: usize,
    /// Number of requests that were added.
    added: u64,
    /// The latest times. The earliest of them is that up to which the log has come: a single line may be far ahead.
    newest: BinaryHeap<Reverse<u64>>,
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
        let newest = self.newest.peek().filter(|_| self.newest.len() > AHEAD).map_or(0, |newest| newest.0);
        let is_old = |earliest: u64| newest > earliest + MAX_LATE;
        let held = self.in_order.len() + self.late.len();
        self.has_ended || held >= MAX_HELD || self.bytes >= MAX_BYTES || self.first().is_some_and(is_old)
    }

    /// Adds the next request, or the end of all requests.
    pub(super) fn add(&mut self, request: Option<Box<LoggedRequest>>) {
        let Some(request) = request else {
            self.has_ended = true;
            return;
        };
        self.added += 1;
        self.newest.push(Reverse(request.at));
        if self.newest.len() > AHEAD + 1 {
            self.newest.pop();
        }
        self.bytes += request.bytes();
        let held = Held { at: request.at, number: self.added, request };
        if self.in_order.back().is_none_or(|last| last.at <= held.at) {
            self.in_order.push_back(held);
        } else {
            self.late.push(Reverse(held));
        }
    }

    /// Returns the time of the earliest request.
    pub(super) fn first(&self) -> Option<u64> {
        let late = self.late.peek().map(|Reverse(held)| held.at);
        self.in_order.front().map(|held| held.at).into_iter().chain(late).min()
    }

    /// Takes the earliest request.
    pub(super) fn take(&mut self) -> Option<Box<LoggedRequest>> {
        let is_late = match (self.in_order.front(), self.late.peek()) {
            (Some(held), Some(Reverse(late))) => late < held,
            (held, _) => held.is_none(),
        };
        let held =
            if is_late { self.late.pop().map(|Reverse(late)| late) } else { self.in_order.pop_front() };
        let request = held?.request;
        self.bytes = self.bytes.saturating_sub(request.bytes());
        Some(request)
    }
}

#[cfg(test)]
mod tests {
    use http::Request;
    use http_body_util::Empty;

    use super::*;

    fn request(at: u64, path: &str) -> Box<LoggedRequest> {
        let request = Request::builder().uri(path).body(Empty::new()).unwrap();
        Box::new(LoggedRequest { at, request, client: [192, 0, 2, 1].into(), status: None })
    }

    /// Returns the paths in the order in which they are taken, of requests with these times in seconds.
    fn sorted(times: &[u64]) -> Vec<String> {
        let mut sorter = Sorter::default();
        let mut taken = Vec::new();
        let mut take = |sorter: &mut Sorter| {
            while sorter.is_ready()
                && let Some(logged) = sorter.take()
            {
                taken.push(logged.request.uri().path()[1..].to_owned());
            }
        };
        for (n, second) in times.iter().enumerate() {
            sorter.add(Some(request(second * 1_000_000, &format!("/{second}.{n}"))));
            take(&mut sorter);
        }
        sorter.add(None);
        take(&mut sorter);
        assert_eq!(sorter.bytes, 0);
        taken
    }

    #[test]
    fn requests_of_five_minutes_are_sorted_and_those_of_one_time_stay_in_order() {
        assert_eq!(sorted(&[5, 9, 5, 3, 9, 305, 4]), ["3.3", "4.6", "5.0", "5.2", "9.1", "9.4", "305.5"]);
        // One that is later still comes as late as it is, when the log has come so far.
        let times: Vec<_> = [5].into_iter().chain(306..315).chain([4, 315]).collect();
        let expected = [
            "5.0", "4.10", "306.1", "307.2", "308.3", "309.4", "310.5", "311.6", "312.7", "313.8", "314.9",
            "315.11",
        ];
        assert_eq!(sorted(&times), expected);
        // A single line that is far ahead makes no others late.
        assert_eq!(sorted(&[5, 900, 7, 6, 8]), ["5.0", "6.3", "7.2", "8.4", "900.1"]);
    }

    #[test]
    fn large_requests_are_held_back_in_bounded_memory() {
        let mut sorter = Sorter::default();
        let path = format!("/{}", "a".repeat(60_000));
        let mut added = 0;
        while !sorter.is_ready() {
            sorter.add(Some(request(1, &path)));
            added += 1;
        }
        assert!((15_000..18_000).contains(&added), "{added}");
    }
}

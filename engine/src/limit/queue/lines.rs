//! The lines of a queue: the requests of each key that wait, and whose turn it is. There is no waiting here, only the state.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use sluice_config::policy::QueueOrder;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Largest number of requests of a key that ask the store at a time.
const MOST_ASKING: usize = 64;

/// The lines of all keys of a limit.
#[derive(Debug, Default)]
pub(super) struct Lines {
    order: QueueOrder,
    by_key: HashMap<u128, Line>,
    /// The key of each waiting request. Numbers grow, so the first has waited longest.
    by_age: BTreeMap<u64, u128>,
    last_number: u64,
}

/// The waiting requests of a key.
#[derive(Debug)]
struct Line {
    /// In the order in which they arrived. Those that ask the store are among them.
    waiting: VecDeque<Waiting>,
    /// Number of requests that ask the store now.
    asking: usize,
    /// Number of requests that may: one, and after an admission as many as the limit had room for. Otherwise a line that has formed
    /// would pass one request for each round trip, however much room there is.
    may_ask: usize,
    /// The last denial of one of them.
    denial: Option<Denial>,
}

#[derive(Debug)]
struct Waiting {
    number: u64,
    charge: Charge,
    notify: Arc<Notify>,
}

/// The charge of a request by the limit. Requests with equal ones are denied alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Charge {
    /// Index of the rates that decide.
    pub(super) rates: u16,
    pub(super) cost: u64,
}

#[derive(Debug, Clone, Copy)]
struct Denial {
    charge: Charge,
    /// Time before which the same charge is denied again.
    until: Instant,
}

/// The place of a request in its line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Its turn has come. It may ask at this time.
    First(Option<Instant>),
    /// Others are before it, or ask the store.
    Behind,
    /// It had to make room for a newer request.
    Gone,
}

/// The answer of the store to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// The limit had room for so many more of the same cost.
    Admitted(u64),
    Denied,
    /// The request has left before.
    None,
}

impl Lines {
    /// Sets the order in which requests leave.
    pub(super) fn set_order(&mut self, order: QueueOrder) {
        self.order = order;
        self.by_key.values().for_each(|line| line.notify(order));
    }

    /// Reports whether requests of a key wait.
    pub(super) fn is_occupied(&self, key: u128) -> bool {
        self.by_key.contains_key(&key)
    }

    /// Adds a request of a key. Returns its number, or `None` if `most` requests wait already and the order makes no room.
    pub(super) fn enter(&mut self, key: u128, charge: Charge, notify: Arc<Notify>, most: u64) -> Option<u64> {
        if self.by_age.len() as u64 >= most {
            match self.order {
                QueueOrder::Fifo => return None,
                QueueOrder::Lifo => self.remove_oldest(),
            }
        }
        self.last_number += 1;
        let number = self.last_number;
        self.by_age.insert(number, key);
        let line = self.by_key.entry(key).or_default();
        line.waiting.push_back(Waiting { number, charge, notify });
        // With Lifo it is not the turn of another one any more.
        line.notify(self.order);
        Some(number)
    }

    fn remove_oldest(&mut self) {
        if let Some((&number, &key)) = self.by_age.first_key_value() {
            if let Some(line) = self.by_key.get(&key) {
                let oldest = line.waiting.iter().find(|waiting| waiting.number == number);
                oldest.into_iter().for_each(|oldest| oldest.notify.notify_one());
            }
            self.leave(key, number);
        }
    }

    /// Removes a request, and wakes the next ones of its key.
    pub(super) fn leave(&mut self, key: u128, number: u64) {
        self.by_age.remove(&number);
        if let Some(line) = self.by_key.get_mut(&key) {
            line.waiting.retain(|waiting| waiting.number != number);
            line.notify(self.order);
            self.remove_if_empty(key);
        }
    }

    /// Returns the place of a request.
    pub(super) fn place(&self, key: u128, number: u64) -> Place {
        let Some(line) = self.by_key.get(&key) else { return Place::Gone };
        let Some(waiting) = line.waiting.iter().find(|waiting| waiting.number == number) else {
            return Place::Gone;
        };
        let is_next = line.next(self.order).any(|next| next.number == number);
        if !is_next || line.asking >= line.may_ask {
            return Place::Behind;
        }
        let denial = line.denial.filter(|denial| denial.charge == waiting.charge);
        Place::First(denial.map(|denial| denial.until))
    }

    /// Notes that a request of a key asks the store.
    pub(super) fn ask(&mut self, key: u128) {
        if let Some(line) = self.by_key.get_mut(&key) {
            line.asking += 1;
        }
    }

    /// Notes the answer of the store, and wakes those whose turn it is.
    pub(super) fn asked(&mut self, key: u128, answer: Answer) {
        if let Some(line) = self.by_key.get_mut(&key) {
            line.asking = line.asking.saturating_sub(1);
            line.may_ask = match answer {
                Answer::Admitted(more) => more.clamp(1, MOST_ASKING as u64) as usize,
                Answer::Denied => 1,
                Answer::None => line.may_ask,
            };
            line.notify(self.order);
            self.remove_if_empty(key);
        }
    }

    /// Notes that a charge of a key is denied until this time.
    pub(super) fn denied(&mut self, key: u128, charge: Charge, until: Instant) {
        if let Some(line) = self.by_key.get_mut(&key) {
            line.denial = Some(Denial { charge, until });
        }
    }

    /// Forgets what is known about a key, because the policy has changed.
    pub(super) fn forget(&mut self, key: u128) {
        if let Some(line) = self.by_key.get_mut(&key) {
            line.denial = None;
            line.notify(self.order);
        }
    }

    /// Returns the time before which it is no use to ask for a key.
    pub(super) fn denied_until(&self, key: u128) -> Option<Instant> {
        Some(self.by_key.get(&key)?.denial?.until)
    }

    fn remove_if_empty(&mut self, key: u128) {
        if self.by_key.get(&key).is_some_and(|line| line.waiting.is_empty() && line.asking == 0) {
            self.by_key.remove(&key);
        }
    }
}

impl Default for Line {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), asking: 0, may_ask: 1, denial: None }
    }
}

impl Line {
    /// Iterates over the requests that may ask the store.
    fn next(&self, order: QueueOrder) -> impl Iterator<Item = &Waiting> {
        let (count, length) = (self.may_ask.min(self.waiting.len()), self.waiting.len());
        let range = match order {
            QueueOrder::Fifo => 0..count,
            QueueOrder::Lifo => length - count..length,
        };
        self.waiting.range(range)
    }

    fn notify(&self, order: QueueOrder) {
        self.next(order).for_each(|next| next.notify.notify_one());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use QueueOrder::{Fifo, Lifo};

    const ONE: Charge = Charge { rates: 0, cost: 1 };

    fn lines(order: QueueOrder) -> Lines {
        Lines { order, ..Lines::default() }
    }

    fn enter(lines: &mut Lines, key: u128) -> Option<u64> {
        lines.enter(key, ONE, Arc::default(), 3)
    }

    #[test]
    fn the_first_of_a_key_has_its_turn_and_keys_do_not_wait_for_each_other() {
        for (order, first, second) in [(Fifo, 0, 1), (Lifo, 1, 0)] {
            let mut lines = lines(order);
            let numbers = [1, 1, 2].map(|key| enter(&mut lines, key).unwrap());
            assert_eq!(lines.place(1, numbers[first]), Place::First(None));
            assert_eq!(lines.place(1, numbers[second]), Place::Behind);
            assert_eq!(lines.place(2, numbers[2]), Place::First(None));
            lines.ask(1);
            assert_eq!(lines.place(1, numbers[first]), Place::Behind, "it asks");
            lines.leave(1, numbers[first]);
            assert_eq!(lines.place(1, numbers[second]), Place::Behind, "the other still asks");
            lines.asked(1, Answer::None);
            assert_eq!(lines.place(1, numbers[second]), Place::First(None));
            lines.leave(1, numbers[second]);
            assert!(!lines.is_occupied(1) && lines.is_occupied(2));
            lines.leave(2, numbers[2]);
            assert!(lines.by_age.is_empty() && lines.by_key.is_empty());
        }
    }

    #[test]
    fn a_full_queue_refuses_the_new_request_or_drops_the_oldest_of_any_key() {
        let mut lines = lines(Fifo);
        let numbers = [1, 2, 2].map(|key| enter(&mut lines, key).unwrap());
        assert_eq!(enter(&mut lines, 3), None);
        lines.set_order(Lifo);
        let newest = enter(&mut lines, 3).unwrap();
        assert_eq!(lines.place(1, numbers[0]), Place::Gone);
        assert_eq!((lines.place(3, newest), lines.by_age.len()), (Place::First(None), 3));
        // A request that has left twice is gone once.
        lines.leave(1, numbers[0]);
        assert_eq!(lines.by_age.len(), 3);
    }

    #[test]
    fn as_many_may_ask_as_the_limit_has_room_for() {
        let mut lines = lines(Fifo);
        let numbers: Vec<u64> =
            (0..200).map(|_| lines.enter(1, ONE, Arc::default(), 1000).unwrap()).collect();
        let may_ask = |lines: &Lines| {
            numbers.iter().filter(|number| lines.place(1, **number) == Place::First(None)).count()
        };
        assert_eq!(may_ask(&lines), 1);
        for (room, expected) in [(5, 5), (1000, 64), (1, 1), (7, 7), (0, 1), (3, 3)] {
            lines.ask(1);
            lines.asked(1, Answer::Admitted(room));
            assert_eq!(may_ask(&lines), expected);
        }
        lines.ask(1);
        lines.asked(1, Answer::Denied);
        assert_eq!(may_ask(&lines), 1);
    }

    #[test]
    fn a_denial_holds_for_equal_charges_only() {
        let (mut lines, until) = (lines(Fifo), Instant::now());
        let large = Charge { rates: 0, cost: 80 };
        let first = lines.enter(1, large, Arc::default(), 9).unwrap();
        let second = lines.enter(1, ONE, Arc::default(), 9).unwrap();
        lines.denied(1, large, until);
        assert_eq!(lines.place(1, first), Place::First(Some(until)));
        lines.leave(1, first);
        assert_eq!(lines.place(1, second), Place::First(None));
        lines.denied(1, ONE, until);
        assert_eq!(lines.place(1, second), Place::First(Some(until)));
        lines.forget(1);
        assert_eq!(lines.place(1, second), Place::First(None));
    }
}

//! Random stored values.

use rand::Rng;
use rand::seq::IndexedRandom;
use sluice_limiter::{MAX_COUNT, Rate, Record, Tag};
use sluice_store::LimitSpec;

use super::keys::overflow_name;
use super::large::{MAX_BYTES, MAX_RECORDS};
use super::state::{CROWD, Focus, Stored, World, encode, ended, key_of, name};

impl World {
    /// Returns a random value: records of any version of a limit or of none, of any age, just below and above
    /// their limit, or bytes that are not records.
    pub(crate) fn seed(&mut self) -> (String, Stored) {
        let limit = self.any_limit();
        let key = self.key();
        let mut name = name(&limit, key);
        if limit.max_keys > 0 && self.rng.random_bool(if self.focus == Focus::Keys { 0.4 } else { 0.15 }) {
            if self.rng.random_bool(0.7) {
                return self.registry();
            }
            name = overflow_name(&limit.scope);
        }
        if self.rng.random_bool(0.03) {
            return (name, Stored::List);
        }
        if self.focus == Focus::Large && self.rng.random_bool(0.1) {
            return (name, stored(self.large_value(&limit)).expect("a value"));
        }
        let mut records = vec![];
        let own_only = self.is_everyday() && self.rng.random_bool(0.8);
        let how_many = match self.focus {
            _ if own_only => limit.rates.len(),
            Focus::Damaged => *[1, 1, 1, 1, 2].choose(&mut self.rng).unwrap(),
            _ => *[1, 1, 2, 4, 14].choose(&mut self.rng).unwrap(),
        };
        let foreign = how_many > 8;
        for n in 0..how_many {
            let rates = if foreign || !own_only && self.rng.random_bool(0.1) {
                self.limit(7).rates.clone()
            } else {
                limit.rates.clone()
            };
            let rate = rates[n % rates.len()];
            records.push(self.record(&rate, key));
        }
        if self.rng.random_bool(if own_only || self.focus == Focus::Damaged { 0.5 } else { 0.2 }) {
            // Records with room, whose counts take any number of bytes.
            for (record, rate) in records.iter_mut().zip(&limit.rates) {
                let most = 1 << self.rng.random_range(0..40);
                let edge = (1 << (8 * self.rng.random_range(1..6))) + self.rng.random_range(0..3) - 2;
                let current = if self.rng.random_bool(0.4) { edge } else { self.rng.random_range(0..most) };
                record.current = current.min(rate.requests.get().saturating_sub(2));
                record.previous = record.previous.min(1);
                // The count may become that of the previous window.
                if self.rng.random_bool(0.2) && !record.tag.has_view() {
                    record.window = record.window.saturating_sub(1);
                }
            }
        }
        if self.focus == Focus::Widths {
            records = limit.rates.iter().map(|rate| self.record_at_edge(rate)).collect();
        }
        let mut bytes = encode(&records);
        if self.rng.random_bool(if self.focus == Focus::Damaged { 0.8 } else { 0.1 }) {
            self.damage(&mut bytes);
        }
        match stored(bytes) {
            Some(stored) => (name, stored),
            None => self.seed(),
        }
    }

    /// Returns values of the same layout for all clients of the batch's only limit, as in production: with or
    /// without room, just below the boundary where a count needs another byte, or with a hard part of the
    /// previous window. The shared counter has room for a few of the clients.
    pub(crate) fn crowd(&mut self) -> Vec<(String, Stored)> {
        let share = if matches!(self.focus, Focus::Plain | Focus::Runs) { 0.95 } else { 0.6 };
        let Some(limit) = self.one.clone().filter(|_| self.rng.random_bool(share)) else { return vec![] };
        let mut widths: Vec<u32> =
            limit.rates.iter().map(|_| *[1, 1, 2, 2, 3, 4, 5].choose(&mut self.rng).unwrap()).collect();
        let mut all = vec![];
        // In many of these batches the same rate decides all checks.
        let tight = self.rng.random_bool(0.8).then(|| self.rng.random_range(0..limit.rates.len()));
        if let Some(tight) = tight.filter(|_| self.rng.random_bool(0.5)) {
            widths[tight] = 1;
        }
        for client in 0..CROWD {
            let mut records = vec![];
            for (n, (rate, &width)) in limit.rates.iter().zip(&widths).enumerate() {
                let is_roomy = tight.is_some_and(|tight| tight != n);
                records.push(match self.focus {
                    Focus::Widths => self.record_at_edge(rate),
                    _ if is_roomy => self.roomy(rate, width),
                    _ => self.record_of_width(rate, width),
                });
            }
            self.confuse(&limit, &mut records);
            let mut bytes = encode(&records);
            match self.rng.random_range(0..50) {
                0 => self.damage(&mut bytes),
                1 => bytes = with_width(&records, *[0, 7].choose(&mut self.rng).unwrap()),
                _ => {}
            }
            if let Some(stored) = stored(bytes) {
                all.push((name(&limit, key_of(client)), stored));
            }
        }
        if let Some(shared) = self.shared.clone().filter(|_| self.rng.random_bool(0.7)) {
            let rate = shared.limit.rates[0];
            let mut record = Record::empty(rate.tag(), self.now);
            let left = self.rng.random_range(0..8);
            record.current = rate.requests.get().saturating_sub(left);
            all.push((name(&shared.limit, shared.key), Stored::Records(vec![record])));
        }
        all
    }

    /// Returns a record of the current window with room.
    fn roomy(&mut self, rate: &Rate, width: u32) -> Record {
        let mut record = Record::empty(rate.tag(), self.now);
        let most = (rate.requests.get() / 4).min(1 << (8 * width));
        record.current = self.rng.random_range(0..=most);
        if rate.tag().previous_windows() > 0 {
            // The script has a short form for less than 2^18.
            record.previous = self.rng.random_range(0..=most.min(200_000));
        }
        record
    }

    /// Gives a few records the window or the tag of another rate of the limit.
    fn confuse(&mut self, limit: &LimitSpec, records: &mut [Record]) {
        let rates = limit.rates.len();
        if rates == 1 || self.rng.random_bool(0.7) {
            return;
        }
        let (own, other) = (self.rng.random_range(0..rates), self.rng.random_range(0..rates));
        let other = Record::empty(limit.rates[other].tag(), self.now);
        if self.rng.random_bool(0.5) {
            records[own].window = other.window;
        } else if records[own].tag.previous_windows() == other.tag.previous_windows() {
            records[own].tag = other.tag;
        }
    }

    /// Returns a record with a count that is about to take another byte.
    fn record_at_edge(&mut self, rate: &Rate) -> Record {
        let mut record = Record::empty(rate.tag(), self.now);
        let bytes = *[1, 2, 3, 4, 4, 5, 5].choose(&mut self.rng).unwrap();
        let edge = (1 << (8 * bytes)) + self.rng.random_range(0..3) - 2;
        let other = if self.rng.random_bool(0.5) { 0 } else { self.rng.random_range(0..20) };
        (record.current, record.previous) =
            if self.rng.random_bool(0.7) { (edge, other) } else { (other, edge.min(MAX_COUNT / 2)) };
        if rate.tag().previous_windows() == 0 {
            (record.current, record.previous) = (edge, 0);
        }
        // The count may become that of the previous window.
        if self.rng.random_bool(0.3) {
            record.window -= 1;
        }
        record
    }

    /// Returns a record whose counts take about this many bytes, nearly always of the current window.
    pub(super) fn record_of_width(&mut self, rate: &Rate, width: u32) -> Record {
        let mut record = Record::empty(rate.tag(), self.now);
        let most = (1 << (8 * width)) - 1;
        if rate.tag().previous_windows() > 0 {
            record.previous = match self.rng.random_range(0..6) {
                0 => 0,
                1..4 => self.hard_count(rate, most).unwrap_or(3),
                4 => self.rng.random_range(0..6),
                _ => self.rng.random_range(0..=most),
            }
            .min(most);
        }
        let (rolled, at) = rate.roll(Some(record.clone()), self.now);
        let spare = rate.ceiling().saturating_sub(rate.used(&rolled, at));
        record.current = match self.rng.random_range(0..8) {
            0..4 => spare.saturating_sub(self.rng.random_range(0..3)),
            4..6 => most - self.rng.random_range(0..2),
            // At the limit of the short form of a result.
            6 if width == 3 => (1 << 20) - self.rng.random_range(0..4),
            _ => self.rng.random_range(0..=most.min(spare + 1)),
        }
        .min(most);
        match self.rng.random_range(0..40) {
            0..2 => record.window -= self.rng.random_range(1..3),
            // The record of another rate with the same layout.
            2 | 3 if rate.period.millis() > 1 => record.tag = Tag::from_number(rate.tag().get() - (1 << 13)),
            _ => {}
        }
        record
    }
}

/// Encodes the records of windows with a width of the counts that no release writes.
fn with_width(records: &[Record], width: usize) -> Vec<u8> {
    let mut bytes = vec![];
    for record in records {
        bytes.extend(&(record.tag.get() + width as u64).to_le_bytes()[..6]);
        bytes.extend(&record.window.to_le_bytes()[..6]);
        let counts = 1 + record.tag.previous_windows() as usize;
        for count in &[record.current, record.previous][..counts.min(2)] {
            bytes.extend(&count.to_le_bytes()[..width]);
        }
    }
    bytes
}

/// Returns what a value consists of, or nothing if it is not to be compared.
fn stored(bytes: Vec<u8>) -> Option<Stored> {
    if bytes.len() > MAX_BYTES {
        return Some(Stored::Garbage(bytes));
    }
    match Record::decode_all(&bytes) {
        // No value is empty, and Redis does not keep a value that expired long ago. The script clamps counts that
        // no release writes when it writes them again, which is not compared.
        Ok(records) if records.is_empty() || records.iter().any(is_absurd) || ended(&records) => None,
        Ok(records) if records.len() > MAX_RECORDS => Some(Stored::Garbage(bytes)),
        Ok(records) => Some(Stored::Records(records)),
        Err(_) => Some(Stored::Garbage(bytes)),
    }
}

/// Reports whether no release writes such a record.
fn is_absurd(record: &Record) -> bool {
    // An empty log has always been expired.
    let empty = record.is_blank();
    // Instants out of order are never written, and a binary search does not find them.
    let disorder = record.tag.is_log() && !record.tail.is_sorted_by(|newer, older| newer >= older);
    let counts = [record.current, record.previous].into_iter().chain(record.tail.iter().copied());
    empty
        || disorder
        || record.overrun.since == 0 && record.overrun.last > 0
        || record.overrun.last.saturating_sub(record.overrun.since) > MAX_COUNT
        || !record.tag.has_view() && counts.max() > Some(MAX_COUNT)
        || record.expires_at() >= 1 << 52
        || record.window >= 1 << 47
}

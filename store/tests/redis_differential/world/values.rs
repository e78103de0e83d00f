//! Random stored values.

use rand::Rng;
use rand::seq::IndexedRandom;
use sluice_limiter::{MAX_COUNT, Rate, Record, Tag};

use super::state::{CROWD, Focus, Stored, World, encode, ended, key_of, name};

impl World {
    /// Returns a random value: records of any version of a limit or of none, of any age, just below and above
    /// their limit, or bytes that are not records.
    pub(crate) fn seed(&mut self) -> (String, Stored) {
        let limit = self.any_limit();
        let key = self.key();
        let name = name(&limit, key);
        if self.rng.random_bool(0.03) {
            return (name, Stored::List);
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
        if self.rng.random_bool(if own_only || self.is_focused_on_values() { 0.5 } else { 0.2 }) {
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
        match Record::decode_all(&bytes) {
            // The script clamps counts that no release writes when it writes them again, which is not
            // compared. And Redis does not keep a value that expired long ago.
            Ok(records) if records.iter().any(is_absurd) || ended(&records) => self.seed(),
            Ok(records) => (name, Stored::Records(records)),
            Err(_) => (name, Stored::Garbage(bytes)),
        }
    }

    /// Returns values of the same layout for all clients of the batch's only limit, as in production: with or
    /// without room, just below the boundary where a count needs another byte, or with a hard part of the
    /// previous window. The shared counter has room for a few of the clients.
    pub(crate) fn crowd(&mut self) -> Vec<(String, Stored)> {
        let Some(limit) = self.one.clone().filter(|_| self.rng.random_bool(0.6)) else { return vec![] };
        let widths: Vec<u32> =
            limit.rates.iter().map(|_| *[1, 1, 1, 2, 3, 4, 5].choose(&mut self.rng).unwrap()).collect();
        let mut all = vec![];
        for client in 0..CROWD {
            let records = limit
                .rates
                .iter()
                .zip(&widths)
                .map(|(rate, &width)| self.record_of_width(rate, width))
                .collect();
            all.push((name(&limit, key_of(client)), Stored::Records(records)));
        }
        if let Some(shared) = self.shared.clone().filter(|_| self.rng.random_bool(0.7)) {
            let rate = shared.limit.rates[0];
            let mut record = Record::empty(rate.tag(), self.now);
            let left = self.rng.random_range(0..8);
            record.current = rate.requests.get().saturating_sub(left);
            all.push((name(&shared.limit, shared.key), Stored::Records(vec![record])));
        }
        // No value is empty, and Redis keeps none that has expired.
        all.retain(|(_, stored)| !matches!(stored, Stored::Records(records) if ended(records)));
        all
    }

    /// Returns a record with a count that is about to take another byte.
    fn record_at_edge(&mut self, rate: &Rate) -> Record {
        let mut record = Record::empty(rate.tag(), self.now);
        let edge = (1 << (8 * self.rng.random_range(1..6))) + self.rng.random_range(0..4) - 3;
        let other = self.rng.random_range(0..20);
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
            record.previous = match self.rng.random_range(0..4) {
                0 => 0,
                1 => self.hard_count(rate).unwrap_or(3),
                2 => self.rng.random_range(0..6),
                _ => self.rng.random_range(0..=most),
            }
            .min(most);
        }
        let (rolled, at) = rate.roll(Some(record.clone()), self.now);
        let spare = rate.ceiling().saturating_sub(rate.used(&rolled, at));
        record.current = match self.rng.random_range(0..4) {
            0 => (spare + 1).saturating_sub(self.rng.random_range(0..4)),
            1 => most - self.rng.random_range(0..3),
            // At the limit of the short form of a result.
            2 if width == 3 => (1 << 20) - self.rng.random_range(0..4),
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

/// Reports whether no release writes such a record.
fn is_absurd(record: &Record) -> bool {
    // An empty log has always been expired.
    let empty = record.tag.has_view() && record.tail.is_empty();
    let counts = [record.current, record.previous].into_iter().chain(record.tail.iter().copied());
    // Instants out of order are never written, and a binary search does not find them.
    let disorder = record.tag.is_log() && !record.tail.is_sorted_by(|newer, older| newer >= older);
    empty
        || disorder
        || record.overrun.last.saturating_sub(record.overrun.since) > MAX_COUNT
        || !record.tag.has_view() && counts.max() > Some(MAX_COUNT)
        || record.expires_at() >= 1 << 52
        || record.window >= 1 << 47
}

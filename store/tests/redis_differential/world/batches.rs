//! Random batches.

use std::sync::Arc;

use rand::Rng;
use rand::seq::IndexedRandom;
use sluice_limiter::{Algorithm, Holder, MAX_COUNT};
use sluice_store::{Counter, KeyHash, LimitSpec, Lookup, Settlement, Taking};

use super::state::{BatchEntry, CROWD, EARLIEST, Focus, World, key_of, name};

impl World {
    /// Returns a random batch.
    pub(crate) fn entries(&mut self) -> Vec<BatchEntry> {
        let everyday = self.is_everyday();
        let one = self.one.is_some();
        let most = match everyday {
            true if one => 30,
            true if self.rng.random_bool(0.7) => 10,
            _ => 40,
        };
        let how_many = self.rng.random_range(1..most);
        // In most of these batches each client sends one check.
        let each_once = one && self.rng.random_bool(if self.focus == Focus::Runs { 0.9 } else { 0.6 });
        let first = self.rng.random_bool(0.5);
        let in_pairs = one && self.rng.random_bool(if self.focus == Focus::Runs { 0.1 } else { 0.2 });
        (0..how_many)
            .map(|n| {
                if self.rng.random_bool(0.15) {
                    return self.settlement();
                }
                if self.rng.random_bool(0.04) {
                    let key = self.key();
                    return BatchEntry::Reset(self.any_limit(), key);
                }
                let takes = match self.focus {
                    Focus::Reservations => 0.4,
                    Focus::Damaged => 0.05,
                    _ => 0.0,
                };
                if takes > 0.0 && self.rng.random_bool(takes) {
                    return self.taking();
                }
                let simple = match self.focus {
                    Focus::Huge => self.rng.random_bool(0.8),
                    _ if self.is_of_buckets() => self.rng.random_bool(0.5),
                    _ => everyday && self.rng.random_bool(0.9),
                };
                let single = one || self.is_focused_on_values();
                let several = if single { 1 } else { *[1, 1, 1, 2, 2, 3, 6].choose(&mut self.rng).unwrap() };
                let mut counters: Vec<Counter> = vec![];
                for _ in 0..several {
                    let limit = self.any_limit();
                    let cost = if simple { 1 } else { self.cost(&limit) };
                    let key = if each_once { key_of(n % CROWD) } else { self.key() };
                    // Two counters that share an overflow counter are decided as if each were alone.
                    let may_overflow = limit.max_keys > 0;
                    if counters.iter().all(|other| {
                        let may_meet = other.key == key || may_overflow || other.limit.max_keys > 0;
                        other.limit.scope != limit.scope || !may_meet
                    }) {
                        counters.push(Counter { limit, key, cost });
                    }
                }
                if let (true, Some(shared)) = (simple, self.shared.clone()) {
                    let at = if each_once && first { 0 } else { self.rng.random_range(0..=counters.len()) };
                    counters.insert(at, shared);
                }
                let merges =
                    (!simple || in_pairs) && counters.iter().all(|counter| counter.limit.is_mergeable());
                let callers = match merges {
                    true if in_pairs => 2,
                    true => *[1, 1, 1, 2, 3, 7, 40].choose(&mut self.rng).unwrap(),
                    false => 1,
                };
                BatchEntry::Check { counters, callers }
            })
            .collect()
    }

    /// Returns a look at a reservation or its settlement, mostly of a limit that has some.
    fn taking(&mut self) -> BatchEntry {
        let is_ledger = |limit: &Arc<LimitSpec>| {
            limit.rates.iter().any(|rate| matches!(rate.algorithm, Algorithm::Reservations { .. }))
        };
        let ledger = (0..8).map(|_| self.any_limit()).find(is_ledger);
        let ledger = ledger.unwrap_or_else(|| self.any_limit());
        let id = Holder::new(self.rng.random_range(0..5)).ok();
        let Some(id) = id.filter(|_| self.rng.random_bool(0.7)) else {
            return BatchEntry::Find(Lookup { ledger, key: self.key(), id });
        };
        match self.settlement() {
            BatchEntry::Settle(correction) => BatchEntry::Take(Taking { ledger, id, correction }, None),
            BatchEntry::Charge(counter) => {
                let Counter { limit, key, cost } = counter.clone();
                let correction = Settlement {
                    limit,
                    key,
                    charged: self.now,
                    delta: cost as i64,
                    overflowed: false,
                    least: 0,
                };
                BatchEntry::Take(Taking { ledger, id, correction }, Some(counter))
            }
            _ => unreachable!("a correction is one of both"),
        }
    }

    /// Returns a random settlement.
    fn settlement(&mut self) -> BatchEntry {
        let limit = self.any_limit();
        let delta = match self.rng.random_range(0..8) {
            0 => MAX_COUNT as i64,
            1 => -(MAX_COUNT as i64),
            _ => self.rng.random_range(-6..6),
        };
        let can_be_charged = limit.rates.iter().all(|rate| match rate.algorithm {
            Algorithm::SlidingWindowCounter { .. }
            | Algorithm::FixedWindow(_)
            | Algorithm::SlidingWindowLog { .. }
            | Algorithm::TokenBucket { .. }
            | Algorithm::Gcra { .. } => true,
            // Admission refuses settlements of these limits.
            Algorithm::LeakyBucket { .. }
            | Algorithm::WarmUp(_)
            | Algorithm::Concurrency { .. }
            | Algorithm::Reservations { .. } => false,
            // Neither a charge nor a refund changes a block.
            Algorithm::Block { .. } => true,
        });
        if can_be_charged && delta > 0 && self.rng.random_bool(0.7) {
            return BatchEntry::Charge(Counter { cost: delta.unsigned_abs(), key: self.key(), limit });
        }
        let rate = limit.rates[0];
        let (key, delta) = match self.refund_since_1970(&limit) {
            Some((key, refund)) => (key, -refund),
            None => (self.key(), delta),
        };
        let period = rate.tag().window_millis() * 1000;
        let windows = rate.tag().previous_windows();
        let charged = match self.rng.random_range(0..4) {
            0 => self.now - self.now % 1000,
            1 => self.now + period,
            2 => self.now.saturating_sub(period * self.rng.random_range(0..=windows + 1)),
            _ => self.now,
        };
        // The last reservation of a leaky bucket is identified by the end of its delay.
        let charged = if matches!(rate.algorithm, Algorithm::LeakyBucket { .. })
            && self.rng.random_bool(0.7)
            && let Some(record) =
                self.records(&name(&limit, key)).iter().find(|record| record.tag == rate.tag())
        {
            let (record, at) = rate.roll(Some(record.clone()), self.now);
            let before = rate.undo_charge(record, at, delta.unsigned_abs());
            before.window * 1000 + before.previous + u64::from(before.current > 0)
        } else {
            charged
        };
        let overflowed = limit.max_keys > 0 && self.rng.random_bool(0.3);
        // A holder says how many slots it has at least.
        let (charged, least) = match rate.algorithm {
            Algorithm::Concurrency { .. } if self.rng.random_bool(0.6) => {
                // About the time of a reset in this batch.
                let charged = (self.now / 1000 + self.rng.random_range(0..3) - 1) * 1000;
                (charged, self.rng.random_range(0..9))
            }
            _ => (charged, 0),
        };
        BatchEntry::Settle(Settlement { key, limit, charged, delta, overflowed, least })
    }

    /// Returns a key of which a token bucket has a record of about 1970, and the cost that takes it back to the
    /// beginning of that year.
    fn refund_since_1970(&self, limit: &LimitSpec) -> Option<(KeyHash, i64)> {
        let rate = limit.rates[0];
        if !matches!(rate.algorithm, Algorithm::TokenBucket { .. } | Algorithm::Gcra { .. }) {
            return None;
        }
        let find = |key| {
            let record = self.records(&name(limit, key)).iter().find(|record| record.tag == rate.tag())?;
            Some((key, (1..EARLIEST / 2).contains(&record.window).then_some(record)?))
        };
        let (key, record) = (0..4).find_map(|client| find(key_of(client)))?;
        let micros = u128::from(record.window * 1000 + record.previous);
        let cost = (micros * u128::from(rate.requests.get())).div_ceil(rate.period.micros().into());
        Some((key, cost.min(MAX_COUNT.into()) as i64))
    }

    /// Returns one of a few keys.
    pub(super) fn key(&mut self) -> KeyHash {
        let clients = if self.one.is_some() { CROWD } else { 4 };
        key_of(self.rng.random_range(0..clients))
    }

    /// Returns a random version of a random limit.
    pub(super) fn any_limit(&mut self) -> Arc<LimitSpec> {
        if let Some(one) = &self.one {
            return one.clone();
        }
        let versions = self.limits.choose(&mut self.rng).unwrap();
        if self.rng.random_bool(0.65) {
            return versions[0].clone();
        }
        versions.choose(&mut self.rng).unwrap().clone()
    }

    /// Returns a random cost.
    fn cost(&mut self, limit: &LimitSpec) -> u64 {
        let requests = limit.rates[0].requests.get();
        match self.rng.random_range(0..12) {
            0 | 8 => 0,
            1 => requests,
            2 => requests + 1,
            3 => requests / 2,
            4 => requests.saturating_sub(1),
            5 => MAX_COUNT,
            6 => MAX_COUNT + 1,
            7 => self.rng.random_range(0..=requests),
            _ => *[1, 1, 1, 2, 3].choose(&mut self.rng).unwrap(),
        }
    }
}

//! The decisions and stored values that the script must match.

use std::time::{SystemTime, UNIX_EPOCH};

use redis::Value;
use sluice_limiter::{Decision, Overrun, Rate, Record, SlotsFound};
use sluice_store::check::{
    Decisions, Records, charge, decide_with_overflow, find, reset, settle, take, was_rebased,
};
use sluice_store::{Counter, KeyHash, LimitSpec, Lookup, Settlement, Taking};

use super::keys::overflow_name;
use super::state::{BatchEntry, Stored, World, name};

impl World {
    /// Decides an entry and returns its part of the reply.
    pub(crate) fn decide(&mut self, entry: &BatchEntry) -> Vec<Value> {
        match entry {
            BatchEntry::Check { counters, callers } => self.check(counters, *callers, false),
            BatchEntry::Charge(counter) => self.check(std::slice::from_ref(counter), 1, true),
            BatchEntry::Settle(settlement) => vec![Value::Int(self.settle(settlement))],
            BatchEntry::Reset(limit, key) => vec![Value::Int(self.reset(limit, *key))],
            BatchEntry::Find(lookup) => self.find(lookup).map(Value::Int).to_vec(),
            BatchEntry::Take(taking, more) => self.take(taking, more.as_ref()),
        }
    }

    /// Returns the stored records of an entry's counters.
    pub(crate) fn records_of(&self, entry: &BatchEntry) -> Vec<Vec<Record>> {
        match entry {
            BatchEntry::Check { counters, .. } => counters
                .iter()
                .map(|counter| self.records(&name(&counter.limit, counter.key)).to_vec())
                .collect(),
            BatchEntry::Charge(counter) => {
                vec![self.records(&name(&counter.limit, counter.key)).to_vec()]
            }
            BatchEntry::Reset(limit, key) => vec![self.records(&name(limit, *key)).to_vec()],
            BatchEntry::Find(_) | BatchEntry::Take(..) => {
                entry.names().iter().map(|name| self.records(name).to_vec()).collect()
            }
            BatchEntry::Settle(settlement) => {
                vec![self.records(&name(&settlement.limit, settlement.key)).to_vec()]
            }
        }
    }

    /// Reports whether the plain script and the one for runs have to decide a check of this counter: the value is
    /// missing or holds just the records of its rates, none of which is ahead, and the products of their
    /// previous counts and the time left are exact in a double.
    pub(crate) fn must_decide(&self, counter: &Counter) -> bool {
        let is_exact = |record: &Record, rate: &Rate| {
            let (rolled, _) = rate.roll(Some(record.clone()), self.now);
            let rest = rate.period.millis() - self.now / 1000 % rate.period.millis();
            record.tag == rate.tag()
                && record.overrun == Overrun::default()
                && record.window <= Record::empty(rate.tag(), self.now).window
                && u128::from(rolled.previous) * u128::from(rest) < 1 << 53
        };
        let rates = &counter.limit.rates;
        match self.stored.get(&name(&counter.limit, counter.key)) {
            None => true,
            Some(Stored::Records(records)) => {
                records.len() == rates.len()
                    && records.iter().zip(rates).all(|(record, rate)| is_exact(record, rate))
            }
            Some(_) => false,
        }
    }

    /// Returns the states of a counter's rates.
    pub(crate) fn states_of(&self, counter: &Counter) -> Vec<[i64; 3]> {
        let state = |rate: &Rate| {
            let mut known = self.records(&name(&counter.limit, counter.key)).iter();
            let known = known.find(|record| record.tag == rate.tag()).cloned();
            let (record, _) = rate.roll(known, self.now + rate.phase(counter.key.0));
            [record.window, record.current, record.previous].map(|n| n as i64)
        };
        counter.limit.rates.iter().map(state).collect()
    }

    pub(super) fn check(&mut self, counters: &[Counter], callers: u64, is_charge: bool) -> Vec<Value> {
        let names = if self.is_general {
            self.names_with_overflow(counters)
        } else {
            counters.iter().map(|counter| name(&counter.limit, counter.key)).collect()
        };
        let mut admitted = 0;
        let shared: Vec<bool> = names.iter().map(|name| name.ends_with(":overflow")).collect();
        let (mut after, mut decisions): (Vec<Records>, _) = (vec![], Decisions::new());
        let broken = names.iter().find_map(|name| self.broken(name));
        for _ in 0..callers {
            after = names.iter().map(|name| self.records(name).iter().cloned().collect()).collect();
            let response = if is_charge {
                charge(counters, &mut after, self.now)
            } else {
                decide_with_overflow(counters, &mut after, self.now, &shared)
            };
            decisions = response.decisions;
            let passes = response.admitted && broken.is_none();
            admitted += u64::from(passes);
            for (n, ((counter, name), own)) in counters.iter().zip(&names).zip(&after).enumerate() {
                if self.broken(name).is_some() {
                    continue;
                }
                let records = self.records(name);
                let charged = if passes {
                    counter.cost > 0
                } else {
                    counts_denial(&counter.limit, records, own, self.now)
                };
                if charged && broken.is_none() {
                    self.note_charge(n, &counter.limit.scope, name);
                    let records = written(own, self.records(name), self.now);
                    self.write(name, records);
                } else if let Some(records) =
                    corrected(&counter.limit, counter.key, self.records(name), self.now)
                {
                    self.write(name, records);
                }
            }
        }
        if let Some(code) = broken {
            return vec![Value::Int(code)];
        }
        self.admitted += admitted;
        self.denied += callers - admitted;
        let mut values = vec![Value::Int(admitted as i64)];
        let rates =
            counters.iter().flat_map(|counter| counter.limit.rates.iter().map(|rate| (rate, counter.cost)));
        for (((rate, cost), record), decision) in rates.zip(after.iter().flatten()).zip(&decisions) {
            values.extend(reply(rate, cost, record, decision));
        }
        values
    }

    pub(super) fn settle(&mut self, settlement: &Settlement) -> i64 {
        let name = if settlement.overflowed {
            overflow_name(&settlement.limit.scope)
        } else {
            let name = name(&settlement.limit, settlement.key);
            self.note_counted(&settlement.limit, &name);
            name
        };
        if let Some(code) = self.broken(&name) {
            return code;
        }
        let mut records = self.records(&name).to_vec();
        let rates = &settlement.limit.rates;
        let is_stored = |rate: &Rate| records.iter().any(|record| record.tag == rate.tag());
        let is_former = |record: &Record| rates.iter().all(|rate| record.tag != rate.tag());
        let begins = rates.iter().any(|rate| rate.tag().has_clock_windows() && !is_stored(rate));
        let has_former = records.iter().any(|record| record.tag.has_clock_windows() && is_former(record));
        let known = rates.iter().any(is_stored) || begins && has_former;
        let found = settle(settlement, &mut records, self.now);
        if known || matches!(found, SlotsFound::Fewer(_)) {
            self.write(&name, records);
        }
        match found {
            SlotsFound::Enough => 0,
            SlotsFound::Fewer(fewer) => fewer as i64,
            SlotsFound::Reset => -3,
        }
    }

    fn find(&self, lookup: &Lookup) -> [i64; 4] {
        let name = name(&lookup.ledger, lookup.key);
        if let Some(code) = self.broken(&name) {
            return [code, 0, 0, 0];
        }
        let Some(found) = find(lookup.id, self.records(&name), self.now) else { return [0; 4] };
        [found.id.get(), found.cost, found.charged / 1000, found.charged % 1000].map(|n| n as i64)
    }

    fn take(&mut self, taking: &Taking, more: Option<&Counter>) -> Vec<Value> {
        let name = name(&taking.ledger, taking.correction.key);
        if let Some(code) = self.broken(&name) {
            return vec![Value::Int(code)];
        }
        let mut records = self.records(&name).to_vec();
        if !take(taking.id, &mut records, self.now) {
            return vec![Value::Int(0)];
        }
        self.write(&name, records);
        let correction = match more {
            Some(counter) => self.check(std::slice::from_ref(counter), 1, true),
            None => vec![Value::Int(self.settle(&taking.correction))],
        };
        [vec![Value::Int(1)], correction].concat()
    }

    fn reset(&mut self, limit: &LimitSpec, key: KeyHash) -> i64 {
        let name = name(limit, key);
        if let Some(code) = self.broken(&name) {
            return code;
        }
        self.note_counted(limit, &name);
        let stored = match self.stored.get(&name) {
            Some(Stored::Records(records)) => &records[..],
            _ => &[],
        };
        let left = reset(limit, stored, self.now);
        if left.is_empty() {
            self.note_write(&name);
            self.stored.remove(&name);
        } else {
            self.write(&name, left.into_vec());
        }
        0
    }

    pub(super) fn write(&mut self, name: &str, records: Vec<Record>) {
        self.written.push(name.to_owned());
        self.note_write(name);
        self.stored.insert(name.to_owned(), Stored::Records(records));
    }

    /// Removes the values that Redis does not keep: those that had expired long ago when they were written.
    pub(crate) fn remove_expired(&mut self) {
        let real = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
        for name in self.written.drain(..) {
            let is_expired = match self.stored.get(&name) {
                Some(Stored::Records(records)) => records.iter().all(|record| record.expires_at() < real),
                _ => false,
            };
            if is_expired {
                self.stored.remove(&name);
            }
        }
    }
}

/// Returns the state of a rate as the script sends it.
fn reply(rate: &Rate, cost: u64, record: &Record, decision: &Decision) -> Vec<Value> {
    let mut values = if rate.counts_only_own_denials() {
        let view = rate.view(record, cost);
        // Whether the client was blocked before.
        vec![
            Value::Int(view.newest as i64),
            Value::Int(view.used as i64),
            Value::Int(i64::from(!decision.admitted)),
        ]
    } else if record.tag.has_view() {
        let view = rate.view(record, cost);
        [view.newest, view.used, view.leaves].map(|n| Value::Int(n as i64)).to_vec()
    } else if record.tag.has_tail() {
        let counts = [record.previous].into_iter().chain(record.tail.iter().copied());
        let bytes: Vec<u8> = counts.flat_map(|count| count.to_le_bytes().into_iter().take(6)).collect();
        vec![Value::Int(record.window as i64), Value::Int(record.current as i64), Value::BulkString(bytes)]
    } else {
        [record.window, record.current, record.previous].map(|n| Value::Int(n as i64)).to_vec()
    };
    if rate.soft.is_some() {
        values.extend([record.overrun.since, record.overrun.last].map(|n| Value::Int(n as i64)));
    }
    values
}

/// Reports whether a denial changes a counter: a rate counts denied requests, or a block counts this one.
fn counts_denial(limit: &LimitSpec, before: &[Record], after: &[Record], now: u64) -> bool {
    limit.rates.iter().zip(after).any(|(rate, after)| {
        if !rate.counts_only_own_denials() {
            return rate.count_denied;
        }
        match before.iter().find(|record| record.tag == rate.tag()) {
            // A denial is a further instant, or the beginning of a block.
            Some(before) => rate.roll(Some(before.clone()), now).0 != *after,
            None => !after.is_blank(),
        }
    })
}

/// Returns the records that are stored for a charged counter: its own first, then up to 8 others that have
/// not expired.
fn written(own: &[Record], before: &[Record], now: u64) -> Vec<Record> {
    let foreign = before.iter().filter(|record| own.iter().all(|used| used.tag != record.tag));
    own.iter().cloned().chain(foreign.filter_map(|record| record.clone().carry_over(now)).take(8)).collect()
}

/// Returns the records of a counter that is not charged, if some of them were rebased.
fn corrected(limit: &LimitSpec, key: KeyHash, before: &[Record], now: u64) -> Option<Vec<Record>> {
    let mut records = before.to_vec();
    let mut changed = false;
    for rate in &limit.rates {
        if let Some(record) = records.iter_mut().find(|record| record.tag == rate.tag()) {
            let (rolled, _) = rate.roll(Some(record.clone()), now + rate.phase(key.0));
            if was_rebased(record, &rolled) {
                *record = rolled;
                changed = true;
            }
        }
    }
    changed.then_some(records)
}

//! The arguments of the scripts for a batch, encoded independently of the store's own encoder.

use sluice_limiter::{Holder, Rate};
use sluice_store::redis::Script;
use sluice_store::{Counter, LimitSpec, Settlement};

use super::world::{BatchEntry, name};

/// The keys and the other argument of a call.
pub(crate) type Arguments = (Vec<String>, Vec<u8>);

/// A check of the plain script, or of the script for runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunCheck<'a> {
    pub(crate) entry: &'a BatchEntry,
    pub(crate) counters: &'a [Counter],
    pub(crate) callers: u64,
    /// Index of its own counter.
    pub(crate) own: usize,
}

impl<'a> RunCheck<'a> {
    pub(crate) fn own(&self) -> &'a Counter {
        &self.counters[self.own]
    }

    pub(crate) fn shared(&self) -> Vec<&'a Counter> {
        let others = self.counters.iter().enumerate().filter(|&(at, _)| at != self.own);
        others.map(|(_, counter)| counter).collect()
    }

    /// Reports whether two checks may be part of one run.
    fn is_like(&self, other: &Self) -> bool {
        let shared = |check: &Self| -> Vec<_> {
            check.shared().into_iter().map(|counter| (counter.limit.clone(), counter.key)).collect()
        };
        (self.own, self.callers, &self.own().limit) == (other.own, other.callers, &other.own().limit)
            && shared(self) == shared(other)
    }
}

fn rate_bytes(rate: &Rate) -> Vec<u8> {
    [&rate.requests.get().to_le_bytes()[..6], &rate.tag().get().to_le_bytes()[..6]].concat()
}

/// Splits checks in runs: consecutive ones that may be part of one.
pub(crate) fn runs<'a, 'b>(checks: &'b [RunCheck<'a>]) -> impl Iterator<Item = &'b [RunCheck<'a>]> {
    checks.chunk_by(RunCheck::is_like)
}

/// Encodes checks as the head of the plain script describes them.
pub(crate) fn encode_plain(checks: &[RunCheck<'_>], deadline: u64) -> Arguments {
    let mut payload = vec![];
    for run in runs(checks) {
        payload.extend(&deadline.to_le_bytes()[..6]);
        payload.extend(rate_bytes(&run[0].own().limit.rates[0]));
        payload.extend((run[0].callers as u16).to_le_bytes());
        payload.extend((run.len() as u16).to_le_bytes());
        payload.extend((run[0].own().limit.max_keys as u32).to_le_bytes());
    }
    let names = checks.iter().map(|check| name(&check.own().limit, check.own().key));
    (names.collect(), payload)
}

/// Encodes checks as the head of the script for runs describes them.
pub(crate) fn encode_runs(checks: &[RunCheck<'_>], deadline: u64) -> Arguments {
    let (mut names, mut payload) = (vec![], vec![]);
    for run in runs(checks) {
        let (own, shared) = (&run[0].own().limit.rates, run[0].shared());
        payload.extend(&deadline.to_le_bytes()[..6]);
        payload.extend((run[0].callers as u16).to_le_bytes());
        payload.extend((run.len() as u16).to_le_bytes());
        payload.extend([own.len() as u8, shared.len() as u8]);
        payload.extend(own.iter().flat_map(rate_bytes));
        payload.extend(shared.iter().flat_map(|counter| rate_bytes(&counter.limit.rates[0])));
        payload.extend((run[0].own().limit.max_keys as u32).to_le_bytes());
        payload.extend(shared.iter().flat_map(|counter| (counter.limit.max_keys as u32).to_le_bytes()));
        names.extend(shared.iter().map(|counter| name(&counter.limit, counter.key)));
        names.extend(run.iter().map(|check| name(&check.own().limit, check.own().key)));
    }
    (names, payload)
}

/// Encodes integers as a MessagePack array, all in the long form.
fn pack(numbers: &[u64]) -> Vec<u8> {
    let mut out = vec![0xdd];
    out.extend((numbers.len() as u32).to_be_bytes());
    for n in numbers {
        out.push(0xcf);
        out.extend(n.to_be_bytes());
    }
    out
}

/// Encodes a call without any operation.
pub(crate) fn encode_nothing(script: Script, deadline: u64) -> Vec<u8> {
    if script == Script::General { pack(&[deadline]) } else { vec![] }
}

/// Returns the index of an element, from 1, and adds the element if it is new.
fn index_of<T: PartialEq>(all: &mut Vec<T>, one: T) -> u64 {
    let known = all.iter().position(|other| *other == one);
    let index = known.unwrap_or_else(|| {
        all.push(one);
        all.len() - 1
    });
    index as u64 + 1
}

/// The operations of a call of the general script, and what they refer to.
#[derive(Default)]
struct Operations<'a> {
    names: Vec<String>,
    limits: Vec<&'a LimitSpec>,
    numbers: Vec<u64>,
}

impl<'a> Operations<'a> {
    fn add(&mut self, entry: &'a BatchEntry) {
        match entry {
            BatchEntry::Check { counters, callers } => self.check(1, counters, *callers),
            BatchEntry::Charge(counter) => self.check(3, std::slice::from_ref(counter), 1),
            BatchEntry::Reset(limit, key) => {
                let index = index_of(&mut self.names, name(limit, *key));
                self.numbers.extend([4, index, index_of(&mut self.limits, limit)]);
            }
            BatchEntry::Find(lookup) => {
                let index = index_of(&mut self.names, name(&lookup.ledger, lookup.key));
                self.numbers.extend([5, index, lookup.id.map_or(0, Holder::get)]);
            }
            BatchEntry::Take(taking, more) => {
                let index = index_of(&mut self.names, name(&taking.ledger, taking.correction.key));
                self.numbers.extend([6, index, taking.id.get(), 0]);
                let begin = self.numbers.len();
                match more {
                    Some(counter) => self.check(3, std::slice::from_ref(counter), 1),
                    None => self.settlement(&taking.correction),
                }
                self.numbers[begin - 1] = (self.numbers.len() - begin) as u64;
            }
            BatchEntry::Settle(settlement) => self.settlement(settlement),
        }
    }

    fn check(&mut self, operation: u64, counters: &'a [Counter], callers: u64) {
        self.numbers.extend([operation, counters.len() as u64, callers]);
        for counter in counters {
            let index = index_of(&mut self.names, name(&counter.limit, counter.key));
            self.numbers.extend([index, counter.cost, index_of(&mut self.limits, &*counter.limit)]);
            for rate in &counter.limit.rates {
                self.numbers.extend(rate.full_script_arguments(counter.key.0, counter.cost));
            }
        }
    }

    fn settlement(&mut self, settlement: &'a Settlement) {
        let index = index_of(&mut self.names, name(&settlement.limit, settlement.key));
        let amount = settlement.delta.unsigned_abs();
        let (charge, refund) = if settlement.delta < 0 { (0, amount) } else { (amount, 0) };
        let limit = index_of(&mut self.limits, &*settlement.limit);
        let operation = if settlement.overflowed { 2 } else { 0 };
        self.numbers.extend([operation, index, settlement.charged, charge, refund, settlement.least, limit]);
        for rate in &settlement.limit.rates {
            self.numbers.extend(rate.settlement_script_arguments(settlement.key.0, amount));
        }
    }
}

/// Encodes entries as the head of the general script describes them.
pub(crate) fn encode_general(entries: &[&BatchEntry], deadline: u64) -> Arguments {
    let mut operations = Operations::default();
    entries.iter().for_each(|entry| operations.add(entry));
    let Operations { names, limits, numbers: rest } = operations;
    let mut numbers = vec![deadline, limits.len() as u64];
    for limit in limits {
        numbers.extend([limit.rates.len() as u64, limit.max_keys, limit.grid]);
        for rate in &limit.rates {
            numbers.extend([rate.requests.get(), rate.tag().get()]);
        }
    }
    numbers.extend(rest);
    (names, pack(&numbers))
}

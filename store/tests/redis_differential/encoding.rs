//! The arguments of the scripts for a batch, encoded independently of the store's own encoder.

use sluice_store::{Counter, LimitSpec};

use crate::world::{BatchEntry, name};

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

/// Encodes plain checks as the head of the plain script describes them.
pub(crate) fn encode_plain(checks: &[(&Counter, u64)], deadline: u64) -> (Vec<String>, Vec<u8>) {
    let (mut payload, mut rest) = (vec![], checks);
    while let [(first, callers), ..] = rest {
        let is_alike = |(counter, times): &&(&Counter, u64)| counter.limit == first.limit && times == callers;
        let group = rest.iter().take_while(is_alike).count();
        rest = &rest[group..];
        let rate = &first.limit.rates[0];
        for number in [deadline, rate.requests.get(), rate.tag().get()] {
            payload.extend(&number.to_le_bytes()[..6]);
        }
        payload.extend((*callers as u16).to_le_bytes());
        payload.extend((group as u16).to_le_bytes());
    }
    (checks.iter().map(|(counter, _)| name(&counter.limit, counter.key)).collect(), payload)
}

/// The arguments of one call of the general script.
pub(crate) struct Arguments {
    pub(crate) names: Vec<String>,
    pub(crate) payload: Vec<u8>,
    /// The entries in the order of the call: first those outside of all runs.
    pub(crate) order: Vec<OrderedEntry>,
}

/// An entry of a call.
#[derive(Clone, Copy)]
pub(crate) struct OrderedEntry {
    pub(crate) index: usize,
    /// In a run: the index of its own counter, and whether it is the first of the run.
    pub(crate) run: Option<(usize, bool)>,
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

/// Returns the index of the entry's own counter, or `None` if the entry cannot be part of a run.
fn own_counter(entries: &[&BatchEntry], entry: &BatchEntry) -> Option<usize> {
    let BatchEntry::Check { counters, callers } = entry else { return None };
    let all: Vec<_> = entries.iter().flat_map(|entry| entry.names()).collect();
    let is_plain =
        |counter: &Counter| counter.limit.rates.iter().all(|rate| rate.script_arguments(0, 1).is_none());
    if counters.iter().any(|counter| counter.cost != 1 || !is_plain(counter)) {
        return None;
    }
    let uses = |counter: &Counter| {
        let name = name(&counter.limit, counter.key);
        all.iter().filter(|other| **other == name).count()
    };
    let own = counters.iter().position(|counter| uses(counter) == 1)?;
    let mut shared = counters.iter().enumerate().filter(|&(at, _)| at != own);
    (counters.len() == 1 || *callers == 1 && shared.all(|(_, counter)| counter.limit.rates.len() == 1))
        .then_some(own)
}

/// Encodes entries as the head of the general script describes them.
pub(crate) fn encode_general(entries: &[&BatchEntry], deadline: u64) -> Arguments {
    let (mut names, mut limits): (Vec<String>, Vec<&LimitSpec>) = (vec![], vec![]);
    let (mut operations, mut order) = (vec![], vec![]);
    let owns: Vec<_> = entries.iter().map(|entry| own_counter(entries, entry)).collect();
    for (n, entry) in entries.iter().enumerate().filter(|&(n, _)| owns[n].is_none()) {
        order.push(OrderedEntry { index: n, run: None });
        match *entry {
            BatchEntry::Check { counters, callers } => {
                operations.extend([1, counters.len() as u64, *callers]);
                for counter in counters {
                    let index = index_of(&mut names, name(&counter.limit, counter.key));
                    operations.extend([index, counter.cost, index_of(&mut limits, &counter.limit)]);
                    for rate in &counter.limit.rates {
                        operations
                            .extend(rate.script_arguments(counter.key.0, counter.cost).into_iter().flatten());
                    }
                }
            }
            BatchEntry::Settle(settlement) => {
                let index = index_of(&mut names, name(&settlement.limit, settlement.key));
                let amount = settlement.delta.unsigned_abs();
                let (charge, refund) = if settlement.delta < 0 { (0, amount) } else { (amount, 0) };
                let limit = index_of(&mut limits, &settlement.limit);
                operations.extend([0, index, settlement.charged, charge, refund, limit]);
                for rate in &settlement.limit.rates {
                    operations.extend(rate.settlement_script_arguments(settlement.key.0, amount));
                }
            }
        }
    }
    let mut left: Vec<usize> = (0..entries.len()).filter(|&n| owns[n].is_some()).collect();
    while let Some(&first) = left.first() {
        // The properties that the checks of a run have in common.
        let shape = |n: usize| {
            let (BatchEntry::Check { counters, callers }, Some(own)) = (entries[n], owns[n]) else {
                panic!()
            };
            let shared = counters.iter().enumerate().filter(|&(at, _)| at != own);
            let shared: Vec<_> = shared.map(|(_, counter)| (&counter.limit, counter.key)).collect();
            (own, &counters[own].limit, shared, *callers)
        };
        let (own, limit, shared, callers) = shape(first);
        let run: Vec<_> = left.iter().copied().filter(|&n| shape(n) == shape(first)).collect();
        left.retain(|n| !run.contains(n));
        let limit = index_of(&mut limits, limit);
        operations.extend([2, limit, callers, run.len() as u64, shared.len() as u64]);
        for (limit, key) in shared {
            operations.extend([index_of(&mut names, name(limit, key)), index_of(&mut limits, limit)]);
        }
        for n in run {
            let BatchEntry::Check { counters, .. } = entries[n] else { panic!() };
            names.push(name(&counters[own].limit, counters[own].key));
            order.push(OrderedEntry { index: n, run: Some((own, n == first)) });
        }
    }
    let mut numbers = vec![deadline, limits.len() as u64];
    for limit in limits {
        numbers.push(limit.rates.len() as u64);
        for rate in &limit.rates {
            let flag = u64::from(rate.script_arguments(0, 1).is_some());
            numbers.extend([rate.requests.get(), rate.tag().get() + flag]);
        }
    }
    numbers.extend(operations);
    Arguments { names, payload: pack(&numbers), order }
}

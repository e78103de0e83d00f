//! A batch as the arguments of its script, as the script's head describes them. For the general script, each
//! limit and each key occurs once.

use std::collections::HashMap;
use std::sync::Arc;

use sluice_limiter::MAX_COUNT;
use smallvec::SmallVec;

use super::call::{ScriptArguments, pack};
use super::key_names::KeyNames;
use crate::check::{Counter, KeyHash, LimitSpec, Settlement};
use crate::redis::batch::{Batch, BatchEntry, Operation, Run, ScriptKind, checks_in};

/// Encodes a batch, which is arranged on the way. The script does nothing after `deadline`, in milliseconds of
/// the server's clock.
pub(crate) fn encode(batch: &mut Batch, names: &KeyNames, deadline: u64) -> ScriptArguments {
    batch.arrange();
    let (entries, runs) = batch.entries();
    match batch.script() {
        ScriptKind::Plain => encode_plain(entries, names, deadline),
        ScriptKind::General => encode_general(entries, runs, names, deadline),
    }
}

/// Encodes plain checks for the plain script: one group for neighbours with the same limit and as many callers.
fn encode_plain(entries: &[BatchEntry], names: &KeyNames, deadline: u64) -> ScriptArguments {
    let counters = || entries.iter().flat_map(|entry| entry.counters().first());
    let mut payload = Vec::with_capacity(22);
    let is_alike = |one: &BatchEntry, other: &BatchEntry| {
        let limit = |entry: &BatchEntry| entry.counters().first().map(|counter| Arc::as_ptr(&counter.limit));
        limit(one) == limit(other) && one.times() == other.times()
    };
    for group in entries.chunk_by(is_alike) {
        let Some((entry, rate)) =
            group.first().and_then(|entry| Some((entry, entry.counters().first()?.limit.rates.first()?)))
        else {
            continue;
        };
        for number in [deadline, rate.requests.get(), rate.tag().get()] {
            payload.extend_from_slice(&number.to_le_bytes()[..6]);
        }
        payload.extend_from_slice(&(entry.times() as u16).to_le_bytes());
        payload.extend_from_slice(&(group.len() as u16).to_le_bytes());
    }
    let keys = counters().map(|counter| names.of_counter(counter)).collect();
    ScriptArguments { script: ScriptKind::Plain, keys, payload }
}

fn encode_general(entries: &[BatchEntry], runs: &[Run], names: &KeyNames, deadline: u64) -> ScriptArguments {
    let mut encoder = Encoder::new(names);
    let (others, mut rest) = entries.split_at(entries.len() - checks_in(runs));
    for entry in others {
        match entry {
            BatchEntry::Single(Operation::Settle(settlement, _)) => encoder.settlement(settlement),
            check => encoder.check(check.counters(), check.times()),
        }
    }
    for run in runs {
        let (checks, others) = rest.split_at(run.checks);
        encoder.run(checks, run.own);
        rest = others;
    }
    encoder.finish(deadline)
}

/// The arguments of a call, under construction.
struct Encoder<'a> {
    names: &'a KeyNames,
    keys: Vec<String>,
    limits: Vec<u64>,
    /// Index of each limit by its address; equal limits from different snapshots have different indexes.
    limit_indexes: HashMap<usize, u64, foldhash::fast::RandomState>,
    operations: Vec<u64>,
    /// Index of each key, by the client's hash and the scope.
    key_indexes: HashMap<u128, SmallVec<[(&'a str, u64); 2]>, foldhash::fast::RandomState>,
}

impl<'a> Encoder<'a> {
    fn new(names: &'a KeyNames) -> Self {
        Self {
            names,
            keys: Vec::new(),
            limits: Vec::new(),
            limit_indexes: HashMap::default(),
            operations: Vec::new(),
            key_indexes: HashMap::default(),
        }
    }

    fn finish(self, deadline: u64) -> ScriptArguments {
        let Self { keys, limits, limit_indexes, operations, .. } = self;
        let mut numbers = Vec::with_capacity(2 + limits.len() + operations.len());
        numbers.extend([deadline, limit_indexes.len() as u64]);
        numbers.extend(limits);
        numbers.extend(operations);
        ScriptArguments { script: ScriptKind::General, keys, payload: pack(&numbers) }
    }

    /// Adds a check that is decided a number of times.
    fn check(&mut self, counters: &'a [Counter], times: u64) {
        self.operations.extend([1, counters.len() as u64, times]);
        for counter in counters {
            let index = self.key(&counter.limit, counter.key);
            // No limit exceeds MAX_COUNT, so MAX_COUNT + 1 stands for any larger cost, and stays exact.
            let cost = counter.cost.min(MAX_COUNT + 1);
            let limit = self.limit(&counter.limit);
            self.operations.extend([index, cost, limit]);
            for rate in &counter.limit.rates {
                self.operations.extend(rate.script_arguments(counter.key.0, cost).into_iter().flatten());
            }
        }
    }

    /// Adds a run. Only further runs may follow.
    fn run(&mut self, checks: &'a [BatchEntry], own: usize) {
        let Some(first) = checks.first() else { return };
        let counters = first.counters();
        let limit = self.limit(&counters[own].limit);
        self.operations.extend([2, limit, first.times(), checks.len() as u64, counters.len() as u64 - 1]);
        for (_, shared) in counters.iter().enumerate().filter(|&(at, _)| at != own) {
            let index = self.key(&shared.limit, shared.key);
            let limit = self.limit(&shared.limit);
            self.operations.extend([index, limit]);
        }
        // No other entry names these keys.
        let names = checks.iter().map(|check| self.names.of_counter(&check.counters()[own]));
        self.keys.extend(names);
    }

    /// Adds a correction.
    fn settlement(&mut self, settlement: &'a Settlement) {
        let index = self.key(&settlement.limit, settlement.key);
        let limit = self.limit(&settlement.limit);
        let amount = settlement.delta.unsigned_abs().min(MAX_COUNT);
        let (charge, refund) = if settlement.delta < 0 { (0, amount) } else { (amount, 0) };
        self.operations.extend([0, index, settlement.charged.min(1 << 52), charge, refund, limit]);
        for rate in &settlement.limit.rates {
            self.operations.extend(rate.settlement_script_arguments(settlement.key.0, amount));
        }
    }

    /// Returns the index of a limit, and adds the limit if it is new.
    fn limit(&mut self, limit: &LimitSpec) -> u64 {
        let next = self.limit_indexes.len() as u64 + 1;
        let index = *self.limit_indexes.entry(std::ptr::from_ref(limit) as usize).or_insert(next);
        if index == next {
            self.limits.push(limit.rates.len() as u64);
            for rate in &limit.rates {
                let flag = u64::from(rate.script_arguments(0, 1).is_some());
                self.limits.extend([rate.requests.get(), rate.tag().get() + flag]);
            }
        }
        index
    }

    /// Returns the index of a key, and adds the key if it is new.
    fn key(&mut self, limit: &'a LimitSpec, key: KeyHash) -> u64 {
        let scopes = self.key_indexes.entry(key.0).or_default();
        if let Some(&(_, index)) = scopes.iter().find(|(scope, _)| *scope == limit.scope) {
            return index;
        }
        self.keys.push(self.names.of(limit, key));
        let index = self.keys.len() as u64;
        scopes.push((&limit.scope, index));
        index
    }
}

//! A batch as the arguments of its script, as the script's head describes them. For the general script, each
//! limit and each key occurs once.

use std::collections::HashMap;
use std::sync::Arc;

use sluice_limiter::{Holder, MAX_CONCURRENT, MAX_COUNT, Rate};
use smallvec::SmallVec;

use super::call::{ScriptArguments, pack};
use super::key_names::KeyNames;
use crate::check::{Counter, KeyHash, LimitSpec, Lookup, Settlement, Taking};
use crate::redis::batch::{Batch, Operation, Run, others};
use crate::redis::scripts::Script;

/// The properties of a call that its operations have in common.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallContext<'a> {
    pub(crate) names: &'a KeyNames,
    /// Time after which the script does nothing, in milliseconds of the server's clock.
    pub(crate) deadline: u64,
    /// Whether the keys' hash slot is moving to the server. Their registry may not have arrived then, and a second
    /// one would stop the move. So keys are neither counted nor refused until the slot has moved.
    pub(crate) asking: bool,
}

impl CallContext<'_> {
    /// Returns how many keys of a limit a partition takes, in 4 bytes.
    fn share_bytes(&self, limit: &LimitSpec) -> [u8; 4] {
        (self.share(limit) as u32).to_le_bytes()
    }

    fn share(&self, limit: &LimitSpec) -> u64 {
        if self.asking { 0 } else { self.names.share(limit) }
    }
}

/// Encodes an arranged batch.
pub(crate) fn encode(batch: &Batch, context: CallContext<'_>) -> ScriptArguments {
    let (entries, runs) = batch.entries();
    match batch.script() {
        script @ (Script::Single | Script::Plain) => encode_plain(script, entries, context),
        Script::Runs => encode_runs(entries, runs, context),
        Script::General => encode_general(entries, context),
    }
}

/// Encodes one group for neighbours with the same limit and as many callers.
fn encode_plain(script: Script, entries: &[Operation], context: CallContext<'_>) -> ScriptArguments {
    let names = context.names;
    let shape = |entry: &Operation| {
        let limit = entry.counters().first().map(|counter| Arc::as_ptr(&counter.limit));
        (limit, entry.times())
    };
    let (mut payload, mut keys) = (Vec::with_capacity(26), Vec::with_capacity(entries.len()));
    for group in entries.chunk_by(|one, other| shape(one) == shape(other)) {
        let mut counters = group.iter().flat_map(Operation::counters);
        keys.extend(counters.clone().map(|counter| names.of_counter(counter)));
        let limit = counters.next().map(|counter| &*counter.limit);
        let rate = limit.and_then(|limit| limit.rates.first());
        push_time(&mut payload, context.deadline);
        payload.extend(rate.into_iter().flat_map(rate_bytes));
        push_counts(&mut payload, group);
        payload.extend(limit.into_iter().flat_map(|limit| context.share_bytes(limit)));
    }
    ScriptArguments { script, keys, payload }
}

/// Encodes runs, one after another.
fn encode_runs(entries: &[Operation], runs: &[Run], context: CallContext<'_>) -> ScriptArguments {
    let names = context.names;
    let (mut payload, mut keys) = (Vec::new(), Vec::with_capacity(entries.len() + 1));
    let mut rest = entries;
    for run in runs {
        let (checks, later) = rest.split_at(run.checks);
        rest = later;
        let Some(first) = checks.first().map(Operation::counters) else { continue };
        let (own, shared) = (&first[run.own].limit.rates, others(first, run.own));
        push_time(&mut payload, context.deadline);
        push_counts(&mut payload, checks);
        payload.extend([own.len() as u8, first.len() as u8 - 1]);
        payload
            .extend(own.iter().chain(shared.flat_map(|counter| &counter.limit.rates)).flat_map(rate_bytes));
        payload.extend(context.share_bytes(&first[run.own].limit));
        payload.extend(others(first, run.own).flat_map(|counter| context.share_bytes(&counter.limit)));
        keys.extend(others(first, run.own).map(|counter| names.of_counter(counter)));
        keys.extend(checks.iter().map(|check| names.of_counter(&check.counters()[run.own])));
    }
    ScriptArguments { script: Script::Runs, keys, payload }
}

fn push_time(payload: &mut Vec<u8>, millis: u64) {
    payload.extend_from_slice(&millis.to_le_bytes()[..6]);
}

/// Returns the bytes of a rate for the scripts that need no parameters: requests and tag.
fn rate_bytes(rate: &Rate) -> impl Iterator<Item = u8> + use<> {
    [rate.requests.get(), rate.tag().get()]
        .into_iter()
        .flat_map(|number| number.to_le_bytes().into_iter().take(6))
}

/// Appends the number of callers of each check, and the number of checks.
fn push_counts(payload: &mut Vec<u8>, checks: &[Operation]) {
    let callers = checks.first().map_or(0, Operation::times);
    payload.extend((callers as u16).to_le_bytes());
    payload.extend((checks.len() as u16).to_le_bytes());
}

/// The number of a check in the arguments of the general script.
const CHECK: u64 = 1;
/// The number of a charge, which has the form of a check.
const CHARGE: u64 = 3;
/// The number of a reset.
const RESET: u64 = 4;
/// The number of a look at a reservation.
const LOOKUP: u64 = 5;
/// The number of a taking.
const TAKING: u64 = 6;

fn encode_general(entries: &[Operation], context: CallContext<'_>) -> ScriptArguments {
    let mut encoder = Encoder::new(context);
    for entry in entries {
        match entry {
            Operation::Settle(settlement, _) => encoder.settlement(settlement),
            Operation::Charge(counter, _) => {
                encoder.check(CHARGE, std::slice::from_ref(counter), 1);
            }
            Operation::Reset(counter, _) => encoder.reset(counter),
            Operation::Find(lookup, _) => encoder.lookup(lookup),
            Operation::Take(taking, more, _) => encoder.taking(taking, more.as_ref()),
            check => encoder.check(CHECK, check.counters(), check.times()),
        }
    }
    encoder.finish()
}

/// The arguments of the general script, under construction.
struct Encoder<'a> {
    context: CallContext<'a>,
    keys: Vec<String>,
    limits: Vec<u64>,
    /// Index of each limit by its address; equal limits from different snapshots have different indexes.
    limit_indexes: HashMap<usize, u64, foldhash::fast::RandomState>,
    operations: Vec<u64>,
    /// Index of each key, by the client's hash and the scope.
    key_indexes: HashMap<u128, SmallVec<[(&'a str, u64); 2]>, foldhash::fast::RandomState>,
}

impl<'a> Encoder<'a> {
    fn new(context: CallContext<'a>) -> Self {
        Self {
            context,
            keys: Vec::new(),
            limits: Vec::new(),
            limit_indexes: HashMap::default(),
            operations: Vec::new(),
            key_indexes: HashMap::default(),
        }
    }

    fn finish(self) -> ScriptArguments {
        let Self { context, keys, limits, limit_indexes, operations, .. } = self;
        let mut numbers = Vec::with_capacity(2 + limits.len() + operations.len());
        numbers.extend([context.deadline, limit_indexes.len() as u64]);
        numbers.extend(limits);
        numbers.extend(operations);
        ScriptArguments { script: Script::General, keys, payload: pack(&numbers) }
    }

    /// Adds a check that is decided a number of times, or charged without a decision.
    fn check(&mut self, operation: u64, counters: &'a [Counter], times: u64) {
        self.operations.extend([operation, counters.len() as u64, times]);
        for counter in counters {
            let index = self.key(&counter.limit, counter.key);
            // No limit exceeds MAX_COUNT, so MAX_COUNT + 1 stands for any larger cost, and stays exact.
            let cost = counter.cost.min(MAX_COUNT + 1);
            let limit = self.limit(&counter.limit);
            self.operations.extend([index, cost, limit]);
            for rate in &counter.limit.rates {
                self.operations.extend(rate.full_script_arguments(counter.key.0, cost));
            }
        }
    }

    /// Adds a refund.
    fn settlement(&mut self, settlement: &'a Settlement) {
        let index = self.key(&settlement.limit, settlement.key);
        let limit = self.limit(&settlement.limit);
        let amount = settlement.delta.unsigned_abs().min(MAX_COUNT);
        let (charge, refund) = if settlement.delta < 0 { (0, amount) } else { (amount, 0) };
        let operation = if settlement.overflowed { 2 } else { 0 };
        let (charged, least) = (settlement.charged.min(1 << 52), settlement.least.min(MAX_CONCURRENT));
        self.operations.extend([operation, index, charged, charge, refund, least, limit]);
        for rate in &settlement.limit.rates {
            self.operations.extend(rate.settlement_script_arguments(settlement.key.0, amount));
        }
    }

    /// Adds a reset.
    fn reset(&mut self, counter: &'a Counter) {
        let index = self.key(&counter.limit, counter.key);
        let limit = self.limit(&counter.limit);
        self.operations.extend([RESET, index, limit]);
    }

    /// Adds a look at a reservation.
    fn lookup(&mut self, lookup: &'a Lookup) {
        let index = self.key(&lookup.ledger, lookup.key);
        self.operations.extend([LOOKUP, index, lookup.id.map_or(0, Holder::get)]);
    }

    /// Adds a taking, and its correction. `more` is the counter that is charged if something more was used.
    fn taking(&mut self, taking: &'a Taking, more: Option<&'a Counter>) {
        let index = self.key(&taking.ledger, taking.correction.key);
        self.operations.extend([TAKING, index, taking.id.get(), 0]);
        let begin = self.operations.len();
        match more {
            Some(counter) => self.check(CHARGE, std::slice::from_ref(counter), 1),
            None => self.settlement(&taking.correction),
        }
        self.operations[begin - 1] = (self.operations.len() - begin) as u64;
    }

    /// Returns the index of a limit, and adds the limit if it is new.
    fn limit(&mut self, limit: &LimitSpec) -> u64 {
        let next = self.limit_indexes.len() as u64 + 1;
        let index = *self.limit_indexes.entry(std::ptr::from_ref(limit) as usize).or_insert(next);
        if index == next {
            self.limits.extend([limit.rates.len() as u64, self.context.share(limit), limit.grid]);
            for rate in &limit.rates {
                self.limits.extend([rate.requests.get(), rate.tag().get()]);
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
        self.keys.push(self.context.names.of(limit, key));
        let index = self.keys.len() as u64;
        scopes.push((&limit.scope, index));
        index
    }
}

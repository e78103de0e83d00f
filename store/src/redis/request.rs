//! Writes the numbers of a call, as the head of the script describes them: each limit and each key is named once.

use std::collections::HashMap;

use sluice_limiter::MAX_COUNT;
use smallvec::SmallVec;

use super::batch::{Entry, Keys};
use super::script::{Request, pack};
use crate::check::{Counter, KeyHash, LimitSpec, Settlement};

/// A call in the making.
pub(super) struct Writer<'a> {
    keys: &'a Keys,
    request: Request,
    limits: Vec<u64>,
    /// Index of each limit, by its address: two that look alike may stand there twice.
    known: HashMap<usize, u64, foldhash::fast::RandomState>,
    asked: Vec<u64>,
    /// Which keys are named already, by the client's hash, with their scopes.
    named: HashMap<u128, SmallVec<[(&'a str, u64); 2]>, foldhash::fast::RandomState>,
}

impl<'a> Writer<'a> {
    pub(super) fn new(keys: &'a Keys) -> Self {
        let (request, known, named) = (Request::default(), HashMap::default(), HashMap::default());
        Self { keys, request, limits: Vec::new(), known, asked: Vec::new(), named }
    }

    /// The call, to be obeyed until `deadline`.
    pub(super) fn finish(self, deadline: u64) -> Request {
        let Self { mut request, limits, known, asked, .. } = self;
        let mut numbers = Vec::with_capacity(2 + limits.len() + asked.len());
        numbers.extend([deadline, known.len() as u64]);
        numbers.extend(limits);
        numbers.extend(asked);
        request.payload = pack(&numbers);
        request
    }

    /// A check that so many ask.
    pub(super) fn check(&mut self, counters: &'a [Counter], callers: u64) {
        self.asked.extend([1, counters.len() as u64, callers]);
        for counter in counters {
            let index = self.key(&counter.limit, counter.key);
            // No limit is larger than MAX_COUNT: one more is as good as any cost above it, and stays exact.
            let cost = counter.cost.min(MAX_COUNT + 1);
            let limit = self.limit(&counter.limit);
            self.asked.extend([index, cost, limit]);
            for rate in &counter.limit.rates {
                self.asked.extend(rate.script_arguments(counter.key.0, cost).into_iter().flatten());
            }
        }
    }

    /// Checks that are a run, of which counter `own` is each one's own. Nothing but other runs may come behind.
    pub(super) fn run(&mut self, checks: &'a [Entry], own: usize) {
        let Some(first) = checks.first() else { return };
        let counters = first.counters();
        let limit = self.limit(&counters[own].limit);
        self.asked.extend([2, limit, first.asked(), checks.len() as u64, counters.len() as u64 - 1]);
        for (_, besides) in counters.iter().enumerate().filter(|&(at, _)| at != own) {
            let index = self.key(&besides.limit, besides.key);
            let limit = self.limit(&besides.limit);
            self.asked.extend([index, limit]);
        }
        // Nobody else names them.
        let names = checks.iter().map(|check| self.keys.name(&check.counters()[own]));
        self.request.keys.extend(names);
    }

    /// A correction.
    pub(super) fn settlement(&mut self, settlement: &'a Settlement) {
        let index = self.key(&settlement.limit, settlement.key);
        let limit = self.limit(&settlement.limit);
        let amount = settlement.delta.unsigned_abs().min(MAX_COUNT);
        let (more, less) = if settlement.delta < 0 { (0, amount) } else { (amount, 0) };
        self.asked.extend([0, index, settlement.charged.min(1 << 52), more, less, limit]);
        for rate in &settlement.limit.rates {
            self.asked.extend(rate.settlement_script_arguments(settlement.key.0, amount));
        }
    }

    /// The index of a limit.
    fn limit(&mut self, limit: &LimitSpec) -> u64 {
        let next = self.known.len() as u64 + 1;
        let index = *self.known.entry(std::ptr::from_ref(limit) as usize).or_insert(next);
        if index == next {
            self.limits.push(limit.rates.len() as u64);
            for rate in &limit.rates {
                let flag = u64::from(rate.script_arguments(0, 1).is_some());
                self.limits.extend([rate.requests.get(), rate.tag().get() + flag]);
            }
        }
        index
    }

    /// The index of a key.
    fn key(&mut self, limit: &'a LimitSpec, key: KeyHash) -> u64 {
        let scopes = self.named.entry(key.0).or_default();
        if let Some(&(_, index)) = scopes.iter().find(|(scope, _)| *scope == limit.scope) {
            return index;
        }
        self.request.keys.push(self.keys.name_of(limit, key));
        let index = self.request.keys.len() as u64;
        scopes.push((&limit.scope, index));
        index
    }
}

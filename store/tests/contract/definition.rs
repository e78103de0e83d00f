//! The definition of a store: the functions of the limiter on a plain map.

use std::collections::HashMap;

use sluice_limiter::{Record, SlotsFound};
use sluice_store::check::{Records, charge, decide, settle, written};
use sluice_store::{CheckResponse, Counter, Settlement};

/// Counters as a store must keep them.
#[derive(Clone, Default, PartialEq)]
pub(crate) struct Definition {
    counters: HashMap<(String, u128), Vec<Record>>,
}

impl Definition {
    pub(crate) fn check(&mut self, check: &[Counter], now: u64) -> CheckResponse {
        self.decide_by(decide, check, now)
    }

    pub(crate) fn settle(&mut self, settlement: &Settlement, now: u64) -> SlotsFound {
        if let Ok(cost @ 1..) = u64::try_from(settlement.delta) {
            let counter = Counter { limit: settlement.limit.clone(), key: settlement.key, cost };
            self.decide_by(charge, &[counter], now);
            return SlotsFound::Enough;
        }
        let name = (settlement.limit.scope.clone(), settlement.key.0);
        let mut records = self.records(&name, now);
        let found = settle(settlement, &mut records, now);
        if !records.is_empty() {
            self.counters.insert(name, records);
        }
        found
    }

    /// Returns the records of a counter that has not expired.
    fn records(&self, name: &(String, u128), now: u64) -> Vec<Record> {
        let is_alive = |records: &&Vec<Record>| records.iter().any(|record| record.expires_at() > now / 1000);
        self.counters.get(name).filter(is_alive).cloned().unwrap_or_default()
    }

    fn decide_by(
        &mut self,
        by: impl Fn(&[Counter], &mut [Records], u64) -> CheckResponse,
        check: &[Counter],
        now: u64,
    ) -> CheckResponse {
        let name = |counter: &Counter| (counter.limit.scope.clone(), counter.key.0);
        let before: Vec<Vec<Record>> =
            check.iter().map(|counter| self.records(&name(counter), now)).collect();
        let mut after: Vec<Records> =
            before.iter().map(|records| records.iter().cloned().collect()).collect();
        let response = by(check, &mut after, now);
        for ((counter, before), after) in check.iter().zip(before).zip(after) {
            if let Some(records) = written(counter, response.admitted, &before, after, now) {
                self.counters.insert(name(counter), records.into_vec());
            }
        }
        response
    }

    /// Reports whether a store may have removed a counter of the check or not: it had expired at `latest`, and has not at `now`, because
    /// the clock was moved back; or it expires within so many milliseconds.
    pub(crate) fn is_ambiguous(&self, check: &[Counter], now: u64, latest: u64, within: u64) -> bool {
        check.iter().any(|counter| {
            let name = (counter.limit.scope.clone(), counter.key.0);
            let expires = |records: &Vec<Record>| records.iter().map(Record::expires_at).max().unwrap_or(0);
            let expires = self.counters.get(&name).map_or(0, expires);
            (now / 1000 < expires && expires <= latest / 1000) || expires.abs_diff(now / 1000) < within
        })
    }
}

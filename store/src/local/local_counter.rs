//! One counter of this process. It does no I/O and reads no clock; instants are microseconds of the store's
//! clock.

use std::sync::Arc;

use sluice_limiter::{MAX_COUNT, Rate, Record};
use smallvec::SmallVec;

use super::last_known_usage::{KnownUsage, MAX_KNOWN_RATES};
use super::local_limit::local_limit;
use crate::check::{Counter, KeyHash, LimitSpec, Records, charge};
use crate::plan::LimitPlan;
use crate::plan::RateReplicas;
use crate::plan::Replica;

/// The counter of one key, limited by this replica's share.
#[derive(Debug, Clone)]
pub struct LocalCounter {
    pub(super) plan: Arc<LimitPlan>,
    pub(super) key: KeyHash,
    /// For each rate, the replicas that share it.
    replicas: RateReplicas,
    /// The limit, scaled to this replica's share.
    pub limit: Arc<LimitSpec>,
    /// Records that decide checks: this replica's share of the last known usage, and what was admitted since.
    pub records: Records,
    /// Records of what was admitted here and is not flushed to the store.
    unflushed: Records,
    last_known: Option<KnownUsage>,
    /// Whether the store may have some of what is not flushed.
    may_be_charged: bool,
    /// For each rate, the limit with that rate alone, with the largest number that any tier has shown. Usage is flushed
    /// under it, because a smaller number has no room for what a larger one has admitted.
    pub(super) widest: SmallVec<[Arc<LimitSpec>; 1]>,
}

/// Usage of one rate to flush to the store.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct UnflushedUsage {
    /// Index of the rate in the limit.
    pub rate: usize,
    /// Record of what was admitted here; `None` if nothing was.
    record: Option<Record>,
    /// Usage admitted here that still counts.
    pub admitted: u64,
    /// Usage that the store must already have, unless it has lost it.
    pub least_in_store: u64,
    /// Whether a charge of it was sent whose outcome is unknown.
    pub may_be_charged: bool,
}

impl UnflushedUsage {
    /// Returns what to acquire, as far as there is room, and what to charge in any case, given the usage in the store; `None` if that
    /// of other keys is in it.
    #[must_use]
    pub fn to_add(&self, in_store: Option<u64>) -> (u64, u64) {
        // Other keys have used the overflow counter, and it shows nothing of what the store has lost of this one.
        let lost = in_store.map_or(0, |in_store| self.least_in_store.saturating_sub(in_store));
        // Rule: share.charged-once.
        if in_store.is_none() || self.may_be_charged {
            return (self.admitted.saturating_add(lost), 0);
        }
        // Also what is above the number: a refund of it must free no room that others use. But once: without an answer nobody knows
        // whether it was charged, and then the number bounds it.
        (lost, self.admitted)
    }

    /// Returns the usage that the store then has at most, given that of before.
    #[must_use]
    pub fn then_in_store(&self, in_store: Option<u64>) -> Option<u64> {
        let (acquired, charged) = self.to_add(in_store);
        // Rule: share.flush-is-known.
        in_store.map(|in_store| in_store.saturating_add(acquired).saturating_add(charged))
    }
}

impl LocalCounter {
    /// Creates a counter that starts with this replica's share of the last known usage.
    #[must_use]
    pub fn new(
        plan: &Arc<LimitPlan>,
        key: KeyHash,
        replicas: &[Replica],
        last_known: Option<KnownUsage>,
    ) -> Self {
        let limit = local_limit(&plan.spec, replicas, key);
        let mut records = Records::new();
        if let Some(usage) = last_known {
            for ((rate, local), used) in plan.spec.rates.iter().zip(&limit.rates).zip(usage.used) {
                let (record, at) = local.roll(None, usage.at + local.phase(key.0));
                let used = share_of_usage(used, local.requests.get(), rate.requests.get());
                // Rule: share.starts-with-known.
                records.push(local.charge(record, at, used));
            }
        }
        let unflushed = Records::new();
        Self {
            plan: plan.clone(),
            key,
            replicas: replicas.into(),
            limit,
            records,
            unflushed,
            last_known,
            may_be_charged: false,
            widest: plan.single_rate_specs.clone(),
        }
    }

    /// Adopts the rates of `plan` and the shares of `replicas`. The records are kept.
    pub(super) fn update(&mut self, plan: &Arc<LimitPlan>, replicas: &[Replica]) {
        if self.replicas[..] != *replicas || !Arc::ptr_eq(&self.plan, plan) {
            if self.plan.records_hash != plan.records_hash {
                self.last_known = None;
                self.widest.clone_from(&plan.single_rate_specs);
            }
            for (widest, other) in self.widest.iter_mut().zip(&plan.single_rate_specs) {
                let number = |spec: &LimitSpec| spec.rates.first().map(|rate| rate.requests);
                if number(other) > number(widest) {
                    widest.clone_from(other);
                }
            }
            (self.plan, self.replicas) = (plan.clone(), replicas.into());
            self.limit = local_limit(&plan.spec, replicas, self.key);
        }
    }

    /// Records an admission, to be flushed.
    pub fn admitted(&mut self, now: u64, cost: u64) {
        let before = std::mem::take(&mut self.unflushed);
        for rate in &self.limit.rates {
            let (record, at) = rate.roll(record_of(rate, &before, now), now + rate.phase(self.key.0));
            self.unflushed.push(rate.charge(record, at, cost));
        }
    }

    /// Corrects what was admitted here at `charged`. More cost is charged now.
    pub fn correct(&mut self, charged: u64, delta: i64, now: u64) {
        if let Some(cost) = u64::try_from(delta).ok().filter(|cost| *cost > 0) {
            let counter = Counter { limit: self.limit.clone(), key: self.key, cost: cost.min(MAX_COUNT) };
            let mut records = [std::mem::take(&mut self.records)];
            charge(&[counter], &mut records, now);
            [self.records] = records;
            self.admitted(now, cost);
            return;
        }
        for records in [&mut self.records, &mut self.unflushed] {
            for (rate, stored) in self.limit.rates.iter().zip(records.iter_mut()) {
                let phase = rate.phase(self.key.0);
                if stored.tag == rate.tag() {
                    let (record, _) = rate.roll(Some(stored.clone()), now + phase);
                    *stored = rate.settle(record, now + phase, charged + phase, delta);
                }
            }
        }
    }

    /// Removes the usage to flush. Rates without local and without last known usage are left out.
    pub fn take_unflushed(&mut self, now: u64) -> SmallVec<[UnflushedUsage; 1]> {
        let (unflushed, last_known) = (std::mem::take(&mut self.unflushed), self.last_known.take());
        let may_be_charged = std::mem::take(&mut self.may_be_charged);
        let mut usages = SmallVec::new();
        for (n, rate) in self.limit.rates.iter().enumerate() {
            let phase = rate.phase(self.key.0);
            let record = record_of(rate, &unflushed, now);
            let admitted = record.clone().map_or(0, |record| {
                let (record, at) = rate.roll(Some(record), now + phase);
                rate.used(&record, at)
            });
            let least_in_store = match (&last_known, self.plan.spec.rates.get(n)) {
                (Some(usage), Some(rate)) if n < MAX_KNOWN_RATES => {
                    rate.least_still_used(usage.used[n], usage.at + phase, now + phase)
                }
                _ => 0,
            };
            if admitted > 0 || least_in_store > 0 {
                usages.push(UnflushedUsage { rate: n, record, admitted, least_in_store, may_be_charged });
            }
        }
        usages
    }

    /// Puts back usage that could not be flushed. It goes on counting in the window in which it did; what was admitted since counts
    /// from `now`.
    pub fn put_back(&mut self, usage: &UnflushedUsage, now: u64) {
        let Some(rate) = self.limit.rates.get(usage.rate) else { return };
        let found = self.unflushed.iter().position(|record| record.tag == rate.tag());
        let stored = found.map(|n| self.unflushed.swap_remove(n));
        let phase = rate.phase(self.key.0);
        let (newer, at) = rate.roll(stored, now + phase);
        let record = match usage.record.clone().filter(|record| record.tag == rate.tag()) {
            Some(record) => {
                let since = rate.used(&newer, at);
                let (record, at) = rate.roll(Some(record), now + phase);
                // Rule: share.put-back-in-window.
                rate.charge(record, at, since)
            }
            // The rate has been edited meanwhile.
            None => rate.charge(newer, at, usage.admitted),
        };
        self.unflushed.push(record);
        self.may_be_charged |= usage.may_be_charged;
        if usage.least_in_store > 0 && usage.rate < MAX_KNOWN_RATES {
            let last_known =
                self.last_known.get_or_insert(KnownUsage { at: now, used: [0; MAX_KNOWN_RATES] });
            last_known.used[usage.rate] = usage.least_in_store;
        }
    }

    /// Reports whether all admissions have been flushed.
    #[must_use]
    pub fn is_flushed(&self) -> bool {
        self.unflushed.is_empty()
    }

    /// Reports whether none of the records counts any more.
    pub(super) fn is_expired(&self, now: u64) -> bool {
        self.records.iter().chain(&self.unflushed).all(|record| record.expires_at() <= now / 1000)
    }
}

/// Returns the record of a rate. The record of a new rate is derived from the others, as far as they prove
/// usage.
fn record_of(rate: &Rate, records: &[Record], now: u64) -> Option<Record> {
    records.iter().find(|record| record.tag == rate.tag()).cloned().or_else(|| rate.seeded(records, now))
}

/// Returns ceil(used * share / number), at most the share.
fn share_of_usage(used: u64, share: u64, number: u64) -> u64 {
    let product = u128::from(used) * u128::from(share);
    u64::try_from(product.div_ceil(u128::from(number.max(1)))).unwrap_or(u64::MAX).min(share)
}

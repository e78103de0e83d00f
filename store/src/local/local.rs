//! Counting in this process, each limit with this pod's share of it: what is known of the counter, its share taken, and
//! what was admitted here since. Pure but for its memory: the caller brings the time, in microseconds of the store's
//! clock.

use std::sync::Arc;

use sluice_limiter::{Algorithm, Burst, Rate, Record, Requests};
use smallvec::SmallVec;

use super::known::{RATES, Stood, least_used};
use super::live::{RateReplicas, Replica};
use crate::check::{KeyHash, LimitSpec, Records};
use crate::limiter::plan::LimitPlan;

/// One counter.
#[derive(Debug)]
pub(crate) struct Local {
    pub(crate) plan: Arc<LimitPlan>,
    pub(crate) key: KeyHash,
    /// By whom each rate is shared.
    lives: RateReplicas,
    /// The limit with this pod's share of its numbers.
    pub(crate) limit: Arc<LimitSpec>,
    /// By what decisions are made.
    pub(crate) counted: Records,
    /// What was admitted here alone.
    own: Records,
    stood: Option<Stood>,
}

/// What the store is to be told about one rate of a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    /// Which rate of the limit.
    pub(crate) rate: usize,
    /// What was admitted here and still counts.
    pub(crate) own: u64,
    /// The store must know of at least so much already, unless it has lost it.
    pub(crate) least: u64,
}

impl Local {
    /// Of a counter that stood so when the store was last heard.
    pub(crate) fn new(plan: &Arc<LimitPlan>, key: KeyHash, lives: &[Replica], stood: Option<Stood>) -> Self {
        let limit = shared(&plan.spec, lives, key);
        let mut counted = Records::new();
        if let Some(stood) = stood {
            for ((rate, share), used) in plan.spec.rates.iter().zip(&limit.rates).zip(stood.used) {
                let (record, at) = share.roll(None, stood.at + share.phase(key.0));
                let (whole, own) = (rate.requests.get(), share.requests.get());
                counted.push(share.charge(record, at, part(used, own, whole)));
            }
        }
        Self { plan: plan.clone(), key, lives: lives.into(), limit, counted, own: Records::new(), stood }
    }

    /// From now on the shares are those of `lives`, the numbers those of `plan`; what is counted stays.
    pub(crate) fn refresh(&mut self, plan: &Arc<LimitPlan>, lives: &[Replica]) {
        if self.lives[..] != *lives || !Arc::ptr_eq(&self.plan, plan) {
            if !Arc::ptr_eq(&self.plan, plan) && self.plan.spec != plan.spec {
                self.stood = None;
            }
            (self.plan, self.lives) = (plan.clone(), lives.into());
            self.limit = shared(&plan.spec, lives, self.key);
        }
    }

    /// Notes what was admitted here.
    pub(crate) fn admitted(&mut self, now: u64, cost: u64) {
        let before = std::mem::take(&mut self.own);
        for rate in &self.limit.rates {
            let (record, at) = rate.roll(counted_by(rate, &before, now), now + rate.phase(self.key.0));
            self.own.push(rate.charge(record, at, cost));
        }
    }

    /// Corrects what was admitted here at `charged`.
    pub(crate) fn correct(&mut self, charged: u64, delta: i64, now: u64) {
        for records in [&mut self.counted, &mut self.own] {
            for (rate, stored) in self.limit.rates.iter().zip(records.iter_mut()) {
                let phase = rate.phase(self.key.0);
                if stored.tag == rate.tag() {
                    let (record, _) = rate.roll(Some(stored.clone()), now + phase);
                    *stored = rate.settle(record, now + phase, charged + phase, delta);
                }
            }
        }
    }

    /// What the store is to be told at `now`; nothing for a rate of which nothing was admitted here and nothing is known
    /// from before. It is told once.
    pub(crate) fn tell(&mut self, now: u64) -> SmallVec<[Part; 1]> {
        let (mut parts, own, stood) = (SmallVec::new(), std::mem::take(&mut self.own), self.stood.take());
        for (n, rate) in self.limit.rates.iter().enumerate() {
            let phase = rate.phase(self.key.0);
            let own = counted_by(rate, &own, now).map_or(0, |record| {
                let (record, at) = rate.roll(Some(record), now + phase);
                rate.used(&record, at)
            });
            let least = match (&stood, self.plan.spec.rates.get(n)) {
                (Some(stood), Some(rate)) if n < RATES => {
                    least_used(rate, phase, stood.used[n], stood.at, now)
                }
                _ => 0,
            };
            if own > 0 || least > 0 {
                parts.push(Part { rate: n, own, least });
            }
        }
        parts
    }

    /// It was not told this after all. It counts from now on: too much for what was admitted in an earlier slot.
    pub(crate) fn untold(&mut self, part: Part, now: u64) {
        let Some(rate) = self.limit.rates.get(part.rate) else { return };
        let found = self.own.iter().position(|record| record.tag == rate.tag());
        let stored = found.map(|n| self.own.swap_remove(n));
        let (record, at) = rate.roll(stored, now + rate.phase(self.key.0));
        self.own.push(rate.charge(record, at, part.own));
        if part.least > 0 && part.rate < RATES {
            self.stood.get_or_insert(Stood { at: now, used: [0; RATES] }).used[part.rate] = part.least;
        }
    }

    /// Whether there is nothing to tell.
    pub(crate) fn is_told(&self) -> bool {
        self.own.is_empty()
    }

    /// Whether nothing counts any more.
    pub(crate) fn is_over(&self, now: u64) -> bool {
        self.counted.iter().chain(&self.own).all(|record| record.expires_at() <= now / 1000)
    }
}

/// What a rate has counted, or, if it is new, what the others prove.
fn counted_by(rate: &Rate, records: &[Record], now: u64) -> Option<Record> {
    records.iter().find(|record| record.tag == rate.tag()).cloned().or_else(|| rate.seeded(records, now))
}

/// ceil(used * own / whole), of the share's own number at most.
fn part(used: u64, own: u64, whole: u64) -> u64 {
    let product = u128::from(used) * u128::from(own);
    u64::try_from(product.div_ceil(u128::from(whole.max(1)))).unwrap_or(u64::MAX).min(own)
}

/// A limit with this pod's share of each number. A bucket's burst is shared as well, but is one at least, or its rate
/// could never be used.
fn shared(spec: &LimitSpec, lives: &[Replica], key: KeyHash) -> Arc<LimitSpec> {
    // Mostly they are the same for all rates.
    let mut ranked: Option<(Replica, u64)> = None;
    let share = |(rate, &live): (&Rate, &Replica)| {
        let (_, rank) = *match &mut ranked {
            Some(known) if known.0 == live => known,
            other => other.insert((live, live.rank(key.0))),
        };
        part_of(rate, live, rank)
    };
    Arc::new(LimitSpec::new(String::new(), spec.rates.iter().zip(lives).map(share).collect()))
}

/// A pod's share of a rate.
fn part_of(rate: &Rate, live: Replica, rank: u64) -> Rate {
    let burst = |burst: Burst| Burst::new(live.share(burst.get(), rank).max(1)).unwrap_or(burst);
    Rate {
        // A share is never above the whole, and so in range.
        requests: Requests::new(live.share(rate.requests.get(), rank)).unwrap_or(rate.requests),
        algorithm: match rate.algorithm {
            Algorithm::TokenBucket { burst: whole } => Algorithm::TokenBucket { burst: burst(whole) },
            Algorithm::Gcra { burst: whole } => Algorithm::Gcra { burst: burst(whole) },
            other => other,
        },
        ..*rate
    }
}

//! A limit, and how it is to be kept: made once a snapshot, so that nothing is worked out a request.

use std::hash::BuildHasher;
use std::sync::{Arc, LazyLock};

use smallvec::SmallVec;

use crate::check::{Counter, KeyHash, LimitSpec};
use crate::lease::Terms;
use crate::local::Replicas;

/// Where a limit is counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Consistency {
    /// In the store, a call a request.
    #[default]
    Strict,
    /// In the store, in blocks taken in advance, where the limit allows it.
    Leased,
    /// In this process alone, by its share of the limit.
    Local,
}

/// What becomes of a limit when the store does not answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum OnStoreFailure {
    /// It is counted in this process by its share.
    #[default]
    Share,
    /// It admits.
    Allow,
    /// It denies.
    Deny,
}

/// A limit and how it is to be kept.
#[derive(Debug)]
pub struct LimitPlan {
    /// The limit.
    pub spec: Arc<LimitSpec>,
    /// Where it is counted.
    pub consistency: Consistency,
    /// What becomes of it when the store does not answer.
    pub on_failure: OnStoreFailure,
    /// Who shares it.
    pub(crate) replicas: Arc<Replicas>,
    /// What the lease of it keeps to; `None`: a call a request.
    pub(crate) terms: Option<Terms>,
    /// Whether nothing but time makes room for whoever was denied, so that a denial can be remembered.
    pub(crate) final_denials: bool,
    /// The limit with one of its rates alone, for each: the same counter, of which only one record is touched.
    pub(crate) singles: SmallVec<[Arc<LimitSpec>; 1]>,
    /// Of scope and rates: equal plans are the same limit, of whatever snapshot.
    id: u64,
    /// Of the scope alone: an edited limit has the counters that it had, but for one that the store comes to know or is not
    /// to know any more.
    scope: u64,
}

/// One counter of a request.
#[derive(Debug, Clone)]
pub struct PlannedCounter {
    /// The limit.
    pub limit: Arc<LimitPlan>,
    /// The key.
    pub key: KeyHash,
    /// How much the request costs; 0 asks without taking.
    pub cost: u64,
}

static HASHES: LazyLock<foldhash::quality::RandomState> =
    LazyLock::new(foldhash::quality::RandomState::default);

impl LimitPlan {
    /// A plan of a limit that these share. `corrected` says that reservations of this limit are settled later, by which a counter may fall before its
    /// time, or that other numbers hold for the same counter at times (an elastic limit): its denials are not
    /// remembered and nothing is taken in advance.
    #[must_use]
    pub fn new(
        spec: Arc<LimitSpec>,
        consistency: Consistency,
        on_failure: OnStoreFailure,
        corrected: bool,
        replicas: Arc<Replicas>,
    ) -> Self {
        let single = |rate| Arc::new(LimitSpec::new(spec.scope.clone(), vec![rate]));
        let singles = match &spec.rates[..] {
            [_] => std::iter::once(spec.clone()).collect(),
            rates => rates.iter().copied().map(single).collect(),
        };
        let soft = spec.rates.iter().any(|rate| rate.soft.is_some());
        Self {
            terms: if corrected || consistency != Consistency::Leased { None } else { Terms::of(&spec) },
            final_denials: !corrected && consistency == Consistency::Strict && !soft && !spec.counts_denied(),
            id: HASHES.hash_one(&*spec),
            scope: HASHES.hash_one((&spec.scope, consistency == Consistency::Local)),
            singles,
            consistency,
            on_failure,
            replicas,
            spec,
        }
    }

    /// Whether it is leased: asked for, and possible.
    #[must_use]
    pub fn is_leased(&self) -> bool {
        self.terms.is_some()
    }

    /// How many decisions an answer holds about it.
    pub(crate) fn rates(&self) -> usize {
        self.spec.rates.len()
    }
}

impl PlannedCounter {
    pub(crate) fn counter(&self) -> Counter {
        Counter { limit: self.limit.spec.clone(), key: self.key, cost: self.cost }
    }

    /// Of these very numbers for this key.
    pub(crate) fn id(&self) -> u128 {
        mixed(self.limit.id, self.key)
    }

    /// Of the counter, whatever its numbers.
    pub(crate) fn counter_id(&self) -> u128 {
        mixed(self.limit.scope, self.key)
    }
}

/// Keys are hashes with a secret already; a limit only has to move them apart.
fn mixed(limit: u64, key: KeyHash) -> u128 {
    key.0 ^ (u128::from(limit) << 64 | u128::from(limit.rotate_left(29)))
}

/// Of a whole check: counters and costs, in their order.
pub(crate) fn check_id(asked: &[PlannedCounter]) -> u128 {
    let mut id = 0u128;
    for one in asked {
        let half = |seed: u64| {
            let part = (seed, id as u64, (id >> 64) as u64, one.limit.id, one.key, one.cost);
            HASHES.hash_one(part)
        };
        id = u128::from(half(1)) << 64 | u128::from(half(2));
    }
    id
}

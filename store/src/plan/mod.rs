//! A limit with the options for counting it: its consistency, its behavior while the store does not answer,
//! and the replicas that share it. A plan is built once per snapshot, so that a check computes nothing about
//! the limit.
//!
//! - [`replicas`]: the replicas of a policy, and which one this is; [`replica`]: its share of a number. Pure.
//! - [`lease_terms`]: whether the limit can be leased, and the lifetime of a block.

pub(crate) mod lease_terms;
pub(crate) mod replica;
pub(crate) mod replicas;

use std::hash::BuildHasher;
use std::sync::{Arc, LazyLock};

use serde::{Deserialize, Serialize};
use sluice_limiter::{Decision, Holder, Period, Rate, Tag};
use smallvec::SmallVec;

use crate::check::{Counter, KeyHash, LimitSpec, ledger};

pub use lease_terms::ChargedWindow;
pub(crate) use lease_terms::LeaseTerms;
pub use replica::Replica;
pub(crate) use replicas::RateReplicas;
pub use replicas::Replicas;

/// The consistency of a limit: what counts its requests, and how often the store is called.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Consistency {
    /// In the store, with a call per request.
    #[default]
    Strict,
    /// In the store, with quota acquired in blocks where the limit allows it.
    Leased,
    /// Only in this process, by its share of the limit.
    Local,
    /// Only in this process, by the whole limit.
    PerPod,
}

impl Consistency {
    /// Reports whether only this process counts the requests.
    #[must_use]
    pub fn is_local(self) -> bool {
        match self {
            Self::Strict | Self::Leased => false,
            Self::Local | Self::PerPod => true,
        }
    }
}

/// The decision of a limit while the store does not answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum OnStoreFailure {
    /// By local quota: each replica enforces its share of the limit.
    #[default]
    Share,
    /// All requests are admitted.
    Allow,
    /// All requests are denied.
    Deny,
}

/// A limit with the options for counting it.
#[derive(Debug)]
pub struct LimitPlan {
    /// The limit.
    pub spec: Arc<LimitSpec>,
    /// Its consistency.
    pub consistency: Consistency,
    /// Its decision while the store does not answer.
    pub on_failure: OnStoreFailure,
    /// The replicas that share it.
    pub(crate) replicas: Arc<Replicas>,
    /// Terms of its leases, or `None` for a call per request.
    pub(crate) lease_terms: Option<LeaseTerms>,
    /// Whether only time makes room after a denial, so that the denial can be remembered.
    pub(crate) denials_can_be_remembered: bool,
    /// For each rate, the limit with that rate alone. It names the same counter, of which only one record is
    /// changed.
    pub(crate) single_rate_specs: SmallVec<[Arc<LimitSpec>; 1]>,
    /// Hash of scope and rates. Equal limits of different snapshots have equal hashes.
    limit_hash: u64,
    /// Hash of the scope and the tags of the rates. Limits that count in the same records, such as the tiers of a limit, have
    /// equal hashes.
    pub(crate) records_hash: u64,
    /// Hash of the scope. Editing a limit's rates keeps this value, so its counters survive the edit. Limits
    /// that are only counted locally have a value of their own.
    scope_hash: u64,
}

/// One counter of a request.
#[derive(Debug, Clone)]
pub struct PlannedCounter {
    /// The limit.
    pub limit: Arc<LimitPlan>,
    /// The key.
    pub key: KeyHash,
    /// Cost of the request. A cost of 0 checks without a charge.
    pub cost: u64,
}

/// One hasher with random keys, so that ids are comparable within the process only.
static HASHES: LazyLock<foldhash::quality::RandomState> =
    LazyLock::new(foldhash::quality::RandomState::default);

impl LimitPlan {
    /// Plans a limit that these replicas share.
    ///
    /// `corrected` means that a counter can gain room other than by time: because reservations are settled
    /// later, or because its rates change at times (an elastic limit). Denials of such a limit
    /// are not remembered, and it is not leased.
    #[must_use]
    pub fn new(
        spec: Arc<LimitSpec>,
        consistency: Consistency,
        on_failure: OnStoreFailure,
        corrected: bool,
        replicas: Arc<Replicas>,
    ) -> Self {
        let with_one_rate = |rate| Arc::new(spec.with_rate(rate));
        let single_rate_specs = match &spec.rates[..] {
            [_] => std::iter::once(spec.clone()).collect(),
            rates => rates.iter().copied().map(with_one_rate).collect(),
        };
        let is_soft = spec.rates.iter().any(|rate| rate.soft.is_some());
        let can_be_leased = consistency == Consistency::Leased && !corrected;
        Self {
            lease_terms: if can_be_leased { LeaseTerms::of(&spec) } else { None },
            denials_can_be_remembered: consistency == Consistency::Strict
                && !corrected
                && !is_soft
                && !spec.counts_denied(),
            limit_hash: HASHES.hash_one(&*spec),
            records_hash: {
                let tags: SmallVec<[Tag; 2]> = spec.rates.iter().map(Rate::tag).collect();
                HASHES.hash_one((&spec.scope, consistency.is_local(), tags))
            },
            scope_hash: HASHES.hash_one((&spec.scope, consistency.is_local())),
            single_rate_specs,
            consistency,
            on_failure,
            replicas: match consistency {
                Consistency::PerPod => Replicas::alone(),
                Consistency::Strict | Consistency::Leased | Consistency::Local => replicas,
            },
            spec,
        }
    }

    /// Returns the plan of the same limit with a call to the store for each request.
    #[must_use]
    pub fn strict(&self) -> Self {
        Self::new(self.spec.clone(), Consistency::Strict, self.on_failure, true, self.replicas.clone())
    }

    /// Returns the plan of the ledger with the open reservations of the limit, to which a check adds the one with this id. While the
    /// store does not answer, nothing is reserved.
    #[must_use]
    pub fn ledger(&self, id: Holder, lasts: Period) -> Self {
        let spec = Arc::new(ledger(&self.spec.scope, id, lasts));
        Self::new(spec, Consistency::Strict, OnStoreFailure::Allow, true, self.replicas.clone())
    }

    /// Reports whether the limit is leased: its consistency is `Leased`, and its rates allow it.
    #[must_use]
    pub fn is_leased(&self) -> bool {
        self.lease_terms.is_some()
    }

    /// Splits this limit's decisions off the front of a response's decisions.
    pub(crate) fn split_decisions<'a>(&self, decisions: &mut &'a [Decision]) -> &'a [Decision] {
        let (own, rest) = decisions.split_at(self.spec.rates.len().min(decisions.len()));
        *decisions = rest;
        own
    }
}

impl PlannedCounter {
    pub(crate) fn counter(&self) -> Counter {
        Counter { limit: self.limit.spec.clone(), key: self.key, cost: self.cost }
    }

    /// Returns the id of the counter under the limit with exactly these rates.
    pub(crate) fn id(&self) -> u128 {
        combine(self.limit.limit_hash, self.key)
    }

    /// Returns the id of the counter's records. Limits that count in the same records share it.
    pub(crate) fn records_id(&self) -> u128 {
        combine(self.limit.records_hash, self.key)
    }

    /// Returns the id of the counter, which stays the same when the rates are edited.
    pub(crate) fn counter_id(&self) -> u128 {
        combine(self.limit.scope_hash, self.key)
    }
}

/// Returns the id of a whole check: its counters and costs, in their order.
pub(crate) fn check_id(counters: &[PlannedCounter]) -> u128 {
    let mut id = 0u128;
    for counter in counters {
        let half = |seed: u64| {
            let key =
                (seed, id as u64, (id >> 64) as u64, counter.limit.limit_hash, counter.key, counter.cost);
            HASHES.hash_one(key)
        };
        id = u128::from(half(1)) << 64 | u128::from(half(2));
    }
    id
}

/// Keys are hashes with a secret already, so the limit's hash only has to separate the limits.
fn combine(limit: u64, key: KeyHash) -> u128 {
    key.0 ^ (u128::from(limit) << 64 | u128::from(limit.rotate_left(29)))
}

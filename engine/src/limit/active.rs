//! The active policies and their limits, as a snapshot holds them: everything about them that is the same for
//! all requests.

use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use http::HeaderName;
use sluice_config::policy::{Mode, StatusHeaders};
use sluice_config::prepared::charge::{CostUnit, SettlementTerms};
use sluice_config::prepared::rejection::Rejection;
use sluice_config::prepared::{PreparedKind, RateSet};
use sluice_config::{KeySecret, PreparedLimit, PreparedPolicy};
use sluice_limiter::{Holder, Period, Rate};
use sluice_store::{Consistency, LimitPlan, LimitSpec, OnStoreFailure, Replicas};
use smallvec::SmallVec;

use crate::limit::adaptive::AdaptiveLimit;
use crate::limit::denied::DeniedClients;
use crate::limit::mark::Mark;
use crate::limit::names::RateNames;
use crate::limit::queue::LimitQueue;
use crate::limit::rates::{Boost, EffectiveRates, Load};
use crate::limit::slots::ConcurrencyLimit;
use crate::metrics::limit::LazyMetrics;
use crate::per_second::LastChosen;

/// A policy of a snapshot.
#[derive(Debug)]
pub(crate) struct ActivePolicy {
    pub(crate) prepared: Arc<PreparedPolicy>,
    /// The pods that enforce the policy together.
    pub(crate) replicas: Arc<Replicas>,
    /// Position of its store in the snapshot.
    pub(crate) store: usize,
    /// The secret that its keys are hashed with, if it is not that of its store.
    pub(crate) secret: Option<KeySecret>,
    /// The limits, in the order of `prepared.limits`.
    pub(crate) limits: Vec<ActiveLimit>,
}

/// A limit of a snapshot.
#[derive(Debug)]
pub(crate) struct ActiveLimit {
    /// Name of the limit, which answers about descriptors share.
    pub(crate) name: Arc<str>,
    /// The sets of rates: the base rates, then the boosted ones of an elastic limit or those of tiers.
    rate_sets: SmallVec<[EffectiveRates; 1]>,
    /// When the second set of an elastic limit applies.
    pub(crate) boost: Option<Boost>,
    pub(crate) effect: Effect,
    /// Where requests wait that the limit denies.
    pub(crate) queue: Option<Arc<LimitQueue>>,
    /// The number of concurrent requests over all pods, for a shared concurrency limit. It has no rates.
    pub(crate) concurrency: Option<Arc<ConcurrencyLimit>>,
    /// The number of concurrent requests that this pod has learnt, for an adaptive limit. It has no rates.
    pub(crate) adaptive: Option<Arc<AdaptiveLimit>>,
    /// Longest time for which a request whose client has left is in flight; zero for limits of rates.
    pub(crate) abandoned_for: Duration,
    /// How the outcome of a request corrects its charge, if it does.
    pub(crate) settlement: Option<Arc<SettlementTerms>>,
    /// The response to a request that the limit denies.
    pub(crate) rejection: Arc<Rejection>,
    /// Headers that report the state of the limit: those of the IETF draft, and the older ones.
    pub(crate) status_headers: [bool; 2],
    /// Number of requests that a leaky bucket delays.
    pub(crate) delayed: Arc<AtomicI64>,
    /// The clients that it denies most often.
    pub(crate) denied_clients: DeniedClients,
    /// When a denial was last logged.
    pub(crate) last_logged: Arc<LastChosen>,
    /// Indexes of the parts of the key that the list shows.
    public_parts: Vec<usize>,
    pub(crate) metrics: LazyMetrics,
}

/// The effect of a limit on a request that it denies.
#[derive(Debug)]
pub(crate) enum Effect {
    /// The request is rejected, or waits.
    Deny,
    /// The request is forwarded with a mark.
    Mark(Mark),
    /// The denial is only counted.
    Observe,
}

impl Effect {
    fn of(policy: &PreparedPolicy, limit: &PreparedLimit) -> Self {
        let mark = |header: &HeaderName| Mark::new(header.clone(), &policy.name, &limit.name).ok();
        match (limit.mode, &limit.mark) {
            (Mode::Enforce, None) => Self::Deny,
            // Names of policies and limits are valid values of headers.
            (Mode::Enforce, Some(header)) => mark(header).map_or(Self::Observe, Self::Mark),
            (Mode::Shadow, _) => Self::Observe,
        }
    }
}

/// Everything that a limit is built from.
pub(crate) struct LimitSource<'a> {
    pub(crate) policy: &'a PreparedPolicy,
    pub(crate) limit: &'a PreparedLimit,
    /// The name in response headers.
    pub(crate) name: &'a str,
    pub(crate) replicas: &'a Arc<Replicas>,
    pub(crate) load: &'a Load,
    pub(crate) metrics: LazyMetrics,
    /// The limit with the same namespace, policy and name in the previous snapshot. Held slots, learnt limits and
    /// requests that wait survive an edit.
    pub(crate) before: Option<&'a ActiveLimit>,
}

impl ActiveLimit {
    pub(crate) fn new(source: LimitSource<'_>) -> Self {
        let LimitSource { policy, limit, name, replicas, load, metrics, before } = source;
        // Slots are checked on each request. They have no local quota: a slot that is taken comes back, so no
        // replica could own a part of them.
        let (consistency, on_failure) = match (&limit.kind, policy.on_store_failure) {
            // A block that is leased for one tier would count against the others before it is used.
            (PreparedKind::Rates { sets, .. }, on_failure)
                if sets.len() > 1 && policy.consistency == Consistency::Leased =>
            {
                (Consistency::Strict, on_failure)
            }
            // The same holds for a block that is leased at another cost.
            (PreparedKind::Rates { .. }, on_failure)
                if !limit.charge.is_one() && policy.consistency == Consistency::Leased =>
            {
                (Consistency::Strict, on_failure)
            }
            (PreparedKind::Rates { .. }, on_failure) => (policy.consistency, on_failure),
            (_, OnStoreFailure::Share) => (Consistency::Strict, OnStoreFailure::Allow),
            (_, on_failure) => (Consistency::Strict, on_failure),
        };
        // Metrics are looked at only where they are needed: those of domains are made when they are.
        let concurrency = match &limit.kind {
            PreparedKind::Slots(slots) => {
                let before = before.and_then(|before| before.concurrency.as_deref());
                ConcurrencyLimit::rate(slots).zip(metrics.held.clone()).map(|(rate, held)| {
                    ConcurrencyLimit::new(&limit.scope, rate, on_failure, replicas, held, before)
                })
            }
            PreparedKind::Rates { .. } | PreparedKind::Adaptive(_) => None,
        };
        let adaptive = match &limit.kind {
            PreparedKind::Adaptive(settings) => {
                let before = before.and_then(|before| before.adaptive.as_ref());
                let metrics = metrics.adaptive.clone();
                metrics.map(|metrics| AdaptiveLimit::new(settings, metrics, before))
            }
            PreparedKind::Rates { .. } | PreparedKind::Slots(_) => None,
        };
        let slot_rate = concurrency.as_ref().map(|limit| limit.slot_rate());
        // A delayed request that its client abandons is refunded, so are charges by outcomes, a slot always is, and elastic rates change:
        // a denial by such a limit may not be remembered, and no quota leased. A full delay queue also
        // refunds the request's other limits, but too rarely to give up leases and remembered denials for
        // them.
        let corrected = match &limit.kind {
            PreparedKind::Rates { sets, boosted_below } => {
                // Gateways may give back what they have charged to a domain.
                policy.domain.is_some()
                    || limit.charge.settlement().is_some()
                    || boosted_below.is_some()
                    || sets.iter().flat_map(RateSet::deciding).any(Rate::delays)
            }
            PreparedKind::Slots(_) | PreparedKind::Adaptive(_) => true,
        };
        let effective = |names: RateNames, rates: &[Rate]| {
            let spec = LimitSpec::new(limit.scope.clone(), rates.to_vec()).with_max_keys(limit.max_keys);
            let spec = Arc::new(spec);
            let plan = LimitPlan::new(spec, consistency, on_failure, corrected, replicas.clone());
            EffectiveRates { plan: Arc::new(plan), names }
        };
        let of_set = |set: &RateSet| {
            let rates = (&set.rates[..], &set.decides[..]);
            effective(RateNames::new(name, set.exception.as_deref(), rates, limit.charge.unit()), &set.rates)
        };
        let mut rate_sets: SmallVec<[EffectiveRates; 1]> = limit.rate_sets().iter().map(of_set).collect();
        if rate_sets.is_empty() {
            let rates = slot_rate.as_slice();
            rate_sets
                .push(effective(RateNames::new(name, None, (rates, &[true]), CostUnit::Requests), rates));
        }
        Self {
            name: limit.name.as_str().into(),
            rate_sets,
            boost: limit.boosted_below().map(|below| Boost { below, load: load.clone() }),
            queue: limit.queue.and_then(|queue| Some((queue, metrics.waiting.clone()?))).map(
                |(settings, waiting)| {
                    LimitQueue::new(settings, waiting, before.and_then(|before| before.queue.as_ref()))
                },
            ),
            effect: Effect::of(policy, limit),
            concurrency,
            adaptive,
            abandoned_for: limit.abandoned_for,
            settlement: limit.charge.settlement().cloned(),
            rejection: limit.rejection.clone(),
            // The configuration of a domain names its headers once, for all limits.
            status_headers: StatusHeaders::ALL
                .map(|family| policy.domain.is_none() && policy.status_headers.contains(&family)),
            delayed: before.map(|before| before.delayed.clone()).unwrap_or_default(),
            denied_clients: match before {
                // What is not public any more must not stay in the list.
                Some(before) if before.public_parts == limit.public_parts => before.denied_clients.clone(),
                Some(_) | None => DeniedClients::new(),
            },
            last_logged: before.map(|before| before.last_logged.clone()).unwrap_or_default(),
            public_parts: limit.public_parts.clone(),
            metrics,
        }
    }

    /// Reports whether the limit delays requests, or depends on the load of a pod.
    pub(crate) fn needs_pods(&self) -> bool {
        self.boost.is_some() || self.base().plan.spec.rates.iter().any(Rate::delays)
    }

    /// Reports whether the limit denies requests, and does not only mark or observe them.
    pub(crate) fn denies(&self) -> bool {
        matches!(self.effect, Effect::Deny)
    }

    /// Returns a wait that is longer at random, by so much as the limit says at most.
    pub(crate) fn with_jitter(&self, seconds: u64) -> u64 {
        let most = seconds.saturating_mul(u64::from(self.rejection.jitter_percent)).div_ceil(100);
        if most == 0 { seconds } else { seconds.saturating_add(rand::random_range(0..=most)) }
    }

    /// Counts a denial by a limit that denies nothing.
    pub(crate) fn count_passed_denial(&self) {
        match &self.effect {
            Effect::Mark(_) => {
                self.metrics.marked.iter().for_each(|marked| {
                    marked.inc();
                });
            }
            Effect::Deny | Effect::Observe => {
                self.metrics.shadow_denied.inc();
            }
        }
    }

    /// Returns the base rates.
    pub(crate) fn base(&self) -> &EffectiveRates {
        &self.rate_sets[0]
    }

    /// Returns the rates with this index.
    pub(crate) fn rates(&self, index: u16) -> &EffectiveRates {
        &self.rate_sets[usize::from(index)]
    }

    /// Returns the rates with this index, or the base rates if there are none.
    pub(crate) fn rates_or_base(&self, index: u16) -> &EffectiveRates {
        self.rate_sets.get(usize::from(index)).unwrap_or_else(|| self.base())
    }

    /// Returns the plans of all sets of rates, which count in the same counters.
    pub(crate) fn plans(&self) -> Vec<Arc<LimitPlan>> {
        self.rate_sets.iter().map(|rates| rates.plan.clone()).collect()
    }

    /// Returns the plan by which the ledger of open reservations is read or removed. The number and the time in it are those of a
    /// reservation that is made, and play no part.
    pub(crate) fn ledger(&self) -> LimitPlan {
        self.base().plan.ledger(Holder::FIRST, Period::HOUR)
    }

    /// Reports whether the boosted rates apply now.
    pub(crate) fn is_boosted(&self) -> bool {
        self.boost.as_ref().is_some_and(Boost::applies)
    }

    /// Reports whether slots of this limit could not be renewed in time, so that other processes may hold
    /// them as well.
    pub(crate) fn has_expired_slots(&self) -> bool {
        self.concurrency.as_ref().is_some_and(|limit| limit.has_expired_slots())
    }
}

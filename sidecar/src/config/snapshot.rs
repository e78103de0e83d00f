//! What is enforced: all policies of the pod, made ready to be asked, and the store. Built once a change and swapped
//! between two requests; a request takes one and keeps it. Counters live in the store, so a swap loses none.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use futures::future::join_all;
use sluice_config::concurrency::Concurrency;
use sluice_config::message::{PolicyUid, Replica};
use sluice_config::policy::{self, Mode, OnStoreFailure};
use sluice_config::{KeySecret, Nack, PreparedLimit, PreparedPolicy};
use sluice_limiter::{Algorithm, Rate};
use sluice_store::layers::{self, Consistency, LimitPlan, Replicas};
use sluice_store::{LimitSpec, MAX_COUNTERS, Store};

use crate::config::replicas::SharingPods;
use crate::config::stores::{StoreChoice, Stores, started};
use crate::limit::adaptive::AdaptiveLimit;
use crate::limit::check::Counting;
use crate::limit::slots::{Places, SharedLimit};
use crate::metrics::request::{LimitMetrics, Metrics};
use crate::respond::headers::RateNames;
use crate::upstream::in_flight::{InFlight, Load};

/// What is enforced.
#[derive(Debug)]
pub(crate) struct Snapshot {
    /// Where requests are counted; `None`: nothing was published yet.
    pub(crate) counting: Option<Counting>,
    /// What keys are hashed with.
    pub(crate) secret: KeySecret,
    pub(crate) policies: Arc<[Policy]>,
}

impl Snapshot {
    fn nothing() -> Self {
        Self { counting: None, secret: KeySecret::new([0; 16]), policies: Arc::default() }
    }

    pub(crate) fn limit(&self, at: LimitAt) -> &Limit {
        &self.policies[usize::from(at.policy)].limits[usize::from(at.limit)]
    }

    /// The numbers that were chosen.
    pub(crate) fn numbers(&self, at: LimitAt) -> &Numbers {
        let limit = self.limit(at);
        match &limit.raised {
            Some(raised) if at.raised => &raised.numbers,
            _ => &limit.usual,
        }
    }

    fn limits(&self) -> impl Iterator<Item = &Limit> {
        self.policies.iter().flat_map(|policy| &policy.limits)
    }

    /// Whether any number depends on how busy the application is.
    pub(crate) fn is_elastic(&self) -> bool {
        self.limits().any(|limit| limit.raised.is_some())
    }

    /// Says in metrics which limits are raised.
    pub(crate) fn say_raised(&self) {
        for limit in self.limits() {
            if let (Some(raised), Some(gauge)) = (&limit.raised, &limit.metrics.raised) {
                gauge.set(i64::from(raised.holds()));
            }
        }
    }
}

/// Which limit of a snapshot, and with which of its numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LimitAt {
    pub(crate) policy: u16,
    pub(crate) limit: u16,
    /// With its higher number.
    pub(crate) raised: bool,
}

/// A policy in force.
#[derive(Debug)]
pub(crate) struct Policy {
    pub(crate) prepared: Arc<PreparedPolicy>,
    /// The pods that share it.
    pub(crate) sharers: Arc<Replicas>,
    /// In the order of `prepared.limits`.
    pub(crate) limits: Vec<Limit>,
}

/// A limit in force, with everything about it that is the same for all requests.
#[derive(Debug)]
pub(crate) struct Limit {
    pub(crate) usual: Numbers,
    pub(crate) raised: Option<Raised>,
    pub(crate) mode: Mode,
    /// So many requests at a time in all pods, instead of rates.
    pub(crate) shared: Option<Arc<SharedLimit>>,
    /// So many as this pod's application bears, instead of rates.
    pub(crate) adaptive: Option<Arc<AdaptiveLimit>>,
    pub(crate) metrics: LimitMetrics,
}

/// A limit's numbers: as the store knows them, and as clients do.
#[derive(Debug)]
pub(crate) struct Numbers {
    pub(crate) plan: Arc<LimitPlan>,
    pub(crate) names: RateNames,
}

/// Higher numbers of a limit, which count in the same records.
#[derive(Debug)]
pub(crate) struct Raised {
    numbers: Numbers,
    below: u64,
    load: Load,
}

impl Raised {
    /// Whether they hold now.
    pub(crate) fn holds(&self) -> bool {
        self.load.is_below(self.below)
    }
}

impl Limit {
    fn new(
        limit: &PreparedLimit,
        (policy, sharers): (&PreparedPolicy, &Arc<Replicas>),
        name: &str,
        load: &Load,
        metrics: LimitMetrics,
        before: Option<&Self>,
    ) -> Self {
        let shared = match (&limit.concurrency, &metrics.held) {
            (Some(Concurrency::Shared { max, hold }), Some(held)) => {
                let before = before.and_then(|before| before.shared.as_deref());
                SharedLimit::new(&limit.scope, *max, *hold, held.clone(), before)
            }
            _ => None,
        };
        let adaptive = match (&limit.concurrency, &metrics.adaptive) {
            (Some(Concurrency::Adaptive(settings)), Some(metrics)) => {
                let before = before.and_then(|before| before.adaptive.as_ref());
                Some(AdaptiveLimit::new(settings, metrics.clone(), before))
            }
            _ => None,
        };
        let place = shared.as_ref().map(|shared| shared.rate());
        // A turn that nobody waits for is given back, a place always, and elastic numbers change. That whoever finds too
        // many waiting gets back what other limits charged is too rare to keep those from being remembered.
        let corrected = limit.raised.is_some()
            || limit.concurrency.is_some()
            || limit.rates.iter().any(|rate| matches!(rate.algorithm, Algorithm::LeakyBucket { .. }));
        let numbers = |rates: &[Rate]| {
            let spec = Arc::new(LimitSpec::new(limit.scope.clone(), rates.to_vec()));
            let (consistency, on_failure) = match (&limit.concurrency, on_failure(policy)) {
                (None, on_failure) => (consistency(policy), on_failure),
                // A place is asked for each time; and it cannot be shared out, as whoever takes it gives it back.
                (Some(_), layers::OnStoreFailure::Share) => {
                    (Consistency::Strict, layers::OnStoreFailure::Allow)
                }
                (Some(_), on_failure) => (Consistency::Strict, on_failure),
            };
            let plan = LimitPlan::new(spec, consistency, on_failure, corrected, sharers.clone());
            Numbers { plan: Arc::new(plan), names: RateNames::new(name, rates) }
        };
        Self {
            usual: numbers(place.as_ref().map_or(&limit.rates, std::slice::from_ref)),
            raised: limit.raised.as_ref().map(|raised| Raised {
                numbers: numbers(&raised.rates),
                below: raised.below,
                load: load.clone(),
            }),
            mode: limit.mode,
            shared,
            adaptive,
            metrics,
        }
    }

    /// Whether its higher numbers hold now.
    pub(crate) fn is_raised(&self) -> bool {
        self.raised.as_ref().is_some_and(Raised::holds)
    }
}

fn consistency(policy: &PreparedPolicy) -> Consistency {
    match policy.consistency {
        policy::Consistency::Strict => Consistency::Strict,
        policy::Consistency::Leased => Consistency::Leased,
        policy::Consistency::Local => Consistency::Local,
    }
}

fn on_failure(policy: &PreparedPolicy) -> layers::OnStoreFailure {
    match policy.on_store_failure {
        OnStoreFailure::Allow => layers::OnStoreFailure::Allow,
        OnStoreFailure::Deny => layers::OnStoreFailure::Deny,
        OnStoreFailure::Share => layers::OnStoreFailure::Share,
    }
}

/// Puts policies into force. Clones are the same publisher.
#[derive(Debug, Clone)]
pub struct Publisher(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    current: ArcSwap<Snapshot>,
    stores: Mutex<Stores>,
    sharing: Mutex<SharingPods>,
    metrics: Metrics,
    in_flight: InFlight,
    places: Places,
    applied: AtomicBool,
}

impl Publisher {
    pub(crate) fn new(stores: Stores, metrics: Metrics, in_flight: InFlight) -> Self {
        metrics.unlimited.set(1);
        Self(Arc::new(Inner {
            current: ArcSwap::from_pointee(Snapshot::nothing()),
            stores: Mutex::new(stores),
            sharing: Mutex::default(),
            metrics,
            in_flight,
            places: Places::default(),
            applied: AtomicBool::new(false),
        }))
    }

    /// Puts these policies, and no others, into force for every request that arrives after this call. Those that
    /// cannot be are named with the reason: the limits of a pod's policies together are bounded, and two policies
    /// cannot have one name. Policies earlier in the list come first.
    pub fn publish(
        &self,
        store: &StoreChoice,
        policies: &[(PolicyUid, Arc<PreparedPolicy>)],
    ) -> Vec<(PolicyUid, Nack)> {
        let (accepted, refused) = fit(policies);
        let metrics = &self.0.metrics;
        let mut seen = HashSet::new();
        let mut twice = HashSet::new();
        for limit in accepted.iter().flat_map(|(_, policy)| &policy.limits) {
            if !seen.insert(limit.name.as_str()) {
                twice.insert(limit.name.as_str());
            }
        }
        let load = &self.0.in_flight.load;
        // What was learnt, and who holds places, outlives an edit.
        let current = self.current();
        // One publication at a time, so that the newest wins.
        let mut stores = self.0.stores.lock().unwrap_or_else(PoisonError::into_inner);
        let sharers = self.0.sharing.lock().unwrap_or_else(PoisonError::into_inner).of(&accepted);
        let prepared = accepted.iter().zip(sharers).map(|((_, policy), sharers)| Policy {
            limits: policy
                .limits
                .iter()
                .map(|limit| {
                    let name = if twice.contains(limit.name.as_str()) {
                        format!("{}/{}", policy.name, limit.name)
                    } else {
                        limit.name.clone()
                    };
                    let before = limit.concurrency.as_ref().and_then(|_| {
                        current.limits().find(|before| before.usual.plan.spec.scope == limit.scope)
                    });
                    let metrics = metrics.limit(policy, limit);
                    Limit::new(limit, (policy, &sharers), &name, load, metrics, before)
                })
                .collect(),
            prepared: policy.clone(),
            sharers,
        });
        let mut snapshot = Snapshot { policies: prepared.collect(), ..Snapshot::nothing() };
        let chosen = stores.choose(store, |runtime, coming| {
            runtime.spawn(self.clone().hand_over(coming));
        });
        if let Some((counting, secret)) = chosen {
            snapshot.counting = Some(counting);
            snapshot.secret = secret;
        }
        self.0.current.store(Arc::new(snapshot));
        metrics.in_force(accepted.iter().map(|(uid, policy)| (uid.as_str(), policy.as_ref())));
        self.say_shared();
        metrics.unlimited.set(0);
        self.0.applied.store(true, Ordering::Release);
        refused
    }

    /// Puts a store into use when it is ready, with the policies that are in force then.
    async fn hand_over(self, coming: Arc<Store>) {
        started(&coming).await;
        let mut stores = self.0.stores.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((counting, secret)) = stores.hand_over(&coming) {
            let policies = self.current().policies.clone();
            self.0.current.store(Arc::new(Snapshot { counting: Some(counting), secret, policies }));
        }
    }

    /// From now on these pods share these policies, in force or not. Of others what was said before goes on to hold.
    pub fn share(&self, sharing: &BTreeMap<PolicyUid, Replica>) {
        self.0.sharing.lock().unwrap_or_else(PoisonError::into_inner).told(sharing);
        self.say_shared();
    }

    fn say_shared(&self) {
        let current = self.current();
        let policies = current.policies.iter();
        self.0.metrics.shared(policies.map(|policy| (policy.prepared.as_ref(), policy.sharers.count())));
    }

    /// Gives back what was taken in advance, and tells the store what was counted here. No request may come after it.
    pub(crate) async fn leave(&self) {
        let all = self.0.stores.lock().unwrap_or_else(PoisonError::into_inner).all();
        join_all(all.iter().map(|counting| counting.leave(usize::MAX))).await;
    }

    /// Which of these policies could not be in force together with those before them.
    #[must_use]
    pub fn misfits(policies: &[(PolicyUid, Arc<PreparedPolicy>)]) -> Vec<(PolicyUid, Nack)> {
        fit(policies).1
    }

    /// Whether anything has been put into force yet.
    #[must_use]
    pub fn has_published(&self) -> bool {
        self.0.applied.load(Ordering::Acquire)
    }

    /// How the store is doing.
    #[must_use]
    pub fn store_state(&self) -> crate::config::stores::StoreState {
        self.0.stores.lock().unwrap_or_else(PoisonError::into_inner).state()
    }

    pub(crate) fn places(&self) -> &Places {
        &self.0.places
    }

    pub(crate) fn in_flight(&self) -> &InFlight {
        &self.0.in_flight
    }

    pub(crate) fn current(&self) -> Arc<Snapshot> {
        self.0.current.load_full()
    }
}

type Entry = (PolicyUid, Arc<PreparedPolicy>);

/// Which policies can be in force together. A check holds so many counters at most, and a request may match them
/// all.
fn fit(policies: &[Entry]) -> (Vec<&Entry>, Vec<(PolicyUid, Nack)>) {
    let (mut accepted, mut refused) = (Vec::<&Entry>::new(), Vec::new());
    let (mut enforced, mut shadowed) = (0, 0);
    for entry in policies {
        let (uid, policy) = entry;
        let shadows = policy.limits.iter().filter(|limit| limit.mode == Mode::Shadow).count();
        let enforces = policy.limits.len() - shadows;
        let name = |p: &PreparedPolicy| (p.namespace.clone(), p.name.clone());
        if enforced + enforces > MAX_COUNTERS || shadowed + shadows > MAX_COUNTERS {
            refused.push((uid.clone(), Nack(format!(
                "the policies of this pod have more than {MAX_COUNTERS} limits together: merge or remove some"
            ))));
        } else if accepted.iter().any(|(_, other)| name(other) == name(policy)) {
            refused.push((uid.clone(), Nack("another policy of this name is in force".into())));
        } else {
            enforced += enforces;
            shadowed += shadows;
            accepted.push(entry);
        }
    }
    (accepted, refused)
}

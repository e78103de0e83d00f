//! What is enforced: all policies of the pod, made ready to be asked, and the store. Built once a change and swapped
//! between two requests; a request takes one and keeps it. Counters live in the store, so a swap loses none.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use sluice_config::message::PolicyUid;
use sluice_config::policy::Mode;
use sluice_config::{KeySecret, PreparedPolicy, Refusal};
use sluice_store::{LimitSpec, MAX_COUNTERS, Store};

use crate::record::{LimitMetrics, Metrics};
use crate::respond::RateNames;
use crate::stores::{StoreChoice, Stores, started};

/// What is enforced.
#[derive(Debug)]
pub(crate) struct Snapshot {
    /// Where counters live; `None`: nowhere, and each policy's `onStoreFailure` decides.
    pub(crate) store: Option<Arc<Store>>,
    /// What keys are hashed with.
    pub(crate) secret: KeySecret,
    pub(crate) policies: Arc<[Policy]>,
}

impl Snapshot {
    fn nothing() -> Self {
        Self { store: None, secret: KeySecret::new([0; 16]), policies: Arc::default() }
    }

    pub(crate) fn limit(&self, at: LimitAt) -> &Limit {
        &self.policies[usize::from(at.policy)].limits[usize::from(at.limit)]
    }
}

/// Which limit of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LimitAt {
    pub(crate) policy: u16,
    pub(crate) limit: u16,
}

/// A policy in force.
#[derive(Debug)]
pub(crate) struct Policy {
    pub(crate) prepared: Arc<PreparedPolicy>,
    /// In the order of `prepared.limits`.
    pub(crate) limits: Vec<Limit>,
}

/// A limit in force, with everything about it that is the same for all requests.
#[derive(Debug)]
pub(crate) struct Limit {
    pub(crate) spec: Arc<LimitSpec>,
    pub(crate) mode: Mode,
    pub(crate) names: RateNames,
    pub(crate) metrics: LimitMetrics,
}

/// Puts policies into force. Clones are the same publisher.
#[derive(Debug, Clone)]
pub struct Publisher(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    current: ArcSwap<Snapshot>,
    stores: Mutex<Stores>,
    metrics: Metrics,
    applied: AtomicBool,
}

impl Publisher {
    pub(crate) fn new(stores: Stores, metrics: Metrics) -> Self {
        metrics.unlimited.set(1);
        Self(Arc::new(Inner {
            current: ArcSwap::from_pointee(Snapshot::nothing()),
            stores: Mutex::new(stores),
            metrics,
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
    ) -> Vec<(PolicyUid, Refusal)> {
        let (accepted, refused) = fit(policies);
        let metrics = &self.0.metrics;
        let mut seen = HashSet::new();
        let mut twice = HashSet::new();
        for limit in accepted.iter().flat_map(|(_, policy)| &policy.limits) {
            if !seen.insert(limit.name.as_str()) {
                twice.insert(limit.name.as_str());
            }
        }
        let prepared = accepted.iter().map(|(_, policy)| Policy {
            limits: policy
                .limits
                .iter()
                .map(|limit| Limit {
                    spec: Arc::new(LimitSpec::new(limit.scope.clone(), limit.rates.clone())),
                    mode: limit.mode,
                    names: if twice.contains(limit.name.as_str()) {
                        RateNames::new(&format!("{}/{}", policy.name, limit.name), &limit.rates)
                    } else {
                        RateNames::new(&limit.name, &limit.rates)
                    },
                    metrics: metrics.limit(policy, &limit.name),
                })
                .collect(),
            prepared: policy.clone(),
        });
        // One publication at a time, so that the newest wins.
        let mut stores = self.0.stores.lock().unwrap_or_else(PoisonError::into_inner);
        let mut snapshot = Snapshot { policies: prepared.collect(), ..Snapshot::nothing() };
        let chosen = stores.choose(store, |runtime, coming| {
            runtime.spawn(self.clone().hand_over(coming));
        });
        if let Some((store, secret)) = chosen {
            snapshot.store = Some(store);
            snapshot.secret = secret;
        }
        self.0.current.store(Arc::new(snapshot));
        metrics.in_force(accepted.iter().map(|(uid, policy)| (uid.as_str(), policy.as_ref())));
        metrics.unlimited.set(0);
        self.0.applied.store(true, Ordering::Release);
        refused
    }

    /// Puts a store into use when it is ready, with the policies that are in force then.
    async fn hand_over(self, coming: Arc<Store>) {
        started(&coming).await;
        let mut stores = self.0.stores.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((store, secret)) = stores.hand_over(&coming) {
            let policies = self.current().policies.clone();
            self.0.current.store(Arc::new(Snapshot { store: Some(store), secret, policies }));
        }
    }

    /// Which of these policies could not be in force together with those before them.
    #[must_use]
    pub fn misfits(policies: &[(PolicyUid, Arc<PreparedPolicy>)]) -> Vec<(PolicyUid, Refusal)> {
        fit(policies).1
    }

    /// Whether anything has been put into force yet.
    #[must_use]
    pub fn has_published(&self) -> bool {
        self.0.applied.load(Ordering::Acquire)
    }

    /// How the store is doing.
    #[must_use]
    pub fn store_state(&self) -> crate::stores::StoreState {
        self.0.stores.lock().unwrap_or_else(PoisonError::into_inner).state()
    }

    pub(crate) fn current(&self) -> Arc<Snapshot> {
        self.0.current.load_full()
    }
}

type Entry = (PolicyUid, Arc<PreparedPolicy>);

/// Which policies can be in force together. A check holds so many counters at most, and a request may match them
/// all.
fn fit(policies: &[Entry]) -> (Vec<&Entry>, Vec<(PolicyUid, Refusal)>) {
    let (mut accepted, mut refused) = (Vec::<&Entry>::new(), Vec::new());
    let (mut enforced, mut shadowed) = (0, 0);
    for entry in policies {
        let (uid, policy) = entry;
        let shadows = policy.limits.iter().filter(|limit| limit.mode == Mode::Shadow).count();
        let enforces = policy.limits.len() - shadows;
        let name = |p: &PreparedPolicy| (p.namespace.clone(), p.name.clone());
        if enforced + enforces > MAX_COUNTERS || shadowed + shadows > MAX_COUNTERS {
            refused.push((uid.clone(), Refusal(format!(
                "the policies of this pod have more than {MAX_COUNTERS} limits together: merge or remove some"
            ))));
        } else if accepted.iter().any(|(_, other)| name(other) == name(policy)) {
            refused.push((uid.clone(), Refusal("another policy of this name is in force".into())));
        } else {
            enforced += enforces;
            shadowed += shadows;
            accepted.push(entry);
        }
    }
    (accepted, refused)
}

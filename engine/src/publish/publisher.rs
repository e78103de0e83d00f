//! Builds snapshots and swaps them in.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sluice_config::message::{PolicyUid, Replica};
use sluice_config::store_access::StoreChoices;
use sluice_config::{Nack, PreparedLimit, PreparedPolicy};
use sluice_store::Clock;

use crate::files::FollowedFiles;
use crate::limit::active::{ActiveLimit, ActivePolicy, LimitSource};
use crate::limit::rates::Load;
use crate::limit::slots::Slots;
use crate::limit::snapshot::{CurrentSnapshot, Snapshot};
use crate::metrics::DecisionMetrics;
use crate::metrics::limit::LazyMetrics;
use crate::publish::fit::{IdentifiedPolicy, fit};
use crate::publish::replicas::ReplicaTable;
use crate::startup_policy::StartupPolicy;
use crate::stores::Stores;
use crate::stores::named_store::StartedStore;
use crate::stores::store_state::StoreState;

/// Activates policies. Clones share the active snapshot.
#[derive(Debug, Clone)]
pub struct Publisher(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    current: CurrentSnapshot,
    stores: Mutex<Stores>,
    replicas: Mutex<ReplicaTable>,
    metrics: Arc<DecisionMetrics>,
    load: Load,
    slots: Slots,
    files: FollowedFiles,
    published: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The values are consistent between any two statements that can panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Publisher {
    pub(crate) fn new(
        stores: Stores,
        metrics: DecisionMetrics,
        load: Load,
        startup_policy: StartupPolicy,
        clock: Clock,
    ) -> Self {
        metrics.unlimited.set(i64::from(startup_policy == StartupPolicy::Forward));
        metrics.rejecting.set(i64::from(startup_policy == StartupPolicy::Deny));
        Self(Arc::new(Shared {
            current: CurrentSnapshot::new(Snapshot::before_policies(startup_policy, clock)),
            stores: Mutex::new(stores),
            replicas: Mutex::default(),
            metrics: Arc::new(metrics),
            load,
            slots: Slots::default(),
            files: FollowedFiles::default(),
            published: AtomicBool::new(false),
        }))
    }

    /// Activates these policies, and no others, for every request that arrives after this call. Earlier
    /// policies take precedence. Returns the policies that cannot be active beside those before them, with
    /// the reason.
    pub fn publish(
        &self,
        stores: &StoreChoices,
        policies: &[(PolicyUid, Arc<PreparedPolicy>)],
    ) -> Vec<(PolicyUid, Nack)> {
        let (accepted, nacked) = fit(policies);
        let metrics = &self.0.metrics;
        // Held until the end, so that the newest of two concurrent publications wins.
        let mut in_use = lock(&self.0.stores);
        let name_of =
            |policy: &'_ PreparedPolicy| stores.name_of(&policy.namespace, &policy.store).into_owned();
        let names: BTreeSet<_> = accepted.iter().map(|(_, policy)| name_of(policy)).collect();
        let active = self.activate(&accepted, stores, &names);
        let names: BTreeSet<_> = names.iter().map(String::as_str).collect();
        let chosen = in_use.choose(stores, &names, |runtime, name, starting| {
            runtime.spawn(self.clone().switch_store(name, starting));
        });
        self.0.published.store(true, Ordering::Release);
        let before = self.current();
        let scopes: HashSet<&str> =
            accepted.iter().flat_map(|(_, policy)| &policy.limits).map(|limit| &*limit.scope).collect();
        for policy in before.policies.iter().map(|policy| &*policy.prepared) {
            let gone = policy.limits.iter().filter(|limit| !scopes.contains(&*limit.scope));
            gone.for_each(|limit| metrics.remove(policy, limit));
        }
        self.0.current.set(Snapshot::new(chosen, active).continuing(&before));
        metrics.set_active(accepted.iter().map(|(uid, policy)| (uid.as_str(), policy.as_ref())));
        self.report_replicas();
        metrics.unlimited.set(0);
        metrics.rejecting.set(0);
        nacked
    }

    /// Activates policies. `names` has the names of the snapshot's stores, in their order.
    fn activate(
        &self,
        accepted: &[&IdentifiedPolicy],
        stores: &StoreChoices,
        names: &BTreeSet<String>,
    ) -> Arc<[ActivePolicy]> {
        let current = self.current();
        let replicas = lock(&self.0.replicas).activate(accepted);
        let repeated = repeated_names(accepted);
        let before: HashMap<&str, &ActiveLimit> =
            current.limits().map(|limit| (&*limit.base().plan.spec.scope, limit)).collect();
        let asked: HashMap<String, &PreparedPolicy> = current
            .policies
            .iter()
            .filter(|policy| policy.prepared.is_asked())
            .map(|policy| (policy.prepared.qualified_name(), &*policy.prepared))
            .collect();
        for (_, policy) in accepted.iter().filter(|_| !asked.is_empty()) {
            // An edit of what gateways do not ask about does not make them ask anew.
            let before = asked.get(&policy.qualified_name());
            if before.is_some_and(|before| domains(before) == domains(policy)) {
                policy.note_asked();
            }
        }
        let active = accepted.iter().zip(replicas).map(|((_, policy), replicas)| {
            let limits = policy.limits.iter().enumerate().map(|(n, limit)| {
                let qualified = format!("{}/{}", policy.name, limit.name);
                let repeated = repeated.contains(limit.name.as_str());
                let before = before.get(limit.scope.as_str()).copied();
                ActiveLimit::new(LimitSource {
                    policy,
                    limit,
                    name: if repeated { &qualified } else { &limit.name },
                    replicas: &replicas,
                    load: &self.0.load,
                    metrics: self.metrics(policy, n),
                    before,
                })
            });
            let name = stores.name_of(&policy.namespace, &policy.store);
            let store = names.iter().position(|known| *known == name).unwrap_or_default();
            let secret = stores.secret_of(&policy.namespace, &policy.store).cloned();
            ActivePolicy { limits: limits.collect(), prepared: policy.clone(), replicas, store, secret }
        });
        active.collect()
    }

    /// Returns the metrics of a limit of a policy. Those of a policy object begin with 0, so that alerts see the first denial.
    fn metrics(&self, policy: &Arc<PreparedPolicy>, limit: usize) -> LazyMetrics {
        let (metrics, of) = (self.0.metrics.clone(), policy.clone());
        let lazy = LazyMetrics::new(Box::new(move || metrics.limit(&of, &of.limits[limit])));
        if policy.domain.is_none() {
            LazyMetrics::force(&lazy);
        }
        lazy
    }

    /// Switches to a store when it is ready, with the policies that are active then.
    async fn switch_store(self, name: String, starting: StartedStore) {
        starting.ready().await;
        let mut stores = lock(&self.0.stores);
        if let Some(stores) = stores.switch(&name, &starting) {
            self.0.current.set(self.current().with_stores(stores));
        }
    }

    /// Sets the replicas of policies, active or not. Policies that are not named keep their replicas.
    pub fn set_replicas(&self, replicas: &BTreeMap<PolicyUid, Replica>) {
        lock(&self.0.replicas).received(replicas);
        self.report_replicas();
    }

    fn report_replicas(&self) {
        let current = self.current();
        let policies = current.policies.iter();
        let counts = policies.map(|policy| (policy.prepared.as_ref(), policy.replicas.count()));
        self.0.metrics.set_replicas(counts);
    }

    /// Returns leased quota to the stores and flushes local counts to them. No request may follow.
    pub(crate) async fn close_stores(&self) {
        let closing = lock(&self.0.stores).close();
        closing.await;
    }

    /// Returns the policies that cannot be active beside those before them.
    #[must_use]
    pub fn misfits(policies: &[(PolicyUid, Arc<PreparedPolicy>)]) -> Vec<(PolicyUid, Nack)> {
        fit(policies).1
    }

    /// Waits until policies have been published.
    pub async fn published(&self) {
        let mut changes = self.0.current.changes();
        // The sender lives as long as this.
        while !self.has_published() && changes.changed().await.is_ok() {}
    }

    /// Reports whether policies have been published.
    #[must_use]
    pub fn has_published(&self) -> bool {
        self.0.published.load(Ordering::Acquire)
    }

    /// Returns the state of each store that a policy uses, by its name.
    #[must_use]
    pub fn store_states(&self) -> BTreeMap<String, StoreState> {
        lock(&self.0.stores).states()
    }

    /// Returns the files that policies come from, if there is no operator, and others that are followed.
    #[must_use]
    pub fn files(&self) -> &FollowedFiles {
        &self.0.files
    }

    /// Returns the place of the snapshot in use.
    pub(crate) fn snapshots(&self) -> &CurrentSnapshot {
        &self.0.current
    }

    pub(crate) fn slots(&self) -> &Slots {
        &self.0.slots
    }

    pub(crate) fn current(&self) -> Arc<Snapshot> {
        self.0.current.get()
    }
}

/// Returns the domains whose descriptors a policy counts.
fn domains(policy: &PreparedPolicy) -> BTreeSet<&str> {
    policy.limits.iter().flat_map(PreparedLimit::domains).collect()
}

/// Returns the names that several limits have. Response headers name such a limit together with its policy.
fn repeated_names<'a>(policies: &[&'a IdentifiedPolicy]) -> HashSet<&'a str> {
    let mut seen = HashSet::new();
    let names = policies.iter().flat_map(|(_, policy)| &policy.limits).map(|limit| limit.name.as_str());
    names.filter(|name| !seen.insert(*name)).collect()
}

//! The compiled configuration of the pod: all policies, ready to match requests, and the limiters of their stores. A snapshot
//! is built for each change and swapped in between two requests; a request keeps the one it started with.
//! Counters live in the store, so a swap loses none.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use http::HeaderName;
use sluice_config::charged::{CHARGED, TakenCodes};
use sluice_config::message::{MAX_SHADOW_DENIED, ShadowDenied};
use sluice_config::path::Readings;
use sluice_config::policy::AmbiguousPaths;
use sluice_config::prepared::Domain;
use sluice_config::prepared::index::LimitIndex as Index;
use sluice_config::{KeySecret, PreparedPolicy, RequestAttributes};
use sluice_store::Clock;
use smallvec::SmallVec;
use tokio::sync::watch;

use crate::limit::active::{ActiveLimit, ActivePolicy, Effect};
use crate::limit::index::{LimitIndex, ScopeHash};
use crate::limit::rates::EffectiveRates;
use crate::startup_policy::StartupPolicy;
use crate::stores::limiter_handle::LimiterHandle;

/// Policy and limit, by their positions.
type Place = (u16, u16);

/// The active policies and their stores.
#[derive(Debug)]
pub(crate) struct Snapshot {
    /// The limiter of each store that a policy uses, with the secret that keys are hashed with.
    stores: Vec<(LimiterHandle, KeySecret)>,
    pub(crate) policies: Arc<[ActivePolicy]>,
    /// Finds the limits of all policies that may apply to a request.
    index: Arc<Index>,
    /// The policies of domains, by the names of these.
    domains: Arc<HashMap<Box<[u8]>, u16>>,
    /// The limits of other policies for the descriptors of each domain.
    described: Arc<HashMap<Box<[u8]>, Vec<Place>>>,
    /// The limits of policies by their scopes, as ids of reservations name them.
    scopes: Arc<HashMap<ScopeHash, Place>>,
    /// The policies by `NAMESPACE/NAME`.
    names: Arc<HashMap<Box<str>, u16>>,
    /// Policy and limit of each number in the index.
    places: Arc<[(u16, u16)]>,
    /// The headers with which limits mark requests. Those of clients are removed.
    pub(crate) mark_headers: Arc<[HeaderName]>,
    /// The codes of marks that requests have shown.
    pub(crate) taken: Arc<TakenCodes>,
    /// The time of everything that no store dates.
    pub(crate) clock: Clock,
    /// Whether all requests are rejected, because no policies have been received yet.
    pub(crate) denies_all: bool,
    /// Whether sidecars and the service enforce any policy, so that requests may show what was counted already.
    pub(crate) has_shared: bool,
    /// Whether any policy refuses requests whose path can be read in several ways.
    pub(crate) rejects_ambiguous_paths: bool,
}

impl Snapshot {
    /// Creates the snapshot that applies until policies are received.
    pub(crate) fn before_policies(startup_policy: StartupPolicy, clock: Clock) -> Self {
        let denies_all = match startup_policy {
            StartupPolicy::Forward => false,
            StartupPolicy::Deny => true,
        };
        Self { denies_all, clock, ..Self::new(Vec::new(), Arc::default()) }
    }

    /// Creates a snapshot of active policies, each of which has its store among these.
    pub(crate) fn new(stores: Vec<(LimiterHandle, KeySecret)>, policies: Arc<[ActivePolicy]>) -> Self {
        let rejects = |policy: &ActivePolicy| policy.prepared.ambiguous_paths == AmbiguousPaths::Reject;
        let rejects_ambiguous_paths = policies.iter().any(rejects);
        // Policies of domains are for descriptors, not for requests.
        let others = || (0..).zip(&*policies).filter(|(_, policy)| policy.prepared.domain.is_none());
        let limits = || {
            others().flat_map(|(p, policy)| {
                (0..).zip(&policy.prepared.limits).map(move |(l, limit)| ((p, l), limit))
            })
        };
        let for_requests = || limits().filter(|(_, limit)| limit.is_for_requests());
        let index = Index::new(for_requests().map(|(_, limit)| limit.conditions.as_slice())).into();
        let places = for_requests().map(|(place, _)| place).collect();
        let mut described = HashMap::<Box<[u8]>, Vec<_>>::new();
        for (place, limit) in limits() {
            let domains: HashSet<_> = limit.domains().collect();
            for domain in domains {
                described.entry(domain.as_bytes().into()).or_default().push(place);
            }
        }
        let domains = (0..)
            .zip(&*policies)
            .filter_map(|(p, policy)| Some((policy.prepared.domain.as_ref()?.name.as_bytes().into(), p)));
        let domains = Arc::new(domains.collect());
        let scopes = Arc::new(limits().map(|(place, limit)| (ScopeHash::of(&limit.scope), place)).collect());
        let names = others().map(|(p, policy)| (policy.prepared.qualified_name().into(), p)).collect();
        let limits = policies.iter().flat_map(|policy| &policy.prepared.limits);
        let mut mark_headers: HashSet<_> = limits.filter_map(|limit| limit.mark.clone()).collect();
        let has_shared = policies.iter().any(|policy| policy.prepared.is_shared);
        if has_shared {
            mark_headers.insert(CHARGED);
        }
        let mark_headers = mark_headers.into_iter().collect();
        Self {
            stores,
            policies,
            domains,
            described: Arc::new(described),
            scopes,
            names: Arc::new(names),
            index,
            places,
            mark_headers,
            taken: Arc::default(),
            clock: Clock::system(),
            denies_all: false,
            has_shared,
            rejects_ambiguous_paths,
        }
    }

    /// Reports whether connections of a peer may begin with a header of the PROXY protocol.
    pub(crate) fn accepts_proxy_protocol(&self, peer: IpAddr) -> bool {
        self.policies.iter().any(|policy| policy.prepared.accepts_proxy_protocol(peer))
    }

    /// Returns the snapshot with the clock of the one before it, and with the codes that requests have shown.
    pub(crate) fn continuing(self, before: &Self) -> Self {
        Self { taken: before.taken.clone(), clock: before.clock.clone(), ..self }
    }

    /// Creates a snapshot with the same policies and other stores.
    pub(crate) fn with_stores(&self, stores: Vec<(LimiterHandle, KeySecret)>) -> Self {
        let (policies, index, places) = (self.policies.clone(), self.index.clone(), self.places.clone());
        let (mark_headers, domains) = (self.mark_headers.clone(), self.domains.clone());
        let (described, taken, scopes) = (self.described.clone(), self.taken.clone(), self.scopes.clone());
        let names = self.names.clone();
        Self {
            stores,
            policies,
            domains,
            described,
            scopes,
            names,
            index,
            places,
            mark_headers,
            taken,
            clock: self.clock.clone(),
            ..*self
        }
    }

    /// Returns policy and limit of those that may apply to a request, in their order.
    pub(crate) fn candidates(
        &self,
        request: &RequestAttributes<'_>,
        path: &Readings<'_>,
    ) -> SmallVec<[(u16, u16); 16]> {
        let numbers = self.index.candidates(request, path);
        numbers.into_iter().filter_map(|number| self.places.get(number as usize).copied()).collect()
    }

    /// Returns the policy of a domain with its rules, by its position.
    pub(crate) fn domain(&self, name: &[u8]) -> Option<(u16, &ActivePolicy, &Domain)> {
        let position = *self.domains.get(name)?;
        let policy = &self.policies[usize::from(position)];
        Some((position, policy, policy.prepared.domain.as_ref()?))
    }

    /// Returns the limits of policies that may count descriptors of a domain, in their order; `None` if there are none.
    pub(crate) fn described(&self, domain: &[u8]) -> Option<&[(u16, u16)]> {
        self.described.get(domain).map(Vec::as_slice)
    }

    /// Returns the position of the policy with this `NAMESPACE/NAME`.
    pub(crate) fn by_name(&self, name: &str) -> Option<u16> {
        self.names.get(name).copied()
    }

    /// Returns the limit of a policy with this scope.
    pub(crate) fn by_scope(&self, scope: ScopeHash) -> Option<LimitIndex> {
        let (policy, limit) = *self.scopes.get(&scope)?;
        Some(LimitIndex { policy, limit, rates: 0 })
    }

    /// Returns the time in seconds since the Unix epoch.
    pub(crate) fn seconds(&self) -> u64 {
        self.clock.now() / 1_000_000
    }

    /// Returns the limiter of a limit's store.
    pub(crate) fn limiter(&self, index: LimitIndex) -> &LimiterHandle {
        &self.stores[self.store(index)].0
    }

    /// Returns the position of a limit's store.
    pub(crate) fn store(&self, index: LimitIndex) -> usize {
        self.policies[usize::from(index.policy)].store
    }

    /// Returns the secret that the keys of a policy are hashed with.
    pub(crate) fn secret<'a>(&'a self, policy: &'a ActivePolicy) -> &'a KeySecret {
        policy.secret.as_ref().unwrap_or(&self.stores[policy.store].1)
    }

    pub(crate) fn limit(&self, index: LimitIndex) -> &ActiveLimit {
        &self.policies[usize::from(index.policy)].limits[usize::from(index.limit)]
    }

    pub(crate) fn policy(&self, index: LimitIndex) -> &PreparedPolicy {
        &self.policies[usize::from(index.policy)].prepared
    }

    /// Returns the rates of a limit that apply to the request.
    pub(crate) fn rates(&self, index: LimitIndex) -> &EffectiveRates {
        self.limit(index).rates(index.rates)
    }

    /// Returns the distinct clients that each limit in Shadow would have denied, of so many limits as a report may have.
    pub(crate) fn shadow_denied(&self) -> ShadowDenied {
        let policies = self.policies.iter();
        let limits = policies.flat_map(|policy| {
            policy.limits.iter().zip(&policy.prepared.limits).map(move |pair| (policy, pair))
        });
        let shadowed = limits.filter(|(_, (limit, _))| matches!(limit.effect, Effect::Observe));
        let denied = shadowed.filter_map(|(policy, (limit, prepared))| {
            Some((policy.prepared.qualified_name(), &prepared.name, limit.denied_clients.distinct()?))
        });
        let mut all = ShadowDenied::new();
        for (policy, limit, clients) in denied.take(MAX_SHADOW_DENIED) {
            all.entry(policy).or_default().insert(limit.clone(), clients.to_string());
        }
        all
    }

    /// Iterates over the limits of all policies.
    pub(crate) fn limits(&self) -> impl Iterator<Item = &ActiveLimit> {
        self.policies.iter().flat_map(|policy| &policy.limits)
    }

    /// Reports whether any limit depends on the load of the application.
    pub(crate) fn is_elastic(&self) -> bool {
        self.limits().any(|limit| limit.boost.is_some())
    }

    /// Sets the metric of each elastic limit: whether its boosted rates apply.
    pub(crate) fn report_boosted(&self) {
        for limit in self.limits() {
            if let (Some(boost), Some(gauge)) = (&limit.boost, &limit.metrics.boosted) {
                gauge.set(i64::from(boost.applies()));
            }
        }
    }
}

/// The snapshot that requests use now. It tells waiting requests when it has changed.
#[derive(Debug)]
pub(crate) struct CurrentSnapshot {
    snapshot: ArcSwap<Snapshot>,
    changes: watch::Sender<()>,
}

impl CurrentSnapshot {
    pub(crate) fn new(snapshot: Snapshot) -> Self {
        Self { snapshot: ArcSwap::from_pointee(snapshot), changes: watch::Sender::new(()) }
    }

    pub(crate) fn get(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// Replaces the snapshot for every request that arrives after this call.
    pub(crate) fn set(&self, snapshot: Snapshot) {
        self.snapshot.store(Arc::new(snapshot));
        self.changes.send_replace(());
    }

    /// Observes changes of the snapshot.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }
}

//! The compiled configuration of the pod: all policies, ready to match requests, and the limiter. A snapshot
//! is built for each change and swapped in between two requests; a request keeps the one it started with.
//! Counters live in the store, so a swap loses none.

use std::sync::Arc;

use sluice_config::policy::AmbiguousPaths;
use sluice_config::{KeySecret, PreparedPolicy};

use crate::config::limiter_handle::LimiterHandle;
use crate::config::startup_policy::StartupPolicy;
use crate::limit::active::{ActiveLimit, ActivePolicy, LimitIndex};
use crate::limit::rates::EffectiveRates;

/// The active policies and their store.
#[derive(Debug)]
pub(crate) struct Snapshot {
    /// The limiter; `None` until policies have been published.
    pub(crate) limiter: Option<LimiterHandle>,
    /// The secret that keys are hashed with.
    pub(crate) secret: KeySecret,
    pub(crate) policies: Arc<[ActivePolicy]>,
    /// Whether all requests are rejected, because no policies have been received yet.
    pub(crate) denies_all: bool,
    /// Whether any policy refuses requests whose path can be read in several ways.
    pub(crate) rejects_ambiguous_paths: bool,
}

impl Snapshot {
    /// Creates the snapshot that applies until policies are received.
    pub(crate) fn before_policies(startup_policy: StartupPolicy) -> Self {
        let denies_all = match startup_policy {
            StartupPolicy::Forward => false,
            StartupPolicy::Deny => true,
        };
        Self { denies_all, ..Self::new(None, Arc::default()) }
    }

    /// Creates a snapshot of active policies. Without a store no limit is decided.
    pub(crate) fn new(store: Option<(LimiterHandle, KeySecret)>, policies: Arc<[ActivePolicy]>) -> Self {
        let (limiter, secret) = match store {
            Some((limiter, secret)) => (Some(limiter), secret),
            None => (None, KeySecret::new([0; 16])),
        };
        let rejects = |policy: &ActivePolicy| policy.prepared.ambiguous_paths == AmbiguousPaths::Reject;
        let rejects_ambiguous_paths = policies.iter().any(rejects);
        Self { limiter, secret, policies, denies_all: false, rejects_ambiguous_paths }
    }

    pub(crate) fn limit(&self, index: LimitIndex) -> &ActiveLimit {
        &self.policies[usize::from(index.policy)].limits[usize::from(index.limit)]
    }

    pub(crate) fn policy(&self, index: LimitIndex) -> &PreparedPolicy {
        &self.policies[usize::from(index.policy)].prepared
    }

    /// Returns the rates of a limit that apply to the request.
    pub(crate) fn rates(&self, index: LimitIndex) -> &EffectiveRates {
        let limit = self.limit(index);
        match &limit.boosted {
            Some(boosted) if index.boosted => &boosted.rates,
            _ => &limit.base,
        }
    }

    /// Iterates over the limits of all policies.
    pub(crate) fn limits(&self) -> impl Iterator<Item = &ActiveLimit> {
        self.policies.iter().flat_map(|policy| &policy.limits)
    }

    /// Reports whether any limit depends on the load of the application.
    pub(crate) fn is_elastic(&self) -> bool {
        self.limits().any(|limit| limit.boosted.is_some())
    }

    /// Sets the metric of each elastic limit: whether its boosted rates apply.
    pub(crate) fn report_boosted(&self) {
        for limit in self.limits() {
            if let (Some(boosted), Some(gauge)) = (&limit.boosted, &limit.metrics.boosted) {
                gauge.set(i64::from(boosted.apply()));
            }
        }
    }
}

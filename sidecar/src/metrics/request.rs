//! What is counted, and the one place where metrics are named. Never labelled by client.

use std::sync::Arc;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use sluice_config::concurrency::Concurrency;
use sluice_config::policy::Mode;
use sluice_config::{PreparedLimit, PreparedPolicy};
use sluice_limiter::Algorithm;

use crate::config::stores::CurrentStore;
use crate::limit::adaptive::AdaptiveMetrics;
use crate::metrics::store::StoreMetrics;
use crate::upstream::in_flight::InFlight;

/// Which limit, and what became of the request.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Decided {
    /// `NAMESPACE/NAME`.
    policy: String,
    limit: String,
    outcome: &'static str,
}

/// Which limit.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfLimit {
    /// `NAMESPACE/NAME`.
    policy: String,
    limit: String,
}

/// A policy in force.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct InForce {
    policy: String,
    uid: String,
    hash: String,
}

/// Which policy.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfPolicy {
    /// `NAMESPACE/NAME`.
    policy: String,
}

/// Why the application did not answer, or a request was not taken.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

/// Everything that is counted. Clones count together.
#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    decisions: Family<Decided, Counter>,
    fallbacks: Family<Decided, Counter>,
    waiting: Family<OfLimit, Gauge>,
    raised: Family<OfLimit, Gauge>,
    held: Family<OfLimit, Gauge>,
    adaptive: [Family<OfLimit, Gauge>; 3],
    policies: Family<InForce, Gauge>,
    pods: Family<OfPolicy, Gauge>,
    upstream_errors: Family<Reason, Counter>,
    refused_requests: Family<Reason, Counter>,
    /// 1 while no policies have been put into force and so everything passes.
    pub(crate) unlimited: Gauge,
    /// Clients' connections.
    pub(crate) connections: Gauge,
    registry: Arc<Registry>,
}

/// The counters of one limit.
#[derive(Debug, Clone)]
pub(crate) struct LimitMetrics {
    pub(crate) admitted: Counter,
    pub(crate) denied: Counter,
    pub(crate) shadow_denied: Counter,
    /// Let through because the store did not answer.
    pub(crate) fallback_admitted: Counter,
    /// Rejected because the store did not answer.
    pub(crate) fallback_denied: Counter,
    /// Admitted and denied by this pod's share because the store did not answer.
    shared: [Counter; 2],
    /// Of a leaky bucket: requests that wait for their turn.
    pub(crate) waiting: Option<Gauge>,
    /// Of an elastic limit: 1 while its higher number holds.
    pub(crate) raised: Option<Gauge>,
    /// Of a shared limit of requests at a time: the places of this process.
    pub(crate) held: Option<Gauge>,
    /// Of an adaptive limit.
    pub(crate) adaptive: Option<AdaptiveMetrics>,
}

impl LimitMetrics {
    /// What this pod's share decided because the store did not answer.
    pub(crate) fn by_share(&self, admitted: bool) -> &Counter {
        &self.shared[usize::from(!admitted)]
    }
}

impl Metrics {
    pub(crate) fn new(store: CurrentStore, in_flight: InFlight) -> Self {
        let mut registry = Registry::with_prefix("sluice");
        let decisions = Family::default();
        registry.register("decisions", "Decisions by policy, limit and outcome", decisions.clone());
        let fallbacks = Family::default();
        registry.register("fallback", "Requests decided by onStoreFailure", fallbacks.clone());
        let waiting = Family::default();
        registry.register("waiting_requests", "Requests that wait for their turn", waiting.clone());
        let raised = Family::default();
        registry.register("limit_raised", "1: an elastic limit has its higher number", raised.clone());
        let held = Family::default();
        registry.register("concurrency_held", "Places held under a shared limit", held.clone());
        let adaptive: [Family<OfLimit, Gauge>; 3] = Default::default();
        for (family, (name, help)) in adaptive.iter().zip([
            ("adaptive_limit", "Requests at a time that an adaptive limit admits now"),
            ("adaptive_in_flight", "Requests in flight under an adaptive limit"),
            ("adaptive_probing", "1: lowered for a moment to measure the application without a queue"),
        ]) {
            registry.register(name, help, family.clone());
        }
        let policies = Family::default();
        registry.register("policy_info", "Policies in force, with their hash", policies.clone());
        let pods = Family::default();
        registry.register("policy_pods", "Pods that share a policy, as far as is known", pods.clone());
        let upstream_errors = Family::default();
        registry.register("upstream_errors", "Requests that got no answer", upstream_errors.clone());
        let refused_requests = Family::default();
        registry.register("refused_requests", "Requests that cannot be served", refused_requests.clone());
        let unlimited = Gauge::default();
        registry.register("sidecar_unlimited", "1: no policies known, everything passes", unlimited.clone());
        let connections = Gauge::default();
        registry.register("open_connections", "Connections of clients", connections.clone());
        registry.register_collector(Box::new(in_flight));
        registry.register_collector(Box::new(StoreMetrics(store)));
        let registry = Arc::new(registry);
        Self {
            decisions,
            fallbacks,
            waiting,
            raised,
            held,
            adaptive,
            policies,
            pods,
            upstream_errors,
            refused_requests,
            unlimited,
            connections,
            registry,
        }
    }

    /// The counters of a limit; made once a snapshot.
    pub(crate) fn limit(&self, policy: &PreparedPolicy, limit: &PreparedLimit) -> LimitMetrics {
        let policy = format!("{}/{}", policy.namespace, policy.name);
        let of = |family: &Family<Decided, Counter>, outcome| {
            let (policy, limit) = (policy.clone(), limit.name.clone());
            family.get_or_create_owned(&Decided { policy, limit, outcome })
        };
        let gauge = |family: &Family<OfLimit, Gauge>, has: bool| {
            let labels = OfLimit { policy: policy.clone(), limit: limit.name.clone() };
            if has {
                return Some(family.get_or_create_owned(&labels));
            }
            family.remove(&labels);
            None
        };
        let waits = limit.rates.iter().any(|rate| matches!(rate.algorithm, Algorithm::LeakyBucket { .. }));
        let is_shared = matches!(limit.concurrency, Some(Concurrency::Shared { .. }));
        let is_adaptive = matches!(limit.concurrency, Some(Concurrency::Adaptive(_)));
        let [level, in_flight, probing] = [0, 1, 2].map(|n| gauge(&self.adaptive[n], is_adaptive));
        let adaptive = level.zip(in_flight).zip(probing);
        // Not the client has too many requests, but the application.
        let denied = if is_adaptive { "shed" } else { "denied" };
        LimitMetrics {
            admitted: of(&self.decisions, "admitted"),
            denied: of(&self.decisions, denied),
            shadow_denied: of(&self.decisions, "shadow_denied"),
            fallback_admitted: of(&self.fallbacks, "admitted"),
            fallback_denied: of(&self.fallbacks, "denied"),
            shared: ["share_admitted", "share_denied"].map(|outcome| of(&self.fallbacks, outcome)),
            waiting: gauge(&self.waiting, waits && limit.mode == Mode::Enforce),
            raised: gauge(&self.raised, limit.raised.is_some()),
            held: gauge(&self.held, is_shared),
            adaptive: adaptive.map(|((limit, in_flight), probing)| AdaptiveMetrics {
                limit,
                in_flight,
                probing,
            }),
        }
    }

    /// Says which policies are in force, and no others.
    pub(crate) fn in_force<'a>(&self, policies: impl Iterator<Item = (&'a str, &'a PreparedPolicy)>) {
        self.policies.clear();
        for (uid, policy) in policies {
            let labels = InForce {
                policy: format!("{}/{}", policy.namespace, policy.name),
                uid: uid.to_owned(),
                hash: policy.hash.to_string(),
            };
            self.policies.get_or_create(&labels).set(1);
        }
    }

    /// Says how many pods share each policy in force.
    pub(crate) fn shared<'a>(&self, policies: impl Iterator<Item = (&'a PreparedPolicy, u64)>) {
        self.pods.clear();
        for (policy, pods) in policies {
            let policy = format!("{}/{}", policy.namespace, policy.name);
            self.pods.get_or_create(&OfPolicy { policy }).set(i64::try_from(pods).unwrap_or(i64::MAX));
        }
    }

    pub(crate) fn upstream_error(&self, reason: &'static str) {
        self.upstream_errors.get_or_create(&Reason { reason }).inc();
    }

    pub(crate) fn refused_request(&self, reason: &'static str) {
        self.refused_requests.get_or_create(&Reason { reason }).inc();
    }

    /// Everything, as Prometheus reads it.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = prometheus_client::encoding::text::encode(&mut text, &self.registry);
        text
    }
}

//! The metrics of requests and policies, and the one place where they are named.

use std::sync::Arc;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use sluice_config::policy::Mode;
use sluice_config::prepared::{PreparedKind, RateSet};
use sluice_config::{PreparedLimit, PreparedPolicy};
use sluice_limiter::Rate;

use crate::config::stores::CurrentLimiters;
use crate::inbound::table::activity::EndReason;
use crate::limit::adaptive::AdaptiveMetrics;
use crate::metrics::labels::{
    BuildLabels, DecisionLabels, LimitLabels, PolicyInfoLabels, PolicyLabels, PriorityLabels, ReasonLabels,
    begin_with_zero,
};
use crate::metrics::latency::Latency;
use crate::metrics::limit::{KeyMetrics, LimitMetrics};
use crate::metrics::per_limit::{ExpressionErrors, KeyUsages, RefusedTokens};
use crate::metrics::settlements::SettlementMetrics;
use crate::metrics::spans::SpanMetrics;
use crate::metrics::store::StoreMetrics;
use crate::metrics::streams::EndedStreams;
use crate::upstream::abandoned::AbandonedRequests;
use crate::upstream::application::Applications;
use crate::upstream::in_flight::InFlight;

/// The metrics of a sidecar. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    decisions: Family<DecisionLabels, Counter>,
    fallbacks: Family<DecisionLabels, Counter>,
    waiting: Family<LimitLabels, Gauge>,
    boosted: Family<LimitLabels, Gauge>,
    held: Family<LimitLabels, Gauge>,
    adaptive: [Family<LimitLabels, Gauge>; 3],
    priorities: Family<PriorityLabels, Counter>,
    overflowed: Family<LimitLabels, Counter>,
    settlements: Family<DecisionLabels, Counter>,
    key_usages: KeyUsages,
    expression_errors: ExpressionErrors,
    refused_tokens: RefusedTokens,
    policies: Family<PolicyInfoLabels, Gauge>,
    replicas: Family<PolicyLabels, Gauge>,
    upstream_errors: Family<ReasonLabels, Counter>,
    refused_requests: Family<ReasonLabels, Counter>,
    ended_connections: Family<ReasonLabels, Counter>,
    pub(crate) ended_streams: EndedStreams,
    pub(crate) panics: Counter,
    /// 1 while requests are unlimited because no policies have been received yet.
    pub(crate) unlimited: Gauge,
    /// 1 while all requests are rejected because no policies have been received yet.
    pub(crate) rejecting: Gauge,
    /// Open connections of clients.
    pub(crate) connections: Gauge,
    /// Time that requests spend before they are forwarded or rejected.
    pub(crate) added_latency: Latency,
    /// Time that Sluice adds to requests that may wait in a queue.
    pub(crate) queued_latency: Latency,
    pub(crate) spans: SpanMetrics,
    registry: Arc<Registry>,
}

impl Metrics {
    pub(crate) fn new(store: CurrentLimiters, in_flight: InFlight, applications: Applications) -> Self {
        let mut registry = Registry::with_prefix("sluice");
        let build = Family::<BuildLabels, Gauge>::default();
        build.get_or_create(&BuildLabels { version: env!("CARGO_PKG_VERSION") }).set(1);
        registry.register("build_info", "1, with the release of the sidecar as a label", build);
        let (added_latency, queued_latency) = (Latency::added(), Latency::queued());
        for latency in [&added_latency, &queued_latency] {
            registry.register_collector(Box::new(latency.clone()));
        }
        let spans = SpanMetrics::register(&mut registry);
        let decisions = Family::default();
        registry.register("decisions", "Decisions of limits about requests", decisions.clone());
        let fallbacks = Family::default();
        registry.register(
            "fallback",
            "Requests for which the store did not answer, so that onStoreFailure decided",
            fallbacks.clone(),
        );
        let waiting = Family::default();
        registry.register(
            "waiting_requests",
            "Requests waiting in the queue of a limit, or in the delay queue of a leaky bucket",
            waiting.clone(),
        );
        let boosted = Family::default();
        registry.register(
            "limit_raised",
            "1 while the boosted rates of an elastic limit apply",
            boosted.clone(),
        );
        let held = Family::default();
        registry.register("concurrency_held", "Slots of a concurrency limit held by this pod", held.clone());
        let adaptive: [Family<LimitLabels, Gauge>; 3] = Default::default();
        for (family, (name, help)) in adaptive.iter().zip([
            ("adaptive_limit", "Concurrent requests that an adaptive limit currently admits"),
            ("adaptive_in_flight", "Requests in flight under an adaptive limit"),
            (
                "adaptive_probing",
                "1 while an adaptive limit is lowered to measure the latency without queueing",
            ),
        ]) {
            registry.register(name, help, family.clone());
        }
        let priorities = Family::default();
        registry.register(
            "priority_requests",
            "Requests with a priority under an adaptive limit, by outcome: admitted or shed. In Shadow, shed means that they would have been",
            priorities.clone(),
        );
        let overflowed = Family::default();
        registry.register(
            "key_overflow",
            "Checks of new clients that the shared counter decided, because the limit has maxKeys keys",
            overflowed.clone(),
        );
        let settlements = Family::default();
        registry.register(
            "settlements",
            "Admitted requests of limits with countWhen or a cost of the response, by what their outcome changed",
            settlements.clone(),
        );
        let key_usages = KeyUsages::default();
        registry.register_collector(Box::new(key_usages.clone()));
        let expression_errors = ExpressionErrors::default();
        registry.register_collector(Box::new(expression_errors.clone()));
        let refused_tokens = RefusedTokens::default();
        registry.register_collector(Box::new(refused_tokens.clone()));
        let policies = Family::default();
        registry.register(
            "policy_info",
            "1 for each policy that the sidecar enforces, with the hash of its version",
            policies.clone(),
        );
        let replicas = Family::default();
        registry.register(
            "policy_pods",
            "Known replicas of a policy: pods that enforce it together",
            replicas.clone(),
        );
        let upstream_errors = Family::default();
        registry.register(
            "upstream_errors",
            "Requests that the application did not answer",
            upstream_errors.clone(),
        );
        let refused_requests = Family::default();
        registry.register(
            "refused_requests",
            "Requests refused because they are malformed or ambiguous, meet more than 32 limits, or came before the first policies",
            refused_requests.clone(),
        );
        let ended_connections = Family::default();
        begin_with_zero(&ended_connections, EndReason::ALL.map(EndReason::label));
        registry.register(
            "ended_connections",
            "Connections of clients that the sidecar ended by a timeout or to make room for others",
            ended_connections.clone(),
        );
        let ended_streams = EndedStreams::default();
        registry.register(
            "ended_streams",
            "Streams of HTTP/2 that the sidecar ended because their receiver did not read",
            ended_streams.0.clone(),
        );
        let panics = Counter::default();
        registry.register(
            "panics",
            "Requests and connections that ended by a defect of the sidecar",
            panics.clone(),
        );
        let unlimited = Gauge::default();
        registry.register(
            "sidecar_unlimited",
            "1 while requests are unlimited because no policies have been received yet",
            unlimited.clone(),
        );
        let rejecting = Gauge::default();
        registry.register(
            "sidecar_rejecting",
            "1 while all requests are rejected because no policies have been received yet",
            rejecting.clone(),
        );
        let connections = Gauge::default();
        registry.register("open_connections", "Open connections of clients", connections.clone());
        registry.register_collector(Box::new(in_flight));
        registry.register_collector(Box::new(AbandonedRequests));
        registry.register_collector(Box::new(applications));
        registry.register_collector(Box::new(StoreMetrics(store)));
        let registry = Arc::new(registry);
        Self {
            decisions,
            fallbacks,
            waiting,
            boosted,
            held,
            adaptive,
            priorities,
            overflowed,
            settlements,
            key_usages,
            expression_errors,
            refused_tokens,
            policies,
            replicas,
            upstream_errors,
            refused_requests,
            ended_connections,
            ended_streams,
            panics,
            unlimited,
            rejecting,
            connections,
            added_latency,
            queued_latency,
            spans,
            registry,
        }
    }

    /// Adds the reasons of errors of the application and of refused requests, which are then counted from 0.
    pub(crate) fn add_reasons(
        &self,
        upstream_errors: impl IntoIterator<Item = &'static str>,
        refused_requests: impl IntoIterator<Item = &'static str>,
    ) {
        begin_with_zero(&self.upstream_errors, upstream_errors);
        begin_with_zero(&self.refused_requests, refused_requests);
    }

    /// Returns the metrics of a limit. Called once for each snapshot.
    pub(crate) fn limit(&self, policy: &PreparedPolicy, limit: &PreparedLimit) -> LimitMetrics {
        let labels = LimitLabels::of(policy, limit);
        let of = |family: &Family<DecisionLabels, Counter>, outcome| {
            family.get_or_create_owned(&DecisionLabels { limit: labels.clone(), outcome })
        };
        let gauge = |family: &Family<LimitLabels, Gauge>, has: bool| {
            if has {
                return Some(family.get_or_create_owned(&labels));
            }
            family.remove(&labels);
            None
        };
        let keys = (limit.max_keys > 0).then(|| {
            let overflowed = self.overflowed.get_or_create_owned(&labels);
            KeyMetrics { overflowed, usage: limit.key_usage.clone() }
        });
        self.key_usages.set(&labels, keys.is_some().then_some(&limit.key_usage));
        let errors = limit.has_expressions().then_some(&limit.expression_errors);
        self.expression_errors.set(&labels, errors);
        let settlements = limit.charge.settlement().map(|_| SettlementMetrics {
            counted: of(&self.settlements, "counted"),
            uncounted: of(&self.settlements, "uncounted"),
            missing: of(&self.settlements, "missing"),
            lost: of(&self.settlements, "lost"),
        });
        let waits =
            limit.queue.is_some() || limit.rate_sets().iter().flat_map(RateSet::deciding).any(Rate::delays);
        let blocks = limit.rate_sets().first().is_some_and(|set| set.block().is_some());
        let is_shared = matches!(limit.kind, PreparedKind::Slots(_));
        let is_adaptive = matches!(limit.kind, PreparedKind::Adaptive(_));
        let [level, in_flight, probing] = [0, 1, 2].map(|n| gauge(&self.adaptive[n], is_adaptive));
        let adaptive = level.zip(in_flight).zip(probing);
        let priorities = match &limit.kind {
            PreparedKind::Adaptive(adaptive) => adaptive.priorities.as_slice(),
            PreparedKind::Rates { .. } | PreparedKind::Slots(_) => &[],
        };
        let of_priority = |(name, _): &(String, u32)| {
            ["admitted", "shed"].map(|outcome| {
                let (limit, priority) = (labels.clone(), name.clone());
                self.priorities.get_or_create_owned(&PriorityLabels { limit, priority, outcome })
            })
        };
        let priorities = priorities.iter().map(of_priority).collect();
        // The application has too many requests, not the client.
        let denied = if is_adaptive { "shed" } else { "denied" };
        LimitMetrics {
            admitted: of(&self.decisions, "admitted"),
            denied: of(&self.decisions, denied),
            blocked: blocks.then(|| of(&self.decisions, "blocked")),
            marked: limit.mark.is_some().then(|| of(&self.decisions, "marked")),
            shadow_denied: of(&self.decisions, "shadow_denied"),
            skipped: of(&self.decisions, "skipped"),
            fallback_admitted: of(&self.fallbacks, "admitted"),
            fallback_denied: of(&self.fallbacks, "denied"),
            local_quota: ["share_admitted", "share_denied"].map(|outcome| of(&self.fallbacks, outcome)),
            waiting: gauge(&self.waiting, waits && limit.mode == Mode::Enforce),
            boosted: gauge(&self.boosted, limit.boosted_below().is_some()),
            held: gauge(&self.held, is_shared),
            keys,
            settlements,
            adaptive: adaptive.map(|((limit, in_flight), probing)| AdaptiveMetrics {
                limit,
                in_flight,
                probing,
                priorities,
            }),
        }
    }

    /// Sets the active policies.
    pub(crate) fn set_active<'a>(&self, policies: impl Iterator<Item = (&'a str, &'a PreparedPolicy)>) {
        self.policies.clear();
        for (uid, policy) in policies {
            let labels = PolicyInfoLabels {
                policy: PolicyLabels::of(policy),
                uid: uid.to_owned(),
                hash: policy.hash.to_string(),
            };
            self.policies.get_or_create(&labels).set(1);
            self.refused_tokens.set(policy);
        }
    }

    /// Sets the number of replicas of each active policy.
    pub(crate) fn set_replicas<'a>(&self, policies: impl Iterator<Item = (&'a PreparedPolicy, u64)>) {
        self.replicas.clear();
        for (policy, count) in policies {
            self.replicas
                .get_or_create(&PolicyLabels::of(policy))
                .set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    pub(crate) fn upstream_error(&self, reason: &'static str) {
        self.upstream_errors.get_or_create(&ReasonLabels { reason }).inc();
    }

    pub(crate) fn refused_request(&self, reason: &'static str) {
        self.refused_requests.get_or_create(&ReasonLabels { reason }).inc();
    }

    pub(crate) fn ended_connection(&self, reason: EndReason) {
        self.ended_connections.get_or_create(&ReasonLabels { reason: reason.label() }).inc();
    }

    /// Encodes all metrics in the OpenMetrics text format.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = prometheus_client::encoding::text::encode(&mut text, &self.registry);
        text
    }
}

//! The metrics of policies and their limits, and the one place where they are named.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use sluice_config::policy::Mode;
use sluice_config::prepared::{PreparedKind, RateSet};
use sluice_config::{PreparedLimit, PreparedPolicy};
use sluice_limiter::Rate;

use crate::metrics::labels::{DecisionLabels, LimitLabels, PolicyInfoLabels, PolicyLabels, PriorityLabels};
use crate::metrics::limit::{AdaptiveMetrics, KeyMetrics, LimitMetrics, SettlementMetrics};
use crate::metrics::per_limit::{
    ExpressionErrors, KeyUsages, RefusedTokens, UnclearKeys, UnreadableAddresses,
};
use crate::metrics::store::StoreMetrics;
use crate::stores::CurrentLimiters;

/// The outcomes of each family.
const DECISIONS: [&str; 7] = ["admitted", "denied", "shed", "blocked", "marked", "shadow_denied", "skipped"];
const FALLBACKS: [&str; 4] = ["admitted", "denied", "share_admitted", "share_denied"];
const SETTLEMENTS: [&str; 4] = ["counted", "uncounted", "missing", "lost"];
const PRIORITIES: [&str; 2] = ["admitted", "shed"];

/// The metrics of policies, limits and stores. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct DecisionMetrics {
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
    unclear_keys: UnclearKeys,
    unreadable_addresses: UnreadableAddresses,
    refused_tokens: RefusedTokens,
    policies: Family<PolicyInfoLabels, Gauge>,
    replicas: Family<PolicyLabels, Gauge>,
    /// 1 while requests are unlimited because no policies have been received yet.
    pub(crate) unlimited: Gauge,
    /// 1 while all requests are rejected because no policies have been received yet.
    pub(crate) rejecting: Gauge,
}

impl DecisionMetrics {
    /// Registers the metrics, with those of the stores in use.
    pub(crate) fn register(registry: &mut Registry, stores: CurrentLimiters) -> Self {
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
        let unclear_keys = UnclearKeys::default();
        registry.register_collector(Box::new(unclear_keys.clone()));
        let unreadable_addresses = UnreadableAddresses::default();
        registry.register_collector(Box::new(unreadable_addresses.clone()));
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
        registry.register_collector(Box::new(StoreMetrics(stores)));
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
            unclear_keys,
            unreadable_addresses,
            refused_tokens,
            policies,
            replicas,
            unlimited,
            rejecting,
        }
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
        self.unclear_keys.set(&labels, limit.may_be_unclear().then(|| limit.unclear_keys()));
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
            PRIORITIES.map(|outcome| {
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

    /// Removes the metrics of a limit that is not active any more.
    pub(crate) fn remove(&self, policy: &PreparedPolicy, limit: &PreparedLimit) {
        let labels = LimitLabels::of(policy, limit);
        for (family, outcomes) in [
            (&self.decisions, &DECISIONS[..]),
            (&self.fallbacks, &FALLBACKS),
            (&self.settlements, &SETTLEMENTS),
        ] {
            for outcome in outcomes {
                family.remove(&DecisionLabels { limit: labels.clone(), outcome });
            }
        }
        for family in [&self.waiting, &self.boosted, &self.held].into_iter().chain(&self.adaptive) {
            family.remove(&labels);
        }
        self.overflowed.remove(&labels);
        if let PreparedKind::Adaptive(adaptive) = &limit.kind {
            for (name, _) in &adaptive.priorities {
                for outcome in PRIORITIES {
                    let (limit, priority) = (labels.clone(), name.clone());
                    self.priorities.remove(&PriorityLabels { limit, priority, outcome });
                }
            }
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
            self.unreadable_addresses.set(policy);
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
}

//! The operator's metrics. Every metric is named here.

use std::collections::HashMap;
use std::sync::Mutex;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Metric, Registry};
use sluice_host::logging::DroppedLines;
use sluice_host::serve::table::PortMetrics;

use crate::distribution::hub::Hub;
use crate::locks::lock;
use crate::names::PolicyKey;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct AdmissionLabels {
    webhook: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct BuildLabels {
    version: &'static str,
}

/// The status of one condition of a policy.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ConditionLabels {
    /// A target already has the label `namespace`.
    policy_namespace: String,
    policy: String,
    /// Type of the condition.
    condition: String,
    status: String,
    reason: String,
}

/// The labels of a limit.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct LimitLabels {
    policy_namespace: String,
    policy: String,
    limit: String,
}

/// The operator's metrics.
pub struct Metrics {
    registry: Registry,
    /// Those of the webhook's port and the admin port.
    pub ports: PortMetrics,
    admission: Family<AdmissionLabels, Counter>,
    /// Events sent to sidecars.
    pub events: Counter,
    /// Denied sessions.
    pub denied: Counter,
    /// Reviews of tokens of sidecars.
    pub reviewed: Counter,
    /// Reconciles of policies.
    pub reconciles: Counter,
    /// Those that have failed.
    pub failures: Counter,
    sessions: Gauge<i64>,
    /// Whether this replica is the leader.
    pub leader: Gauge<i64>,
    /// Whether the API server does not call the webhook.
    pub webhook_not_called: Gauge<i64>,
    /// Whether the installation turns all policies to Shadow.
    pub shadow: Gauge<i64>,
    conditions: Family<ConditionLabels, Gauge>,
    shadow_denied: Family<LimitLabels, Gauge>,
    /// The conditions of each policy that are in the metric.
    published: Mutex<HashMap<PolicyKey, Vec<ConditionLabels>>>,
    /// Held while the metrics are encoded.
    encoding: Mutex<()>,
}

/// Registers a metric.
fn registered<M: Metric + Default + Clone>(registry: &mut Registry, name: &str, help: &str) -> M {
    let metric = M::default();
    registry.register(name, help, metric.clone());
    metric
}

impl Default for Metrics {
    fn default() -> Self {
        let mut all = Registry::with_prefix("sluice");
        let registry = &mut all;
        let build: Family<BuildLabels, Gauge> =
            registered(registry, "build_info", "1, with the release of the operator as a label");
        build.get_or_create(&BuildLabels { version: env!("CARGO_PKG_VERSION") }).set(1);
        registry.register_collector(Box::new(DroppedLines));
        Self {
            ports: PortMetrics::register(registry),
            conditions: registered(
                registry,
                "policy_condition",
                "1 for the present status and reason of each condition of a policy",
            ),
            shadow_denied: registered(
                registry,
                "shadow_denied_clients",
                "Distinct clients that a limit in Shadow would have denied, over all pods, within a few percent. A client counts for 5 to 20 minutes after its last denial. A pod reports at most 48 limits",
            ),
            admission: registered(
                registry,
                "operator_admission_reviews",
                "Admission reviews answered, by webhook and outcome",
            ),
            events: registered(registry, "operator_stream_events", "Events sent to sidecars"),
            denied: registered(
                registry,
                "operator_streams_denied",
                "Connections of sidecars denied because their token or pod was not accepted",
            ),
            reviewed: registered(
                registry,
                "operator_token_reviews",
                "Tokens of sidecars that the API server reviewed, because its public keys did not decide about them",
            ),
            reconciles: registered(
                registry,
                "operator_reconciles",
                "Reconciles of policies, including failed ones",
            ),
            failures: registered(
                registry,
                "operator_reconcile_failures",
                "Reconciles of policies that failed and will be retried",
            ),
            sessions: registered(
                registry,
                "operator_streams",
                "Sidecars that are connected, or were connected during the last 30 seconds",
            ),
            leader: registered(registry, "operator_leader", "1 if this replica is the leader"),
            webhook_not_called: registered(
                registry,
                "operator_webhook_not_called",
                "1 while the API server does not call the webhook, so that new pods get no sidecar. The leader offers an invalid policy once a minute to find out",
            ),
            shadow: registered(
                registry,
                "operator_shadow",
                "1 while the installation turns all policies to Shadow, so no request is rejected",
            ),
            published: Mutex::default(),
            encoding: Mutex::default(),
            registry: all,
        }
    }
}

impl Metrics {
    /// Counts an admission review.
    pub fn admission(&self, webhook: &'static str, outcome: &'static str) {
        self.admission.get_or_create(&AdmissionLabels { webhook, outcome }).inc();
    }

    /// Records the conditions of a policy; none if it is gone.
    pub fn set_conditions(&self, key: &PolicyKey, conditions: &[Condition]) {
        let labels = conditions.iter().map(|condition| ConditionLabels {
            policy_namespace: key.namespace.clone(),
            policy: key.name.clone(),
            condition: condition.type_.clone(),
            status: condition.status.clone(),
            reason: condition.reason.clone(),
        });
        let labels: Vec<_> = labels.collect();
        let mut published = lock(&self.published);
        let before = published.remove(key).unwrap_or_default();
        for gone in before.iter().filter(|before| !labels.contains(before)) {
            self.conditions.remove(gone);
        }
        for label in &labels {
            self.conditions.get_or_create(label).set(1);
        }
        if !labels.is_empty() {
            published.insert(key.clone(), labels);
        }
    }

    /// Returns all metrics in the OpenMetrics text format.
    pub fn text(&self, hub: &Hub) -> String {
        let (sessions, shadow_denied) = (hub.session_count(), hub.shadow_denied());
        let _encoding = lock(&self.encoding);
        self.shadow_denied.clear();
        for ((policy, limit), clients) in shadow_denied {
            let (policy_namespace, policy) = (policy.namespace, policy.name);
            let labels = LimitLabels { policy_namespace, policy, limit };
            self.shadow_denied.get_or_create(&labels).set(i64::try_from(clients).unwrap_or(i64::MAX));
        }
        self.sessions.set(i64::try_from(sessions).unwrap_or(i64::MAX));
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = prometheus_client::encoding::text::encode(&mut text, &self.registry);
        text
    }
}

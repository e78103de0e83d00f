//! The metrics of questions, and the one place where they are named.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use sluice_engine::descriptors::Answer;
use sluice_host::serve::table::PortMetrics;

use crate::work::Work;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BuildLabels {
    version: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AnswerLabels {
    answer: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EventLabels {
    event: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DoorLabels {
    door: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DoorAnswerLabels {
    door: &'static str,
    answer: &'static str,
}

/// The metrics of a door for requests that gateways forward. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct HeadMetrics {
    pub(crate) door: &'static str,
    /// Answers: admitted, denied, error.
    answers: [Counter; 3],
    without_store: Counter,
    latency: Histogram,
}

impl HeadMetrics {
    fn register(registry: &mut Registry, doors: [&'static str; 2]) -> [Self; 2] {
        let answers = Family::<DoorAnswerLabels, Counter>::default();
        registry.register(
            "authorizations",
            "Requests that gateways have asked about at the doors authz and auth, by the answer: admitted, denied, or error if the \
             gateway is not configured so that it can be answered",
            answers.clone(),
        );
        let without_store = Family::<DoorLabels, Counter>::default();
        registry.register(
            "authorizations_without_store",
            "Requests at the doors authz and auth for which the store did not answer, so that onStoreFailure decided",
            without_store.clone(),
        );
        let latency = Histogram::new(exponential_buckets(0.000_05, 2.0, 14));
        registry.register(
            "authorization_seconds",
            "Time from the arrival of a question at authz or auth to its answer",
            latency.clone(),
        );
        doors.map(|door| Self {
            door,
            answers: ["admitted", "denied", "error"]
                .map(|answer| answers.get_or_create_owned(&DoorAnswerLabels { door, answer })),
            without_store: without_store.get_or_create_owned(&DoorLabels { door }),
            latency: latency.clone(),
        })
    }

    /// Counts a question that got no decision.
    pub(crate) fn refuse(&self) {
        self.answers[2].inc();
    }

    /// Counts a decision.
    pub(crate) fn answered(&self, is_denied: bool, is_without_store: bool, time: Duration) {
        self.answers[usize::from(is_denied)].inc();
        if is_without_store {
            self.without_store.inc();
        }
        self.latency.observe(time.as_secs_f64());
    }
}

/// The metrics of a service. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    /// Answers: within the limit, over it, without a domain that is known, refused.
    ok: Counter,
    over_limit: Counter,
    unknown_domain: Counter,
    refused: Counter,
    without_store: Counter,
    loads: [Counter; 2],
    /// Checks of applications: allowed, denied, refused.
    checks: [Counter; 3],
    checks_without_store: Counter,
    /// Reservations that checks and questions have made, and settlements by whether they have found one.
    reservations: [Counter; 4],
    /// The doors for requests that gateways forward.
    pub(crate) authz: HeadMetrics,
    pub(crate) auth: HeadMetrics,
    /// Time from a check to its answer.
    pub(crate) check_latency: Histogram,
    /// Time from a question to its answer.
    pub(crate) latency: Histogram,
    /// The questions that wait.
    pub(crate) work: Work,
    /// Those of the ports of callers.
    pub(crate) ports: PortMetrics,
    registry: Arc<Registry>,
}

impl Metrics {
    /// Adds the metrics of questions to a registry, which has those of decisions already.
    pub(crate) fn new(mut registry: Registry) -> Self {
        let build = Family::<BuildLabels, Gauge>::default();
        build.get_or_create(&BuildLabels { version: env!("CARGO_PKG_VERSION") }).set(1);
        registry.register("build_info", "1, with the release of the service as a label", build);
        let answers = Family::<AnswerLabels, Counter>::default();
        registry.register(
            "rls_answers",
            "Questions of gateways, by the answer: ok, over_limit, or error without a domain, descriptors or a configuration",
            answers.clone(),
        );
        let unknown_domain = Counter::default();
        registry.register(
            "rls_unknown_domain",
            "Questions about domains that no configuration has, which are answered with ok",
            unknown_domain.clone(),
        );
        let without_store = Counter::default();
        registry.register(
            "rls_answers_without_store",
            "Questions for which the store did not answer, so that onStoreFailure decided",
            without_store.clone(),
        );
        let loads = Family::<OutcomeLabels, Counter>::default();
        registry.register(
            "ratelimit_config_loads",
            "Configurations of ratelimit that were loaded, by outcome: applied or rejected",
            loads.clone(),
        );
        let latency = Histogram::new(exponential_buckets(0.000_05, 2.0, 14));
        registry.register(
            "rls_seconds",
            "Time from the arrival of a question to its answer",
            latency.clone(),
        );
        let checks = Family::<AnswerLabels, Counter>::default();
        registry.register(
            "checks",
            "Checks of applications, by the answer: allowed, denied, or error if they were not valid",
            checks.clone(),
        );
        let checks_without_store = Counter::default();
        registry.register(
            "checks_without_store",
            "Checks for which the store did not answer, so that onStoreFailure decided",
            checks_without_store.clone(),
        );
        let check_latency = Histogram::new(exponential_buckets(0.000_05, 2.0, 14));
        registry.register(
            "check_seconds",
            "Time from the arrival of a body with checks to its answer",
            check_latency.clone(),
        );
        let reservations = Family::<EventLabels, Counter>::default();
        registry.register(
            "reservations",
            "Reservations of limits, by what became of them: made; settled; not_found, for settlements of what was settled before or has \
             expired; without_hits, for reports of gateways that do not say what was used, so that they stay",
            reservations.clone(),
        );
        let [authz, auth] = HeadMetrics::register(&mut registry, ["authz", "auth"]);
        let work = Work::register(&mut registry);
        let ports = PortMetrics::register(&mut registry);
        let answer = |answer| answers.get_or_create_owned(&AnswerLabels { answer });
        let check = |answer| checks.get_or_create_owned(&AnswerLabels { answer });
        let event = |event| reservations.get_or_create_owned(&EventLabels { event });
        let load = |outcome| loads.get_or_create_owned(&OutcomeLabels { outcome });
        Self {
            ok: answer("ok"),
            over_limit: answer("over_limit"),
            refused: answer("error"),
            unknown_domain,
            without_store,
            loads: [load("applied"), load("rejected")],
            checks: [check("allowed"), check("denied"), check("error")],
            checks_without_store,
            reservations: [event("made"), event("settled"), event("not_found"), event("without_hits")],
            authz,
            auth,
            check_latency,
            latency,
            work,
            ports,
            registry: Arc::new(registry),
        }
    }

    /// Counts a question without an answer.
    pub(crate) fn refuse(&self) {
        self.refused.inc();
    }

    pub(crate) fn answered(&self, answer: &Answer, is_over_limit: bool) {
        if is_over_limit {
            self.over_limit.inc()
        } else {
            self.ok.inc()
        };
        if !answer.is_known_domain {
            self.unknown_domain.inc();
        }
        if answer.store_failure.is_some() {
            self.without_store.inc();
        }
        if !is_over_limit {
            self.reservations[0].inc_by(answer.reserved as u64);
        }
        self.reservations[3].inc_by(answer.without_hits as u64);
        answer.settled.iter().for_each(|settled| self.settled(*settled));
    }

    /// Counts a check that was answered.
    pub(crate) fn checked(&self, is_allowed: bool, reserved: usize, is_without_store: bool) {
        self.checks[usize::from(!is_allowed)].inc();
        self.reservations[0].inc_by(reserved as u64);
        if is_without_store {
            self.checks_without_store.inc();
        }
    }

    /// Counts a body that was refused.
    pub(crate) fn refuse_check(&self) {
        self.checks[2].inc();
    }

    /// Counts the settlement of a limit.
    pub(crate) fn settled(&self, has_settled: bool) {
        self.reservations[if has_settled { 1 } else { 2 }].inc();
    }

    /// Counts a configuration that was applied or rejected.
    pub(crate) fn loaded(&self, is_applied: bool) {
        self.loads[usize::from(!is_applied)].inc();
    }

    /// Encodes all metrics in the OpenMetrics text format.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = prometheus_client::encoding::text::encode(&mut text, &self.registry);
        text
    }
}

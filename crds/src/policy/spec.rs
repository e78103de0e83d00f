//! The whole policy, and its observed state.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector};
use kube::core::Selector;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sluice_config::CompiledPolicy;
use sluice_config::key::KeySource;
use sluice_config::policy::{
    AmbiguousPaths, CompiledLimit, Consistency, DEFAULT_STORE, Hints, LimitKind, Mode, OnStoreFailure,
    Priority, Rates, StatusHeaders,
};
use sluice_limiter::Rate;

use super::key::JwksSource;
use super::questions::Questioned;
use super::target_ref::{EnforcedBy, Enforcer};
use super::{
    Application, ClientAddress, Concurrency, Jwt, Limit, OverrideSources, PodSelection, StoreRef, TargetRef,
    questions, selection, target_ref,
};
use crate::checks::client_warnings;
use crate::checks::field::Field;
use crate::checks::installation::Installation;

/// Smallest number of requests for which leases save calls. A pod whose part of the quota is below about 20 leases
/// nothing, so below this number a few pods with the same client call the store for nearly every request.
const MIN_LEASED_REQUESTS: u64 = 50;

/// The limits of a policy, and the pods that enforce them. At least one of limits and concurrency is
/// required.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "sluice.dev",
    version = "v1alpha1",
    kind = "RateLimitPolicy",
    plural = "ratelimitpolicies",
    shortname = "slp",
    category = "sluice",
    namespaced,
    status = "RateLimitPolicyStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "Limits for the requests to pods of a namespace, enforced by the sidecars of these pods.",
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name":"Programmed","type":"string","jsonPath":".status.conditions[?(@.type==\"Programmed\")].status"}"#,
    printcolumn = r#"{"name":"Pods","type":"string","jsonPath":".status.pods.summary","description":"Number of pods that have confirmed this version of the policy, and of pods that it selects."}"#,
    printcolumn = r#"{"name":"Store","type":"string","jsonPath":".status.conditions[?(@.type==\"StoreHealthy\")].reason"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].reason","priority":1}"#,
    printcolumn = r#"{"name":"Limits","type":"string","jsonPath":".status.limits","priority":1}"#
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.limits) || has(self.concurrency)").message("at least one of limits, concurrency must be set"))]
#[x_kube(validation = Rule::new("!has(self.selector) || !has(self.targetRefs)").message("at most one of selector, targetRefs may be set"))]
#[x_kube(validation = Rule::new("!has(self.enforcedBy) || self.enforcedBy.exists(e, e == 'Sidecar') || !(has(self.selector) || has(self.targetRefs) || has(self.concurrency) && self.concurrency.exists(c, has(c.adaptive)))").message("selector, targetRefs and adaptive concurrency are for sidecars, which do not enforce this policy: add Sidecar to enforcedBy, or remove them"))]
#[x_kube(validation = Rule::new("!has(self.limits) || !has(self.concurrency) || self.concurrency.all(c, self.limits.all(l, l.name != c.name))").message("names must be unique among limits and concurrency together"))]
pub struct RateLimitPolicySpec {
    /// Labels of the pods of this namespace that the policy applies to. Without `selector` and `targetRefs` it applies to
    /// all pods. If several policies select a pod, a request must pass the limits of all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    /// Workloads and Services of this namespace to whose pods the policy applies, instead of `selector`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 16))]
    pub target_refs: Vec<TargetRef>,
    /// The enforcers of the policy. A limit has one counter for all that enforce it.
    /// - Sidecar (default): the sidecars of the selected pods, for requests of HTTP.
    /// - Service: the service of the installation, for checks of applications, which name the limit and the client, and for questions
    ///   of gateways that an entry of `matches` with `rls` names.
    #[serde(default = "target_ref::sidecar")]
    #[schemars(length(min = 1, max = 2))]
    // A set would be merged with its own default by server-side apply.
    #[x_kube(validation = Rule::new("self.size() < 2 || self[0] != self[1]").message("an enforcer is listed twice"))]
    pub enforced_by: Vec<Enforcer>,
    /// Effect of the limits:
    /// - Enforce (default): requests over a limit are rejected.
    /// - Shadow: decisions are counted in the metrics, and every request passes.
    #[serde(default)]
    pub mode: Mode,
    /// Where the requests of `limits` are counted. Limits in `concurrency` always use the store.
    /// - Strict (default): in the store (Redis), with one call per request. Limits hold exactly over all
    ///   pods.
    /// - Leased: in the store, but pods acquire quota in blocks, so most requests need no call. Limits hold
    ///   exactly in windows aligned to the clock, and to a few percent in any other period.
    /// - Local: in each pod, without the store. Each pod admits the limit divided by the number of pods that
    ///   the policy selects.
    /// - PerPod: in each pod, without the store. Each pod admits the whole limit. Not with storeRef or onStoreFailure,
    ///   unless the policy has `concurrency`.
    #[serde(default)]
    pub consistency: Consistency,
    /// Store that the policy counts in: a RateLimitStore of this namespace. Default: the store of the installation,
    /// whose name is also default. With another store, all counters of the policy start at zero.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store_ref: Option<StoreRef>,
    /// Decision about a request when the store does not answer within the latency budget:
    /// - Share (default): the pod counts the request and admits up to the limit divided by the number of pods
    ///   that the policy selects. When the store is back, it adds what the pod counted. `max` in `concurrency`
    ///   cannot be divided among pods, so these limits admit requests as with Allow.
    /// - Allow: the request passes and is not counted.
    /// - Deny: the request is rejected.
    #[serde(default)]
    pub on_store_failure: OnStoreFailure,
    /// Treatment of requests whose path begins with two slashes, or has an encoded slash, a backslash, a dot segment or octets
    /// that are no UTF-8, which applications understand in different ways:
    /// - Match (default): a limit matches if any reading of the path does.
    /// - Reject: such requests get the status 400, whatever limits they match. One policy with Reject is enough
    ///   for all requests to the pod. A policy in Shadow refuses nothing.
    #[serde(default)]
    pub ambiguous_paths: AmbiguousPaths,
    /// Source of a client's address. Default: that of the installation, and without one the address of the peer
    /// that opened the connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_address: Option<ClientAddress>,
    /// The application in the pods, if it reads requests in another way than most: by its product, its habits, or both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub application: Option<Application>,
    /// Kinds of tokens that identify clients. Keys refer to them by `jwtClaim`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 4))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub jwt: Vec<Jwt>,
    /// Headers that report the state of the limits in each response. Retry-After is always sent. Default: all.
    /// - RateLimit: RateLimit and RateLimit-Policy of the IETF draft.
    /// - XRateLimit: X-RateLimit-Limit, X-RateLimit-Remaining and X-RateLimit-Reset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Vec<StatusHeaders>", length(max = 2))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub response_headers: Option<Vec<StatusHeaders>>,
    /// Limits on the rate of requests. A request must pass all limits that match it. If one denies it, it is
    /// not charged to the others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub limits: Vec<Limit>,
    /// Limits on concurrent requests. A request must pass all that match it, in addition to those in
    /// `limits`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub concurrency: Vec<Concurrency>,
    /// Requests that the adaptive limits of this policy shed last, because a part of each is reserved for them. The first
    /// entry that matches decides.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub priorities: Vec<Priority>,
}

impl RateLimitPolicySpec {
    /// Compiles the policy, and returns the pods that it applies to. Everything that is wrong is reported at its
    /// field.
    pub(crate) fn compile(
        &self,
        at: &Field<'_>,
        installation: &Installation,
        namespace: String,
        name: String,
    ) -> (Option<CompiledPolicy>, PodSelection) {
        let by = EnforcedBy::new(&self.enforced_by);
        self.check_enforcers(at, by, &namespace);
        let pods = if by.sidecar { self.pods(at) } else { PodSelection::Targets(Vec::new()) };
        let client_address = self.client_address.as_ref();
        let client_address = client_address.map(|address| address.compile(&at.at("clientAddress")));
        let client_address = client_address.or_else(|| installation.client_address.clone());
        if self.limits.is_empty() && self.concurrency.is_empty() {
            at.at("limits").violation("is required unless spec.concurrency is set");
        }
        let limits = self.limits.iter().enumerate();
        let limits = limits.map(|(n, limit)| {
            let at = at.at("limits").entry(n);
            let mut compiled = limit.compile(&at, self.mode, installation);
            let questioned = Questioned::of_limit(limit);
            questions::check(&at, &questioned, &mut compiled, by, installation, &namespace);
            Some(compiled)
        });
        let concurrency = self.concurrency.iter().enumerate().map(|(n, limit)| {
            let at = at.at("concurrency").entry(n);
            let same_name = |other: &Limit| other.selection.name == limit.selection.name;
            if let Some(other) = self.limits.iter().position(same_name)
                && !limit.selection.name.is_empty()
            {
                at.at("name").violation(format_args!(
                    "{:?} is already used by spec.limits[{other}]",
                    limit.selection.name
                ));
            }
            let mut compiled = limit.compile(&at, self.mode)?;
            let questioned = Questioned::of_concurrency(limit);
            questions::check(&at, &questioned, &mut compiled, by, installation, &namespace);
            Some(compiled)
        });
        let limits: Option<Vec<_>> = limits.chain(concurrency).collect::<Vec<_>>().into_iter().collect();
        selection::check_priorities(&at.at("priorities"), &self.priorities);
        let Some(mut limits) = limits else { return (None, pods) };
        self.add_priorities(at, &mut limits);
        let policy = CompiledPolicy {
            namespace,
            name,
            mode: self.mode,
            on_store_failure: self.on_store_failure,
            consistency: self.consistency,
            store: self.store_ref.as_ref().map_or(DEFAULT_STORE, |store| &store.name).to_owned(),
            is_shared: by.sidecar && by.service,
            ambiguous_paths: self.ambiguous_paths,
            client_address,
            habits: self
                .application
                .as_ref()
                .map(|application| application.compile(&at.at("application")))
                .unwrap_or_default(),
            jwt: self.jwt.iter().enumerate().map(|(n, jwt)| jwt.compile(&at.at("jwt").entry(n))).collect(),
            status_headers: self.compile_response_headers(),
            limits,
            expressions: at.expressions(),
            hints: Hints::default(),
        };
        self.check_claims(at, &policy.limits);
        // Whoever asks the service has named the client.
        if by.sidecar {
            client_warnings::warn(at, &policy, |index| self.field(at, index));
        }
        self.check_store(at, &policy.limits);
        (Some(policy), pods)
    }

    /// Checks what depends on who enforces the policy.
    fn check_enforcers(&self, at: &Field<'_>, by: EnforcedBy, namespace: &str) {
        let are_set = [("selector", self.selector.is_some()), ("targetRefs", !self.target_refs.is_empty())];
        let is_own = |domain: &str| {
            let rest = domain.strip_prefix(namespace);
            namespace.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let of_limits = self.limits.iter().map(|limit| &limit.selection);
        let selections = of_limits.chain(self.concurrency.iter().map(|limit| &limit.selection));
        if matches!(self.enforced_by[..], [one, other] if one == other) {
            at.at("enforcedBy").violation("lists an enforcer twice");
        }
        let mut domains =
            selections.flat_map(|selection| &selection.matches).filter_map(|entry| entry.rls.as_ref());
        if self.store_ref.is_some() && domains.any(|rls| !is_own(&rls.domain)) {
            at.at("storeRef").violation(
                "is not allowed with a domain that is not the namespace's own, because a question waits for all stores: remove it",
            );
        }
        for (field, _) in are_set.into_iter().filter(|(_, is_set)| *is_set && !by.sidecar) {
            at.at(field).violation(
                "is for sidecars, which do not enforce this policy: add Sidecar to spec.enforcedBy, or remove it",
            );
        }
    }

    /// Adds the priorities to the adaptive limits.
    fn add_priorities(&self, at: &Field<'_>, limits: &mut [CompiledLimit]) {
        let mut has_adaptive = false;
        for limit in limits {
            if let LimitKind::Adaptive(adaptive) = &mut limit.kind {
                adaptive.priorities = self.priorities.clone();
                has_adaptive = true;
            }
        }
        if !self.priorities.is_empty() && !has_adaptive {
            at.at("priorities").violation(
                "have no effect, because no limit in spec.concurrency is adaptive: add one, or remove them",
            );
        }
    }

    /// Checks that keys refer to kinds of tokens that the policy has, and warns of those to which none refers.
    fn check_claims(&self, at: &Field<'_>, limits: &[CompiledLimit]) {
        let mut used = BTreeSet::new();
        for (n, limit) in limits.iter().enumerate() {
            for (part, key) in limit.key.iter().enumerate() {
                let KeySource::JwtClaim { jwt, .. } = &key.source else { continue };
                used.insert(jwt.as_str());
                // A list with a violation may have been left out.
                if !self.jwt.iter().any(|known| known.name == *jwt) && !at.at("jwt").has_violation() {
                    let at = self.field(at, n).at("key.parts").entry(part).at("jwtClaim.jwt");
                    at.violation(format_args!("{jwt:?} is not in spec.jwt: add it there"));
                }
            }
        }
        for (n, jwt) in self.jwt.iter().enumerate().filter(|(_, jwt)| !used.contains(jwt.name.as_str())) {
            let at = at.at("jwt").entry(n);
            at.warning(format_args!("has no effect, because no key refers to {:?} by jwtClaim", jwt.name));
        }
    }

    /// Returns the objects with public keys.
    pub(crate) fn jwks_sources(&self) -> Vec<JwksSource> {
        let sources = self.jwt.iter().enumerate();
        let source = |(jwt, of): (usize, &Jwt)| {
            let (name, issuer) = (of.name.clone(), of.issuer.clone().unwrap_or_default());
            Some(JwksSource { jwt, name, issuer, source: of.jwks_from.clone()? })
        };
        sources.filter_map(source).collect()
    }

    /// Returns the objects with the overrides of each limit that has some.
    pub(crate) fn override_sources(&self) -> Vec<OverrideSources> {
        // Compiled limits are in the order of `limits`, before those of `concurrency`.
        let limits = self.limits.iter().enumerate().filter(|(_, limit)| !limit.overrides_from.is_empty());
        limits.map(|(n, limit)| OverrideSources { limit: n, sources: limit.overrides_from.clone() }).collect()
    }

    /// Returns the pods that the policy applies to.
    fn pods(&self, at: &Field<'_>) -> PodSelection {
        let targets = target_ref::compile(&at.at("targetRefs"), &self.target_refs);
        let selector = self.selector.clone().map_or(Ok(Selector::default()), Selector::try_from);
        let selector = at.at("selector").accept(selector).unwrap_or_default();
        if targets.is_empty() {
            return PodSelection::Labels(selector);
        }
        if self.selector.is_some() {
            at.at("targetRefs").violation("cannot be combined with spec.selector: remove one of them");
        }
        PodSelection::Targets(targets)
    }

    /// Returns the headers that report the state of limits; `None` for all.
    fn compile_response_headers(&self) -> Option<Vec<StatusHeaders>> {
        let mut headers = self.response_headers.clone()?;
        headers.sort_unstable();
        headers.dedup();
        (headers != StatusHeaders::ALL).then_some(headers)
    }

    /// Returns the field of a compiled limit.
    fn field<'a>(&self, at: &Field<'a>, index: usize) -> Field<'a> {
        match index.checked_sub(self.limits.len()) {
            None => at.at("limits").entry(index),
            Some(index) => at.at("concurrency").entry(index),
        }
    }

    /// Checks settings of the store, and warns of those that have no effect or an unexpected one.
    fn check_store(&self, at: &Field<'_>, limits: &[CompiledLimit]) {
        let at_consistency = at.at("consistency");
        match self.consistency {
            Consistency::Strict => {}
            Consistency::Leased => {
                let leased: Vec<_> = limits.iter().map(leased_rates).collect();
                if leased.iter().all(Option::is_none) {
                    at_consistency.warning(
                        "no limit of this policy can be leased, so every request calls the store, as with \
                         Strict: leases are possible for hard limits whose sub-windows last 50ms or longer, and \
                         for tokenBucket and gcra with a period of 1s or longer and a burst that takes 200ms or \
                         longer to fill, without cost, countWhen, countDenied and tiers with rates",
                    );
                }
                for (n, rates) in leased.into_iter().enumerate() {
                    if let Some(rates) = rates {
                        warn_of_small_leases(&self.field(at, n), rates);
                    }
                }
            }
            Consistency::Local | Consistency::PerPod if self.limits.is_empty() => at_consistency.warning(
                "has no effect, because the policy has no `limits`: `concurrency` is always counted in the \
                 store",
            ),
            Consistency::PerPod => {
                if self.store_ref.is_some() && self.concurrency.is_empty() {
                    at.at("storeRef").violation("has no effect with consistency PerPod: remove it");
                }
                if self.on_store_failure != OnStoreFailure::Share && self.concurrency.is_empty() {
                    at.at("onStoreFailure").violation("has no effect with consistency PerPod: remove it");
                }
            }
            Consistency::Local => at_consistency.warning(
                "each pod admits the limit divided by the number of pods that the policy selects: a client \
                 whose requests are not spread evenly over these pods gets less than the limit",
            ),
        }
    }
}

/// Returns the rates of a limit that can be leased.
fn leased_rates(limit: &CompiledLimit) -> Option<&[Rate]> {
    match &limit.kind {
        LimitKind::Rates(rates) => {
            let Rates { base, boosted, cost, count_when, .. } = &**rates;
            let can_be_leased = boosted.is_none()
                && (cost.is_none() && count_when.is_none())
                && rates.other_sets().next().is_none()
                && base.iter().all(|rate| rate.longest_lease().is_some());
            can_be_leased.then_some(base)
        }
        LimitKind::Slots(_) | LimitKind::Adaptive(_) => None,
    }
}

/// Warns of a limit whose leases save no calls.
fn warn_of_small_leases(at: &Field<'_>, rates: &[Rate]) {
    let capacities = rates.iter().map(Rate::capacity).enumerate();
    let Some((n, capacity)) = capacities.min_by_key(|&(_, capacity)| capacity) else { return };
    if capacity < MIN_LEASED_REQUESTS {
        at.at("rates").entry(n).warning(format_args!(
            "{capacity} requests at once are too few for leases, which save calls from {MIN_LEASED_REQUESTS} on: \
             a pod whose share is below about 20 calls the store for every request. Strict costs the same here: \
             use it, or move this limit to a policy of its own"
        ));
    }
}

/// Observed state of the policy.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct RateLimitPolicyStatus {
    /// Generation of the policy that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Conditions of the policy:
    /// - Accepted: the policy is valid.
    /// - Programmed: every selected pod has confirmed this version of the policy.
    /// - Captured: no known route leads requests past the sidecars.
    /// - ClientAddress: sidecars see the addresses of clients, not of proxies. Only with a limit by clientIP; it has no
    ///   effect on Ready.
    /// - StoreHealthy: the sidecars can use the store.
    /// - Ready: Accepted, Programmed and Captured are all true.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// Numbers of pods that the policy selects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pods: Option<PodCounts>,
    /// Summary of the limits, such as "per-customer 10/1m 500/1h".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<String>,
}

/// Numbers of pods. A pod counts if it runs, is not being deleted, is not opted out of injection and does not
/// use the network of its host.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct PodCounts {
    /// Number of pods that the policy selects.
    pub selected: i32,
    /// Number of selected pods that have a sidecar.
    pub injected: i32,
    /// Number of selected pods whose sidecar has confirmed this version of the policy.
    pub programmed: i32,
    /// Numbers of programmed and selected pods, written as programmed/selected.
    pub summary: String,
}

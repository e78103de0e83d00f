//! The abilities of a limit behind the service, which answers checks of applications and questions of gateways.

use sluice_config::key::KeySource;
use sluice_config::matches::Match;
use sluice_config::policy::{CompiledLimit, OnLimit, ResponseCostSource};

use super::selection::{AllowOverride, check_domain};
use super::target_ref::EnforcedBy;
use crate::checks::field::Field;
use crate::checks::installation::Installation;
use crate::policy::{Algorithm, Concurrency, ConcurrencyKind, Enforcement, Limit, Selection};

/// The part of a limit that matters for questions.
pub(super) struct Questioned<'a> {
    selection: &'a Selection,
    allow_override: Option<&'a AllowOverride>,
    /// Whether it has exactly one rate.
    has_one_rate: bool,
    /// Everything that delays requests or needs a pod, with the reason why whoever asks cannot have it.
    needs_pods: Vec<(&'static str, &'static str)>,
    /// Everything else that a gateway's question does not show.
    needs_requests: Vec<(&'static str, &'static str)>,
    /// Whether the cost is only reported.
    is_reported: bool,
}

const LOOKS: &str = "looks at requests, and a question of a gateway has none";

impl<'a> Questioned<'a> {
    pub(super) fn of_limit(limit: &'a Limit) -> Self {
        let elastic = matches!(limit.enforcement, Some(Enforcement::Elastic(_)));
        let delays = matches!(limit.algorithm, Some(Algorithm::LeakyBucket(_)));
        let mut needs_pods = waits_of(limit.on_limit.as_ref());
        needs_pods.extend(delays.then_some(("algorithm.leakyBucket", "delays requests")));
        needs_pods.extend(elastic.then_some(("enforcement.elastic", "needs the load of a pod")));
        let cost = limit.cost.as_ref();
        let has_request_cost = cost.is_some_and(|cost| cost.request.is_some());
        let mut needs_requests = looks_of(&limit.selection);
        needs_requests.extend(
            (!limit.tiers.is_empty())
                .then_some(("tiers", "look at requests, and a question of a gateway has none")),
        );
        needs_requests.extend(
            has_request_cost
                .then_some(("cost.request", "looks at requests, and a question of a gateway says its hits")),
        );
        needs_requests.extend(
            limit
                .count_when
                .is_some()
                .then_some(("countWhen", "looks at responses, which a gateway does not show")),
        );
        let response = cost.and_then(|cost| cost.response.as_ref());
        Self {
            selection: &limit.selection,
            allow_override: limit.allow_override.as_ref(),
            has_one_rate: limit.rates.len() <= 1,
            needs_pods,
            needs_requests,
            is_reported: response
                .is_some_and(|response| matches!(response.source, ResponseCostSource::Reported(_))),
        }
    }

    pub(super) fn of_concurrency(limit: &'a Concurrency) -> Self {
        let mut needs_pods = waits_of(limit.on_limit.as_ref());
        let adapts = matches!(limit.kind, ConcurrencyKind::Adaptive(_));
        needs_pods.extend(adapts.then_some(("adaptive", "needs the load of a pod")));
        Self {
            selection: &limit.selection,
            allow_override: None,
            has_one_rate: true,
            needs_pods,
            needs_requests: looks_of(&limit.selection),
            is_reported: false,
        }
    }
}

fn waits_of(on_limit: Option<&OnLimit>) -> Vec<(&'static str, &'static str)> {
    let queue = on_limit.is_some_and(|on| on.queue.is_some());
    let mark = on_limit.is_some_and(|on| on.mark.is_some());
    let waits = queue.then_some(("onLimit.queue", "lets requests wait"));
    waits.into_iter().chain(mark.then_some(("onLimit.mark", "marks requests"))).collect()
}

fn looks_of(selection: &Selection) -> Vec<(&'static str, &'static str)> {
    let except = (!selection.except.is_empty()).then_some(("except", LOOKS));
    except.into_iter().chain(selection.when.is_some().then_some(("when", LOOKS))).collect()
}

/// Checks a limit that is for descriptors, or that the service enforces: `compiled` has its matches and its key.
pub(super) fn check(
    at: &Field<'_>,
    limit: &Questioned<'_>,
    compiled: &mut CompiledLimit,
    by: EnforcedBy,
    installation: &Installation,
    namespace: &str,
) {
    let selection = limit.selection;
    if limit.is_reported && by.sidecar {
        at.at("cost.response.reported").violation(
            "is told to the service, and sidecars enforce the limit too: name the place in the response, such as jsonField, or remove \
             Sidecar from spec.enforcedBy",
        );
    }
    let conditions = || {
        let matches = selection.matches.iter().enumerate();
        matches.filter_map(|(n, entry)| Some((n, entry.rls.as_ref()?)))
    };
    let is_for_requests =
        selection.matches.is_empty() || selection.matches.iter().any(|entry| entry.rls.is_none());
    let is_asked = conditions().next().is_some();
    if is_asked || by.service && !by.sidecar {
        for (field, why) in &limit.needs_pods {
            at.at(field).violation(format_args!(
                "{why}, which the service cannot for those who ask it: remove it, or make a limit of its own that only sidecars \
                 enforce"
            ));
        }
    }
    let Some((first, _)) = conditions().next() else {
        without_descriptors(at, limit);
        return;
    };
    if !by.service {
        let at = at.at("matches").entry(first).at("rls");
        at.violation(
            "is for questions of gateways, which the service answers: add Service to spec.enforcedBy",
        );
    }
    for (n, condition) in conditions() {
        check_domain(&at.at("matches").entry(n).at("rls"), &condition.domain, installation, namespace);
    }
    for (field, why) in &limit.needs_requests {
        at.at(field).violation(format_args!(
            "{why}: remove it, or remove the entries with `rls` from `matches` and make a limit of its own for them"
        ));
    }
    check_key(at, limit, is_for_requests);
    compiled.max_override =
        limit.allow_override.as_ref().map(|allow| u64::try_from(allow.maximum).unwrap_or(0));
    if limit.allow_override.is_some() && !limit.has_one_rate {
        at.at("allowOverride").violation("is only allowed with exactly one rate, whose number it replaces");
    }
}

/// Checks what only limits for descriptors may have.
fn without_descriptors(at: &Field<'_>, limit: &Questioned<'_>) {
    if limit.allow_override.is_some() {
        at.at("allowOverride").violation("has no effect, because no entry of `matches` has `rls`: remove it");
    }
    for (n, part) in limit.selection.key.iter().flat_map(|key| &key.parts).enumerate() {
        let at = at.at("key.parts").entry(n);
        if matches!(part.source, KeySource::Descriptor { .. }) {
            at.at("descriptor").violation(
                "is a part of a gateway's question, and no entry of `matches` has `rls`: add one, or identify clients by what \
                 requests have",
            );
        }
        if part.descriptor_key.is_some() {
            at.at("descriptorKey").warning("has no effect, because no entry of `matches` has `rls`");
        }
    }
}

/// Checks that each part of the key has an entry.
fn check_key(at: &Field<'_>, limit: &Questioned<'_>, is_for_requests: bool) {
    let Some(key) = &limit.selection.key else { return };
    for (n, part) in key.parts.iter().enumerate() {
        let at = at.at("key.parts").entry(n);
        if matches!(part.source, KeySource::Descriptor { .. }) && is_for_requests {
            at.at("descriptor").violation(
                "is not in requests, which the limit counts too: write the part as requests have it, with its entry in \
                 descriptorKey, such as {header: {name: x-user}, descriptorKey: user}",
            );
        }
        let Some(entry_key) = part.entry_key() else {
            at.violation(
                "is not in a gateway's question: name the entry that has its value by `descriptorKey`",
            );
            continue;
        };
        let lacks = |entry: &&(usize, &Match)| {
            entry.1.rls.as_ref().is_some_and(|rls| rls.entries.iter().all(|entry| entry.key != entry_key))
        };
        let all: Vec<_> = limit.selection.matches.iter().enumerate().collect();
        if let Some((position, _)) = all.iter().find(lacks) {
            at.violation(format_args!(
                "has the value of the entry {entry_key:?}, which matches[{position}].rls.entries does not have: add it there"
            ));
        }
    }
}

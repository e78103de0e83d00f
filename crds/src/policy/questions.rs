//! The abilities of a limit behind the service, which answers questions of gateways.

use sluice_config::policy::CompiledLimit;

use crate::checks::field::Field;
use crate::checks::installation::Installation;
use crate::policy::enforced_by::EnforcedBy;
use crate::policy::{Algorithm, Enforcement, Limit, Match};

/// Checks a limit that is for descriptors, or that the service enforces: `compiled` has its matches and its key.
pub(super) fn check(
    at: &Field<'_>,
    limit: &Limit,
    compiled: &mut CompiledLimit,
    by: EnforcedBy,
    installation: &Installation,
    namespace: &str,
) {
    let selection = &limit.selection;
    let conditions = || {
        let matches = selection.matches.iter().enumerate();
        matches.filter_map(|(n, entry)| Some((n, entry.rls.as_ref()?)))
    };
    let is_for_requests =
        selection.matches.is_empty() || selection.matches.iter().any(|entry| entry.rls.is_none());
    let Some((first, _)) = conditions().next() else {
        if !by.sidecar {
            at.at("matches").violation(
                "has no entry with `rls`, so the limit is for requests, which only sidecars see: add such an entry, or Sidecar to \
                 spec.enforcedBy",
            );
        }
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
        condition.check_domain(&at.at("matches").entry(n).at("rls"), installation, namespace);
    }
    if is_for_requests && !by.sidecar {
        let for_requests = selection.matches.iter().position(|entry| entry.rls.is_none());
        at.at("matches").entry(for_requests.unwrap_or_default()).violation(
            "is for requests, which only sidecars see: remove it, or add Sidecar to spec.enforcedBy",
        );
    }
    refuse_what_needs_requests(at, limit);
    compile_key(at, limit, compiled, is_for_requests);
    compiled.max_override =
        limit.allow_override.as_ref().map(|allow| u64::try_from(allow.maximum).unwrap_or(0));
    if limit.allow_override.is_some() && limit.rates.len() > 1 {
        at.at("allowOverride").violation("is only allowed with exactly one rate, whose number it replaces");
    }
}

/// Checks what only limits for descriptors may have.
fn without_descriptors(at: &Field<'_>, limit: &Limit) {
    if limit.allow_override.is_some() {
        at.at("allowOverride").violation("has no effect, because no entry of `matches` has `rls`: remove it");
    }
    for (n, part) in limit.selection.key.iter().flat_map(|key| &key.parts).enumerate() {
        let at = at.at("key.parts").entry(n);
        if part.source.is_descriptor() {
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

/// Refuses everything that looks at a request or at its response: a gateway's question has neither.
fn refuse_what_needs_requests(at: &Field<'_>, limit: &Limit) {
    let on_limit = limit.on_limit.as_ref();
    let elastic = matches!(limit.enforcement, Some(Enforcement::Elastic(_)));
    let delays = matches!(limit.algorithm, Some(Algorithm::LeakyBucket(_)));
    const OWN: &str = "make a limit of its own for them";
    for (field, is_set, why) in [
        (
            "except",
            !limit.selection.except.is_empty(),
            "looks at requests, and a question of a gateway has none",
        ),
        ("when", limit.selection.when.is_some(), "looks at requests, and a question of a gateway has none"),
        ("tiers", !limit.tiers.is_empty(), "look at requests, and a question of a gateway has none"),
        ("cost", limit.cost.is_some(), "looks at requests, and a question of a gateway says its hits"),
        ("countWhen", limit.count_when.is_some(), "looks at responses, which a gateway does not show"),
        ("algorithm.leakyBucket", delays, "delays requests, which a gateway cannot"),
        ("enforcement.elastic", elastic, "needs the load of a pod, which a gateway does not have"),
        (
            "onLimit.queue",
            on_limit.is_some_and(|on| on.queue.is_some()),
            "lets requests wait, which a gateway cannot",
        ),
        (
            "onLimit.mark",
            on_limit.is_some_and(|on| on.mark.is_some()),
            "marks requests, which a gateway cannot",
        ),
    ] {
        if is_set {
            at.at(field).violation(format_args!(
                "{why}: remove it, or remove the entries with `rls` from `matches` and {OWN}"
            ));
        }
    }
}

/// Finds the entry of each part of the key.
fn compile_key(at: &Field<'_>, limit: &Limit, compiled: &mut CompiledLimit, is_for_requests: bool) {
    let Some(key) = &limit.selection.key else { return };
    for (n, part) in key.parts.iter().enumerate() {
        let at = at.at("key.parts").entry(n);
        if part.source.is_descriptor() && is_for_requests {
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
        compiled.entry_keys.push(entry_key.to_owned());
    }
}

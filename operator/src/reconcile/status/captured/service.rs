//! Whether gateways or applications ask the service about a policy.

use std::collections::BTreeSet;

use sluice_config::CompiledPolicy;
use sluice_config::matches::Match;
use sluice_crds::conditions::reasons;

use crate::reconcile::status::finding::Finding;
use crate::reconcile::status::observed::Observed;
use crate::reconcile::status::text::list;

/// Returns whether somebody has asked. Which requests a gateway asks about is in its own configuration, which Sluice does not know.
pub(super) fn asked(observed: &Observed<'_>, policy: &CompiledPolicy) -> Finding {
    let finding = asked_by_anybody(observed, policy);
    let left_out = policy
        .limits
        .iter()
        .filter(|limit| limit.needs_exchange() && limit.matches.iter().all(Match::is_for_requests));
    let left_out: BTreeSet<_> = left_out.map(|limit| limit.name.as_str()).collect();
    if left_out.is_empty() {
        return finding;
    }
    // Without sidecars, a request that meets them is denied.
    let by = if policy.is_shared { "only sidecars enforce" } else { "nothing but sidecars could enforce" };
    let message = format!(
        "{} Of requests that gateways show at authz and auth, {by} {}: they need the response (docs/gateways.md).",
        finding.message,
        list(left_out)
    );
    Finding { message, ..finding }
}

fn asked_by_anybody(observed: &Observed<'_>, policy: &CompiledPolicy) -> Finding {
    let matches = policy.limits.iter().flat_map(|limit| &limit.matches);
    let domains: BTreeSet<_> =
        matches.filter_map(|entry| entry.rls.as_ref()).map(|rls| rls.domain.as_str()).collect();
    if domains.is_empty() {
        return asked_by_applications(observed, policy);
    }
    let domains = list(domains);
    if observed.facts.service.iter().any(|pod| pod.findings.asked) {
        let message = format!(
            "The service is asked about this policy; which requests gateways ask about, by {domains}, is in their own configuration."
        );
        return Finding::new("True", reasons::CHECKS_ARRIVE, message);
    }
    let address = observed.service.map(|service| format!("{}.{}.svc:8081", service.name, service.namespace));
    let message = format!(
        "No gateway has asked the service about {domains} yet. Let one ask {} about this domain, by Envoy's filter \
         envoy.filters.http.ratelimit or what your gateway has for it (docs/service.md).",
        address.as_deref().unwrap_or("the service")
    );
    Finding::new("Unknown", reasons::NO_CHECKS_YET, message)
}

/// Returns whether an application has asked: no limit of the policy is for gateways.
fn asked_by_applications(observed: &Observed<'_>, policy: &CompiledPolicy) -> Finding {
    if observed.facts.service.iter().any(|pod| pod.findings.asked) {
        let message = "Applications or gateways ask the service about this policy; which requests they ask about is up to them.";
        return Finding::new("True", reasons::CHECKS_ARRIVE, message.to_owned());
    }
    let host = observed.service.map(|service| format!("{}.{}.svc", service.name, service.namespace));
    let message = format!(
        "Nobody has asked the service about this policy yet. Let an application send POST /v1/check to {} with the policy {}/{} \
         (docs/checks.md), or a gateway show its requests (docs/gateways.md).",
        host.map_or_else(|| "the service".to_owned(), |host| format!("port 8080 of {host}")),
        policy.namespace,
        policy.name,
    );
    Finding::new("Unknown", reasons::NO_CHECKS_YET, message)
}

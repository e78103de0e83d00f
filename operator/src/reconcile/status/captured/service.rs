//! Whether gateways ask the service about a policy.

use std::collections::BTreeSet;

use sluice_config::CompiledPolicy;
use sluice_crds::conditions::reasons;

use crate::reconcile::status::finding::Finding;
use crate::reconcile::status::observed::Observed;
use crate::reconcile::status::text::list;

/// Returns whether a gateway has asked. Which requests it asks about is in its own configuration, which Sluice does not know.
pub(super) fn asked(observed: &Observed<'_>, policy: &CompiledPolicy) -> Finding {
    let matches = policy.limits.iter().flat_map(|limit| &limit.matches);
    let domains: BTreeSet<_> =
        matches.filter_map(|entry| entry.rls.as_ref()).map(|rls| rls.domain.as_str()).collect();
    let domains = list(domains);
    if observed.facts.service.iter().any(|pod| pod.asked) {
        let message = format!(
            "Gateways ask the service about {domains}; which requests they ask about is in their own configuration."
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

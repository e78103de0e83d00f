//! Objects of other limiters, which a file may have beside policies.

/// Limits of other projects: their API group, the kinds with limits, and the name of the project as in docs/migration.md.
const OTHERS: [(&str, &[&str], &str); 9] = [
    ("kuadrant.io", &["RateLimitPolicy", "TokenRateLimitPolicy"], "Kuadrant"),
    ("limitador.kuadrant.io", &["Limitador"], "Kuadrant"),
    ("gateway.envoyproxy.io", &["BackendTrafficPolicy"], "Envoy Gateway"),
    ("networking.istio.io", &["EnvoyFilter"], "Envoy"),
    ("traefik.io", &["Middleware"], "Traefik"),
    ("traefik.containo.us", &["Middleware"], "Traefik"),
    ("configuration.konghq.com", &["KongPlugin", "KongClusterPlugin"], "Kong"),
    ("apisix.apache.org", &["ApisixPluginConfig", "ApisixRoute"], "APISIX"),
    ("policy.linkerd.io", &["HTTPLocalRateLimitPolicy"], "Linkerd"),
];

/// An object that is none of ours.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Foreign {
    /// It has limits of another project, and is skipped for this reason.
    Limits(String),
    /// Its kind is one of ours in another group, so it was meant to be ours.
    Mistaken(String),
    /// Anything else.
    Other,
}

/// Looks at an object by its API version and its kind.
pub(super) fn of(api: &str, kind: &str) -> Foreign {
    let group = api.split_once('/').map_or("", |(group, _)| group);
    let known = OTHERS.iter().find(|(other, kinds, _)| *other == group && kinds.contains(&kind));
    if let Some((_, _, project)) = known {
        return Foreign::Limits(format!(
            "{kind} is a kind of {project}, which is skipped: docs/migration.md says how to write it as a RateLimitPolicy \
             of sluice.dev/v1alpha1"
        ));
    }
    if matches!(kind, "RateLimitPolicy" | "RateLimitStore" | "CounterReset") {
        return Foreign::Mistaken(format!("{api:?} has no {kind} of Sluice: use sluice.dev/v1alpha1"));
    }
    Foreign::Other
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_other_projects_are_named_and_other_objects_are_not() {
        let project = |api, kind| match of(api, kind) {
            Foreign::Limits(text) => text.split_once(", which").unwrap().0.to_owned(),
            other => format!("{other:?}"),
        };
        assert_eq!(project("kuadrant.io/v1", "RateLimitPolicy"), "RateLimitPolicy is a kind of Kuadrant");
        assert_eq!(project("traefik.io/v1alpha1", "Middleware"), "Middleware is a kind of Traefik");
        assert_eq!(
            project("gateway.envoyproxy.io/v1alpha1", "BackendTrafficPolicy"),
            "BackendTrafficPolicy is a kind of Envoy Gateway"
        );
        for (api, kind) in
            [("apps/v1", "Deployment"), ("v1", "Service"), ("traefik.io/v1alpha1", "IngressRoute")]
        {
            assert_eq!(of(api, kind), Foreign::Other);
        }
        let mistaken = Foreign::Mistaken(
            "\"sluice.io/v1alpha1\" has no RateLimitPolicy of Sluice: use sluice.dev/v1alpha1".into(),
        );
        assert_eq!(of("sluice.io/v1alpha1", "RateLimitPolicy"), mistaken);
    }
}

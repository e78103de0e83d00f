//! Objects of other limiters, which a file may have beside policies.

use serde_json::Value;

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

/// Words of objects that limit rates, among those of the same kinds that do something else.
const WORDS: [&str; 7] =
    ["ratelimit", "rate-limit", "rate_limit", "limit-count", "limit-req", "limit-conn", "inflightreq"];

/// Looks at an object by its API version, its kind, and its content.
pub(super) fn of(api: &str, kind: &str, object: &Value) -> Foreign {
    let group = api.split_once('/').map_or("", |(group, _)| group);
    let skipped = |project: &str| {
        Foreign::Limits(format!(
            "{kind} is a kind of {project}, which is skipped: {}/blob/main/docs/migration.md says how to write it as a RateLimitPolicy \
             of sluice.dev/v1alpha1",
            env!("CARGO_PKG_REPOSITORY")
        ))
    };
    if let Some((_, _, project)) =
        OTHERS.iter().find(|(other, kinds, _)| *other == group && kinds.contains(&kind))
    {
        let text = object.to_string().to_ascii_lowercase();
        return if WORDS.iter().any(|word| text.contains(word)) { skipped(project) } else { Foreign::Other };
    }
    if matches!(kind, "RateLimitPolicy" | "RateLimitStore" | "CounterReset") {
        return if group.starts_with("sluice") {
            Foreign::Mistaken(format!("{api:?} has no {kind} of Sluice: use sluice.dev/v1alpha1"))
        } else {
            skipped(if group.is_empty() { "another project" } else { group })
        };
    }
    Foreign::Other
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn limits_of_other_projects_are_named_and_other_objects_are_not() {
        let project = |api, kind| match of(api, kind, &json!({"kind": kind, "spec": {"rateLimit": {}}})) {
            Foreign::Limits(text) => text.split_once(", which").unwrap().0.to_owned(),
            other => format!("{other:?}"),
        };
        assert_eq!(project("kuadrant.io/v1", "RateLimitPolicy"), "RateLimitPolicy is a kind of Kuadrant");
        assert_eq!(project("traefik.io/v1alpha1", "Middleware"), "Middleware is a kind of Traefik");
        assert_eq!(
            project("gateway.envoyproxy.io/v1alpha1", "BackendTrafficPolicy"),
            "BackendTrafficPolicy is a kind of Envoy Gateway"
        );
        for (api, kind) in [
            ("apps/v1", "Deployment"),
            ("traefik.io/v1alpha1", "IngressRoute"),
            ("traefik.io/v1alpha1", "Middleware"),
        ] {
            assert_eq!(of(api, kind, &json!({"spec": {"stripPrefix": {}}})), Foreign::Other);
        }
        let mistaken = Foreign::Mistaken(
            "\"sluice.io/v1alpha1\" has no RateLimitPolicy of Sluice: use sluice.dev/v1alpha1".into(),
        );
        assert_eq!(of("sluice.io/v1alpha1", "RateLimitPolicy", &json!({})), mistaken);
        assert_eq!(
            project("other.example/v1", "RateLimitPolicy"),
            "RateLimitPolicy is a kind of other.example"
        );
    }
}

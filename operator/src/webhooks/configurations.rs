//! The webhook configurations: what they must say so that pods get sidecars and policies are reviewed, and which namespaces
//! they exclude. The chart creates them, and others may change them.

use std::collections::BTreeSet;

use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, RuleWithOperations, ValidatingWebhookConfiguration, WebhookClientConfig,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use sluice_crds::{INJECT_LABEL, INJECTION_LABEL};

#[cfg(test)]
mod tests;

/// Label of a namespace with its own name.
const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

/// Where the webhook is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebhookService {
    /// Namespace of the Service.
    pub namespace: String,
    /// Name of the Service.
    pub name: String,
}

/// Both configurations, as far as they exist.
#[derive(Debug, Clone, Default)]
pub struct Configurations {
    /// The configuration that adds sidecars.
    pub mutating: Option<MutatingWebhookConfiguration>,
    /// The configuration that reviews policies.
    pub validating: Option<ValidatingWebhookConfiguration>,
}

/// The parts of a webhook that matter.
struct Hook<'a> {
    client: &'a WebhookClientConfig,
    rules: &'a [RuleWithOperations],
    namespaces: Option<&'a LabelSelector>,
    objects: Option<&'a LabelSelector>,
}

impl Configurations {
    /// Returns what keeps the API server from calling the webhook as it must, or `None` if nothing does.
    pub fn problem(&self, name: &str, service: &WebhookService) -> Option<String> {
        let missing = |kind: &str| {
            format!(
                "the {kind} {name} does not exist: run helm upgrade with the release's values to create it again"
            )
        };
        let Some(injecting) = self.injecting() else { return Some(missing("MutatingWebhookConfiguration")) };
        let Some(reviewing) = self.reviewing() else {
            return Some(missing("ValidatingWebhookConfiguration"));
        };
        let changed = |kind: &str, what: &str| {
            Some(format!(
                "the {kind} {name} {what}: run helm upgrade with the release's values to restore it"
            ))
        };
        for (kind, path, hooks) in [
            ("MutatingWebhookConfiguration", "/inject", &injecting),
            ("ValidatingWebhookConfiguration", "/validate", &reviewing),
        ] {
            if hooks.is_empty() {
                return changed(kind, "has no webhooks");
            }
            if !hooks.iter().all(|hook| leads_to(hook.client, service, path)) {
                let what = format!(
                    "does not lead to the path {path} of the Service {}/{}",
                    service.namespace, service.name
                );
                return changed(kind, &what);
            }
        }
        let pods = |hook: &Hook<'_>| has_rule(hook.rules, "", "pods", &["CREATE"]);
        if !injecting.iter().all(pods) {
            return changed("MutatingWebhookConfiguration", "has no rule for the creation of pods");
        }
        if !injecting.iter().any(|hook| selects(hook.namespaces, INJECTION_LABEL, "enabled")) {
            let what = format!("selects no namespaces with the label {INJECTION_LABEL}=enabled");
            return changed("MutatingWebhookConfiguration", &what);
        }
        if !injecting.iter().any(|hook| selects(hook.objects, INJECT_LABEL, "true")) {
            let what = format!("selects no pods with the label {INJECT_LABEL}=true");
            return changed("MutatingWebhookConfiguration", &what);
        }
        let policies = |hook: &Hook<'_>| {
            ["ratelimitpolicies", "ratelimitstores"]
                .iter()
                .all(|resource| has_rule(hook.rules, "sluice.dev", resource, &["CREATE", "UPDATE"]))
        };
        if !reviewing.iter().any(policies) {
            return changed("ValidatingWebhookConfiguration", "has no rule for policies and stores");
        }
        None
    }

    /// Returns the names of the namespaces whose pods never get a sidecar.
    pub fn excluded(&self) -> BTreeSet<String> {
        let mut excluded: Option<BTreeSet<String>> = None;
        for hook in self.injecting().unwrap_or_default() {
            let of_hook = hook.namespaces.and_then(|selector| selector.match_expressions.as_ref());
            let names = of_hook
                .into_iter()
                .flatten()
                .filter(|requirement| requirement.key == NAMESPACE_NAME && requirement.operator == "NotIn");
            let names: BTreeSet<String> =
                names.flat_map(|requirement| requirement.values.iter().flatten().cloned()).collect();
            excluded = Some(match excluded {
                Some(before) => before.intersection(&names).cloned().collect(),
                None => names,
            });
        }
        excluded.unwrap_or_default()
    }

    /// Reports whether all webhooks have this authority.
    pub fn trust(&self, authority: &str) -> bool {
        let hooks = self.injecting().into_iter().chain(self.reviewing()).flatten();
        let expected = ByteString(authority.as_bytes().to_vec());
        hooks.into_iter().all(|hook| hook.client.ca_bundle.as_ref() == Some(&expected))
    }

    fn injecting(&self) -> Option<Vec<Hook<'_>>> {
        let hooks = self.mutating.as_ref()?.webhooks.as_deref().unwrap_or_default().iter();
        let hooks = hooks.map(|hook| Hook {
            client: &hook.client_config,
            rules: hook.rules.as_deref().unwrap_or_default(),
            namespaces: hook.namespace_selector.as_ref(),
            objects: hook.object_selector.as_ref(),
        });
        Some(hooks.collect())
    }

    fn reviewing(&self) -> Option<Vec<Hook<'_>>> {
        let hooks = self.validating.as_ref()?.webhooks.as_deref().unwrap_or_default().iter();
        let hooks = hooks.map(|hook| Hook {
            client: &hook.client_config,
            rules: hook.rules.as_deref().unwrap_or_default(),
            namespaces: hook.namespace_selector.as_ref(),
            objects: hook.object_selector.as_ref(),
        });
        Some(hooks.collect())
    }
}

/// Reports whether a webhook leads to a path of the Service. A URL is somebody's own choice.
fn leads_to(client: &WebhookClientConfig, expected: &WebhookService, path: &str) -> bool {
    client.url.is_some()
        || client.service.as_ref().is_some_and(|service| {
            service.namespace == expected.namespace
                && service.name == expected.name
                && service.path.as_deref() == Some(path)
        })
}

fn has_rule(rules: &[RuleWithOperations], group: &str, resource: &str, operations: &[&str]) -> bool {
    let contains = |list: &Option<Vec<String>>, wanted: &str| {
        list.iter().flatten().any(|item| item == wanted || item == "*")
    };
    operations.iter().all(|operation| {
        rules.iter().any(|rule| {
            contains(&rule.api_groups, group)
                && contains(&rule.resources, resource)
                && contains(&rule.operations, operation)
        })
    })
}

/// Reports whether a selector may select what has this label.
fn selects(selector: Option<&LabelSelector>, label: &str, value: &str) -> bool {
    let Some(selector) = selector else { return true };
    let by_label = selector
        .match_labels
        .iter()
        .flatten()
        .filter(|(key, _)| *key == label)
        .all(|(_, other)| other == value);
    let by_expression =
        selector.match_expressions.iter().flatten().filter(|requirement| requirement.key == label);
    let mut by_expression = by_expression.map(|requirement| {
        let has = requirement.values.iter().flatten().any(|other| other == value);
        match requirement.operator.as_str() {
            "In" => has,
            "NotIn" => !has,
            "DoesNotExist" => false,
            _ => true,
        }
    });
    by_label && by_expression.all(|selects| selects)
}

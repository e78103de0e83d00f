//! Publishes the operator's authority: to the API server in the webhook configurations, and to sidecars in a
//! ConfigMap in every namespace that may have some.

use std::collections::BTreeSet;

use anyhow::Context as _;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};

/// Name of the ConfigMap.
pub const CONFIG_MAP: &str = "sluice-ca";
/// Field of the ConfigMap that holds the authorities in PEM.
pub const CONFIG_MAP_KEY: &str = "ca.crt";

/// Writes the authorities into both webhook configurations, unless they are there already.
pub async fn publish_to_api_server(client: &kube::Client, name: &str, trusted: &str) -> anyhow::Result<()> {
    let bundle = ByteString(trusted.as_bytes().to_vec());
    let api: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    if let Some(mut object) = api.get_opt(name).await? {
        let hooks = object.webhooks.iter_mut().flatten().map(|hook| &mut hook.client_config.ca_bundle);
        if set_all(hooks, &bundle) {
            api.replace(name, &PostParams::default(), &object).await.with_context(|| {
                format!("caBundle of the MutatingWebhookConfiguration {name} could not be written")
            })?;
        }
    }
    let api: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    if let Some(mut object) = api.get_opt(name).await? {
        let hooks = object.webhooks.iter_mut().flatten().map(|hook| &mut hook.client_config.ca_bundle);
        if set_all(hooks, &bundle) {
            api.replace(name, &PostParams::default(), &object).await.with_context(|| {
                format!("caBundle of the ValidatingWebhookConfiguration {name} could not be written")
            })?;
        }
    }
    Ok(())
}

/// Sets every bundle to `bundle` and reports whether any of them changed.
fn set_all<'a>(bundles: impl Iterator<Item = &'a mut Option<ByteString>>, bundle: &ByteString) -> bool {
    let mut changed = false;
    for old in bundles.filter(|old| old.as_ref() != Some(bundle)) {
        *old = Some(bundle.clone());
        changed = true;
    }
    changed
}

/// Reports whether the webhook configurations hold these authorities, so that the API server can call the
/// webhook. A configuration that does not exist counts as up to date.
pub async fn is_published_to_api_server(
    client: &kube::Client,
    name: &str,
    trusted: &str,
) -> anyhow::Result<bool> {
    let bundle = ByteString(trusted.as_bytes().to_vec());
    let mutating = Api::<MutatingWebhookConfiguration>::all(client.clone()).get_opt(name).await?;
    let validating = Api::<ValidatingWebhookConfiguration>::all(client.clone()).get_opt(name).await?;
    let mutating = mutating.and_then(|object| object.webhooks).unwrap_or_default();
    let validating = validating.and_then(|object| object.webhooks).unwrap_or_default();
    let mutating = mutating.into_iter().map(|hook| hook.client_config.ca_bundle);
    let validating = validating.into_iter().map(|hook| hook.client_config.ca_bundle);
    Ok(mutating.chain(validating).all(|published| published.as_ref() == Some(&bundle)))
}

/// Writes the ConfigMap into each of the namespaces. A failure is logged and does not affect the other
/// namespaces.
pub async fn publish_to_namespaces(client: &kube::Client, namespaces: &BTreeSet<String>, trusted: &str) {
    for namespace in namespaces {
        let map = ConfigMap {
            metadata: ObjectMeta {
                name: Some(CONFIG_MAP.into()),
                labels: Some(
                    [("app.kubernetes.io/managed-by".to_owned(), "sluice-operator".to_owned())].into(),
                ),
                ..ObjectMeta::default()
            },
            data: Some([(CONFIG_MAP_KEY.to_owned(), trusted.to_owned())].into()),
            ..ConfigMap::default()
        };
        let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
        let params = PatchParams::apply("sluice-operator").force();
        match api.patch(CONFIG_MAP, &params, &Patch::Apply(&map)).await {
            Ok(_) => {}
            // The namespace was deleted or is being deleted.
            Err(kube::Error::Api(status))
                if status.code == 404 || status.code == 403 && status.message.contains("terminated") => {}
            Err(error) => {
                tracing::warn!(namespace, "the ConfigMap {CONFIG_MAP} could not be written: {error}");
            }
        }
    }
}

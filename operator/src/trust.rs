//! Who is told of the operator's authority: the API server, in the webhook configurations; and sidecars, by a
//! ConfigMap in every namespace that may have some.

use std::collections::BTreeSet;

use anyhow::Context as _;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};

/// The ConfigMap.
pub const CONFIG_MAP: &str = "sluice-ca";
/// Its field.
pub const CONFIG_MAP_KEY: &str = "ca.crt";

/// Writes the authority into the webhook configurations, if it is not there.
pub async fn tell_api_server(client: &kube::Client, name: &str, trusted: &str) -> anyhow::Result<()> {
    let bundle = ByteString(trusted.as_bytes().to_vec());
    let api: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    if let Some(mut object) = api.get_opt(name).await? {
        let hooks = object.webhooks.iter_mut().flatten().map(|hook| &mut hook.client_config.ca_bundle);
        if set_all(hooks, &bundle) {
            api.replace(name, &PostParams::default(), &object)
                .await
                .context("the mutating webhook's caBundle")?;
        }
    }
    let api: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    if let Some(mut object) = api.get_opt(name).await? {
        let hooks = object.webhooks.iter_mut().flatten().map(|hook| &mut hook.client_config.ca_bundle);
        if set_all(hooks, &bundle) {
            api.replace(name, &PostParams::default(), &object)
                .await
                .context("the validating webhook's caBundle")?;
        }
    }
    Ok(())
}

/// Whether the API server would call this authority's webhook. Without a configuration it calls none, and knows enough.
pub async fn api_server_knows(client: &kube::Client, name: &str, trusted: &str) -> anyhow::Result<bool> {
    let bundle = ByteString(trusted.as_bytes().to_vec());
    let mutating = Api::<MutatingWebhookConfiguration>::all(client.clone()).get_opt(name).await?;
    let validating = Api::<ValidatingWebhookConfiguration>::all(client.clone()).get_opt(name).await?;
    let mutating = mutating.and_then(|object| object.webhooks).unwrap_or_default();
    let validating = validating.and_then(|object| object.webhooks).unwrap_or_default();
    let mut bundles = mutating.into_iter().map(|hook| hook.client_config.ca_bundle);
    let mut others = validating.into_iter().map(|hook| hook.client_config.ca_bundle);
    Ok(bundles.all(|b| b.as_ref() == Some(&bundle)) && others.all(|b| b.as_ref() == Some(&bundle)))
}

fn set_all<'a>(bundles: impl Iterator<Item = &'a mut Option<ByteString>>, bundle: &ByteString) -> bool {
    let mut changed = false;
    for old in bundles.filter(|old| old.as_ref() != Some(bundle)) {
        *old = Some(bundle.clone());
        changed = true;
    }
    changed
}

/// Writes the ConfigMap into the namespaces.
pub async fn tell_namespaces(client: &kube::Client, namespaces: &BTreeSet<String>, trusted: &str) {
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
            // A namespace that is gone or going needs none.
            Err(kube::Error::Api(status))
                if status.code == 404 || status.code == 403 && status.message.contains("terminated") => {}
            Err(error) => tracing::warn!(namespace, "the ConfigMap {CONFIG_MAP} cannot be written: {error}"),
        }
    }
}

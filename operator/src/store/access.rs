//! Access to the store: the URL comes from the arguments, credentials and certificates come from a Secret. An
//! access that no sidecar could use is an error, so it is never distributed.

use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Secret;
use kube::api::Api;
use sluice_config::KeySecret;
use sluice_config::store_access::{ClientCertificate, StoreAccess};
use sluice_store::RedisOptions;
use sluice_store::redis::{self, OptionsError};

use crate::args::Args;
use crate::store::fields::SecretFields;
use crate::store::secrets::KEY_SECRET;

#[cfg(test)]
mod tests;

/// Scheme of a store in the memory of each sidecar, used by tests.
const MEMORY: &str = "memory:";

/// Checks the URL of the store.
pub fn check_url(args: &Args) -> anyhow::Result<()> {
    if !args.store_url.starts_with(MEMORY) {
        RedisOptions::from_url(&args.store_url).context("--store-url")?;
    }
    Ok(())
}

/// Reads the Secrets and returns the access that sidecars receive.
pub async fn read(client: kube::Client, args: &Args) -> anyhow::Result<StoreAccess> {
    let api: Api<Secret> = Api::namespaced(client, &args.namespace);
    let key = SecretFields::read(&api, KEY_SECRET).await?;
    let store = match &args.store_secret {
        Some(name) => SecretFields::read(&api, name).await?,
        None => SecretFields::default(),
    };
    assemble(args, &key, &store)
}

/// Assembles the access and checks that a sidecar could use it.
fn assemble(args: &Args, key: &SecretFields, store: &SecretFields) -> anyhow::Result<StoreAccess> {
    let key = key.text("key")?.with_context(|| format!("{key} has no field `key`"))?;
    let key_secret =
        KeySecret::try_from(key).map_err(|error| anyhow::anyhow!("the Secret {KEY_SECRET}: {error}"))?;
    let client = match (store.text("tls.crt")?, store.text("tls.key")?) {
        (Some(certificate), Some(key)) => Some(ClientCertificate { certificate, key }),
        (None, None) => None,
        (Some(_), None) => {
            anyhow::bail!("{store} has `tls.crt` but no `tls.key`: add it, or remove `tls.crt`")
        }
        (None, Some(_)) => {
            anyhow::bail!("{store} has `tls.key` but no `tls.crt`: add it, or remove `tls.key`")
        }
    };
    let access = StoreAccess {
        url: args.store_url.clone(),
        username: store.text("username")?,
        password: store.text("password")?,
        sentinel_username: store.text("sentinel-username")?,
        sentinel_password: store.text("sentinel-password")?,
        ca: store.text("ca.crt")?,
        client,
        latency_budget_millis: args.store_latency_budget_ms,
        key_secret,
        prefix: args.store_prefix.clone(),
    };
    anyhow::ensure!(
        args.store_secret.is_none() || access.password.is_some() || access.client.is_some(),
        "{store} has no password: add the field `password`, or `tls.crt` and `tls.key`"
    );
    check(&access).with_context(|| match &args.store_secret {
        Some(_) => format!("--store-url with {store}"),
        None => "--store-url".to_owned(),
    })?;
    Ok(access)
}

/// Checks that a sidecar could use the access.
fn check(access: &StoreAccess) -> Result<(), OptionsError> {
    // Destructured, so that a new field is not forgotten here.
    let StoreAccess {
        url,
        username,
        password,
        sentinel_username,
        sentinel_password,
        ca,
        client,
        latency_budget_millis,
        key_secret: _,
        prefix,
    } = access.clone();
    if url.starts_with(MEMORY) {
        return Ok(());
    }
    let options = RedisOptions::from_url(&url)?
        .with_user(username, password.map(redis::Secret::new))?
        .with_sentinel_user(sentinel_username, sentinel_password.map(redis::Secret::new))?;
    let options = RedisOptions {
        ca_pem: ca.map(String::into_bytes),
        client_certificate: client.map(|client| redis::ClientCertificate {
            certificate_pem: client.certificate.into_bytes(),
            key_pem: client.key.into_bytes(),
        }),
        latency_budget: Duration::from_millis(latency_budget_millis),
        prefix,
        ..options
    };
    options.check()
}

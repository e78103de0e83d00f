//! Access to the store: the URL comes from the arguments, credentials and certificates come from a Secret. An
//! access that no sidecar could use is an error, so it is never distributed.

use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Secret;
use kube::api::Api;
use sluice_config::KeySecret;
use sluice_config::store_access::{StoreAccess, StoreChoice};
use sluice_store::RedisOptions;
use sluice_store::redis::{self, ClientCertificate, StoreCredentials};

use crate::args::Args;
use crate::store::fields::SecretFields;
use crate::store::secrets::KEY_SECRET;

#[cfg(test)]
mod tests;

/// Scheme of a store in the memory of each sidecar, used by tests.
const MEMORY: &str = "memory:";

/// Returns the options of Redis as far as the arguments contain them, or `None` for a store in memory.
pub fn options(args: &Args) -> anyhow::Result<Option<RedisOptions>> {
    if args.store_url.starts_with(MEMORY) {
        return Ok(None);
    }
    Ok(Some(RedisOptions {
        latency_budget: Duration::from_millis(args.store_latency_budget_ms),
        prefix: args.store_prefix.clone(),
        partitions: args.store_partitions,
        ..RedisOptions::from_url(&args.store_url).context("--store-url")?
    }))
}

/// Reads the Secrets and returns the store that sidecars use.
pub async fn read(client: kube::Client, args: &Args) -> anyhow::Result<StoreChoice> {
    let Some(redis) = options(args)? else { return Ok(StoreChoice::Memory) };
    let api: Api<Secret> = Api::namespaced(client, &args.namespace);
    let key = SecretFields::read(&api, KEY_SECRET).await?;
    let store = match &args.store_secret {
        Some(name) => Some(SecretFields::read(&api, name).await?),
        None => None,
    };
    Ok(StoreChoice::Access(Box::new(assemble(redis, &key, store.as_ref())?)))
}

/// Assembles the access and checks that a sidecar could use it.
fn assemble(
    redis: RedisOptions,
    key: &SecretFields,
    store: Option<&SecretFields>,
) -> anyhow::Result<StoreAccess> {
    let key = key.text("key")?.with_context(|| format!("{key} has no field `key`"))?;
    let key_secret =
        KeySecret::try_from(key).map_err(|error| anyhow::anyhow!("the Secret {KEY_SECRET}: {error}"))?;
    let (credentials, source) = match store {
        Some(store) => (credentials(store)?, format!("--store-url with {store}")),
        None => (StoreCredentials::default(), "--store-url".to_owned()),
    };
    let redis = redis.with_credentials(credentials).and_then(|redis| redis.check().map(|()| redis));
    Ok(StoreAccess { redis: redis.context(source)?, key_secret })
}

/// Reads the credentials and certificates from the Secret of the store.
fn credentials(store: &SecretFields) -> anyhow::Result<StoreCredentials> {
    let secret = |field| anyhow::Ok(store.text(field)?.map(redis::Secret::new));
    let client_certificate = match (store.text("tls.crt")?, store.text("tls.key")?) {
        (Some(certificate), Some(key)) => Some(ClientCertificate { certificate, key }),
        (None, None) => None,
        (Some(_), None) => {
            anyhow::bail!("{store} has `tls.crt` but no `tls.key`: add it, or remove `tls.crt`")
        }
        (None, Some(_)) => {
            anyhow::bail!("{store} has `tls.key` but no `tls.crt`: add it, or remove `tls.key`")
        }
    };
    let credentials = StoreCredentials {
        username: store.text("username")?,
        password: secret("password")?,
        sentinel_username: store.text("sentinel-username")?,
        sentinel_password: secret("sentinel-password")?,
        ca: store.text("ca.crt")?,
        client_certificate,
    };
    anyhow::ensure!(
        credentials.password.is_some() || credentials.client_certificate.is_some(),
        "{store} has no password: add the field `password`, or `tls.crt` and `tls.key`"
    );
    Ok(credentials)
}

//! Access to a store: the store names the servers, and a Secret has the credentials and certificates. An access that no
//! sidecar could use is an error, so it is never distributed.

use anyhow::Context as _;
use sluice_config::KeySecret;
use sluice_config::store_access::StoreAccess;
use sluice_store::RedisOptions;
use sluice_store::redis::{self, ClientCertificate, StoreCredentials};

use crate::store::fields::SecretFields;

#[cfg(test)]
mod tests;

/// Assembles the access and checks that a sidecar could use it.
pub fn assemble(
    redis: RedisOptions,
    key_secret: KeySecret,
    secret: Option<&SecretFields>,
) -> anyhow::Result<StoreAccess> {
    let credentials = secret.map(credentials).transpose()?.unwrap_or_default();
    let redis = redis.with_credentials(credentials).and_then(|redis| redis.check().map(|()| redis));
    let redis = match secret {
        Some(secret) => redis.with_context(|| format!("the store with {secret}")),
        None => redis.context("the store"),
    };
    Ok(StoreAccess { redis: redis?, key_secret })
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
        credentials.password.is_some()
            || credentials.client_certificate.is_some()
            || credentials.ca.is_some(),
        "{store} has no password: add the field `password`, or `tls.crt` and `tls.key`"
    );
    Ok(credentials)
}

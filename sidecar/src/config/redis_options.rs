//! Redis options from the store access that the operator sends.

use std::time::Duration;

use sluice_config::store_access::StoreAccess;
use sluice_store::RedisOptions;
use sluice_store::redis::{ClientCertificate, OptionsError, Secret};

/// Number of partitions that keys are spread over. All sidecars of a store must use the same number.
const PARTITIONS: u16 = 64;

/// Converts store access to options.
///
/// # Errors
/// The URL, a user or a certificate is invalid.
pub(crate) fn redis_options(access: &StoreAccess) -> Result<RedisOptions, OptionsError> {
    // Destructured, so that a new field cannot be forgotten.
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
    } = access;
    let secret = |text: &Option<String>| text.clone().map(Secret::new);
    let options = RedisOptions::from_url(url)?
        .with_user(username.clone(), secret(password))?
        .with_sentinel_user(sentinel_username.clone(), secret(sentinel_password))?;
    Ok(RedisOptions {
        ca_pem: ca.clone().map(String::into_bytes),
        client_certificate: client.as_ref().map(|client| ClientCertificate {
            certificate_pem: client.certificate.clone().into_bytes(),
            key_pem: client.key.clone().into_bytes(),
        }),
        latency_budget: Duration::from_millis(*latency_budget_millis),
        prefix: prefix.clone(),
        partitions: PARTITIONS,
        ..options
    })
}

//! Verifies an installation from inside the cluster, as a user of its API: `helm test` runs this. It changes nothing.

use std::time::Duration;

use anyhow::{Context as _, bail};
use kube::api::Api;
use sluice_crds::RateLimitStore;
use sluice_host::logging::told;
use tokio::time::Instant;

use crate::args::Args;
use crate::webhooks::probe::offer_invalid;

const RETRY_EVERY: Duration = Duration::from_secs(2);

/// Waits until the webhook refuses an invalid policy and the store of the installation is not reported as unusable.
///
/// # Errors
/// When that is not so within `timeout`. The error states what is wrong.
pub async fn verify(args: &Args, timeout: Duration) -> anyhow::Result<()> {
    let client = kube::Client::try_default()
        .await
        .context("no access to the API server is configured: run in a cluster or provide a kubeconfig")?;
    let start = Instant::now();
    loop {
        let outcome = match offer_invalid(&client, &args.namespace)
            .await
            .context("an invalid policy was not refused")
        {
            Ok(()) => store_is_usable(&client, &args.namespace).await,
            Err(error) => Err(error),
        };
        match outcome {
            Err(error) if start.elapsed() < timeout => {
                tracing::info!("not yet: {}", told(error.as_ref()));
                tokio::time::sleep(RETRY_EVERY).await;
            }
            Ok(store) => {
                tracing::info!("the webhook refuses an invalid policy, and the store: {store}");
                return Ok(());
            }
            Err(error) => return Err(error),
        }
    }
}

/// Returns the message of the condition `Ready` of the installation's store, unless it is False.
async fn store_is_usable(client: &kube::Client, namespace: &str) -> anyhow::Result<String> {
    let api: Api<RateLimitStore> = Api::namespaced(client.clone(), namespace);
    let store = api.get_opt("default").await.context("the RateLimitStore default could not be read")?;
    let store =
        store.context("the operator has not made the RateLimitStore default: no replica leads yet")?;
    let conditions = store.status.map(|status| status.conditions).unwrap_or_default();
    let ready = conditions.into_iter().find(|condition| condition.type_ == "Ready");
    let ready = ready.context("the RateLimitStore default has no status: no replica leads yet")?;
    if ready.status == "False" {
        bail!("the RateLimitStore default is not Ready: {}", ready.message);
    }
    Ok(ready.message)
}

//! Proves the way from the API server to the webhook: it offers a policy that only the webhook finds invalid, by a dry run.

use kube::api::{Api, PostParams};
use serde_json::json;
use sluice_crds::RateLimitPolicy;

/// Beginning of the names of the policies that are offered.
pub const PROBE_NAME: &str = "sluice-verify-";

/// The reason why the API server does not call the webhook.
#[derive(Debug, thiserror::Error)]
pub enum NotCalled {
    /// The policy was accepted.
    #[error(
        "it accepts an invalid policy, so it does not reach the webhook. Check the pods of the operator, and whether a firewall \
         or a NetworkPolicy keeps the API server from port 9443 of the nodes' pods"
    )]
    Accepted,
    /// The API server could not call the webhook, or could not be asked.
    #[error("it answers: {0}")]
    Failed(kube::Error),
}

/// Offers a policy that only the webhook finds invalid. The API server does not store it.
pub async fn offer_invalid(client: &kube::Client, namespace: &str) -> Result<(), NotCalled> {
    let policy = json!({
        "apiVersion": "sluice.dev/v1alpha1", "kind": "RateLimitPolicy",
        "metadata": {"generateName": PROBE_NAME},
        "spec": {"limits": [{
            "name": "invalid", "matches": [{"path": {"regex": "("}}], "rates": [{"requests": 1, "per": "1m"}],
        }]},
    });
    let policy =
        serde_json::from_value(policy).map_err(|error| NotCalled::Failed(kube::Error::SerdeError(error)))?;
    let api: Api<RateLimitPolicy> = Api::namespaced(client.clone(), namespace);
    let params = PostParams { dry_run: true, ..PostParams::default() };
    match api.create(&params, &policy).await {
        Ok(_) => Err(NotCalled::Accepted),
        Err(kube::Error::Api(status)) if status.message.contains("denied the request") => Ok(()),
        Err(error) => Err(NotCalled::Failed(error)),
    }
}

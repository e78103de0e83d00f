//! Proves the way from the API server to the webhook: it offers a policy that only the webhook finds invalid, by a dry run.

use kube::api::{Api, PostParams};
use serde_json::json;
use sluice_crds::RateLimitPolicy;
use sluice_host::logging::told;

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
    #[error("it answers: {}", told(.0))]
    Failed(kube::Error),
}

/// The API server's words when this webhook denies an object. Another policy engine may deny the object too.
const DENIED: &str = "\"validate.sluice.dev\" denied the request";
/// The API server's words when it cannot call a webhook.
const CANNOT_CALL: &str = "failed calling webhook";

impl NotCalled {
    /// Reports whether it is certain. Somebody else may deny the policy first, or the API server may not be reached.
    #[must_use]
    pub fn is_certain(&self) -> bool {
        match self {
            Self::Accepted => true,
            Self::Failed(kube::Error::Api(status)) => status.message.contains(CANNOT_CALL),
            Self::Failed(_) => false,
        }
    }
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
        Err(kube::Error::Api(status)) if status.message.contains(DENIED) => Ok(()),
        Err(error) => Err(NotCalled::Failed(error)),
    }
}

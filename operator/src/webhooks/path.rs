//! The way from the API server to the webhook, as far as it is known. A policy that only the webhook finds invalid proves it, by a dry
//! run.

use std::collections::BTreeSet;
use std::sync::Arc;

use kube::api::{Api, PostParams};
use serde_json::json;
use sluice_crds::RateLimitPolicy;
use sluice_host::logging::told;
use tokio::sync::watch;

/// The way from the API server to the webhook, as far as it is known. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct WebhookPath(Arc<watch::Sender<PathState>>);

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct PathState {
    /// The faults of the configurations.
    configured: Option<String>,
    /// The reason why an invalid policy was not refused.
    probed: Option<String>,
    excluded: BTreeSet<String>,
}

impl WebhookPath {
    /// Returns why the API server does not call the webhook, or `None` if it does, as far as is known.
    pub fn problem(&self) -> Option<String> {
        let state = self.0.borrow();
        state.configured.clone().or_else(|| {
            state
                .probed
                .as_ref()
                .map(|problem| format!("the API server does not call the webhook: {problem}"))
        })
    }

    /// Reports whether the configurations are not as they must be.
    pub(super) fn is_misconfigured(&self) -> bool {
        self.0.borrow().configured.is_some()
    }

    /// Reports whether the pods of a namespace never get a sidecar.
    pub fn excludes(&self, namespace: &str) -> bool {
        self.0.borrow().excluded.contains(namespace)
    }

    /// Waits for the next change.
    pub async fn changed(&self) {
        let _ = self.0.subscribe().changed().await;
    }

    pub(super) fn set_configured(&self, problem: Option<String>, excluded: BTreeSet<String>) {
        self.set(|state| (state.configured, state.excluded) = (problem, excluded));
    }

    pub(super) fn set_probed(&self, problem: Option<String>) {
        self.set(|state| state.probed = problem);
    }

    /// Changes the state, and logs when the way breaks and when it works again.
    fn set(&self, change: impl FnOnce(&mut PathState)) {
        let before = self.problem();
        self.0.send_if_modified(|state| {
            let old = state.clone();
            change(state);
            *state != old
        });
        match (before, self.problem()) {
            (before, Some(problem)) if before.as_ref() != Some(&problem) => {
                tracing::warn!("new pods get no sidecar: {problem}");
            }
            (Some(_), None) => tracing::info!("the API server calls the webhook again"),
            _ => {}
        }
    }
}

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

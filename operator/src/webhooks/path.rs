//! The way from the API server to the webhook, as far as it is known.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::watch;

/// The way from the API server to the webhook, as far as it is known. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct WebhookPath(Arc<watch::Sender<State>>);

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct State {
    /// The faults of the configurations.
    configured: Option<String>,
    /// The reason why an invalid policy was not refused.
    probed: Option<String>,
    excluded: BTreeSet<String>,
}

impl WebhookPath {
    /// Returns why the API server does not call the webhook, or `None` if it does, as far as is known.
    #[must_use]
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
    #[must_use]
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
    fn set(&self, change: impl FnOnce(&mut State)) {
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

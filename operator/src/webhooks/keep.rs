//! The way from the API server to the webhook. The leader keeps the operator's authority in the webhook configurations, and finds out
//! whether the API server calls the webhook: a policy that only the webhook finds invalid proves it, by a dry run.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use kube::api::{Api, PostParams};
use kube::runtime::watcher;
use serde_json::json;
use sluice_crds::RateLimitPolicy;
use sluice_host::logging::told;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::cluster::watch::{Change, follow};
use crate::events::{Events, Regarding, ReportedEvent, object, warning};
use crate::locks::lock;
use crate::metrics::Metrics;
use crate::webhooks::configurations::{Configurations, WebhookService};

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

/// Interval between proofs that the API server calls the webhook.
const PROBE_EVERY: Duration = Duration::from_secs(60);
/// Shortest interval at which the authority is put back after another client has changed it.
const PUT_BACK_EVERY: Duration = Duration::from_secs(10);
/// Interval between attempts to write it, and between proofs while one fails.
const RETRY: Duration = Duration::from_secs(5);
/// Number of proofs that fail one after the other before they count: the API server takes a moment to read configurations.
const FAILED_PROOFS: u32 = 3;

/// Keeps the webhook configurations.
pub struct Webhooks {
    /// Client of the API server.
    pub client: kube::Client,
    /// Name of both configurations.
    pub name: String,
    /// Where they must lead.
    pub service: WebhookService,
    /// The authorities of the serving certificate.
    pub authorities: watch::Receiver<String>,
    /// Where the findings go.
    pub path: WebhookPath,
    /// Metrics of the operator.
    pub metrics: Arc<Metrics>,
    /// Events about the configurations.
    pub events: Events,
}

/// The configurations as the watches have them.
#[derive(Default)]
struct WatchedWebhooks {
    state: Mutex<WatchedConfigurations>,
    changed: Notify,
    /// Whether the configurations are as they must be, with the authority.
    complete: watch::Sender<bool>,
}

#[derive(Default)]
struct WatchedConfigurations {
    configurations: Configurations,
    has_mutating: bool,
    has_validating: bool,
}

impl WatchedWebhooks {
    fn change(&self, change: impl FnOnce(&mut WatchedConfigurations)) {
        change(&mut lock(&self.state));
        self.changed.notify_one();
    }

    /// Returns the configurations, once both have been read.
    fn read(&self) -> Option<Configurations> {
        let state = lock(&self.state);
        (state.has_mutating && state.has_validating).then(|| state.configurations.clone())
    }
}

impl Webhooks {
    /// Keeps the configurations for as long as the process lives.
    pub async fn keep(self) {
        let watched = WatchedWebhooks::default();
        let config = || watcher::Config::default().fields(&format!("metadata.name={}", self.name));
        let api: Api<MutatingWebhookConfiguration> = Api::all(self.client.clone());
        let mutating = follow(watcher::watcher(api, config()), |change| {
            watched.change(|state| match change {
                Change::Applied(object) => state.configurations.mutating = Some(object),
                Change::Deleted { .. } => state.configurations.mutating = None,
                Change::Listed => state.has_mutating = true,
            });
        });
        let api: Api<ValidatingWebhookConfiguration> = Api::all(self.client.clone());
        let validating = follow(watcher::watcher(api, config()), |change| {
            watched.change(|state| match change {
                Change::Applied(object) => state.configurations.validating = Some(object),
                Change::Deleted { .. } => state.configurations.validating = None,
                Change::Listed => state.has_validating = true,
            });
        });
        tokio::join!(mutating, validating, self.keep_authority(&watched), self.probe(&watched));
    }

    /// Writes the authority into the configurations when it or they have changed, and examines them.
    async fn keep_authority(&self, watched: &WatchedWebhooks) {
        let mut authorities = self.authorities.clone();
        let mut kept: Option<(String, Instant)> = None;
        loop {
            let authority = authorities.borrow_and_update().clone();
            let mut wait = None;
            if let Some(found) = watched.read() {
                self.examine(&found);
                let is_complete = found.trust(&authority) && !self.path.is_misconfigured();
                watched.complete.send_replace(is_complete);
                if !found.trust(&authority) {
                    wait = Some(self.put(&authority, &mut kept).await);
                } else if kept.as_ref().is_none_or(|(before, _)| *before != authority) {
                    kept = Some((authority, Instant::now()));
                }
            }
            let retry = async {
                match wait {
                    Some(wait) => tokio::time::sleep(wait).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = authorities.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
                () = watched.changed.notified() => {}
                () = retry => {}
            }
        }
    }

    fn examine(&self, found: &Configurations) {
        self.path.set_configured(found.problem(&self.name, &self.service), found.excluded());
        self.record();
    }

    fn record(&self) {
        self.metrics.webhook_not_called.set(i64::from(self.path.problem().is_some()));
    }

    /// Puts the authority into the configurations: at once, but not again and again. Returns the time after which to look
    /// again.
    async fn put(&self, authority: &str, kept: &mut Option<(String, Instant)>) -> Duration {
        let is_foreign = kept.as_ref().is_some_and(|(before, _)| before == authority);
        if let Some((_, last)) = kept.as_ref().filter(|_| is_foreign)
            && let Some(left) = PUT_BACK_EVERY.checked_sub(last.elapsed()).filter(|left| !left.is_zero())
        {
            return left;
        }
        match self.write(authority).await {
            Ok(()) => {
                if is_foreign {
                    self.tell();
                }
                *kept = Some((authority.to_owned(), Instant::now()));
                PUT_BACK_EVERY
            }
            Err(error) => {
                tracing::warn!("the webhook configurations could not be updated: {}", told(error.as_ref()));
                RETRY
            }
        }
    }

    /// Writes the authority into both configurations, unless it is there already.
    async fn write(&self, authority: &str) -> anyhow::Result<()> {
        let (name, bundle) = (self.name.as_str(), ByteString(authority.as_bytes().to_vec()));
        let api: Api<MutatingWebhookConfiguration> = Api::all(self.client.clone());
        if let Some(mut object) = api.get_opt(name).await? {
            let hooks = object.webhooks.iter_mut().flatten().map(|hook| &mut hook.client_config.ca_bundle);
            if set_all(hooks, &bundle) {
                api.replace(name, &PostParams::default(), &object).await.with_context(|| {
                    format!("caBundle of the MutatingWebhookConfiguration {name} could not be written")
                })?;
            }
        }
        let api: Api<ValidatingWebhookConfiguration> = Api::all(self.client.clone());
        if let Some(mut object) = api.get_opt(name).await? {
            let hooks = object.webhooks.iter_mut().flatten().map(|hook| &mut hook.client_config.ca_bundle);
            if set_all(hooks, &bundle) {
                api.replace(name, &PostParams::default(), &object).await.with_context(|| {
                    format!("caBundle of the ValidatingWebhookConfiguration {name} could not be written")
                })?;
            }
        }
        Ok(())
    }

    fn tell(&self) {
        let note = format!(
            "Another client changes the caBundle of the webhook configurations {}. The operator has put it back: until then the \
             API server could not call the webhook, so new pods got no sidecar. Look for it in `kubectl get \
             mutatingwebhookconfiguration {} -o yaml --show-managed-fields`.",
            self.name, self.name
        );
        tracing::warn!("{note}");
        let kind = "MutatingWebhookConfiguration";
        let object = object("admissionregistration.k8s.io/v1", kind, None, &self.name, None);
        let event = warning("CABundleChanged", note, "Restore");
        self.events.report(ReportedEvent { regarding: Regarding::Object(object), event });
    }

    /// Proves the way again and again, while the configurations are complete.
    async fn probe(&self, watched: &WatchedWebhooks) {
        let mut complete = watched.complete.subscribe();
        let (mut failures, mut unknown) = (0, None);
        loop {
            // The sender lives as long as this.
            let _ = complete.wait_for(|complete| *complete).await;
            let problem = offer_invalid(&self.client, &self.service.namespace).await.err();
            // A missing right, or another policy engine.
            let now_unknown =
                problem.as_ref().filter(|problem| !problem.is_certain()).map(ToString::to_string);
            if now_unknown != unknown {
                unknown = now_unknown;
                if let Some(unknown) = &unknown {
                    tracing::warn!("it is not known whether the API server calls the webhook: {unknown}");
                }
            }
            if unknown.is_some() {
                tokio::time::sleep(PROBE_EVERY).await;
                continue;
            }
            failures = if problem.is_some() { failures + 1 } else { 0 };
            if failures == 0 || failures >= FAILED_PROOFS {
                self.path.set_probed(problem.map(|problem| problem.to_string()));
                self.record();
            }
            tokio::time::sleep(if failures == 0 { PROBE_EVERY } else { RETRY }).await;
        }
    }
}

/// Sets every bundle to `bundle` and reports whether any of them changed.
fn set_all<'a>(bundles: impl Iterator<Item = &'a mut Option<ByteString>>, bundle: &ByteString) -> bool {
    let mut changed = false;
    for old in bundles.filter(|old| old.as_ref() != Some(bundle)) {
        *old = Some(bundle.clone());
        changed = true;
    }
    changed
}

/// Reports whether the webhook configurations hold these authorities, so that the API server can call the
/// webhook. A configuration that does not exist counts as up to date.
pub async fn is_published(client: &kube::Client, name: &str, authorities: &str) -> anyhow::Result<bool> {
    let mutating = Api::<MutatingWebhookConfiguration>::all(client.clone()).get_opt(name).await?;
    let validating = Api::<ValidatingWebhookConfiguration>::all(client.clone()).get_opt(name).await?;
    Ok(Configurations { mutating, validating }.trust(authorities))
}

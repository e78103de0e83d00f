//! Publishes the operator's authority to sidecars: in a ConfigMap in every namespace that may have some. One watch sees all
//! of these ConfigMaps, so that nothing is written that is there already.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt as _;
use kube::api::{Api, ObjectMeta, Patch, PatchParams};
use kube::runtime::watcher;
use sluice_host::logging::told;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::cluster::watch::{Change, follow};
use crate::injection::config::{CONFIG_MAP, CONFIG_MAP_KEY};
use crate::locks::lock;

#[cfg(test)]
mod tests;

/// Interval between attempts to write a ConfigMap that cannot be written.
const RETRY: Duration = Duration::from_secs(30);
/// Maximum length of the API server's answer in a message, in characters.
const MAX_ANSWER: usize = 300;

/// The ConfigMaps with the authority.
#[derive(Default)]
pub struct AuthorityMaps {
    state: Mutex<AuthorityState>,
    /// Notified when one changes.
    pub changed: Notify,
}

#[derive(Default)]
struct AuthorityState {
    listed: bool,
    /// The authorities in the ConfigMap of each namespace, as the watch has reported them.
    present: BTreeMap<String, Option<String>>,
    /// The authorities that were written since the watch has reported a change of the ConfigMap of each namespace. It will report that
    /// write, or a later one.
    written: BTreeMap<String, String>,
    /// The reason why the ConfigMap of a namespace could not be written, and the time of the last attempt.
    failed: BTreeMap<String, (String, Instant)>,
}

impl AuthorityMaps {
    /// Keeps up to date what the namespaces have.
    pub async fn watch(&self, client: kube::Client) {
        let api: Api<ConfigMap> = Api::all(client);
        let config = watcher::Config::default().fields(&format!("metadata.name={CONFIG_MAP}"));
        follow(watcher::watcher(api, config), |change| self.observe(change)).await;
    }

    fn observe(&self, change: Change<ConfigMap>) {
        let mut state = lock(&self.state);
        match change {
            Change::Applied(map) => {
                let namespace = map.namespace().unwrap_or_default();
                let authority = map.data.and_then(|mut data| data.remove(CONFIG_MAP_KEY));
                state.written.remove(&namespace);
                state.present.insert(namespace, authority);
            }
            Change::Deleted { key, .. } => {
                state.written.remove(&key.namespace);
                state.present.remove(&key.namespace);
            }
            Change::Listed => {
                state.listed = true;
                // What was deleted before the list is not reported.
                state.written.clear();
            }
        }
        drop(state);
        self.changed.notify_one();
    }

    /// Writes the ConfigMap into each of the namespaces that does not have it so. Returns the namespaces whose problem has
    /// changed, and the time after which a failed one is due again.
    pub async fn publish(
        &self,
        client: &kube::Client,
        namespaces: &BTreeSet<String>,
        authority: &str,
    ) -> (BTreeSet<String>, Option<Duration>) {
        let mut changed = BTreeSet::new();
        let due: Vec<String> = {
            let mut state = lock(&self.state);
            let AuthorityState { listed, present, written, failed } = &mut *state;
            if !*listed {
                return (BTreeSet::new(), None);
            }
            let is_right = |namespace: &String| {
                present.get(namespace).is_some_and(|present| present.as_deref() == Some(authority))
            };
            failed.retain(|namespace, _| namespaces.contains(namespace));
            // One that somebody else has put right has no problem any more.
            changed.extend(
                failed.extract_if(.., |namespace, _| is_right(namespace)).map(|(namespace, _)| namespace),
            );
            let lacks = |namespace: &&String| {
                !is_right(namespace)
                    && written.get(*namespace).is_none_or(|written| written != authority)
                    && failed.get(*namespace).is_none_or(|(_, at)| at.elapsed() >= RETRY)
            };
            namespaces.iter().filter(lacks).cloned().collect()
        };
        for namespace in due {
            // Before the write: the watch may be faster than the response.
            lock(&self.state).written.insert(namespace.clone(), authority.to_owned());
            let written = write(client, &namespace, authority).await;
            if written != Ok(true) {
                lock(&self.state).written.remove(&namespace);
            }
            let problem = written.err();
            let mut state = lock(&self.state);
            let before = state.failed.remove(&namespace).map(|(problem, _)| problem);
            if before != problem {
                changed.insert(namespace.clone());
                if let Some(problem) = &problem {
                    tracing::warn!(namespace, "the ConfigMap {CONFIG_MAP} could not be written: {problem}");
                }
            }
            if let Some(problem) = problem {
                state.failed.insert(namespace, (problem, Instant::now()));
            }
        }
        let retry = (!lock(&self.state).failed.is_empty()).then_some(RETRY);
        (changed, retry)
    }

    /// Returns why the ConfigMap of a namespace could not be written, in the API server's words.
    pub fn problem(&self, namespace: &str) -> Option<String> {
        lock(&self.state).failed.get(namespace).map(|(problem, _)| problem.clone())
    }
}

/// Writes the ConfigMap of a namespace. Returns false if there is no such namespace any more.
async fn write(client: &kube::Client, namespace: &str, authority: &str) -> Result<bool, String> {
    let map = ConfigMap {
        metadata: ObjectMeta {
            name: Some(CONFIG_MAP.into()),
            labels: Some([("app.kubernetes.io/managed-by".to_owned(), "sluice-operator".to_owned())].into()),
            ..ObjectMeta::default()
        },
        data: Some([(CONFIG_MAP_KEY.to_owned(), authority.to_owned())].into()),
        ..ConfigMap::default()
    };
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let params = PatchParams::apply("sluice-operator").force();
    match api.patch(CONFIG_MAP, &params, &Patch::Apply(&map)).await {
        Ok(_) => Ok(true),
        // The namespace was deleted or is being deleted.
        Err(kube::Error::Api(status))
            if status.code == 404 || status.code == 403 && status.message.contains("terminated") =>
        {
            Ok(false)
        }
        Err(kube::Error::Api(status)) => Err(status.message.chars().take(MAX_ANSWER).collect()),
        Err(error) => Err(told(&error)),
    }
}

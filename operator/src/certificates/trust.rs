//! Publishes the operator's authority to sidecars: in a ConfigMap in every namespace that may have some. One watch sees all
//! of these ConfigMaps, so that nothing is written that is there already.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt as _;
use kube::api::{Api, ObjectMeta, Patch, PatchParams};
use kube::runtime::watcher;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::cluster::watch::{Change, follow};
use crate::injection::config::{CONFIG_MAP, CONFIG_MAP_KEY};

/// Interval between attempts to write a ConfigMap that cannot be written.
const RETRY: Duration = Duration::from_secs(30);
/// Maximum length of the API server's answer in a message, in characters.
const MAX_ANSWER: usize = 300;

/// The ConfigMaps with the authority. Clones share them.
#[derive(Clone, Default)]
pub struct AuthorityMaps(Arc<Inner>);

#[derive(Default)]
struct Inner {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    listed: bool,
    /// The authorities in the ConfigMap of each namespace.
    present: BTreeMap<String, Option<String>>,
    /// Number of changes that the watch has reported of the ConfigMap of each namespace.
    reported: BTreeMap<String, u64>,
    /// The reason why the ConfigMap of a namespace could not be written, and the time of the last attempt.
    failed: BTreeMap<String, (String, Instant)>,
}

impl AuthorityMaps {
    /// Keeps up to date what the namespaces have.
    pub async fn watch(&self, client: kube::Client) {
        let api: Api<ConfigMap> = Api::all(client);
        let config = watcher::Config::default().fields(&format!("metadata.name={CONFIG_MAP}"));
        follow(watcher::watcher(api, config), |change| {
            let mut state = self.lock();
            match change {
                Change::Applied(map) => {
                    let namespace = map.namespace().unwrap_or_default();
                    let authority = map.data.and_then(|mut data| data.remove(CONFIG_MAP_KEY));
                    *state.reported.entry(namespace.clone()).or_default() += 1;
                    state.present.insert(namespace, authority);
                }
                Change::Deleted { namespace, .. } => {
                    state.reported.remove(&namespace);
                    state.present.remove(&namespace);
                }
                Change::Listed => state.listed = true,
            }
            drop(state);
            self.0.changed.notify_one();
        })
        .await;
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
            let mut state = self.lock();
            if !state.listed {
                return (BTreeSet::new(), None);
            }
            state.failed.retain(|namespace, _| namespaces.contains(namespace));
            // One that somebody else has put right has no problem any more.
            let is_right = |namespace: &String| {
                state.present.get(namespace).is_some_and(|present| present.as_deref() == Some(authority))
            };
            let mended: Vec<_> =
                state.failed.keys().filter(|namespace| is_right(namespace)).cloned().collect();
            for namespace in mended {
                state.failed.remove(&namespace);
                changed.insert(namespace);
            }
            let lacks = |namespace: &&String| {
                state.present.get(*namespace).is_none_or(|present| present.as_deref() != Some(authority))
                    && state.failed.get(*namespace).is_none_or(|(_, at)| at.elapsed() >= RETRY)
            };
            namespaces.iter().filter(lacks).cloned().collect()
        };
        for namespace in due {
            let reported = self.lock().reported.get(&namespace).copied();
            let written = write(client, &namespace, authority).await;
            let exists = written == Ok(true);
            let problem = written.err();
            if let Some(problem) = &problem {
                tracing::warn!(namespace, "the ConfigMap {CONFIG_MAP} could not be written: {problem}");
            }
            let mut state = self.lock();
            let before = state.failed.remove(&namespace).map(|(problem, _)| problem);
            if before != problem {
                changed.insert(namespace.clone());
            }
            match problem {
                Some(problem) => drop(state.failed.insert(namespace, (problem, Instant::now()))),
                // The watch reports it soon. Until then it is not written again, unless the watch has reported a change meanwhile: that may
                // be what somebody else has written since.
                None if exists && state.reported.get(&namespace).copied() == reported => {
                    state.present.insert(namespace, Some(authority.to_owned()));
                }
                None => {}
            }
        }
        let retry = (!self.lock().failed.is_empty()).then_some(RETRY);
        (changed, retry)
    }

    /// Returns why the ConfigMap of a namespace could not be written, in the API server's words.
    #[must_use]
    pub fn problem(&self, namespace: &str) -> Option<String> {
        self.lock().failed.get(namespace).map(|(problem, _)| problem.clone())
    }

    /// Waits until a ConfigMap changes.
    pub async fn changed(&self) {
        self.0.changed.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
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
        Err(error) => Err(error.to_string()),
    }
}

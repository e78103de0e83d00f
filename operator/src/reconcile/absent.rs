//! Why a policy has no pod that enforces it: a pod that is pending, or a workload that has no pods. Looked for only while
//! that is so, and not often: a pod that hangs changes nothing by itself.
//!
//! - `unready`: what is read of a namespace.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::object_key::PolicyKey;
use crate::pod_selector::PodSelector;
use unready::Unready;

mod unready;

/// Time for which a finding is kept.
const KEEP: Duration = Duration::from_secs(30);
/// Age up to which what was read of a namespace will do for a policy to which nothing has happened.
const SHARED: Duration = Duration::from_secs(2);
/// Time for which it is kept for others that have waited as long.
const RETAINED: Duration = Duration::from_secs(10);

/// Why a policy has no pods.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Absent {
    /// A workload that is meant to have none now, and why, as a sentence without its full stop.
    pub idle: Option<String>,
    /// The obstacles to new pods, in whole sentences: a pod that is pending, or a workload that cannot create pods.
    pub reason: Option<String>,
    /// The pod that `reason` calls pending.
    pub pending: Option<String>,
    /// A workload that has no pods, if it is not known why, as a whole sentence. It is true only while there are none.
    pub empty: Option<String>,
}

/// Findings about policies without pods, kept for a while.
#[derive(Default)]
pub struct AbsentPods {
    found: Mutex<HashMap<PolicyKey, Found>>,
    /// Findings about namespaces that were read a moment ago. Whoever reads holds the lock of the namespace, so that the others wait.
    read: Mutex<HashMap<String, Reading>>,
}

type Reading = Arc<tokio::sync::Mutex<Option<(Instant, Arc<Unready>)>>>;

struct Found {
    at: Instant,
    selector: PodSelector,
    absent: Arc<Absent>,
}

impl AbsentPods {
    /// Looks for pods and workloads that a selector selects, as they are `since` a moment or later. A finding is kept for a while,
    /// unless its pod is `running` now.
    pub async fn find(
        &self,
        client: &kube::Client,
        key: &PolicyKey,
        since: Instant,
        selector: &PodSelector,
        running: impl Fn(&str) -> bool,
    ) -> kube::Result<Arc<Absent>> {
        let is_same = |found: &&Found| {
            found.selector == *selector && !found.absent.pending.as_deref().is_some_and(&running)
        };
        let since = match lock(&self.found).get(key).filter(is_same) {
            Some(found) if found.at.elapsed() < KEEP => return Ok(found.absent.clone()),
            // Nothing has led to this but time.
            Some(_) => since.min(Instant::now() - SHARED),
            None => since,
        };
        let unready = self.unready(client, &key.namespace, since).await?;
        let absent = Arc::new(find(client, &key.namespace, &unready, selector).await?);
        let found = Found { at: Instant::now(), selector: selector.clone(), absent: absent.clone() };
        lock(&self.found).insert(key.clone(), found);
        Ok(absent)
    }

    /// Returns what was read of a namespace `since` a moment, or reads it. A thousand policies without pods cost the API server no
    /// more than one.
    async fn unready(
        &self,
        client: &kube::Client,
        namespace: &str,
        since: Instant,
    ) -> kube::Result<Arc<Unready>> {
        let reading = lock(&self.read).entry(namespace.to_owned()).or_default().clone();
        let mut read = reading.lock().await;
        if let Some((began, unready)) = &*read
            && since <= *began
        {
            return Ok(unready.clone());
        }
        let began = Instant::now();
        let unready = Arc::new(Unready::read(client, namespace).await?);
        *read = Some((began, unready.clone()));
        drop(read);
        // Hardly anybody needs what is older. What is being read now cannot be locked.
        lock(&self.read).retain(|_, reading| {
            let read = reading.try_lock();
            read.map_or(true, |read| read.as_ref().is_some_and(|(began, _)| began.elapsed() < RETAINED))
        });
        Ok(unready)
    }

    /// Forgets a policy: it has pods now, or is gone.
    pub fn forget(&self, key: &PolicyKey) {
        lock(&self.found).remove(key);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn find(
    client: &kube::Client,
    namespace: &str,
    unready: &Unready,
    selector: &PodSelector,
) -> kube::Result<Absent> {
    if let Some((pod, reason)) = unready.pending(client, namespace, selector).await? {
        return Ok(Absent { reason: Some(reason), pending: Some(pod), ..Absent::default() });
    }
    let mut absent = Absent::default();
    for workload in &unready.workloads {
        if !workload.template.as_ref().is_some_and(|labels| selector.matches(labels)) {
            continue;
        }
        match (workload.wanted, &workload.failure) {
            (Some(0), _) => {
                absent.idle.get_or_insert_with(|| format!("{} is scaled to zero", workload.name));
            }
            (_, Some(failure)) => {
                let reason = format!("The pods of {} cannot be created: {failure}.", workload.name);
                return Ok(Absent { reason: Some(reason), ..Absent::default() });
            }
            (_, None) => {
                absent.empty.get_or_insert_with(|| {
                    let name = &workload.name;
                    format!("{name} has no running pod: `kubectl -n {namespace} describe {name}` shows its events.")
                });
            }
        }
    }
    if absent.empty.is_some() {
        absent.idle = None;
    }
    Ok(absent)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::future::join_all;
    use kube::client::Body;
    use kube::core::Selector;
    use serde_json::json;

    use super::*;

    /// Returns a client of an API server with one pending pod, `web-1` with the label `app: web`, on its last page of pods or on an
    /// earlier one, and the number of its requests.
    fn api_server(is_last_page: bool) -> (kube::Client, Arc<AtomicUsize>) {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let requests = Arc::new(AtomicUsize::new(0));
        let count = requests.clone();
        let service = tower::service_fn(move |request: axum::http::Request<Body>| {
            count.fetch_add(1, Ordering::Relaxed);
            let uri = request.uri();
            let is_selected = !uri.query().is_some_and(|query| query.contains("labelSelector"));
            let pod = json!({"metadata": {"name": "web-1", "labels": {"app": "web"}}, "status": {}});
            let items = if uri.path().ends_with("/pods") && is_selected { vec![pod] } else { Vec::new() };
            let metadata = json!({"continue": if is_last_page { "" } else { "more" }});
            let list = json!({"apiVersion": "v1", "kind": "List", "metadata": metadata, "items": items});
            let response = axum::http::Response::new(Body::from(list.to_string().into_bytes()));
            std::future::ready(Ok::<_, std::io::Error>(response))
        });
        (kube::Client::new(service, "default"), requests)
    }

    fn selector(app: &str) -> PodSelector {
        [("app".to_owned(), app.to_owned())].into_iter().collect::<Selector>().into()
    }

    #[tokio::test(start_paused = true)]
    async fn the_policies_of_a_namespace_share_what_is_read_of_it() {
        for (is_last_page, for_each) in [(true, 0), (false, 1)] {
            let (client, requests) = api_server(is_last_page);
            let absent = AbsentPods::default();
            let find = async |policy: usize, app: &str, since: Instant| {
                let key = PolicyKey::new("shop", policy.to_string());
                absent.find(&client, &key, since, &selector(app), |_| false).await.unwrap()
            };
            let sent = || requests.swap(0, Ordering::Relaxed);
            let start = Instant::now();
            let others = join_all((0..100).map(|policy| find(policy, "other", start))).await;
            assert!(others.iter().all(|absent| **absent == Absent::default()));
            assert_eq!(sent(), 5 + 100 * for_each, "pods and four kinds of workloads");
            assert_eq!(find(100, "web", start).await.pending.as_deref(), Some("web-1"));
            assert_eq!(sent(), 0);

            // Something has happened since, perhaps to one of these objects.
            tokio::time::advance(Duration::from_millis(1)).await;
            find(101, "other", Instant::now()).await;
            find(100, "other", Instant::now()).await;
            assert_eq!(sent(), 5 + 2 * for_each);

            // Time has led to this.
            tokio::time::advance(KEEP).await;
            for policy in 0..100 {
                find(policy, "other", Instant::now()).await;
                tokio::time::advance(Duration::from_millis(10)).await;
            }
            assert_eq!(sent(), 5 + 100 * for_each);
            tokio::time::advance(RETAINED).await;
            let other = PolicyKey::new("bank", "p");
            absent.find(&client, &other, Instant::now(), &selector("web"), |_| false).await.unwrap();
            assert_eq!(lock(&absent.read).len(), 1, "what is old is forgotten");
        }
    }
}

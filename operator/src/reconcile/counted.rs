//! The pods that count for policies: they run, are not being deleted, have not opted out and do not use the host's network. Policies
//! with the same selector share them until a pod of their namespace changes. And the Services behind which the pods of each policy
//! are: a pod without a sidecar behind one of them bypasses the policy.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};

use foldhash::fast::RandomState;

use crate::cluster::pods::pod::{Pod, PodFacts, for_shared};
use crate::cluster::pods::{Pods, Version};
use crate::distribution::publication::Places;
use crate::injection::decide::is_opted_out;
use crate::locks::lock;
use crate::names::{PodSelector, PolicyKey};

/// Number of selectors of a namespace whose pods are kept. More are counted each time.
const MAX_SELECTORS: usize = 128;

/// The counted pods of a selector.
pub struct Counted {
    /// The pods with the facts about their containers, ordered by name.
    pub pods: Vec<(Arc<Pod>, Arc<PodFacts>)>,
    /// Those of them that have a sidecar.
    pub injected: Arc<Places>,
}

/// The pods that were counted last, by namespace.
#[derive(Default)]
pub struct LastCounted(Mutex<HashMap<String, OfNamespace, RandomState>>);

struct OfNamespace {
    version: Version,
    counted: Vec<(PodSelector, Arc<Counted>)>,
}

impl LastCounted {
    /// Returns the counted pods of a namespace that a selector selects. The first call for a pod sends a request to the API server.
    pub async fn count(
        &self,
        pods: &Pods,
        namespace: &str,
        selector: &PodSelector,
    ) -> kube::Result<Arc<Counted>> {
        let version = pods.version(namespace);
        if let Some(counted) = self.find(namespace, &version, selector) {
            return Ok(counted);
        }
        let counted = Arc::new(count(pods, namespace, selector).await?);
        // What was read meanwhile is a change too.
        if counted.pods.is_empty() || pods.version(namespace) != version {
            return Ok(counted);
        }
        let mut last = lock(&self.0);
        match last.get_mut(namespace).filter(|last| last.version == version) {
            Some(last) if last.counted.len() < MAX_SELECTORS => {
                last.counted.push((selector.clone(), counted.clone()));
            }
            Some(_) => {}
            None => {
                let of_namespace =
                    OfNamespace { version, counted: vec![(selector.clone(), counted.clone())] };
                last.insert(namespace.to_owned(), of_namespace);
            }
        }
        Ok(counted)
    }

    /// Forgets the pods of a namespace, one of which is gone. Nobody may count them again.
    pub fn forget(&self, namespace: &str) {
        lock(&self.0).remove(namespace);
    }

    fn find(&self, namespace: &str, version: &Version, selector: &PodSelector) -> Option<Arc<Counted>> {
        let mut last = lock(&self.0);
        let of_namespace = last.get(namespace)?;
        if of_namespace.version != *version {
            last.remove(namespace);
            return None;
        }
        let found = of_namespace.counted.iter().find(|(other, _)| other == selector);
        found.map(|(_, counted)| counted.clone())
    }
}

async fn count(pods: &Pods, namespace: &str, selector: &PodSelector) -> kube::Result<Counted> {
    let mut is_selected = for_shared(|labels| selector.matches(labels));
    let running = pods.select(namespace, |pod| pod.ends.is_none() && is_selected(&pod.labels));
    let facts = pods.facts(namespace, &running).await?;
    // A label opts the next pod out. A sidecar that runs enforces the policy whatever the label says now.
    let is_counted =
        |pod: &Pod, facts: &PodFacts| !facts.host_network && (facts.injected || !is_opted_out(&pod.labels));
    let pods = running.into_iter().zip(facts).filter_map(|(pod, facts)| Some((pod, facts?)));
    let pods: Vec<_> = pods.filter(|(pod, facts)| is_counted(pod, facts)).collect();
    let injected = pods.iter().filter(|(_, facts)| facts.injected).map(|(pod, _)| pod.uid.as_str());
    Ok(Counted { injected: Places::of(injected), pods })
}

/// The Services that select pods of a policy.
#[derive(Default)]
pub struct ServicesOfPolicies(Mutex<HashMap<PolicyKey, BTreeSet<String>>>);

impl ServicesOfPolicies {
    /// Sets the Services of a policy. Call this before other pods behind them are looked for.
    pub(super) fn set(&self, key: &PolicyKey, services: BTreeSet<String>) {
        lock(&self.0).insert(key.clone(), services);
    }

    /// Forgets a deleted policy.
    pub fn forget(&self, key: &PolicyKey) {
        lock(&self.0).remove(key);
    }

    /// Returns the policies of a namespace with pods behind one of these Services.
    pub(super) fn sharing(&self, namespace: &str, services: &[String]) -> Vec<PolicyKey> {
        if services.is_empty() {
            return Vec::new();
        }
        let all = lock(&self.0);
        let shares = |names: &BTreeSet<String>| services.iter().any(|service| names.contains(service));
        let sharing = all.iter().filter(|(key, names)| key.namespace == namespace && shares(names));
        sharing.map(|(key, _)| key.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use kube::api::ObjectMeta;

    use super::*;
    use crate::cluster::namespaces::LimitRanges;
    use crate::injection::inject::tests::config;

    fn metadata(name: &str, app: &str) -> ObjectMeta {
        ObjectMeta {
            name: Some(name.into()),
            namespace: Some("n".into()),
            uid: Some(name.into()),
            labels: Some([("app".to_owned(), app.to_owned())].into()),
            ..ObjectMeta::default()
        }
    }

    #[tokio::test]
    async fn policies_with_the_same_selector_share_their_pods_until_one_of_the_namespace_changes() {
        let service = tower::service_fn(|_: axum::http::Request<kube::client::Body>| {
            std::future::pending::<Result<axum::http::Response<kube::client::Body>, std::io::Error>>()
        });
        let client = kube::Client::new(service, "default");
        let pods = Pods::new(client, Arc::new(config(true)), LimitRanges::default());
        let last = LastCounted::default();
        let selector = |app: &str| {
            PodSelector::from_iter([[("app".to_owned(), app.to_owned())]
                .into_iter()
                .collect::<kube::core::Selector>()
                .into()])
        };
        let (a, b) = (selector("a"), selector("b"));
        let count = async |selector| {
            let counted = last.count(&pods, "n", selector).await.unwrap();
            let names: Vec<_> = counted.pods.iter().map(|(pod, _)| pod.name.clone()).collect();
            assert_eq!(counted.injected.pods().collect::<Vec<_>>(), names);
            (counted, names.concat())
        };
        for (name, app) in [("1", "a"), ("2", "b"), ("3", "a")] {
            pods.insert_with_sidecar(&metadata(name, app));
        }
        let (first, names) = count(&a).await;
        assert_eq!(names, "13");
        assert!(Arc::ptr_eq(&first, &count(&a).await.0));
        assert_eq!(count(&b).await.1, "2");
        assert!(Arc::ptr_eq(&first, &count(&a).await.0));
        pods.insert_with_sidecar(&metadata("2", "a"));
        assert_eq!((count(&a).await.1, count(&b).await.1), ("123".into(), String::new()));
        pods.remove("n", "1");
        assert_eq!(count(&a).await.1, "23");
        for uid in ["2", "3"] {
            pods.remove("n", uid);
        }
        assert_eq!(count(&a).await.1, "");
        assert!(last.0.lock().unwrap().is_empty(), "nothing is kept of a namespace without pods");
        pods.insert_with_sidecar(&metadata("4", "a"));
        assert_eq!(count(&a).await.1, "4");
        last.forget("n");
        assert!(last.0.lock().unwrap().is_empty());
        assert_eq!(count(&a).await.1, "4");
    }
}

//! Quotas: how many policies a namespace may have, and how much the policies of one pod may contain. They keep one
//! tenant from using up the memory of the operator and of sidecars, and refuse early what a sidecar would refuse later.
//!
//! Only changes that add something are refused, so a quota that was lowered never stands in the way of a repair. Two
//! requests at the same time may pass together: a sidecar refuses what it cannot bear.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{Api, ListParams, PartialObjectMeta};
use kube::core::{Expression, Selector, SelectorExt as _};
use serde_json::Value;
use sluice_config::policy::Mode;
use sluice_crds::compile::Compiled;
use sluice_crds::{Installation, RateLimitPolicy, compile};
use tokio::sync::Semaphore;

use crate::args::Quotas;
use crate::cluster::pod::is_opted_out;

/// Time that reading the cluster may take. The API server waits for 5 s.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Number of pods that are examined. The pods of a workload have the same labels.
const MAX_PODS: u32 = 500;
/// Namespaces that are read at the same time.
static READS: Semaphore = Semaphore::const_new(2);

/// The share of the quotas that a policy takes.
#[derive(Debug, Clone)]
struct Usage {
    name: String,
    selector: Selector,
    enforced: usize,
    shadow: usize,
    bytes: usize,
}

/// The policies and pods of a namespace.
#[derive(Debug, Default)]
struct Namespace {
    /// Names of the policies, also of invalid ones.
    policies: BTreeSet<String>,
    /// The valid policies.
    usages: Vec<Usage>,
    /// The labels of pods that the new policy selects.
    pods: BTreeSet<BTreeMap<String, String>>,
}

impl Usage {
    fn new(compiled: &Compiled) -> Self {
        let shadow = compiled.policy.limits.iter().filter(|limit| limit.mode == Mode::Shadow).count();
        Self {
            name: compiled.policy.name.clone(),
            selector: compiled.selector.clone(),
            enforced: compiled.policy.limits.len() - shadow,
            shadow,
            bytes: compiled.policy.to_json().len(),
        }
    }

    /// Returns labels that a pod of the policy has, as far as the selector names their values.
    fn likely_labels(&self) -> BTreeMap<String, String> {
        let value = |requirement| match requirement {
            Expression::Equal(key, value) => Some((key, value)),
            Expression::In(key, values) => Some((key, values.into_iter().next()?)),
            _ => None,
        };
        self.selector.clone().into_iter().filter_map(value).collect()
    }
}

/// The parts of a policy that grow by an edit, and so are checked. A new policy grows in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Growth {
    enforced: bool,
    all: bool,
    bytes: bool,
}

impl Growth {
    const ALL: Self = Self { enforced: true, all: true, bytes: true };

    fn new(old: Option<&Usage>, new: &Usage) -> Self {
        // With another selector, the policy is new for some pods.
        let same = old.filter(|old| old.selector.to_string() == new.selector.to_string());
        same.map_or(Self::ALL, |old| Self {
            enforced: new.enforced > old.enforced,
            all: new.enforced + new.shadow > old.enforced + old.shadow,
            bytes: new.bytes > old.bytes,
        })
    }

    fn is_any(self) -> bool {
        self.enforced || self.all || self.bytes
    }
}

impl Quotas {
    /// Returns why an edit of a policy exceeds a quota, if it does. `old` is the edit before it; `None` for a new policy.
    pub(super) async fn refusal(
        &self,
        client: &kube::Client,
        installation: &Installation,
        new: &Compiled,
        old: Option<&Value>,
    ) -> Option<String> {
        let new_usage = Usage::new(new);
        let old_usage = old.and_then(|old| compile(old, installation).ok()).map(|old| Usage::new(&old));
        let growth = Growth::new(old_usage.as_ref(), &new_usage);
        if !growth.is_any() {
            return None;
        }
        let reading = async {
            // Anyone who reaches the webhook can ask for this.
            let _permit = READS.acquire().await;
            Namespace::read(client, installation, &new.policy.namespace, &new_usage, self).await
        };
        let namespace = match tokio::time::timeout(TIMEOUT, reading).await {
            Ok(Ok(namespace)) => namespace,
            Ok(Err(error)) => return unchecked(&error.to_string()),
            Err(_) => return unchecked("the API server did not respond in time"),
        };
        let problem = self.exceeded(&new_usage, old.is_some(), growth, &namespace)?;
        Some(format!("{problem}. Remove limits or policies, or ask {} for more", self.quota_contact))
    }

    fn exceeded(
        &self,
        new: &Usage,
        is_update: bool,
        growth: Growth,
        namespace: &Namespace,
    ) -> Option<String> {
        let max = self.max_policies_per_namespace as usize;
        let others = namespace.policies.iter().filter(|name| **name != new.name).count();
        if !is_update && others >= max {
            return Some(format!("the namespace has {others} policies, and the quota is {max}"));
        }
        let likely = new.likely_labels();
        let mut pods = namespace.pods.iter().chain([&likely]);
        pods.find_map(|labels| self.exceeded_by_pod(new, growth, labels, namespace))
    }

    fn exceeded_by_pod(
        &self,
        new: &Usage,
        growth: Growth,
        labels: &BTreeMap<String, String>,
        namespace: &Namespace,
    ) -> Option<String> {
        let others = namespace.usages.iter().filter(|usage| usage.name != new.name);
        let all: Vec<_> = others.filter(|usage| usage.selector.matches(labels)).chain([new]).collect();
        let sum = |part: fn(&Usage) -> usize| all.iter().map(|usage| part(usage)).sum::<usize>();
        let (enforced, shadow, bytes) = (sum(|u| u.enforced), sum(|u| u.shadow), sum(|u| u.bytes));
        let (max, max_bytes) = (self.max_limits_per_pod as usize, self.max_bytes_per_pod as usize);
        // The labels of pods are not for everyone to see, but the caller knows the selector.
        let of_pods = || {
            let selector = new.selector.to_string();
            let selector = if selector.is_empty() { selector } else { format!(" with {selector}") };
            let policies =
                if all.len() == 1 { "1 policy".to_owned() } else { format!("{} policies", all.len()) };
            format!("pods{selector} would have {policies}")
        };
        if growth.enforced && enforced > max {
            return Some(format!("{} with {enforced} limits, and the quota is {max}", of_pods()));
        }
        if growth.all && enforced + shadow > 2 * max {
            let (all, max) = (enforced + shadow, 2 * max);
            return Some(format!(
                "{} with {all} limits, those in Shadow included, and the quota is {max}",
                of_pods()
            ));
        }
        (growth.bytes && bytes > max_bytes)
            .then(|| format!("{} of {bytes} bytes, and the quota is {max_bytes}", of_pods()))
    }
}

/// A quota is no reason to stop changes while the API server has problems.
fn unchecked(error: &str) -> Option<String> {
    tracing::warn!(error, "quotas were not checked, because the namespace could not be read");
    None
}

impl Namespace {
    async fn read(
        client: &kube::Client,
        installation: &Installation,
        namespace: &str,
        new: &Usage,
        quotas: &Quotas,
    ) -> kube::Result<Self> {
        let policies: Api<RateLimitPolicy> = Api::namespaced(client.clone(), namespace);
        let pods: Api<PartialObjectMeta<Pod>> = Api::namespaced(client.clone(), namespace);
        // One more than the quota tells that it is used up.
        let some = ListParams::default().limit(quotas.max_policies_per_namespace + 1);
        let running = ListParams::default().labels(&new.selector.to_string()).fields("status.phase=Running");
        let running = running.limit(MAX_PODS);
        let (policies, pods) = futures::try_join!(policies.list(&some), pods.list_metadata(&running))?;
        let counted = pods.iter().map(|pod| pod.labels().clone()).filter(|labels| !is_opted_out(labels));
        let pods = counted.collect();
        let names = policies.iter().map(kube::ResourceExt::name_any).collect();
        let installation = installation.clone();
        let compiling = tokio::task::spawn_blocking(move || {
            let usages = policies.iter().filter_map(|policy| {
                let object = serde_json::to_value(policy).ok()?;
                Some(Usage::new(&compile(&object, &installation).ok()?))
            });
            usages.collect()
        });
        Ok(Self { policies: names, usages: compiling.await.unwrap_or_default(), pods })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quotas() -> Quotas {
        Quotas {
            max_policies_per_namespace: 3,
            max_limits_per_pod: 10,
            max_bytes_per_pod: 2_000,
            quota_contact: "the platform team".into(),
        }
    }

    fn usage(name: &str, app: &str, enforced: usize, shadow: usize) -> Usage {
        let selector = [Expression::Equal("app".into(), app.into())].into_iter().collect();
        Usage { name: name.into(), selector, enforced, shadow, bytes: 100 }
    }

    fn namespace(usages: &[Usage]) -> Namespace {
        Namespace {
            policies: usages.iter().map(|usage| usage.name.clone()).collect(),
            usages: usages.to_vec(),
            pods: BTreeSet::new(),
        }
    }

    #[test]
    fn policies_of_a_namespace_are_counted_when_one_is_created() {
        let full = namespace(&["a", "b", "c"].map(|name| usage(name, name, 1, 0)));
        let refusal = quotas().exceeded(&usage("d", "d", 1, 0), false, Growth::ALL, &full);
        assert_eq!(refusal.as_deref(), Some("the namespace has 3 policies, and the quota is 3"));
        assert_eq!(quotas().exceeded(&usage("c", "c", 2, 0), true, Growth::ALL, &full), None, "an edit");
    }

    #[test]
    fn limits_of_a_pod_are_counted_over_all_of_its_policies() {
        let other = namespace(&[usage("a", "x", 6, 9), usage("b", "y", 9, 0)]);
        let exceeded = |new: Usage| quotas().exceeded(&new, false, Growth::ALL, &other);
        assert_eq!(exceeded(usage("c", "x", 4, 1)), None);
        let refusal = "pods with app=x would have 2 policies with 11 limits, and the quota is 10";
        assert_eq!(exceeded(usage("c", "x", 5, 0)).as_deref(), Some(refusal));
        let refusal = "pods with app=x would have 2 policies with 21 limits, those in Shadow included, and the quota is 20";
        assert_eq!(exceeded(usage("c", "x", 4, 2)).as_deref(), Some(refusal));
        let large = Usage { bytes: 1_950, ..usage("c", "x", 1, 0) };
        let refusal = "pods with app=x would have 2 policies of 2050 bytes, and the quota is 2000";
        assert_eq!(exceeded(large).as_deref(), Some(refusal));
    }

    #[test]
    fn pods_that_run_show_which_policies_meet() {
        let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let mut meeting = namespace(&[usage("a", "x", 8, 0)]);
        let tier = [Expression::Equal("tier".into(), "web".into())].into_iter().collect();
        let new = Usage { selector: tier, ..usage("b", "", 5, 0) };
        assert_eq!(quotas().exceeded(&new, false, Growth::ALL, &meeting), None, "no pod has both labels");
        meeting.pods.insert([label("app", "x"), label("tier", "web")].into());
        let refusal = "pods with tier=web would have 2 policies with 13 limits, and the quota is 10";
        assert_eq!(quotas().exceeded(&new, false, Growth::ALL, &meeting).as_deref(), Some(refusal));
    }

    #[test]
    fn an_edit_is_refused_only_for_what_grows() {
        let old = usage("a", "x", 50, 0);
        let growth = |new: &Usage| Growth::new(Some(&old), new);
        assert!(!growth(&usage("a", "x", 49, 0)).is_any() && !growth(&old).is_any());
        assert!(!growth(&usage("a", "x", 40, 10)).is_any(), "to Shadow");
        assert!(growth(&usage("a", "x", 51, 0)).enforced && growth(&usage("a", "x", 50, 1)).all);
        assert_eq!(growth(&usage("a", "y", 1, 0)), Growth::ALL, "for other pods");
        let longer = Usage { bytes: 101, ..old.clone() };
        assert_eq!(growth(&longer), Growth { enforced: false, all: false, bytes: true });
        let full = namespace(&[]);
        assert_eq!(
            quotas().exceeded(&longer, true, growth(&longer), &full),
            None,
            "a number has a digit more"
        );
    }
}

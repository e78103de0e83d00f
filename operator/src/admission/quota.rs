//! Quotas: how many policies a namespace may have, and how much the policies of one pod may contain. They keep one
//! tenant from using up the memory of the operator and of sidecars, and refuse early what a sidecar would refuse later.
//!
//! Only changes that add something are refused, so a quota that was lowered never stands in the way of a repair. Two
//! requests at the same time may pass together: a sidecar refuses what it cannot bear.

use std::collections::BTreeMap;
use std::time::Duration;

use kube::core::{Expression, Selector};
use serde_json::Value;
use sluice_crds::compile::Compiled;
use sluice_crds::{Installation, compile};
use sluice_host::logging::told;
use sluice_store::MAX_COUNTERS;
use tokio::sync::Semaphore;

use self::namespace::Namespace;
use self::usage::Usage;
use crate::args::Quotas;
use crate::pod_selector::PodSelector;

mod namespace;
#[cfg(test)]
mod tests;
mod usage;

/// Time that reading the cluster may take. The API server waits for 5 s.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Namespaces that are read at the same time.
static READS: Semaphore = Semaphore::const_new(2);

/// Returns labels that a pod has, as far as its selector names their values.
fn likely_labels(selector: &Selector) -> BTreeMap<String, String> {
    let value = |requirement| match requirement {
        Expression::Equal(key, value) => Some((key, value)),
        Expression::In(key, values) => Some((key, values.into_iter().next()?)),
        _ => None,
    };
    selector.clone().into_iter().filter_map(value).collect()
}

/// The parts of a policy that grow by an edit, and so are checked. A new policy grows in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Growth {
    limits: bool,
    enforced_for_all: bool,
    for_all: bool,
    bytes: bool,
}

impl Growth {
    const ALL: Self = Self { limits: true, enforced_for_all: true, for_all: true, bytes: true };

    fn new(old: Option<&Usage>, new: &Usage) -> Self {
        // With other pods, the policy is new for some pods.
        let same = old.filter(|old| old.pods == new.pods && old.by_service == new.by_service);
        same.map_or(Self::ALL, |old| Self {
            limits: new.limits > old.limits,
            enforced_for_all: new.enforced_for_all > old.enforced_for_all,
            for_all: new.for_all() > old.for_all(),
            bytes: new.bytes > old.bytes,
        })
    }

    fn is_any(self) -> bool {
        self.limits || self.enforced_for_all || self.for_all || self.bytes
    }
}

impl Quotas {
    /// Returns why an edit of a policy exceeds a quota, if it does. `old` is the edit before it; `None` for a new policy.
    pub(super) async fn refusal(
        &self,
        client: &kube::Client,
        installation: &Installation,
        new: &Compiled,
        old: Option<Value>,
    ) -> Option<String> {
        let new_usage = Usage::new(new);
        let is_update = old.is_some();
        let old_usage = old.and_then(|old| compile(&old, installation).ok()).map(|old| Usage::new(&old));
        let growth = Growth::new(old_usage.as_ref(), &new_usage);
        if !growth.is_any() {
            return None;
        }
        // Anyone who reaches the webhook can ask for this. Who must wait is not admitted unchecked.
        let Ok(Ok(_permit)) = tokio::time::timeout(TIMEOUT, READS.acquire()).await else {
            return Some("the quotas of too many policies are being checked: try again".to_owned());
        };
        let reading = Namespace::read(client, installation, &new.policy.namespace, &new_usage, self);
        let namespace = match tokio::time::timeout(TIMEOUT, reading).await {
            Ok(Ok(namespace)) => namespace,
            Ok(Err(error)) => return unchecked(&told(&error)),
            Err(_) => return unchecked("the API server did not respond in time"),
        };
        let problem = self.exceeded(&new_usage, is_update, growth, &namespace)?;
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
        let likely: Vec<_> = namespace.selector.alternatives().iter().map(likely_labels).collect();
        let mut pods = namespace.pods.iter().chain(&likely);
        let by_labels = pods.find_map(|labels| {
            self.exceeded_by_pod(
                new,
                growth,
                |_, selector| selector.matches(labels),
                namespace,
                Usage::pods_text,
            )
        });
        // The pods of a workload that does not exist yet have no known labels.
        let by_target = || {
            new.targets().iter().find_map(|target| {
                let selects = |usage: &Usage, _: &PodSelector| usage.targets().contains(target);
                self.exceeded_by_pod(new, growth, selects, namespace, Usage::pods_text)
            })
        };
        // The service has the policies of all namespaces, and each namespace as much room as in a pod.
        let by_service = || {
            let text = |_: &Usage| "the service".to_owned();
            new.by_service
                .then(|| self.exceeded_by_pod(new, growth, |usage, _| usage.by_service, namespace, text))
                .flatten()
        };
        by_labels.or_else(by_target).or_else(by_service)
    }

    /// Returns how a pod exceeds a quota that has the new policy and the others that select it.
    fn exceeded_by_pod(
        &self,
        new: &Usage,
        growth: Growth,
        selects: impl Fn(&Usage, &PodSelector) -> bool,
        namespace: &Namespace,
        of: impl Fn(&Usage) -> String,
    ) -> Option<String> {
        let others = namespace.usages.iter().filter(|(usage, _)| usage.name != new.name);
        let others = others.filter(|(usage, selector)| selects(usage, selector)).map(|(usage, _)| usage);
        let all: Vec<_> = others.chain([new]).collect();
        let sum = |part: fn(&Usage) -> usize| all.iter().map(|usage| part(usage)).sum::<usize>();
        let (limits, bytes) = (sum(|usage| usage.limits), sum(|usage| usage.bytes));
        let (enforced_for_all, for_all) = (sum(|usage| usage.enforced_for_all), sum(Usage::for_all));
        let (max, max_bytes) = (self.max_limits_per_pod as usize, self.max_bytes_per_pod as usize);
        // The labels of pods are not for everyone to see, but the caller knows the policy.
        let of_pods = || {
            let policies =
                if all.len() == 1 { "1 policy".to_owned() } else { format!("{} policies", all.len()) };
            format!("{} would have {policies}", of(new))
        };
        if growth.enforced_for_all && enforced_for_all > MAX_COUNTERS {
            return Some(format!(
                "{} with {enforced_for_all} limits for every request, and a request can meet {MAX_COUNTERS}",
                of_pods()
            ));
        }
        if growth.for_all && for_all > 2 * MAX_COUNTERS {
            let max = 2 * MAX_COUNTERS;
            return Some(format!(
                "{} with {for_all} limits for every request, those in Shadow included, and a request can meet {max}",
                of_pods()
            ));
        }
        if growth.limits && limits > max {
            return Some(format!("{} with {limits} limits, and the quota is {max}", of_pods()));
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

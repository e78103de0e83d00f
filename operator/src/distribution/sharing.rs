//! Who shares a policy: which one a pod is of them, and how long a policy is held back while that matters and is not
//! known. A value without a lock; the hub keeps one for each policy, and wakes whom a change concerns.

use std::time::Duration;

use sluice_config::CompiledPolicy;
use sluice_config::message::Replica;
use sluice_config::policy::{Consistency, OnStoreFailure};
use tokio::time::Instant;

/// The longest that a policy is held back while it is not known who shares it. Less than a sidecar holds its pod's start
/// back.
pub(super) const HOLD: Duration = Duration::from_secs(5);

/// Those that share one policy.
#[derive(Debug, Clone, Default)]
pub(super) struct Replicas {
    /// The UIDs of the pods, in their order; nothing until somebody has looked.
    pods: Option<Vec<String>>,
    /// Whether these are the sharers by the policy's very selector.
    known: bool,
    /// Until when the policy is held back from streams, if it matters who shares it and that is not known.
    held: Option<Instant>,
}

impl Replicas {
    /// Those of a valid edit, by those of the policy before it: who shared it is the best guess until somebody looks.
    pub(super) fn of_edit(policy: &CompiledPolicy, before: Option<&Self>, same_selector: bool) -> Self {
        let known = same_selector && before.is_some_and(|before| before.known);
        // One edit after another does not hold it back for ever.
        let until = || before.and_then(|before| before.held).unwrap_or_else(|| Instant::now() + HOLD);
        let held = (is_shared(policy) && !known).then(until);
        Self { pods: before.and_then(|before| before.pods.clone()), known, held }
    }

    /// Somebody has looked: it is these. False if that is nothing new.
    pub(super) fn look(&mut self, mut pods: Vec<String>) -> bool {
        pods.sort_unstable();
        if self.known && self.pods.as_ref() == Some(&pods) {
            return false;
        }
        *self = Self { pods: Some(pods), known: true, held: None };
        true
    }

    /// What is held back is so for [`HOLD`] from now: before, nobody could look, and nobody could listen.
    pub(super) fn hold_from_now(&mut self) {
        self.held = self.held.map(|_| Instant::now() + HOLD);
    }

    /// Until when the policy is held back; nothing if it is not, or no longer.
    pub(super) fn held(&self) -> Option<Instant> {
        self.held.filter(|until| *until > Instant::now())
    }

    /// Which one a pod is of those that share the policy. One that has a stream and is not seen to run yet is one more.
    pub(super) fn sharing_of(&self, pod_uid: &str) -> Option<Replica> {
        let pods = self.pods.as_ref()?;
        let (index, count) = match pods.binary_search_by(|other| other.as_str().cmp(pod_uid)) {
            Ok(index) => (index, pods.len()),
            Err(index) => (index, pods.len() + 1),
        };
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Some(Replica { index: number(index), count: number(count) })
    }
}

/// Whether it makes a difference how many pods share a policy.
fn is_shared(policy: &CompiledPolicy) -> bool {
    policy.consistency != Consistency::Strict || policy.on_store_failure == OnStoreFailure::Share
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kube::core::Selector;

    use super::*;
    use crate::distribution::Hub;
    use crate::distribution::hub::tests::{compiled, identity, key, policies, selector};

    #[tokio::test]
    async fn a_pod_knows_its_number_among_those_that_share_each_policy() {
        let hub = Arc::new(Hub::new(Arc::default()));
        hub.publish("1", &key("n"), Some((selector("a"), &compiled("n"))));
        hub.publish("2", &key("n"), Some((selector("b"), &compiled("n"))));
        let _closed = hub.connect(identity(&[("app", "a")]), "s");
        let sharing = || hub.due("uid", false).unwrap().live.into_iter().collect::<Vec<_>>();
        let of = |uid: &str, index, count| (uid.to_owned(), Replica { index, count });
        let set = |uid: &str, pods: &[&str]| {
            let selector = hub.selector(uid).unwrap_or_default();
            hub.set_sharers(uid, &selector, pods.iter().map(|&pod| pod.to_owned()).collect());
        };
        assert_eq!(sharing(), [], "nobody has looked yet");
        set("1", &["z", "uid", "a"]);
        set("2", &["a", "b", "c"]);
        set("gone", &["uid"]);
        assert_eq!(sharing(), [of("1", 1, 3)]);
        // It has a stream, and so it admits, whatever the watch says.
        set("1", &["z", "a", "b"]);
        assert_eq!(sharing(), [of("1", 2, 4)]);
        // An edit, even an invalid one, changes nothing about who shares it.
        hub.publish("1", &key("n"), None);
        assert_eq!((sharing(), hub.selector("1").is_some()), (vec![of("1", 2, 4)], true));
        hub.publish("1", &key("n"), Some((Selector::default(), &compiled("n"))));
        assert_eq!(sharing(), [of("1", 2, 4)]);
        assert_eq!((hub.due("nobody", true).is_some(), hub.selector("nobody").is_some()), (false, false));
    }

    #[tokio::test]
    async fn only_streams_that_a_policy_concerns_are_woken_and_only_by_a_change() {
        let hub = Arc::new(Hub::new(Arc::default()));
        hub.publish("1", &key("n"), Some((selector("a"), &compiled("n"))));
        hub.publish("2", &key("n"), Some((selector("b"), &compiled("n"))));
        let _closed = hub.connect(identity(&[("app", "a")]), "s");
        let woken = hub.live_changes("uid").unwrap();
        let rings = || tokio::time::timeout(Duration::ZERO, woken.notified());
        let set = |uid: &str, app: &str, pods: &[&str]| {
            hub.set_sharers(uid, &selector(app), pods.iter().map(|&pod| pod.to_owned()).collect());
        };
        let version = hub.version();
        set("2", "b", &["other"]);
        assert!(rings().await.is_err());
        set("1", "b", &["another", "other"]);
        assert!(rings().await.is_err(), "of a selector that is no longer its own");
        set("1", "a", &["other"]);
        assert!(rings().await.is_ok(), "it is one more");
        set("1", "a", &["uid", "other"]);
        assert!(rings().await.is_ok());
        set("1", "a", &["other", "uid"]);
        assert!(rings().await.is_err());
        set("1", "a", &["other"]);
        assert!(rings().await.is_ok(), "that it is not there any more");
        set("1", "a", &["another", "other"]);
        assert!(rings().await.is_ok(), "that it is one more than two");
        assert!(!version.has_changed().unwrap(), "policies are what they were");
    }

    #[tokio::test(start_paused = true)]
    async fn a_policy_is_held_back_while_it_matters_who_shares_it_and_is_not_known() {
        let hub = Arc::new(Hub::new(Arc::default()));
        let local = CompiledPolicy { consistency: Consistency::Local, ..compiled("n") };
        let leased = CompiledPolicy { consistency: Consistency::Leased, ..compiled("n") };
        let share = CompiledPolicy { on_store_failure: OnStoreFailure::Share, ..compiled("n") };
        let _closed = hub.connect(identity(&[("app", "a")]), "s");
        let held = || hub.due("uid", false).unwrap().held.into_iter().collect::<String>();
        let publish = |uid: &str, app: &str, policy: &CompiledPolicy| {
            hub.publish(uid, &key("n"), Some((selector(app), policy)));
        };
        let look = |uid: &str| hub.set_sharers(uid, &selector("a"), vec!["uid".into()]);
        publish("0", "a", &compiled("n"));
        for (uid, policy) in [("1", &local), ("2", &leased), ("3", &share)] {
            publish(uid, "a", policy);
        }
        // The list takes its time.
        tokio::time::advance(HOLD).await;
        hub.open();
        tokio::time::advance(HOLD / 2).await;
        hub.open();
        assert_eq!(held(), "123");
        assert_eq!(policies(&hub).unwrap().policies.into_keys().collect::<String>(), "0");
        look("1");
        assert_eq!(held(), "23");
        // An edit is not held back for it, and does not put off when another is let go.
        publish("1", "a", &share);
        publish("2", "a", &share);
        hub.publish("3", &key("n"), None);
        assert_eq!(held(), "23");
        tokio::time::advance(HOLD / 2).await;
        assert_eq!(held(), "");
        assert_eq!(policies(&hub).unwrap().policies.into_keys().collect::<String>(), "0123");
        // Who shares it as it is selected now is another question.
        publish("1", "b", &local);
        publish("1", "a", &local);
        assert_eq!(held(), "1");
        hub.set_sharers("1", &selector("b"), Vec::new());
        assert_eq!(held(), "1");
        look("1");
        assert_eq!(held(), "");
    }
}

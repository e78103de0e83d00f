//! The Services behind which the pods of each policy are: a pod without a sidecar behind one of them bypasses the policy.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::object_key::PolicyKey;

/// The Services that select pods of a policy.
#[derive(Default)]
pub struct ServicesOfPolicies(Mutex<HashMap<PolicyKey, BTreeSet<String>>>);

impl ServicesOfPolicies {
    /// Sets the Services of a policy. Call this before other pods behind them are looked for.
    pub(super) fn set(&self, key: &PolicyKey, services: BTreeSet<String>) {
        self.lock().insert(key.clone(), services);
    }

    /// Forgets a deleted policy.
    pub fn forget(&self, key: &PolicyKey) {
        self.lock().remove(key);
    }

    /// Returns the policies of a namespace with pods behind one of these Services.
    pub(super) fn sharing(&self, namespace: &str, services: &[String]) -> Vec<PolicyKey> {
        if services.is_empty() {
            return Vec::new();
        }
        let all = self.lock();
        let shares = |names: &BTreeSet<String>| services.iter().any(|service| names.contains(service));
        let sharing = all.iter().filter(|(key, names)| key.namespace == namespace && shares(names));
        sharing.map(|(key, _)| key.clone()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<PolicyKey, BTreeSet<String>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

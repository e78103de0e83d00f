//! Validates and compiles a policy, once for each of its edits. Pure.

use std::collections::HashMap;
use std::hash::BuildHasher as _;
use std::sync::Mutex;

use kube::ResourceExt as _;
use kube::api::DynamicObject;
use sluice_config::CompiledPolicy;
use sluice_crds::policy::jwt::JwksSource;
use sluice_crds::policy::{EnforcedBy, OverrideSources, PodSelection};
use sluice_crds::{Installation, Violation, compile as compile_policy};

use crate::locks::lock;

#[cfg(test)]
thread_local! {
    /// Number of policies that were asked for in the current test, one for each reconcile. The test runs in a thread of its own.
    pub(super) static RECONCILES: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// A policy that was compiled successfully.
#[derive(Clone)]
pub struct Compiled {
    /// The compiled policy.
    pub policy: CompiledPolicy,
    /// The pods that the policy applies to.
    pub pods: PodSelection,
    /// Its enforcers.
    pub enforced_by: EnforcedBy,
    /// The objects with overrides of its limits.
    pub overrides: Vec<OverrideSources>,
    /// The objects with public keys.
    pub jwks: Vec<JwksSource>,
}

/// Result of compiling a policy: the policy, or all its violations.
pub type Compilation = Result<Compiled, Vec<Violation>>;

/// The newest edit of each policy, compiled.
#[derive(Default)]
pub struct Compilations {
    /// By the UID of the policy, with the hash of its `spec`.
    compiled: Mutex<HashMap<String, (u64, Compilation)>>,
    hasher: foldhash::fast::RandomState,
}

impl Compilations {
    /// Returns an edit of a policy, compiled for the installation. A policy is reconciled far more often than it is edited.
    pub fn get(&self, object: &DynamicObject, installation: &Installation) -> Compilation {
        #[cfg(test)]
        RECONCILES.set(RECONCILES.get() + 1);
        let Some(uid) = object.uid() else { return compile(object, installation) };
        let spec = self.hasher.hash_one(object.data.get("spec"));
        if let Some((_, known)) = lock(&self.compiled).get(&uid).filter(|(known, _)| *known == spec) {
            return known.clone();
        }
        let compiled = compile(object, installation);
        lock(&self.compiled).insert(uid, (spec, compiled.clone()));
        compiled
    }

    /// Forgets a deleted policy.
    pub fn remove(&self, uid: &str) {
        lock(&self.compiled).remove(uid);
    }
}

/// Compiles a policy for an installation.
pub fn compile(object: &DynamicObject, installation: &Installation) -> Compilation {
    let unreadable = |error: serde_json::Error| vec![Violation::new("spec", error.to_string())];
    let compiled = compile_policy(&serde_json::to_value(object).map_err(unreadable)?, installation)?;
    let sluice_crds::Compiled { policy, pods, enforced_by, overrides, jwks, warnings: _ } = compiled;
    Ok(Compiled { policy, pods, enforced_by, overrides, jwks })
}

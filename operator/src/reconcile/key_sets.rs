//! The public keys of policies: the last key set of each kind of tokens that could be used.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sluice_config::jwt::read_jwks;
use sluice_crds::conditions::reasons;
use sluice_crds::policy::jwt::JwksSource;

use crate::cluster::references::Content;
use crate::object_key::PolicyKey;
use crate::reconcile::tables::Problem;

/// The last usable key sets, by policy and reference.
#[derive(Default)]
pub struct KeySets(Mutex<BTreeMap<PolicyKey, Vec<(JwksSource, String)>>>);

impl KeySets {
    /// Reads the key set of a kind of tokens from the object that it refers to.
    pub fn read(
        &self,
        policy: &PolicyKey,
        of_jwt: &JwksSource,
        content: &Content,
    ) -> Result<String, Problem> {
        let source = &of_jwt.source;
        let Some(text) = content.data.get(&source.field().key) else {
            let message = format!("There is no {source}. Add the field to the {}.", source.kind());
            return Err(Problem { reason: reasons::REF_NOT_FOUND, message });
        };
        let jwks = read_jwks(&text.0).map_err(|error| {
            let message = format!("The public keys cannot be used: {source} {error}.");
            Problem { reason: reasons::INVALID_CONTENT, message }
        })?;
        let mut all = self.lock();
        let of_policy = all.entry(policy.clone()).or_default();
        of_policy.retain(|(other, _)| !is_same(other, of_jwt));
        of_policy.push((of_jwt.clone(), jwks.clone()));
        Ok(jwks)
    }

    /// Returns the last key set that could be used.
    pub fn last_good(&self, policy: &PolicyKey, of_jwt: &JwksSource) -> Option<String> {
        let all = self.lock();
        all.get(policy)?.iter().find(|(other, _)| is_same(other, of_jwt)).map(|(_, jwks)| jwks.clone())
    }

    /// Drops the key sets of a policy, but for these.
    pub fn keep_only(&self, policy: &PolicyKey, jwks: &[JwksSource]) {
        let mut all = self.lock();
        let Some(of_policy) = all.get_mut(policy) else { return };
        of_policy.retain(|(other, _)| jwks.iter().any(|of_jwt| is_same(other, of_jwt)));
        if of_policy.is_empty() {
            all.remove(policy);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<PolicyKey, Vec<(JwksSource, String)>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reports whether two references are to the keys of one issuer for one kind of tokens. Its place in the policy may change.
fn is_same(one: &JwksSource, other: &JwksSource) -> bool {
    (&one.name, &one.issuer, &one.source) == (&other.name, &other.issuer, &other.source)
}

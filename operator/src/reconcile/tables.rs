//! Builds the tables of overrides. A table is built again only when its objects have changed, and never while anything
//! is locked.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sluice_config::CompiledPolicy;
use sluice_config::policy::{BlobHash, LimitKind};
use sluice_crds::conditions::reasons;
use sluice_crds::overrides::OverrideSources;
use sluice_crds::policy::ContentRef;

use crate::cluster::references::Content;
use crate::distribution::publication::Blob;
use crate::object_key::PolicyKey;

/// A reference with what it refers to.
pub type Source = (ContentRef, Arc<Content>);

/// The reason why content cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Reason in the condition ResolvedRefs.
    pub reason: &'static str,
    /// Sentences that say what is wrong and what to do. They contain nothing of the content.
    pub message: String,
}

/// The tables that were built.
#[derive(Default)]
pub struct Tables(Mutex<BTreeMap<(PolicyKey, usize), Table>>);

/// A table, and what it was built from.
struct Table {
    sources: Vec<Source>,
    plans: Vec<String>,
    built: Result<Blob, Vec<Problem>>,
}

impl Table {
    fn is_of(&self, sources: &[Source], plans: &[String]) -> bool {
        let same = |(a, b): (&Source, &Source)| a.0 == b.0 && Arc::ptr_eq(&a.1, &b.1);
        self.plans == plans
            && self.sources.len() == sources.len()
            && self.sources.iter().zip(sources).all(same)
    }
}

impl Tables {
    /// Returns the table of a limit, and builds it if that was not done before.
    pub async fn build(
        &self,
        policy: &PolicyKey,
        compiled: &CompiledPolicy,
        of_limit: &OverrideSources,
        sources: Vec<Source>,
    ) -> Result<Blob, Vec<Problem>> {
        let place = (policy.clone(), of_limit.limit);
        let plans = plans(compiled, of_limit.limit);
        if let Some(known) = self.lock().get(&place).filter(|table| table.is_of(&sources, &plans)) {
            return known.built.clone();
        }
        let (compiled, of_limit, content) = (compiled.clone(), of_limit.clone(), sources.clone());
        // A large table takes a good part of a second.
        let building = tokio::task::spawn_blocking(move || build(&compiled, &of_limit, &content));
        let built = building.await.unwrap_or_else(|error| {
            let message = format!("The overrides could not be read, which is tried again: {error}.");
            Err(vec![Problem { reason: reasons::WAITING, message }])
        });
        self.lock().insert(place, Table { sources, plans, built: built.clone() });
        built
    }

    /// Drops the tables of a policy, but for those of these limits.
    pub fn keep_only(&self, policy: &PolicyKey, limits: &[OverrideSources]) {
        self.lock().retain(|(key, limit), _| key != policy || limits.iter().any(|of| of.limit == *limit));
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(PolicyKey, usize), Table>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the names of the plans of a limit.
fn plans(compiled: &CompiledPolicy, limit: usize) -> Vec<String> {
    match compiled.limits.get(limit).map(|limit| &limit.kind) {
        Some(LimitKind::Rates(rates)) => rates.plans.iter().map(|plan| plan.name.clone()).collect(),
        Some(LimitKind::Slots(_) | LimitKind::Adaptive(_)) | None => Vec::new(),
    }
}

fn build(
    compiled: &CompiledPolicy,
    of_limit: &OverrideSources,
    sources: &[Source],
) -> Result<Blob, Vec<Problem>> {
    let missing: Vec<_> = sources
        .iter()
        .filter(|(source, content)| !content.data.contains_key(&source.field().key))
        .map(|(source, _)| Problem {
            reason: reasons::REF_NOT_FOUND,
            message: format!("There is no {source}. Add the field to the {}.", source.kind()),
        })
        .collect();
    if !missing.is_empty() {
        return Err(missing);
    }
    let content = sources.iter().filter_map(|(source, content)| content.data.get(&source.field().key));
    let content: Vec<_> = content.map(|bytes| bytes.0.as_slice()).collect();
    let limit = compiled.limits.get(of_limit.limit).map(|limit| limit.name.as_str()).unwrap_or_default();
    let table = of_limit.build(compiled, &content).map_err(|invalid| {
        let problem = |line| Problem {
            reason: reasons::INVALID_CONTENT,
            message: format!("The overrides of limit {limit} cannot be used: {line}."),
        };
        invalid.iter().map(problem).collect::<Vec<_>>()
    })?;
    Ok(Blob { hash: BlobHash::of(&table), bytes: table.into() })
}

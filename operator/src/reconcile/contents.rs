//! The content that policies refer to, as it is used: tables of overrides, and key sets.
//!
//! A table is built again only when something that it is built from has changed, never while anything is locked, and once
//! for all limits that share it. The last table of a limit, or key set, that could be used is kept for as long as its policy.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use sluice_config::CompiledPolicy;
use sluice_config::jwt::read_jwks;
use sluice_config::key::KeyPart;
use sluice_config::policy::{BlobHash, LimitKind};
use sluice_crds::conditions::reasons;
use sluice_crds::policy::key::JwksSource;
use sluice_crds::policy::{ContentRef, OverrideSources};

use crate::cluster::references::Content;
use crate::distribution::publication::Blob;
use crate::locks::lock;
use crate::names::PolicyKey;

/// Largest size of the tables of a namespace, and of all, in bytes.
const MAX_OF_NAMESPACE: usize = 24 << 20;
const MAX_TOTAL: usize = 64 << 20;

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

/// The tables of all limits.
#[derive(Default)]
pub struct Tables(Mutex<BTreeMap<TableKey, OverrideTable>>);

/// A policy, and the name of a limit.
type TableKey = (PolicyKey, String);

/// The table of a limit.
#[derive(Default)]
struct OverrideTable {
    /// The newest recipe, and its result.
    newest: Option<(Recipe, Result<Blob, Vec<Problem>>)>,
    /// The last table that could be used, with the plans and the part of the key that it is for.
    last_good: Option<(LimitPart, Blob)>,
}

/// Everything that a table is built from.
#[derive(Clone)]
struct Recipe {
    sources: Vec<Source>,
    usable: LimitPart,
}

/// The part of a limit on which its table depends.
#[derive(Clone, PartialEq, Eq)]
struct LimitPart {
    plans: Vec<String>,
    part: Option<KeyPart>,
}

impl LimitPart {
    fn of(compiled: &CompiledPolicy, limit: usize) -> Self {
        let limit = compiled.limits.get(limit);
        let plans = match limit.map(|limit| &limit.kind) {
            Some(LimitKind::Rates(rates)) => rates.plans.iter().map(|plan| plan.name.clone()).collect(),
            Some(LimitKind::Slots(_) | LimitKind::Adaptive(_)) | None => Vec::new(),
        };
        Self { plans, part: limit.and_then(|limit| limit.key.first().cloned()) }
    }
}

impl Recipe {
    fn equals(&self, other: &Self) -> bool {
        let same = |(a, b): (&Source, &Source)| a.0 == b.0 && Arc::ptr_eq(&a.1, &b.1);
        self.usable == other.usable
            && self.sources.len() == other.sources.len()
            && self.sources.iter().zip(&other.sources).all(same)
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
        let place = place(policy, compiled, of_limit.limit);
        let recipe = Recipe { sources, usable: LimitPart::of(compiled, of_limit.limit) };
        let known = self.find(&policy.namespace, &recipe);
        let built = match known {
            Some(known) => known,
            None => {
                let (compiled, of_limit, content) =
                    (compiled.clone(), of_limit.clone(), recipe.sources.clone());
                // A large table takes a good part of a second.
                let building = tokio::task::spawn_blocking(move || build(&compiled, &of_limit, &content));
                building.await.unwrap_or_else(|error| {
                    let message = format!("The overrides could not be read, which is tried again: {error}.");
                    Err(vec![Problem { reason: reasons::WAITING, message }])
                })
            }
        };
        self.insert(place, recipe, built)
    }

    /// Returns the last table of a limit that could be used, if the limit still has its plans and its key.
    pub fn last_good(&self, policy: &PolicyKey, compiled: &CompiledPolicy, limit: usize) -> Option<Blob> {
        let now = LimitPart::of(compiled, limit);
        let tables = lock(&self.0);
        let (usable, blob) = tables.get(&place(policy, compiled, limit))?.last_good.as_ref()?;
        let fits = usable.part == now.part && usable.plans.iter().all(|plan| now.plans.contains(plan));
        fits.then(|| blob.clone())
    }

    /// Returns the result of a recipe that some limit of a namespace has.
    fn find(&self, namespace: &str, recipe: &Recipe) -> Option<Result<Blob, Vec<Problem>>> {
        let tables = lock(&self.0);
        let of_namespace = tables.iter().filter(|((policy, _), _)| policy.namespace == namespace);
        let mut known = of_namespace.filter_map(|(_, table)| table.newest.as_ref());
        known.find(|(other, _)| other.equals(recipe)).map(|(_, built)| built.clone())
    }

    /// Keeps a result, unless there is no room for it.
    fn insert(
        &self,
        place: TableKey,
        recipe: Recipe,
        built: Result<Blob, Vec<Problem>>,
    ) -> Result<Blob, Vec<Problem>> {
        let mut tables = lock(&self.0);
        let built = match built {
            Ok(blob) if !has_room(&tables, &place.0.namespace, &blob) => Err(vec![no_room()]),
            built => built,
        };
        let table = tables.entry(place).or_default();
        if let Ok(blob) = &built {
            table.last_good = Some((recipe.usable.clone(), blob.clone()));
        }
        table.newest = Some((recipe, built.clone()));
        built
    }

    /// Drops the tables of a policy, but for those of its limits that have overrides.
    pub fn keep_only(&self, policy: &PolicyKey, now: Option<(&CompiledPolicy, &[OverrideSources])>) {
        let limits = now.into_iter().flat_map(|(compiled, overrides)| {
            overrides.iter().map(|of_limit| place(policy, compiled, of_limit.limit).1)
        });
        let limits: BTreeSet<_> = limits.collect();
        lock(&self.0).retain(|(key, limit), _| key != policy || limits.contains(limit));
    }
}

fn place(policy: &PolicyKey, compiled: &CompiledPolicy, limit: usize) -> TableKey {
    let name = compiled.limits.get(limit).map(|limit| limit.name.clone());
    (policy.clone(), name.unwrap_or_default())
}

/// Reports whether a table can be kept beside the others. Equal tables take their memory once.
fn has_room(tables: &BTreeMap<TableKey, OverrideTable>, namespace: &str, new: &Blob) -> bool {
    let mut sizes = BTreeMap::new();
    for ((policy, _), table) in tables {
        if let Some((_, blob)) = &table.last_good {
            let of_namespace = sizes.entry(&blob.hash).or_insert((blob.bytes.len(), false));
            of_namespace.1 |= policy.namespace == namespace;
        }
    }
    let is_known = sizes.contains_key(&new.hash);
    let total = sizes.values().map(|(size, _)| size).sum::<usize>() + new.bytes.len();
    let of_namespace =
        sizes.values().filter(|(_, own)| *own).map(|(size, _)| size).sum::<usize>() + new.bytes.len();
    is_known || (of_namespace <= MAX_OF_NAMESPACE && total <= MAX_TOTAL)
}

fn no_room() -> Problem {
    let message = format!(
        "The overrides of the namespace take more than {} MiB, at about 21 bytes each, or those of all namespaces more than {} \
         MiB. Use fewer lines, or ask the administrators of Sluice.",
        MAX_OF_NAMESPACE >> 20,
        MAX_TOTAL >> 20
    );
    Problem { reason: reasons::INVALID_CONTENT, message }
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
        let mut all = lock(&self.0);
        let of_policy = all.entry(policy.clone()).or_default();
        of_policy.retain(|(other, _)| !is_same(other, of_jwt));
        of_policy.push((of_jwt.clone(), jwks.clone()));
        Ok(jwks)
    }

    /// Returns the last key set that could be used.
    pub fn last_good(&self, policy: &PolicyKey, of_jwt: &JwksSource) -> Option<String> {
        let all = lock(&self.0);
        all.get(policy)?.iter().find(|(other, _)| is_same(other, of_jwt)).map(|(_, jwks)| jwks.clone())
    }

    /// Drops the key sets of a policy, but for these.
    pub fn keep_only(&self, policy: &PolicyKey, jwks: &[JwksSource]) {
        let mut all = lock(&self.0);
        let Some(of_policy) = all.get_mut(policy) else { return };
        of_policy.retain(|(other, _)| jwks.iter().any(|of_jwt| is_same(other, of_jwt)));
        if of_policy.is_empty() {
            all.remove(policy);
        }
    }
}

/// Reports whether two references are to the keys of one issuer for one kind of tokens. Its place in the policy may change.
fn is_same(one: &JwksSource, other: &JwksSource) -> bool {
    (&one.name, &one.issuer, &one.source) == (&other.name, &other.issuer, &other.source)
}

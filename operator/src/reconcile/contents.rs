//! Resolves what a policy refers to: builds the tables of overrides from Secrets and ConfigMaps. A table is built again
//! only when its objects have changed, and never while anything is locked.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use sluice_config::CompiledPolicy;
use sluice_config::policy::{BlobHash, LimitKind};
use sluice_crds::conditions::reasons;
use sluice_crds::overrides::OverrideSources;
use sluice_crds::policy::{ContentKind, ContentRef};

use crate::cluster::references::{Content, ContentKey, Reference, grant};
use crate::distribution::publication::Blob;
use crate::object_key::{ObjectKey, PolicyKey};
use crate::reconcile::context::Context;
use crate::reconcile::facts::Compiled;

/// What a policy refers to, resolved.
pub enum Resolution {
    /// The policy refers to this content, by the hashes that it now has.
    Resolved(Vec<Blob>),
    /// This content has not been read yet.
    Unread(ContentRef),
    /// Content cannot be used.
    Unusable(Vec<Problem>),
}

/// The reason why content cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Reason in the condition ResolvedRefs.
    pub reason: &'static str,
    /// What is wrong and what to do, in whole sentences. It contains nothing of the content.
    pub message: String,
}

/// The tables that were built.
#[derive(Default)]
pub struct Tables(Mutex<BTreeMap<(PolicyKey, usize), Table>>);

/// A table, and what it was built from.
struct Table {
    sources: Vec<(ContentRef, Arc<Content>)>,
    plans: Vec<String>,
    built: Result<Blob, Vec<Problem>>,
}

impl Table {
    fn is_of(&self, sources: &[(ContentRef, Arc<Content>)], plans: &[String]) -> bool {
        let same = |(a, b): (&(ContentRef, Arc<Content>), &(ContentRef, Arc<Content>))| {
            a.0 == b.0 && Arc::ptr_eq(&a.1, &b.1)
        };
        self.plans == plans
            && self.sources.len() == sources.len()
            && self.sources.iter().zip(sources).all(same)
    }
}

impl Tables {
    /// Returns the table of a limit, and builds it if that was not done before.
    async fn build(
        &self,
        policy: &PolicyKey,
        compiled: &CompiledPolicy,
        of_limit: &OverrideSources,
        sources: Vec<(ContentRef, Arc<Content>)>,
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
    fn keep_only(&self, policy: &PolicyKey, limits: &[OverrideSources]) {
        self.lock().retain(|(key, limit), _| key != policy || limits.iter().any(|of| of.limit == *limit));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<(PolicyKey, usize), Table>> {
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
    sources: &[(ContentRef, Arc<Content>)],
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

/// Watches what a policy refers to, and nothing else for this policy.
pub fn watch(context: &Context, key: &PolicyKey, overrides: &[OverrideSources]) {
    let sources = overrides.iter().flat_map(|of_limit| &of_limit.sources);
    let wanted: BTreeSet<_> = sources.map(|source| content_key(key, source)).collect();
    context.references.want(key, wanted);
    context.tables.keep_only(key, overrides);
}

/// Waits until what a policy refers to has been read.
pub async fn read(context: &Context, key: &PolicyKey) {
    context.references.read(key).await;
}

/// Resolves what a policy refers to, and sets the hashes in the compiled policy.
pub async fn resolve(context: &Context, key: &PolicyKey, compiled: &mut Compiled) -> Resolution {
    let (mut blobs, mut problems) = (Vec::<Blob>::new(), Vec::new());
    for of_limit in &compiled.overrides {
        let mut found = Vec::new();
        for source in &of_limit.sources {
            match context.references.get(&content_key(key, source)) {
                Reference::Pending => return Resolution::Unread(source.clone()),
                Reference::Found(content) => found.push((source.clone(), content)),
                unusable => problems.push((source.clone(), unusable)),
            }
        }
        if found.len() < of_limit.sources.len() {
            continue;
        }
        match context.tables.build(key, &compiled.policy, of_limit, found).await {
            Ok(blob) => {
                of_limit.set(&mut compiled.policy, blob.hash.clone());
                blobs.push(blob);
            }
            Err(invalid) => return Resolution::Unusable(invalid),
        }
    }
    if problems.is_empty() {
        return Resolution::Resolved(blobs);
    }
    Resolution::Unusable(describe(context, key, &problems))
}

/// Describes objects that cannot be read. Those without a right to read them come first, in one command for each kind.
fn describe(context: &Context, key: &PolicyKey, unusable: &[(ContentRef, Reference)]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for kind in [ContentKind::ConfigMap, ContentKind::Secret] {
        let denied = unusable
            .iter()
            .filter(|(source, reference)| source.kind() == kind && *reference == Reference::NotPermitted);
        let names: BTreeSet<_> = denied.map(|(source, _)| source.field().name.as_str()).collect();
        if names.is_empty() {
            continue;
        }
        let objects = names.iter().copied().collect::<Vec<_>>().join(", ");
        let role = format!("sluice-{}-{}", key.name, kind.resource());
        let grant = grant(&key.namespace, &role, kind, names, &context.operator_namespace);
        let message = format!(
            "The operator may not read the {kind} {objects}. Whoever may grant that in this namespace runs: {grant}."
        );
        problems.push(Problem { reason: reasons::REF_NOT_PERMITTED, message });
    }
    for (source, reference) in unusable {
        let (kind, name) = (source.kind(), &source.field().name);
        let problem = |reason, message| Problem { reason, message };
        problems.push(match reference {
            Reference::NotFound => problem(
                reasons::REF_NOT_FOUND,
                format!("The {kind} {name} does not exist in namespace {}. Create it.", key.namespace),
            ),
            Reference::TooMany => problem(
                reasons::INVALID_CONTENT,
                format!("The {kind} {name} is not read, because the policies of the namespace refer to too many objects: use fewer and larger ones."),
            ),
            Reference::Unreadable(error) => problem(
                reasons::WAITING,
                format!("The {kind} {name} could not be read, which is tried again: {error}."),
            ),
            Reference::NotPermitted | Reference::Pending | Reference::Found(_) => continue,
        });
    }
    problems
}

fn content_key(key: &PolicyKey, source: &ContentRef) -> ContentKey {
    ContentKey { kind: source.kind(), object: ObjectKey::new(&key.namespace, &source.field().name) }
}

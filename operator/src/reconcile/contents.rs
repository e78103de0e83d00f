//! Resolves what a policy refers to: Secrets and ConfigMaps with overrides. Reads what is watched.

use std::collections::BTreeSet;

use sluice_crds::conditions::reasons;
use sluice_crds::overrides::OverrideSources;
use sluice_crds::policy::{ContentKind, ContentRef};

use crate::cluster::references::{ContentKey, Reference, grant};
use crate::distribution::publication::Blob;
use crate::object_key::{ObjectKey, PolicyKey};
use crate::reconcile::context::Context;
use crate::reconcile::facts::Compiled;
use crate::reconcile::tables::Problem;

/// Result of resolving what a policy refers to.
pub enum Resolution {
    /// The policy refers to this content, by the hashes that it now has.
    Resolved(Vec<Blob>),
    /// This content has not been read yet.
    Unread(ContentRef),
    /// Content cannot be used.
    Unusable(Vec<Problem>),
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

//! Finds what a policy refers to, in the tables in memory: the pods that it selects, by labels or as the pods of workloads and Services,
//! and the Secrets and ConfigMaps with overrides and public keys.

use std::collections::BTreeSet;
use std::sync::Arc;

use sluice_config::CompiledPolicy;
use sluice_config::key::{KeyPart, KeySource};
use sluice_crds::Compiled;
use sluice_crds::conditions::reasons;
use sluice_crds::policy::key::JwksSource;
use sluice_crds::policy::{ContentKind, ContentRef, OverrideSources, PodSelection, TargetKind, TargetRef};

use crate::cluster::references::{ContentKey, Reference, grant};
use crate::cluster::targets::{FoundTarget, Target};
use crate::distribution::publication::Blob;
use crate::names::{ObjectKey, PodSelector, PolicyKey};
use crate::reconcile::contents::Problem;
use crate::reconcile::context::Context;
use crate::reconcile::facts::SelectedPods;

/// Watches what a policy refers to for its pods, and nothing else for this policy.
pub fn watch_targets(context: &Context, key: &PolicyKey, pods: Option<&PodSelection>) {
    let targets = match pods {
        Some(PodSelection::Targets(targets)) => targets.as_slice(),
        Some(PodSelection::Labels(_)) | None => &[],
    };
    // Services are always watched.
    let kinds = targets.iter().map(|target| target.kind).filter(|kind| *kind != TargetKind::Service);
    context.inputs.targets.want(key, kinds.collect());
}

/// Returns the pods that a policy selects, or the first target that has not been read yet.
pub fn select_pods(
    context: &Context,
    key: &PolicyKey,
    pods: &PodSelection,
) -> Result<SelectedPods, TargetRef> {
    let targets = match pods {
        PodSelection::Labels(selector) => return Ok(PodSelector::from(selector.clone()).into()),
        PodSelection::Targets(targets) => targets,
    };
    let mut selected = SelectedPods { targets: targets.clone(), ..PodSelector::NONE.into() };
    let (mut selectors, mut idle) = (Vec::new(), Vec::new());
    for target in targets {
        match find(context, &key.namespace, target) {
            FoundTarget::Pending => return Err(target.clone()),
            FoundTarget::Missing => selected.missing.push(target.clone()),
            FoundTarget::Target(found) => {
                selectors.push(found.pods.clone());
                idle.extend(found.idle.map(|reason| format!("{target} {reason}")));
            }
        }
    }
    selected.selector = selectors.into_iter().collect();
    selected.idle = (idle.len() == targets.len()).then(|| idle.join(", "));
    Ok(selected)
}

fn find(context: &Context, namespace: &str, target: &TargetRef) -> FoundTarget {
    if target.kind != TargetKind::Service {
        return context.inputs.targets.find(namespace, target.kind, &target.name);
    }
    if !context.inputs.services.listed.is_set() {
        return FoundTarget::Pending;
    }
    let services = context.inputs.services.in_namespace(namespace);
    let service = services.iter().find(|service| service.name == target.name);
    service.map_or(FoundTarget::Missing, |service| {
        FoundTarget::Target(Arc::new(Target::service(service.selector.clone())))
    })
}

/// Waits until what a policy refers to for its pods has been read.
pub async fn read_targets(context: &Context, key: &PolicyKey, pods: Option<&PodSelection>) {
    let Some(PodSelection::Targets(targets)) = pods else { return };
    context.inputs.targets.listed(key).await;
    if targets.iter().any(|target| target.kind == TargetKind::Service) {
        context.inputs.services.listed.wait().await;
    }
}

/// Length of the names of objects in a command, and of the option before each.
const MAX_NAMES: usize = 900;
const NAME_OPTION: usize = " --resource-name=".len();

/// Result of resolving what a policy refers to.
pub enum Resolution {
    /// The policy refers to this content, by the hashes that it now has.
    Resolved {
        /// The content.
        blobs: Vec<Blob>,
        /// The reasons why newer content cannot be used, instead of which the policy refers to the last that could.
        unusable: Vec<Problem>,
    },
    /// This content has not been read yet.
    Unread(ContentRef),
    /// Content cannot be used, and never could. The policy is without it.
    Unusable {
        /// The content of other limits; `None` if the policy is of no use without what is missing.
        blobs: Option<Vec<Blob>>,
        /// The reasons.
        problems: Vec<Problem>,
    },
}

/// Watches what a policy refers to, and nothing else for this policy.
pub fn watch_contents(context: &Context, key: &PolicyKey, compiled: Option<&Compiled>) {
    let (overrides, jwks) =
        compiled.map_or((&[][..], &[][..]), |compiled| (&compiled.overrides[..], &compiled.jwks[..]));
    let wanted: BTreeSet<_> = sources(overrides, jwks).map(|source| content_key(key, source)).collect();
    context.inputs.references.want(key, wanted);
    context.memory.tables.keep_only(key, compiled.map(|compiled| (&compiled.policy, overrides)));
    context.memory.key_sets.keep_only(key, jwks);
}

/// Iterates over everything that a policy refers to.
fn sources<'a>(
    overrides: &'a [OverrideSources],
    jwks: &'a [JwksSource],
) -> impl Iterator<Item = &'a ContentRef> + Clone {
    let of_limits = overrides.iter().flat_map(|of_limit| &of_limit.sources);
    of_limits.chain(jwks.iter().map(|of_jwt| &of_jwt.source))
}

/// Waits until what a policy refers to has been read.
pub async fn read_contents(context: &Context, key: &PolicyKey) {
    context.inputs.references.read(key).await;
}

/// Resolves what a policy refers to, and sets the hashes in the compiled policy.
pub async fn resolve(context: &Context, key: &PolicyKey, compiled: &mut Compiled) -> Resolution {
    let (mut blobs, mut problems, mut is_complete) = (Vec::<Blob>::new(), Vec::new(), true);
    let mut unusable = Vec::new();
    for of_limit in &compiled.overrides {
        let mut found = Vec::new();
        for source in &of_limit.sources {
            match context.inputs.references.get(&content_key(key, source)) {
                Reference::Pending => return Resolution::Unread(source.clone()),
                Reference::Found(content) => found.push((source.clone(), content)),
                reference => unusable.push((source.clone(), reference)),
            }
        }
        let built = if found.len() == of_limit.sources.len() {
            context.memory.tables.build(key, &compiled.policy, of_limit, found).await
        } else {
            Err(Vec::new())
        };
        let blob = match built {
            Ok(blob) => Some(blob),
            Err(invalid) => {
                problems.extend(invalid);
                context.memory.tables.last_good(key, &compiled.policy, of_limit.limit)
            }
        };
        match blob {
            Some(blob) => {
                of_limit.set(&mut compiled.policy, blob.hash.clone());
                blobs.push(blob);
            }
            None => is_complete = false,
        }
    }
    let mut without_keys = Vec::new();
    for of_jwt in &compiled.jwks {
        let source = &of_jwt.source;
        let read = match context.inputs.references.get(&content_key(key, source)) {
            Reference::Pending => return Resolution::Unread(source.clone()),
            Reference::Found(content) => context.memory.key_sets.read(key, of_jwt, &content).map_err(Some),
            reference => {
                unusable.push((source.clone(), reference));
                Err(None)
            }
        };
        let jwks = read.or_else(|problem| {
            problems.extend(problem);
            context.memory.key_sets.last_good(key, of_jwt).ok_or(())
        });
        match jwks {
            Ok(jwks) => of_jwt.set(&mut compiled.policy, jwks),
            Err(()) => without_keys.push(of_jwt.name.clone()),
        }
    }
    unusable.dedup();
    let of_objects = describe(context, key, &unusable, &sources(&compiled.overrides, &compiled.jwks));
    let problems = of_objects.into_iter().chain(problems).collect();
    if !without_keys.is_empty() {
        remove_tokens(&mut compiled.policy, &without_keys);
        let blobs = (!compiled.policy.limits.is_empty()).then_some(blobs);
        return Resolution::Unusable { blobs, problems };
    }
    if is_complete {
        Resolution::Resolved { blobs, unusable: problems }
    } else {
        Resolution::Unusable { blobs: Some(blobs), problems }
    }
}

/// Removes these kinds of tokens from a policy, with the limits that need them: without keys all their clients would be one.
fn remove_tokens(policy: &mut CompiledPolicy, names: &[String]) {
    let is_needed =
        |part: &KeyPart| matches!(&part.source, KeySource::JwtClaim { jwt, .. } if names.contains(jwt));
    policy.limits.retain(|limit| !limit.key.iter().any(is_needed));
    policy.jwt.retain(|jwt| !names.contains(&jwt.name));
}

/// Describes objects that cannot be read. Those without a right to read them come first, with the command that grants it
/// for all objects of their kind.
fn describe<'a>(
    context: &Context,
    key: &PolicyKey,
    unusable: &[(ContentRef, Reference)],
    sources: &(impl Iterator<Item = &'a ContentRef> + Clone),
) -> Vec<Problem> {
    let mut problems = Vec::new();
    for kind in [ContentKind::ConfigMap, ContentKind::Secret] {
        let denied = unusable
            .iter()
            .filter(|(source, reference)| source.kind() == kind && *reference == Reference::NotPermitted);
        let denied: BTreeSet<_> = denied.map(|(source, _)| source.field().name.as_str()).collect();
        let Some(first) = denied.first() else { continue };
        let of_kind = sources.clone().filter(|source| source.kind() == kind);
        let all: BTreeSet<_> = of_kind.map(|source| source.field().name.as_str()).collect();
        // A message has room for so many. With more, each object has a Role of its own.
        let names_all = all.iter().map(|name| name.len() + NAME_OPTION).sum::<usize>() <= MAX_NAMES;
        let (role, names, others) = if names_all {
            (format!("sluice-{}-{}", key.name, kind.resource()), all, 0)
        } else {
            (format!("sluice-{}-{first}", key.name), BTreeSet::from([*first]), denied.len() - 1)
        };
        let objects = names.iter().copied().collect::<Vec<_>>().join(", ");
        let grant = grant(&key.namespace, &role, kind, names, &context.home.namespace);
        let others = if others == 0 { String::new() } else { format!(" After that, {others} more.") };
        let message = format!(
            "The operator may not read the {kind} {objects}. Whoever may grant that in this namespace runs: {grant}.{others}"
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
                format!("The {kind} {name} is not read, because the policies of the namespace refer to more than 64 objects or 24 MiB, or those of all namespaces to more than 64 MiB. Use fewer, or ask the administrators of Sluice."),
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

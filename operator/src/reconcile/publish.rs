//! Validates a policy, and publishes it to the sidecars. Publishing the same edit again changes nothing.

use kube::ResourceExt as _;
use kube::api::DynamicObject;
use sluice_crds::ViolationKind;
use sluice_crds::{Compiled, Installation, Violation, compile};

use crate::distribution::publication::{Blob, Publication, PublishedEdit};
use crate::names::PolicyKey;
use crate::reconcile::contents::Problem;
use crate::reconcile::context::Context;
use crate::reconcile::dereference::{Resolution, select_pods};
use crate::reconcile::facts::{Compilation, Outcome};

/// Validates and compiles a policy for an installation.
pub fn validate(object: &DynamicObject, installation: &Installation) -> Compilation {
    let unreadable = |error: serde_json::Error| vec![Violation::new("spec", error.to_string())];
    compile(&serde_json::to_value(object).map_err(unreadable)?, installation)
}

/// Publishes the result of compiling `object` and of resolving what it refers to. Returns `None`, and publishes nothing,
/// if the policy has been edited or deleted meanwhile. Fails if the policy cannot be encoded.
pub fn publish(
    context: &Context,
    key: &PolicyKey,
    object: &DynamicObject,
    compiled: Compilation,
    resolution: Resolution,
) -> serde_json::Result<Option<Outcome>> {
    let uid = object.uid().unwrap_or_default();
    let outcome = context.inputs.policies.publish_if_current(key, object, || {
        let outcome = match (compiled, resolution) {
            (Err(violations), _) => Outcome::Invalid(violations),
            (Ok(_), Resolution::Unread(content)) => Outcome::Unread(content.to_string()),
            (Ok(compiled), Resolution::Resolved { blobs, unusable }) => {
                publish_edit(context, key, &uid, compiled, blobs, unusable)?
            }
            (Ok(compiled), Resolution::Unusable { blobs: Some(blobs), problems }) => {
                publish_fallback(context, key, &uid, compiled, blobs)?;
                Outcome::Unresolved(problems)
            }
            (Ok(_), Resolution::Unusable { blobs: None, problems }) => Outcome::Unresolved(problems),
        };
        match &outcome {
            Outcome::Published { .. } => {}
            Outcome::Unread(_) => context.outputs.hub.keep_published(&uid, key),
            Outcome::Unresolved(_) | Outcome::Invalid(_) => {
                if is_not_granted(&outcome) {
                    // What others ask about the domain must not be denied by a policy that may not name it any more.
                    context.outputs.hub.take_from_service(&uid, key);
                }
                context.outputs.hub.keep_published(&uid, key);
                follow_targets(context, key, &uid);
            }
        }
        Ok(outcome)
    });
    outcome.transpose()
}

/// Reports whether a policy names a domain that its namespace may not name.
fn is_not_granted(outcome: &Outcome) -> bool {
    let Outcome::Invalid(violations) = outcome else { return false };
    violations.iter().any(|violation| violation.kind == ViolationKind::DomainNotGranted)
}

/// Publishes a valid edit whose references are resolved.
fn publish_edit(
    context: &Context,
    key: &PolicyKey,
    uid: &str,
    Compiled { policy, pods, enforced_by, .. }: Compiled,
    blobs: Vec<Blob>,
    unusable: Vec<Problem>,
) -> serde_json::Result<Outcome> {
    let selected = match select_pods(context, key, &pods) {
        Ok(selected) => selected,
        Err(unread) => return Ok(Outcome::Unread(unread.to_string())),
    };
    let publication = Publication::new(selected.selector.clone(), (pods, enforced_by), &policy, blobs)?;
    let forms = publication.forms.clone();
    let PublishedEdit { at: published_at, is_first, installation } =
        context.outputs.hub.publish(uid, key, publication);
    let hash = forms.under(installation).hash.clone();
    let policy = Box::new(policy);
    Ok(Outcome::Published {
        policy,
        enforced_by,
        hash,
        selected,
        published_at,
        is_first,
        installation,
        unusable,
    })
}

/// Publishes an edit without content that cannot be used, for pods that have no version of the policy. Others keep theirs.
fn publish_fallback(
    context: &Context,
    key: &PolicyKey,
    uid: &str,
    Compiled { policy, pods, enforced_by, .. }: Compiled,
    blobs: Vec<Blob>,
) -> serde_json::Result<()> {
    let Ok(selected) = select_pods(context, key, &pods) else { return Ok(()) };
    if context.outputs.hub.has_whole(uid) {
        return Ok(());
    }
    let publication = Publication::new(selected.selector, (pods, enforced_by), &policy, blobs)?;
    context.outputs.hub.publish(uid, key, Publication { is_fallback: true, ..publication });
    Ok(())
}

/// Sidecars keep the last valid edit, whose targets may have changed.
fn follow_targets(context: &Context, key: &PolicyKey, uid: &str) {
    if let Some(pods) = context.outputs.hub.pods(uid)
        && let Ok(selected) = select_pods(context, key, &pods)
    {
        context.outputs.hub.select(uid, selected.selector);
    }
}

//! Publishes a compiled policy to the sidecars. Publishing the same edit again changes nothing.

use kube::ResourceExt as _;
use kube::api::DynamicObject;
use sluice_crds::Violation;

use crate::distribution::publication::Publication;
use crate::object_key::PolicyKey;
use crate::reconcile::context::Context;
use crate::reconcile::facts::{Compiled, Outcome};
use crate::reconcile::select_pods::select_pods;

/// Publishes the result of compiling `object`. Returns `None`, and publishes nothing, if the policy has been
/// edited or deleted meanwhile.
pub fn publish(
    context: &Context,
    key: &PolicyKey,
    object: &DynamicObject,
    compiled: Result<Compiled, Vec<Violation>>,
) -> Option<Outcome> {
    let uid = object.uid().unwrap_or_default();
    context.policies.publish_if_current(key, object, || match compiled {
        Ok(Compiled { policy, pods, forms }) => match select_pods(context, key, &pods) {
            Ok(selected) => {
                let publication = Publication::new(selected.selector.clone(), pods, &policy, forms.clone());
                let (published_at, installation) = context.hub.publish(&uid, key, publication);
                let hash = forms.under(installation).hash.clone();
                Outcome::Published { policy: Box::new(policy), hash, selected, published_at, installation }
            }
            Err(unread) => {
                context.hub.keep_published(&uid, key);
                Outcome::Unread(unread)
            }
        },
        Err(violations) => {
            context.hub.keep_published(&uid, key);
            // Sidecars keep the last valid edit, whose targets may have changed.
            if let Some(pods) = context.hub.pods(&uid)
                && let Ok(selected) = select_pods(context, key, &pods)
            {
                context.hub.select(&uid, selected.selector);
            }
            Outcome::Invalid(violations)
        }
    })
}

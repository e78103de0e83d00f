//! Writes the status of a policy if it has changed, and tells of it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::DynamicObject;
use sluice_crds::{RateLimitPolicy, RateLimitPolicyStatus};
use tokio::time::Instant;

use crate::conditions::{find, write_status};
use crate::events::{self, Regarding, Reported};
use crate::names::PolicyKey;
use crate::reconcile::context::Context;
use crate::reconcile::pace::is_minor;

/// Writes a status that differs from the previous one, and logs what has changed.
pub async fn write(
    context: &Context,
    key: &PolicyKey,
    object: &DynamicObject,
    previous: Option<&RateLimitPolicyStatus>,
    status: &RateLimitPolicyStatus,
) -> anyhow::Result<()> {
    context.metrics.set_conditions(key, &status.conditions);
    if context.policies.get(key).is_none() {
        // It was deleted meanwhile.
        context.metrics.set_conditions(key, &[]);
    }
    if previous == Some(status) {
        return Ok(());
    }
    if previous.is_some_and(|previous| is_minor(previous, status))
        && let Some(wait) = context.writes.wait(key, Instant::now())
    {
        context.queue.add_after(key.clone(), wait);
        return Ok(());
    }
    // If the policy was changed or deleted meanwhile, the watch will queue it again.
    if let Some(written) = write_status::<RateLimitPolicy>(&context.client, object, status).await? {
        context.writes.written(key, Instant::now());
        context.policies.wrote(written);
        let before = previous.map(|previous| previous.conditions.as_slice()).unwrap_or_default();
        log_changes(key, before, &status.conditions);
        let uid = object.metadata.uid.as_deref();
        let policy =
            events::object("sluice.dev/v1alpha1", "RateLimitPolicy", Some(&key.namespace), &key.name, uid);
        for event in events::events(before, &status.conditions) {
            context.events.report(Reported { regarding: Regarding::Object(policy.clone()), event });
        }
    }
    Ok(())
}

/// Logs every condition whose status or reason has changed.
fn log_changes(key: &PolicyKey, before: &[Condition], after: &[Condition]) {
    for Condition { type_, status, reason, message, .. } in after {
        if !find(before, type_).is_some_and(|before| before.status == *status && before.reason == *reason) {
            tracing::info!(policy = %key, "{type_} is {status}, {reason}: {message}");
        }
    }
}

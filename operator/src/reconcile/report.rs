//! Writes the status of a policy by server-side apply, if it has changed. The write names the resource
//! version from which the status was computed, so it never overwrites the status of a newer edit. Numbers of pods and the
//! texts of messages change with every pod of a rollout, so they are written less often than conditions.

use anyhow::Context as _;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{DynamicObject, Patch, PatchParams};
use serde_json::json;
use sluice_crds::{RateLimitPolicy, RateLimitPolicyStatus};
use tokio::time::Instant;

use crate::cluster::watch::api;
use crate::events::{self, Regarding, Reported};
use crate::names::PolicyKey;
use crate::reconcile::context::Context;
use crate::reconcile::pace::is_minor;

/// Returns the status that an object has.
#[must_use]
pub fn previous(object: &DynamicObject) -> Option<RateLimitPolicyStatus> {
    serde_json::from_value(object.data.get("status")?.clone()).ok()
}

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
    let patch = json!({
        "apiVersion": "sluice.dev/v1alpha1",
        "kind": "RateLimitPolicy",
        "metadata": {
            "name": key.name,
            "namespace": key.namespace,
            "resourceVersion": object.metadata.resource_version,
        },
        "status": status,
    });
    let params = PatchParams::apply("sluice-operator").force();
    let api = api::<RateLimitPolicy>(context.client.clone(), Some(&key.namespace));
    match api.patch_status(&key.name, &params, &Patch::Apply(&patch)).await {
        Ok(written) => {
            context.writes.written(key, Instant::now());
            context.policies.wrote(written);
            log_changes(key, previous, status);
            let before = previous.map(|previous| previous.conditions.as_slice()).unwrap_or_default();
            for event in events::events(before, &status.conditions) {
                context.events.report(Reported { regarding: regarding(key, object), event });
            }
            Ok(())
        }
        // The policy was changed or deleted meanwhile, and the watch will queue it again.
        Err(kube::Error::Api(status)) if status.code == 409 || status.code == 404 => Ok(()),
        Err(error) => Err(error).context("the status could not be written"),
    }
}

fn regarding(key: &PolicyKey, object: &DynamicObject) -> Regarding {
    Regarding::Object(ObjectReference {
        api_version: Some("sluice.dev/v1alpha1".to_owned()),
        kind: Some("RateLimitPolicy".to_owned()),
        name: Some(key.name.clone()),
        namespace: Some(key.namespace.clone()),
        uid: object.metadata.uid.clone(),
        ..ObjectReference::default()
    })
}

/// Logs every condition whose status or reason has changed.
fn log_changes(key: &PolicyKey, previous: Option<&RateLimitPolicyStatus>, status: &RateLimitPolicyStatus) {
    let before = previous.map(|previous| previous.conditions.as_slice()).unwrap_or_default();
    for condition in &status.conditions {
        let same = before.iter().any(|b| {
            b.type_ == condition.type_ && b.status == condition.status && b.reason == condition.reason
        });
        if !same {
            let Condition { type_, status, reason, message, .. } = condition;
            tracing::info!(policy = %key, "{type_} is {status}, {reason}: {message}");
        }
    }
}

//! Passes resets on to the sidecars, writes their status, and deletes those that are over.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, Preconditions};
use serde_json::json;
use sluice_crds::{CounterReset, CounterResetSpec, CounterResetStatus};
use sluice_host::logging::told;
use tokio::sync::Notify;

use super::status::{is_due, is_over, status};
use crate::cluster::own_kinds::api;
use crate::cluster::untyped::Untyped;
use crate::distribution::clients::reset::Reset;
use crate::distribution::hub::Hub;
use crate::object_key::ObjectKey;

/// Maximum number of resets of a namespace that are carried out at a time.
const MAX_ACTIVE: usize = 64;
/// Interval at which active resets are looked at: the pod that was chosen may have left.
const ACTIVE_EVERY: Duration = Duration::from_secs(1);
/// Interval at which all resets are looked at.
const ALL_EVERY: Duration = Duration::from_secs(30);
/// Time in which changes are collected.
const SETTLE: Duration = Duration::from_millis(50);

/// Carries out resets.
pub struct ResetController {
    client: kube::Client,
    hub: Arc<Hub>,
    resets: Untyped<CounterReset>,
    changed: Arc<Notify>,
}

/// A reset that is not over.
struct OpenReset<'a> {
    key: &'a ObjectKey,
    object: &'a DynamicObject,
    spec: CounterResetSpec,
    status: CounterResetStatus,
    created: Timestamp,
}

impl ResetController {
    /// Returns a controller for the resets of the cluster.
    #[must_use]
    pub fn new(client: kube::Client, hub: Arc<Hub>) -> Self {
        Self { client, changed: hub.reset_reports_changed(), hub, resets: Untyped::default() }
    }

    /// Carries out resets for as long as the process lives.
    pub async fn run(&self) {
        let watching = self.resets.watch(self.client.clone(), || self.changed.notify_one());
        tokio::join!(watching, self.carry_out_all());
    }

    async fn carry_out_all(&self) {
        // Before, policies and pods would seem to be missing.
        self.hub.opened().await;
        loop {
            let delay = if self.carry_out().await { ACTIVE_EVERY } else { ALL_EVERY };
            let _ = tokio::time::timeout(delay, self.changed.notified()).await;
            tokio::time::sleep(SETTLE).await;
        }
    }

    /// Passes on the resets that are not over, and writes their status. Reports whether there are some.
    async fn carry_out(&self) -> bool {
        let Some(objects) = self.resets.all() else { return false };
        let now = Timestamp::now();
        let (mut open, mut due) = (Vec::new(), Vec::new());
        for (key, object) in &objects {
            // The API server admits nothing else.
            let Some(spec) = part(object, "spec") else { continue };
            let status: CounterResetStatus = part(object, "status").unwrap_or_default();
            if is_due(&status, now) {
                due.push((key, object));
            } else if !is_over(&status) {
                let created = object.metadata.creation_timestamp.as_ref().map_or(now, |created| created.0);
                open.push(OpenReset { key, object, spec, status, created });
            }
        }
        // The oldest first. Further ones have to wait.
        open.sort_by_key(|reset| (&reset.key.namespace, reset.created, &reset.key.name));
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        open.retain(|reset| {
            let count = counts.entry(&reset.key.namespace).or_default();
            *count += 1;
            *count <= MAX_ACTIVE
        });
        let active = open.iter().map(|reset| {
            let CounterResetSpec { policy, limit, key } = reset.spec.clone();
            let namespace = reset.key.namespace.clone();
            (reset.object.uid().unwrap_or_default(), Reset { namespace, policy, limit, key })
        });
        let progress = self.hub.set_resets(active.collect());
        for reset in &open {
            let Some(progress) = progress.get(&reset.object.uid().unwrap_or_default()) else { continue };
            let generation = reset.object.metadata.generation.unwrap_or_default();
            let new = status(&reset.status, generation, progress, now);
            if new != reset.status
                && let Err(error) = self.write(reset, &new).await
            {
                tracing::warn!("{}", told(error.as_ref()));
            }
        }
        for (key, object) in due {
            if let Err(error) = self.delete(key, object).await {
                tracing::warn!("{}", told(error.as_ref()));
            }
        }
        !open.is_empty()
    }

    async fn write(&self, reset: &OpenReset<'_>, status: &CounterResetStatus) -> anyhow::Result<()> {
        let ObjectKey { namespace, name } = reset.key;
        let patch = json!({
            "apiVersion": "sluice.dev/v1alpha1",
            "kind": "CounterReset",
            "metadata": {
                "name": name,
                "namespace": namespace,
                "resourceVersion": reset.object.metadata.resource_version,
            },
            "status": status,
        });
        let params = PatchParams::apply("sluice-operator").force();
        let api = api::<CounterReset>(self.client.clone(), Some(namespace));
        match api.patch_status(name, &params, &Patch::Apply(&patch)).await {
            Ok(_) => {
                for complete in status.conditions.iter().filter(|_| is_over(status)) {
                    let CounterResetSpec { policy, limit, key } = &reset.spec;
                    tracing::info!(
                        namespace,
                        reset = name,
                        policy,
                        limit,
                        key,
                        "Complete is {}, {}: {}",
                        complete.status,
                        complete.reason,
                        complete.message
                    );
                }
                Ok(())
            }
            // It was changed or deleted meanwhile, and the watch has noticed.
            Err(kube::Error::Api(status)) if status.code == 409 || status.code == 404 => Ok(()),
            Err(error) => {
                Err(error).with_context(|| format!("the status of reset {} could not be written", reset.key))
            }
        }
    }

    async fn delete(&self, key: &ObjectKey, object: &DynamicObject) -> anyhow::Result<()> {
        let params = DeleteParams {
            preconditions: Some(Preconditions { uid: object.uid(), resource_version: None }),
            ..DeleteParams::default()
        };
        let api = api::<CounterReset>(self.client.clone(), Some(&key.namespace));
        match api.delete(&key.name, &params).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 409 || status.code == 404 => Ok(()),
            Err(error) => Err(error).with_context(|| format!("reset {key} could not be deleted")),
        }
    }
}

/// Reads a part of an object.
fn part<T: serde::de::DeserializeOwned>(object: &DynamicObject, name: &str) -> Option<T> {
    serde_json::from_value(object.data.get(name)?.clone()).ok()
}

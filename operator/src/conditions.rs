//! The conditions of policies, stores and resets: how a finding becomes one, and how a status is written. A write names the resource
//! version from which the status was computed, so it never overwrites the status of a newer edit. Numbers of pods and the texts of
//! messages change with every pod of a rollout, so they are written less often than conditions.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::Context as _;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::{Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::time::Instant;

use crate::cluster::watch::{api, key_of};
use crate::locks::lock;
use crate::names::ObjectKey;

/// Maximum number of characters of a message.
const MAX_MESSAGE: usize = 2_000;
/// Minimum time between the last write of a status and one that changes numbers and texts only.
pub const MIN_INTERVAL: Duration = Duration::from_secs(10);

/// The result of one condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// `True`, `False` or `Unknown`.
    pub status: &'static str,
    /// One of [`sluice_crds::conditions::reasons`].
    pub reason: &'static str,
    /// Sentences that say what is wrong and what to do.
    pub message: String,
}

impl Finding {
    /// Returns a finding.
    pub fn new(status: &'static str, reason: &'static str, message: impl Into<String>) -> Self {
        Self { status, reason, message: message.into() }
    }

    /// Returns the condition for a finding about a generation. The transition time stays the same while the condition's status does.
    pub fn condition(
        self,
        kind: &str,
        generation: i64,
        previous: Option<&Condition>,
        now: Timestamp,
    ) -> Condition {
        let message = match self.message.char_indices().nth(MAX_MESSAGE) {
            Some((end, _)) => format!("{}...", &self.message[..end]),
            None => self.message,
        };
        Condition {
            last_transition_time: match previous {
                Some(before) if before.status == self.status => before.last_transition_time.clone(),
                _ => whole_seconds(now),
            },
            message,
            observed_generation: Some(generation),
            reason: self.reason.into(),
            status: self.status.into(),
            type_: kind.into(),
        }
    }
}

/// Returns a time in whole seconds, because the API server stores no fractions.
pub fn whole_seconds(time: Timestamp) -> Time {
    Time(Timestamp::from_second(time.as_second()).unwrap_or(time))
}

/// Returns a condition of a status.
pub fn find<'a>(conditions: impl IntoIterator<Item = &'a Condition>, kind: &str) -> Option<&'a Condition> {
    conditions.into_iter().find(|condition| condition.type_ == kind)
}

/// Returns `1 pod` or `2 pods`.
pub fn plural(n: usize, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

/// Reads a part of an object, such as `spec` or `status`.
pub fn part<T: DeserializeOwned>(object: &DynamicObject, name: &str) -> Option<T> {
    T::deserialize(object.data.get(name)?).ok()
}

/// Writes the status of an object by server-side apply. Returns the object, or `None` if it was changed or deleted meanwhile, which
/// the watch notices.
pub async fn write_status<K: Resource<DynamicType = ()>>(
    client: &Client,
    object: &DynamicObject,
    status: &impl Serialize,
) -> anyhow::Result<Option<DynamicObject>> {
    let (kind, key) = (K::kind(&()), key_of(object));
    let ObjectKey { namespace, name } = &key;
    let version = &object.metadata.resource_version;
    let patch = json!({
        "apiVersion": K::api_version(&()),
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace, "resourceVersion": version},
        "status": status,
    });
    let params = PatchParams::apply("sluice-operator").force();
    match api::<K>(client.clone(), Some(namespace)).patch_status(name, &params, &Patch::Apply(&patch)).await {
        Ok(written) => Ok(Some(written)),
        Err(kube::Error::Api(status)) if status.code == 409 || status.code == 404 => Ok(None),
        Err(error) => {
            Err(error).with_context(|| format!("the status of the {kind} {key} could not be written"))
        }
    }
}

/// The time of the last write of each status.
pub struct Writes {
    /// A leader that has just started finds smaller numbers until all sidecars have connected.
    began: Instant,
    last: Mutex<HashMap<ObjectKey, Instant>>,
}

impl Default for Writes {
    fn default() -> Self {
        Self { began: Instant::now(), last: Mutex::default() }
    }
}

impl Writes {
    /// Returns how long a write that changes numbers and texts only has to wait.
    pub fn wait(&self, key: &ObjectKey, now: Instant) -> Option<Duration> {
        let due = lock(&self.last).get(key).copied().unwrap_or(self.began) + MIN_INTERVAL;
        due.checked_duration_since(now).filter(|wait| !wait.is_zero())
    }

    /// Notes that a status was written.
    pub fn written(&self, key: &ObjectKey, now: Instant) {
        lock(&self.last).insert(key.clone(), now);
    }

    /// Forgets the objects that are not there.
    pub fn retain(&self, is_there: impl Fn(&ObjectKey) -> bool) {
        lock(&self.last).retain(|key, _| is_there(key));
    }

    /// Forgets a deleted object.
    pub fn forget(&self, key: &ObjectKey) {
        lock(&self.last).remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_minor_change_waits_ten_seconds_after_each_write_and_after_the_start() {
        let (writes, key) = (Writes::default(), ObjectKey::new("n", "p"));
        assert_eq!(writes.wait(&key, Instant::now()), Some(MIN_INTERVAL));
        tokio::time::advance(MIN_INTERVAL).await;
        assert_eq!(writes.wait(&key, Instant::now()), None);
        writes.written(&key, Instant::now());
        tokio::time::advance(Duration::from_secs(4)).await;
        assert_eq!(writes.wait(&key, Instant::now()), Some(Duration::from_secs(6)));
        tokio::time::advance(Duration::from_secs(6)).await;
        assert_eq!(writes.wait(&key, Instant::now()), None);
        writes.written(&key, Instant::now());
        writes.forget(&key);
        assert_eq!(writes.wait(&key, Instant::now()), None);
    }
}

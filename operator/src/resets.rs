//! Resets of the counters of single clients. A `CounterReset` goes to the sidecars through the hub: one of them removes the
//! counter, then all forget the client. The operator itself has no access to counters. It writes the status of resets, and deletes those
//! that are over.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, DynamicObject, Preconditions};
use sluice_crds::conditions::{reasons, types};
use sluice_crds::{CounterReset, CounterResetSpec, CounterResetStatus};
use sluice_host::logging::told;
use tokio::sync::Notify;

use crate::cluster::watch::{Untyped, api};
use crate::conditions::{Finding, find, part, plural, write_status};
use crate::distribution::clients::{PodProgress, Reset, ResetProgress};
use crate::distribution::hub::Hub;
use crate::names::ObjectKey;

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
    resets: Untyped,
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
    pub fn new(client: kube::Client, hub: Arc<Hub>) -> Self {
        Self { client, changed: hub.reset_reports.clone(), hub, resets: Untyped::default() }
    }

    /// Carries out resets for as long as the process lives.
    pub async fn run(&self) {
        let watching = self.resets.watch::<CounterReset>(self.client.clone(), || self.changed.notify_one());
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
        let written = write_status::<CounterReset>(&self.client, reset.object, status).await?;
        for complete in status.conditions.iter().filter(|_| written.is_some() && is_over(status)) {
            let (ObjectKey { namespace, name }, CounterResetSpec { policy, limit, key }) =
                (reset.key, &reset.spec);
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

/// Time in which a reset must be complete.
const MAX_DURATION: SignedDuration = SignedDuration::from_mins(10);
/// Time for which a reset that is over is kept.
const KEPT: SignedDuration = SignedDuration::from_mins(10);

/// Reports whether a reset is over: it is complete, or was given up.
pub fn is_over(status: &CounterResetStatus) -> bool {
    complete(status).is_some_and(|complete| complete.status == "True" || complete.reason == reasons::EXPIRED)
}

/// Reports whether a reset that is over is deleted now.
pub fn is_due(status: &CounterResetStatus, now: Timestamp) -> bool {
    let since = complete(status).map(|complete| complete.last_transition_time.0);
    is_over(status) && since.is_some_and(|since| now.duration_since(since) >= KEPT)
}

/// Returns the status of a reset that is not over and is being carried out. `before` is the status that it has.
pub fn status(
    before: &CounterResetStatus,
    generation: i64,
    progress: &ResetProgress,
    now: Timestamp,
) -> CounterResetStatus {
    let mut finding = finding(progress);
    let known = complete(before).filter(|known| known.status == finding.status);
    // It is carried out since the first status.
    let expired = known.is_some_and(|known| now.duration_since(known.last_transition_time.0) >= MAX_DURATION);
    let gives_up = finding.status == "False" && expired;
    if gives_up {
        let message =
            format!("The reset was not complete within ten minutes, and is given up. {}", finding.message);
        finding = Finding { reason: reasons::EXPIRED, message, ..finding };
    }
    let since = known.filter(|_| !gives_up);
    CounterResetStatus { conditions: vec![finding.condition(types::COMPLETE, generation, since, now)] }
}

fn complete(status: &CounterResetStatus) -> Option<&Condition> {
    find(&status.conditions, types::COMPLETE)
}

/// Says how far a reset is.
fn finding(progress: &ResetProgress) -> Finding {
    let waits = |reason, message: &str| Finding::new("False", reason, message);
    let progress = match progress {
        ResetProgress::NoPolicy => {
            let message = "The namespace has no such policy, or it has never been valid. Name another one in a new reset.";
            return waits(reasons::POLICY_NOT_FOUND, message);
        }
        ResetProgress::NoLimit => {
            let message = "The policy has no such limit. Name another one in a new reset.";
            return waits(reasons::LIMIT_NOT_FOUND, message);
        }
        ResetProgress::NoCounters => {
            return waits(reasons::LIMIT_NOT_FOUND, "The limit is adaptive and has no counters.");
        }
        ResetProgress::Pods(progress) => progress,
    };
    let PodProgress { is_counted, pods, not_connected, forgotten, is_removed, failure } = progress;
    if progress.is_complete() {
        let verb = if *pods == 1 { "has" } else { "have" };
        let message =
            format!("The counter is removed, and {} {verb} forgotten the client.", plural(*pods, "pod"));
        return Finding::new("True", reasons::COMPLETE, message);
    }
    if !is_counted {
        return waits(reasons::IN_PROGRESS, "The pods that enforce the policy are being counted.");
    }
    if *pods == 0 {
        return waits(reasons::NOT_CONNECTED, "No pod that enforces the policy runs.");
    }
    let removed = if *is_removed {
        format!("The counter is removed. {forgotten} of {pods} pods have forgotten the client.")
    } else {
        "The counter has not been removed from the store yet.".to_owned()
    };
    if let Some((pod, reason)) = failure {
        let message = format!("{removed} Pod {pod} failed: {reason}. This is tried again.");
        return waits(reasons::POD_FAILED, &message);
    }
    if *not_connected > 0 {
        let message = format!("{removed} Not connected to the operator: {not_connected} of {pods}.");
        return waits(reasons::NOT_CONNECTED, &message);
    }
    waits(reasons::IN_PROGRESS, &removed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + seconds).unwrap()
    }

    fn told(progress: &ResetProgress) -> (String, String, String) {
        let status = status(&CounterResetStatus::default(), 1, progress, at(0));
        let complete = complete(&status).unwrap().clone();
        assert!(complete.message.ends_with('.'), "{}", complete.message);
        (complete.status, complete.reason, complete.message)
    }

    #[test]
    fn the_reason_is_what_a_reset_waits_for() {
        let counted = PodProgress { is_counted: true, pods: 2, ..PodProgress::default() };
        let removed = PodProgress { is_removed: true, forgotten: 1, ..counted.clone() };
        let failure = Some(("web-1".to_owned(), "no answer".to_owned()));
        let pods = |progress: &PodProgress| ResetProgress::Pods(progress.clone());
        for (progress, reason, message) in [
            (ResetProgress::NoPolicy, reasons::POLICY_NOT_FOUND, "no such policy"),
            (ResetProgress::NoLimit, reasons::LIMIT_NOT_FOUND, "no such limit"),
            (ResetProgress::NoCounters, reasons::LIMIT_NOT_FOUND, "adaptive"),
            (pods(&PodProgress::default()), reasons::IN_PROGRESS, "are being counted"),
            (pods(&PodProgress { pods: 0, ..counted.clone() }), reasons::NOT_CONNECTED, "No pod"),
            (pods(&counted), reasons::IN_PROGRESS, "has not been removed from the store yet"),
            (pods(&removed), reasons::IN_PROGRESS, "1 of 2 pods have forgotten"),
            (
                pods(&PodProgress { not_connected: 1, ..removed.clone() }),
                reasons::NOT_CONNECTED,
                "1 of 2 pods have forgotten the client. Not connected to the operator: 1 of 2.",
            ),
            (
                pods(&PodProgress { failure, ..removed.clone() }),
                reasons::POD_FAILED,
                "1 of 2 pods have forgotten the client. Pod web-1 failed: no answer. This is tried again.",
            ),
        ] {
            let told = told(&progress);
            assert_eq!((told.0.as_str(), told.1.as_str()), ("False", reason));
            assert!(told.2.contains(message), "{told:?}");
        }
        let complete = PodProgress { forgotten: 2, ..removed };
        assert_eq!(told(&pods(&complete)).0, "True");
    }

    #[test]
    fn a_reset_is_given_up_after_ten_minutes_and_deleted_ten_minutes_later() {
        let progress = ResetProgress::NoPolicy;
        let waiting = status(&CounterResetStatus::default(), 1, &progress, at(0));
        assert!(!is_over(&waiting) && !is_due(&waiting, at(9_999)));
        assert_eq!(status(&waiting, 1, &progress, at(599)), waiting, "it is not written twice");
        let expired = status(&waiting, 1, &progress, at(600));
        assert_eq!(complete(&expired).unwrap().reason, reasons::EXPIRED);
        assert!(is_over(&expired) && !is_due(&expired, at(1_199)) && is_due(&expired, at(1_200)));
    }
}

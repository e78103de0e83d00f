//! Takes policies from the queue and runs the steps of a reconcile.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use sluice_crds::RateLimitPolicyStatus;
use sluice_host::logging::told;
use tokio::time::Instant;

use crate::cluster::pods::pod::for_shared;
use crate::conditions::part;
use crate::distribution::session::Confirmation;
use crate::events::pods;
use crate::names::PolicyKey;
use crate::queue::Claim;
use crate::reconcile::context::Context;
use crate::reconcile::dereference::{self, Resolution};
use crate::reconcile::facts::{Facts, Observed, Outcome};
use crate::reconcile::observe::{CountedPods, count_replicas, observe};
use crate::reconcile::pace::COUNT_INTERVAL;
use crate::reconcile::publish::publish;
use crate::reconcile::report;
use crate::reconcile::status::ready::unreachable_text;
use crate::reconcile::status::status;

#[cfg(test)]
mod tests;

/// Time for which an edit waits until what it refers to has been read.
const READ_REFERENCES: Duration = Duration::from_secs(5);
/// Delay before a failed reconcile is retried, to which up to [`RETRY_JITTER`] is added.
const RETRY: Duration = Duration::from_secs(5);
const RETRY_JITTER: Duration = Duration::from_secs(2);
/// Time after the start of a leader in which the first status of a policy does not say that its pods are pending: their sidecars are
/// connecting. And the time after which it is computed again.
const START: Duration = Duration::from_secs(3);
const AT_START: Duration = Duration::from_millis(500);

/// Reconciles policies for as long as the process lives, and opens the hub when all policies of the first
/// list have been published.
pub async fn run(context: Arc<Context>) {
    let open_hub = async {
        context.policies.all_published().await;
        context.hub.open();
    };
    tokio::join!(open_hub, reconcile_queued(&context));
}

/// Reconciles every policy as soon as it is queued, so that publishing never waits for another policy's
/// status.
async fn reconcile_queued(context: &Context) {
    let mut running = FuturesUnordered::new();
    loop {
        tokio::select! {
            claim = context.queue.next() => running.push(reconcile_claimed(context, claim)),
            Some(()) = running.next() => {}
        }
    }
}

/// Reconciles a policy and queues it again if that fails.
async fn reconcile_claimed(context: &Context, claim: Claim) {
    let key = claim.key();
    let result = reconcile(context, &claim).await;
    context.metrics.reconciled(result.is_ok());
    if let Err(error) = result {
        tracing::warn!(policy = %key, "reconcile failed and will be retried: {}", told(error.as_ref()));
        let jitter = RETRY_JITTER.mul_f64(rand::random());
        context.queue.add_after(key.clone(), RETRY + jitter);
    }
}

/// Compiles and publishes the policy, then writes its status. The status takes requests to the API server, so
/// it is abandoned when the policy is edited or deleted meanwhile. The next reconcile, which the watch has
/// queued, can then publish the edit.
async fn reconcile(context: &Context, claim: &Claim) -> anyhow::Result<()> {
    let key = claim.key();
    let began = Instant::now();
    let Some(object) = context.policies.get(key) else { return Ok(()) };
    let mut compiled = context.compilations.get(&object, &context.installation);
    let published = context.hub.pods(&object.uid().unwrap_or_default());
    let pods = compiled.as_ref().map_or(published.as_ref(), |compiled| Some(&compiled.pods));
    dereference::watch_targets(context, key, pods);
    // An invalid edit leaves what is known for the next valid one.
    if let Ok(compiled) = &compiled {
        dereference::watch_contents(context, key, Some(compiled));
    }
    let reading = async {
        tokio::join!(dereference::read_targets(context, key, pods), dereference::read_contents(context, key))
    };
    tokio::select! {
        () = context.policies.superseded(key, &object) => return Ok(()),
        _ = tokio::time::timeout(READ_REFERENCES, reading) => {}
    }
    let resolution = match &mut compiled {
        Ok(compiled) => tokio::select! {
            () = context.policies.superseded(key, &object) => return Ok(()),
            resolution = dereference::resolve(context, key, compiled) => resolution,
        },
        Err(_) => Resolution::Resolved { blobs: Vec::new(), unusable: Vec::new() },
    };
    let Some(outcome) = publish(context, key, &object, compiled, resolution)? else { return Ok(()) };
    tokio::select! {
        () = context.policies.superseded(key, &object) => Ok(()),
        () = context.handed_over() => Ok(()),
        result = update_status(context, claim, &object, outcome, began) => result,
    }
}

/// Returns the time since an object was created, by the clock of the API server.
fn age(object: &DynamicObject, now: Timestamp) -> Duration {
    let created = object.metadata.creation_timestamp.as_ref();
    created.and_then(|created| now.duration_since(created.0).try_into().ok()).unwrap_or_default()
}

/// Reports whether something enforces an edit, or that is not known.
fn has_pods(context: &Context, key: &PolicyKey, outcome: &Outcome) -> bool {
    let Outcome::Published { selected, enforced_by, .. } = outcome else { return true };
    let mut is_selected = for_shared(|labels| selected.selector.matches(labels));
    enforced_by.service || context.pods.any(&key.namespace, |pod| is_selected(&pod.labels))
}

/// Reports whether a first status would be replaced at once, because sidecars are connecting to a leader that has just started.
fn is_premature(context: &Context, previous: Option<&RateLimitPolicyStatus>, pods: &CountedPods) -> bool {
    let is_first = previous.is_none_or(|previous| previous.conditions.is_empty());
    let service = pods.service.iter().map(|pod| pod.uid.as_str());
    is_first
        && context.leader_since.elapsed() < START
        && context.hub.awaits_report(pods.selected.injected.pods().chain(service))
}

/// Computes the status from the tables and the API server as they are since the reconcile began, and writes it.
async fn update_status(
    context: &Context,
    claim: &Claim,
    object: &DynamicObject,
    outcome: Outcome,
    began: Instant,
) -> anyhow::Result<()> {
    context.all_listed().await;
    let key = claim.key();
    let uid = object.uid().unwrap_or_default();
    let now = Instant::now();
    let due = now + context.pace.wait(key, outcome.is_new(), outcome.hash(), now);
    if let Outcome::Published { selected, .. } = &outcome {
        while due.duration_since(Instant::now()) > COUNT_INTERVAL {
            tokio::time::sleep(COUNT_INTERVAL).await;
            let _permit = context.count_permits.acquire().await?;
            count_replicas(context, key, &uid, &selected.selector).await?;
        }
    }
    tokio::time::sleep_until(due).await;
    if let Outcome::Published { selected, .. } = &outcome
        && context.hub.awaits_replicas(&uid)
    {
        // Sidecars wait for it, and not for the statuses of other policies.
        let _permit = context.count_permits.acquire().await?;
        count_replicas(context, key, &uid, &selected.selector).await?;
    }
    let permits = if has_pods(context, key, &outcome) { &context.api_permits } else { &context.idle_permits };
    let _permit = permits.acquire().await?;
    claim.observe();
    let previous: Option<RateLimitPolicyStatus> = part(object, "status");
    let facts = match &outcome {
        Outcome::Published { hash, selected, policy, .. } => {
            let pods = count_replicas(context, key, &uid, &selected.selector).await?;
            if is_premature(context, previous.as_ref(), &pods) {
                context.queue.add_after(key.clone(), AT_START);
                return Ok(());
            }
            observe(context, key, (&uid, hash), began, selected, &policy.store, pods).await?
        }
        Outcome::Unread(_) | Outcome::Unresolved(_) | Outcome::Invalid(_) => Facts::default(),
    };
    let mut enforcers = facts.enforcers();
    let confirmed = outcome.hash().filter(|_| enforcers.all(|pod| pod.confirmation == Confirmation::Applied));
    context.pace.computed(key, facts.enforcers().count(), confirmed.cloned(), Instant::now());
    for pod in facts.pods.iter().filter(|pod| !pod.unreachable.is_empty()) {
        if context.hub.tell_unreachable(&pod.pod.uid) {
            context.events.report(pods::unreachable(&pod.pod, &unreachable_text(pod)));
        }
    }
    let of_pods = facts.pods.iter().flat_map(|pod| pods::of_pod(&pod.pod, &pod.facts));
    let of_unlimited = facts.unlimited.iter().filter_map(pods::of_unlimited);
    for reported in of_pods.chain(of_unlimited) {
        context.told.tell_once(reported, |reported| context.pod_events.try_report(reported));
    }
    let now = Timestamp::now();
    let observed = Observed {
        key,
        generation: object.metadata.generation.unwrap_or_default(),
        age: age(object, now),
        kept_by: object
            .metadata
            .deletion_timestamp
            .as_ref()
            .and(object.metadata.finalizers.as_deref())
            .unwrap_or_default(),
        outcome: &outcome,
        facts: &facts,
        service: context.service.as_ref(),
        leader_for: context.leader_since.elapsed(),
        previous: previous.as_ref(),
    };
    let (status, check_again_after) = status(&observed, now);
    if let Some(delay) = check_again_after {
        context.queue.add_after(key.clone(), delay);
    }
    let written = report::write(context, key, object, previous.as_ref(), &status).await;
    // Sidecars still enforce the last edit that was published, whose replicas may have changed. Neither depends on the other:
    // replicas are counted even if the status cannot be written.
    if let (Outcome::Unread(_) | Outcome::Unresolved(_) | Outcome::Invalid(_), Some(selector)) =
        (&outcome, context.hub.selector(&uid))
    {
        count_replicas(context, key, &uid, &selector).await?;
    }
    written
}

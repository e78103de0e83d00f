//! Takes policies from the queue, runs the steps of a reconcile, and writes the status if it has changed.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use sluice_crds::{RateLimitPolicy, RateLimitPolicyStatus};
use sluice_host::logging::told;
use tokio::time::Instant;

use crate::cluster::pods::pod::for_shared;
use crate::conditions::{find, part, write_status};
use crate::distribution::session::Confirmation;
use crate::events::{self, Regarding, ReportedEvent, pods};
use crate::names::PolicyKey;
use crate::queue::Claim;
use crate::reconcile::affected::count_replicas;
use crate::reconcile::context::Context;
use crate::reconcile::dereference::{self, Resolution};
use crate::reconcile::facts::{Facts, Observed, Outcome};
use crate::reconcile::observe::{CountedPods, count, observe};
use crate::reconcile::pace::is_minor;
use crate::reconcile::publish::{publish, validate};
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

#[cfg(test)]
thread_local! {
    /// Number of reconciles in the current test, which runs in a thread of its own.
    static RECONCILES: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Reconciles policies for as long as the process lives, and opens the hub when all policies of the first
/// list have been published.
pub async fn run(context: Arc<Context>) {
    let open_hub = async {
        context.inputs.policies.all_published().await;
        context.outputs.hub.open();
    };
    tokio::join!(open_hub, reconcile_queued(&context), count_replicas(&context));
}

/// Reconciles every policy as soon as it is queued, so that publishing never waits for another policy's
/// status.
async fn reconcile_queued(context: &Context) {
    let mut running = FuturesUnordered::new();
    loop {
        tokio::select! {
            claim = context.outputs.queue.next() => running.push(reconcile_claimed(context, claim)),
            Some(()) = running.next() => {}
        }
    }
}

/// Reconciles a policy and queues it again if that fails.
async fn reconcile_claimed(context: &Context, claim: Claim) {
    let key = claim.key();
    let result = reconcile(context, &claim).await;
    context.outputs.metrics.reconciles.inc();
    if let Err(error) = result {
        context.outputs.metrics.failures.inc();
        tracing::warn!(policy = %key, "reconcile failed and will be retried: {}", told(error.as_ref()));
        let jitter = RETRY_JITTER.mul_f64(rand::random());
        context.outputs.queue.add_after(key.clone(), RETRY + jitter);
    }
}

/// Publishes the policy, unless nothing has changed but what its status observes, then writes the status. That takes requests to the
/// API server, so it is abandoned when the policy is edited or deleted meanwhile. The next reconcile, which the watch has
/// queued, can then publish the edit.
async fn reconcile(context: &Context, claim: &Claim) -> anyhow::Result<()> {
    #[cfg(test)]
    RECONCILES.set(RECONCILES.get() + 1);
    let Context { inputs, memory, .. } = context;
    let (key, began) = (claim.key(), Instant::now());
    let Some(object) = inputs.policies.get(key) else { return Ok(()) };
    let known = memory.outcomes.get(key, &object).filter(|_| claim.is_for_status());
    let step = async {
        let outcome = match known {
            Some(known) => known,
            None => {
                memory.outcomes.unsettle(key);
                let Some(outcome) = publish_edit(context, key, &object).await? else { return Ok(()) };
                let outcome = Arc::new(outcome);
                memory.outcomes.set(key, &object, &outcome);
                outcome
            }
        };
        tokio::select! {
            () = context.handed_over() => Ok(()),
            result = update_status(context, claim, &object, &outcome, began) => result,
        }
    };
    tokio::select! {
        () = inputs.policies.superseded(key, &object) => Ok(()),
        result = step => result,
    }
}

/// Validates an edit, finds what it refers to, and publishes it. Returns `None` if the policy was edited or deleted meanwhile.
async fn publish_edit(
    context: &Context,
    key: &PolicyKey,
    object: &DynamicObject,
) -> anyhow::Result<Option<Outcome>> {
    let Context { outputs, home, memory, .. } = context;
    let uid = object.uid().unwrap_or_default();
    let mut compiled = memory.outcomes.compiled(key, object, || validate(object, &home.installation));
    let published = outputs.hub.pods(&uid);
    let pods = compiled.as_ref().map_or(published.as_ref(), |compiled| Some(&compiled.pods));
    dereference::watch_targets(context, key, pods);
    // An invalid edit leaves what is known for the next valid one.
    if let Ok(compiled) = &compiled {
        dereference::watch_contents(context, key, Some(compiled));
    }
    let reading = async {
        tokio::join!(dereference::read_targets(context, key, pods), dereference::read_contents(context, key))
    };
    let _ = tokio::time::timeout(READ_REFERENCES, reading).await;
    let resolution = match &mut compiled {
        Ok(compiled) => dereference::resolve(context, key, compiled).await,
        Err(_) => Resolution::Resolved { blobs: Vec::new(), unusable: Vec::new() },
    };
    let outcome = publish(context, key, object, compiled, resolution)?;
    if !outputs.hub.is_counted(&uid) {
        outputs.uncounted.add_observed([key.namespace.clone()]);
    }
    Ok(outcome)
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
    enforced_by.service || context.inputs.pods.any(&key.namespace, |pod| is_selected(&pod.labels))
}

/// Reports whether a first status would be replaced at once, because sidecars are connecting to a leader that has just started.
fn is_premature(context: &Context, previous: Option<&RateLimitPolicyStatus>, pods: &CountedPods) -> bool {
    let is_first = previous.is_none_or(|previous| previous.conditions.is_empty());
    let service = pods.service.iter().map(|pod| pod.uid.as_str());
    is_first
        && context.leader_since.elapsed() < START
        && context.outputs.hub.awaits_report(pods.selected.injected.pods().chain(service))
}

/// Computes the status from the tables and the API server as they are since the reconcile began, and writes it.
async fn update_status(
    context: &Context,
    claim: &Claim,
    object: &DynamicObject,
    outcome: &Outcome,
    began: Instant,
) -> anyhow::Result<()> {
    context.inputs.all_listed().await;
    let key = claim.key();
    let uid = object.uid().unwrap_or_default();
    let now = Instant::now();
    tokio::time::sleep(context.memory.pace.wait(key, outcome.is_new(), outcome.hash(), now)).await;
    let permits = if has_pods(context, key, outcome) { &context.api_permits } else { &context.idle_permits };
    let _permit = permits.acquire().await?;
    claim.observe();
    let previous: Option<RateLimitPolicyStatus> = part(object, "status");
    let facts = match outcome {
        Outcome::Published { hash, selected, policy, enforced_by, .. } => {
            let pods = count(context, &key.namespace, &selected.selector, enforced_by.service).await?;
            if is_premature(context, previous.as_ref(), &pods) {
                context.outputs.queue.add_after(key.clone(), AT_START);
                return Ok(());
            }
            observe(context, key, (&uid, hash), began, selected, &policy.store, pods).await?
        }
        Outcome::Unread(_) | Outcome::Unresolved(_) | Outcome::Invalid(_) => Facts::default(),
    };
    let mut enforcers = facts.enforcers();
    let confirmed = outcome.hash().filter(|_| enforcers.all(|pod| pod.confirmation == Confirmation::Applied));
    context.memory.pace.computed(key, facts.enforcers().count(), confirmed.cloned(), Instant::now());
    for pod in facts.pods.iter().filter(|pod| !pod.unreachable.is_empty()) {
        if context.outputs.hub.tell_unreachable(&pod.pod.uid) {
            context.outputs.events.report(pods::unreachable(&pod.pod, &unreachable_text(pod)));
        }
    }
    let of_pods = facts.pods.iter().flat_map(|pod| pods::of_pod(&pod.pod, &pod.facts));
    let of_unlimited = facts.unlimited.iter().filter_map(pods::of_unlimited);
    for reported in of_pods.chain(of_unlimited) {
        context.memory.told.tell_once(reported, |reported| context.outputs.pod_events.report(reported));
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
        outcome,
        facts: &facts,
        service: context.home.service.as_ref(),
        leader_for: context.leader_since.elapsed(),
        previous: previous.as_ref(),
    };
    let (status, check_again_after) = status(&observed, now);
    if let Some(delay) = check_again_after {
        context.outputs.queue.add_after(key.clone(), delay);
    }
    write(context, key, object, previous.as_ref(), &status).await
}

/// Writes a status that differs from the previous one, and logs what has changed.
async fn write(
    context: &Context,
    key: &PolicyKey,
    object: &DynamicObject,
    previous: Option<&RateLimitPolicyStatus>,
    status: &RateLimitPolicyStatus,
) -> anyhow::Result<()> {
    context.outputs.metrics.set_conditions(key, &status.conditions);
    if context.inputs.policies.get(key).is_none() {
        // It was deleted meanwhile.
        context.outputs.metrics.set_conditions(key, &[]);
    }
    if previous == Some(status) {
        return Ok(());
    }
    if previous.is_some_and(|previous| is_minor(previous, status))
        && let Some(wait) = context.memory.writes.wait(key, Instant::now())
    {
        context.outputs.queue.add_after(key.clone(), wait);
        return Ok(());
    }
    // If the policy was changed or deleted meanwhile, the watch will queue it again.
    if let Some(written) = write_status::<RateLimitPolicy>(&context.outputs.client, object, status).await? {
        context.memory.writes.written(key, Instant::now());
        context.inputs.policies.wrote(written);
        let before = previous.map(|previous| previous.conditions.as_slice()).unwrap_or_default();
        log_changes(key, before, &status.conditions);
        let uid = object.metadata.uid.as_deref();
        let policy =
            events::object("sluice.dev/v1alpha1", "RateLimitPolicy", Some(&key.namespace), &key.name, uid);
        for event in events::events(before, &status.conditions) {
            context
                .outputs
                .events
                .report(ReportedEvent { regarding: Regarding::Object(policy.clone()), event });
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

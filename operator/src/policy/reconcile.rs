//! The table of contents of a policy's way. Only the first and the last step need the API server.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use futures::StreamExt as _;
use jiff::Timestamp;
use kube::ResourceExt as _;

use crate::context::{Context, WATCHES};
use crate::policy::dereference::{Facts, dereference, sharers};
use crate::policy::publish::{Outcome, publish};
use crate::policy::queue::PolicyKey;
use crate::policy::report;
use crate::policy::status::{self, Known};

/// How many policies are reconciled at once.
const AT_ONCE: usize = 8;
/// After a failure, about this long until the next try.
const RETRY: Duration = Duration::from_secs(5);
/// Changes that come together are one.
const QUIET: Duration = Duration::from_millis(50);

/// Reconciles whatever the queue says, for as long as the process lives.
pub async fn run(context: Arc<Context>) {
    context.hub.published().await;
    // A status made from half a list would be wrong.
    let _ = context.listed.subscribe().wait_for(|listed| *listed >= WATCHES).await;
    loop {
        let mut keys = context.queue.next().await;
        tokio::time::sleep(QUIET).await;
        if let Ok(more) = tokio::time::timeout(Duration::ZERO, context.queue.next()).await {
            keys.extend(more);
        }
        futures::stream::iter(keys)
            .for_each_concurrent(AT_ONCE, |key| {
                let context = context.clone();
                async move {
                    let result = reconcile(&context, &key).await;
                    context.metrics.reconciled(result.is_ok());
                    if let Err(error) = result {
                        tracing::warn!(policy = %key, "will be tried again: {error:#}");
                        let jitter = Duration::from_millis(u64::from(rand::random::<u16>() % 2000));
                        context.queue.add_after(key, RETRY + jitter);
                    }
                }
            })
            .await;
    }
}

async fn reconcile(context: &Context, key: &PolicyKey) -> anyhow::Result<()> {
    let Some(object) = context.policies.get(key) else { return Ok(()) };
    let outcome = publish(&context.hub, key, &object);
    let uid = object.uid().unwrap_or_default();
    // Of an invalid edit too: what was valid before is in force. That it fails is no reason to leave the status as it is.
    let looked = match context.hub.selector(&uid) {
        Some(selector) => sharers(context, &key.namespace, &selector)
            .await
            .map(|sharers| context.hub.set_sharers(&uid, &selector, sharers)),
        None => Ok(()),
    };
    let facts = match &outcome {
        Outcome::Published { hash, selector, .. } => dereference(context, key, &uid, hash, selector).await?,
        Outcome::Invalid(_) => Facts::default(),
    };
    let previous = report::previous(&object);
    let known = Known {
        key,
        generation: object.metadata.generation.unwrap_or_default(),
        outcome: &outcome,
        facts: &facts,
        leads_for: context.leads_since.elapsed(),
        previous: previous.as_ref(),
    };
    let (status, again) = status::status(&known, Timestamp::now());
    if let Some(wait) = again {
        context.queue.add_after(key.clone(), wait);
    }
    report::write(context, key, &object, previous.as_ref(), &status).await?;
    looked.context("who shares it is not known")
}

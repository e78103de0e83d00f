//! Script calls in flight. One write carries one call of each script, in a cluster for each hash slot; the
//! replies come in the same order. With the values that all workers of a store share.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Pipeline, RedisError, RedisResult, Value};
use tokio::time::{Instant, timeout};

use super::metrics::MetricsRecorder;
use crate::redis::batch::{Batch, BatchGroup};
use crate::redis::connect::Redirect;
use crate::redis::script::{KeyNames, ScriptArguments, Scripts, is_no_script};
use crate::redis::scripts::Script;

/// One script call.
#[derive(Debug)]
pub(crate) struct ScriptCall {
    pub(crate) group: BatchGroup,
    pub(crate) batch: Batch,
    /// Whether the call follows an ASKING command, because the hash slot is moving to this server.
    pub(super) asking: bool,
    /// Number of times that the batch was redirected.
    pub(crate) redirects: u32,
    pub(super) arguments: ScriptArguments,
}

impl ScriptCall {
    pub(super) fn new(group: BatchGroup, batch: Batch) -> Self {
        Self {
            group,
            batch,
            asking: false,
            redirects: 0,
            arguments: ScriptArguments::empty(Script::General, None),
        }
    }
}

/// A write that is complete or has timed out.
pub(super) struct CompletedWrite {
    pub(super) sent: Instant,
    pub(super) calls: Vec<ScriptCall>,
    /// One reply per call, or `None` if they did not arrive in time.
    pub(super) replies: Option<Vec<RedisResult<Value>>>,
}

/// The writes whose replies have not arrived yet.
#[derive(Default)]
pub(super) struct WritesInFlight(VecDeque<Pin<Box<dyn Future<Output = CompletedWrite> + Send>>>);

impl WritesInFlight {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Starts a write. [`Self::next`] drives it and returns its replies.
    pub(super) fn send(
        &mut self,
        connection: &MultiplexedConnection,
        scripts: &Arc<Scripts>,
        calls: Vec<ScriptCall>,
        budget: Duration,
    ) {
        let (mut connection, scripts) = (connection.clone(), scripts.clone());
        self.0.push_back(Box::pin(async move {
            let sent = Instant::now();
            let replies = timeout(budget, send_all(&mut connection, &scripts, &calls)).await.ok();
            CompletedWrite { sent, calls, replies }
        }));
    }

    /// Waits for the next write to complete or to time out. Waits forever if there is no write.
    pub(super) async fn next(&mut self) -> CompletedWrite {
        poll_fn(|context| {
            for at in 0..self.0.len() {
                if let Some(write) = self.0.get_mut(at)
                    && let Poll::Ready(completed) = write.as_mut().poll(context)
                {
                    drop(self.0.remove(at));
                    return Poll::Ready(completed);
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// Sends calls and returns one reply per call. If the connection fails, every reply is its error.
async fn send_all(
    connection: &mut MultiplexedConnection,
    scripts: &Scripts,
    calls: &[ScriptCall],
) -> Vec<RedisResult<Value>> {
    if let [ScriptCall { asking: false, arguments, .. }] = calls {
        return vec![scripts.call(connection, arguments).await];
    }
    let all: Vec<&ScriptCall> = calls.iter().collect();
    let mut replies = write(connection, scripts, &all, false).await;
    let unknown: Vec<usize> = {
        let is_unknown = |reply: &RedisResult<Value>| reply.as_ref().is_err_and(is_no_script);
        (0..calls.len()).filter(|&at| replies.get(at).is_some_and(is_unknown)).collect()
    };
    if !unknown.is_empty() {
        let again: Vec<&ScriptCall> = unknown.iter().filter_map(|&at| calls.get(at)).collect();
        for (at, reply) in unknown.into_iter().zip(write(connection, scripts, &again, true).await) {
            if let Some(replaced) = replies.get_mut(at) {
                *replaced = reply;
            }
        }
    }
    replies
}

/// Writes calls to the connection. With `source`, the first call of each script carries its source, after
/// which the server knows the script.
async fn write(
    connection: &mut MultiplexedConnection,
    scripts: &Scripts,
    calls: &[&ScriptCall],
    source: bool,
) -> Vec<RedisResult<Value>> {
    let mut pipeline = Pipeline::with_capacity(2 * calls.len());
    let mut sent = Vec::new();
    for call in calls {
        if call.asking {
            pipeline.add_command(redis::cmd("ASKING"));
        }
        let script = call.batch.script();
        pipeline.add_command(if source && !sent.contains(&script) {
            sent.push(script);
            Scripts::with_source(&call.arguments)
        } else {
            scripts.by_name(&call.arguments)
        });
    }
    let count = calls.len() + calls.iter().filter(|call| call.asking).count();
    let values = match connection.send_packed_commands(&pipeline, 0, count).await {
        Ok(values) => values,
        Err(error) => return calls.iter().map(|_| Err(error.clone())).collect(),
    };
    let mut values = values.into_iter();
    let mut next = || match values.next() {
        Some(Value::ServerError(error)) => Err(RedisError::from(error)),
        Some(value) => Ok(value),
        None => Ok(Value::Nil),
    };
    calls
        .iter()
        .map(|call| {
            let asking = if call.asking { next() } else { Ok(Value::Nil) };
            let reply = next();
            asking.and(reply)
        })
        .collect()
}

/// Values that all workers of a store share.
#[derive(Clone)]
pub(crate) struct PipelineSettings {
    pub(crate) scripts: Arc<Scripts>,
    pub(crate) names: KeyNames,
    /// A key that calls without an operation name. A cluster's servers do not have it, and managed users may not use it.
    pub(crate) probe_key: Option<Arc<str>>,
    pub(crate) budget: Duration,
    pub(crate) metrics: Arc<MetricsRecorder>,
    /// Handles redirections; `None` outside of a cluster.
    pub(crate) redirects: Option<Weak<dyn RedirectHandler>>,
}

impl PipelineSettings {
    /// Returns the cluster that handles redirections, if there is one.
    pub(super) fn redirect_handler(&self) -> Option<Arc<dyn RedirectHandler>> {
        self.redirects.as_ref().and_then(Weak::upgrade)
    }
}

/// A cluster, as the workers of its servers see it.
pub(crate) trait RedirectHandler: Send + Sync {
    /// Reads the cluster's hash slots again soon, because a server has failed.
    fn refresh_soon(&self);

    /// Sends a call again that the server at `from` redirected, and that had no effect there.
    fn redirect(self: Arc<Self>, redirect: Redirect, from: &str, call: ScriptCall);
}

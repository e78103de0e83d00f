//! Calls on their way: what one write to a server carries, and its replies. A server of a cluster gets one script call
//! for each slot, in one write, answered in order.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, Pipeline, RedisError, RedisResult, ServerErrorKind, Value};
use tokio::time::{Instant, timeout};

use super::batch::Batch;
use super::node::Lane;
use super::script::{CHECK_LUA, Request, Script, command};

/// One script call.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) lane: Lane,
    pub(super) batch: Batch,
    /// Whether the server is to take it though the slot is only on its way there.
    pub(super) asking: bool,
    /// How often it was sent before.
    pub(super) tries: u32,
    pub(super) request: Request,
}

/// What came of one write.
pub(super) struct Done {
    pub(super) sent: Instant,
    pub(super) parts: Vec<Part>,
    /// One reply for each part; none at all if they did not come in time.
    pub(super) replies: Option<Vec<RedisResult<Value>>>,
}

/// The writes that are not answered yet.
#[derive(Default)]
pub(super) struct Calls(VecDeque<Pin<Box<dyn Future<Output = Done> + Send>>>);

impl Calls {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Sends; the answers come by [`Self::next`], which also drives the sending.
    pub(super) fn send(
        &mut self,
        connection: &MultiplexedConnection,
        script: &Arc<Script>,
        parts: Vec<Part>,
        budget: Duration,
    ) {
        let (mut connection, script) = (connection.clone(), script.clone());
        self.0.push_back(Box::pin(async move {
            let sent = Instant::now();
            let replies = timeout(budget, call(&mut connection, &script, &parts)).await.ok();
            Done { sent, parts, replies }
        }));
    }

    /// The next write that is answered, or was not in time. Never, if there is none.
    pub(super) async fn next(&mut self) -> Done {
        poll_fn(|context| {
            for at in 0..self.0.len() {
                if let Some(call) = self.0.get_mut(at)
                    && let Poll::Ready(done) = call.as_mut().poll(context)
                {
                    drop(self.0.remove(at));
                    return Poll::Ready(done);
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// One reply for each part. If the connection fails, that is the reply to each.
async fn call(
    connection: &mut MultiplexedConnection,
    script: &Script,
    parts: &[Part],
) -> Vec<RedisResult<Value>> {
    if let [Part { asking: false, request, .. }] = parts {
        return vec![script.call(connection, request).await];
    }
    let all: Vec<&Part> = parts.iter().collect();
    let mut replies = write(connection, script, &all, false).await;
    // The text goes with the first only: then the server knows it.
    let unknown: Vec<usize> = (0..parts.len()).filter(|&at| is_unknown(replies.get(at))).collect();
    if !unknown.is_empty() {
        let again: Vec<&Part> = unknown.iter().filter_map(|&at| parts.get(at)).collect();
        for (at, reply) in unknown.into_iter().zip(write(connection, script, &again, true).await) {
            if let Some(place) = replies.get_mut(at) {
                *place = reply;
            }
        }
    }
    replies
}

fn is_unknown(reply: Option<&RedisResult<Value>>) -> bool {
    let Some(Err(error)) = reply else { return false };
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

async fn write(
    connection: &mut MultiplexedConnection,
    script: &Script,
    parts: &[&Part],
    text: bool,
) -> Vec<RedisResult<Value>> {
    let mut pipeline = Pipeline::with_capacity(2 * parts.len());
    for (at, part) in parts.iter().enumerate() {
        if part.asking {
            pipeline.add_command(redis::cmd("ASKING"));
        }
        pipeline.add_command(if text && at == 0 {
            command("EVAL", CHECK_LUA, &part.request)
        } else {
            command("EVALSHA", &script.hash, &part.request)
        });
    }
    let count = parts.len() + parts.iter().filter(|part| part.asking).count();
    let values = match connection.send_packed_commands(&pipeline, 0, count).await {
        Ok(values) => values,
        Err(error) => return parts.iter().map(|_| Err(error.clone())).collect(),
    };
    let mut values = values.into_iter();
    let mut next = || match values.next() {
        Some(Value::ServerError(error)) => Err(RedisError::from(error)),
        Some(value) => Ok(value),
        None => Ok(Value::Nil),
    };
    parts
        .iter()
        .map(|part| {
            let allowed = if part.asking { next() } else { Ok(Value::Nil) };
            let reply = next();
            allowed.and(reply)
        })
        .collect()
}

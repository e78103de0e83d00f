//! The event stream of one session. Each update is the difference from what the session has been sent before,
//! so at most one update is pending, however slow the reader. Changes that come together are merged. Sessions do not wait for each other.
//!
//! - `update`: computes the events of an update.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use crate::distribution::hub::Hub;
use crate::distribution::session::Wakeup;
use crate::distribution::stream::update::Sent;
use crate::metrics::Metrics;

mod update;

#[cfg(test)]
mod tests;

#[cfg(test)]
mod ending_tests;

/// Longest silence before a comment. A sidecar takes a session for dead after twice this time: an operator that hangs. TCP keepalive
/// reveals one that is gone before that.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
/// Time after which a reader that accepts no data is considered gone.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// Time that a reader has to take the end of a session.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Sends the changes that affect a pod until the reader or the pod is gone, the hub closes the session, or the token expires at
/// `ends`. `last_applied` is the ID of the last event that the sidecar applied in a session before this one.
pub async fn send_changes(
    hub: &Hub,
    metrics: &Metrics,
    pod_uid: &str,
    last_applied: Option<String>,
    ends: Option<Instant>,
    mut closed: mpsc::Receiver<()>,
    writer: &mut (impl AsyncWrite + Unpin),
) {
    let Some(changes) = hub.wakeup(pod_uid) else { return };
    let expired = async {
        match ends {
            Some(at) => tokio::time::sleep_until(at).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        _ = send_until_gone(hub, metrics, pod_uid, last_applied, changes, writer) => {}
        () = expired => {}
        _ = closed.recv() => {}
    }
}

/// The reader or the pod is gone.
struct ReaderGone;

async fn send_until_gone(
    hub: &Hub,
    metrics: &Metrics,
    pod_uid: &str,
    last_applied: Option<String>,
    changes: Arc<Wakeup>,
    writer: &mut (impl AsyncWrite + Unpin),
) -> Result<(), ReaderGone> {
    let mut sent = Sent::new(last_applied);
    let mut is_first = true;
    let mut last_byte = Instant::now();
    loop {
        let policies_changed = changes.take_policies() || std::mem::take(&mut is_first);
        for event in sent.update(hub, pod_uid, policies_changed).ok_or(ReaderGone)? {
            metrics.events.inc();
            send(writer, &event).await?;
            last_byte = Instant::now();
        }
        loop {
            // Some changes send nothing here, so they must not put off the comment.
            let due = comment_due(hub, last_byte);
            let next = changes.next(sent.held_until);
            if Instant::now() < due && tokio::time::timeout_at(due, next).await.is_ok() {
                break;
            }
            send(writer, b": keep-alive\n\n").await?;
            last_byte = Instant::now();
        }
        changes.settle(comment_due(hub, last_byte)).await;
    }
}

/// Returns when the comment after a byte is due: at a whole second of the hub, so that one wake of a thread serves many sessions.
fn comment_due(hub: &Hub, last_byte: Instant) -> Instant {
    let latest = (last_byte + KEEP_ALIVE).saturating_duration_since(hub.began);
    hub.began + Duration::from_secs(latest.as_secs())
}

/// Closes the connection of a session, with the reason for which a report was refused, if one was. Nobody waits for a reader that takes
/// nothing.
pub(super) async fn close(writer: &mut (impl AsyncWrite + Unpin), refused: Option<&str>) {
    let closing = async {
        if let Some(reason) = refused {
            let _ = send(writer, &update::refused(reason)).await;
        }
        let _ = writer.shutdown().await;
    };
    let _ = timeout(CLOSE_TIMEOUT, closing).await;
}

/// Sends bytes to a reader that takes them in time.
async fn send(writer: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> Result<(), ReaderGone> {
    let sending = async {
        writer.write_all(bytes).await?;
        writer.flush().await
    };
    timeout(READ_TIMEOUT, sending).await.map_err(|_| ReaderGone)?.map_err(|_| ReaderGone)
}

/// Changes that follow each other within this time are sent together.
const QUIET: Duration = Duration::from_millis(100);
/// Longest time that a change waits for others.
const MAX_DELAY: Duration = Duration::from_secs(10);

impl Wakeup {
    /// Waits for a change, or until policies are no longer held back.
    async fn next(&self, held_until: Option<Instant>) {
        match held_until {
            Some(until) => {
                let _ = tokio::time::timeout_at(until, self.notify.notified()).await;
            }
            None => self.notify.notified().await,
        }
    }

    /// Waits until nothing has changed for [`QUIET`], but not longer than [`MAX_DELAY`], and not after `latest`.
    async fn settle(&self, latest: Instant) {
        let latest = latest.min(Instant::now() + MAX_DELAY);
        while Instant::now() < latest {
            let quiet = (Instant::now() + QUIET).min(latest);
            if tokio::time::timeout_at(quiet, self.notify.notified()).await.is_err() {
                return;
            }
        }
    }
}

/// Number of portions, unless they would be smaller than [`MIN_PORTION`].
const PORTIONS: usize = 12;
/// Smallest number of sessions in a portion.
const MIN_PORTION: usize = 1_000;
/// Interval between two portions.
const PORTION_EVERY: Duration = Duration::from_secs(1);

/// Ends all sessions.
pub async fn end_in_portions(hub: &Hub) {
    let portion = (hub.session_count() / PORTIONS + 1).max(MIN_PORTION);
    let mut portions = interval(PORTION_EVERY);
    portions.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        portions.tick().await;
        hub.end_sessions(portion);
        if hub.session_count() == 0 {
            return;
        }
    }
}

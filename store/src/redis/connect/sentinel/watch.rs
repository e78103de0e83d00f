//! The watch for a change of the master, while the one in use works.
//!
//! A sentinel tells of a change by a connection that stays. Thousands of processes watch, so each has one, at a random sentinel, and goes
//! to the next one when it has lost it. A sentinel that was cut off tells nothing: all are asked in turn as well.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use futures::StreamExt as _;
use redis::aio::PubSub;
use redis::{Msg, RedisResult};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::{Duration, Instant, sleep, sleep_until, timeout};

use super::Sentinels;
use crate::fault_cause::FaultCause;
use crate::redis::connect::fault::{classify, loggable};
use crate::redis::connect::verification::{Connected, Verification};

/// Mean interval at which one of the sentinels is asked, and the one while another tells.
const INTERVAL: Duration = Duration::from_secs(5);
const INTERVAL_WHEN_TOLD: Duration = Duration::from_secs(15);
/// Longest time until it begins to listen: after an outage all processes do.
const BEGIN: Duration = Duration::from_secs(1);
/// Events of a new master: at the sentinel that leads the failover, and at the others, which the first one tells at once. Its own
/// `+switch-master` comes when all other replicas follow.
const CHANNELS: [&str; 2] = ["+promoted-slave", "+switch-master"];
/// Attempts to find the master that was told of, and the longest pause before the first one, which doubles: all processes hear of it at
/// once.
const ATTEMPTS: u32 = 5;
const PAUSE: Duration = Duration::from_millis(200);
/// Longest time until it tries again to listen, after a sentinel that has no room, and after one that refuses the right.
const LISTEN_AGAIN: Duration = Duration::from_secs(60);
const WITHOUT_RIGHT: Duration = Duration::from_secs(600);
/// Longest time until a sentinel has confirmed that it will tell.
const CONFIRM: Duration = Duration::from_secs(2);

/// A background task that finds a master which replaces the one in use. Dropping it ends the task.
pub(crate) struct MasterWatch {
    task: AbortHandle,
    found: oneshot::Receiver<Box<Connected>>,
}

/// The event that ends a wait.
enum Heard {
    /// There may be another master.
    Event,
    /// The sentinel is gone.
    Lost,
    /// Nothing, for the interval.
    Nothing,
}

impl MasterWatch {
    /// Starts a task that listens to a sentinel, and asks the sentinels in turn, one in an interval. If one of them names another server
    /// than `current`, it asks all. The task ends when it has connected to a master that is to be preferred.
    pub(in crate::redis::connect) fn start(
        sentinels: Arc<Sentinels>,
        current: String,
        verification: Verification,
    ) -> Self {
        let (send, found) = oneshot::channel();
        let task = tokio::spawn(async move {
            let connected = sentinels.watch(&current, &verification).await;
            // The watch may have been dropped.
            let _ = send.send(Box::new(connected));
        });
        Self { task: task.abort_handle(), found }
    }

    /// Waits for the connection to a master that replaces the one in use.
    pub(crate) async fn found(&mut self) -> Box<Connected> {
        match (&mut self.found).await {
            Ok(connected) => connected,
            // The task has ended without a result: the runtime shuts down.
            Err(_) => std::future::pending().await,
        }
    }
}

impl Drop for MasterWatch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Sentinels {
    /// Waits for a master that is to be preferred to the one in use.
    async fn watch(&self, current: &str, verification: &Verification) -> Connected {
        let mut events = None;
        let mut next = within(BEGIN);
        let mut listen_at = next;
        loop {
            let heard = tokio::select! {
                heard = self.event(&mut events) => heard,
                () = sleep_until(next) => Heard::Nothing,
            };
            let is_told = matches!(heard, Heard::Event);
            match heard {
                // Not at once: one that accepts and leaves must not be tried all the time.
                Heard::Lost => {
                    events = None;
                    next = next.min(within(INTERVAL));
                    continue;
                }
                Heard::Event => {}
                Heard::Nothing => {
                    // Who is told nothing finds out whether the sentinel is still there.
                    if let Some(listening) = &mut events
                        && !matches!(timeout(CONFIRM, listening.subscribe(&CHANNELS)).await, Ok(Ok(())))
                    {
                        events = None;
                    }
                    if events.is_none() && listen_at <= Instant::now() {
                        (events, listen_at) = self.listen().await;
                    }
                    let mean = if events.is_some() { INTERVAL_WHEN_TOLD } else { INTERVAL };
                    // At different times, and not at that of the outage after which all began.
                    next = Instant::now() + rand::random_range(mean / 2..=mean * 3 / 2);
                    if self.next_agrees(current).await {
                        continue;
                    }
                }
            }
            for attempt in 0..if is_told { ATTEMPTS } else { 1 } {
                if is_told {
                    sleep((PAUSE * (1 << attempt)).mul_f64(rand::random())).await;
                }
                if let Some(connected) = self.replacement(current, is_told, verification).await {
                    return connected;
                }
            }
            // One that disagrees when it is asked may do so for long.
            if is_told {
                next = next.min(within(INTERVAL));
            }
        }
    }

    /// Begins to listen to the next sentinel. Otherwise returns when to try again. Without the right to, it says so once.
    async fn listen(&self) -> (Option<PubSub>, Instant) {
        let again = within(LISTEN_AGAIN);
        let at = self.next.fetch_add(1, Relaxed) % self.sentinels.len().max(1);
        let Some(sentinel) = self.sentinels.get(at) else { return (None, again) };
        let listening = async {
            // By the resolver that keeps no lookups of a silent name server.
            sentinel.addresses().await?;
            let mut events = sentinel.client.get_async_pubsub().await?;
            events.subscribe(&CHANNELS).await?;
            RedisResult::Ok(events)
        };
        let error = match timeout(CONFIRM, listening).await {
            Ok(Ok(events)) => return (Some(events), Instant::now()),
            Ok(Err(error)) => error,
            Err(_) => return (None, again),
        };
        if classify(&error) != FaultCause::NotPermitted {
            return (None, again);
        }
        if !self.is_deaf.swap(true, Relaxed) {
            tracing::warn!(
                address = sentinel.address,
                error = loggable(&error),
                "without the rights +subscribe, &+promoted-slave and &+switch-master at the sentinels a planned failover is noticed late"
            );
        }
        (None, Instant::now() + WITHOUT_RIGHT)
    }

    /// Waits for an event of this master.
    async fn event(&self, events: &mut Option<PubSub>) -> Heard {
        let Some(events) = events else { return std::future::pending().await };
        let mut messages = events.on_message();
        while let Some(message) = messages.next().await {
            if names_master(&message, &self.name) {
                return Heard::Event;
            }
        }
        Heard::Lost
    }
}

/// Returns an instant at random within a time from now.
fn within(time: Duration) -> Instant {
    Instant::now() + time.mul_f64(rand::random())
}

/// Reports whether an event is about this master. It names it first, or behind ` @ ` if it is about one of its replicas.
fn names_master(message: &Msg, master: &str) -> bool {
    let Ok(text) = message.get_payload::<String>() else { return false };
    text.split_once(" @ ").map_or(&*text, |(_, of)| of).split(' ').next() == Some(master)
}

//! The timeout of an HTTP/1 connection that waits for the head of a request: long before the first byte of
//! the head, because clients keep idle connections to reuse them, and short after it.
//!
//! hyper has a single timer for both, and logs a warning when it fires. So it gets [`HeadTimeout`] as its
//! timer, which never fires: hyper starts it when it waits for a head and drops it when the head is complete,
//! [`crate::inbound::client_stream`] reports the first byte, and [`crate::inbound::http1`] waits for
//! [`HeadTimeout::expired`].

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::rt::{Sleep, Timer};
use tokio::sync::Notify;

/// Default idle timeout of a connection. The client must be the one that closes an idle connection: if the
/// server closes it at the moment when the client reuses it, the request is lost. nginx and the load
/// balancers of AWS keep idle connections for 60 s.
pub(crate) const IDLE_TIMEOUT: Duration = Duration::from_secs(75);

/// Default idle timeout of an HTTP/2 connection. GOAWAY tells the client that it ends, so no request is lost; a
/// gRPC client connects again at once, so a shorter time would save nothing.
pub(crate) const HTTP2_IDLE_TIMEOUT: Duration = Duration::from_secs(300);

/// Time that clients have to send a head.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeadTimeouts {
    /// From the first byte of a head to its end.
    pub(crate) head: Duration,
    /// Until that first byte.
    pub(crate) idle: Duration,
}

/// Set while a head has begun and not ended.
pub(crate) type HeadInProgress = Arc<AtomicBool>;

/// The head timeout of one connection.
#[derive(Debug, Clone)]
pub(crate) struct HeadTimeout {
    timeouts: HeadTimeouts,
    head_in_progress: HeadInProgress,
    expired: Arc<Notify>,
}

impl HeadTimeout {
    pub(crate) fn new(timeouts: HeadTimeouts, head_in_progress: HeadInProgress) -> Self {
        Self { timeouts, head_in_progress, expired: Arc::default() }
    }

    /// Waits until the client has taken too long.
    pub(crate) async fn expired(&self) {
        self.expired.notified().await;
    }
}

impl Timer for HeadTimeout {
    fn sleep(&self, _: Duration) -> Pin<Box<dyn Sleep>> {
        Box::pin(HeadWait { timeout: self.clone(), timer: None })
    }

    fn sleep_until(&self, _: Instant) -> Pin<Box<dyn Sleep>> {
        self.sleep(Duration::ZERO)
    }
}

/// The wait for one head. hyper polls it after every read that did not complete the head. It is never ready.
struct HeadWait {
    timeout: HeadTimeout,
    timer: Option<RunningTimer>,
}

struct RunningTimer {
    /// Whether a head was in progress when the timer was started.
    in_head: bool,
    sleep: Pin<Box<tokio::time::Sleep>>,
}

impl Sleep for HeadWait {}

impl Future for HeadWait {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Self { timeout, timer } = self.get_mut();
        let in_head = timeout.head_in_progress.load(Ordering::Relaxed);
        if timer.as_ref().is_none_or(|timer| in_head && !timer.in_head) {
            let HeadTimeouts { head, idle } = timeout.timeouts;
            let sleep = Box::pin(tokio::time::sleep(if in_head { head } else { idle }));
            *timer = Some(RunningTimer { in_head, sleep });
        }
        if let Some(timer) = timer
            && timer.sleep.as_mut().poll(cx).is_ready()
        {
            timeout.expired.notify_one();
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_head_timeout_starts_with_the_first_byte() {
        let (head, idle) = (Duration::from_secs(10), Duration::from_secs(75));
        let in_head = HeadInProgress::default();
        let timeout = HeadTimeout::new(HeadTimeouts { head, idle }, in_head.clone());
        let mut wait = timeout.sleep(Duration::ZERO);
        let mut expired_after = async |time| {
            assert!((&mut wait).now_or_never().is_none());
            tokio::time::advance(time).await;
            assert!((&mut wait).now_or_never().is_none(), "hyper's timer never fires");
            timeout.expired().now_or_never().is_some()
        };
        assert!(!expired_after(Duration::from_secs(70)).await);
        in_head.store(true, Ordering::Relaxed);
        assert!(
            !expired_after(Duration::from_secs(9)).await,
            "79 s after the last request, 9 s after the first byte"
        );
        assert!(expired_after(Duration::from_secs(2)).await);
        in_head.store(false, Ordering::Relaxed);
        let mut wait = timeout.sleep(Duration::ZERO);
        assert!((&mut wait).now_or_never().is_none());
        tokio::time::advance(idle).await;
        assert!((&mut wait).now_or_never().is_none() && timeout.expired().now_or_never().is_some());
    }
}

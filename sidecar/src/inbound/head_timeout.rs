//! The timeout of an HTTP/1 connection that waits for the head of a request: long before the first byte of
//! the head, because clients keep idle connections to reuse them, and short after it.
//!
//! hyper has a single timer for both, and logs a warning when it fires. So it gets [`HeadTimeout`] as its
//! timer, which never fires: hyper starts it when it waits for a head and drops it when the head is complete,
//! [`crate::inbound::client_stream`] reports the first byte, and `process::serve::http1` waits for
//! [`HeadTimeout::expired`].
//!
//! Every request begins and ends such a wait, so a wait only notes its time. A connection has one timer for all of them,
//! which looks at that time when it fires. Only a head that takes more than one read has a timer of its own.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use hyper::rt;
use tokio::time::{Instant, Sleep, sleep};

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
    wait: Arc<Wait>,
}

/// The present wait for a head.
#[derive(Debug)]
struct Wait {
    /// Start of the connection.
    start: Instant,
    /// Time since then at which the wait for a first byte began, in microseconds and one more; 0 without such a wait.
    idle_since: AtomicU64,
    /// Whether a head has taken too long.
    is_over: AtomicBool,
}

impl Wait {
    fn begin_idle(&self) {
        let since = u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.idle_since.store(since.saturating_add(1), Ordering::Relaxed);
    }

    fn end_idle(&self) {
        self.idle_since.store(0, Ordering::Relaxed);
    }

    /// Returns the time at which the wait for a first byte began.
    fn idle_since(&self) -> Option<Instant> {
        let since = self.idle_since.load(Ordering::Relaxed).checked_sub(1)?;
        Some(self.start + Duration::from_micros(since))
    }
}

impl HeadTimeout {
    pub(crate) fn new(timeouts: HeadTimeouts, head_in_progress: HeadInProgress) -> Self {
        let wait =
            Wait { start: Instant::now(), idle_since: AtomicU64::new(0), is_over: AtomicBool::new(false) };
        Self { timeouts, head_in_progress, wait: Arc::new(wait) }
    }

    /// Waits until the client has taken too long. Poll it after the connection, in the same task.
    pub(crate) fn expired(&self) -> Expired {
        let idle = self.timeouts.idle;
        Expired { idle, wait: self.wait.clone(), timer: Box::pin(sleep(idle)), waker: None }
    }
}

impl rt::Timer for HeadTimeout {
    fn sleep(&self, _: Duration) -> Pin<Box<dyn rt::Sleep>> {
        Box::pin(HeadWait { timeout: self.clone(), is_idle: false, timer: None })
    }

    fn sleep_until(&self, _: std::time::Instant) -> Pin<Box<dyn rt::Sleep>> {
        self.sleep(Duration::ZERO)
    }

    /// Returns any time, because none that is computed from it matters.
    fn now(&self) -> std::time::Instant {
        self.wait.start.into_std()
    }
}

/// The end of a client's time.
#[derive(Debug)]
pub(crate) struct Expired {
    idle: Duration,
    wait: Arc<Wait>,
    timer: Pin<Box<Sleep>>,
    /// The waker that the timer has.
    waker: Option<Waker>,
}

impl Future for Expired {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Self { idle, wait, timer, waker } = self.get_mut();
        if wait.is_over.load(Ordering::Relaxed) {
            return Poll::Ready(());
        }
        if !timer.is_elapsed() && waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            return Poll::Pending;
        }
        *waker = Some(cx.waker().clone());
        loop {
            ready!(timer.as_mut().poll(cx));
            let now = Instant::now();
            let end = wait.idle_since().unwrap_or(now) + *idle;
            if end <= now {
                return Poll::Ready(());
            }
            timer.as_mut().reset(end);
        }
    }
}

/// The wait for one head. hyper polls it after every read that did not complete the head. It is never ready.
struct HeadWait {
    timeout: HeadTimeout,
    /// Whether it has noted that the client is idle.
    is_idle: bool,
    /// Timer of a head that is in progress.
    timer: Option<Pin<Box<Sleep>>>,
}

impl rt::Sleep for HeadWait {}

impl Future for HeadWait {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Self { timeout, is_idle, timer } = self.get_mut();
        if timeout.head_in_progress.load(Ordering::Relaxed) {
            timeout.wait.end_idle();
            let timer = timer.get_or_insert_with(|| Box::pin(sleep(timeout.timeouts.head)));
            if timer.as_mut().poll(cx).is_ready() {
                timeout.wait.is_over.store(true, Ordering::Relaxed);
            }
        } else if !*is_idle {
            *is_idle = true;
            timeout.wait.begin_idle();
        }
        Poll::Pending
    }
}

impl Drop for HeadWait {
    fn drop(&mut self) {
        self.timeout.wait.end_idle();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use hyper::rt::Timer as _;

    use super::*;

    const HEAD: Duration = Duration::from_secs(10);
    const IDLE: Duration = Duration::from_secs(75);

    fn timeout() -> (HeadTimeout, HeadInProgress) {
        let in_head = HeadInProgress::default();
        (HeadTimeout::new(HeadTimeouts { head: HEAD, idle: IDLE }, in_head.clone()), in_head)
    }

    #[tokio::test(start_paused = true)]
    async fn the_head_timeout_starts_with_the_first_byte() {
        let (timeout, in_head) = timeout();
        let (mut wait, mut expired) = (timeout.sleep(Duration::ZERO), timeout.expired());
        let mut expired_after = async |time| {
            assert!((&mut wait).now_or_never().is_none());
            assert!((&mut expired).now_or_never().is_none());
            tokio::time::advance(time).await;
            assert!((&mut wait).now_or_never().is_none(), "hyper's timer never fires");
            (&mut expired).now_or_never().is_some()
        };
        assert!(!expired_after(Duration::from_secs(70)).await);
        in_head.store(true, Ordering::Relaxed);
        assert!(
            !expired_after(Duration::from_secs(9)).await,
            "79 s after the last request, 9 s after the first byte"
        );
        assert!(expired_after(Duration::from_secs(2)).await);
    }

    #[tokio::test(start_paused = true)]
    async fn the_idle_timeout_starts_with_each_wait_for_a_head() {
        let (timeout, _) = timeout();
        let mut expired = timeout.expired();
        for _ in 0..3 {
            let mut wait = timeout.sleep(Duration::ZERO);
            assert!((&mut wait).now_or_never().is_none() && (&mut expired).now_or_never().is_none());
            tokio::time::advance(IDLE - Duration::from_secs(1)).await;
            assert!((&mut expired).now_or_never().is_none());
            drop(wait);
            // A request may take as long as it likes.
            tokio::time::advance(2 * IDLE).await;
            assert!((&mut expired).now_or_never().is_none());
        }
        let mut wait = timeout.sleep(Duration::ZERO);
        assert!((&mut wait).now_or_never().is_none() && (&mut expired).now_or_never().is_none());
        tokio::time::advance(IDLE).await;
        assert!((&mut wait).now_or_never().is_none() && (&mut expired).now_or_never().is_some());
    }
}

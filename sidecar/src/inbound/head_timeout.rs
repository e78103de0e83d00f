//! How long an HTTP/1 connection waits for a head: long while nothing of it has come, for clients keep connections to
//! use them again; not so long from its first byte on.
//!
//! hyper has one timer for both and warns when it ends. It is given this [`Timer`] instead: hyper says when it begins
//! to wait for a head and when it has one, [`crate::inbound::protocol`] says when the first byte has come, and the end is not told
//! to hyper but to whoever serves the connection.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::rt::{Sleep, Timer};
use tokio::sync::Notify;

/// How long a connection may be idle. Whoever closes an idle connection first must be the client: one that reuses it at
/// the moment when it is closed here loses its request. nginx and the load balancers of AWS keep theirs for 60 s.
pub(crate) const IDLE: Duration = Duration::from_secs(75);

/// How long clients may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// For a head, from its first byte on.
    pub(crate) head: Duration,
    /// Until that first byte.
    pub(crate) idle: Duration,
}

/// Whether a head has begun and not ended.
pub(crate) type Begun = Arc<AtomicBool>;

/// One connection's.
#[derive(Debug, Clone)]
pub(crate) struct Patience {
    limits: Limits,
    begun: Begun,
    over: Arc<Notify>,
}

impl Patience {
    pub(crate) fn new(limits: Limits, begun: Begun) -> Self {
        Self { limits, begun, over: Arc::default() }
    }

    /// Waits until the client has taken too long.
    pub(crate) async fn over(&self) {
        self.over.notified().await;
    }
}

impl Timer for Patience {
    fn sleep(&self, _: Duration) -> Pin<Box<dyn Sleep>> {
        Box::pin(Wait { patience: self.clone(), timer: None })
    }

    fn sleep_until(&self, _: Instant) -> Pin<Box<dyn Sleep>> {
        self.sleep(Duration::ZERO)
    }
}

/// A wait for one head. hyper polls it after every read that did not complete the head. Never ready.
struct Wait {
    patience: Patience,
    /// And whether it is that of a head that has begun.
    timer: Option<(bool, Pin<Box<tokio::time::Sleep>>)>,
}

impl Sleep for Wait {}

impl Future for Wait {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Self { patience, timer } = self.get_mut();
        let begun = patience.begun.load(Ordering::Relaxed);
        if timer.as_ref().is_none_or(|(before, _)| begun && !before) {
            let Limits { head, idle } = patience.limits;
            *timer = Some((begun, Box::pin(tokio::time::sleep(if begun { head } else { idle }))));
        }
        if let Some((_, timer)) = timer
            && timer.as_mut().poll(cx).is_ready()
        {
            patience.over.notify_one();
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_head_has_its_own_time_from_its_first_byte_on() {
        let (head, idle) = (Duration::from_secs(10), Duration::from_secs(75));
        let begun = Begun::default();
        let patience = Patience::new(Limits { head, idle }, begun.clone());
        let mut wait = patience.sleep(Duration::ZERO);
        let mut after = async |time| {
            assert!((&mut wait).now_or_never().is_none());
            tokio::time::advance(time).await;
            assert!((&mut wait).now_or_never().is_none(), "hyper is never told");
            patience.over().now_or_never().is_some()
        };
        assert!(!after(Duration::from_secs(70)).await);
        begun.store(true, Ordering::Relaxed);
        assert!(
            !after(Duration::from_secs(9)).await,
            "79 s after the last request, 9 s after the first byte"
        );
        assert!(after(Duration::from_secs(2)).await);
        begun.store(false, Ordering::Relaxed);
        let mut wait = patience.sleep(Duration::ZERO);
        assert!((&mut wait).now_or_never().is_none());
        tokio::time::advance(idle).await;
        assert!((&mut wait).now_or_never().is_none() && patience.over().now_or_never().is_some());
    }
}

//! The end of a sidecar: readiness goes, endpoints spread while it still accepts, then listeners empty their accept
//! queues and close, and what is in flight ends within the grace period.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::watch;
use tokio::time::Instant;

/// Tells everybody that the end has come.
#[derive(Debug)]
pub(crate) struct Signal {
    closing: Arc<AtomicBool>,
    stop: watch::Sender<Option<Instant>>,
}

/// Hears of it.
#[derive(Debug, Clone)]
pub(crate) struct Watch {
    closing: Arc<AtomicBool>,
    stop: watch::Receiver<Option<Instant>>,
}

pub(crate) fn channel() -> (Signal, Watch) {
    let closing = Arc::new(AtomicBool::new(false));
    let (sender, receiver) = watch::channel(None);
    (Signal { closing: closing.clone(), stop: sender }, Watch { closing, stop: receiver })
}

impl Signal {
    /// From now on no connection outlives its current request.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::Relaxed);
    }

    /// No new connections; what is in flight has until `deadline`.
    pub(crate) fn stop(&self, deadline: Instant) {
        self.close();
        self.stop.send_replace(Some(deadline));
    }
}

impl Watch {
    /// Whether connections shall end with their current request.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    /// Waits until no new connections are to be taken; gives the deadline for those that are there. A signal that
    /// was dropped leaves no time.
    pub(crate) async fn stopped(&mut self) -> Instant {
        match self.stop.wait_for(Option::is_some).await {
            Ok(deadline) => deadline.unwrap_or_else(Instant::now),
            Err(_) => Instant::now(),
        }
    }
}

//! The phases of a sidecar's shutdown, as its listeners and connections see them: it first drains (each
//! connection ends with its current request, new ones are still accepted), then it stops (no new connections,
//! and a deadline for the requests in flight).

use tokio::sync::watch;
use tokio::time::Instant;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Serving,
    /// Connections end with their current request.
    Draining,
    /// No new connections. Requests in flight are cut off at this time.
    Stopping(Instant),
}

/// Moves a sidecar to its next phase. Dropping it stops the sidecar immediately.
#[derive(Debug)]
pub struct DrainSignal(watch::Sender<Phase>);

/// Observes the phase of a sidecar.
#[derive(Debug, Clone)]
pub struct DrainWatch(watch::Receiver<Phase>);

/// Creates a signal and a watch that observes it.
pub fn channel() -> (DrainSignal, DrainWatch) {
    let (sender, receiver) = watch::channel(Phase::Serving);
    (DrainSignal(sender), DrainWatch(receiver))
}

impl DrainSignal {
    /// Starts to drain, unless the sidecar is stopping already.
    pub fn drain(&self) {
        self.0.send_if_modified(|phase| {
            let serving = *phase == Phase::Serving;
            if serving {
                *phase = Phase::Draining;
            }
            serving
        });
    }

    /// Stops accepting, and gives requests in flight until `deadline`.
    pub fn stop(&self, deadline: Instant) {
        self.0.send_replace(Phase::Stopping(deadline));
    }
}

impl DrainWatch {
    /// Reports whether connections must end with their current request.
    pub fn is_draining(&self) -> bool {
        *self.0.borrow() != Phase::Serving
    }

    /// Waits until connections must end with their current request.
    pub async fn draining(&mut self) {
        // An error means that the signal was dropped, which ends the sidecar as well.
        let _ = self.0.wait_for(|phase| *phase != Phase::Serving).await;
    }

    /// Waits until no new connections may be accepted. Returns the deadline for requests in flight, which is
    /// now if the signal was dropped.
    pub async fn stopping(&mut self) -> Instant {
        match self.0.wait_for(|phase| matches!(phase, Phase::Stopping(_))).await.as_deref() {
            Ok(Phase::Stopping(deadline)) => *deadline,
            _ => Instant::now(),
        }
    }

    /// Waits until no new connections may be accepted. The future owns the watch.
    pub async fn stopped(mut self) {
        self.stopping().await;
    }

    /// Waits until no new connections may be accepted, and lets the connection read its input once more: a
    /// request that has arrived is served, an idle connection is closed.
    pub async fn stopping_after_yield(&mut self) {
        self.stopping().await;
        tokio::task::yield_now().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_drain_after_a_stop_keeps_the_deadline() {
        let (signal, mut watch) = channel();
        assert!(!watch.is_draining());
        signal.drain();
        watch.draining().await;
        let deadline = Instant::now();
        signal.stop(deadline);
        signal.drain();
        assert_eq!(watch.stopping().await, deadline);
    }
}

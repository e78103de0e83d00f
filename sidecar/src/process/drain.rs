//! The end of a sidecar: readiness goes, endpoints spread while it still accepts, then listeners empty their accept
//! queues and close, and what is in flight ends within the grace period.
//!
//! Its first part can come long before a signal does. Kubernetes ends a native sidecar only after the application,
//! but runs its `preStop` at the start: [`ask`] leaves a file there, [`asked`] finds it, and connections are given
//! up while the application still serves.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// The file in the state directory that asks for a drain.
const FILE: &str = "draining";
/// How often it is looked for.
const LOOK: Duration = Duration::from_millis(250);

/// How far the end has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    /// Connections end with their current request.
    Closing,
    /// No new connections; those there are have until then.
    Stopping(Instant),
}

/// Tells everybody that the end has come.
#[derive(Debug)]
pub(crate) struct Signal(watch::Sender<Phase>);

/// Hears of it.
#[derive(Debug, Clone)]
pub(crate) struct Watch(watch::Receiver<Phase>);

pub(crate) fn channel() -> (Signal, Watch) {
    let (sender, receiver) = watch::channel(Phase::Open);
    (Signal(sender), Watch(receiver))
}

impl Signal {
    /// From now on no connection outlives its current request.
    pub(crate) fn close(&self) {
        self.0.send_if_modified(|phase| {
            let open = *phase == Phase::Open;
            if open {
                *phase = Phase::Closing;
            }
            open
        });
    }

    /// No new connections; what is in flight has until `deadline`.
    pub(crate) fn stop(&self, deadline: Instant) {
        self.0.send_replace(Phase::Stopping(deadline));
    }
}

impl Watch {
    /// Whether connections shall end with their current request.
    pub(crate) fn is_closing(&self) -> bool {
        *self.0.borrow() != Phase::Open
    }

    /// Waits until connections shall end with their current request.
    pub(crate) async fn closing(&mut self) {
        // A signal that was dropped is the end as well.
        let _ = self.0.wait_for(|phase| *phase != Phase::Open).await;
    }

    /// Waits until no new connections are to be taken; gives the deadline for those that are there. A signal that
    /// was dropped leaves no time.
    pub(crate) async fn stopped(&mut self) -> Instant {
        match self.0.wait_for(|phase| matches!(phase, Phase::Stopping(_))).await.as_deref() {
            Ok(Phase::Stopping(deadline)) => *deadline,
            _ => Instant::now(),
        }
    }
}

/// Asks the sidecar with this state directory to drain.
pub(crate) fn ask(state_dir: &Path) -> io::Result<()> {
    std::fs::File::create(state_dir.join(FILE)).map(drop)
}

/// Forgets what an earlier process was asked.
pub(crate) fn forget(state_dir: &Path) {
    let file = state_dir.join(FILE);
    match std::fs::remove_file(&file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(file = %file.display(), %error, "an old request to drain cannot be removed");
        }
        _ => {}
    }
}

/// Waits until somebody asks.
pub(crate) async fn asked(state_dir: Option<PathBuf>) {
    let Some(file) = state_dir.map(|directory| directory.join(FILE)) else {
        return std::future::pending().await;
    };
    while !file.exists() {
        tokio::time::sleep(LOOK).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_drain_that_was_asked_for_is_noticed_and_a_stale_one_is_not() {
        let directory = tempfile::tempdir().unwrap();
        ask(directory.path()).unwrap();
        forget(directory.path());
        forget(directory.path());
        let asked = tokio::spawn(asked(Some(directory.path().to_owned())));
        tokio::task::yield_now().await;
        assert!(!asked.is_finished());
        ask(directory.path()).unwrap();
        asked.await.unwrap();
        assert!(ask(&directory.path().join("nowhere")).is_err());
    }

    #[tokio::test]
    async fn a_close_after_a_stop_takes_nothing_back() {
        let (signal, mut watch) = channel();
        assert!(!watch.is_closing());
        signal.close();
        watch.closing().await;
        let deadline = Instant::now();
        signal.stop(deadline);
        signal.close();
        assert_eq!(watch.stopped().await, deadline);
    }
}

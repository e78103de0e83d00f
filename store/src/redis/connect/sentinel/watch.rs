//! The watch for a change of the master, while the one in use works.

use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::{Duration, sleep};

use super::Sentinels;
use crate::redis::connect::verification::{Connected, Verification};

/// Mean interval at which one of the sentinels is asked.
const INTERVAL: Duration = Duration::from_secs(5);

/// A background task that finds a master which replaces the one in use. Dropping it ends the task.
pub(crate) struct MasterWatch {
    task: AbortHandle,
    found: oneshot::Receiver<Box<Connected>>,
}

impl MasterWatch {
    /// Starts a task that asks the sentinels in turn, one in an interval: thousands of processes do. If one of them names
    /// another server than `current`, it asks all. The task ends when it has connected to a master that is to be preferred.
    pub(in crate::redis::connect) fn start(
        sentinels: Arc<Sentinels>,
        current: String,
        verification: Verification,
    ) -> Self {
        let (send, found) = oneshot::channel();
        let task = tokio::spawn(async move {
            loop {
                // At different times, and not at that of the outage after which all began.
                sleep(rand::random_range(INTERVAL / 2..=INTERVAL * 3 / 2)).await;
                if sentinels.next_agrees(&current).await {
                    continue;
                }
                if let Some(connected) = sentinels.replacement(&current, &verification).await {
                    // The watch may have been dropped.
                    let _ = send.send(Box::new(connected));
                    return;
                }
            }
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

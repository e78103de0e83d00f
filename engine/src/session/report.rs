//! Reports to the operator, on the connection of the session. Only the newest matters.

use sluice_config::message::Report;
use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// Sends the reports of one session. Dropping it stops sending.
#[derive(Debug)]
pub(crate) struct Reporter {
    newest: watch::Sender<Option<Report>>,
    task: AbortHandle,
}

impl Reporter {
    /// Starts a task that sends reports to the operator.
    pub(crate) fn start(operator: impl AsyncWrite + Send + Unpin + 'static) -> Self {
        let (newest, reports) = watch::channel(None);
        let task = tokio::spawn(send_all(operator, reports)).abort_handle();
        Self { newest, task }
    }

    /// Sends a report, unless it equals the one before.
    pub(crate) fn report(&self, report: Report) {
        self.newest.send_if_modified(|newest| {
            let new = newest.as_ref() != Some(&report);
            *newest = Some(report);
            new
        });
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn send_all(mut operator: impl AsyncWrite + Unpin, mut reports: watch::Receiver<Option<Report>>) {
    while reports.changed().await.is_ok() {
        // Strings and maps with string keys always serialize, and JSON contains no line breaks.
        let mut line = serde_json::to_vec(&*reports.borrow_and_update()).unwrap_or_default();
        line.push(b'\n');
        let sending = async {
            operator.write_all(&line).await?;
            operator.flush().await
        };
        if let Err(error) = sending.await {
            // The session ends, and the next one begins with a report.
            tracing::debug!(%error, "cannot send a report to the operator");
            return;
        }
    }
}

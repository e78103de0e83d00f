//! Reports to the operator. Only the newest matters, and it is sent again until it has arrived. Those of a session share a
//! connection: all sidecars of a policy report an edit at once.

use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, StatusCode};
use http_body_util::Full;
use sluice_config::message::{REPORTS_PATH, Report, SESSION_HEADER};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::session::backoff::Backoff;
use crate::session::operator::{KeptConnection, Operator, OperatorError};

/// Sends the reports of one session. Dropping it stops sending.
#[derive(Debug)]
pub(crate) struct Reporter {
    newest: watch::Sender<Option<Report>>,
    task: AbortHandle,
}

/// The reason why a report did not arrive.
#[derive(Debug, thiserror::Error)]
enum ReportError {
    #[error(transparent)]
    Unreachable(#[from] OperatorError),
    #[error("the operator responded with status {0}")]
    Status(StatusCode),
}

impl Reporter {
    /// Starts a task that sends reports to this operator.
    pub(crate) fn start(operator: Operator) -> Self {
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

async fn send_all(operator: Operator, mut reports: watch::Receiver<Option<Report>>) {
    let (mut backoff, mut connection) = (Backoff::default(), KeptConnection::default());
    while reports.changed().await.is_ok() {
        loop {
            let report = reports.borrow_and_update().clone();
            let Some(report) = report else { break };
            match send(&operator, &mut connection, &report).await {
                Ok(()) => {
                    backoff = Backoff::default();
                    break;
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot send a report to the operator");
                    let wait: Duration = backoff.next();
                    tokio::time::sleep(wait).await;
                }
            }
        }
    }
}

async fn send(
    operator: &Operator,
    connection: &mut KeptConnection,
    report: &Report,
) -> Result<(), ReportError> {
    // Strings and maps with string keys always serialize.
    let body = serde_json::to_vec(report).unwrap_or_default();
    let mut request = Request::new(Full::new(Bytes::from(body)));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = http::Uri::from_static(REPORTS_PATH);
    request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    // A session's name came in a header.
    if let Ok(session) = HeaderValue::from_str(&report.session) {
        request.headers_mut().insert(SESSION_HEADER, session);
    }
    let status = operator.send_on(connection, request).await?.status();
    if status.is_success() { Ok(()) } else { Err(ReportError::Status(status)) }
}

//! Reports to the operator: only the newest matters, and it is sent until it has arrived.

use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, StatusCode};
use http_body_util::Full;
use sluice_config::message::{REPORTS_PATH, Report};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::backoff::Backoff;
use super::operator::{Operator, Unreached};

/// Sends reports for one stream; ends with it.
#[derive(Debug)]
pub(crate) struct Reporter {
    newest: watch::Sender<Option<Report>>,
    task: AbortHandle,
}

#[derive(Debug, thiserror::Error)]
enum Unsent {
    #[error(transparent)]
    Unreached(#[from] Unreached),
    #[error("the operator answered {0}")]
    Status(StatusCode),
}

impl Reporter {
    pub(crate) fn start(operator: Operator) -> Self {
        let (newest, reports) = watch::channel(None);
        let task = tokio::spawn(send_all(operator, reports)).abort_handle();
        Self { newest, task }
    }

    /// Sends this one, unless it is the one that was sent last.
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
    let mut backoff = Backoff::default();
    while reports.changed().await.is_ok() {
        loop {
            let report = reports.borrow_and_update().clone();
            let Some(report) = report else { break };
            match send(&operator, &report).await {
                Ok(()) => {
                    backoff = Backoff::default();
                    break;
                }
                Err(error) => {
                    tracing::warn!(%error, "a report did not arrive");
                    let wait: Duration = backoff.next();
                    tokio::time::sleep(wait).await;
                }
            }
        }
    }
}

async fn send(operator: &Operator, report: &Report) -> Result<(), Unsent> {
    // Strings and maps of strings: there is nothing that could fail.
    let body = serde_json::to_vec(report).unwrap_or_default();
    let mut request = Request::new(Full::new(Bytes::from(body)));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = http::Uri::from_static(REPORTS_PATH);
    request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let status = operator.send(request).await?.status();
    if status.is_success() { Ok(()) } else { Err(Unsent::Status(status)) }
}

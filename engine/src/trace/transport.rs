//! HTTP to the collector, from the thread that sends spans.

use std::error::Error;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use prost::Message as _;
use tokio::runtime::{Builder, Runtime};

/// Longest time of a call.
pub(super) const TIMEOUT: Duration = Duration::from_secs(10);
/// Time in which a connection that failed is tried again.
const RETRIES: Duration = Duration::from_secs(5);
/// Time between these attempts.
const RETRY_AFTER: Duration = Duration::from_millis(500);
/// Longest response that is read, in bytes. The collector says in it what it has refused.
const MAX_RESPONSE: usize = 64 * 1024;

/// The result of the last call, which the exporter does not tell.
#[derive(Debug, Default)]
pub(super) struct LastCall(Mutex<(Option<String>, u64)>);

impl LastCall {
    /// Returns the error, and the number of spans that the collector has refused, or more.
    pub(super) fn take(&self) -> (Option<String>, u64) {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn set(&self, error: Option<String>, rejected: u64) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = (error, rejected);
    }

    fn record(&self, result: &Result<Response<Bytes>, HttpError>) {
        match result {
            Err(error) => self.set(Some(with_causes(error.as_ref())), 0),
            Ok(response) if !response.status().is_success() => {
                self.set(Some(format!("the collector answers {}", response.status())), 0);
            }
            Ok(response) => {
                let Ok(body) = ExportTraceServiceResponse::decode(response.body().clone()) else {
                    return self.set(
                        Some("the server does not answer as a collector of OTLP over HTTP".into()),
                        u64::MAX,
                    );
                };
                let partial = body.partial_success.unwrap_or_default();
                let rejected = u64::try_from(partial.rejected_spans).unwrap_or(0);
                let error = format!("the collector refuses spans: {}", partial.error_message);
                self.set((rejected > 0).then_some(error), rejected);
            }
        }
    }
}

/// Returns an error in words, with its causes.
fn with_causes(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += ": ";
        text += &error.to_string();
        cause = error.source();
    }
    text
}

/// A client for one thread that has no runtime. Calls block it.
#[derive(Debug)]
pub(super) struct Transport {
    connected: OnceLock<(Runtime, Client<HttpConnector, Full<Bytes>>)>,
    last_call: Arc<LastCall>,
}

impl Transport {
    pub(super) fn new(last_call: Arc<LastCall>) -> Self {
        Self { connected: OnceLock::new(), last_call }
    }

    fn connected(&self) -> Result<&(Runtime, Client<HttpConnector, Full<Bytes>>), HttpError> {
        if let Some(connected) = self.connected.get() {
            return Ok(connected);
        }
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let client = Client::builder(TokioExecutor::new()).build_http();
        Ok(self.connected.get_or_init(|| (runtime, client)))
    }

    fn send(&self, request: &Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (runtime, client) = self.connected()?;
        runtime.block_on(async {
            let began = Instant::now();
            let call = async {
                let response = loop {
                    match client.request(request.clone().map(Full::new)).await {
                        // The collector may be starting again.
                        Err(error) if error.is_connect() && began.elapsed() < RETRIES => {
                            tokio::time::sleep(RETRY_AFTER).await;
                        }
                        response => break response?,
                    }
                };
                let (head, body) = response.into_parts();
                let body = Limited::new(body, MAX_RESPONSE).collect().await?.to_bytes();
                Ok(Response::from_parts(head, body))
            };
            tokio::time::timeout(TIMEOUT, call)
                .await
                .map_err(|_| format!("no response within {TIMEOUT:?}"))?
        })
    }
}

#[async_trait]
impl HttpClient for Transport {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let result = self.send(&request);
        self.last_call.record(&result);
        result
    }
}

impl Drop for Transport {
    /// Does not wait for a resolver of names that hangs.
    fn drop(&mut self) {
        if let Some((runtime, _)) = self.connected.take() {
            runtime.shutdown_background();
        }
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::collector::trace::v1::ExportTracePartialSuccess;

    use super::*;

    #[test]
    fn the_last_call_tells_why_it_failed_and_what_was_refused() {
        let call = LastCall::default();
        let answer = |status: u16, body: Vec<u8>| {
            Ok(Response::builder().status(status).body(Bytes::from(body)).unwrap())
        };
        let refusal = ExportTraceServiceResponse {
            partial_success: Some(ExportTracePartialSuccess {
                rejected_spans: 3,
                error_message: "no room".into(),
            }),
        };
        call.record(&answer(200, refusal.encode_to_vec()));
        assert_eq!(call.take(), (Some("the collector refuses spans: no room".into()), 3));
        for body in [&b"{}"[..], b"<html>", b"ok"] {
            call.record(&answer(200, body.to_vec()));
            assert_eq!(call.take().1, u64::MAX, "{body:?}");
        }
        for body in [vec![], ExportTraceServiceResponse::default().encode_to_vec()] {
            call.record(&answer(200, body));
            assert_eq!(call.take(), (None, 0));
        }
        call.record(&answer(503, vec![]));
        assert_eq!(call.take(), (Some("the collector answers 503 Service Unavailable".into()), 0));
        call.record(&Transport::new(Arc::default()).send(&Request::new(Bytes::new())));
        assert!(call.take().0.is_some());
    }
}

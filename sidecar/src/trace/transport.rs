//! HTTP to the collector, from the thread that sends spans.

use std::sync::OnceLock;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use opentelemetry_http::{HttpClient, HttpError};
use tokio::runtime::{Builder, Runtime};

/// Longest time of a call.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Longest response that is read, in bytes. The collector says with it what it has refused.
const MAX_RESPONSE: usize = 64 * 1024;

/// A client for one thread that has no runtime. Calls block it.
#[derive(Debug, Default)]
pub(super) struct Transport(OnceLock<(Runtime, Client<HttpConnector, Full<Bytes>>)>);

impl Transport {
    fn connected(&self) -> Result<&(Runtime, Client<HttpConnector, Full<Bytes>>), HttpError> {
        if let Some(connected) = self.0.get() {
            return Ok(connected);
        }
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let client = Client::builder(TokioExecutor::new()).build_http();
        Ok(self.0.get_or_init(|| (runtime, client)))
    }
}

#[async_trait]
impl HttpClient for Transport {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (runtime, client) = self.connected()?;
        runtime.block_on(async {
            let call = async {
                let (head, body) = client.request(request.map(Full::new)).await?.into_parts();
                let body = Limited::new(body, MAX_RESPONSE).collect().await?.to_bytes();
                Ok(Response::from_parts(head, body))
            };
            tokio::time::timeout(TIMEOUT, call)
                .await
                .map_err(|_| format!("no response within {TIMEOUT:?}"))?
        })
    }
}

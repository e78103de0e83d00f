//! Asks a sidecar for a page of its debug port, which listens on the loopback address of its pod.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sluice_config::DEBUG_PORT;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// Longest time for which a sidecar is asked.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Largest answer, in bytes.
const MAX_ANSWER: usize = 64 << 20;

/// Asks the sidecar with this debug port.
pub(super) async fn ask_address<A: DeserializeOwned>(
    address: SocketAddr,
    path: &str,
    question: Option<&impl Serialize>,
) -> Result<A> {
    let connect = async { TcpStream::connect(address).await.context("cannot connect to the debug port") };
    in_time(async { exchange(connect.await?, path, question).await }).await
}

/// Asks the sidecar of a pod, by a forwarded port.
pub(super) async fn ask_pod<A: DeserializeOwned>(
    pods: &Api<Pod>,
    name: &str,
    path: &str,
    question: Option<&impl Serialize>,
) -> Result<A> {
    in_time(async {
        let forwarded = pods.portforward(name, &[DEBUG_PORT]).await;
        let mut forwarded = forwarded.map_err(|error| not_forwarded(name, error))?;
        let stream = forwarded.take_stream(DEBUG_PORT).ok_or_else(|| anyhow!("no port was forwarded"))?;
        let answer = exchange(stream, path, question).await;
        // The error of the port forward tells more than the connection that it ended.
        match (answer, forwarded.take_error(DEBUG_PORT)) {
            (Err(error), Some(reason)) => {
                forwarded.abort();
                Err(reason.await.map_or(error, |reason| anyhow!("{}", reason.trim())))
            }
            (answer, _) => answer,
        }
    })
    .await
}

/// Says why a port of a pod cannot be forwarded.
fn not_forwarded(pod: &str, error: kube::Error) -> anyhow::Error {
    match &error {
        kube::Error::Api(status) if status.code == 404 => anyhow!("there is no pod {pod} in the namespace"),
        kube::Error::Api(status) if status.code == 403 => anyhow!(
            "cannot forward port {DEBUG_PORT} of the pod: this needs the right to create pods/portforward in the namespace: {}",
            status.message
        ),
        kube::Error::Api(status) => {
            anyhow!("cannot forward port {DEBUG_PORT} of the pod: {}", status.message)
        }
        _ => anyhow::Error::new(error).context(format!("cannot forward port {DEBUG_PORT} of the pod")),
    }
}

async fn in_time<A>(asking: impl Future<Output = Result<A>>) -> Result<A> {
    match tokio::time::timeout(TIMEOUT, asking).await {
        Ok(answer) => answer,
        Err(_) => bail!("no answer within {} seconds", TIMEOUT.as_secs()),
    }
}

async fn exchange<A: DeserializeOwned>(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    path: &str,
    question: Option<&impl Serialize>,
) -> Result<A> {
    let unreachable = "the sidecar does not answer";
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.context(unreachable)?;
    let connection = tokio::spawn(connection);
    let method = if question.is_some() { Method::POST } else { Method::GET };
    let body = question.map(serde_json::to_vec).transpose()?.unwrap_or_default();
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", "localhost")
        .header("connection", "close")
        .body(Full::new(Bytes::from(body)))?;
    let response = sender.send_request(request).await.context(unreachable)?;
    let status = response.status();
    let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
    connection.abort();
    let body = body.map_err(|error| anyhow!("the answer is not whole: {error}"))?.to_bytes();
    match status {
        StatusCode::OK => serde_json::from_slice(&body)
            .context("cannot read the answer: this is no debug port, or that of another version of Sluice"),
        StatusCode::BAD_REQUEST => bail!("{}", String::from_utf8_lossy(&body).trim_end()),
        StatusCode::NOT_FOUND => bail!(
            "no page {path}: this is not a debug port of Sluice (sluice run opens one with --debug), or the sidecar is too old: restart its pod"
        ),
        status => bail!("the sidecar answered {status}"),
    }
}

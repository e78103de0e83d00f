//! The control port: `GET /v1/stream` and `POST /v1/reports`, over TLS. A stream needs a token of a pod. A report
//! needs the name of a stream, 128 random bits that only its sidecar was told.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use jiff::Timestamp;
use sluice_config::message::{REPORTS_PATH, Report, STREAM_HEADER, STREAM_PATH, VERSION};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;

use crate::distribution::Hub;
use crate::distribution::identity::{self, Denied};
use crate::distribution::stream::feed;
use crate::metrics::Metrics;

/// Reports are short: hashes and reasons.
const MAX_REPORT: usize = 1 << 20;
/// How many tokens are under review at once; more callers wait. The API server must not suffer from strangers.
const REVIEWS: usize = 16;
/// How many streams one replica serves.
const MAX_STREAMS: usize = 20_000;
/// How long a caller waits for the first list of policies, or for its turn.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Clone)]
struct Control {
    client: kube::Client,
    hub: Arc<Hub>,
    metrics: Arc<Metrics>,
    reviews: Arc<Semaphore>,
}

/// The endpoints of the control port.
pub fn router(client: kube::Client, hub: Arc<Hub>, metrics: Arc<Metrics>) -> Router {
    Router::new()
        .route(STREAM_PATH, get(stream))
        .route(REPORTS_PATH, post(report).layer(DefaultBodyLimit::max(MAX_REPORT)))
        .with_state(Control { client, hub, metrics, reviews: Arc::new(Semaphore::new(REVIEWS)) })
}

async fn stream(State(control): State<Control>, headers: HeaderMap) -> Response {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let Some(token) = bearer.and_then(|value| value.strip_prefix("Bearer ")) else {
        return (StatusCode::UNAUTHORIZED, "a bearer token of a pod's service account is needed\n")
            .into_response();
    };
    let ready = async {
        control.hub.opened().await;
        control.reviews.acquire().await.ok()
    };
    let Ok(Some(permit)) = tokio::time::timeout(PATIENCE, ready).await else {
        return (StatusCode::SERVICE_UNAVAILABLE, "not ready yet, come again\n").into_response();
    };
    if control.hub.streams() >= MAX_STREAMS {
        return (StatusCode::SERVICE_UNAVAILABLE, "too many streams\n").into_response();
    }
    let identity = match identity::review(&control.client, token).await {
        Ok(identity) => identity,
        Err(denied) => {
            control.metrics.stream_denied();
            tracing::debug!("stream denied: {denied}");
            let status = match denied {
                Denied::Token(_) => StatusCode::UNAUTHORIZED,
                Denied::Pod(_) => StatusCode::FORBIDDEN,
                Denied::Api(_) => StatusCode::SERVICE_UNAVAILABLE,
            };
            return (status, format!("{denied}\n")).into_response();
        }
    };
    drop(permit);
    tracing::debug!(namespace = identity.namespace, pod = identity.pod, "stream");
    let last_applied = headers.get("last-event-id").and_then(|value| value.to_str().ok()).map(str::to_owned);
    let name = format!("{:032x}", rand::random::<u128>());
    let left = identity.expires.map(|at| (at - Timestamp::now().as_second()).max(0).unsigned_abs());
    let ends = left.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let pod_uid = identity.pod_uid.clone();
    let closed = control.hub.connect(identity, &name);
    let (sender, receiver) = mpsc::channel(1);
    let (hub, metrics, stream) = (control.hub.clone(), control.metrics.clone(), name.clone());
    tokio::spawn(async move {
        feed(hub.clone(), metrics, pod_uid.clone(), last_applied, ends, closed, sender).await;
        hub.disconnect(&pod_uid, &stream);
    });
    let headers = [
        (header::CONTENT_TYPE.as_str(), "text/event-stream"),
        (header::CACHE_CONTROL.as_str(), "no-store"),
        (STREAM_HEADER, &name),
    ];
    (headers, Body::from_stream(ReceiverStream::new(receiver))).into_response()
}

async fn report(State(control): State<Control>, Json(report): Json<Report>) -> Response {
    if report.version != VERSION {
        let text = format!("reports of version {} are not known here, only {VERSION}\n", report.version);
        return (StatusCode::BAD_REQUEST, text).into_response();
    }
    if control.hub.report(report) {
        StatusCode::NO_CONTENT.into_response()
    } else {
        (StatusCode::GONE, "there is no such stream: connect again\n").into_response()
    }
}

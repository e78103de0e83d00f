//! The ports: of the webhook, of sidecars, and of probes and metrics (`/livez`, `/readyz` and `/metrics`), which is plain HTTP and serves
//! no secrets.
//!
//! A session has no timeout: the sidecar is sent a comment now and then, and a connection that does not take it ends. The hub ends
//! sessions, whose connections are no longer HTTP's.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::get;
use sluice_config::exposition::ExpositionFormat;
use sluice_host::drain::DrainWatch;
use sluice_host::serve::table::{Maxima, PortMetrics, Strangers, Table};
use sluice_host::serve::{ConnectionAge, Http2, Port, Routes, Times, Tls};

use crate::distribution::hub::Hub;
use crate::metrics::Metrics;

/// Most connections of the webhook's port, which a few API servers use, and of the admin port.
const WEBHOOK_CONNECTIONS: usize = 512;
const ADMIN_CONNECTIONS: usize = 256;
/// Connections of the control port: one for each session, one for each fetch of content, and strangers. Nothing but heads is read, and
/// what is sent is there in any case.
const CONTROL: Maxima = Maxima {
    connections: 45_000,
    of_peer: 1_000,
    strangers: Some(Strangers { connections: 5_000, of_address: 250 }),
    bytes: usize::MAX,
};
/// Bytes of reviews that are not answered: several of the largest that the API server sends. And of pages that are not read.
const WEBHOOK_BYTES: usize = 32 << 20;
const ADMIN_BYTES: usize = 32 << 20;
/// Largest head of HTTP/1, in bytes.
const MAX_HEAD: usize = 16 << 10;
/// The API server has a stream for each review.
const HTTP2: Http2 = Http2 { max_head: 32 << 10, streams: 64 };
/// Age at which a connection ends, and the time that its requests then have.
const AGE: ConnectionAge =
    ConnectionAge { max: Some(Duration::from_secs(600)), grace: Some(Duration::from_secs(10)) };
/// No request of the control port outlasts its end, so that no session begins.
const CONTROL_AGE: ConnectionAge = ConnectionAge { max: None, grace: Some(Duration::ZERO) };
/// Times of the webhook's port, for which the API server waits for 5 s, and of the admin port.
const WEBHOOK_TIMES: Times = Times { body: Duration::from_secs(5), ..ADMIN_TIMES };
const ADMIN_TIMES: Times =
    Times { first: Duration::from_secs(10), head: Duration::from_secs(90), body: Duration::from_secs(10) };
/// Times of the control port, whose strangers have 30 s in all.
const CONTROL_TIMES: Times =
    Times { first: Duration::from_secs(30), head: Duration::from_secs(30), ..ADMIN_TIMES };

/// Returns the port of the webhook.
pub(super) fn webhook(
    routes: Router,
    tls: Tls,
    metrics: &PortMetrics,
    drain: DrainWatch,
) -> Port<Routes<Router>> {
    let maxima = Maxima::new(WEBHOOK_CONNECTIONS, WEBHOOK_BYTES);
    Port { tls: Some(tls), times: WEBHOOK_TIMES, ..port(routes, maxima, metrics, drain) }
}

/// Returns the admin port.
pub(super) fn admin(routes: Router, metrics: &PortMetrics, drain: DrainWatch) -> Port<Routes<Router>> {
    port(routes, Maxima::new(ADMIN_CONNECTIONS, ADMIN_BYTES), metrics, drain)
}

/// Returns the control port.
pub(super) fn control(
    routes: Router,
    tls: Tls,
    metrics: &PortMetrics,
    drain: DrainWatch,
) -> Port<Routes<Router>> {
    let port = port(routes, CONTROL, metrics, drain);
    // A session speaks HTTP/1, and HTTP/2 would only give strangers more to send.
    Port { tls: Some(tls), times: CONTROL_TIMES, age: CONTROL_AGE, http2: None, ..port }
}

fn port(routes: Router, maxima: Maxima, metrics: &PortMetrics, drain: DrainWatch) -> Port<Routes<Router>> {
    Port {
        answer: Routes::new(routes),
        table: Table::new(maxima, metrics.clone()),
        times: ADMIN_TIMES,
        age: AGE,
        max_head: MAX_HEAD,
        http2: Some(HTTP2),
        tls: None,
        drain,
    }
}

/// Whether this replica serves admission.
#[derive(Default)]
pub(super) struct Readiness(AtomicBool);

impl Readiness {
    /// Sets whether this replica serves admission.
    pub(super) fn set(&self, ready: bool) {
        self.0.store(ready, Ordering::Release);
    }
}

#[derive(Clone)]
struct Admin {
    readiness: Arc<Readiness>,
    metrics: Arc<Metrics>,
    hub: Arc<Hub>,
}

/// Returns the routes of the admin port.
pub(super) fn admin_routes(readiness: Arc<Readiness>, metrics: Arc<Metrics>, hub: Arc<Hub>) -> Router {
    Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics_text))
        .with_state(Admin { readiness, metrics, hub })
}

async fn readyz(State(admin): State<Admin>) -> (StatusCode, &'static str) {
    if admin.readiness.0.load(Ordering::Acquire) {
        (StatusCode::OK, "ok\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "not ready\n")
    }
}

async fn metrics_text(
    State(admin): State<Admin>,
    headers: HeaderMap,
) -> ([(&'static str, &'static str); 1], String) {
    let format = ExpositionFormat::accepted(&headers);
    ([("content-type", format.content_type())], format.page(admin.metrics.text(&admin.hub)))
}

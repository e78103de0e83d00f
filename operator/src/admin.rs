//! The admin port: `/livez`, `/readyz`, `/metrics`. Plain, for kubelet and Prometheus; nothing secret.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;

use crate::distribution::Hub;
use crate::metrics::Metrics;

/// Whether this replica serves admission.
#[derive(Default)]
pub struct Readiness(AtomicBool);

impl Readiness {
    /// It does, or does no longer.
    pub fn set(&self, ready: bool) {
        self.0.store(ready, Ordering::Release);
    }
}

#[derive(Clone)]
struct Admin {
    readiness: Arc<Readiness>,
    metrics: Arc<Metrics>,
    hub: Arc<Hub>,
}

/// The endpoints of the admin port.
pub fn router(readiness: Arc<Readiness>, metrics: Arc<Metrics>, hub: Arc<Hub>) -> Router {
    Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(text))
        .with_state(Admin { readiness, metrics, hub })
}

async fn ready(State(admin): State<Admin>) -> (StatusCode, &'static str) {
    if admin.readiness.0.load(Ordering::Acquire) {
        (StatusCode::OK, "ok\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "not ready\n")
    }
}

async fn text(State(admin): State<Admin>) -> ([(&'static str, &'static str); 1], String) {
    let kind = ("content-type", "application/openmetrics-text; version=1.0.0; charset=utf-8");
    ([kind], admin.metrics.text(admin.hub.streams()))
}

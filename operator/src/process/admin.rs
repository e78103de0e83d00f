//! The admin port: `/livez`, `/readyz` and `/metrics` for kubelet and Prometheus. It is plain HTTP and serves
//! no secrets.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::get;
use sluice_config::exposition::ExpositionFormat;

use crate::distribution::hub::Hub;
use crate::metrics::Metrics;

/// Whether this replica serves admission.
#[derive(Default)]
pub struct Readiness(AtomicBool);

impl Readiness {
    /// Sets whether this replica serves admission.
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

/// Returns the routes of the admin port.
pub fn router(readiness: Arc<Readiness>, metrics: Arc<Metrics>, hub: Arc<Hub>) -> Router {
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

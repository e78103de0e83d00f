//! The admin port: liveness, readiness, startup and metrics. Nothing else.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderName, StatusCode};
use axum::routing::get;
use tokio::net::TcpListener;

use crate::config::publisher::Publisher;
use crate::inbound::drain::DrainWatch;
use crate::metrics::registry::Metrics;

/// The state that the pages report: everything that the handlers read.
#[derive(Debug, Clone)]
pub(crate) struct Admin {
    pub(crate) publisher: Publisher,
    pub(crate) metrics: Metrics,
    pub(crate) drain: DrainWatch,
    /// Set when the time to wait for the first policies is over.
    pub(crate) startup_over: Arc<AtomicBool>,
}

type Page = (StatusCode, &'static str);

impl Admin {
    /// Serves the pages until the listener fails.
    pub(crate) async fn serve(self, listener: TcpListener) -> io::Result<()> {
        axum::serve(listener, self.router()).await
    }

    fn router(self) -> Router {
        Router::new()
            .route("/livez", get(|| async { "ok\n" }))
            .route("/readyz", get(ready))
            .route("/startupz", get(started))
            .route("/metrics", get(metrics))
            .with_state(self)
    }
}

async fn ready(State(admin): State<Admin>) -> Page {
    if admin.drain.is_draining() {
        (StatusCode::SERVICE_UNAVAILABLE, "draining\n")
    } else if admin.publisher.current().denies_all {
        // Other pods may have policies.
        (StatusCode::SERVICE_UNAVAILABLE, "no policies received: all requests are rejected\n")
    } else {
        (StatusCode::OK, "ok\n")
    }
}

async fn started(State(admin): State<Admin>) -> Page {
    if admin.publisher.has_published() {
        (StatusCode::OK, "ok\n")
    } else if admin.startup_over.load(Ordering::Relaxed) {
        let page = match admin.publisher.current().denies_all {
            true => "no policies received: all requests are rejected\n",
            false => "no policies received: all requests pass without limits\n",
        };
        (StatusCode::OK, page)
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "waiting for the first policies\n")
    }
}

async fn metrics(State(admin): State<Admin>) -> ([(HeaderName, &'static str); 1], String) {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(CONTENT_TYPE, kind)], admin.metrics.text())
}

//! The admin port: is it alive, is it ready, has it begun, and what it counted. Nothing else.

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
use crate::metrics::registry::Metrics;
use crate::process::drain::Watch;

/// What the pages look at.
#[derive(Debug, Clone)]
pub(crate) struct Admin {
    pub(crate) publisher: Publisher,
    pub(crate) metrics: Metrics,
    pub(crate) watch: Watch,
    /// Whether waiting for a first snapshot is over.
    pub(crate) waited: Arc<AtomicBool>,
}

type Page = (StatusCode, &'static str);

impl Admin {
    /// Serves the pages.
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
    if admin.watch.is_closing() {
        (StatusCode::SERVICE_UNAVAILABLE, "draining\n")
    } else {
        (StatusCode::OK, "ok\n")
    }
}

async fn started(State(admin): State<Admin>) -> Page {
    if admin.publisher.has_published() {
        (StatusCode::OK, "ok\n")
    } else if admin.waited.load(Ordering::Relaxed) {
        (StatusCode::OK, "no policies known: everything passes\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "waiting for the first policies\n")
    }
}

async fn metrics(State(admin): State<Admin>) -> ([(HeaderName, &'static str); 1], String) {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(CONTENT_TYPE, kind)], admin.metrics.text())
}

//! The pages that are served over HTTP/1: probes, metrics, clients, and what expects envoyproxy/ratelimit.

use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::Extension;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, Request, StatusCode, Uri};
use http_body_util::Empty;
use sluice_config::client_pages::CALLERS;
use sluice_config::exposition::ExpositionFormat;
use sluice_engine::{Engine, Page};
use sluice_host::drain::DrainWatch;
use sluice_host::serve::Peer;

use crate::callers::{Callers, Sender};
use crate::health::Health;
use crate::json;
use crate::messages::OVER_LIMIT;
use crate::metrics::Metrics;
use crate::rls::Rls;
use crate::work::Whose;

/// Longest body of a request to a page, in bytes.
const MAX_BODY: usize = 1 << 20;

/// Everything that the pages read.
#[derive(Debug, Clone)]
pub(crate) struct Pages {
    pub(crate) engine: Engine,
    pub(crate) rls: Arc<Rls>,
    pub(crate) metrics: Metrics,
    pub(crate) drain: DrainWatch,
    /// The rules in force, one a line.
    pub(crate) rules: Arc<ArcSwap<String>>,
    pub(crate) health: Health,
    pub(crate) callers: Option<Callers>,
}

impl Pages {
    /// Returns the pages of the admin port.
    pub(crate) fn admin(self) -> Router {
        Router::new()
            .route("/livez", get(|| async { "ok\n" }))
            .route("/readyz", get(ready))
            .route("/startupz", get(ready))
            .route("/metrics", get(metrics))
            .with_state(self)
    }

    /// Returns the pages about clients, and those of the admin port.
    pub(crate) fn debug(self) -> Router {
        let clients = Router::new()
            .route(CALLERS, get(callers))
            .fallback(clients)
            .layer(DefaultBodyLimit::max(MAX_BODY))
            .with_state(self.clone());
        self.admin().merge(clients)
    }

    /// Returns the pages of ratelimit's HTTP port.
    pub(crate) fn http(self) -> Router {
        Router::new()
            .route("/healthcheck", get(health_check))
            .route("/json", post(json).layer(DefaultBodyLimit::max(MAX_BODY)))
            .with_state(self)
    }

    /// Returns the pages of ratelimit's debug port.
    pub(crate) fn ratelimit_debug(self) -> Router {
        Router::new().route("/rlconfig", get(rules)).with_state(self)
    }

    /// Returns a page with metrics.
    pub(crate) fn prometheus(self, path: &str) -> Router {
        Router::new().route(path, get(metrics)).with_state(self)
    }

    fn unready(&self) -> Option<&'static str> {
        if self.drain.is_draining() {
            Some("draining\n")
        } else if self.engine.denies_all() {
            Some("no rate limit configuration loaded\n")
        } else {
            None
        }
    }
}

async fn ready(State(pages): State<Pages>) -> Response {
    match pages.unready() {
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, reason).into_response(),
        None => "ok\n".into_response(),
    }
}

async fn health_check(State(pages): State<Pages>) -> Response {
    if pages.drain.is_draining() || !pages.health.is_healthy() {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    "OK".into_response()
}

async fn rules(State(pages): State<Pages>) -> String {
    pages.rules.load().to_string()
}

async fn metrics(State(pages): State<Pages>, headers: HeaderMap) -> Response {
    let format = ExpositionFormat::accepted(&headers);
    ([(CONTENT_TYPE, format.content_type())], format.page(pages.metrics.text())).into_response()
}

async fn callers(State(pages): State<Pages>) -> Response {
    let callers =
        pages.callers.as_ref().map_or_else(|| r#"{"callers":[],"refused":[]}"#.to_owned(), Callers::page);
    ([(CONTENT_TYPE, "application/json")], callers).into_response()
}

async fn clients(State(pages): State<Pages>, uri: Uri, question: Bytes) -> Response {
    fn as_it_is(_: &mut Request<Empty<bytes::Bytes>>) -> Result<Option<Box<HeaderMap>>, &'static str> {
        Ok(None)
    }
    let Some(page) = Page::at(uri.path()) else { return StatusCode::NOT_FOUND.into_response() };
    match pages.engine.page(page, &question, as_it_is).await {
        Ok(page) => ([(CONTENT_TYPE, "application/json")], page).into_response(),
        Err(error) => (StatusCode::BAD_REQUEST, error + "\n").into_response(),
    }
}

/// Answers a question in JSON.
async fn json(
    State(pages): State<Pages>,
    sender: Option<Extension<Sender>>,
    peer: Option<Extension<Peer>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    // By the doors, or by a port of pages.
    let peer = sender.map(|Extension(sender)| sender.peer).or(peer.map(|Extension(Peer(peer))| peer));
    let whose = peer.map_or(Whose::LOCAL, |peer| Whose::of(None, peer.ip()));
    let failed = |status: StatusCode, reason: String| (status, reason + "\n").into_response();
    let request = match json::question(&body) {
        Ok(request) => request,
        Err(error) => return failed(StatusCode::BAD_REQUEST, error),
    };
    let response = match pages.rls.answer(&request, &headers, whose, None).await {
        Ok(response) => response,
        Err(error) => return failed(StatusCode::BAD_REQUEST, error.to_string()),
    };
    let is_over = response.overall_code == OVER_LIMIT;
    let status = if is_over { StatusCode::TOO_MANY_REQUESTS } else { StatusCode::OK };
    match json::answer(&response) {
        Ok(answer) => (status, [(CONTENT_TYPE, "application/json")], answer).into_response(),
        Err(error) => failed(StatusCode::INTERNAL_SERVER_ERROR, error),
    }
}

//! The pages that are served over HTTP/1: probes, metrics, clients, and what expects envoyproxy/ratelimit.

use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, Request, StatusCode, Uri};
use http_body_util::Empty;
use serde::{Deserialize, Serialize};
use sluice_config::descriptor::RateUnit;
use sluice_config::exposition::ExpositionFormat;
use sluice_engine::{Engine, Page};
use sluice_host::drain::DrainWatch;

use crate::messages::{
    Entry, OK, OVER_LIMIT, RateLimitDescriptor, RateLimitOverride, RateLimitRequest, RateLimitResponse,
};
use crate::metrics::Metrics;
use crate::rls::Rls;

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
    pub(crate) is_unhealthy_without_rules: bool,
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
        let clients =
            Router::new().fallback(clients).layer(DefaultBodyLimit::max(MAX_BODY)).with_state(self.clone());
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
    // Without rules all questions are errors, but ratelimit is healthy then too unless it is told otherwise.
    if pages.drain.is_draining() || pages.is_unhealthy_without_rules && pages.rules.load().is_empty() {
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

async fn clients(State(pages): State<Pages>, uri: Uri, question: Bytes) -> Response {
    fn as_it_is(_: &mut Request<Empty<bytes::Bytes>>) -> Result<(), &'static str> {
        Ok(())
    }
    let Some(page) = Page::at(uri.path()) else { return StatusCode::NOT_FOUND.into_response() };
    match pages.engine.page(page, &question, as_it_is).await {
        Ok(page) => ([(CONTENT_TYPE, "application/json")], page).into_response(),
        Err(error) => (StatusCode::BAD_REQUEST, error + "\n").into_response(),
    }
}

/// A question in JSON, as protobuf writes it. Numbers may be texts.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct JsonQuestion {
    #[serde(default)]
    domain: String,
    #[serde(default)]
    descriptors: Vec<JsonDescriptor>,
    #[serde(default, alias = "hits_addend")]
    hits_addend: u32,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct JsonDescriptor {
    #[serde(default)]
    entries: Vec<JsonEntry>,
    limit: Option<JsonLimit>,
    #[serde(alias = "hits_addend")]
    hits_addend: Option<Number>,
    #[serde(default, alias = "is_negative_hits")]
    is_negative_hits: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonEntry {
    #[serde(default)]
    key: String,
    #[serde(default)]
    value: String,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct JsonLimit {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    name: String,
    #[serde(alias = "requests_per_unit")]
    requests_per_unit: u32,
    unit: String,
}

/// A number of 64 bits, which JSON of protobuf writes as a text.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Number {
    Number(u64),
    Text(String),
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct JsonAnswer {
    overall_code: &'static str,
    statuses: Vec<JsonStatus>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    response_headers_to_add: Vec<JsonEntry2>,
}

#[derive(Debug, Serialize)]
struct JsonEntry2 {
    key: String,
    value: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct JsonStatus {
    code: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    current_limit: Option<JsonLimit>,
    #[serde(skip_serializing_if = "is_zero")]
    limit_remaining: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_until_reset: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl JsonQuestion {
    fn into_request(self) -> Result<RateLimitRequest, String> {
        let descriptors = self.descriptors.into_iter().map(|descriptor| {
            let JsonDescriptor { entries, limit, hits_addend, is_negative_hits } = descriptor;
            let entries = entries
                .into_iter()
                .map(|JsonEntry { key, value }| Entry { key: key.into(), value: value.into() });
            let limit = limit.map(|limit| {
                let unit = RateUnit::from_name(&limit.unit)
                    .ok_or_else(|| format!("unknown unit {:?}", limit.unit))?;
                Ok::<_, String>(RateLimitOverride {
                    requests_per_unit: limit.requests_per_unit,
                    unit: unit as i32,
                })
            });
            let hits_addend = hits_addend.map(|hits| match hits {
                Number::Number(hits) => Ok(hits),
                Number::Text(text) => text.parse().map_err(|_| format!("hitsAddend: {text:?} is no number")),
            });
            Ok(RateLimitDescriptor {
                entries: entries.collect(),
                limit: limit.transpose()?,
                hits_addend: hits_addend.transpose()?,
                is_negative_hits,
            })
        });
        let descriptors = descriptors.collect::<Result<_, String>>()?;
        Ok(RateLimitRequest { domain: self.domain.into(), descriptors, hits_addend: self.hits_addend })
    }
}

fn code(code: i32) -> &'static str {
    match code {
        OK => "OK",
        OVER_LIMIT => "OVER_LIMIT",
        _ => "UNKNOWN",
    }
}

impl From<RateLimitResponse> for JsonAnswer {
    fn from(response: RateLimitResponse) -> Self {
        let statuses = response.statuses.into_iter().map(|status| JsonStatus {
            code: code(status.code),
            current_limit: status.current_limit.map(|limit| JsonLimit {
                name: limit.name,
                requests_per_unit: limit.requests_per_unit,
                unit: RateUnit::from_number(limit.unit)
                    .map_or("UNKNOWN", RateUnit::as_str)
                    .to_ascii_uppercase(),
            }),
            limit_remaining: status.limit_remaining,
            duration_until_reset: status
                .duration_until_reset
                .map(|duration| format!("{}s", duration.seconds)),
        });
        let headers = response.response_headers_to_add.into_iter();
        Self {
            overall_code: code(response.overall_code),
            statuses: statuses.collect(),
            response_headers_to_add: headers
                .map(|header| JsonEntry2 { key: header.key, value: header.value })
                .collect(),
        }
    }
}

/// Answers a question in JSON.
async fn json(State(pages): State<Pages>, headers: HeaderMap, body: Bytes) -> Response {
    let refused = |reason: String| (StatusCode::BAD_REQUEST, reason + "\n").into_response();
    let question = serde_json::from_slice::<JsonQuestion>(&body).map_err(|error| error.to_string());
    let request = match question.and_then(JsonQuestion::into_request) {
        Ok(request) => request,
        Err(error) => return refused(error),
    };
    match pages.rls.answer(&request, &headers, None).await {
        Ok(response) => {
            let is_over = response.overall_code == OVER_LIMIT;
            let status = if is_over { StatusCode::TOO_MANY_REQUESTS } else { StatusCode::OK };
            (status, Json(JsonAnswer::from(response))).into_response()
        }
        Err(error) => refused(error.to_string()),
    }
}

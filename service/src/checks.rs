//! The door `checks`: applications ask by one HTTP call whether a client may go on, reserve costs, and settle them.
//!
//! - [`asker`]: who asks. [`body`]: the bodies; [`openapi`]: the document about them. [`request`]: a request in a body. [`problem`]:
//!   what is wrong with a question.

mod asker;
mod body;
pub mod openapi;
mod problem;
mod request;

use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, Query, State};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use futures::future::join_all;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use sluice_engine::Engine;
use sluice_engine::checks::{
    Check, CheckAnswer, CheckError, How, LimitStatus, NamedLimit, Outcome, Policies, PreparedCheck,
    SettleError,
};
use sluice_limiter::{MAX_COUNT, Period};

use crate::callers::{CallerNames, Callers};
use crate::checks::asker::Asker;
use crate::checks::body::{
    BatchAnswerBody, CheckAnswerBody, CheckBody, LimitBody, NamedLimitBody, ReservationBody, ReserveBody,
    SettleAnswerBody, SettleBody, SettledLimitBody,
};
use crate::checks::problem::Problem;
use crate::checks::request::ReadRequest;
use crate::metrics::Metrics;

const CHECK: &str = "/v1/check";
const SETTLE: &str = "/v1/settle";
const OPENAPI: &str = "/v1/openapi.json";

/// Longest body, in bytes.
const MAX_BODY: usize = 1 << 20;
/// Most checks of a body.
const MAX_CHECKS: usize = 100;
/// Longest value of a part of a key, in bytes.
const MAX_VALUE: usize = 4096;
/// Longest time for which a reservation can be settled, in seconds.
const MAX_RESERVED_SECONDS: u64 = 86_400;
/// The longest time that all calls to the store for a question may take. Each takes at most the latency budget.
const BUDGET: Duration = Duration::from_secs(2);

/// The door.
#[derive(Debug, Clone)]
pub(crate) struct Checks {
    pub(crate) engine: Engine,
    pub(crate) metrics: Metrics,
    pub(crate) callers: Option<Callers>,
    /// Whether a request may be checked by the policies of all namespaces: there is one user.
    pub(crate) is_of_one_user: bool,
}

#[derive(Debug, Default, Deserialize)]
struct Options {
    status: Option<String>,
}

impl Checks {
    /// Returns the routes.
    pub(crate) fn routes(self) -> Router {
        Router::new()
            .route(CHECK, post(check))
            .route(SETTLE, post(settle))
            .layer(DefaultBodyLimit::max(MAX_BODY))
            .route(OPENAPI, get(async || Json(openapi::document())))
            .fallback(async || {
                Problem::new(
                    StatusCode::NOT_FOUND,
                    "there is nothing at this path: POST to /v1/check or /v1/settle, or GET /v1/openapi.json",
                )
            })
            .method_not_allowed_fallback(async || {
                Problem::new(
                    StatusCode::METHOD_NOT_ALLOWED,
                    "the path has another method: see /v1/openapi.json",
                )
            })
            .with_state(self)
    }

    /// Answers one check, or many.
    async fn check(&self, body: CheckBody, asker: &Asker<'_>) -> Result<Answered, Problem> {
        let Some(checks) = body.checks.as_ref() else {
            let prepared = self.prepare(&body, asker, "")?;
            return Ok(Answered::One(answer_body(prepared.decide(&self.engine).await)));
        };
        if body.has_own_fields() {
            return Err(Problem::of_field("/checks", "stands alone: move the other fields into the checks"));
        }
        if checks.is_empty() || checks.len() > MAX_CHECKS {
            return Err(Problem::of_field("/checks", format!("has 1 to {MAX_CHECKS} checks")));
        }
        let mut all = Vec::with_capacity(checks.len());
        for (n, one) in checks.iter().enumerate() {
            if one.checks.is_some() {
                return Err(Problem::of_field(format!("/checks/{n}/checks"), "a check has no checks"));
            }
            all.push(self.prepare(one, asker, &format!("/checks/{n}"))?);
        }
        let answers = join_all(all.into_iter().map(|one| one.decide(&self.engine))).await;
        Ok(Answered::Many(BatchAnswerBody { results: answers.into_iter().map(answer_body).collect() }))
    }

    /// Finds the counters of a check. `place` is the JSON pointer of the check.
    fn prepare<'a>(
        &self,
        body: &'a CheckBody,
        asker: &Asker<'a>,
        place: &str,
    ) -> Result<PreparedCheck<'a>, Problem> {
        self.prepare_one(body, asker).map_err(|problem| problem.within(place))
    }

    fn prepare_one<'a>(&self, body: &'a CheckBody, asker: &Asker<'a>) -> Result<PreparedCheck<'a>, Problem> {
        let check = Check { how: body.how()?, budget: BUDGET, headers: asker.headers };
        if let Some(request) = &body.request {
            if body.limits.is_some() || body.limit.is_some() || body.key.is_some() || body.cost.is_some() {
                return Err(Problem::of_field(
                    "/request",
                    "is in place of `limit`, `limits`, `key` and `cost`: leave these out",
                ));
            }
            let policies = match (&body.policy, &body.namespace) {
                (Some(_), Some(_)) => {
                    return Err(Problem::of_field(
                        "/namespace",
                        "is in place of `policy`: leave one of them out",
                    ));
                }
                (Some(policy), None) => {
                    asker.may_name_policy(policy)?;
                    Policies::Named(policy)
                }
                (None, Some(namespace)) => {
                    asker.may_name(namespace).map_err(|hidden| {
                        hidden.unwrap_or_else(|| {
                            Problem::of_field(
                                "/namespace",
                                "there is no such namespace that you may ask about",
                            )
                            .with(StatusCode::NOT_FOUND)
                        })
                    })?;
                    Policies::Namespace(namespace)
                }
                (None, None) if self.is_of_one_user => Policies::All,
                (None, None) => {
                    return Err(Problem::of_field(
                        "/request",
                        "is checked by the policies of a namespace: name it in `namespace`, or one policy in `policy`",
                    ));
                }
            };
            let request = ReadRequest::of(request)?;
            let prepared = self.engine.prepare_request(check, policies, || request.attributes());
            return prepared.map_err(|error| of_error(error, None, body));
        }
        if body.namespace.is_some() {
            return Err(Problem::of_field(
                "/namespace",
                "is for a `request`: a limit is named by its policy",
            ));
        }
        let single;
        let named = match &body.limits {
            Some(_) if body.limit.is_some() || body.key.is_some() => {
                return Err(Problem::of_field(
                    "/limits",
                    "is in place of `limit` and `key`: leave these out",
                ));
            }
            Some(limits) if limits.is_empty() => {
                return Err(Problem::of_field("/limits", "names no limit"));
            }
            Some(limits) => &limits[..],
            None => {
                single = [NamedLimitBody {
                    limit: body.limit.clone(),
                    key: body.key.clone(),
                    ..NamedLimitBody::default()
                }];
                &single[..]
            }
        };
        let mut all = Vec::with_capacity(named.len());
        for (n, one) in named.iter().enumerate() {
            let place = if body.limits.is_some() { format!("/limits/{n}") } else { String::new() };
            let policy = one.policy.as_ref().or(body.policy.as_ref()).ok_or_else(|| {
                Problem::of_field(
                    format!("{place}/policy"),
                    "is missing: name the policy as NAMESPACE/NAME, or send a `request`",
                )
            })?;
            asker.may_name_policy(policy).map_err(|problem| problem.within(&place))?;
            let cost = one.cost.or(body.cost).unwrap_or(1);
            check_cost(cost)
                .map_err(|problem| problem.within(if one.cost.is_some() { &place } else { "" }))?;
            let key = one.key.as_deref().unwrap_or_default();
            if let Some(part) = key.iter().position(|value| value.len() > MAX_VALUE) {
                return Err(Problem::of_field(
                    format!("{place}/key/{part}"),
                    format!("is longer than {MAX_VALUE} bytes: send a hash of it"),
                ));
            }
            all.push(NamedLimit { policy, limit: one.limit.as_deref(), key, cost });
        }
        self.engine.prepare_limits(check, &all).map_err(|(position, error)| of_error(error, position, body))
    }

    async fn settle(&self, body: &SettleBody, asker: &Asker<'_>) -> Result<SettleAnswerBody, Problem> {
        body.cost.map_or(Ok(()), check_cost)?;
        asker.identified()?;
        let may_settle = |namespace: &str| asker.may_name(namespace).is_ok();
        let settled = self.engine.settle(&body.id, body.cost, may_settle, BUDGET).await;
        let limits = settled.map_err(|error| match error {
            SettleError::Unknown => Problem::of_field("/id", error.to_string()).with(StatusCode::NOT_FOUND),
            SettleError::Store(_) => Problem::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
        })?;
        Ok(SettleAnswerBody {
            settled: limits.iter().any(|one| one.settled),
            limits: limits
                .into_iter()
                .map(|one| SettledLimitBody {
                    policy: one.policy,
                    limit: (*one.limit).to_owned(),
                    settled: one.settled,
                    reserved: one.reserved,
                })
                .collect(),
        })
    }
}

/// The answers of a body.
enum Answered {
    One(CheckAnswerBody),
    Many(BatchAnswerBody),
}

impl Answered {
    fn all(&self) -> &[CheckAnswerBody] {
        match self {
            Self::One(answer) => std::slice::from_ref(answer),
            Self::Many(answers) => &answers.results,
        }
    }
}

async fn check(
    State(door): State<Checks>,
    Extension(names): Extension<CallerNames>,
    options: Result<Query<Options>, axum::extract::rejection::QueryRejection>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    let arrived = Instant::now();
    let asker = Asker { callers: door.callers.as_ref(), names: &names.0, headers: &headers };
    let status = match options.map(|Query(options)| options.status) {
        Ok(None) => Ok(StatusCode::OK),
        Ok(Some(status)) if status == "429" => Ok(StatusCode::TOO_MANY_REQUESTS),
        Ok(Some(_)) | Err(_) => Err(Problem::new(
            StatusCode::BAD_REQUEST,
            "the parameter `status` may be 429: a denial has it then",
        )),
    };
    let parsed = status.and_then(|status| Ok((status, parse::<CheckBody>(&headers, body)?)));
    let answered = match parsed {
        Ok((status, body)) => door.check(body, &asker).await.map(|answered| (status, answered)),
        Err(problem) => Err(problem),
    };
    door.metrics.check_latency.observe(arrived.elapsed().as_secs_f64());
    let (denied, answered) = match answered {
        Ok(answered) => answered,
        Err(problem) => {
            door.metrics.refuse_check();
            return problem.into_response();
        }
    };
    answered.all().iter().for_each(|one| {
        door.metrics.checked(one.allowed, one.reservation.is_some(), one.store_failure.is_some());
    });
    let is_denied = answered.all().iter().any(|one| !one.allowed);
    let wait = answered.all().iter().filter(|one| !one.allowed).flat_map(|one| &one.limits);
    let wait = wait.filter(|one| !one.allowed).filter_map(|one| one.retry_after_seconds).max();
    let mut response = match answered {
        Answered::One(answer) => Json(answer).into_response(),
        Answered::Many(answers) => Json(answers).into_response(),
    };
    if is_denied && denied != StatusCode::OK {
        *response.status_mut() = denied;
        response.headers_mut().extend(wait.map(|wait| (RETRY_AFTER, HeaderValue::from(wait))));
    }
    response
}

async fn settle(
    State(door): State<Checks>,
    Extension(names): Extension<CallerNames>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    let asker = Asker { callers: door.callers.as_ref(), names: &names.0, headers: &headers };
    let settled = match parse::<SettleBody>(&headers, body) {
        Ok(body) => door.settle(&body, &asker).await,
        Err(problem) => Err(problem),
    };
    match settled {
        Ok(answer) => {
            door.metrics.settled(answer.settled);
            Json(answer).into_response()
        }
        Err(problem) => {
            door.metrics.refuse_check();
            problem.into_response()
        }
    }
}

/// Reads a body. What is wrong is told with its field.
fn parse<T: DeserializeOwned>(
    headers: &HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<T, Problem> {
    let body = body.map_err(|error| {
        if error.status() == StatusCode::PAYLOAD_TOO_LARGE {
            Problem::new(StatusCode::PAYLOAD_TOO_LARGE, format!("the body is longer than {MAX_BODY} bytes"))
        } else {
            Problem::new(StatusCode::BAD_REQUEST, "the body did not arrive as a whole")
        }
    })?;
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    if !essence.eq_ignore_ascii_case("application/json") {
        // A page in a browser could send any other type to a port of this machine.
        return Err(Problem::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "the body is JSON: send content-type: application/json",
        ));
    }
    let mut from = serde_json::Deserializer::from_slice(&body);
    let parsed = serde_path_to_error::deserialize(&mut from).map_err(|error| {
        let field = pointer(error.path());
        let detail = format!("the body is not valid: {}", error.into_inner());
        if field.is_empty() {
            Problem::new(StatusCode::BAD_REQUEST, detail)
        } else {
            Problem::of_field(field, detail)
        }
    })?;
    from.end()
        .map_err(|error| Problem::new(StatusCode::BAD_REQUEST, format!("the body is not valid: {error}")))?;
    Ok(parsed)
}

/// Returns a path as a JSON pointer.
fn pointer(path: &serde_path_to_error::Path) -> String {
    use serde_path_to_error::Segment;
    let segment = |segment: &Segment| match segment {
        Segment::Seq { index } => format!("/{index}"),
        Segment::Map { key } => format!("/{}", key.replace('~', "~0").replace('/', "~1")),
        Segment::Enum { .. } | Segment::Unknown => String::new(),
    };
    path.iter().map(segment).collect()
}

fn check_cost(cost: u64) -> Result<(), Problem> {
    if cost > MAX_COUNT {
        return Err(Problem::of_field("/cost", format!("is more than {MAX_COUNT} (2^40)")));
    }
    Ok(())
}

impl CheckBody {
    fn has_own_fields(&self) -> bool {
        let Self { policy, limit, key, cost, limits, request, namespace, peek, reserve, checks: _ } = self;
        policy.is_some()
            || limit.is_some()
            || key.is_some()
            || cost.is_some()
            || limits.is_some()
            || request.is_some()
            || namespace.is_some()
            || peek.is_some()
            || reserve.is_some()
    }

    fn how(&self) -> Result<How, Problem> {
        match (self.peek.unwrap_or_default(), &self.reserve) {
            (true, Some(_)) => {
                Err(Problem::of_field("/peek", "only looks, and `reserve` charges: leave one of them out"))
            }
            (true, None) => Ok(How::Peek),
            (false, None) => Ok(How::Charge),
            (false, Some(ReserveBody { expires_after_seconds: None })) => Ok(How::Reserve(None)),
            (false, Some(ReserveBody { expires_after_seconds: Some(seconds) })) => match seconds {
                1..=MAX_RESERVED_SECONDS => Ok(How::Reserve(Period::from_millis(seconds * 1000).ok())),
                _ => Err(Problem::of_field(
                    "/reserve/expiresAfterSeconds",
                    format!("is a number from 1 to {MAX_RESERVED_SECONDS}"),
                )),
            },
        }
    }
}

/// Returns the problem of a check that cannot be made.
fn of_error(error: CheckError, position: Option<usize>, body: &CheckBody) -> Problem {
    let place = match (&body.limits, position) {
        (Some(_), Some(position)) => format!("/limits/{position}"),
        _ => String::new(),
    };
    let (status, field) = match &error {
        CheckError::NoPolicies => (StatusCode::SERVICE_UNAVAILABLE, None),
        CheckError::Policy(_) => (StatusCode::NOT_FOUND, Some("/policy")),
        CheckError::Limit(_) => (StatusCode::NOT_FOUND, Some("/limit")),
        CheckError::Key(_) => (StatusCode::UNPROCESSABLE_ENTITY, Some("/key")),
        CheckError::NotPossible(_) => (StatusCode::UNPROCESSABLE_ENTITY, Some("/limit")),
        CheckError::Twice => (StatusCode::UNPROCESSABLE_ENTITY, Some("")),
        CheckError::TooManyLimits => (StatusCode::UNPROCESSABLE_ENTITY, Some("/limits")),
        CheckError::AmbiguousPath => (StatusCode::UNPROCESSABLE_ENTITY, Some("/request/url")),
    };
    let problem = Problem::new(status, error.to_string());
    match field {
        Some(field) if body.request.is_none() || matches!(error, CheckError::AmbiguousPath) => {
            Problem::of_field(format!("{place}{field}"), error.to_string()).with(status)
        }
        Some(_) => Problem::of_field("/request", error.to_string()).with(status),
        None => problem,
    }
}

fn answer_body(answer: CheckAnswer) -> CheckAnswerBody {
    CheckAnswerBody {
        allowed: answer.is_allowed(),
        reservation: answer.reservation.map(|reservation| ReservationBody {
            id: reservation.id,
            expires_in_seconds: reservation.lasts.as_secs(),
        }),
        store_failure: answer.store_failure,
        limits: answer.limits.into_iter().map(limit_body).collect(),
    }
}

fn limit_body(one: LimitStatus) -> LimitBody {
    let LimitStatus { policy, limit, status } = one;
    let is_over = status.outcome == Outcome::OverLimit;
    let rate = status.limit.as_ref();
    LimitBody {
        policy,
        limit: (*limit).to_owned(),
        allowed: !is_over,
        shadow_denied: status.outcome == Outcome::Observed,
        quota: rate.map(|rate| rate.requests),
        period_seconds: rate
            .filter(|rate| rate.period_millis > 0)
            .map(|rate| rate.period_millis as f64 / 1000.0),
        remaining: rate.map(|_| status.left),
        reset_seconds: rate.map(|_| status.reset_seconds),
        retry_after_seconds: status.retry_after_seconds,
    }
}

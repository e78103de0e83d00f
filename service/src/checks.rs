//! The door `checks`: applications ask by one HTTP call whether a client may go on, reserve costs, and settle them.
//!
//! - [`body`]: the bodies, and [`json`] their bounds; [`openapi`]: the document about them. [`request`]: a request
//!   in a body. `receive`: a body that arrives. [`mod@problem`]: what is wrong with a question.

mod body;
mod json;
pub mod openapi;
mod problem;
mod receive;
mod request;

use std::borrow::Cow;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{Query, State};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use futures::future::join_all;
use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderValue, StatusCode};
use serde::Deserialize;
use sluice_engine::Engine;
use sluice_engine::checks::{
    Check, CheckAnswer, CheckError, How, LimitStatus, NamedLimit, NotChecked, Outcome, Policies,
    PreparedCheck, SettleError,
};
use sluice_host::serve::is_grpc;
use sluice_host::serve::table::NoRoom;
use sluice_limiter::{MAX_COUNT, Period};

use crate::asker::Asker;
use crate::callers::{Callers, NotPermitted, Sender};
use crate::checks::body::{
    BatchAnswerBody, CheckAnswerBody, CheckBody, LimitBody, NamedLimitBody, RequestBody, ReservationBody,
    ReserveBody, SettleAnswerBody, SettleBody, SettledLimitBody,
};
use crate::checks::problem::Problem;
use crate::checks::receive::{LARGE, apart, discard, parse, receive};
use crate::grpc;
use crate::metrics::Metrics;
use crate::work::Whose;

const CHECK: &str = "/v1/check";
const SETTLE: &str = "/v1/settle";
const OPENAPI: &str = "/v1/openapi.json";

/// Limits of a body that are looked up, and asked for, at a time, so that a long one delays others hardly.
const PIECE: usize = 32;
/// Most checks of a body.
const MAX_CHECKS: usize = 100;
/// Longest value of a part of a key, in bytes.
const MAX_VALUE: usize = 4096;
/// Longest time for which a reservation can be settled, in seconds.
const MAX_RESERVED_SECONDS: u64 = 86_400;
/// The longest time that a check waits for its turn, and all its calls to the store. Each takes at most the latency budget.
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
#[serde(deny_unknown_fields)]
struct Options {
    status: Option<String>,
}

/// A call without parameters.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NoOptions {}

impl Checks {
    /// Returns the routes.
    pub(crate) fn routes(self) -> Router {
        Router::new()
            .route(CHECK, post(check))
            .route(SETTLE, post(settle))
            .route(OPENAPI, get(async || Json(openapi::document())))
            .fallback(async |headers: HeaderMap, body: Body| {
                if is_grpc(&headers) {
                    return grpc::unimplemented();
                }
                discard(body).await;
                problem(
                    StatusCode::NOT_FOUND,
                    "there is nothing at this path: POST to /v1/check or /v1/settle, or GET /v1/openapi.json",
                )
            })
            .method_not_allowed_fallback(async |body: Body| {
                discard(body).await;
                Problem::new(
                    StatusCode::METHOD_NOT_ALLOWED,
                    "the path has another method: POST to /v1/check or /v1/settle, or GET /v1/openapi.json",
                )
            })
            .with_state(self)
    }

    /// Answers one check, or many.
    async fn check(
        &self,
        body: &CheckBody,
        headers: &HeaderMap,
        asker: &Asker<'_>,
    ) -> Result<Answered, Problem> {
        let Some(checks) = &body.checks else {
            let prepared = self.prepare(body, headers, asker)?;
            let (_turn, left) = self.metrics.work.turn(asker.whose(), prepared.limits(), BUDGET).await;
            return Ok(Answered::One(answer_body(body, prepared.decide(&self.engine, left).await)));
        };
        // In a box, which single checks do not need.
        Box::pin(self.check_many(body, checks, headers, asker)).await.map(Answered::Many)
    }

    /// Answers many checks.
    async fn check_many(
        &self,
        body: &CheckBody,
        checks: &[CheckBody],
        headers: &HeaderMap,
        asker: &Asker<'_>,
    ) -> Result<BatchAnswerBody, Problem> {
        if body.has_own_fields() {
            let detail = "`checks` stands alone: move the other fields into the checks";
            return Err(Problem::of_field("/checks", detail));
        }
        if checks.is_empty() || checks.len() > MAX_CHECKS {
            return Err(Problem::of_field("/checks", format!("send 1 to {MAX_CHECKS} checks")));
        }
        let (mut all, mut prepared_limits) = (Vec::with_capacity(checks.len()), 0);
        for (n, one) in checks.iter().enumerate() {
            if one.checks.is_some() {
                return Err(Problem::of_field(
                    format!("/checks/{n}/checks"),
                    "a check has no checks of its own",
                ));
            }
            let prepared = self.prepare(one, headers, asker);
            let prepared = prepared.map_err(|problem| problem.within(&format!("/checks/{n}")))?;
            prepared_limits += prepared.limits();
            all.push(prepared);
            if prepared_limits >= PIECE {
                prepared_limits = 0;
                tokio::task::yield_now().await;
            }
        }
        let (mut answers, mut piece, mut limits) = (Vec::with_capacity(all.len()), Vec::new(), 0);
        for one in all {
            if limits + one.limits() > PIECE && !piece.is_empty() {
                answers.extend(join_all(std::mem::take(&mut piece)).await);
                limits = 0;
            }
            limits += one.limits();
            piece.push(self.decide(one, asker.whose()));
        }
        answers.extend(join_all(piece).await);
        Ok(BatchAnswerBody {
            results: checks.iter().zip(answers).map(|(one, answer)| answer_body(one, answer)).collect(),
        })
    }

    /// Makes a check when it is its turn.
    async fn decide(&self, check: PreparedCheck<'_>, whose: Whose) -> CheckAnswer {
        let (_turn, left) = self.metrics.work.turn(whose, check.limits(), BUDGET).await;
        check.decide(&self.engine, left).await
    }

    /// Finds the counters of a check.
    fn prepare<'a>(
        &self,
        body: &'a CheckBody,
        headers: &'a HeaderMap,
        asker: &Asker<'_>,
    ) -> Result<PreparedCheck<'a>, Problem> {
        let check = Check { how: body.how()?, headers };
        match &body.request {
            Some(request) => self.prepare_request(body, check, asker, request),
            None => self.prepare_limits(body, check, asker),
        }
    }

    fn prepare_request<'a>(
        &self,
        body: &CheckBody,
        check: Check<'a>,
        asker: &Asker<'_>,
        request: &RequestBody,
    ) -> Result<PreparedCheck<'a>, Problem> {
        if body.limits.is_some() || body.limit.is_some() || body.key.is_some() || body.cost.is_some() {
            let detail =
                "a `request` stands in place of `limit`, `limits`, `key` and `cost`: leave these out";
            return Err(Problem::of_field("/request", detail));
        }
        let policies = match (&body.policy, &body.namespace) {
            (Some(_), Some(_)) => {
                let detail = "`namespace` stands in place of `policy`: leave one of them out";
                return Err(Problem::of_field("/namespace", detail));
            }
            (Some(policy), None) => {
                may_name_policy(asker, policy)?;
                Policies::Named(policy)
            }
            (None, Some(namespace)) if !asker.may_name(namespace) => {
                let detail = "there is no such namespace that you may ask about";
                return Err(Problem::of_field("/namespace", detail).with(StatusCode::NOT_FOUND));
            }
            (None, Some(namespace)) => Policies::Namespace(namespace),
            (None, None) if self.is_of_one_user => Policies::All,
            (None, None) => {
                let detail = "a `request` is checked by the policies of a namespace: name it in `namespace`, or one policy in `policy`";
                return Err(Problem::of_field("/request", detail));
            }
        };
        let request = request::read(request)?;
        let prepared = self.engine.prepare_request(check, policies, || request.attributes());
        prepared.map_err(|error| of_error(&error, None, body))
    }

    fn prepare_limits<'a>(
        &self,
        body: &CheckBody,
        check: Check<'a>,
        asker: &Asker<'_>,
    ) -> Result<PreparedCheck<'a>, Problem> {
        if body.namespace.is_some() {
            let detail = "`namespace` is for a `request`: a limit is named by its policy";
            return Err(Problem::of_field("/namespace", detail));
        }
        let Some(limits) = &body.limits else {
            let one = body.named(None, "", asker)?;
            return self
                .engine
                .prepare_limits(check, &[one])
                .map_err(|(_, error)| of_error(&error, None, body));
        };
        if body.limit.is_some() {
            return Err(Problem::of_field(
                "/limits",
                "`limits` stands in place of `limit`: leave one of them out",
            ));
        }
        if limits.is_empty() {
            return Err(Problem::of_field("/limits", "name at least one limit"));
        }
        let named = limits.iter().enumerate();
        let named = named.map(|(n, one)| body.named(Some(one), &format!("/limits/{n}"), asker));
        let named = named.collect::<Result<Vec<_>, _>>()?;
        let prepared = self.engine.prepare_limits(check, &named);
        prepared.map_err(|(position, error)| of_error(&error, position, body))
    }

    /// Refuses a caller who may not ask.
    async fn refuse(&self, refused: &NotPermitted, body: Body) -> Response {
        self.metrics.refuse_check();
        discard(body).await;
        problem(status_of(refused), refused.to_string())
    }

    async fn settle(&self, body: &SettleBody, asker: &Asker<'_>) -> Result<SettleAnswerBody, Problem> {
        check_cost(body.cost, "/cost")?;
        let settled = self.engine.settle(&body.id, body.cost, |name| asker.may_name(name), BUDGET).await;
        let limits = settled.map_err(|error| match error {
            SettleError::Unknown => Problem::of_field("/id", error.to_string()).with(StatusCode::NOT_FOUND),
            SettleError::Store(_) => Problem::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
        })?;
        let settled = limits.iter().any(|one| one.settled);
        let limits = limits.into_iter().map(|one| SettledLimitBody {
            policy: one.policy,
            limit: (*one.limit).to_owned(),
            settled: one.settled,
            reserved: one.reserved,
        });
        Ok(SettleAnswerBody { settled, limits: limits.collect() })
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
    Extension(sender): Extension<Sender>,
    options: Result<Query<Options>, axum::extract::rejection::QueryRejection>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let arrived = Instant::now();
    let asker = match Asker::identify(door.callers.as_ref(), &sender, &headers) {
        Ok(asker) => asker,
        Err(refused) => return door.refuse(&refused, body).await,
    };
    let answered = async {
        let body = receive(body).await?;
        let status = match options.map(|Query(options)| options.status) {
            Ok(None) => StatusCode::OK,
            Ok(Some(status)) if status == "429" => StatusCode::TOO_MANY_REQUESTS,
            Ok(Some(_)) | Err(_) => {
                let detail = "the only parameter of the URL is `status`, and it is 429 or left out: a denial has this status then";
                return Err(Problem::new(StatusCode::BAD_REQUEST, detail));
            }
        };
        let is_large = body.len() > LARGE;
        let body = if is_large {
            let Some(turn) = door.metrics.work.large(asker.whose(), BUDGET).await else {
                return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, NoRoom.to_string()));
            };
            let headers = headers.clone();
            apart(turn, move || parse::<CheckBody>(&headers, &body)).await?
        } else {
            parse::<CheckBody>(&headers, &body)?
        };
        Ok((status, is_large, door.check(&body, &headers, &asker).await?))
    };
    let answered = answered.await;
    door.metrics.check_latency.observe(arrived.elapsed().as_secs_f64());
    let (denied, is_large, answered) = match answered {
        Ok(answered) => answered,
        Err(problem) => {
            door.metrics.refuse_check();
            return problem.into_response();
        }
    };
    answered.all().iter().for_each(|one| {
        let reserved = one.reservation.as_ref().map_or(0, |reservation| reservation.limits);
        door.metrics.checked(one.allowed, reserved, one.store_failure.is_some());
    });
    let is_denied = answered.all().iter().any(|one| !one.allowed);
    let wait = answered.all().iter().filter(|one| !one.allowed).flat_map(|one| &one.limits);
    // No wait helps if one of them never has room.
    let wait = wait
        .filter(|one| !one.allowed)
        .map(|one| one.retry_after_seconds)
        .try_fold(0, |longest, wait| Some(longest.max(wait?)));
    let mut response = match answered {
        Answered::One(answer) => Json(answer).into_response(),
        Answered::Many(answers) => {
            let turn = if is_large { door.metrics.work.large(asker.whose(), BUDGET).await } else { None };
            match turn {
                Some(turn) => apart(turn, || Json(answers).into_response()).await,
                None => Json(answers).into_response(),
            }
        }
    };
    if is_denied && denied != StatusCode::OK {
        *response.status_mut() = denied;
        response.headers_mut().extend(wait.map(|wait| (RETRY_AFTER, HeaderValue::from(wait))));
    }
    response
}

async fn settle(
    State(door): State<Checks>,
    Extension(sender): Extension<Sender>,
    options: Result<Query<NoOptions>, axum::extract::rejection::QueryRejection>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let asker = match Asker::identify(door.callers.as_ref(), &sender, &headers) {
        Ok(asker) => asker,
        Err(refused) => return door.refuse(&refused, body).await,
    };
    let settled = async {
        let body = receive(body).await?;
        if options.is_err() {
            let detail = "the URL of a settlement has no parameters: write `id` and `cost` into the body";
            return Err(Problem::new(StatusCode::BAD_REQUEST, detail));
        }
        door.settle(&parse(&headers, &body)?, &asker).await
    };
    let settled = settled.await;
    match settled {
        Ok(answer) => {
            answer.limits.iter().for_each(|one| door.metrics.settled(one.settled));
            Json(answer).into_response()
        }
        Err(problem) => {
            door.metrics.refuse_check();
            problem.into_response()
        }
    }
}

fn check_cost(cost: Option<u64>, field: &str) -> Result<(), Problem> {
    if cost.is_some_and(|cost| cost > MAX_COUNT) {
        return Err(Problem::of_field(field, format!("a cost is at most {MAX_COUNT} (2^40)")));
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

    /// Returns a limit that the check names: an entry of `limits` at a place, or the one of the check itself. What an entry leaves out
    /// is that of the check.
    fn named<'a>(
        &'a self,
        entry: Option<&'a NamedLimitBody>,
        place: &str,
        asker: &Asker<'_>,
    ) -> Result<NamedLimit<'a>, Problem> {
        let own = entry.and_then(|entry| entry.policy.as_ref());
        let policy = own.or(self.policy.as_ref()).ok_or_else(|| {
            let detail = "name the policy as NAMESPACE/NAME, or send a `request`";
            Problem::of_field(format!("{place}/policy"), detail)
        })?;
        may_name_policy(asker, policy)
            .map_err(|problem| problem.within(if own.is_some() { place } else { "" }))?;
        let (own_cost, own_key) =
            (entry.and_then(|entry| entry.cost), entry.and_then(|entry| entry.key.as_ref()));
        let of = |is_own: bool, field: &str| format!("{}/{field}", if is_own { place } else { "" });
        let cost = own_cost.or(self.cost);
        check_cost(cost, &of(own_cost.is_some(), "cost"))?;
        let key = own_key.or(self.key.as_ref()).map_or(&[][..], Vec::as_slice);
        if let Some(part) = key.iter().position(|value| value.len() > MAX_VALUE) {
            let field = of(own_key.is_some(), &format!("key/{part}"));
            let detail =
                format!("a value of a key has at most {MAX_VALUE} bytes: send a hash of a longer one");
            return Err(Problem::of_field(field, detail));
        }
        let limit = match entry {
            Some(entry) => entry.limit.as_deref(),
            None => self.limit.as_deref(),
        };
        Ok(NamedLimit { policy, limit, key, cost })
    }

    fn how(&self) -> Result<How, Problem> {
        match (self.peek.unwrap_or_default(), &self.reserve) {
            (true, Some(_)) => Err(Problem::of_field(
                "/peek",
                "`peek` charges nothing, and `reserve` does: leave one of them out",
            )),
            (true, None) => Ok(How::Peek),
            (false, None) => Ok(How::Charge),
            (false, Some(ReserveBody { expires_after_seconds: None })) => Ok(How::Reserve(None)),
            (false, Some(ReserveBody { expires_after_seconds: Some(seconds) })) => match seconds {
                1..=MAX_RESERVED_SECONDS => Ok(How::Reserve(Period::from_millis(seconds * 1000).ok())),
                _ => Err(Problem::of_field(
                    "/reserve/expiresAfterSeconds",
                    format!("a reservation lasts for 1 to {MAX_RESERVED_SECONDS} seconds"),
                )),
            },
        }
    }
}

/// Returns the status of an answer to a caller that may not ask.
pub(crate) fn status_of(refused: &NotPermitted) -> StatusCode {
    match refused {
        NotPermitted::Unidentified | NotPermitted::Token => StatusCode::UNAUTHORIZED,
        NotPermitted::WithoutKeys => StatusCode::SERVICE_UNAVAILABLE,
        NotPermitted::Unknown(_) | NotPermitted::Domain { .. } | NotPermitted::Namespace { .. } => {
            StatusCode::FORBIDDEN
        }
    }
}

/// Fails if the caller may not name a policy, as if there were none: it must not learn what there is.
fn may_name_policy(asker: &Asker<'_>, policy: &str) -> Result<(), Problem> {
    let namespace = policy.split_once('/').map_or(policy, |(namespace, _)| namespace);
    if asker.may_name(namespace) {
        return Ok(());
    }
    let error = NotChecked::Policy(policy.to_owned());
    Err(Problem::of_field("/policy", error.to_string()).with(StatusCode::NOT_FOUND))
}

/// Returns an answer that is no decision.
pub(crate) fn problem(status: StatusCode, detail: impl Into<Cow<'static, str>>) -> Response {
    Problem::new(status, detail).into_response()
}

/// Returns the problem of a check that cannot be made.
fn of_error(error: &CheckError, position: Option<usize>, body: &CheckBody) -> Problem {
    let place = match (&body.limits, position) {
        (Some(_), Some(position)) => format!("/limits/{position}"),
        _ => String::new(),
    };
    let (status, field) = match error {
        CheckError::NotChecked(NotChecked::NoPolicies) => (StatusCode::SERVICE_UNAVAILABLE, None),
        CheckError::NotChecked(NotChecked::Policy(_)) => (StatusCode::NOT_FOUND, Some("/policy")),
        CheckError::Limit(_) => (StatusCode::NOT_FOUND, Some("/limit")),
        CheckError::Unnamed(_) => (StatusCode::BAD_REQUEST, Some("/limit")),
        CheckError::Cost(_) => (StatusCode::UNPROCESSABLE_ENTITY, Some("/cost")),
        CheckError::Key(_) => (StatusCode::UNPROCESSABLE_ENTITY, Some("/key")),
        CheckError::NotPossible(_) => (StatusCode::UNPROCESSABLE_ENTITY, Some("/limit")),
        CheckError::Twice => (StatusCode::UNPROCESSABLE_ENTITY, Some("")),
        // As from a sidecar.
        CheckError::TooManyLimits => (StatusCode::BAD_REQUEST, Some("/limits")),
        CheckError::NotChecked(NotChecked::AmbiguousPath) => {
            (StatusCode::UNPROCESSABLE_ENTITY, Some("/request/url"))
        }
    };
    let problem = Problem::new(status, error.to_string());
    match field {
        Some(field)
            if body.request.is_none()
                || matches!(error, CheckError::NotChecked(NotChecked::AmbiguousPath)) =>
        {
            Problem::of_field(format!("{place}{field}"), error.to_string()).with(status)
        }
        Some(_) => Problem::of_field("/request", error.to_string()).with(status),
        None => problem,
    }
}

fn answer_body(body: &CheckBody, answer: CheckAnswer) -> CheckAnswerBody {
    CheckAnswerBody {
        peek: body.peek.unwrap_or_default(),
        allowed: answer.is_allowed(),
        reservation: answer.reservation.map(|reservation| ReservationBody {
            id: reservation.id,
            limits: reservation.limits,
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
        reset_seconds: status.reset_seconds,
        never_fits: is_over && status.retry_after_seconds.is_none(),
        retry_after_seconds: status.retry_after_seconds,
    }
}

//! The doors for requests that gateways forward, `authz` and `auth`: which policies they are checked by, and what the gateway is told.
//! Each door reads its protocol into a [`Head`], and writes what was [decided](Decided).

use std::fmt;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{CACHE_CONTROL, SET_COOKIE};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use sluice_config::charged::CHARGED;
use sluice_engine::heads::{NotChecked, Policies};
use sluice_engine::per_second::LogSampler;
use sluice_engine::{Answer, Engine, GrpcStatus, Refused, ResponseFormat, Reveal};

use crate::asker::Asker;
use crate::authorizer::{Authorized, Authorizer};
use crate::callers::Callers;
use crate::head::{Head, Malformed};
use crate::metrics::{HeadMetrics, Metrics};

/// Both doors.
#[derive(Debug)]
pub(crate) struct Heads {
    pub(crate) engine: Engine,
    pub(crate) metrics: Metrics,
    pub(crate) callers: Option<Callers>,
    /// Whether a gateway that names nothing asks about the policies of all namespaces: there is one user.
    pub(crate) is_of_one_user: bool,
    /// The user's own authorizer, if there is one.
    pub(crate) authorizer: Option<Authorizer>,
    /// Time for which gateways wait that do not say so.
    pub(crate) timeout: Duration,
    pub(crate) log: LogSampler,
}

/// The policies that a gateway's configuration names.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Named<'a> {
    pub(crate) namespace: Option<&'a str>,
    pub(crate) policy: Option<&'a str>,
}

/// The answer to a gateway.
#[derive(Debug)]
pub(crate) enum Decided {
    /// It forwards the request.
    Admitted {
        answer: Box<Answer>,
        /// Headers that the request gets in place of its client's.
        request: HeaderMap,
        /// Headers of the client that it loses.
        removed: Vec<HeaderName>,
        /// Headers that the response gets.
        response: HeaderMap,
    },
    /// It answers with this response.
    Denied { answer: Option<Box<Answer>>, response: Response<Bytes> },
}

/// The reason why a gateway is told nothing: its configuration is wrong, or the service has none yet. No client can cause it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotDecided {
    #[error(
        "say whose policies apply: name a namespace in the configuration of the gateway (docs/gateways.md), or grant its caller one \
         namespace alone in service.callers"
    )]
    Unnamed,
    #[error("there is no namespace {0:?} that you may ask about: grant it in service.callers")]
    Namespace(String),
    #[error("a policy is named as NAMESPACE/NAME, or beside its namespace")]
    Policy,
    #[error(transparent)]
    NotChecked(NotChecked),
}

impl Heads {
    /// Decides a request. `head` is what the gateway has sent of it.
    pub(crate) async fn decide(
        &self,
        asker: &Asker<'_>,
        named: Named<'_>,
        (head, format): (Result<Head, Malformed>, ResponseFormat),
        (metrics, budget): (&HeadMetrics, Duration),
    ) -> Result<Decided, NotDecided> {
        let arrived = Instant::now();
        let decided = match self.policies(asker, named) {
            Ok((name, policies)) => {
                let policies = match policies {
                    Kind::All => Policies::All,
                    Kind::Namespace => Policies::Namespace(&name),
                    Kind::Policy => Policies::Named(&name),
                };
                self.decide_by(policies, asker, (head, format), budget).await
            }
            Err(error) => Err(error),
        };
        let (answer, is_denied) = match &decided {
            Ok(Decided::Admitted { answer, .. }) => (Some(answer), false),
            Ok(Decided::Denied { answer, .. }) => (answer.as_ref(), true),
            Err(error) => {
                self.tell_nothing(metrics, error);
                return decided;
            }
        };
        let is_without_store = answer.is_some_and(|answer| answer.summary().store_failure.is_some());
        metrics.answered(is_denied, is_without_store, arrived.elapsed());
        decided
    }

    async fn decide_by(
        &self,
        policies: Policies<'_>,
        asker: &Asker<'_>,
        (head, format): (Result<Head, Malformed>, ResponseFormat),
        budget: Duration,
    ) -> Result<Decided, NotDecided> {
        let refused = |status, detail: &str| {
            let response = format.failure(status, GrpcStatus::InvalidArgument, detail);
            Ok(Decided::Denied { answer: None, response })
        };
        let mut head = match head {
            Ok(head) => head,
            Err(malformed) => return refused(malformed.status(), malformed.detail()),
        };
        let until = tokio::time::Instant::now() + budget;
        let mut sent = Vec::new();
        let (mut request, mut response) = (HeaderMap::new(), HeaderMap::new());
        let (first, last) = match &self.authorizer {
            Some(authorizer) if authorizer.is_last => (None, Some(authorizer)),
            authorizer => (authorizer.as_ref(), None),
        };
        if let Some(authorizer) = first.or(last) {
            sent = authorizer.take_sent(&mut head.headers);
        }
        if let Some(authorizer) = first {
            match Self::authorize(authorizer, &head, format, until, &mut response).await {
                Ok(headers) => request = headers,
                Err(response) => return Ok(Decided::Denied { answer: None, response: *response }),
            }
            // Limits may be by what the authorizer has found out.
            head.headers.extend(request.clone());
        }
        let left = until.saturating_duration_since(tokio::time::Instant::now());
        let turn = async |counters| self.metrics.work.turn(asker.whose(), counters, left).await;
        let decided = self.engine.decide_head(policies, turn, || head.attributes()).await;
        let mut answer = match decided {
            Ok(answer) => Box::new(answer),
            Err(NotChecked::AmbiguousPath) => {
                return refused(StatusCode::BAD_REQUEST, Refused::AmbiguousPath.detail());
            }
            Err(error @ (NotChecked::NoPolicies | NotChecked::Policy(_))) => {
                return Err(NotDecided::NotChecked(error));
            }
        };
        if let Some(response) = answer.rejection(format, Reveal::Nothing) {
            self.tell_needs_exchange(&answer);
            return Ok(Decided::Denied { answer: Some(answer), response });
        }
        if let Some(authorizer) = last {
            match Self::authorize(authorizer, &head, format, until, &mut response).await {
                Ok(headers) => request = headers,
                Err(response) => return Ok(Decided::Denied { answer: None, response: *response }),
            }
        }
        answer.take_marks().write(&mut request);
        let mark = answer.charged_mark().and_then(|mark| HeaderValue::try_from(mark).ok());
        request.extend(mark.map(|mark| (CHARGED, mark)));
        let removed = answer.sent_marks(&head.headers).cloned().chain(sent);
        let removed = removed.filter(|name| !request.contains_key(name)).collect();
        answer.write_status(Reveal::Nothing, &mut response);
        Ok(Decided::Admitted { answer, request, removed, response })
    }

    /// Asks the authorizer. Returns the headers that the request gets, or the answer to its client.
    async fn authorize(
        authorizer: &Authorizer,
        head: &Head,
        format: ResponseFormat,
        until: tokio::time::Instant,
        of_response: &mut HeaderMap,
    ) -> Result<HeaderMap, Box<Response<Bytes>>> {
        let failed = |status, detail| Err(format.failure(status, GrpcStatus::Unavailable, detail).into());
        match authorizer.ask(head, until).await {
            Authorized::Passed { request, cookies } => {
                for cookie in cookies {
                    of_response.append(SET_COOKIE, cookie);
                }
                Ok(request)
            }
            Authorized::Refused(response) => Err(response.into()),
            Authorized::Failed if authorizer.fails_open => Ok(HeaderMap::new()),
            Authorized::Failed => {
                failed(StatusCode::SERVICE_UNAVAILABLE, "The request cannot be authorized now.")
            }
            Authorized::Loop => failed(
                StatusCode::LOOP_DETECTED,
                "The request has come back from the authorizer that was asked about it.",
            ),
        }
    }

    /// Counts a question without an answer, and says why in the log.
    pub(crate) fn tell_nothing(&self, metrics: &HeadMetrics, reason: &dyn fmt::Display) {
        metrics.refuse();
        if let Some(left_out) = self.log.take() {
            let door = metrics.door;
            tracing::warn!(left_out, door, %reason, "a gateway is told nothing about its requests");
        }
    }

    /// Says in the log why all such requests fail.
    fn tell_needs_exchange(&self, answer: &Answer) {
        let summary = answer.summary();
        if let Some(limit) = summary.limit.filter(|_| answer.needs_exchange())
            && let Some(left_out) = self.log.take()
        {
            tracing::error!(
                left_out,
                policy = %format_args!("{}/{}", limit.policy_namespace, limit.policy),
                limit = limit.limit,
                "the limit needs the response to a request, or its end, which a gateway does not show at authz and auth, so requests that \
                 meet it are denied: add Sidecar to spec.enforcedBy, so that sidecars enforce it, or name another policy (docs/gateways.md)"
            );
        }
    }

    /// Returns the policies that a gateway asks about, as far as it may.
    fn policies(&self, asker: &Asker<'_>, named: Named<'_>) -> Result<(String, Kind), NotDecided> {
        let (namespace, policy) = match named.policy.map(|policy| policy.split_once('/')) {
            Some(Some((namespace, name))) if named.namespace.is_none_or(|named| named == namespace) => {
                (Some(namespace), Some(name))
            }
            Some(Some(_)) => return Err(NotDecided::Policy),
            Some(None) => (named.namespace, named.policy),
            None => (named.namespace, None),
        };
        match (namespace.or_else(|| asker.only_namespace()), policy) {
            (Some(namespace), _) if !asker.may_name(namespace) => {
                Err(NotDecided::Namespace(namespace.to_owned()))
            }
            (Some(namespace), Some(policy)) => Ok((format!("{namespace}/{policy}"), Kind::Policy)),
            (Some(namespace), None) => Ok((namespace.to_owned(), Kind::Namespace)),
            (None, Some(_)) => Err(NotDecided::Policy),
            (None, None) if self.is_of_one_user => Ok((String::new(), Kind::All)),
            (None, None) => Err(NotDecided::Unnamed),
        }
    }
}

/// The kind of what a gateway names.
enum Kind {
    All,
    Namespace,
    Policy,
}

/// Keeps gateways from answering another request with an answer.
pub(crate) fn forbid_caching(headers: &mut HeaderMap) {
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
}

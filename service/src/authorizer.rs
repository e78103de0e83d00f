//! An authorizer of the user's own behind the doors `authz` and `auth`: gateways have one place for external authorization, which
//! sign-on may have taken. It is asked over HTTP about each request, before its limits or after them.

use bytes::Bytes;
use http::header::{
    ACCEPT_ENCODING, CONNECTION, CONTENT_LENGTH, EXPECT, HOST, PROXY_AUTHORIZATION, SET_COOKIE, TE,
    TRANSFER_ENCODING, UPGRADE,
};
use http::uri::Scheme;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, Uri};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use sluice_config::request::field_name::are_alike;
use tokio::time::Instant;

use crate::head::Head;

/// Marks the requests that this service sends, so that one which comes back to it is told apart.
const AUTHORIZING: HeaderName = HeaderName::from_static("sluice-authorizing");
/// Largest body of an answer that a client gets, in bytes.
const MAX_BODY: usize = 64 << 10;
const FORWARDED_METHOD: HeaderName = HeaderName::from_static("x-forwarded-method");
const FORWARDED_URI: HeaderName = HeaderName::from_static("x-forwarded-uri");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");
/// Headers in which proxies tell what a request was.
const TOLD: [HeaderName; 8] = [
    FORWARDED_METHOD,
    FORWARDED_URI,
    FORWARDED_HOST,
    REAL_IP,
    HeaderName::from_static("x-original-url"),
    HeaderName::from_static("x-original-uri"),
    HeaderName::from_static("x-original-method"),
    HeaderName::from_static("x-rewrite-url"),
];
/// Headers about a connection, in either direction, and what a body is compressed by.
const OF_CONNECTION: [HeaderName; 9] = [
    ACCEPT_ENCODING,
    CONNECTION,
    CONTENT_LENGTH,
    EXPECT,
    PROXY_AUTHORIZATION,
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
    HeaderName::from_static("keep-alive"),
];

/// The arguments.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct AuthorizerArgs {
    /// URL of an authorizer of your own (http://...), which is asked about each request at /v1/auth and envoy.service.auth.v3: 2xx lets it
    /// pass, and any other answer is the client's
    #[arg(long, env = "SLUICE_AUTHORIZER", value_name = "URL", value_parser = url)]
    pub authorizer: Option<Uri>,
    /// Headers of its answer that requests get in place of their client's, and that limits see
    #[arg(
        long,
        env = "SLUICE_AUTHORIZER_HEADERS",
        value_name = "NAME",
        value_delimiter = ',',
        requires = "authorizer"
    )]
    pub authorizer_headers: Vec<HeaderName>,
    /// Ask it after the limits, and not before them. What it refuses then stays charged
    #[arg(long, env = "SLUICE_AUTHORIZER_LAST", requires = "authorizer")]
    pub authorizer_last: bool,
    /// Let requests pass that it does not answer in time. Without it they are answered with 503
    #[arg(long, env = "SLUICE_AUTHORIZER_FAIL_OPEN", requires = "authorizer")]
    pub authorizer_fail_open: bool,
}

fn url(text: &str) -> Result<Uri, String> {
    let url: Uri = text.parse().map_err(|error| format!("this is no URL: {error}"))?;
    let is_http = url.scheme() == Some(&Scheme::HTTP) && url.authority().is_some();
    is_http.then_some(url).ok_or_else(|| "write a URL with http://, a host and a path".to_owned())
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AnswerLabels {
    answer: &'static str,
}

/// The authorizer.
#[derive(Debug)]
pub(crate) struct Authorizer {
    client: Client<HttpConnector, Empty<Bytes>>,
    url: Uri,
    headers: Vec<HeaderName>,
    pub(crate) is_last: bool,
    pub(crate) fails_open: bool,
    /// Answers: passed, refused, failed.
    answers: [Counter; 3],
}

/// Its answer about a request.
#[derive(Debug)]
pub(crate) enum Authorized {
    /// The request passes.
    Passed {
        /// Headers that it gets in place of its client's.
        request: HeaderMap,
        /// Cookies that its client gets.
        cookies: Vec<HeaderValue>,
    },
    /// The client gets this answer.
    Refused(Response<Bytes>),
    /// It has not answered.
    Failed,
    /// The request has come back from the authorizer.
    Loop,
}

impl Authorizer {
    /// Creates the authorizer, if there is one.
    pub(crate) fn new(args: AuthorizerArgs, registry: &mut Registry) -> Option<Self> {
        let AuthorizerArgs { authorizer, authorizer_headers, authorizer_last, authorizer_fail_open } = args;
        let answers = Family::<AnswerLabels, Counter>::default();
        registry.register(
            "authorizer_answers",
            "Requests that the authorizer behind authz and auth was asked about, by its answer: passed, refused, or failed if none came in time",
            answers.clone(),
        );
        let answers = ["passed", "refused", "failed"]
            .map(|answer| answers.get_or_create_owned(&AnswerLabels { answer }));
        let url = authorizer?;
        let client = Client::builder(TokioExecutor::new()).build_http();
        let (is_last, fails_open) = (authorizer_last, authorizer_fail_open);
        Some(Self { client, url, headers: authorizer_headers, is_last, fails_open, answers })
    }

    /// Takes away what the client has sent under the names of the authorizer's headers, and returns these names.
    pub(crate) fn take_sent(&self, headers: &mut HeaderMap) -> Vec<HeaderName> {
        let is_own = |name: &&HeaderName| self.headers.iter().any(|own| are_alike(own, name));
        let sent: Vec<_> = headers.keys().filter(is_own).cloned().collect();
        for name in &sent {
            headers.remove(name);
        }
        sent
    }

    /// Asks about a request until a time.
    pub(crate) async fn ask(&self, head: &Head, until: Instant) -> Authorized {
        if head.headers.contains_key(AUTHORIZING) {
            return Authorized::Loop;
        }
        let Ok(request) = self.question(head) else {
            self.answers[2].inc();
            return Authorized::Failed;
        };
        let answered = tokio::time::timeout_at(until, async {
            let (head, body) = self.client.request(request).await.ok()?.into_parts();
            let body = Limited::new(body, MAX_BODY).collect().await.ok()?.to_bytes();
            Some((head, body))
        });
        let Ok(Some((mut answer, body))) = answered.await else {
            self.answers[2].inc();
            return Authorized::Failed;
        };
        if answer.status.is_success() {
            self.answers[0].inc();
            let own = |name: &HeaderName| Some((name.clone(), answer.headers.get(name)?.clone()));
            let cookies = answer.headers.get_all(SET_COOKIE).iter().cloned().collect();
            return Authorized::Passed { request: self.headers.iter().filter_map(own).collect(), cookies };
        }
        if answer.status.is_server_error() {
            self.answers[2].inc();
            return Authorized::Failed;
        }
        self.answers[1].inc();
        for name in OF_CONNECTION {
            answer.headers.remove(name);
        }
        let mut refusal = Response::new(body);
        *refusal.status_mut() = answer.status;
        *refusal.headers_mut() = answer.headers;
        Authorized::Refused(refusal)
    }

    /// Makes the question: a request without a body that has the client's headers, and the rest of its head in others.
    fn question(&self, head: &Head) -> Result<Request<Empty<Bytes>>, http::Error> {
        let mut request = Request::get(self.url.clone()).body(Empty::new())?;
        let headers = request.headers_mut();
        *headers = head.headers.clone();
        for name in OF_CONNECTION {
            headers.remove(name);
        }
        let host = headers.remove(HOST);
        // What the authorizer reads of the request is this service's word, under every name that some server takes for it.
        let is_told = |name: &&HeaderName| TOLD.iter().any(|told| are_alike(told, name));
        let told: Vec<_> = headers.keys().filter(is_told).cloned().collect();
        for name in told {
            headers.remove(name);
        }
        let target = head.uri.path_and_query().map_or("/", |target| target.as_str());
        headers.insert(FORWARDED_METHOD, HeaderValue::from_str(head.method.as_str())?);
        headers.insert(FORWARDED_URI, HeaderValue::from_str(target)?);
        headers.insert(REAL_IP, HeaderValue::from_str(&head.peer().to_string())?);
        headers.extend(host.map(|host| (FORWARDED_HOST, host)));
        headers.insert(AUTHORIZING, HeaderValue::from_static("1"));
        Ok(request)
    }
}

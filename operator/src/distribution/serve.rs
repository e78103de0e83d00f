//! The control port: `GET /v1/stream`, `GET /v1/blobs/HASH` and `POST /v1/reports`, over TLS. A session requires the
//! token of a pod. The others require the name of a session, which is 128 random bits that only its sidecar has received.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{ConnectInfo, DefaultBodyLimit, FromRequest as _, Path, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use jiff::Timestamp;
use sluice_config::message::{BLOBS_PATH, REPORTS_PATH, Report, SESSION_HEADER, STREAM_PATH, VERSION};
use sluice_config::policy::BlobHash;
use sluice_crds::policy::Enforcer;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;

use crate::cluster::pods::Pods;
use crate::distribution::connections::Place;
use crate::distribution::hub::Hub;
use crate::distribution::identity::{Denied, Identity, find_pod, review};
use crate::distribution::reviews::Reviews;
use crate::distribution::stream::send_changes;
use crate::distribution::token_keys::{TokenKeys, Verdict};
use crate::metrics::Metrics;
use crate::service_account::ServiceAccount;

/// Maximum size of a report, in bytes. Reports contain hashes and reasons only. The service reports about the policies of all
/// namespaces.
const MAX_REPORT: usize = 256 << 10;
const MAX_SERVICE_REPORT: usize = 16 << 20;
/// Time in which a report must arrive.
const REPORT_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of sessions of one replica.
const MAX_SESSIONS: usize = 20_000;
/// Longest time that a caller waits until sessions may begin and its token can be reviewed.
const MAX_WAIT: Duration = Duration::from_secs(10);
/// Longest time that a caller waits until all pods have been listed, before its own is read.
const MAX_LISTING: Duration = Duration::from_secs(5);

#[derive(Clone)]
struct Control {
    client: kube::Client,
    pods: Pods,
    hub: Arc<Hub>,
    metrics: Arc<Metrics>,
    keys: Arc<TokenKeys>,
    service: Option<ServiceAccount>,
    reviews: Arc<Reviews>,
}

impl Control {
    /// Identifies the pod of a token whose verdict is known.
    async fn identify(&self, token: &str, verdict: Verdict) -> Result<Identity, Denied> {
        let claims = match verdict {
            Verdict::Valid(claims) => claims,
            Verdict::Invalid(reason) => return Err(Denied::Token(reason)),
            Verdict::Undecided => {
                self.metrics.token_reviewed();
                review(&self.client, token).await?
            }
        };
        find_pod(&self.pods, self.service.as_ref(), claims).await
    }
}

/// Returns the routes of the control port.
pub fn router(
    client: kube::Client,
    pods: Pods,
    hub: Arc<Hub>,
    metrics: Arc<Metrics>,
    service: Option<ServiceAccount>,
) -> Router {
    let keys = Arc::new(TokenKeys::new(client.clone()));
    if service.is_some() {
        tokio::spawn(keys.clone().publish(hub.clone()));
    }
    Router::new()
        .route(STREAM_PATH, get(begin_session))
        .route(&format!("{BLOBS_PATH}{{hash}}"), get(blob))
        .route(REPORTS_PATH, post(report).layer(DefaultBodyLimit::disable()))
        .with_state(Control { keys, client, pods, hub, metrics, service, reviews: Reviews::new() })
}

/// Identifies the pod that asks for a session, or returns the response that refuses it.
async fn admit(
    control: &Control,
    source: SocketAddr,
    place: &Place,
    headers: &HeaderMap,
) -> Result<Identity, (StatusCode, String)> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let Some(token) = bearer.and_then(|value| value.strip_prefix("Bearer ")) else {
        let text = "send the token of the pod's service account as a bearer token\n";
        return Err((StatusCode::UNAUTHORIZED, text.into()));
    };
    let verdict = control.keys.verify(token).await;
    let claims = match &verdict {
        Verdict::Valid(claims) => Some(claims),
        Verdict::Invalid(_) | Verdict::Undecided => None,
    };
    let is_verified = claims.is_some();
    let Ok(review) = control.reviews.admit(source.ip(), token, is_verified) else {
        control.metrics.session_denied();
        let text = "too many reviews of this token, or of tokens of this address, try again in a minute\n";
        return Err((StatusCode::TOO_MANY_REQUESTS, text.into()));
    };
    // In a crowd it waits for its review, and strangers must not stay for long.
    if review.is_known() {
        place.is_sidecar();
    }
    let ready = async {
        let listed = tokio::time::timeout(MAX_LISTING, control.pods.listed());
        let _ = tokio::join!(control.hub.opened(), listed);
        // A crowd of sidecars whose pods are known costs the API server next to nothing.
        if claims.is_some_and(|claims| control.pods.get(&claims.namespace, &claims.pod_uid).is_some()) {
            return Some(None);
        }
        review.place().await.map(Some)
    };
    let unavailable = |text: &str| (StatusCode::SERVICE_UNAVAILABLE, text.to_owned());
    let Ok(Some(permit)) = tokio::time::timeout(MAX_WAIT, ready).await else {
        return Err(unavailable("the operator is not ready yet, try again later\n"));
    };
    if control.hub.session_count() >= MAX_SESSIONS {
        return Err(unavailable("the operator has too many sessions, try again later\n"));
    }
    let identified = tokio::time::timeout(MAX_WAIT, control.identify(token, verdict)).await;
    let identified = identified.unwrap_or(Err(Denied::Slow));
    drop(permit);
    match identified {
        Ok(identity) => {
            review.accepted();
            place.is_sidecar();
            Ok(identity)
        }
        Err(denied) => {
            match denied {
                Denied::Token(_) | Denied::Pod(_) | Denied::NoSidecar(_) => {
                    review.refused();
                }
                Denied::Api(_) | Denied::Slow => drop(review),
            }
            control.metrics.session_denied();
            tracing::debug!("session denied: {denied}");
            let status = match denied {
                Denied::Token(_) => StatusCode::UNAUTHORIZED,
                Denied::Pod(_) | Denied::NoSidecar(_) => StatusCode::FORBIDDEN,
                Denied::Api(_) | Denied::Slow => StatusCode::SERVICE_UNAVAILABLE,
            };
            Err((status, format!("{denied}\n")))
        }
    }
}

async fn begin_session(
    State(control): State<Control>,
    ConnectInfo(source): ConnectInfo<SocketAddr>,
    Extension(place): Extension<Arc<Place>>,
    headers: HeaderMap,
) -> Response {
    let identity = match admit(&control, source, &place, &headers).await {
        Ok(identity) => identity,
        Err((status, text)) => return refused(status, text),
    };
    let last_applied = headers.get("last-event-id").and_then(|value| value.to_str().ok()).map(str::to_owned);
    begin(&control, identity, last_applied)
        .unwrap_or_else(|Gone| refused(StatusCode::FORBIDDEN, "the pod was deleted\n".into()))
}

/// The pod was deleted while its session began.
struct Gone;

/// Begins the session of a pod, which ends with its token.
fn begin(control: &Control, identity: Identity, last_applied: Option<String>) -> Result<Response, Gone> {
    tracing::debug!(namespace = identity.namespace, pod = identity.pod, "session begins");
    let name = format!("{:032x}", rand::random::<u128>());
    let time_left = identity.expires.map(|at| (at - Timestamp::now().as_second()).max(0).unsigned_abs());
    let ends = time_left.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let (namespace, pod_uid) = (identity.namespace.clone(), identity.pod_uid.clone());
    let closed = control.hub.connect(identity, &name);
    // The watch tells the hub of changes of pods with a session: what it has reported meanwhile is made up for.
    if let Some(pod) = control.pods.get(&namespace, &pod_uid) {
        control.hub.set_pod_labels(&pod_uid, &pod.labels);
    } else if control.pods.is_gone(&namespace, &pod_uid) {
        control.hub.remove_pod(&pod_uid);
        return Err(Gone);
    }
    let (sender, receiver) = mpsc::channel(1);
    let (hub, metrics, session) = (control.hub.clone(), control.metrics.clone(), name.clone());
    tokio::spawn(async move {
        send_changes(hub.clone(), metrics, pod_uid.clone(), last_applied, ends, closed, sender).await;
        hub.disconnect(&pod_uid, &session);
    });
    let headers = [
        (header::CONTENT_TYPE.as_str(), "text/event-stream"),
        (header::CACHE_CONTROL.as_str(), "no-store"),
        (SESSION_HEADER, &name),
    ];
    Ok((headers, Body::from_stream(ReceiverStream::new(receiver))).into_response())
}

/// Returns content that a policy of the session's pod refers to.
async fn blob(
    State(control): State<Control>,
    Extension(place): Extension<Arc<Place>>,
    Path(hash): Path<String>,
    headers: HeaderMap,
) -> Response {
    let session = session_of(&headers);
    if !session.is_some_and(|name| control.hub.has_session(name)) {
        return session_has_ended();
    }
    place.is_sidecar();
    let hash = BlobHash::try_from(hash).ok();
    match session.zip(hash).and_then(|(name, hash)| control.hub.blob(name, &hash)) {
        Some(bytes) => ([(header::CONTENT_TYPE, "application/octet-stream")], bytes).into_response(),
        None => (StatusCode::NOT_FOUND, "no policy of the pod refers to this content\n").into_response(),
    }
}

/// Returns the name of the session that a request names.
fn session_of(headers: &HeaderMap) -> Option<&str> {
    headers.get(SESSION_HEADER).and_then(|name| name.to_str().ok())
}

async fn report(
    State(control): State<Control>,
    Extension(place): Extension<Arc<Place>>,
    request: Request,
) -> Response {
    // Nothing is read for strangers.
    let enforcer = session_of(request.headers()).and_then(|name| control.hub.enforcer(name));
    let max = match enforcer {
        None => return session_has_ended(),
        Some(Enforcer::Sidecar) => MAX_REPORT,
        Some(Enforcer::Service) => MAX_SERVICE_REPORT,
    };
    place.is_sidecar();
    let request = request.map(|body| Body::new(http_body_util::Limited::new(body, max)));
    let received = tokio::time::timeout(REPORT_TIMEOUT, Json::<Report>::from_request(request, &()));
    let report = match received.await {
        Ok(Ok(Json(report))) => report,
        Ok(Err(invalid)) => return invalid.into_response(),
        Err(_) => {
            return (StatusCode::REQUEST_TIMEOUT, "the report did not arrive in time\n").into_response();
        }
    };
    if report.version != VERSION {
        let text =
            format!("reports of version {} are not supported, only version {VERSION}\n", report.version);
        return (StatusCode::BAD_REQUEST, text).into_response();
    }
    if control.hub.report(report) { StatusCode::NO_CONTENT.into_response() } else { session_has_ended() }
}

fn session_has_ended() -> Response {
    refused(StatusCode::GONE, "the session has ended: connect again\n".into())
}

/// Refuses a request whose connection is no sidecar's, or no longer, even if its token is genuine: the connection ends.
fn refused(status: StatusCode, text: String) -> Response {
    (status, [(header::CONNECTION, "close")], text).into_response()
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddrV4};

    use axum::http::HeaderValue;
    use futures::stream::FuturesUnordered;
    use futures::{FutureExt as _, StreamExt as _};
    use sluice_config::policy::Mode;

    use super::*;
    use crate::cluster::limit_ranges::LimitRanges;
    use crate::distribution::connections::Connections;
    use crate::distribution::fixtures::hub;
    use crate::distribution::identity::TokenClaims;
    use crate::distribution::reviews::Review;
    use crate::distribution::stores::HubStores;
    use crate::distribution::token_keys::tests::{Signer, claims, token_keys, with};
    use crate::injection::inject::tests::config;

    /// Returns a control port whose client of the API server never gets a response.
    fn control(signer: &Signer) -> Control {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let service = tower::service_fn(|_: axum::http::Request<kube::client::Body>| {
            std::future::pending::<Result<axum::http::Response<kube::client::Body>, std::io::Error>>()
        });
        let client = kube::Client::new(service, "default");
        Control {
            client: client.clone(),
            pods: Pods::new(client.clone(), Arc::new(config(true)), LimitRanges::default()),
            hub: hub(),
            metrics: Arc::default(),
            service: None,
            keys: Arc::new(token_keys(client, signer)),
            reviews: Reviews::new(),
        }
    }

    const SOURCE: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), 1));

    /// Asks for a session with a token.
    fn ask(control: &Control, place: &Arc<Place>, token: &str) -> impl Future<Output = Response> {
        let bearer = HeaderValue::from_str(&format!("Bearer {token}")).unwrap();
        let headers = [(header::AUTHORIZATION, bearer)].into_iter().collect();
        begin_session(State(control.clone()), ConnectInfo(SOURCE), Extension(place.clone()), headers)
    }

    #[tokio::test]
    async fn a_connection_with_a_verified_token_is_no_strangers_while_its_session_waits() {
        let (signer, forger) = (Signer::new("a"), Signer::new("a"));
        // Its hub never opens, so that all sessions wait.
        let control = control(&signer);
        let connections = Connections::new();
        for (token, is_stranger) in [
            (signer.sign("a", &claims()), false),
            (forger.sign("a", &claims()), true),
            (signer.sign("a", &with("aud", "another".into())), true),
            (signer.sign("a", &with("exp", 1.into())), true),
        ] {
            let place = connections.place(SOURCE.ip()).await.unwrap();
            assert!(ask(&control, &place, &token).now_or_never().is_none(), "it waits: {token}");
            assert_eq!(place.is_stranger(), is_stranger, "{token}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_verified_token_of_a_known_pod_does_not_wait_for_reviews_and_a_deleted_pod_has_no_session() {
        let signer = Signer::new("a");
        let control = control(&signer);
        control.hub.open();
        control.hub.set_stores(HubStores::default());
        control.hub.set_mode(Mode::Enforce);
        let token = signer.sign("a", &claims());
        let place = Connections::new().place(SOURCE.ip()).await.unwrap();
        // All places are taken by reviews that never end.
        let mut others = Vec::new();
        for n in 0..100 {
            others.push(control.reviews.admit(SOURCE.ip(), &format!("token {n}"), true).unwrap());
        }
        let mut waiting: FuturesUnordered<_> = others.iter().map(Review::place).collect();
        let mut places = Vec::new();
        while let Some(Some(place)) = waiting.next().now_or_never() {
            places.push(place);
        }
        assert_eq!(ask(&control, &place, &token).await.status(), StatusCode::SERVICE_UNAVAILABLE);
        let insert = || {
            let metadata = serde_json::from_value(
                serde_json::json!({"namespace": "shop", "name": "web-1", "uid": "u", "labels": {"app": "a"}}),
            );
            control.pods.insert_with_sidecar(&metadata.unwrap());
        };
        insert();
        assert_eq!(ask(&control, &place, &token).await.status(), StatusCode::OK);
        // The watch reports the deletion before the session is registered.
        control.pods.remove("shop", "u");
        insert();
        let identity = find_pod(&control.pods, None, valid(&control, &token).await).await.unwrap();
        control.pods.remove("shop", "u");
        assert!(begin(&control, identity, None).is_err());
        assert!(control.hub.desired("u", false).is_none());
    }

    async fn valid(control: &Control, token: &str) -> TokenClaims {
        match control.keys.verify(token).await {
            Verdict::Valid(claims) => claims,
            other => panic!("{other:?}"),
        }
    }
}

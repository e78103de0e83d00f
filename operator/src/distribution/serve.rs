//! The control port: `GET /v1/stream` and `GET /v1/blobs/HASH`, over TLS. A session requires the token of a pod, and content the name
//! of a session, which is 128 random bits that only its sidecar has received.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use axum::{Extension, Router};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use sluice_config::message::{BLOBS_PATH, SESSION_HEADER, SESSION_PROTOCOL, STREAM_PATH};
use sluice_config::policy::BlobHash;
use sluice_host::serve::Peer;
use sluice_host::serve::table::Connection;
use tokio::io::split;
use tokio::time::Instant;

use crate::cluster::pods::Pods;
use crate::distribution::hub::Hub;
use crate::distribution::identity::{ApiServerKeys, Denied, Verdict, find_pod, review};
use crate::distribution::reviews::Reviews;
use crate::distribution::session::{Identity, ReportsEnd, receive};
use crate::distribution::stream::{close, send_changes};
use crate::metrics::Metrics;
use crate::names::ServiceAccount;

/// Header with the ID of the last event that a sidecar has applied.
const LAST_EVENT_ID: header::HeaderName = header::HeaderName::from_static("last-event-id");
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
    keys: Arc<ApiServerKeys>,
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
                self.metrics.reviewed.inc();
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
    let keys = Arc::new(ApiServerKeys::new(client.clone()));
    if service.is_some() {
        tokio::spawn(keys.clone().publish(hub.clone()));
    }
    Router::new()
        .route(STREAM_PATH, get(begin_session))
        .route(&format!("{BLOBS_PATH}{{hash}}"), get(blob))
        .with_state(Control { keys, client, pods, hub, metrics, service, reviews: Reviews::new() })
}

/// Identifies the pod that asks for a session, or returns the response that refuses it.
async fn admit(
    control: &Control,
    source: SocketAddr,
    connection: &Connection,
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
        control.metrics.denied.inc();
        let text = "too many reviews of this token, or of tokens of this address, try again in a minute\n";
        return Err((StatusCode::TOO_MANY_REQUESTS, text.into()));
    };
    // In a crowd it waits for its review, and strangers must not stay for long.
    if review.is_known {
        connection.identified();
    }
    let ready = async {
        let listed = tokio::time::timeout(MAX_LISTING, control.pods.listed.wait());
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
            connection.identified();
            Ok(identity)
        }
        Err(denied) => {
            control.metrics.denied.inc();
            tracing::debug!("session denied: {denied}");
            let status = match denied {
                Denied::Token(_) => StatusCode::UNAUTHORIZED,
                Denied::Pod(_) | Denied::NoSidecar(_) => StatusCode::FORBIDDEN,
                Denied::Api(_) | Denied::Slow => StatusCode::SERVICE_UNAVAILABLE,
            };
            match status {
                StatusCode::SERVICE_UNAVAILABLE => drop(review),
                _ => review.refused(),
            }
            Err((status, format!("{denied}\n")))
        }
    }
}

async fn begin_session(
    State(control): State<Control>,
    Extension(Peer(source)): Extension<Peer>,
    Extension(connection): Extension<Arc<Connection>>,
    mut request: Request,
) -> Response {
    let identity = match admit(&control, source, &connection, request.headers()).await {
        Ok(identity) => identity,
        Err((status, text)) => return refused(status, text),
    };
    let header = |name| request.headers().get(name).and_then(|value| value.to_str().ok());
    if !header(header::UPGRADE).is_some_and(|name| name.eq_ignore_ascii_case(SESSION_PROTOCOL)) {
        let text = format!("send `Connection: upgrade` and `Upgrade: {SESSION_PROTOCOL}`\n");
        return (StatusCode::UPGRADE_REQUIRED, [(header::UPGRADE, SESSION_PROTOCOL)], text).into_response();
    }
    let last_applied = header(LAST_EVENT_ID).map(str::to_owned);
    let upgraded = hyper::upgrade::on(&mut request);
    begin(&control, identity, last_applied, upgraded)
        .unwrap_or_else(|Gone| refused(StatusCode::FORBIDDEN, "the pod was deleted\n".into()))
}

/// The pod was deleted while its session began.
struct Gone;

/// Begins the session of a pod, which ends with its token.
fn begin(
    control: &Control,
    identity: Identity,
    last_applied: Option<String>,
    upgraded: OnUpgrade,
) -> Result<Response, Gone> {
    tracing::debug!(namespace = identity.namespace, pod = identity.pod, "session begins");
    let name = format!("{:032x}", rand::random::<u128>());
    let time_left = identity.expires.map(|at| (at - Timestamp::now().as_second()).max(0).unsigned_abs());
    let ends = time_left.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let (namespace, pod_uid, enforcer) =
        (identity.namespace.clone(), identity.pod_uid.clone(), identity.enforcer);
    let closed = control.hub.connect(identity, &name);
    // The watch tells the hub of changes of pods with a session: what it has reported meanwhile is made up for.
    if let Some(pod) = control.pods.get(&namespace, &pod_uid) {
        control.hub.set_pod_labels(&pod_uid, &pod.labels);
    } else if control.pods.is_gone(&namespace, &pod_uid) {
        control.hub.remove_pod(&pod_uid);
        return Err(Gone);
    }
    let headers = [
        (header::CONNECTION.as_str(), "upgrade"),
        (header::UPGRADE.as_str(), SESSION_PROTOCOL),
        (SESSION_HEADER, &name),
    ];
    let response = (StatusCode::SWITCHING_PROTOCOLS, headers).into_response();
    let (hub, metrics) = (control.hub.clone(), control.metrics.clone());
    tokio::spawn(async move {
        let Ok(connection) = upgraded.await else { return hub.disconnect(&pod_uid, &name) };
        let (reader, mut writer) = split(TokioIo::new(connection));
        let reports = receive(reader, enforcer, |report| hub.report(&name, report));
        let end = tokio::select! {
            () = send_changes(&hub, &metrics, &pod_uid, last_applied, ends, closed, &mut writer) => ReportsEnd::Ended,
            end = reports => end,
        };
        tracing::debug!(pod_uid, "session ends: {end}");
        hub.disconnect(&pod_uid, &name);
        let refused = if let ReportsEnd::Refused(reason) = &end { Some(reason.as_str()) } else { None };
        close(&mut writer, refused).await;
    });
    Ok(response)
}

/// Returns content that a policy of the session's pod refers to.
async fn blob(
    State(control): State<Control>,
    Extension(connection): Extension<Arc<Connection>>,
    Path(hash): Path<String>,
    headers: HeaderMap,
) -> Response {
    let session = session_of(&headers);
    if !session.is_some_and(|name| control.hub.has_session(name)) {
        return session_has_ended();
    }
    connection.identified();
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
    use sluice_host::serve::table::{Maxima, PortMetrics, Strangers, Table};

    use super::*;
    use crate::cluster::namespaces::LimitRanges;
    use crate::distribution::fixtures::hub;
    use crate::distribution::identity::TokenClaims;
    use crate::distribution::identity::token_keys_tests::{Signer, claims, token_keys, with};
    use crate::distribution::reviews::Review;
    use crate::distribution::stores::HubStores;
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
    fn ask(control: &Control, connection: &Arc<Connection>, token: &str) -> impl Future<Output = Response> {
        let bearer = HeaderValue::from_str(&format!("Bearer {token}")).unwrap();
        let request = Request::get(STREAM_PATH)
            .header(header::AUTHORIZATION, bearer)
            .header(header::UPGRADE, SESSION_PROTOCOL)
            .body(axum::body::Body::empty())
            .unwrap();
        let connection = Extension(connection.clone());
        begin_session(State(control.clone()), Extension(Peer(SOURCE)), connection, request)
    }

    fn table() -> Arc<Table> {
        let strangers = Some(Strangers { connections: 9, of_address: 9 });
        Table::new(Maxima { strangers, ..Maxima::new(99, 0) }, PortMetrics::default())
    }

    #[tokio::test]
    async fn a_connection_with_a_verified_token_is_no_strangers_while_its_session_waits() {
        let (signer, forger) = (Signer::new("a"), Signer::new("a"));
        // Its hub never opens, so that all sessions wait.
        let control = control(&signer);
        let table = table();
        for (token, is_stranger) in [
            (signer.sign("a", &claims()), false),
            (forger.sign("a", &claims()), true),
            (signer.sign("a", &with("aud", "another".into())), true),
            (signer.sign("a", &with("exp", 1.into())), true),
        ] {
            let place = table.place(SOURCE.ip()).await.unwrap();
            assert!(ask(&control, &place.0, &token).now_or_never().is_none(), "it waits: {token}");
            assert_eq!(place.0.is_stranger(), is_stranger, "{token}");
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
        let place = table().place(SOURCE.ip()).await.unwrap();
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
        assert_eq!(ask(&control, &place.0, &token).await.status(), StatusCode::SERVICE_UNAVAILABLE);
        let insert = || {
            let metadata = serde_json::from_value(
                serde_json::json!({"namespace": "shop", "name": "web-1", "uid": "u", "labels": {"app": "a"}}),
            );
            control.pods.insert_with_sidecar(&metadata.unwrap());
        };
        insert();
        assert_eq!(ask(&control, &place.0, &token).await.status(), StatusCode::SWITCHING_PROTOCOLS);
        // The watch reports the deletion before the session is registered.
        control.pods.remove("shop", "u");
        insert();
        let identity = find_pod(&control.pods, None, valid(&control, &token).await).await.unwrap();
        control.pods.remove("shop", "u");
        let upgraded = hyper::upgrade::on(Request::new(axum::body::Body::empty()));
        assert!(begin(&control, identity, None, upgraded).is_err());
        assert!(control.hub.desired("u", false).is_none());
    }

    async fn valid(control: &Control, token: &str) -> TokenClaims {
        match control.keys.verify(token).await {
            Verdict::Valid(claims) => claims,
            other => panic!("{other:?}"),
        }
    }
}

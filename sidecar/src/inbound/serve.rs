//! Serves one client connection: detects its protocol and passes each request to the proxy.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::service::service_fn;
use tokio::net::TcpStream;

use crate::inbound::client_stream::ClientStream;
use crate::inbound::connection::{Connection, ConnectionPermit};
use crate::inbound::drain::DrainWatch;
use crate::inbound::guard::{Panicked, guard};
use crate::inbound::head_timeout::HeadTimeouts;
use crate::inbound::protocol::{self, Detected, Protocol};
use crate::inbound::table::activity::Stage;
use crate::inbound::table::exchange::{Exchange, WatchedBody};
use crate::inbound::{http1, http2};
use crate::memory::BUDGET;
use crate::proxy::Proxy;
use crate::socket;
use crate::upstream::response_body::ResponseBody;

/// Time after the sidecar stops in which a connection without any bytes may still send its first.
const LAST_CHANCE: Duration = Duration::from_secs(1);

/// A connection with the proxy that handles its requests.
struct Handler {
    proxy: Arc<Proxy>,
    connection: Connection,
}

/// Serves a connection until it ends.
pub(super) async fn serve(
    mut stream: TcpStream,
    peer: IpAddr,
    proxy: Arc<Proxy>,
    permit: ConnectionPermit,
    timeouts: HeadTimeouts,
) {
    socket::prepare(&stream);
    let activity = permit.activity().clone();
    let accepts_proxy = proxy.publisher.current().accepts_proxy_protocol(peer);
    let mut drain = proxy.drain.clone();
    let detected = tokio::select! {
        biased;
        detected = protocol::detect(&mut stream, timeouts, accepts_proxy) => detected,
        () = last_chance(&mut drain) => None,
        reason = activity.ended() => {
            proxy.metrics.ended_connection(reason);
            None
        }
    };
    let Some(Detected { protocol, first_bytes, proxied }) = detected else { return };
    if protocol == Protocol::Http2 {
        activity.set_stage(Stage::Http2);
    }
    let Ok(stream) = ClientStream::new(stream, first_bytes, protocol, activity.clone()) else { return };
    let Some(connection) = Connection::new(peer, proxied, protocol, stream.ambiguity(), permit) else {
        return;
    };
    let metrics = proxy.metrics.clone();
    let handler = Arc::new(Handler { proxy, connection });
    let first_request = handler.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        let handler = handler.clone();
        // Here and not in the future, which hyper may poll later: the connection is busy from now on.
        let exchange = Exchange::begin(handler.connection.permit.activity().clone());
        // In memory of its own: an idle connection keeps none for its next request, and a request over HTTP/2 becomes a task,
        // before which a future is moved several times.
        Box::pin(async move {
            // The requests of an HTTP/2 connection may have arrived before reading stopped.
            if protocol == Protocol::Http2 {
                BUDGET.ready().await;
            }
            let response = match guard(handler.proxy.respond(&handler.connection, request)).await {
                Ok(response) => response,
                Err(Panicked) => {
                    handler.proxy.metrics.panics.inc();
                    internal_error()
                }
            };
            Ok::<_, Infallible>(response.map(|body| WatchedBody::new(body, exchange)))
        })
    });
    let ended = match protocol {
        Protocol::Http1 => {
            // The permit must not outlive the service.
            drop(first_request);
            http1::serve(stream, service, timeouts, &mut drain, &activity).await
        }
        Protocol::Http2 => {
            let first_request = async move { first_request.connection.first_request().await };
            http2::serve(stream, service, first_request, &mut drain, &activity, metrics.panics.clone()).await
        }
    };
    match ended {
        Ok(None) => {}
        Ok(Some(reason)) => metrics.ended_connection(reason),
        Err(error) => tracing::debug!(%peer, %error, "a client connection failed"),
    }
}

/// Responds to a request whose handling panicked.
fn internal_error() -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::empty());
    *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
    response
}

async fn last_chance(drain: &mut DrainWatch) {
    drain.stopping().await;
    tokio::time::sleep(LAST_CHANCE).await;
}

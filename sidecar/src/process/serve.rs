//! Serves one client connection: detects its protocol and passes each request to the proxy.
//!
//! - [`http1`], `http2`: a connection of each protocol. `handler`: what both have in common.

mod handler;
pub(crate) mod http1;
mod http2;

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use tokio::net::TcpStream;

use crate::inbound::client_body::ClientBody;
use crate::inbound::client_stream::ClientStream;
use crate::inbound::head_timeout::HeadTimeouts;
use crate::inbound::protocol::{self, Detected, Protocol};
use crate::inbound::table::activity::Stage;
use crate::inbound::table::exchange::{Exchange, WatchedBody};
use crate::inbound::validate::{MALFORMED, refused_by_parser};
use crate::process::serve::handler::Handler;
use crate::proxy::Proxy;
use crate::proxy::connection::{Connection, ConnectionPermit};
use crate::socket;
use sluice_host::drain::DrainWatch;

/// A client connection failed.
#[derive(Debug, thiserror::Error)]
enum ConnectionError {
    #[error("{0}")]
    Http1(hyper::Error),
    #[error("{0}")]
    Http2(h2::Error),
}

/// Time after the sidecar stops in which a connection without any bytes may still send its first.
const LAST_CHANCE: Duration = Duration::from_secs(1);

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
    let accepts_proxy = proxy.engine.accepts_proxy_protocol(peer);
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
    let Ok(mut stream) = ClientStream::new(stream, first_bytes, protocol, activity.clone()) else { return };
    let Some(connection) = Connection::new(peer, proxied, protocol, stream.ambiguity(), permit) else {
        return;
    };
    if protocol == Protocol::Http2 {
        let proxy = proxy.clone();
        let note = move || proxy.note_refused(peer, MALFORMED, &"h2 resets its stream as malformed");
        stream.watch_resets(Box::new(note));
    }
    let handler = Handler { proxy: proxy.clone(), connection };
    let ended = match protocol {
        Protocol::Http1 => {
            let handler = Arc::new(handler);
            let service = service_fn(move |request: Request<Incoming>| {
                let handler = handler.clone();
                // Here and not in the future, which hyper may poll later: the connection is busy from now on.
                let exchange = Exchange::begin(handler.activity().clone());
                // In memory of its own: an idle connection keeps none for its next request.
                Box::pin(async move {
                    let response = handler.respond(request.map(ClientBody::Http1)).await;
                    Ok::<_, Infallible>(response.map(|body| WatchedBody::new(body, exchange)))
                })
            });
            http1::serve(stream, service, timeouts, &mut drain, &activity)
                .await
                .map_err(ConnectionError::Http1)
        }
        Protocol::Http2 => {
            http2::serve(stream, Arc::new(handler), &mut drain).await.map_err(ConnectionError::Http2)
        }
    };
    match ended {
        Ok(None) => {}
        Ok(Some(reason)) => proxy.metrics.ended_connection(reason),
        Err(error) => {
            if let ConnectionError::Http1(error) = &error
                && let Some(reason) = refused_by_parser(error)
            {
                proxy.note_refused(peer, reason, error);
            }
            tracing::debug!(%peer, %error, "a client connection failed");
        }
    }
}

async fn last_chance(drain: &mut DrainWatch) {
    drain.stopping().await;
    tokio::time::sleep(LAST_CHANCE).await;
}

//! The ports: of the webhook, of probes and metrics, and of sidecars. The first two are served as all ports are.
//!
//! The control port has a timeout for TLS handshakes, and [`Connections`] ends a connection that shows no token for too long. A session
//! has no timeout: the sidecar is sent a comment now and then, and a connection that does not take it ends. The hub ends sessions, whose
//! connections are no longer HTTP's.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum_server::Handle;
use axum_server::tls_rustls::{RustlsAcceptor, RustlsConfig};
use hyper_util::rt::TokioExecutor;
use hyper_util::server::conn::auto::Builder;
use sluice_host::capacity;
use sluice_host::drain::DrainWatch;
use sluice_host::serve::table::{Maxima, PortMetrics, Table};
use sluice_host::serve::{ConnectionAge, Port, Routes, Times, Tls};

use crate::distribution::connections::Connections;

/// Time for the TLS handshake.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Size of the buffer of a connection, and so of the largest head, in bytes.
const MAX_HEAD: usize = 32 << 10;
/// Most connections of the webhook's port, which a few API servers use, and of the admin port.
const WEBHOOK_CONNECTIONS: usize = 512;
const ADMIN_CONNECTIONS: usize = 256;
/// Bytes of reviews that are not answered: several of the largest that the API server sends. And of pages that are not read.
const WEBHOOK_BYTES: usize = 32 << 20;
const ADMIN_BYTES: usize = 32 << 20;
/// Streams of a connection of HTTP/2, of which the API server has one for each review.
const STREAMS: u32 = 64;
/// Age at which a connection ends, and the time that its requests then have.
const AGE: ConnectionAge =
    ConnectionAge { max: Some(Duration::from_secs(600)), grace: Some(Duration::from_secs(10)) };
/// Times of the webhook's port, for which the API server waits for 5 s, and of the admin port.
const WEBHOOK_TIMES: Times = Times { body: Duration::from_secs(5), ..ADMIN_TIMES };
const ADMIN_TIMES: Times =
    Times { first: Duration::from_secs(10), head: Duration::from_secs(90), body: Duration::from_secs(10) };

/// Returns the port of the webhook.
pub(super) fn webhook(
    routes: Router,
    tls: RustlsConfig,
    metrics: &PortMetrics,
    drain: DrainWatch,
) -> Port<Routes<Router>> {
    let tls = Tls { config: Arc::new(move || tls.get_inner()), authorities: None };
    let maxima = maxima(WEBHOOK_CONNECTIONS, WEBHOOK_BYTES);
    Port { tls: Some(tls), ..port(routes, maxima, WEBHOOK_TIMES, metrics, drain) }
}

/// Returns the admin port.
pub(super) fn admin(routes: Router, metrics: &PortMetrics, drain: DrainWatch) -> Port<Routes<Router>> {
    port(routes, maxima(ADMIN_CONNECTIONS, ADMIN_BYTES), ADMIN_TIMES, metrics, drain)
}

fn maxima(connections: usize, bytes: usize) -> Maxima {
    Maxima { connections, of_peer: capacity::of_peer(connections), bytes }
}

fn port(
    routes: Router,
    maxima: Maxima,
    times: Times,
    metrics: &PortMetrics,
    drain: DrainWatch,
) -> Port<Routes<Router>> {
    Port {
        answer: Routes::new(routes),
        table: Table::new(maxima, metrics.clone()),
        times,
        age: AGE,
        max_head: MAX_HEAD as u32,
        streams: STREAMS,
        tls: None,
        drain,
    }
}

/// Serves the control port until it fails or the handle ends it.
pub(super) async fn serve_control(
    listener: TcpListener,
    tls: RustlsConfig,
    handle: Handle<SocketAddr>,
    router: Router,
) -> io::Result<()> {
    let acceptor = RustlsAcceptor::new(tls).handshake_timeout(TIMEOUT).acceptor(Connections::new());
    let mut server = axum_server::from_tcp(listener)?.acceptor(acceptor).handle(handle);
    // Sidecars speak HTTP/1. The method of the server with this name forbids that sessions change the protocol.
    let mut builder = Builder::new(TokioExecutor::new()).http1_only();
    builder.http1().max_buf_size(MAX_HEAD);
    *server.http_builder() = builder;
    server.serve(router.into_make_service_with_connect_info::<SocketAddr>()).await
}

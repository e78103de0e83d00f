//! Serves the control port: a timeout for TLS handshakes. [`Connections`] ends a connection that shows no token for too
//! long. A session has no timeout: the sidecar is sent a comment now and then, and a connection that does not take it ends. The
//! hub ends sessions, whose connections are no longer HTTP's.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use axum::Router;
use axum_server::Handle;
use axum_server::tls_rustls::{RustlsAcceptor, RustlsConfig};
use hyper_util::rt::TokioExecutor;
use hyper_util::server::conn::auto::Builder;

use crate::distribution::connections::Connections;

/// Time for the TLS handshake.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Size of the buffer of a connection, and so of the largest head, in bytes.
const MAX_HEAD: usize = 32 << 10;

/// Serves the control port until it fails or the handle ends it.
pub(super) async fn serve(
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

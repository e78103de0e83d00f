//! Accepts the connections of a port, each with the certificate of its caller.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::metrics::gauge::Gauge;
use rustls::pki_types::CertificateDer;
use sluice_engine::per_second::LogSampler;
use sluice_host::drain::DrainWatch;
use sluice_host::guard;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_util::task::TaskTracker;

use crate::grpc::{self, ConnectionAge, Methods};
use crate::health::Loaded;
use crate::http::HttpDoor;
use crate::metrics::Metrics;
use crate::tls::{Certificates, Protocols};

/// Time that a caller has for the handshake of TLS.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after a failed accept: without descriptors or memory, other connections must end first.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(50);

/// The protocols of a port.
#[derive(Debug, Clone)]
pub(crate) enum Door {
    /// gRPC, with these methods.
    Grpc(Methods),
    /// HTTP.
    Http(HttpDoor),
}

impl Door {
    fn metrics(&self) -> &Metrics {
        match self {
            Self::Grpc(methods) => &methods.rls.metrics,
            Self::Http(door) => door.metrics(),
        }
    }

    fn protocols(&self) -> Protocols {
        match self {
            Self::Grpc(_) => Protocols::Http2,
            Self::Http(_) => Protocols::Any,
        }
    }

    /// Returns the door for a connection whose caller has shown a certificate.
    fn for_caller(&self, certificate: Option<&CertificateDer<'_>>) -> Self {
        match self {
            Self::Grpc(methods) => Self::Grpc(methods.for_caller(certificate)),
            Self::Http(door) => Self::Http(door.for_caller(certificate)),
        }
    }

    async fn serve<S>(
        self,
        stream: S,
        age: ConnectionAge,
        drain: DrainWatch,
        distrusted: impl Future<Output = ()> + Send,
    ) where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        match self {
            Self::Grpc(methods) => grpc::serve(stream, methods, age, drain, distrusted).await,
            Self::Http(door) => door.serve(stream, age, drain, distrusted).await,
        }
    }
}

/// Accepts the connections of one port for one worker.
#[derive(Debug, Clone)]
pub(crate) struct Acceptor {
    pub(crate) door: Door,
    pub(crate) certificates: Option<Certificates>,
    pub(crate) drain: DrainWatch,
    /// Places for connections of all workers.
    pub(crate) places: Arc<Semaphore>,
    pub(crate) age: ConnectionAge,
    /// Tells when the first rules have come, if connections wait for them.
    pub(crate) loaded: Option<watch::Receiver<Loaded>>,
}

impl Acceptor {
    /// Accepts connections until the service stops, and waits for them. Returns the deadline.
    pub(crate) async fn run(self, listener: std::net::TcpListener) -> Instant {
        let connections = TaskTracker::new();
        let mut drain = self.drain.clone();
        let accepting = async {
            if let Some(mut loaded) = self.loaded.clone() {
                let _ = loaded.wait_for(|loaded| *loaded != Loaded::Nothing).await;
            }
            let listener = match TcpListener::from_std(listener) {
                Ok(listener) => listener,
                Err(error) => return tracing::error!(%error, "a port cannot be used"),
            };
            let log = LogSampler::default();
            loop {
                let Ok(place) = self.places.clone().acquire_owned().await else { return };
                match listener.accept().await {
                    Ok((stream, _)) => {
                        let panics = self.door.metrics().panics.clone();
                        let token = connections.token();
                        let served = self.serve(stream);
                        guard::spawn(
                            async move {
                                let _held = (place, token);
                                served.await;
                            },
                            panics,
                        );
                    }
                    Err(error) => {
                        if let Some(left_out) = log.take() {
                            tracing::warn!(%error, left_out, "cannot accept a connection");
                        }
                        tokio::time::sleep(PAUSE_AFTER_ERROR).await;
                    }
                }
            }
        };
        let deadline = tokio::select! {
            deadline = drain.stopping() => deadline,
            () = accepting => Instant::now(),
        };
        connections.close();
        if tokio::time::timeout_at(deadline, connections.wait()).await.is_err() {
            tracing::warn!(
                connections = connections.len(),
                "the grace period is over, closing the remaining connections"
            );
        }
        deadline
    }

    fn serve(&self, stream: TcpStream) -> impl Future<Output = ()> + Send + use<> {
        let (door, age, drain) = (self.door.clone(), self.age, self.drain.clone());
        let certificates = self.certificates.clone();
        async move {
            let _open = Open::new(door.metrics().connections.clone());
            let _ = stream.set_nodelay(true);
            let Some(certificates) = certificates else {
                return door.serve(stream, age, drain, std::future::pending()).await;
            };
            let distrusted = certificates.distrusted();
            let acceptor = TlsAcceptor::from(certificates.config(door.protocols()));
            match tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
                Ok(Ok(stream)) => {
                    let shown = stream.get_ref().1.peer_certificates();
                    let certificate = shown.and_then(<[_]>::first);
                    if certificates.accepts(certificate) {
                        door.for_caller(certificate).serve(stream, age, drain, distrusted).await;
                    } else {
                        tracing::debug!("a caller's certificate has another name than the one that may ask");
                    }
                }
                Ok(Err(error)) => tracing::debug!(%error, "a caller failed the handshake of TLS"),
                Err(_) => tracing::debug!("a caller did not finish the handshake of TLS"),
            }
        }
    }
}

/// Counts an open connection.
struct Open(Gauge);

impl Open {
    fn new(connections: Gauge) -> Self {
        connections.inc();
        Self(connections)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.dec();
    }
}

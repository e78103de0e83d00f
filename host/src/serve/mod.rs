//! One way to serve a port: HTTP/1 and HTTP/2, so gRPC too, with TLS or without, bounded alike whoever serves and whoever asks.
//!
//! - [`table`]: connections in all, by peer, and of strangers, and the bytes of requests. [`choice`]: which connections make room.
//! - `body`: what is counted, and what a connection waits for beside its requests. [`turns`]: whose work is next when there is more than
//!   can be done at once.

mod body;
pub mod choice;
pub mod table;
pub mod turns;

use std::convert::Infallible;
use std::error::Error;
use std::future::pending;
use std::net::{SocketAddr, TcpListener};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Request, Response, Version};
use http_body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_rustls::TlsAcceptor;
use tokio_util::task::TaskTracker;
use tower_service::Service;

pub use self::body::{BodyError, Received, cause};
use self::body::{CountedStream, Sent, WhenWoken};
use self::table::exchange::Exchange;
use self::table::{Connection, NoRoom, Place, Table};
use crate::drain::DrainWatch;
use crate::guard::{self, guard};

/// Time that a caller has for the handshake of TLS.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Length of the preface of HTTP/2 with the head of the frame that must follow it. A head of HTTP/1 that is shorter has a timeout too.
const PREFACE: usize = 33;
/// Pause after a failed accept: without descriptors or memory, other connections must end first.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(50);
/// Most headers of a request over HTTP/1: more than are read of any request that somebody forwards.
const MAX_HEADERS: usize = 300;
/// Windows of HTTP/2, in bytes.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;
/// Interval of pings to a caller of HTTP/2 that is silent, and the time that it has to answer.
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// Memory of a header beside its bytes.
const HEADER_BYTES: usize = 96;
/// Longest time in which a client reads nothing of the answers that it has asked for, and the interval at which that is looked at.
const UNREAD_TIMEOUT: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_secs(20);
/// Time before the age of a connection in which answers of HTTP/1 announce its end, as a part of the age.
const ANNOUNCED: f64 = 0.1;

/// The times of a port.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// Longest time until a caller has sent its first bytes of HTTP.
    pub first: Duration,
    /// Longest time for a head of HTTP/1, also between two requests.
    pub head: Duration,
    /// Longest time for which a body is waited for.
    pub body: Duration,
}

/// The age at which connections end, so that callers move to other replicas.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ConnectionAge {
    /// The age at which no new call is accepted, within 10 %; `None` for ever.
    pub max: Option<Duration>,
    /// Time that calls in flight then have; `None` for ever.
    pub grace: Option<Duration>,
}

/// The certificates of a port.
#[derive(Clone)]
pub struct Tls {
    /// Returns the configuration for the next connection, to which a port adds what it speaks.
    pub config: Arc<dyn Fn() -> Arc<ServerConfig> + Send + Sync>,
    /// Changes with the authorities of clients: a connection that one of them vouched for must not outlive it.
    pub authorities: Option<watch::Receiver<u64>>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Tls").finish_non_exhaustive()
    }
}

/// The reason why a request has no answer of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// A defect.
    Panicked,
    /// There is no room for its head, or for its answer.
    NoRoom,
}

/// Answers the requests of a port. Where a caller must show who it is, requests have their [`Connection`] as an extension.
pub trait Answer: Clone + Send + Sync + 'static {
    /// The body of an answer.
    type Body: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Unpin + Send + 'static;

    /// Returns what answers a connection, given its peer and the certificate that it has shown. `None` ends it.
    fn of_connection(&self, peer: SocketAddr, certificate: Option<&CertificateDer<'_>>) -> Option<Self>;

    /// Answers a request.
    fn answer(&self, request: Request<Received>) -> impl Future<Output = Response<Self::Body>> + Send;

    /// Answers a request that could not be answered, in the form of its caller.
    fn failed(&self, failure: Failure, is_grpc: bool) -> Response<Self::Body>;
}

/// Reports whether a request, or an answer, is gRPC's.
#[must_use]
pub fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// Answers by a tower service, such as axum's router. Requests have the [`Peer`] as an extension.
#[derive(Debug, Clone)]
pub struct Routes<S> {
    service: S,
    peer: Option<SocketAddr>,
}

/// The address of the peer that sent a request.
#[derive(Debug, Clone, Copy)]
pub struct Peer(pub SocketAddr);

impl<S> Routes<S> {
    /// Answers by this service.
    pub fn new(service: S) -> Self {
        Self { service, peer: None }
    }
}

impl<S, B> Answer for Routes<S>
where
    S: Service<Request<Received>, Response = Response<B>, Error = Infallible, Future: Send>,
    S: Clone + Send + Sync + 'static,
    B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + From<&'static str>,
    B: Unpin + Send + 'static,
{
    type Body = B;

    fn of_connection(&self, peer: SocketAddr, _: Option<&CertificateDer<'_>>) -> Option<Self> {
        Some(Self { peer: Some(peer), ..self.clone() })
    }

    async fn answer(&self, mut request: Request<Received>) -> Response<B> {
        if let Some(peer) = self.peer {
            request.extensions_mut().insert(Peer(peer));
        }
        let mut service = self.service.clone();
        match service.call(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }

    fn failed(&self, failure: Failure, _: bool) -> Response<B> {
        let (status, text) = match failure {
            Failure::Panicked => (500, "this is a defect of Sluice\n"),
            Failure::NoRoom => (503, "too many bytes of requests are waiting: send it again later\n"),
        };
        let mut response = Response::new(B::from(text));
        *response.status_mut() = http::StatusCode::from_u16(status).unwrap_or_default();
        response
    }
}

/// The bounds of a connection of HTTP/2.
#[derive(Debug, Clone, Copy)]
pub struct Http2 {
    /// Largest header list, in bytes.
    pub max_head: u32,
    /// Streams at a time.
    pub streams: u32,
}

/// A port, of which each worker has a listener.
#[derive(Debug, Clone)]
pub struct Port<A> {
    /// Answers its requests.
    pub answer: A,
    /// The connections.
    pub table: Arc<Table>,
    /// The times.
    pub times: Times,
    /// The age at which connections end.
    pub age: ConnectionAge,
    /// Largest head of HTTP/1, in bytes.
    pub max_head: usize,
    /// The bounds of HTTP/2. Without them it speaks HTTP/1 alone, whose requests may change the protocol.
    pub http2: Option<Http2>,
    /// The certificates. Without them it speaks no TLS.
    pub tls: Option<Tls>,
    /// The phases of the process's end.
    pub drain: DrainWatch,
}

impl<A: Answer> Port<A> {
    /// Accepts connections until the process stops, and waits for them. Returns the deadline.
    pub async fn run(self, listener: TcpListener) -> Instant {
        let connections = TaskTracker::new();
        let mut drain = self.drain.clone();
        let deadline = tokio::select! {
            deadline = drain.stopping() => deadline,
            () = self.accept(listener, &connections) => Instant::now(),
        };
        connections.close();
        if timeout_at(deadline, connections.wait()).await.is_err() && !self.ends_at_once() {
            tracing::warn!(
                connections = connections.len(),
                "the grace period is over, closing the remaining connections"
            );
        }
        deadline
    }

    /// Reports whether nothing is waited for when the process stops.
    fn ends_at_once(&self) -> bool {
        self.age.grace == Some(Duration::ZERO)
    }

    async fn accept(&self, listener: TcpListener, connections: &TaskTracker) {
        let listener = match tokio::net::TcpListener::from_std(listener) {
            Ok(listener) => listener,
            Err(error) => return tracing::error!(%error, "a port cannot be used"),
        };
        let mut has_failed = false;
        loop {
            match listener.accept().await {
                Ok((stream, peer)) => {
                    has_failed = false;
                    let Some(place) = self.table.place(peer.ip()).await else { continue };
                    let token = connections.token();
                    let served = self.clone().serve(stream, peer, place);
                    let task = async move {
                        let _token = token;
                        served.await;
                    };
                    guard::spawn(task, self.table.metrics.panics.clone());
                }
                Err(error) => {
                    if !std::mem::replace(&mut has_failed, true) {
                        tracing::warn!(%error, "cannot accept a connection");
                    }
                    sleep(PAUSE_AFTER_ERROR).await;
                }
            }
        }
    }

    async fn serve(self, stream: TcpStream, peer: SocketAddr, place: Place) {
        // The second half of an answer must not wait for the peer's acknowledgement of the first, which comes up to 40 ms later.
        let _ = stream.set_nodelay(true);
        let connection = place.0.clone();
        let mut drain = self.drain.clone();
        let mut stopping = pin!(WhenWoken::new(async {
            drain.stopping().await;
            if !self.ends_at_once() {
                pending::<()>().await;
            }
        }));
        let is_seated = tokio::select! {
            biased;
            () = stopping.as_mut() => return,
            is_seated = connection.is_seated() => is_seated,
        };
        if !is_seated {
            return tracing::debug!(
                "a connection finds no place among those that have not shown whose they are"
            );
        }
        let mut serving = pin!(async {
            let stream = CountedStream::new(stream, place);
            let Some(mut tls) = self.tls.clone() else {
                let Some(answer) = self.answer.of_connection(peer, None) else { return };
                return self.speak(stream, answer, &connection, None).await;
            };
            // Those that sign certificates from now on.
            tls.authorities.iter_mut().for_each(watch::Receiver::mark_unchanged);
            let mut config = ServerConfig::clone(&(tls.config)());
            let protocols: &[&[u8]] =
                if self.http2.is_some() { &[b"h2", b"http/1.1"] } else { &[b"http/1.1"] };
            config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
            let acceptor = TlsAcceptor::from(Arc::new(config));
            match timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
                Ok(Ok(stream)) => {
                    let shown = stream.get_ref().1.peer_certificates();
                    match self.answer.of_connection(peer, shown.and_then(<[_]>::first)) {
                        Some(answer) => self.speak(stream, answer, &connection, tls.authorities).await,
                        None => {
                            tracing::debug!(
                                "a caller's certificate has another name than the one that may ask"
                            );
                        }
                    }
                }
                Ok(Err(error)) => tracing::debug!(%error, "a caller failed the handshake of TLS"),
                Err(_) => tracing::debug!("a caller did not finish the handshake of TLS"),
            }
        });
        let ended = WhenWoken::new(async {
            tokio::select! {
                () = connection.ended() => tracing::debug!("a connection ends so that others have room"),
                () = connection.overstays() => tracing::debug!("a connection has not shown whose it is for too long"),
            }
        });
        tokio::select! {
            // A request that has arrived is in flight from then on, unless it must not be.
            biased;
            () = stopping => {}
            () = serving.as_mut() => {}
            () = ended => {}
        }
    }

    async fn speak<S>(
        &self,
        stream: S,
        answer: A,
        connection: &Arc<Connection>,
        authorities: Option<watch::Receiver<u64>>,
    ) where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        // Connections that begin together do not end together.
        let max = self.age.max.map(|max| max.mul_f64(rand::random_range(0.9..=1.1)));
        let announced = max.map(|max| Instant::now() + max.mul_f64(1.0 - ANNOUNCED));
        let requests =
            Requests { answer, connection: connection.clone(), body_timeout: self.times.body, announced };
        let stream = TokioIo::new(stream);
        let ends = self.ends(connection, authorities, max);
        let Some(Http2 { max_head, streams }) = self.http2 else {
            let mut builder = http1::Builder::new();
            builder
                .timer(TokioTimer::new())
                .header_read_timeout(self.times.head)
                .max_headers(MAX_HEADERS)
                .max_buf_size(self.max_head);
            let serving = pin!(builder.serve_connection(stream, requests).with_upgrades());
            return self.attend(serving, http1::UpgradeableConnection::graceful_shutdown, ends).await;
        };
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(self.times.head)
            .max_headers(MAX_HEADERS)
            .max_buf_size(self.max_head);
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(streams)
            .max_header_list_size(max_head)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT);
        let serving = pin!(builder.serve_connection(stream, requests));
        self.attend(serving, auto::Connection::graceful_shutdown, ends).await;
    }

    /// Serves a connection until it ends, or must end. `shut_down` lets it end its requests.
    async fn attend<C, E>(
        &self,
        mut serving: Pin<&mut C>,
        shut_down: fn(Pin<&mut C>),
        ends: impl Future<Output = Ends>,
    ) where
        C: Future<Output = Result<(), E>>,
        E: std::fmt::Display,
    {
        let ended = tokio::select! {
            ended = serving.as_mut() => ended,
            ends = WhenWoken::new(ends) => {
                if ends == Ends::AtOnce {
                    return tracing::debug!("a caller does not begin to speak HTTP, or reads no answers");
                }
                shut_down(serving.as_mut());
                tokio::select! {
                    ended = serving => ended,
                    () = for_ever_or(self.age.grace) => Ok(()),
                }
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "the connection of a caller failed");
        }
    }

    /// Waits until a connection must end, which is `max` old at most.
    async fn ends(
        &self,
        connection: &Connection,
        authorities: Option<watch::Receiver<u64>>,
        max: Option<Duration>,
    ) -> Ends {
        let mut drain = self.drain.clone();
        let silent = async {
            let before = connection.received.load(Relaxed);
            sleep(self.times.first).await;
            let has_begun = connection.received.load(Relaxed) - before >= PREFACE;
            if has_begun || connection.handed_over.load(Relaxed) > 0 {
                while !connection.is_unread_for(UNREAD_TIMEOUT) {
                    sleep(LOOK_EVERY).await;
                }
            }
        };
        let mut stop = self.drain.clone();
        // One that has just been made has a request to come.
        let begun = async {
            tokio::select! {
                () = connection.begun() => {}
                () = sleep(self.times.first) => {}
                _ = stop.stopping() => {}
            }
        };
        let distrusted = async {
            let changed = match authorities {
                Some(mut authorities) => authorities.changed().await.is_ok(),
                None => false,
            };
            if !changed {
                pending::<()>().await;
            }
        };
        let moved = async {
            tokio::select! {
                () = for_ever_or(max) => {}
                () = drain.draining() => {}
                () = distrusted => {}
            }
            begun.await;
        };
        tokio::select! {
            () = silent => Ends::AtOnce,
            () = moved => Ends::WithItsRequests,
        }
    }
}

/// How a connection must end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ends {
    AtOnce,
    WithItsRequests,
}

/// Sleeps so long, or for ever.
async fn for_ever_or(time: Option<Duration>) {
    match time {
        Some(time) => sleep(time).await,
        None => std::future::pending().await,
    }
}

/// The requests of a connection.
struct Requests<A> {
    answer: A,
    connection: Arc<Connection>,
    body_timeout: Duration,
    /// Time from which answers announce the end of the connection.
    announced: Option<Instant>,
}

impl<A: Answer> hyper::service::Service<Request<Incoming>> for Requests<A> {
    type Response = Response<Sent<A::Body>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        if self.connection.table.maxima.strangers.is_some() {
            request.extensions_mut().insert(self.connection.clone());
        }
        let (answer, body_timeout) = (self.answer.clone(), self.body_timeout);
        // HTTP/2 has a frame for that.
        let is_announced = request.version() <= Version::HTTP_11
            && self.announced.is_some_and(|announced| Instant::now() >= announced);
        let is_grpc = is_grpc(request.headers());
        // Here and not in the future, which hyper may poll later: the connection is busy from now on.
        let complete = request.body().is_end_stream();
        let (exchange, room) = Exchange::begin(&self.connection, complete, head_bytes(request.headers()));
        let exchange = Arc::new(exchange);
        Box::pin(async move {
            let mut response = match room {
                Ok(()) => {
                    let received = |body| Received::new(body, exchange.clone(), body_timeout);
                    let answering = guard(answer.answer(request.map(received)));
                    answering.await.unwrap_or_else(|_| {
                        exchange.note_panic();
                        answer.failed(Failure::Panicked, is_grpc)
                    })
                }
                Err(NoRoom) => answer.failed(Failure::NoRoom, is_grpc),
            };
            // An answer whose length is known is held until the client has read it.
            let held = response.body().size_hint().exact().unwrap_or_default();
            let held = usize::try_from(held).unwrap_or(usize::MAX).saturating_sub(exchange.free());
            if exchange.take(held).is_err() {
                response = answer.failed(Failure::NoRoom, is_grpc);
            }
            if is_announced {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok(response.map(|body| Sent::new(body, exchange)))
        })
    }
}

/// Returns the number of bytes of a head.
fn head_bytes(headers: &HeaderMap) -> usize {
    let bytes = headers.iter().map(|(name, value)| name.as_str().len() + value.len() + HEADER_BYTES);
    bytes.sum()
}

#[cfg(test)]
mod tests;

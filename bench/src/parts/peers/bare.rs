//! A proxy of hyper and nothing else, which shows what the library costs without limits, timeouts, bounds and metrics. It
//! forwards a request, unless its path is [`DENY`] and its API key is known; then it responds as a sidecar does.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use anyhow::Context as _;
use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::{Either, Full};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::client::conn::{http1 as client1, http2 as client2};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpListener, TcpStream};

use super::traffic::Protocol;
use crate::parts::proxy::proxies::{DENY, Program, Proxy, free_address};
use crate::support::cores::Cores;

/// A problem as a sidecar sends it.
const PROBLEM: &str = "{\"type\":\"https://iana.org/assignments/http-problem-types#quota-exceeded\",\"title\":\"Request cannot be \
    satisfied as assigned quota has been exceeded\",\"status\":429,\"detail\":\"Limit deny admits 1 request per hour. Try again in \
    1 hour 59 minutes 59 seconds.\",\"violated-policies\":[\"deny\"]}";
const HEADERS: [(&str, &str); 9] = [
    ("content-type", "application/problem+json"),
    ("cache-control", "no-store"),
    ("ratelimit-policy", "\"deny\";q=1;w=3600"),
    ("ratelimit", "\"deny\";r=0;t=7199"),
    ("x-ratelimit-limit", "1"),
    ("x-ratelimit-remaining", "0"),
    ("x-ratelimit-reset", "7199"),
    ("retry-after", "7199"),
    ("x-ratelimit-retry-after", "7199"),
];

/// Starts the proxy in front of an upstream of this protocol.
pub(super) async fn start(cores: Cores, upstream: SocketAddr, protocol: Protocol) -> anyhow::Result<Proxy> {
    let (folder, address) = (tempfile::tempdir()?, free_address());
    let protocol = match protocol {
        Protocol::Http1 => "http1",
        Protocol::Http2 => "http2",
    };
    let arguments = ["role", "bare", &address.to_string(), &upstream.to_string(), protocol];
    let file = std::env::current_exe()?;
    let name = file.file_name().and_then(|name| name.to_str()).context("the program has no name")?.to_owned();
    let bare = Program { name: &name, file, arguments: arguments.map(str::to_owned).into(), signal: "KILL" };
    Proxy::start(cores, bare, address, folder).await
}

/// Runs the proxy.
pub(crate) fn run(address: &str, upstream: &str, protocol: &str) -> anyhow::Result<()> {
    let (address, upstream): (SocketAddr, SocketAddr) = (address.parse()?, upstream.parse()?);
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        let listener = TcpListener::bind(address).await?;
        let shared = Arc::new(Shared { upstream, idle: Mutex::default(), known: Mutex::default() });
        loop {
            let (client, _) = listener.accept().await?;
            client.set_nodelay(true)?;
            let shared = shared.clone();
            if protocol == "http1" {
                tokio::spawn(serve_http1(client, shared));
            } else {
                tokio::spawn(serve_http2(client, shared));
            }
        }
    })
}

type Sender = client1::SendRequest<Incoming>;

/// The state that all connections share.
struct Shared {
    upstream: SocketAddr,
    /// Idle connections to the upstream.
    idle: Mutex<Vec<Sender>>,
    /// API keys that were admitted at [`DENY`].
    known: Mutex<HashSet<HeaderValue>>,
}

impl Shared {
    fn give_back(&self, sender: Sender) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(sender);
    }

    async fn connection(&self) -> anyhow::Result<Sender> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        if let Some(sender) = idle {
            return Ok(sender);
        }
        let stream = TcpStream::connect(self.upstream).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = client1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(sender)
    }

    /// Returns the response to a request that is denied, and adds a header to others.
    fn deny(&self, request: &mut Request<Incoming>) -> Option<Response<Full<Bytes>>> {
        if request.uri().path() == DENY
            && let Some(key) = request.headers().get("x-api-key")
        {
            let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            if known.contains(key) {
                let mut response = Response::new(Full::new(Bytes::from_static(PROBLEM.as_bytes())));
                *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
                let headers = response.headers_mut();
                headers.reserve(HEADERS.len() + 3);
                for (name, value) in HEADERS {
                    headers.insert(name, HeaderValue::from_static(value));
                }
                return Some(response);
            }
            known.insert(key.clone());
        }
        request.headers_mut().insert("x-forwarded-for", HeaderValue::from_static("127.0.0.1"));
        None
    }
}

async fn serve_http1(client: TcpStream, shared: Arc<Shared>) {
    let service = service_fn(|mut request: Request<Incoming>| {
        let shared = shared.clone();
        async move {
            if let Some(denied) = shared.deny(&mut request) {
                return anyhow::Ok(denied.map(Either::Left));
            }
            let mut sender = shared.connection().await?;
            let response = sender.send_request(request).await?;
            Ok(response.map(|body| Either::Right(Returning { body, connection: Some((sender, shared)) })))
        }
    });
    let _ = http1::Builder::new().serve_connection(TokioIo::new(client), service).await;
}

/// A body at whose end the connection to the upstream is idle again.
struct Returning {
    body: Incoming,
    connection: Option<(Sender, Arc<Shared>)>,
}

impl Body for Returning {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = self.get_mut();
        let frame = Pin::new(&mut this.body).poll_frame(cx);
        let has_ended = matches!(frame, Poll::Ready(None)) || frame.is_ready() && this.body.is_end_stream();
        if has_ended && let Some((sender, shared)) = this.connection.take() {
            shared.give_back(sender);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Serves a connection with one to the upstream that belongs to it.
async fn serve_http2(client: TcpStream, shared: Arc<Shared>) {
    let Ok(stream) = TcpStream::connect(shared.upstream).await else { return };
    let _ = stream.set_nodelay(true);
    let handshake = client2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
    let Ok((sender, connection)) = handshake else { return };
    tokio::spawn(connection);
    let service = service_fn(|mut request: Request<Incoming>| {
        let (shared, mut sender) = (shared.clone(), sender.clone());
        async move {
            if let Some(denied) = shared.deny(&mut request) {
                return Ok(denied.map(Either::Left));
            }
            Ok::<_, hyper::Error>(sender.send_request(request).await?.map(Either::Right))
        }
    });
    let builder = http2::Builder::new(TokioExecutor::new());
    let _ = builder.serve_connection(TokioIo::new(client), service).await;
}

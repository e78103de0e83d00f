//! A client connection: everything that its requests have in common.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use http::HeaderValue;
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::Notify;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::inbound::framing::AmbiguityMark;
use crate::inbound::protocol::Protocol;
use crate::inbound::table::Place;
use crate::inbound::table::activity::Activity;
use crate::upstream::forward::Client;
use crate::upstream::http2::dedicated::DedicatedConnection;
use crate::upstream::pinned::Pinned;
use crate::upstream::request_body::RequestBody;

/// The right to be one of a sidecar's connections. An upgraded connection keeps it until it ends.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    place: Place,
    /// The worker waits until the last token is dropped.
    _token: TaskTrackerToken,
    open_connections: Gauge,
}

impl ConnectionPermit {
    /// Counts one more connection in `open_connections` until the permit is dropped.
    pub(crate) fn new(place: Place, token: TaskTrackerToken, open_connections: Gauge) -> Self {
        open_connections.inc();
        Self { place, _token: token, open_connections }
    }

    /// Returns what the connection does.
    pub(crate) fn activity(&self) -> &Arc<Activity> {
        &self.place.activity
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.open_connections.dec();
    }
}

/// A client connection whose protocol is known.
#[derive(Debug)]
pub(crate) struct Connection {
    /// Address of the peer. IPv4-mapped addresses are IPv4.
    pub(crate) peer: IpAddr,
    /// Address of the client that a trusted peer has reported in the PROXY protocol.
    pub(crate) proxied: Option<IpAddr>,
    /// Entry of `X-Forwarded-For` with that address, or that of the peer.
    pub(crate) forwarded_for: HeaderValue,
    pub(crate) protocol: Protocol,
    pub(crate) ambiguity: Arc<AmbiguityMark>,
    /// Connection to the application for HTTP/2 requests.
    pub(crate) dedicated: Arc<DedicatedConnection>,
    /// Connection to the application for HTTP/1 requests, if it must not be shared.
    pub(crate) pinned: Arc<Pinned<RequestBody>>,
    pub(crate) permit: Arc<ConnectionPermit>,
    /// Number of requests so far.
    requests: AtomicU32,
    first_request: Notify,
}

impl Connection {
    /// Creates a connection without requests. `None` if the peer's address does not fit into a header, which
    /// never happens: it consists of hexadecimal digits, dots and colons.
    pub(crate) fn new(
        peer: IpAddr,
        proxied: Option<IpAddr>,
        protocol: Protocol,
        ambiguity: Arc<AmbiguityMark>,
        permit: ConnectionPermit,
    ) -> Option<Self> {
        let peer = peer.to_canonical();
        Some(Self {
            peer,
            proxied,
            forwarded_for: HeaderValue::try_from(proxied.unwrap_or(peer).to_string()).ok()?,
            protocol,
            ambiguity,
            dedicated: Arc::new(DedicatedConnection::new()),
            pinned: Arc::default(),
            permit: Arc::new(permit),
            requests: AtomicU32::new(0),
            first_request: Notify::new(),
        })
    }

    /// Returns the client as the application's side sees it.
    pub(crate) fn source(&self) -> Client<'_> {
        Client { forwarded_for: &self.forwarded_for, activity: self.permit.activity(), pinned: &self.pinned }
    }

    /// Counts a request and returns its number, from 0.
    pub(crate) fn count_request(&self) -> u32 {
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        if number == 0 {
            self.first_request.notify_one();
        }
        number
    }

    /// Waits until the connection has had a request.
    pub(crate) async fn first_request(&self) {
        if self.requests.load(Ordering::Relaxed) == 0 {
            self.first_request.notified().await;
        }
    }
}

//! A client connection: everything that its requests have in common.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use http::HeaderValue;
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::{Notify, OwnedSemaphorePermit};
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::inbound::framing::AmbiguityMark;
use crate::inbound::protocol::Protocol;
use crate::upstream::dedicated::DedicatedConnection;
use crate::upstream::request_body::RequestBody;

/// The right to be one of a sidecar's connections. An upgraded connection keeps it until it ends.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    _permit: OwnedSemaphorePermit,
    /// The worker waits until the last token is dropped.
    _token: TaskTrackerToken,
    open_connections: Gauge,
}

impl ConnectionPermit {
    /// Counts one more connection in `open_connections` until the permit is dropped.
    pub(crate) fn new(
        permit: OwnedSemaphorePermit,
        token: TaskTrackerToken,
        open_connections: Gauge,
    ) -> Self {
        open_connections.inc();
        Self { _permit: permit, _token: token, open_connections }
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
    /// Address of the client. IPv4-mapped addresses are IPv4.
    pub(crate) peer: IpAddr,
    /// Entry of `X-Forwarded-For` with that address.
    pub(crate) forwarded_for: HeaderValue,
    pub(crate) protocol: Protocol,
    pub(crate) ambiguity: Arc<AmbiguityMark>,
    /// Connection to the application for HTTP/2 requests.
    pub(crate) dedicated: Arc<DedicatedConnection<RequestBody>>,
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
        protocol: Protocol,
        ambiguity: Arc<AmbiguityMark>,
        permit: ConnectionPermit,
    ) -> Option<Self> {
        let peer = peer.to_canonical();
        Some(Self {
            peer,
            forwarded_for: HeaderValue::try_from(peer.to_string()).ok()?,
            protocol,
            ambiguity,
            dedicated: Arc::new(DedicatedConnection::new()),
            permit: Arc::new(permit),
            requests: AtomicU32::new(0),
            first_request: Notify::new(),
        })
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

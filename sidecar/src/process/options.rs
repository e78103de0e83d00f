//! The options of a sidecar.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use sluice_store::Clock;

use crate::inbound::head_timeout::{HTTP2_IDLE_TIMEOUT, IDLE_TIMEOUT};
use crate::upstream::address::Upstream;
use sluice_engine::StartupPolicy;
use sluice_engine::trace::TraceOptions;
use sluice_host::capacity;

/// Default time in which a client must send or read a part of a body. nginx has the same.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);

/// A listener and the application behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// Address that clients connect to. The system chooses a port in place of 0.
    pub listen: SocketAddr,
    /// Address of the application.
    pub upstream: Upstream,
}

/// The options of a sidecar.
#[derive(Debug, Clone)]
pub struct Options {
    /// Listeners with their applications.
    pub routes: Vec<Route>,
    /// The flag that names them.
    pub listen_name: &'static str,
    /// Addresses of the pod, at which an application may listen whose address is 127.0.0.1. Empty: only there.
    pub pod_addresses: Vec<IpAddr>,
    /// Address of the admin port, if there is one.
    pub admin: Option<SocketAddr>,
    /// Address of the debug port, if there is one. It tells who is limited, and should not be reached from other pods.
    pub debug: Option<SocketAddr>,
    /// Number of workers; at least one is started.
    pub workers: usize,
    /// Maximum number of concurrent connections of all workers. For more, the longest idle ones make room.
    pub max_connections: usize,
    /// Time in which a client must send the head of a request, from its first byte.
    pub header_timeout: Duration,
    /// Time that an HTTP/1 connection may be idle before a request.
    pub idle_timeout: Duration,
    /// Time in which a client must send or read a part of a body. `None` waits for ever.
    pub body_timeout: Option<Duration>,
    /// Time that an HTTP/2 connection may be without requests. `None` never ends it.
    pub http2_idle_timeout: Option<Duration>,
    /// Time that an upgraded connection may be silent. `None` never ends it.
    pub upgrade_idle_timeout: Option<Duration>,
    /// Time that `/startupz` waits for the first policies.
    pub startup_wait: Duration,
    /// Treatment of requests before the first policies.
    pub startup_policy: StartupPolicy,
    /// Whether responses tell what only operators need: the store's failure and the application's address. For
    /// debugging, never where the public can read them.
    pub debug_headers: bool,
    /// Collector of spans, if there is one.
    pub tracing: Option<TraceOptions>,
    /// Clock of a memory store.
    pub clock: Clock,
}

impl Options {
    /// Creates options with defaults: one worker, the system's clock, neither an admin nor a debug port, as many connections as
    /// the memory has room for, 10 s for a head and for the first policies, before which requests are forwarded, 60 s
    /// for a part of a body, no tracing, and idle timeouts of 75 s for HTTP/1, 5 minutes for HTTP/2 and none for upgraded
    /// connections.
    #[must_use]
    pub fn new(routes: Vec<Route>) -> Self {
        Self {
            routes,
            listen_name: "--proxy",
            pod_addresses: Vec::new(),
            admin: None,
            debug: None,
            workers: 1,
            max_connections: capacity::connections(),
            header_timeout: Duration::from_secs(10),
            idle_timeout: IDLE_TIMEOUT,
            body_timeout: Some(BODY_TIMEOUT),
            http2_idle_timeout: Some(HTTP2_IDLE_TIMEOUT),
            upgrade_idle_timeout: None,
            startup_wait: Duration::from_secs(10),
            startup_policy: StartupPolicy::default(),
            debug_headers: false,
            tracing: None,
            clock: Clock::system(),
        }
    }
}

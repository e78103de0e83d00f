//! Options of TCP connections, towards clients and applications alike.

use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

/// Idle time after which the kernel probes whether the other end still exists, the interval between two probes, and
/// the number of probes without an answer that ends the connection.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES: u32 = 3;
/// Bytes that the kernel buffers beyond what the other end takes. They count as the sidecar's memory in a cgroup of
/// version 2, so a client that does not read must not cost megabytes.
const MAX_UNSENT: u32 = 128 * 1024;

/// Prepares a connection. An option that the system does not know is left out.
pub(crate) fn prepare(stream: &TcpStream) {
    let _ = stream.set_nodelay(true);
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_PROBES);
    let socket = SockRef::from(stream);
    let _ = socket.set_tcp_keepalive(&keepalive);
    #[cfg(target_os = "linux")]
    let _ = socket.set_tcp_notsent_lowat(MAX_UNSENT);
}

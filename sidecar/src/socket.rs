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
/// Time after the end of a connection in which the other end must take some of the bytes that are left.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(60);

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

/// Makes the kernel discard what the other end has not taken, and reset the connection when the stream is dropped.
pub(crate) fn reset(stream: &TcpStream) {
    let _ = stream.set_zero_linger();
}

/// Makes the kernel give up bytes that the other end does not take for [`CLOSE_TIMEOUT`]. By default, it tries for
/// minutes.
pub(crate) fn close_soon(stream: &TcpStream) {
    #[cfg(target_os = "linux")]
    let _ = SockRef::from(stream).set_tcp_user_timeout(Some(CLOSE_TIMEOUT));
}

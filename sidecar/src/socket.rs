//! Options of TCP connections, towards clients and applications alike.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::AsyncWrite as _;
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

/// Number of bytes up to which copying slices is cheaper than the system call that takes several.
const MAX_COPIED: usize = 1024;

/// Writes several slices. The head and the body of a short message go by the cheaper system call for one slice.
pub(crate) fn poll_write_slices(
    stream: &mut TcpStream,
    cx: &mut Context<'_>,
    slices: &[IoSlice<'_>],
) -> Poll<io::Result<usize>> {
    let stream = Pin::new(stream);
    if let [one] = slices {
        return stream.poll_write(cx, one);
    }
    let mut bytes = [0; MAX_COPIED];
    let mut filled = 0;
    for slice in slices {
        let Some(free) = bytes.get_mut(filled..filled + slice.len()) else {
            return stream.poll_write_vectored(cx, slices);
        };
        free.copy_from_slice(slice);
        filled += slice.len();
    }
    stream.poll_write(cx, &bytes[..filled])
}

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

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn slices_arrive_in_order_however_long_they_are() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut writer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut reader, _) = listener.accept().await.unwrap();
        for lengths in [&[][..], &[5], &[0, 3], &[600, 424], &[600, 425], &[1, 2, 3], &[3000, 1], &[1, 3000]]
        {
            let parts: Vec<Vec<u8>> =
                (b'a'..).zip(lengths).map(|(byte, &length)| vec![byte; length]).collect();
            let slices: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
            let written = poll_fn(|cx| poll_write_slices(&mut writer, cx, &slices)).await.unwrap();
            assert_eq!(written, lengths.iter().sum::<usize>(), "{lengths:?}");
            let mut read = vec![0; written];
            reader.read_exact(&mut read).await.unwrap();
            assert_eq!(read, parts.concat(), "{lengths:?}");
        }
    }
}

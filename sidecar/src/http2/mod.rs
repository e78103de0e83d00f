//! Parts that both sides of the proxy need to speak HTTP/2, each by the h2 crate itself.
//!
//! - [`receive`]: a stream's bytes as a body. [`send`]: a body as a stream's bytes.
//! - [`interim`]: informational responses, on their way to the client.
//! - [`frames`]: the frames of a connection, before h2 reads them. [`header_blocks`]: header blocks that h2 would cut in silence.
//! - [`joined_writes`]: frames of several streams in one system call. [`malformed_streams`]: streams that h2 resets by itself.
//! - [`stalled`]: the streams whose receiver does not read.
//!
//! Flow control of one stream touches no other (RFC 9113, 5.2): the window of a connection covers the windows of all its streams.

pub(crate) mod frames;
pub(crate) mod header_blocks;
pub(crate) mod interim;
pub(crate) mod joined_writes;
pub(crate) mod malformed_streams;
pub(crate) mod receive;
pub(crate) mod send;
pub(crate) mod stalled;

/// Maximum number of concurrent streams of a client's connection, and so of the connection to the application that belongs to it.
pub(crate) const MAX_STREAMS: u32 = 200;
/// Window of a stream, in bytes. The proxy holds this much, and as much again to be sent, when one side reads slowly.
pub(crate) const STREAM_WINDOW: u32 = 64 * 1024;
/// Window of a stream on a connection that begins while memory is scarce, in bytes.
const SMALL_STREAM_WINDOW: u32 = 16 * 1024;
/// Window of a connection, in bytes: all its streams may be unread, and the next one is read all the same.
pub(crate) const CONNECTION_WINDOW: u32 = (MAX_STREAMS + 8) * STREAM_WINDOW;
/// Number of streams that the sidecar resets because its peer violates the protocol, before it ends the connection.
pub(crate) const MAX_BROKEN_STREAMS: usize = 1024;

/// Returns the window of the streams of a connection that begins now, in bytes.
pub(crate) fn stream_window() -> u32 {
    if crate::memory::BUDGET.is_scarce() { SMALL_STREAM_WINDOW } else { STREAM_WINDOW }
}

//! The client's side of a request: TCP connections come in, requests that are safe to forward go to
//! [`crate::proxy`].
//!
//! - [`listener`]: binds addresses and accepts connections.
//! - [`serve`]: serves one connection, over HTTP/1 or HTTP/2. [`client_body`]: the body of a request.
//! - [`guard`]: keeps a panic from ending more than a request.
//! - [`protocol`]: detects which of the two the client speaks; [`proxy_protocol`]: the address that a trusted proxy reports
//!   before.
//! - [`client_stream`]: the client's bytes, watched by [`framing`] for ambiguous requests and by [`control_frames`]
//!   for floods.
//! - [`head_timeout`]: limits the time that a client takes to send a head.
//! - [`connection`]: everything that the requests of one connection share.
//! - [`table`]: all connections, their timeouts, and which of them make room for others.
//! - [`validate`]: refuses requests that a proxy must not forward.
//! - [`drain`]: the phases of a sidecar's shutdown.

pub(crate) mod client_body;
pub(crate) mod client_stream;
pub(crate) mod connection;
pub(crate) mod control_frames;
pub(crate) mod drain;
pub(crate) mod framing;
pub(crate) mod guard;
pub(crate) mod head_timeout;
pub(crate) mod listener;
pub(crate) mod protocol;
mod proxy_protocol;
pub(crate) mod serve;
pub(crate) mod table;
pub(crate) mod validate;

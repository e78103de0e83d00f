//! The client's side of a request: what is read from its connection, and which requests are safe to forward.
//!
//! - [`client_body`]: the body of a request.
//! - [`protocol`]: detects which of the two the client speaks; [`proxy_protocol`]: the address that a trusted proxy reports
//!   before.
//! - [`client_stream`]: the client's bytes, watched by [`framing`] for ambiguous requests and by [`control_frames`]
//!   for floods. `target`: the few bytes that are encoded.
//! - [`head_timeout`]: limits the time that a client takes to send a head.
//! - [`table`]: all connections, their timeouts, and which of them make room for others.
//! - [`validate`]: refuses requests that a proxy must not forward.

pub(crate) mod client_body;
pub(crate) mod client_stream;
pub(crate) mod control_frames;
pub(crate) mod framing;
pub(crate) mod head_timeout;
pub(crate) mod protocol;
mod proxy_protocol;
pub(crate) mod table;
mod target;
pub(crate) mod validate;

//! Responses to denied requests, which a door writes in its own protocol, and the headers that report the state of a request's
//! limits.
//!
//! - [`reveal`]: how much responses tell about faults.
//! - [`headers`]: the state of a request's limits.
//! - [`problem`]: the body of an error response; [`mod@format`]: the format that the client expects: HTTP, HEAD or gRPC.
//! - [`rejection`]: the response as a limit describes it; [`grpc_details`]: the same for gRPC clients.
//! - [`reject`]: one response for each reason to reject a request.

pub(crate) mod format;
mod grpc_details;
pub(crate) mod headers;
mod problem;
mod reject;
mod rejection;
pub(crate) mod reveal;

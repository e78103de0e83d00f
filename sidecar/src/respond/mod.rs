//! Responses to the client: rate-limit headers on the application's responses, and responses that the sidecar
//! writes itself.
//!
//! - [`reveal`]: how much responses tell about faults.
//! - [`names`]: the names of a limit's rates in headers and messages, made once for each snapshot.
//! - [`date`]: the time of a response. [`headers`]: the headers that report the state of a request's limits.
//! - [`problem`]: the body of an error response; [`format`]: the format that the client expects: HTTP, HEAD
//!   or gRPC.
//! - [`rejection`]: the response as a limit describes it; [`grpc_details`]: the same for gRPC clients.
//! - [`reject`]: one response for each reason to reject a request.

pub(crate) mod date;
pub(crate) mod format;
mod grpc_details;
pub(crate) mod headers;
pub(crate) mod names;
mod problem;
pub(crate) mod reject;
mod rejection;
pub(crate) mod reveal;

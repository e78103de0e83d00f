//! The application's side of a request: a request and its client's address come in, the application's
//! response goes out. Bodies, trailers and upgraded connections stream both ways.
//!
//! - [`forward`]: sends a request and returns the response.
//! - [`hop_by_hop`]: removes the headers that concern one connection only.
//! - [`request_body`], [`response_body`]: bodies on their way through.
//! - [`pool`]: HTTP/1 connections to the application. [`http2`]: one request over HTTP/2, and
//!   the connection of its client.
//! - [`pinned`]: the connection of a client that must not share one. [`expectation`]: bodies that are sent when they are asked for.
//! - [`application`]: the application, where it may listen, the bytes of its connections and the bodies that it sends.
//!   [`address`]: its address as it is written.
//! - [`dial`]: opens TCP connections.
//! - [`held_exchange`]: forwards a request that holds slots, also if its client leaves. [`abandoned`]: bounds for
//!   such requests.
//! - [`in_flight`]: counts the requests that the application has not finished.

pub(crate) mod abandoned;
pub(crate) mod address;
pub(crate) mod application;
pub(crate) mod dial;
pub(crate) mod expectation;
pub(crate) mod forward;
pub(crate) mod held_exchange;
pub(crate) mod hop_by_hop;
pub(crate) mod http2;
pub(crate) mod in_flight;
pub(crate) mod pinned;
pub(crate) mod pool;
pub(crate) mod request_body;
pub(crate) mod response_body;

//! upstream.

pub(crate) mod body;
pub(crate) mod forward;
pub(crate) mod hop_headers;
pub(crate) mod in_flight;
pub(crate) mod pool;

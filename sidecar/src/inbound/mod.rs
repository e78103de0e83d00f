//! inbound.

pub(crate) mod accept;
pub(crate) mod framing;
pub(crate) mod head_timeout;
pub(crate) mod protocol;
pub(crate) mod validate;

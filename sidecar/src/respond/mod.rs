//! respond.

pub(crate) mod headers;
pub(crate) mod reject;

//! A sidecar's refusal of a policy.

/// The reason why a sidecar cannot enforce a policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Nack(pub String);

impl Nack {
    /// Returns a nack with this reason.
    pub(crate) fn new(reason: impl std::fmt::Display) -> Self {
        Self(reason.to_string())
    }
}

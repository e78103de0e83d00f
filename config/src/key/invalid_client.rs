//! Why no client can have some values of a key.

/// No client has these values of the parts of a key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidClient {
    /// The key has another number of parts.
    #[error("the key of the limit has {parts}")]
    Parts {
        /// The parts in words, and what to do.
        parts: String,
    },
    /// A value cannot be that of its part.
    #[error("{part}: {reason}")]
    Value {
        /// The part in words.
        part: String,
        /// The reason.
        reason: &'static str,
    },
}

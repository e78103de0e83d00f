//! Purposes of conditions, which decide what counts in doubt.

/// The purpose of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// A limit applies to the requests that match. One reading is enough.
    Limit,
    /// The requests that match are exempt. All readings must match.
    Exemption,
}

//! The place of a limit.

/// The position of a limit in a snapshot, and which of its rates apply to the request at hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LimitIndex {
    pub(crate) policy: u16,
    pub(crate) limit: u16,
    /// Index of the rates that apply to the request.
    pub(crate) rates: u16,
}

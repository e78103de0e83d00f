//! The summary of a record with a long tail.

/// The summary of a record with a long tail, which a store computes where the record is. Instants are in
/// milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordView {
    /// The newest instant of a log, or the latest expiry of a holder; 0 if there is none.
    pub newest: u64,
    /// Number of requests or slots in use.
    pub used: u64,
    /// The instant of a log that has to expire before the cost fits; 0 if it fits already.
    pub leaves: u64,
}

//! Properties of rates and records that stores and clients distinguish.

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

/// The shape of a hard rate that a store may count on a compact form of its record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Windows that are aligned to the clock, the same for all keys, each as long as the period.
    Windows(PreviousPart),
    /// A bucket of this many requests, which refills at the rate.
    Bucket(u64),
}

/// The part of the previous window's count that is added to the current one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PreviousPart {
    /// Nothing.
    None,
    /// In proportion to the overlap with the trailing period.
    Overlap,
    /// All of it.
    All,
}

/// The unit of a rate's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Requests per period.
    Requests,
    /// Requests in flight.
    Slots,
}

/// Slots that a holder's settlement found in the record, compared with those that it must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotsFound {
    /// At least as many.
    Enough,
    /// So many fewer. The holder has them again.
    Fewer(u64),
    /// Fewer, because they were reset. They stay free.
    Reset,
}

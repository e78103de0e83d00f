//! The result of administering one server.

use crate::eviction::Eviction;
use crate::fault_cause::FaultCause;

/// Role of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It holds counters.
    Master,
    /// It follows a master.
    Replica,
    /// It knows the master.
    Sentinel,
}

/// The result of administering one server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerReport {
    /// `HOST:PORT`.
    pub address: String,
    /// Role of the server.
    pub role: Role,
    /// The reason why it is not up to date, if it is not.
    pub problem: Option<Problem>,
    /// Memory in use and its maximum, in bytes, if a maximum is set.
    pub memory: Option<(u64, u64)>,
    /// Whether the server evicts counters.
    pub eviction: Eviction,
    /// Whether the server has evicted keys in the last ten minutes.
    pub has_evicted: bool,
}

/// The reason why a server is not up to date.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The kind of the failure.
    pub cause: FaultCause,
    /// The command that failed, without its arguments; empty if there is no connection.
    pub command: &'static str,
}

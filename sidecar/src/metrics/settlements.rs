//! The metrics of charges that outcomes correct.

use prometheus_client::metrics::counter::Counter;

/// The settlements of one limit.
#[derive(Debug, Clone)]
pub(crate) struct SettlementMetrics {
    /// Requests that counted.
    pub(crate) counted: Counter,
    /// Requests that were refunded, because their outcome does not count.
    pub(crate) uncounted: Counter,
    /// Responses without the cost that they should have had.
    pub(crate) missing: Counter,
    /// Corrections to which the store did not answer.
    pub(crate) lost: Counter,
}

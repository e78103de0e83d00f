//! A number of requests per period.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sluice_config::duration::Duration;

/// A number of requests per period.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Rate {
    /// Number of requests that are admitted per period, or of units if the limit has a cost, 0 to 1099511627776 (2^40). 0 denies
    /// every request.
    #[schemars(range(min = 0, max = 1_099_511_627_776i64))]
    pub requests: i64,
    /// Length of the period: a duration such as 500ms, 10s, 1m or 1h30m, from 1ms to 8784h (366 days).
    pub per: Duration,
    /// Number of sub-windows that the period is divided into, 1 to 60; only for slidingWindowCounter. More
    /// sub-windows count more exactly, and each takes a few bytes in the store. The period must divide into
    /// whole milliseconds. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 60))]
    pub sub_windows: Option<i64>,
}

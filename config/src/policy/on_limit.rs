//! The treatment of requests that a limit denies, beside the response: they wait, are marked, or block their client.

use serde::{Deserialize, Serialize};
use sluice_limiter::{Period, Rate, RateError, Requests};

/// The queue in which requests of a limit wait until the limit admits them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Queue {
    /// Longest wait of a request, in milliseconds.
    pub max_wait_millis: u64,
    /// Largest number of requests that wait in a pod.
    pub max_length: u64,
    /// The request that is next.
    pub order: QueueOrder,
}

/// The request that leaves a queue next.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum QueueOrder {
    /// The one that has waited longest.
    #[default]
    Fifo,
    /// The newest.
    Lifo,
}

/// The block of a client that a limit denies too often.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Block {
    /// Number of denials.
    pub after: Requests,
    /// Time within which they occur.
    #[serde(rename = "withinMillis")]
    pub within: Period,
    /// Length of the block.
    #[serde(rename = "lastsMillis")]
    pub lasts: Period,
}

impl Block {
    /// Returns the block as the last rate of its limit.
    pub fn rate(self) -> Result<Rate, RateError> {
        Rate::block(self.after, self.within, self.lasts)
    }
}

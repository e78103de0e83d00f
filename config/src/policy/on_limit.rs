//! The treatment of requests that a limit denies: a response, a queue, a mark for the application, or a block of their client.

use serde::{Deserialize, Serialize};
use sluice_limiter::{Rate, Requests};

use crate::duration::Duration;
use crate::policy::Reject;
#[cfg(feature = "schema")]
use crate::schema::HEADER;

/// The treatment of requests that a limit denies. At least one field is required.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", schemars(extend("x-kubernetes-validations" = [
    {"rule": "has(self.reject) || has(self.queue) || has(self.mark) || has(self.block)", "message": "at least one of reject, queue, mark, block must be set"},
    {"rule": "!has(self.mark) || !(has(self.reject) || has(self.queue) || has(self.block))", "message": "mark is not allowed with reject, queue or block, because it lets every request pass"},
    {"rule": "!has(self.queue) || !has(self.block)", "message": "queue is not allowed with block"},
])))]
pub struct OnLimit {
    /// The response to a request that is rejected: because there is no queue, because the queue has no room, or because the
    /// client is blocked. If several limits deny a request, the one with the longest wait describes the response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reject: Option<Reject>,
    /// Lets requests wait until the limit admits them. If another limit without a queue denies a request, it is rejected
    /// immediately, and so is a request that meets a limit with countDenied. A request that waits holds a connection or a stream, and
    /// no slot of a concurrency limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<Queue>,
    /// Forwards requests that the limit denies, and names the limit to the application in a header. The application decides what
    /// to do with them. Not allowed with the other fields.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark: Option<Mark>,
    /// Blocks a client that the limit denies too often: all its requests to which the limit applies are rejected for some time.
    /// Blocked requests do not count, so a client that keeps trying does not lengthen its block. Only for limits of rates. Not allowed
    /// with queue, nor with countDenied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block: Option<Block>,
}

/// A queue of requests in each pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Queue {
    /// Longest wait of a request: a duration from 1ms to 5m. A request that the limit cannot admit within that time, even if no other
    /// request waited, is rejected immediately.
    pub max_wait: Duration,
    /// Largest number of requests of all clients that wait in a pod, 1 to 10000. Default: 100.
    #[serde(default = "default_max_length")]
    #[cfg_attr(feature = "schema", schemars(with = "i64", range(min = 1, max = 10_000)))]
    pub max_length: u64,
    /// Order of the requests of a client, in a pod. Clients do not wait for each other, but share maxLength.
    /// - Fifo (default): the request that has waited longest is next. If the queue is full, a new request is rejected.
    /// - Lifo: the newest request is next. If the queue is full, the request that has waited longest is rejected.
    #[serde(default)]
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

/// A header that names the limits that deny a request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Mark {
    /// Name of the header, which begins with x-, such as x-rate-limited. Its value is the name of the policy, a slash and the
    /// name of the limit; if several limits mark a request, the header has several values. A header of this name in a request
    /// of a client is removed.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 128), regex(pattern = HEADER)))]
    pub header: String,
}

/// A block of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Block {
    /// Number of requests of a client that the limit denies before it blocks the client, 1 to 1000. All pods count together.
    #[cfg_attr(feature = "schema", schemars(with = "i64", range(min = 1, max = 1000)))]
    pub after: Requests,
    /// Time within which these requests are denied, whenever it begins: a duration from 1ms to 8784h.
    pub within: Duration,
    /// Time for which the client is blocked: a duration from 1ms to 8784h.
    #[serde(rename = "for")]
    pub duration: Duration,
}

fn default_max_length() -> u64 {
    100
}

impl Block {
    /// Returns the block as the last rate of its limit. The error says what is allowed.
    pub fn rate(self) -> Result<Rate, String> {
        let (within, lasts) = (self.within.period()?, self.duration.period()?);
        Rate::block(self.after, within, lasts).map_err(|error| error.to_string())
    }
}

//! The algorithms that count requests.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::duration;

/// Algorithm that counts requests. Exactly one field is required.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.slidingWindowCounter), has(self.fixedWindow), has(self.slidingWindowLog), has(self.tokenBucket), has(self.gcra), has(self.leakyBucket)].filter(x, x).size() == 1").message("exactly one of slidingWindowCounter, fixedWindow, slidingWindowLog, tokenBucket, gcra, leakyBucket must be set"))]
pub struct Algorithm {
    /// Counts the requests of the last period in sub-windows. Only the oldest sub-window, which the period
    /// overlaps in part, is not counted exactly. The best choice for most limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sliding_window_counter: Option<SlidingWindowCounter>,
    /// Counts the requests since the current window began. Up to twice the limit can pass within one period
    /// that spans two windows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fixed_window: Option<FixedWindow>,
    /// Records the time of every admitted request and never admits more than the limit in any period. Each
    /// request takes 6 bytes in the store, and a rate admits at most 10000 requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sliding_window_log: Option<SlidingWindowLog>,
    /// Holds tokens, of which each request takes one. Tokens are added at a constant speed, the rate's
    /// requests per period, up to the burst. After a pause a client can send a whole burst.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_bucket: Option<TokenBucket>,
    /// The generic cell rate algorithm: admits requests at an even pace, at least period/requests apart,
    /// except for a burst.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gcra: Option<Gcra>,
    /// Delays requests in the sidecar so that they reach the application at an even pace, at least
    /// period/requests apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaky_bucket: Option<LeakyBucket>,
}

/// A window that always ends now.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct SlidingWindowCounter {
    /// Counting of the oldest sub-window:
    /// - Estimate (default): in proportion to the part of it that the period still overlaps, assuming that
    ///   its requests were evenly spread.
    /// - Guaranteed: in full. The limit is never exceeded in any period, but a client with a steady rate gets
    ///   only subWindows/(subWindows+1) of it.
    #[serde(default)]
    pub bound: Bound,
}

/// Counting of the oldest sub-window.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bound {
    /// In proportion to the part that the period still overlaps.
    #[default]
    Estimate,
    /// In full.
    Guaranteed,
}

/// Windows that follow one another.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct FixedWindow {
    /// Times at which windows begin:
    /// - Clock (default): at multiples of the period since the Unix epoch, in UTC. With a period of 24h, at
    ///   midnight.
    /// - FirstRequest: for each client at its first admitted request.
    /// - Spread: like Clock, but with a different offset for each client, so that not all clients come back
    ///   at the same time.
    #[serde(default)]
    pub alignment: Alignment,
}

/// Times at which fixed windows begin.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Alignment {
    /// At multiples of the period since the Unix epoch.
    #[default]
    Clock,
    /// At the client's first admitted request.
    FirstRequest,
    /// Like `Clock`, with an offset for each client.
    Spread,
}

/// A log of the time of every request.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct SlidingWindowLog {
    /// Shortest time between two admitted requests of a client: a duration such as 500ms, at most the period.
    /// Default: no minimum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 2, max = 32), regex(pattern = duration::PATTERN))]
    pub min_interval: Option<String>,
    /// If true, denied requests count as well: a client that keeps sending stays denied until it pauses for
    /// long enough. Default: false.
    #[serde(default)]
    pub count_denied: bool,
}

/// A bucket of tokens.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!(has(self.burst) && has(self.warmUp))").message("burst and warmUp cannot be combined"))]
pub struct TokenBucket {
    /// Number of tokens that the bucket can hold, and so the largest burst, 1 to 1099511627776 (2^40).
    /// Default: the rate's requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_099_511_627_776i64))]
    pub burst: Option<i64>,
    /// Makes the rate lower after a pause and lets it rise to its full speed. Cannot be combined with burst.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warm_up: Option<WarmUp>,
}

/// The warm-up of a token bucket.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct WarmUp {
    /// Time until the rate reaches its full speed: a duration from 1ms to 1h.
    #[schemars(length(min = 2, max = 32), regex(pattern = duration::PATTERN))]
    pub period: String,
    /// Factor by which the rate is lower after a long pause, 2 to 100. Default: 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 2, max = 100))]
    pub cold_factor: Option<i64>,
}

/// The generic cell rate algorithm.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Gcra {
    /// Number of requests that may arrive at the same time, 1 to 1099511627776 (2^40). Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_099_511_627_776i64))]
    pub burst: Option<i64>,
}

/// A queue that forwards requests at a constant speed.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct LeakyBucket {
    /// Longest time for which a request is delayed: a duration from 1ms to 1h. A request that would have to
    /// wait longer is rejected immediately.
    #[schemars(length(min = 2, max = 32), regex(pattern = duration::PATTERN))]
    pub max_wait: String,
}

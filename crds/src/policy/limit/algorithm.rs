//! Rates, and the algorithms that count requests.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sluice_config::duration::Duration;
use sluice_limiter::{
    self as limiter, Alignment, Bound, Burst, MAX_PERIOD_MS, MAX_WARM_UP_MS, MaxWait, RateError, SubWindows,
};

use crate::checks::client_warnings::Relation;
use crate::checks::field::{Field, number};

/// Default `coldFactor`, the one of Guava's `SmoothWarmingUp`.
const COLD_FACTOR: i64 = 3;
/// Longest delay of a leaky bucket, in milliseconds. No client waits longer.
const MAX_WAIT_MS: u64 = 3_600_000;
/// Time after which most clients and load balancers stop waiting for a response, in milliseconds.
const PATIENCE_MS: u64 = 60_000;

/// Algorithm that counts requests. Exactly one field is required.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub enum Algorithm {
    /// Counts the requests of the last period in sub-windows. Only the oldest sub-window, which the period
    /// overlaps in part, is not counted exactly. The best choice for most limits.
    SlidingWindowCounter(SlidingWindowCounter),
    /// Counts the requests since the current window began. Up to twice the limit can pass within one period
    /// that spans two windows.
    FixedWindow(FixedWindow),
    /// Records the time of every admitted request and never admits more than the limit in any period. Each
    /// request takes 6 bytes in the store, and a rate admits at most 10000 requests.
    SlidingWindowLog(SlidingWindowLog),
    /// Holds tokens, of which each request takes one. Tokens are added at a constant speed, the rate's
    /// requests per period, up to the burst. After a pause a client can send a whole burst.
    TokenBucket(TokenBucket),
    /// The generic cell rate algorithm: admits requests at an even pace, at least period/requests apart,
    /// except for a burst.
    Gcra(Gcra),
    /// Delays requests in the sidecar so that they reach the application at an even pace, at least
    /// period/requests apart.
    LeakyBucket(LeakyBucket),
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
    /// If true, denied requests count as well: a client that keeps sending faster than the rate stays denied. Default: false.
    #[serde(default)]
    pub count_denied: bool,
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
    /// If true, denied requests count as well, in the window in which they are denied. Default: false.
    #[serde(default)]
    pub count_denied: bool,
}

/// A log of the time of every request.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct SlidingWindowLog {
    /// Shortest time between two admitted requests of a client: a duration such as 500ms, at most the period.
    /// Default: no minimum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_interval: Option<Duration>,
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
    pub period: Duration,
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
    pub max_wait: Duration,
}

impl Default for Algorithm {
    fn default() -> Self {
        Self::SlidingWindowCounter(SlidingWindowCounter::default())
    }
}

impl Algorithm {
    /// Compiles the algorithm for one rate of the limit, which stands at `at_rate`.
    pub(crate) fn compile(
        &self,
        at: &Field<'_>,
        rate: &Rate,
        at_rate: &Field<'_>,
    ) -> Option<limiter::Algorithm> {
        if rate.sub_windows.is_some() && !matches!(self, Self::SlidingWindowCounter(_)) {
            at_rate.at("subWindows").violation("is only allowed with slidingWindowCounter: remove it");
        }
        Some(match self {
            Self::SlidingWindowCounter(SlidingWindowCounter { bound, count_denied: _ }) => {
                let sub_windows = number(rate.sub_windows.unwrap_or(1));
                if (*bound, sub_windows) == (Bound::Guaranteed, 1) {
                    at_rate.warning(
                        "with `bound: Guaranteed` and a single sub-window, a client with a steady rate gets \
                         only half of the limit, because the whole previous period counts: set subWindows, for \
                         example to 10",
                    );
                }
                let sub_windows = at_rate.at("subWindows").accept(SubWindows::new(sub_windows))?;
                limiter::Algorithm::SlidingWindowCounter { sub_windows, bound: *bound }
            }
            Self::FixedWindow(FixedWindow { alignment, count_denied: _ }) => {
                limiter::Algorithm::FixedWindow(*alignment)
            }
            Self::SlidingWindowLog(SlidingWindowLog { min_interval, count_denied: _ }) => {
                let at = at.at("slidingWindowLog.minInterval");
                let min_interval = match min_interval {
                    Some(interval) => at.millis(*interval, MAX_PERIOD_MS)?,
                    None => 0,
                };
                limiter::Algorithm::SlidingWindowLog { min_interval }
            }
            Self::TokenBucket(TokenBucket { burst, warm_up: Some(warm_up) }) => {
                if burst.is_some() {
                    at.at("tokenBucket.burst")
                        .violation("cannot be combined with warmUp: remove one of them");
                }
                let at = at.at("tokenBucket.warmUp");
                let millis = at.at("period").millis(warm_up.period, MAX_WARM_UP_MS)?;
                let cold_factor = number(warm_up.cold_factor.unwrap_or(COLD_FACTOR));
                limiter::Algorithm::WarmUp(
                    at.at("coldFactor").accept(limiter::WarmUp::new(millis, cold_factor))?,
                )
            }
            Self::TokenBucket(TokenBucket { burst, warm_up: None }) => {
                // A rate of 0 requests still needs a bucket for at least one token, which never fills.
                let burst = Burst::new(number(burst.unwrap_or(rate.requests)).max(1));
                limiter::Algorithm::TokenBucket { burst: at.at("tokenBucket.burst").accept(burst)? }
            }
            Self::Gcra(Gcra { burst }) => {
                let burst = Burst::new(number(burst.unwrap_or(1)));
                limiter::Algorithm::Gcra { burst: at.at("gcra.burst").accept(burst)? }
            }
            Self::LeakyBucket(LeakyBucket { max_wait }) => {
                let at = at.at("leakyBucket.maxWait");
                let millis = at.millis(*max_wait, MAX_WAIT_MS)?;
                limiter::Algorithm::LeakyBucket { max_wait: at.accept(MaxWait::from_millis(millis))? }
            }
        })
    }

    /// Returns why a charge cannot be corrected later, if it cannot: what it has done to other requests, in a sentence's end.
    pub(crate) fn irreversible(&self) -> Option<&'static str> {
        match self {
            Self::LeakyBucket(_) => Some("leakyBucket has already let later requests wait for their turn"),
            Self::TokenBucket(TokenBucket { warm_up: Some(_), .. }) => {
                Some("warmUp has already delayed the next request by it")
            }
            Self::SlidingWindowCounter(_)
            | Self::FixedWindow(_)
            | Self::SlidingWindowLog(_)
            | Self::TokenBucket(_)
            | Self::Gcra(_) => None,
        }
    }

    /// Reports whether denied requests count too.
    pub(crate) fn counts_denied(&self) -> bool {
        match self {
            Self::SlidingWindowCounter(SlidingWindowCounter { count_denied, .. })
            | Self::FixedWindow(FixedWindow { count_denied, .. })
            | Self::SlidingWindowLog(SlidingWindowLog { count_denied, .. }) => *count_denied,
            Self::TokenBucket(_) | Self::Gcra(_) | Self::LeakyBucket(_) => false,
        }
    }

    /// Warns of settings that are valid with every rate but probably not intended.
    pub(crate) fn warn(&self, at: &Field<'_>) {
        if let Self::LeakyBucket(LeakyBucket { max_wait }) = self
            && max_wait.millis() > PATIENCE_MS
        {
            at.at("leakyBucket.maxWait")
                .warning("is longer than 60s, and most clients and load balancers stop waiting by then");
        }
    }

    /// Returns the field whose value contradicts the rate's numbers, relative to the limit at `limit` with the
    /// rate at `rate`.
    pub(crate) fn culprit<'a>(&self, error: RateError, limit: &Field<'a>, rate: &Field<'a>) -> Field<'a> {
        match error {
            RateError::Indivisible { .. } => rate.at("subWindows"),
            RateError::LongLog(_) | RateError::TooManySlots(_) => rate.at("requests"),
            RateError::LongInterval { .. } => limit.at("algorithm.slidingWindowLog.minInterval"),
            RateError::SlowBucket(_) if matches!(self, Self::Gcra(_)) => limit.at("algorithm.gcra.burst"),
            RateError::SlowBucket(_) => limit.at("algorithm.tokenBucket.burst"),
            RateError::SlowWarmUp { .. } => rate.at("per"),
            RateError::Soft => limit.at("enforcement.soft"),
            RateError::BlockAfter(_) => limit.at("onLimit.block.after"),
            // No algorithm that cannot count them has the field.
            RateError::CountDenied => limit.at("algorithm"),
        }
    }

    /// Returns how several rates with this algorithm relate to each other.
    pub(crate) fn relation(&self) -> Relation {
        match self {
            _ if self.counts_denied() => Relation::Other,
            Self::SlidingWindowCounter(_) | Self::FixedWindow(_) | Self::SlidingWindowLog(_) => {
                Relation::Windows
            }
            Self::Gcra(_) | Self::LeakyBucket(_) | Self::TokenBucket(TokenBucket { burst: Some(_), .. }) => {
                Relation::SameBurst
            }
            Self::TokenBucket(_) => Relation::Other,
        }
    }
}

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

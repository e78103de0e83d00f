//! The algorithm of a rate, together with its enforcement.
//!
//! The first release knows two algorithms, as bare names. Everything else has a name that it does not know,
//! so it nacks the policy instead of enforcing a different algorithm. For the same reason no field of an
//! algorithm is ignored.

use serde::{Deserialize, Serialize};

use crate::policy::{Alignment, Bound, CompiledAdaptive, Window};

/// Time after which the slots of a sidecar that died are free again, in milliseconds. A live sidecar renews
/// its slots three times within it, so a shorter outage of the store loses no slot.
pub const SLOT_LEASE_MILLIS: u64 = 30_000;

/// The algorithm that counts requests, and its enforcement.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum RateAlgorithm {
    /// A sliding window of one sub-window, with [`Bound::Estimate`].
    SlidingWindowCounter,
    /// Fixed windows with [`Alignment::Clock`].
    FixedWindow,
    /// Any other window. Built by [`RateAlgorithm::window`].
    Window(Window),
    /// A window that may be exceeded for some time.
    Soft {
        /// The window.
        window: Window,
        /// Requests above the limit that are admitted, in percent of it.
        over_percent: u64,
        /// Time for which they are admitted, in milliseconds.
        for_millis: u64,
    },
    /// A log of the time of every request.
    SlidingWindowLog {
        /// Shortest time between two admitted requests, in milliseconds; 0 for no minimum.
        min_interval_millis: u64,
        /// True if denied requests are counted.
        count_denied: bool,
    },
    /// A bucket that fills at a constant speed.
    TokenBucket {
        /// Capacity of the bucket.
        burst: u64,
    },
    /// A token bucket that is slower after a pause.
    WarmUp {
        /// Time until it reaches its full speed, in milliseconds.
        period_millis: u64,
        /// Factor by which it is slower when cold.
        cold_factor: u64,
    },
    /// The generic cell rate algorithm.
    Gcra {
        /// Number of requests that may arrive at the same time.
        burst: u64,
    },
    /// A queue that forwards requests at a constant speed.
    LeakyBucket {
        /// Longest delay of a request, in milliseconds.
        max_wait_millis: u64,
    },
    /// A rate with a higher limit while the pod has spare capacity.
    Elastic(Box<Elastic>),
    /// A limit on concurrent requests in all pods together. The rate's period is the slot lease.
    Concurrency,
    /// A limit on concurrent requests that each pod learns from its application.
    Adaptive(Box<CompiledAdaptive>),
}

/// A rate with a higher limit while the pod has spare capacity.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Elastic {
    /// Algorithm for both the base limit and the boosted one.
    pub algorithm: RateAlgorithm,
    /// Boosted number of requests per period.
    pub requests: u64,
    /// Utilization below which the boosted limit applies, in percent of `capacity`.
    pub below_percent: u64,
    /// Capacity of the pod.
    pub capacity: Capacity,
}

/// The capacity of a pod, 100 percent of utilization.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Capacity {
    /// Number of requests in flight.
    InFlight(u64),
}

impl RateAlgorithm {
    /// Returns the algorithm for a hard window. The two windows that the first release knows keep the names
    /// that it knows.
    #[must_use]
    pub fn window(window: Window) -> Self {
        match window {
            Window::SlidingWindowCounter { sub_windows: 1, bound: Bound::Estimate } => {
                Self::SlidingWindowCounter
            }
            Window::FixedWindow { alignment: Alignment::Clock } => Self::FixedWindow,
            other => Self::Window(other),
        }
    }
}

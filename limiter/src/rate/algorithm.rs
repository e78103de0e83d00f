//! The algorithms with their parameters.

use serde::{Deserialize, Serialize};

use crate::algorithm::concurrency::Holder;
use crate::algorithm::fixed_window::Alignment;
use crate::algorithm::gcra::{Burst, MaxWait};
use crate::algorithm::sliding_window::{Bound, SubWindows};
use crate::algorithm::warm_up::WarmUp;
use crate::record::Kind;

/// The algorithm of a rate, with its parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum Algorithm {
    /// Counts in sub-windows of a sliding period.
    SlidingWindowCounter {
        /// Number of sub-windows.
        sub_windows: SubWindows,
        /// Weight of the oldest one.
        bound: Bound,
    },
    /// Counts in one window after another.
    FixedWindow(Alignment),
    /// Keeps the instant of every request.
    SlidingWindowLog {
        /// Shortest time between two admitted requests, in milliseconds; 0 for none.
        #[serde(rename = "minIntervalMillis")]
        min_interval: u64,
        /// Whether denied requests are recorded too, so that a client has to pause before it is admitted
        /// again.
        count_denied: bool,
    },
    /// A bucket that fills at a constant rate.
    TokenBucket {
        /// Number of tokens that it holds.
        burst: Burst,
    },
    /// The generic cell rate algorithm.
    Gcra {
        /// Number of requests that may arrive together.
        burst: Burst,
    },
    /// A bucket that drains at a constant rate, and delays requests accordingly.
    LeakyBucket {
        /// The longest delay. A request that would be delayed longer is denied.
        #[serde(rename = "maxWaitMillis")]
        max_wait: MaxWait,
    },
    /// A token bucket that warms up.
    WarmUp(WarmUp),
    /// Counts requests in flight. The period of the rate is the length of a slot lease. It is never sent: each
    /// process has a holder of its own.
    #[serde(skip)]
    Concurrency {
        /// The process for which slots are taken.
        holder: Holder,
    },
}

impl Algorithm {
    /// The default: two windows, of which the previous one counts in proportion.
    pub const SLIDING_WINDOW: Self =
        Self::SlidingWindowCounter { sub_windows: SubWindows::ONE, bound: Bound::Estimate };
    /// Fixed windows aligned to the clock.
    pub const FIXED_WINDOW: Self = Self::FixedWindow(Alignment::Clock);

    /// Returns the kind of this algorithm's records.
    #[inline]
    pub(crate) fn kind(self) -> Kind {
        match self {
            Self::SlidingWindowCounter { .. } => Kind::Sliding,
            Self::FixedWindow(Alignment::Clock) => Kind::Clock,
            Self::FixedWindow(Alignment::Spread) => Kind::Spread,
            Self::FixedWindow(Alignment::FirstRequest) => Kind::FirstRequest,
            Self::SlidingWindowLog { .. } => Kind::Log,
            Self::TokenBucket { .. } | Self::Gcra { .. } | Self::LeakyBucket { .. } => Kind::Arrival,
            Self::WarmUp(_) => Kind::WarmUp,
            Self::Concurrency { .. } => Kind::Holders,
        }
    }

    /// Returns the number of windows that this algorithm's records keep before the newest.
    #[inline]
    pub(crate) fn previous_windows(self) -> u8 {
        if let Self::SlidingWindowCounter { sub_windows, .. } = self { sub_windows.get() } else { 0 }
    }
}

//! The algorithms, one file each: parameters, validation, and the arithmetic on records.
//!
//! [`Algorithm`] names them on the wire. Each implements [`Definition`] on a struct of its parameters, and
//! [`dispatch`] leads from one to the other. A new algorithm has a file, a variant, and an arm there.
//!
//! - [`definition`]: the trait with every property of an algorithm; [`shape`]: the types of some.
//! - [`clock_windows`]: windows aligned to the clock, shared by the next two.
//! - [`sliding_window`], [`fixed_window`]: counts in windows.
//! - [`log`]: the instant of every request.
//! - [`arrival`]: the theoretical arrival time, shared by the next two.
//! - [`token_bucket`]: token bucket and generic cell rate algorithm; [`leaky_bucket`]: the one that delays.
//! - [`warm_up`]: the bucket that warms up.
//! - [`block`]: the block of a client that is denied too often.
//! - [`concurrency`]: slots shared by many processes.
//! - [`reservations`]: the ledger of costs that were charged in advance.
//! - [`stored`]: operations on a record without its rate.

mod arrival;
mod block;
pub(crate) mod clock_windows;
mod concurrency;
mod definition;
mod fixed_window;
mod leaky_bucket;
mod log;
mod reservations;
mod shape;
mod sliding_window;
mod stored;
mod token_bucket;
mod warm_up;

use serde::{Deserialize, Serialize};

use crate::number::Period;

pub use block::MAX_BLOCK_AFTER;
pub use concurrency::{Holder, MAX_CONCURRENT, MAX_SLOT_LEASE_MS};
pub use definition::Windows;
pub use fixed_window::Alignment;
pub use leaky_bucket::MaxWait;
pub use reservations::Reserved;
pub use shape::{PreviousPart, RecordView, Shape, SlotsFound, Unit};
pub use sliding_window::{Bound, SubWindows};
pub use token_bucket::Burst;
pub use warm_up::{MAX_WARM_UP_MS, WarmUp};

pub(crate) use block::Block;
pub(crate) use concurrency::Concurrency;
pub(crate) use definition::{Checked, Definition};
pub(crate) use fixed_window::FixedWindow;
pub(crate) use leaky_bucket::LeakyBucket;
pub(crate) use log::SlidingWindowLog;
pub(crate) use reservations::Reservations;
pub(crate) use sliding_window::SlidingWindow;
pub(crate) use token_bucket::TokenBucket;

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
    /// Blocks a client that the other rates of the limit deny too often. The number of the rate is that of denials. It is never
    /// sent: a limit that blocks names its block beside its rates.
    #[serde(skip)]
    Block {
        /// Length of the block.
        lasts: Period,
    },
    /// Counts requests in flight. The period of the rate is the length of a slot lease. It is never sent: each
    /// process has a holder of its own.
    #[serde(skip)]
    Concurrency {
        /// The process for which slots are taken.
        holder: Holder,
    },
    /// Keeps the open reservations of a counter beside it. The period of the rate is the time for which one stays open. It is never
    /// sent: each reservation has an id of its own.
    #[serde(skip)]
    Reservations {
        /// The reservation that a check adds.
        id: Holder,
    },
}

/// Evaluates an expression with the definition of an algorithm. It is a macro so that the hot path is compiled
/// for each algorithm.
macro_rules! dispatch {
    ($algorithm:expr, $definition:ident => $value:expr) => {{
        use $crate::algorithm as a;
        match $algorithm {
            a::Algorithm::SlidingWindowCounter { sub_windows, bound } => {
                let $definition = a::SlidingWindow { sub_windows, bound };
                $value
            }
            a::Algorithm::FixedWindow(alignment) => {
                let $definition = a::FixedWindow(alignment);
                $value
            }
            a::Algorithm::SlidingWindowLog { min_interval } => {
                let $definition = a::SlidingWindowLog { min_interval };
                $value
            }
            algorithm @ (a::Algorithm::TokenBucket { burst } | a::Algorithm::Gcra { burst }) => {
                let is_gcra = matches!(algorithm, a::Algorithm::Gcra { .. });
                let $definition = a::TokenBucket { burst, is_gcra };
                $value
            }
            a::Algorithm::LeakyBucket { max_wait } => {
                let $definition = a::LeakyBucket { max_wait };
                $value
            }
            a::Algorithm::WarmUp($definition) => $value,
            a::Algorithm::Block { lasts } => {
                let $definition = a::Block { lasts };
                $value
            }
            a::Algorithm::Concurrency { holder } => {
                let $definition = a::Concurrency { holder };
                $value
            }
            a::Algorithm::Reservations { id } => {
                let $definition = a::Reservations { id };
                $value
            }
        }
    }};
}
pub(crate) use dispatch;

impl Algorithm {
    /// The default: two windows, of which the previous one counts in proportion.
    pub const SLIDING_WINDOW: Self =
        Self::SlidingWindowCounter { sub_windows: SubWindows::ONE, bound: Bound::Estimate };
    /// Fixed windows aligned to the clock.
    pub const FIXED_WINDOW: Self = Self::FixedWindow(Alignment::Clock);

    /// Returns the algorithm with `share` of its burst, which is at least one, or the rate could never admit
    /// anything.
    pub(crate) fn scaled(self, share: impl Fn(u64) -> u64) -> Self {
        let scaled = |burst: Burst| Burst::new(share(burst.get()).max(1)).unwrap_or(burst);
        match self {
            Self::TokenBucket { burst } => Self::TokenBucket { burst: scaled(burst) },
            Self::Gcra { burst } => Self::Gcra { burst: scaled(burst) },
            other => other,
        }
    }
}

//! Windows, the periods of time in which requests are counted.

use serde::{Deserialize, Serialize};
use sluice_limiter as limiter;
use sluice_limiter::{OutOfRange, SubWindows};

/// A window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum Window {
    /// A window that always ends now.
    SlidingWindowCounter {
        /// Number of sub-windows that the period is divided into.
        sub_windows: u64,
        /// Counting of the oldest sub-window.
        bound: Bound,
    },
    /// Windows that follow one another.
    FixedWindow {
        /// Times at which windows begin.
        alignment: Alignment,
    },
}

/// Counting of the oldest sub-window of a sliding window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Bound {
    /// In proportion to the part that the period still overlaps.
    Estimate,
    /// In full.
    Guaranteed,
}

/// Times at which fixed windows begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Alignment {
    /// At multiples of the period since the Unix epoch.
    Clock,
    /// At the client's first admitted request.
    FirstRequest,
    /// Like `Clock`, with an offset for each client.
    Spread,
}

impl Window {
    /// Returns the limiter's algorithm for the window.
    pub(crate) fn algorithm(self) -> Result<limiter::Algorithm, OutOfRange> {
        Ok(match self {
            Self::SlidingWindowCounter { sub_windows, bound } => limiter::Algorithm::SlidingWindowCounter {
                sub_windows: SubWindows::new(sub_windows)?,
                bound: match bound {
                    Bound::Estimate => limiter::Bound::Estimate,
                    Bound::Guaranteed => limiter::Bound::Guaranteed,
                },
            },
            Self::FixedWindow { alignment } => limiter::Algorithm::FixedWindow(match alignment {
                Alignment::Clock => limiter::Alignment::Clock,
                Alignment::FirstRequest => limiter::Alignment::FirstRequest,
                Alignment::Spread => limiter::Alignment::Spread,
            }),
        })
    }
}

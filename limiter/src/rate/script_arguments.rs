//! The numbers that a script needs, beside a rate's number and tag, to repeat the arithmetic. All are whole
//! and below 2^53, which a double holds exactly.

use super::algorithm::Algorithm;
use super::definition::Rate;
use crate::algorithm::gcra::BucketSize;
use crate::algorithm::{concurrency, fixed_window, gcra, log, sliding_window, warm_up};

/// The largest number passed to a script. Larger ones would mean the same, and a double could not hold them
/// exactly.
const LARGEST: u64 = 1 << 52;

impl Rate {
    /// Returns the arguments of this rate for a check of `cost` by a key; `None` for the two default
    /// algorithms without a soft extra, which need none.
    ///
    /// The five numbers (ms: milliseconds, us: microseconds; the rest is 0):
    ///
    /// | algorithm | 1 | 2 | 3 | 4 | 5 |
    /// |---|---|---|---|---|---|
    /// | `slidingWindowCounter` | 1 if guaranteed | soft ceiling | ms of the extra | | |
    /// | `fixedWindow` | phase of `Spread`, ms | soft ceiling | ms of the extra | | |
    /// | `slidingWindowLog` | minimum interval, ms | 1 if denials count | | | |
    /// | buckets | capacity, us | its rest | time of the cost, us | its rest | most ahead, us |
    /// | concurrency | holder | lease, ms | | | |
    /// | warm-up | period, us | cold factor | units of a settlement | | |
    #[must_use]
    pub fn script_arguments(&self, key: u128, cost: u64) -> Option<[u64; 5]> {
        let plain = self.algorithm == Algorithm::SLIDING_WINDOW || self.algorithm == Algorithm::FIXED_WINDOW;
        if plain && self.soft.is_none() { None } else { Some(self.full_script_arguments(key, cost)) }
    }

    /// Returns the arguments as [`Rate::script_arguments`] does, but also for the default algorithms.
    #[must_use]
    pub fn full_script_arguments(&self, key: u128, cost: u64) -> [u64; 5] {
        let quota = self.quota();
        let numbers = match self.algorithm {
            Algorithm::SlidingWindowCounter { bound, .. } => {
                sliding_window::script_arguments(bound, self.soft, quota)
            }
            Algorithm::FixedWindow(alignment) => {
                fixed_window::script_arguments(alignment, self.soft, quota, key)
            }
            Algorithm::SlidingWindowLog { min_interval, count_denied } => {
                log::script_arguments(min_interval, count_denied)
            }
            Algorithm::TokenBucket { burst } | Algorithm::Gcra { burst } => {
                gcra::script_arguments(BucketSize::Burst(burst), quota, cost)
            }
            Algorithm::LeakyBucket { max_wait } => {
                gcra::script_arguments(BucketSize::Delay(max_wait), quota, cost)
            }
            Algorithm::Concurrency { holder } => concurrency::script_arguments(holder, quota),
            Algorithm::WarmUp(parameters) => warm_up::script_arguments(parameters, quota, cost),
        };
        numbers.map(|number| number.min(LARGEST))
    }

    /// Returns the arguments for a settlement of `amount`. They are those of a check, but for a bucket the
    /// first two are 1 if it is a leaky one, and 0.
    #[must_use]
    pub fn settlement_script_arguments(&self, key: u128, amount: u64) -> [u64; 5] {
        let quota = self.quota();
        let numbers = match self.algorithm {
            Algorithm::TokenBucket { burst } | Algorithm::Gcra { burst } => {
                gcra::settlement_script_arguments(BucketSize::Burst(burst), quota, amount)
            }
            Algorithm::LeakyBucket { max_wait } => {
                gcra::settlement_script_arguments(BucketSize::Delay(max_wait), quota, amount)
            }
            _ => self.full_script_arguments(key, amount),
        };
        numbers.map(|number| number.min(LARGEST))
    }
}

//! The numbers that a script needs, beside a rate's number and tag, to repeat the arithmetic. All are whole and below
//! 2^53, which a double holds exactly.

use super::algorithm::Algorithm;
use super::definition::Rate;
use crate::algorithm::gcra::BucketSize;
use crate::algorithm::{concurrency, fixed_window, gcra, log, sliding_window, warm_up};

/// The largest number passed to a script. Larger ones would mean the same, and a double could not hold them exactly.
const LARGEST: u64 = 1 << 52;

impl Rate {
    /// Returns the arguments of this rate for a check of `cost` by a key; `None` for the two default algorithms without
    /// a soft extra, which need none.
    ///
    /// | algorithm | five numbers |
    /// |---|---|
    /// | `slidingWindowCounter`, `fixedWindow` | 1 if guaranteed or the phase of `Spread` in milliseconds, the soft ceiling, its duration in milliseconds or 0, 0, 0 |
    /// | `slidingWindowLog` | minimum interval in milliseconds, 1 if denials count, 0, 0, 0 |
    /// | `tokenBucket`, `gcra`, `leakyBucket` | capacity for this cost in microseconds and its rest, time of the cost in microseconds and its rest, how far ahead a stored instant may be in microseconds |
    /// | concurrency | the holder, the length of its lease in milliseconds, 0, 0, 0 |
    /// | warm-up | its period in microseconds, the cold factor, the units by which a settlement moves the next request, 0, 0 |
    #[must_use]
    pub fn script_arguments(&self, key: u128, cost: u64) -> Option<[u64; 5]> {
        let plain = self.algorithm == Algorithm::SLIDING_WINDOW || self.algorithm == Algorithm::FIXED_WINDOW;
        if plain && self.soft.is_none() { None } else { Some(self.full_script_arguments(key, cost)) }
    }

    /// Returns the arguments as [`Rate::script_arguments`], for every algorithm.
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

    /// Returns the arguments for a settlement of `amount`. They are those of a check, but for a bucket the first two are
    /// 1 if it is a leaky one, and 0.
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

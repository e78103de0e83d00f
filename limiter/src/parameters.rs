//! What a script that repeats the arithmetic needs to know of a rate, beside its number and its tag: whole numbers below
//! 2^53, computed here so that there they need not be.

use crate::{Algorithm, Alignment, Bound, Rate, Soft, arrival, warm_up};

/// Larger numbers mean no more than this one, and would not be exact in a double.
const LARGEST: u64 = 1 << 52;

impl Rate {
    /// The parameters of this rate for a check of `cost` of a key, or for a settlement of so much: `None` for the two
    /// algorithms that need none.
    ///
    /// | algorithm | five numbers |
    /// |---|---|
    /// | `slidingWindowCounter`, `fixedWindow` | 1 if guaranteed or the phase of `Spread` in milliseconds, the soft ceiling, its duration in milliseconds or 0, 0, 0 |
    /// | `slidingWindowLog` | least interval in milliseconds, 1 if denials count, 0, 0, 0 |
    /// | `tokenBucket`, `gcra`, `leakyBucket` | capacity for this cost in microseconds and its rest, time of the cost in microseconds and its rest, how far ahead a stored instant may be in microseconds |
    /// | concurrency | the holder, how long it is believed in milliseconds, 0, 0, 0 |
    /// | warm-up | its period in microseconds, the cold factor, the units that a settlement moves, 0, 0 |
    #[must_use]
    pub fn script_arguments(&self, key: u128, cost: u64) -> Option<[u64; 5]> {
        let plain = self.algorithm == Algorithm::SLIDING_WINDOW || self.algorithm == Algorithm::FIXED_WINDOW;
        if plain && self.soft.is_none() { None } else { Some(self.full_script_arguments(key, cost)) }
    }

    /// The same for every algorithm.
    #[must_use]
    pub fn full_script_arguments(&self, key: u128, cost: u64) -> [u64; 5] {
        let numbers = match self.algorithm {
            Algorithm::SlidingWindowCounter { bound, .. } => {
                self.window_parameters(u64::from(bound == Bound::Guaranteed))
            }
            Algorithm::FixedWindow(Alignment::Spread) => self.window_parameters(self.phase(key) / 1000),
            Algorithm::FixedWindow(_) => self.window_parameters(0),
            Algorithm::SlidingWindowLog { min_interval, count_denied } => {
                [min_interval, u64::from(count_denied), 0, 0, 0]
            }
            Algorithm::TokenBucket { .. } | Algorithm::Gcra { .. } | Algorithm::LeakyBucket { .. } => {
                let cost = cost.max(1);
                let (capacity, span) = (self.capacity(cost), arrival::capped(self.span(cost)));
                let capacity = capacity.unwrap_or(arrival::Span::ZERO);
                [capacity.micros, capacity.rest, span.micros, span.rest, arrival::furthest(self)]
            }
            Algorithm::Concurrency { holder } => [holder.get(), self.period.millis(), 0, 0, 0],
            Algorithm::WarmUp(warm_up) => {
                [warm_up.micros(), warm_up.cold_factor(), warm_up::units(self, cost), 0, 0]
            }
        };
        numbers.map(|number| number.min(LARGEST))
    }

    /// The parameters for a settlement of so much. Of buckets the first two are 1 if it is a leaky one, and 0.
    #[must_use]
    pub fn settlement_script_arguments(&self, key: u128, amount: u64) -> [u64; 5] {
        let mut numbers = self.full_script_arguments(key, amount);
        if let Algorithm::TokenBucket { .. } | Algorithm::Gcra { .. } | Algorithm::LeakyBucket { .. } =
            self.algorithm
        {
            let leaky = matches!(self.algorithm, Algorithm::LeakyBucket { .. });
            (numbers[0], numbers[1]) = (u64::from(leaky), 0);
        }
        numbers
    }

    fn window_parameters(&self, first: u64) -> [u64; 5] {
        [first, self.ceiling(), self.soft.map_or(0, Soft::millis), 0, 0]
    }
}

//! Random limits and their edits.

use std::sync::Arc;

use rand::Rng;
use rand::seq::IndexedRandom;
use sluice_limiter::{
    Algorithm, Alignment, Bound, Burst, Holder, MAX_COUNT, MAX_PERIOD_MS, MaxWait, Period, Rate, Requests,
    Soft, SubWindows, WarmUp,
};
use sluice_store::LimitSpec;

use super::state::{ALL, COMMON, DAY, Focus, World};

const PERIODS: [u64; 12] =
    [1, 2, 7, 1000, 60_000, 999_983, 3_600_000, DAY, 7 * DAY, 365 * DAY, MAX_PERIOD_MS - 1, MAX_PERIOD_MS];

impl World {
    /// Creates new limits and removes all values.
    pub(crate) fn rebuild(&mut self) {
        self.stored.clear();
        self.one = None;
        self.limits = (0..8)
            .map(|n| {
                let first = self.limit(n);
                // Edits share most of their records with the first version.
                let mut versions = vec![first.clone()];
                for _ in 0..3 {
                    let mut rates = first.rates.clone();
                    match self.rng.random_range(0..3) {
                        0 => {
                            for rate in &mut rates {
                                let edited = Rate { requests: self.requests(), ..*rate };
                                *rate = edited.validated().unwrap_or(*rate);
                            }
                        }
                        1 => rates = self.limit(n).rates.clone(),
                        _ => rates.reverse(),
                    }
                    blocks_last(&mut rates);
                    versions.push(Arc::new(LimitSpec::new(first.scope.clone(), rates)));
                }
                versions
                    .into_iter()
                    .map(|limit| {
                        let copy = LimitSpec::new(limit.scope.clone(), limit.rates.clone());
                        Arc::new(self.with_any_max_keys(copy))
                    })
                    .collect()
            })
            .collect();
    }

    /// Returns a random limit. Some have numbers whose products exceed 2^53; those have a single rate, so
    /// that it decides.
    pub(super) fn limit(&mut self, n: usize) -> Arc<LimitSpec> {
        let is_huge = match self.focus {
            Focus::Huge => true,
            Focus::TwoWindows | Focus::SubWindows | Focus::Everyday => n < 3,
            _ => false,
        };
        if is_huge {
            let several = self.focus == Focus::SubWindows || self.focus == Focus::Huge && n > 5;
            let sub_windows = if several { self.rng.random_range(2..=60) } else { 1 };
            let period = self.rng.random_range(DAY..=MAX_PERIOD_MS) / sub_windows * sub_windows;
            let sub_windows = SubWindows::new(sub_windows).unwrap();
            let rate = Rate::new(
                Requests::new(self.rng.random_range(1 << 37..=MAX_COUNT)).unwrap(),
                Period::from_millis(period).unwrap(),
                Algorithm::SlidingWindowCounter { sub_windows, bound: Bound::Estimate },
            );
            return Arc::new(LimitSpec::new(format!("limit{n}"), vec![rate.unwrap()]));
        }
        let how_many = match self.focus {
            Focus::Everyday => [1, 2, 2, 3, 3, 4, 8],
            Focus::Shared => [1, 1, 1, 2, 3, 3, 3],
            Focus::Widths | Focus::Keys => [1, 1, 1, 1, 1, 2, 3],
            Focus::Plain => [1; 7],
            Focus::Runs => [1, 2, 3, 3, 3, 3, 4],
            Focus::Damaged => [1, 1, 1, 1, 1, 1, 2],
            Focus::Block => [1, 2, 2, 2, 3, 3, 4],
            _ => [1, 1, 1, 1, 2, 3, 8],
        };
        let how_many = *how_many.choose(&mut self.rng).unwrap();
        let sliding = self.rng.random_bool(0.7);
        let mut rates: Vec<Rate> = vec![];
        while rates.len() < how_many {
            let focus = match self.focus {
                Focus::Runs => Focus::TwoWindows,
                _ if self.is_everyday() && sliding => Focus::TwoWindows,
                _ if self.is_everyday() => {
                    *[Focus::TwoWindows, Focus::FixedClock].choose(&mut self.rng).unwrap()
                }
                Focus::Large => *[Focus::Log, Focus::Concurrency].choose(&mut self.rng).unwrap(),
                Focus::Damaged if self.rng.random_bool(0.08) => Focus::Reservations,
                focus if focus != Focus::Damaged && self.rng.random_bool(0.7) => focus,
                Focus::Block => *ALL[..=COMMON].choose(&mut self.rng).unwrap(),
                // A block beside them changes little, and takes room from the others. A ledger is no rate of a limit.
                _ => *ALL[..COMMON].choose(&mut self.rng).unwrap(),
            };
            let Some(rate) = self.rate(focus) else { continue };
            let clash = |other: &Rate| {
                // Rates with the same tag would share a record.
                other.tag() == rate.tag()
            };
            if !rates.iter().any(clash) {
                rates.push(rate);
            }
        }
        blocks_last(&mut rates);
        Arc::new(LimitSpec::new(format!("limit{n}"), rates))
    }

    /// Returns a random rate, or `None` if the random numbers do not form a valid one.
    pub(super) fn rate(&mut self, focus: Focus) -> Option<Rate> {
        let (mut requests, mut period) = (self.requests(), self.period());
        if self.focus == Focus::Widths {
            requests = Requests::new(MAX_COUNT - *[0, 0, 1, 2].choose(&mut self.rng).unwrap()).unwrap();
            period = self.rng.random_range(1..2000);
        }
        if matches!(focus, Focus::Plain | Focus::TwoWindows) && self.rng.random_bool(0.5) {
            // A remainder of the previous window can be 1.
            period = *[7, 997, 9973, 99_991].choose(&mut self.rng).unwrap();
            requests = Requests::new(self.rng.random_range(period..20 * period)).unwrap();
        }
        if self.focus == Focus::Runs && self.rng.random_bool(0.75) {
            requests = Requests::new(1 << self.rng.random_range(12..40)).unwrap();
        }
        let small = self.rng.random_range(0..20);
        let millis = match self.rng.random_range(0..3) {
            0 => 0,
            1 => self.rng.random_range(0..=period),
            _ => self.rng.random_range(0..5000),
        };
        let is_bucket = matches!(focus, Focus::TokenBucket | Focus::Gcra | Focus::LeakyBucket);
        if is_bucket && self.rng.random_bool(0.05) {
            requests = Requests::new(0).unwrap();
        }
        if self.is_of_buckets() && self.rng.random_bool(0.3) {
            // The time of a request is mostly no whole number of microseconds.
            requests = Requests::new(self.rng.random_range(3..1000)).unwrap();
        }
        let burst =
            Burst::new(if self.rng.random_bool(0.2) { requests.get().max(1) } else { small + 1 }).unwrap();
        let algorithm = match focus {
            Focus::TwoWindows
            | Focus::Everyday
            | Focus::Shared
            | Focus::Plain
            | Focus::Runs
            | Focus::Damaged
            | Focus::Huge
            | Focus::Keys
            | Focus::Widths => Algorithm::SLIDING_WINDOW,
            Focus::SubWindows | Focus::Guaranteed => {
                let sub_windows = *[1, 2, 3, 4, 10, 60].choose(&mut self.rng).unwrap();
                period = (period / sub_windows).max(1) * sub_windows;
                period = period.min(MAX_PERIOD_MS / sub_windows * sub_windows);
                let bound = if focus == Focus::Guaranteed { Bound::Guaranteed } else { Bound::Estimate };
                Algorithm::SlidingWindowCounter { sub_windows: SubWindows::new(sub_windows).unwrap(), bound }
            }
            Focus::FixedClock => Algorithm::FIXED_WINDOW,
            Focus::FixedFirstRequest => Algorithm::FixedWindow(Alignment::FirstRequest),
            Focus::FixedSpread => Algorithm::FixedWindow(Alignment::Spread),
            Focus::Log | Focus::Large => {
                requests = Requests::new(requests.get() % 40).unwrap();
                let min_interval = if self.rng.random_bool(0.5) { 0 } else { millis.min(period) };
                Algorithm::SlidingWindowLog { min_interval }
            }
            Focus::TokenBucket => Algorithm::TokenBucket { burst },
            Focus::Gcra => Algorithm::Gcra { burst },
            Focus::LeakyBucket => {
                Algorithm::LeakyBucket { max_wait: MaxWait::from_millis(millis.min(MAX_PERIOD_MS)).unwrap() }
            }
            Focus::WarmUp => {
                let (millis, factor) = (self.rng.random_range(1..=60_000), self.rng.random_range(2..6));
                period = period.min(MAX_PERIOD_MS / factor);
                Algorithm::WarmUp(WarmUp::new(millis, factor).unwrap())
            }
            Focus::Concurrency => {
                // Some have more slots than there can be holders.
                let least = if self.rng.random_bool(0.3) { 1000 } else { 0 };
                requests = Requests::new(least + requests.get() % 30).unwrap();
                Algorithm::Concurrency { holder: Holder::new(self.rng.random_range(1..4)).unwrap() }
            }
            Focus::Reservations => {
                Algorithm::Reservations { id: Holder::new(self.rng.random_range(1..5)).unwrap() }
            }
            Focus::Block => {
                let after = Requests::new(self.rng.random_range(1..5)).unwrap();
                let [within, lasts] = [self.period(), self.period()].map(|n| Period::from_millis(n).unwrap());
                return Rate::block(after, within, lasts).ok();
            }
            Focus::Soft => *[
                Algorithm::SLIDING_WINDOW,
                Algorithm::FIXED_WINDOW,
                Algorithm::FixedWindow(Alignment::FirstRequest),
                Algorithm::FixedWindow(Alignment::Spread),
            ]
            .choose(&mut self.rng)
            .unwrap(),
        };
        let rate = Rate::new(requests, Period::from_millis(period).unwrap(), algorithm).ok()?;
        let counts_denied = match focus {
            Focus::Log | Focus::Large | Focus::Soft => 0.3,
            Focus::SubWindows | Focus::Guaranteed | Focus::FixedClock => 0.2,
            Focus::FixedFirstRequest | Focus::FixedSpread => 0.2,
            _ => 0.0,
        };
        let rate =
            if self.rng.random_bool(counts_denied) { rate.counting_denied().unwrap_or(rate) } else { rate };
        if focus == Focus::Soft || (focus == Focus::SubWindows && self.rng.random_bool(0.1)) {
            let lasts = *[1, 1000, period, (3 * period).min(MAX_PERIOD_MS)].choose(&mut self.rng).unwrap();
            return rate.with_soft(Soft::new(self.rng.random_range(1..=300), lasts).unwrap()).ok();
        }
        Some(rate)
    }

    pub(super) fn requests(&mut self) -> Requests {
        let n = match self.rng.random_range(0..10) {
            0..5 => self.rng.random_range(0..12),
            // At the boundary where a count needs a second byte.
            5 => self.rng.random_range(250..262),
            6 if self.is_everyday() => self.rng.random_range(255..260),
            6 => self.rng.random_range(0..MAX_COUNT),
            7 => 1 << self.rng.random_range(0..40),
            8 => (1 << (8 * self.rng.random_range(1..5))) + self.rng.random_range(0..4),
            _ => MAX_COUNT - self.rng.random_range(0..3),
        };
        Requests::new(n).unwrap()
    }

    pub(super) fn period(&mut self) -> u64 {
        if self.rng.random_bool(0.2) {
            self.rng.random_range(1..=MAX_PERIOD_MS)
        } else {
            *PERIODS.choose(&mut self.rng).unwrap()
        }
    }
}

/// Makes a block the last rate of its limit, as it always is.
fn blocks_last(rates: &mut [Rate]) {
    rates.sort_by_key(Rate::counts_only_own_denials);
}

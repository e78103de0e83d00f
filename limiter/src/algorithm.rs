//! One door to all algorithms: roll a record to now, ask for room, charge, settle, look ahead.

use crate::arrival::{self, Span};
use crate::rate::within;
use crate::{
    Decision, Holder, OutOfRange, Rate, Record, concurrency, fixed_window, sliding_window_counter,
    sliding_window_log, soft, warm_up,
};
use crate::{MAX_COUNT, MAX_PERIOD_MS};

/// How a rate counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Slots of a window that slides: [`sliding_window_counter`].
    SlidingWindowCounter {
        /// Into how many sub-windows the period is cut.
        sub_windows: SubWindows,
        /// What counts of the oldest one.
        bound: Bound,
    },
    /// One window after another: [`fixed_window`].
    FixedWindow(Alignment),
    /// Every request by its instant: [`sliding_window_log`].
    SlidingWindowLog {
        /// Least time between two admitted requests, in milliseconds; 0: none.
        min_interval: u64,
        /// Whether denied requests are recorded too, so that a client must be quiet before it is admitted again.
        count_denied: bool,
    },
    /// A bucket that fills with constant speed: [`arrival`].
    TokenBucket {
        /// How many tokens it holds.
        burst: Burst,
    },
    /// The generic cell rate algorithm: [`arrival`].
    Gcra {
        /// How many requests may come at once.
        burst: Burst,
    },
    /// A bucket that drains with constant speed; who comes waits for its turn: [`arrival`].
    LeakyBucket {
        /// The longest wait in milliseconds; whoever would have to wait longer is denied.
        max_wait: MaxWait,
    },
    /// A token bucket that has to warm up: [`warm_up`].
    WarmUp(warm_up::WarmUp),
    /// So many at a time: [`concurrency`]. The period is how long a holder is believed that does not renew.
    Concurrency {
        /// For whom places are taken.
        holder: Holder,
    },
}

/// Into how many sub-windows a period is cut, 1 to 60.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SubWindows(u8);

impl SubWindows {
    /// One: the counter of two windows.
    pub const ONE: Self = Self(1);

    /// Checks the range.
    pub fn new(value: u64) -> Result<Self, OutOfRange> {
        within(value, 1, 60).map(|value| Self(value as u8))
    }

    /// The number.
    #[must_use]
    pub fn get(self) -> u8 {
        self.0
    }
}

/// What a sliding-window counter supposes about its oldest slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Bound {
    /// That it was used evenly: it counts by the share that the last period still overlaps.
    Estimate,
    /// Nothing: all of it counts, so that no trailing period ever exceeds the number.
    Guaranteed,
}

/// When fixed windows begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Alignment {
    /// At multiples of the period since the Unix epoch.
    Clock,
    /// At the first request that is admitted.
    FirstRequest,
    /// As [`Alignment::Clock`], moved for each key by a share of the period that its hash says.
    Spread,
}

/// How much a bucket holds, 1 to [`MAX_COUNT`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Burst(u64);

impl Burst {
    /// Checks the range.
    pub fn new(value: u64) -> Result<Self, OutOfRange> {
        within(value, 1, MAX_COUNT).map(Self)
    }

    /// The number.
    #[must_use]
    pub fn get(self) -> u64 {
        self.0
    }
}

/// The longest wait for a turn, 0 to [`MAX_PERIOD_MS`] milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MaxWait(u64);

impl MaxWait {
    /// Checks the range.
    pub fn from_millis(value: u64) -> Result<Self, OutOfRange> {
        within(value, 0, MAX_PERIOD_MS).map(Self)
    }

    /// Microseconds.
    #[must_use]
    pub fn micros(self) -> u64 {
        self.0 * 1000
    }
}

/// The layout of a record, as its tag says it; numbers are never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Sliding,
    Clock,
    Spread,
    FirstRequest,
    Log,
    Arrival,
    WarmUp,
    /// Since when a soft rate is over its number; it stands behind the record that it is about.
    Overrun,
    Holders,
}

impl Kind {
    pub(crate) fn code(self) -> u64 {
        match self {
            Self::Sliding => 1,
            Self::Clock => 2,
            Self::Spread => 3,
            Self::FirstRequest => 4,
            Self::Log => 5,
            Self::Arrival => 6,
            Self::WarmUp => 7,
            Self::Overrun => 8,
            Self::Holders => 9,
        }
    }

    pub(crate) fn from_code(code: u64) -> Option<Self> {
        use Kind::{Arrival, Clock, FirstRequest, Holders, Log, Overrun, Sliding, Spread, WarmUp};
        [Sliding, Clock, Spread, FirstRequest, Log, Arrival, WarmUp, Overrun, Holders]
            .into_iter()
            .find(|k| k.code() == code)
    }
}

impl Algorithm {
    /// The default: two windows, the previous one by its share.
    pub const SLIDING_WINDOW: Self =
        Self::SlidingWindowCounter { sub_windows: SubWindows::ONE, bound: Bound::Estimate };
    /// Fixed windows aligned to the clock.
    pub const FIXED_WINDOW: Self = Self::FixedWindow(Alignment::Clock);

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

    /// How many sub_windows before the newest its records keep.
    pub(crate) fn previous_windows(self) -> u8 {
        if let Self::SlidingWindowCounter { sub_windows, .. } = self { sub_windows.get() } else { 0 }
    }
}

impl Rate {
    /// How far this rate's time is ahead of the clock for a key, in microseconds: not at all, but for
    /// [`Alignment::Spread`]. All of a rate's instants are in its own time.
    #[must_use]
    #[inline]
    pub fn phase(&self, key: u128) -> u64 {
        if self.algorithm == Algorithm::FixedWindow(Alignment::Spread) {
            (key >> 64) as u64 % self.period.millis() * 1000
        } else {
            0
        }
    }

    /// Whether several who ask the same at the same instant can be decided at once, knowing only how many.
    #[must_use]
    pub fn is_mergeable(&self) -> bool {
        match self.algorithm {
            Algorithm::WarmUp(_) => false,
            Algorithm::SlidingWindowLog { min_interval, count_denied } => min_interval == 0 && !count_denied,
            _ => true,
        }
    }

    /// The record of this rate at `now` (microseconds since the Unix epoch, as all instants here), and the instant
    /// that counts: never before the newest slot stored, so that time does not run backwards for a counter. What is
    /// stored more than a period ahead (a clock was wrong) is rebased: all usage counts now, which denies for one
    /// period more at most and never forgets.
    #[must_use]
    #[inline]
    pub fn roll(&self, stored: Option<Record>, now: u64) -> (Record, u64) {
        let tag = self.tag();
        let Some(stored) = stored.filter(|record| record.tag == tag) else {
            return (self.fresh(now), now);
        };
        match self.algorithm.kind() {
            Kind::Sliding | Kind::Clock | Kind::Spread | Kind::Overrun => {
                sliding_window_counter::roll(stored, now)
            }
            Kind::FirstRequest => fixed_window::roll(self, stored, now),
            Kind::Log => sliding_window_log::roll(self, stored, now),
            Kind::Arrival => (arrival::roll(self, stored, now), now),
            Kind::WarmUp => (warm_up::roll(self, stored, now), now),
            Kind::Holders => (concurrency::roll(self, stored, now), now),
        }
    }

    fn fresh(&self, now: u64) -> Record {
        match self.algorithm {
            Algorithm::WarmUp(warm_up) => warm_up::fresh(self, warm_up, now),
            _ => Record::empty(self.tag(), now),
        }
    }

    /// How much the rolled record has used, in requests.
    #[must_use]
    #[inline]
    pub fn used(&self, record: &Record, now: u64) -> u64 {
        match self.algorithm {
            Algorithm::SlidingWindowCounter { bound, .. } => sliding_window_counter::used(record, bound, now),
            Algorithm::FixedWindow(_) => record.current,
            Algorithm::SlidingWindowLog { .. } => record.tail.len() as u64,
            Algorithm::TokenBucket { .. } | Algorithm::Gcra { .. } if self.requests.get() == 0 => 0,
            Algorithm::TokenBucket { burst } | Algorithm::Gcra { burst } => {
                burst.get() - arrival::tokens(self, record, self.span(burst.get()), now).min(burst.get())
            }
            Algorithm::LeakyBucket { .. } => u64::from(arrival::ahead(record, now) > Span::ZERO),
            Algorithm::WarmUp(_) => u64::from(warm_up::wait(record, now) > 0),
            Algorithm::Concurrency { .. } => concurrency::used(record),
        }
    }

    /// Whether the rolled record has room for `cost` more. A cost of 0 is a peek: it needs one left.
    #[must_use]
    #[inline]
    pub fn has_room(&self, record: &Record, now: u64, cost: u64) -> bool {
        let (cost, requests) = (cost.max(1), self.requests.get());
        match self.algorithm {
            Algorithm::SlidingWindowCounter { .. } | Algorithm::FixedWindow(_) => {
                let after = self.used(record, now).saturating_add(cost);
                after <= requests || (self.soft.is_some() && soft::has_room(self, record, now, after))
            }
            Algorithm::SlidingWindowLog { min_interval, .. } => {
                sliding_window_log::has_room(record, now, cost, requests, min_interval)
            }
            Algorithm::TokenBucket { .. } | Algorithm::Gcra { .. } | Algorithm::LeakyBucket { .. } => {
                self.capacity(cost).is_some_and(|capacity| {
                    arrival::ahead(record, now).plus(self.span(cost), requests) <= capacity
                })
            }
            Algorithm::WarmUp(_) => cost <= requests && warm_up::wait(record, now) == 0,
            Algorithm::Concurrency { holder } => concurrency::has_room(record, holder, cost, requests),
        }
    }

    /// The rolled record after `cost` was admitted. Counts saturate at [`MAX_COUNT`].
    #[must_use]
    #[inline]
    pub fn charge(&self, mut record: Record, now: u64, cost: u64) -> Record {
        match self.algorithm {
            Algorithm::SlidingWindowCounter { .. } | Algorithm::FixedWindow(_) => {
                record.current = record.current.saturating_add(cost).min(MAX_COUNT);
                if self.soft.is_some() && cost > 0 {
                    soft::mark(self, &mut record, now);
                }
            }
            Algorithm::SlidingWindowLog { .. } => {
                sliding_window_log::add(&mut record, now, cost, self.requests.get());
            }
            Algorithm::TokenBucket { .. } | Algorithm::Gcra { .. } | Algorithm::LeakyBucket { .. } => {
                if cost > 0 {
                    arrival::reserve(self, &mut record, now, self.span(cost));
                }
            }
            Algorithm::WarmUp(warm_up) => warm_up::charge(self, warm_up, &mut record, now, cost),
            Algorithm::Concurrency { holder } => {
                concurrency::charge(self, &mut record, holder, now, cost);
            }
        }
        record
    }

    /// The rolled record after a check of `cost` was denied: unchanged, unless this rate counts denials.
    #[must_use]
    #[inline]
    pub fn refuse(&self, mut record: Record, now: u64, cost: u64) -> Record {
        if let Algorithm::SlidingWindowLog { count_denied: true, .. } = self.algorithm {
            sliding_window_log::add(&mut record, now, cost.max(1), self.requests.get());
        }
        record
    }

    /// Whether [`Rate::refuse`] changes a record.
    #[must_use]
    pub fn counts_denied(&self) -> bool {
        matches!(self.algorithm, Algorithm::SlidingWindowLog { count_denied: true, .. })
    }

    /// The record as it was before `cost` was charged at `now`, at which it was charged.
    #[must_use]
    pub fn undo_charge(&self, mut record: Record, now: u64, cost: u64) -> Record {
        match self.algorithm {
            Algorithm::TokenBucket { .. } | Algorithm::Gcra { .. } | Algorithm::LeakyBucket { .. } => {
                arrival::undo_charge(self, &mut record, cost);
                record
            }
            _ => self.settle(record, now, now, -(cost.min(MAX_COUNT) as i64)),
        }
    }

    /// Corrects the record, rolled to `now`, for what was charged at the instant `charged`, in the slot that was charged: `delta` more, or less if it
    /// is negative. A refund never goes below nothing used, and what has been forgotten since stays forgotten. Of a leaky
    /// bucket `charged` is the instant of the turn: that of the check and its delay.
    #[must_use]
    pub fn settle(&self, mut record: Record, now: u64, charged: u64, delta: i64) -> Record {
        match self.algorithm {
            Algorithm::SlidingWindowCounter { .. }
            | Algorithm::FixedWindow(Alignment::Clock | Alignment::Spread) => {
                sliding_window_counter::settle(&mut record, charged, delta);
            }
            Algorithm::FixedWindow(Alignment::FirstRequest) => {
                if charged / 1000 >= record.window {
                    record.current = shifted(record.current, delta);
                }
            }
            Algorithm::SlidingWindowLog { .. } => {
                sliding_window_log::settle(&mut record, charged, delta, self.requests.get());
            }
            Algorithm::TokenBucket { .. } | Algorithm::Gcra { .. } | Algorithm::LeakyBucket { .. } => {
                arrival::settle(self, &mut record, charged, delta);
            }
            Algorithm::WarmUp(_) => warm_up::settle(self, &mut record, delta),
            Algorithm::Concurrency { holder } => concurrency::settle(self, &mut record, holder, now, delta),
        }
        record
    }

    /// The answer of this rate about a check of `cost`. `record` and `now` come from [`Rate::roll`], with the cost
    /// already charged if the whole check was admitted (`charged`); `has_room` is this rate's own answer before
    /// that.
    #[must_use]
    #[inline]
    pub fn decision(&self, record: &Record, now: u64, cost: u64, has_room: bool, charged: bool) -> Decision {
        if record.tag.has_view() {
            return self.decide_from_view(&self.view(record, cost), now, cost, has_room);
        }
        let limit = self.requests.get();
        let cost = cost.max(1);
        let used = self.used(record, now);
        let (remaining, reset) = match self.algorithm {
            Algorithm::SlidingWindowCounter { bound, .. } => {
                (limit.saturating_sub(used), sliding_window_counter::reset(record, bound, now))
            }
            Algorithm::FixedWindow(_) => (limit.saturating_sub(used), fixed_window::reset(record, now)),
            Algorithm::TokenBucket { burst } | Algorithm::Gcra { burst } => {
                let left = if limit == 0 { 0 } else { burst.get() - used };
                (left, arrival::ahead(record, now).ceil())
            }
            Algorithm::LeakyBucket { .. } => {
                let left = self.capacity(1).map_or(0, |all| arrival::tokens(self, record, all, now));
                (left, arrival::ahead(record, now).ceil())
            }
            Algorithm::WarmUp(_) => (u64::from(limit > 0 && used == 0), warm_up::wait(record, now)),
            Algorithm::SlidingWindowLog { .. } | Algorithm::Concurrency { .. } => (0, 0),
        };
        let retry_after = if has_room {
            None
        } else {
            match self.algorithm {
                Algorithm::SlidingWindowCounter { .. } | Algorithm::FixedWindow(_) => {
                    soft::retry_after(self, record, now, cost)
                }
                Algorithm::WarmUp(_) => (cost <= limit).then(|| warm_up::wait(record, now)),
                _ => self.capacity(cost).and_then(|capacity| {
                    let need = arrival::ahead(record, now).plus(self.span(cost), limit);
                    (self.span(cost) <= capacity).then(|| need.minus(capacity, limit).ceil())
                }),
            }
        };
        let delay = if charged && matches!(self.algorithm, Algorithm::LeakyBucket { .. }) {
            arrival::ahead(record, now).minus(self.span(cost), limit).ceil()
        } else {
            0
        };
        Decision {
            admitted: has_room,
            limit,
            period: self.period.millis(),
            remaining,
            reset,
            retry_after,
            delay,
        }
    }

    /// What an answer needs to know of the record of a log or of holders.
    #[must_use]
    pub fn view(&self, record: &Record, cost: u64) -> sliding_window_log::RecordView {
        match self.algorithm {
            Algorithm::Concurrency { .. } => concurrency::view(record),
            _ => sliding_window_log::view(record, cost, self.requests.get()),
        }
    }

    /// As [`Rate::decision`], of a record of which only the view is known.
    #[must_use]
    pub fn decide_from_view(
        &self,
        view: &sliding_window_log::RecordView,
        now: u64,
        cost: u64,
        has_room: bool,
    ) -> Decision {
        let (limit, period) = (self.requests.get(), self.period.millis());
        let (reset, wait) = match self.algorithm {
            Algorithm::SlidingWindowLog { min_interval, .. } => {
                (view.reset(period, now), view.retry_after(period, min_interval, now))
            }
            _ => (view.reset(0, now), concurrency::RETRY_AFTER_MICROS),
        };
        Decision {
            admitted: has_room,
            limit,
            period,
            remaining: limit.saturating_sub(view.used),
            reset,
            retry_after: (!has_room && cost.max(1) <= limit).then_some(wait),
            delay: 0,
        }
    }

    /// Whether a record of which only the view is known has room for `cost` more.
    #[must_use]
    pub fn view_has_room(&self, view: &sliding_window_log::RecordView, now: u64, cost: u64) -> bool {
        let paused = match self.algorithm {
            Algorithm::SlidingWindowLog { min_interval, .. } => {
                min_interval > 0 && view.used > 0 && view.newest + min_interval > now / 1000
            }
            _ => false,
        };
        view.used.saturating_add(cost.max(1)) <= self.requests.get() && !paused
    }

    /// Milliseconds until at most `spare` requests are used, as an instant; only for windows.
    pub(crate) fn falls_to(&self, record: &Record, now: u64, spare: u64) -> u64 {
        match self.algorithm {
            Algorithm::SlidingWindowCounter { bound, .. } => {
                sliding_window_counter::falls_to(record, bound, now, spare)
            }
            _ if record.current <= spare => now / 1000,
            _ => fixed_window::ends(record),
        }
    }

    /// The time that so many requests take.
    #[inline]
    pub(crate) fn span(&self, requests: u64) -> Span {
        Span::of(requests, self.period.micros(), self.requests.get())
    }

    /// How far ahead of now a request of `cost` may reach; `None` if this rate admits nothing.
    pub(crate) fn capacity(&self, cost: u64) -> Option<Span> {
        let requests = self.requests.get();
        if requests == 0 {
            return None;
        }
        Some(match self.algorithm {
            Algorithm::TokenBucket { burst } | Algorithm::Gcra { burst } => self.span(burst.get()),
            Algorithm::LeakyBucket { max_wait } if cost <= requests => {
                self.span(cost).plus(Span { micros: max_wait.micros(), rest: 0 }, requests)
            }
            _ => Span::ZERO,
        })
    }
}

/// `count + delta`, within 0 and [`MAX_COUNT`].
pub(crate) fn shifted(count: u64, delta: i64) -> u64 {
    count.saturating_add_signed(delta).min(MAX_COUNT)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::testing::{any_algorithm, any_rate, check, rate, sliding};
    use crate::{Algorithm, Alignment, Bound, MAX_COUNT, Overrun, Rate, Record};

    /// Whole milliseconds, whole seconds and whole minutes.
    const START: u64 = 1_126_000_020_000_000;

    /// A record as full as can be, give or take a little: some checks after one another, and then some of it random.
    fn history(rate: &Rate, steps: &[(u64, u64)]) -> (Option<Record>, u64) {
        let (mut stored, mut now) = (None, START);
        for &(step, cost) in steps {
            now += step;
            let (record, _) = check(rate, stored, now, cost);
            stored = Some(record);
        }
        (stored, now)
    }

    fn steps() -> impl Strategy<Value = Vec<(u64, u64)>> {
        let step = prop_oneof![Just(0u64), 0u64..2_000, 0u64..90_000_000];
        proptest::collection::vec((step, prop_oneof![3 => 0u64..4, 1 => 0u64..2000]), 0..60)
    }

    /// As if the denied check had not been recorded: for those that count denials, waiting is from the denial.
    fn waits_exactly(
        rate: &Rate,
        stored: &Record,
        now: u64,
        wait: u64,
        cost: u64,
    ) -> Result<(), TestCaseError> {
        prop_assert!(wait >= 1);
        prop_assert!(check(rate, Some(stored.clone()), now + wait, cost).1.admitted, "after {wait}");
        prop_assert!(!check(rate, Some(stored.clone()), now + wait - 1, cost).1.admitted, "before {wait}");
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// Waiting exactly retry-after admits; one microsecond less does not. No retry-after: no wait helps.
        #[test]
        fn retry_after_is_exact(rate in any_rate(), steps in steps(), cost in prop_oneof![0u64..6, 0u64..3000]) {
            let (stored, now) = history(&rate, &steps);
            let (record, decision) = check(&rate, stored, now, cost);
            if let Some(wait) = decision.retry_after {
                waits_exactly(&rate, &record, now, wait, cost)?;
            } else if !decision.admitted {
                let later = now + (crate::MAX_PERIOD_MS * 1000) * 3;
                prop_assert!(!check(&rate, Some(record.clone()), later, cost).1.admitted);
            }
        }

        /// The same for records of any numbers, as clocks and edits leave them.
        #[test]
        fn retry_after_is_exact_for_any_window(
            rate in any_rate(), counts in proptest::collection::vec(0..=MAX_COUNT, 61), small: bool, into in 0u64..1 << 45, cost in 0u64..30,
            since in 0u64..1 << 30, lasted in 0u64..1 << 20,
        ) {
            if !matches!(rate.algorithm, Algorithm::SlidingWindowCounter { .. } | Algorithm::FixedWindow(_)) { return Ok(()); }
            let now = START + into;
            let mut record = Record::empty(rate.tag(), now);
            let some = |n: usize| if small { counts[n] % (rate.requests.get() / 8 + 2) } else { counts[n] };
            record.current = some(0);
            if record.tag.previous_windows() > 0 {
                record.previous = some(1);
            }
            (0..record.tail.len()).for_each(|n| record.tail[n] = some(n + 2));
            if rate.soft.is_some() && since > 1 << 20 {
                let since = now / 1000 - since % (4 * rate.period.millis()).max(1 << 20);
                record.overrun = Overrun { since, last: (since + lasted).min(now / 1000) };
            }
            let (record, decision) = check(&rate, Some(record), now, cost);
            if let Some(wait) = decision.retry_after {
                waits_exactly(&rate, &record, now, wait, cost)?;
            } else {
                prop_assert!(decision.admitted || cost.max(1) > rate.ceiling());
            }
        }

        /// After reset, and nothing else, the limit is free; a leaky bucket has drained.
        #[test]
        fn reset_frees_everything(rate in any_rate(), steps in steps()) {
            let (stored, now) = history(&rate, &steps);
            let (record, decision) = check(&rate, stored, now, 0);
            let (rolled, at) = rate.roll(Some(record), now + decision.reset);
            prop_assert_eq!(rate.used(&rolled, at), 0);
        }

        /// In every aligned window no more than N pass, whatever the instants; N and the extra if it is soft.
        #[test]
        fn an_aligned_window_admits_no_more_than_its_number(
            sub_windows in 1u64..12, requests in 0u64..50, unit in 1u64..2_000, fixed: bool, guaranteed: bool,
            steps in proptest::collection::vec((0u64..900_000, 1u64..4), 1..200),
        ) {
            let period = unit * sub_windows;
            let bound = if guaranteed { Bound::Guaranteed } else { Bound::Estimate };
            let algorithm = if fixed { Algorithm::FIXED_WINDOW } else { sliding(sub_windows, bound) };
            let rate = rate(requests, period, algorithm);
            let (mut now, mut stored) = (START, None);
            let mut admitted = std::collections::BTreeMap::<u64, u64>::new();
            for (step, cost) in steps {
                now += step;
                let (record, decision) = check(&rate, stored, now, cost);
                if decision.admitted {
                    *admitted.entry(now / 1000 / period).or_default() += cost;
                }
                stored = Some(record);
            }
            prop_assert!(admitted.values().all(|&n| n <= requests));
        }

        /// A log and a guaranteed counter never exceed N in any trailing period; a bucket never its burst and what it
        /// has gained since.
        #[test]
        fn no_trailing_period_exceeds_what_the_definition_says(
            requests in 1u64..30, unit in 1u64..1_000, sub_windows in 1u64..12, which in 0..4,
            steps in proptest::collection::vec((prop_oneof![Just(0u64), 0u64..500_000], 1u64..4), 1..300),
        ) {
            let period = unit * sub_windows;
            let burst = crate::Burst::new(requests).unwrap();
            let algorithm = match which {
                0 => sliding(sub_windows, Bound::Guaranteed),
                1 => Algorithm::SlidingWindowLog { min_interval: 0, count_denied: false },
                2 => Algorithm::TokenBucket { burst },
                _ => Algorithm::FixedWindow(Alignment::FirstRequest),
            };
            let rate = rate(requests, period, algorithm);
            let (mut now, mut stored, mut admitted) = (START, None, Vec::<(u64, u64)>::new());
            for (step, cost) in steps {
                now += step;
                let (record, decision) = check(&rate, stored, now, cost);
                if decision.admitted {
                    admitted.push((now / 1000, cost));
                }
                stored = Some(record);
            }
            let bound = match which { 0 | 1 => requests, _ => 2 * requests };
            for &(end, _) in &admitted {
                let inside = |&&(at, _): &&(u64, u64)| at <= end && at + period > end;
                let sum: u64 = admitted.iter().filter(inside).map(|&(_, cost)| cost).sum();
                prop_assert!(sum <= bound, "{sum} of {bound}");
            }
        }

        /// A clock that steps back never gives quota back.
        #[test]
        fn time_never_runs_backwards_for_a_counter(
            algorithm in any_algorithm(), requests in 1u64..20, back in 0u64..20_000_000_000,
        ) {
            let period = 60_000 * 60;
            let sub_windows = if let Algorithm::SlidingWindowCounter { sub_windows, .. } = algorithm { u64::from(sub_windows.get()) } else { 1 };
            let rate = rate(requests, period / sub_windows * sub_windows, algorithm);
            let mut stored = None;
            let mut admitted = true;
            for _ in 0..5000 {
                let (record, decision) = check(&rate, stored, START, 1);
                stored = Some(record);
                admitted = decision.admitted;
                if !admitted {
                    break;
                }
            }
            prop_assume!(!admitted);
            prop_assert!(!check(&rate, stored, START - back, 1).1.admitted);
        }

        /// Taking back all that was charged leaves room for all of it again.
        #[test]
        fn a_refund_gives_back_what_was_charged(rate in any_rate(), steps in steps(), cost in 1u64..6, later in 0u64..1000) {
            if matches!(rate.algorithm, Algorithm::WarmUp(_)) || rate.soft.is_some() {
                return Ok(());
            }
            let (stored, now) = history(&rate, &steps);
            let (before, at) = rate.roll(stored, now);
            if !rate.has_room(&before, at, cost) {
                return Ok(());
            }
            let charged = rate.charge(before.clone(), at, cost);
            let turn = at + rate.decision(&charged, at, cost, true, true).delay;
            let (rolled, at_later) = rate.roll(Some(charged), at + later);
            let settled = rate.settle(rolled, at_later, turn, -(cost as i64));
            let (without, _) = rate.roll(Some(before), at + later);
            prop_assert_eq!(rate.used(&settled, at_later), rate.used(&without, at_later));
            let more = rate.settle(settled.clone(), at_later, at, cost as i64);
            prop_assert!(rate.used(&more, at_later) >= rate.used(&settled, at_later));
            // Any correction leaves a record that can be asked.
            for delta in [i64::MIN, -7, 0, 9, i64::MAX] {
                let (record, at) = rate.roll(Some(rate.settle(settled.clone(), at_later, at, delta)), at + later);
                let _ = rate.decision(&record, at, cost, rate.has_room(&record, at, cost), false);
            }
        }

        /// Any record that bytes can say is decided without a panic, at any instant.
        #[test]
        fn damaged_records_are_decided(
            rate in any_rate(), slot in 0u64..1 << 48, numbers in proptest::collection::vec(0u64..1 << 48, 61), now in 0u64..1 << 53, cost: u64,
        ) {
            let mut record = Record { window: slot, current: numbers[0], previous: numbers[1], ..Record::empty(rate.tag(), now) };
            if record.tag.is_log() {
                record.tail = numbers;
                record.tail.sort_by(|a, b| b.cmp(a));
                record.window = record.tail[0];
            } else {
                record.tail.iter_mut().zip(&numbers[2..]).for_each(|(to, from)| *to = *from);
            }
            record.overrun = Overrun { since: slot / 2, last: slot };
            let _ = check(&rate, Some(record), now, cost);
        }
    }

    /// Leaky bucket: one after another at the rate's own pace, until the wait is too long.
    #[test]
    fn a_leaky_bucket_spaces_requests() {
        let max_wait = crate::MaxWait::from_millis(1000).unwrap();
        let rate = rate(3, 1000, Algorithm::LeakyBucket { max_wait });
        let mut stored = None;
        let mut delays = vec![];
        for _ in 0..6 {
            let (record, decision) = check(&rate, stored, START, 1);
            delays.push(decision.admitted.then_some(decision.delay));
            stored = Some(record);
        }
        assert_eq!(delays, [Some(0), Some(333_334), Some(666_667), Some(1_000_000), None, None]);
    }

    #[test]
    fn ten_million_a_second_are_neither_none_nor_all() {
        let burst = crate::Burst::new(1).unwrap();
        for algorithm in [Algorithm::Gcra { burst }, Algorithm::TokenBucket { burst }] {
            let rate = rate(10_000_000, 1000, algorithm);
            let (mut stored, mut admitted) = (None, 0);
            for now in START..START + 1000 {
                for _ in 0..20 {
                    let (record, decision) = check(&rate, stored, now, 1);
                    admitted += u64::from(decision.admitted);
                    stored = Some(record);
                }
            }
            // One at a time, and time is seen by the microsecond.
            assert_eq!(admitted, 1000);
        }
        let burst = crate::Burst::new(10).unwrap();
        let rate = rate(10_000_000, 1000, Algorithm::TokenBucket { burst });
        let (mut stored, mut admitted) = (None, 0);
        for now in START..START + 1000 {
            for _ in 0..20 {
                let (record, decision) = check(&rate, stored, now, 1);
                admitted += u64::from(decision.admitted);
                stored = Some(record);
            }
        }
        assert_eq!(admitted, 10_000);
    }

    #[test]
    fn a_soft_limit_gives_some_more_once_and_re_arms_after_a_period_below() {
        let soft = crate::Soft::new(20, 30_000).unwrap();
        let rate = rate(100, 10_000, Algorithm::FIXED_WINDOW).softened(soft).unwrap();
        let window = |stored: &mut Option<Record>, begins: u64, tries: u64| -> u64 {
            (0..tries)
                .filter(|_| {
                    let (record, decision) = check(&rate, stored.take(), begins, 1);
                    *stored = Some(record);
                    decision.admitted
                })
                .count() as u64
        };
        let begin = START / 10_000_000 * 10_000_000;
        let mut stored = None;
        let admitted: Vec<u64> = (0..6).map(|n| window(&mut stored, begin + n * 10_000_000, 200)).collect();
        assert_eq!(admitted, [120, 120, 120, 100, 120, 120], "30 s of extra, a period without, and again");
        let _ = window(&mut stored, begin + 60_000_000, 50);
        assert_eq!(window(&mut stored, begin + 80_000_000, 200), 120);
    }

    #[test]
    fn a_log_keeps_distance_and_counts_denials_if_told() {
        let apart = rate(10, 60_000, Algorithm::SlidingWindowLog { min_interval: 500, count_denied: false });
        let (record, first) = check(&apart, None, START, 1);
        let (record, second) = check(&apart, Some(record), START + 499_999, 1);
        assert!(first.admitted && !second.admitted);
        let wait = second.retry_after.unwrap();
        assert!(check(&apart, Some(record), START + 499_999 + wait, 1).1.admitted);

        let quiet = rate(1, 1000, Algorithm::SlidingWindowLog { min_interval: 0, count_denied: true });
        let mut stored = None;
        let admitted = (0..50u64).filter(|n| {
            let (record, decision) = check(&quiet, stored.take(), START + n * 900_000, 1);
            stored = Some(record);
            decision.admitted
        });
        assert_eq!(admitted.count(), 1, "who keeps asking stays denied");
        assert!(check(&quiet, stored, START + 49 * 900_000 + 1_000_000, 1).1.admitted);
    }

    #[test]
    fn a_record_of_another_period_is_not_this_rates() {
        let (short, long) = (rate(1, 1000, Algorithm::FIXED_WINDOW), rate(1, 2000, Algorithm::FIXED_WINDOW));
        let (record, _) = check(&short, None, 5_000_000, 1);
        assert!(check(&long, Some(record.clone()), 5_000_000, 1).1.admitted);
        assert!(!check(&short, Some(record), 5_000_000, 1).1.admitted);
    }
}

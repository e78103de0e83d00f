//! What is compared: random limits and their edits, a random clock, random batches, values as they may be found, and
//! what the reference makes of them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, IteratorRandom};
use rand::{Rng, SeedableRng};
use redis::Value;
use sluice_limiter::{
    Algorithm, Alignment, Bound, Burst, Holder, MAX_COUNT, MAX_PERIOD_MS, MaxWait, Overrun, Period, Rate,
    Record, Requests, Soft, SubWindows, Tag, WarmUp,
};
use sluice_store::check::{Records, decide, rebased, settle};
use sluice_store::{Counter, KeyHash, LimitSpec, Settlement};

/// The year 2096 in milliseconds: the future, so that Redis expires nothing, and the same for everybody, so that a
/// seed repeats a run.
const EARLIEST: u64 = 4_000_000_000_000;
const DAY: u64 = 86_400_000;
const PERIODS: [u64; 12] =
    [1, 2, 7, 1000, 60_000, 999_983, 3_600_000, DAY, 7 * DAY, 365 * DAY, MAX_PERIOD_MS - 1, MAX_PERIOD_MS];

/// Which algorithm most of the rates have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Focus {
    TwoWindows,
    SubWindows,
    Guaranteed,
    FixedClock,
    FixedFirstRequest,
    FixedSpread,
    Log,
    TokenBucket,
    Gcra,
    LeakyBucket,
    WarmUp,
    Soft,
    Concurrency,
    /// Plain windows, most of them asked for one: the script's short forms.
    Everyday,
}

pub(crate) const ALL: [Focus; 14] = [
    Focus::TwoWindows,
    Focus::SubWindows,
    Focus::Guaranteed,
    Focus::FixedClock,
    Focus::FixedFirstRequest,
    Focus::FixedSpread,
    Focus::Log,
    Focus::TokenBucket,
    Focus::Gcra,
    Focus::LeakyBucket,
    Focus::WarmUp,
    Focus::Soft,
    Focus::Concurrency,
    Focus::Everyday,
];

/// How many clients there are where a batch is about one limit.
const CROWD: u128 = 20;

/// What Redis must hold.
pub(crate) enum Stored {
    Records(Vec<Record>),
    /// Bytes that are no records.
    Garbage(Vec<u8>),
    /// A list.
    List,
}

/// Limits, clients, and what is known of their counters.
pub(crate) struct World {
    pub(crate) rng: StdRng,
    /// The versions of each limit, as edits make them: (limit, version).
    limits: Vec<Vec<Arc<LimitSpec>>>,
    /// If this batch is about one limit only.
    one: Option<Arc<LimitSpec>>,
    /// And about this counter besides.
    besides: Option<Counter>,
    pub(crate) stored: HashMap<String, Stored>,
    /// In microseconds.
    pub(crate) now: u64,
    focus: Focus,
    /// Names of what the batch wrote.
    written: Vec<String>,
    /// Counts what was compared, to see that the runs are not vacuous.
    pub(crate) admitted: u64,
    pub(crate) denied: u64,
}

#[derive(Debug)]
pub(crate) enum Entry {
    Check { counters: Vec<Counter>, callers: u64 },
    Settle(Settlement),
}

impl Entry {
    /// Of all counters that it is about.
    pub(crate) fn names(&self) -> Vec<String> {
        match self {
            Self::Check { counters, .. } => counters.iter().map(|one| name(&one.limit, one.key)).collect(),
            Self::Settle(settlement) => vec![name(&settlement.limit, settlement.key)],
        }
    }
}

impl World {
    pub(crate) fn new(seed: u64, focus: Focus) -> Self {
        let rng = StdRng::seed_from_u64(seed);
        let (limits, stored, written) = (vec![], HashMap::new(), vec![]);
        let mut world = Self {
            rng,
            limits,
            one: None,
            besides: None,
            stored,
            now: EARLIEST * 1000,
            focus,
            written,
            admitted: 0,
            denied: 0,
        };
        world.rebuild();
        world
    }

    /// New limits, nothing stored.
    pub(crate) fn rebuild(&mut self) {
        self.stored.clear();
        self.one = None;
        self.limits = (0..8)
            .map(|n| {
                let first = self.limit(n);
                // Versions share most of their records with the first.
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
                    versions.push(Arc::new(LimitSpec::new(first.scope.clone(), rates)));
                }
                versions
            })
            .collect();
    }

    /// Some limits are great ones, where products pass 2^53; they have one rate, which alone decides.
    fn limit(&mut self, n: usize) -> Arc<LimitSpec> {
        if n < 3 && matches!(self.focus, Focus::TwoWindows | Focus::SubWindows | Focus::Everyday) {
            let slots = if self.focus == Focus::SubWindows { self.rng.random_range(2..=60) } else { 1 };
            let period = self.rng.random_range(DAY..=MAX_PERIOD_MS) / slots * slots;
            let slots = SubWindows::new(slots).unwrap();
            let rate = Rate::new(
                Requests::new(self.rng.random_range(1 << 37..=MAX_COUNT)).unwrap(),
                Period::from_millis(period).unwrap(),
                Algorithm::SlidingWindowCounter { sub_windows: slots, bound: Bound::Estimate },
            );
            return Arc::new(LimitSpec::new(format!("limit{n}"), vec![rate.unwrap()]));
        }
        let everyday = self.focus == Focus::Everyday;
        let how_many = if everyday { [1, 2, 2, 3, 3, 4, 8] } else { [1, 1, 1, 1, 2, 3, 8] };
        let how_many = *how_many.choose(&mut self.rng).unwrap();
        let sliding = self.rng.random_bool(0.7);
        let mut rates: Vec<Rate> = vec![];
        while rates.len() < how_many {
            let focus = match self.focus {
                Focus::Everyday if sliding => Focus::TwoWindows,
                Focus::Everyday => *[Focus::TwoWindows, Focus::FixedClock].choose(&mut self.rng).unwrap(),
                focus if self.rng.random_bool(0.7) => focus,
                _ => *ALL.choose(&mut self.rng).unwrap(),
            };
            let Some(rate) = self.rate(focus) else { continue };
            let clash = |other: &Rate| {
                // Soft rates of one period would share what is known of it.
                other.tag() == rate.tag()
            };
            if !rates.iter().any(clash) {
                rates.push(rate);
            }
        }
        Arc::new(LimitSpec::new(format!("limit{n}"), rates))
    }

    /// A rate; `None` if the numbers drawn do not fit together.
    fn rate(&mut self, focus: Focus) -> Option<Rate> {
        let (mut requests, mut period) = (self.requests(), self.period());
        let small = self.rng.random_range(0..20);
        let millis = match self.rng.random_range(0..3) {
            0 => 0,
            1 => self.rng.random_range(0..=period),
            _ => self.rng.random_range(0..5000),
        };
        let burst =
            Burst::new(if self.rng.random_bool(0.2) { requests.get().max(1) } else { small + 1 }).unwrap();
        let algorithm = match focus {
            Focus::TwoWindows | Focus::Everyday => Algorithm::SLIDING_WINDOW,
            Focus::SubWindows | Focus::Guaranteed => {
                let slots = *[1, 2, 3, 4, 10, 60].choose(&mut self.rng).unwrap();
                period = (period / slots).max(1) * slots;
                period = period.min(MAX_PERIOD_MS / slots * slots);
                let bound = if focus == Focus::Guaranteed { Bound::Guaranteed } else { Bound::Estimate };
                Algorithm::SlidingWindowCounter { sub_windows: SubWindows::new(slots).unwrap(), bound }
            }
            Focus::FixedClock => Algorithm::FIXED_WINDOW,
            Focus::FixedFirstRequest => Algorithm::FixedWindow(Alignment::FirstRequest),
            Focus::FixedSpread => Algorithm::FixedWindow(Alignment::Spread),
            Focus::Log => {
                requests = Requests::new(requests.get() % 40).unwrap();
                let min_interval = if self.rng.random_bool(0.5) { 0 } else { millis.min(period) };
                Algorithm::SlidingWindowLog { min_interval, count_denied: self.rng.random_bool(0.3) }
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
                // Some have more places than there can be holders.
                let least = if self.rng.random_bool(0.3) { 1000 } else { 0 };
                requests = Requests::new(least + requests.get() % 30).unwrap();
                Algorithm::Concurrency { holder: Holder::new(self.rng.random_range(1..4)).unwrap() }
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
        if focus == Focus::Soft || (focus == Focus::SubWindows && self.rng.random_bool(0.1)) {
            let lasts = *[1, 1000, period, (3 * period).min(MAX_PERIOD_MS)].choose(&mut self.rng).unwrap();
            return rate.with_soft(Soft::new(self.rng.random_range(1..=300), lasts).unwrap()).ok();
        }
        Some(rate)
    }

    fn requests(&mut self) -> Requests {
        let n = match self.rng.random_range(0..10) {
            0..5 => self.rng.random_range(0..12),
            // Where a count needs a second byte.
            5 => self.rng.random_range(250..262),
            6 if self.focus == Focus::Everyday => self.rng.random_range(255..260),
            6 => self.rng.random_range(0..MAX_COUNT),
            7 => 1 << self.rng.random_range(0..40),
            8 => (1 << (8 * self.rng.random_range(1..5))) + self.rng.random_range(0..4),
            _ => MAX_COUNT - self.rng.random_range(0..3),
        };
        Requests::new(n).unwrap()
    }

    fn period(&mut self) -> u64 {
        if self.rng.random_bool(0.2) {
            self.rng.random_range(1..=MAX_PERIOD_MS)
        } else {
            *PERIODS.choose(&mut self.rng).unwrap()
        }
    }

    /// Moves the clock: half of the time to within one unit of a boundary, be it a millisecond of a window's or the
    /// microsecond of an instant that is stored.
    pub(crate) fn step(&mut self) {
        let rate = self.limits.choose(&mut self.rng).unwrap()[0].rates[0];
        let period = rate.tag().window_millis();
        let now = self.now / 1000;
        let moved = match self.rng.random_range(0..20) {
            0 => now - self.rng.random_range(1..4),
            1 => now - period * self.rng.random_range(1..4),
            2 => now - DAY * self.rng.random_range(1..4),
            3 => now + DAY,
            4..8 => now + self.rng.random_range(0..3),
            8..14 => now + self.rng.random_range(0..=period),
            _ => now + period,
        };
        let moved = if self.rng.random_bool(0.4) {
            (moved + period / 2) / period * period + self.rng.random_range(0..3) - 1
        } else {
            moved
        };
        let mut micros = moved * 1000 + self.rng.random_range(0..1000);
        if self.rng.random_bool(0.4)
            && let Some(at) = self.stored_instant()
        {
            micros = at - 1 + self.rng.random_range(0..3);
        }
        // At times many clients of one limit ask once each, maybe with a counter that they have in common.
        (self.one, self.besides) = (None, None);
        if self.focus == Focus::Everyday && self.rng.random_bool(0.4) {
            let (one, key) = (self.any_limit(), self.key());
            let others: Vec<_> = self.limits.iter().map(|versions| versions[0].clone()).collect();
            let others =
                others.into_iter().filter(|other| other.scope != one.scope && other.rates.len() == 1);
            if self.rng.random_bool(0.6)
                && let Some(other) = others.choose(&mut self.rng)
            {
                self.besides = Some(Counter { limit: other, key, cost: 1 });
            }
            self.one = Some(one);
        }
        // Far beyond, the clock is put back by years.
        let latest = EARLIEST + 20 * MAX_PERIOD_MS;
        self.now =
            if (EARLIEST..latest).contains(&(micros / 1000)) { micros } else { (EARLIEST + period) * 1000 };
    }

    /// When something that is stored changes an answer.
    fn stored_instant(&mut self) -> Option<u64> {
        let names: Vec<&String> = self.stored.keys().collect();
        // Maps are in another order in each run.
        let name = (*names.iter().min()?).clone();
        let limit = self.any_limit();
        let name = if self.rng.random_bool(0.2) {
            name
        } else {
            {
                let key = self.key();
                self::name(&limit, key)
            }
        };
        let Some(Stored::Records(records)) = self.stored.get(&name) else { return None };
        let record = records.choose(&mut self.rng)?.clone();
        let rate = limit.rates.iter().find(|rate| rate.tag() == record.tag)?;
        let (rolled, at) = rate.roll(Some(record), self.now);
        let room = rate.has_room(&rolled, at, 1);
        let decision = rate.decision(&rolled, at, 1, room, false);
        Some(at + decision.retry_after.unwrap_or(decision.reset).max(1))
    }

    pub(crate) fn entries(&mut self) -> Vec<Entry> {
        let everyday = self.focus == Focus::Everyday;
        let one = self.one.is_some();
        let most = match everyday {
            true if one => 30,
            true if self.rng.random_bool(0.7) => 10,
            _ => 40,
        };
        let how_many = self.rng.random_range(1..most);
        // Mostly each of many clients asks once.
        let each_once = one && self.rng.random_bool(0.6);
        let first = self.rng.random_bool(0.5);
        let in_pairs = one && self.besides.is_none() && self.rng.random_bool(0.2);
        (0..how_many)
            .map(|n| {
                if self.rng.random_bool(0.1) {
                    return self.settlement();
                }
                let simple = everyday && self.rng.random_bool(0.9);
                let several = if one { 1 } else { *[1, 1, 1, 2, 2, 3, 6].choose(&mut self.rng).unwrap() };
                let mut counters: Vec<Counter> = vec![];
                for _ in 0..several {
                    let limit = self.any_limit();
                    let cost = if simple { 1 } else { self.cost(&limit) };
                    let key = if each_once { key_of(n % CROWD) } else { self.key() };
                    if counters.iter().all(|other| other.key != key || other.limit.scope != limit.scope) {
                        counters.push(Counter { limit, key, cost });
                    }
                }
                if let (true, Some(besides)) = (simple, self.besides.clone()) {
                    let at = if each_once && first { 0 } else { self.rng.random_range(0..=counters.len()) };
                    counters.insert(at, besides);
                }
                let merges = (!simple || in_pairs) && counters.iter().all(|one| one.limit.is_mergeable());
                let callers = match merges {
                    true if in_pairs => 2,
                    true => *[1, 1, 1, 2, 3, 7, 40].choose(&mut self.rng).unwrap(),
                    false => 1,
                };
                Entry::Check { counters, callers }
            })
            .collect()
    }

    fn settlement(&mut self) -> Entry {
        let limit = self.any_limit();
        let delta = match self.rng.random_range(0..8) {
            0 => MAX_COUNT as i64,
            1 => -(MAX_COUNT as i64),
            _ => self.rng.random_range(-6..6),
        };
        let period = limit.rates[0].tag().window_millis() * 1000;
        let charged = match self.rng.random_range(0..4) {
            0 => self.now - self.now % 1000,
            1 => self.now + period,
            2 => self.now.saturating_sub(period * self.rng.random_range(0..4)),
            _ => self.now,
        };
        let key = self.key();
        // A leaky bucket's last reservation is named by its turn.
        let charged = if matches!(limit.rates[0].algorithm, Algorithm::LeakyBucket { .. })
            && self.rng.random_bool(0.7)
            && let Some(record) =
                self.records(&name(&limit, key)).iter().find(|record| record.tag == limit.rates[0].tag())
        {
            let (record, at) = limit.rates[0].roll(Some(record.clone()), self.now);
            let before = limit.rates[0].undo_charge(record, at, delta.unsigned_abs());
            before.window * 1000 + before.previous + u64::from(before.current > 0)
        } else {
            charged
        };
        Entry::Settle(Settlement { key, limit, charged, delta })
    }

    /// One of few.
    fn key(&mut self) -> KeyHash {
        let clients = if self.one.is_some() { CROWD } else { 4 };
        key_of(self.rng.random_range(0..clients))
    }

    fn any_limit(&mut self) -> Arc<LimitSpec> {
        if let Some(one) = &self.one {
            return one.clone();
        }
        let versions = self.limits.choose(&mut self.rng).unwrap();
        if self.focus == Focus::Everyday && self.rng.random_bool(0.6) {
            return versions[0].clone();
        }
        versions.choose(&mut self.rng).unwrap().clone()
    }

    fn cost(&mut self, limit: &LimitSpec) -> u64 {
        let requests = limit.rates[0].requests.get();
        match self.rng.random_range(0..12) {
            0 => 0,
            1 => requests,
            2 => requests + 1,
            3 => requests / 2,
            4 => requests.saturating_sub(1),
            5 => MAX_COUNT,
            6 => MAX_COUNT + 1,
            7 => self.rng.random_range(0..=requests),
            _ => self.rng.random_range(1..4),
        }
    }

    /// A value as it may be found: records of any version and of no version, of any age, just below and above what
    /// their rate has room for; or no records at all.
    pub(crate) fn seed(&mut self) -> (String, Stored) {
        let limit = self.any_limit();
        let key = self.key();
        let name = name(&limit, key);
        if self.rng.random_bool(0.03) {
            return (name, Stored::List);
        }
        let mut records = vec![];
        let just_its_own = self.focus == Focus::Everyday && self.rng.random_bool(0.8);
        let how_many =
            if just_its_own { limit.rates.len() } else { *[1, 1, 2, 4, 14].choose(&mut self.rng).unwrap() };
        let foreign = how_many > 8;
        for n in 0..how_many {
            let rates = if foreign || !just_its_own && self.rng.random_bool(0.1) {
                self.limit(7).rates.clone()
            } else {
                limit.rates.clone()
            };
            let rate = rates[n % rates.len()];
            records.push(self.record(&rate, key));
        }
        if just_its_own && self.rng.random_bool(0.5) {
            // All with room, and as wide as may be.
            for (record, rate) in records.iter_mut().zip(&limit.rates) {
                let most = 1 << self.rng.random_range(0..24);
                let edge = self.rng.random_range(254..257);
                let current = if self.rng.random_bool(0.2) { edge } else { self.rng.random_range(0..most) };
                record.current = current.min(rate.requests.get().saturating_sub(2));
                record.previous = record.previous.min(1);
            }
        }
        let mut bytes = encode(&records);
        if self.rng.random_bool(0.1) {
            match self.rng.random_range(0..10) {
                0 => bytes.truncate(self.rng.random_range(0..bytes.len())),
                1 => bytes.push(self.rng.random()),
                2 => bytes[self.rng.random_range(0..6)] = self.rng.random(),
                3 => {
                    let at = self.rng.random_range(0..bytes.len());
                    bytes[at] = self.rng.random();
                }
                4 => bytes = self.wrong_tag(),
                // Another width of the counts.
                6..9 => bytes[0] = bytes[0] & !7 | self.rng.random_range(0..8),
                // The length of a short record that stands behind another one: that one twice.
                5 => bytes.extend_from_within(bytes.len().saturating_sub(self.rng.random_range(13..19))..),
                _ => bytes = (0..self.rng.random_range(1..40)).map(|_| self.rng.random()).collect(),
            }
        }
        match Record::decode_all(&bytes) {
            // Counts that no release writes are put back into range when they are written again, which is not compared.
            // Nor does Redis keep what ended long ago.
            Ok(records) if records.iter().any(absurd) || ended(&records) => self.seed(),
            Ok(records) => (name, Stored::Records(records)),
            Err(_) => (name, Stored::Garbage(bytes)),
        }
    }

    /// At times all clients of the one limit have a value of the same layout, as in production: with or without room, just
    /// below where a count needs another byte, or with a hard share of the slot before. What they have in common has
    /// room for few of them.
    pub(crate) fn crowd(&mut self) -> Vec<(String, Stored)> {
        let Some(limit) = self.one.clone().filter(|_| self.rng.random_bool(0.6)) else { return vec![] };
        let widths: Vec<u32> =
            limit.rates.iter().map(|_| *[1, 1, 1, 2, 3, 5].choose(&mut self.rng).unwrap()).collect();
        let mut all = vec![];
        for client in 0..CROWD {
            let records =
                limit.rates.iter().zip(&widths).map(|(rate, &width)| self.alike(rate, width)).collect();
            all.push((name(&limit, key_of(client)), Stored::Records(records)));
        }
        if let Some(besides) = self.besides.clone().filter(|_| self.rng.random_bool(0.7)) {
            let rate = besides.limit.rates[0];
            let mut record = Record::empty(rate.tag(), self.now);
            let left = self.rng.random_range(0..8);
            record.current = rate.requests.get().saturating_sub(left);
            all.push((name(&besides.limit, besides.key), Stored::Records(vec![record])));
        }
        // Nobody's value is empty, and Redis keeps none without an end.
        all.retain(|(_, stored)| !matches!(stored, Stored::Records(records) if ended(records)));
        all
    }

    /// A record whose counts take so many bytes, or nearly so, and nearly always of the slot of now.
    fn alike(&mut self, rate: &Rate, width: u32) -> Record {
        let mut record = Record::empty(rate.tag(), self.now);
        let most = (1 << (8 * width)) - 1;
        if rate.tag().previous_windows() > 0 {
            record.previous = match self.rng.random_range(0..4) {
                0 => 0,
                1 => self.hard_share(rate).unwrap_or(3),
                2 => self.rng.random_range(0..6),
                _ => self.rng.random_range(0..=most),
            }
            .min(most);
        }
        let (rolled, at) = rate.roll(Some(record.clone()), self.now);
        let spare = rate.ceiling().saturating_sub(rate.used(&rolled, at));
        record.current = match self.rng.random_range(0..4) {
            0 => (spare + 1).saturating_sub(self.rng.random_range(0..4)),
            1 => most - self.rng.random_range(0..3),
            // Where the short form of an answer ends.
            2 if width == 3 => (1 << 20) - self.rng.random_range(0..4),
            _ => self.rng.random_range(0..=most.min(spare + 1)),
        }
        .min(most);
        match self.rng.random_range(0..40) {
            0..2 => record.window -= self.rng.random_range(1..3),
            // Another rate's, of the same shape.
            2 | 3 if rate.period.millis() > 1 => record.tag = Tag::from_number(rate.tag().get() - (1 << 13)),
            _ => {}
        }
        record
    }

    /// A record that is right in all but its period or the number of its slots.
    fn wrong_tag(&mut self) -> Vec<u8> {
        let (period, slots) = match self.rng.random_range(0..3) {
            0 => (0, 1),
            1 => (MAX_PERIOD_MS + self.rng.random_range(1..1000), 1),
            _ => {
                let slots = self.rng.random_range(61..64);
                (slots * self.rng.random_range(1..100_000), slots)
            }
        };
        let right = Record::empty(Tag::from_number(slots << 13 | 1 << 9 | slots << 3), 1000);
        // As the head of record.rs says: the period, the algorithm, the slots.
        encode(&[Record { tag: Tag::from_number(period << 13 | 1 << 9 | slots << 3), ..right }])
    }

    fn record(&mut self, rate: &Rate, key: KeyHash) -> Record {
        let any = |rng: &mut StdRng| match rng.random_range(0..3) {
            0 => rng.random_range(0..20),
            1 => rng.random_range(0..=MAX_COUNT),
            _ => MAX_COUNT - rng.random_range(0..5),
        };
        let now = self.now + rate.phase(key.0);
        let (millis, period) = (now / 1000, rate.period.millis());
        let mut record = Record::empty(rate.tag(), now);
        match rate.algorithm {
            Algorithm::SlidingWindowLog { .. } => {
                let how_many = self.rng.random_range(1..=rate.requests.get() + 2);
                let latest = if self.rng.random_bool(0.2) { millis + 2 * period } else { millis };
                record.tail = (0..how_many)
                    .map(|_| match self.rng.random_range(0..4) {
                        0 => millis,
                        1 => millis - period + self.rng.random_range(0..3) - 1,
                        _ => self.rng.random_range(millis - period..=latest),
                    })
                    .collect();
                record.tail.sort_by(|a, b| b.cmp(a));
                record.window = record.tail.first().copied().unwrap_or(0);
                return record;
            }
            Algorithm::TokenBucket { .. } | Algorithm::Gcra { .. } | Algorithm::LeakyBucket { .. } => {
                let cost = self.rng.random_range(1..4);
                let [capacity, _, span, _, furthest] = rate.full_script_arguments(key.0, cost);
                let tat = match self.rng.random_range(0..8) {
                    0 => now - self.rng.random_range(0..3),
                    1 => now + furthest + self.rng.random_range(0..3) - 1,
                    2 => now + self.rng.random_range(0..=2 * furthest + 1),
                    3 => now + 3 * MAX_PERIOD_MS * 1000,
                    // Just before and after one of this cost fits.
                    4..6 => (now + capacity).saturating_sub(span) + self.rng.random_range(0..3) - 1,
                    _ => now + self.rng.random_range(0..=furthest),
                };
                (record.window, record.previous) = (tat / 1000, tat % 1000);
                record.current = self.rng.random_range(0..=rate.requests.get());
                return record;
            }
            Algorithm::WarmUp(warm_up) => {
                let free = now * 256 - 3
                    + self.rng.random_range(0..6)
                    + match self.rng.random_range(0..4) {
                        0 => self.rng.random_range(0..period * 256_000 * 12),
                        1 => 0,
                        _ => self.rng.random_range(0..100_000_000),
                    };
                let free = if self.rng.random_bool(0.3) { free - 500_000_000 } else { free };
                (record.window, record.previous) = (free / 256_000, free % 256_000);
                record.current = self.rng.random_range(0..=warm_up.micros() * 260);
                return record;
            }
            Algorithm::Concurrency { .. } => {
                if self.rng.random_bool(0.05) {
                    // As many as there can be, one more or nearly as many; none of them asks.
                    let how_many = self.rng.random_range(998..=1001);
                    record.tail = (0..how_many).flat_map(|n| [100 + n, 1, millis + period]).collect();
                    record.window = millis + period;
                    return record;
                }
                let how_many = self.rng.random_range(1..6);
                record.tail = (0..how_many)
                    .flat_map(|_| {
                        let until = match self.rng.random_range(0..4) {
                            0 => millis + self.rng.random_range(0..3) - 1,
                            1 => millis + period + self.rng.random_range(0..3) - 1,
                            2 => millis + self.rng.random_range(0..3 * period),
                            _ => millis - self.rng.random_range(0..period),
                        };
                        [self.rng.random_range(1..8), self.rng.random_range(0..6), until]
                    })
                    .collect();
                record.window = record.tail.chunks(3).map(|holder| holder[2]).max().unwrap();
                return record;
            }
            Algorithm::FixedWindow(Alignment::FirstRequest) => {
                record.current = any(&mut self.rng) % (rate.requests.get() + 2);
                record.window = match self.rng.random_range(0..5) {
                    0 => millis - period + self.rng.random_range(0..3) - 1,
                    1 => millis + period + self.rng.random_range(0..3) - 1,
                    2 => millis + self.rng.random_range(0..3 * period),
                    _ => millis - self.rng.random_range(0..period),
                };
                self.over(rate, &mut record, millis);
                return record;
            }
            _ => {}
        }
        if rate.tag().previous_windows() > 0 && self.rng.random_bool(0.8) {
            record.previous = any(&mut self.rng);
        }
        let modest = rate.requests.get() / 20 + 2;
        for n in 0..record.tail.len() {
            record.tail[n] =
                if self.rng.random_bool(0.1) { any(&mut self.rng) } else { self.rng.random_range(0..modest) };
        }
        record.current = any(&mut self.rng);
        match self.rng.random_range(0..12) {
            0 => record.window -= 1,
            1 => record.window -= self.rng.random_range(0..4),
            2 => record.window += 1,
            3 => record.window += self.rng.random_range(2..5),
            4 => record.window += 40 * MAX_PERIOD_MS / rate.period.millis(),
            _ => {
                // As full as can be, give or take a little; some of them by a clock that was ahead.
                record.window += u64::from(self.rng.random_bool(0.1));
                record.previous %= rate.requests.get() + 1;
                if !record.tail.is_empty() {
                    record.previous %= modest;
                    record.tail.iter_mut().for_each(|count| *count %= modest);
                }
                if record.previous > 0 && record.tail.is_empty() && self.rng.random_bool(0.5) {
                    record.previous = self.hard_share(rate).unwrap_or(record.previous);
                }
                record.current = 0;
                let (rolled, at) = rate.roll(Some(record.clone()), now);
                let spare = rate.ceiling().saturating_sub(rate.used(&rolled, at));
                record.current = (spare + 1).saturating_sub(self.rng.random_range(0..5));
                if self.focus == Focus::Everyday && self.rng.random_bool(0.4) {
                    let most = spare.min(1 << self.rng.random_range(0..30));
                    record.current = self.rng.random_range(0..=most);
                }
            }
        }
        self.over(rate, &mut record, millis);
        record
    }

    /// When a soft rate was over its number, at times.
    fn over(&mut self, rate: &Rate, record: &mut Record, millis: u64) {
        if self.rng.random_bool(if rate.soft.is_some() { 0.6 } else { 0.05 }) {
            let period = rate.period.millis();
            let near = |rng: &mut StdRng| match rng.random_range(0..4) {
                0 => millis + rng.random_range(0..3) - 1,
                1 => millis - period.min(DAY) + rng.random_range(0..3) - 1,
                2 => millis - rng.random_range(0..4000),
                _ => millis + DAY - rng.random_range(0..2 * DAY),
            };
            let (a, b) = (near(&mut self.rng), near(&mut self.rng));
            record.overrun = Overrun { since: a.min(b), last: a.max(b) };
        }
    }

    /// A previous count whose share leaves next to nothing, or nearly a whole, when divided by the period: there a
    /// product that is not exact rounds to the other side.
    fn hard_share(&mut self, rate: &Rate) -> Option<u64> {
        let period = i128::from(rate.period.millis());
        let rest = period - i128::from(self.now / 1000) % period;
        let (divisor, factor) = euclid(rest, period);
        let least = match self.rng.random_range(-2..3) {
            0 => self.rng.random_range(0..divisor) * (period / divisor),
            left => (left * factor).rem_euclid(period),
        } as u64;
        let more = rate.requests.get().checked_sub(least)? / rate.period.millis();
        Some(least + self.rng.random_range(0..=more) * rate.period.millis())
    }

    /// What the reference makes of an entry: its values of the reply.
    pub(crate) fn decide(&mut self, entry: &Entry) -> Vec<Value> {
        match entry {
            Entry::Check { counters, callers } => self.check(counters, *callers),
            Entry::Settle(settlement) => vec![Value::Int(self.settle(settlement))],
        }
    }

    /// What is known of the counters of an entry.
    pub(crate) fn known(&self, entry: &Entry) -> Vec<Vec<Record>> {
        match entry {
            Entry::Check { counters, .. } => counters
                .iter()
                .map(|counter| self.records(&name(&counter.limit, counter.key)).to_vec())
                .collect(),
            Entry::Settle(settlement) => {
                vec![self.records(&name(&settlement.limit, settlement.key)).to_vec()]
            }
        }
    }

    /// How these counters stand, each of the first rate of its limit.
    pub(crate) fn standing(&self, counters: &[Counter]) -> Vec<[i64; 3]> {
        let stands = |counter: &Counter| {
            let rate = &counter.limit.rates[0];
            let mut known = self.records(&name(&counter.limit, counter.key)).iter();
            let known = known.find(|record| record.tag == rate.tag()).cloned();
            let (record, _) = rate.roll(known, self.now + rate.phase(counter.key.0));
            [record.window, record.current, record.previous].map(|n| n as i64)
        };
        counters.iter().map(stands).collect()
    }

    fn check(&mut self, counters: &[Counter], callers: u64) -> Vec<Value> {
        let names: Vec<_> = counters.iter().map(|counter| name(&counter.limit, counter.key)).collect();
        let mut admitted = 0;
        let mut after: Vec<Records> = vec![];
        let broken = names.iter().find_map(|name| self.broken(name));
        for _ in 0..callers {
            after = names.iter().map(|name| self.records(name).iter().cloned().collect()).collect();
            let passes = decide(counters, &mut after, self.now).admitted && broken.is_none();
            admitted += u64::from(passes);
            for ((counter, name), own) in counters.iter().zip(&names).zip(&after) {
                if self.broken(name).is_some() {
                    continue;
                }
                let charged = if passes { counter.cost > 0 } else { counter.limit.counts_denied() };
                if charged && broken.is_none() {
                    let records = written(own, self.records(name), self.now);
                    self.write(name, records);
                } else if let Some(records) =
                    corrected(&counter.limit, counter.key, self.records(name), self.now)
                {
                    self.write(name, records);
                }
            }
        }
        if let Some(code) = broken {
            return vec![Value::Int(code)];
        }
        self.admitted += admitted;
        self.denied += callers - admitted;
        let mut values = vec![Value::Int(admitted as i64)];
        let rates =
            counters.iter().flat_map(|counter| counter.limit.rates.iter().map(|rate| (rate, counter.cost)));
        for ((rate, cost), record) in rates.zip(after.iter().flatten()) {
            values.extend(reply(rate, cost, record));
        }
        values
    }

    fn settle(&mut self, settlement: &Settlement) -> i64 {
        let name = name(&settlement.limit, settlement.key);
        if let Some(code) = self.broken(&name) {
            return code;
        }
        let mut records = self.records(&name).to_vec();
        let known =
            settlement.limit.rates.iter().any(|rate| records.iter().any(|record| record.tag == rate.tag()));
        settle(settlement, &mut records, self.now);
        if known {
            self.write(&name, records);
        }
        0
    }

    fn write(&mut self, name: &str, records: Vec<Record>) {
        self.written.push(name.to_owned());
        self.stored.insert(name.to_owned(), Stored::Records(records));
    }

    /// Forgets what Redis does not keep: values that were written when all of their records had ended long ago.
    pub(crate) fn forget(&mut self) {
        let real = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
        for name in self.written.drain(..) {
            let gone = match self.stored.get(&name) {
                Some(Stored::Records(records)) => records.iter().all(|record| record.expires_at() < real),
                _ => false,
            };
            if gone {
                self.stored.remove(&name);
            }
        }
    }

    pub(crate) fn broken(&self, name: &str) -> Option<i64> {
        match self.stored.get(name) {
            Some(Stored::Garbage(_)) => Some(-2),
            Some(Stored::List) => Some(-1),
            _ => None,
        }
    }

    fn records(&self, name: &str) -> &[Record] {
        match self.stored.get(name) {
            Some(Stored::Records(records)) => records,
            _ => &[],
        }
    }
}

/// The greatest common divisor of `a` and `m`, and what to multiply `a` with to get it modulo `m` (extended Euclid).
fn euclid(a: i128, m: i128) -> (i128, i128) {
    let ((mut r0, mut r1), (mut t0, mut t1)) = ((m, a.rem_euclid(m)), (0, 1));
    while r1 != 0 {
        let q = r0 / r1;
        (r0, r1) = (r1, r0 - q * r1);
        (t0, t1) = (t1, t0 - q * t1);
    }
    (r0, t0)
}

/// Clients, different in all of their bits.
fn key_of(client: u128) -> KeyHash {
    KeyHash(client.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835))
}

pub(crate) fn name(limit: &LimitSpec, key: KeyHash) -> String {
    format!("{}:{}", limit.scope, key.0)
}

/// The state of a rate as the script returns it.
fn reply(rate: &Rate, cost: u64, record: &Record) -> Vec<Value> {
    let mut values = if record.tag.has_view() {
        let view = rate.view(record, cost);
        [view.newest, view.used, view.leaves].map(|n| Value::Int(n as i64)).to_vec()
    } else if record.tag.has_tail() {
        let counts = [record.previous].into_iter().chain(record.tail.iter().copied());
        let bytes: Vec<u8> = counts.flat_map(|count| count.to_le_bytes().into_iter().take(6)).collect();
        vec![Value::Int(record.window as i64), Value::Int(record.current as i64), Value::BulkString(bytes)]
    } else {
        [record.window, record.current, record.previous].map(|n| Value::Int(n as i64)).to_vec()
    };
    if rate.soft.is_some() {
        values.extend([record.overrun.since, record.overrun.last].map(|n| Value::Int(n as i64)));
    }
    values
}

/// The records that a written counter keeps: its own first, then up to 8 others that have not expired.
fn written(own: &[Record], before: &[Record], now: u64) -> Vec<Record> {
    let foreign = before.iter().filter(|record| own.iter().all(|used| used.tag != record.tag));
    own.iter().cloned().chain(foreign.filter_map(|record| record.clone().carry_over(now)).take(8)).collect()
}

/// The records of a counter that is not charged, if some of them were rebased.
fn corrected(limit: &LimitSpec, key: KeyHash, before: &[Record], now: u64) -> Option<Vec<Record>> {
    let mut records = before.to_vec();
    let mut changed = false;
    for rate in &limit.rates {
        if let Some(record) = records.iter_mut().find(|record| record.tag == rate.tag()) {
            let (rolled, _) = rate.roll(Some(record.clone()), now + rate.phase(key.0));
            if rebased(record, &rolled) {
                *record = rolled;
                changed = true;
            }
        }
    }
    changed.then_some(records)
}

fn absurd(record: &Record) -> bool {
    // An empty log has ended before all time.
    let empty = record.tag.has_view() && record.tail.is_empty();
    let counts = [record.current, record.previous].into_iter().chain(record.tail.iter().copied());
    // Instants out of order are found by no search, nor are they ever written.
    let disorder = record.tag.is_log() && !record.tail.is_sorted_by(|newer, older| newer >= older);
    empty
        || disorder
        || !record.tag.has_view() && counts.max() > Some(MAX_COUNT)
        || record.expires_at() >= 1 << 52
        || record.window >= 1 << 47
}

/// Whether a value has ended long before all that happens here.
fn ended(records: &[Record]) -> bool {
    !records.is_empty() && records.iter().all(|record| record.expires_at() < EARLIEST - 5 * MAX_PERIOD_MS)
}

/// When a value expires: at its records' latest end. Only damaged ones end in the past or beyond all time; those
/// are put without an end.
pub(crate) fn expires(records: &[Record]) -> Option<i64> {
    let sane = EARLIEST - 5 * MAX_PERIOD_MS..1 << 60;
    records.iter().map(Record::expires_at).max().filter(|end| sane.contains(end)).map(|end| end as i64)
}

pub(crate) fn encode(records: &[Record]) -> Vec<u8> {
    let mut bytes = vec![];
    records.iter().for_each(|record| record.encode(&mut bytes));
    bytes
}

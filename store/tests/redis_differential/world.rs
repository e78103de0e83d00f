//! What is compared: random limits and their edits, a random clock, random batches, values as they may be found, and
//! what the reference makes of them.

use std::collections::HashMap;
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use sluice_limiter::{Algorithm, MAX_COUNT, MAX_PERIOD_MS, Period, Rate, Record, Requests};
use sluice_store::check::{Records, decide};
use sluice_store::{Counter, KeyHash, LimitSpec};

/// The year 2096: the future, so that Redis expires nothing, and the same for everybody, so that a seed repeats a run.
const EARLIEST: u64 = 4_000_000_000_000;
const DAY: u64 = 86_400_000;
const PERIODS: [u64; 12] =
    [1, 2, 7, 1000, 60_000, 999_983, 3_600_000, DAY, 7 * DAY, 365 * DAY, MAX_PERIOD_MS - 1, MAX_PERIOD_MS];

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
    pub(crate) stored: HashMap<String, Stored>,
    pub(crate) now: u64,
    /// Counts what was compared, to see that the runs are not vacuous.
    pub(crate) admitted: u64,
    pub(crate) denied: u64,
}

pub(crate) struct Entry {
    pub(crate) counters: Vec<Counter>,
    pub(crate) callers: u64,
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let rng = StdRng::seed_from_u64(seed);
        let mut world =
            Self { rng, limits: vec![], stored: HashMap::new(), now: EARLIEST, admitted: 0, denied: 0 };
        world.rebuild();
        world
    }

    /// New limits, nothing stored.
    pub(crate) fn rebuild(&mut self) {
        self.stored.clear();
        self.limits = (0..8)
            .map(|n| {
                let first = self.limit(n);
                // Versions share most of their records with the first.
                let mut versions = vec![first.clone()];
                for _ in 0..3 {
                    let mut rates = first.rates.clone();
                    match self.rng.random_range(0..3) {
                        0 => rates.iter_mut().for_each(|rate| rate.requests = self.requests()),
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
        if n < 3 {
            let rate = Rate {
                requests: Requests::new(self.rng.random_range(1 << 37..=MAX_COUNT)).unwrap(),
                period: Period::from_millis(self.rng.random_range(DAY..=MAX_PERIOD_MS)).unwrap(),
                algorithm: Algorithm::SLIDING_WINDOW,
            };
            return Arc::new(LimitSpec::new(format!("limit{n}"), vec![rate]));
        }
        let how_many = *[1, 1, 1, 2, 3, 8].choose(&mut self.rng).unwrap();
        let mut rates: Vec<Rate> = vec![];
        while rates.len() < how_many {
            let rate = Rate {
                requests: self.requests(),
                period: Period::from_millis(self.period()).unwrap(),
                algorithm: if self.rng.random_bool(0.35) {
                    Algorithm::FIXED_WINDOW
                } else {
                    Algorithm::SLIDING_WINDOW
                },
            };
            if rates.iter().all(|other| other.tag() != rate.tag()) {
                rates.push(rate);
            }
        }
        Arc::new(LimitSpec::new(format!("limit{n}"), rates))
    }

    fn requests(&mut self) -> Requests {
        let n = match self.rng.random_range(0..10) {
            0..5 => self.rng.random_range(0..12),
            5 => self.rng.random_range(200..300),
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

    /// Moves the clock: half of the time to within one millisecond of a window's boundary.
    pub(crate) fn step(&mut self) {
        let period = self.limits.choose(&mut self.rng).unwrap()[0].rates[0].period.millis();
        let now = self.now;
        let moved = match self.rng.random_range(0..20) {
            0 => now - self.rng.random_range(1..4),
            1 => now - period * self.rng.random_range(1..4),
            2 => now - DAY * self.rng.random_range(1..4),
            3 => now + DAY,
            4..8 => now + self.rng.random_range(0..3),
            8..14 => now + self.rng.random_range(0..=period),
            _ => now + period,
        };
        let moved = if self.rng.random_bool(0.5) {
            (moved + period / 2) / period * period + self.rng.random_range(0..3) - 1
        } else {
            moved
        };
        // Far beyond, the clock is put back by years.
        let latest = EARLIEST + 20 * MAX_PERIOD_MS;
        self.now = if (EARLIEST..latest).contains(&moved) { moved } else { EARLIEST + period };
    }

    pub(crate) fn entries(&mut self) -> Vec<Entry> {
        let how_many = self.rng.random_range(1..40);
        (0..how_many)
            .map(|_| {
                let mut counters: Vec<Counter> = vec![];
                for _ in 0..*[1, 1, 1, 2, 2, 3, 6].choose(&mut self.rng).unwrap() {
                    let limit = self.any_limit();
                    let cost = self.cost(&limit);
                    let key = KeyHash(self.rng.random_range(0..4));
                    if counters.iter().all(|other| other.key != key || other.limit.scope != limit.scope) {
                        counters.push(Counter { limit, key, cost });
                    }
                }
                let callers = *[1, 1, 1, 2, 3, 7, 40].choose(&mut self.rng).unwrap();
                Entry { counters, callers }
            })
            .collect()
    }

    fn any_limit(&mut self) -> Arc<LimitSpec> {
        self.limits.choose(&mut self.rng).unwrap().choose(&mut self.rng).unwrap().clone()
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
        let name = name(&limit, KeyHash(self.rng.random_range(0..4)));
        if self.rng.random_bool(0.03) {
            return (name, Stored::List);
        }
        let mut records = vec![];
        let how_many = *[1, 1, 2, 4, 14].choose(&mut self.rng).unwrap();
        let foreign = how_many > 4;
        for n in 0..how_many {
            let rates = if foreign || self.rng.random_bool(0.1) {
                self.limit(7).rates.clone()
            } else {
                limit.rates.clone()
            };
            let rate = rates[n % rates.len()];
            records.push(self.record(&rate));
        }
        let mut bytes = encode(&records);
        if self.rng.random_bool(0.1) {
            match self.rng.random_range(0..4) {
                0 => bytes.truncate(self.rng.random_range(0..bytes.len())),
                1 => bytes.push(self.rng.random()),
                2 => bytes[self.rng.random_range(0..6)] = self.rng.random(),
                _ => bytes = (0..self.rng.random_range(1..40)).map(|_| self.rng.random()).collect(),
            }
        }
        let stored = Record::decode_all(&bytes).map_or(Stored::Garbage(bytes), Stored::Records);
        (name, stored)
    }

    fn record(&mut self, rate: &Rate) -> Record {
        let any = |rng: &mut StdRng| match rng.random_range(0..3) {
            0 => rng.random_range(0..20),
            1 => rng.random_range(0..=MAX_COUNT),
            _ => MAX_COUNT - rng.random_range(0..5),
        };
        let mut record = Record::empty(rate.tag(), self.now);
        if rate.tag().previous_slots() > 0 && self.rng.random_bool(0.8) {
            record.previous = any(&mut self.rng);
        }
        record.current = any(&mut self.rng);
        match self.rng.random_range(0..12) {
            0 => record.slot -= 1,
            1 => record.slot -= self.rng.random_range(0..4),
            2 => record.slot += 1,
            3 => record.slot += self.rng.random_range(2..5),
            4 => record.slot += 40 * MAX_PERIOD_MS / rate.period.millis(),
            _ => {
                // As full as can be, give or take a little.
                record.previous %= rate.requests.get() + 1;
                if record.previous > 0 && self.rng.random_bool(0.5) {
                    record.previous = self.hard_share(rate).unwrap_or(record.previous);
                }
                record.current = 0;
                let (rolled, at) = rate.roll(Some(record), self.now);
                let spare = rate.requests.get().saturating_sub(rate.used(&rolled, at));
                record.current = (spare + 1).saturating_sub(self.rng.random_range(0..5));
            }
        }
        record
    }

    /// A previous count whose share leaves next to nothing, or nearly a whole, when divided by the period: there a
    /// product that is not exact rounds to the other side.
    fn hard_share(&mut self, rate: &Rate) -> Option<u64> {
        let period = i128::from(rate.period.millis());
        let rest = period - i128::from(self.now) % period;
        let (divisor, factor) = euclid(rest, period);
        let least = match self.rng.random_range(-2..3) {
            0 => self.rng.random_range(0..divisor) * (period / divisor),
            left => (left * factor).rem_euclid(period),
        } as u64;
        let more = rate.requests.get().checked_sub(least)? / rate.period.millis();
        Some(least + self.rng.random_range(0..=more) * rate.period.millis())
    }

    /// What the reference makes of a batch: the numbers of the reply after its time.
    pub(crate) fn decide(&mut self, entries: &[Entry]) -> Vec<i64> {
        let mut numbers = vec![];
        for Entry { counters, callers } in entries {
            let names: Vec<_> = counters.iter().map(|counter| name(&counter.limit, counter.key)).collect();
            let broken = names.iter().find_map(|name| match self.stored.get(name) {
                Some(Stored::Garbage(_)) => Some(-2),
                Some(Stored::List) => Some(-1),
                _ => None,
            });
            if let Some(code) = broken {
                numbers.push(code);
                continue;
            }
            let mut admitted = 0;
            let mut after = vec![];
            for _ in 0..*callers {
                after = names.iter().map(|name| Records::from_slice(self.records(name))).collect();
                if decide(counters, &mut after, self.now).admitted {
                    admitted += 1;
                    for ((counter, name), own) in counters.iter().zip(&names).zip(&after) {
                        if counter.cost > 0 {
                            let records = written(own, self.records(name), self.now);
                            self.stored.insert(name.clone(), Stored::Records(records));
                        }
                    }
                }
            }
            self.admitted += admitted as u64;
            self.denied += callers - admitted as u64;
            numbers.push(admitted);
            for record in after.iter().flatten() {
                numbers.extend([record.slot, record.current, record.previous].map(|n| n as i64));
            }
        }
        numbers
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

pub(crate) fn name(limit: &LimitSpec, key: KeyHash) -> String {
    format!("{}:{}", limit.scope, key.0)
}

/// The records that a charged counter keeps: its own first, then up to 8 others that have not expired, rebased if
/// they are far ahead.
fn written(own: &[Record], before: &[Record], now: u64) -> Vec<Record> {
    let foreign = before
        .iter()
        .filter(|record| own.iter().all(|used| used.tag != record.tag))
        .filter(|record| expires_at(record) > u128::from(now))
        .map(|record| {
            let newest = now / record.tag.slot_millis();
            if record.slot > newest + 1 {
                let current = (record.current + record.previous).min(MAX_COUNT);
                Record { slot: newest, current, previous: 0, ..*record }
            } else {
                *record
            }
        });
    own.iter().copied().chain(foreign.take(8)).collect()
}

/// [`Record::expires_at`], for slots that only garbage has as well.
fn expires_at(record: &Record) -> u128 {
    u128::from(record.slot + record.tag.previous_slots() + 1) * u128::from(record.tag.slot_millis())
}

/// When a value expires: at its records' latest end. Only damaged ones end in the past or beyond all time; those
/// are put without an end.
pub(crate) fn expires(records: &[Record]) -> Option<i64> {
    let sane = u128::from(EARLIEST - 5 * MAX_PERIOD_MS)..1 << 60;
    records.iter().map(expires_at).max().filter(|end| sane.contains(end)).map(|end| end as i64)
}

fn encode(records: &[Record]) -> Vec<u8> {
    let mut bytes = vec![];
    records.iter().for_each(|record| record.encode(&mut bytes));
    bytes
}

//! The effect of a limit, and on whom: how often, when, and how much a client needs at most, which is the number that would never deny it.
//!
//! The clients that are denied most, among more of them than can be told apart, are found by Space-Saving: A. Metwally, D. Agrawal,
//! A. El Abbadi, "Efficient computation of frequent and top-k elements in data streams", ICDT 2005. With m counters and n denials no count
//! is too low, and none is too high by more than n / m.

use std::collections::{BTreeSet, HashMap};

use serde::Serialize;
use sluice_config::{PreparedLimit, PreparedPolicy};
use sluice_engine::simulation::{LimitDecision, LimitOutcome};
use sluice_limiter::{Rate, Windows};

/// Parts of a period. The result is too high by one part of them at most.
const PARTS: usize = 32;

/// The largest sum of costs within any period, or within any of the periods of the clock. It is never too low.
#[derive(Debug, Clone)]
pub(super) struct Demand {
    /// Costs of the current part and of those before it.
    parts: [u32; PARTS + 1],
    /// Number of the current part.
    current: u64,
    /// Length of a part, in microseconds.
    length: u64,
    /// Whether a part is a whole period of the clock, which alone counts.
    is_clock: bool,
    sum: u64,
    peak: u64,
}

impl Demand {
    /// Creates the demand of a client within a period, in milliseconds, for an algorithm with such windows.
    pub(super) fn new(period_millis: u64, windows: Option<Windows>) -> Self {
        let is_clock = windows == Some(Windows::Clock);
        let parts = if is_clock { 1 } else { PARTS as u64 };
        let length = (period_millis * 1_000).div_ceil(parts).max(1);
        Self { parts: [0; PARTS + 1], current: 0, length, is_clock, sum: 0, peak: 0 }
    }

    /// Adds a request, and reports whether the client needs more than before. Time does not go back.
    pub(super) fn add(&mut self, at: u64, cost: u64) -> bool {
        let part = at / self.length;
        if self.is_clock && part > self.current {
            (self.parts, self.sum) = ([0; PARTS + 1], 0);
            self.current = part;
        }
        let passed = part.saturating_sub(self.current).min(PARTS as u64 + 1);
        for n in 1..=passed {
            let slot = ((self.current + n) % (PARTS as u64 + 1)) as usize;
            // After a long pause the slots are cleared in any order.
            self.sum -= u64::from(std::mem::take(&mut self.parts[slot]));
        }
        self.current = self.current.max(part);
        let slot = (self.current % (PARTS as u64 + 1)) as usize;
        let before = self.parts[slot];
        self.parts[slot] = before.saturating_add(u32::try_from(cost).unwrap_or(u32::MAX));
        self.sum += u64::from(self.parts[slot] - before);
        let is_more = self.sum > self.peak;
        self.peak = self.peak.max(self.sum);
        is_more
    }

    /// Returns the number that would never have denied the client.
    pub(super) fn peak(&self) -> u64 {
        self.peak
    }
}

/// Number of clients that are followed.
const MAX_FOLLOWED: usize = 10_000;

/// A client that is followed.
#[derive(Debug, Clone)]
pub(super) struct Followed {
    /// The client in words.
    pub(super) name: String,
    /// Requests since it is followed.
    pub(super) requests: u64,
    /// Denials at most.
    pub(super) denied: u64,
    /// How much `denied` may be too high.
    pub(super) error: u64,
    /// Times of the first denial since it is followed, and of the last.
    pub(super) between: (u64, u64),
}

/// The clients that are denied most.
#[derive(Debug, Default)]
pub(super) struct Heavy {
    clients: HashMap<u128, Followed>,
    /// Those clients, by their denials.
    order: BTreeSet<(u64, u128)>,
}

impl Heavy {
    /// Adds a request of a client. `describe` describes it.
    pub(super) fn add(&mut self, key: u128, is_denied: bool, now: u64, describe: impl FnOnce() -> String) {
        if let Some(client) = self.clients.get_mut(&key) {
            client.requests += 1;
            if is_denied {
                self.order.remove(&(client.denied, key));
                client.denied += 1;
                client.between.1 = now;
                self.order.insert((client.denied, key));
            }
            return;
        }
        if !is_denied {
            return;
        }
        // The one with the fewest denials makes room, and the new one may have had as many.
        let full = self.clients.len() >= MAX_FOLLOWED;
        let least = if full { self.order.pop_first() } else { None };
        let error = least.map_or(0, |(denied, other)| {
            self.clients.remove(&other);
            denied
        });
        let denied = error + 1;
        self.order.insert((denied, key));
        self.clients
            .insert(key, Followed { name: describe(), requests: 1, denied, error, between: (now, now) });
    }

    /// Returns the clients that have surely been denied more often than any client that is not followed may have been. The others
    /// may be there by chance.
    pub(super) fn certain(&self) -> impl Iterator<Item = &Followed> {
        let is_full = self.clients.len() >= MAX_FOLLOWED;
        let least = self.order.first().filter(|_| is_full).map_or(0, |(denied, _)| *denied);
        self.clients.values().filter(move |client| client.denied - client.error > least)
    }
}

/// Number of intervals at most.
const MAX_INTERVALS: usize = 240;
/// Length of the first intervals, in microseconds.
const SHORTEST: u64 = 1_000_000;
/// Lengths of intervals, in seconds, each a multiple of the one before. Above them it doubles.
const LENGTHS: [u64; 11] = [1, 5, 10, 30, 60, 300, 600, 1_800, 3_600, 21_600, 86_400];

/// Numbers of admitted and denied requests in intervals, whose length grows to the next that is easy to read when there are
/// too many of them.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Series {
    /// Beginning of the first interval, in microseconds since the Unix epoch.
    pub(super) begin_micros: u64,
    /// Length of an interval.
    pub(super) interval_micros: u64,
    /// Admitted and denied requests of each interval.
    pub(super) intervals: Vec<[u64; 2]>,
}

impl Series {
    pub(super) fn new(begin: u64) -> Self {
        Self { begin_micros: begin / SHORTEST * SHORTEST, interval_micros: SHORTEST, intervals: Vec::new() }
    }

    /// Counts a request at a time that is not before the beginning.
    pub(super) fn add(&mut self, at: u64, is_denied: bool) {
        while at.saturating_sub(self.begin_micros) / self.interval_micros >= MAX_INTERVALS as u64 {
            self.lengthen();
        }
        let position = (at.saturating_sub(self.begin_micros) / self.interval_micros) as usize;
        if self.intervals.len() <= position {
            self.intervals.resize(position + 1, [0; 2]);
        }
        self.intervals[position][usize::from(is_denied)] += 1;
    }

    /// Goes to the next length, whose intervals begin at its multiples.
    fn lengthen(&mut self) {
        let mut lengths = LENGTHS.iter().map(|seconds| seconds * 1_000_000);
        let longer =
            lengths.find(|&length| length > self.interval_micros).unwrap_or(self.interval_micros * 2);
        let begin = self.begin_micros / longer * longer;
        let before = ((self.begin_micros - begin) / self.interval_micros) as usize;
        let many = (longer / self.interval_micros) as usize;
        let mut intervals = vec![[0; 2]; (before + self.intervals.len()).div_ceil(many)];
        for (n, counts) in self.intervals.iter().enumerate() {
            let sum = &mut intervals[(before + n) / many];
            *sum = [sum[0] + counts[0], sum[1] + counts[1]];
        }
        (self.begin_micros, self.interval_micros, self.intervals) = (begin, longer, intervals);
    }

    /// Returns beginning and number of denials of the interval with most of them.
    pub(super) fn worst(&self) -> Option<(u64, u64)> {
        let denied = (0..).zip(&self.intervals).map(|(n, counts)| (counts[1], n));
        // The first of equal ones.
        let (denied, n) = denied.max_by_key(|&(denied, n): &(u64, u64)| (denied, u64::MAX - n))?;
        (denied > 0).then_some((self.begin_micros + n * self.interval_micros, denied))
    }
}

/// Number of clients of a limit that are told apart.
pub(super) const MAX_CLIENTS: usize = 200_000;

/// The effect of a limit.
#[derive(Debug)]
pub(super) struct LimitTally {
    /// `NAMESPACE/NAME` of the policy.
    pub(super) policy: String,
    pub(super) limit: String,
    /// `Reject`, `Queue`, `Mark` or `Shadow`.
    pub(super) effect: &'static str,
    /// The rates that decide, unless a tier or plan has others.
    pub(super) rates: Vec<Rate>,
    pub(super) matched: u64,
    /// Denials, or what would have been denials if the limit denied anything.
    pub(super) denied: u64,
    pub(super) waited: u64,
    pub(super) series: Series,
    pub(super) clients: HashMap<u128, ClientTally>,
    /// Requests that a tier or a missing part of the key denied, without a client.
    pub(super) refused: u64,
    /// Requests that lack a part of the key, and share one counter.
    pub(super) lacking: u64,
    /// Requests of further clients.
    pub(super) others: u64,
    /// Those of them that are denied most.
    pub(super) heavy: Heavy,
    /// Whether all requests have one counter.
    pub(super) is_of_all: bool,
    /// Whether the demand of clients tells what they need.
    has_demand: bool,
    /// The clients that need most, by [`ClientTally::need`], and their number at most.
    needing: BTreeSet<(u64, u128)>,
    most_needing: usize,
}

/// The effect of a limit on one client.
#[derive(Debug)]
pub(super) struct ClientTally {
    /// The client in words, if it was denied or was among those that need most.
    pub(super) name: String,
    pub(super) requests: u64,
    pub(super) denied: u64,
    /// Times of the first and the last denial.
    pub(super) between: (u64, u64),
    /// For each rate.
    pub(super) demands: Vec<Demand>,
    /// Need of the rate of which it needs most, in millionths of the number of the rate.
    need: u64,
}

impl LimitTally {
    /// Begins at a time, and names so many of the clients that need most.
    pub(super) fn new(
        policy: &PreparedPolicy,
        limit: &PreparedLimit,
        begin: u64,
        most_needing: usize,
    ) -> Self {
        let base = limit.rate_sets().first();
        let rates: Vec<_> = base.map(|set| set.deciding().copied().collect()).unwrap_or_default();
        Self {
            policy: policy.qualified_name(),
            limit: limit.name.clone(),
            effect: limit.effect_name(),
            // What an outcome takes back is not known before.
            // All parts of a key are public here.
            is_of_all: limit.public_parts.is_empty(),
            has_demand: limit.charge.settlement().is_none()
                && rates.iter().all(|rate| rate.windows().is_some()),
            rates,
            matched: 0,
            denied: 0,
            waited: 0,
            series: Series::new(begin),
            clients: HashMap::new(),
            refused: 0,
            lacking: 0,
            others: 0,
            heavy: Heavy::default(),
            needing: BTreeSet::new(),
            most_needing,
        }
    }

    /// Adds a decision. `describe` describes the client.
    pub(super) fn add(&mut self, outcome: &LimitOutcome, now: u64, describe: impl Fn() -> String) {
        let is_denied = match outcome.decision {
            LimitDecision::Denied | LimitDecision::Passed => true,
            LimitDecision::Admitted | LimitDecision::DeniedByOther => false,
            LimitDecision::Waits => {
                self.waited += 1;
                false
            }
        };
        self.matched += 1;
        self.denied += u64::from(is_denied);
        self.series.add(now, is_denied);
        self.lacking += u64::from(outcome.lacks_part);
        let Some(key) = outcome.key else {
            self.refused += 1;
            return;
        };
        let is_full = self.clients.len() >= MAX_CLIENTS;
        if is_full && !self.clients.contains_key(&key) {
            self.others += 1;
            self.heavy.add(key, is_denied, now, describe);
            return;
        }
        let client = self.clients.entry(key).or_insert_with(|| {
            let demand = |rate: &Rate| Demand::new(rate.period.millis(), rate.windows());
            let demands = if self.has_demand { self.rates.iter().map(demand).collect() } else { Vec::new() };
            ClientTally { name: String::new(), requests: 0, denied: 0, between: (now, now), demands, need: 0 }
        });
        client.requests += 1;
        if outcome.rates == 0 && !outcome.lacks_part {
            let mut is_more = false;
            for demand in &mut client.demands {
                is_more |= demand.add(now, outcome.cost);
            }
            if is_more {
                let part = |(demand, rate): (&Demand, &Rate)| {
                    demand.peak().saturating_mul(1_000_000) / rate.requests.get().max(1)
                };
                let need = client.demands.iter().zip(&self.rates).map(part).max().unwrap_or(0);
                let before = (std::mem::replace(&mut client.need, need), key);
                // What a client needs never shrinks, so one that is among the last ones was named when it needed as much.
                self.needing.remove(&before);
                if self.needing.len() < self.most_needing
                    || self.needing.first().is_some_and(|least| *least < (need, key))
                {
                    self.needing.insert((need, key));
                    if self.needing.len() > self.most_needing {
                        self.needing.pop_first();
                    }
                    if client.name.is_empty() {
                        client.name = describe();
                    }
                }
            }
        }
        if is_denied {
            if client.name.is_empty() {
                client.name = describe();
            }
            if client.denied == 0 {
                client.between.0 = now;
            }
            client.denied += 1;
            client.between.1 = now;
        }
    }

    /// Returns the clients that need most of the rates, the one that needs most first.
    pub(super) fn most_needing(&self) -> impl Iterator<Item = &ClientTally> {
        self.needing.iter().rev().filter_map(|(_, key)| self.clients.get(key))
    }

    /// Says why it is known of no client what it needs.
    pub(super) fn why_unknown(&self) -> &'static str {
        if self.matched == 0 {
            "no request of the log meets it"
        } else if self.has_demand {
            "all requests lack a part of its key, or meet a tier or plan"
        } else if self.rates.iter().any(|rate| rate.windows().is_none()) {
            "its algorithm does not count in windows"
        } else {
            "what counts depends on the response"
        }
    }

    /// Returns the clients of which it is known what they need.
    pub(super) fn known(&self) -> impl Iterator<Item = &ClientTally> {
        self.clients.values().filter(|client| client.demands.iter().any(|demand| demand.peak() > 0))
    }

    /// Returns what each client needs of a rate, the least first. There are none if that cannot be told.
    pub(super) fn peaks(&self, rate: usize) -> Vec<u64> {
        let peaks = self.clients.values().filter_map(|client| Some(client.demands.get(rate)?.peak()));
        let mut peaks: Vec<_> = peaks.filter(|peak| *peak > 0).collect();
        peaks.sort_unstable();
        peaks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the exact demand.
    fn exact(times: &[u64], period: u64) -> u64 {
        let window = |end: &u64| times.iter().filter(|at| *at <= end && **at + period > *end).count() as u64;
        times.iter().map(window).max().unwrap_or(0)
    }

    #[test]
    fn the_demand_is_never_too_low_and_covers_little_more_than_a_period() {
        let mut state = 7u64;
        for _ in 0..200 {
            let mut at = 0;
            let times: Vec<u64> = (0..200)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    at += (state >> 40) % 3_000_000;
                    at
                })
                .collect();
            let mut demand = Demand::new(60_000, Some(Windows::Any));
            for at in &times {
                demand.add(*at, 1);
            }
            let (low, high) = (exact(&times, 60_000_000), exact(&times, 60_000_000 * 34 / 32));
            assert!((low..=high).contains(&demand.peak()), "{low} {} {high}", demand.peak());
        }
    }

    #[test]
    fn periods_of_the_clock_are_counted_apart() {
        let mut demand = Demand::new(60_000, Some(Windows::Clock));
        // 100 at the end of a minute, 114 at the beginning of the next.
        for n in 0..214 {
            demand.add(if n < 100 { 59_999_999 } else { 60_000_000 }, 1);
        }
        assert_eq!(demand.peak(), 114);
    }

    #[test]
    fn pauses_of_any_length_end_a_period() {
        let mut demand = Demand::new(60_000, Some(Windows::Any));
        for minutes in [0, 2, 1_000_000, 1_000_002] {
            demand.add(minutes * 60_000_000, 3);
        }
        assert_eq!(demand.peak(), 3);
        demand.add(1_000_002 * 60_000_000, u64::MAX);
        assert_eq!(demand.peak(), u64::from(u32::MAX));
    }

    #[test]
    fn an_attacker_is_found_among_half_a_million_others_and_no_count_is_too_low() {
        let mut heavy = Heavy::default();
        let attacks = 2_000u64;
        for n in 0..500_000u64 {
            heavy.add(u128::from(n) + 1, true, n, || n.to_string());
            if n.is_multiple_of(500_000 / attacks) {
                heavy.add(0, true, n, || "attacker".to_owned());
                heavy.add(0, false, n, || "attacker".to_owned());
            }
        }
        assert!(heavy.clients.len() == MAX_FOLLOWED && heavy.order.len() == MAX_FOLLOWED);
        let found: Vec<_> = heavy.certain().collect();
        assert_eq!(found.iter().map(|client| &*client.name).collect::<Vec<_>>(), ["attacker"]);
        let (low, high) = (found[0].denied - found[0].error, found[0].denied);
        assert!((low..=high).contains(&attacks), "{low} {high}");
        assert!(found[0].error <= (500_000 + attacks) / MAX_FOLLOWED as u64, "{}", found[0].error);
    }

    #[test]
    fn few_clients_are_counted_exactly() {
        let mut heavy = Heavy::default();
        (0..30u64).for_each(|n| heavy.add(u128::from(n % 3), n < 9, n, || (n % 3).to_string()));
        let mut found: Vec<_> = heavy.certain().map(|c| (&*c.name, c.requests, c.denied, c.error)).collect();
        found.sort_unstable();
        assert_eq!(found, [("0", 10, 3, 0), ("1", 10, 3, 0), ("2", 10, 3, 0)]);
    }

    #[test]
    fn nothing_is_lost_when_intervals_become_longer() {
        let mut series = Series::new(5_500_000);
        for second in 0..1_000 {
            series.add(5_500_000 + second * 1_000_000, second % 10 == 0);
        }
        assert!(series.intervals.len() <= MAX_INTERVALS);
        let sum = |n: usize| series.intervals.iter().map(|counts| counts[n]).sum::<u64>();
        assert_eq!((sum(0), sum(1), series.interval_micros), (900, 100, 5_000_000));
    }

    #[test]
    fn the_worst_interval_is_the_first_with_most_denials() {
        let mut series = Series::new(0);
        assert_eq!(series.worst(), None);
        for (second, is_denied) in [(0, false), (3, true), (3, true), (7, true), (9, true), (9, true)] {
            series.add(second * 1_000_000, is_denied);
        }
        assert_eq!(series.worst(), Some((3_000_000, 2)));
    }
}

//! Many holders against one counter in invented time: what leases promise, for any load.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

use proptest::prelude::*;
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use sluice_limiter::{Algorithm, Alignment, Burst, Period, Rate, Requests};

use super::holding::{Holding, Return, Step};
use super::terms::Terms;
use crate::check::{CheckResponse, Counter, KeyHash, LimitSpec, Records, Settlement, decide, settle};

/// Microseconds of the store's clock when a simulation begins: the edge of every window.
const START: u64 = 1_699_920_000_000_000;

/// Requests a second of a holder at an instant (microseconds since the start).
type Load = Box<dyn Fn(usize, u64) -> f64>;

/// A load: how many holders, how many requests a second each, for how long.
struct World {
    spec: Arc<LimitSpec>,
    load: Load,
    holders: usize,
    seconds: f64,
    /// One way to the store, at least; up to three times as much.
    way: u64,
    seed: u64,
    /// How many holders each believes there are at first.
    prior: u64,
    /// A call a request.
    strict: bool,
}

#[derive(Debug, Default)]
struct Report {
    requests: u64,
    admitted: u64,
    calls: u64,
    /// Calls and requests of the first period, in which holders learn.
    learning: (u64, u64),
    takes: u64,
    returns: u64,
    lost: u64,
    returned: u64,
    /// Admitted and asked for in each aligned period.
    periods: BTreeMap<u64, (u64, u64)>,
    /// When each was admitted.
    instants: Vec<u64>,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrive(usize),
    Review(usize),
    /// At the store: who, when it was sent, how much.
    Take(usize, u64, u64),
    /// Back: and how much of it.
    Taken(usize, u64, u64, u64, Said),
    Call(usize),
    Called(usize, Said),
    /// At the store: how much, charged when.
    Settle(u64, u64),
}

/// An answer on its way; its order is of no importance.
#[derive(Debug)]
struct Said(CheckResponse);
impl PartialEq for Said {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}
impl Eq for Said {}
impl PartialOrd for Said {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Said {
    fn cmp(&self, _: &Self) -> std::cmp::Ordering {
        std::cmp::Ordering::Equal
    }
}

/// Its windows of `Spread` begin somewhere within the clock's.
const KEY: KeyHash = KeyHash(0x1234_5678_9abc_def0_0fed_cba9_8765_4321);

struct Run {
    world: World,
    terms: Terms,
    holders: Vec<Holding>,
    reviews: Vec<Option<u64>>,
    waiting: Vec<u64>,
    store: Vec<Records>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    random: SmallRng,
    order: u64,
    report: Report,
}

impl World {
    fn run(self) -> Report {
        let terms = Terms::of(&self.spec).unwrap();
        let mut run = Run {
            terms,
            // Each holder's clock began at another time.
            holders: (0..self.holders).map(|n| Holding::new(n as u64 * 1_000, self.prior)).collect(),
            reviews: vec![None; self.holders],
            waiting: vec![0; self.holders],
            store: vec![Records::new()],
            events: BinaryHeap::new(),
            random: SmallRng::seed_from_u64(self.seed),
            order: 0,
            report: Report::default(),
            world: self,
        };
        for holder in 0..run.world.holders {
            run.schedule(0, Event::Arrive(holder));
        }
        let period = run.world.spec.rates[0].period.micros();
        while let Some(Reverse((now, _, event))) = run.events.pop() {
            if now < period {
                run.report.learning = (run.report.calls, run.report.requests);
            }
            run.happen(now, event);
        }
        for holder in &run.holders {
            run.report.lost += holder.lost;
        }
        run.report
    }
}

impl Run {
    fn schedule(&mut self, at: u64, event: Event) {
        self.order += 1;
        self.events.push(Reverse((at, self.order, event)));
    }

    fn way(&mut self) -> u64 {
        self.world.way + self.random.random_range(0..=2 * self.world.way)
    }

    /// A holder's own clock.
    fn clock(holder: usize, now: u64) -> u64 {
        now + (holder as u64 + 1) * 1_000_000
    }

    fn happen(&mut self, now: u64, event: Event) {
        let (spec, terms) = (self.world.spec.clone(), self.terms);
        let counter = |cost| Counter { limit: spec.clone(), key: KEY, cost };
        match event {
            Event::Arrive(holder) => {
                let rate = (self.world.load)(holder, now);
                let gap = if rate > 0.0 {
                    (-self.random.random_range(1e-9..1.0f64).ln() / rate * 1e6) as u64 + 1
                } else {
                    10_000
                };
                if ((now + gap) as f64) < self.world.seconds * 1e6 {
                    self.schedule(now + gap, Event::Arrive(holder));
                }
                if rate > 0.0 {
                    self.report.requests += 1;
                    self.period(now).1 += 1;
                    let clock = Self::clock(holder, now);
                    let step = if self.world.strict {
                        Step::Call
                    } else {
                        self.holders[holder].ask(&spec, &terms, clock, 1)
                    };
                    self.step(holder, now, step);
                }
            }
            Event::Review(holder) => {
                if self.reviews[holder] == Some(now) {
                    self.reviews[holder] = None;
                    let (back, next) = self.holders[holder].review(&terms, Self::clock(holder, now));
                    if let Some(Return { amount, charged }) = back {
                        self.report.calls += 1;
                        self.report.returns += 1;
                        self.report.returned += amount;
                        let at = now + self.way();
                        self.schedule(at, Event::Settle(amount, charged));
                    }
                    self.review(holder, now, next);
                }
            }
            Event::Settle(amount, charged) => {
                let settlement =
                    Settlement { limit: spec.clone(), key: KEY, charged, delta: -(amount as i64) };
                settle(&settlement, &mut self.store[0], START + now);
            }
            Event::Take(holder, sent, wanted) => {
                let mut granted = 0;
                while granted < wanted && decide(&[counter(1)], &mut self.store, START + now).admitted {
                    granted += 1;
                }
                let answer = self.stands(counter(1), now);
                let at = now + self.way();
                self.schedule(at, Event::Taken(holder, sent, wanted, granted, Said(answer)));
            }
            Event::Taken(holder, sent, wanted, granted, Said(answer)) => {
                let clock = Self::clock(holder, now);
                let sent = Self::clock(holder, sent);
                self.holders[holder].took(&spec, KEY, &terms, wanted, granted, &answer, sent, clock);
                let next = self.holders[holder].left() > 0;
                if next && self.reviews[holder].is_none() {
                    self.review(holder, now, Some(clock));
                }
                for _ in 0..std::mem::take(&mut self.waiting[holder]) {
                    let step = self.holders[holder].again(&spec, &terms, clock, 1);
                    self.step(holder, now, step);
                }
            }
            Event::Call(holder) => {
                let answer = decide(&[counter(1)], &mut self.store, START + now);
                let at = now + self.way();
                self.schedule(at, Event::Called(holder, Said(answer)));
            }
            Event::Called(holder, Said(answer)) => {
                let clock = Self::clock(holder, now);
                self.holders[holder].called(&spec, &terms, 1, &answer, &answer.decisions, clock);
                if answer.admitted {
                    // Admitted when the store decided.
                    self.admit(answer.at - START);
                }
            }
        }
    }

    fn stands(&mut self, counter: Counter, now: u64) -> CheckResponse {
        // As the next one would be told: a denial, and a peek otherwise, leave the store as it is.
        let mut copy = self.store.clone();
        decide(&[counter], &mut copy, START + now)
    }

    fn review(&mut self, holder: usize, now: u64, next: Option<u64>) {
        if let Some(next) = next {
            let at = (next - Self::clock(holder, 0)).max(now + 1);
            self.reviews[holder] = Some(at);
            self.schedule(at, Event::Review(holder));
        }
    }

    fn step(&mut self, holder: usize, now: u64, step: Step) {
        let take = match step {
            Step::Admit(more) => {
                self.admit(now);
                more
            }
            Step::Take(wanted) => {
                self.waiting[holder] += 1;
                wanted
            }
            Step::Wait => {
                self.waiting[holder] += 1;
                0
            }
            Step::Call => {
                self.report.calls += 1;
                let at = now + self.way();
                self.schedule(at, Event::Call(holder));
                0
            }
            Step::Deny => 0,
        };
        if take > 0 {
            self.report.calls += 1;
            self.report.takes += 1;
            let at = now + self.way();
            self.schedule(at, Event::Take(holder, now, take));
        }
    }

    fn period(&mut self, now: u64) -> &mut (u64, u64) {
        let rate = &self.world.spec.rates[0];
        let period = (START + now + rate.phase(KEY.0)) / rate.period.micros();
        self.report.periods.entry(period).or_default()
    }

    fn admit(&mut self, now: u64) {
        self.report.admitted += 1;
        self.period(now).0 += 1;
        self.report.instants.push(now);
    }
}

fn spec(requests: u64, millis: u64, algorithm: Algorithm) -> Arc<LimitSpec> {
    let (requests, period) = (Requests::new(requests).unwrap(), Period::from_millis(millis).unwrap());
    Arc::new(LimitSpec::new("n/p/l", vec![Rate::new(requests, period, algorithm).unwrap()]))
}

impl Report {
    fn calls_a_request(&self) -> f64 {
        (self.calls - self.learning.0) as f64 / (self.requests - self.learning.1) as f64
    }

    /// Of what could be admitted in whole periods, the part that was.
    fn utilisation(&self, number: u64) -> f64 {
        let (mut admitted, mut possible) = (0, 0);
        // The first few teach the holders, the last one may be cut.
        for &(got, asked) in self.periods.values().skip(1).take(self.periods.len().saturating_sub(2)) {
            admitted += got;
            possible += asked.min(number);
        }
        admitted as f64 / possible as f64
    }
}

impl Report {
    fn most_in_a_period(&self) -> u64 {
        self.periods.values().map(|&(admitted, _)| admitted).max().unwrap_or(0)
    }

    /// The most within any `micros`.
    fn most_in_any(&self, micros: u64) -> u64 {
        let mut instants = self.instants.clone();
        instants.sort_unstable();
        let ends = instants.iter().enumerate();
        let inside = |(n, end): (usize, &u64)| n + 1 - instants.partition_point(|at| at + micros <= *end);
        ends.map(inside).max().unwrap_or(0) as u64
    }
}

/// Runs and prints one line.
fn show(name: &str, world: World) -> Report {
    let number = world.spec.rates[0].requests.get();
    let report = world.run();
    println!(
        "{name}: {:.4} calls a request, {:.4} utilisation, {} of {} admitted, {} lost, {} returned; \
         {} takes, {} returns, {} calls",
        report.calls_a_request(),
        report.utilisation(number),
        report.admitted,
        report.requests,
        report.lost,
        report.returned,
        report.takes,
        report.returns,
        report.calls,
    );
    report
}

/// Load in multiples of the number, equally spread.
fn even(times: f64, number: u64, millis: u64, holders: usize) -> Load {
    let each = times * number as f64 * 1000.0 / millis as f64 / holders as f64;
    Box::new(move |_, _| each)
}

fn world(algorithm: Algorithm, number: u64, times: f64, holders: usize) -> World {
    World {
        spec: spec(number, 1000, algorithm),
        load: even(times, number, 1000, holders),
        holders,
        seconds: 8.0,
        way: 300,
        seed: 7,
        prior: 1,
        strict: false,
    }
}

fn windows() -> [Algorithm; 3] {
    [Alignment::Clock, Alignment::Spread, Alignment::FirstRequest].map(Algorithm::FixedWindow)
}

/// Few calls, nearly all admitted, and never one too many, with 50 and more of N a holder and window.
#[test]
fn leases_of_windows_are_cheap_full_and_exact() {
    for algorithm in windows() {
        for (number, times, calls, full) in [
            (1000, 0.9, 0.1, 0.98),
            (1000, 1.5, 0.1, 0.98),
            (1000, 10.0, 0.03, 0.98),
            (4000, 0.9, 0.06, 0.98),
            (4000, 1.1, 0.06, 0.98),
            (4000, 10.0, 0.02, 0.98),
            (20_000, 10.0, 0.005, 0.98),
        ] {
            for prior in [1, 20] {
                let name = format!("{algorithm:?} {number} x{times} prior {prior}");
                let report = show(&name, World { prior, ..world(algorithm, number, times, 20) });
                assert!(report.calls_a_request() <= calls, "{name}: too many calls");
                assert!(report.utilisation(number) >= full, "{name}: too little admitted");
                // Windows of `FirstRequest` are not aligned.
                if algorithm != Algorithm::FixedWindow(Alignment::FirstRequest) {
                    assert!(report.most_in_a_period() <= number, "{name}: too much admitted");
                }
            }
        }
    }
}

/// Windows that slide cost more calls when they are full, and what waits for a call is not admitted meanwhile.
#[test]
fn leases_of_sliding_windows_lose_a_few_percent() {
    for (number, times, calls, full) in
        [(1000, 0.9, 0.25, 0.93), (1000, 10.0, 0.06, 0.96), (4000, 0.9, 0.1, 0.97), (4000, 10.0, 0.03, 0.95)]
    {
        let strict = World { strict: true, ..world(Algorithm::SLIDING_WINDOW, number, times, 20) };
        let strict = show(&format!("strict {number} x{times}"), strict);
        let leased =
            show(&format!("leased {number} x{times}"), world(Algorithm::SLIDING_WINDOW, number, times, 20));
        assert!(leased.calls_a_request() <= calls, "too many calls");
        assert!(leased.utilisation(number) >= full, "too little admitted");
        assert!(leased.most_in_a_period() <= number);
        let most = strict.most_in_any(1_000_000).max(number);
        let leased = leased.most_in_any(1_000_000);
        assert!(
            leased as f64 <= most as f64 * 1.1,
            "{leased} in some trailing second, {most} without leases"
        );
    }
}

#[test]
fn leases_of_buckets_pass_them_by_a_few_percent() {
    let burst = Burst::new(2000).unwrap();
    for times in [0.9, 2.0, 10.0] {
        let rate = Algorithm::TokenBucket { burst };
        let spec = spec(20_000, 10_000, rate);
        let load = even(times, 20_000, 10_000, 20);
        let report =
            show(&format!("bucket x{times}"), World { spec, load, seconds: 20.0, ..world(rate, 1, 1.0, 20) });
        assert!(report.calls_a_request() <= 0.15);
        for seconds in [1u64, 3, 10] {
            let most = report.most_in_any(seconds * 1_000_000);
            let bound = 2_000 + 2_000 * seconds;
            assert!(most as f64 <= bound as f64 + 1_000.0, "{most} in {seconds} s, {bound} by the bucket");
        }
        assert!(report.admitted as f64 >= 0.95 * (20.0 * 2_000.0 * times.min(1.0)));
    }
}

/// Long windows: blocks are as rare, and idle ones do not lie about until the window ends.
#[test]
fn leases_of_long_windows_are_as_cheap() {
    for (number, millis, times, calls) in [
        (1_000, 3_600_000, 0.9, 0.1),
        // A request in seven seconds and holder: one a minute asks.
        (1_000, 3_600_000, 10.0, 0.15),
        (4_000, 3_600_000, 0.9, 0.08),
        (1_000, 60_000, 0.9, 0.1),
        (100_000, 60_000, 1.1, 0.06),
    ] {
        let spec = spec(number, millis, Algorithm::FIXED_WINDOW);
        let load = even(times, number, millis, 20);
        let seconds = 4.0 * millis as f64 / 1000.0;
        let name = format!("{number} in {millis} ms x{times}");
        let report = show(&name, World { spec, load, seconds, ..world(Algorithm::FIXED_WINDOW, 1, 1.0, 20) });
        assert!(report.calls_a_request() <= calls, "{name}: too many calls");
        assert!(report.utilisation(number) >= 0.98, "{name}: too little admitted");
        assert!(report.most_in_a_period() <= number);
    }
    // All are busy for a few seconds, and then one alone.
    let spec = spec(10_000, 60_000, Algorithm::FIXED_WINDOW);
    let load: Load = Box::new(|holder, now| match now {
        0..3_000_000 => 50.0,
        _ if holder == 0 => 1_000.0,
        _ => 0.0,
    });
    let report = show(
        "one goes on",
        World { spec, load, seconds: 55.0, ..world(Algorithm::FIXED_WINDOW, 1, 1.0, 20) },
    );
    assert!(report.admitted >= 9_750, "what idle holders had came back");
}

/// One holder takes what it needs and falls silent; then another one comes, and finds all that is left.
#[test]
fn what_a_silent_holder_has_is_found_within_a_minute() {
    for number in [50, 300, 5_000] {
        let (spec, third) = (spec(number, 3_600_000, Algorithm::SLIDING_WINDOW), number as f64 / 3.0);
        // A third of the number within two seconds; then, from the tenth second on, all there is, slowly.
        let load: Load = Box::new(move |holder, now| match (holder, now) {
            (0, 0..2_000_000) => third / 2.0,
            (1, 10_000_000..) => number as f64 / 60.0,
            _ => 0.0,
        });
        let name = format!("one after another, {number}");
        let report = show(
            &name,
            World {
                spec,
                load,
                holders: 2,
                seconds: 200.0,
                prior: 2,
                ..world(Algorithm::SLIDING_WINDOW, 1, 1.0, 2)
            },
        );
        assert_eq!(report.admitted, number, "{name}: all of it is used");
    }
}

/// A key that is asked for now and then costs no more than without leases.
#[test]
fn a_small_part_is_worth_no_lease() {
    let report = show("small", world(Algorithm::FIXED_WINDOW, 200, 0.9, 20));
    assert!(report.calls_a_request() <= 1.05);
    assert!(report.utilisation(200) >= 0.95);
}

/// One busy holder among idle ones gets nearly all of it.
#[test]
fn quota_goes_where_the_load_is() {
    for heavy in [1, 3] {
        let load: Load = Box::new(move |holder, _| if holder < heavy { 4_000.0 } else { 5.0 });
        let name = format!("{heavy} of 20 holders are busy");
        let report = show(&name, World { load, ..world(Algorithm::FIXED_WINDOW, 1000, 1.0, 20) });
        assert!(report.utilisation(1000) >= 0.97, "{name}");
        assert!(report.most_in_a_period() <= 1000);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// For any load that comes and goes, any delays, costs of a call and wrong beliefs: never one too many in a window.
    #[test]
    fn a_window_is_never_passed(
        which in 0usize..2, number in 1u64..3_000, millis in 60u64..1_500, holders in 1usize..25, way in 1u64..40_000,
        times in 0.1f64..12.0, wave in 10_000u64..2_000_000, seed: u64, prior in 1u64..50,
    ) {
        let each = times * number as f64 * 1000.0 / millis as f64 / holders as f64;
        let each = each.min(3_000.0);
        // Half of the holders are idle half of the time, each at its own.
        let load: Load = Box::new(move |holder, now| {
            let turn = (now + holder as u64 * 77_777) / wave;
            if holder.is_multiple_of(2) || turn.is_multiple_of(2) { each } else { 0.0 }
        });
        let algorithm = windows()[which];
        let spec = spec(number, millis, algorithm);
        let report = World { spec, load, holders, seconds: 4.0, way, seed, prior, strict: false }.run();
        prop_assert!(report.most_in_a_period() <= number, "{} of {number}", report.most_in_a_period());
    }
}

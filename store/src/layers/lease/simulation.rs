//! Many holders against one counter in invented time: what leases promise, for any load.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use sluice_limiter::{Algorithm, Alignment, Burst, Period, Rate, Requests, SubWindows};

use super::holding::{Holding, Return, Step};
use super::terms::Terms;
use crate::check::{Answer, Counter, KeyHash, LimitSpec, Records, Settlement, decide, settle};
use std::sync::Arc;

/// Microseconds of the store's clock when a simulation begins: the edge of every window.
const START: u64 = 1_699_920_000_000_000;

/// A load: how many holders, how many requests a second each, for how long.
struct World {
    spec: Arc<LimitSpec>,
    /// Requests a second of each holder at an instant (microseconds since the start).
    load: Box<dyn Fn(usize, u64) -> f64>,
    holders: usize,
    seconds: f64,
    /// One way to the store, at least; up to three times as much.
    way: u64,
    seed: u64,
    /// What each holder believes of the others at first.
    prior: u64,
    strict: bool,
}

#[derive(Debug, Default)]
struct Report {
    requests: u64,
    admitted: u64,
    calls: u64,
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
    /// At the store: a taking sent then, of so much; how many requests wait for it.
    Take(usize, u64, u64, Option<u64>),
    Taken(usize, u64, u64, u64, Boxed, Option<u64>),
    Call(usize, u64),
    Called(usize, Boxed, u64),
    Settle(u64, u64),
}

/// An answer on its way; its order is of no importance.
#[derive(Debug)]
struct Boxed(Answer);
impl PartialEq for Boxed {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}
impl Eq for Boxed {}
impl PartialOrd for Boxed {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Boxed {
    fn cmp(&self, _: &Self) -> std::cmp::Ordering {
        std::cmp::Ordering::Equal
    }
}

const KEY: KeyHash = KeyHash(77);

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
        while let Some(Reverse((now, _, event))) = run.events.pop() {
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
                    let step = if self.world.strict { Step::Call } else { self.holders[holder].ask(&spec, &terms, Self::clock(holder, now), 1) };
                    self.step(holder, now, step);
                }
            }
            Event::Review(holder) => {
                if self.reviews[holder] == Some(now) {
                    self.reviews[holder] = None;
                    let (back, next) = self.holders[holder].review(&terms, Self::clock(holder, now));
                    if let Some(Return { amount, charged }) = back {
                        self.report.calls += 1;
                        self.report.returned += amount;
                        let at = now + self.way();
                        self.schedule(at, Event::Settle(amount, charged));
                    }
                    self.review(holder, now, next);
                }
            }
            Event::Settle(amount, charged) => {
                let settlement = Settlement { limit: spec.clone(), key: KEY, charged, delta: -(amount as i64) };
                settle(&settlement, &mut self.store[0], START + now);
            }
            Event::Take(holder, sent, wanted, waits) => {
                let mut granted = 0;
                while granted < wanted && decide(&[counter(1)], &mut self.store, START + now).admitted {
                    granted += 1;
                }
                let answer = self.stands(counter(1), now);
                let at = now + self.way();
                self.schedule(at, Event::Taken(holder, sent, wanted, granted, Boxed(answer), waits));
            }
            Event::Taken(holder, sent, wanted, granted, Boxed(answer), _) => {
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
            Event::Call(holder, sent) => {
                let answer = decide(&[counter(1)], &mut self.store, START + now);
                let at = now + self.way();
                self.schedule(at, Event::Called(holder, Boxed(answer), sent));
            }
            Event::Called(holder, Boxed(answer), _) => {
                let clock = Self::clock(holder, now);
                self.holders[holder].called(&spec, &terms, 1, &answer, &answer.decisions, clock);
                if answer.admitted {
                    // Admitted when the store decided.
                    self.admit(answer.at - START);
                }
            }
        }
    }

    fn stands(&mut self, counter: Counter, now: u64) -> Answer {
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
                self.schedule(at, Event::Call(holder, now));
                0
            }
            Step::Deny => 0,
        };
        if take > 0 {
            self.report.calls += 1;
            let at = now + self.way();
            self.schedule(at, Event::Take(holder, now, take, None));
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
        self.calls as f64 / self.requests as f64
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

/// Runs and prints one line.
fn show(name: &str, world: World) -> Report {
    let number = world.spec.rates[0].requests.get();
    let report = world.run();
    println!(
        "{name}: {:.4} calls a request, {:.4} utilisation, {} of {} admitted, {} lost, {} returned",
        report.calls_a_request(),
        report.utilisation(number),
        report.admitted,
        report.requests,
        report.lost,
        report.returned
    );
    report
}

/// Load in multiples of the number, equally spread.
fn even(times: f64, number: u64, millis: u64, holders: usize) -> Box<dyn Fn(usize, u64) -> f64> {
    let each = times * number as f64 * 1000.0 / millis as f64 / holders as f64;
    Box::new(move |_, _| each)
}

fn algorithms() -> [(&'static str, Algorithm); 5] {
    [
        ("fixed", Algorithm::FIXED_WINDOW),
        ("spread", Algorithm::FixedWindow(Alignment::Spread)),
        ("first", Algorithm::FixedWindow(Alignment::FirstRequest)),
        ("sliding", Algorithm::SLIDING_WINDOW),
        ("bucket", Algorithm::TokenBucket { burst: Burst::new(1000).unwrap() }),
    ]
}

#[test]
fn print_table() {
    let only = std::env::var("SIM").unwrap_or_default();
    for (name, algorithm) in algorithms() {
        if !only.is_empty() && !only.split(',').any(|o| o == name) { continue; }
        for number in [1000u64, 4000, 40_000] {
            for times in [0.5, 0.9, 1.0, 1.1, 2.0, 10.0] {
                for prior in [0, 1, 20] {
                    let world = World {
                        spec: spec(number, 1000, algorithm),
                        load: even(times, number, 1000, 20),
                        holders: 20,
                        seconds: if number > 4000 {4.0} else {10.0},
                        way: 300,
                        seed: 7,
                        strict: prior == 0,
                        prior,
                    };
                    show(&format!("{name} {number}/s x{times} prior {prior}"), world);
                }
            }
        }
    }
}

#[allow(dead_code)]
fn unused() -> Option<SubWindows> { None }

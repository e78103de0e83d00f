//! A discrete-event simulation of holders, a store, and the calls between them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};

use super::report::Report;
use crate::check::{CheckResponse, Counter, KeyHash, LimitSpec, Records, Settlement, decide, settle};
use crate::lease::quota_lease::{BlockReturn, LeaseStep, QuotaLease};
use crate::plan::LeaseTerms;

/// Store time at which a simulation begins, in microseconds. Windows of every length begin there.
const START: u64 = 1_699_920_000_000_000;

/// Requests per second of a holder at an instant, in microseconds since the start.
pub(super) type Load = Box<dyn Fn(usize, u64) -> f64>;

/// A scenario.
pub(super) struct World {
    pub(super) spec: Arc<LimitSpec>,
    pub(super) load: Load,
    pub(super) holders: usize,
    pub(super) seconds: f64,
    /// Least one-way latency to the store, in microseconds. It can be up to three times as high.
    pub(super) latency: u64,
    pub(super) seed: u64,
    /// Number of holders that each of them assumes at first.
    pub(super) assumed_holders: u64,
    /// Whether every request calls the store.
    pub(super) strict: bool,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A request arrives at a holder.
    Request {
        holder: usize,
    },
    Review {
        holder: usize,
    },
    /// A call for a block arrives at the store.
    Acquire {
        holder: usize,
        sent: u64,
        wanted: u64,
    },
    /// Its response arrives at the holder.
    Acquired {
        holder: usize,
        sent: u64,
        wanted: u64,
        granted: u64,
        response: Unordered,
    },
    /// A call for one request arrives at the store.
    Call {
        holder: usize,
    },
    /// Its response arrives at the holder.
    Called {
        holder: usize,
        response: Unordered,
    },
    /// A return arrives at the store.
    Settle {
        amount: u64,
        charged_at: u64,
    },
}

/// A response that does not take part in the order of events.
#[derive(Debug)]
struct Unordered(CheckResponse);

impl PartialEq for Unordered {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Unordered {}

impl PartialOrd for Unordered {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Unordered {
    fn cmp(&self, _: &Self) -> std::cmp::Ordering {
        std::cmp::Ordering::Equal
    }
}

/// The key of all requests. With `Spread`, its windows begin between those of the clock.
const KEY: KeyHash = KeyHash(0x1234_5678_9abc_def0_0fed_cba9_8765_4321);

struct Simulation {
    world: World,
    terms: LeaseTerms,
    leases: Vec<QuotaLease>,
    reviews: Vec<Option<u64>>,
    /// Number of requests of each holder that wait for a block.
    waiting: Vec<u64>,
    store: Vec<Records>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    random: SmallRng,
    /// Number of scheduled events; events of one instant happen in the order of their scheduling.
    scheduled: u64,
    report: Report,
}

impl World {
    pub(super) fn run(self) -> Report {
        let terms = LeaseTerms::of(&self.spec).unwrap();
        let mut simulation = Simulation {
            terms,
            // The clock of each holder began at another time.
            leases: (0..self.holders)
                .map(|n| QuotaLease::new(n as u64 * 1_000, self.assumed_holders))
                .collect(),
            reviews: vec![None; self.holders],
            waiting: vec![0; self.holders],
            store: vec![Records::new()],
            events: BinaryHeap::new(),
            random: SmallRng::seed_from_u64(self.seed),
            scheduled: 0,
            report: Report::default(),
            world: self,
        };
        for holder in 0..simulation.world.holders {
            simulation.schedule(0, Event::Request { holder });
        }
        let period = simulation.world.spec.rates[0].period.micros();
        while let Some(Reverse((now, _, event))) = simulation.events.pop() {
            if now < period {
                simulation.report.first_period = (simulation.report.calls, simulation.report.requests);
            }
            simulation.handle(now, event);
        }
        for lease in &simulation.leases {
            simulation.report.expired += lease.expired;
        }
        simulation.report
    }

    /// Runs and prints a line of results.
    pub(super) fn run_and_print(self, name: &str) -> Report {
        let number = self.spec.rates[0].requests.get();
        let report = self.run();
        report.print(name, number);
        report
    }
}

impl Simulation {
    fn handle(&mut self, now: u64, event: Event) {
        let (spec, terms) = (self.world.spec.clone(), self.terms);
        let counter = |cost| Counter { limit: spec.clone(), key: KEY, cost };
        match event {
            Event::Request { holder } => {
                let rate = (self.world.load)(holder, now);
                let gap = if rate > 0.0 {
                    (-self.random.random_range(1e-9..1.0f64).ln() / rate * 1e6) as u64 + 1
                } else {
                    10_000
                };
                if ((now + gap) as f64) < self.world.seconds * 1e6 {
                    self.schedule(now + gap, Event::Request { holder });
                }
                if rate > 0.0 {
                    self.report.requests += 1;
                    self.period(now).1 += 1;
                    let clock = Self::clock(holder, now);
                    let step = if self.world.strict {
                        LeaseStep::CallStore
                    } else {
                        self.leases[holder].request(&spec, &terms, clock, 1)
                    };
                    self.step(holder, now, step);
                }
            }
            Event::Review { holder } => {
                if self.reviews[holder] == Some(now) {
                    self.reviews[holder] = None;
                    let (block_return, next) = self.leases[holder].review(&terms, Self::clock(holder, now));
                    if let Some(BlockReturn { amount, charged_at }) = block_return {
                        self.report.calls += 1;
                        self.report.returns += 1;
                        self.report.returned += amount;
                        let at = now + self.latency();
                        self.schedule(at, Event::Settle { amount, charged_at });
                    }
                    self.schedule_review(holder, now, next);
                }
            }
            Event::Settle { amount, charged_at } => {
                let settlement = Settlement {
                    limit: spec.clone(),
                    key: KEY,
                    charged: charged_at,
                    delta: -(amount as i64),
                    overflowed: false,
                    least: 0,
                };
                settle(&settlement, &mut self.store[0], START + now);
            }
            Event::Acquire { holder, sent, wanted } => {
                let mut granted = 0;
                while granted < wanted && decide(&[counter(1)], &mut self.store, START + now).admitted {
                    granted += 1;
                }
                let response = Unordered(self.preview(counter(1), now));
                let at = now + self.latency();
                self.schedule(at, Event::Acquired { holder, sent, wanted, granted, response });
            }
            Event::Acquired { holder, sent, wanted, granted, response } => {
                let clock = Self::clock(holder, now);
                let sent = Self::clock(holder, sent);
                let lease = &mut self.leases[holder];
                lease.acquired(&spec, KEY, &terms, wanted, granted, &response.0, sent, clock);
                if lease.block().left() > 0 && self.reviews[holder].is_none() {
                    self.schedule_review(holder, now, Some(clock));
                }
                for _ in 0..std::mem::take(&mut self.waiting[holder]) {
                    let step = self.leases[holder].retry(&spec, &terms, clock, 1);
                    self.step(holder, now, step);
                }
            }
            Event::Call { holder } => {
                let response = Unordered(decide(&[counter(1)], &mut self.store, START + now));
                let at = now + self.latency();
                self.schedule(at, Event::Called { holder, response });
            }
            Event::Called { holder, response: Unordered(response) } => {
                let clock = Self::clock(holder, now);
                self.leases[holder].called(&spec, &terms, 1, &response, &response.decisions, clock);
                if response.admitted {
                    // Admitted at the time at which the store decided.
                    self.admit(response.at - START);
                }
            }
        }
    }

    fn step(&mut self, holder: usize, now: u64, step: LeaseStep) {
        let wanted = match step {
            LeaseStep::Admit { acquire } => {
                self.admit(now);
                acquire
            }
            LeaseStep::Acquire(size) => {
                self.waiting[holder] += 1;
                size
            }
            LeaseStep::Wait => {
                self.waiting[holder] += 1;
                0
            }
            LeaseStep::CallStore => {
                self.report.calls += 1;
                let at = now + self.latency();
                self.schedule(at, Event::Call { holder });
                0
            }
            LeaseStep::Deny => 0,
        };
        if wanted > 0 {
            self.report.calls += 1;
            self.report.acquisitions += 1;
            let at = now + self.latency();
            self.schedule(at, Event::Acquire { holder, sent: now, wanted });
        }
    }

    fn admit(&mut self, now: u64) {
        self.report.admitted += 1;
        self.period(now).0 += 1;
        self.report.instants.push(now);
    }

    fn period(&mut self, now: u64) -> &mut (u64, u64) {
        let rate = &self.world.spec.rates[0];
        let period = (START + now + rate.phase(KEY.0)) / rate.period.micros();
        self.report.periods.entry(period).or_default()
    }

    /// Returns the response that the next check would receive, without charging it.
    fn preview(&mut self, counter: Counter, now: u64) -> CheckResponse {
        let mut copy = self.store.clone();
        decide(&[counter], &mut copy, START + now)
    }

    fn schedule(&mut self, at: u64, event: Event) {
        self.scheduled += 1;
        self.events.push(Reverse((at, self.scheduled, event)));
    }

    fn schedule_review(&mut self, holder: usize, now: u64, next: Option<u64>) {
        if let Some(next) = next {
            let at = (next - Self::clock(holder, 0)).max(now + 1);
            self.reviews[holder] = Some(at);
            self.schedule(at, Event::Review { holder });
        }
    }

    fn latency(&mut self) -> u64 {
        self.world.latency + self.random.random_range(0..=2 * self.world.latency)
    }

    /// Returns the time of a holder's own clock.
    fn clock(holder: usize, now: u64) -> u64 {
        now + (holder as u64 + 1) * 1_000_000
    }
}

//! A simulated server with a number of workers, a FIFO queue before them, service times that vary, and more
//! demand than it can serve. Events are discrete, the clock is fake and the random numbers are seeded, so
//! every run is the same.
//!
//! A round trip is the mean service time. The best limit of a server (its knee) is measured: the smallest
//! fixed limit with 98 % of the throughput of the best fixed limit.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::limit::{Adaptive, SampleOutcome};

/// Mean service time in microseconds.
const ROUND_TRIP_US: u64 = 10_000;

/// Distribution of the service times.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Service {
    /// From half to one and a half of the mean: a coefficient of variation of 0.29.
    Uniform,
    /// A coefficient of variation of 1.
    Exponential,
}

/// Arrival of requests.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Demand {
    /// A number of clients, each with one request in flight or waiting for the limiter.
    Closed(u32),
    /// Poisson arrivals, with this many requests a round trip. Those above the limit are denied.
    Open(f64),
}

/// Capacity of the server for some time.
#[derive(Clone, Copy)]
struct Phase {
    workers: usize,
    /// Mean service time, as a multiple of [`ROUND_TRIP_US`].
    slowness: f64,
    round_trips: usize,
}

fn phase(workers: usize, round_trips: usize) -> Phase {
    Phase { workers, slowness: 1.0, round_trips }
}

enum Limit {
    Fixed(u32),
    Adaptive(Box<Adaptive>),
}

impl Limit {
    fn now(&self) -> u32 {
        match self {
            Self::Fixed(limit) => *limit,
            Self::Adaptive(adaptive) => adaptive.limit(),
        }
    }
}

/// Measurements of one phase.
#[derive(Default)]
struct Report {
    responses: f64,
    /// Sum of round trips, in [`ROUND_TRIP_US`].
    latency: f64,
    /// Limit at the end of each round trip; `None` while probing.
    limits: Vec<Option<u32>>,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Tick,
    Arrive,
    Done { started: u64, in_flight: u32 },
}

struct Simulation {
    limit: Limit,
    service: Service,
    slowness: f64,
    workers: usize,
    random: u64,
    now: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    sequence: u64,
    busy: usize,
    queue: VecDeque<(u64, u32)>,
}

impl Simulation {
    /// Returns a number in [0, 1) from SplitMix64.
    fn random(&mut self) -> f64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn exponential(&mut self) -> f64 {
        -(1.0 - self.random()).ln()
    }

    fn schedule(&mut self, round_trips_from_now: f64, event: Event) {
        self.sequence += 1;
        let time = self.now + (round_trips_from_now * ROUND_TRIP_US as f64) as u64;
        self.events.push(Reverse((time, self.sequence, event)));
    }

    fn in_flight(&self) -> u32 {
        (self.busy + self.queue.len()) as u32
    }

    fn enqueue(&mut self) {
        self.queue.push_back((self.now, self.in_flight() + 1));
        self.start_work();
    }

    fn start_work(&mut self) {
        while self.busy < self.workers
            && let Some((started, in_flight)) = self.queue.pop_front()
        {
            self.busy += 1;
            let time = match self.service {
                Service::Uniform => 0.5 + self.random(),
                Service::Exponential => self.exponential(),
            };
            self.schedule(time * self.slowness, Event::Done { started, in_flight });
        }
    }

    fn run(limit: Limit, phases: &[Phase], demand: Demand, service: Service, seed: u64) -> Vec<Report> {
        let mut sim = Self {
            limit,
            service,
            slowness: 1.0,
            workers: 0,
            random: seed,
            now: 0,
            events: BinaryHeap::new(),
            sequence: 0,
            busy: 0,
            queue: VecDeque::new(),
        };
        sim.schedule(1.0, Event::Tick);
        if let Demand::Open(_) = demand {
            sim.schedule(0.0, Event::Arrive);
        }
        let mut reports = Vec::new();
        for phase in phases {
            (sim.workers, sim.slowness) = (phase.workers, phase.slowness);
            let mut report = Report::default();
            sim.start_work();
            while report.limits.len() < phase.round_trips {
                if let Demand::Closed(clients) = demand {
                    while sim.in_flight() < sim.limit.now().min(clients) {
                        sim.enqueue();
                    }
                }
                sim.step(demand, &mut report);
            }
            reports.push(report);
        }
        reports
    }

    fn step(&mut self, demand: Demand, report: &mut Report) {
        let Reverse((now, _, event)) = self.events.pop().unwrap();
        self.now = now;
        match event {
            Event::Tick => {
                let probing = matches!(&self.limit, Limit::Adaptive(adaptive) if adaptive.probing());
                report.limits.push((!probing).then(|| self.limit.now()));
                self.schedule(1.0, Event::Tick);
            }
            Event::Arrive => {
                if self.in_flight() < self.limit.now() {
                    self.enqueue();
                }
                let Demand::Open(rate) = demand else { return };
                let gap = self.exponential() / rate;
                self.schedule(gap, Event::Arrive);
            }
            Event::Done { started, in_flight } => {
                self.busy -= 1;
                self.start_work();
                let took = now - started;
                report.responses += 1.0;
                report.latency += took as f64 / ROUND_TRIP_US as f64;
                if let Limit::Adaptive(adaptive) = &mut self.limit {
                    adaptive.sample(now, took, in_flight, SampleOutcome::Success, 0);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;

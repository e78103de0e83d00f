//! The algorithms against a simulated server: so many workers, a FIFO queue before them, service times that vary, and
//! more demand than it can serve. Discrete events, a fake clock, a seeded generator: every run is the same.
//!
//! A round trip is the mean service time. The best limit (the knee) of a server is measured, not supposed: the
//! smallest fixed limit with 98 % of the throughput of the best fixed limit.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::{Adaptive, Aimd, Bounds, Gradient2, Kind, Outcome, Vegas};

/// The mean service time, microseconds.
const ROUND_TRIP_US: u64 = 10_000;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Service {
    /// Half to one and a half of the mean: a coefficient of variation of 0.29.
    Uniform,
    /// A coefficient of variation of 1.
    Exponential,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Demand {
    /// So many clients, each with a request in flight or waiting for the limiter.
    Closed(u32),
    /// Poisson, so many a round trip; refused at the limit.
    Open(f64),
}

/// What the server is for some time.
#[derive(Clone, Copy)]
struct Phase {
    workers: usize,
    /// The mean service time, as a multiple of [`ROUND_TRIP_US`].
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

/// What happened in one phase.
#[derive(Default)]
struct Report {
    answers: f64,
    /// Sum of round trips, in [`ROUND_TRIP_US`].
    latency: f64,
    /// The limit at the end of each round trip; None while probing.
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
    /// SplitMix64, as a number in [0, 1).
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

    fn at(&mut self, round_trips_from_now: f64, event: Event) {
        self.sequence += 1;
        let time = self.now + (round_trips_from_now * ROUND_TRIP_US as f64) as u64;
        self.events.push(Reverse((time, self.sequence, event)));
    }

    fn in_flight(&self) -> u32 {
        (self.busy + self.queue.len()) as u32
    }

    fn request(&mut self) {
        self.queue.push_back((self.now, self.in_flight() + 1));
        self.work();
    }

    fn work(&mut self) {
        while self.busy < self.workers
            && let Some((started, in_flight)) = self.queue.pop_front()
        {
            self.busy += 1;
            let time = match self.service {
                Service::Uniform => 0.5 + self.random(),
                Service::Exponential => self.exponential(),
            };
            self.at(time * self.slowness, Event::Done { started, in_flight });
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
        sim.at(1.0, Event::Tick);
        if let Demand::Open(_) = demand {
            sim.at(0.0, Event::Arrive);
        }
        let mut reports = Vec::new();
        for phase in phases {
            (sim.workers, sim.slowness) = (phase.workers, phase.slowness);
            let mut report = Report::default();
            sim.work();
            while report.limits.len() < phase.round_trips {
                if let Demand::Closed(clients) = demand {
                    while sim.in_flight() < sim.limit.now().min(clients) {
                        sim.request();
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
                self.at(1.0, Event::Tick);
            }
            Event::Arrive => {
                if self.in_flight() < self.limit.now() {
                    self.request();
                }
                let Demand::Open(rate) = demand else { return };
                let gap = self.exponential() / rate;
                self.at(gap, Event::Arrive);
            }
            Event::Done { started, in_flight } => {
                self.busy -= 1;
                self.work();
                let took = now - started;
                report.answers += 1.0;
                report.latency += took as f64 / ROUND_TRIP_US as f64;
                if let Limit::Adaptive(adaptive) = &mut self.limit {
                    adaptive.sample(now, took, in_flight, Outcome::Success);
                }
            }
        }
    }
}

fn kinds() -> [Kind; 3] {
    [Kind::Aimd(Aimd::default()), Kind::Vegas(Vegas::default()), Kind::Gradient2(Gradient2::default())]
}

fn adaptive(kind: Kind, initial: u32) -> Limit {
    Limit::Adaptive(Box::new(Adaptive::new(kind, Bounds { initial, ..Bounds::default() }).unwrap()))
}

/// Throughput times 1 / latency (Kleinrock's power, 1979), over all phases together.
fn power(reports: &[Report]) -> f64 {
    let sum = |of: fn(&Report) -> f64| reports.iter().map(of).sum::<f64>();
    let (answers, latency) = (sum(|report| report.answers), sum(|report| report.latency));
    let round_trips: usize = reports.iter().map(|report| report.limits.len()).sum();
    answers / round_trips as f64 / (latency / answers)
}

/// The smallest fixed limit with 98 % of the throughput of the best.
fn knee(workers: usize, demand: Demand) -> u32 {
    let answers: Vec<f64> = (1..=workers as u32 * 2)
        .map(|limit| run(Limit::Fixed(limit), &[phase(workers, 500)], demand, 1)[0].answers)
        .collect();
    let best = answers.iter().copied().fold(0.0, f64::max);
    answers.iter().position(|&answers| answers >= best * 0.98).unwrap() as u32 + 1
}

fn run(limit: Limit, phases: &[Phase], demand: Demand, seed: u64) -> Vec<Report> {
    Simulation::run(limit, phases, demand, Service::Uniform, seed)
}

/// Within 20 % of the knee.
fn is_near(limit: u32, knee: u32) -> bool {
    limit.abs_diff(knee) * 5 <= knee
}

/// The share of round trips, probes aside, at whose end the limit was near the knee.
fn share_near(limits: &[Option<u32>], knee: u32) -> f64 {
    let near = limits.iter().flatten().filter(|&&limit| is_near(limit, knee)).count();
    near as f64 / limits.iter().flatten().count() as f64
}

const DEMANDS: [Demand; 2] = [Demand::Closed(1000), Demand::Open(80.0)];

fn halved_and_doubled() -> [Phase; 3] {
    [phase(40, 300), phase(20, 300), phase(40, 300)]
}

/// A probe or an unlucky window may fall into the 50 round trips, so one run in ten may take longer; none may take
/// twice as long, and near the knee the limit must stay.
#[test]
fn adaptive_is_near_the_best_limit_within_50_round_trips_after_capacity_halves_and_doubles() {
    for demand in DEMANDS {
        let knees = halved_and_doubled().map(|phase| knee(phase.workers, demand));
        for kind in kinds() {
            let mut reached = Vec::new();
            let mut stayed = Vec::new();
            for seed in 1..=10 {
                let reports = run(adaptive(kind, 20), &halved_and_doubled(), demand, seed);
                for (report, knee) in reports.iter().zip(knees).skip(1) {
                    let near = |limit: &Option<u32>| limit.is_some_and(|limit| is_near(limit, knee));
                    reached.push(report.limits.iter().position(near).unwrap_or(usize::MAX));
                    stayed.push(share_near(&report.limits[50..], knee));
                }
            }
            reached.sort_unstable();
            assert!(reached[17] <= 50 && reached[19] <= 100, "{demand:?} {kind:?}: {reached:?}");
            let stayed = stayed.iter().sum::<f64>() / stayed.len() as f64;
            assert!(stayed >= 0.9, "{demand:?} {kind:?}: near the knee for {stayed} of the time");
            println!("{demand:?} {kind:?}: near after {reached:?}, then for {stayed:.3} of the time");
        }
    }
}

/// The learning from a limit of 20 and both transitions count.
#[test]
fn adaptive_has_more_power_than_any_fixed_limit_over_a_server_that_changes() {
    for demand in DEMANDS {
        for seed in [1, 2] {
            let of = |limit| power(&run(limit, &halved_and_doubled(), demand, seed));
            let (best, fixed) = (1..=100)
                .map(|fixed| (of(Limit::Fixed(fixed)), fixed))
                .max_by(|a, b| a.0.total_cmp(&b.0))
                .unwrap();
            for kind in kinds() {
                let power = of(adaptive(kind, 20));
                assert!(power > best, "{demand:?} {kind:?}: {power}, but {best} at a fixed limit of {fixed}");
                println!("{demand:?} {kind:?}: {power:.1}, fixed {fixed}: {best:.1}");
            }
        }
    }
}

#[test]
fn adaptive_does_not_creep_under_constant_overload() {
    for kind in kinds() {
        let reports = run(adaptive(kind, 40), &[phase(40, 3000)], Demand::Closed(1000), 1);
        let near = share_near(&reports[0].limits[100..], 40);
        assert!(near >= 0.9, "{kind:?}: near the knee for {near} of the time");
    }
}

#[test]
fn adaptive_gradient2_creeps_without_probes() {
    let kind = Kind::Gradient2(Gradient2 { probe_every: 0, ..Gradient2::default() });
    let reports = run(adaptive(kind, 40), &[phase(40, 3000)], Demand::Closed(1000), 1);
    assert!(share_near(&reports[0].limits[2500..], 40) < 0.1);
}

#[test]
fn adaptive_learns_that_answers_take_longer_without_a_queue() {
    let slow = Phase { workers: 40, slowness: 2.0, round_trips: 600 };
    for kind in kinds() {
        let reports = run(adaptive(kind, 40), &[phase(40, 300), slow], Demand::Closed(1000), 1);
        let near = share_near(&reports[1].limits[300..], 40);
        assert!(near >= 0.8, "{kind:?}: near the knee for {near} of the time");
    }
}

#[test]
fn adaptive_comes_down_from_an_initial_limit_far_too_high() {
    for kind in kinds() {
        let reports = run(adaptive(kind, 1000), &[phase(20, 900)], Demand::Closed(2000), 1);
        let near = share_near(&reports[0].limits[600..], 20);
        assert!(near >= 0.8, "{kind:?}: near the knee for {near} of the time");
    }
}

/// Where round trips vary by their mean, slower and rougher, but no collapse and no flight.
#[test]
fn adaptive_bears_service_times_that_vary_by_their_mean() {
    for kind in kinds() {
        let means: Vec<f64> = (1..=5)
            .map(|seed| {
                let reports = Simulation::run(
                    adaptive(kind, 40),
                    &[phase(40, 1000)],
                    Demand::Closed(1000),
                    Service::Exponential,
                    seed,
                );
                let limits: Vec<f64> =
                    reports[0].limits[200..].iter().flatten().map(|&l| f64::from(l)).collect();
                limits.iter().sum::<f64>() / limits.len() as f64
            })
            .collect();
        assert!(means.iter().all(|mean| (30.0..=52.0).contains(mean)), "{kind:?}: {means:?}");
    }
}

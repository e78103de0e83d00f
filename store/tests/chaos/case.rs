//! One case: a load, and what was done to the store meanwhile.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sluice_store::failure::StoreFault;

use crate::load::Load;
use crate::support::until;

/// The latency budget that a store has unless told otherwise.
pub(crate) const BUDGET: Duration = Duration::from_millis(50);

/// A time in which nothing could be admitted.
pub(crate) struct Fault {
    pub(crate) from: Instant,
    pub(crate) to: Instant,
}

pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) budget: Duration,
    pub(crate) load: Load,
    pub(crate) clock: Clock,
    broke: Option<Instant>,
    pub(crate) faults: Vec<Fault>,
    pub(crate) recovered: Vec<Duration>,
    /// When Redis lost its data: known to be there before, and to be gone after.
    pub(crate) forgot: Vec<(Instant, Instant)>,
    /// When counters began anew, for that or another reason.
    pub(crate) anew: Vec<(Instant, Instant)>,
}

impl Case {
    /// Starts the load, and waits until it is served.
    pub(crate) fn start(name: &'static str, urls: [String; 2], budget: Duration) -> Self {
        let (clock, now) = (Clock::now(), Instant::now());
        let load = Load::start(urls, budget);
        let case = Self {
            name,
            budget,
            load,
            clock,
            broke: None,
            faults: vec![],
            recovered: vec![],
            forgot: vec![],
            anew: vec![],
        };
        case.served(now);
        case
    }

    /// Waits until each store answers a check that began after `since`.
    pub(crate) fn served(&self, since: Instant) {
        for store in 0..2 {
            until(&format!("{}: store {store} answers", self.name), || self.load.answers(store, since));
        }
    }

    /// Lets the load go on for some time.
    pub(crate) fn goes_on(&self, time: Duration) {
        std::thread::sleep(time);
    }

    /// A fault has begun.
    pub(crate) fn broke(&mut self) {
        self.load.forget_faults();
        self.broke = Some(Instant::now());
    }

    /// Waits until both stores name it.
    pub(crate) fn is_named(&self, fault: StoreFault) {
        for store in 0..2 {
            until(&format!("{}: store {store} names {fault:?}", self.name), || {
                self.load.fails_with(store, fault)
            });
        }
    }

    /// The fault is about to end, or has ended already: until now nothing could be admitted.
    pub(crate) fn ends(&mut self) -> Instant {
        let now = Instant::now();
        let from = self.broke.take().unwrap();
        self.faults.push(Fault { from, to: now });
        now
    }

    /// Waits until both stores serve again, by themselves.
    pub(crate) fn recovers(&mut self, since: Instant) {
        self.served(since);
        self.recovered.push(since.elapsed());
    }

    /// Waits until every limit admits again.
    pub(crate) fn admits(&mut self, since: Instant) {
        until(&format!("{}: every limit admits again", self.name), || self.load.admits(since));
        self.recovered.push(since.elapsed());
    }

    /// Redis lost its data between this instant and now.
    pub(crate) fn forgot(&mut self, from: Instant) {
        self.forgot.push((from, Instant::now()));
        self.leapt(from);
    }

    /// Between this instant and now the server's clock was put forward: windows that had begun are over for it.
    pub(crate) fn leapt(&mut self, from: Instant) {
        self.anew.push((from, Instant::now()));
    }

    /// How often counters began anew within a time.
    pub(crate) fn anew_within(&self, from: Instant, to: Instant) -> u64 {
        self.anew.iter().filter(|anew| anew.0 <= to && anew.1 >= from).count() as u64
    }

    /// Asserts that each store gave up calls, so that it shows if they are counted all the same.
    pub(crate) fn calls_timed_out(&self) {
        for store in &self.load.stores {
            let metrics = store.metrics();
            assert!(metrics.timeouts >= 3, "{metrics:?}");
        }
    }
}

/// What the machine's clock shows at an instant; the server's is the same.
pub(crate) struct Clock {
    at: Instant,
    since_epoch: Duration,
}

impl Clock {
    fn now() -> Self {
        Self { at: Instant::now(), since_epoch: SystemTime::now().duration_since(UNIX_EPOCH).unwrap() }
    }

    pub(crate) fn millis(&self, at: Instant) -> u64 {
        (self.since_epoch + at.duration_since(self.at)).as_millis() as u64
    }

    /// Whether it was not set since.
    pub(crate) fn still(&self) -> bool {
        let now = Self::now();
        now.since_epoch.abs_diff(self.since_epoch + (now.at - self.at)) < Duration::from_millis(1)
    }
}

//! A case: a load, and the faults during it.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sluice_store::failure::StoreFault;

use super::load::Load;
use crate::support::until;

/// The default latency budget.
pub(crate) const BUDGET: Duration = Duration::from_millis(50);

/// A time during which no check could be admitted.
pub(crate) struct Fault {
    pub(crate) from: Instant,
    pub(crate) to: Instant,
}

/// A load, and the faults during it.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) budget: Duration,
    pub(crate) load: Load,
    pub(crate) clock: Clock,
    fault_began: Option<Instant>,
    pub(crate) faults: Vec<Fault>,
    /// Times from the end of each fault to the recovery.
    pub(crate) recovered: Vec<Duration>,
    /// Intervals in which Redis lost its data.
    pub(crate) data_lost: Vec<(Instant, Instant)>,
    /// Intervals in which counters restarted, for this or another reason.
    pub(crate) restarted: Vec<(Instant, Instant)>,
}

impl Case {
    /// Starts the load and waits until both stores serve it.
    pub(crate) fn start(name: &'static str, urls: [String; 2], budget: Duration) -> Self {
        let (clock, now) = (Clock::now(), Instant::now());
        let load = Load::start(urls, budget);
        let case = Self {
            name,
            budget,
            load,
            clock,
            fault_began: None,
            faults: vec![],
            recovered: vec![],
            data_lost: vec![],
            restarted: vec![],
        };
        case.wait_until_served(now);
        case
    }

    /// Waits until each store completes a check that started after `since`.
    pub(crate) fn wait_until_served(&self, since: Instant) {
        for store in 0..2 {
            until(&format!("{}: store {store} completes a check", self.name), || {
                self.load.has_completed(store, since)
            });
        }
    }

    /// Lets the load run for some time.
    pub(crate) fn run_for(&self, time: Duration) {
        std::thread::sleep(time);
    }

    /// Records the start of a fault.
    pub(crate) fn fault_begins(&mut self) {
        self.load.forget_faults();
        self.fault_began = Some(Instant::now());
    }

    /// Waits until both stores report the fault.
    pub(crate) fn wait_until_reported(&self, fault: StoreFault) {
        for store in 0..2 {
            until(&format!("{}: store {store} reports {fault:?}", self.name), || {
                self.load.fails_with(store, fault)
            });
        }
    }

    /// Records the end of a fault, before or after it is lifted. No check could be admitted until now.
    pub(crate) fn fault_ends(&mut self) -> Instant {
        let now = Instant::now();
        let from = self.fault_began.take().unwrap();
        self.faults.push(Fault { from, to: now });
        now
    }

    /// Waits until both stores serve again.
    pub(crate) fn wait_until_recovered(&mut self, since: Instant) {
        self.wait_until_served(since);
        self.recovered.push(since.elapsed());
    }

    /// Waits until every limit admits again.
    pub(crate) fn wait_until_admitting(&mut self, since: Instant) {
        until(&format!("{}: every limit admits again", self.name), || self.load.has_admitted(since));
        self.recovered.push(since.elapsed());
    }

    /// Records that Redis lost its data between this instant and now.
    pub(crate) fn lost_data(&mut self, from: Instant) {
        self.data_lost.push((from, Instant::now()));
        self.skipped_windows(from);
    }

    /// Records that the server's clock was set forward between this instant and now, which ended all windows.
    pub(crate) fn skipped_windows(&mut self, from: Instant) {
        self.restarted.push((from, Instant::now()));
    }

    /// Returns how often counters restarted during a time.
    pub(crate) fn restarts_within(&self, from: Instant, to: Instant) -> u64 {
        self.restarted.iter().filter(|at| at.0 <= to && at.1 >= from).count() as u64
    }

    /// Asserts that calls of each store timed out, so that the case detects if they are counted nevertheless.
    pub(crate) fn assert_calls_timed_out(&self) {
        for store in &self.load.stores {
            let metrics = store.metrics();
            assert!(metrics.timeouts >= 3, "{metrics:?}");
        }
    }
}

/// The machine's clock, which is also the server's.
pub(crate) struct Clock {
    at: Instant,
    since_epoch: Duration,
}

impl Clock {
    fn now() -> Self {
        Self { at: Instant::now(), since_epoch: SystemTime::now().duration_since(UNIX_EPOCH).unwrap() }
    }

    /// Returns the time at an instant, in milliseconds.
    pub(crate) fn millis(&self, at: Instant) -> u64 {
        (self.since_epoch + at.duration_since(self.at)).as_millis() as u64
    }

    /// Reports whether the clock was not set since.
    pub(crate) fn is_undisturbed(&self) -> bool {
        let now = Self::now();
        now.since_epoch.abs_diff(self.since_epoch + (now.at - self.at)) < Duration::from_millis(1)
    }
}

//! The verdict on a case: the assertions on the results of its callers, and the printed table.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use redis::Connection;
use sluice_store::StoreError;
use sluice_store::failure::StoreFault;

use super::case::Case;
use super::load::{CheckResult, FIXED, Log, Outcome, PERIODS, REQUESTS, SLIDING, UNLIMITED};

/// Maximum excess over the budget, beside the delays of this machine that were measured. A check that waited for
/// the end of a fault would exceed it: faults last for 300 ms and more.
const MARGIN: Duration = Duration::from_millis(200);

/// The timed-out checks that the server may have counted, depending on the fault.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Timeouts {
    /// Those in flight at the start or after the end of a fault, but none during the fault.
    CountedAtEdges,
    /// All of them: the server ran their calls, and the replies were lost.
    MayBeCounted,
}

impl Case {
    /// Ends the load, prints the table and asserts the properties. `allowed` lists the faults that a store
    /// may report, in addition to being slow, which may be the machine's fault.
    pub(crate) fn judge(mut self, redis: &mut Connection, allowed: &[StoreFault], timeouts: Timeouts) {
        self.wait_until_served(Instant::now());
        let log = self.load.end();
        let counted = [SLIDING, FIXED, UNLIMITED].map(|limit| self.load.counted(redis, limit));
        let admitted = [SLIDING, FIXED, UNLIMITED].map(|limit| {
            let mut results: Vec<_> = log
                .results
                .iter()
                .filter(|result| result.limit == limit && result.outcome == Outcome::Admitted)
                .collect();
            results.sort_by_key(|result| result.started);
            results
        });
        let trailing = [SLIDING, FIXED].map(|limit| self.trailing(&admitted[limit], limit));
        self.print(&log, &admitted, counted, &trailing);

        let excess = self.excess(&log);
        assert!(excess <= MARGIN, "a check took {excess:?} longer than its budget");
        for (count, bound) in trailing.iter().flatten() {
            assert!(count <= bound, "{count} admitted in a period with a bound of {bound}");
        }
        self.assert_aligned(&admitted[FIXED]);
        for fault in &self.faults {
            let within = |result: &&CheckResult| result.started >= fault.from && result.ended <= fault.to;
            let result = admitted.iter().flatten().copied().find(within);
            assert!(result.is_none(), "admitted during a fault: {result:?}");
        }
        for limit in [SLIDING, FIXED, UNLIMITED] {
            self.assert_counted(&log, limit, counted[limit], timeouts);
        }
        for result in &log.results {
            if let Outcome::Refused(fault) | Outcome::Cut(StoreError::Unavailable(fault)) = result.outcome {
                assert!(fault == StoreFault::Slow || allowed.contains(&fault), "{fault:?} was reported");
            }
        }
        // The assertions above are vacuous without enough results.
        assert!(
            admitted.iter().all(|admitted| admitted.len() as u64 >= REQUESTS),
            "too few checks were admitted"
        );
        assert!(log.results.iter().any(|result| result.outcome == Outcome::Denied), "no check was denied");
        for store in 0..2 {
            let admitted =
                |result: &CheckResult| result.store == store && result.outcome == Outcome::Admitted;
            assert!(log.results.iter().any(admitted));
        }
        let cut = log.results.iter().any(|result| matches!(result.outcome, Outcome::Cut(_)));
        assert!(cut || self.faults.is_empty(), "no check was affected by the fault");
    }

    /// Prints the rows of this case.
    fn print(
        &self,
        log: &Log,
        admitted: &[Vec<&CheckResult>; 3],
        counted: [u64; 3],
        trailing: &[Vec<(u64, u64)>; 2],
    ) {
        let longest = log.results.iter().map(duration).max().unwrap_or_default();
        let late = log.delays.iter().map(|(due, now)| *now - *due).max().unwrap_or_default();
        let recovered = self.recovered.iter().max();
        let recovered = recovered.map_or("-".into(), |time| format!("{} ms", time.as_millis()));
        let mut table = String::from(
            "| case | limit | longest wait (budget, lateness of the machine) | admitted | counted | cut | worst \
             trailing period | bound | recovered after |\n|---|---|---|---|---|---|---|---|---|\n",
        );
        for (limit, name) in ["sliding", "fixed", "none"].into_iter().enumerate() {
            let period = PERIODS.get(limit);
            let label = period.map_or(name.into(), |period| format!("{REQUESTS} in {period} ms, {name}"));
            let worst = trailing.get(limit).and_then(|periods| periods.iter().max());
            let worst = worst.map_or("- | -".into(), |(count, bound)| format!("{count} | {bound}"));
            let cut =
                |result: &&CheckResult| result.limit == limit && matches!(result.outcome, Outcome::Cut(_));
            table += &format!(
                "| {} | {label} | {} ({}, {}) ms | {} | {} | {} | {worst} | {recovered} |\n",
                self.name,
                millis(longest),
                self.budget.as_millis(),
                millis(late),
                admitted[limit].len(),
                counted[limit],
                log.results.iter().filter(cut).count(),
            );
        }
        println!("{table}");
    }

    /// Returns the maximum excess of a check over its budget, minus the delays of the machine during the
    /// check.
    fn excess(&self, log: &Log) -> Duration {
        let excess = log.results.iter().filter(|result| duration(result) > self.budget).map(|result| {
            let during =
                log.delays.iter().filter(|(due, now)| *due <= result.ended && *now >= result.started);
            let delay = during.map(|(due, now)| *now - *due).max().unwrap_or_default();
            (duration(result) - self.budget).saturating_sub(delay)
        });
        excess.max().unwrap_or_default()
    }

    /// Returns for each check the number of checks admitted in the period that starts with it, and its bound.
    /// Only checks that certainly fall into the period are counted: they start and end within a period that
    /// is a millisecond shorter at each end, because the server counts in whole milliseconds.
    ///
    /// A period overlaps two windows. Both may be full if the window is fixed; a sliding one counts a part of
    /// the first window in the second. Each restart of the counters adds one window.
    fn trailing(&self, admitted: &[&CheckResult], limit: usize) -> Vec<(u64, u64)> {
        let period = Duration::from_millis(PERIODS[limit] - 2);
        let within = |at: usize| {
            let (from, to) = (admitted[at].started, admitted[at].started + period);
            let started = admitted[at..].iter().take_while(|result| result.started <= to);
            let count = started.filter(|result| result.ended <= to).count() as u64;
            let bound = (2 + self.restarts_within(from, to)) * REQUESTS - u64::from(limit == SLIDING);
            (count, bound)
        };
        (0..admitted.len()).map(within).collect()
    }

    /// Asserts that no fixed window admits more than the limit.
    fn assert_aligned(&self, admitted: &[&CheckResult]) {
        if !self.clock.is_undisturbed() {
            return println!("{}: the machine's clock was set, so windows cannot be compared", self.name);
        }
        let window = |at: Instant| self.clock.millis(at) / PERIODS[FIXED];
        let mut windows = BTreeMap::<u64, u64>::new();
        for result in admitted {
            // The two clocks are never read at exactly the same time.
            let tolerance = Duration::from_millis(3);
            if window(result.started - tolerance) == window(result.ended + tolerance) {
                *windows.entry(window(result.started)).or_default() += 1;
            }
        }
        for (at, count) in windows {
            let restarts = self
                .restarted
                .iter()
                .filter(|restart| (window(restart.0)..=window(restart.1)).contains(&at))
                .count();
            assert!(
                count <= (1 + restarts as u64) * REQUESTS,
                "{count} admitted in a window with {restarts} restarts"
            );
        }
    }

    /// Asserts that every admitted check is counted, and otherwise at most the timed-out checks that the case
    /// allows.
    fn assert_counted(&self, log: &Log, limit: usize, counted: u64, timeouts: Timeouts) {
        let (from, to) = self.data_lost.last().copied().unzip();
        let of_limit = || log.results.iter().filter(|result| result.limit == limit);
        let admitted = || of_limit().filter(|result| result.outcome == Outcome::Admitted);
        let least = admitted().filter(|result| to.is_none_or(|to| result.started >= to)).count() as u64;
        let since = |result: &&CheckResult| from.is_none_or(|from| result.ended >= from);
        let may_count = |result: &&CheckResult| match result.outcome {
            Outcome::Cut(_) => {
                timeouts == Timeouts::MayBeCounted
                    || !self
                        .faults
                        .iter()
                        .any(|fault| result.started >= fault.from && result.ended <= fault.to)
            }
            _ => false,
        };
        let most = admitted().filter(since).count() + of_limit().filter(since).filter(may_count).count();
        let scope = &self.load.limits[limit].scope;
        assert!(counted >= least, "{scope}: {counted} counted, but {least} admitted");
        assert!(
            counted <= most as u64,
            "{scope}: {counted} counted, but at most {most} can have been charged"
        );
    }
}

fn duration(result: &CheckResult) -> Duration {
    result.ended - result.started
}

fn millis(time: Duration) -> String {
    format!("{:.1}", time.as_secs_f64() * 1000.0)
}

//! The verdict on a case: what its callers saw, against what may be.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use redis::Connection;
use sluice_store::StoreError;
use sluice_store::failure::StoreFault;

use crate::case::Case;
use crate::load::{FIXED, Log, Outcome, PERIODS, REQUESTS, SLIDING, Seen, UNLIMITED};

/// How much longer than the budget a check may take, after what this machine was late itself.
const MARGIN: Duration = Duration::from_millis(10);

/// Which checks that were given up may have been counted, by what was done.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lost {
    /// Those that were in flight when a fault began, or after it ended: none of a fault's own.
    AtTheEdges,
    /// Any: the server did its part, and its answer got lost.
    Replies,
}

impl Case {
    /// Ends the load, prints the table and judges. `allowed` are the faults that may have been named; besides them
    /// a store may be slow, as the machine may.
    pub(crate) fn judge(mut self, redis: &mut Connection, allowed: &[StoreFault], lost: Lost) {
        self.served(Instant::now());
        let log = self.load.end();
        let counted = [SLIDING, FIXED, UNLIMITED].map(|limit| self.load.counted(redis, limit));
        let admitted = [SLIDING, FIXED, UNLIMITED].map(|limit| {
            let mut seen: Vec<_> = log
                .seen
                .iter()
                .filter(|seen| seen.limit == limit && seen.outcome == Outcome::Admitted)
                .collect();
            seen.sort_by_key(|seen| seen.begun);
            seen
        });
        let trailing = [SLIDING, FIXED].map(|limit| self.trailing(&admitted[limit], limit));
        self.print(&log, &admitted, counted, &trailing);

        let excess = self.excess(&log);
        assert!(excess <= MARGIN, "a check waited {excess:?} longer than its budget");
        for (count, bound) in trailing.iter().flatten() {
            assert!(count <= bound, "{count} in a period, where {bound} is the most");
        }
        self.judge_aligned(&admitted[FIXED]);
        for fault in &self.faults {
            let within = |seen: &&Seen| seen.begun >= fault.from && seen.ended <= fault.to;
            let seen = admitted.iter().flatten().copied().find(within);
            assert!(seen.is_none(), "admitted while nothing could be: {seen:?}");
        }
        for limit in [SLIDING, FIXED, UNLIMITED] {
            self.judge_counted(&log, limit, counted[limit], lost);
        }
        for seen in &log.seen {
            if let Outcome::Refused(fault) | Outcome::Cut(StoreError::Unavailable(fault)) = seen.outcome {
                assert!(fault == StoreFault::Slow || allowed.contains(&fault), "{fault:?} was named");
            }
        }
        // None of this is worth anything if nothing happened.
        assert!(admitted.iter().all(|admitted| admitted.len() as u64 >= REQUESTS), "too little was admitted");
        assert!(log.seen.iter().any(|seen| seen.outcome == Outcome::Denied), "the limits did not limit");
        for store in 0..2 {
            assert!(log.seen.iter().any(|seen| seen.store == store && seen.outcome == Outcome::Admitted));
        }
        let cut = log.seen.iter().any(|seen| matches!(seen.outcome, Outcome::Cut(_)));
        assert!(cut || self.faults.is_empty(), "no check met the fault");
    }

    /// The rows of this case. Their format is used elsewhere.
    fn print(
        &self,
        log: &Log,
        admitted: &[Vec<&Seen>; 3],
        counted: [u64; 3],
        trailing: &[Vec<(u64, u64)>; 2],
    ) {
        let waited = log.seen.iter().map(took).max().unwrap_or_default();
        let late = log.late.iter().map(|(due, now)| *now - *due).max().unwrap_or_default();
        let recovered = self.recovered.iter().max();
        let recovered = recovered.map_or("-".into(), |time| format!("{} ms", time.as_millis()));
        let mut table = String::from(
            "| case | limit | longest wait (budget, lateness of the machine) | admitted | counted | cut | worst \
             trailing period | bound | recovered after |\n|---|---|---|---|---|---|---|---|---|\n",
        );
        for (limit, name) in ["sliding", "fixed", "none"].into_iter().enumerate() {
            let period = PERIODS.get(limit);
            let of = period.map_or(name.into(), |period| format!("{REQUESTS} in {period} ms, {name}"));
            let worst = trailing.get(limit).and_then(|periods| periods.iter().max());
            let worst = worst.map_or("- | -".into(), |(count, bound)| format!("{count} | {bound}"));
            let cut = |seen: &&Seen| seen.limit == limit && matches!(seen.outcome, Outcome::Cut(_));
            table += &format!(
                "| {} | {of} | {} ({}, {}) ms | {} | {} | {} | {worst} | {recovered} |\n",
                self.name,
                millis(waited),
                self.budget.as_millis(),
                millis(late),
                admitted[limit].len(),
                counted[limit],
                log.seen.iter().filter(cut).count(),
            );
        }
        println!("{table}");
    }

    /// By how much a check took longer than its budget, without what the machine was late meanwhile.
    fn excess(&self, log: &Log) -> Duration {
        let excess = log.seen.iter().filter(|seen| took(seen) > self.budget).map(|seen| {
            let meanwhile = log.late.iter().filter(|(due, now)| *due <= seen.ended && *now >= seen.begun);
            let late = meanwhile.map(|(due, now)| *now - *due).max().unwrap_or_default();
            (took(seen) - self.budget).saturating_sub(late)
        });
        excess.max().unwrap_or_default()
    }

    /// For each check, how many were admitted in the period that begins with it, and the most that may be. Counted
    /// are those that surely fell into it: they began and ended within a period that is shorter by a millisecond at
    /// each end, as the server sees whole ones.
    ///
    /// Two windows meet in any period: of the fixed one both may be full, of the sliding one the second counts the
    /// first by its share. Each time that counters begin anew, one more window.
    fn trailing(&self, admitted: &[&Seen], limit: usize) -> Vec<(u64, u64)> {
        let period = Duration::from_millis(PERIODS[limit] - 2);
        let within = |at: usize| {
            let (from, to) = (admitted[at].begun, admitted[at].begun + period);
            let begun = admitted[at..].iter().take_while(|seen| seen.begun <= to);
            let count = begun.filter(|seen| seen.ended <= to).count() as u64;
            let bound = (2 + self.anew_within(from, to)) * REQUESTS - u64::from(limit == SLIDING);
            (count, bound)
        };
        (0..admitted.len()).map(within).collect()
    }

    /// Of the fixed window never more than the number in a window of the clock.
    fn judge_aligned(&self, admitted: &[&Seen]) {
        if !self.clock.still() {
            return println!("{}: the machine's clock was set meanwhile, windows cannot be told", self.name);
        }
        let window = |at: Instant| self.clock.millis(at) / PERIODS[FIXED];
        let mut windows = BTreeMap::<u64, u64>::new();
        for seen in admitted {
            // Two readings of the clock are never taken at once.
            let surely = Duration::from_millis(3);
            if window(seen.begun - surely) == window(seen.ended + surely) {
                *windows.entry(window(seen.begun)).or_default() += 1;
            }
        }
        for (at, count) in windows {
            let anew =
                self.anew.iter().filter(|anew| (window(anew.0)..=window(anew.1)).contains(&at)).count();
            assert!(
                count <= (1 + anew as u64) * REQUESTS,
                "{count} in a window of the clock, begun anew {anew} times"
            );
        }
    }

    /// What was admitted is counted, and besides it at most what was given up where the case allows it.
    fn judge_counted(&self, log: &Log, limit: usize, counted: u64, lost: Lost) {
        let (from, to) = self.forgot.last().copied().unzip();
        let of = || log.seen.iter().filter(|seen| seen.limit == limit);
        let admitted = || of().filter(|seen| seen.outcome == Outcome::Admitted);
        let least = admitted().filter(|seen| to.is_none_or(|to| seen.begun >= to)).count() as u64;
        let since = |seen: &&Seen| from.is_none_or(|from| seen.ended >= from);
        let may_count = |seen: &&Seen| match seen.outcome {
            Outcome::Cut(_) => {
                lost == Lost::Replies
                    || !self.faults.iter().any(|fault| seen.begun >= fault.from && seen.ended <= fault.to)
            }
            _ => false,
        };
        let most = admitted().filter(since).count() + of().filter(since).filter(may_count).count();
        let scope = &self.load.limits[limit].scope;
        assert!(counted >= least, "{scope}: {counted} counted, but {least} admitted");
        assert!(counted <= most as u64, "{scope}: {counted} counted, at most {most} were obeyed");
    }
}

fn took(seen: &Seen) -> Duration {
    seen.ended - seen.begun
}

fn millis(time: Duration) -> String {
    format!("{:.1}", time.as_secs_f64() * 1000.0)
}

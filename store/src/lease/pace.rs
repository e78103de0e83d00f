//! What the size of a block is made of: how fast this holder uses its quota, and what part of all use is its own. Pure;
//! instants are microseconds of a clock that never goes back.

/// So many requests are what a mean remembers.
const REMEMBERED: f64 = 16.0;

/// Without a request for so many mean gaps, the mean is wrong.
const SILENCE: f64 = 12.0;

/// No shorter a silence means that nobody will ask any more, in microseconds.
const QUIET: f64 = 1_000_000.0;

/// The shortest memory, in microseconds.
const SHORTEST: f64 = 200_000.0;

/// How fast a key is asked for here: an exponential mean.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Pace {
    /// Cost a microsecond.
    mean: f64,
    /// PlannedCounter for since.
    asked: u64,
    since: u64,
    /// The last request.
    last: u64,
    known: bool,
    /// Nobody has asked for much longer than was usual.
    quiet: bool,
}

impl Pace {
    pub(crate) fn new(now: u64) -> Self {
        Self { since: now, last: now, ..Self::default() }
    }

    /// Notes that so much was asked for, admitted or not.
    pub(crate) fn ask(&mut self, now: u64, cost: u64) {
        self.asked = self.asked.saturating_add(cost);
        (self.last, self.quiet) = (now, false);
    }

    /// Whether it looks as if nobody will ask any more: as [`Pace::at`] found last.
    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// The mean at `now`, in cost a microsecond. What is older than some requests fades, and what is older than `memory`
    /// microseconds.
    pub(crate) fn at(&mut self, now: u64, memory: u64) -> f64 {
        let some = if self.known { REMEMBERED / self.mean.max(1e-12) } else { 0.0 };
        let memory = some.min(memory as f64).max(SHORTEST);
        let passed = now.saturating_sub(self.since) as f64;
        // Too short a time says nothing about a rate, but that it is not lower than what was asked for already.
        if passed < memory / 8.0 {
            let so_far = if self.known { memory / 8.0 } else { passed.max(1000.0) };
            return self.mean.max(self.asked as f64 / so_far);
        }
        let weight = if self.known { 1.0 - (-passed / memory).exp() } else { 1.0 };
        self.mean += weight * (self.asked as f64 / passed - self.mean);
        let silent = now.saturating_sub(self.last) as f64;
        if silent > SHORTEST && silent * self.mean > SILENCE {
            self.mean = 1.0 / silent;
            self.quiet |= silent >= QUIET;
        }
        (self.asked, self.since, self.known) = (0, now, true);
        self.mean
    }
}

/// What part of all use of a counter is this holder's: its own growth between two of its calls against the counter's.
/// The inverse is the number of active holders, were they all alike.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    own: f64,
    all: f64,
}

impl Part {
    /// Of so many holders, as long as nothing else is known.
    pub(crate) fn of(holders: u64) -> Self {
        // A little belief: a few calls say more.
        Self { own: 4.0 / holders.max(1) as f64, all: 4.0 }
    }

    /// Notes that the counter grew by `all` while this holder took `own` of it. Observations older than about two
    /// times `number` requests fade.
    pub(crate) fn observe(&mut self, own: u64, all: f64, number: u64) {
        self.own += own as f64;
        self.all += all.max(own as f64);
        if self.all > 2.0 * number as f64 {
            self.own /= 2.0;
            self.all /= 2.0;
        }
    }

    /// In (0, 1].
    pub(crate) fn get(self) -> f64 {
        (self.own / self.all).clamp(1e-6, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pace_finds_a_constant_rate(per_second in 1u64..100_000, memory in 50_000u64..1_000_000) {
            let mut pace = Pace::new(0);
            let (mut asked, mut mean) = (0, 0.0);
            for millis in 1..5_000u64 {
                let due = millis * per_second / 1000;
                if due > asked {
                    pace.ask(millis * 1000, due - asked);
                }
                asked = due;
                mean = pace.at(millis * 1000, memory);
            }
            let truth = per_second as f64 / 1e6;
            // One request more or less in the shortest time that it looks at, and the last few weigh most.
            let grain = 8.0 / memory.max(200_000) as f64 + truth * 0.2;
            prop_assert!((mean - truth).abs() <= grain, "{mean} for {truth}");
        }

        #[test]
        fn a_holder_finds_its_part(
            holders in 1u64..50, prior in 1u64..50, blocks in proptest::collection::vec(1u64..40, 400..600),
        ) {
            let mut part = Part::of(prior);
            for block in blocks {
                part.observe(block, (block * holders) as f64, 2_000);
            }
            let found = 1.0 / part.get();
            prop_assert!((found / holders as f64 - 1.0).abs() < 0.1, "{found} for {holders}");
        }
    }

    #[test]
    fn a_pace_falls_when_nobody_asks() {
        let mut pace = Pace::new(0);
        for n in 1..1000 {
            pace.ask(n * 1000, 1);
            pace.at(n * 1000, 900_000_000);
        }
        assert!(pace.at(1_000_000, 900_000_000) > 0.0005);
        // A thousand a second, and then none for a second.
        assert!(pace.at(2_000_000, 900_000_000) < 0.000_02);
    }
}

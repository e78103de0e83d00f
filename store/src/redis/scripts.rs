//! The scripts that decide batches in Redis, and which of them decides an operation.

use crate::check::Counter;

/// A script. The head of each source describes its arguments and its reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Script {
    /// Decides one plain check. It may leave it undecided.
    Single,
    /// Decides plain checks: one counter with one rate. It may leave a check undecided.
    Plain,
    /// Decides runs of checks of one shape, with several rates or shared counters. It may leave a check
    /// undecided.
    Runs,
    /// Decides all operations.
    General,
}

/// The source of a script, and the parts of which it consists with the names of their files.
type Joined = (&'static str, &'static [(&'static str, &'static str)]);

/// Joins the parts of a script.
macro_rules! joined {
    ($($part:literal)*) => {
        (
            concat!($(include_str!(concat!("script/lua/", $part))),*),
            &[$(($part, include_str!(concat!("script/lua/", $part)))),*],
        )
    };
}

const SINGLE: Joined = joined! { "registry.lua" "single.lua" };
const PLAIN: Joined = joined! { "registry.lua" "plain.lua" };
const RUNS: Joined = joined! { "registry.lua" "runs.lua" };
const GENERAL: Joined = joined! {
    "registry.lua" "head.lua" "codec.lua" "window.lua" "log.lua" "gcra.lua" "warm_up.lua" "concurrency.lua"
    "reservations.lua" "block.lua" "decide.lua" "settle.lua" "reset.lua" "write.lua" "main.lua"
};

impl Script {
    /// All scripts.
    pub const ALL: [Self; 4] = [Self::Single, Self::Plain, Self::Runs, Self::General];

    /// Returns the script that decides a check of these counters in a batch with others: never
    /// [`Self::Single`]. Only the general one decides a settlement, a reset or a taking.
    #[must_use]
    pub fn of(counters: &[Counter]) -> Self {
        let is_plain = |counter: &Counter| {
            counter.cost == 1 && counter.limit.rates.iter().all(|rate| rate.script_arguments(0, 1).is_none())
        };
        let several_rates = counters.iter().filter(|counter| counter.limit.rates.len() > 1).count();
        match counters {
            _ if several_rates > 1 || !counters.iter().all(is_plain) => Self::General,
            [] => Self::General,
            [_] if several_rates == 0 => Self::Plain,
            _ => Self::Runs,
        }
    }

    /// Returns the source.
    #[must_use]
    pub fn source(self) -> &'static str {
        self.joined().0
    }

    /// Returns the parts of the source in their order, each with the name of its file.
    #[must_use]
    pub fn parts(self) -> &'static [(&'static str, &'static str)] {
        self.joined().1
    }

    fn joined(self) -> Joined {
        match self {
            Self::Single => SINGLE,
            Self::Plain => PLAIN,
            Self::Runs => RUNS,
            Self::General => GENERAL,
        }
    }
}

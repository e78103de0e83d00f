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

/// Joins the parts of the general script, and keeps their names.
macro_rules! general {
    ($($part:literal)*) => {
        const GENERAL: &str = concat!($(include_str!(concat!("script/lua/", $part))),*);
        const GENERAL_PARTS: &[(&str, &str)] = &[$(($part, include_str!(concat!("script/lua/", $part)))),*];
    };
}

general! {
    "head.lua" "codec.lua" "window.lua" "log.lua" "gcra.lua" "warm_up.lua" "concurrency.lua" "decide.lua"
    "settle.lua" "write.lua" "main.lua"
}

impl Script {
    /// All scripts.
    pub const ALL: [Self; 4] = [Self::Single, Self::Plain, Self::Runs, Self::General];

    /// Returns the script that decides a check of these counters in a batch with others: never
    /// [`Self::Single`]. Only the general one decides a settlement.
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
        match self {
            Self::General => GENERAL,
            _ => self.parts()[0].1,
        }
    }

    /// Returns the parts of the source in their order, each with the name of its file.
    #[must_use]
    pub fn parts(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Single => &[("single.lua", include_str!("script/lua/single.lua"))],
            Self::Plain => &[("plain.lua", include_str!("script/lua/plain.lua"))],
            Self::Runs => &[("runs.lua", include_str!("script/lua/runs.lua"))],
            Self::General => GENERAL_PARTS,
        }
    }
}

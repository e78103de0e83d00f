//! Helpers for tests.

mod adversary;
mod random;
mod rates;

pub(crate) use adversary::{most_in_any_period, worst_case, worst_case_in_units};
pub(crate) use random::Random;
pub(crate) use rates::{any_algorithm, any_rate, check, rate, sliding};

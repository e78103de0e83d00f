//! A rate: a number of requests per period, and the algorithm that counts them.
//!
//! - [`algorithm`]: the algorithms with their parameters.
//! - [`definition`]: the rate and its validation.
//! - [`seed`]: the first record of an edited rate, from the records of others.
//! - [`counting`]: roll a record to now, check for room, charge, settle.
//! - [`decide`]: the decision about a check.
//! - [`script_arguments`]: the numbers for the script that repeats the arithmetic in Redis.

mod algorithm;
mod counting;
mod decide;
mod definition;
mod script_arguments;
mod seed;
#[cfg(test)]
mod tests;

pub use algorithm::Algorithm;
pub use definition::Rate;

//! A rate: a number of requests per period, and the algorithm that counts them. Most methods call the
//! algorithm's [`Definition`](crate::algorithm::Definition), which documents each of them for its author.
//!
//! - [`definition`]: the rate and its validation.
//! - [`seed`]: the first record of an edited rate, from the records of others.
//! - [`counting`]: roll a record to now, check for room, charge, settle, decide.
//! - [`properties`]: what else stores and clients depend on: scripts, leases, local quota, descriptions.

mod counting;
mod definition;
mod properties;
mod seed;
#[cfg(test)]
mod tests;

pub use definition::Rate;

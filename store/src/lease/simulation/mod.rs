//! Simulations of many lease holders that share one counter, in virtual time.
//!
//! - [`world`]: the holders, the store, and the calls between them.
//! - [`report`]: what a simulation admitted, and how many calls it made.
//! - [`tests`]: the guarantees that leases give for every load.

mod report;
mod tests;
mod world;

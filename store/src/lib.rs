//! Counters and where they live. A [`Limiter`] checks up to [`MAX_COUNTERS`] counters of one request: all of
//! them are charged, or none.
//!
//! In the order in which a check meets them:
//! - [`limiter`]: the entry point of this crate, in front of everything below; [`plan`]: a limit with the options for
//!   counting it.
//! - [`store`]: what a store does, wherever its counters are.
//! - [`lease`]: quota that a process acquires in advance.
//! - [`memory`]: counters in this process; [`redis`]: counters that many processes share.
//! - [`local`]: local quota, which a process enforces while the store does not answer.
//! - [`check`]: the request, the response, and the reference definition of how one follows from the other.
//! - [`pure`]: what leases and local quota decide without I/O, for those who check it.
//! - `key_usage`: what a response says about new keys.
//! - [`eviction`]: whether a server evicts counters. [`clock`]: the time of the memory store. [`failure`], [`fault_cause`]:
//!   errors, health, and what caused a fault.
//! - [`bounded_table`], [`pending_call`]: a map that evicts idle values; a call that several requests wait
//!   for.
//!
//! This crate depends neither on Kubernetes nor on HTTP. Its input is names of limits, hashes of keys, rates
//! and costs.

mod bounded_table;
pub mod check;
pub mod clock;
mod eviction;
pub mod failure;
mod fault_cause;
mod key_usage;
mod lease;
mod limiter;
mod local;
pub mod memory;
mod pending_call;
mod plan;
pub mod pure;
pub mod redis;
mod store;

pub use check::{
    CheckRequest, CheckResponse, Counter, Grant, KeyHash, LimitSpec, Lookup, MAX_COUNTERS, Settlement,
    Taking, ledger,
};
pub use clock::Clock;
pub use eviction::Eviction;
pub use failure::{StoreError, StoreFault, StoreHealth};
pub use fault_cause::FaultCause;
pub use key_usage::{CounterSet, KeyUsage, KeyUsages};
pub use lease::LeaseMetrics;
pub use limiter::{AnyStore, CheckOutcome, Limiter, LimiterMetrics, LimiterOptions, Reservation, Source};
pub use local::LocalQuotaMetrics;
pub use memory::MemoryStore;
pub use plan::{Consistency, LimitPlan, OnStoreFailure, PlannedCounter, Replica, Replicas};
pub use redis::{RedisOptions, RedisStore};
pub use store::Store;

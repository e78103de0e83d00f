//! The Redis store. Redis has a core of its own; the callers have another.
//!
//! - [`load`]: many callers on one connection, of the store or of MULTI/INCRBY.
//! - [`throughput`]: 256 callers against MULTI/INCRBY; [`limitador`]: against limitador; [`callers`]: plotted
//!   over the number of callers; [`few_callers`]: 1 to 16 against MULTI/INCRBY;
//!   [`new_keys`]: a flood of new keys; [`fcall`]: as functions against scripts.
//! - [`processes`]: many processes with one caller each; [`caller`]: that child process.
//! - [`leases`]: calls to Redis for a leased limit.
//! - [`size`]: bytes a user in Redis; [`longest_call`]: how long a call blocks Redis; [`outage`]: Redis is
//!   killed.

pub(super) mod caller;
pub(super) mod callers;
pub(super) mod fcall;
pub(super) mod few_callers;
pub(super) mod leases;
pub(super) mod limitador;
mod load;
pub(super) mod longest_call;
pub(super) mod new_keys;
pub(super) mod outage;
pub(super) mod processes;
pub(super) mod size;
pub(super) mod throughput;

//! Distribution of policies to sidecars, and their reports. A sidecar opens a session, receives what concerns
//! its pod as server-sent events, and reports what it has applied.
//!
//! - [`publication`]: a valid policy in the form in which it is distributed, and its replicas.
//! - [`stores`]: the stores that sidecars count in. [`clients`]: what the hub knows about single clients.
//! - [`session`]: one session, its reports and their expiry.
//! - [`hub`]: published policies, sessions and reports, in memory.
//! - [`identity`]: verifies the token of a sidecar and finds its pod. `reviews`: how many it has reviewed at once.
//! - [`stream`]: sends the changes to one session, debounced, and ends all when the next leader serves.
//! - [`serve`]: the endpoints of the control port.

pub mod clients;
pub mod hub;
pub mod identity;
pub mod publication;
mod reviews;
pub mod serve;
pub mod session;
pub mod stores;
pub mod stream;

#[cfg(test)]
mod fixtures;

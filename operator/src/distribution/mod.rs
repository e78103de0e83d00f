//! Distribution of policies to sidecars, and their reports. A sidecar opens a session, receives what concerns
//! its pod as server-sent events, and reports what it has applied.
//!
//! - [`publication`]: a valid policy in the form in which it is distributed.
//! - [`stores`]: the stores that sidecars count in.
//! - [`hub`]: published policies, sessions and reports, in memory.
//! - [`replicas`]: the replicas of a policy, and how long the policy is held back until they are known.
//! - [`clients`]: what the hub knows about single clients.
//! - [`session`]: one session, its reports and their expiry. `shared_reports`: equal reports, kept once. `wakeup`: wakes a session.
//! - `token_keys`: verifies tokens by the keys of the API server. `reviews`: how many others it reviews at once.
//! - [`identity`]: reviews the token of a sidecar and finds its pod.
//! - [`stream`]: sends the changes to one session, debounced. `encoded`: encodes equal events once. `reports`: reads its reports.
//! - [`ending`]: ends all sessions when the next leader serves.
//! - [`serve`]: the endpoints of the control port.

pub mod clients;
mod encoded;
pub mod ending;
pub mod hub;
pub mod identity;
pub mod publication;
pub mod replicas;
mod reports;
mod reviews;
pub mod serve;
pub mod session;
mod shared_reports;
pub mod stores;
pub mod stream;
mod token_keys;
mod wakeup;

#[cfg(test)]
mod fixtures;

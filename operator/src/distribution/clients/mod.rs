//! Single clients, as far as the hub knows them.
//!
//! - [`reset`]: a reset of one client's counter.
//! - [`recent_clients`]: the clients that a limit in Shadow would have denied.

pub(super) mod recent_clients;
pub mod reset;

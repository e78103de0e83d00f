//! Administration of a managed store: one user for each namespace, and the function library, on every server. Users are
//! not replicated by Redis, so each server is administered by itself.
//!
//! - [`administrator`]: administers all servers.
//! - [`nodes`]: finds the servers: masters, replicas and sentinels.
//! - [`users`]: the rights of a user.
//! - [`provision`]: brings one server up to date.
//! - [`report`]: the result for one server.

mod administrator;
mod nodes;
mod provision;
mod report;
mod users;

pub use administrator::Administrator;
pub use report::{Problem, Role, ServerReport};
pub use users::ManagedUser;

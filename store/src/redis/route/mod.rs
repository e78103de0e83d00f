//! Routing in a Redis Cluster. A check goes in; it is sent to the master that serves its hash slot, or slot
//! by slot to several.
//!
//! - [`cluster`]: the cluster: finds the server of a key and sends operations to it.
//! - [`multi_slot`]: a check of counters in several hash slots.
//! - [`redirect`]: calls that a server redirects to another one.
//! - [`refresh`]: the task that keeps the map up to date.

mod cluster;
mod multi_slot;
mod redirect;
mod refresh;

pub(crate) use cluster::Cluster;
pub(crate) use multi_slot::check as check_slots;
pub(crate) use refresh::keep_up_to_date;

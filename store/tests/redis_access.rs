//! The rights that the store needs, what a user of a managed store cannot do, and managed stores that fail.

mod bounds;
mod failover;
mod managed;
mod rights;

crate::servers::pass_with_other_servers!();

//! Protocols as models, which a checker explores exhaustively within stated bounds.
//!
//! - [`rules`]: rules, each of which a model can turn off; [`check`]: with all of them a model violates nothing, and without each
//!   of them it does.
//! - [`network`]: messages under way; [`time`]: instants, and clocks that differ in speed.
//! - [`leases`], [`shares`], [`slots`], [`settle`]: protocols that exist. They call the functions that run in production.
//! - [`designs`]: protocols of which nothing is built yet.
//!
//! `docs/exactness.md` says what each of them guarantees, and within which bounds. Nothing of this is a part of a program.

pub mod check;
pub mod designs;
pub mod leases;
pub mod network;
pub mod rules;
pub mod settle;
pub mod shares;
pub mod slots;
pub mod time;

//! The data plane of Sluice: a proxy before one application that admits or rejects each request by the policies in
//! force. It knows nothing of Kubernetes.
//!
//! The way of a request:
//! - [`mod@accept`]: a connection is taken; [`wire`] tells its protocol, [`framing`] watches it for ambiguity,
//!   [`patience`] for a client that takes too long.
//! - [`proxy`]: the way itself, as a table of contents.
//! - [`guard`]: what cannot be served is refused.
//! - [`identify`]: which limits match, and whose request it is.
//! - [`permit`]: what it holds until it has ended: [`places`] of shared limits of requests at a time, permits of
//!   [`adaptive`] ones.
//! - [`decide`]: the store is asked, as [`counting`] says; the decision is recorded in [`record`].
//! - [`turn`]: where a leaky bucket says so, it waits.
//! - [`forward`]: over a connection of the [`pool`], without the headers of the [`hop`]; bodies in [`body`]; [`in_flight`] counts
//!   them.
//! - [`respond`], [`reject`]: what the client is told.
//!
//! The way of a policy:
//! - [`subscribe`]: from the operator; [`last_good`] keeps it for a restart.
//! - [`snapshot`]: made ready and swapped in; [`stores`] holds the store that counts, [`sharing`] who shares what.
//!
//! The process: [`args`], [`logging`], [`cpus`], [`memory`], [`worker`], [`admin`], [`drain`], all of it in [`sidecar`] and [`run`].

mod accept;
mod adaptive;
mod admin;
pub mod args;
mod body;
mod counting;
mod cpus;
mod decide;
mod drain;
mod forward;
mod framing;
mod guard;
mod hop;
mod identify;
mod in_flight;
mod last_good;
pub mod logging;
mod memory;
mod patience;
mod permit;
mod places;
mod pool;
mod proxy;
mod record;
mod reject;
mod respond;
pub mod run;
mod sharing;
mod sidecar;
mod snapshot;
mod store_metrics;
mod stores;
pub mod subscribe;
mod turn;
mod wire;
mod worker;

pub use pool::{NoUpstream, Upstream};
pub use sidecar::{Bound, Options, Route, Sidecar, StartError};
pub use snapshot::Publisher;
pub use stores::{StoreChoice, StoreState};

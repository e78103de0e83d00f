//! The engine decides requests, wherever they come from. A door (a proxy, a gRPC service) reads its protocol into
//! [`RequestAttributes`](sluice_config::RequestAttributes), asks the [`Engine`] once, and writes the [`Answer`]. The engine knows
//! neither Kubernetes nor servers of any kind.
//!
//! A policy passes through these modules, from top to bottom:
//! - [`session`]: receives it from the operator.
//! - `publish`: makes it a part of the snapshot that requests use.
//! - `stores`: the stores in use.
//! - `files`: files that are followed, where there is no operator.
//!
//! And a request through these:
//! - `engine`: the way of one question. [`heads`]: that of a request which somebody else forwards. `question`: that of a question,
//!   which does not pass a request on;
//!   [`descriptors`]: of a gateway's about descriptors; [`checks`]: of an application's. [`simulation`] decides
//!   requests of the past.
//! - `limit`: matches the request to limits, checks their counters and decides.
//! - `answer`: the decision, what the request holds, and what its outcome settles; `denial`: what a denial says.
//! - `metrics`: counters and gauges of decisions. `pages`: questions about clients.
//!
//! [`per_second`] bounds log lines and spans that clients can cause. [`traceparent`] names the trace of a request, and [`trace`] makes
//! spans of it.

#[cfg(test)]
mod allocations;
mod answer;
pub mod checks;
mod denial;
pub mod descriptors;
#[cfg(test)]
mod doors;
mod engine;
mod files;
pub mod heads;
mod limit;
mod metrics;
mod pages;
pub mod per_second;
mod publish;
mod question;
pub mod session;
pub mod simulation;
mod startup_policy;
mod stores;
pub mod trace;
pub mod traceparent;

pub use answer::{Answer, LimitName, Refused, Summary};
pub use denial::format::{GrpcStatus, ResponseFormat, is_grpc};
pub use denial::reveal::Reveal;
pub use engine::{Engine, EngineOptions};
pub use files::FollowedFiles;
pub use limit::correction::LONGEST_END as SETTLE_TIMEOUT;
pub use limit::held::Held;
pub use limit::mark::Marks;
pub use limit::matching::attributes;
pub use limit::rates::Load;
pub use limit::settle::{Charges, NoResponse, UploadMeter};
pub use limit::slots::Slot;
pub use pages::{Page, Validate};
pub use publish::publisher::Publisher;
pub use startup_policy::StartupPolicy;
pub use stores::store_state::StoreState;

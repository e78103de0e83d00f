//! The messages between the operator and a sidecar. Each message carries a version. A receiver ignores fields
//! and events that it does not know.
//!
//! A session is one connection: `GET /v1/stream` changes its protocol. Then the operator sends server-sent events:
//!
//! - [`policies`]: the pod's compiled policies.
//! - [`replicas`]: the number of pods that each policy selects.
//! - [`credentials`]: access to the store.
//! - [`resets`]: clients whose counters are reset.
//!
//! A policy may refer to content by its hash, which the sidecar fetches with `GET /v1/blobs/HASH` unless it has it.
//!
//! An event's `id` covers everything that was published up to it. The sidecar answers with lines of JSON:
//!
//! - [`report`]: which policies it applied, the health of the store, and the results of resets.
//!
//! - [`protocol`]: the version, the paths, the headers and the event names.

pub mod credentials;
pub mod policies;
pub mod protocol;
pub mod replicas;
pub mod report;
pub mod resets;

pub use crate::policy::PolicyUid;
pub use credentials::{Credentials, TokenKeys};
pub use policies::{Policies, PublishedPolicy};
pub use protocol::{
    BLOBS_PATH, CREDENTIALS_EVENT, LIVE_EVENT, MAX_BLOB, POLICIES_EVENT, REFUSED_EVENT, RESETS_EVENT,
    SESSION_HEADER, SESSION_PROTOCOL, STREAM_PATH, VERSION,
};
pub use replicas::{LiveReplicas, Replica};
pub use report::{
    MAX_SHADOW_DENIED, PolicyFindings, PolicyReport, Report, ShadowDenied, StoreFindings, StoreReport,
    UntrustedProxy,
};
pub use resets::{ResetOrder, ResetReport, ResetStep, ResetUid, Resets};

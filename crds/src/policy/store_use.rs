//! Use of the store: when limits call it, and how they decide without it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Location of the counters.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Consistency {
    /// In the store, with one call per request.
    #[default]
    Strict,
    /// In the store, with quota leases for the limits that allow them.
    Leased,
    /// In each pod, which admits its part of the limit without the store.
    Local,
}

/// Decision about a request when the store does not respond in time.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnStoreFailure {
    /// The request passes.
    #[default]
    Allow,
    /// The request is rejected.
    Deny,
    /// The pod decides by its local quota, the limit divided by the number of replicas.
    Share,
}

//! One limit of a policy.

use serde::{Deserialize, Serialize};

use crate::policy::{CompiledRate, KeyPart, Match, Mode, OnMissing};

/// A compiled limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CompiledLimit {
    /// Name of the limit, unique in the policy.
    pub name: String,
    /// Enforced, or only observed.
    pub mode: Mode,
    /// Requests that the limit applies to: those that match at least one entry. If empty, all requests.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub matches: Vec<Match>,
    /// Parts of the key that identifies clients. If empty, all clients share one counter.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub key: Vec<KeyPart>,
    /// Treatment of a request that lacks a part of the key.
    pub on_missing: OnMissing,
    /// Rates, all of which must admit the request. A concurrency limit has one entry with an algorithm of its
    /// own.
    pub rates: Vec<CompiledRate>,
}

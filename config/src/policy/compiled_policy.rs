//! A whole policy.

use serde::{Deserialize, Serialize};

use crate::policy::{ClientAddress, CompiledLimit, Consistency, Mode, OnStoreFailure};

/// A compiled policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CompiledPolicy {
    /// Namespace of the policy object.
    pub namespace: String,
    /// Name of the policy object.
    pub name: String,
    /// Enforced, or only observed.
    pub mode: Mode,
    /// Decision about requests while the store does not respond.
    pub on_store_failure: OnStoreFailure,
    /// Location of the counters; if absent, the store, with one check per request.
    #[serde(default, skip_serializing_if = "Consistency::is_strict")]
    pub consistency: Consistency,
    /// Source of client addresses; if absent, the peer's address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_address: Option<ClientAddress>,
    /// Limits of the policy. A request must pass all that match it.
    pub limits: Vec<CompiledLimit>,
}

impl CompiledPolicy {
    /// Returns the JSON in which the policy is sent. Equal policies give equal bytes.
    #[must_use]
    pub fn to_json(&self) -> String {
        // The policy consists of structs, lists, strings and integers only, which always serialize.
        serde_json::to_string(self).unwrap_or_default()
    }
}

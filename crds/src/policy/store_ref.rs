//! Reference to a store.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Reference to a RateLimitStore of the policy's namespace.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct StoreRef {
    /// Name of the store.
    #[schemars(length(min = 1, max = 253), regex(pattern = "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    pub name: String,
}

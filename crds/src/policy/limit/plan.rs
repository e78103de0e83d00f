//! Plans: what a limit admits of single clients.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::policy::Allowance;

/// Treatment of a client with this plan: exactly one of rates, unlimited and deny.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// Name of the plan, unique among the plans and tiers of the limit. Not deny or unlimited: every limit has plans with
    /// these names.
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Treatment of the requests of clients with the plan.
    #[serde(flatten)]
    pub allowance: Allowance,
}

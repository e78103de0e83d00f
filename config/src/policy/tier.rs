//! Tiers and plans: requests and clients to which other rates apply than the limit's own.

use serde::{Deserialize, Serialize};
use sluice_limiter::Rate;

use crate::matches::Match;

/// A tier: some requests of a limit, and what it admits of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Tier {
    /// Name of the tier, unique in the limit.
    pub name: String,
    /// Requests of the tier: those that match at least one entry; if empty, all. The first tier that matches decides.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub matches: Vec<Match>,
    /// Condition that requests must fulfil too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<String>,
    /// Treatment of these requests.
    pub allowance: Allowance,
}

/// A plan, which overrides give to clients.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Plan {
    /// Name of the plan, unique among the plans and tiers of the limit.
    pub name: String,
    /// Treatment of the requests of clients with this plan.
    pub allowance: Allowance,
}

/// Treatment of the requests of a tier or plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Allowance {
    /// The requests that these rates admit. They count in the same records as the base rates.
    Rates(Vec<Rate>),
    /// Every request. None is counted.
    Unlimited,
    /// No request. None is counted.
    Deny,
}

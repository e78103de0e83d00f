//! Tiers: requests to which other rates apply, such as those of a plan that a customer pays for.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sluice_config::matches::Match;

use crate::policy::Rate;

/// Some requests of a limit, and what it admits of them: exactly one of rates, unlimited and deny.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.matches) || has(self.when)").message("at least one of matches, when must be set"))]
pub struct Tier {
    /// Name of the tier, unique in the limit.
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Requests of the tier: those that match at least one entry. Where applications understand a path in different ways,
    /// a tier with `deny` applies if any of them matches, and other tiers only if all do. At least one of `matches` and `when`
    /// is required.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 8))]
    pub matches: Vec<Match>,
    /// Condition in CEL that requests of the tier must also meet. Put it in single quotes. After an error a tier with `deny`
    /// applies, and another tier does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub when: Option<String>,
    /// Treatment of these requests.
    #[serde(flatten)]
    pub allowance: Allowance,
}

/// Treatment of the requests of a tier.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub enum Allowance {
    /// Numbers of requests that the limit admits. A request must pass all rates. Their periods must differ. All tiers of
    /// a limit count in the same records, so a client that changes its tier neither gains nor loses what it has used.
    /// Unless the algorithm counts in windows, the periods must be those of the limit's own rates.
    Rates(#[schemars(length(min = 1, max = 8))] Vec<Rate>),
    /// Admits every request, and counts none.
    Unlimited(Unlimited),
    /// Denies every request, and counts none.
    Deny(Deny),
}

/// Has no fields: write {}.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct Unlimited {}

/// Has no fields: write {}.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct Deny {}

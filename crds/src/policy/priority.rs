//! Priorities: requests that an adaptive limit sheds last.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};
use sluice_config::policy;
use sluice_config::policy::MAX_RESERVES;

use crate::checks::field::Field;
use crate::policy::Match;
use crate::policy::selection::compile_when;

/// Requests for which each adaptive limit of the policy keeps a part in reserve.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.matches) || has(self.when)").message("at least one of matches, when must be set"))]
pub struct Priority {
    /// Name of the priority, unique in the policy.
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Requests of the priority: those that match at least one entry. If a path can be read in several ways, each
    /// reading must match. At least one of `matches` and `when` is required.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 8))]
    pub matches: Vec<Match>,
    /// Condition in CEL that requests of the priority must also meet. Put it in single quotes. After an error a request does
    /// not have the priority.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub when: Option<String>,
    /// Part of each adaptive limit that is kept for requests of this priority, 1 to 90 percent, rounded up. All reserves
    /// together are at most 90. Requests of the priority also use what is not reserved.
    #[schemars(range(min = 1, max = 90))]
    pub reserve_percent: i64,
}

/// Compiles the priorities of a policy.
pub(super) fn compile(at: &Field<'_>, priorities: &[Priority]) -> Vec<policy::Priority> {
    let sum: i64 = priorities.iter().map(|priority| priority.reserve_percent).sum();
    if sum > i64::from(MAX_RESERVES) {
        at.violation(format_args!(
            "reserve {sum} percent together: the requests without a priority need at least {}, so at most {MAX_RESERVES} are allowed",
            100 - MAX_RESERVES
        ));
    }
    let compiled = priorities.iter().enumerate().map(|(n, priority)| {
        let at = at.entry(n);
        if priority.matches.is_empty() && priority.when.is_none() {
            at.at("matches").violation("is required unless `when` is set");
        }
        let matches = priority.matches.iter().enumerate();
        policy::Priority {
            name: priority.name.clone(),
            matches: matches.map(|(n, entry)| entry.compile(&at.at("matches").entry(n))).collect(),
            when: priority.when.as_ref().and_then(|when| compile_when(&at.at("when"), when)),
            reserve_percent: u32::try_from(priority.reserve_percent).unwrap_or_default(),
        }
    });
    compiled.collect()
}
